"""Tokenised documents: in memory when they are first read, or written once to a memory-mapped token file.

A token file is a folder:

    header.json     what it was made from; written first
    tokens.bin      uint16 (or int32) ids of all documents, one after the other
    NAME.bin        an annotation, one entry per token
    documents.bin   int64 [documents, 3]: end in tokens.bin, UTF-8 bytes, number in the source; one row per document
    names.txt       one JSON string per document
    token_bytes.npy int32 [vocab]: UTF-8 bytes of each id
    blocks.json     SHA-256 of every block of 4 MiB of each of these files
    done.json       totals and SHA-256 of the tokens; written last, through a temporary file

Writing appends. If a writer is killed at any moment, the next writer continues its work: it cuts off everything after
the last complete row of documents.bin, and goes on with the next document of the source. A folder without done.json is
never read. Each block is compared with its checksum when it is first read. The next writer sets a damaged folder aside
and begins anew.
"""

import contextlib
import hashlib
import io
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from memjax.data.checked_files import CheckedFile, block_checksums, read_checked, report_damage
from memjax.data.documents import Documents
from memjax.data.reading_report import ReadingReport, UnreadableError
from memjax.data.sources import TextSource, text_or_problem
from memjax.data.token_folders import is_made_from, lock_folder, read_descriptions, set_aside, start_folder
from memjax.data.tokenizers import Tokenizer, utf8_bytes
from memjax.durable_files import DamagedError, checksum, explain_full_disk, read_json, write_json
from memjax.settings.reading_rules import ReadingRules

__all__ = ["TokenFile", "TokenizedDocument", "write_token_file", "write_tokens"]

VERSION = 1
OTHER_FILES = ("names.txt", "token_bytes.npy")
"""Files of a token file that are no arrays with a row for each token or document"""

Annotator = Callable[[str, np.ndarray, np.ndarray], np.ndarray]
"""Function from (text, ids, number of bytes of each id) to an annotation, an array with one entry per id."""


class TokenFile(Documents):
    """Documents in a memory-mapped token file, a folder that `write_token_file` has written.

    `annotate` and `window` return `target_bytes` and the annotations that were stored.

    Attributes:
      fingerprint: Shortened SHA-256 of the tokens, which does not depend on the path of the folder.
      num_documents: Number of documents.
      total_tokens: Number of tokens of all documents.
      total_bytes: Number of UTF-8 bytes of the texts of all documents.
      skipped: Number of documents of the source that were left out.
      has_checksums: Whether its blocks have checksums. Earlier versions wrote none.
      finished: Time when the file was finished, in seconds since 1970.
    """

    sliced = True

    def __init__(self, path: str | os.PathLike[str]):
        """Opens a finished token file.

        Raises:
          ValueError: The folder is missing or not finished.
          DamagedError: A file of the folder is not as it was written.
        """
        self.path = Path(path)
        if not (self.path / "done.json").is_file():
            raise ValueError(f"path: {self.path} is not a finished token file; prepare the data (again)")
        self.header, done, blocks = read_descriptions(self.path)
        self.has_checksums = blocks is not None
        checksums = blocks or {}
        self.total_tokens, self.total_bytes, self.skipped = done["tokens"], done["bytes"], done["skipped"]
        self.fingerprint: str = done["sha256"][:16]
        self.finished = (self.path / "done.json").stat().st_mtime
        types = {name: np.dtype(dtype) for name, dtype in self.header["types"].items()}
        sizes = {f"{name}.bin": done["tokens"] * dtype.itemsize for name, dtype in types.items()}
        sizes["documents.bin"] = done["documents"] * 3 * np.dtype(np.int64).itemsize
        for name in (*sizes, *OTHER_FILES):
            size = (self.path / name).stat().st_size if (self.path / name).is_file() else None
            if size != sizes.get(name, size) or size is None:
                raise report_damage(self.path / name, "it is missing" if size is None else f"{size} bytes")
        self._rows = np.frombuffer(
            read_checked(self.path / "documents.bin", checksums.get("documents.bin")), np.int64
        ).reshape(-1, 3)
        self._ends, self.num_documents = self._rows[:, 0], len(self._rows)
        lengths = read_checked(self.path / "token_bytes.npy", checksums.get("token_bytes.npy"))
        self._byte_lengths = np.load(io.BytesIO(lengths))
        self._files = {
            name: CheckedFile(self.path / f"{name}.bin", dtype, checksums.get(f"{name}.bin"))
            for name, dtype in types.items()
        }
        self._name_checksums = checksums.get("names.txt")
        self._names: list[str] | None = None

    def compare(self) -> None:
        """Compares all files of the folder with their checksums.

        Raises:
          DamagedError: A file is not as it was written.
        """
        read_checked(self.path / "names.txt", self._name_checksums)
        for file in self._files.values():
            file.compare()

    def __len__(self) -> int:
        return self.num_documents

    def __getitem__(self, index: int, /) -> np.ndarray:
        begin, end = self._bounds(index)
        return self._files["tokens"][begin:end].astype(np.int32)

    def num_bytes(self, index: int, /) -> int:
        return int(self._rows[index, 1])

    def num_tokens(self, index: int, /) -> int:
        begin, end = self._bounds(index)
        return end - begin

    def name(self, index: int, /) -> str:
        """Returns the name that the source gives the document."""
        if self._names is None:
            text = read_checked(self.path / "names.txt", self._name_checksums).decode()
            self._names = [json.loads(line) for line in text.splitlines()]
        return self._names[index]

    def annotate(self, index: int, /) -> dict[str, np.ndarray]:
        return self.window(index, 0, self.num_tokens(index))[1]

    def window(self, index: int, start: int, stop: int) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        """Returns the int32 tokens `[start, stop)` of document `index`, and their annotations by name."""
        first, end = self._bounds(index)
        begin, end = min(first + start, end), min(first + stop, end)
        parts = {name: np.asarray(file[begin:end]) for name, file in self._files.items()}
        tokens = parts.pop("tokens").astype(np.int32)
        return tokens, {"target_bytes": self._byte_lengths[tokens], **parts}

    def _bounds(self, index: int) -> tuple[int, int]:
        """Returns the range of a document in `tokens.bin`."""
        if not -self.num_documents <= index < self.num_documents:
            raise IndexError(f"document {index} of {self.num_documents}")
        index %= self.num_documents
        return int(self._ends[index - 1]) if index else 0, int(self._ends[index])


