"""The readers of foreign files, each with a small valid input, for `tools.faults.readers`.

`READERS` has a row for every source and every tokenizer that reads a path, and for each other reader of foreign files.
`tests/data/readers_test.py` fails for a source, a tokenizer, or a `with reading(...)` in memjax that no row reaches.
"""

from __future__ import annotations

import gzip
import io
import types
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from memjax import config
from memjax.data import source_readers
from memjax.data.annotations import target_shares
from memjax.data.byte_pairs import BytePairTokenizer
from memjax.data.corpora import enwik8
from memjax.data.documents import Example, Examples
from memjax.data.encoder_states import has_states
from memjax.data.labelled_rows import find_labels
from memjax.data.paths import digest
from memjax.data.saved_tokenizers import load_tokenizer
from memjax.data.sources import SPLITS
from memjax.data.tokenizers import SentencePieceTokenizer, WordTokenizer
from memjax.data.word_vectors import read_word_vectors
from memjax.data.wordpiece import WordPieceTokenizer
from memjax.lifelong.text_features import cached_features
from tools.faults.input_files import SENTENCES, Reader, to_idx, to_json, to_lines, to_npy, to_npz, to_tar, to_zip
from tools.faults.tokenizer_inputs import folder_tokenizer, tokenizer

__all__ = ["READERS", "Reader"]


def source(make: Callable[[str], Any], files: Callable[[], Mapping[str, bytes]]) -> Reader:
    """Returns the reader of a source, which reads all its splits as all its kinds of content.

    Args:
      make: Function from the path of a folder to the settings of the source.
      files: Its files.
    """

    def read(folder: Path) -> Any:
        settings = make(str(folder))
        data, contents = config.Data(source=settings), dict.fromkeys((*settings.content_types, *settings.opened_as))
        opened = [source_readers.open_source(data, split, wanted=content) for split in SPLITS for content in contents]
        return [*opened, source_readers.source_notes(settings)]

    return Reader(files, read)


LINES = "\n".join(SENTENCES).encode() + b"\n"
CONTEXT = "Paris is the capital of France. Rome is that of Italy."


def texts() -> dict[str, bytes]:
    return {f"{number}.txt": LINES * (1 + number) for number in range(3)}


def novels() -> dict[str, bytes]:
    return {f"{number}.txt": LINES for number in range(40)}


def folders() -> dict[str, bytes]:
    return {
        f"{name}/{file}": content
        for name in "abcdefghijkl"
        for file, content in (("a.txt", LINES), ("b.txt", b"second\n"), ("order.txt", b"b.txt\na.txt\n"))
    }


def squad() -> dict[str, bytes]:
    def article(title: str) -> dict[str, Any]:
        answers = [{"text": "Paris", "answer_start": 0}]
        questions = [{"id": "1", "question": "What is the capital of France?", "answers": answers}]
        return {"title": title, "paragraphs": [{"context": CONTEXT, "qas": questions}]}

    return {
        "train-v1.1.json": to_json({"version": "1.1", "data": [article("a"), article("b")]}),
        "dev-v1.1.json": to_json({"data": [article("c")]}),
    }


def quac() -> dict[str, bytes]:
    answer = {"text": "Paris", "answer_start": 0}
    turns = [
        {"question": "What?", "answers": [answer], "orig_answer": answer},
        {"question": "Why?", "answers": [{"text": "CANNOTANSWER", "answer_start": 9}], "orig_answer": answer},
    ]
    articles = [{"title": name, "paragraphs": [{"context": CONTEXT, "qas": turns}]} for name in "ab"]
    return {"train_v0.2.json": to_json({"data": articles}), "val_v0.2.json": to_json({"data": articles[:1]})}


def trivia_qa() -> dict[str, bytes]:
    rows = [
        {
            "QuestionId": name,
            "Question": "What is the capital of France?",
            "Answer": {"Value": "Paris", "Aliases": ["paris", "Paris, France"]},
            "SearchResults": [{"Filename": "1.txt"}, {"Filename": "2.txt"}],
        }
        for name in "ab"
    ]
    pages = {f"evidence/web/{number}.txt": CONTEXT.encode() for number in (1, 2)}
    return {"qa/web-train.json": to_json({"Data": rows}), "qa/web-dev.json": to_json({"Data": rows[:1]}), **pages}


