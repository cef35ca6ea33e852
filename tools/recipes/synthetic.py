"""Recipes of synthetic tasks that need a memory, and of images as sequences."""

from tools.recipes.recipe import HIGHER_RATE, SIGNAL_BEFORE, Recipe, signal
from tools.recipes.search import RATE, Search, Setting


def _horizons(segments: int, *horizons: int) -> dict[str, str]:
    """Returns variants of Memformer by horizon, the number of last segments of a document that have a gradient.

    Args:
      segments: Number of segments of a document.
      *horizons: Horizons, each at most `segments`.
    """
    option = "--training.burn-in-segments"
    return {f"horizon {n}": "memformer" if n == segments else f"memformer {option} {segments - n}" for n in horizons}


def _lengths(num_documents: int, *lengths: int) -> dict[str, str]:
    """Returns evaluations on other documents to sort: length of a document in symbols -> arguments."""
    return {f"{n:,}": f"--data.source.length {n} --data.source.num-documents {num_documents}" for n in lengths}


_VALUE_RATE = "--training.value-table-optimizer.learning-rate"
_SMALL_MEMORY = "--model.attention.memory-length 128"
_SMALL_SORTING = f"compressive {_SMALL_MEMORY} --model.attention.compressed-memory-length 128"
_SMALL_SORTER = "--model.dim 60 --model.feed-forward.dim 120 --model.dropout 0.0 --training.schedule.warmup-steps 100"
_SMALL_SORTING_TASK = (
    f"--data.source.length 1000 --data.segment-length 128 --training.segments-per-update 8 {_SMALL_SORTER}"
)
_SMALL_DIGITS = "--model.dim 64 --model.feed-forward.dim 128 --model.dropout 0.0"
_SMALL_MEMFORMER = f"{_SMALL_DIGITS} {HIGHER_RATE} --model.num-layers 2 --model.encoder-layers 1"


