"""Text sources: what is read, how it is split, and what a mistake is told."""

import gzip
import io
import json
import lzma
import tarfile

import pytest

from memjax.config import Data, TextClasses
from memjax.data.corpora import enwik8, novels, wikitext
from memjax.data.record_files import texts_from_records
from memjax.data.source_readers import open_source
from memjax.data.sources import (
    SPLITS,
    Texts,
    TextSource,
    assign_split,
    read_text,
    select_split,
    texts_from_directories,
    texts_from_files,
)
from memjax.data.tokenizers import ByteTokenizer, WordTokenizer


def assert_refused(call, *args, match, **kwargs):
    with pytest.raises(ValueError, match=match) as error:
        call(*args, **kwargs)
    assert "\n" not in str(error.value)


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "deep" / "er").mkdir(parents=True)
    (tmp_path / "b.txt").write_text("bee")
    (tmp_path / "deep" / "er" / "a.txt").write_text("é\n")
    (tmp_path / "c.txt.xz").write_bytes(lzma.compress(b"sea"))
    (tmp_path / "d.txt.gz").write_bytes(gzip.compress(b"dee"))
    (tmp_path / ".hidden").write_text("no")
    return tmp_path


def test_text_files_of_a_folder_and_a_glob(folder):
    texts = texts_from_files(folder)
    assert isinstance(texts, TextSource)
    assert dict(zip(texts.names, texts, strict=True)) == {
        "b.txt": "bee",
        "c.txt.xz": "sea",
        "d.txt.gz": "dee",
        "deep/er/a.txt": "é\n",
    }
    assert list(texts_from_files(f"{folder}/**/*.txt")) == ["bee", "é\n"]
    assert texts_from_files(folder).fingerprint == texts.fingerprint
    (folder / "b.txt").write_text("bees")
    assert texts_from_files(folder).fingerprint != texts.fingerprint


def test_mistakes_of_paths(folder):
    assert_refused(
        texts_from_files, folder / "missing", match="does not exist and matches no file; give a file, a folder"
    )
    assert_refused(texts_from_files, "", match="path: not given")
    (folder / "empty").mkdir()
    assert_refused(texts_from_files, folder / "empty", match="has no files")
    for name in "xy":
        (folder / "empty" / name).touch()
    assert_refused(texts_from_files, folder / "empty", match="no files with text .2 empty")
    assert_refused(texts_from_files, folder / "empty" / "x", match="x is empty; give a file with text")
    assert_refused(read_text, folder / "missing", match="is not a file")
    (folder / "bad.xz").write_bytes(b"not packed")
    assert_refused(read_text, folder / "bad.xz", match="bad.xz cannot be unpacked")
    (folder / "bad.gz").write_bytes(b"not packed")
    assert_refused(read_text, folder / "bad.gz", match="bad.gz cannot be unpacked")


def test_text_that_is_not_utf8_is_named_with_its_place(folder):
    (folder / "latin.txt").write_bytes("abcé".encode("latin-1"))
    assert_refused(texts_from_files, folder, match=r"latin.txt is not UTF-8 at byte 3; as latin-1 it reads 'abcé'")


def test_splits_by_name_are_disjoint_and_stable():
    texts = Texts.from_mapping({f"book {i}": str(i) for i in range(400)})
    parts = {split: select_split(texts, split, validation=0.1, test=0.2) for split in SPLITS}
    assert sum(map(len, parts.values())) == 400
    assert sorted(text for part in parts.values() for text in part) == sorted(texts)
    assert 20 < len(parts["validation"]) < 60 < len(parts["test"]) < 110
    assert len({part.fingerprint for part in parts.values()}) == 3
    assert all(assign_split(name, validation=0.1, test=0.2) == "test" for name in parts["test"].names)
    assert_refused(
        select_split, texts, "dev", validation=0.1, test=0.1, match="split: 'dev'; allowed are train, validation"
    )
    few = Texts.from_mapping({"a": "1"})
    assert_refused(select_split, few, "test", validation=0.1, test=0.0, match=r"no document in test \(0% of 1")


