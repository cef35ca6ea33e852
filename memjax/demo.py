"""`memjax demo`, the job of `make run`: does a memory help on real code, and on a task that needs one?

It trains the Memorizing Transformer on the Python sources of the running interpreter, and for the same number of tokens
the same model with its local cache only; scores both on held-out documents, the first also with its memory off and with
a larger one; trains a small model on documents of keys and values, with and without memory; and continues a held-out
file. Every part is saved when it is done: a second call goes on, or shows what is there.
"""

import dataclasses
import functools
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from memjax.config import Bytes, Config, Evaluation
from memjax.console import align, continuations, preparation, split_sizes
from memjax.overrides import load_config
from memjax.training.experiment import make_experiment
from memjax.training.loop import train
from memjax.training.metrics import read_metrics
from memjax.training.restoring import LoadedRun, load_run
from memjax.training.runs import read_json, write_json

DISTANT = "distant_identifier"
LEVEL = 0.005
"""relative difference of bits per byte below which two models are called level"""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Plan:
    """What a demonstration does; sizes are tokens, not seconds, so that it is the same on every machine.

    Attributes:
      workdir: folder of its runs and results.
      variant: of the config `memorizing_python` ('' = default).
      key_value_variant: of the config `key_value_recall`.
      steps: updates of each language model.
      key_value_steps: updates of each key-value model.
      larger_memory: slots of the memory that is larger than in training.
      max_segments: segments of every row that an evaluation scores; 0 = the whole split.
      prompt_tokens: tokens of the held-out file that are given.
      generated_tokens: tokens that continue it.
      bytes: UTF-8 bytes instead of subwords.
    """

    workdir: str = "runs/demo"
    variant: str = ""
    key_value_variant: str = ""
    steps: int = 6000
    key_value_steps: int = 2500
    larger_memory: int = 2048
    max_segments: int = 300
    prompt_tokens: int = 600
    generated_tokens: int = 160
    bytes: bool = False


SMOKE = Plan(
    workdir="runs/demo_smoke",
    variant="smoke",
    key_value_variant="smoke",
    steps=4,
    key_value_steps=4,
    larger_memory=128,
    max_segments=4,
    prompt_tokens=24,
    generated_tokens=8,
)


def run_demo(plan: Plan) -> dict[str, Any]:
    """Does what is not done yet and prints the whole; returns the results, which are also in `results.json`."""
    return _Demo(plan).run()


