"""Reads the text of files: unpacks and decodes them, and raises helpful errors for files that are not text."""

from __future__ import annotations

import bz2
import codecs
import collections
import contextlib
import gzip
import importlib
import io
import lzma
import os
import re
import tarfile
import zipfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any, NamedTuple

from memjax.data.reader_errors import reading
from memjax.data.reading_report import UnreadableError
from memjax.settings.reading_rules import check_encoding

__all__ = [
    "check_text",
    "decode_bytes",
    "estimate_text_size",
    "import_extra",
    "open_unpacked",
    "detect_compression",
    "guess_encoding",
    "read_tar",
    "read_text_file",
    "unpacked_name",
]

HEAD_BYTES = 1 << 16  # Number of bytes from which the kind of a file is detected.
MAX_RATIO, FREE_BYTES = 100, 1 << 26
"""Largest number of unpacked bytes per packed byte, and number of unpacked bytes that are allowed in any case. Texts
have a ratio of up to 20."""
_BLOCK = 1 << 20
MAX_CONTROL = 0.02  # Largest share of control characters in a text. Random bytes have a tenth.


class _Kind(NamedTuple):
    """A kind of file that is not text: its first bytes, its name, and advice for the user."""

    start: bytes
    name: str
    advice: str = ""


_KINDS = (
    _Kind(b"%PDF-", "a PDF", "extract its text (pdftotext FILE.pdf)"),
    _Kind(b"{\\rtf", "an RTF document", "save it as plain text"),
    _Kind(b"\xd0\xcf\x11\xe0", "an old Office document", "save it as plain text or CSV"),
    _Kind(b"\x89PNG", "a picture (PNG)"),
    _Kind(b"\xff\xd8\xff", "a picture (JPEG)"),
    _Kind(b"GIF8", "a picture (GIF)"),
    _Kind(b"II*\0", "a picture (TIFF)"),
    _Kind(b"MM\0*", "a picture (TIFF)"),
    _Kind(b"RIFF", "a picture or sound (RIFF)"),
    _Kind(b"ID3", "a sound (MP3)"),
    _Kind(b"OggS", "a sound (Ogg)"),
    _Kind(b"fLaC", "a sound (FLAC)"),
    _Kind(b"\x7fELF", "a program (ELF)"),
    _Kind(b"\xca\xfe\xba\xbe", "a program (Java or macOS)"),
    _Kind(b"SQLite format 3\0", "an SQLite database", "export a table as CSV (sqlite3 -csv)"),
    _Kind(b"7z\xbc\xaf\x27\x1c", "a 7z archive", "unpack it"),
    _Kind(b"Rar!", "a RAR archive", "unpack it"),
    _Kind(b"\x93NUMPY", "a NumPy array", "--tasks takes folders of vectors"),
    _Kind(b"\x89HDF", "an HDF5 file", "export its texts as JSON lines"),
)
_ZIP_KINDS = (
    ("word/document.xml", "a Word document (DOCX)", "save it as plain text"),
    ("xl/workbook.xml", "an Excel sheet (XLSX)", "save it as CSV"),
    ("ppt/presentation.xml", "a presentation (PPTX)", "save it as plain text"),
    ("META-INF/container.xml", "an EPUB book", "convert it to plain text (pandoc -t plain)"),
    ("content.xml", "an OpenDocument file", "save it as plain text or CSV"),
    ("META-INF/MANIFEST.MF", "a Java archive", ""),
)
PARQUET, ARROW, ARROW_STREAM = b"PAR1", b"ARROW1", b"\xff\xff\xff\xff"  # First bytes of tables.


class Packing(NamedTuple):
    """A compression format of files: its first bytes, and the approximate number of bytes of prose per compressed byte.

    Attributes:
      start: First bytes of a file in this format.
      ratio: Approximate number of bytes of prose per compressed byte.
    """

    start: bytes
    ratio: int


