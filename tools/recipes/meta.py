"""Recipes of methods that learn how to adapt, with their controls, over orders and seeds."""

from memjax.lifelong.orders import MBPA_ORDERS
from tools.recipes.recipe import Recipe
from tools.recipes.search import RATE, Search, Setting
from tools.recipes.streams import (
    EVERY_UPDATE,
    ORDERS,
    PROJECTED_ALWAYS,
    ROW_NUMBERS,
    UNREPORTED,
    order_of,
    search_with,
)

INNER, ADAPTED = "--lifelong.method.inner-learning-rate", "--lifelong.method.adaptation-learning-rate"
_SIX_ORDERS = ORDERS | {f"order {number}": order_of(MBPA_ORDERS[number - 4][::-1]) for number in (5, 6)}
"""Orders of the runs of `lifelong_meta`. Its search has another one, order 1 reversed"""
BATCH, PAGE = "--data.batch-size 4", "lifelong_meta"
_METHODS = {
    "single task": "single_task",
    "SEQ": "default",
    "A-GEM": "agem",
    "replay": "replay",
    "online EWC": "ewc_online",
    "MbPA++": "mbpa_pp",
    "OML-ER": "oml",
    "ANML-ER": "anml",
    "MAML-ER": "maml",
    "Meta-MbPA": "meta_mbpa",
    "multi-task": "multi_task",
    EVERY_UPDATE: f"agem {PROJECTED_ALWAYS}",
}
_EPISODES = search_with(4e-3, "inner-learning-rate", 0.3)
_SEARCH = Search(
    settings={
        "": (Setting(RATE, 1e-3),),
        **dict.fromkeys(("A-GEM", EVERY_UPDATE), search_with(1e-3, "reference-batch-size", 100, **ROW_NUMBERS)),
        "replay": search_with(1e-3, "replay-batch-size", 100, **ROW_NUMBERS),
        "online EWC": search_with(1e-3, "penalty-weight", 100, factor=10),
        "MbPA++": search_with(1e-3, "adaptation-learning-rate", 0.1),
        **dict.fromkeys(("OML-ER", "ANML-ER", "MAML-ER"), _EPISODES),
        "Meta-MbPA": search_with(1e-3, "inner-learning-rate", 0.3, also=(ADAPTED,)),
    },
    trials=16,
    arguments=UNREPORTED,
    seed=101,
    earlier="validation texts of order 1",
)
_CONTROLS = {
    "A-GEM": ("SEQ",),
    EVERY_UPDATE: ("SEQ", "A-GEM", "MbPA++"),
    "replay": ("SEQ",),
    "online EWC": ("SEQ",),
    "MbPA++": ("SEQ", "replay"),
    "OML-ER": ("SEQ", "replay", "MbPA++"),
    "ANML-ER": ("SEQ", "OML-ER"),
    "MAML-ER": ("SEQ", "OML-ER"),
    "Meta-MbPA": ("SEQ", "MbPA++", "OML-ER"),
    "multi-task": ("MbPA++", "Meta-MbPA"),
}

FOUND = {
    "SEQ": "--training.schedule.learning-rate 0.002",
    "A-GEM": "--training.schedule.learning-rate 0.002 --lifelong.method.reference-batch-size 100",
    "replay": "--training.schedule.learning-rate 0.002 --lifelong.method.replay-batch-size 100",
    "MbPA++": f"--training.schedule.learning-rate 0.0005 {ADAPTED} 0.1",
    "OML-ER": f"--training.schedule.learning-rate 0.008 {INNER} 3",
    "ANML-ER": f"--training.schedule.learning-rate 0.008 {INNER} 0.3",
    "MAML-ER": f"--training.schedule.learning-rate 0.008 {INNER} 0.3",
    "Meta-MbPA": f"--training.schedule.learning-rate 0.002 {INNER} 0.3 {ADAPTED} 0.3",
    "online EWC": "--training.schedule.learning-rate 0.001 --lifelong.method.penalty-weight 100",
    "multi-task": "--training.schedule.learning-rate 0.001",
}
"""Row -> settings of its best trial in the earlier search of `lifelong_meta`, for recipes that change one thing. A test
compares them with the ledger"""
_OML, _META = (f"{_METHODS[row]} {BATCH} {FOUND[row]}" for row in ("OML-ER", "Meta-MbPA"))
PASSES = 15
_PLAIN = ("SEQ", "multi-task", "online EWC", "Meta-MbPA")
"""Rows without a memory of all texts"""
_ONE_OF_ALL = (
    f"--lifelong.method.memory.write-policy random --lifelong.method.memory.write-probability {1 / PASSES:.6f}"
)
"""Arguments with which about as many texts are stored in many passes as there are"""

_KEPT = "--lifelong.method.memory.write-policy random --lifelong.method.memory.write-probability"
_HUNDRED = "--lifelong.method.memory.capacity 100 --lifelong.method.memory.write-policy"
_SELECTIONS = {
    "diverse": "",
    "random": f"{_HUNDRED} random",
    "uncertain": f"{_HUNDRED} uncertainty",
    "forgettable": f"{_HUNDRED} forgettable",
}

