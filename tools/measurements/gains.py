"""Lists the tokens that gain most from a longer memory of a Memorizing Transformer, and what was retrieved there.

    python -m tools.results run memory_added
    python -m tools.measurements.gains runs/results/memory_added-default-seed1

The run is evaluated with memories of several lengths, the longest of which is that of its configuration. The
parameters are the same.
"""

from __future__ import annotations

import argparse
import copy
import dataclasses
from pathlib import Path
from typing import Any

import numpy as np

from memjax.cli.parser import EVALUATION_FIELDS
from memjax.config import Config, Memorizing
from memjax.data.annotations import NUMBER, AnnotatedDocuments
from memjax.data.identifiers import ANNOTATION
from memjax.settings.overrides import apply_overrides
from memjax.training.experiment import make_evaluation_model
from memjax.training.loaded_runs import LoadedRun, load_run
from memjax.training.run_versions import versions
from memjax.training.runs import load_config
from memjax.training.scores import BatchScore
from memjax.typing import Batch
from tools.results import pages
from tools.results.ledger import measured, without_paths

SHOWN, MANY, PLACES, WIDTH = 12, 1000, 3, 8
"""Number of targets in the list, number of targets in the group that improves most, number of retrieved places that are
shown for each target, and number of tokens shown before a place."""


@dataclasses.dataclass(frozen=True)
class Scores:
    """Every scored target of a split, in the order of the documents.

    Attributes:
      numbers: int64 `[targets]`, number of each target among the tokens of the split.
      tokens: int32 `[targets]`, token ids of the targets.
      nats: `[targets]`, negative log-probabilities of the targets.
      distances: int32 `[targets]`, tokens since the identifier was last seen. 0 = no identifier, or its first time.
      places: int32 `[targets, retrieved]`, positions in the document that all heads retrieved, one head after the
        other. -1 = none.
      weights: `[targets, retrieved]`, weight of each place, divided by the number of heads.
    """

    numbers: np.ndarray
    tokens: np.ndarray
    nats: np.ndarray
    distances: np.ndarray
    places: np.ndarray
    weights: np.ndarray


def evaluate(path: str, config: Config, memory_length: int, *, track: bool = False) -> Scores:
    """Scores the split of a run with another length of memory.

    Args:
      path: Run directory.
      config: Configuration of the run.
      memory_length: Number of slots of the memory.
      track: Whether to collect what is retrieved, too.
    """
    config = copy.deepcopy(config)
    attention = _memorizing(config)
    config.evaluation.memory_length, attention.track_positions = memory_length, track
    loaded = load_run(path, config)
    layer = attention.chosen_layers(config.model.num_layers)[-1] % config.model.num_layers
    names = [f"layer_{layer:02d}/neighbor_{kind}" for kind in ("positions", "weights")] if track else []
    documents = AnnotatedDocuments(loaded.experiment.documents(config.evaluation.split), numbers=True)
    model = make_evaluation_model(loaded.experiment, config.evaluation)
    evaluator = loaded.experiment.evaluator(documents=documents, model=model, feature_names=names)
    parts: list[tuple[np.ndarray, ...]] = []

    def observe(batch: Batch, scored: BatchScore) -> None:
        chosen = batch.weights > 0
        distances = batch.extras.get(ANNOTATION, np.zeros_like(batch.targets))
        retrieved = [np.moveaxis(scored.features[name], 1, 2)[chosen] for name in names]  # [targets, heads, neighbors]
        flat = [array.reshape(len(array), -1) for array in retrieved] or [np.zeros((chosen.sum(), 0))] * 2
        target_arrays = (batch.extras[NUMBER], batch.targets, scored.nats, distances)
        parts.append(
            (
                *(array[chosen] for array in target_arrays),
                flat[0],
                flat[1] / (retrieved[1].shape[1] if retrieved else 1),
            )
        )

    evaluator(loaded.variables, observe=observe)
    joined = [np.concatenate(part) for part in zip(*parts, strict=True)]
    order = np.argsort(joined[0], kind="stable")
    return Scores(*(array[order] for array in joined))


def followers(scores: Scores, documents: AnnotatedDocuments) -> np.ndarray:
    """Returns the token after each retrieved place, `[targets, retrieved]`. -1 = none.

    Positions count the tokens that were read, and the begin token is the first. So the token after position p is token
    p of the document.
    """
    first = documents.offsets[np.searchsorted(documents.offsets, scores.numbers, side="right") - 1]
    tokens = np.concatenate([documents[i] for i in range(len(documents))])
    places = np.where(scores.places >= 0, first[:, None] + scores.places, 0)
    return np.where(scores.places >= 0, tokens[places], -1)


