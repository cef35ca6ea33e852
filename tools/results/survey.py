"""Makes the page of all systems of lifelong learning: what each keeps, when it reads it, what it costs, its results."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from memjax.lifelong.metrics import average_perplexity
from tools.recipes import RECIPES, page_of
from tools.results import perplexities, streams
from tools.results.ledger import Run
from tools.results.speed_tables import grid
from tools.texts.known import Known

PAGE = "survey"
NO_NUMBER = "no number that we could check"
"""Claim of a system whose published number was not at hand"""


class System(NamedTuple):
    """A system of lifelong learning, one line of the survey.

    Attributes:
      name: Name of the system, with authors and year of its paper.
      family: Family of methods, such as 'replay' or 'regularisation'.
      stores: Description of the state that the system keeps, such as stored examples.
      reads: Description of when the system reads this state.
      training: Description of the work that the system adds to training.
      test: Description of the work that the system adds to answering tests.
      claim: Result that its paper claims, `NO_NUMBER` where it was not at hand.
      ours: Recipe, row and control of our own runs in the ledger, for each table that has the system.
    """

    name: str
    family: str
    stores: str
    reads: str
    training: str
    test: str
    claim: str
    ours: tuple[tuple[str, str, str], ...]


_TEXT = "five text tasks, mean over four orders"
SYSTEMS = (
    System(
        "EWC (Kirkpatrick et al. 2017)",
        "regularisation",
        "an anchor and an importance for every parameter, of each task (here their sums)",
        "every update",
        "a pass over some batches after a task, a penalty an update",
        "nothing",
        NO_NUMBER,
        (("lifelong_mnist", "EWC", "SEQ"), ("lifelong_vectors_2000", "EWC", "SEQ")),
    ),
    System(
        "online EWC (Schwarz et al. 2018)",
        "regularisation",
        "one anchor, one importance",
        "every update",
        "as EWC",
        "nothing",
        NO_NUMBER,
        (("lifelong_meta", "online EWC", "SEQ"),),
    ),
    System(
        "MAS (Aljundi et al. 2018)",
        "regularisation",
        "one anchor, one importance, without labels",
        "every update",
        "as EWC",
        "nothing",
        NO_NUMBER,
        (("lifelong_mnist", "MAS", "SEQ"), ("lifelong_vectors_2000", "MAS", "SEQ")),
    ),
    System(
        "SI (Zenke et al. 2017)",
        "regularisation",
        "one anchor, one importance, and the path of the task",
        "every update",
        "a sum an update",
        "nothing",
        NO_NUMBER,
        (("lifelong_mnist", "SI", "SEQ"), ("lifelong_vectors_2000", "SI", "SEQ")),
    ),
    System(
        "GEM (Lopez-Paz and Ranzato 2017)",
        "constraints",
        "examples of every task",
        "every update",
        "a gradient for each earlier task, a quadratic program",
        "nothing",
        NO_NUMBER,
        (("lifelong_mnist", "GEM, margin 0.5", "SEQ"), ("lifelong_mnist", "GEM, margin 0", "SEQ")),
    ),
    System(
        "A-GEM (Chaudhry et al. 2019)",
        "constraints",
        "examples",
        "every update, or now and then",
        "one more gradient",
        "nothing",
        f"66.9 % ({_TEXT}; reported by MbPA++)",
        (
            ("lifelong_meta", "A-GEM", "SEQ"),
            ("lifelong_meta", "A-GEM at every update", "SEQ"),
            ("lifelong_last_two", "A-GEM at every update", "SEQ"),
        ),
    ),
    System(
        "MbPA++ (de Masson d'Autume et al. 2019)",
        "replay",
        "examples with keys of a frozen network",
        "1 % of examples in training; 32 neighbours of every query",
        "1 %",
        "30 gradient steps a query",
        f"70.6 % ({_TEXT}; plain training 18.4)",
        (
            ("lifelong_meta", "MbPA++", "SEQ"),
            ("lifelong_last_two", "MbPA++", "SEQ"),
            ("lifelong_vectors_2000", "MbPA++", "SEQ"),
        ),
    ),
    System(
        "EMAR (Han et al. 2020)",
        "replay",
        "examples of every task, prototypes of classes",
        "after every task, over and over",
        "two rounds over memory and task, k-means",
        "nothing",
        NO_NUMBER,
        (("lifelong_relations_small", "EMAR", "lower bound"),),
    ),
    System(
        "LAMOL (Sun et al. 2020)",
        "replay",
        "nothing but itself: it writes examples before a task",
        "with every batch of the task",
        "two passes a batch, a fifth more examples, and writing them",
        "nothing",
        f"76.5 % ({_TEXT})",
        (("lifelong_lamol", "LAMOL", "fine-tuning"), ("lifelong_lamol_texts", "LAMOL", "fine-tuning")),
    ),
    System(
        "ELLE (Qin et al. 2022)",
        "growth, with replay",
        "a share of every domain's text; a larger model for each",
        "a tenth of every batch; alone, after the model has grown",
        "a larger model, updates to recover",
        "a larger model",
        "lowest perplexity of all that were compared (no table at hand)",
        (("lifelong_pretraining", "ELLE", "naive"),),
    ),
    System(
        "progressive networks (Rusu et al. 2016)",
        "parameter isolation",
        "a column of layers for every task",
        "every earlier column, in every update and answer",
        "a forward pass through all earlier columns",
        "the same, and the task has to be known",
        "nothing is forgotten, by construction",
        (("lifelong_pretraining", "progressive", "naive"),),
    ),
    System(
        "OML-ER (Holla et al. 2020)",
        "meta-learning",
        "examples",
        "1 % of examples, as queries; before a test",
        "episodes: five inner steps and an outer one",
        "some steps for a whole test set",
        f"75.7 % ({_TEXT})",
        (
            ("lifelong_meta", "OML-ER", "SEQ"),
            ("lifelong_last_two", "OML-ER", "SEQ"),
            ("lifelong_relation_pairs", "OML-ER", "SEQ"),
        ),
    ),
    System(
        "ANML-ER (Holla et al. 2020)",
        "meta-learning",
        "examples, and a gate",
        "as OML-ER",
        "as OML-ER, and a second encoder",
        "as OML-ER",
        NO_NUMBER,
        (
            ("lifelong_meta", "ANML-ER", "SEQ"),
            ("lifelong_last_two", "ANML-ER", "SEQ"),
            ("lifelong_relation_pairs", "ANML-ER", "SEQ"),
        ),
    ),
    System(
        "Meta-MbPA (Wang et al. 2020)",
        "meta-learning",
        "1 % of the examples, unlike each other, with keys",
        "in training and before a test",
        "steps on neighbours before every update",
        "30 steps for a whole test set",
        f"77.3 % ({_TEXT})",
        (("lifelong_meta", "Meta-MbPA", "SEQ"), ("lifelong_last_two", "Meta-MbPA", "SEQ")),
    ),
)
OTHERS = {
    "replay": (("lifelong_mnist", "replay 500", "SEQ"), ("lifelong_vectors_2000", "mixed 1:1", "SEQ")),
    "lwf": (("lifelong_mnist", "LwF", "SEQ"), ("lifelong_vectors_2000", "LwF", "SEQ")),
    "logit_kd": (("lifelong_mnist", "Logit-KD", "SEQ"), ("lifelong_vectors_2000", "Logit-KD", "SEQ")),
    "mbpa": (("lifelong_vectors_2000", "MbPA", "SEQ"),),
    "emr": (("lifelong_relations_small", "EMR", "lower bound"),),
    "ea_emr": (("lifelong_relations_small", "EA-EMR", "lower bound"),),
    "maml_er": (("lifelong_meta", "MAML-ER", "SEQ"),),
    "o_lora": (("lifelong_adapters", "O-LoRA", "SEQ"), ("lifelong_adapters", "one adapter a task", "SEQ")),
}
"""Name of a system that has a cell elsewhere and no line in the survey -> our runs, see `System.ours`"""
BACKBONES = {
    "lifelong_meta": "A perceptron on vectors of MiniLM, frozen, one pass over 2,000 texts a task:",
    "lifelong_last_two": "The last two layers of MiniLM and a head, 500 texts a task, one pass where no row says more:",
    "lifelong_lamol_texts": "A small GPT-2 that writes the names of classes, five passes over 500 texts a task:",
}
"""Recipe of the five text tasks -> line that says what is trained in it, and on how many texts"""
ABOUT = (
    "Replay keeps examples, or makes them; regularisation holds parameters near what they were; constraints forbid "
    "updates against stored examples; parameter isolation gives a task parts of its own; meta-learning learns how to "
    "adapt. Claims and shares of examples are of the papers, on models and data of their size. Ours are small runs "
    "(follow the links), each beside plain training of the same model on the same stream; no two lines are of one "
    "experiment unless their links are the same. They have few examples and read a larger share of them again, such as "
    "100 stored ones every 400 where a paper has 1 %."
)


def page(known: Known) -> str:
    """Returns the text of the page: a table of all systems, then one table for each backbone of the five text tasks."""
    runs = known.all_runs()
    heads = ["system", "family", "keeps", "reads it", "adds to training", "adds to a test", "claim", "ours"]
    cells = []
    for system in SYSTEMS:
        comparisons = (_describe_comparison(known, *comparison) for comparison in system.ours)
        cells.append([*system[:7], "; ".join(filter(None, comparisons))])
    parts = ["# Systems of lifelong learning", ABOUT, grid(heads, cells), "## The same five text tasks, by backbone"]
    theirs = (
        "Published, each with its own code and BERT or GPT-2: MbPA++ 70.6, OML-ER 75.7, LAMOL 76.5, Meta-MbPA 77.3."
    )
    parts.append(f"{theirs} Below, by what is trained: numbers of one table say nothing about another.")
    for name, about in BACKBONES.items():
        rows = [row for row in RECIPES[name].variants if _mean(runs, name, row) is not None]
        if rows:
            parts += [about, grid(["row", "average, %"], [[_of_own(row), _cell(runs, name, row)] for row in rows])]
    return "\n\n".join(parts) + "\n"


def cells() -> dict[str, Callable[[Known], str]]:
    """Returns functions that make the cells of systems in other texts: marker, such as `system_ewc` -> function.

    A cell has the results of our runs from at most two tables. The survey has them from all tables.
    """
    ours = {_slug(system.name.partition(" (")[0]): system.ours for system in SYSTEMS} | OTHERS

    def cell(compared: tuple[tuple[str, str, str], ...]) -> Callable[[Known], str]:
        folder = "tools/results/tables/"
        parts = lambda known: (_describe_comparison(known, *names, folder=folder) for names in compared[:2])
        return lambda known: "; ".join(filter(None, parts(known))) or "no run"

    return {f"system_{name}": cell(compared) for name, compared in ours.items()}


def _of_own(row: str) -> str:
    """Returns the name of a row. It says so where the number is that of each task right after it."""
    return f"{row} (right after each task)" if row == streams.ALONE else row


def _slug(name: str) -> str:
    """Returns a name in lower case, with nothing but letters, digits and `_`.

    Example:
      >>> _slug("Meta-MbPA"), _slug("MbPA++")
      ('meta_mbpa', 'mbpa_pp')
    """
    return re.sub(r"\W+", "_", name.lower().replace("++", "_pp"))


def _describe_comparison(known: Known, recipe: str, row: str, control: str, folder: str = "") -> str:
    """Returns the result of a row beside that of its control, with units and verdict. '' where one was not run.

    Args:
      known: Runs and measurements.
      recipe: Name of the recipe.
      row: Row of the recipe.
      control: Row that it is compared with.
      folder: Folder of the tables, as a path that ends in '/' from the folder of the text. '' for the same folder.
    """
    runs = known.all_runs()
    result, plain = (_mean(runs, recipe, name) for name in (row, control))
    if result is None or plain is None:
        return ""
    what = "AP " if perplexities.is_of_nats(_runs_of(runs, recipe, row)) else ""
    verdict = known.verdict(recipe, row, control)
    where = f"[{recipe}]({folder}{page_of(recipe)}.md)"
    return f"{where}, {row}: {what}{result:.1f} (plain training {plain:.1f}; {verdict})"


def _runs_of(runs: Sequence[Run], recipe: str, row: str) -> list[Run]:
    """Returns the runs of a row in all orders and seeds."""
    return [run for run in runs if run.recipe == recipe and run.row.rpartition(", ")[0] == row]


def _mean(runs: Sequence[Run], recipe: str, row: str) -> float | None:
    """Returns the mean result of a row over orders and seeds: average accuracy in percent, or average perplexity for
    streams that report nats. None where the row was not run.
    """
    runs = _runs_of(runs, recipe, row)
    if not runs:
        return None
    if perplexities.is_of_nats(runs):
        return float(np.mean([average_perplexity(np.exp(run.evaluations["stream"]["scores"])) for run in runs]))
    measure = streams.LEARNED if row == streams.ALONE else streams.AVERAGE  # alone: each task after itself
    return float(np.nanmean(streams.scores(runs, RECIPES[recipe], row, measure)))


def _cell(runs: Sequence[Run], recipe: str, row: str) -> str:
    """Returns the mean result of a row with one decimal, and its number of orders where some were not run. '' where the
    row was not run.
    """
    mean = _mean(runs, recipe, row)
    if mean is None:
        return ""
    orders = streams.name_orders(_runs_of(runs, recipe, row), RECIPES[recipe], row)
    return f"{mean:.1f} ({orders})" if orders else f"{mean:.1f}"
