"""Classification of vectors: pixels, cached features."""

from __future__ import annotations

import functools
from typing import Any

import jax.numpy as jnp

from memjax.data.opening import Datasets, open_source
from memjax.data.token_files import Progress
from memjax.data.vectors import LabelledVectors
from memjax.models.heads import ClassificationHead
from memjax.tasks.classification import Classification

__all__ = ["VectorClassification"]


class VectorClassification(Classification):
    """Labelled vectors, one target each; measured by accuracy."""

    headline = ("accuracy",)
    scored = "vectors"
    verbs = ()
    about = ""

    def data(self, progress: Progress | None = None, *, tokenizer: Any = None) -> Datasets:
        """Labelled vectors; they have no tokenizer."""
        del progress, tokenizer
        data, classes = self.config.data, self.settings.num_classes
        source: Any = data.source

        @functools.cache
        def documents(split: str) -> LabelledVectors:
            named = {"length": data.segment_length, "num_classes": classes, "masked": source.mask_classes}
            return LabelledVectors(open_source(data, split), **named)

        return Datasets(documents, None, 0, 0)

    def head(self) -> ClassificationHead:
        """One matrix, begun as those of the hidden layers."""
        model = self.config.model
        return ClassificationHead(
            self.settings.num_classes, dtype=jnp.dtype(model.compute_dtype), initializer=model.initializer
        )
