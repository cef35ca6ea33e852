"""What product keys bring to a text encoder: one module for each table, results beside it.

`runs` is what they share: trainings that are made once and go on after an interruption, and what is measured of them.
"""
