"""Measures an imported model on novels with memories that need no training: windows, sinks, a cache, kNN-LM.

    memjax import --weights SmolLM2.gguf --name smollm2
    python -m tools.measurements.llm_memories --run runs/smollm2 --novels DIR --out OUT --record NAME

Every row is the result of `memjax eval` on a copy of the run that differs in the memory of its attention and in the
text. The weight and the scale of the cache are the best ones of a grid on the validation split. `memjax eval` chooses
the weight and the temperature of the datastore in the same way. The datastore holds the contexts of the whole training
split: give few novels.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import io
import itertools
import json
import math
import shutil
import sys
from pathlib import Path
from typing import Any

from memjax import config
from memjax.cli import main as memjax
from memjax.durable_files import write_json
from memjax.training.runs import config_to_dict, load_config
from tools.results import pages
from tools.results.ledger import measured, together

SEGMENT = 512
ATTENTION: dict[str, dict[str, Any]] = {
    "segment": {"memory_length": 0, "same_length": False, "sinks": 0},
    "window": {"memory_length": SEGMENT, "same_length": True, "sinks": 0},
    "sinks": {"memory_length": SEGMENT, "same_length": True, "sinks": 4},
    "larger window": {"memory_length": 3 * SEGMENT, "same_length": True, "sinks": 0},
    "larger window and sinks": {"memory_length": 3 * SEGMENT, "same_length": True, "sinks": 4},
}
"""Name of an attention -> fields of `config.Rotary`."""
ROWS = {
    **{name: (name, False, False) for name in ATTENTION},
    "sinks and cache": ("sinks", True, False),
    "sinks and kNN-LM": ("sinks", False, True),
    "sinks, cache and kNN-LM": ("sinks", True, True),
}
"""Name of a row -> its attention, whether it has a cache, and whether it has a datastore."""
WEIGHTS, SCALES = (0.01, 0.02, 0.05, 0.1), (5.0, 10.0, 20.0, 40.0)
"""Grid of the cache: its weights, and the scales of cosines."""


def run_command(*arguments: str) -> Any:
    """Runs a command of memjax, and returns what it prints as JSON."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        code = memjax(list(arguments))
    if code:
        sys.exit(f"memjax {' '.join(arguments)}: ended with {code}")
    return json.loads(printed.getvalue())


def write_run(args: argparse.Namespace, name: str) -> Path:
    """Writes a copy of the run that reads novels with an attention of `ATTENTION`, and returns its directory."""
    settings, folder = load_config(args.run), args.out / name.replace(" ", "_")
    attention: Any = dataclasses.replace(settings.model.attention, graft=None, **ATTENTION[name])
    data = dataclasses.replace(settings.data, source=config.Novels(path=str(args.novels)), segment_length=SEGMENT)
    data = dataclasses.replace(data, cache_dir=str(args.out / "texts"), protocol="separate")
    model = dataclasses.replace(settings.model, attention=attention)
    settings = dataclasses.replace(settings, model=model, data=data, name=folder.name, workdir=str(args.out))
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for part in Path(args.run).iterdir():
        if part.is_dir():
            (folder / part.name).symlink_to(part.resolve())
    write_json(folder / "config.json", config_to_dict(settings))
    return folder


def options_of(args: argparse.Namespace, split: str) -> list[str]:
    """Returns the options of an evaluation of a split."""
    count = args.segments if split == "test" else args.search_segments
    segments = ["--evaluation.max-segments", str(count)] if count else []
    return ["--evaluation.split", split, "--evaluation.batch-size", str(args.batch), *segments]


def cache_options(args: argparse.Namespace, weight: float, scale: float) -> list[str]:
    """Returns the options of an evaluation with a cache of some weight and scale."""
    prefix = "--evaluation.cache"
    values = {"memory-length": args.cache, "interpolation-weight": weight, "similarity-scale": scale}
    values |= {"similarity": "cosine"}
    return [word for name, value in values.items() for word in (f"{prefix}.{name}", str(value))]