def qa_srl() -> dict[str, bytes]:
    gold = "qasrl_id,question,answer_range\n" + "".join(f'{n},"who saw, what?",0:1~!~3:5\n' for n in "abcdef")
    words = "qasrl_id,tokens\n" + "".join(f"{n},The cat saw the town .\n" for n in "abcdef")
    return {
        f"{folder}/wikinews.{part}.{kind}.csv": content.encode()
        for part in ("dev", "test")
        for folder, kind, content in (("gold", "gold", gold), ("sentences", "full", words))
    }


def cmu_dog() -> dict[str, bytes]:
    first = {"movieName": "A film", "year": "1999", "cast": ["Ann as B", "Jo as C"], "rating": ["Good: 90%"]}
    document = {"wikiDocumentIdx": 3, "0": first, "1": "It begins.", "2": "It goes on.", "3": "It ends."}
    said = [{"uid": f"user{1 + number % 2}", "text": text} for number, text in enumerate(SENTENCES[:3])]
    talk = to_json({"wikiDocumentIdx": 3, "history": said, "whoSawDoc": ["user1"], "date": "now"})
    return {
        "WikiData/film.json": to_json(document),
        **{f"Conversations/{part}/a.json": talk for part in ("train", "valid", "test")},
    }


def relation_files() -> dict[str, bytes]:
    rows = [f"{1 + n % 2}\t1 2\t{text}" for n, text in enumerate(SENTENCES)]
    entities = "".join(f"1\t1 2\t{text}\tcat\t1\tParis\t7\n" for text in SENTENCES)
    rows_of_json = [{"tokens": "The cat saw Rome".split(), "h": ["cat", "Q1", [[1]]], "t": ["Rome", "Q2", [[3]]]}]
    return {
        "relation_name.txt": b"/people/person/place_of_birth\n/film/film/genre\n",
        "val_data.txt": "\n".join(rows).encode(),
        "places.txt": entities.encode(),
        "fewrel.json": to_json({"P1": rows_of_json, "P2": rows_of_json}),
    }


def tacred_files() -> dict[str, bytes]:
    places = {"subj_start": 0, "subj_end": 1, "obj_start": 3, "obj_end": 3}
    rows = [
        {"id": str(n), "relation": ("no_relation", "per:title", "org:founded")[n % 3], "token": text.split(), **places}
        for n, text in enumerate(SENTENCES[:6])
    ]
    return {f"{name}.json": to_json(rows) for name in ("train", "dev", "test")}


def vectors() -> dict[str, bytes]:
    values = np.arange(48, dtype=np.float32).reshape(12, 4)
    labels = np.arange(12, dtype=np.int32) % 2
    return {
        f"{split}{kind}.npy": to_npy(array) for split in SPLITS for kind, array in (("", values), ("_labels", labels))
    }


