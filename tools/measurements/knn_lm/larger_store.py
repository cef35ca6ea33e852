r"""Compares the stores of a part and of the whole of a corpus, for a model that was trained on the part.

    python -m tools.measurements.knn_lm.larger_store RUN --corpus DIR --data.source.path PART \
        --evaluation.max-segments 10

where PART, the first quarter of the articles of DIR, and the run on it come from

    python -c "from tools.measurements.knn_lm.larger_store import write_part; write_part('DIR', 'PART')"
    memjax train --config knn_lm_wikitext --data.source.path PART --training.steps 2000 --name knn_lm_wikitext_quarter

This is the paper's question (a model of 100 M tokens with the store of 3 G) at the size of WikiText-2. Both stores have
the vocabulary of the part. Search is exact.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Container
from pathlib import Path
from typing import Any

from memjax.data.corpora import wikitext
from memjax.data.documents import ArrayDocuments
from memjax.datastore.opening import open_index
from memjax.retrieval.building import build_datastore
from memjax.retrieval.keys import KeyExtractor
from tools.measurements.knn_lm import experiment

PART = 4
"""Number of articles of the corpus for one article of the part."""
_WORD = re.compile(r"\S+")


def write_part(corpus: str | Path, folder: str | Path, most_words: int = 0) -> None:
    """Writes a folder like WikiText's, with the first articles of the training split and all of the other splits.

    Args:
      corpus: Folder of the whole corpus.
      folder: Folder to write, which is made where it is missing.
      most_words: Number of words that stay, the most frequent ones of the part. All others become `<unk>`. 0 = all
        stay.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    vocabulary: set[str] = set()
    for split, file in (("train", "train.txt"), ("validation", "valid.txt"), ("test", "test.txt")):
        articles = wikitext(corpus, split=split)
        count = len(articles) // PART if split == "train" else len(articles)
        text = "".join(articles[i] for i in range(count))
        vocabulary = vocabulary or {word for word, _ in Counter(text.split()).most_common(most_words)}
        (folder / file).write_text(only_words(text, vocabulary) if most_words else text, encoding="utf-8")


def only_words(text: str, vocabulary: Container[str]) -> str:
    """Replaces every word that is not in `vocabulary` by `<unk>`. Spaces and lines stay.

    Example:
      >>> only_words(" = A tale = \\n of two", {"=", "of", "A"})
      ' = A <unk> = \\n of <unk>'
    """
    return _WORD.sub(lambda match: match[0] if match[0] in vocabulary else "<unk>", text)


def measure(source: KeyExtractor, corpus: str, workdir: Path) -> dict[str, Any]:
    """Builds both stores, searches and tunes, and returns all numbers of the table.

    Args:
      source: Run that was trained on the part.
      corpus: Folder of the whole corpus.
      workdir: Folder of stores and neighbours.
    """
    documents, tokenizer = source.run.experiment.documents, source.run.experiment.tokenizer
    text = wikitext(corpus, split="train", articles=False)[0]
    texts = {"train": ArrayDocuments([tokenizer.encode(text)]), **{s: documents(s) for s in experiment.SPLITS}}
    rows, retrievals = [], {}
    for name, reader in (("part", source), ("whole", source.with_documents(texts))):
        store = build_datastore(reader, workdir / f"store_{name}")
        index = open_index(store, "exact")
        retrievals = {s: experiment.find(source, store, index, s, workdir, name="exact") for s in experiment.SPLITS}
        rows.append({"store": name, "entries": store.entries, **experiment.tuned(*retrievals.values())})
    return experiment.facts_of(retrievals, rows, source.protocol())


def main() -> None:
    corpus = ("--corpus", {"required": True, "help": "folder of the whole corpus"})
    options, config = experiment.parse("larger_store", __doc__, corpus)
    facts = measure(experiment.open_source(options.run, config), options.corpus, options.workdir)
    experiment.record(
        "larger_store",
        facts,
        "kNN-LM: the store of a larger corpus than the model was trained on",
        f"The model was trained on one article in {PART} of the training split ({config.training.steps:,} steps); "
        f"exact search, {experiment.NEIGHBORS} neighbours; {experiment.protocol_text(facts, config)}",
    )


if __name__ == "__main__":
    main()
