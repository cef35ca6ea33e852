"""The demonstration of `memjax demo` and `make run`: how much a memory helps on a task that needs one, and on code.

It trains a small model on documents of keys and values, with and without memory. Then it trains a small Transformer
without memory on the Python sources of the running interpreter, and evaluates it with a continuous cache of the current
document and a datastore of training texts, without training anything again. The result of every part is saved, so that
a second call continues the demonstration or shows its results.
"""

import contextlib
import dataclasses
import functools
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, cast

import numpy as np

from memjax.cli.console import align, continuations, preparation, split_sizes
from memjax.config import Config, ContinuousCache, Evaluation, KeyValueRecall
from memjax.data.array_files import read_arrays
from memjax.data.reader_errors import reading
from memjax.durable_files import read_json, replace_file, write_json
from memjax.settings.overrides import load_config, shipped_config
from memjax.training.experiment import make_experiment
from memjax.training.loaded_runs import LoadedRun, load_run
from memjax.training.metrics import LN2, read_metrics
from memjax.training.run_start import train

LEVEL = 0.005
"""relative difference of bits per byte below which two rows count as equal"""
SPLITS = ("validation", "test")
SCALES = (10.0, 15.0, 20.0, 30.0)
"""scales of the cache that are tried on validation"""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Plan:
    """The folder of a demonstration and its sizes, in steps and tokens instead of seconds, so that it is the same on
    every machine.

    Attributes:
      workdir: Folder of the runs and the results.
      variant: Variant of the config `python_demo`. '' for its default variant.
      key_value_variant: Variant of the config `key_value_recall`. '' for its default variant.
      steps: Number of training steps of the language model. 0 for that of the config.
      key_value_steps: Number of training steps of each key-value model.
      store_tokens: Minimum number of training tokens in the datastore, which holds whole documents.
      num_neighbors: Number of neighbours of each token.
      cache_length: Number of tokens in the cache.
      max_segments: Maximum number of segments of every row that are scored. 0 for the whole split.
      prompt_tokens: Number of tokens of the prompt, the start of a held-out file.
      generated_tokens: Number of tokens that are generated after the prompt.
    """

    workdir: str = "runs/demo"
    variant: str = ""
    key_value_variant: str = ""
    steps: int = 0
    key_value_steps: int = 2500
    store_tokens: int = 500_000
    num_neighbors: int = 64
    cache_length: int = 2000
    max_segments: int = 8
    prompt_tokens: int = 600
    generated_tokens: int = 120


SMOKE = Plan(
    workdir="runs/demo_smoke",
    variant="smoke",
    key_value_variant="smoke",
    steps=4,
    key_value_steps=4,
    store_tokens=400,
    num_neighbors=4,
    cache_length=32,
    max_segments=4,
    prompt_tokens=24,
    generated_tokens=8,
)


def run_demo(plan: Plan) -> dict[str, Any]:
    """Runs the unfinished parts of the demonstration in the folder of `plan`, with its sizes. Prints all results, and
    returns them as a dictionary.

    Returns:
      The results, which are also written to `results.json`.
    """
    return _Demo(plan).run()


