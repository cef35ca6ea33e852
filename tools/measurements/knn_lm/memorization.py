"""Compares a datastore with a model that has learnt the training split by heart.

    memjax train --config knn_lm_wikitext --data.source.path DIR
    memjax train --config knn_lm_wikitext --data.source.path DIR --model.dropout 0 --training.steps 40000 \
        --name knn_lm_wikitext_memorized
    python -m tools.measurements.knn_lm.memorization RUN --memorized runs/knn_lm_wikitext_memorized \
        --data.source.path DIR

The paper's control: a model without dropout, trained until it predicts its training split well, is interpolated with
the base model in the place of the neighbours.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from memjax.retrieval.building import build_datastore
from memjax.retrieval.keys import KeyExtractor
from memjax.retrieval.tuning import WEIGHTS, ScoredTargets, mixture_nats, score_targets
from memjax.training.runs import load_config
from tools.measurements.knn_lm import experiment
from tools.results.tables import perplexity

TRAIN_SEGMENTS = 40
"""Number of segments of every row on which the fit to the training split is measured."""


def interpolate(base: dict[str, ScoredTargets], other: dict[str, ScoredTargets]) -> dict[str, float]:
    """Tunes the weight of another model on validation, and returns it with the nats per token of both splits.

    Args:
      base: Scored targets of the base model, by split.
      other: Scored targets of the other model, by split.
    """
    if any((base[split].numbers != other[split].numbers).any() for split in experiment.SPLITS):
        raise ValueError("memorized: its targets are not those of the run; give it the same evaluation")
    nats = {
        split: mixture_nats(base[split].log_probs, other[split].log_probs[None], WEIGHTS)[0] / len(base[split])
        for split in experiment.SPLITS
    }
    best = int(np.argmin(nats["validation"]))
    return {"weight": WEIGHTS[best], **{split: float(row[best]) for split, row in nats.items()}}


def training_nats(run: str, config: Any) -> float:
    """Returns the nats per token of the beginnings of the rows of the training split."""
    config.evaluation.max_segments = TRAIN_SEGMENTS
    source = experiment.open_source(run, config)
    return source.evaluator("train")(source.variables).nats_per_token or 0.0


def measure(source: KeyExtractor, other: KeyExtractor, workdir: Path) -> dict[str, Any]:
    """Returns all numbers of the table but the fit to the training split.

    Args:
      source: Run of the base model.
      other: Run of the model that has learnt the training split by heart.
      workdir: Folder of the store and the neighbours.
    """
    store = build_datastore(source, workdir / "store")
    index = experiment.scann_index(store)
    retrievals = {split: experiment.find(source, store, index, split, workdir) for split in experiment.SPLITS}
    base_targets = {split: retrieval.targets for split, retrieval in retrievals.items()}
    by_heart = {split: score_targets(other.evaluator(split), other.variables)[1] for split in experiment.SPLITS}
    alone = {split: -float(targets.log_probs.mean(dtype=np.float64)) for split, targets in by_heart.items()}
    return {
        "targets": {split: len(targets) for split, targets in base_targets.items()},
        "rows": {
            "base model": experiment.base(retrievals),
            "memorising model alone": alone,
            "base + memorising model": interpolate(base_targets, by_heart),
            "base + kNN-LM": experiment.tuned(*retrievals.values()),
        },
        "protocol": source.protocol(),
    }


def main() -> None:
    memorized = ("--memorized", {"required": True, "help": "run of the model without dropout"})
    options, config = experiment.parse("memorization", __doc__, memorized)
    other = load_config(options.memorized)
    other.data.source, other.evaluation = config.data.source, config.evaluation
    source = experiment.open_source(options.run, config)
    facts = measure(source, experiment.open_source(options.memorized, other), options.workdir)
    fit = {"base": training_nats(options.run, config), "memorising": training_nats(options.memorized, other)}
    experiment.record(
        "memorization",
        {**facts, "training": fit, "steps": other.training.steps},
        "kNN-LM: a memorising model in the place of the neighbours",
        f"Perplexity of the training split (beginnings of its rows): {perplexity(fit['base'])} by the base model, "
        f"{perplexity(fit['memorising'])} by the memorising one ({other.training.steps:,} steps, dropout "
        f"{other.model.dropout:g}); {experiment.protocol_text(facts, config)}",
        (options.memorized,),
    )


if __name__ == "__main__":
    main()