RECIPES = {
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
        learning_rate=2e-3,
        seeds=(0, 1, 2, 3, 4),
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
            "Compressive, no reconstruction loss": f"{_SMALL_SORTING} --model.attention.compression-loss none",
            **{
                f"Compressive, rate {n}": f"{_SMALL_SORTING} --model.attention.compression-rate {n}" for n in (2, 8, 12)
            },
            "infinity-former": f"infinity_former {_SMALL_MEMORY} {signal(128)} {SIGNAL_BEFORE}",
            "infinity-former, sticky": f"default {_SMALL_MEMORY} {signal(128)} {SIGNAL_BEFORE}",
            **{
                f"infinity-former, {n} functions": f"infinity_former {_SMALL_MEMORY} {signal(n)} {SIGNAL_BEFORE}"
                for n in (32, 512)
            },
        },
        steps=2000,
        learning_rate=4e-3,
        arguments=f"{_SMALL_SORTING_TASK} --model.attention.norm pre --training.burn-in-segments 7",
        evaluations=_lengths(1000, 1000, 2000, 4000, 8000),
    ),
    "sorting_signals": Recipe(
        description=(
            "Sorting symbols by how often they occurred, share of the answers that is right: the signal of "
            "infinity-former, even and sticky, against the same model without it. Trained on documents of 1,000 "
            "symbols, scored on others of 1,000 and 4,000. Equal documents, updates, batches and learning rate, that "
            "of `sorting_small`; 128 tokens of short-term memory, 128 basis functions; coefficient 1e-3 of "
            "the regulariser, for as few updates. Gradients in the last of 8 segments."
        ),
        config="sorting",
        variants={
            "no signal": f"infinity_former {_SMALL_MEMORY} --model.attention.num-basis 0",
            "infinity-former": f"infinity_former {_SMALL_MEMORY} {signal(128)}",
            "infinity-former, sticky": f"default {_SMALL_MEMORY} {signal(128)}",
            "infinity-former, first densities as published": (
                f"infinity_former {_SMALL_MEMORY} {signal(128)} --model.attention.density-init published"
            ),
        },
        steps=400,
        learning_rate=4e-3,
        seeds=(0, 1, 2),
        arguments=(
            f"{_SMALL_SORTING_TASK} --model.attention.norm pre --training.burn-in-segments 7 "
            "--model.attention.kl-weight 1e-3"
        ),
        evaluations={
            f"test, {name}": f"--evaluation.split test {words}" for name, words in _lengths(1000, 1000, 4000).items()
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
            "infinity-former, first densities as published": "events --model.attention.density-init published",
        },
        steps=400,
        learning_rate=3e-3,
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
        learning_rate=4e-3,
        arguments=_SMALL_SORTING_TASK,
        evaluations=_lengths(1000, 1000, 2000, 4000, 8000),
    ),
    "sorting_curves": Recipe(
        description=(
            "Memformer on sorting with gradients through more or fewer segments, and more or fewer slots. Trained on "
            "documents of 256 symbols in 9 segments of 32, a new one each time, scored on others of 256 to 2,048; "
            "share of the answers that is right, 10,000 of each length. The horizon is the number of last segments "
            "that have a gradient: with 1 the writer stays as it began. 64 slots unless the row names another. Equal "
            "documents, updates and learning rate, 0.002 unless the row names another."
        ),
        config="sorting",
        variants={
            **_horizons(9, 9, 4, 2, 1),
            "horizon 1, learning rate 0.004": (
                "memformer --training.burn-in-segments 8 --training.schedule.learning-rate 0.004"
            ),
            **{
                f"{row}, slots {n}": f"{variant} --model.num-slots {n}"
                for row, variant in _horizons(9, 2).items()
                for n in (1, 4, 16)
            },
        },
        steps=5000,
        learning_rate=2e-3,
        seeds=(0, 1),
        arguments=(
            "--data.source.length 256 --data.source.num-documents 40000 --data.segment-length 32 "
            f"--training.segments-per-update 9 {_SMALL_SORTER}"
        ),
        evaluations=_lengths(5000, 256, 512, 1024, 2048),
        findings=(
            "Two seeds a row, too few for a verdict: both seeds of each row with a gradient through the memory have "
            "more right answers on 256 symbols than those without (horizon 1), and one slot lies within the range of "
            "64. All rows have slots as published (`unit_values`, `retain_bias`, `writes_begin`, `segment_positions`), "
            "with types of slots by their weight on themselves; not measured since."
        ),
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
            row: {"test, state cleared": "--evaluation.split test --evaluation.memory-intervention cleared"}
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
            "and no document tells. One layer, 64 wide; equal tokens and updates. Rates are searched on another table. "
            "The control is a feed-forward network of equal cost, and chance is 0.0625."
        ),
        config="fact_table",
        variants={
            "network of equal cost": "dense",
            "network of four times the cost": "dense_320",
            "product keys": "default",
            "product keys beside the network (ResM)": "residual",
        },
        steps=900,
        search=Search(
            {
                "": (Setting(RATE, 1e-2),),
                "product keys": (Setting(RATE, 1e-2), Setting(_VALUE_RATE, 1e-2)),
                "product keys beside the network (ResM)": (Setting(RATE, 1e-2), Setting(_VALUE_RATE, 1e-2)),
            },
            trials=6,
        ),
        seeds=(0, 1, 2, 3, 4, 5),
        evaluations={"test": "--evaluation.split test"},
        usage=True,
        measures=("accuracy",),
        controls=dict.fromkeys(
            ("network of four times the cost", "product keys", "product keys beside the network (ResM)"),
            ("network of equal cost",),
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
                f"transformer {_SMALL_DIGITS} --model.num-layers 3 --training.segments-per-update 1 --data.batch-size 8"
            ),
            "LSTM": "lstm --model.dim 64 --model.dropout 0.0",
            "Transformer-XL, 224, learning rate 0.006": (
                f"transformer_xl {_SMALL_DIGITS} {HIGHER_RATE} --model.num-layers 3"
            ),
            "LSTM, learning rate 0.006": f"lstm --model.dim 64 --model.dropout 0.0 {HIGHER_RATE}",
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
            "decoder of Memformer alone": f"no_encoder {_SMALL_DIGITS} {HIGHER_RATE} --model.num-layers 3",
        },
        steps=300,
        learning_rate=2e-3,
        arguments=(
            "--training.segments-per-update 7 --data.batch-size 16 --training.schedule.warmup-steps 30 "
            "--training.evaluate-every 0 --evaluation.max-segments 7"
        ),
        data_path="MEMJAX_MNIST",
        evaluations={"test": "--evaluation.split test --evaluation.max-segments 0"},
        findings=(
            "One seed a row. The rows of Memformer are from before slots lasted (`unit_values`, `retain_bias`, "
            "`writes_begin`, `segment_positions`: all four as published), with types of slots by their weight on "
            "themselves; not measured since."
        ),
    ),
}
