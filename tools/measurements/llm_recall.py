"""Compares recall beyond the window of an imported model: a Memorizing graft with adapters, and the adapters alone.

    memjax import --weights SmolLM2.gguf --run runs/smollm2
    python -m tools.measurements.llm_recall --run RUN --filler TEXT --out OUT --record NAME   # may be interrupted

A document says the codes of some things, goes on with a filler that is longer than the window of attention, and says
the codes again. One code is a passkey, four are keys and values. Both contenders are trained on such documents with the
same adapters, data and updates. The score is the share of digits of the codes, the second time, that are the most
probable token after the correct tokens before them. A random digit is right in a tenth of the cases. In the columns
named `cleared` the long memory is emptied before every segment.
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
"""Number of tokens of a segment, number of tokens of the window, and number of characters of a filler."""
ADAPTED, LAYERS = tuple(range(4, 30)), tuple(range(4, 30, 4))
"""Layers with adapters, and layers with the long memory."""
THINGS = (
    "apple bridge candle desk engine forest garden hammer island jacket kettle lantern mirror needle orchard".split()
)
PAIRS = {"passkey": 1, "keys and values": 4}
"""Name of a task -> number of codes in a document."""
TRAINED = 512
"""Number of documents to train on."""
TESTED = 16
"""Number of test documents of a task."""
CODE = re.compile(r"\d{4}")


def documents(filler: str, pairs: tuple[int, ...], count: int, seed: int) -> list[str]:
    """Makes `count` documents. The numbers of codes in a document are those of `pairs`, in turn."""
    draw, texts = random.Random(seed), []
    for number in range(count):
        codes = {thing: f"{draw.randrange(10_000):04}" for thing in draw.sample(THINGS, pairs[number % len(pairs)])}
        lines = [f"The code of the {thing} is {code}." for thing, code in codes.items()]
        start = draw.randrange(len(filler) - FILLER)
        between = CODE.sub("", filler[start : start + FILLER])
        texts.append(" ".join([*lines, between, *draw.sample(lines, len(lines))]))
    return texts


def config_of(args: argparse.Namespace, name: str, seed: int, with_memory: bool) -> config.Config:
    """Writes the training documents, and returns the configuration of a contender.

    Args:
      args: Options of the command line.
      name: Name of the run.
      seed: Seed of the run.
      with_memory: Whether the contender has the long memory.
    """
    folder = args.out / "documents"
    folder.mkdir(parents=True, exist_ok=True)
    texts = documents(Path(args.filler).read_text("utf-8"), tuple(range(1, 1 + max(PAIRS.values()))), TRAINED, 0)
    for number, text in enumerate(texts):
        (folder / f"{number:04}.txt").write_text(text, encoding="utf-8")
    base_config = start_from(load_config("own_text"), args.run)
    graft = config.MemorizingGraft(layers=LAYERS, memory_length=512, num_neighbors=8) if with_memory else None
    attention: Any = dataclasses.replace(base_config.model.attention, memory_length=WINDOW, sinks=4, graft=graft)
    source = config.TextFiles(path=str(folder), validation_percent=2, test_percent=2)
    lora = config.LoRA(rank=8, layers=ADAPTED, fully_trained=("graft",) if with_memory else ())
    training = config.Training(
        steps=args.steps,
        schedule=config.Schedule(learning_rate=1e-3, warmup_steps=10, decay="constant"),
        lora=lora,
        memory_learning_rate=0.03 if with_memory else 0.0,
        init_from=str(args.run),
        seed=seed,
        log_every=20,
        checkpoint_every=args.steps,
    )
    return dataclasses.replace(
        base_config,
        name=name,
        workdir=str(args.out),
        model=dataclasses.replace(base_config.model, attention=attention),
        data=dataclasses.replace(base_config.data, source=source, segment_length=SEGMENT, batch_size=8, seed=seed),
        training=training,
        evaluation=config.Evaluation(max_segments=2),
    )


class Scorer:
    """Scores the recall of a trained run, or of the imported model.

    Args:
      run: Run directory.
      settings: Configuration in the place of the run's own. None for the run's own.
    """

    def __init__(self, run: Path | str, settings: config.Config | None = None):
        loaded = load_run(run, settings) if settings else load_run(run)
        self.model, self.variables, self.tokenizer = (
            loaded.experiment.model,
            loaded.variables,
            loaded.experiment.tokenizer,
        )
        self.step = jax.jit(self._step)

    def clear(self) -> Any:
        """Returns a function that empties the long memory in a state."""
        return jax.jit(make_memory_intervention("cleared", self.model, part="graft", rows=1))

    def _step(self, tokens: Any, state: Any) -> tuple[Any, Any]:
        start = jnp.zeros(len(tokens), bool)
        hidden, state, _ = self.model.apply(self.variables, tokens, state, start_of_document=start)
        return self.model.apply(self.variables, hidden, method="log_probs").argmax(-1), state

    def score(self, texts: list[str], change: Any = lambda state: state) -> float:
        """Returns the share of digits of the codes, the second time, that are the most probable token.

        Args:
          texts: Documents.
          change: Function of the state that is applied before every segment.
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
            state, predictions = self.model.init_state(1), []
            for first in range(0, size, SEGMENT):
                best, state = self.step(jnp.asarray(inputs[None, first : first + SEGMENT]), change(state))
                predictions.append(np.asarray(best)[0])
            predictions = np.concatenate(predictions)
            bytes_before = [len(text[:place].encode("utf-8")) for place in repeated]
            tokens = np.searchsorted(ends, bytes_before, side="right")
            right += [predictions[token] == ids[token] for token in tokens]
        return float(np.mean(right))


