"""Recipes of continual relation learning."""

from memjax.lifelong.relation_orders import task_orders
from tools.recipes.recipe import Recipe
from tools.recipes.search import RATE, Search, Setting
from tools.recipes.streams import EVERY_UPDATE, PROJECTED_ALWAYS, ROW_NUMBERS, VALIDATED, search_with

__all__ = ["RECIPES"]

ROWS = {
    "lower bound": "small_default",
    "EMR": "small_emr",
    "EA-EMR": "small_ea_emr",
    "EMAR": "small_emar",
    "upper bound": "small_upper",
}


def _orders(num_tasks: int, number: int) -> dict[str, str]:
    """Returns the first `number` orders of a stream of tasks: name -> argument."""
    orders = enumerate(task_orders(num_tasks, number), 1)
    return {f"order {place}": f"--lifelong.task-order {' '.join(map(str, order))}" for place, order in orders}


ORDERS = _orders(10, 5)
PAIR_ORDERS = ORDERS | {"order 7": _orders(10, 7)["order 7"]}
"""Orders of `lifelong_relation_pairs`. Its search has another one, order 6"""
UNREPORTED = f"{_orders(10, 6)['order 6']} {VALIDATED}"
"""Arguments with the order and split of the trials of the search of `lifelong_relation_pairs`"""
RECIPES = {
    "lifelong_relations_small": Recipe(
        description=(
            "Lifelong FewRel in ten tasks, clusters of the names of its 80 relations, six orders; 50 sentences of "
            "each task in the memory. Of the 11,200 sentences that the papers test on, 30 % of each relation are "
            "trained on and 20 % tested, split by a hash of the sentence; a BiLSTM of 50 units each way on frozen "
            "GloVe vectors of 50 numbers, 20,000 words (the papers: 200 units, 300 numbers). So no number here is "
            "comparable with a published one. Lower bound, EMR, EA-EMR and upper bound compare with the names of "
            "relations, by a ranking loss, three epochs; EMAR has a vector of each relation, and softmax. The "
            "learning rate of each row is searched on validation sentences of an order that is not reported. "
            "MEMJAX_FEWREL is the folder of the files, MEMJAX_GLOVE a file of word vectors."
        ),
        config="lifelong_relations",
        variants=ROWS,
        steps=0,
        orders=_orders(10, 6),
        seeds=(0,),
        arguments="--lifelong.sources-dir $MEMJAX_FEWREL --data.tokenizer.path $MEMJAX_GLOVE",
        search=Search(
            {"": (Setting(RATE, 1e-3),)},
            trials=6,
            arguments=f"{_orders(10, 7)['order 7']} {VALIDATED}",
        ),
        controls={
            "EMR": ("lower bound",),
            "EA-EMR": ("lower bound", "EMR"),
            "EMAR": ("lower bound", "EMR", "EA-EMR"),
            "upper bound": ("EMR", "EA-EMR", "EMAR"),
        },
        candidates_grow=True,
        findings=(
            "Points over six orders, all rows searched with as many trials: EMR against plain training {EMR | lower "
            "bound}, EA-EMR against EMR {EA-EMR | EMR}, EMAR against EA-EMR {EMAR | EA-EMR} and against EMR {EMAR | "
            "EMR}; the upper bound, trained anew on all sentences of the tasks so far, against EMAR {upper bound | "
            "EMAR}, against EA-EMR {upper bound | EA-EMR}: it is what papers call so, and no bound in these runs."
        ),
    ),
    "lifelong_relation_pairs": Recipe(
        description=(
            "Pairs of a sentence of Lifelong FewRel and the name of a relation, its own or one of its candidates, as "
            "vectors of MiniLM, frozen; ten tasks as in `lifelong_relations_small`, six orders. Another protocol than "
            "there: one pass, no borders between tasks are told, and a sentence to train on is paired with candidates "
            "of the tasks so far (multi-task: all of its own), one to test with all of its own. Each pair is an "
            "example of one of two classes; a sentence is answered rightly where its own name scores higher than each "
            "other. A perceptron 384-256-2, batches of 16 pairs, Adam; a replay or a projected update of 64 pairs "
            "about every 1,600. The reference of A-GEM has pairs of all tasks so far; in the last row, which is told "
            "the borders, every update is projected, with pairs of earlier tasks alone, as in the paper. Of each "
            "relation 16 sentences are trained on and 6 tested, with five candidates each (144, 18, 96, 72, 30, 42, "
            "48, 12, 12 and 6 sentences of the tasks, each of which counts alike in the average), of the 11,200 that "
            "the papers test on, split by a hash of the sentence: no number here is comparable with a published one. "
            "Episodes have batches of 4 pairs, and the last of a task fewer of them, since a task has no more than 16 "
            "pairs where it comes first. `tools.measurements.vectors pairs --train 16 --test 6 --candidates 5` makes "
            "MEMJAX_PAIRS."
        ),
        config="lifelong_relations",
        variants={
            "SEQ": "pairs_default",
            "A-GEM": "pairs_agem",
            "replay": "pairs_replay",
            "OML-ER": "pairs_oml --data.batch-size 4 --lifelong.method.last-episode kept",
            "ANML-ER": "pairs_anml --data.batch-size 4 --lifelong.method.last-episode kept",
            "multi-task": "pairs_multi_task",
            EVERY_UPDATE: f"pairs_agem {PROJECTED_ALWAYS}",
        },
        steps=0,
        orders=PAIR_ORDERS,
        seeds=(0,),
        arguments="--lifelong.sources-dir $MEMJAX_PAIRS",
        search=Search(
            settings={
                "": (Setting(RATE, 1e-3),),
                **dict.fromkeys(
                    ("A-GEM", EVERY_UPDATE),
                    search_with(1e-3, "reference-batch-size", 64, most=400, **ROW_NUMBERS),
                ),
                "replay": search_with(1e-3, "replay-batch-size", 64, most=400, **ROW_NUMBERS),
                **dict.fromkeys(("OML-ER", "ANML-ER"), search_with(1e-3, "inner-learning-rate", 0.1)),
            },
            trials=12,
            arguments=UNREPORTED,
        ),
        controls={
            "A-GEM": ("SEQ",),
            EVERY_UPDATE: ("SEQ", "A-GEM", "multi-task"),
            "replay": ("SEQ",),
            "OML-ER": ("SEQ", "replay"),
            "ANML-ER": ("SEQ", "OML-ER"),
            "multi-task": ("OML-ER", "ANML-ER"),
        },
        findings=(
            "Points over six orders, all rows searched with as many trials: OML-ER against plain training {OML-ER | "
            "SEQ}, against replay {OML-ER | replay}. An outer step of an episode sees its query alone, 4 of 24 pairs. "
            "A-GEM projects 3 of 319 updates {A-GEM | SEQ}; at every update, with 64 stored pairs of earlier tasks "
            "for each reference, {A-GEM at every update | SEQ} against plain training and {A-GEM at every update | "
            "multi-task} against one pass over all tasks together, which has no stored pairs."
        ),
    ),
}
