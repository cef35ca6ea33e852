"""Recipes: which runs make a section of the results table."""

from __future__ import annotations

import dataclasses
import json
import os
import platform
import shlex
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from memjax.training.runs import read_json
from tools.results import records

SEARCH_SEED = 100
"""the learning-rate search has a seed that no result has"""


@dataclasses.dataclass(frozen=True)
class Recipe:
    """Contenders that differ in one thing, each at its own best learning rate.

    Attributes:
      description: what is compared, for the table.
      config: configuration of all contenders.
      variants: row of the table -> variant of the configuration, and further arguments of its runs where there are
        any: `'spalm --model.output.num-neighbors 2'`; `$NAME` is an environment variable with a path. They come after
        `arguments`, which they override.
      steps: updates of a recorded run.
      search_steps: updates of a run of the learning-rate search.
      learning_rates: the search's grid, the same for every contender; a single one is not searched.
      seeds: recorded runs of each contender.
      arguments: further arguments of all runs.
      data_path: environment variable with the path of the data, '' = none is needed.
      evaluations: what is read off each finished run -> arguments of `memjax eval`; none = bits per byte of the
        evaluation at the end of training.
      scripts: modules that measure each finished run further, and their arguments: `python -m MODULE RUN --out FILE`
        writes JSON whose `numbers` go to the record.
    """

    description: str
    config: str
    variants: dict[str, str]
    steps: int
    search_steps: int
    learning_rates: tuple[float, ...]
    seeds: tuple[int, ...] = (0, 1)
    arguments: tuple[str, ...] = ()
    data_path: str = ""
    evaluations: dict[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)
    scripts: tuple[str, ...] = ()


_HIGHER_RATE = "--training.schedule.learning-rate 0.006"
_SMALL_SORTING = "compressive --model.attention.memory-length 128 --model.attention.compressed-memory-length 128"
_SMALL_SORTING_TASK = (
    *("--data.source.length", "1000", "--data.segment-length", "128", "--training.segments-per-update", "8"),
    *("--model.dim", "60", "--model.feed-forward.dim", "120", "--model.dropout", "0.0"),
    *("--training.schedule.warmup-steps", "100"),
)
_SORTING_LENGTHS = {
    f"{length:,}": ("--data.source.length", str(length), "--data.source.num-documents", "1000")
    for length in (1000, 2000, 4000, 8000)
}
_SHORT_SORTING_LENGTHS = {
    f"{length:,}": ("--data.source.length", str(length), "--data.source.num-documents", "5000")
    for length in (256, 512, 1024, 2048)
}
_SMALL_DIGITS = "--model.dim 64 --model.feed-forward.dim 128 --model.dropout 0.0"
_SMALL_DIALOGUE = "--data.segment-length 126 --data.rows 16"
_SMALL_DIALOGUE_SIGNAL = (
    "--model.attention.segment-length 126 --model.attention.num-basis 256 --model.attention.num-samples 256"
)


def _small_signal(num_basis: int = 128) -> str:
    return (
        "--model.attention.segment-length 128 --model.attention.memory-length 128 "
        f"--model.attention.num-basis {num_basis} --model.attention.num-samples 128"
    )


_SMALL_MEMFORMER = f"{_SMALL_DIGITS} {_HIGHER_RATE} --model.num-layers 2 --model.encoder-layers 1"
BOTH_SPLITS = {split: ("--evaluation.split", split) for split in ("validation", "test")}

