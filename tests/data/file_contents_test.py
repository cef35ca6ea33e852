"""Contents of files: packed, encoded, of other forms, and what a refusal proposes."""

import bz2
import gzip
import io
import lzma
import random
import zipfile

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memjax.data.file_contents import decode_bytes, guess_encoding, open_unpacked, read_text_file, unpacked_name
from memjax.data.reading_report import ReadingReport, UnreadableError
from memjax.settings.reading_rules import ReadingRules, check_encoding

TEXT = "Ein Café, zwei Straßen; “Anführung” – und noch ein Satz.\n" * 20


def refusal_of(read, *arguments):
    try:
        read(*arguments)
    except UnreadableError as refusal:
        return str(refusal)
    return ""


def zip_files(files):
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, text in files.items():
            archive.writestr(name, text)
    return content.getvalue()


def zstandard_of(content):
    return pytest.importorskip("zstandard").compress(content)


PACKERS = {
    "plain.txt": bytes,
    "a.txt.gz": gzip.compress,
    "gz_without_ending": gzip.compress,
    "a.bz2": bz2.compress,
    "a.xz": lzma.compress,
    "xz_named.gz": lzma.compress,
    "a.zst": zstandard_of,
    "a.zip": lambda content: zip_files({"inside.txt": content, "__MACOSX/._inside.txt": b"x"}),
    "two_streams.gz": lambda content: gzip.compress(content[:7]) + gzip.compress(content[7:]),
}


@pytest.mark.parametrize("name", PACKERS)
def test_packed_files_are_told_by_their_content(tmp_path, name):
    file = tmp_path / name
    file.write_bytes(PACKERS[name](TEXT.encode()))
    assert read_text_file(file) == TEXT
    if name == "a.zip":
        assert unpacked_name(file) == "inside.txt"


@pytest.mark.parametrize("name", [name for name in PACKERS if name.endswith((".gz", ".bz2", ".xz", ".zst", ".zip"))])
def test_cut_and_mutated_packed_files_are_one_line_or_right(tmp_path, name):
    content, file, draws = PACKERS[name](TEXT.encode()), tmp_path / name, random.Random(0)
    for _ in range(12):
        broken = bytearray(content[: draws.randrange(1, len(content))])
        broken[draws.randrange(len(broken))] ^= draws.randrange(1, 256)
        file.write_bytes(broken)
        if message := refusal_of(read_text_file, file):
            assert "\n" not in message and "path: " in message and name in message


FORMS = {
    "PDF": (b"%PDF-1.7\n1 0 obj", "pdftotext"),
    "Word": (zip_files({"word/document.xml": "x", "[Content_Types].xml": "x"}), "plain text"),
    "Excel": (zip_files({"xl/workbook.xml": "x", "a": "b"}), "CSV"),
    "EPUB": (zip_files({"META-INF/container.xml": "x", "a": "b"}), "pandoc"),
    "PNG": (b"\x89PNG\r\n\x1a\n" + bytes(30), "files with text"),
    "JPEG": (b"\xff\xd8\xff\xe0\0\x10JFIF", "files with text"),
    "compiled Python": (b"\xa7\r\r\n\0\0\0\0" + bytes(range(64)), "files with text"),
    "ELF": (b"\x7fELF\2\1\1\0" + bytes(20), "files with text"),
    "SQLite": (b"SQLite format 3\0" + bytes(40), "CSV"),
    "not text": (random.Random(1).randbytes(500), "files with text"),
    "empty": (b"", "file with text"),
    "2 files": (zip_files({"a.txt": "a", "b.txt": "b"}), "unpack it"),
}


@pytest.mark.parametrize("form", FORMS)
def test_other_forms_say_what_they_are_and_what_to_do(tmp_path, form):
    content, advice = FORMS[form]
    (tmp_path / "some.file").write_bytes(content)
    with pytest.raises(UnreadableError, match=form) as refusal:
        read_text_file(tmp_path / "some.file")
    assert advice in str(refusal.value) and "some.file" in str(refusal.value)


@settings(max_examples=60, deadline=None)
@given(st.binary(min_size=64, max_size=400))
def test_whatever_the_bytes_it_is_a_text_or_one_line(content):
    assert "\n" not in refusal_of(decode_bytes, content, "any")


def test_a_text_may_begin_with_the_letters_of_another_form(tmp_path):
    for start in ("RIFF", "ID3", "BZh", "PK", "GIF8", "Rar!", "PAR1"):
        (tmp_path / "a.txt").write_text(f"{start} is how this text begins.\n")
        assert read_text_file(tmp_path / "a.txt").startswith(start)


ALPHABETS = {
    "Cyrillic": "Привет, мир! Как дела сегодня?\n",
    "Greek": "Καλημέρα, κόσμε. Τι κάνεις;\n",
    "Hebrew": "שלום עולם, מה נשמע היום?\n",
    "Arabic": "مرحبا بالعالم كيف حالك\n",
    "Devanagari": "नमस्ते दुनिया आप कैसे हैं\n",
    "Latin": "Ein Café, zwei Straßen.\n",
}


