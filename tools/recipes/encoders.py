"""Recipes of the five text tasks with a trained encoder, over the orders of the tasks."""

import dataclasses
from collections.abc import Iterable

from memjax.lifelong.orders import MBPA_ORDERS
from tools.recipes.meta import ADAPTED
from tools.recipes.recipe import Recipe
from tools.recipes.search import RATE, Search, Setting
from tools.recipes.streams import EVERY_UPDATE, ORDERS, ROW_NUMBERS, SIX_ORDERS, UNREPORTED, search_with

PASSES = 6
"""Number of passes after which episodes have made as many outer updates as plain training makes in one, since an
episode reads six batches"""
_KEPT = "--lifelong.method.memory.capacity 2500"
"""Argument with which all texts of five tasks of 500 are stored"""
_PASSES = (
    f"--lifelong.epochs {PASSES} --lifelong.method.memory.write-policy random "
    f"--lifelong.method.memory.write-probability {1 / PASSES:.6f}"
)
"""Arguments with which about as many texts are stored in many passes as there are"""
_METHODS = {
    "single task": "single_task",
    "SEQ": "",
    "replay": f"replay {_KEPT}",
    EVERY_UPDATE: f"agem {_KEPT}",
    "MbPA++": f"mbpa_pp {_KEPT} --lifelong.method.replay-batch-size 100 --lifelong.method.num-neighbors 8",
    "OML-ER": f"oml {_KEPT}",
    f"OML-ER {PASSES} passes": f"oml {_KEPT} {_PASSES}",
    "ANML-ER": f"anml {_KEPT}",
    f"ANML-ER {PASSES} passes": f"anml {_KEPT} {_PASSES} {RATE} 0.0001 --lifelong.method.inner-learning-rate 0.03",
    "Meta-MbPA": (
        "meta_mbpa --lifelong.method.num-neighbors 16 --lifelong.method.adapted-parameters head/ pooler/ stack/"
    ),
    "multi-task": "multi_task",
}
_INNER = {"option": "inner-learning-rate", "factor": 4}
_SEARCH = Search(
    settings={
        "": (Setting(RATE, 1e-4),),
        "replay": search_with(1e-4, "replay-batch-size", 100, most=2500, **ROW_NUMBERS),
        # Every update has a gradient of these rows: 32 take eight times the work of the update itself.
        EVERY_UPDATE: search_with(1e-4, "reference-batch-size", 8, is_whole=True, least=2, most=32),
        "MbPA++": search_with(1e-4, "adaptation-learning-rate", 0.1, factor=4),
        "OML-ER": search_with(3e-4, start=0.1, **_INNER),
        f"OML-ER {PASSES} passes": search_with(1e-4, start=0.1, **_INNER),
        "ANML-ER": search_with(3e-4, start=0.03, **_INNER),
        # Not searched: a trial takes about eight CPU minutes.
        f"ANML-ER {PASSES} passes": (),
        "Meta-MbPA": search_with(1e-4, start=1e-3, **_INNER, also=(ADAPTED,)),
    },
    trials=6,
    arguments=UNREPORTED,
)
_CURVE = ("SEQ", "MbPA++", "OML-ER", "Meta-MbPA")
SIZES = (125, 2000)
"""Texts a task of the curve beside the 500 of `lifelong_last_two`"""
_ENCODER = ("SEQ", "MbPA++", "OML-ER")
_FOUND = {
    "MbPA++": "--lifelong.method.adaptation-learning-rate 0.00625",
    "OML-ER": "--lifelong.method.inner-learning-rate 0.4",
}
"""Settings that the search of `lifelong_last_two` has found and that of `lifelong_encoder` takes over"""
_CONTROLS = {
    "replay": ("SEQ",),
    EVERY_UPDATE: ("SEQ", "replay"),
    "MbPA++": ("SEQ", "replay", EVERY_UPDATE),
    "OML-ER": ("SEQ", "replay", "MbPA++"),
    f"OML-ER {PASSES} passes": ("SEQ", "OML-ER", "MbPA++"),
    "ANML-ER": ("SEQ", "OML-ER", "MbPA++"),
    f"ANML-ER {PASSES} passes": ("SEQ", "ANML-ER", "MbPA++"),
    "Meta-MbPA": ("SEQ", "MbPA++", "OML-ER"),
    "multi-task": ("MbPA++", "Meta-MbPA"),
    "SEQ, first token": ("SEQ",),
}


def _arguments(texts: int = 0) -> str:
    """Returns the arguments of all runs. `texts` is the number of texts a task, 0 where rows name it."""
    return (
        "--lifelong.sources-dir $MEMJAX_TEXTS --training.init-from $MEMJAX_MINILM "
        "--data.tokenizer.vocab $MEMJAX_MINILM/tokenizer/tokenizer.json --data.batch-size 4 --data.segment-length 48"
        f"{f' {_texts(texts)}' if texts else ''}"
    )


