"""Recipes: which runs make a table of results, and at which settings."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class Recipe:
    """Contenders that differ in one thing, each at its own best learning rate.

    Attributes:
      description: what is compared, for the table.
      config: configuration of all contenders.
      variants: row of the table -> variant of the configuration, and further arguments of its runs where there are
        any: `'spalm --model.output.num-neighbors 2'`; `$NAME` is an environment variable with a path, `@RECIPE/ROW`
        (`_` for spaces) the directory of another run, which is trained first. They come after `arguments`, which they
        override.
      steps: updates of a recorded run.
      search_steps: updates of a run of the learning-rate search.
      learning_rates: the search's grid, the same for every contender; a single one is not searched, none = that of the
        configuration.
      seeds: recorded runs of each contender.
      arguments: further arguments of all runs.
      data_path: environment variable with the path of the data, '' = none is needed.
      evaluations: what is read off each finished run -> arguments of `memjax eval`; none = bits per byte of the
        evaluation at the end of training.
      own_evaluations: row -> further ones of its runs alone.
      usage: whether `memjax usage` is read off each finished run too.
      measures: what of an evaluation a table shows; none = accuracy, else perplexity or bits per byte.
      final: what the evaluation at the end of training is called beside others, '' = it is not shown beside them.
      curve: measure of the evaluations on the way that has a table, '' = none.
      controls: row -> the rows that it is compared with, seed by seed: everything but the memory.
      findings: what the numbers say, in words.
    """

    description: str
    config: str
    variants: dict[str, str]
    steps: int
    search_steps: int = 0
    learning_rates: tuple[float, ...] = ()
    seeds: tuple[int, ...] = (0,)
    arguments: str = ""
    data_path: str = ""
    evaluations: dict[str, str] = dataclasses.field(default_factory=dict)
    own_evaluations: dict[str, dict[str, str]] = dataclasses.field(default_factory=dict)
    usage: bool = False
    measures: tuple[str, ...] = ()
    final: str = ""
    curve: str = ""
    controls: dict[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)
    findings: str = ""


def _horizons(segments: int, *horizons: int) -> dict[str, str]:
    """Memformers with a gradient in so many of the last segments of a document."""
    option = "--training.segments-without-gradient"
    return {f"horizon {n}": "memformer" if n == segments else f"memformer {option} {segments - n}" for n in horizons}


def _lengths(num_documents: int, *lengths: int) -> dict[str, str]:
    """Evaluations on other documents to sort."""
    return {f"{n:,}": f"--data.source.length {n} --data.source.num-documents {num_documents}" for n in lengths}


def _signal(num_basis: int, num_samples: int = 128) -> str:
    return f"--model.attention.num-basis {num_basis} --model.attention.num-samples {num_samples}"


_SIGNAL_BEFORE = "--model.attention.first-densities published --model.attention.over-layers mean"
_TOKENS_BEFORE = "--model.memory-tokens.init-stddev 0.02"
"""what recorded runs were trained with where the default is another one today"""


def _sizes(rows: int, length: int, steps: int) -> str:
    """Of a fine-tuning: scored at its end, kept now and then, so that an interrupted run goes on."""
    return (
        f"--data.rows {rows} --data.segment-length {length} --training.steps {steps} "
        f"--training.schedule.warmup-steps {steps // 10} --training.checkpoint-every {max(steps // 4, 1)}"
    )


def _answered(count: int) -> dict[str, str]:
    """Both splits, and what a model answers to the first of the test split."""
    answers = {"validation": 0, "test": count}
    return {split: f"{given} --evaluation.answers {answers[split]}" for split, given in BOTH_SPLITS.items()}


_CLEARED = " --evaluation.memory-state cleared --evaluation.memory-part {}"
_NEIGHBORS = "--data.neighbors $MEMJAX_WIKITEXT2_NEIGHBORS"
_HIGHER_RATE = "--training.schedule.learning-rate 0.006"
_RECURRENT = {
    "no memory": "no_memory",
    "Transformer-XL": "transformer_xl",
    "Compressive": "compressive --data.segment-length 64 --data.rows 32",
    "infinity-former": f"infinity_former {_SIGNAL_BEFORE}",
    "infinity-former, sticky": f"sticky {_SIGNAL_BEFORE}",
}
_SMALL_MEMORY = "--model.attention.memory-length 128"
_SMALL_SORTING = f"compressive {_SMALL_MEMORY} --model.attention.compressed-memory-length 128"
_SMALL_SORTER = "--model.dim 60 --model.feed-forward.dim 120 --model.dropout 0.0 --training.schedule.warmup-steps 100"
_SMALL_SORTING_TASK = (
    f"--data.source.length 1000 --data.segment-length 128 --training.segments-per-update 8 {_SMALL_SORTER}"
)
_SMALL_DIGITS = "--model.dim 64 --model.feed-forward.dim 128 --model.dropout 0.0"
_SMALL_TRANSLATION = (
    "--model.num-layers 2 --model.dim 128 --model.feed-forward.dim 256 --model.dropout 0.1 "
    "--data.tokenizer.vocab-size 3000 --data.rows 32 --data.source.max-length 32 --data.segment-length 32 "
    "--training.schedule.warmup-steps 100"
)
_SMALL_DIALOGUE = "--data.segment-length 126 --data.rows 16"
_SMALL_MEMFORMER = f"{_SMALL_DIGITS} {_HIGHER_RATE} --model.num-layers 2 --model.encoder-layers 1"
_MINILM = "--data.tokenizer.vocab $MEMJAX_MINILM/tokenizer/tokenizer.json"
_FROM_MINILM = f"{_MINILM} --training.init-from $MEMJAX_MINILM"
_GLUE = {
    "CoLA": ("cola", "$MEMJAX_GLUE_COLA", _sizes(16, 24, 1000)),
    "SST-2": ("sst2", "$MEMJAX_GLUE_SST2", _sizes(16, 40, 200)),
    "QNLI": ("qnli", "$MEMJAX_GLUE_QNLI", _sizes(16, 96, 150)),
}
_TUNED = {
    "MiniLM": ("", "$MEMJAX_MINILM"),
    "MiniLM, then MLM": ("", "@bert_going_on/MLM"),
    "MiniLM, then MLM with ResM": ("_resm", "@bert_going_on/MLM_with_ResM"),
    "the same, memories frozen": ("_resm", "@bert_going_on/MLM_with_ResM --training.frozen feed_forward/memory/"),
}
"""row -> ending of the variant, and what it begins with"""
_FINE_TUNING = (
    "--training.log-every 10 --training.evaluate-every 0 --training.keep-checkpoints 1 --evaluation.split test"
)
_GPT2_GOES_ON = (
    "--training.steps 250 --training.schedule.learning-rate 2e-4 --training.schedule.warmup-steps 12 "
    "--training.checkpoint-every 62 --training.init-from @gpt2_memories/GPT-2,_first_stage"
)
_GPT2_MEMORY = f"{_GPT2_GOES_ON} --training.memory-learning-rate 1e-3"
_GPT2_SIGNAL = (
    f"{_signal(128)} --model.attention.widths 0.01 0.05 --model.attention.reset-after 0 {_GPT2_MEMORY} {_SIGNAL_BEFORE}"
)
_MEMORY_GOES_ON = (
    "--training.steps 1000 --training.evaluate-every 100 --training.schedule.learning-rate 0.0005 "
    "--training.schedule.warmup-steps 50 --evaluation.max-segments 60 "
    "--training.init-from @memory_added/local_cache_only"
)
_SPALM_GOES_ON = (
    "--training.steps 2000 --training.schedule.learning-rate 0.0005 --training.schedule.warmup-steps 50 "
    "--training.init-from @wikitext2_spalm/Transformer-XL"
)
_STAGE_2 = "--training.init-from @bert_pretraining/FFN,_stage_1"
_ANEW = " ".join(f"layer_{layer:02d}/feed_forward/{part}/" for layer in (1, 2) for part in ("wide", "narrow"))
BOTH_SPLITS = {split: f"--evaluation.split {split}" for split in ("validation", "test")}
_ANSWERED = tuple(
    f"{way}_{measure}" for way in ("nucleus", "greedy") for measure in ("f1", "rouge_1", "rouge_l", "meteor")
)


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
        seeds=(0, 1),
        controls={"Memorizing": ("local cache only",), "local cache only": ("no memory",)},
    ),
    "memory_gain_controls": Recipe(
        description=(
            "Memorizing against its cache on the Python standard library, bits per byte of the test split, separate "
            "documents, every token scored once; the learning rate is chosen on the validation split. Equal tokens, "
            "updates and batches. The control of the same bytes has no memory and keeps 544 tokens in the cache of "
            "every layer, where Memorizing keeps 512 slots in one layer and 32 tokens in every one. About 25 CPU "
            "minutes a run of Memorizing, 20 of the others (the long cache is not measured), 2 a run of the search."
        ),
        config="memory_gain",
        variants={
            "Memorizing": "default",
            "local cache only": "cache_only",
            "cache of 544 tokens": "cache_only --model.attention.cache-length 544",
        },
        steps=30000,
        search_steps=3000,
        learning_rates=(3e-3, 6e-3, 1.2e-2, 2.4e-2),
        seeds=(0, 1, 2, 3, 4),
        evaluations={"test": "--evaluation.split test"},
        own_evaluations={"Memorizing": {"test, memory cleared": "--evaluation.split test" + _CLEARED.format("memory")}},
        measures=("bits_per_byte",),
        controls={"Memorizing": ("local cache only", "cache of 544 tokens")},
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
        learning_rates=(6e-3,),
        seeds=(0, 1),
        arguments="--evaluation.max-segments 2000",
        data_path="MEMJAX_NOVELS",
        controls={"Memorizing": ("local cache only",)},
        findings="Both are level: whole books repeat less than code does.",
    ),
    "wikitext2_memories": Recipe(
        description=(
            "WikiText-2 at word level, perplexity per token of the whole validation and test splits; contiguous "
            "streams, every token scored once. Equal text, steps and learning rate; memories attend to 64 slots. The "
            "segments of Compressive are longer than its memory here, unlike in its paper: see `wikitext2_compressive`."
        ),
        config="wikitext2_memories",
        variants={
            "no memory": "no_memory",
            "Transformer-XL": "default",
            "Compressive": "compressive --data.segment-length 64 --data.rows 16",
            "SPALM": f"spalm_adaptive {_NEIGHBORS}",
        },
        steps=8000,
        learning_rates=(2e-3,),
        data_path="MEMJAX_WIKITEXT2",
        evaluations=BOTH_SPLITS,
    ),
    "wikitext2_compressive": Recipe(
        description=(
            "WikiText-2 at word level, perplexity per token of the whole test split; contiguous streams, every token "
            "scored once; the learning rate is chosen on the validation split. Segments of 32, as long as the memory "
            "of Compressive, whose 32 compressed slots stand for 128 tokens more. Transformer-XL remembers as many "
            "tokens as are not compressed, and as many as all slots stand for. Equal text and steps. About 30 CPU "
            "minutes a run (58 for 8,000 steps with segments of 64 on 2 cores), 8 a run of the search."
        ),
        config="wikitext2_memories",
        variants={
            "Compressive, 32 and 32 slots": "compressive",
            "Transformer-XL, 32 slots": "short",
            "Transformer-XL, 160 slots": "long",
        },
        steps=4000,
        search_steps=1000,
        learning_rates=(1e-3, 2e-3, 4e-3, 8e-3),
        seeds=(0, 1, 2),
        data_path="MEMJAX_WIKITEXT2",
        evaluations={"test": BOTH_SPLITS["test"]},
        own_evaluations={
            "Compressive, 32 and 32 slots": {
                "test, compressed part cleared": BOTH_SPLITS["test"] + _CLEARED.format("compressed")
            }
        },
        measures=("perplexity",),
        controls={
            "Compressive, 32 and 32 slots": ("Transformer-XL, 32 slots", "Transformer-XL, 160 slots"),
            "Transformer-XL, 160 slots": ("Transformer-XL, 32 slots",),
        },
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
                f"SPALM, {n}": f"spalm_adaptive --model.output.num-neighbors {n} {_NEIGHBORS}" for n in (4, 16, 1, 2, 8)
            },
            "SPALM, 4, gate bias 2": f"spalm_adaptive --model.output.gate-bias 2.0 {_NEIGHBORS}",
        },
        steps=1000,
        learning_rates=(2e-3,),
        data_path="MEMJAX_WIKITEXT2",
        evaluations=BOTH_SPLITS,
        findings="Trained from scratch it is worse than Transformer-XL with any number of neighbours.",
    ),
    "wikitext2_spalm": Recipe(
        description=(
            "SPALM from a trained Transformer-XL of one softmax, against the same further steps without; WikiText-2 at "
            "word level, perplexity per token of the whole test split, contiguous streams. `oracle`: the token is one "
            "of 4 neighbours, the others are random (`tools.measurements.oracle_neighbors`). `by halves`: 4 neighbours "
            "by final hidden states of models that were trained on the other half (`memjax datastore neighbors "
            "--other`). kNN-LM with the same store stands in the tables of `tools.measurements.knn_lm`. 8,000 steps, "
            "then 2,000 at a quarter of the peak learning rate. About 70 CPU minutes the first stage, 20 each row."
        ),
        config="wikitext2_memories",
        variants={
            "Transformer-XL": "one_softmax",
            "goes on without": f"one_softmax {_SPALM_GOES_ON}",
            "SPALM, oracle": f"spalm --data.neighbors $MEMJAX_WIKITEXT2_ORACLE {_SPALM_GOES_ON}",
            "SPALM, by halves": (
                f"spalm --model.output.num-neighbors 4 --data.neighbors $MEMJAX_WIKITEXT2_HALVES {_SPALM_GOES_ON}"
            ),
        },
        steps=8000,
        learning_rates=(2e-3,),
        seeds=(0, 1, 2),
        data_path="MEMJAX_WIKITEXT2",
        evaluations={"test": BOTH_SPLITS["test"]},
        measures=("perplexity",),
        controls={"SPALM, oracle": ("goes on without",), "SPALM, by halves": ("goes on without",)},
    ),
    "recurrent_memories": Recipe(
        description=(
            "WikiText-2 in 1,000 subwords, bits per byte; validation split, separate documents, every token scored "
            "once. Equal text, tokens per update and steps; four layers each; learning rate 0.006 unless the row names "
            "another. A longer horizon has fewer documents in an update."
        ),
        config="recurrent_memories",
        variants={
            **{row: f"{variant} {_HIGHER_RATE}" for row, variant in _RECURRENT.items()},
            **{f"{row}, learning rate 0.002": variant for row, variant in _RECURRENT.items()},
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
        learning_rates=(2e-3,),
        data_path="MEMJAX_WIKITEXT2",
        findings=(
            "The slots of Memformer are no gain at this size. Its rows are from before slots lasted (`unit_values`, "
            "`retain_bias`, `writes_begin`, `segment_positions`: all four as published), with types of slots by their "
            "weight on themselves; not measured since."
        ),
    ),
    "memformer_recall": Recipe(
        description=(
            "Recall over a gap: four pairs of 8 keys and 8 values in the first segment, four segments of noise, and a "
            "question for each in the last; share of 8,192 answers on held-out documents that is right, chance 0.125. "
            "32 wide, one layer each in encoder and decoder, gradients over all six segments, equal documents."
        ),
        config="memformer_recall",
        variants={
            "16 slots": "default",
            "16 slots, as published": "as_published",
            "no slots": "default --model.num-slots 0",
        },
        steps=1200,
        learning_rates=(2e-3,),
        seeds=(0, 1, 2),
        measures=("accuracy", "nats_per_token"),
        controls={"16 slots": ("16 slots, as published", "no slots"), "16 slots, as published": ("no slots",)},
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
                f"Compressive, rate {n}": f"{_SMALL_SORTING} --model.attention.compression-rate {n}" for n in (2, 8, 12)
            },
            "infinity-former": f"infinity_former {_SMALL_MEMORY} {_signal(128)} {_SIGNAL_BEFORE}",
            "infinity-former, sticky": f"default {_SMALL_MEMORY} {_signal(128)} {_SIGNAL_BEFORE}",
            **{
                f"infinity-former, {n} functions": f"infinity_former {_SMALL_MEMORY} {_signal(n)} {_SIGNAL_BEFORE}"
                for n in (32, 512)
            },
        },
        steps=2000,
        learning_rates=(4e-3,),
        arguments=f"{_SMALL_SORTING_TASK} --model.attention.norm pre --training.segments-without-gradient 7",
        evaluations=_lengths(1000, 1000, 2000, 4000, 8000),
    ),
    "sorting_signals": Recipe(
        description=(
            "Sorting symbols by how often they occurred, share of the answers that is right: the signal of "
            "infinity-former, even and sticky, against the same model without it. Trained on documents of 1,000 "
            "symbols, scored on others of 1,000 and 4,000; the learning rate is chosen on the validation split. Equal "
            "documents, updates and batches; 128 tokens of short-term memory, 128 basis functions; coefficient 1e-3 of "
            "the regulariser, for as few updates. Gradients in the last of 8 segments."
        ),
        config="sorting",
        variants={
            "no signal": f"infinity_former {_SMALL_MEMORY} --model.attention.num-basis 0",
            "infinity-former": f"infinity_former {_SMALL_MEMORY} {_signal(128)}",
            "infinity-former, sticky": f"default {_SMALL_MEMORY} {_signal(128)}",
            "infinity-former, first densities as published": (
                f"infinity_former {_SMALL_MEMORY} {_signal(128)} --model.attention.first-densities published"
            ),
        },
        steps=2000,
        search_steps=500,
        learning_rates=(2e-3, 4e-3, 8e-3),
        seeds=(0, 1, 2),
        arguments=(
            f"{_SMALL_SORTING_TASK} --model.attention.norm pre --training.segments-without-gradient 7 "
            "--model.attention.kl-weight 1e-3"
        ),
        evaluations={
            f"test, {name}": f"--evaluation.split test {given}" for name, given in _lengths(1000, 1000, 4000).items()
        },
        controls={
            "infinity-former": ("no signal", "infinity-former, first densities as published"),
            "infinity-former, sticky": ("no signal", "infinity-former"),
        },
    ),
    "events_signals": Recipe(
        description=(
            "Which of four marked events of a long past, by its time: share of the answers of the test split that is "
            "right, chance 0.125. One layer, 64 wide, segments of 16, no short-term memory; 400 updates, gradients in "
            "the last of 6 segments. Equal documents, updates and learning rate. About 25 CPU seconds a run."
        ),
        config="sorting",
        variants={
            "no signal": "events --model.attention.num-basis 0",
            "infinity-former": "events",
            "infinity-former, sticky": "events --model.attention.sticky sample",
            "infinity-former, first densities as published": "events --model.attention.first-densities published",
        },
        steps=400,
        learning_rates=(3e-3,),
        seeds=(0, 1, 2),
        evaluations={"test": "--evaluation.split test"},
        controls={
            "infinity-former": ("no signal", "infinity-former, first densities as published"),
            "infinity-former, sticky": ("no signal", "infinity-former"),
        },
    ),
    "sorting_horizon": Recipe(
        description=(
            "Memformer on the sorting task of `sorting_small`, after as few updates: documents of 8 segments; the "
            "horizon is the number of last ones that have a gradient. Equal documents, updates and learning rate. "
            "`sorting_curves` has shorter documents and more updates."
        ),
        config="sorting",
        variants=_horizons(8, 8, 4, 1),
        steps=2000,
        learning_rates=(4e-3,),
        arguments=_SMALL_SORTING_TASK,
        evaluations=_lengths(1000, 1000, 2000, 4000, 8000),
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
            **_horizons(9, 9, 4, 2, 1),
            "horizon 1, learning rate 0.004": (
                "memformer --training.segments-without-gradient 8 --training.schedule.learning-rate 0.004"
            ),
            **{
                f"{row}, slots {n}": f"{given} --model.num-slots {n}"
                for row, given in _horizons(9, 2).items()
                for n in (1, 4, 16)
            },
        },
        steps=5000,
        learning_rates=(2e-3,),
        seeds=(0, 1),
        arguments=(
            "--data.source.length 256 --data.source.num-documents 40000 --data.segment-length 32 "
            f"--training.segments-per-update 9 {_SMALL_SORTER}"
        ),
        evaluations=_lengths(5000, 256, 512, 1024, 2048),
        findings=(
            "A gradient through the memory is what brings it; one slot does as well as 64. All rows have slots as "
            "published (`unit_values`, `retain_bias`, `writes_begin`, `segment_positions`), with types of slots by "
            "their weight on themselves; not measured since."
        ),
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
        learning_rates=(2e-3,),
        arguments=(
            "--training.segments-per-update 7 --data.rows 16 --training.schedule.warmup-steps 30 "
            "--training.evaluate-every 0 --evaluation.max-segments 7"
        ),
        data_path="MEMJAX_MNIST",
        evaluations={"test": "--evaluation.split test --evaluation.max-segments 0"},
        findings=(
            "The slots of Memformer are no gain at this size. Its rows are from before slots lasted (`unit_values`, "
            "`retain_bias`, `writes_begin`, `segment_positions`: all four as published), with types of slots by their "
            "weight on themselves; not measured since."
        ),
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
            "document in context": "default --data.segment-length 512 --data.rows 3 --data.source.document-length 256",
            "Compressive": f"compressive {_SMALL_DIALOGUE} --model.attention.compressed-memory-length 256",
            "infinity-former": f"infinity_former {_SMALL_DIALOGUE} {_signal(256, 256)} {_SIGNAL_BEFORE}",
            "infinity-former, sticky": f"sticky {_SMALL_DIALOGUE} {_signal(256, 256)} {_SIGNAL_BEFORE}",
        },
        steps=1000,
        learning_rates=(2e-3,),
        arguments=(
            "--model.num-layers 4 --model.dim 128 --model.num-heads 4 --data.tokenizer.vocab-size 4096 "
            "--training.schedule.warmup-steps 100 --training.memory-learning-rate 0 --training.evaluate-every 0"
        ),
        data_path="MEMJAX_CMU_DOG",
        evaluations=_answered(60),
        measures=("perplexity", "utterances", *_ANSWERED),
        findings="No gain from a memory, whose rows read segments of 126 tokens, not 512.",
    ),
    "associative_recall": Recipe(
        description=(
            "Associative recall: accuracy on the values of 24 keys, bound in earlier segments. Two layers, 64 wide, "
            "states of about 2,048 numbers a layer; equal tokens, updates and learning rate. `softmax` is the control: "
            "everything but the state, and chance is 0.0625."
        ),
        config="associative_recall",
        variants={
            "softmax, one segment": "softmax",
            "Transformer-XL, 32 slots": "transformer_xl",
            "Linear Transformer (ELU)": "linear_transformer",
            "RFA": "rfa",
            "T2R, from scratch": "t2r",
            "MemSizer, 32 slots": "default",
        },
        steps=2000,
        seeds=(0, 1, 2),
        evaluations={"test": "--evaluation.split test"},
        own_evaluations={
            row: {"test, state cleared": "--evaluation.split test --evaluation.memory-state cleared"}
            for row in ("Linear Transformer (ELU)", "RFA", "T2R, from scratch", "MemSizer, 32 slots")
        },
        measures=("accuracy",),
        controls=dict.fromkeys(
            (
                "Transformer-XL, 32 slots",
                "Linear Transformer (ELU)",
                "RFA",
                "T2R, from scratch",
                "MemSizer, 32 slots",
            ),
            ("softmax, one segment",),
        ),
    ),
    "fact_table": Recipe(
        description=(
            "A table of facts: accuracy on the values of pairs of a subject and a relation, which training has shown "
            "and no document tells. One layer, 64 wide; equal tokens, updates and learning rate. The control is a "
            "feed-forward network of equal cost, and chance is 0.0625."
        ),
        config="fact_table",
        variants={
            "network of equal cost": "dense",
            "network of four times the cost": "dense_320",
            "product keys": "default",
            "product keys beside the network (ResM)": "residual",
        },
        steps=900,
        seeds=(0, 1, 2),
        evaluations={"test": "--evaluation.split test"},
        usage=True,
        measures=("accuracy",),
        controls=dict.fromkeys(
            ("network of four times the cost", "product keys", "product keys beside the network (ResM)"),
            ("network of equal cost",),
        ),
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
            "Transformer-XL, 20 memory tokens": f"memory_tokens {_TOKENS_BEFORE}",
            "Linear Transformer (ELU)": "default",
            "RFA": "rfa",
            "RFA with a gate": "rfa_gate",
            "T2R, from scratch": "t2r",
            "MemSizer, 32 slots": "memsizer",
            **{f"MemSizer, {n} slots": f"memsizer --model.attention.num-slots {n}" for n in (8, 128)},
        },
        steps=1000,
        learning_rates=(2e-3,),
        arguments="--model.num-layers 2 --data.segment-length 64",
        data_path="MEMJAX_WIKITEXT2",
        evaluations=BOTH_SPLITS,
        findings="Memory tokens before the segments of a Transformer-XL are no gain.",
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
            **{
                f"{n} memory tokens": f"memory_tokens --model.memory-tokens.num-tokens {n} {_TOKENS_BEFORE}"
                for n in (5, 10, 20)
            },
            "10 memory tokens, own layers": f"control {_TOKENS_BEFORE}",
            "10 memory tokens, one own layer": f"control_shared {_TOKENS_BEFORE}",
            "10 memory tokens, bottleneck": f"bottleneck {_TOKENS_BEFORE}",
        },
        steps=1000,
        learning_rates=(2e-3,),
        arguments=_SMALL_TRANSLATION,
        data_path="MEMJAX_MULTI30K",
        evaluations=_answered(1000),
        measures=("perplexity", "bleu", "bleu_of_words", "pairs", "pairs_too_long"),
    ),
    "multi30k_memory_tokens": Recipe(
        description=(
            "Multi30k, English to German: 10 memory tokens in the encoder, against the same model without them; "
            "perplexity per subword and BLEU of the 2016 test set as in `multi30k_translation`, sizes as there. Equal "
            "pairs and steps; the learning rate is chosen on the validation split."
        ),
        config="multi30k",
        variants={
            "no memory tokens": "memory_tokens --model.memory-tokens.num-tokens 0",
            "10 memory tokens": "memory_tokens",
            "10 memory tokens, own layers": "control",
            "10 memory tokens, bottleneck": "bottleneck",
            "10 memory tokens, bottleneck, short at first": f"bottleneck {_TOKENS_BEFORE}",
        },
        steps=1000,
        search_steps=400,
        learning_rates=(1e-3, 2e-3, 4e-3),
        seeds=(0, 1, 2),
        arguments=_SMALL_TRANSLATION,
        data_path="MEMJAX_MULTI30K",
        evaluations=_answered(1000),
        measures=("perplexity", "bleu", "bleu_of_words", "pairs", "pairs_too_long"),
        controls={
            "10 memory tokens": ("no memory tokens",),
            "10 memory tokens, own layers": ("no memory tokens",),
            "10 memory tokens, bottleneck": ("no memory tokens", "10 memory tokens, bottleneck, short at first"),
        },
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
        learning_rates=(2e-3,),
        usage=True,
        findings="Level with no memory. As in the paper, normalising queries over the batch puts more slots to use.",
    ),
    "memory_added": Recipe(
        description=(
            "A Memorizing Transformer trained without its memory gets it afterwards; Python documents, nats per token "
            "of the first 60 segments of every row of the validation split. 15,000 steps with the local cache only, "
            "then 1,000 at a twelfth of the peak learning rate from those parameters, with the memory of 512 tokens "
            "(its gates are new) and, as a control, without. The gap is that to the model that had the memory from the "
            "start."
        ),
        config="memory_gain",
        variants={
            "local cache only": "cache_only",
            "memory from the start": "default",
            "goes on with the memory": f"default {_MEMORY_GOES_ON}",
            "goes on without": f"cache_only {_MEMORY_GOES_ON}",
        },
        steps=15000,
        learning_rates=(6e-3,),
        seeds=(1,),
        evaluations={"validation, 60 segments": "--evaluation.max-segments 60"},
        measures=("nats_per_token",),
        final="validation, 60 segments",
    ),
    "knn_lm": Recipe(
        description=(
            "The models whose hidden states are the keys of kNN-LM: Transformer-XL on WikiText-2 at word level, and on "
            "a quarter of its articles. What their stores bring stands below."
        ),
        config="knn_lm_wikitext",
        variants={
            "Transformer-XL": "default --data.source.path $MEMJAX_WIKITEXT2",
            "Transformer-XL, a quarter of the articles": (
                "default --training.steps 2000 --data.source.path $MEMJAX_WIKITEXT2_QUARTER"
            ),
        },
        steps=8000,
        measures=("perplexity",),
    ),
    "bert_pretraining": Recipe(
        description=(
            "A small encoder on WikiText-2 with product keys instead of feed-forward networks (PKM), beside them "
            "(ResM), and without; masked language modelling, 1,024 tokens a step, one seed. From the first model, "
            "which has no memory, four others go on: with memories (+ Init), with memories beside networks that begin "
            "anew, and as a control without. All but the first stage have read as many tokens in the end. Slots are "
            "counted over 16 segments of every row of the validation split, and so much of it is scored on the way."
        ),
        config="bert_mlm_wikitext",
        variants={
            "FFN, stage 1": "wikitext2",
            "PKM": "wikitext2_pkm --training.steps 800",
            "ResM": "wikitext2_resm --training.steps 800",
            "FFN, equal budget": f"wikitext2 {_STAGE_2}",
            "PKM + Init": f"wikitext2_pkm {_STAGE_2}",
            "ResM + Init": f"wikitext2_resm {_STAGE_2}",
            "ResM + Init, networks anew": f"wikitext2_resm {_STAGE_2} --training.reinitialized {_ANEW}",
        },
        steps=400,
        arguments="--training.evaluate-every 100 --training.checkpoint-every 100 --evaluation.max-segments 16",
        data_path="MEMJAX_WIKITEXT2",
        evaluations={split: f"{given} --evaluation.max-segments 0" for split, given in BOTH_SPLITS.items()},
        usage=True,
        measures=("perplexity", "accuracy"),
        curve="perplexity",
        findings="As in the paper, ResM, and training without memory first, raise the top-1 usage.",
    ),
    "bert_going_on": Recipe(
        description=(
            "300 steps of masked language modelling on WikiText-2 (1,024 tokens each) from MiniLM weights, with "
            "memories beside two feed-forward networks (layers 1 and 3 of 6) and, as a control of equal budget, "
            "without: perplexity of hidden tokens on validation. MEMJAX_MINILM is the run directory that "
            "`memjax import` makes of the weights. `bert_glue` and `bert_squad` begin with them."
        ),
        config="bert_mlm_wikitext",
        variants={"MLM": f"minilm {_FROM_MINILM}", "MLM with ResM": f"minilm_resm {_FROM_MINILM}"},
        steps=300,
        arguments=(
            "--training.schedule.warmup-steps 30 --data.rows 8 --training.log-every 10 "
            "--training.evaluate-every 0 --training.checkpoint-every 75 --training.keep-checkpoints 1"
        ),
        data_path="MEMJAX_WIKITEXT2",
        measures=("perplexity",),
    ),
    "bert_glue": Recipe(
        description=(
            "MiniLM weights fine-tuned with and without memories, the one with memories also with the memories frozen; "
            "one seed and few steps: the numbers compare these models only. Learning rate 1e-4. CoLA 1,000 steps of 16 "
            "texts of 24 tokens, SST-2 200 of 16 of 40, QNLI 150 of 16 of 96. Scored are the development sets of CoLA "
            "(in and out of domain) and SST-2 as GLUE has them; QNLI has only the development file here, of which a "
            "tenth (by a hash) is scored and a tenth left out. Slots are counted over the first 640 texts of that "
            "split; divergence (nats) and overlap are those of texts of class 1 against the others."
        ),
        config="bert_glue",
        variants={
            f"{name}, {row}": (
                f"{variant}{ending} --data.source.path {path} {_MINILM} {sizes} --training.init-from {start}"
            )
            for name, (variant, path, sizes) in _GLUE.items()
            for row, (ending, start) in _TUNED.items()
        },
        steps=200,
        learning_rates=(1e-4,),
        arguments=_FINE_TUNING,
        usage=True,
        measures=("matthews", "accuracy"),
    ),
    "bert_squad": Recipe(
        description=(
            "As `bert_glue`, on SQuAD: 100 steps of 8 windows of 256 tokens. Only the development file is here, of "
            "whose articles a tenth (by a hash) is scored and a tenth left out."
        ),
        config="bert_squad",
        variants={
            row: f"minilm{ending} {_MINILM} {_sizes(8, 256, 100)} --training.init-from {start}"
            for row, (ending, start) in _TUNED.items()
        },
        steps=100,
        learning_rates=(1e-4,),
        arguments=_FINE_TUNING,
        data_path="MEMJAX_SQUAD",
        usage=True,
        measures=("exact_match", "f1"),
    ),
    "gpt2_memories": Recipe(
        description=(
            "Memories added to a trained GPT-2: the two stages of infinity-former. WikiText-2 in byte pairs trained on "
            "it, 4 layers, 128 wide, segments of 64, 1,024 tokens a step; contiguous streams, every token scored once, "
            "one seed: the numbers compare these models only. After 800 steps of GPT-2 alone, at learning rate 2e-3, "
            "all others go on from its parameters for 250 steps (1,050 in all) at 2e-4, and at 1e-3 for what a memory "
            "adds. The compressed memory has 64 slots of 4 tokens (ALiBi on their scores) and its reconstruction loss; "
            "the signal has 128 basis functions and is never reset."
        ),
        config="gpt2_wikitext",
        variants={
            "GPT-2, first stage": "default",
            "GPT-2, goes on alone": f"default {_GPT2_GOES_ON}",
            "+ compressed memory": (
                "compressive --model.attention.compressed-memory-length 64 --model.attention.compression-rate 4 "
                f"{_GPT2_MEMORY}"
            ),
            "+ infinity-former": f"infinity_former {_GPT2_SIGNAL}",
            "+ infinity-former, sticky": f"sticky {_GPT2_SIGNAL}",
        },
        steps=800,
        learning_rates=(2e-3,),
        arguments=(
            "--data.tokenizer.vocab-size 4096 --data.rows 16 --data.segment-length 64 --evaluation.rows 16 "
            "--model.dim 128 --model.num-layers 4 --model.num-heads 4 --model.scan-layers True --model.dropout 0.0 "
            "--model.attention-dropout 0.0 --model.attention.num-positions 64 --training.schedule.warmup-steps 40 "
            "--training.log-every 50 --training.evaluate-every 0 --training.checkpoint-every 200 "
            "--training.keep-checkpoints 1"
        ),
        data_path="MEMJAX_WIKITEXT2",
        evaluations={"test": BOTH_SPLITS["test"]},
        measures=("perplexity", "bits_per_byte"),
        final="validation",
    ),
}