RECIPES = {
    "memory_gain_python": Recipe(
        description=(
            "Held-out documents of the Python standard library, bits per byte; validation split, separate documents, "
            "every token scored once. Equal tokens, window and learning-rate search."
        ),
        config="memory_gain",
        variants={"Memorizing": "default", "local cache only": "cache_only", "no memory": "no_memory"},
        steps=30000,
        search_steps=3000,
        learning_rates=(1.5e-3, 3e-3, 6e-3),
    ),
    "memory_gain_novels": Recipe(
        description=(
            "Held-out English novels (whole books, 100 English Novels without those published after 1930), bits per "
            "byte; validation split, first 2,000 segments of every row, separate documents. Equal tokens and window, "
            "and the learning rate that the search on Python documents found best for both."
        ),
        config="memory_gain",
        variants={"Memorizing": "novels", "local cache only": "novels_cache_only"},
        steps=16000,
        search_steps=0,
        learning_rates=(6e-3,),
        arguments=("--evaluation.max-segments", "2000"),
        data_path="MEMJAX_NOVELS",
    ),
    "wikitext2_memories": Recipe(
        description=(
            "WikiText-2 at word level, perplexity per token of the whole validation and test splits; contiguous "
            "streams, every token scored once. Equal text, steps and learning rate; memories attend to 64 slots."
        ),
        config="wikitext2_memories",
        variants={
            "no memory": "no_memory",
            "Transformer-XL": "default",
            "Compressive": "compressive",
            "SPALM": "spalm --data.neighbors $MEMJAX_WIKITEXT2_NEIGHBORS",
        },
        steps=8000,
        search_steps=0,
        learning_rates=(2e-3,),
        seeds=(0,),
        data_path="MEMJAX_WIKITEXT2",
        evaluations=BOTH_SPLITS,
    ),
    "wikitext2_spalm_neighbors": Recipe(
        description=(
            "SPALM with 1 to 16 neighbours, each trained and evaluated with as many; WikiText-2 as above, fewer steps. "
            "All have the same neighbours, from ScaNN and a frozen Transformer-XL (`tools.results.knn_lm.spalm`)."
        ),
        config="wikitext2_memories",
        variants={
            "Transformer-XL": "default",
            **{
                f"SPALM, {count}": f"spalm --model.output.num-neighbors {count} "
                "--data.neighbors $MEMJAX_WIKITEXT2_NEIGHBORS"
                for count in (4, 16, 1, 2, 8)
            },
            "SPALM, 4, gate bias 2": "spalm --model.output.gate-bias 2.0 --data.neighbors $MEMJAX_WIKITEXT2_NEIGHBORS",
        },
        steps=1000,
        search_steps=0,
        learning_rates=(2e-3,),
        seeds=(0,),
        data_path="MEMJAX_WIKITEXT2",
        evaluations=BOTH_SPLITS,
    ),
    "recurrent_memories": Recipe(
        description=(
            "WikiText-2 in 1,000 subwords, bits per byte; validation split, separate documents, every token scored "
            "once. Equal text, tokens per update and steps; four layers each; learning rate 0.006 unless the row names "
            "another. A longer horizon has fewer documents in an update."
        ),
        config="recurrent_memories",
        variants={
            "no memory": f"no_memory {_HIGHER_RATE}",
            "Transformer-XL": f"transformer_xl {_HIGHER_RATE}",
            "Compressive": f"compressive {_HIGHER_RATE}",
            "infinity-former": f"infinity_former {_HIGHER_RATE}",
            "infinity-former, sticky": f"sticky {_HIGHER_RATE}",
            "no memory, learning rate 0.002": "no_memory",
            "Transformer-XL, learning rate 0.002": "transformer_xl",
            "Compressive, learning rate 0.002": "compressive",
            "infinity-former, learning rate 0.002": "infinity_former",
            "infinity-former, sticky, learning rate 0.002": "sticky",
            "decoder of Memformer alone": (
                f"no_slots {_HIGHER_RATE} --model.encoder-layers 0 --model.num-layers 4 "
                "--training.segments-per-update 1 --data.rows 32"
            ),
            "Memformer, learning rate 0.002": "default",
            "Memformer": f"default {_HIGHER_RATE}",
            "Memformer, horizon 1": f"default {_HIGHER_RATE} --training.segments-per-update 1 --data.rows 32",
            "Memformer, horizon 16": f"default {_HIGHER_RATE} --training.segments-per-update 16 --data.rows 2",
            "Memformer, 1 slot": f"slots_1 {_HIGHER_RATE}",
            "Memformer, no slots": f"no_slots {_HIGHER_RATE}",
            "Memformer, no forgetting": f"no_forgetting {_HIGHER_RATE}",
            "Memformer, temperature 1": f"temperature_1 {_HIGHER_RATE}",
        },
        steps=600,
        search_steps=0,
        learning_rates=(2e-3,),
        seeds=(0,),
        data_path="MEMJAX_WIKITEXT2",
    ),
    "sorting_small": Recipe(
        description=(
            "Sorting symbols by how often they occurred, share of the answers that is right: trained on documents of "
            "1,000 symbols, scored on others of 1,000 to 8,000. Equal documents, updates and learning rate; every "
            "memory attends to 256 slots or holds 128 tokens and 128 basis functions or compressed slots, of 4 tokens "
            "where no rate is named. Gradients in the last of 8 segments only, so that without reconstruction loss the "
            "compression stays as it began. Windows of 12 cross segments. `tools.results.recurrent.regression` makes "
            "the table of the regressions' errors."
        ),
        config="sorting",
        variants={
            "Transformer-XL": "transformer_xl --model.attention.memory-length 256",
            "Compressive": _SMALL_SORTING,
            "Compressive, no reconstruction loss": f"{_SMALL_SORTING} --model.attention.loss none",
            **{
                f"Compressive, rate {rate}": f"{_SMALL_SORTING} --model.attention.compression-rate {rate}"
                for rate in (2, 8, 12)
            },
            "infinity-former": f"infinity_former {_small_signal()}",
            "infinity-former, sticky": f"default {_small_signal()}",
            **{
                f"infinity-former, {count} functions": (f"infinity_former {_small_signal(count)}")
                for count in (32, 512)
            },
        },
        steps=2000,
        search_steps=0,
        learning_rates=(4e-3,),
        seeds=(0,),
        arguments=(
            *_SMALL_SORTING_TASK,
            *("--model.attention.norm", "pre", "--training.segments-without-gradient", "7"),
        ),
        evaluations=_SORTING_LENGTHS,
    ),
    "sorting_horizon": Recipe(
        description=(
            "Memformer on the sorting task of `sorting_small`, after as few updates: documents of 8 segments; the "
            "horizon is the number of last ones that have a gradient. Equal documents, updates and learning rate. "
            "`sorting_curves` has shorter documents and more updates."
        ),
        config="sorting",
        variants={
            "horizon 8": "memformer",
            "horizon 4": "memformer --training.segments-without-gradient 4",
            "horizon 1": "memformer --training.segments-without-gradient 7",
        },
        steps=2000,
        search_steps=0,
        learning_rates=(4e-3,),
        seeds=(0,),
        arguments=(*_SMALL_SORTING_TASK, "--model.segment-length", "128"),
        evaluations=_SORTING_LENGTHS,
    ),
    "sorting_curves": Recipe(
        description=(
            "Memformer on sorting: what gradients through more segments are worth, and more slots. Trained on "
            "documents of 256 symbols in 9 segments of 32, a new one each time, scored on others of 256 to 2,048; "
            "share of the answers that is right, 10,000 of each length. The horizon is the number of last segments "
            "that have a gradient: with 1 the writer stays as it began. 64 slots unless the row names another. Equal "
            "documents, updates and learning rate, 0.002 unless the row names another."
        ),
        config="sorting",
        variants={
            "horizon 9": "memformer",
            "horizon 4": "memformer --training.segments-without-gradient 5",
            "horizon 2": "memformer --training.segments-without-gradient 7",
            "horizon 1": "memformer --training.segments-without-gradient 8",
            "horizon 1, learning rate 0.004": (
                "memformer --training.segments-without-gradient 8 --training.schedule.learning-rate 0.004"
            ),
            **{
                f"horizon 2, slots {slots}": (
                    f"memformer --training.segments-without-gradient 7 --model.num-slots {slots}"
                )
                for slots in (1, 4, 16)
            },
        },
        steps=5000,
        search_steps=0,
        learning_rates=(2e-3,),
        arguments=(
            *("--data.source.length", "256", "--data.source.num-documents", "40000", "--data.segment-length", "32"),
            *("--model.segment-length", "32", "--training.segments-per-update", "9"),
            *("--model.dim", "60", "--model.feed-forward.dim", "120", "--model.dropout", "0.0"),
            *("--training.schedule.warmup-steps", "100"),
        ),
        evaluations=_SHORT_SORTING_LENGTHS,
    ),
    "mnist_small": Recipe(
        description=(
            "MNIST as 784 tokens of 256 values, perplexity per pixel of the whole test split. Equal images, pixels per "
            "update and steps; learning rate 0.002, of Memformer 0.006 unless the row names another. Two layers of "
            "Memformer read one that encodes unless the row says otherwise; Transformer-XL and the Transformer have "
            "three layers, the LSTM four."
        ),
        config="memformer_mnist",
        variants={
            "Transformer-XL, 224": f"transformer_xl {_SMALL_DIGITS} --model.num-layers 3",
            "Transformer, whole image": (
                f"transformer {_SMALL_DIGITS} --model.num-layers 3 --training.segments-per-update 1 --data.rows 8"
            ),
            "LSTM": "lstm --model.dim 64 --model.dropout 0.0",
            "Transformer-XL, 224, learning rate 0.006": (
                f"transformer_xl {_SMALL_DIGITS} {_HIGHER_RATE} --model.num-layers 3"
            ),
            "LSTM, learning rate 0.006": f"lstm --model.dim 64 --model.dropout 0.0 {_HIGHER_RATE}",
            "Memformer, learning rate 0.002": f"ablation {_SMALL_DIGITS} --model.num-layers 2 --model.encoder-layers 1",
            "Memformer": f"ablation {_SMALL_MEMFORMER}",
            "Memformer, 1 slot": f"slots_1 {_SMALL_MEMFORMER}",
            **{f"Memformer, {n} slots": f"ablation {_SMALL_MEMFORMER} --model.num-slots {n}" for n in (16, 32)},
            "Memformer, 2 layers that encode": f"ablation {_SMALL_MEMFORMER} --model.encoder-layers 2",
            "Memformer, 2 layers that encode, 1 that decodes": (
                f"ablation {_SMALL_MEMFORMER} --model.encoder-layers 2 --model.num-layers 1"
            ),
            "Memformer, no slots": f"no_memory {_SMALL_MEMFORMER}",
            "Memformer, no forgetting": f"no_forgetting {_SMALL_MEMFORMER}",
            "Memformer, temperature 1": f"temperature_1 {_SMALL_MEMFORMER}",
            "Memformer, single heads": f"single_head {_SMALL_MEMFORMER}",
            "decoder of Memformer alone": f"no_encoder {_SMALL_DIGITS} {_HIGHER_RATE} --model.num-layers 3",
        },
        steps=300,
        search_steps=0,
        learning_rates=(2e-3,),
        seeds=(0,),
        arguments=(
            *("--training.segments-per-update", "7", "--data.rows", "16", "--training.schedule.warmup-steps", "30"),
            *("--training.evaluate-every", "0", "--evaluation.max-segments", "7"),
        ),
        data_path="MEMJAX_MNIST",
        evaluations={"test": ("--evaluation.split", "test", "--evaluation.max-segments", "0")},
    ),
    "cmu_dog_small": Recipe(
        description=(
            "CMU-DoG, answers in dialogues about films: perplexity of utterances, and F1, ROUGE and METEOR (exact and "
            "stem matches, no WordNet) of what the model says instead of each utterance of the test split's first 60 "
            "dialogues, drawn from a nucleus of 0.9 at temperature 0.7 and greedily; libraries are named in the logs. "
            "4 layers, 128 wide, 4,096 byte pairs, from scratch, equal steps. With a memory the document stands in "
            "segments before the dialogue, which is read in segments of 126 tokens; in the context, the first 256 "
            "tokens of it stand before the dialogue in every segment of 512."
        ),
        config="cmu_dog",
        variants={
            "no document": "no_document --data.segment-length 512 --data.rows 2",
            "document in context": (
                "default --data.segment-length 512 --data.rows 3 --data.source.document-length 256"
            ),
            "Compressive": f"compressive {_SMALL_DIALOGUE} --model.attention.compressed-memory-length 256",
            "infinity-former": f"infinity_former {_SMALL_DIALOGUE} {_SMALL_DIALOGUE_SIGNAL}",
            "infinity-former, sticky": f"sticky {_SMALL_DIALOGUE} {_SMALL_DIALOGUE_SIGNAL}",
        },
        steps=1000,
        search_steps=0,
        learning_rates=(2e-3,),
        seeds=(0,),
        arguments=(
            *("--model.num-layers", "4", "--model.dim", "128", "--model.num-heads", "4"),
            *("--data.tokenizer.vocab-size", "4096", "--training.schedule.warmup-steps", "100"),
            *("--training.memory-learning-rate", "0", "--training.evaluate-every", "0"),
        ),
        data_path="MEMJAX_CMU_DOG",
        evaluations=BOTH_SPLITS,
        scripts=("tools.results.dialogue --dialogues 60",),
    ),
    "linear_states_wikitext2": Recipe(
        description=(
            "WikiText-2 at word level, perplexity per token of the whole validation and test splits; whole articles as "
            "documents, every token scored once. Two layers, 128 wide, segments of 64 tokens; equal text, steps and "
            "learning rate. Linear states go on over an article, `softmax` sees its segment, Transformer-XL one more."
        ),
        config="linear_states_wikitext2",
        variants={
            "softmax, one segment": "softmax",
            "Transformer-XL": "transformer_xl",
            "Transformer-XL, 20 memory tokens": "memory_tokens",
            "Linear Transformer (ELU)": "default",
            "RFA": "rfa",
            "RFA with a gate": "rfa_gate",
            "T2R, from scratch": "t2r",
            "MemSizer, 32 slots": "memsizer",
            **{f"MemSizer, {n} slots": f"memsizer --model.attention.num-slots {n}" for n in (8, 128)},
        },
        steps=1000,
        search_steps=0,
        learning_rates=(2e-3,),
        seeds=(0,),
        arguments=("--model.num-layers", "2", "--data.segment-length", "64"),
        data_path="MEMJAX_WIKITEXT2",
        evaluations=BOTH_SPLITS,
    ),
    "multi30k_translation": Recipe(
        description=(
            "Multi30k, English to German: perplexity per subword, and BLEU of the 2016 test set (beam 5, length "
            "penalty 1) of detokenised text (sacrebleu, 13a) and of lower-cased words (no tokenizer); the signatures "
            "are in the logs. 2 + 2 layers, 128 wide, 3,000 subwords, pairs of at most 32 of them; equal pairs, steps "
            "and learning rate. Memory tokens are the encoder's; with layers of its own a model has more parameters."
        ),
        config="multi30k",
        variants={
            "softmax": "default",
            "Linear Transformer (ELU)": "linear_transformer",
            "Linear Transformer, causal only": "linear_causal",
            "Linear Transformer, cross only": "linear_cross",
            "MemSizer, 4 and 32 slots": "memsizer",
            **{f"{n} memory tokens": f"memory_tokens --model.memory-tokens.num-tokens {n}" for n in (5, 10, 20)},
            "10 memory tokens, own layers": "control",
            "10 memory tokens, one own layer": "control_shared",
            "10 memory tokens, bottleneck": "bottleneck",
        },
        steps=1000,
        search_steps=0,
        learning_rates=(2e-3,),
        seeds=(0,),
        arguments=(
            *("--model.num-layers", "2", "--model.dim", "128", "--model.feed-forward.dim", "256"),
            *("--model.dropout", "0.1", "--data.tokenizer.vocab-size", "3000", "--data.rows", "32"),
            *("--data.source.max-length", "32", "--data.segment-length", "32"),
            *("--training.schedule.warmup-steps", "100"),
        ),
        data_path="MEMJAX_MULTI30K",
        evaluations=BOTH_SPLITS,
        scripts=("tools.results.translation",),
    ),
    "product_key_python": Recipe(
        description=(
            "Decoders with product-key memories of 16,384 slots instead of feed-forward networks, beside deeper ones; "
            "Python standard library, bits per byte of the validation split. Equal text, steps and learning rate."
        ),
        config="product_key_python",
        variants={
            "4 layers": "dense",
            "one memory": "default",
            "8 layers": "deeper",
            "two memories": "two",
            "three memories": "three",
            "one memory beside the network (ResM)": "residual",
            "one memory, queries normalised by layer": "layer_norm",
            "one memory, queries not normalised": "default --model.feed-forward.query-norm none",
            "one memory, first layer": "default --model.feed-forward.layers 0",
            "one memory, 1 head": "default --model.feed-forward.memory-heads 1",
            "one memory, 4 neighbours": "default --model.feed-forward.num-neighbors 4",
            "one memory, 262,144 slots": "large",
        },
        steps=600,
        search_steps=0,
        learning_rates=(2e-3,),
        seeds=(0,),
        scripts=("tools.results.slot_usage",),
    ),
}