class _Demo:
    """A demonstration and its results in a directory."""

    def __init__(self, plan: Plan):
        self.plan, self.path = plan, Path(plan.workdir)
        self.settings = {name: value for name, value in dataclasses.asdict(plan).items() if name != "workdir"}
        self.results: dict[str, Any] = read_json(self.path / "results.json") or {"plan": self.settings, "times": {}}

    def run(self) -> dict[str, Any]:
        """Runs all parts in their order, and shows the results."""
        if self.results["plan"] != self.settings:
            raise ValueError(f"workdir: {self.path} holds a demonstration with other settings; give another --workdir")
        if self.results.get("finished"):
            self.say(f"{self.path}: found the finished demonstration (remove the directory to do it again)\n")
            self.show()
            return self.results
        self.path.mkdir(parents=True, exist_ok=True)
        self.say("1/4  keys and values: what only a memory can know")
        for variant in ("default", "cache_only"):
            self.part(f"recall/{variant}", self.recall, variant)
        self.say("2/4  a small Transformer without memory learns Python")
        self.part("corpus", self.describe_corpus)
        self.part("model", self.train)
        self.say("3/4  memories for the trained model: a cache, and a datastore of texts that it was trained on")
        self.part("store", self.build)
        for split in SPLITS:
            self.part(f"score/{split}", self.score, split)
        self.part("mixtures", self.tune)
        self.say("4/4  a held-out file, continued without and with them")
        self.part("continuation", self.continuation)
        self.results["finished"] = True
        self.save()
        self.say("")
        self.show()
        return self.results

    # Parts

    def part(self, name: str, do: Callable[..., Any], *arguments: Any) -> None:
        """Runs a part unless it has a result. Saves the result and the time, including that of interrupted calls."""
        if name in self.results:
            return
        with self.measure_time(name):
            self.results[name] = do(*arguments)
        self.say(f"     {name}: {self.results['times'][name]:.0f} s")

    @contextlib.contextmanager
    def measure_time(self, name: str) -> Iterator[None]:
        """Adds the time of the body to the saved time of a part."""
        begin, before = time.perf_counter(), self.results["times"].get(name, 0.0)
        try:
            yield
        finally:
            self.results["times"][name] = before + time.perf_counter() - begin
            self.save()

    def recall(self, variant: str) -> dict[str, Any]:
        """Trains a model on keys and values, and counts right answers on held-out documents."""
        plan = self.plan
        config = load_config(shipped_config("key_value_recall"), plan.key_value_variant)
        if variant != "default":
            config = config.with_memory(0)
        config.name, config.workdir = "recall_" + ("memory" if variant == "default" else variant), plan.workdir
        config.training.steps, config.evaluation.compute_accuracy = plan.key_value_steps, True
        evaluation, source = train(config).results["evaluation"], cast(KeyValueRecall, config.data.source)
        return {
            "accuracy": evaluation["accuracy"],
            "answers": evaluation["targets"],
            "chance": 1 / source.num_values,
        }

    def language_config(self) -> Config:
        """Returns the config of the language model."""
        plan = self.plan
        config = dataclasses.replace(
            load_config(shipped_config("python_demo"), plan.variant), name="model", workdir=plan.workdir
        )
        config.training.steps = plan.steps or config.training.steps
        config.evaluation = Evaluation(batch_size=config.evaluation.batch_size, max_segments=plan.max_segments)
        return config

    def describe_corpus(self) -> dict[str, Any]:
        """Returns the sizes, the checksum and the Python version of the corpus, and prints them."""
        from memjax.data.python_sources import corpus_sha256, python_version, read_python_sources

        experiment = make_experiment(self.language_config(), progress=preparation())
        facts: dict[str, Any] = {"python": python_version(), "sha256": corpus_sha256(read_python_sources())}
        facts |= {"vocabulary": experiment.tokenizer.vocab_size, **split_sizes(experiment.documents)}
        self.say("     " + _corpus_lines(facts).replace("\n", "\n     "))
        return facts

    def train(self) -> dict[str, Any]:
        """Trains the language model, or continues its run."""
        config = self.language_config()
        result = train(config)
        lines = read_metrics(result.path / "metrics.jsonl")
        rates = [line["tokens_per_second"] for line in lines if line.get("tokens_per_second")]
        return {
            "parameters": result.results["parameters"],
            "tokens": config.training.steps * config.data.batch_size * config.data.segment_length,
            "tokens_per_second": float(np.median(rates)) if rates else None,
            "segment_length": config.data.segment_length,
        }

    @functools.cached_property
    def trained(self) -> LoadedRun:
        """The run of the language model."""
        return load_run(self.path / "model")

    @functools.cached_property
    def source(self) -> Any:
        """The language model as a source of keys and queries, with only the training documents of the datastore."""
        from memjax.data.documents import FirstDocuments
        from memjax.retrieval.keys import make_key_extractor

        documents = self.trained.experiment.documents
        first = FirstDocuments(documents("train"), num_tokens=self.plan.store_tokens)
        splits = {"train": first, **{split: documents(split) for split in SPLITS}}
        return make_key_extractor(self.trained).with_documents(splits)

    @functools.cached_property
    def store(self) -> Any:
        """The datastore, which is built first, or completed after an interruption."""
        from memjax.retrieval.building import build_datastore

        return build_datastore(self.source, self.path / "store")

    @functools.cached_property
    def index(self) -> Any:
        """Exact search in the datastore."""
        from memjax.datastore.opening import open_index

        return open_index(self.store, "exact")

    def build(self) -> dict[str, Any]:
        """Builds the datastore, and returns its size."""
        return {"entries": self.store.entries, "dim": self.store.dim}

    def caches(self, weight: float = 0.1) -> list[Any]:
        """Returns a continuous cache for every scale of `SCALES`.

        Args:
          weight: Weight of the cache in the interpolation.
        """
        from memjax.models.factory import make_mixtures

        config = self.trained.experiment.config
        settings = {
            "memory_length": self.plan.cache_length,
            "similarity": "cosine",
            "interpolation_weight": weight,
        }
        evaluations = [
            dataclasses.replace(config.evaluation, cache=ContinuousCache(similarity_scale=scale, **settings))
            for scale in SCALES
        ]
        return [make_mixtures(evaluation, config.model)[0] for evaluation in evaluations]

    def score(self, split: str) -> dict[str, Any]:
        """Saves, for every token of a split, its probability by the model and by each cache, and its neighbours."""
        from memjax.retrieval.interpolation import neighbors_in_store

        evaluator = self.source.evaluator(split, *self.caches())
        result, saved = neighbors_in_store(self.source, self.store, self.index, evaluator, self.plan.num_neighbors)
        arrays = {f"targets_{name}": value for name, value in vars(saved.targets).items()}
        arrays |= {f"neighbors_{name}": value for name, value in vars(saved.neighbors).items()}
        partial = self.path / f"{split}.partial.npz"
        np.savez(partial, **arrays)
        partial.replace(self.path / f"{split}.npz")
        return {"targets": result.targets, "bytes": result.bytes}

    def read_scores(self, split: str) -> Any:
        """Reads the probabilities and neighbours that `score` has saved for a split."""
        from memjax.retrieval.interpolation import StoreNeighbors
        from memjax.retrieval.tuning import CachedNeighbors, ScoredTargets

        file, form = self.path / f"{split}.npz", "the scores of an earlier call; delete it to make them again"
        with reading(file, form):
            arrays = read_arrays(file, form)
            parts = {
                kind: {name.removeprefix(f"{kind}_"): arrays[name] for name in arrays if name.startswith(kind)}
                for kind in ("targets", "neighbors")
            }
            return StoreNeighbors(ScoredTargets(**parts["targets"]), CachedNeighbors(**parts["neighbors"]))

    def tune(self) -> dict[str, Any]:
        """Returns the weights and temperatures that are best on validation, and their scores on both splits."""
        from memjax.retrieval.tuning import WEIGHTS, mixture_nats, score_mixture, tune_interpolation, tune_with_memory

        saved = {split: self.read_scores(split) for split in SPLITS}
        targets, neighbors = saved["validation"].targets, saved["validation"].neighbors
        alone = targets.mixed(0.0)
        nats = mixture_nats(targets.parts[0], targets.parts[1:], WEIGHTS)
        part, place = (int(i) for i in np.unravel_index(nats.argmin(), nats.shape))
        part += 1  # 0 is the model alone
        near = tune_interpolation(alone, neighbors)
        cache_weight, near_with_cache = tune_with_memory(targets, neighbors, part)
        near_settings = {"weight": near.interpolation_weight, "temperature": near.temperature}
        both_settings = {
            "weight": near_with_cache.interpolation_weight,
            "temperature": near_with_cache.temperature,
        }
        rows = {
            "none": {"cache_weight": 0.0, "weight": 0.0, "temperature": 1.0},
            "cache": {"cache_weight": WEIGHTS[place], "weight": 0.0, "temperature": 1.0},
            "store": {"cache_weight": 0.0, **near_settings},
            "both": {"cache_weight": cache_weight, **both_settings},
        }
        for settings in rows.values():
            for split, scores in saved.items():
                mixed = scores.targets.mixed(settings["cache_weight"], part)
                score, _ = score_mixture(mixed, scores.neighbors, settings["weight"], settings["temperature"])
                settings[split] = score.nats / LN2 / self.results[f"score/{split}"]["bytes"]
        return {"scale": SCALES[part - 1], "rows": rows}

    def continuation(self) -> dict[str, Any]:
        """Continues the first held-out document that is long enough, without and with the memories."""
        from memjax.inference import Sampling
        from memjax.memory.knn_lm import KNNMemory
        from memjax.models.feature_taps import add_mixtures, regroup_layers
        from memjax.retrieval.generation import knn_retriever

        experiment, settings = self.trained.experiment, self.results["mixtures"]["rows"]["both"]
        documents: Any = experiment.documents("test")
        long = (i for i in range(len(documents)) if documents.num_tokens(i) > self.plan.prompt_tokens)
        index = next(long, 0)
        prompt = experiment.tokenizer.decode(documents[index][: self.plan.prompt_tokens])
        asked = {
            "max_tokens": self.plan.generated_tokens,
            "sampling": Sampling(temperature=1.0, top_p=0.8),
        }
        cache = self.caches(settings["cache_weight"])[SCALES.index(self.results["mixtures"]["scale"])]
        near = KNNMemory(
            num_neighbors=self.plan.num_neighbors,
            interpolation_weight=settings["weight"],
            temperature=settings["temperature"],
            query_feature=self.source.feature,
        )
        model = add_mixtures(self.source.model, cache, near)
        variables = regroup_layers(self.source.variables, self.source.model, model)
        with_memories = dataclasses.replace(self.trained, variables=variables)
        recall = knn_retriever(model, self.index.search, self.store.values)
        write = lambda run, **more: "".join(block[0] for block in continuations(run, [prompt], **asked, **more))
        return {
            "document": documents.name(index),
            "prompt": prompt,
            "none": write(self.trained),
            "both": write(with_memories, model=model, recall=recall),
        }

    # What is shown

    def show(self) -> None:
        """Prints all results, and writes them to `report.txt`."""
        parts = (_recall_lines, _table, _sentences, _continuations, _times)
        text = "\n\n".join(part(self.results) for part in parts)
        self.say(text)
        replace_file(self.path / "report.txt", f"{text}\n".encode())
        self.say(f"everything is in {self.path.resolve()}")

    def say(self, line: str) -> None:
        print(line, flush=True)

    def save(self) -> None:
        write_json(self.path / "results.json", self.results)


