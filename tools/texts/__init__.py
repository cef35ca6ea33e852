"""What texts for people say of the results: parts of cells, a table of choices, a picture."""