def measure(run: LoadedRun, path: str, lengths: tuple[int, ...]) -> dict[str, Any]:
    """Evaluates the run with each length of memory, and returns all numbers of the tables, and the list.

    Args:
      run: Loaded run.
      path: Run directory.
      lengths: Lengths of memory. Gains are those of the last one over the first.
    """
    documents = AnnotatedDocuments(run.experiment.documents(run.experiment.config.evaluation.split))
    decode = run.experiment.tokenizer.decode
    growth, short = [], None
    for length in lengths:
        scores = evaluate(path, run.experiment.config, length, track=length == lengths[-1])
        short = short or scores
        growth.append({"memory_length": length, "nats_per_token": float(scores.nats.mean(dtype=np.float64))})
    assert short is not None
    gains = short.nats - scores.nats
    best = np.argsort(-gains, kind="stable")
    after = followers(scores, documents)
    hits = after == scores.tokens[:, None]
    share = np.where(hits, scores.weights, 0).sum(axis=1)

    def summarize_group(chosen: Any) -> dict[str, float]:
        return {
            "targets": int(len(scores.tokens[chosen])),
            "gain": float(gains[chosen].mean()),
            "retrieved": float(hits[chosen].any(axis=1).mean()),
            "weight": float(share[chosen].mean()),
            "identifiers_seen_before": float((scores.distances[chosen] > 0).mean()),
        }

    examples = []
    for row in best[:SHOWN].tolist():
        number = int(scores.numbers[row])
        index = int(np.searchsorted(documents.offsets, number, side="right")) - 1
        first = int(documents.offsets[index])
        places = scores.places[row]
        total = {int(p): float(scores.weights[row][places == p].sum()) for p in np.unique(places[places >= 0])}
        nearest = sorted(total, key=lambda p: -total[p])[:PLACES]
        retrieved = [
            {
                "before": decode(documents[index][max(p - WIDTH, 0) : p].tolist()),
                "token": decode([int(documents[index][p])]),
                "tokens_ago": number - first - p,
                "weight": total[p],
            }
            for p in nearest
        ]
        examples.append(
            {
                "document": index,
                "before": decode(documents.before(number, 2 * WIDTH).tolist()),
                "token": decode([int(scores.tokens[row])]),
                "probabilities": [float(np.exp(-run_scores.nats[row])) for run_scores in (short, scores)],
                "retrieved": retrieved,
            }
        )
    groups = {"all": slice(None), f"the {MANY:,} that improve most": best[:MANY]}
    return {
        "growth": growth,
        "groups": {name: summarize_group(chosen) for name, chosen in groups.items()},
        "examples": examples,
    }


def _memorizing(config: Config) -> Memorizing:
    attention = config.model.attention
    if not isinstance(attention, Memorizing):
        raise ValueError(f"run: its attention is {type(attention).__name__}, allowed: Memorizing")
    return attention


def main() -> None:
    parser = argparse.ArgumentParser(prog="memorizing.gains", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("run", help="run directory")
    parser.add_argument("--lengths", type=int, nargs="+", default=[32, 128], help="of memory, beside the run's own")
    options, rest = parser.parse_known_args()
    if not (Path(options.run) / "finished.json").exists():
        parser.error(f"run: {options.run} is not finished; train it to its end")
    config = apply_overrides(load_config(options.run), rest, prog="gains", only=EVALUATION_FIELDS)
    run = load_run(options.run, config)
    lengths = (*sorted(options.lengths), _memorizing(config).memory_length)
    facts = measure(run, options.run, lengths)
    name, evaluation = Path(options.run).name, config.evaluation
    first = f", the first {evaluation.max_segments} segments of every row" if evaluation.max_segments else ""
    about = (
        f"The run (`memory_gain`, {config.training.steps:,} steps, a memory of {lengths[-1]:,}) is evaluated with "
        f"shorter memories too: {evaluation.split} split{first}, separate documents, {evaluation.batch_size} rows, "
        f"segments "
        f"of {config.data.segment_length}, {facts['groups']['all']['targets']:,} targets."
    )
    facts |= {"training_steps": config.training.steps, "versions": versions()}
    command = " ".join(["python -m tools.measurements.gains RUN", *without_paths(rest)])
    title = f"Memorizing Transformer: what a longer memory improves ({name})"
    pages.record(measured("gains", name, facts, command=command, title=title, about=about))


if __name__ == "__main__":
    main()
