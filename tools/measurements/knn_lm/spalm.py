"""Compares no memory, Transformer-XL, Compressive Transformer and SPALM, and kNN-LM over them, and counts SPALM's gate.

    memjax train --config wikitext2_memories --variant no_memory --data.source.path DIR
    memjax train --config wikitext2_memories --variant compressive --data.source.path DIR
    memjax train --config knn_lm_wikitext --data.source.path DIR             # RUN: Transformer-XL, and the key model
    python -m tools.measurements.knn_lm RUN --data.source.path DIR                # its store and index
    memjax datastore neighbors --run RUN --path RUN/datastore/store --split SPLIT --num-neighbors 16 --to NEAR \\
        --key layer_-1/feed_forward_input_normed --data.source.path DIR      # for train, validation and test
    memjax train --config wikitext2_memories --variant spalm --data.neighbors-dir NEAR --data.source.path DIR
    python -m tools.measurements.knn_lm.spalm RUN --no-memory RUN --compressive RUN --spalm RUN --data.source.path DIR

kNN-LM is laid over all but the model without memory, with the same neighbours, those of RUN's hidden states. The number
of SPALM's neighbours is swept by `python -m tools.results run wikitext2_spalm_neighbors`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from memjax.config import Config, Spalm
from memjax.data.annotations import AnnotatedDocuments, target_shares
from memjax.retrieval.building import build_datastore
from memjax.retrieval.interpolation import StoreNeighbors
from memjax.retrieval.tuning import score_targets
from memjax.training.loaded_runs import LoadedRun, load_run
from memjax.training.metrics import count_parameters
from memjax.training.runs import load_config
from tools.measurements.knn_lm import experiment

GATE, BIN = "output_memory/gate", "output_memory/gate_up_to_"


def open_run(path: str, keys: Config) -> LoadedRun:
    """Loads a run, with the data and the evaluation of the configuration `keys` in the place of its own."""
    config, evaluation = load_config(path), keys.evaluation
    config.data.source = keys.data.source
    config.evaluation = dataclasses.replace(
        evaluation,
        protocol=evaluation.protocol or keys.data.protocol,
        segment_length=evaluation.segment_length or keys.data.segment_length,
    )
    return load_run(path, config)


def score(run: LoadedRun, split: str, retrieval: StoreNeighbors) -> tuple[Mapping[str, float], StoreNeighbors]:
    """Evaluates a run, and returns its metrics, and its scored targets with known neighbours.

    Args:
      run: Loaded run.
      split: Split of the run's data.
      retrieval: Neighbours of the targets, found for another model.

    Raises:
      ValueError: The run scores other targets than those with neighbours.
    """
    evaluator = run.experiment.evaluator(
        dataclasses.replace(run.experiment.config.evaluation, split=split),
        documents=AnnotatedDocuments(run.experiment.documents(split), numbers=True),
    )
    result, targets = score_targets(evaluator, run.variables)
    if not np.array_equal(targets.numbers, retrieval.targets.numbers):
        raise ValueError(f"{split}: neighbours are of other targets than were scored; delete them")
    return result.metrics, StoreNeighbors(targets, retrieval.neighbors)


def gates(metrics: Mapping[str, float]) -> dict[str, float]:
    """Returns the share of the tokens whose gate lies in each bin, by the upper end of the bin."""
    return {name.removeprefix(BIN): value for name, value in metrics.items() if name.startswith(BIN)}


def measure(runs: dict[str, LoadedRun], retrievals: dict[str, StoreNeighbors]) -> dict[str, Any]:
    """Evaluates the runs with and without kNN-LM, and returns all numbers of the table.

    Args:
      runs: Loaded runs "no_memory", "transformer_xl", "compressive" and "spalm", by these names.
      retrievals: Split -> neighbours of Transformer-XL's hidden states.
    """
    rows: dict[str, dict[str, Any]] = {}
    reported: dict[str, dict[str, Mapping[str, float]]] = {name: {} for name in runs}
    for name, run in runs.items():
        scored = {}
        for split, retrieval in retrievals.items():
            reported[name][split], scored[split] = score(run, split, retrieval)
        data, training = run.experiment.config.data, run.experiment.config.training
        rows[name] = experiment.base(scored) | {
            "parameters": count_parameters(run.variables["params"]) - run.experiment.model.padding(),
            "training_tokens": training.steps * data.batch_size * data.segment_length,
        }
        if name != "no_memory":
            rows[f"{name}_knn_lm"] = rows[name] | experiment.tuned(*scored.values())
    spalm = runs["spalm"].experiment
    count, shares = spalm.config.model.output.num_neighbors, target_shares(spalm.config.data.neighbors_dir)
    return {
        "rows": rows,
        "targets": {split: len(retrieval.targets) for split, retrieval in retrievals.items()},
        "spalm_neighbors": count,
        "share_found": {split: shares[split][count - 1] for split in ("train", *retrievals)},
        "mean_gate": {split: metrics[GATE] for split, metrics in reported["spalm"].items()},
        "gate": {split: gates(metrics) for split, metrics in reported["spalm"].items()},
    }


def main() -> None:
    options, config = experiment.parse(
        "spalm",
        __doc__,
        ("--no-memory", {"required": True, "help": "run directory of the model without memory"}),
        ("--compressive", {"required": True, "help": "run directory of the Compressive Transformer"}),
        ("--spalm", {"required": True, "help": "run directory of SPALM"}),
    )
    output = load_config(options.spalm).model.output
    if not isinstance(output, Spalm):
        raise ValueError(f"--spalm: given a run with {type(output).__name__}, allowed: Spalm")
    source = experiment.open_source(options.run, config)
    store = build_datastore(source, options.workdir / "store")
    index = experiment.scann_index(store)
    retrievals = {split: experiment.find(source, store, index, split, options.workdir) for split in experiment.SPLITS}
    runs = {
        "no_memory": open_run(options.no_memory, config),
        "transformer_xl": source.run,
        "compressive": open_run(options.compressive, config),
        "spalm": open_run(options.spalm, config),
    }
    facts = measure(runs, retrievals)
    facts |= {"entries": store.entries, "protocol": source.protocol()}
    protocol, targets, shares = facts["protocol"], facts["targets"], facts["share_found"]
    trained = {row["training_tokens"] for row in facts["rows"].values()}
    name = Path(options.run).name
    experiment.record(
        "spalm",
        facts,
        f"Systems beside SPALM: {name}",
        f"Perplexity per token of {targets['validation']:,} validation and {targets['test']:,} test tokens. Protocol: "
        f"{protocol['documents']}, {config.evaluation.batch_size} rows, segments of {protocol['segment_length']}. "
        f"Trained on "
        f"{' or '.join(f'{tokens:,}' for tokens in sorted(trained))} tokens each. Store of the training split, "
        f"{facts['entries']:,} entries, key `{protocol['key']}` of the Transformer-XL of the table (the paper's key "
        f"model is a separate Transformer). SPALM reads {facts['spalm_neighbors']} neighbours of each token; the token "
        f"is among what they propose for {shares['train']:.3f} of the training, {shares['validation']:.3f} of the "
        f"validation and {shares['test']:.3f} of the test tokens (the key model was trained on the training split). "
        f"kNN-LM: {experiment.NEIGHBORS} neighbours; weight and temperature tuned on validation. Gate "
        "1 = the hidden state alone, 0 = the neighbours alone; shares of tokens.",
        (options.no_memory, options.compressive, options.spalm),
    )


if __name__ == "__main__":
    main()