NAMES = {
    "none": "no memory",
    "cache": "+ cache",
    "store": "+ datastore",
    "both": "+ cache + datastore",
}
"""key of a row of results -> its name in the table"""


def _corpus_lines(facts: Mapping[str, Any]) -> str:
    splits = ", ".join(
        f"{split} {facts[split]['documents']} documents, {facts[split]['tokens']:,} tokens"
        for split in ("train", *SPLITS)
    )
    return f"{facts['python']} library, SHA-256 {facts['sha256'][:12]}, vocabulary {facts['vocabulary']:,}\n{splits}"


def _recall_lines(results: Mapping[str, Any]) -> str:
    """Formats the accuracies of the key-value models."""
    lines = ["1. Keys and values, asked for many segments later:"]
    for name, key in (("with memory", "recall/default"), ("local cache only", "recall/cache_only")):
        accuracy, answers, chance = (results[key][number] for number in ("accuracy", "answers", "chance"))
        right = f"{100 * accuracy:5.1f} % of {answers:,} answers right (chance {100 * chance:.1f} %)"
        lines.append(f"   {name:17} {right}")
    return "\n".join(lines)


def _gain(row: Mapping[str, float], rows: Mapping[str, Mapping[str, float]]) -> float:
    """Returns the share of the bits per byte of the model without memories that a row saves on test."""
    return 1 - row["test"] / rows["none"]["test"]


