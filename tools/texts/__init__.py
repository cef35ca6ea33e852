"""Makes parts of the README and guides from the results: parts of cells, a table of choices, a picture."""
