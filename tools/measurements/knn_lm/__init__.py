"""Tables of kNN-LM on real text: one module for each table, run as `python -m tools.measurements.knn_lm.NAME RUN`.

The modules share `experiment`: stores, indices and neighbours that are made once and stored, tuning, and the tables.
"""
