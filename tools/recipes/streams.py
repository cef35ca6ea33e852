"""Tasks one after the other: what is done against forgetting, over orders and seeds."""

from collections.abc import Mapping, Sequence

from memjax.lifelong.orders import MBPA_ORDERS
from tools.recipes.recipe import Recipe

RATE, ADAPTED = "--training.schedule.learning-rate", "--lifelong.method.adaptation-learning-rate"
VECTORS = "lifelong_vectors"
"""page of what is trained on sentence vectors"""
VALIDATED = "--evaluation.split validation"


def _order(names: Sequence[str]) -> str:
    """Of the tasks of a configuration, which stand in the first published order."""
    return f"--lifelong.task-order {' '.join(str(MBPA_ORDERS[0].index(name)) for name in names)}"


def trials(option: str, values: Sequence[float], other: str, others: Sequence[float]) -> tuple[str, ...]:
    return tuple(f"{option} {value:g} {other} {beside:g}" for value in values for beside in others)


def weights(*values: float, kind: str = "penalty") -> tuple[str, ...]:
    """Of a penalty, or of a distillation, at two rates."""
    return trials(RATE, (1e-3, 4e-3), f"--lifelong.method.{kind}-weight", values)


def row_numbers(rates: Sequence[float], numbers: Sequence[float], kind: str) -> tuple[str, ...]:
    """Of a replay, or of the reference of a projection (`kind`), at some rates."""
    return trials(RATE, rates, f"--lifelong.method.{kind}-batch-size", numbers)


RATES = tuple(f"{RATE} {rate:g}" for rate in (2.5e-4, 5e-4, 1e-3, 2e-3, 4e-3, 8e-3, 1.6e-2, 3.2e-2))
_REPLAYED, _PROJECTED = (row_numbers((1e-3, 2e-3, 4e-3, 8e-3), (32, 100), kind) for kind in ("replay", "reference"))
_ADAPTED = trials(RATE, (1e-3, 4e-3), ADAPTED, (0.02, 0.05, 0.1, 0.2))
_TEXT_TRIALS = {
    "single task": RATES,
    "SEQ": RATES,
    "multi-task": RATES,
    "replay": _REPLAYED,
    "mixed 1:1": RATES,
    "A-GEM": _PROJECTED,
    "random": _ADAPTED,
    "MbPA": _ADAPTED,
    "MbPA++": _ADAPTED,
    "EWC": weights(1, 10, 100, 1000),
    "MAS": weights(0.1, 1, 10, 100),
    "SI": weights(0.1, 1, 10, 100),
    "LwF": weights(0.3, 1, 3, 10, kind="distillation"),
    "Logit-KD": weights(0.3, 1, 3, 10, kind="distillation"),
}
_TEXT_ROWS = {
    "single task": "single_task",
    "SEQ": "default",
    "multi-task": "multi_task",
    "mixed 1:1": "mixed",
    "replay": "replay",
    "A-GEM": "agem",
    "random": "mbpa_random",
    "MbPA": "mbpa",
    "MbPA++": "mbpa_pp",
    "EWC": "ewc",
    "MAS": "mas",
    "SI": "si",
    "LwF": "lwf",
    "Logit-KD": "logit_kd",
}
_TEXT_CONTROLS = {
    "multi-task": ("MbPA++",),
    "mixed 1:1": ("SEQ", "MbPA++"),
    "replay": ("SEQ",),
    "A-GEM": ("SEQ", "replay", "random"),
    "random": ("SEQ", "replay"),
    "MbPA": ("SEQ", "A-GEM"),
    "MbPA++": ("SEQ", "replay", "random", "MbPA"),
    **{row: ("SEQ",) for row in ("EWC", "MAS", "SI", "LwF", "Logit-KD")},
}


