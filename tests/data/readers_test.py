"""Every reader of foreign files reads what it is given, or refuses it in one line that names the file."""

import ast
import dataclasses
import gzip
import os
import sys
from pathlib import Path

import numpy as np
import pytest

from memjax import config
from memjax.data import file_contents
from memjax.data.corpora import novels
from memjax.data.dialogue import read_cmu_dog
from memjax.data.file_contents import MAX_RATIO, read_tar
from memjax.data.paths import find_files, find_packed, read_text
from memjax.data.reader_errors import reading
from memjax.data.reading_report import UnreadableError
from memjax.data.sources import texts_from_directories
from memjax.settings.sources import Source
from memjax.settings.tokenizers import Tokenizer
from tools.faults.input_files import to_tar
from tools.faults.inputs import READERS, cmu_dog, trivia_qa
from tools.faults.readers import try_inputs, try_reader

PACKAGE = Path(__file__).parents[2] / "memjax"


def subclasses(kind: type) -> list[type]:
    return [kind, *(found for child in kind.__subclasses__() for found in subclasses(child))]


def test_every_source_and_tokenizer_with_a_path_has_a_row():
    kinds = {
        kind.__name__
        for base in (Source, Tokenizer)
        for kind in subclasses(base)
        if vars(config).get(kind.__name__) is kind and not kind.__subclasses__()
        for field in dataclasses.fields(kind)
        if field.name in ("path", "model", "vocab")
    }
    assert len(kinds) > 25 and kinds - {name.split(",")[0] for name in READERS} == set()


def blocks_of_reading() -> set[tuple[str, int]]:
    """File and line of every `with reading(...)` in memjax."""
    return {
        (str(path), item.context_expr.lineno)
        for path in PACKAGE.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.With)
        for item in node.items
        if isinstance(item.context_expr, ast.Call) and getattr(item.context_expr.func, "id", "") == "reading"
    }


def test_the_rows_reach_every_block_of_reading(monkeypatch):
    reached = set()

    def watched(path, form):
        frame = sys._getframe(1)
        reached.add((frame.f_code.co_filename, frame.f_lineno))
        return reading(path, form)

    assert all(try_reader(name, row.files(), seconds=300).kind == "read" for name, row in READERS.items())
    for module in [module for name, module in sys.modules.items() if name.startswith("memjax")]:
        if vars(module).get("reading") is reading:
            monkeypatch.setattr(module, "reading", watched)
    outcomes = {name: try_reader(name, row.files()) for name, row in READERS.items()}
    assert {name: outcome for name, outcome in outcomes.items() if outcome.kind != "read"} == {}
    assert blocks_of_reading() - reached == set()


def mistakes(name: str, numbers: range) -> list[str]:
    return [
        f"{label}: {outcome.kind}\n{outcome.details}"
        for label, outcome in try_inputs(name, numbers)
        if outcome.kind not in ("read", "said")
    ]


TENTH = range(17)
"""numbers of the inputs of the fast tests, of those of `python -m tools.faults.readers`"""


@pytest.mark.parametrize("name", READERS)
def test_a_damaged_input_is_read_or_said(name):
    assert mistakes(name, TENTH) == []


@pytest.mark.slow
@pytest.mark.parametrize("name", READERS)
def test_ten_thousand_damaged_inputs_are_read_or_said(name):
    assert mistakes(name, range(len(TENTH), 10 * len(TENTH) + 1)) == []


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (KeyError("data"), "path: a.json has no 'data', allowed: a list"),
        (RecursionError("deep"), "path: a.json is nested too deeply, allowed: a list"),
        (EOFError(), "path: a.json cannot be unpacked (EOFError), allowed: a list"),
        (MemoryError("2 EiB"), "path: a.json does not fit into the memory (2 EiB), allowed: a list"),
        (OSError("bad\nblock"), "path: a.json cannot be read (bad block), allowed: a list"),
        (ValueError("a.json:3: given 4"), "a.json:3: given 4"),
        (
            FileNotFoundError(2, "gone", "b.json"),
            "path: a.json cannot be read ([Errno 2] gone: 'b.json'), allowed: a list",
        ),
    ],
)
def test_an_error_of_a_parser_is_a_line(error, line):
    def read():
        with reading("a.json", "a list"):
            yield 1
            raise error

    records = read()
    assert next(records) == 1
    with pytest.raises(UnreadableError) as raised:  # around the iteration, not the call alone
        next(records)
    assert str(raised.value) == line


@pytest.mark.parametrize("error", [FileNotFoundError(2, "gone", "a.json"), ImportError("x"), UnreadableError("x", "y")])
def test_what_says_itself_what_is_wrong_passes(error):
    with pytest.raises(type(error)) as raised, reading("a.json", "a list"):
        raise error
    assert raised.value is error


