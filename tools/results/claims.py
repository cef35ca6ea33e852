"""Finds sentences that claim by hand what a method or memory is good for, in all texts that describe them.

A verdict is filled in from its comparison: in findings of recipes by braces (`tools.results.verdicts`), in README and
guides between markers (`tools.results.marked_texts`). All other sentences describe.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from tools.recipes import RECIPES
from tools.results import survey
from tools.results.ledger import ROOT, Book
from tools.results.verdicts import FILLED

TOP = ROOT.parents[1]
FILES = ("*.md", "docs/*.md", "docs/*/*.md", "configs/*.py", "colabs/*.py", "memjax/**/*.py", "tools/texts/*.py")
"""Texts that describe methods and memories: pages, notebooks, and the docstrings of modules"""
METHODS = (
    "SEQ|plain training|replay|A-GEM|GEM|MbPA(?:\\+\\+)?|Meta-MbPA|OML-ER|ANML-ER|MAML-ER|EWC|MAS|SI|LwF|LAMOL|ELLE|"
    "EMAR"
)
"""Part of a pattern with the names of methods of lifelong learning"""
CLAIM = re.compile(
    r"""\b(?:
    (?:better|worse)(?!-) | superior | inferior | (?:is|are|was|were|works?|worked)\ (?:the\ )?best\b(?!\ of\b)
  | beat(?:s|en)? | out(?:perform|do)\w* | surpass\w* | wins?\ (?:over|against) | stronger | weaker | profit(?:s|ed)?
  | (?:falls?|fell|lags?|far|points?|is|are|ends?)\ behind(?!\ (?:a|the\ (?:mask|last|begin))\b)
  | (?:is|are|was|were|comes?|far|points?)\ ahead
  | (?:no|is\ a|are\ a|was\ a|brings?\ a|small|large|some)\ gains?
  | gain(?:s|ed)?\ (?:over|against|from|most|more|much|little|nothing|[\d.]+)
  | helps | helped | help\ (?:at|in|on|most|more|much|little) | hurts? | improve[sd]? | improvements?
  | los(?:es|e|t)\ (?:against|more|most|much|less|nearly|hardly|little|[\d.]+)
  | level\ with | (?:is|are|was|were)\ (?:both\ |again\ |each\ )?level(?!\ \d)
  | (?:makes?|made|shows?|showed)\ (?:no|a|the)\ difference
  | (?:bring|brings|brought)\ (?:it|nothing|little|more|much|less)
  | (?:is|are|was|were)\ (?:far\ |well\ |clearly\ |a\ little\ )?(?:above|below)\ (?!\d|the\b|it\b|one\b)
  | as\ (?:well|good)\ as\ \d | good\ for | preferable | recommend\w*
  | worth\ (?:more|trying|it) | (?:more|less|most)\ accurate
  | (?:ha[sd]|have|shows?|gives?|gave|reach(?:es|ed)?)\ (?:a\ )?(?:\w+\ )?(?:higher|lower)\ [\w ]+\ than
  | end(?:s|ed)?\ (?:higher|lower) | forg[eo]ts?\ (?:less|more)
  | strongest | weakest | (?:match|equal|rival|exceed)(?:es|ed|s)?\ (?:the\ )?(?:METHODS)
  | (?:clearly|far|much|slightly|a\ little)\ (?:higher|lower|above|below)(?!\ \d)
  | (?:reduce|lower|raise|increase)[sd]\ (?:the\ )?(?:perplexity|accuracy|score|forgetting)
  | (?:does|do|did)\ not\ work | need(?:s|ed)?\ (?:fewer|more|less)\ (?:texts|rows|examples|data|updates|tokens)
  | (?:higher|lower|more|less|fewer|larger|smaller)\ [\w ]*than\ (?:METHODS)
  )\b""".replace("METHODS", METHODS.replace(" ", r"\ ")),
    re.VERBOSE | re.IGNORECASE,
)
"""Words by which a sentence claims that a method is good, or better, worse or no better than another"""
_ASKED = re.compile(
    r"\b(?:(?-i:how)\ (?:much|many|often)|whether|if|which\ (?:tokens|neighbours)"
    r"|(?:more|less|higher|lower)\ (?:of\ it\ )?is\ better"
    r"|(?:tokens|targets)\ (?:that\ )?(?:a|its|the)\ [\w' ]*(?:memory|datastore)\ help\w*)\b[^,.;:|]*",
    re.VERBOSE | re.IGNORECASE,
)
"""A clause that asks, and so claims nothing"""
_NOT_SAID = re.compile(r"<!--.*?-->|```.*?```|`[^`\n]*`|\]\([^)]*\)", re.DOTALL)
"""Markers, code, and where links lead"""
_SENTENCE = re.compile(r"(?<=[.!?:;])\s+|\n\s*\n|\n(?=[-|#*] )")

ALLOWED: Mapping[str, str] = {
    # Definitions of a verdict, of a measure or of a search: they claim nothing of any method.
    "the first evaluation is better": "sign of a difference",
    "significantly better or worse": "definition of a verdict",
    "no better than the mean": "meaning of an error of 1",
    "score far worse than random answers": "definition of a model that has diverged",
    "A model that uses it scores worse": "what an intervention measures",
    "rows of its group that are better": "ranks of rows",
    "can become better than the finished ones": "end of a beam search",
    "is no better than the `_` pairs": "theorem of product keys",
    "cannot be better than `_`": "bound of a task, computed",
    "are best on validation": "what a search chooses",
    "best on the validation": "what a search chooses",
    "no number of rows helps": "arithmetic of a plan",
    "loses more than `_` nats": "bound that Hewitt 2021 proves",
    "what a longer memory improves": "title that asks",
    # Names and claims of papers, said to be theirs.
    "Supervised Data Improve Slot Filling": "title of a paper",
    "with one memory have a lower perplexity than 24": "number of a paper",
    "4th or 5th was best": "number of a paper",
    "CoLA loses 2.5 to 4.8": "number of a paper",
}  # fmt: skip
"""Part of a sentence that seems to claim -> why it may stand"""


def find_claims(text: str) -> list[str]:
    """Returns the sentences of a text that claim by hand that a method or memory is good, or better, worse or no better
    than another.

    Args:
      text: Markdown, or docstrings.

    Example:
      >>> find_claims("OML-ER is ahead of replay. It had 3 points more over 6 orders.")
      ['OML-ER is ahead of replay.']
    """
    sentences = (" ".join(part.split()) for part in _SENTENCE.split(_NOT_SAID.sub("`_`", text)))
    return [
        sentence
        for sentence in sentences
        if CLAIM.search(_ASKED.sub("", _leave_out(sentence, ALLOWED))) and not sentence.endswith("?")
    ]


def _leave_out(sentence: str, parts: Iterable[str]) -> str:
    """Returns a sentence without the parts that may stand. What is left may still claim."""
    for part in parts:
        sentence = sentence.replace(part, "`_`")
    return sentence


def check_texts(texts: Iterable[tuple[str, str]] | None = None) -> list[str]:
    """Returns a line for every sentence that claims by hand.

    Args:
      texts: Names and texts. None for all that describe methods and memories.
    """
    allowed = "allowed: a description, or a verdict that is filled in from its runs (tools/results/claims.py)"
    return [
        f"{name}: given {claim!r}, {allowed}" for name, text in texts or describe_all() for claim in find_claims(text)
    ]


def describe_all() -> Iterator[tuple[str, str]]:
    """Yields name and text of all that describes methods and memories: files, recipes, measurements, the survey."""
    for file in sorted({file for pattern in FILES for file in TOP.glob(pattern)}):
        if not file.is_relative_to(TOP / "docs" / "api") or file.parent == TOP / "docs" / "api":
            yield str(file.relative_to(TOP)), read_description(file)
    for name, recipe in RECIPES.items():
        yield f"recipe {name}", f"{recipe.description}\n\n{FILLED.sub('`_`', recipe.findings)}"
    for measured in Book().measurements():
        yield f"measurement {measured.kind} {measured.name}", f"{measured.title}.\n\n{measured.about}"
    yield "survey", "\n\n".join([survey.ABOUT, *(". ".join(system[:7]) for system in survey.SYSTEMS)])


def read_description(file: Path) -> str:
    """Returns what a file says in words: a page, the Markdown of a notebook's script, or the docstrings of a module."""
    text = file.read_text(encoding="utf-8")
    if file.suffix != ".py":
        return text
    if file.parent.name == "colabs":
        return "\n".join(line[2:] if line.startswith("# ") else "" for line in text.splitlines())
    literals = (node.value for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Expr))
    values = (literal.value for literal in literals if isinstance(literal, ast.Constant))
    return "\n\n".join(value for value in values if isinstance(value, str))