PACKINGS: Mapping[str, Packing] = {
    ".xz": Packing(b"\xfd7zXZ\0", 4),
    ".gz": Packing(b"\x1f\x8b", 3),
    ".bz2": Packing(b"BZh", 4),
    ".zst": Packing(b"\x28\xb5\x2f\xfd", 3),
    ".zip": Packing(b"PK", 3),
}
"""Compression formats by the ending of a file name. A file may have such an ending after its own."""
_PARQUET_RATIO = 3  # Bytes of prose in one byte of a Parquet file, roughly.
_BZIP2_BLOCKS = (b"1AY&SY", b"\x17rE8P\x90")
"""Possible bytes of a bzip2 file after `BZh` and a digit: a block, or the end of an empty file."""


def _unreadable(file: object, name: str, advice: str = "") -> UnreadableError:
    """Returns the error for a file of a kind that is not text."""
    message = f"path: {file} is {name}; {advice or 'give files with text'}"
    return UnreadableError(message, name.removeprefix("a ").removeprefix("an "), is_broken=False)


def import_extra(module: str, file: object, form: str) -> Any:
    """Imports a module of the extra `files` and returns it. If it is not installed, the error names `file`, which needs
    it, and the kind `form` of the file, such as 'Parquet'.

    Args:
      module: Name of the module.
      file: File that needs it, for the error.
      form: Kind of the file, such as 'Parquet'.

    Raises:
      ValueError: The package is not installed.
    """
    try:
        return importlib.import_module(module)
    except ImportError:
        message = f"path: {file} is {form}, and {module} is not installed; pip install 'memjax[files]'"
        raise ValueError(message) from None


def detect_compression(path: str | os.PathLike[str]) -> str:
    """Detects the compression of a file by its first bytes: '.gz', '.bz2', '.xz', '.zst', '.zip', or '' for none."""
    with open(path, "rb") as file:
        start = file.read(10)
    ending = next((ending for ending, packing in PACKINGS.items() if start.startswith(packing.start)), "")
    # Texts may begin with the letters PK or BZh.
    is_packed = {".zip": lambda: zipfile.is_zipfile(path), ".bz2": lambda: start[4:] in _BZIP2_BLOCKS}
    return ending if is_packed.get(ending, lambda: True)() else ""


def estimate_text_size(path: Path) -> int:
    """Estimates the number of bytes of text in a file by its size and its ending."""
    ratios = {".parquet": _PARQUET_RATIO, **{ending: packing.ratio for ending, packing in PACKINGS.items()}}
    return path.stat().st_size * ratios.get(path.suffix, 1)


def unpacked_name(path: str | os.PathLike[str]) -> str:
    """Returns the name of a file's content: its own name without '.gz' and so on, or that of the file in a .zip."""
    name, ending = Path(path).name, detect_compression(path)
    if ending == ".zip":
        with reading(path, "a .zip of one file"), zipfile.ZipFile(path) as archive:
            return Path(_zip_member(path, archive)).name
    return name.removesuffix(ending)


@contextlib.contextmanager
def open_unpacked(path: str | os.PathLike[str]) -> Iterator[IO[bytes]]:
    """Context manager that opens a file for reading bytes, and unpacks it if its first bytes are those of .gz, .bz2,
    .xz, .zst or .zip (with one file).

    Raises:
      UnreadableError: A document of an office program, a .zip of several files, a damaged file, or one that unpacks to
        more than `FREE_BYTES` and more than `MAX_RATIO` times its size.
    """
    ending, where = detect_compression(path), Path(path)
    zstandard = import_extra("zstandard", path, "packed with Zstandard") if ending == ".zst" else None
    form = f"a whole {ending} file" if ending else "a file with its own ending"
    with reading(path, form), contextlib.ExitStack() as stack:
        if not ending:
            if where.suffix in PACKINGS and where.stat().st_size:
                raise EOFError(f"its content is not that of a {where.suffix} file")
            yield stack.enter_context(open(path, "rb"))
            return
        if ending == ".zip":
            archive = stack.enter_context(zipfile.ZipFile(path))
            content = stack.enter_context(archive.open(_zip_member(path, archive)))
        elif zstandard is not None:
            packed = stack.enter_context(open(path, "rb"))
            content = zstandard.ZstdDecompressor().stream_reader(packed, read_across_frames=True)
        else:
            opener: Callable[..., Any] = {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open}[ending]
            content = stack.enter_context(opener(path, "rb"))
        yield stack.enter_context(io.BufferedReader(_BoundedReader(content, where), _BLOCK))


