"""Recipes of tasks that are learned one after the other: methods against forgetting, over orders and seeds."""

from collections.abc import Sequence
from typing import Any

from memjax.lifelong.orders import MBPA_ORDERS
from tools.recipes.recipe import Recipe
from tools.recipes.search import RATE, Search, Setting

VECTORS = "lifelong_vectors"
"""Page of the recipes that train on sentence vectors"""
VALIDATED = "--evaluation.split validation"


def order_of(names: Sequence[str]) -> str:
    """Returns the argument that puts the tasks of a configuration, in the first published order, into this order."""
    return f"--lifelong.task-order {' '.join(str(MBPA_ORDERS[0].index(name)) for name in names)}"


UNREPORTED = f"{order_of(MBPA_ORDERS[2][::-1])} {VALIDATED}"
"""Arguments with the order and split of the trials of a search on the five tasks of MbPA++. `SIX_ORDERS` lack it"""


def search_with(rate: float, option: str, start: float, **limits: Any) -> tuple[Setting, ...]:
    """Returns the settings of a search: the learning rate from `rate` on, and a method's `option` from `start` on."""
    return Setting(RATE, rate), Setting(f"--lifelong.method.{option}", start, **limits)


EVERY_UPDATE = "A-GEM at every update"
"""Row in which A-GEM projects every update, as in its paper"""
PROJECTED_ALWAYS = "--lifelong.method.projection-interval 0 --lifelong.method.reference-tasks earlier"
"""Arguments with which A-GEM projects every update, with a reference of earlier tasks alone"""
ROW_NUMBERS = {"is_whole": True, "least": 1}
"""Limits of a searched number of rows, such as those of a batch of replay. The largest is the number that is kept"""
_ADAPTED = search_with(4e-3, "adaptation-learning-rate", 0.1)
_TEXT_SEARCH = Search(
    settings={
        "": (Setting(RATE, 4e-3),),
        "replay": search_with(4e-3, "replay-batch-size", 32, most=10_000, **ROW_NUMBERS),
        **dict.fromkeys(
            ("A-GEM", EVERY_UPDATE), search_with(4e-3, "reference-batch-size", 100, most=10_000, **ROW_NUMBERS)
        ),
        **dict.fromkeys(("random", "MbPA", "MbPA++"), _ADAPTED),
        "EWC": search_with(4e-3, "penalty-weight", 10, factor=10),
        "MAS": search_with(4e-3, "penalty-weight", 1, factor=10),
        "SI": search_with(4e-3, "penalty-weight", 10, factor=10),
        **dict.fromkeys(("LwF", "Logit-KD"), search_with(4e-3, "distillation-weight", 1, factor=3)),
    },
    trials=13,
    arguments=UNREPORTED,
)
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
    EVERY_UPDATE: f"agem {PROJECTED_ALWAYS}",
}
_TEXT_CONTROLS = {
    "multi-task": ("MbPA++",),
    "mixed 1:1": ("SEQ", "MbPA++"),
    "replay": ("SEQ",),
    "A-GEM": ("SEQ", "replay", "random"),
    EVERY_UPDATE: ("SEQ", "A-GEM"),
    "random": ("SEQ", "replay"),
    "MbPA": ("SEQ", "A-GEM"),
    "MbPA++": ("SEQ", "replay", "random", "MbPA"),
    **{row: ("SEQ",) for row in ("EWC", "MAS", "SI", "LwF", "Logit-KD")},
}


ORDERS = {f"order {number}": order_of(names) for number, names in enumerate(MBPA_ORDERS, 1)}
SIX_ORDERS = {
    f"order {number}": order_of(names)
    for number, names in enumerate((*MBPA_ORDERS, *(names[::-1] for names in MBPA_ORDERS[:2])), 1)
}
"""The four published orders and the first two reversed"""
_KEPT = "mbpa_pp --lifelong.method.memory.write-policy random --lifelong.method.memory.write-probability"
_CHANGES = {
    "L = 0": "mbpa_pp --lifelong.method.adaptation-steps 0",
    "K = 8": "mbpa_pp --lifelong.method.num-neighbors 8",
    "10% kept": f"{_KEPT} 0.1",
    "1% kept": f"{_KEPT} 0.01",
}
"""Row of the sweep -> variant with the change that it is named after"""


