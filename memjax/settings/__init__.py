"""Settings of every part of an experiment, with the ranges of their values, their facts and their relations.

Nothing here imports JAX, so that `memjax --help` and a mistake in a command line are quick.
"""