class TokenizedDocument(NamedTuple):
    """The name, tokens, size and annotations of one document, to be written to a token file, or the reason why it
    cannot be read.
    """

    name: str
    tokens: np.ndarray
    num_bytes: int
    annotations: Mapping[str, np.ndarray] = {}
    problem: UnreadableError | None = None
    """Reason why the document cannot be read, in which case it has no tokens. None if it can be read."""


Progress = Callable[[str, int, int | None], None]
"""Function that is told of progress: (kind of work, amount done, total). A total of None is unknown. A total of 0 means
that the first argument is a line of text to show."""


def write_token_file(
    path: str | os.PathLike[str],
    texts: TextSource | Iterable[tuple[str, str | UnreadableError]],
    tokenizer: Tokenizer,
    *,
    source: str | None = None,
    min_tokens: int = 1,
    annotators: Mapping[str, Annotator] | None = None,
    progress: Progress | None = None,
    rules: ReadingRules | None = None,
) -> TokenFile:
    """Tokenises texts and writes them to a token file in the folder `path`, unless it has them already, and opens it.
    Documents below `min_tokens` are left out. `annotators` are functions by name, `source` is a fingerprint.

    A finished file of the same source, tokenizer and options is opened as it is, and an unfinished one is continued. A
    file of another source or of other options is replaced.

    Args:
      path: Folder of the token file.
      texts: Texts with random access, or an iterable of pairs of name and text. An iterable is read from its start when
        an interrupted writer is continued, but texts that were written are not tokenised again.
      tokenizer: Tokenizer of the texts.
      source: Fingerprint of the texts. None for `texts.fingerprint`.
      min_tokens: Number of tokens of the shortest document. Shorter documents are left out and counted. With 1 nothing
        is left out, and a document without tokens is an error unless `rules` allow to skip it.
      annotators: Functions that compute annotations of a document, by name of the annotation.
      progress: Function that is called after every document. None for none.
      rules: Rules for documents that are empty or cannot be read. None to refuse them.

    Returns:
      The finished token file.

    Raises:
      ValueError: A document without tokens, no document of `min_tokens`, or a folder that is not a token file.
    """
    names = getattr(texts, "names", None)
    source = getattr(texts, "fingerprint", None) if source is None else source
    if source is None:
        raise ValueError("source: not given; a source that can only be iterated needs a fingerprint")
    functions = dict(annotators or {})

    def documents(start: int) -> Iterator[TokenizedDocument]:
        pairs = _iterate_pairs(texts, names, start)
        for name, text in pairs:
            if isinstance(text, UnreadableError):
                yield TokenizedDocument(name, np.zeros(0, np.int32), text.size, problem=text)
                continue
            ids = tokenizer.encode(text)
            annotations = {}
            if functions:
                lengths = tokenizer.token_bytes(ids)
                annotations = {key: function(text, ids, lengths) for key, function in functions.items()}
            yield TokenizedDocument(name, ids, len(utf8_bytes(text)), annotations)

    return write_tokens(
        path,
        documents,
        source=source,
        tokenizer=tokenizer.fingerprint,
        token_bytes=tokenizer.token_bytes(np.arange(tokenizer.vocab_size)),
        annotations=tuple(functions),
        min_tokens=min_tokens,
        total=None if names is None else len(names),
        progress=progress,
        rules=rules,
    )


