"""What the verbs of the command line read and print: prompts, continuations, evaluations, data."""

import dataclasses
import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from memjax.config import Config
from memjax.data.sources import read_text
from memjax.inference.texts import continue_texts
from memjax.models.contract import Model

ANY_SIZE = 2**24
"""a vocabulary as large as any: what a model serves does not depend on it"""
PLURAL = {"nats": "{:,.1f}", "targets": "{:,}", "bytes": "{:,}", "memory_bytes": "{:,}", "tokens_per_second": "{:,.0f}"}


def check_serves(config: Config, capability: str) -> Model:
    """Refuses in one line, before anything is read, what the model of a run cannot do (`Model.require`)."""
    from memjax.tasks import task_of

    model = task_of(config).model(ANY_SIZE)
    model.require(capability)
    return model


def check_generates(config: Config) -> None:
    """Refuses a model that does not go on from a prompt, or reads more at every token than a prompt has."""
    from memjax.training.experiment import evaluation_model

    model = check_serves(config, "decodes")
    evaluation_model(config, ANY_SIZE)
    if needed := model.example_extras(1, 1):
        kind, names = type(config.model.output).__name__, ", ".join(needed)
        raise ValueError(f"model.output: given {kind}, which reads {names} at every token; see memjax.retrieval")


def preparation(seconds: float = 3.0) -> Callable[[str, int, int | None], None]:
    """A `progress` for `make_datasets`: a line on standard error every few seconds."""
    told = time.monotonic()

    def progress(what: str, done: int, total: int | None) -> None:
        nonlocal told
        if time.monotonic() - told >= seconds:
            told = time.monotonic()
            print(f"{what}: {done:,}" + (f" of {total:,}" if total else ""), file=sys.stderr, flush=True)

    return progress


def read_prompts(texts: Sequence[str], files: Sequence[str]) -> dict[str, str]:
    """Header -> prompt, texts before files; one empty prompt where nothing was given."""
    prompts = {f"prompt {number}": text for number, text in enumerate(texts, 1)}
    for file in files:
        if not Path(file).is_file():
            raise ValueError(f"prompt-file: given {file!r}, allowed: a text file")
        prompts[file] = read_text(file)
    return prompts or {"prompt 1": ""}


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
    experiment = run.experiment
    if experiment.tokenizer is None:
        raise ValueError("run: its data has no tokenizer (it is tokens already), allowed: a run on texts")
    length = experiment.config.data.segment_length
    model = model or experiment.model
    return continue_texts(model, run.variables, experiment.tokenizer, prompts, segment_length=length, **asked)


def print_continuations(prompts: Mapping[str, str], blocks: Iterator[list[str]], as_json: bool) -> None:
    """Prints every prompt with its continuation; one prompt is printed while it grows, several after one another.

    Args:
      prompts: header -> prompt; on a terminal it is dim.
      blocks: from `continuations`.
      as_json: one JSON object per prompt instead, when all are ready.
    """
    dim, plain = ("\x1b[2m", "\x1b[0m") if sys.stdout.isatty() and not as_json else ("", "")
    if len(prompts) == 1 and not as_json:
        print(f"{dim}{next(iter(prompts.values()))}{plain}", end="", flush=True)
        for (piece,) in blocks:
            print(piece, end="", flush=True)
        print()
        return
    rows = ["".join(pieces) for pieces in zip(*blocks, strict=True)]
    for (header, prompt), text in zip(prompts.items(), rows, strict=True):
        if as_json:
            print(json.dumps({"header": header, "prompt": prompt, "text": text}))
        else:
            print(f"== {header}\n{dim}{prompt}{plain}{text}\n")


