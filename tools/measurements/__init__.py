"""What is measured of a model or of a run and is no training: each adds a line to the measurements of the results."""
