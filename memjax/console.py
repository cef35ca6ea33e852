"""What the verbs of the command line read and print: prompts, continuations, evaluations, data."""

from __future__ import annotations

import dataclasses
import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from memjax.config import Config
from memjax.data.sources import read_text
from memjax.inference.sampling import Sampling
from memjax.inference.texts import continue_texts

PLURAL = {"nats": "{:,.1f}", "targets": "{:,}", "bytes": "{:,}", "memory_bytes": "{:,}", "tokens_per_second": "{:,.0f}"}


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


def print_continuations(
    run: Any,
    prompts: Mapping[str, str],
    *,
    model: Any = None,
    max_tokens: int,
    sampling: Sampling,
    stop: Sequence[str] = (),
    seed: int = 0,
    as_json: bool = False,
    stream: Any = None,
) -> None:
    """Prints every prompt with its continuation; one prompt is printed while it grows, several after one another.

    Args:
      run: a `LoadedRun`.
      prompts: header -> prompt.
      model: with the variables of the run's own, such as one with a cache; None = the run's own.
      max_tokens: tokens generated per prompt, at most.
      sampling: settings.
      stop: texts that end a row.
      seed: equal seed and prompt give equal text.
      as_json: one JSON object per prompt instead, when all are ready.
      stream: where to print; None = standard output. On a terminal the prompt is dim.
    """
    out = sys.stdout if stream is None else stream
    experiment = run.experiment
    if experiment.tokenizer is None:
        raise ValueError("run: its data has no tokenizer (it is tokens already), allowed: a run on texts")
    blocks = continue_texts(
        model or experiment.model,
        run.variables,
        experiment.tokenizer,
        list(prompts.values()),
        segment_length=experiment.config.data.segment_length,
        max_tokens=max_tokens,
        sampling=sampling,
        stop=stop,
        seed=seed,
    )
    dim, plain = ("\x1b[2m", "\x1b[0m") if out.isatty() and not as_json else ("", "")
    if len(prompts) == 1 and not as_json:
        print(f"{dim}{next(iter(prompts.values()))}{plain}", end="", file=out, flush=True)
        for (piece,) in blocks:
            print(piece, end="", file=out, flush=True)
        print(file=out)
        return
    rows = ["".join(pieces) for pieces in zip(*blocks, strict=True)]
    for (header, prompt), text in zip(prompts.items(), rows, strict=True):
        if as_json:
            print(json.dumps({"header": header, "prompt": prompt, "text": text}), file=out)
        else:
            print(f"== {header}\n{dim}{prompt}{plain}{text}\n", file=out)


def describe_evaluation(values: Mapping[str, Any]) -> str:
    """The numbers of an evaluation, one a line; subsets after the whole."""
    lines = []
    for name, value in values.items():
        if isinstance(value, Mapping) or value is None:
            continue
        form = PLURAL.get(name, "{:.4f}" if isinstance(value, float) else "{}")
        lines.append((name.replace("_", " "), form.format(value)))
    for name, subset in values.get("subsets", {}).items():
        lines += [
            (f"{name}: {key.replace('_', ' ')}", PLURAL.get(key, "{:.4f}").format(value))
            for key, value in subset.items()
        ]
    width = max(len(name) for name, _ in lines)
    return "\n".join(f"{name:{width}}  {value}" for name, value in lines)


def describe_data(config: Config, datasets: Any) -> str:
    """Documents, tokens and bytes of each split, and the vocabulary."""
    source, tokenizer = type(config.data.source).__name__, type(config.data.tokenizer).__name__
    lines = [f"{source}, {tokenizer}, {datasets.vocab_size:,} vocabulary entries"]
    for split in ("train", "validation", "test"):
        documents = datasets.documents(split)
        tokens = sum(documents.num_tokens(i) for i in range(len(documents)))
        num_bytes = sum(documents.num_bytes(i) for i in range(len(documents)))
        lines.append(f"{split:10}  {len(documents):8,} documents  {tokens:12,} tokens  {num_bytes:14,} bytes")
    return "\n".join(lines)