def _table(results: Mapping[str, Any]) -> str:
    """Formats the table of results of the language model without and with memories."""
    rows, test = results["mixtures"]["rows"], results["score/test"]
    lines = [["", "bits/byte", "saved", "validation", "weight of cache", "of datastore"]]
    for key, row in rows.items():
        saved = f"{100 * _gain(row, rows):.1f} %" if key != "none" else "-"
        shares = [f"{row[name]:.2f}" if row[name] else "-" for name in ("cache_weight", "weight")]
        lines.append([NAMES[key], f"{row['test']:.4f}", saved, f"{row['validation']:.4f}", *shares])
    table = align(lines, numbers=len(lines[0]) - 1)
    rule, model = "-" * len(table[0]), results["model"]
    notes = [
        f"One Transformer of {model['parameters']:,} parameters, trained once on {model['tokens']:,} tokens; memories",
        f"are added at inference. Scored: {test['targets']:,} tokens of held-out documents ({test['bytes']:,} bytes).",
        "Weights, temperature and scale were tuned on validation, test was read off once.",
    ]
    head = "2. Held-out Python sources, bits per byte (fewer is better):"
    return "\n".join([head, table[0], rule, *table[1:], rule, *notes, _corpus_lines(results["corpus"])])


def _verdict(name: str, gain: float) -> str:
    """Returns a sentence about the bits that a memory saves, without its full stop.

    Example:
      >>> _verdict("The cache", 0.102), _verdict("The cache", -0.02), _verdict("The cache", 0.001)
      ('The cache saves 10.2 % of the bits', 'The cache costs 2.0 % more bits', 'The cache changes nothing to speak of')
    """
    if abs(gain) < LEVEL:
        return f"{name} changes nothing to speak of"
    return f"{name} saves {100 * gain:.1f} % of the bits" if gain > 0 else f"{name} costs {100 * -gain:.1f} % more bits"


