"""Compares a model of Wikipedia on novels with the store of Wikipedia and with a store of novels (domain adaptation).

    python -m tools.measurements.knn_lm.domain RUN --novels novels.tar.xz --data.source.path DIR \
        --evaluation.max-segments 20

The run is `knn_lm_wikitext`. Nothing is trained. Whole books are held out. The gain stands beside the gain on the kind
of text that the model was trained on, from the same number of segments.
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
"""Id of `<unk>` in `WordTokenizer`."""


def summarize(retrievals: dict[str, StoreNeighbors]) -> dict[str, Any]:
    """Tunes the neighbours, and returns the nats of both splits, of all targets and of those that are not `<unk>`."""
    row: dict[str, Any] = experiment.tuned(*retrievals.values())
    known = {split: experiment.without(retrieval, UNKNOWN) for split, retrieval in retrievals.items()}
    return {
        **row,
        "base": experiment.base(retrievals),
        "base_known": experiment.base(known),
        "known": {split: experiment.score(retrieval, row) for split, retrieval in known.items()},
        "unknown_targets": {
            s: 1 - len(known[s].targets) / len(retrieval.targets) for s, retrieval in retrievals.items()
        },
        "targets": {split: len(retrieval.targets) for split, retrieval in retrievals.items()},
    }


def measure(source: KeyExtractor, novels: str, workdir: Path) -> dict[str, Any]:
    """Builds both stores, searches and tunes every row, and returns all numbers of the table.

    Args:
      source: Run that was trained on Wikipedia.
      novels: File of the novels.
      workdir: Folder of stores and neighbours.
    """
    tokenizer = source.run.experiment.tokenizer
    books = {
        split: make_documents(novels, split, tokenizer, tokens=TOKENS if split == "train" else 0)
        for split in ("train", *experiment.SPLITS)
    }
    adapted = source.with_documents({split: documents for split, (documents, _) in books.items()})
    wikipedia = build_datastore(source, workdir / "store")
    novels_store = build_datastore(adapted, workdir / "novels")
    unknown = {split: float((experiment.all_tokens(texts) == UNKNOWN).mean()) for split, (texts, _) in books.items()}
    known_authors = authors(books["train"][1])
    facts: dict[str, Any] = {
        "entries": {"Wikipedia": wikipedia.entries, "novels": novels_store.entries},
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
    for texts, store in (("WikiText-2", wikipedia), ("novels", wikipedia), ("novels", novels_store)):
        reader, index = source if texts == "WikiText-2" else adapted, experiment.scann_index(store)
        retrievals = {split: experiment.find(reader, store, index, split, workdir) for split in experiment.SPLITS}
        name = "novels" if store is novels_store else "Wikipedia"
        rows.append({"texts": texts, "store": name, **summarize(retrievals)})
        del index
    return {**facts, "rows": rows}


def text(facts: dict[str, Any]) -> str:
    """Returns the text above the table: what was measured, and how."""
    percent = lambda share: f"{100 * share:.1f} %"
    entries, books, same_authors = facts["entries"], facts["books"], facts["books_of_authors_in_the_store"]
    (wikitext, *_, novels), protocol, first = facts["rows"], facts["protocol"], facts["max_segments"]
    part = f", the first {first} segments of each" if first else ""
    unknown = {name: row["unknown_targets"]["test"] for name, row in (("own", wikitext), ("novels", novels))}
    counts = [row["targets"][split] for row in (novels, wikitext) for split in experiment.SPLITS]
    return (
        f"The model has read WikiText-2 only. Stores: its training split ({entries['Wikipedia']:,} entries), and the "
        f"beginnings of the {len(books['train'])} novels of the training split ({entries['novels']:,} entries, the "
        f"same number from each). Held out whole: {len(books['validation'])} novels for validation and "
        f"{len(books['test'])} for test, of which {same_authors['validation']} and {same_authors['test']} are by "
        "authors with another "
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
