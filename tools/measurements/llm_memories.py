"""Perplexity of an imported model on novels with memories that need no training: windows, sinks, a cache, kNN-LM.

    memjax import --weights SmolLM2.gguf --name smollm2
    python -m tools.measurements.llm_memories --run runs/smollm2 --novels DIR --out OUT --record NAME

Every row is `memjax eval` on a copy of the run that differs in the memory of its attention and in the text. The weight
and the scale of the cache are those of a grid that are best on the validation split; those of the datastore are chosen
by `memjax eval` in the same way. The datastore holds the contexts of the whole training split: give few novels.
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
"""attention -> fields of `config.Rotary`"""
ROWS = {
    **{name: (name, False, False) for name in ATTENTION},
    "sinks and cache": ("sinks", True, False),
    "sinks and kNN-LM": ("sinks", False, True),
    "sinks, cache and kNN-LM": ("sinks", True, True),
}
"""row -> attention, whether there is a cache, whether there is a datastore"""
WEIGHTS, SCALES = (0.01, 0.02, 0.05, 0.1), (5.0, 10.0, 20.0, 40.0)
"""grid of the cache: weights, and scales of cosines"""


def read(*arguments: str) -> Any:
    """What a command prints as JSON."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        code = memjax(list(arguments))
    if code:
        sys.exit(f"memjax {' '.join(arguments)}: ended with {code}")
    return json.loads(printed.getvalue())


def write_run(given: argparse.Namespace, name: str) -> Path:
    """A copy of the run with an attention of `ATTENTION`, which reads novels."""
    settings, folder = load_config(given.run), given.out / name.replace(" ", "_")
    attention: Any = dataclasses.replace(settings.model.attention, graft=None, **ATTENTION[name])
    data = dataclasses.replace(settings.data, source=config.Novels(path=str(given.novels)), segment_length=SEGMENT)
    data = dataclasses.replace(data, cache_dir=str(given.out / "texts"), protocol="separate")
    model = dataclasses.replace(settings.model, attention=attention)
    settings = dataclasses.replace(settings, model=model, data=data, name=folder.name, workdir=str(given.out))
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for part in Path(given.run).iterdir():
        if part.is_dir():
            (folder / part.name).symlink_to(part.resolve())
    write_json(folder / "config.json", config_to_dict(settings))
    return folder


def options_of(given: argparse.Namespace, split: str) -> list[str]:
    """Options of an evaluation."""
    count = given.segments if split == "test" else given.search_segments
    segments = ["--evaluation.max-segments", str(count)] if count else []
    return ["--evaluation.split", split, "--evaluation.batch-size", str(given.batch), *segments]


def cache_options(given: argparse.Namespace, weight: float, scale: float) -> list[str]:
    """Options of a cache with a weight and a scale."""
    prefix = "--evaluation.cache"
    values = {"memory-length": given.cache, "interpolation-weight": weight, "similarity-scale": scale}
    values |= {"similarity": "cosine"}
    return [word for name, value in values.items() for word in (f"{prefix}.{name}", str(value))]


def best_cache(given: argparse.Namespace, run: Path) -> tuple[float, float]:
    """The weight and the scale of a cache that are best on the validation split, searched once for a run."""
    if (known := run.with_suffix(".cache.json")).exists():
        return tuple(json.loads(known.read_text()))
    score = lambda pair: read("eval", "--run", str(run), "--json", *options_of(given, "validation"), *cache(pair))
    cache = lambda pair: cache_options(given, *pair)
    best = min(itertools.product(WEIGHTS, SCALES), key=lambda pair: score(pair)["nats_per_token"])
    known.write_text(json.dumps(best))
    return best


def score_row(given: argparse.Namespace, row: str) -> dict[str, Any]:
    """Nats and perplexity of a row, with what was chosen for it."""
    attention, has_cache, has_store = ROWS[row]
    run, chosen, options = write_run(given, attention), {}, options_of(given, "test")
    if has_cache:
        weight, scale = best_cache(given, run)
        chosen |= {"cache_weight": weight, "cache_scale": scale}
        options += cache_options(given, weight, scale)
    if has_store:
        store = given.out / "store"
        if not store.exists():
            build = ["datastore", "build", "--run", str(run), "--path", str(store)]
            if memjax([*build, "--evaluation.batch-size", str(given.batch)]):
                sys.exit("memjax datastore build failed")
        options += ["--datastore", str(store), "--knn-backend", "exact"]
    values = read("eval", "--run", str(run), "--json", *options)
    nats = values["nats_per_token"]
    return {"nats": nats, "perplexity": math.exp(nats), "tokens": values["targets"], **chosen}


def about(given: argparse.Namespace) -> str:
    """What was measured."""
    size = f"the first {given.segments} segments" if given.segments else "all"
    said = (
        f"Novels of the test split, {given.batch} side by side, {size} of each, in segments of {SEGMENT} tokens; a "
        f"window of {SEGMENT} keys, a larger one of {3 * SEGMENT}, 4 tokens of the beginning as sinks. Nothing was "
        "trained. The first novels of the split are read: differences are those of these novels, without an interval."
    )
    if any(has_cache for _, has_cache, _ in (ROWS[row] for row in given.rows)):
        said += (
            f" The cache has {given.cache:,} tokens; of the weights {WEIGHTS} and the scales of cosines {SCALES} it "
            "has those that are best on the validation split."
        )
    if any(has_store for _, _, has_store in (ROWS[row] for row in given.rows)):
        said += " The datastore has the training split, and the weight and temperature that are best on validation."
    return said


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
    given = parser.parse_args()
    for row in given.rows:
        file = given.out / f"{row.replace(' ', '_')}.json"
        if not file.exists():
            file.write_text(json.dumps({"memory": row, **score_row(given, row)}))
        print(file.read_text(), flush=True)
    if given.record:
        found = [json.loads((given.out / f"{row.replace(' ', '_')}.json").read_text()) for row in given.rows]
        command = "python -m tools.measurements.llm_memories --run RUN --novels DIR --out OUT --record " + given.record
        title = f"Memories of {given.record}, not trained"
        facts = together(found)
        pages.record(measured("llm_memories", given.record, facts, command=command, title=title, about=about(given)))


if __name__ == "__main__":
    main()
