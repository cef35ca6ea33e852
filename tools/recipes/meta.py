"""Recipes of methods that learn how to adapt, with their controls, over orders and seeds."""

from memjax.lifelong.orders import MBPA_ORDERS
from tools.recipes.recipe import Recipe
from tools.recipes.search import RATE, Search, Setting
from tools.recipes.streams import (
    EVERY_UPDATE,
    ORDERS,
    PROJECTED_ALWAYS,
    ROW_NUMBERS,
    VALIDATED,
    order_of,
    search_with,
)

INNER, ADAPTED = "--lifelong.method.inner-learning-rate", "--lifelong.method.adaptation-learning-rate"
_ORDERS = ORDERS | {f"order {number}": order_of(MBPA_ORDERS[number - 4][::-1]) for number in (5, 6)}
"""The four published orders, the second and the third reversed. The search of `lifelong_meta` has the first reversed"""
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
        **dict.fromkeys(
            ("A-GEM", EVERY_UPDATE), search_with(1e-3, "reference-batch-size", 100, most=10_000, **ROW_NUMBERS)
        ),
        "replay": search_with(1e-3, "replay-batch-size", 100, most=10_000, **ROW_NUMBERS),
        "online EWC": search_with(1e-3, "penalty-weight", 100, factor=10),
        "MbPA++": search_with(1e-3, "adaptation-learning-rate", 0.1),
        **dict.fromkeys(("OML-ER", "ANML-ER", "MAML-ER"), _EPISODES),
        "Meta-MbPA": search_with(1e-3, "inner-learning-rate", 0.3, also=(ADAPTED,)),
    },
    trials=16,
    arguments=f"{order_of(MBPA_ORDERS[0][::-1])} {VALIDATED}",
    seed=101,
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

_HUNDRED_AT_RANDOM = "--lifelong.method.memory.capacity 100 --lifelong.method.memory.write-policy random"
_CHANGES = {
    "OML-ER": {
        "no replay": "--lifelong.method.replay-interval 0",
        "no meta-test": "--lifelong.method.no-adapts-at-test",
        "second order": "--lifelong.method.no-first-order",
    },
    "Meta-MbPA": {
        "not learned": "--lifelong.method.no-meta-train",
        "not adapted": "--lifelong.method.adaptation-steps 0",
        "neither": "--lifelong.method.no-meta-train --lifelong.method.adaptation-steps 0",
        "random texts": _HUNDRED_AT_RANDOM,
    },
}
"""Row of `lifelong_meta` -> change of it -> arguments of the change"""


def _with_changes(row: str) -> dict[str, str]:
    """Returns the variants of a row as it is and with each change of it."""
    plain = f"{_METHODS[row]} {BATCH}"
    return {row: plain} | {f"{row}, {change}": f"{plain} {words}" for change, words in _CHANGES[row].items()}


RECIPES = {
    "lifelong_meta": Recipe(
        description=(
            "The five tasks of MbPA++ on sentence vectors of MiniLM, frozen, as `lifelong_vectors_2000` has them "
            "(2,000 texts a task for training, 400 to test, 25 of the 33 classes), in batches of 4 for every method: "
            "an episode of OML-ER and its kin spends six of them on one outer step, which `updates` counts. A "
            "perceptron 384-256-33, one pass, Adam; a replay or a projected update about every 400 texts (16 of them "
            "in episodes). The reference of A-GEM has texts of all tasks so far; in the last row every update is "
            "projected, with texts of earlier tasks alone, as in the paper, for which borders are told. Meta-MbPA "
            "keeps a hundredth of the texts, the others all. Six orders: the four of the paper, and the second and "
            "third of them reversed, where the pages on other models reverse the first and second. "
            "`tools.measurements.vectors five --train 2000` makes MEMJAX_TEXT_VECTORS_2000."
        ),
        config="lifelong_text",
        variants={row: f"{variant} {BATCH}" for row, variant in _METHODS.items()},
        steps=0,
        texts="five_2000",
        page=PAGE,
        search=_SEARCH,
        orders=_ORDERS,
        seeds=(0,),
        arguments="--lifelong.sources-dir $MEMJAX_TEXT_VECTORS_2000",
        controls=_CONTROLS,
        findings=(
            "Points over six orders, all rows searched with as many trials: MbPA++ against replay {MbPA++ | replay}; "
            "OML-ER against replay {OML-ER | replay}, against MbPA++ {OML-ER | MbPA++}; ANML-ER against OML-ER "
            "{ANML-ER | OML-ER}; Meta-MbPA against MbPA++ {Meta-MbPA | MbPA++}, against OML-ER {Meta-MbPA | OML-ER}; "
            "online EWC against plain training {online EWC | SEQ}. The published tables have OML-ER above MbPA++, and "
            "Meta-MbPA above both, where the encoder is trained. Here it is frozen, and episodes can shape a "
            "perceptron alone; `lifelong_last_two` is for the rest. A-GEM projects 25 of 2,500 updates {A-GEM | SEQ}. "
            "At every update of the later four tasks it comes to {A-GEM at every update | SEQ} against plain training "
            "and {A-GEM at every update | MbPA++} against MbPA++: each of these 2,000 updates reads as many stored "
            "texts as its search has found for a reference (see the trials on this page), where sparse replay reads "
            "stored texts 25 times."
        ),
    ),
    "lifelong_meta_ablations": Recipe(
        description=(
            "As `lifelong_meta`, at the settings that its search has found, with one thing changed, over six "
            "orders. OML-ER without replay, without an adaptation before a test (`no meta-test`), and with "
            "derivatives of second order. Meta-MbPA whose training is not for the adaptation (`not learned`: MbPA++ "
            "with one adaptation for a test set), which answers without an adaptation (`not adapted`), `neither`, or "
            "which keeps 100 texts at random in place of texts that are unlike each other."
        ),
        config="lifelong_text",
        variants=_with_changes("OML-ER") | _with_changes("Meta-MbPA"),
        steps=0,
        texts="five_2000",
        page=PAGE,
        settings_from={changed: f"lifelong_meta/{row}" for row in _CHANGES for changed in _with_changes(row)},
        orders=_ORDERS,
        arguments="--lifelong.sources-dir $MEMJAX_TEXT_VECTORS_2000",
        controls={
            **{f"{row}, {change}": (row,) for row, changes in _CHANGES.items() for change in changes},
            "Meta-MbPA, not adapted": ("Meta-MbPA", "Meta-MbPA, neither"),
        },
        findings=(
            "Points against OML-ER as it is: without replay {OML-ER, no replay | OML-ER}, without meta-test {OML-ER, "
            "no meta-test | OML-ER}, second order {OML-ER, second order | OML-ER}. Against Meta-MbPA as it is: not "
            "learned {Meta-MbPA, not learned | Meta-MbPA}, not adapted {Meta-MbPA, not adapted | Meta-MbPA}, random "
            "texts {Meta-MbPA, random texts | Meta-MbPA}. Without an adaptation at the test, what is learned for one "
            "comes to {Meta-MbPA, not adapted | Meta-MbPA, neither}."
        ),
    ),
}