def datastore_facts(options: Any, config: Config | None) -> dict[str, Any]:
    """Does what `memjax datastore` was asked for, and says what came out.

    Args:
      options: of the command line.
      config: of the run, for plan and build.
    """
    from memjax.datastore.store import Store

    if options.action == "neighbors":
        return _write_neighbors(options, config)
    if config is not None:
        from memjax.training.datastores import build_datastore, plan_datastore
        from memjax.training.experiment import load_run
        from memjax.training.keys import TAP, make_key_source

        source = make_key_source(load_run(options.run, config), options.run, options.key or TAP)
        if options.action == "plan":
            plan = plan_datastore(source, options.path, split=options.split, key_dtype=options.key_dtype)
            return {**dataclasses.asdict(plan), "store_bytes": plan.store_bytes, "fits": plan.fits}
        store = build_datastore(
            source, options.path, split=options.split, key_dtype=options.key_dtype, progress=preparation()
        )
        return store.describe()
    store = Store(Path(options.path).expanduser())
    match options.action:
        case "stats":
            return store.describe()
        case "index":
            return {"backend": options.backend, **_build_index(store, options.backend, options.metric)}
    from memjax.datastore.index import open_index
    from memjax.datastore.verification import recall

    facts: dict[str, Any] = {"entries": store.entries, "problems": list(store.problems(preparation()))}
    if not facts["problems"]:
        index = open_index(store, options.backend, metric=options.metric, **_search_options(options))
        count = options.num_neighbors or 32
        found = recall(index, store, options.sample, count)
        facts |= {"backend": options.backend, f"recall@{count}": found, "sample": options.sample}
    return facts


def _search_options(options: Any) -> dict[str, Any]:
    return {"leaves_to_search": options.leaves} if options.leaves else {}


def _write_neighbors(options: Any, config: Config | None) -> dict[str, Any]:
    """The neighbours of every token of a split, into a folder for `data.neighbors`."""
    from memjax.data.annotations import write_neighbors
    from memjax.datastore.index import open_index
    from memjax.datastore.store import Store
    from memjax.training.experiment import load_run
    from memjax.training.keys import TAP, make_key_source
    from memjax.training.precomputation import near, neighbors_of_split

    store = Store(Path(options.path).expanduser())
    source = make_key_source(
        load_run(options.run, config), options.run, str(store.header.protocol.get("key", options.key or TAP))
    )
    approximate = options.backend != "exact"
    settings = _search_options(options)
    index = open_index(store, options.backend, metric=options.metric, exact_scores=approximate, **settings)
    count = options.num_neighbors or 4
    values = neighbors_of_split(
        source,
        options.split,
        store,
        index,
        count,
        exclude=near(options.apart) if options.apart else None,
        progress=preparation(),
    )
    documents = source.run.experiment.documents(options.split)
    write_neighbors(options.to, options.split, values, documents, store=store.fingerprint)
    there = float((values >= 0).mean()) if values.size else 0.0
    return {"folder": options.to, "split": options.split, "tokens": len(values), "neighbors": count, "found": there}


def _build_index(store: Any, backend: str, metric: Any) -> dict[str, Any]:
    start = time.monotonic()
    if backend == "scann":
        from memjax.datastore.scann import build_scann

        index: Any = build_scann(store, metric=metric)
    else:
        from memjax.datastore.faiss import build_faiss

        index = build_faiss(store, metric=metric)
    return {"entries": index.entries, "metric": metric, "seconds": round(time.monotonic() - start, 2)}


def describe_facts(facts: Mapping[str, Any]) -> str:
    """Facts as lines of a name and a value.

    Example:
      >>> print(describe_facts({"entries": 12000, "recall": 0.5}))
      entries  12,000
      recall   0.5
    """
    width = max(len(name) for name in facts)
    return "\n".join(f"{name:{width}}  {_show_value(value)}" for name, value in facts.items())


def _show_value(value: Any) -> str:
    if isinstance(value, bool) or not isinstance(value, int):
        return json.dumps(value) if isinstance(value, dict | list) else str(value)
    return f"{value:,}"
