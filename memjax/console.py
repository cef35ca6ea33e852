"""What several verbs of the command line ask and print; importing it starts no JAX."""

import contextlib
import json
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from memjax.config import Config

ANY_SIZE = 2**24
"""a vocabulary as large as any: what a model serves does not depend on it"""


def check_serves(config: Config, capability: str) -> Any:
    """Refuses in one line, before anything is read, what the model of a run cannot do (`Model.require`)."""
    from memjax.tasks import task_of

    model = task_of(config).model(ANY_SIZE)
    model.require(capability)
    return model


@contextlib.contextmanager
def waiting(what: str, seconds: float = 1.0) -> Iterator[None]:
    """Says on standard error what is done, where the body takes longer than so many seconds."""
    timer = threading.Timer(seconds, lambda: print(f"{what} ...", file=sys.stderr, flush=True))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def preparation(seconds: float = 3.0) -> Callable[[str, int, int | None], None]:
    """A `progress` for `make_datasets`: a line on standard error after one second, then every few."""
    told = time.monotonic() + 1 - seconds

    def progress(what: str, done: int, total: int | None) -> None:
        nonlocal told
        if total == 0:
            print(what, file=sys.stderr, flush=True)
        elif time.monotonic() - told >= seconds:
            told = time.monotonic()
            print(f"{what}: {done:,}" + (f" of {total:,}" if total else ""), file=sys.stderr, flush=True)

    return progress


def continuations(run: Any, prompts: Sequence[str], *, model: Any = None, **asked: Any) -> Iterator[list[str]]:
    """The pieces of text that continue the prompts, a list of one for each at a time.

    Args:
      run: a `LoadedRun`.
      prompts: texts.
      model: with the variables of the run's own, such as one with a cache; None = the run's own.
      **asked: of `continue_texts`.

    Raises:
      ValueError: a run on data that is no text.
    """
    from memjax.inference.texts import continue_texts

    experiment = run.experiment
    if experiment.tokenizer is None:
        raise ValueError("run: its data has no tokenizer (it is tokens already), allowed: a run on texts")
    length = experiment.config.data.segment_length
    model = model or experiment.model
    return continue_texts(model, run.variables, experiment.tokenizer, prompts, segment_length=length, **asked)


def align(rows: Sequence[Sequence[str]], numbers: int = 0) -> list[str]:
    """Lines of cells in columns, of which the last so many hold numbers and end at the right.

    Example:
      >>> align([["steps", "10"], ["rows", "2,000"]], numbers=1)
      ['steps     10', 'rows   2,000']
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    sides = [str.ljust] * (len(widths) - numbers) + [str.rjust] * numbers
    place = lambda row: [side(cell, width) for side, cell, width in zip(sides, row, widths, strict=True)]
    return ["  ".join(place(row)).rstrip() for row in rows]


def split_sizes(documents: Callable[[str], Any]) -> dict[str, dict[str, int]]:
    """Documents, tokens and bytes of every split."""
    sizes = {}
    for split in ("train", "validation", "test"):
        found = documents(split)
        tokens, num_bytes = (sum(map(count, range(len(found)))) for count in (found.num_tokens, found.num_bytes))
        sizes[split] = {"documents": len(found), "tokens": tokens, "bytes": num_bytes}
    return sizes


def describe_facts(facts: Mapping[str, Any]) -> str:
    """Facts as lines of a name and a value.

    Example:
      >>> print(describe_facts({"entries": 12000, "recall": 0.5}))
      entries  12,000
      recall   0.5
    """
    return "\n".join(align([[name, show_value(value)] for name, value in facts.items()]))


def show_value(value: Any) -> str:
    """A value of a table: integers with separators, lists as JSON."""
    if isinstance(value, bool) or not isinstance(value, int):
        return json.dumps(value) if isinstance(value, dict | list) else str(value)
    return f"{value:,}"