RECIPES = {
    "lifelong_meta": Recipe(
        description=(
            "The five tasks of MbPA++ on sentence vectors of MiniLM, frozen, as `lifelong_vectors_2000` has them "
            "(2,000 texts a task for training, 400 to test, 25 of the 33 classes), in batches of 4 for every method: "
            "an episode of OML-ER and its kin spends six of them on one outer step, which `updates` counts. A "
            "perceptron 384-256-33, one pass, Adam; a replay or a projected update about every 400 texts (16 of them "
            "in episodes). The reference of A-GEM has texts of all tasks so far; in the last row every update is "
            "projected, with texts of earlier tasks alone, as in the paper. Meta-MbPA keeps a hundredth of the texts, "
            "the others all. Six orders: the four of the paper, and the second and third of them reversed. "
            "`tools.measurements.vectors five --train 2000` makes MEMJAX_TEXT_VECTORS_2000."
        ),
        config="lifelong_text",
        variants={row: f"{variant} {BATCH}" for row, variant in _METHODS.items()},
        steps=0,
        texts="five_2000",
        page=PAGE,
        search=_SEARCH,
        orders=_SIX_ORDERS,
        seeds=(0,),
        arguments="--lifelong.sources-dir $MEMJAX_TEXT_VECTORS_2000",
        controls=_CONTROLS,
        findings=(
            "Points over six orders, all rows searched with as many trials: MbPA++ against replay {MbPA++ | replay}; "
            "OML-ER against replay {OML-ER | replay}, against MbPA++ {OML-ER | MbPA++}; ANML-ER against OML-ER "
            "{ANML-ER | OML-ER}; Meta-MbPA against MbPA++ {Meta-MbPA | MbPA++}, against OML-ER {Meta-MbPA | OML-ER}; "
            "online EWC against plain training {online EWC | SEQ}. The published tables have OML-ER above "
            "MbPA++, and Meta-MbPA above both, where the encoder is trained. Here it is frozen, and episodes can shape "
            "a perceptron alone; `lifelong_last_two` is for the rest. A-GEM projects 25 of 2,500 updates {A-GEM | "
            "SEQ}. At every update, with 400 stored texts for each reference as its search has found, it comes to "
            "{A-GEM at every update | SEQ} against plain training and {A-GEM at every update | MbPA++} against "
            "MbPA++: it then reads 800,000 stored texts, where sparse replay reads 5,000."
        ),
    ),
    "lifelong_meta_ablations": Recipe(
        description=(
            "As `lifelong_meta`, at the settings of an earlier search of it, with one thing changed. One order, three "
            "seeds. Of Meta-MbPA 100 texts are kept: by diversity, at random, "
            "those that the model is least sure of, or those that it has forgotten most often; with what is learned "
            "for the adaptation or without (MbPA++ with one adaptation for a test set), and answered with an "
            "adaptation or without."
        ),
        config="lifelong_text",
        variants={
            "OML-ER": _OML,
            "OML-ER, no replay": f"{_OML} --lifelong.method.replay-interval 0",
            "OML-ER, no meta-test": f"{_OML} --lifelong.method.no-adapts-at-test",
            "OML-ER, replay of 1%": f"{_OML} --lifelong.method.replay-rate 0.01",
            "OML-ER, second order": f"{_OML} --lifelong.method.no-first-order",
            **{f"OML-ER, {share:.0%} kept": f"{_OML} {_KEPT} {share:g}" for share in (0.05, 0.01)},
            **{
                f"{name}, {policy}{words}": f"{_META} {memory} {learned} {answers}".rstrip()
                for policy, memory in _SELECTIONS.items()
                for name, learned in (("Meta-MbPA", ""), ("MbPA++", "--lifelong.method.no-meta-train"))
                for words, answers in (("", ""), (", not adapted", "--lifelong.method.adaptation-steps 0"))
            },
        },
        steps=0,
        texts="five_2000",
        page=PAGE,
        orders=dict(list(ORDERS.items())[:1]),
        seeds=(0, 1, 2),
        arguments="--lifelong.sources-dir $MEMJAX_TEXT_VECTORS_2000",
        controls={
            **dict.fromkeys(
                ("OML-ER, no replay", "OML-ER, no meta-test", "OML-ER, replay of 1%", "OML-ER, second order")
                + ("OML-ER, 5% kept", "OML-ER, 1% kept"),
                ("OML-ER",),
            ),
            **{
                f"Meta-MbPA, {policy}": (f"MbPA++, {policy}", f"Meta-MbPA, {policy}, not adapted")
                for policy in _SELECTIONS
            },
            **{f"Meta-MbPA, {policy}, not adapted": (f"MbPA++, {policy}, not adapted",) for policy in _SELECTIONS},
        },
    ),
    "lifelong_meta_passes": Recipe(
        description=(
            f"As `lifelong_meta`, at the settings of an earlier search of it, with {PASSES} passes over each task: "
            "OML-ER has about as many outer steps as are published (5,999). No row of it is one pass: it shows what "
            "rows reach after so many, and not what one pass lacks. One order, three seeds; Meta-MbPA keeps a "
            f"hundredth of what it reads, in a memory of 1,000 texts, the others one text in {PASSES}."
        ),
        config="lifelong_text",
        variants={
            row: f"{_METHODS[row]} {BATCH} {settings} {'' if row in _PLAIN else _ONE_OF_ALL}".rstrip()
            for row, settings in FOUND.items()
        },
        steps=0,
        texts="five_2000",
        page=PAGE,
        orders=dict(list(ORDERS.items())[:1]),
        seeds=(0, 1, 2),
        arguments=f"--lifelong.sources-dir $MEMJAX_TEXT_VECTORS_2000 --lifelong.epochs {PASSES}",
        controls={
            row: tuple(control for control in controls if control in FOUND)
            for row, controls in _CONTROLS.items()
            if row in FOUND
        },
    ),
}
