"""Classification of vectors, such as pixels or cached features."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np

from memjax.data.array_files import read_array
from memjax.data.documents import Examples
from memjax.data.opening import Datasets
from memjax.data.source_readers import open_source
from memjax.data.token_files import Progress
from memjax.data.vectors import LabelledVectors, VectorArrays
from memjax.models.heads import ClassificationHead, TaskHead
from memjax.tasks.classification import ClassificationTask
from memjax.tasks.interface import Query

__all__ = ["VectorClassification"]


class VectorClassification(ClassificationTask):
    """Classification of vectors, such as pixels or cached features, with one target each, scored by accuracy."""

    main_metrics = ("accuracy",)
    target_unit = "vectors"
    texts = False
    second_input = ""

    def data(self, progress: Progress | None = None, *, tokenizer: Any = None) -> Datasets:
        """Opens the labelled vectors of each split. They have no tokenizer, and the arguments have no effect."""
        del progress, tokenizer
        data, classes = self.config.data, self.settings.num_classes
        source: Any = data.source

        @functools.cache
        def documents(split: str) -> LabelledVectors:
            options = {"length": data.segment_length, "num_classes": classes, "masked": source.mask_classes}
            return LabelledVectors(open_source(data, split), **options)

        return Datasets(documents, None, 0, 0)

    def read_queries(self, file: str) -> list[Query]:
        """Reads the rows of a `.npy` file of floats `[vectors, width]` as queries, one vector each."""
        if Path(file).suffix != ".npy":
            raise ValueError(f"{file}: given with vectors, allowed: a .npy, float32 [vectors, width]")
        values = read_array(file, "float32 [vectors, width]")
        if values.ndim != 2 or values.dtype.kind != "f":
            raise ValueError(f"{file}: given {values.dtype} {list(values.shape)}, allowed: float32 [vectors, width]")
        return [Query(row) for row in values.astype(np.float32)]

    def examples_of(self, queries: Sequence[Query], data: Datasets) -> Examples:
        """Turns queries, one vector each, into examples for the model. Their class is unknown and set to 0."""
        del data
        values, count = np.stack([question.text for question in queries]), self.settings.num_classes
        vectors = VectorArrays(values, np.zeros(len(values), np.int32), np.arange(len(values)), tuple(range(count)))
        return LabelledVectors(vectors, length=self.config.data.segment_length, num_classes=count)

    def head(self) -> TaskHead:
        """Returns a head with one dense layer, initialised like the hidden layers, or with class vectors compared by
        similarity.
        """
        if self.settings.similarity:
            return self.similarity_head()
        model = self.config.model
        options = {"dtype": jnp.dtype(model.compute_dtype), "initializer": model.initializer}
        return ClassificationHead(self.settings.num_classes, masks_unseen=self.settings.mask_unseen_classes, **options)
