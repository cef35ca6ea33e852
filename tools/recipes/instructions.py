"""Recipes of tasks as text: LAMOL and its controls."""

import itertools

from tools.recipes.recipe import Recipe

_ROWS = {
    "fine-tuning": "default",
    "LAMOL": "lamol",
    "LAMOL, real": "real",
    "replay": "replay",
}
_TEXTS = {
    "fine-tuning": "texts_default",
    "LAMOL": "texts",
    "LAMOL, real": "texts_real",
    "equal replay": "texts_equal_replay",
    "replay": "texts_replay",
    "LAMOL, 5 %": "texts --lifelong.method.sample-ratio 0.05",
    # Replayed rows must fit into an update: eight beside eight of the task, where 20 % are two beside eight.
    "LAMOL, 100 %": "texts --lifelong.method.sample-ratio 1 --lifelong.method.replay-batch-size 8",
}
_WIDTH = "--model.dim 64 --model.feed-forward.dim 256 --training.init-from $MEMJAX_GPT2_64"
_NARROW = {f"{row}, width 64": f"{_TEXTS[row]} {_WIDTH}" for row in ("fine-tuning", "LAMOL", "LAMOL, real")}
"""Rows of a model that is half as wide, pretrained on the same texts"""
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
_ORDERS = {
    f"order {place}": f"--lifelong.task-order {' '.join(map(str, order))}"
    for place, order in enumerate(itertools.permutations(range(3)), 1)
}


def _controls(rows: dict[str, str]) -> dict[str, tuple[str, ...]]:
    """Returns fine-tuning as the control of all other rows."""
    return {row: ("fine-tuning",) for row in rows if row != "fine-tuning"}


RECIPES = {
    "lifelong_lamol": Recipe(
        description=(
            f"{_WHAT.format(passes='nine')} SST, QA-SRL, WOZ in their six orders, as far as they were "
            "run: the order is the unit. Scores: exact match (SST), F1 (QA-SRL, its gold standard of 2020), state of "
            "the turn (WOZ). `LAMOL, real` reads as many real examples of earlier tasks as LAMOL writes, with the same "
            "loss of whole texts; `replay` reads a quarter as many real examples as examples of the task. Settings are "
            "not searched. MEMJAX_INSTRUCTIONS is a folder with `sst`, `qa-srl` and `woz`."
        ),
        config="lifelong_lamol",
        variants=_ROWS,
        steps=0,
        orders=_ORDERS,
        arguments=_ARGUMENTS.format(folder="$MEMJAX_INSTRUCTIONS"),
        controls={
            **_controls(_ROWS),
            "LAMOL": ("fine-tuning", "LAMOL, real", "replay"),
        },
        findings=(
            "Points in the orders that both rows have: LAMOL against fine-tuning {LAMOL | fine-tuning}, against as "
            "many real examples with the same loss {LAMOL | LAMOL, real}, against replay of all that was read {LAMOL | "
            "replay}. QA-SRL is hardly learned in these runs, right after it neither (below). What a run of LAMOL "
            "writes, and what a fresh model learns from that alone, is at the end of the page."
        ),
    ),
    "lifelong_lamol_texts": Recipe(
        description=(
            f"{_WHAT.format(passes='five')} The five text tasks of MbPA++ with names of classes as answers, in one "
            "order and two seeds; MEMJAX_TEXTS has the files of `tools.measurements.vectors five --files`. LAMOL "
            "writes 20 % of the rows of a task, two in an update, or what the row says: 5 %, or 100 %, eight in an "
            "update. `LAMOL, real` reads as many real rows of earlier tasks as LAMOL writes, with the same loss of "
            "whole texts; `equal replay` reads as many real rows without that loss; `replay` reads a quarter as many "
            "real rows as rows of the task. Width 64: a model half as wide (MEMJAX_GPT2_64: `pretrained` with "
            "`--model.dim 64 --model.feed-forward.dim 256`). Settings are not searched: 8 trials of the first five "
            "rows would be 40 runs of five to fourteen minutes."
        ),
        config="lifelong_lamol",
        variants=_TEXTS | _NARROW,
        steps=0,
        orders={"order 1": "--lifelong.task-order 0 1 2 3 4"},
        seeds=(0, 1),
        arguments=f"{_ARGUMENTS.format(folder='$MEMJAX_TEXTS')} --lifelong.epochs 5",
        controls={
            **_controls(_TEXTS),
            "LAMOL": ("fine-tuning", "LAMOL, real", "equal replay", "replay"),
            "LAMOL, real": ("fine-tuning", "equal replay"),
            "equal replay": ("fine-tuning", "replay"),
            "LAMOL, 5 %": ("fine-tuning", "LAMOL"),
            "LAMOL, 100 %": ("fine-tuning", "LAMOL", "LAMOL, real"),
            "LAMOL, width 64": ("fine-tuning, width 64", "LAMOL, real, width 64"),
            "LAMOL, real, width 64": ("fine-tuning, width 64",),
        },
        findings=(
            "Points in these runs of one order: LAMOL against fine-tuning {LAMOL | fine-tuning}, against as many real "
            "rows with the same loss {LAMOL | LAMOL, real}, against as many without the loss of texts {LAMOL | equal "
            "replay}; the loss of texts beside real rows {LAMOL, real | equal replay}; replay as it is usual, with "
            "more real rows, against LAMOL {LAMOL | replay}. LAMOL that writes 5 % of the rows of a task: against "
            "fine-tuning {LAMOL, 5 % | fine-tuning}, against 20 % {LAMOL, 5 % | LAMOL}; that writes 100 %: against 20 "
            "% {LAMOL, 100 % | LAMOL}, against 20 % of real rows {LAMOL, 100 % | LAMOL, real}. In a model half as wide "
            "LAMOL against fine-tuning {LAMOL, width 64 | fine-tuning, width 64}, against as many real rows {LAMOL, "
            "width 64 | LAMOL, real, width 64}; no wider model was run. One or two seeds of one order are too few, and "
            "nothing was searched. At the end LAMOL that writes 20 % keeps something of DBpedia alone. Most of the "
            "written texts have the form of their task; they have fewer nats a token than real texts under the model "
            "that wrote them (below), that is, they are texts that it expects. The published numbers, of GPT-2 small "
            "with 115,000 texts a task, have LAMOL above MbPA++."
        ),
    ),
}
