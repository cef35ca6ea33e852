"""Recipes of continual relation learning."""

from memjax.lifelong.relation_orders import task_orders
from tools.recipes.recipe import Recipe

__all__ = ["RECIPES"]

ROWS = {
    "lower bound": "default",
    "EWC": "ewc",
    "GEM": "gem",
    "A-GEM": "agem",
    "EMR": "emr",
    "EA-EMR": "ea_emr",
    "EMAR": "emar",
    "EMAR, code": "emar_code",
    "upper bound": "upper",
}
BEFORE = {
    "EWC": ("lower bound",),
    "A-GEM": ("lower bound",),
    "GEM": ("lower bound",),
    "EMR": ("lower bound", "A-GEM"),
    "EA-EMR": ("EMR", "GEM"),
    "EMAR": ("EA-EMR",),
    "EMAR, code": ("EA-EMR", "EMAR"),
    "upper bound": ("EMAR",),
}


def _orders(num_tasks: int, number: int) -> dict[str, str]:
    """The first orders of so many tasks."""
    orders = enumerate(task_orders(num_tasks, number), 1)
    return {f"order {one}": f"--lifelong.task-order {' '.join(map(str, order))}" for one, order in orders}


ORDERS = _orders(10, 5)
DATA = "--lifelong.sources-dir $MEMJAX_FEWREL --data.tokenizer.path $MEMJAX_GLOVE"
ABOUT = (
    "Lifelong FewRel in ten tasks, clusters of the names of its 80 relations, {orders}; {size} sentences of each task "
    "in the memory. Of the 11,200 sentences that the papers test on, 7,708 are trained on and 2,292 tested, split by a "
    "hash of the sentence; a BiLSTM of 200 units each way on frozen GloVe vectors of 50 numbers, 20,000 words (the "
    "papers: 300). So no number here is comparable with a published one. Lower bound, EWC, GEM, A-GEM, EMR, EA-EMR and "
    "upper bound compare with the names of relations, by a ranking loss, three epochs; EMAR has a vector of each "
    "relation, and softmax. Settings not searched."
)


def _rows(names: tuple[str, ...], size: int) -> dict[str, str]:
    """Variants with another memory."""
    options = {"GEM": "--lifelong.method.examples-per-task {0}", "A-GEM": "--lifelong.method.memory.capacity {1}"}
    option = lambda name: options.get(name, "--lifelong.method.examples-per-task {0}").format(size, 10 * size)
    return {name: f"{ROWS[name]} {option(name)}" for name in names}