def describe_evaluation(values: Mapping[str, Any]) -> str:
    """The numbers of an evaluation, one a line; subsets after the whole."""
    show = lambda name, value: PLURAL.get(name, "{:.4f}" if isinstance(value, float) else "{}").format(value)
    whole = {name: value for name, value in values.items() if not (isinstance(value, Mapping) or value is None)}
    shown = {name.replace("_", " "): show(name, value) for name, value in whole.items()}
    for subset, numbers in values.get("subsets", {}).items():
        shown |= {f"{subset}: {name.replace('_', ' ')}": show(name, value) for name, value in numbers.items()}
    return describe_facts(shown)


def usage_facts(run: str, config: Config, *, checkpoints: bool = False) -> dict[str, Any]:
    """What `memjax usage` prints: numbers of every table, and with `checkpoints` those of all of them.

    Args:
      run: the directory.
      config: of the run, with another split if wanted.
      checkpoints: all that are kept instead of the newest.
    """
    from memjax.inspection.slot_usage import describe_counts, measure_usage, staleness
    from memjax.training.restoring import checkpoint_steps, load_run

    def measure(step: int | None) -> dict[str, dict[str, Any]]:
        loaded = load_run(run, config, step=step)
        return measure_usage(loaded.experiment, loaded.variables)

    steps = checkpoint_steps(run) if checkpoints else []
    measured = {step: measure(step) for step in steps or [None]}  # the newest; where there is none, a line of its own
    *_, newest = measured.values()
    facts = {"run": run, "split": config.evaluation.split, "tables": describe_counts(newest)}
    if not checkpoints:
        return facts
    facts["checkpoints"] = {str(step): describe_counts(counts) for step, counts in measured.items()}
    for table, values in facts["tables"].items():
        tops = {step: counts[table][""].top for step, counts in measured.items() if table in counts}
        tops = {
            step: top for step, top in tops.items() if len(top) == values["slots"]
        }  # a table grows into other slots
        slots = staleness(list(tops.values()))
        values["last_used"] = dict(zip(["never", *map(str, tops)], slots.tolist(), strict=True))
    return facts