class _Demo:
    """One demonstration in one directory."""

    def __init__(self, plan: Plan):
        self.plan, self.path = plan, Path(plan.workdir)
        self.settings = {name: value for name, value in dataclasses.asdict(plan).items() if name != "workdir"}
        self.results: dict[str, Any] = read_json(self.path / "results.json") or {"plan": self.settings}
        self.begin = time.perf_counter() - self.results.get("seconds", 0.0)

    def run(self) -> dict[str, Any]:
        """All parts in order."""
        if self.results["plan"] != self.settings:
            raise ValueError(f"workdir: {self.path} holds a demonstration with other settings; give another --workdir")
        if self.results.get("finished"):
            self.say(f"{self.path}: found the finished demonstration (remove the directory to do it again)\n")
            self.show()
            return self.results
        self.path.mkdir(parents=True, exist_ok=True)
        self.say("1/4  corpus and vocabulary")
        self.describe_corpus()
        self.say("2/4  two language models, the same tokens for both")
        for name in ("memorizing", "cache_only"):
            self.part(name, self.train, name)
        self.say("     the first with its memory off, and with a larger one")
        for length in (0, self.plan.larger_memory):
            self.part(f"score/{length}", self.score, length)
        self.say("3/4  keys and values: what only a memory can know")
        for variant in ("default", "cache_only"):
            self.part(f"recall/{variant}", self.recall, variant)
        self.say("4/4  a held-out file, continued")
        self.part("continuation", self.continuation)
        self.results["finished"] = True
        self.save()
        self.say("")
        self.show()
        return self.results

    # Parts

    def part(self, name: str, do: Callable[..., Any], *given: Any) -> None:
        """Runs a part unless its result is there, and saves it; the time is saved in any case."""
        if name in self.results:
            return
        try:
            self.results[name] = do(*given)
        finally:
            self.save()

    def config(self, file: str, variant: str, name: str, steps: int) -> Config:
        """A shipped config for a model of the demonstration; without memory where its name says so."""
        config = dataclasses.replace(load_config(file, variant), name=name, workdir=self.plan.workdir)
        config.training.steps = steps
        return config.with_memory(0 if name.endswith("cache_only") else None)

    def language_config(self, name: str) -> Config:
        """The config of one of the two language models."""
        plan = self.plan
        config = self.config("memorizing_python", plan.variant, name, plan.steps)
        if plan.bytes:
            config.data.tokenizer = Bytes()
        config.evaluation = Evaluation(split="test", rows=16, max_segments=plan.max_segments)
        return config

    def describe_corpus(self) -> None:
        from memjax.data.python_sources import corpus_sha256, python_version, read_python_sources

        experiment = make_experiment(self.language_config("memorizing"), progress=preparation())
        facts: dict[str, Any] = {"python": python_version(), "sha256": corpus_sha256(read_python_sources())}
        facts |= {"vocabulary": experiment.tokenizer.vocab_size, **split_sizes(experiment.documents)}
        self.results["corpus"] = facts
        self.save()
        self.say("     " + _corpus_lines(facts).replace("\n", "\n     "))

    def train(self, name: str) -> dict[str, Any]:
        """Trains one model, or goes on with it, and scores the held-out documents."""
        config = self.language_config(name)
        result = train(config)
        lines = read_metrics(result.path / "metrics.jsonl")
        rates = [line["tokens_per_second"] for line in lines if line.get("tokens_per_second")]
        return {
            "tokens": config.training.steps * config.data.rows * config.data.segment_length,
            "tokens_per_second": float(np.median(rates)) if rates else None,
            "memory_length": config.model.carrier.memory_length or 0,
            **result.results,
        }

    @functools.cached_property
    def trained(self) -> LoadedRun:
        """The language model with a memory."""
        return load_run(self.path / "memorizing")

    def score(self, memory_length: int) -> dict[str, Any]:
        """Scores the held-out documents with another memory."""
        experiment = self.trained.experiment
        evaluation = dataclasses.replace(experiment.config.evaluation, memory_length=memory_length)
        result = experiment.evaluator(evaluation)(self.trained.variables)
        self.say(f"     memory {memory_length:,}: {result.bits_per_byte:.4f} bits per byte")
        return result.as_dict()

    def recall(self, variant: str) -> dict[str, Any]:
        """Trains on keys and values and counts the right answers on held-out documents."""
        plan = self.plan
        name = "recall_" + ("memory" if variant == "default" else variant)
        config = self.config("key_value_recall", plan.key_value_variant, name, plan.key_value_steps)
        config.evaluation.accuracy = True
        evaluation = train(config).results["evaluation"]
        return {
            "accuracy": evaluation["accuracy"],
            "answers": evaluation["targets"],
            "chance": 1 / config.data.source.num_values,  # type: ignore[union-attr]
        }

    def continuation(self) -> dict[str, Any]:
        """Continues the first held-out document that is long enough."""
        from memjax.inference import Sampling

        experiment = self.trained.experiment
        documents: Any = experiment.documents("test")
        long = (i for i in range(len(documents)) if documents.num_tokens(i) > self.plan.prompt_tokens)
        index = next(long, 0)
        prompt = experiment.tokenizer.decode(documents[index][: self.plan.prompt_tokens])
        sampling = Sampling(temperature=0.7, top_p=0.9)
        blocks = continuations(self.trained, [prompt], max_tokens=self.plan.generated_tokens, sampling=sampling)
        return {"document": documents.name(index), "prompt": prompt, "text": "".join(block[0] for block in blocks)}

    # What is shown

    def show(self) -> None:
        """Everything that was found, from the results alone."""
        text = "\n\n".join(part(self.results) for part in (_table, _verdict, _recall_lines, _continued))
        self.say(text)
        (self.path / "report.txt").write_text(text + "\n", encoding="utf-8")
        self.say(f"\n{self.results['seconds'] / 60:.1f} minutes; everything is in {self.path.resolve()}")

    def say(self, line: str) -> None:
        print(line, flush=True)

    def save(self) -> None:
        self.results["seconds"] = time.perf_counter() - self.begin
        write_json(self.path / "results.json", self.results)