def test_one_file_is_cut_into_consecutive_parts(tmp_path):
    lines = [f"line {i}\n" for i in range(100)]
    (tmp_path / "input.txt").write_text("".join(lines))
    parts = [texts_from_files(tmp_path / "input.txt", split=split)[0] for split in SPLITS]
    assert "".join(parts) == "".join(lines) == texts_from_files(tmp_path / "input.txt")[0]
    assert all(part.startswith("line ") and part.endswith("\n") for part in parts)
    assert len(parts[1]) == pytest.approx(0.05 * len("".join(lines)), abs=10)
    (tmp_path / "short.txt").write_text("ab")
    assert_refused(
        texts_from_files, tmp_path / "short.txt", split="validation", match="no text in validation of .*short.txt"
    )


def test_directories_are_joined_in_path_order_or_in_the_listed_order(tmp_path):
    for name, text in {
        "one/b.py": "b\n",
        "one/a/x.py": "x",
        "two/c.py": "c\n",
        "one/.git/y": "no",
        "one/empty": "",
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    texts = texts_from_directories(tmp_path)
    assert texts.names == ["one", "two"] and texts[0] == "# a/x.py\nx\n# b.py\nb\n"
    (tmp_path / "one" / "order").write_text("b.py\n\na/x.py\n")
    ordered = texts_from_directories(tmp_path, pattern="**/*.py", order_file="order")
    assert ordered[0] == "# b.py\nb\n# a/x.py\nx\n" and ordered[1] == "# c.py\nc\n"
    (tmp_path / "one" / "order").write_text("z.py\n")
    assert_refused(texts_from_directories, tmp_path, order_file="order", match="lists .*z.py, which is not a file")
    assert_refused(
        texts_from_directories, tmp_path, pattern="*.js", match="no folder in .* has files that match '[*].js'"
    )
    assert_refused(texts_from_directories, tmp_path / "two" / "c.py", match="is not a folder")
    assert len(texts_from_directories(tmp_path, split="train", validation=0.0, test=0.0)) == 2


@pytest.mark.parametrize("pack", [lambda b: ("d.jsonl", b), lambda b: ("d.jsonl.gz", gzip.compress(b))])
def test_json_lines(tmp_path, pack):
    lines = [json.dumps({"text": "é one"}, ensure_ascii=False), "", json.dumps({"text": "two", "id": 3})]
    name, content = pack("\n".join(lines).encode())
    (tmp_path / name).write_bytes(content)
    texts = texts_from_records(tmp_path / name)
    assert texts.names == [f"{name}:1", f"{name}:3"] and list(texts) == ["é one", "two"]
    refused = "d.jsonl.*, row 1 has no text under 'id'.*it has: text.*name the field"
    assert_refused(texts_from_records, tmp_path / name, field="id", match=refused)


def test_json_lines_mistakes(tmp_path):
    for number, message in enumerate(["is not JSON", "no text under 'text' .it has: list", "is not UTF-8 at byte 10"]):
        lines = b'{"text": \n[1]\n{"text": "\xff"}\n'.split(b"\n")
        (tmp_path / "bad.jsonl").write_bytes(b'{"text": "a"}\n' + lines[number])
        assert_refused(texts_from_records, tmp_path / "bad.jsonl", match=f"bad.jsonl, row 2 .*{message}")
    (tmp_path / "blank.jsonl").write_text("\n\n")
    assert_refused(
        texts_from_records,
        tmp_path / "blank.jsonl",
        match="has no files with text|blank.jsonl has no records; give a file with one JSON object",
    )


def test_enwik8_has_exactly_the_bytes_of_its_splits(tmp_path):
    content = "aéb€c".encode() * 10  # 8 bytes each; cuts fall inside characters
    (tmp_path / "enwik8").write_bytes(content)
    sizes = (62, 9, 9)
    parts = [ByteTokenizer().encode(enwik8(tmp_path / "enwik8", split=s, sizes=sizes)[0]) for s in SPLITS]
    assert [len(part) for part in parts] == [62, 9, 9]
    assert b"".join(bytes((part - 3).tolist()) for part in parts) == content
    assert enwik8(tmp_path / "enwik8", sizes=sizes)[0].encode() == content
    assert enwik8(tmp_path / "enwik8", split="test", sizes=sizes).names == ["enwik8[71:80]"]
    assert_refused(enwik8, tmp_path / "enwik8", match="has 80 bytes; the splits .* need 100000000")


WIKI = (
    " \n = First article = \n \n Text , = 5 = \n = 3 apples = \n more \n \n = = Section = = \n \n Words . \n \n"
    " = Second = \n \n Text \n"
)


@pytest.mark.parametrize("name", ["train.txt", "wiki.train.tokens", "train.txt.xz"])
def test_wikitext(tmp_path, name):
    (tmp_path / name).write_bytes(lzma.compress(WIKI.encode()) if name.endswith("xz") else WIKI.encode())
    articles = wikitext(tmp_path, split="train")
    assert articles.names == ["train/00000 First article", "train/00001 Second"]
    assert "".join(articles) == WIKI and articles[1].startswith(" = Second = \n")
    (stream,) = wikitext(tmp_path, split="train", articles=False)
    assert stream == WIKI
    tokenizer = WordTokenizer.train([stream])
    assert sum(len(tokenizer.encode(text)) for text in articles) == len(WIKI.split()) + WIKI.count("\n")
    assert_refused(
        wikitext, tmp_path, split="validation", match="has none of valid.txt, valid.txt.xz.*give the folder of Wiki"
    )


def test_wikitext_without_headings_is_one_article(tmp_path):
    (tmp_path / "test.txt").write_text(" words \n")
    assert wikitext(tmp_path, split="test").names == ["test/00000 words"]


@pytest.mark.parametrize("suffix", ["", ".xz", ".gz"])
def test_novels_of_a_tar(tmp_path, suffix):
    path = tmp_path / f"novels.tar{suffix}"
    with tarfile.open(path, f"w:{suffix[1:]}") as archive:
        for name, content in {
            "c/B_1900.txt": b"Bee",
            "c/A_1899.txt": b"Aye",
            "c/MANIFEST.tsv": b"no",
            "c/X.txt": b"\xff",
        }.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    books = novels(path)
    assert books.names == ["A_1899.txt", "B_1900.txt", "X.txt"] and books[0] == "Aye"
    assert_refused(lambda: books[2], match=r"novels.tar.*:X.txt is not UTF-8 at byte 0")
    assert novels(path, split="train", validation=0.0, test=0.0).names == books.names
    assert novels(path, split="test", validation=0.0, test=1.0).names == books.names


def test_novels_of_a_folder_and_mistakes(tmp_path):
    (tmp_path / "corpus").mkdir()
    for name in ("A.txt", "B.txt", "C.md"):
        (tmp_path / "corpus" / name).write_text(name)
    assert dict(zip(novels(tmp_path).names, novels(tmp_path), strict=True)) == {"A.txt": "A.txt", "B.txt": "B.txt"}
    assert_refused(novels, tmp_path / "missing.tar", match="does not exist; give a folder or a tar")
    assert_refused(
        novels, tmp_path / "corpus" / "A.txt", match=r"A\.txt cannot be unpacked \(.*\), allowed: a readable tar"
    )
    with tarfile.open(tmp_path / "empty.tar", "w"):
        pass
    assert_refused(novels, tmp_path / "empty.tar", match="holds no .txt files")


@pytest.mark.parametrize("wanted", ["labelled", "instructions"])
def test_a_split_without_an_example_is_named_with_its_folder(tmp_path, wanted):
    (tmp_path / "train.csv").write_text("1,,a\n2,,b\n")
    (tmp_path / "test.csv").write_text("1,,c\n")
    source = TextClasses(data_set="yelp", path=str(tmp_path), validation_percent=0)
    assert len(open_source(Data(source=source), "train", wanted=wanted)) == 2
    with pytest.raises(ValueError, match=f"{tmp_path}, whose validation split has no example, allowed: at least one"):
        open_source(Data(source=source), "validation", wanted=wanted)