class _BoundedReader(io.RawIOBase):
    """The unpacked bytes of a file, of which too many are an error."""

    def __init__(self, content: Any, path: Path):
        self._content, self._path, self._size = content, path, 0
        self._most = max(FREE_BYTES, MAX_RATIO * path.stat().st_size)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any, /) -> int:
        data = self._content.read(min(len(buffer), _BLOCK))
        self._size += len(data)
        if self._size > self._most:
            message = (
                f"path: {self._path} unpacks to more than {MAX_RATIO} times its size ({self._size:,} bytes so far)"
            )
            raise UnreadableError(
                f"{message}, allowed: less; if that is right, unpack it and give the result", "too large"
            )
        buffer[: len(data)] = data
        return len(data)

    def readall(self) -> bytes:
        return b"".join(iter(lambda: self.read(_BLOCK) or b"", b""))


def read_tar(path: str | os.PathLike[str], is_needed: Callable[[str], bool]) -> dict[str, bytes]:
    """Reads files of a tar, which may be packed, as a mapping from name to content. Links and sparse files in it are
    left out.

    Args:
      path: Path of the tar.
      is_needed: Function that returns whether the file of a name is read.

    Raises:
      UnreadableError: The file is not a tar, is damaged, or unpacks to far more than its size.
    """
    files = {}
    with open_unpacked(path) as content, reading(path, "a readable tar"):
        with tarfile.open(fileobj=content, mode="r|") as archive:
            for member in archive:
                name = member.name.removeprefix("./")
                if member.isreg() and not member.issparse() and is_needed(name):
                    body = archive.extractfile(member)
                    files[name] = b"" if body is None else body.read()
    return files


def _zip_member(path: str | os.PathLike[str], archive: zipfile.ZipFile) -> str:
    """Returns the name of the one file in a .zip."""
    names = [name for name in archive.namelist() if not name.endswith("/")]
    for member, name, advice in _ZIP_KINDS:
        if member in names:
            raise _unreadable(path, name, advice)
    names = [name for name in names if not any(part.startswith((".", "__MACOSX")) for part in Path(name).parts)]
    if len(names) == 1:
        return names[0]
    message = f"path: {path} is a .zip of {len(names)} files; unpack it and give the folder"
    raise UnreadableError(message, "a .zip of several files")


def check_text(content: bytes, name: object, encoding: str = "utf-8") -> None:
    """Raises `UnreadableError` if `content`, the first bytes of a file, is empty or not text. The error names the file
    `name`.

    Args:
      content: First bytes of the file, unpacked.
      name: Name of the file in error messages.
      encoding: Encoding of the text if it is not UTF-8.
    """
    if not content:
        raise UnreadableError(f"path: {name} is empty; give a file with text", "empty", is_broken=False)
    is_printable = _control_share(content) == 0
    for kind in _KINDS:
        # A text may begin with the letters RIFF.
        if content.startswith(kind.start) and (not is_printable or kind.start in (b"%PDF-", b"{\\rtf")):
            raise _unreadable(name, kind.name, kind.advice)
    if content.startswith(PARQUET + b"\x15") or content.startswith((ARROW, ARROW_STREAM)):
        raise _unreadable(name, "a table (Parquet or Arrow)", "read it as records (JsonLines)")
    if content[257:262] == b"ustar":
        raise _unreadable(name, "a tar", "unpack it and give the folder")
    if content[2:4] == b"\r\n" and content[4:8] in (b"\0\0\0\0", b"\1\0\0\0", b"\3\0\0\0"):
        raise _unreadable(name, "compiled Python")
    is_given = check_encoding(encoding) != "utf-8" and _is_decoded(content, encoding)
    if not is_given and not _wide_encoding(content) and _control_share(content) > MAX_CONTROL:
        raise UnreadableError(f"path: {name} is not text; give files with text", "not text", is_broken=False)