def run(name: str, workdir: str, only: str = "") -> None:
    """Trains and records what is not recorded yet: the learning-rate search, then every contender and seed."""
    recipe = RECIPES[name]
    done = {(record.recipe, record.row, record.seed) for record in records.read()}
    for row, variant in recipe.variants.items():
        if only not in row:
            continue
        rate = _search(name, recipe, row, variant, workdir, done)
        for seed in recipe.seeds:
            if (name, row, seed) not in done:
                arguments = _arguments(recipe, variant, recipe.steps, rate, seed)
                log = f"{name}/{_label(variant)}-seed{seed}"
                more = {"evaluations": recipe.evaluations, "scripts": recipe.scripts}
                record(name, row, seed, arguments, workdir, log, **more)


def record(
    recipe: str,
    row: str,
    seed: int,
    arguments: list[str],
    workdir: str,
    log: str,
    *,
    evaluations: Mapping[str, tuple[str, ...]] = MappingProxyType({}),
    scripts: tuple[str, ...] = (),
) -> records.Record:
    """Runs `memjax train` to its end, then each of the evaluations and scripts, and records the results."""
    run_name = log.replace("/", "-")
    command = ["memjax", "train", *arguments, "--name", run_name, "--workdir", workdir]
    print("==", shlex.join(command), flush=True)
    subprocess.run([sys.executable, "-m", "memjax.cli", *command[1:]], check=True)
    directory = Path(workdir) / run_name
    finished = read_json(directory / "finished.json")
    scores = {}
    for label, further in evaluations.items():
        score = _memjax("eval", "--run", str(directory), "--json", *further)
        (directory / f"evaluation_{label}.json").write_text(score, encoding="utf-8")
        scores[label] = json.loads(score)
    numbers = _scores(finished["results"], scores) if scores else _numbers(finished["results"])
    for module, *further in map(str.split, scripts):
        file = directory / f"evaluation_{module.rpartition('.')[2]}.json"
        subprocess.run([sys.executable, "-m", module, str(directory), *further, "--out", str(file)], check=True)
        numbers |= read_json(file)["numbers"]
    made = records.Record(
        recipe=recipe,
        row=row,
        seed=seed,
        command=shlex.join(_without_paths(command)),
        commit=commit(),
        hardware=hardware(),
        log=log,
        numbers=numbers,
    )
    records.add(made, directory)
    return made


