"""Memory for Transformers: memory-augmented language models and memory-replay lifelong learning in JAX."""

__version__ = "0.1.0"
