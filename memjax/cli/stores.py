"""Options and opening of a datastore at inference (kNN-LM), for the commands that can use one."""

import argparse
import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from memjax.cli.parser import make_reader
from memjax.settings.overrides import UsageError
from memjax.settings.ranges import Count, Positive, Share

BACKENDS = ("exact", "streamed", "scann", "faiss")


def add_store(parser: argparse.ArgumentParser, otherwise: str) -> None:
    """Adds the options for a datastore whose neighbours are interpolated with the model to a parser. `otherwise` is the
    text of the help for a weight and a temperature that are not given.

    Args:
      parser: Parser of the command.
      otherwise: Description of the weight and the temperature that are used where none is given.
    """
    add, default = parser.add_argument, f"(default: {otherwise})"
    store = "datastore of the run, whose tokens after similar contexts are interpolated with the model (kNN-LM)"
    add("--datastore", default="", metavar="DIR", help=store)
    neighbors = "number of neighbours for each token (default: 32, or as tuned)"
    add("--knn-neighbors", type=make_reader(Count), metavar="K", help=neighbors)
    weight = f"weight of the neighbours in the interpolation, 0 to 1 {default}"
    add("--knn-weight", type=make_reader(Share), metavar="W", help=weight)
    temperature = f"temperature of the softmax over the neighbours' distances, above 0 {default}"
    add("--knn-temperature", type=make_reader(Positive), metavar="T", help=temperature)
    backend = "kind of search (default: an index that was built, or exact for a small store)"
    add("--knn-backend", default="", choices=BACKENDS, help=backend)


def check_store_options(options: argparse.Namespace, *, scores: bool = False) -> None:
    """Raises `ValueError` for options of a datastore that do not fit each other or the store. `scores` says whether the
    command scores targets, so that the weight of neighbours must be below 1.

    Args:
      options: Options of the verb.
      scores: Whether targets are scored. The weight of the neighbours must then be below 1, since a target may be
        missing among the neighbours.

    Raises:
      ValueError: An option that does not fit the store, or is given without one.
    """
    names = [name for name, value in vars(options).items() if name.startswith("knn_") and value not in (None, "")]
    if names and not options.datastore:
        raise UsageError(f"{_option(names[0])}: given without --datastore, allowed: with one")
    if scores and options.knn_weight == 1:
        allowed = "0 to below 1: a target that no neighbour has would have no probability"
        raise UsageError(f"--knn-weight: given 1, allowed: {allowed}")
    if options.datastore:
        from memjax.datastore.store import Store
        from memjax.retrieval.interpolation import check_neighbors

        check_neighbors(Store(Path(options.datastore).expanduser()).entries, options.knn_neighbors or 1)


def open_store(options: argparse.Namespace, run: Any) -> tuple[Any, Any, Any]:
    """Opens the datastore that the option `--datastore` names, for an opened run, and returns its source of keys, the
    store and its index.

    Raises:
      ValueError: The store was made by another run.
    """
    from memjax.datastore.store import Store
    from memjax.retrieval.building import check_store
    from memjax.retrieval.interpolation import open_exact_index
    from memjax.retrieval.keys import TAP, make_key_extractor

    store = Store(Path(options.datastore).expanduser())
    source = make_key_extractor(run, str(store.header.protocol.get("key", TAP)))
    check_store(source, store)
    return source, store, open_exact_index(store, options.knn_backend)


def score_store(options: argparse.Namespace, run: Any) -> tuple[Any, dict[str, Any]]:
    """Evaluates an opened run with the datastore that the options name, and returns the result and JSON values about
    the store and about the model without it.
    """
    from memjax.retrieval.interpolation import NEIGHBORS, evaluate_with_store

    source, store, index = open_store(options, run)
    fixed = {"weights": options.knn_weight, "temperatures": options.knn_temperature}
    candidates: dict[str, Any] = {name: (value,) for name, value in fixed.items() if value is not None}
    count = options.knn_neighbors or min(NEIGHBORS, store.entries)
    scored = evaluate_with_store(source, store, index=index, num_neighbors=count, **candidates)
    means = ("nats_per_token", "bits_per_byte", "perplexity")
    alone = {name: value for name in means if (value := getattr(scored.without_store, name)) is not None}
    return scored.with_store, {**_facts(store, scored.mixing), "without": alone}


def model_with_store(options: argparse.Namespace, run: Any) -> tuple[Any, Any, dict[str, Any]]:
    """Adds the datastore of the options to the model of an opened run, for generation. Returns the new run, the
    function that searches the store before each token, and facts about the store.

    Returns:
      The run with the new model and variables, the function that searches the store before each token, and facts about
      the store.

    Raises:
      ValueError: A weight or temperature is missing, and none has been tuned.
    """
    from memjax.retrieval.interpolation import NEIGHBORS, InterpolationWeights, load_interpolation, model_with_store

    weight, temperature = options.knn_weight, options.knn_temperature
    source, store, index = open_store(options, run)
    if weight is not None and temperature is not None:
        mixing = InterpolationWeights(weight, temperature, options.knn_neighbors or min(NEIGHBORS, store.entries))
    else:
        mixing = load_interpolation(source, store, index, options.knn_neighbors or 0)
        changes = {"weight": weight, "temperature": temperature}
        mixing = dataclasses.replace(mixing, **{name: value for name, value in changes.items() if value is not None})
    model, variables, recall = model_with_store(source, store, mixing, index=index)
    experiment = dataclasses.replace(run.experiment, model=model)
    return dataclasses.replace(run, experiment=experiment, variables=variables), recall, _facts(store, mixing)


def _facts(store: Any, mixing: Any) -> dict[str, Any]:
    return {"path": str(store.path), "entries": store.entries, **dataclasses.asdict(mixing)}


def describe_store(facts: Mapping[str, Any]) -> str:
    """Describes the facts about a datastore that a command used in one line of text: its neighbours, entries, weight
    and temperature.
    """
    tuned = f", tuned on {facts['tuned_on']}" if facts["tuned_on"] else ""
    mixing = f"weight {facts['weight']:g}, temperature {facts['temperature']:g}{tuned}"
    return f"{facts['neighbors']} neighbours of {facts['entries']:,} entries in {facts['path']} ({mixing})"


def _option(name: str) -> str:
    return "--" + name.replace("_", "-")