def write_tokens(
    path: str | os.PathLike[str],
    documents: Callable[[int], Iterator[TokenizedDocument]],
    *,
    source: str,
    tokenizer: str,
    token_bytes: np.ndarray,
    annotations: tuple[str, ...] = (),
    min_tokens: int = 1,
    total: int | None = None,
    progress: Progress | None = None,
    rules: ReadingRules | None = None,
) -> TokenFile:
    """Writes tokenised documents to a token file in the folder `path`, unless it has them already, and opens it.
    `documents(number)` starts at that number, `source` and `tokenizer` are fingerprints, `rules` say which documents
    may be skipped.

    Args:
      path: Folder of the token file.
      documents: Function from a number to an iterator over the documents of the source from that number on.
      source: Fingerprint of the source.
      tokenizer: Fingerprint of the tokenizer.
      token_bytes: Number of UTF-8 bytes of each id, int32 `[vocab]`.
      annotations: Names of the annotations of every document.
      min_tokens: Number of tokens of the shortest document. Shorter documents are left out and counted.
      total: Number of documents of the source. None if unknown.
      progress: Function that is called after every document. None for none.
      rules: Rules for documents that are empty or cannot be read. None to refuse them.

    Returns:
      The finished token file.
    """
    folder = Path(path)
    header = {
        "version": VERSION,
        "source": source,
        "tokenizer": tokenizer,
        "min_tokens": min_tokens,
        "annotations": sorted(annotations),
        "vocab_size": len(token_bytes),
    }
    tell = progress or (lambda text, done, total: None)
    with lock_folder(folder):
        try:
            if not is_made_from(folder, header):
                start_folder(folder, header)
            elif (folder / "done.json").is_file():
                file = TokenFile(folder)
                if not file.has_checksums:
                    tell(f"{folder}: an earlier version of memjax wrote it without checksums", 0, 0)
                return file
        except DamagedError as error:
            damage = str(error).partition(";")[0].partition(", allowed")[0]
            tell(f"{damage}; the folder is set aside as {set_aside(folder)}, and prepared again", 0, 0)
            start_folder(folder, header)
        np.save(folder / "token_bytes.npy", np.asarray(token_bytes, np.int32))
        _Writer(folder, min_tokens, rules).write(documents, total, progress)
    return TokenFile(folder)


