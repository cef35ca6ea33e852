"""The command `memjax datastore` and its actions on a datastore of keys and next tokens (kNN-LM, SPALM)."""

import dataclasses
import sys
import time
from pathlib import Path
from typing import Any

from memjax.cli.console import check_serves, describe_facts, preparation
from memjax.cli.parser import (
    EVALUATION_FIELDS,
    RUN,
    Parser,
    data_facts,
    make_reader,
    open_run,
    parse_with_config,
    print_result,
)
from memjax.cli.places import check_folder
from memjax.cli.processes import add_processes, connect
from memjax.config import Config
from memjax.settings.overrides import UsageError
from memjax.settings.ranges import Count, Number

ACTIONS = {
    "plan": "Computes the bytes and the time that building a store will take.",
    "build": "Builds a store from a split, or continues an unfinished one.",
    "index": "Builds an index of a store for approximate search.",
    "verify": "Checks the checksums of a store, and measures the recall of an index.",
    "neighbors": "Writes the neighbours of every token of a split, for SPALM.",
    "stats": "Describes a store.",
}
"""Action -> description of the action for its help"""


def run(arguments: list[str]) -> int:
    """Builds, indexes and checks a datastore: for each token of a split the key of its context and the next token."""
    if not arguments or arguments[0] not in ACTIONS:  # help, or a mistake
        parser = Parser("datastore", run.__doc__)
        actions = " ".join(f"{name}: {about}" for name, about in ACTIONS.items())
        parser.add_argument("action", choices=list(ACTIONS), help=f"{actions} ACTION --help lists its options.")
        parser.read(arguments)
    action, arguments = arguments[0], arguments[1:]
    parser = _datastore_parser(action)
    if {"-h", "--help"} & set(arguments) and "--run" in parser._option_string_actions:
        parse_with_config(parser, arguments, only=EVALUATION_FIELDS)  # prints the help and exits
    options, _ = parser.split(arguments)
    if options.part is not None and options.part >= options.parts:
        raise UsageError(f"--part: given {options.part}, allowed: 0 to {options.parts - 1} of --parts {options.parts}")
    for option, folder in (("--path", options.path if action == "build" else ""), ("--to", options.to)):
        if folder:
            check_folder(option, folder)
    if options.leaves and options.backend != "scann":
        raise UsageError(f"--leaves: given with --backend {options.backend}, allowed: with scann")
    if options.backend == "faiss" and (options.runner or options.parts > 1 or options.part is not None):
        raise UsageError("--backend: given 'faiss', allowed: scann where there are parts")
    if options.runner and options.coordinator:
        raise UsageError("--runner: given with --coordinator, allowed: one of the two")
    if options.runner and action == "build" and not options.shards:
        raise UsageError(
            "--shards: needed with --runner, a divisor of evaluation.batch_size: each is made by one worker"
        )
    if options.run is None:
        options, config = parser.read(arguments), None
    else:
        options, config = parse_with_config(parser, arguments, only=EVALUATION_FIELDS)
    from memjax.training import processes

    shared = action == "build" and not options.runner
    if config is not None:
        if shared:
            connect(options, config)
        check_serves(config, "stores_keys")
    facts = datastore_facts(action, options, config)
    if not shared or processes.is_first():
        print_result(facts, describe_facts, options)
    return 1 if facts.get("problems") else 0


