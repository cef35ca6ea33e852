"""Domain adaptation by a store: a model of Wikipedia on novels, with the store of Wikipedia and with one of novels.

    python -m tools.measurements.knn_lm.domain RUN --novels novels.tar.xz --data.source.path DIR \
        --evaluation.max-segments 20

The run is `knn_lm_wikitext`; nothing is trained. Whole books are held out. The gain is set beside the one on the
model's own kind of text, from the same number of segments.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from memjax.retrieval.building import build_datastore
from memjax.retrieval.interpolation import StoreNeighbors
from memjax.retrieval.keys import KeyExtractor
from tools.measurements.knn_lm import experiment
from tools.measurements.knn_lm.novels import authors, make_documents

TOKENS = 1_000_000
UNKNOWN = 3
"""id of `<unk>` in `WordTokenizer`"""


def summary(found: dict[str, StoreNeighbors]) -> dict[str, Any]:
    """What the tuned neighbours give on both splits, over all targets and over those that are not `<unk>`."""
    row: dict[str, Any] = experiment.tuned(*found.values())
    known = {split: experiment.without(one, UNKNOWN) for split, one in found.items()}
    return {
        **row,
        "base": experiment.base(found),
        "base_known": experiment.base(known),
        "known": {split: experiment.score(one, row) for split, one in known.items()},
        "unknown_targets": {s: 1 - len(known[s].targets) / len(one.targets) for s, one in found.items()},
        "targets": {split: len(one.targets) for split, one in found.items()},
    }


def measure(source: KeyExtractor, novels: str, workdir: Path) -> dict[str, Any]:
    """Every number of the table."""
    tokenizer = source.run.experiment.tokenizer
    books = {
        split: make_documents(novels, split, tokenizer, tokens=TOKENS if split == "train" else 0)
        for split in ("train", *experiment.SPLITS)
    }
    adapted = source.with_documents({split: documents for split, (documents, _) in books.items()})
    wikipedia = build_datastore(source, workdir / "store")
    there = build_datastore(adapted, workdir / "novels")
    unknown = {split: float((experiment.all_tokens(texts) == UNKNOWN).mean()) for split, (texts, _) in books.items()}
    known_authors = authors(books["train"][1])
    facts: dict[str, Any] = {
        "entries": {"Wikipedia": wikipedia.entries, "novels": there.entries},
        "books": {split: names for split, (_, names) in books.items()},
        "tokens": {split: len(experiment.all_tokens(documents)) for split, (documents, _) in books.items()},
        "unknown_tokens": unknown,
        "books_of_authors_in_the_store": {
            split: sum(name.partition("_")[0] in known_authors for name in books[split][1])
            for split in experiment.SPLITS
        },
        "protocol": source.protocol(),
        "rows_of_text": source.run.experiment.config.evaluation.batch_size,
        "max_segments": source.run.experiment.config.evaluation.max_segments,
    }
    rows = []
    for texts, store in (("WikiText-2", wikipedia), ("novels", wikipedia), ("novels", there)):
        reader, index = source if texts == "WikiText-2" else adapted, experiment.scann_index(store)
        found = {split: experiment.find(reader, store, index, split, workdir) for split in experiment.SPLITS}
        name = "novels" if store is there else "Wikipedia"
        rows.append({"texts": texts, "store": name, **summary(found)})
        del index
    return {**facts, "rows": rows}


def text(facts: dict[str, Any]) -> str:
    """What was measured and how."""
    percent = lambda share: f"{100 * share:.1f} %"
    entries, books, own = facts["entries"], facts["books"], facts["books_of_authors_in_the_store"]
    (wikitext, *_, novels), protocol, first = facts["rows"], facts["protocol"], facts["max_segments"]
    part = f", the first {first} segments of each" if first else ""
    unknown = {name: row["unknown_targets"]["test"] for name, row in (("own", wikitext), ("novels", novels))}
    counts = [row["targets"][split] for row in (novels, wikitext) for split in experiment.SPLITS]
    return (
        f"The model has read WikiText-2 only. Stores: its training split ({entries['Wikipedia']:,} entries), and the "
        f"beginnings of the {len(books['train'])} novels of the training split ({entries['novels']:,} entries, the "
        f"same number from each). Held out whole: {len(books['validation'])} novels for validation and "
        f"{len(books['test'])} for test, of which {own['validation']} and {own['test']} are by authors with another "
        "novel in the store. Novels are brought into WikiText's form (spaces before marks, `can 't`, `@-@`, a line for "
        "each paragraph, case as it is) and read with the model's vocabulary: `<unk>` are "
        f"{percent(facts['unknown_tokens']['train'])} of the entries of the novels, {percent(unknown['novels'])} of "
        f"their test targets and {percent(unknown['own'])} of those of WikiText-2; the last columns leave these "
        f"targets out, with the same weight and temperature. Protocol: {protocol['documents']}, "
        f"{facts['rows_of_text']} rows{part}, segments of {protocol['segment_length']}; {counts[0]:,} validation and "
        f"{counts[1]:,} test tokens of the novels, {counts[2]:,} and {counts[3]:,} of WikiText-2. "
        f"{experiment.NEIGHBORS} neighbours, ScaNN with exact re-scoring; tuned on validation, test read off once."
    )


def main() -> None:
    options, config = experiment.parse("domain", __doc__, ("--novels", {"required": True, "help": "the novels"}))
    facts = measure(experiment.open_source(options.run, config), options.novels, options.workdir)
    title = "kNN-LM: domain adaptation by another store"
    experiment.record("domain", facts, title, text(facts))


if __name__ == "__main__":
    main()