def _control_share(content: bytes) -> float:
    """Returns the share of control characters, not counting white space and terminal escapes."""
    sample = content[:HEAD_BYTES]
    printable = sample.translate(None, bytes({*range(32), 127} - {*b"\t\n\v\f\r\x1b\b"}))
    return 1 - len(printable) / max(len(sample), 1)


def _wide_encoding(content: bytes) -> str:
    """Returns the encoding with two or four bytes per character that a text seems to have. Empty if it has none."""
    for mark, encoding in (
        *((codecs.BOM_UTF32_LE, "utf-32"), (codecs.BOM_UTF32_BE, "utf-32")),
        *((codecs.BOM_UTF16_LE, "utf-16"), (codecs.BOM_UTF16_BE, "utf-16")),
    ):
        if content.startswith(mark) and _is_decoded(content, encoding):
            return encoding
    # Without a mark: one byte of each pair is zero for Latin letters, zero or one other for those of most alphabets.
    sample = content[: min(len(content), HEAD_BYTES) // 2 * 2]
    halves = (sample[::2], sample[1::2])
    zeros = [half.count(0) / max(len(half), 1) for half in halves]
    common = [_share_of_two(half) for half in halves]
    if max(zeros) > 0.4 and min(zeros) < 0.05:
        encoding = "utf-16-be" if zeros[0] > zeros[1] else "utf-16-le"
    elif max(zeros) > 0 and max(common) > 0.9 and min(common) < 0.7:
        encoding = "utf-16-be" if common[0] > common[1] else "utf-16-le"
    else:
        return ""
    return encoding if _is_decoded(sample, encoding) else ""


def _share_of_two(content: bytes) -> float:
    """Returns the share of the two most common bytes."""
    return sum(count for _, count in collections.Counter(content).most_common(2)) / max(len(content), 1)


def _is_decoded(content: bytes, encoding: str) -> bool:
    """Returns whether the first bytes of a text can be decoded, and become printable characters."""
    try:
        text = codecs.getincrementaldecoder(encoding)().decode(content[:HEAD_BYTES])
    except UnicodeError:
        return False
    strange = sum(
        not character.isprintable() and character not in "\t\n\v\f\r\x1b\b\ufeff\xa0\xad" for character in text
    )
    return strange <= MAX_CONTROL * len(text)


def guess_encoding(content: bytes) -> str:
    """Guesses the encoding of the bytes of a text that is not UTF-8, such as 'latin-1' or 'utf-16'. Empty if none fits.

    UTF-16, Latin-1 and Windows-1252 are recognised here. For longer texts with more than a fifth of bytes beyond ASCII,
    `charset_normalizer` is used if it is installed.

    Example:
      >>> guess_encoding("café".encode("latin-1")), guess_encoding("“café”".encode("cp1252"))
      ('latin-1', 'cp1252')
      >>> guess_encoding("café".encode("utf-16")), guess_encoding("café".encode("utf-16-be"))
      ('utf-16', 'utf-16-be')
    """
    if wide := _wide_encoding(content):
        return wide
    sample = content[:HEAD_BYTES]
    high = [byte for byte in sample if byte >= 128]
    if len(high) > max(0.2 * len(sample), 50):  # of short texts it says anything
        with contextlib.suppress(ImportError):
            from charset_normalizer import from_bytes

            best = from_bytes(sample).best()
            if best and not best.encoding.startswith("utf"):
                return best.encoding.replace("_", "-")
    if not any(128 <= byte < 160 for byte in high):
        return "latin-1"
    return "cp1252" if _is_decoded(content, "cp1252") else ""


def decode_bytes(content: bytes, name: object, encoding: str = "utf-8", *, is_head: bool = False) -> str:
    """Decodes bytes as UTF-8, or in `encoding` if they are not UTF-8, without their byte-order mark. Errors name the
    text `name`. With `is_head` the bytes are the beginning of a text, whose last character may be incomplete.

    Args:
      content: Bytes of a text or of its beginning.
      name: Name of the text in error messages.
      encoding: Encoding of the text if it is not UTF-8.
      is_head: Whether the bytes are the beginning of a text, whose last character may be incomplete.

    Raises:
      UnreadableError: The text is not of this encoding. The message proposes one that fits.
    """
    encoding = check_encoding(encoding)
    decode = lambda name: codecs.getincrementaldecoder(name)().decode(content, final=not is_head)
    # A text beyond ASCII that is UTF-8 by chance hardly exists; in UTF-16 every line end has a zero.
    is_other = encoding != "utf-8" and (content.isascii() or (encoding.startswith("utf-") and b"\0" in content))
    try:
        text = None if is_other else decode("utf-8")
    except UnicodeDecodeError as error:
        if encoding == "utf-8":
            raise _encoding_error(content, name, encoding, error.start) from None
        text = None
    try:
        text = decode(encoding) if text is None else text
    except UnicodeError as error:
        raise _encoding_error(content, name, encoding, getattr(error, "start", 0)) from None
    if encoding == "utf-8" and "\0" in text[:HEAD_BYTES] and _wide_encoding(content):
        raise _encoding_error(content, name, encoding, content.find(0))
    return text.removeprefix("\ufeff")


def _encoding_error(content: bytes, name: object, encoding: str, place: int) -> UnreadableError:
    """Returns the error for a text that cannot be decoded at byte `place`, with a proposal."""
    spelled = {"utf-8": "UTF-8"}.get(encoding, encoding)
    line = content.count(b"\n", 0, place) + 1
    start = f"path: {name} is not {spelled} at byte {place}" + (f", line {line:,}" if line > 1 else "")
    if encoding == "utf-8" and _is_mostly_utf8(content):
        advice = "the rest is: mend that line, or drop such bytes (iconv -c -f utf-8 -t utf-8)"
        return UnreadableError(f"{start}; {advice}", "not UTF-8")
    # The place in its line, so that the excerpt begins with whole characters in encodings of two bytes too.
    proposed = guess_encoding(content)
    if not proposed or codecs.lookup(proposed).name == encoding:
        advice = "convert it to UTF-8, or give --encoding NAME for your own files"
        return UnreadableError(f"{start}; {advice}", f"not {spelled}")
    begin = 0 if proposed.startswith("utf") else max(content.rfind(b"\n", 0, place) + 1, place - 20)
    excerpt = content[begin : begin + (200 if proposed.startswith("utf") else 40)].decode(proposed, "ignore")
    excerpt = " ".join(excerpt.removeprefix("\ufeff").split())[:40]
    advice = (
        f"as {proposed} it reads {excerpt!r}: convert it to UTF-8, or give --encoding {proposed} for your own files"
    )
    return UnreadableError(f"{start}; {advice}", f"not {spelled}")


_UTF8_LETTER = re.compile(rb"[\xc2-\xdf][\x80-\xbf]|[\xe0-\xef][\x80-\xbf]{2}|[\xf0-\xf4][\x80-\xbf]{3}")


def _is_mostly_utf8(content: bytes) -> bool:
    """Returns whether most letters beyond ASCII are UTF-8, so that only single characters are broken."""
    letters = _UTF8_LETTER.findall(content)
    rest = sum(byte >= 128 for byte in content) - sum(map(len, letters))
    return len(letters) > rest


def read_text_file(path: str | os.PathLike[str], encoding: str = "utf-8") -> str:
    """Reads the text of a file, unpacked, and decoded as UTF-8 or in `encoding`. An empty file is an error.

    Raises:
      UnreadableError: A file that is empty, damaged, in another encoding, or not a text.
    """
    with open_unpacked(path) as file:
        content = file.read()
    check_text(content, path, encoding)
    return decode_bytes(content, path, encoding)
