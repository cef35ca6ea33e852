"""A datastore at inference (kNN-LM), as the verbs that take one ask for it."""

import argparse
import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from memjax.cli.parser import make_reader
from memjax.overrides import UsageError
from memjax.settings.ranges import Count, Positive, Share

BACKENDS = ("exact", "streamed", "scann", "faiss")


def add_store(parser: argparse.ArgumentParser, otherwise: str) -> None:
    """The options of a verb that mixes a store's neighbours in.

    Args:
      parser: Options of the verb, which get those of the store.
      otherwise: Description of the weight and the temperature that are used where none is given.
    """
    add, given = parser.add_argument, f"(default: {otherwise})"
    add("--datastore", default="", metavar="DIR", help="mix in what followed similar contexts of this store (kNN-LM)")
    add("--knn-neighbors", type=make_reader(Count), metavar="K", help="of each token (default: 32, or as tuned)")
    add("--knn-weight", type=make_reader(Share), metavar="W", help=f"share of the neighbours, 0 to 1 {given}")
    add("--knn-temperature", type=make_reader(Positive), metavar="T", help=f"of their distances, above 0 {given}")
    searched = "what searches (default: an index that was built, or exact where the store is small)"
    add("--knn-backend", default="", choices=BACKENDS, help=searched)


def check_store_options(options: argparse.Namespace, *, scores: bool = False) -> None:
    """Refuses options of a store where there is none, and what no store takes, before anything is read.

    Args:
      options: Options of the verb.
      scores: Whether targets are scored. The model then needs a share, since no neighbour may have a target.

    Raises:
      ValueError: An option that does not fit the store, or is given without one.
    """
    given = {
        name: value for name, value in vars(options).items() if name.startswith("knn_") and value not in (None, "")
    }
    if given and not options.datastore:
        raise UsageError(f"{_option(next(iter(given)))}: given without --datastore, allowed: with one")
    if scores and options.knn_weight == 1:
        allowed = "0 to below 1: a target that no neighbour has would have no probability"
        raise UsageError(f"--knn-weight: given 1, allowed: {allowed}")
    if options.datastore:
        from memjax.datastore.store import Store
        from memjax.retrieval.interpolation import check_neighbors

        check_neighbors(Store(Path(options.datastore).expanduser()).entries, options.knn_neighbors or 1)


def open_store(options: argparse.Namespace, run: Any) -> tuple[Any, Any, Any]:
    """The run as the source of the store's keys, the store, and what searches it; refuses a store of another run."""
    from memjax.datastore.store import Store
    from memjax.retrieval.building import check_store
    from memjax.retrieval.interpolation import open_searched
    from memjax.retrieval.keys import TAP, make_key_source

    store = Store(Path(options.datastore).expanduser())
    source = make_key_source(run, str(store.header.protocol.get("key", TAP)))
    check_store(source, store)
    return source, store, open_searched(store, options.knn_backend)


def score_store(options: argparse.Namespace, run: Any) -> tuple[Any, dict[str, Any]]:
    """The result of an evaluation with the store, and what is said of the store."""
    from memjax.retrieval.interpolation import NEIGHBORS, evaluate_with_store

    source, store, index = open_store(options, run)
    named = {"weights": options.knn_weight, "temperatures": options.knn_temperature}
    given: dict[str, Any] = {name: (value,) for name, value in named.items() if value is not None}
    count = options.knn_neighbors or min(NEIGHBORS, store.entries)
    scored = evaluate_with_store(source, store, index=index, num_neighbors=count, **given)
    means = ("nats_per_token", "bits_per_byte", "perplexity")
    alone = {name: value for name in means if (value := getattr(scored.alone, name)) is not None}
    return scored.result, {**_facts(store, scored.mixing), "without": alone}


def recall_of(options: argparse.Namespace, run: Any) -> tuple[Any, Any, dict[str, Any]]:
    """The run with the model and variables that search the store, what searches before each token, and what is said.

    Raises:
      ValueError: neither a weight and a temperature, nor any that were tuned.
    """
    from memjax.retrieval.interpolation import NEIGHBORS, Mixing, add_store, kept_mixing

    given = options.knn_weight, options.knn_temperature
    source, store, index = open_store(options, run)
    if None not in given:
        mixing = Mixing(*given, options.knn_neighbors or min(NEIGHBORS, store.entries))
    else:
        mixing = kept_mixing(source, store, index, options.knn_neighbors or 0)
        changed = zip(("weight", "temperature"), given, strict=True)
        mixing = dataclasses.replace(mixing, **{name: value for name, value in changed if value is not None})
    model, variables, recall = add_store(source, store, mixing, index=index)
    experiment = dataclasses.replace(run.experiment, model=model)
    return dataclasses.replace(run, experiment=experiment, variables=variables), recall, _facts(store, mixing)


def _facts(store: Any, mixing: Any) -> dict[str, Any]:
    return {"path": str(store.path), "entries": store.entries, **dataclasses.asdict(mixing)}


def describe_store(facts: Mapping[str, Any]) -> str:
    """The store of a result in words."""
    tuned = f", tuned on {facts['tuned_on']}" if facts["tuned_on"] else ""
    mixing = f"weight {facts['weight']:g}, temperature {facts['temperature']:g}{tuned}"
    return f"{facts['neighbors']} neighbours of {facts['entries']:,} entries in {facts['path']} ({mixing})"


def _option(name: str) -> str:
    return "--" + name.replace("_", "-")