def _texts(number: int) -> str:
    """Returns the argument that limits every task to a number of texts."""
    return f"--lifelong.max-examples-per-task{f' {number}' * len(MBPA_ORDERS[0])}"


def _variants(prefix: str, rows: Iterable[str] = tuple(_METHODS), further: str = "") -> dict[str, str]:
    """Returns the variant of each row, with further arguments. `prefix` is the beginning of the names of variants."""
    return {row: f"{f'{prefix}_{_METHODS[row]}'.rstrip('_')} {further}".rstrip() for row in rows}


def _variants_of_size(texts: int) -> dict[str, str]:
    """Returns the variants of the curve's rows with `texts` texts a task, and a memory for all of them."""
    variants = _variants("last_two", _CURVE, _texts(texts))
    return {
        f"{row}, {texts:,} texts": variant.replace(_KEPT, _KEPT.replace("2500", str(len(MBPA_ORDERS[0]) * texts)))
        for row, variant in variants.items()
    }


def _rows_by_size(row: str) -> dict[str, str]:
    """Returns the runs of a row by size: number of texts a task -> `RECIPE/ROW`."""
    sources = {texts: f"lifelong_last_two_sizes/{row}, {texts:,} texts" for texts in SIZES}
    sources[500] = f"lifelong_last_two/{row}"
    return {f"{texts:,}": sources[texts] for texts in sorted(sources)}