def _sentences(results: Mapping[str, Any]) -> str:
    """Formats a sentence about each row of the table."""
    rows, plan, model = results["mixtures"]["rows"], results["plan"], results["model"]
    gains = {key: _gain(row, rows) for key, row in rows.items()}
    better = max(gains["cache"], gains["store"])
    last = _verdict("Having both", gains["both"])
    if gains["both"] > better + LEVEL:
        last += f", {100 * (gains['both'] - better):.1f} points more than the better of the two alone"
    return "\n".join(
        [
            f"No memory: a token sees the {model['segment_length']} tokens of its segment and nothing else.",
            f"{_verdict('The cache', gains['cache'])}: it holds the last {plan['cache_length']:,} tokens of the "
            "document.",
            f"{_verdict('The datastore', gains['store'])}: it holds {results['store']['entries']:,} tokens that the "
            "model was trained on, searched exactly.",
            f"{last}.",
        ]
    )


def _continuations(results: Mapping[str, Any]) -> str:
    """Formats the end of the prompt and its continuations without and with the memories."""
    part = results["continuation"]
    head = f"3. A held-out document ({part['document']}): the end of what was given, and after >>> what was written"
    return "\n".join(
        [
            f"{head}\n\n{part['prompt'][-300:]}>>>",
            f"--- without memory:\n{part['none']}",
            f"--- with cache and datastore:\n{part['both']}",
        ]
    )


def _times(results: Mapping[str, Any]) -> str:
    """Formats the time of each part, and of all parts together."""
    times = results["times"]
    parts = ", ".join(f"{name} {seconds:.0f}" for name, seconds in times.items())
    return f"{sum(times.values()) / 60:.1f} minutes (seconds: {parts})"
