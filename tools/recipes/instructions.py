"""Recipes of tasks as text: LAMOL and its controls, in one order and three seeds."""

from tools.recipes.recipe import Recipe

_ROWS = {"fine-tuning": "default", "LAMOL, shared": "shared", "LAMOL": "lamol", "LAMOL, real": "real"}
_OTHERS = {
    "LAMOL, no replay": "no_replay",
    "LAMOL, 5%": "lamol --lifelong.method.sample-ratio 0.05 --lifelong.method.replay-batch-size 1",
    "EWC": "ewc",
    "online EWC": "ewc_online",
    "MAS": "mas",
    "GEM": "gem",
    "MbPA++": "mbpa_pp --evaluation.max-answers 50",
    "replay": "replay",
    "single task": "single_task",
    "multi-task": "multi_task",
}
_TEXTS = {
    "fine-tuning": "texts_default",
    "LAMOL": "texts",
    "LAMOL, real": "texts_real",
    "equal replay": "texts_equal_replay",
    "replay": "texts_replay",
}
_WHAT = (
    "A GPT-2 of three layers of width 128, pretrained on six million characters of encyclopedia, news and reviews "
    "(`pretrained` of the configuration, which MEMJAX_SMALL_GPT2 is the run of; no public weights), learns tasks as "
    "text: 500 examples each, {passes} passes in batches of 8, rows of 96 tokens, Adam at 1e-3; 200 examples of each "
    "test set are answered greedily."
)
_ARGUMENTS = (
    "--lifelong.sources-dir {folder} --training.init-from $MEMJAX_SMALL_GPT2 "
    "--data.tokenizer.path $MEMJAX_SMALL_GPT2/tokenizer/tokenizer.json"
)
_SEEDS = (0, 1, 2)


def _controls(rows: dict[str, str]) -> dict[str, tuple[str, ...]]:
    """Returns fine-tuning as the control of all rows but fine-tuning itself and tasks that are learned alone."""
    return {row: ("fine-tuning",) for row in rows if row not in ("fine-tuning", "single task")}


RECIPES = {
    "lifelong_lamol": Recipe(
        description=(
            f"{_WHAT.format(passes='nine')} SST, QA-SRL, WOZ, in one of their six orders: a run takes 90 to 650 "
            "seconds, and all rows in all orders about 18 hours. MbPA++ answers 50 examples "
            "of each test set. Scores: exact match (SST), F1 (QA-SRL, its gold standard of 2020), state of "
            "the turn (WOZ). The runs below were measured before prompts of training and "
            "tests were made alike: tests read at most 64 tokens of a prompt, training rows up to 94. An eighth of "
            "SST's test prompts are longer than 64, a sixth of WOZ's and a third of QA-SRL's. "
            "MEMJAX_INSTRUCTIONS is a folder with `sst`, `qa-srl` and `woz`."
        ),
        config="lifelong_lamol",
        variants={**_ROWS, **_OTHERS},
        steps=0,
        orders={"order 1": "--lifelong.task-order 0 1 2"},
        seeds=_SEEDS,
        arguments=_ARGUMENTS.format(folder="$MEMJAX_INSTRUCTIONS"),
        controls={
            **_controls({**_ROWS, **_OTHERS}),
            "LAMOL": (
                *("fine-tuning", "LAMOL, shared", "LAMOL, real", "LAMOL, 5%", "MAS", "GEM", "MbPA++"),
                *("replay", "multi-task"),
            ),
        },
        findings=(
            "Points in these runs of one order: LAMOL against fine-tuning {LAMOL | fine-tuning}, against one mark for "
            "all tasks {LAMOL | LAMOL, shared}, against as many real examples {LAMOL | LAMOL, real}, against replay of "
            "all that was read {LAMOL | replay}, against learning all tasks at once {LAMOL | multi-task}. With a "
            "twentieth instead of a fifth, one seed of three lost the first task. Against fine-tuning: the loss of "
            "texts without replay {LAMOL, no replay | fine-tuning}, EWC {EWC | fine-tuning}, MbPA++ (on a quarter of "
            "the test questions) {MbPA++ | fine-tuning}, MAS {MAS | fine-tuning}, which learns less of what comes "
            "later, GEM {GEM | fine-tuning}. GEM's margin is 0.5 here, which adds the gradients of stored examples to "
            "updates as replay does; a margin of 0, as in the paper's program, was not run. QA-SRL is hardly learned "
            "by a model of this size, by one that learns its real examples alone neither (below). GEM was measured "
            "before its memory had a quota for each task: it kept more than 25 examples of a task until the last one "
            "had come."
        ),
    ),
    "lifelong_lamol_texts": Recipe(
        description=(
            f"{_WHAT.format(passes='five')} The five text tasks of MbPA++ with names of classes as answers, in one "
            "order and two seeds; MEMJAX_TEXTS has the files of `tools.measurements.vectors five --files`. `LAMOL, "
            "real` reads as many real rows of earlier tasks as LAMOL writes, with the same loss of whole texts; `equal "
            "replay` reads as many real rows without that loss; `replay` reads a quarter as many real rows as rows of "
            "the task, where LAMOL writes a fifth. Settings are not searched: 8 trials of the five rows would be 40 "
            "runs of five to fourteen minutes."
        ),
        config="lifelong_lamol",
        variants=_TEXTS,
        steps=0,
        orders={"order 1": "--lifelong.task-order 0 1 2 3 4"},
        seeds=(0, 1),
        arguments=f"{_ARGUMENTS.format(folder='$MEMJAX_TEXTS')} --lifelong.epochs 5",
        controls={
            **_controls(_TEXTS),
            "LAMOL": ("fine-tuning", "LAMOL, real", "equal replay", "replay"),
            "LAMOL, real": ("fine-tuning", "equal replay"),
            "equal replay": ("fine-tuning", "replay"),
        },
        findings=(
            "Points in these runs of one order: LAMOL against fine-tuning {LAMOL | fine-tuning}, against as many real "
            "rows with the same loss {LAMOL | LAMOL, real}, against as many without the loss of texts {LAMOL | "
            "equal replay}; the loss of texts beside real rows {LAMOL, real | equal replay}; replay as it is usual, "
            "with more real rows, against LAMOL {LAMOL | replay}. So what LAMOL lacks in these runs is in the texts "
            "that it writes: real rows in their place keep more, with its loss and without. At the end LAMOL keeps "
            "something of DBpedia alone. Most of the written texts have the form of their task; they have fewer nats "
            "a token than real texts under the model that wrote them (below), that is, they are texts that it "
            "expects. The published numbers, of GPT-2 small with 115,000 texts a task, have LAMOL above MbPA++."
        ),
    ),
}
