"""What the memory of a Memorizing Transformer brings: one module for each table, results beside it."""