def best_cache(args: argparse.Namespace, run: Path) -> tuple[float, float]:
    """Returns the weight and the scale of a cache that are best on the validation split.

    They are searched once for a run, and stored in a file beside it.
    """
    if (known := run.with_suffix(".cache.json")).exists():
        return tuple(json.loads(known.read_text()))
    score = lambda pair: run_command("eval", "--run", str(run), "--json", *options_of(args, "validation"), *cache(pair))
    cache = lambda pair: cache_options(args, *pair)
    best = min(itertools.product(WEIGHTS, SCALES), key=lambda pair: score(pair)["nats_per_token"])
    known.write_text(json.dumps(best))
    return best


def score_row(args: argparse.Namespace, row: str) -> dict[str, Any]:
    """Measures a row, and returns its nats and perplexity, with the weight and scale of its cache."""
    attention, has_cache, has_store = ROWS[row]
    run, chosen, options = write_run(args, attention), {}, options_of(args, "test")
    if has_cache:
        weight, scale = best_cache(args, run)
        chosen |= {"cache_weight": weight, "cache_scale": scale}
        options += cache_options(args, weight, scale)
    if has_store:
        store = args.out / "store"
        if not store.exists():
            build = ["datastore", "build", "--run", str(run), "--path", str(store)]
            if memjax([*build, "--evaluation.batch-size", str(args.batch)]):
                sys.exit("memjax datastore build failed")
        options += ["--datastore", str(store), "--knn-backend", "exact"]
    values = run_command("eval", "--run", str(run), "--json", *options)
    nats = values["nats_per_token"]
    return {"nats": nats, "perplexity": math.exp(nats), "tokens": values["targets"], **chosen}


def about(args: argparse.Namespace) -> str:
    """Returns the text above the table: what was measured, and how."""
    size = f"the first {args.segments} segments" if args.segments else "all"
    text = (
        f"Novels of the test split, {args.batch} side by side, {size} of each, in segments of {SEGMENT} tokens; a "
        f"window of {SEGMENT} keys, a larger one of {3 * SEGMENT}, 4 tokens of the beginning as sinks. Nothing was "
        "trained. The first novels of the split are read: differences are those of these novels, without an interval."
    )
    if any(has_cache for _, has_cache, _ in (ROWS[row] for row in args.rows)):
        text += (
            f" The cache has {args.cache:,} tokens; of the weights {WEIGHTS} and the scales of cosines {SCALES} it "
            "has those that are best on the validation split."
        )
    if any(has_store for _, _, has_store in (ROWS[row] for row in args.rows)):
        text += " The datastore has the training split, and the weight and temperature that are best on validation."
    return text


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m tools.measurements.llm_memories", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--run", required=True, help="run of an imported model with rotary attention")
    parser.add_argument("--novels", type=Path, required=True, help="folder or tar of novels")
    parser.add_argument("--out", type=Path, required=True, help="folder of the copies of the run and the datastore")
    parser.add_argument("--rows", nargs="*", default=list(ROWS), choices=list(ROWS), help="rows to measure")
    parser.add_argument("--segments", type=int, default=0, help="segments of each row of a batch; 0 = whole novels")
    parser.add_argument("--search-segments", type=int, default=8, help="the same for the search of a weight and scale")
    parser.add_argument("--batch", type=int, default=4, help="novels side by side")
    parser.add_argument("--cache", type=int, default=4 * SEGMENT, help="tokens of the cache")
    parser.add_argument("--record", default="", metavar="NAME", help="add the rows to the measurements, by this name")
    args = parser.parse_args()
    for row in args.rows:
        file = args.out / f"{row.replace(' ', '_')}.json"
        if not file.exists():
            file.write_text(json.dumps({"memory": row, **score_row(args, row)}))
        print(file.read_text(), flush=True)
    if args.record:
        rows = [json.loads((args.out / f"{row.replace(' ', '_')}.json").read_text()) for row in args.rows]
        command = "python -m tools.measurements.llm_memories --run RUN --novels DIR --out OUT --record " + args.record
        title = f"Memories of {args.record}, not trained"
        facts = together(rows)
        pages.record(measured("llm_memories", args.record, facts, command=command, title=title, about=about(args)))


if __name__ == "__main__":
    main()