_STATES = "--data.encoder-states-dir $MEMJAX_STATES"
RECIPES = {
    "lifelong_last_two": Recipe(
        description=(
            "The five tasks of MbPA++ with the last two of MiniLM's six layers and the head, trained on what the other "
            "layers give of each text: 500 texts a task for training, 200 to test, of at most 48 tokens (each batch "
            "has 48, so that sorting texts by length would save nothing), 25 of the 33 classes; batches of 4, one "
            "pass, Adam. The head reads the mean over tokens, as in the training of MiniLM, where that of BERT reads "
            "the first one. This was chosen after 24 trials of an earlier search with the first token and four with "
            "the mean, on the validation texts and the order of the search. None of these trials is kept; `SEQ, first "
            "token` has trials of its own. Six orders, the published four and the first two from behind: the order is "
            "the unit. Smaller than published, so that search and runs take hours on a CPU: MbPA++ adapts the head "
            "alone, to 8 neighbours in 30 steps (all parameters would take a copy of both layers for each query), "
            "Meta-MbPA all parameters, once for a test set, to 16 stored texts in 30 steps, and each batch in training "
            "to its 16 neighbours. Sparse replay every 400 texts; A-GEM projects every update, with a reference of all "
            "tasks so far, since no borders are told. Meta-MbPA keeps 25 texts, a hundredth of the texts, the others "
            "all. An episode of OML-ER and ANML-ER spends six batches on one outer update; the "
            f"rows of {PASSES} passes have as many outer updates as the others, and keep as many texts. ANML-ER in "
            f"{PASSES} passes has the rates at which its search would begin, and no trials. The settings of the others "
            "are searched on validation texts (100 a task) of an order that is not reported. "
            "`tools.measurements.vectors five --train 2500 --test 200 --files` makes MEMJAX_TEXTS, `memjax import` "
            "MEMJAX_MINILM; MEMJAX_STATES is a folder for what the lower layers give, computed once for all runs. The "
            "earlier search took 0.6 CPU hours, which are not among those below. Trials of the later rows take up to "
            "nine times as long as the first."
        ),
        config="lifelong_text",
        variants=_variants("last_two") | {"SEQ, first token": "last_two --model.attention.pooling first"},
        steps=0,
        page="lifelong_encoder",
        search=_SEARCH,
        orders=SIX_ORDERS,
        own_seeds=True,
        one_seed=("SEQ, first token", f"OML-ER {PASSES} passes", f"ANML-ER {PASSES} passes"),
        arguments=f"{_arguments(500)} {_STATES}",
        controls=_CONTROLS,
        findings=(
            "Points over six orders, over three for ANML-ER in six passes, which is not searched; all other rows are "
            "searched with as many trials. Plain training whose head reads the first token against the mean: {SEQ, "
            "first token | SEQ}. MbPA++ against plain training {MbPA++ | SEQ} and against sparse replay {MbPA++ | "
            "replay}. Meta-MbPA, with a hundredth of the texts and one adaptation for a test set, against MbPA++, with "
            "all texts and an adaptation for each test text: {Meta-MbPA | MbPA++}; against plain training {Meta-MbPA | "
            "SEQ}. OML-ER against plain training {OML-ER | SEQ} and against MbPA++ {OML-ER | MbPA++}, ANML-ER against "
            "OML-ER {ANML-ER | OML-ER}. The published numbers have OML-ER and Meta-MbPA above MbPA++. An episode has "
            "one outer update for six batches, 105 in all: what each of these two rows has of a task right after it "
            "stands beside that of tasks learned alone. In six passes OML-ER makes as many outer updates as the others "
            "make updates, and reads every text six times: against plain training {OML-ER 6 passes | SEQ}, against one "
            "pass {OML-ER 6 passes | OML-ER}, against MbPA++ {OML-ER 6 passes | MbPA++}. Its best inner rate is the "
            "smallest that was tried, so that it has no verdict; that of one pass is far larger (see the trials). "
            "ANML-ER in six passes, at rates that were not searched: against plain training {ANML-ER 6 passes | SEQ}, "
            "against one pass {ANML-ER 6 passes | ANML-ER}, against MbPA++ {ANML-ER 6 passes | MbPA++}. No run "
            "separates what passes, outer updates and rates bring, and the other methods were not run in six passes. "
            "A-GEM, with the gradient of 32 stored texts in every update, against plain training {A-GEM at every "
            "update | SEQ}, against replay of 50 texts every 400 {A-GEM at every update | replay}; MbPA++ against "
            "A-GEM {MbPA++ | A-GEM at every update}. The 32 texts are the most that its search allowed. In a run A-GEM "
            "reads about 20,000 stored texts, replay 300."
        ),
    ),
    "lifelong_last_two_sizes": Recipe(
        description=(
            "As `lifelong_last_two`, with the settings that its search has found at 500 texts a task, over 125 to "
            "2,000 texts a task: does the published order of methods appear as data grows? The settings of the other "
            "sizes are not searched, so that no two rows have a verdict. Meta-MbPA keeps a hundredth of the texts: 6 "
            "at 125 texts a task, fewer than the 16 that it adapts to, and 100 at 2,000. The runs of 500 texts are "
            "those of `lifelong_last_two`."
        ),
        config="lifelong_text",
        variants={row: variant for texts in SIZES for row, variant in _variants_of_size(texts).items()},
        steps=0,
        page="lifelong_encoder",
        settings_from={f"{row}, {texts:,} texts": f"lifelong_last_two/{row}" for texts in SIZES for row in _CURVE},
        rows_by_size={row: _rows_by_size(row) for row in _CURVE},
        orders=SIX_ORDERS,
        arguments=f"{_arguments()} {_STATES}",
        controls={
            f"{row}, {texts:,} texts": tuple(f"{control}, {texts:,} texts" for control in _CURVE[:number])
            for texts in SIZES
            for number, row in enumerate(_CURVE)
            if number
        },
        findings=(
            "Points against plain training at 125 texts: MbPA++ {MbPA++, 125 texts | SEQ, 125 texts}, OML-ER {OML-ER, "
            "125 texts | SEQ, 125 texts}; at 2,000: MbPA++ {MbPA++, 2,000 texts | SEQ, 2,000 texts}, OML-ER {OML-ER, "
            "2,000 texts | SEQ, 2,000 texts}. OML-ER against MbPA++: {OML-ER, 125 texts | MbPA++, 125 texts} and "
            "{OML-ER, 2,000 texts | MbPA++, 2,000 texts}; Meta-MbPA at 125 against plain training {Meta-MbPA, 125 "
            "texts | SEQ, 125 texts}, against MbPA++ {Meta-MbPA, 125 texts | MbPA++, 125 texts}; at 2,000 {Meta-MbPA, "
            "2,000 texts | SEQ, 2,000 texts} and {Meta-MbPA, 2,000 texts | MbPA++, 2,000 texts}. Those of 500 texts "
            "stand in the first table of this page. The published numbers have OML-ER above MbPA++: in one pass over "
            "so few texts that order does not appear in these runs. One pass over 2,000 texts a task is 420 outer "
            "updates of OML-ER and 2,525 updates of MbPA++. Six passes over 500 texts are 630 outer updates (first "
            "table)."
        ),
    ),
    "lifelong_encoder": Recipe(
        description=(
            "As `lifelong_last_two`, with all six layers of MiniLM and its embeddings trained, over the four "
            "published orders: does training all of the encoder change what the methods are worth? The learning rate "
            "is searched again, on the same order and texts as there; MbPA++'s adaptation rate and OML-ER's inner "
            "rate are those that the search of `lifelong_last_two` has found. The other methods were not run so. A "
            "trial of these three takes 3 to 12 CPU minutes."
        ),
        config="lifelong_text",
        variants={
            row: f"{variant} {_FOUND.get(row, '')}".rstrip() for row, variant in _variants("encoder", _ENCODER).items()
        },
        steps=0,
        page="lifelong_encoder",
        search=dataclasses.replace(_SEARCH, settings={"": (Setting(RATE, 6e-5),), "OML-ER": (Setting(RATE, 1.2e-4),)}),
        orders=ORDERS,
        arguments=_arguments(500),
        controls={row: _ENCODER[:number] for number, row in enumerate(_ENCODER) if number},
        findings=(
            "Points over the orders that both rows have, all rows searched with as many trials: MbPA++ against plain "
            "training {MbPA++ | SEQ}, OML-ER against plain training {OML-ER | SEQ} and against MbPA++ {OML-ER | "
            "MbPA++}. The same comparisons with the last two layers trained stand in the first table of this page."
        ),
    ),
}