_DIGIT_ORDERS = {
    f"order {number}": f"--lifelong.task-order {tasks}"
    for number, tasks in enumerate(("0 1 2 3 4", "1 3 0 4 2", "2 0 4 1 3", "3 4 1 2 0", "4 2 3 0 1", "4 3 2 1 0"), 1)
}
"""Five orders in which each task stands once at each place, and the first one from behind"""
_DIGIT_SEARCH = Search(
    settings={
        "": (Setting(RATE, 0.1),),
        "replay 500": search_with(0.1, "replay-batch-size", 32, most=500, **ROW_NUMBERS),
        "A-GEM": search_with(0.1, "reference-batch-size", 256, most=500, **ROW_NUMBERS),
        "EWC": search_with(0.1, "penalty-weight", 100, factor=10),
        "MAS": search_with(0.1, "penalty-weight", 1, factor=10),
        "SI": search_with(0.1, "penalty-weight", 1, factor=10),
        **dict.fromkeys(("LwF", "Logit-KD"), search_with(0.1, "distillation-weight", 1, factor=3)),
        "EWC, classes told": search_with(0.1, "penalty-weight", 100, factor=10),
    },
    trials=8,
    arguments=f"--lifelong.task-order 3 1 4 0 2 {VALIDATED}",
)
_DIGITS = {
    "single task": "single_task",
    "SEQ": "default",
    "multi-task": "multi_task",
    "cumulative": "cumulative",
    "replay 500": "replay",
    "A-GEM": "agem",
    "GEM, margin 0.5": "gem",
    "GEM, margin 0": "gem --lifelong.method.memory-strength 0",
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
            "784-256-10, plain gradient descent, batches of 32, one epoch. Six orders: the order is the "
            "unit. Settings are searched on 5,000 images of the training file, of the classes of each task, in an "
            "order that is not reported. "
            "In the last rows the two classes of a task are told, in training and in the test. GEM keeps "
            "100 images of each task; a margin of 0 is that of the paper's program, one of 0.5 adds the gradients of "
            "stored images to every update with a conflict, as replay does. The reference of A-GEM has images of "
            "earlier tasks alone."
        ),
        config="lifelong_mnist",
        variants=_DIGITS,
        steps=0,
        search=_DIGIT_SEARCH,
        orders=_DIGIT_ORDERS,
        own_seeds=True,
        arguments="--lifelong.sources-dir $MEMJAX_MNIST",
        controls={
            **{row: ("SEQ",) for row in _DIGITS if row not in ("single task", "SEQ") and "told" not in row},
            "A-GEM": ("SEQ", "replay 500"),
            "GEM, margin 0.5": ("SEQ", "GEM, margin 0", "replay 500"),
            "GEM, margin 0": ("SEQ", "A-GEM", "replay 500"),
            "Logit-KD": ("SEQ", "replay 500"),
            "EWC, classes told": ("SEQ, classes told",),
        },
        findings=(
            "Points over six orders. Against plain training: replay {replay 500 | SEQ}, distillation without stored "
            "images {LwF | SEQ} and with them {Logit-KD | SEQ}, A-GEM {A-GEM | SEQ}, EWC {EWC | SEQ}, MAS {MAS | SEQ}, "
            "SI {SI | SEQ}. Each row has its own settings, see the trials; A-GEM's reference has as many images as its "
            "memory. GEM against replay of 500 images: with a margin of 0.5 {GEM, margin 0.5 | replay 500}, with 0, as "
            "in the paper's program, {GEM, margin 0 | replay 500}; one margin against the other {GEM, margin 0.5 | "
            "GEM, margin 0}; GEM without a margin against A-GEM {GEM, margin 0 | A-GEM}. Distillation on the stored "
            "images against replay of them {Logit-KD | replay 500}. Where the classes of a task are told, EWC against "
            "plain training {EWC, classes told | SEQ, classes told}."
        ),
    ),
    "lifelong_vectors_2000": Recipe(
        description=(
            "The five tasks of MbPA++ on sentence vectors of MiniLM, frozen: 2,000 texts a task for training, 400 to "
            "test, 25 of the 33 classes (of Yahoo's ten only two are at hand). A perceptron 384-256-33, batches of 32, "
            "one pass, Adam; a replay or a projected update every 400 texts, and 32 neighbours, 30 steps, of the head "
            "only. The reference of A-GEM has texts of all tasks so far; in the last row every update is projected, "
            "with a reference of earlier tasks alone, as in the paper, for which the borders of tasks are told. Six "
            "orders, the published four and the first two from behind: the order is the unit. Settings "
            "are searched on validation texts of an order that is not reported. `tools.measurements.vectors five "
            "--train 2000` makes MEMJAX_TEXT_VECTORS_2000."
        ),
        config="lifelong_text",
        variants=_TEXT_ROWS,
        steps=0,
        texts="five_2000",
        page=VECTORS,
        search=_TEXT_SEARCH,
        orders=SIX_ORDERS,
        arguments="--lifelong.sources-dir $MEMJAX_TEXT_VECTORS_2000",
        controls=_TEXT_CONTROLS,
        findings=(
            "The published order is multi-task, MbPA++, MbPA, A-GEM, random, replay, plain training. Points against "
            "plain training here: MbPA++ {MbPA++ | SEQ}, MbPA {MbPA | SEQ}, A-GEM {A-GEM | SEQ}, at every update "
            "{A-GEM at every update | SEQ}, random neighbours {random | SEQ}, sparse replay {replay | SEQ}; MbPA++ "
            "against MbPA {MbPA++ | MbPA}, against sparse replay {MbPA++ | replay}, one pass over all tasks together "
            "against MbPA++ {multi-task | MbPA++}. Every 400 texts replay reads as many stored ones as its search has "
            "found (see the trials), MbPA++ 100; A-GEM at every update reads as many as its search has found in each "
            "update."
        ),
    ),
    "lifelong_vectors_sweeps": Recipe(
        description=(
            "MbPA++ as in `lifelong_vectors_2000`, at the settings that its search has found, with one thing changed: "
            "steps of the adaptation (L, 30 elsewhere), neighbours (K, 32), the share of the texts that is kept (all). "
            "Six orders."
        ),
        config="lifelong_text",
        variants={"MbPA++": "mbpa_pp", **_CHANGES},
        steps=0,
        page=VECTORS,
        settings_from=dict.fromkeys(("MbPA++", *_CHANGES), "lifelong_vectors_2000/MbPA++"),
        orders=SIX_ORDERS,
        arguments="--lifelong.sources-dir $MEMJAX_TEXT_VECTORS_2000",
        controls=dict.fromkeys(_CHANGES, ("MbPA++",)),
        findings=(
            "Points against 30 steps of the adaptation: without any {L = 0 | MbPA++}. Against all texts in the memory: "
            "with a tenth {10% kept | MbPA++}, with a hundredth {1% kept | MbPA++}; against 32 neighbours: with 8 {K = "
            "8 | MbPA++}."
        ),
    ),
    "lifelong_adapters": Recipe(
        description=(
            "Adapters of rank 8 in the last six of the 30 layers of SmolLM2-135M and a head on the last token, trained "
            "on what the other layers give of each text: 250 texts a task of at most 64 tokens, 200 to test, batches "
            "of 8, Adam. Six orders, the published four and the first two from behind. "
            "`tools.measurements.vectors five --train 400 --test 200 --files` makes MEMJAX_TEXTS, `memjax import` "
            "MEMJAX_SMOLLM2; MEMJAX_STATES is a folder for what is computed once. The rate of 1e-3 is the first that "
            "was tried; plain training forgets 26 points with it on validation texts in the first order and one pass. "
            "Four passes are read, since one leaves tasks near their largest class. `one adapter a task` is told the "
            "task of each test text, the other rows are not. "
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
        orders=SIX_ORDERS,
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
            "`lifelong_vectors_2000`, at the settings of the configuration, which an earlier search on 500 texts of "
            "each of the five tasks found. One order, three seeds. "
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
            "Seven tasks are near their largest class. Points over the others, against plain training: MbPA++ {MbPA++ "
            "| SEQ}, dense mixing {mixed 1:1 | SEQ}, sparse replay {replay | SEQ}; why replay has fewer was not taken "
            "apart. One pass over all tasks together against MbPA++: {multi-task | MbPA++}. The plain rows have not "
            "learned their tasks: nothing is said of what they forget."
        ),
    ),
}