ORDERS = {f"order {number}": _order(names) for number, names in enumerate(MBPA_ORDERS, 1)}
_SIX_ORDERS = (*MBPA_ORDERS, *(names[::-1] for names in MBPA_ORDERS[:2]))
_KEPT = "--lifelong.method.memory.write-policy random"


def _texts(
    size: int, orders: int, seeds: Sequence[int], chosen: str, trials: Mapping[str, tuple[str, ...]], findings: str
) -> Recipe:
    """The five tasks of MbPA++ on sentence vectors; `chosen` says how its settings were."""
    number = ("one", "two", "three", "all four")[orders - 1]
    return Recipe(
        description=(
            f"The five tasks of MbPA++ in {number} of its orders on sentence vectors of MiniLM, frozen: {size:,} texts "
            "a task for training, 400 to test, 25 of the 33 classes (of Yahoo's ten only two are at hand). A "
            "perceptron 384-256-33, batches of 32, one pass, Adam; a replay or a projected update every "
            f"400 texts, and 32 neighbours, 30 steps, of the head only. {chosen} `tools.measurements.vectors five "
            f"--train {size}` makes MEMJAX_TEXT_VECTORS_{size}."
        ),
        config="lifelong_text",
        variants=_TEXT_ROWS,
        steps=0,
        texts=f"five_{size}",
        page=VECTORS,
        trials=dict(trials),
        search_arguments=VALIDATED if trials else "",
        orders=dict(list(ORDERS.items())[:orders]),
        seeds=tuple(seeds),
        arguments=f"--lifelong.sources-dir $MEMJAX_TEXT_VECTORS_{size}",
        controls=_TEXT_CONTROLS,
        findings=findings,
    )


_DIGITS = {
    "single task": "single_task",
    "SEQ": "default",
    "multi-task": "multi_task",
    "cumulative": "cumulative",
    "replay 500": "replay",
    "A-GEM": "agem",
    "GEM": "gem",
    "EWC": "ewc",
    "MAS": "mas",
    "SI": "si",
    "LwF": "lwf",
    "Logit-KD": "logit_kd",
    "SEQ, classes told": "by_task",
    "EWC, classes told": "by_task_ewc",
}

