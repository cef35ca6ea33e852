"""What product keys bring to a text encoder: one module for each table, results beside it."""
