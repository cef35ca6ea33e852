"""Recall beyond the window of an imported model: a Memorizing graft trained with adapters, and the same adapters alone.

    memjax import --weights SmolLM2.gguf --run runs/smollm2
    python -m tools.measurements.llm_recall --run RUN --filler TEXT --out OUT --record NAME   # may be interrupted

A document says codes of some things (one: a passkey; four: keys and values), goes on with a filler that is longer than
what attention sees, and says the codes again. Both contenders are trained on such documents with the same adapters,
data and updates. The score is the share of digits of the codes, the second time, that are the most probable token when
those before them are given; a digit at random is right in a tenth. `cleared` = the long memory is emptied before every
segment.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import random
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from memjax import config
from memjax.report.verdicts import format_difference, withhold_verdict
from memjax.settings.overrides import load_config
from memjax.training import load_run, train
from memjax.training.loaded_runs import start_from
from memjax.training.memory_interventions import make_memory_intervention
from tools.results import pages
from tools.results.comparisons import compare_seeds
from tools.results.ledger import measured, together

SEGMENT, WINDOW, FILLER = 64, 64, 800
"""tokens of a segment and of the window, characters of a filler"""
ADAPTED, LAYERS = tuple(range(4, 30)), tuple(range(4, 30, 4))
"""layers with adapters, and those with the memory"""
THINGS = (
    "apple bridge candle desk engine forest garden hammer island jacket kettle lantern mirror needle orchard".split()
)
PAIRS = {"passkey": 1, "keys and values": 4}
"""task -> number of codes"""
TRAINED = 512
"""documents to train on"""
TESTED = 16
"""documents of a task to test"""
CODE = re.compile(r"\d{4}")


def documents(filler: str, pairs: tuple[int, ...], count: int, seed: int) -> list[str]:
    """Documents with so many codes each, in turn."""
    draw, made = random.Random(seed), []
    for number in range(count):
        codes = {thing: f"{draw.randrange(10_000):04}" for thing in draw.sample(THINGS, pairs[number % len(pairs)])}
        lines = [f"The code of the {thing} is {code}." for thing, code in codes.items()]
        start = draw.randrange(len(filler) - FILLER)
        between = CODE.sub("", filler[start : start + FILLER])
        made.append(" ".join([*lines, between, *draw.sample(lines, len(lines))]))
    return made


def config_of(given: argparse.Namespace, name: str, seed: int, with_memory: bool) -> config.Config:
    """The configuration of a contender."""
    folder = given.out / "documents"
    folder.mkdir(parents=True, exist_ok=True)
    made = documents(Path(given.filler).read_text("utf-8"), tuple(range(1, 1 + max(PAIRS.values()))), TRAINED, 0)
    for number, text in enumerate(made):
        (folder / f"{number:04}.txt").write_text(text, encoding="utf-8")
    found = start_from(load_config("own_text"), given.run)
    graft = config.MemorizingGraft(layers=LAYERS, memory_length=512, num_neighbors=8) if with_memory else None
    attention: Any = dataclasses.replace(found.model.attention, memory_length=WINDOW, sinks=4, graft=graft)
    source = config.TextFiles(path=str(folder), validation_percent=2, test_percent=2)
    lora = config.LoRA(rank=8, layers=ADAPTED, fully_trained=("graft",) if with_memory else ())
    training = config.Training(
        steps=given.steps,
        schedule=config.Schedule(learning_rate=1e-3, warmup_steps=10, decay="constant"),
        lora=lora,
        memory_learning_rate=0.03 if with_memory else 0.0,
        init_from=str(given.run),
        seed=seed,
        log_every=20,
        checkpoint_every=given.steps,
    )
    return dataclasses.replace(
        found,
        name=name,
        workdir=str(given.out),
        model=dataclasses.replace(found.model, attention=attention),
        data=dataclasses.replace(found.data, source=source, segment_length=SEGMENT, batch_size=8, seed=seed),
        training=training,
        evaluation=config.Evaluation(max_segments=2),
    )


class Scorer:
    """Scores a run, or the imported model as it is."""

    def __init__(self, run: Path | str, settings: config.Config | None = None):
        found = load_run(run, settings) if settings else load_run(run)
        self.model, self.variables, self.tokenizer = found.experiment.model, found.variables, found.experiment.tokenizer
        self.step = jax.jit(self._step)

    def clear(self) -> Any:
        """The function that empties the long memory."""
        return jax.jit(make_memory_intervention("cleared", self.model, part="graft", rows=1))

    def _step(self, tokens: Any, state: Any) -> tuple[Any, Any]:
        start = jnp.zeros(len(tokens), bool)
        hidden, state, _ = self.model.apply(self.variables, tokens, state, start_of_document=start)
        return self.model.apply(self.variables, hidden, method="log_probs").argmax(-1), state

    def score(self, texts: list[str], change: Any = lambda state: state) -> float:
        """The share of digits of the codes, the second time, that are the most probable; `change` is applied to the
        state before every segment.
        """
        right = []
        for text in texts:
            ids = self.tokenizer.encode(text)
            ends = np.cumsum(self.tokenizer.token_bytes(ids))
            places = [place for code in CODE.finditer(text) for place in range(*code.span())]
            repeated = places[len(places) // 2 :]
            size = -(-len(ids) // SEGMENT) * SEGMENT
            inputs = np.zeros(size, np.int32)
            inputs[: len(ids)] = [self.tokenizer.begin_id, *ids[:-1]]
            state, found = self.model.init_state(1), []
            for first in range(0, size, SEGMENT):
                best, state = self.step(jnp.asarray(inputs[None, first : first + SEGMENT]), change(state))
                found.append(np.asarray(best)[0])
            found = np.concatenate(found)
            bytes_before = [len(text[:place].encode("utf-8")) for place in repeated]
            tokens = np.searchsorted(ends, bytes_before, side="right")
            right += [found[token] == ids[token] for token in tokens]
        return float(np.mean(right))


def score_contender(given: argparse.Namespace, name: str, seed: int, tests: dict[str, list[str]]) -> dict[str, Any]:
    """Trains a contender, unless that is done, and scores it."""
    settings = config_of(given, f"{name}_{seed}", seed, name == "memory")
    scorer = Scorer(train(settings).path)
    found = {task: scorer.score(texts) for task, texts in tests.items()}
    if name == "memory":
        found |= {f"{task}, cleared": scorer.score(texts, scorer.clear()) for task, texts in tests.items()}
    return {"contender": name, "seed": seed, **found}


def describe_verdicts(rows: Sequence[Mapping[str, Any]]) -> str:
    """Says what the memory changes in each task, with the seed as the unit. Neither contender was searched."""
    scores = lambda name, task: {row["seed"]: row[task] for row in rows if row["contender"] == name}
    said = []
    for task in PAIRS:
        pair = (scores("memory", task), scores("adapters", task))
        comparison = withhold_verdict(compare_seeds(*pair, more_is_better=True))
        said.append(f"{task} {format_difference(comparison, 2)} ({comparison.counted}), {comparison.verdict}")
    return f"Memory over adapters alone: {'; '.join(said)}."


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m tools.measurements.llm_recall", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--run", required=True, help="run of an imported model with rotary attention and 30 layers")
    parser.add_argument("--filler", required=True, help="file of text that stands between")
    parser.add_argument("--out", type=Path, required=True, help="folder of the documents, runs and scores")
    parser.add_argument("--steps", type=int, default=1500, help="updates of each contender")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--record", default="", metavar="NAME", help="add the rows to the measurements, by this name")
    given = parser.parse_args()
    filler = Path(given.filler).read_text("utf-8")
    tests = {task: documents(filler, (pairs,), TESTED, 1000 + pairs) for task, pairs in PAIRS.items()}
    rows = []
    for name, seed in [("imported", 0), *((name, seed) for seed in given.seeds for name in ("memory", "adapters"))]:
        file = given.out / f"{name}_{seed}.json"
        if not file.exists():
            given.out.mkdir(parents=True, exist_ok=True)
            if name == "imported":
                scorer = Scorer(given.run)
                row = {"contender": name, "seed": seed, **{task: scorer.score(texts) for task, texts in tests.items()}}
            else:
                row = score_contender(given, name, seed, tests)
            file.write_text(json.dumps(row))
        rows.append(json.loads(file.read_text()))
        print(rows[-1], flush=True)
    if given.record:
        about = (
            f"{given.steps} updates of 8 rows and {SEGMENT} tokens, adapters of rank 8 in layers {ADAPTED[0]} to "
            f"{ADAPTED[-1]}, long memory of 512 tokens and 8 neighbours in layers {', '.join(map(str, LAYERS))}; a "
            f"window of {WINDOW} tokens and 4 sinks. `imported` = not trained, its whole memory of 2,048 tokens. "
            f"Digits of {TESTED} documents of each task. {describe_verdicts(rows)}"
        )
        command = f"python -m tools.measurements.llm_recall --run RUN --filler TEXT --out OUT --record '{given.record}'"
        title = f"Recall beyond the window of {given.record}"
        facts = together(rows)
        pages.record(measured("llm_recall", given.record, facts, command=command, title=title, about=about))


if __name__ == "__main__":
    main()
