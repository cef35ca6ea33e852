"""Measures the error of the signal of trained infinity-formers, beside their accuracy and perplexity.

    python -m tools.measurements.regression --run runs/results/RUN [RUN ...]

The error compares the signal with the hidden states that were written to it. Each run's hidden states are fitted with
the run's number of basis functions and with others, over the first documents of a split.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np

from memjax.config import InfinityFormer
from memjax.durable_files import read_json
from memjax.inspection.regression import RegressionErrors, regression_errors
from memjax.training.experiment import Experiment
from memjax.training.loaded_runs import load_run
from tools.results import pages
from tools.results.ledger import ROOT, Book, measured

SIZES = (0.25, 0.5, 1.0, 2.0)
"""Numbers of basis functions to compare, as shares of a segment's tokens."""


def read_documents(
    experiment: Experiment, split: str, count: int, max_segments: int = 0
) -> tuple[np.ndarray, np.ndarray]:
    """Returns the tokens that a model reads of the first documents of a split, and a mask that is False for padding.

    Args:
      experiment: Experiment of the run.
      split: Split of the run's data.
      count: Largest number of documents.
      max_segments: Largest number of segments of a document. 0 = all.

    Returns:
      Tokens int32 `[segments, documents, length]`, and a mask, bool of equal shape.
    """
    documents, length = experiment.documents(split), experiment.config.data.segment_length
    texts = [np.asarray(documents[index]) for index in range(min(count, len(documents)))]
    read = [np.concatenate([[experiment.begin_token], text[:-1]]) for text in texts]
    segments = -(-max(map(len, read)) // length)
    segments = min(segments, max_segments) if max_segments else segments
    tokens = np.zeros((len(read), segments * length), np.int32)
    mask = np.zeros(tokens.shape, bool)
    for row, text in enumerate(read):
        beginning = text[: tokens.shape[1]]
        tokens[row, : len(beginning)], mask[row, : len(beginning)] = beginning, True
    cut = lambda array: array.reshape(len(read), segments, length).swapaxes(0, 1)
    return cut(tokens), cut(mask)


def measure(directory: Path, split: str, count: int, max_segments: int) -> tuple[dict[str, Any], RegressionErrors]:
    """Returns the facts of a run, and the errors of its signal.

    The numbers of basis functions are the run's own and `SIZES` of a segment.

    Args:
      directory: Run directory.
      split: Split of the run's data.
      count: Largest number of documents.
      max_segments: Largest number of segments of a document. 0 = all.
    """
    run = load_run(directory)
    signal, length = run.experiment.config.model.attention, run.experiment.config.data.segment_length
    if not isinstance(signal, InfinityFormer):
        raise ValueError(f"run: given {directory} with {type(signal).__name__}, allowed: one of an InfinityFormer")
    others = {max(round(share * length / len(signal.widths)), 1) * len(signal.widths) for share in SIZES}
    sizes = sorted(others | {signal.num_basis})
    tokens, mask = read_documents(run.experiment, split, count, max_segments)
    model, params = run.experiment.model, run.variables["params"]
    errors = regression_errors(model, params, jnp.asarray(tokens), mask=jnp.asarray(mask), num_basis=sizes)
    score = read_json(directory / "finished.json")["results"]["evaluation"]
    facts = {
        "sticky": signal.sticky,
        "num_basis": signal.num_basis,
        "accuracy": score.get("accuracy"),
        "perplexity": score["perplexity"],
        "segment_length": length,
        "documents": tokens.shape[1],
    }
    return facts, errors


def as_facts(errors: RegressionErrors) -> dict[str, Any]:
    """Returns the arrays of the errors as lists, for JSON."""
    arrays = {"squares": errors.squares, "variance": errors.variance, "tokens": errors.tokens}
    relative = {"relative": errors.relative(), "overall": errors.overall()}
    known = {"layers": list(errors.layers), "sizes": list(errors.num_basis)}
    return known | {name: array.tolist() for name, array in (arrays | relative).items()}


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="recurrent.regression", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--run", nargs="+", required=True, type=Path, help="run directories of infinity-formers")
    parser.add_argument("--split", default="validation", help="of the documents (default: validation)")
    parser.add_argument("--documents", type=int, default=32, help="the first ones of the split (default: 32)")
    parser.add_argument("--max-segments", type=int, default=0, help="of every document (default: all)")
    parser.add_argument("--out", type=Path, default=ROOT, help="folder of the measurements")
    options = parser.parse_args(arguments)
    runs = {}
    for directory in options.run:
        facts, errors = measure(directory, options.split, options.documents, options.max_segments)
        runs[directory.name] = {**facts, "errors": as_facts(errors)}
        print(f"{directory.name}: {json.dumps(errors.overall().round(4).tolist())}", file=sys.stderr, flush=True)
    names = " ".join(directory.name for directory in options.run)
    command = f"python -m tools.measurements.regression --run {names} --split {options.split}"
    command += f" --documents {options.documents} --max-segments {options.max_segments}"
    about = (
        "Mean squared difference between the signal, read where each token stands, and the hidden states that were "
        f"written, as a share of their variance: 0 is exact, 1 is no better than the mean. Documents of "
        f"{options.split}, after their last update; accuracy and perplexity are those at the end of training. A "
        "regression with another number of functions than the run's fits the same hidden states; the model was not "
        "trained with it."
    )
    name = options.run[0].name.partition("-")[0]
    title = "infinity-former: the error of the regression"
    measurement = measured("regression", name, {"runs": runs}, command=command, title=title, about=about)
    pages.record(measurement, Book(options.out))
    return 0


if __name__ == "__main__":
    sys.exit(main())