def compare_runs(runs: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Run -> its values: fields of the configuration in which the runs differ, then steps, sizes and scores.

    Raises:
      ValueError: no run directory, or a run that is not finished.
    """
    from memjax.training.runs import IGNORED, config_to_dict, flat_settings, load_config, read_json

    settings = {run: flat_settings(config_to_dict(load_config(run))) for run in runs}
    every = {name: None for fields in settings.values() for name in fields if name not in (*IGNORED, "name")}
    apart = [name for name in every if len({str(fields.get(name)) for fields in settings.values()}) > 1]
    facts: dict[str, dict[str, Any]] = {}
    for run in runs:
        finished = read_json(Path(run).expanduser() / "finished.json")
        if finished is None:
            raise ValueError(f"{run}: not finished, allowed: a run with finished.json; train it to its end")
        results = finished["results"]
        scores = {"evaluation": results["evaluation"], **results.get("evaluations", {})}
        facts[run] = {name: settings[run].get(name) for name in apart} | {"steps": finished["step"]}
        facts[run] |= {name: results[name] for name in ("parameters", "memory_bytes")}
        for name, score in scores.items():
            plain = {key: value for key, value in score.items() if isinstance(value, float) and key != "nats"}
            facts[run] |= {f"{name}.{key}": value for key, value in plain.items() if key != "tokens_per_second"}
    return facts


def describe_comparison(facts: Mapping[str, Mapping[str, Any]]) -> str:
    """A line a value, a column a run.

    Example:
      >>> print(describe_comparison({"a": {"steps": 10, "loss": 0.5}, "b": {"steps": 2000, "loss": 0.25}}))
             a    b
      steps  10   2,000
      loss   0.5  0.25
    """
    cell = lambda value: f"{value:.5g}" if isinstance(value, float) else _show_value(value)
    show = lambda value: "" if value is None else cell(value)
    names = {name: None for values in facts.values() for name in values}
    rows = [[name, *(show(values.get(name)) for values in facts.values())] for name in names]
    return "\n".join(align([["", *facts], *rows]))


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


def describe_usage(facts: Mapping[str, Any]) -> str:
    """The numbers of every table, one a line."""
    lines = [f"{facts['split']} split of {facts['run']}"]
    for table, values in facts["tables"].items():
        flat = {name: value for name, value in values.items() if not isinstance(value, Mapping)}
        flat |= {f"last used at {step}": slots for step, slots in values.get("last_used", {}).items()}
        for subset, numbers in values.get("subsets", {}).items():
            flat |= {f"{subset}: {name}": value for name, value in numbers.items()}
        shown = {k.replace("_", " "): round(v, 4) if isinstance(v, float) else v for k, v in flat.items()}
        lines += ["", table, describe_facts(shown)]
    return "\n".join(lines)


def describe_data(config: Config, datasets: Any) -> str:
    """Documents, tokens and bytes of each split, and the vocabulary."""
    source, tokenizer = type(config.data.source).__name__, type(config.data.tokenizer).__name__
    lines = [f"{source}, {tokenizer}, {datasets.vocab_size:,} vocabulary entries"]
    for split, size in split_sizes(datasets.documents).items():
        documents, tokens, num_bytes = size.values()
        lines.append(f"{split:10}  {documents:8,} documents  {tokens:12,} tokens  {num_bytes:14,} bytes")
    return "\n".join(lines)


def split_sizes(documents: Callable[[str], Any]) -> dict[str, dict[str, int]]:
    """Documents, tokens and bytes of every split."""
    sizes = {}
    for split in ("train", "validation", "test"):
        found = documents(split)
        tokens, num_bytes = (sum(map(count, range(len(found)))) for count in (found.num_tokens, found.num_bytes))
        sizes[split] = {"documents": len(found), "tokens": tokens, "bytes": num_bytes}
    return sizes


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
        plan = plan_datastore(_key_source(options, config), options.path, **chosen)
        return {**dataclasses.asdict(plan), "store_bytes": plan.store_bytes, "fits": plan.fits}
    chosen |= {"num_shards": options.shards, "progress": preparation()}
    if options.runner:
        chosen |= {"tap": options.key or TAP, "runner": options.runner, "runner_options": options.runner_option}
        return build_with_beam(options.run, options.path, config=config, **chosen).describe()
    return build_datastore(_key_source(options, config), options.path, **chosen).describe()


def _key_source(options: Any, config: Config | None, store: Any = None) -> Any:
    """The run whose inner tensor is the key: the one that was asked for, or that of the store."""
    from memjax.retrieval.keys import TAP, make_key_source
    from memjax.training.restoring import load_run

    key = options.key or (TAP if store is None else str(store.header.protocol.get("key", TAP)))
    return make_key_source(load_run(options.run, config), key)


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
    from memjax.data.annotations import write_neighbors
    from memjax.retrieval.precomputation import near, neighbors_of_split

    source = _key_source(options, config, store)
    index = _open_index(store, options, exact_scores=options.backend != "exact")
    chosen = {"exclude": near(options.apart) if options.apart else None, "progress": preparation()}
    values = neighbors_of_split(source, options.split, store, index, options.num_neighbors, **chosen)
    documents = source.run.experiment.documents(options.split)
    write_neighbors(options.to, options.split, values, documents, store=store.fingerprint)
    there = float((values >= 0).mean()) if values.size else 0.0
    facts = {"folder": options.to, "split": options.split, "tokens": len(values)}
    return {**facts, "neighbors": options.num_neighbors, "found": there}


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


def describe_facts(facts: Mapping[str, Any]) -> str:
    """Facts as lines of a name and a value.

    Example:
      >>> print(describe_facts({"entries": 12000, "recall": 0.5}))
      entries  12,000
      recall   0.5
    """
    return "\n".join(align([[name, _show_value(value)] for name, value in facts.items()]))


def _show_value(value: Any) -> str:
    if isinstance(value, bool) or not isinstance(value, int):
        return json.dumps(value) if isinstance(value, dict | list) else str(value)
    return f"{value:,}"
