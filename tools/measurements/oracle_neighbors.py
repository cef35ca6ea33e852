"""Writes neighbours that always contain the token itself, for the largest possible gain of SPALM.

    python -m tools.measurements.oracle_neighbors ORACLE --data.source.path DIR
    memjax train --config wikitext2_memories --variant spalm --data.neighbors-dir ORACLE --data.source.path DIR

These are the neighbours of a perfect search. The token stands at a random place among random tokens of the split, so
that only the context tells which one it is.
"""

from __future__ import annotations

import argparse

import numpy as np

from memjax.data.annotations import AnnotatedDocuments, write_neighbors
from memjax.data.documents import Documents
from memjax.data.sources import SPLITS
from memjax.settings.overrides import apply_overrides, load_config
from memjax.training.experiment import make_experiment


def oracle_neighbors(documents: Documents, num_neighbors: int, seed: int = 0) -> np.ndarray:
    """Returns int32 `[tokens, num_neighbors]`: each token among random tokens of the split, drawn by their frequency.

    Args:
      documents: Documents of the split.
      num_neighbors: Number of neighbours of each token.
      seed: Seed of the random tokens and places.
    """
    split, random = AnnotatedDocuments(documents), np.random.default_rng(seed)
    tokens = split.tokens(0, int(split.offsets[-1]))
    values = random.choice(tokens, size=(len(tokens), num_neighbors))
    values[np.arange(len(tokens)), random.integers(num_neighbors, size=len(tokens))] = tokens
    return values.astype(np.int32)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("to", help="folder that data.neighbors_dir will name")
    parser.add_argument("--num-neighbors", type=int, default=4, help="of each token")
    options, rest = parser.parse_known_args()
    config = apply_overrides(load_config("wikitext2_memories", "one_softmax"), rest, prog="oracle_neighbors")
    experiment = make_experiment(config)
    for split in SPLITS:
        documents = experiment.documents(split)
        values = oracle_neighbors(documents, options.num_neighbors, seed=SPLITS.index(split))
        write_neighbors(options.to, split, values, documents, store="oracle")


if __name__ == "__main__":
    main()
