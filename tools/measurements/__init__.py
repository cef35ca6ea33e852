"""Scripts that measure a model or a run without being a training run. Each adds a record to the measurements."""
