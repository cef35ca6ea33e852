"""How many texts of the tasks of `elle_downstream` the domains of `lifelong_pretraining` contain.

    python -m tools.measurements.shared_texts --data DIR --domains DOMAINS     # DIR/ag-news, DIR/cl-benchmark

A text is contained where its letters and digits stand in one text of the domain, whatever is between words. The title
of a row of AG News does not count: the same report may have another one.
"""

import argparse
import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from memjax.data.text_classes import cl_benchmark_texts, class_texts
from memjax.data.text_splits import TextSplits
from memjax.training.runs import versions
from tools.results import pages
from tools.results.ledger import ROOT, Book, measured

LEAST = 20
"""letters of a text that counts"""
ABOUT = (
    "Texts of the tasks of `elle_downstream` (of AG News without their titles) that the domain of the same kind has "
    "too, word for word. The tokenizer and the domains never read a class."
)


def flat(text: str) -> str:
    """Its words alone.

    Example:
      >>> flat("A tale, told -- twice!")
      'a tale told twice'
    """
    return re.sub(r"[^a-z0-9]+", " ", text.lower()).strip()


def count_shared(texts: Iterable[str], domain: str) -> tuple[int, int]:
    """How many texts there are, and how many of them the domain contains, as `flat` has it.

    Example:
      >>> count_shared(["A tale that is told twice.", "another tale of the sea"], "once: a tale that is told twice")
      (2, 1)
    """
    found = [flat(text) for text in texts]
    return len(found), sum(len(text) >= LEAST and text in domain for text in found)


def read_domain(file: Path) -> str:
    """All texts of a domain, each on a line of its own."""
    return "\n".join(flat(json.loads(line)["text"]) for line in file.read_text(encoding="utf-8").split("\n") if line)


def tasks(data: Path) -> dict[str, tuple[str, TextSplits]]:
    """Task -> its domain and its texts, as `configs/elle_downstream.py` reads them."""
    benchmark = str(data / "cl-benchmark")
    news = class_texts("ag_news", str(data / "ag-news"), train_files=("alps_dev.tsv",), test_files=(), text="text")
    return {
        "DBpedia": ("encyclopedia", cl_benchmark_texts("dbpedia", benchmark)),
        "AG News": ("news", news),
        "SST-2": ("reviews", cl_benchmark_texts("sst2", benchmark)),
    }


def measure(data: Path, domains: Path) -> list[dict[str, Any]]:
    """A row a task and split."""
    found = []
    for task, (domain, splits) in tasks(data).items():
        known = read_domain(domains / f"{domain}.jsonl")
        for split, rows in splits.texts.items():
            number, shared = count_shared((" ".join(row.texts) for row in rows), known)
            found.append({"task": task, "domain": domain, "split": split, "texts": number, "shared": shared})
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m tools.measurements.shared_texts", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--domains", type=Path, required=True)
    parser.add_argument("--out", type=Path, default=ROOT, help="folder of the measurements")
    given = parser.parse_args()
    facts = {"versions": versions(), "rows": measure(given.data, given.domains)}
    command = "python -m tools.measurements.shared_texts --data DIR --domains DOMAINS"
    title = "Texts of tasks in the domains"
    one = measured("shared_texts", "elle_downstream", facts, command=command, title=title, about=ABOUT)
    pages.record(one, Book(given.out))


if __name__ == "__main__":
    main()
