"""`memjax datastore` and its actions."""

import dataclasses
import sys
import time
from pathlib import Path
from typing import Any

from memjax.cli.parser import EVALUATION_FIELDS, RUN, Parser, data_facts, make_reader, open_run, tell, with_config
from memjax.cli.places import check_folder
from memjax.cli.processes import add_processes, connect
from memjax.config import Config
from memjax.console import check_serves, describe_facts, preparation
from memjax.overrides import UsageError
from memjax.settings.ranges import Count, Number

ACTIONS = {
    "plan": "bytes and time before building",
    "build": "or go on building",
    "index": "for approximate search",
    "verify": "checksums, and the recall of an index",
    "neighbors": "of every token of a split, for SPALM",
    "stats": "what a store is",
}


def run(arguments: list[str]) -> int:
    """Keys and next tokens of a split, as a trained model sees it: what it will cost, building it, and its indices."""
    if not arguments or arguments[0] not in ACTIONS:  # help, or a mistake
        parser = Parser("datastore", run.__doc__)
        told = "; ".join(f"{name}: {about}" for name, about in ACTIONS.items())
        parser.add_argument("action", choices=list(ACTIONS), help=f"{told}; ACTION --help tells its options")
        parser.read(arguments)
    action, arguments = arguments[0], arguments[1:]
    parser = _datastore_parser(action)
    if {"-h", "--help"} & set(arguments) and "--run" in parser._option_string_actions:
        with_config(parser, arguments, only=EVALUATION_FIELDS)  # prints what it has to, and exits
    given, _ = parser.split(arguments)
    if given.part is not None and given.part >= given.parts:
        raise UsageError(f"--part: given {given.part}, allowed: 0 to {given.parts - 1} of --parts {given.parts}")
    for option, folder in (("--path", given.path if action == "build" else ""), ("--to", given.to)):
        if folder:
            check_folder(option, folder)
    if given.leaves and given.backend != "scann":
        raise UsageError(f"--leaves: given with --backend {given.backend}, allowed: with scann")
    if given.backend == "faiss" and (given.runner or given.parts > 1 or given.part is not None):
        raise UsageError("--backend: given 'faiss', allowed: scann where there are parts")
    if given.runner and given.coordinator:
        raise UsageError("--runner: given with --coordinator, allowed: one of the two")
    if given.runner and action == "build" and not given.shards:
        raise UsageError("--shards: needed with --runner, a divisor of evaluation.rows: each is made by one worker")
    if given.run is None:
        options, config = parser.read(arguments), None
    else:
        options, config = with_config(parser, arguments, only=EVALUATION_FIELDS)
    from memjax.training import processes

    shared = action == "build" and not given.runner
    if config is not None:
        if shared:
            connect(options, config)
        check_serves(config, "stores_keys")
    facts = datastore_facts(action, options, config)
    if not shared or processes.is_first():
        tell(facts, describe_facts, options)
    return 1 if facts.get("problems") else 0


def _datastore_parser(action: str) -> Parser:
    parser = Parser(f"datastore {action}", ACTIONS[action], json="")
    parser.set_defaults(backend="", leaves=0, parts=1, part=None, runner="", shards=0, coordinator="", to="")
    add = parser.add_argument
    add("--path", required=True, metavar="DIR", help="the folder of the store")
    if action in ("plan", "build", "verify", "neighbors"):
        add("--run", required=action != "verify", metavar="DIR", help=RUN)
        split = "validation" if action == "verify" else "train"
        add(
            "--split",
            default=split,
            choices=["train", "validation", "test"],
            help=f"of the run's data (default: {split})",
        )
        told = "output_normed, the final hidden state" if action == "neighbors" else "that of kNN-LM"
        add("--key", default="", metavar="TAP", help=f"the inner tensor that is the key (default: {told})")
    if action in ("plan", "build"):
        add("--key-dtype", default="float16", help="of stored keys (default: float16)")
    if action == "build":
        add(
            "--shards",
            type=make_reader(Number),
            default=0,
            metavar="N",
            help="of the store (default: one for each process)",
        )
        add_processes(parser)
    if action in ("index", "verify", "neighbors"):
        backends = ["scann", "faiss"] if action == "index" else ["scann", "faiss", "exact"]
        add("--backend", default="scann", choices=backends, help="(default: scann)")
        add("--metric", default="squared_l2", choices=["squared_l2", "inner_product"], help="(default: squared_l2)")
    if action == "index":
        parts = "parts of a scann index, searched one by one and merged (default: 1)"
        add("--parts", type=make_reader(Count), default=1, metavar="N", help=parts)
        add("--part", type=make_reader(Number), metavar="I", help="build only this one, as one host of several does")
    if action in ("build", "index"):
        runner = f"{'shards' if action == 'build' else 'parts'} are made by an Apache Beam pipeline with this runner"
        add("--runner", default="", metavar="NAME", help=runner)
        value = "an option of the pipeline; may be repeated"
        add("--runner-option", action="append", default=[], metavar="NAME=VALUE", help=value)
    if action in ("verify", "neighbors"):
        leaves = "leaves of ScaNN's tree that are searched (default: a twentieth)"
        add("--leaves", type=make_reader(Number), default=0, metavar="N", help=leaves)
        count = 32 if action == "verify" else 4
        add("--num-neighbors", type=make_reader(Count), default=count, metavar="K", help=f"of each (default: {count})")
    if action == "verify":
        sample = "queries: stored keys, or with --run what its model asks at tokens of the split (default: 1000)"
        add("--sample", type=make_reader(Count), default=1000, metavar="N", help=sample)
    if action == "neighbors":
        add("--to", required=True, metavar="DIR", help="the folder that data.neighbors will name")
        far = "none from so many tokens before and after, where the store is of the same split (default: the article)"
        add("--apart", type=make_reader(Number), metavar="N", help=far)
        other = (
            "the run of the second half of the training split (data.half) and its store, beside --run and --path of "
            "the first: each half gets its neighbours from the model that was not trained on it"
        )
        add("--other", nargs=2, metavar=("RUN", "STORE"), help=other)
    return parser


