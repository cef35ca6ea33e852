"""The domains of `lifelong_pretraining`, a file of JSON lines each, from public texts: about two million characters.

Encyclopedia: WikiText-2. News: test texts of AG News. Reviews: Yelp. The fourth are the sources of the standard library
of the Python that runs this, without its tests.

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


def articles(file: Path) -> Iterator[str]:
    """The articles of WikiText-2's training split."""
    lines: list[str] = []
    for line in (line.strip() for line in lzma.open(file, "rt", encoding="utf-8")):
        if line.startswith("= ") and not line.startswith("= =") and lines:
            yield "\n".join(lines)
            lines = []
        if line:
            lines.append(line)
    yield "\n".join(lines)


def news(file: Path) -> Iterator[str]:
    """Title and text of AG News."""
    for row in csv.reader(io.TextIOWrapper(lzma.open(file), encoding="utf-8")):
        yield " ".join(row[1:])


def reviews(file: Path) -> Iterator[str]:
    """Training texts of a set of reviews."""
    with lzma.open(file, "rt", encoding="utf-8") as texts:
        yield from (row["sentence"] for row in json.load(texts))


def sources() -> Iterator[str]:
    """The modules of the standard library."""
    library = Path(sysconfig.get_path("stdlib"))
    left_out = {"site-packages", "test", "tests", "idlelib", "lib2to3"}
    for file in sorted(library.rglob("*.py")):
        if not left_out & {*file.relative_to(library).parts}:
            yield file.read_text(encoding="utf-8", errors="ignore")


def write(texts: Iterable[str], file: Path) -> None:
    """As many of the first texts as have `CHARACTERS`, the last one whole."""
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
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    write(articles(given.data / "wikitext-2" / "train.txt.xz"), given.out / "encyclopedia.jsonl")
    write(news(given.data / "ag-news" / "test.csv.xz"), given.out / "news.jsonl")
    write(reviews(given.data / "cl-benchmark" / "SC" / "yelp" / "train.json.xz"), given.out / "reviews.jsonl")
    write(sources(), given.out / "python.jsonl")


if __name__ == "__main__":
    main()