def hardware() -> str:
    """The processor and the number of cores this process may use."""
    names = [line.partition(":")[2].strip() for line in _lines("/proc/cpuinfo") if line.startswith("model name")]
    return f"{names[0] if names else platform.machine()}, {len(os.sched_getaffinity(0))} cores"


def _search(name: str, recipe: Recipe, row: str, variant: str, workdir: str, done: set[Any]) -> float:
    if len(recipe.learning_rates) == 1:
        return recipe.learning_rates[0]
    section = f"{name}: learning-rate search"
    scores = {}
    for rate in recipe.learning_rates:
        label = f"{row}, {rate:g}"
        if (section, label, SEARCH_SEED) not in done:
            arguments = _arguments(recipe, variant, recipe.search_steps, rate, SEARCH_SEED)
            record(section, label, SEARCH_SEED, arguments, workdir, f"{name}/search-{_label(variant)}-{rate:g}")
        found = [r for r in records.read() if (r.recipe, r.row) == (section, label)]
        scores[rate] = found[-1].numbers["bits per byte"]
    return min(scores, key=lambda rate: scores[rate])


def _arguments(recipe: Recipe, variant: str, steps: int, rate: float, seed: int) -> list[str]:
    name, *own = _words(recipe, variant)
    arguments = ["--config", recipe.config, "--variant", name, "--training.steps", str(steps)]
    arguments += ["--training.schedule.learning-rate", f"{rate:g}"]
    arguments += ["--training.seed", str(seed), "--data.seed", str(seed), *recipe.arguments]
    if recipe.data_path:
        arguments += ["--data.source.path", _path(recipe, recipe.data_path)]
    return [*arguments, *own]