def pairs() -> dict[str, bytes]:
    numbers = np.stack([np.arange(12) // 2, 1 + np.arange(12) % 2, 1 + np.arange(12) % 2], axis=1).astype(np.int32)
    return {**vectors(), **{f"{split}_pairs.npy": to_npy(numbers) for split in SPLITS}}


def images() -> dict[str, bytes]:
    grey = np.arange(10 * 4, dtype=np.uint8).reshape(10, 2, 2)
    return {
        f"{name}-{kind}-ubyte": to_idx(array)
        for name in ("train", "t10k")
        for kind, array in (("images-idx3", grey), ("labels-idx1", np.arange(10) % 3))
    }


def packed_images() -> dict[str, bytes]:
    return {f"{name}.gz": gzip.compress(content) for name, content in images().items()}


def label_rows(form: str) -> bytes:
    rows = [(("News", "Sport")[n % 2], text) for n, text in enumerate(SENTENCES)]
    match form:
        case "csv":
            return "".join(f'{label},"Title, {text[4:9]}","{text}"\n' for label, text in rows).encode()
        case "tsv":
            return "".join(f"{text}\t{label}\n" for label, text in rows).encode()
        case "json":
            return to_json([{"sentence": f"Title: {text[4:9]}\nText: {text}", "label": label} for label, text in rows])
    return to_lines([{"text": text, "label": label} for label, text in rows])


def records(form: str) -> bytes:
    rows = [{"text": text, "number": n} for n, text in enumerate(SENTENCES)]
    match form:
        case "jsonl":
            chat = {"messages": [{"role": "user", "content": [{"type": "text", "text": "Hi"}]}]}
            return to_lines([*rows, chat, {"prompt": "a", "completion": ["b", "c"]}])
        case "json":
            return to_json({"data": rows})
        case "csv":
            return "".join(["text;number\n", *(f'"{row["text"]}";{row["number"]}\n' for row in rows)]).encode()
        case "tsv":
            return "".join(["number\ttext\n", *(f"{row['number']}\t{row['text']}\n" for row in rows)]).encode()
    import pyarrow
    import pyarrow.parquet

    table, buffer = pyarrow.Table.from_pylist(rows), io.BytesIO()
    if form == "parquet":
        pyarrow.parquet.write_table(table, buffer)
    else:
        with pyarrow.ipc.new_file(buffer, table.schema) as writer:
            writer.write_table(table)
    return buffer.getvalue()


def neighbor_arrays() -> dict[str, np.ndarray]:
    shape = (5, 2)
    return {
        "distances": np.ones(shape, np.float32),
        "values": np.ones(shape, np.int32),
        "ids": np.ones(shape, np.int64),
    }


def read_cached_neighbors(folder: Path) -> Any:
    from memjax.retrieval.tuning import CachedNeighbors

    return vars(CachedNeighbors.load(folder / "x.npz").first(1))


def read_demonstration(folder: Path) -> Any:
    from memjax.cli.demonstration import _Demo

    scores = _Demo.read_scores(types.SimpleNamespace(path=folder), "test")  # type: ignore[arg-type]
    return [vars(scores.targets), vars(scores.neighbors)]


def demonstration() -> dict[str, bytes]:
    targets = {"numbers": np.arange(5), "tokens": np.ones(5, np.int32), "log_probs": np.zeros(5)}
    return {
        "test.npz": to_npz(
            **{f"targets_{name}": array for name, array in targets.items()},
            **{f"neighbors_{name}": array for name, array in neighbor_arrays().items()},
        )
    }


def read_queries(folder: Path) -> Any:
    from memjax.tasks.vectors import VectorClassification

    unused: Any = None
    return [query.text for query in VectorClassification.read_queries(unused, str(folder / "queries.npy"))]


def read_enwik8(folder: Path) -> Any:
    return [enwik8(folder / "enwik8", split=split, sizes=(300, 50, 50)) for split in SPLITS]


def own_labels(name: str) -> Callable[[Path], Any]:
    """Returns a function that reads a labelled file of a user as `memjax train --tasks` does."""

    def read(folder: Path) -> Any:
        labels = find_labels(str(folder / name))
        settings = config.LabelledFile(path=str(folder / name), classes=labels, class_ids=tuple(range(len(labels))))
        data = config.Data(source=settings)
        return [source_readers.open_source(data, split) for split in SPLITS]

    return read


SST2 = b"sentence\tlabel\n" + b"".join(text.encode() + b"\t1\n" for text in SENTENCES)
COLA = b"".join(b"gj04\t1\t\t" + text.encode() + b"\n" for text in SENTENCES)
ZHANG = "".join(f'"{1 + n % 4}","Title {n}","{text} \\n ""so"""\n' for n, text in enumerate(SENTENCES)).encode()
WOZ = [
    {
        "dialogue_idx": 0,
        "dialogue": [
            {"turn_label": [["food", "thai"], ["request", "phone"]], "system_transcript": "", "transcript": "Thai?"},
            {"turn_label": [], "system_transcript": "Yes", "transcript": "Thanks"},
        ],
    }
]
WIKISQL = [
    {
        "sql": ["SELECT TABLEalias0.NAME FROM TABLE AS TABLEalias0 WHERE TABLEalias0.AGE > var0 ;"],
        "sentences": [
            {"original": "Who is older than 3?", "question-split": part, "variables": {"var0": "3"}}
            for part in ("train", "dev", "test")
        ],
    }
]
INSTRUCTIONS = to_lines(
    [{"context": CONTEXT, "question": "What?", "answers": ["Paris"]}, {"question": "Why?", "answers": "so", "group": 1}]
)

NEIGHBORS = {"documents": "d", "store": "s", "sha256": "0", "neighbors": 2, "target_among": [0.5, 0.75]}
"""description of the neighbours of a split"""


class Described(Examples):
    """An example that has states in a file."""

    fingerprint = "x"

    def __len__(self) -> int:
        return 1

    def example(self, index: int, /, epoch: int = 0) -> Example:
        del epoch
        return Example(np.zeros(1, np.int32), np.zeros(1, np.int32), np.ones(1, np.float32), {})

    def num_bytes(self, index: int, /) -> int:
        return 1


def described_features() -> dict[str, bytes]:
    """A file of features with its description."""
    about = {"fingerprint": f"f-{digest(['a', 'bcd'])[:16]}"}
    return {"x.npy": to_npy(np.array([[1.0], [3.0]], np.float32)), "x.json": to_json(about)}


def read_features(folder: Path) -> Any:
    lengths = lambda texts: np.array([[len(text)] for text in texts], np.float32)
    return np.asarray(cached_features(["a", "bcd"], lengths, path=f"{folder}/x.npy", fingerprint="f"))


READERS: dict[str, Reader] = {
    # Sources, by the names of their settings.
    "TextFiles": source(lambda path: config.TextFiles(path=path), texts),
    "Directories": source(
        lambda path: config.Directories(path=path, order_file="order.txt", validation_percent=30, test_percent=30),
        folders,
    ),
    **{
        f"JsonLines, {form}": source(
            lambda path, form=form: config.JsonLines(path=f"{path}/a.{form}", validation_percent=20, test_percent=20),
            lambda form=form: {f"a.{form}": records(form)},
        )
        for form in ("jsonl", "json", "csv", "tsv", "parquet", "arrow")
    },
    "JsonLines, zip": source(
        lambda path: config.JsonLines(path=f"{path}/a.zip", validation_percent=20, test_percent=20),
        lambda: {"a.zip": to_zip("a.jsonl", records("jsonl"))},
    ),
    "JsonLines": source(
        lambda path: config.JsonLines(path=path),
        lambda: {"a.jsonl": records("jsonl"), "b.csv": records("csv").replace(b";", b","), "c.json": records("json")},
    ),
    "Enwik8": Reader(lambda: {"enwik8": LINES}, read_enwik8),
    "WikiText": source(
        lambda path: config.WikiText(path=path),
        lambda: {f"{name}.txt": b" \n = A = \n \n a b <unk> c \n" for name in ("train", "valid", "test")},
    ),
    "Novels": source(lambda path: config.Novels(path=path), novels),
    **{
        f"Novels, {name}": source(
            lambda path, name=name: config.Novels(path=f"{path}/{name}"),
            lambda name=name, mode=mode: {name: to_tar(novels(), mode)},
        )
        for name, mode in (("books.tar", "w"), ("books.tar.xz", "w:xz"), ("books.tar.gz", "w:gz"))
    },
    "Mnist": source(lambda path: config.Mnist(path=path), packed_images),
    "CmuDog": source(lambda path: config.CmuDog(path=path), cmu_dog),
    "CmuDog, archive": source(
        lambda path: config.CmuDog(path=path), lambda: {"cmu_dog.tar.xz": to_tar(cmu_dog(), "w:xz")}
    ),
    "ParallelText": source(
        lambda path: config.ParallelText(path=path, train="x", validation="x", test="x"),
        lambda: {"x.en": LINES, "x.de": LINES},
    ),
    "Glue": source(
        lambda path: config.Glue(path=path),
        lambda: {"train.tsv": SST2, "dev.tsv": SST2, "test.tsv": b"index\tsentence\n0\ta\n"},
    ),
    "Glue, cola": source(
        lambda path: config.Glue(path=path, name="cola"), lambda: {"train.tsv": COLA, "dev.tsv": COLA}
    ),
    "TextClasses": source(lambda path: config.TextClasses(path=path, test=()), lambda: {"train.csv": ZHANG}),
    "CLBenchmark": source(
        lambda path: config.CLBenchmark(path=path, task="sst2"),
        lambda: {
            "SC/SST-2/train.json": label_rows("json").replace(b"News", b"Good").replace(b"Sport", b"Bad"),
            "SC/SST-2/test.json": to_json([{"sentence": "so", "label": "Bad"}, {"sentence": "oh", "label": "Good"}]),
        },
    ),
    **{
        f"LabelledFile, {form}": Reader(
            lambda form=form: {f"rows.{form}": label_rows(form)}, own_labels(f"rows.{form}")
        )
        for form in ("csv", "tsv", "json", "jsonl")
    },
    "LabelledFile": Reader(
        lambda: {"own/train.csv": label_rows("csv"), "own/test.csv": label_rows("csv").replace(b"saw", b"met")},
        own_labels("own"),
    ),
    "RelationFiles": source(
        lambda path: config.RelationFiles(path=path, entities=("places.txt", "fewrel.json")), relation_files
    ),
    "Tacred": source(lambda path: config.Tacred(path=path), tacred_files),
    "CachedFeatures": source(lambda path: config.CachedFeatures(path=path), vectors),
    "CachedPairs": source(lambda path: config.CachedPairs(path=path), pairs),
    "Digits": source(lambda path: config.Digits(path=path), images),
    "Squad": source(lambda path: config.Squad(path=path), squad),
    "TriviaQa": source(lambda path: config.TriviaQa(path=path), trivia_qa),
    "Quac": source(lambda path: config.Quac(path=path), quac),
    "QaSrl": source(lambda path: config.QaSrl(path=path), qa_srl),
    "Sst": source(
        lambda path: config.Sst(path=path),
        lambda: {f"stsa.binary.{part}": b"1 good\n0 bad film\n" for part in ("train", "dev", "test")},
    ),
    "Woz": source(
        lambda path: config.Woz(path=path),
        lambda: {f"woz_{part}_en.json": to_json(WOZ) for part in ("train", "validate", "test")},
    ),
    "WikiSql": source(lambda path: config.WikiSql(path=path), lambda: {"wikisql.json": to_json(WIKISQL)}),
    "InstructionLines": source(
        lambda path: config.InstructionLines(path=path), lambda: {f"{split}.jsonl": INSTRUCTIONS for split in SPLITS}
    ),
    # Tokenizers, by the names of their settings.
    "SentencePiece": tokenizer("sentencepiece", lambda folder: SentencePieceTokenizer(folder / "x.model")),
    "VectorWords": Reader(
        lambda: {"glove.txt": b"the 0.1 0.2 -3e-2\ncat 1 2 3\ndog 4 5 6\n"},
        lambda folder: read_word_vectors(folder / "glove.txt").values,
    ),
    "BytePairs": tokenizer("pairs", lambda folder: BytePairTokenizer(folder / "tokenizer.json")),
    "BytePairs, folder": tokenizer("gpt2", folder_tokenizer(config.BytePairs())),
    "WordPiece": tokenizer("pieces", lambda folder: WordPieceTokenizer(folder / "tokenizer.json")),
    "WordPiece, folder": tokenizer("bert", folder_tokenizer(config.WordPiece())),
    # Other readers.
    "words.json": tokenizer("words", lambda folder: WordTokenizer.load(folder / "words.json")),
    "Transformer-XL's words": tokenizer("xl", folder_tokenizer(config.Words())),
    "tokenizer of a run": tokenizer("saved", load_tokenizer),
    "cached neighbours": Reader(lambda: {"x.npz": to_npz(**neighbor_arrays())}, read_cached_neighbors),
    "neighbours of splits": Reader(lambda: {"train.json": to_json(NEIGHBORS)}, target_shares),
    "states of layers": Reader(
        lambda: {"x-layer1.json": to_json({"encoder": "e"})},
        lambda folder: has_states(Described(), folder, 1),
    ),
    "features of texts": Reader(described_features, read_features),
    "scores of the demonstration": Reader(demonstration, read_demonstration),
    "queries": Reader(lambda: {"queries.npy": to_npy(np.zeros((3, 4), np.float32))}, read_queries),
}
