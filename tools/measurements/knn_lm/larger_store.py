r"""A model trained on a part of a corpus, with the store of that part and with the store of all of it.

    python -m tools.measurements.knn_lm.larger_store RUN --corpus DIR --data.source.path PART \
        --evaluation.max-segments 10

where PART, the first quarter of the articles of DIR, and the run on it come from

    python -c "from tools.measurements.knn_lm.larger_store import write_part; write_part('DIR', 'PART')"
    memjax train --config knn_lm_wikitext --data.source.path PART --training.steps 2000 --name knn_lm_wikitext_quarter

The paper's question (a model of 100 M tokens with the store of 3 G) at the size of WikiText-2. The vocabulary is that
of the part, for both stores. Search is exact.
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
"""one in so many articles"""
_WORD = re.compile(r"\S+")


def write_part(corpus: str | Path, folder: str | Path, most_words: int = 0) -> None:
    """A folder like WikiText's with the first articles of its training split and the whole of the others.

    Args:
      corpus: folder of the whole.
      folder: is made where it is missing.
      most_words: of the part's words the most frequent ones that stay, all others become `<unk>`; 0 = all stay.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    kept: set[str] = set()
    for split, file in (("train", "train.txt"), ("validation", "valid.txt"), ("test", "test.txt")):
        articles = wikitext(corpus, split=split)
        count = len(articles) // PART if split == "train" else len(articles)
        text = "".join(articles[i] for i in range(count))
        kept = kept or {word for word, _ in Counter(text.split()).most_common(most_words)}
        (folder / file).write_text(only_words(text, kept) if most_words else text, encoding="utf-8")


def only_words(text: str, kept: Container[str]) -> str:
    """A text with `<unk>` for every other word; its spaces and lines stay.

    Example:
      >>> only_words(" = A tale = \\n of two", {"=", "of", "A"})
      ' = A <unk> = \\n of <unk>'
    """
    return _WORD.sub(lambda match: match[0] if match[0] in kept else "<unk>", text)


def measure(source: KeyExtractor, corpus: str, workdir: Path) -> dict[str, Any]:
    """Every number of the table."""
    documents, tokenizer = source.run.experiment.documents, source.run.experiment.tokenizer
    text = wikitext(corpus, split="train", articles=False)[0]
    texts = {"train": ArrayDocuments([tokenizer.encode(text)]), **{s: documents(s) for s in experiment.SPLITS}}
    rows, found = [], {}
    for name, reader in (("part", source), ("whole", source.with_documents(texts))):
        store = build_datastore(reader, workdir / f"store_{name}")
        index = open_index(store, "exact")
        found = {s: experiment.find(source, store, index, s, workdir, name="exact") for s in experiment.SPLITS}
        rows.append({"store": name, "entries": store.entries, **experiment.tuned(*found.values())})
    return experiment.facts_of(found, rows, source.protocol())


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