def _words(recipe: Recipe, variant: str) -> list[str]:
    """The variant and its further arguments."""
    return [_path(recipe, word[1:]) if word.startswith("$") else word for word in variant.split()]


def _label(variant: str) -> str:
    """The variant and the values of its further arguments, but for paths, for the name of a run."""
    return "-".join(word for word in variant.split() if word[0] not in "-$")


def _path(recipe: Recipe, name: str) -> str:
    path = os.environ.get(name)
    if not path:
        raise SystemExit(f"{name}: not set; give the path of the data, see configs/{recipe.config}.py")
    return path


def _numbers(results: dict[str, Any]) -> dict[str, float]:
    evaluation = results["evaluation"]
    subsets = {name: score["bits_per_byte"] for name, score in evaluation["subsets"].items() if score["bytes"]}
    quality = {"accuracy": "accuracy", "bits_per_byte": "bits per byte"}
    return {
        **{label: evaluation[name] for name, label in quality.items() if name in evaluation},
        **{f"bits per byte of {name.replace('_', ' ')}": value for name, value in subsets.items()},
        "nats per token": evaluation["nats_per_token"],
        "targets": evaluation["targets"],
        "parameters": results["parameters"],
        "memory bytes per row": evaluation["memory_bytes"],
    }


def _scores(results: dict[str, Any], scores: dict[str, dict[str, Any]]) -> dict[str, float]:
    numbers = {}
    for label, score in scores.items():
        measure = "accuracy" if "accuracy" in score else "perplexity"
        numbers |= {f"{label} {measure}": score[measure], f"{label} targets": score["targets"]}
    first = next(iter(scores.values()))
    return {**numbers, "parameters": results["parameters"], "memory bytes per row": first["memory_bytes"]}


def _memjax(*arguments: str) -> str:
    """What a command prints."""
    command = [sys.executable, "-m", "memjax.cli", *arguments]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


def _without_paths(command: list[str]) -> list[str]:
    """The command as a reader would give it: paths of this machine become their last part."""
    return [Path(part).name if part.startswith("/") else part for part in command]


def commit() -> str:
    commit = subprocess.run(["git", "rev-parse", "--short=12", "HEAD"], capture_output=True, text=True, check=True)
    changed = subprocess.run(
        ["git", "status", "--porcelain", "--untracked-files=no", "memjax", "configs"],
        capture_output=True,
        text=True,
        check=True,
    )
    return commit.stdout.strip() + ("+" if changed.stdout.strip() else "")


def _lines(path: str) -> list[str]:
    try:
        return Path(path).read_text(encoding="utf-8").splitlines()
    except OSError:
        return []