def datastore_facts(action: str, options: Any, config: Config | None) -> dict[str, Any]:
    """Does what `memjax datastore` was asked for, and says what came out.

    Args:
      action: of the datastore.
      options: of the command line.
      config: of the run, where one was given.
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
    """The run whose inner tensor is the key: the one that was asked for, `otherwise`, or that of the store."""
    from memjax.retrieval.keys import TAP, make_key_source

    key = options.key or otherwise or (TAP if store is None else str(store.header.protocol.get("key", TAP)))
    return make_key_source(open_run(options.run, config, is_data_named=options.is_data_named), key)


def _open_index(store: Any, options: Any, **chosen: Any) -> Any:
    from memjax.datastore.opening import open_index

    leaves = {"leaves_to_search": options.leaves} if options.leaves else {}
    return open_index(store, options.backend, metric=options.metric, **leaves, **chosen)


def _verify(store: Any, options: Any, config: Config | None) -> dict[str, Any]:
    """Damage of the store and its indices; where there is none, the recall of one of them."""
    from memjax.datastore.artefacts import artefact_problems
    from memjax.datastore.verification import recall

    sample: Any = options.sample
    if config is not None:
        from memjax.retrieval.building import check_store, sample_queries

        source = _key_source(options, config, store)
        check_store(source, store)
        sample = sample_queries(source, options.split, options.sample)
    problems = [*store.problems(preparation()), *artefact_problems(store)]
    facts: dict[str, Any] = {"entries": store.entries, "problems": problems}
    if not problems:
        found = recall(_open_index(store, options), store, sample, options.num_neighbors)
        count = min(sample, store.entries) if isinstance(sample, int) else len(sample)
        facts |= {"backend": options.backend, f"recall@{options.num_neighbors}": found, "sample": count}
        facts |= {"queries": "stored keys" if config is None else f"{options.split} split"}
    return facts


def _write_neighbors(store: Any, options: Any, config: Config | None) -> dict[str, Any]:
    """The neighbours of every token of a split, into a folder for `data.neighbors`."""
    from memjax.data.annotations import target_shares, unlike_neighbors, write_neighbors
    from memjax.retrieval.keys import SPALM_TAP
    from memjax.retrieval.precomputation import Half, near, neighbors_by_halves, neighbors_of_split

    source, tell_done = _key_source(options, config, store, SPALM_TAP), preparation()
    index = _open_index(store, options, exact_scores=options.backend != "exact")
    name, count = store.fingerprint, options.num_neighbors
    first, second = Half(source, store, index), _other_half(options, source) if options.other else None
    if second is not None:
        name += f"+{second.store.fingerprint}"
    if second is not None and options.split == "train":
        values, documents = neighbors_by_halves(first, second, count, progress=tell_done)
    else:
        exclude = None if options.apart is None else near(options.apart)
        values = neighbors_of_split(source, options.split, store, index, count, exclude=exclude, progress=tell_done)
        documents = source.run.experiment.documents(options.split)
    write_neighbors(options.to, options.split, values, documents, store=name)
    facts = {"folder": options.to, "split": options.split, "tokens": len(values), "neighbors": count}
    facts |= {"found": float((values >= 0).mean())} if values.size else {}
    shares = {f"target among, {split}": found[-1] for split, found in target_shares(options.to).items()}
    if line := unlike_neighbors(options.to, count):
        print(line, file=sys.stderr, flush=True)
    return facts | shares


def _other_half(options: Any, source: Any) -> Any:
    """The run of `--other` on the data of the first one, with its store."""
    from memjax.datastore.store import Store
    from memjax.retrieval.keys import make_key_source
    from memjax.retrieval.precomputation import Half
    from memjax.training.runs import load_config

    run, path = options.other
    store, theirs, ours = Store(Path(path).expanduser()), load_config(run), source.run.experiment.config
    data = dataclasses.replace(ours.data, half=theirs.data.half)
    config = dataclasses.replace(theirs, data=data, evaluation=ours.evaluation)
    index = _open_index(store, options, exact_scores=options.backend != "exact")
    loaded = open_run(run, config, is_data_named=options.is_data_named)
    return Half(make_key_source(loaded, source.tap), store, index)


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