@pytest.mark.parametrize("alphabet", ALPHABETS)
def test_two_bytes_a_character_are_told_without_a_mark(tmp_path, alphabet):
    for encoding in ("utf-16-le", "utf-16-be"):
        (tmp_path / "a.txt").write_bytes(ALPHABETS[alphabet].encode(encoding))
        with pytest.raises(UnreadableError, match=f"--encoding {encoding} "):
            read_text_file(tmp_path / "a.txt")
        assert read_text_file(tmp_path / "a.txt", encoding) == ALPHABETS[alphabet]


def test_texts_of_two_bytes_without_blanks_are_read_where_the_encoding_is_given(tmp_path):
    for encoding in ("utf-16-le", "utf-16-be", "utf-32-le"):
        (tmp_path / "a.txt").write_bytes(("你好世界，我们来了。" * 30).encode(encoding))
        assert read_text_file(tmp_path / "a.txt", encoding) == "你好世界，我们来了。" * 30


ENCODINGS = {
    "utf-16": TEXT,
    "utf-16-le": "plain words only, and a second line\n" * 3,
    "utf-16-be": "plain words only, and a second line\n" * 3,
    "utf-32": TEXT,
    "latin-1": "Ein Café, zwei Straßen\n",
    "cp1252": "“quoted” – and a dash\n",
}


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_the_refusal_proposes_the_encoding_that_fits(encoding):
    text, content = ENCODINGS[encoding], ENCODINGS[encoding].encode(encoding)
    with pytest.raises(UnreadableError, match=f"convert it to UTF-8, or give --encoding {encoding} for") as refusal:
        decode_bytes(content, "a.txt")
    assert refusal.value.is_broken and repr(" ".join(text.split())[:8])[:-1] in str(refusal.value)
    assert decode_bytes(content, "a.txt", encoding) == text


@settings(max_examples=60, deadline=None)
@given(st.text(st.characters(codec="latin-1", categories=["L", "N", "P", "Zs"]), min_size=8))
def test_what_is_proposed_decodes(text):
    content = text.encode("latin-1")
    if refusal_of(decode_bytes, content, "a.txt"):
        proposed = guess_encoding(content)
        assert not proposed or content.decode(proposed)
    else:
        assert decode_bytes(content, "a.txt") == content.decode("utf-8").removeprefix("\ufeff")


@settings(max_examples=60, deadline=None)
@given(st.text(st.characters(categories=["L", "N", "P", "Zs"]), min_size=1), st.sampled_from(["latin-1", "cp1252"]))
def test_files_that_are_utf8_stay_so_whatever_the_encoding(text, encoding):
    assert decode_bytes(text.encode("utf-8"), "a.txt", encoding) == text.removeprefix("\ufeff")


def test_a_single_broken_character_is_named_with_its_line():
    content = "ä ö ü\nfine\n".encode() + b"bro\xffken ends here, and so on\n"
    with pytest.raises(UnreadableError, match="not UTF-8 at byte 17, line 3; the rest is: mend that line"):
        decode_bytes(content, "a.txt")


def test_a_mark_of_the_byte_order_is_left_out_and_a_zero_is_kept():
    assert decode_bytes(b"\xef\xbb\xbfa\0b", "a.txt") == "a\0b"
    assert decode_bytes("a€".encode()[:-1], "a.txt", is_head=True) == "a"


@pytest.mark.parametrize("name", ["", "latinn", "hex", "rot13", "utf-99", "a b", "undefined", "idna2"])
def test_encodings_that_there_are_not(name):
    with pytest.raises(ValueError, match="allowed: an encoding such as utf-8"):
        ReadingRules(encoding=name)
    assert check_encoding("Windows-1252") == "cp1252"


def test_the_line_about_what_was_skipped():
    error = lambda reason, broken=False: UnreadableError(f"a.png is {reason}", reason, is_broken=broken)
    report = ReadingReport("files", "folder", ReadingRules())
    for _ in range(209):
        report.count_read(1000)
    for reason in ("not text", "not text", "empty"):
        report.count_skipped(error(reason), 10)
    assert report.finish() == "3 of 212 files skipped: 2 not text, 1 empty"
    with pytest.raises(UnreadableError, match="; --skip leaves out what cannot be read"):
        report.count_skipped(error("not UTF-8", True), 10)
    with pytest.raises(UnreadableError, match="is empty$"):
        report.count_skipped(error("empty"), 0, is_alone=True)
    report.count_skipped(error("not text"), 20000)
    with pytest.raises(ValueError, match="path: folder: 4 of 213 files skipped.*9% of the bytes; more than 5% needs"):
        report.finish()
    with pytest.raises(UnreadableError, match="is empty"):
        ReadingReport("files", "folder", ReadingRules(skip="none")).count_skipped(error("empty"), 0)
    lenient = ReadingReport("files", "folder", ReadingRules(skip="all"))
    lenient.count_skipped(error("not UTF-8", True), 100)
    with pytest.raises(ValueError, match="no files with text .1 not UTF-8.; a.png is not UTF-8"):
        lenient.finish()
    lenient.count_read(1)
    assert lenient.finish() == "1 of 2 files skipped: 1 not UTF-8"


def test_open_unpacked_streams(tmp_path):
    (tmp_path / "a.gz").write_bytes(gzip.compress(b"line\n" * 100))
    with open_unpacked(tmp_path / "a.gz") as file:
        assert next(iter(file)) == b"line\n"