def _corpus_lines(facts: Mapping[str, Any]) -> str:
    splits = ", ".join(
        f"{split} {facts[split]['documents']} documents, {facts[split]['tokens']:,} tokens"
        for split in ("train", "validation", "test")
    )
    return f"{facts['python']} library, SHA-256 {facts['sha256'][:12]}, vocabulary {facts['vocabulary']:,}\n{splits}"


def _scores(results: Mapping[str, Any]) -> list[tuple[str, str, dict[str, Any], dict[str, Any]]]:
    """(model, memory, score, training) of every row of the table."""
    memory, local = results["memorizing"], results["cache_only"]
    name, larger = "Memorizing Transformer", results["plan"]["larger_memory"]
    return [
        (name, f"{memory['memory_length']:,} (as trained)", memory["evaluation"], memory),
        (name, "off", results["score/0"], memory),
        (name, f"{larger:,}", results[f"score/{larger}"], memory),
        ("local cache only", "none", local["evaluation"], local),
    ]


def _table(results: Mapping[str, Any]) -> str:
    """The table of the language models."""
    heads = ["model", "memory", "bits/byte", "distant", "train tok/s", "eval tok/s", "parameters", "memory bytes"]
    show = lambda value, form: "-" if value is None else format(value, form)
    lines = [heads]
    for model, memory, score, training in _scores(results):
        bits = score["bits_per_byte"], score["subsets"][DISTANT].get("bits_per_byte")
        speeds = training["tokens_per_second"], score["tokens_per_second"]
        sizes = training["parameters"], score["memory_bytes"]
        forms = ((bits, ".4f"), (speeds, ",.0f"), (sizes, ","))
        lines.append([model, memory, *(show(value, form) for values, form in forms for value in values)])
    table = align(lines, numbers=len(heads) - 2)
    rule = "-" * len(table[0])
    tokens, first = results["memorizing"]["tokens"], results["cache_only"]["evaluation"]
    share = first["subsets"][DISTANT]["targets"] / first["targets"]
    notes = [
        f"Both models were trained on {tokens:,} tokens; {first['targets']:,} tokens of held-out documents are scored,",
        f"each document from an empty memory. distant: bits per byte of the {100 * share:.1f} % of tokens whose",
        "identifier occurred earlier in the document but outside the local window. memory bytes: one row, with caches.",
    ]
    return "\n".join([table[0], rule, *table[1:], rule, *notes, _corpus_lines(results["corpus"])])


def _verdict(results: Mapping[str, Any]) -> str:
    """What the table says, in sentences."""
    trained, *others, local = [score for _, _, score, _ in _scores(results)]
    gain = 1 - trained["bits_per_byte"] / local["bits_per_byte"]
    if abs(gain) < LEVEL:
        numbers = f"{trained['bits_per_byte']:.4f} and {local['bits_per_byte']:.4f} bits per byte"
        first = f"Memory and no memory are level here: {numbers}."
    else:
        share = f"{100 * abs(gain):.1f} % {'fewer' if gain > 0 else 'more'}"
        first = f"With its memory the model needs {share} bits per byte than the local cache alone."
    cost = others[0]["bits_per_byte"] / trained["bits_per_byte"] - 1
    second = f"Switching off the memory it was trained with changes its bits per byte by {100 * cost:+.2f} %."
    third = "Using a memory is learned late: minutes of training show that it works, not what it is worth."
    return "\n".join([first, second, third, "See tools/results/README.md for the recipe that does."])


def _recall_lines(results: Mapping[str, Any]) -> str:
    """The accuracies of the key-value models."""
    lines = ["Keys and values, asked for many segments later:"]
    for name, key in (("with memory", "recall/default"), ("local cache only", "recall/cache_only")):
        accuracy, answers, chance = (results[key][number] for number in ("accuracy", "answers", "chance"))
        right = f"{100 * accuracy:5.1f} % of {answers:,} answers right (chance {100 * chance:.1f} %)"
        lines.append(f"  {name:17} {right}")
    return "\n".join(lines)


def _continued(results: Mapping[str, Any]) -> str:
    """The end of the prompt and what the model made of it."""
    part = results["continuation"]
    head = f"A held-out document ({part['document']}): the end of what the model was given, after >>> what it wrote:"
    return f"{head}\n\n{part['prompt'][-400:]}>>>{part['text']}"
