"""Counts the texts of the tasks of `elle_downstream` that the domains of `lifelong_pretraining` contain.

    python -m tools.measurements.shared_texts --data DIR --domains DOMAINS     # DIR/ag-news, DIR/cl-benchmark

A domain contains a text if one of its texts has the same words one after the other, whatever stands between them. The
title of a row of AG News does not count, because the same report may have another title.
"""

import argparse
import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from memjax.data.source_readers import open_source
from memjax.data.sources import SPLITS
from memjax.settings.overrides import load_config
from memjax.training.run_versions import versions
from tools.recipes.growth import TASKS
from tools.results import pages
from tools.results.ledger import ROOT, Book, measured

LEAST = 20
"""Smallest number of letters of a text that is counted."""
ABOUT = (
    f"Texts of the tasks of `elle_downstream` (of AG News without their titles) of {LEAST} letters and more that the "
    "domain of the same kind has too, word for word."
)


def flat(text: str) -> str:
    """Returns the words of a text in lower case, with single spaces and without marks.

    Example:
      >>> flat("A tale, told -- twice!")
      'a tale told twice'
    """
    return re.sub(r"[^a-z0-9]+", " ", text.lower()).strip()


def count_shared(texts: Iterable[str], domain: str) -> tuple[int, int]:
    """Returns the number of texts, and the number of those that the domain contains.

    Args:
      texts: Texts of a task.
      domain: All texts of the domain, as `flat` returns them.

    Example:
      >>> count_shared(["A tale that is told twice.", "another tale of the sea"], "once: a tale that is told twice")
      (2, 1)
    """
    flat_texts = [flat(text) for text in texts]
    return len(flat_texts), sum(len(text) >= LEAST and text in domain for text in flat_texts)


def read_domain(file: Path) -> str:
    """Reads the texts of a domain, as `flat` returns them, each on a line of its own."""
    return "\n".join(flat(json.loads(line)["text"]) for line in file.read_text(encoding="utf-8").split("\n") if line)


def measure(data: Path, domains: Path) -> list[dict[str, Any]]:
    """Counts shared texts, and returns a row for each task and split."""
    rows = []
    for task, (domain, _, _, folder) in TASKS.items():
        known, read = read_domain(domains / f"{domain}.jsonl"), load_config("elle_downstream", domain).data
        source: Any = read.source
        source.path, source.text = str(data / folder), "text"
        for split in SPLITS:
            texts = (" ".join(row.texts) for row in open_source(read, split, wanted="labelled"))
            number, shared = count_shared(texts, known)
            rows.append({"task": task, "domain": domain, "split": split, "texts": number, "shared": shared})
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m tools.measurements.shared_texts", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--domains", type=Path, required=True)
    parser.add_argument("--out", type=Path, default=ROOT, help="folder of the measurements")
    options = parser.parse_args()
    facts = {"versions": versions(), "rows": measure(options.data, options.domains)}
    command = "python -m tools.measurements.shared_texts --data DIR --domains DOMAINS"
    title = "Texts of tasks in the domains"
    measurement = measured("shared_texts", "elle_downstream", facts, command=command, title=title, about=ABOUT)
    pages.record(measurement, Book(options.out))


if __name__ == "__main__":
    main()