def score_contender(args: argparse.Namespace, name: str, seed: int, tests: dict[str, list[str]]) -> dict[str, Any]:
    """Trains a contender, unless it is trained already, and returns its row of scores."""
    settings = config_of(args, f"{name}_{seed}", seed, name == "memory")
    scorer = Scorer(train(settings).path)
    scores = {task: scorer.score(texts) for task, texts in tests.items()}
    if name == "memory":
        scores |= {f"{task}, cleared": scorer.score(texts, scorer.clear()) for task, texts in tests.items()}
    return {"contender": name, "seed": seed, **scores}


def describe_verdicts(rows: Sequence[Mapping[str, Any]]) -> str:
    """Describes the difference that the memory makes in each task, with the seed as the unit.

    The settings of neither contender were searched.
    """
    scores = lambda name, task: {row["seed"]: row[task] for row in rows if row["contender"] == name}
    sentences = []
    for task in PAIRS:
        pair = (scores("memory", task), scores("adapters", task))
        comparison = withhold_verdict(compare_seeds(*pair, more_is_better=True))
        sentences.append(f"{task} {format_difference(comparison, 2)} ({comparison.counted}), {comparison.verdict}")
    return f"Memory over adapters alone: {'; '.join(sentences)}."


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
    args = parser.parse_args()
    filler = Path(args.filler).read_text("utf-8")
    tests = {task: documents(filler, (pairs,), TESTED, 1000 + pairs) for task, pairs in PAIRS.items()}
    rows = []
    for name, seed in [("imported", 0), *((name, seed) for seed in args.seeds for name in ("memory", "adapters"))]:
        file = args.out / f"{name}_{seed}.json"
        if not file.exists():
            args.out.mkdir(parents=True, exist_ok=True)
            if name == "imported":
                scorer = Scorer(args.run)
                row = {"contender": name, "seed": seed, **{task: scorer.score(texts) for task, texts in tests.items()}}
            else:
                row = score_contender(args, name, seed, tests)
            file.write_text(json.dumps(row))
        rows.append(json.loads(file.read_text()))
        print(rows[-1], flush=True)
    if args.record:
        about = (
            f"{args.steps} updates of 8 rows and {SEGMENT} tokens, adapters of rank 8 in layers {ADAPTED[0]} to "
            f"{ADAPTED[-1]}, long memory of 512 tokens and 8 neighbours in layers {', '.join(map(str, LAYERS))}; a "
            f"window of {WINDOW} tokens and 4 sinks. `imported` = not trained, its whole memory of 2,048 tokens. "
            f"Digits of {TESTED} documents of each task. {describe_verdicts(rows)}"
        )
        command = f"python -m tools.measurements.llm_recall --run RUN --filler TEXT --out OUT --record '{args.record}'"
        title = f"Recall beyond the window of {args.record}"
        facts = together(rows)
        pages.record(measured("llm_recall", args.record, facts, command=command, title=title, about=about))


if __name__ == "__main__":
    main()
