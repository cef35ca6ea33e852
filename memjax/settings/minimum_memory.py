"""Lower bounds of the memory that a configuration needs, computed from its fields before any array is made."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from memjax.config import Config

__all__ = ["check_sizes"]


class MinimumSize(NamedTuple):
    """A lower bound in bytes of the device memory that one part of a run needs, with the fields of the config that
    determine it.

    Attributes:
      what: Purpose of the memory, as a message says it.
      bytes: Minimum number of bytes.
      fields: Values of the fields that determine the bound: dotted name -> (value, an ordinary value).
    """

    what: str
    bytes: int
    fields: dict[str, tuple[int, int]]


def minimum_sizes(config: Config) -> Iterator[MinimumSize]:
    """Yields lower bounds of the device memory that a config needs (`MinimumSize`), one for each large part such as
    parameters or activations.
    """
    return {"vectors": needs_of_vectors, "words": needs_of_words, "bags": needs_of_bags}.get(
        config.model.reads, needs_of_tokens
    )(config)


def needs_of_words(config: Config) -> Iterator[MinimumSize]:
    """Yields lower bounds of the device memory (`MinimumSize`) for a config whose model reads sentences word by word
    (BiLSTM).
    """
    model, data, scored = config.model, config.data, config.evaluation
    width = {"model.hidden": (model.hidden, 1024), "model.dim": (model.dim, 1024)}
    matrices = 64 * model.hidden * (model.hidden + model.dim)
    yield MinimumSize("parameters and their gradients", matrices, width)
    for name, rows in (("data.batch_size", data.batch_size), ("evaluation.batch_size", scored.batch_size)):
        states = 8 * rows * data.segment_length * model.hidden
        of_rows = {name: (rows, 256), "data.segment_length": (data.segment_length, 256)}
        yield MinimumSize("one state a word", states, {**of_rows, **width})


def needs_of_bags(config: Config) -> Iterator[MinimumSize]:
    """Yields lower bounds of the device memory (`MinimumSize`) for a config whose model counts tokens in buckets
    (TokenBag).
    """
    model, scored = config.model, config.evaluation
    width = {"model.buckets": (model.buckets, 1 << 16)}
    sizes = (model.buckets, *model.widths, config.task.num_classes)
    yield MinimumSize("parameters and their gradients", sum(8 * a * b for a, b in itertools.pairwise(sizes)), width)
    for name, rows in (("data.batch_size", config.data.batch_size), ("evaluation.batch_size", scored.batch_size)):
        yield MinimumSize("the counts of each row", 4 * rows * model.buckets, {name: (rows, 256), **width})


def needs_of_vectors(config: Config) -> Iterator[MinimumSize]:
    """Yields lower bounds of the device memory (`MinimumSize`) for a config whose model reads vectors (Perceptron)."""
    model, data, scored = config.model, config.data, config.evaluation
    sizes, widest = (data.segment_length, *model.widths), max(model.widths, default=1)
    read = {"data.segment_length": (data.segment_length, 1024)}
    width = {"model.widths": (widest, 1024), **read}
    matrices = sum(8 * rows * columns for rows, columns in itertools.pairwise(sizes))
    yield MinimumSize("parameters and their gradients", matrices, width)
    for name, rows in (("data.batch_size", data.batch_size), ("evaluation.batch_size", scored.batch_size)):
        vectors = 4 * rows * max(sizes) // (config.training.num_microbatches if name == "data.batch_size" else 1)
        yield MinimumSize("one vector a row", vectors, {name: (rows, 256), **width})


def needs_of_tokens(config: Config) -> Iterator[MinimumSize]:
    """Yields lower bounds of the device memory (`MinimumSize`) for a config whose model reads
    tokens (a Transformer).
    """
    model, data, scored = config.model, config.data, config.evaluation
    hidden = model.feed_forward.dim or 4 * model.dim
    width = {"model.dim": (model.dim, 1024)}
    layers = {"model.num_layers": (model.num_layers, 24), "model.feed_forward.dim": (hidden, 4096)}
    parameters = 8 * model.num_layers * model.dim * (model.dim + hidden)
    yield MinimumSize("parameters and their gradients", parameters, {**width, **layers})
    multiple = config.sharding.pad_vocab_to_multiple
    yield MinimumSize(
        "the vocabulary's table", 8 * multiple * model.dim, {"sharding.pad_vocab_to_multiple": (multiple, 128), **width}
    )
    of_rows = {"data.batch_size": (data.batch_size, 64), "data.segment_length": (data.segment_length, 1024)}
    tokens = data.batch_size * data.segment_length
    yield MinimumSize(
        "one activation a token", 2 * tokens * model.dim // config.training.num_microbatches, {**of_rows, **width}
    )
    segments = config.training.segments_per_update
    read = 8 * tokens * segments + 1024 * data.batch_size
    yield MinimumSize("the tokens of an update", read, {**of_rows, "training.segments_per_update": (segments, 8)})
    length = scored.segment_length or data.segment_length
    of_rows = {"evaluation.batch_size": (scored.batch_size, 64), "evaluation.segment_length": (length, 1024)}
    yield MinimumSize(
        "one activation a token", scored.batch_size * (2 * length * model.dim + 1024), {**of_rows, **width}
    )
    slots, name = scored.memory_length or 0, "evaluation.memory_length"
    yield MinimumSize("a memory", 2 * scored.batch_size * slots * model.dim, {name: (slots, 8192), **width})
    slots = model.memory_facts.memory_length or 0
    name = "model.attention.memory_length"
    yield MinimumSize(
        "a memory",
        2 * data.batch_size * slots * model.dim,
        {name: (slots, 8192), "data.batch_size": (data.batch_size, 64), **width},
    )


def check_sizes(config: Config, available: int) -> None:
    """Raises `ValueError` if one of the lower bounds of a config exceeds `available`, the number of bytes of all
    devices together.

    Args:
      config: A valid configuration.
      available: Number of bytes of all devices together.

    Raises:
      ValueError: The needed memory is not available. The line names the field that is farthest above an ordinary value.
    """
    for need in minimum_sizes(config):
        if need.bytes > available:
            field, (value, _) = max(need.fields.items(), key=lambda item: item[1][0] / item[1][1])
            wanted, here = (f"{count / 2**30:,.1f} GiB" for count in (need.bytes, available))
            raise ValueError(f"{field}: given {value}, needs {wanted} for {need.what}, allowed: what fits into {here}")