def _datastore_parser(action: str) -> Parser:
    parser = Parser(f"datastore {action}", ACTIONS[action], reads="runs", json="")
    parser.set_defaults(backend="", leaves=0, parts=1, part=None, runner="", shards=0, coordinator="", to="")
    add = parser.add_argument
    add("--path", required=True, metavar="DIR", help="folder of the store")
    if action in ("plan", "build", "verify", "neighbors"):
        add("--run", required=action != "verify", metavar="DIR", help=RUN)
        split = "validation" if action == "verify" else "train"
        add(
            "--split",
            default=split,
            choices=["train", "validation", "test"],
            help=f"split of the run's data (default: {split})",
        )
        defaults = {"neighbors": "output_normed, the final hidden state", "verify": "that of the store"}
        default = defaults.get(action, "that of kNN-LM, the input of the last feed-forward part")
        add("--key", default="", metavar="TAP", help=f"name of the hidden state that is the key (default: {default})")
    if action in ("plan", "build"):
        add("--key-dtype", default="float16", help="dtype of stored keys (default: float16)")
    if action == "build":
        add(
            "--shards",
            type=make_reader(Number),
            default=0,
            metavar="N",
            help="number of shards of the store (default: one for each process)",
        )
        add_processes(parser)
    if action in ("index", "verify", "neighbors"):
        backends = ["scann", "faiss"] if action == "index" else ["scann", "faiss", "exact"]
        add("--backend", default="scann", choices=backends, help="kind of index (default: scann)")
        metrics = ["squared_l2", "inner_product"]
        add("--metric", default="squared_l2", choices=metrics, help="measure of the search (default: squared_l2)")
    if action == "index":
        parts = "number of parts of a scann index, which are searched one by one and merged (default: 1)"
        add("--parts", type=make_reader(Count), default=1, metavar="N", help=parts)
        part = "number of the only part to build, from 0, as one of several hosts does (default: all parts)"
        add("--part", type=make_reader(Number), metavar="I", help=part)
    if action in ("build", "index"):
        pieces = "shards" if action == "build" else "parts"
        runner = f"name of an Apache Beam runner, with which a pipeline makes the {pieces} (default: no Beam)"
        add("--runner", default="", metavar="NAME", help=runner)
        value = "option of the Beam pipeline; may be repeated"
        add("--runner-option", action="append", default=[], metavar="NAME=VALUE", help=value)
    if action in ("verify", "neighbors"):
        leaves = "number of leaves of ScaNN's tree to search (default: a twentieth of them)"
        add("--leaves", type=make_reader(Number), default=0, metavar="N", help=leaves)
        count = 32 if action == "verify" else 4
        neighbors = f"number of neighbours of each query (default: {count})"
        add("--num-neighbors", type=make_reader(Count), default=count, metavar="K", help=neighbors)
    if action == "verify":
        sample = "number of queries: stored keys, or with --run keys of tokens of the split (default: 1000)"
        add("--sample", type=make_reader(Count), default=1000, metavar="N", help=sample)
    if action == "neighbors":
        add("--to", required=True, metavar="DIR", help="folder to write, which data.neighbors_dir will name")
        far = (
            "number of tokens before and after a token from which it gets no neighbours, where the store has the same "
            "split (default: those of its article)"
        )
        add("--apart", type=make_reader(Number), metavar="N", help=far)
        other = (
            "run and store of the second half of the training split (data.train_half), beside --run and --path of "
            "the first "
            "half: each half gets its neighbours from the model that was not trained on it"
        )
        add("--other", nargs=2, metavar=("RUN", "STORE"), help=other)
    return parser


def datastore_facts(action: str, options: Any, config: Config | None) -> dict[str, Any]:
    """Carries out an action of `memjax datastore`, one of `ACTIONS` such as 'build', with the options of the command
    line, and returns its result as a dictionary of JSON values.

    Args:
      action: One of `ACTIONS`.
      options: Options of the command line.
      config: Configuration of the run. None where no run was given.
    """
    from memjax.datastore.store import Store

    if action in ("plan", "build"):
        return _plan_or_build(action, options, config)
    store = Store(Path(options.path).expanduser())
    match action:
        case "index":
            return _build_index(store, options)
        case "verify":
            return _verify(store, options, config)
        case "neighbors":
            return _write_neighbors(store, options, config)
    return store.describe()


def _plan_or_build(action: str, options: Any, config: Config | None) -> dict[str, Any]:
    from memjax.retrieval.building import build_datastore, build_with_beam, plan_datastore
    from memjax.retrieval.keys import TAP

    chosen = {"split": options.split, "key_dtype": options.key_dtype}
    if action == "plan":
        source = _key_source(options, config)
        plan = plan_datastore(source, options.path, **chosen)
        facts = {**dataclasses.asdict(plan), "store_bytes": plan.store_bytes, "fits": plan.fits}
        return source.run.checkpoint.facts() | facts
    chosen |= {"num_shards": options.shards, "progress": preparation()}
    if options.runner:
        chosen |= {"tap": options.key or TAP, "runner": options.runner, "runner_options": options.runner_option}
        return build_with_beam(options.run, options.path, config=config, **chosen).describe()
    source = _key_source(options, config)
    built = build_datastore(source, options.path, **chosen).describe()
    return source.run.checkpoint.facts() | built | data_facts(source.run)


def _key_source(options: Any, config: Config | None, store: Any = None, otherwise: str = "") -> Any:
    """Opens the run of `--run` as a source of keys.

    Args:
      options: Options of the command line, in which `--key` may name the hidden state that is the key.
      config: Configuration of the run.
      store: Store whose kind of key is used where neither `--key` nor `otherwise` names one.
      otherwise: Name of the hidden state where `--key` names none.
    """
    from memjax.retrieval.keys import TAP, make_key_extractor

    key = options.key or otherwise or (TAP if store is None else str(store.header.protocol.get("key", TAP)))
    return make_key_extractor(open_run(options.run, config, is_data_named=options.is_data_named), key)