def test_a_file_that_unpacks_to_far_more_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(file_contents, "FREE_BYTES", 1 << 20)
    text, tar = tmp_path / "blanks.txt.gz", tmp_path / "zeros.tar.xz"
    text.write_bytes(gzip.compress(b" " * (1 << 20)))
    assert len(read_text(text)) == 1 << 20  # a small text may be as regular as it likes
    text.write_bytes(gzip.compress(b" " * (1 + (1 << 20))))
    tar.write_bytes(to_tar({"a.txt": bytes(1 << 20)}, "w:xz"))
    for file, read in ((text, read_text), (tar, novels)):
        message = rf"{file.name} unpacks to more than {MAX_RATIO} times its size .*unpack it and give the result$"
        with pytest.raises(UnreadableError, match=message):
            read(file)


def test_links_in_a_tar_are_left_out(tmp_path):
    import tarfile

    link = tarfile.TarInfo("b.txt")
    link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
    (tmp_path / "a.tar").write_bytes(to_tar({"./a.txt": b"x"}, "w"))
    with tarfile.open(tmp_path / "a.tar", "a") as archive:
        archive.addfile(link)
    assert read_tar(tmp_path / "a.tar", lambda name: True) == {"a.txt": b"x"}


@pytest.fixture
def outside(tmp_path):
    (tmp_path / "secret.txt").write_text("Paris is a secret")
    return tmp_path / "secret.txt"


def refused(outside: Path):
    return pytest.raises(ValueError, match=rf"leads to {outside}, allowed: files inside .*\(cp -L\)$")


def put(folder: Path, files) -> Path:
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    return folder


@pytest.mark.parametrize("page", ["../../../secret.txt", "/etc/hostname", "link.txt"])
def test_pages_of_trivia_qa_are_inside_its_folder(tmp_path, outside, page):
    folder = put(tmp_path / "data", trivia_qa())
    questions = folder / "qa" / "web-train.json"
    (folder / "evidence" / "web" / "link.txt").symlink_to(outside)
    questions.write_text(questions.read_text().replace('"1.txt"', f'"{page}"'))
    row = READERS["TriviaQa"]
    target = "/etc/hostname" if page.startswith("/") else str(outside)
    with pytest.raises(ValueError, match=rf"leads to {target}, allowed: files inside"):
        row.read(folder)


def test_order_files_name_files_inside_the_folder(tmp_path, outside):
    folder = put(tmp_path / "data", {"a/x.txt": b"x", "b/x.txt": b"x", "a/order": b"../../secret.txt\n"})
    with refused(outside):
        texts_from_directories(folder, order_file="order")
    (folder / "a" / "order").write_text("x.txt\n../b/x.txt\n")  # another folder of the same data
    assert texts_from_directories(folder, order_file="order").names == ["a", "b"]


def test_links_lead_to_files_inside_the_folder(tmp_path, outside):
    folder = put(tmp_path / "data", {"a/x.txt": b"x", "WikiData/y.json": b"{}"})
    (folder / "a" / "inside.txt").symlink_to(folder / "a" / "x.txt")
    assert len(find_files(folder)) == 3 and find_packed(folder / "a", "inside.txt")
    (folder / "a" / "z.txt").symlink_to(outside)
    for read in (
        lambda: find_files(folder),
        lambda: find_packed(folder / "a", "z.txt"),
        lambda: texts_from_directories(folder),
    ):
        with refused(outside):
            read()
    assert find_files(folder / "a" / "z.txt") and find_files(f"{folder}/a/*.txt")  # named by the user
    (folder / "WikiData" / "y.json").unlink()
    (folder / "WikiData" / "y.json").symlink_to(outside)
    with refused(outside):
        read_cmu_dog(put(folder, {k: v for k, v in cmu_dog().items() if "WikiData" not in k}), "train")
    moved = tmp_path / "link"
    os.symlink(folder / "a", moved)  # the folder itself may be a link
    (folder / "a" / "z.txt").unlink()
    assert len(find_files(moved)) == 2


def test_a_header_that_asks_for_all_memory_is_a_line(tmp_path):
    file = tmp_path / "queries.npy"
    np.save(file, np.zeros((3, 4), np.float32))
    file.write_bytes(file.read_bytes().replace(b"(3, 4)", b"(9999999999999, 4)"))
    with pytest.raises(UnreadableError, match=r"queries\.npy cannot be read .*allowed: a \.npy, float32"):
        READERS["queries"].read(tmp_path)
