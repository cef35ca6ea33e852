"""Runs that panels look at, with parameters that were drawn and not learned: nothing is trained, nothing is saved."""

from types import SimpleNamespace

import jax
import numpy as np

from memjax.data.documents import ArrayDocuments
from memjax.data.tokenizers import ByteTokenizer
from memjax.report.panel import OpenedRun
from memjax.training.experiment import Experiment

TEXT = "def area(width, height):\n    return width * height\n\nprint(area(3, 4), area(5, 6))\n" * 3
"""about 250 tokens of bytes"""


def opened(config, model, variables, *, documents=None, **fields):
    """An opened run of a model, over documents of bytes unless others are given.

    Args:
      config: of the run.
      model: its model.
      variables: of the model.
      documents: of every split.
      **fields: of `OpenedRun`.
    """
    tokenizer = ByteTokenizer() if documents is None else None
    if documents is None:
        documents = ArrayDocuments([tokenizer.encode(TEXT), tokenizer.encode(TEXT[40:])])
    experiment = Experiment(config, model, lambda split: documents, 1, tokenizer)
    run = OpenedRun("no/such/run", **fields)
    run.__dict__["loaded_run"] = SimpleNamespace(experiment=experiment, variables=variables)
    return run


def drawn(shapes, seed=0):
    """Random values for a tree of shapes, all small: attention is not sharp."""
    random = np.random.default_rng(seed)
    return jax.tree.map(lambda leaf: jax.numpy.asarray(0.3 * random.normal(size=leaf.shape), leaf.dtype), shapes)
