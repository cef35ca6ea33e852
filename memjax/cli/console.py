"""Checks and printing that several commands share. Importing this module does not import JAX."""

import contextlib
import json
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from memjax.config import Config

ANY_SIZE = 2**24
"""size of the vocabulary of models that are made only to ask for their capabilities, which do not depend on it"""


def check_serves(config: Config, capability: str) -> Any:
    """Makes the model of a config without reading anything, and returns it. Raises `ValueError` if it lacks the
    capability of this name, such as 'decodes'.

    Args:
      config: Configuration of the model.
      capability: Name of the capability (`Model.require`).
    """
    from memjax.tasks import make_task

    model = make_task(config).model(ANY_SIZE)
    model.require(capability)
    return model


@contextlib.contextmanager
def show_when_slow(what: str, seconds: float = 1.0) -> Iterator[None]:
    """Context manager that prints the text `what` on standard error if the body of its `with` statement takes longer
    than `seconds`.
    """
    timer = threading.Timer(seconds, lambda: print(f"{what} ...", file=sys.stderr, flush=True))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def preparation(seconds: float = 3.0) -> Callable[[str, int, int | None], None]:
    """Returns a function `progress(what, done, total)` that prints progress on standard error, after one second, then
    at most one line in `seconds`, and the end.

    `make_datasets` takes it.
    """
    from memjax.training.progress import pace_counts

    return pace_counts(lambda line, *_: print(line, file=sys.stderr, flush=True), seconds, wait=1.0)


def continuations(run: Any, prompts: Sequence[str], *, model: Any = None, **asked: Any) -> Iterator[list[str]]:
    """Yields the continuations of prompts by the model of an opened run (`LoadedRun`), or by `model`, piece by piece:
    lists with the next piece of text of each prompt.

    Args:
      run: A run (`LoadedRun`).
      prompts: Texts to continue.
      model: Model to use with the variables of the run, such as one with a cache. None for the model of the run.
      **asked: Other arguments of `continue_texts`.

    Raises:
      ValueError: The data of the run is not text.
    """
    from memjax.inference.texts import continue_texts

    experiment = run.experiment
    if experiment.tokenizer is None:
        raise ValueError("run: its data has no tokenizer (it is tokens already), allowed: a run on texts")
    length = experiment.config.data.segment_length
    model = model or experiment.model
    return continue_texts(model, run.variables, experiment.tokenizer, prompts, segment_length=length, **asked)


def align(rows: Sequence[Sequence[str]], numbers: int = 0) -> list[str]:
    """Formats rows of cells as a list of lines with aligned columns. `numbers` is how many of the last columns are
    aligned to the right.

    Example:
      >>> align([["steps", "10"], ["rows", "2,000"]], numbers=1)
      ['steps     10', 'rows   2,000']
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    sides = [str.ljust] * (len(widths) - numbers) + [str.rjust] * numbers
    place = lambda row: [side(cell, width) for side, cell, width in zip(sides, row, widths, strict=True)]
    return ["  ".join(place(row)).rstrip() for row in rows]


def split_sizes(documents: Callable[[str], Any]) -> dict[str, dict[str, int]]:
    """Counts the documents, tokens and bytes of every split, as split -> kind -> number. `documents` is a function that
    returns the documents of a split.

    Args:
      documents: Function that returns the documents of a split.
    """
    sizes = {}
    for split in ("train", "validation", "test"):
        in_split = documents(split)
        counts = in_split.num_tokens, in_split.num_bytes
        tokens, num_bytes = (sum(map(count, range(len(in_split)))) for count in counts)
        sizes[split] = {"documents": len(in_split), "tokens": tokens, "bytes": num_bytes}
    return sizes


def describe_facts(facts: Mapping[str, Any]) -> str:
    """Formats a mapping from names to values as text, one line with a name and a value for each.

    Example:
      >>> print(describe_facts({"entries": 12000, "recall": 0.5}))
      entries  12,000
      recall   0.5
    """
    return "\n".join(align([[name, show_value(value)] for name, value in facts.items()]))


def show_value(value: Any) -> str:
    """Formats a value as text for a table: integers with separators, lists and dictionaries as JSON."""
    if isinstance(value, bool) or not isinstance(value, int):
        return json.dumps(value) if isinstance(value, dict | list) else str(value)
    return f"{value:,}"
