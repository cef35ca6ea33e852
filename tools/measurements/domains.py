"""Writes the domains of `lifelong_pretraining` from public texts, each a file of JSON lines.

Each has about two million characters. The encyclopedia is WikiText-2, the news are test texts of AG News, and the
reviews are from Yelp. The fourth domain has the sources of the standard library of the Python that runs this, without
its tests.

python -m tools.measurements.domains --data DIR --out DOMAINS     # DIR/wikitext-2, DIR/ag-news, DIR/cl-benchmark
"""

import argparse
import csv
import io
import json
import lzma
import sysconfig
from collections.abc import Iterable, Iterator
from pathlib import Path

CHARACTERS = 2_000_000


def read_articles(file: Path) -> Iterator[str]:
    """Reads the articles of WikiText-2's training split from its compressed file."""
    lines: list[str] = []
    for line in (line.strip() for line in lzma.open(file, "rt", encoding="utf-8")):
        if line.startswith("= ") and not line.startswith("= =") and lines:
            yield "\n".join(lines)
            lines = []
        if line:
            lines.append(line)
    yield "\n".join(lines)


def read_news(file: Path) -> Iterator[str]:
    """Reads the title and text of each report of AG News from a compressed CSV file."""
    for row in csv.reader(io.TextIOWrapper(lzma.open(file), encoding="utf-8")):
        yield " ".join(row[1:])


def read_reviews(file: Path) -> Iterator[str]:
    """Reads the texts of a set of reviews from a compressed JSON file."""
    with lzma.open(file, "rt", encoding="utf-8") as texts:
        yield from (row["sentence"] for row in json.load(texts))


def read_sources() -> Iterator[str]:
    """Reads the source files of the standard library."""
    library = Path(sysconfig.get_path("stdlib"))
    skipped_folders = {"site-packages", "test", "tests", "idlelib", "lib2to3"}
    for file in sorted(library.rglob("*.py")):
        if not skipped_folders & {*file.relative_to(library).parts}:
            yield file.read_text(encoding="utf-8", errors="ignore")


def write_domain(texts: Iterable[str], file: Path) -> None:
    """Writes the first texts to a file, until they have `CHARACTERS` characters. The last text is written whole."""
    total = 0
    with file.open("w", encoding="utf-8") as out:
        for number, text in enumerate(texts):
            if total >= CHARACTERS:
                return
            total += len(text)
            out.write(json.dumps({"text": text, "name": str(number)}) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tools.measurements.domains", description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    write_domain(read_articles(options.data / "wikitext-2" / "train.txt.xz"), options.out / "encyclopedia.jsonl")
    write_domain(read_news(options.data / "ag-news" / "test.csv.xz"), options.out / "news.jsonl")
    write_domain(
        read_reviews(options.data / "cl-benchmark" / "SC" / "yelp" / "train.json.xz"), options.out / "reviews.jsonl"
    )
    write_domain(read_sources(), options.out / "python.jsonl")


if __name__ == "__main__":
    main()
