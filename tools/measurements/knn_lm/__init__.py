"""kNN-LM on real text: one module for each table, run as `python -m tools.measurements.knn_lm.NAME RUN`.

`experiment` is what they share: stores, indices and neighbours that are made once and kept, tuning, and the tables.
"""