def _open_index(store: Any, options: Any, **chosen: Any) -> Any:
    from memjax.datastore.opening import open_index

    leaves = {"leaves_to_search": options.leaves} if options.leaves else {}
    return open_index(store, options.backend, metric=options.metric, **leaves, **chosen)


def _verify(store: Any, options: Any, config: Config | None) -> dict[str, Any]:
    """Checks a store and its indices for damage. Where there is none, measures the recall of an index."""
    from memjax.datastore.artefacts import find_artefact_problems
    from memjax.datastore.verification import measure_recall

    sample: Any = options.sample
    if config is not None:
        from memjax.retrieval.building import check_store, sample_queries

        source = _key_source(options, config, store)
        check_store(source, store)
        sample = sample_queries(source, options.split, options.sample)
    problems = [*store.find_problems(preparation()), *find_artefact_problems(store)]
    facts: dict[str, Any] = {"entries": store.entries, "problems": problems}
    if not problems:
        value = measure_recall(_open_index(store, options), store, sample, options.num_neighbors)
        count = min(sample, store.entries) if isinstance(sample, int) else len(sample)
        facts |= {"backend": options.backend, f"recall@{options.num_neighbors}": value, "sample": count}
        facts |= {"queries": "stored keys" if config is None else f"{options.split} split"}
    return facts


def _write_neighbors(store: Any, options: Any, config: Config | None) -> dict[str, Any]:
    """Writes the neighbours of every token of a split into a folder for `data.neighbors_dir`."""
    from memjax.data.annotations import compare_target_shares, target_shares, write_neighbors
    from memjax.retrieval.keys import SPALM_TAP
    from memjax.retrieval.precomputation import (
        CrossFittingHalf,
        cross_fitted_neighbors,
        exclude_nearby,
        neighbors_of_split,
    )

    source, tell_done = _key_source(options, config, store, SPALM_TAP), preparation()
    index = _open_index(store, options, exact_scores=options.backend != "exact")
    name, count = store.fingerprint, options.num_neighbors
    first, second = CrossFittingHalf(source, store, index), _other_half(options, source) if options.other else None
    if second is not None:
        name += f"+{second.store.fingerprint}"
    if second is not None and options.split == "train":
        values, documents = cross_fitted_neighbors(first, second, count, progress=tell_done)
    else:
        exclude = None if options.apart is None else exclude_nearby(options.apart)
        values = neighbors_of_split(source, options.split, store, index, count, exclude=exclude, progress=tell_done)
        documents = source.run.experiment.documents(options.split)
    write_neighbors(options.to, options.split, values, documents, store=name)
    facts = {"folder": options.to, "split": options.split, "tokens": len(values), "neighbors": count}
    facts |= {"found": float((values >= 0).mean())} if values.size else {}
    shares = {f"target among, {split}": values[-1] for split, values in target_shares(options.to).items()}
    if line := compare_target_shares(options.to, count):
        print(line, file=sys.stderr, flush=True)
    return facts | shares


def _other_half(options: Any, source: Any) -> Any:
    """Opens the run and the store of `--other`, with the data of the run of `--run`."""
    from memjax.datastore.store import Store
    from memjax.retrieval.keys import make_key_extractor
    from memjax.retrieval.precomputation import CrossFittingHalf
    from memjax.training.runs import load_config

    run, path = options.other
    store, theirs, ours = Store(Path(path).expanduser()), load_config(run), source.run.experiment.config
    data = dataclasses.replace(ours.data, train_half=theirs.data.train_half)
    config = dataclasses.replace(theirs, data=data, evaluation=ours.evaluation)
    index = _open_index(store, options, exact_scores=options.backend != "exact")
    loaded = open_run(run, config, is_data_named=options.is_data_named)
    return CrossFittingHalf(make_key_extractor(loaded, source.tap), store, index)


def _build_index(store: Any, options: Any) -> dict[str, Any]:
    start, metric, parts = time.monotonic(), options.metric, options.parts
    facts: dict[str, Any] = {"backend": options.backend, "metric": metric, "entries": store.entries}
    if options.backend == "faiss":
        from memjax.datastore.faiss import build_faiss

        build_faiss(store, metric=metric)
    else:
        from memjax.datastore.scann import build_scann_parts

        chosen = range(parts) if options.part is None else [options.part]
        beam = {"runner": options.runner, "runner_options": options.runner_option}
        complete = build_scann_parts(store, chosen, parts, metric=metric, **beam)
        facts |= {"parts": parts, "built": list(chosen), "complete": complete}
    return {**facts, "seconds": round(time.monotonic() - start, 2)}