class _Writer:
    """Appends documents to the folder of a token file whose header is written."""

    def __init__(self, folder: Path, min_tokens: int, rules: ReadingRules | None):
        self._folder, self._min_tokens, self._refuses = folder, min_tokens, rules is None
        self._report = ReadingReport("documents", folder.name, rules or ReadingRules())
        self._header = read_json(folder / "header.json")
        self._vocab = self._header["vocab_size"]

    def write(
        self, documents: Callable[[int], Iterator[TokenizedDocument]], total: int | None, progress: Progress | None
    ) -> None:
        """Writes the documents that are not written yet, and then the totals.

        Raises:
          ValueError: No document has `min_tokens` tokens, or a document must not be skipped.
        """
        rows = self._cut_to_complete()
        end, num_written = (int(rows[-1, 0]), len(rows)) if len(rows) else (0, 0)
        number = int(rows[-1, 2]) + 1 if len(rows) else 0
        num_bytes = int(rows[:, 1].sum())
        advice = "the documents before are kept; free some and run the same command again"
        with explain_full_disk(self._folder, advice), contextlib.ExitStack() as stack:
            files = {
                name: stack.enter_context(open(self._folder / f"{name}.bin", "ab")) for name in self._header["types"]
            }
            names = stack.enter_context(open(self._folder / "names.txt", "ab"))
            table = stack.enter_context(open(self._folder / "documents.bin", "ab"))
            for document in documents(number):
                if self._accepts(document):
                    end += len(document.tokens)
                    num_bytes += document.num_bytes
                    num_written += 1
                    self._append(files, document)
                    names.write(json.dumps(document.name).encode("utf-8") + b"\n")
                    # The row declares the document complete: it comes last, after the rest has left the process.
                    for file in (*files.values(), names):
                        file.flush()
                    table.write(np.array([end, document.num_bytes, number], np.int64).tobytes())
                    table.flush()
                number += 1
                if progress is not None:
                    progress("tokenise", number, total)
            if progress is not None and total is None:
                progress("tokenise", number, number)
            for file in (*files.values(), names, table):
                os.fsync(file.fileno())
        if (line := self._report.finish()) and progress is not None:
            progress(f"{self._folder.name}: {line}", 0, 0)
        if not num_written:
            raise ValueError(
                f"min_document_length: none of {number} documents has {self._min_tokens} tokens; "
                "give a smaller minimum, or longer documents"
            )
        names = [*(f"{name}.bin" for name in self._header["types"]), "documents.bin", *OTHER_FILES]
        blocks = {name: block_checksums(self._folder / name) for name in names}
        write_json(self._folder / "blocks.json", blocks, indent=None)
        done = {
            "documents": num_written,
            "tokens": end,
            "bytes": num_bytes,
            "skipped": number - num_written,
            "sha256": self._sha256(),
            "header": checksum(self._header),
            "blocks": checksum(blocks),
        }
        write_json(self._folder / "done.json", done, indent=1, end="")

    def _cut_to_complete(self) -> np.ndarray:
        """Cuts off everything that an interrupted writer wrote after the last document that is complete in all files.
        A loss of power, or a mounted bucket, may keep the end of one file and not that of another.

        Returns:
          The complete rows of `documents.bin`, int64 `[documents, 3]`.
        """
        table = self._folder / "documents.bin"
        rows = np.fromfile(table, np.int64) if table.is_file() else np.zeros(0, np.int64)
        rows = rows[: len(rows) // 3 * 3].reshape(-1, 3)
        widths = {f"{name}.bin": np.dtype(dtype).itemsize for name, dtype in self._header["types"].items()}
        names, name_ends = self._folder / "names.txt", np.zeros(0, np.int64)
        with contextlib.suppress(FileNotFoundError), open(names, "rb") as lines:
            lengths = (len(line) for line in lines if line.endswith(b"\n"))
            name_ends = np.cumsum(np.fromiter(lengths, np.int64))
        rows = rows[: len(name_ends)]
        for name, width in widths.items():
            file = self._folder / name
            size = file.stat().st_size if file.is_file() else 0
            rows = rows[: int(np.searchsorted(rows[:, 0], size // width, side="right"))]
        end = int(rows[-1, 0]) if len(rows) else 0
        sizes = {name: end * width for name, width in widths.items()}
        sizes |= {"names.txt": int(name_ends[len(rows) - 1]) if len(rows) else 0, "documents.bin": rows.nbytes}
        for name, size in sizes.items():
            if (self._folder / name).is_file():
                os.truncate(self._folder / name, size)
        return rows

    def _accepts(self, document: TokenizedDocument) -> bool:
        """Returns whether to write a document, and adds it to the report of skipped documents if not.

        Raises:
          UnreadableError: A document that cannot be read, or has no tokens, and must not be skipped.
        """
        problem = document.problem
        if problem is None and not len(document.tokens) and self._min_tokens <= 1:
            advice = "remove it, or set min_document_length to 2 or more to leave short documents out"
            message = f"documents: {document.name} has no tokens; {advice}"
            problem = UnreadableError(message, "empty", is_broken=False)
        if problem is not None and self._refuses:
            raise problem
        if problem is not None:
            self._report.count_skipped(problem, document.num_bytes)
            return False
        self._report.count_read(document.num_bytes)
        return len(document.tokens) >= self._min_tokens

    def _append(self, files: Mapping[str, Any], document: TokenizedDocument) -> None:
        """Appends the tokens and annotations of a document to their files."""
        tokens = document.tokens
        if tokens.min() < 0 or tokens.max() >= self._vocab:
            raise ValueError(
                f"documents: {document.name} has ids {tokens.min()} to {tokens.max()}; the vocabulary {self._vocab}"
            )
        for name, array in {"tokens": tokens, **document.annotations}.items():
            if len(array) != len(tokens):
                raise ValueError(
                    f"annotators: {name} has {len(array)} entries for {len(tokens)} tokens of {document.name}"
                )
            files[name].write(np.ascontiguousarray(array, np.dtype(self._header["types"][name])).tobytes())

    def _sha256(self) -> str:
        """Returns the SHA-256 of the lengths and tokens of all documents."""
        digest = hashlib.sha256()
        for name in ("documents.bin", "tokens.bin"):
            with open(self._folder / name, "rb") as file:
                while block := file.read(1 << 20):
                    digest.update(block)
        return digest.hexdigest()


def _iterate_pairs(
    texts: TextSource | Iterable[tuple[str, str | UnreadableError]], names: list[str] | None, start: int
) -> Iterator[tuple[str, str | UnreadableError]]:
    """Returns an iterator over the pairs of name and text from number `start` on."""
    if names is not None:
        return ((names[i], text_or_problem(texts, i)) for i in range(start, len(names)))
    pairs: Iterator[Any] = iter(texts)
    for _ in zip(range(start), pairs, strict=False):
        pass
    return pairs