RECIPES = {
    "lifelong_mnist": Recipe(
        description=(
            "Split MNIST: five tasks of two digits each, 10,000 images, one head of ten classes, perceptron "
            "784-256-10, plain gradient descent at 0.1, batches of 32, one epoch; settings as in the configuration, "
            "not searched. In the last rows the two classes of a task are told, in training and in the test."
        ),
        config="lifelong_mnist",
        variants=_DIGITS,
        steps=0,
        orders={"order 1": ""},
        seeds=(0, 1, 2),
        arguments="--lifelong.sources-dir $MEMJAX_MNIST",
        controls={
            **{row: ("SEQ",) for row in _DIGITS if row not in ("single task", "SEQ") and "told" not in row},
            "EWC, classes told": ("SEQ, classes told",),
        },
    ),
    "lifelong_vectors_500": _texts(
        500,
        4,
        range(3),
        "Every method has eight trials on validation texts of order 1, and is frozen for all orders and seeds.",
        _TEXT_TRIALS,
        "The published order is multi-task, MbPA++, MbPA, A-GEM, random, replay, plain training. Here MbPA++ and MbPA "
        "are level with each other and a little above one pass over all tasks together; A-GEM, random neighbours and "
        "sparse replay are level with plain training. So few texts are 79 updates with six replays: the plain rows "
        "have not learned their tasks (compare what they reach right after a task with the tasks learned apart), and "
        "nothing is said of what they forget. Dense mixing, Logit-KD, SI and, by little, LwF are above "
        "plain training. Of MbPA, MbPA++ and random neighbours the best trial has the highest rate of "
        "adaptation that was tried, of Logit-KD, EWC, MAS, SI and LwF the higher of two rates of "
        "training: more might be found beyond.",
    ),
    "lifelong_vectors_sweeps": Recipe(
        description=(
            "MbPA++ as in `lifelong_vectors_500`, at the settings that its search has found (the variant of the "
            "configuration), with one thing changed: steps of the adaptation (L, 30 elsewhere), neighbours (K, 32), "
            "the share of the texts that is kept (all), texts from one replay of 32 rows to the next (400: a rate of "
            "8 %). One order, three seeds."
        ),
        config="lifelong_text",
        variants={
            "MbPA++": "mbpa_pp",
            **{f"L = {steps}": f"mbpa_pp --lifelong.method.adaptation-steps {steps}" for steps in (0, 1, 5, 15)},
            **{f"K = {number}": f"mbpa_pp --lifelong.method.num-neighbors {number}" for number in (8, 128)},
            **{
                f"{share:.0%} kept": f"mbpa_pp {_KEPT} --lifelong.method.memory.write-probability {share:g}"
                for share in (0.5, 0.1, 0.01)
            },
            **{
                f"replay of {rate:.0%}": f"mbpa_pp --lifelong.method.replay-interval {round(32 / rate)}"
                for rate in (0.01, 0.04)
            },
        },
        steps=0,
        page=VECTORS,
        orders=dict(list(ORDERS.items())[:1]),
        seeds=(0, 1, 2),
        arguments="--lifelong.sources-dir $MEMJAX_TEXT_VECTORS_500",
        controls=dict.fromkeys(
            (*(f"L = {steps}" for steps in (0, 1, 5, 15)), "K = 8", "K = 128", "50% kept", "10% kept", "1% kept")
            + ("replay of 1%", "replay of 4%"),
            ("MbPA++",),
        ),
        findings=(
            "More steps of the adaptation help at every age, most right after a task: with so few texts the network "
            "alone has not learned it, so that a loss on the last task, as in the paper, cannot show. A quarter of the "
            "neighbours or four times as many are a little worse than 32, a memory of half the texts too; a tenth "
            "loses much, a hundredth nearly all. How often rows are replayed makes no difference."
        ),
    ),
    "lifelong_vectors_2000": _texts(
        2000,
        2,
        range(3),
        "Settings as `lifelong_vectors_500` has found them, without a search of their own.",
        {},
        "With four times the texts every task is learned (right after it the plain rows are level with the tasks "
        "learned apart), so what is missing at the end was forgotten. MbPA++ and MbPA are level with each other, and "
        "above one pass over all tasks together and dense mixing by little; sparse replay gains in the order that ends "
        "with sentiment; A-GEM at every 400 texts is level with plain training, below replay, where the paper has it "
        "above.",
    ),
    "lifelong_last_two": Recipe(
        description=(
            "The last two of MiniLM's six layers and the head, trained on what the others give of each text: 500 texts "
            "a task of at most 48 tokens, 100 to test, batches of 8, one pass, Adam at 3e-4; 100 rows replayed every "
            "400 texts, 8 stored rows beside 8 new ones, 32 neighbours and 5 steps of the head. Settings not searched. "
            "`tools.measurements.vectors five --train 560 --test 100 --files` makes MEMJAX_TEXTS_500, `memjax import` "
            "MEMJAX_MINILM; MEMJAX_STATES is a folder for what is computed once."
        ),
        config="lifelong_text",
        variants={
            "SEQ": "last_two",
            "multi-task": "last_two_multi_task",
            "replay": "last_two_replay",
            "mixed 1:1": "last_two_mixed --lifelong.method.replay-batch-size 8",
            "MbPA++": "last_two_mbpa_pp --lifelong.method.adapted-parameters head/ "
            "--lifelong.method.adaptation-steps 5",
        },
        steps=0,
        orders=dict(list(ORDERS.items())[:2]),
        seeds=(0, 1, 2),
        arguments=(
            "--lifelong.sources-dir $MEMJAX_TEXTS_500 --training.init-from $MEMJAX_MINILM --data.encoder-states-dir "
            "$MEMJAX_STATES "
            "--data.tokenizer.vocab $MEMJAX_MINILM/tokenizer/tokenizer.json --data.batch-size 8 "
            "--data.segment-length 48 --training.schedule.learning-rate 3e-4"
        ),
        controls={"mixed 1:1": ("SEQ",), "replay": ("SEQ",), "MbPA++": ("SEQ", "replay"), "multi-task": ("MbPA++",)},
    ),
    "lifelong_adapters": Recipe(
        description=(
            "Adapters of rank 8 in the last six of the 30 layers of SmolLM2-135M and a head on the last token, trained "
            "on what the other layers give of each text: 250 texts a task of at most 64 tokens, 200 to test, batches "
            "of 8, Adam. Six orders, the published four and the first two from behind, one seed each. "
            "`tools.measurements.vectors five --train 400 --test 200 --files` makes MEMJAX_TEXTS, `memjax import` "
            "MEMJAX_SMOLLM2; MEMJAX_STATES is a folder for what is computed once. The rate of 1e-3 is the first that "
            "was tried; plain training forgets 26 points with it on validation texts in the first order and one pass. "
            "Four passes are read, since one leaves tasks near their largest class. No other setting was searched. "
            "Run on a GPU with products in float32 (JAX_DEFAULT_MATMUL_PRECISION=highest)."
        ),
        config="lifelong_text",
        variants={
            "SEQ": "adapters",
            "mixed 1:1": "adapters_mixed",
            "O-LoRA": "adapters_o_lora",
            "one adapter a task": "adapters_task_adapters",
            "EWC": "adapters_ewc",
            "multi-task": "adapters_multi_task",
        },
        steps=0,
        orders={f"order {number}": _order(names) for number, names in enumerate(_SIX_ORDERS, 1)},
        arguments=(
            "--lifelong.sources-dir $MEMJAX_TEXTS --from $MEMJAX_SMOLLM2 --model.first-trained-layer 24 "
            "--data.encoder-states-dir $MEMJAX_STATES --data.segment-length 64"
        ),
        controls={
            "mixed 1:1": ("SEQ",),
            "EWC": ("SEQ",),
            "O-LoRA": ("SEQ", "EWC"),
            "one adapter a task": ("SEQ", "O-LoRA"),
            "multi-task": ("SEQ",),
        },
    ),
    "lifelong_vectors_fourteen": Recipe(
        description=(
            "Fourteen of the fifteen tasks of the longer order of O-LoRA (Yahoo's files are not at hand) on sentence "
            "vectors of MiniLM, frozen: at most 500 texts a task, 200 to test, 42 classes; else as "
            "`lifelong_vectors_500`, whose settings it takes, without a search of its own. One order, three seeds. "
            "`tools.measurements.vectors fourteen` makes MEMJAX_TEXT_VECTORS_FOURTEEN."
        ),
        config="lifelong_text",
        variants={
            "single task": "fourteen_single_task",
            "SEQ": "fourteen",
            "multi-task": "fourteen_multi_task",
            "replay": "fourteen_replay",
            "mixed 1:1": "fourteen_mixed",
            "MbPA++": "fourteen_mbpa_pp",
        },
        steps=0,
        texts="fourteen_500",
        page=VECTORS,
        orders={"order 1": ""},
        seeds=(0, 1, 2),
        arguments="--lifelong.sources-dir $MEMJAX_TEXT_VECTORS_FOURTEEN",
        controls={
            "multi-task": ("MbPA++",),
            "replay": ("SEQ",),
            "mixed 1:1": ("SEQ", "MbPA++"),
            "MbPA++": ("SEQ", "replay"),
        },
        findings=(
            "Seven tasks are near their largest class. Of the others MbPA++ is level "
            "with one pass over all tasks together, dense mixing is between, and sparse replay loses against plain "
            "training; why was not taken apart. The plain rows have not learned their tasks: nothing is said of what "
            "they forget."
        ),
    ),
}