QUESTION_ROWS = ("lower bound", "EMR", "EA-EMR", "EMAR", "upper bound")
SMALLER = ("GEM", "A-GEM", "EMR", "EA-EMR", "EMAR")
RECIPES = {
    "lifelong_relations": Recipe(
        description=ABOUT.format(orders="five orders", size=50),
        config="lifelong_relations",
        variants=ROWS,
        steps=0,
        orders=ORDERS,
        seeds=(0,),
        arguments=DATA,
        controls=BEFORE,
    ),
    **{
        f"lifelong_relations_{size}": Recipe(
            description=ABOUT.format(orders="three orders", size=size),
            config="lifelong_relations",
            variants=_rows(SMALLER, size),
            steps=0,
            orders=dict(list(ORDERS.items())[:3]),
            seeds=(0,),
            arguments=DATA,
            controls={"EA-EMR": ("EMR", "GEM"), "EMAR": ("EA-EMR",)},
        )
        for size in (10, 25)
    },
    "lifelong_relations_encoder": Recipe(
        description=(
            "Lifelong FewRel in ten tasks, as `lifelong_relations` has it, one order, read by MiniLM, all of which is "
            "trained: markers stand around the two things of the 8,003 of 11,146 sentences whose places are known, the "
            "others are read without. 50 sentences of each task in the memory. Both have a vector of each relation; "
            "EMAR by softmax, EMR by a ranking loss, three epochs. Settings not searched."
        ),
        config="lifelong_relations",
        variants={"EMAR": "encoder_emar", "EMR": "encoder_emr"},
        steps=0,
        orders=dict(list(ORDERS.items())[:1]),
        seeds=(0,),
        arguments=(
            "--lifelong.sources-dir $MEMJAX_FEWREL --training.init-from $MEMJAX_MINILM "
            "--data.tokenizer.vocab $MEMJAX_MINILM/tokenizer/tokenizer.json"
        ),
        controls={"EMAR": ("EMR",)},
    ),
    "lifelong_relation_pairs": Recipe(
        description=(
            "Pairs of a sentence of Lifelong FewRel and the name of a relation, its own or one of its candidates, as "
            "vectors of MiniLM, frozen; ten tasks as in `lifelong_relations`, five orders. Another protocol than "
            "there: one pass, no borders between tasks are told, and a sentence to train on is paired with candidates "
            "of the tasks so far (multi-task: all of its own), one to test with all of its own. Each pair is an "
            "example of one of two classes; a sentence is answered rightly where its own name scores higher than each "
            "other. A perceptron 384-256-2, batches of 16 pairs, Adam; a replay or a projected update of 64 pairs "
            "about every 1,600. Of each relation 16 sentences are trained on and 6 tested, with five candidates "
            "each, of the 11,200 that the papers test on, split by a hash of the sentence: no number here is "
            "comparable with a published one. Episodes have batches of 4 pairs, and the last of a task fewer of "
            "them, since a task has no more than 16 pairs where it comes first. Settings not searched. "
            "`tools.measurements.vectors pairs --train 16 "
            "--test 6 --candidates 5` makes MEMJAX_PAIRS."
        ),
        config="lifelong_relations",
        variants={
            "SEQ": "pairs_default",
            "A-GEM": "pairs_agem",
            "replay": "pairs_replay",
            "OML-ER": "pairs_oml --data.batch-size 4 --lifelong.method.last-episode kept",
            "ANML-ER": "pairs_anml --data.batch-size 4 --lifelong.method.last-episode kept",
            "multi-task": "pairs_multi_task",
        },
        steps=0,
        orders=ORDERS,
        seeds=(0,),
        arguments="--lifelong.sources-dir $MEMJAX_PAIRS",
        controls={
            "A-GEM": ("SEQ",),
            "replay": ("SEQ",),
            "OML-ER": ("SEQ", "replay"),
            "ANML-ER": ("SEQ", "OML-ER"),
            "multi-task": ("OML-ER", "ANML-ER"),
        },
    ),
    "lifelong_relations_questions": Recipe(
        description=(
            "SimpleQuestions in twenty tasks, clusters of the names of the 1,185 relations that have a question in the "
            "files of validation and test, three orders; 50 questions of each task in the memory. These files, of "
            "which the papers test on the second, are all that is at hand: of 17,672 different questions 12,314 are "
            "trained on and 3,554 tested, split by a hash of the question; a BiLSTM of 200 units each way on frozen "
            "GloVe vectors of 50 numbers, 20,000 words (the papers: 300). So no number here is comparable with a "
            "published one. A question to train on has at most 15 candidates, one to test all of its own. EMAR has a "
            "vector of each relation, and softmax; the others compare with names, by a ranking loss, three epochs. "
            "Settings not searched. MEMJAX_SIMPLE_QUESTIONS is the folder of the files, MEMJAX_GLOVE a file of word "
            "vectors."
        ),
        config="lifelong_relations",
        variants={row: f"questions_{ROWS[row]}" for row in QUESTION_ROWS},
        steps=0,
        orders=_orders(20, 3),
        seeds=(0,),
        arguments="--lifelong.sources-dir $MEMJAX_SIMPLE_QUESTIONS --data.tokenizer.path $MEMJAX_GLOVE",
        controls={
            "EMR": ("lower bound",),
            "EA-EMR": ("EMR",),
            "EMAR": ("EMR", "EA-EMR"),
            "upper bound": ("EMAR",),
        },
    ),
}
