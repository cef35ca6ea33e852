"""Saves the tokenizer of a run in the directory of the run: its files, and `about.json` with its kind and fingerprint.

The training texts of a tokenizer may change (another machine, another Python, an edited file), and its ids with them.
Parameters are useless without the tokenizer that they were trained with, so a run contains it.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from memjax.data.byte_pairs import BytePairTokenizer
from memjax.data.reader_errors import reading
from memjax.data.tokenizers import ByteTokenizer, SentencePieceTokenizer, Tokenizer, WordTokenizer
from memjax.data.wordpiece import WordPieceTokenizer
from memjax.durable_files import DamagedError, file_checksum, read_json, write_file, write_json

__all__ = ["fingerprint_of", "has_tokenizer", "load_tokenizer", "save_tokenizer"]

ABOUT = "about.json"
MADE_WITH_RUN = "allowed: the file that was made with the run"
"""Advice about a damaged file"""

_LOADERS: dict[str, Callable[[Path], Any]] = {
    "ByteTokenizer": lambda folder: ByteTokenizer(),
    "SentencePieceTokenizer": lambda folder: SentencePieceTokenizer(folder / "sentencepiece.model"),
    "WordTokenizer": lambda folder: WordTokenizer.load(folder / "words.json"),
    "BytePairTokenizer": lambda folder: BytePairTokenizer(folder),
    "WordPieceTokenizer": lambda folder: WordPieceTokenizer(folder / "tokenizer.json"),
    "SeqioVocabulary": lambda folder: None,
}


def fingerprint_of(tokenizer: Tokenizer | None) -> str | None:
    """Returns the fingerprint of a tokenizer, None for no tokenizer."""
    return None if tokenizer is None else tokenizer.fingerprint


def save_tokenizer(tokenizer: Tokenizer, folder: Path) -> None:
    """Writes a tokenizer, of a wrapper only its `base`, to a folder, in place of all that it contains. The description
    is written last: until then `has_tokenizer` is False.

    Args:
      tokenizer: Tokenizer of `memjax.data`. Of a wrapper that adds marks or end tokens, its `base` is written.
      folder: Folder of the files. It is created if it does not exist.
    """
    # A folder that was written elsewhere and renamed would not be whole at once on a mounted bucket.
    base = tokenizer.base
    folder.mkdir(parents=True, exist_ok=True)
    (folder / ABOUT).unlink(missing_ok=True)
    for entry in folder.iterdir():
        shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
    for name, content in base.files().items():
        write_file(folder / name, content)
    description = {"kind": type(base).__name__, "fingerprint": base.fingerprint, "vocab_size": base.vocab_size}
    files = {name: file_checksum(folder / name) for name in base.files()}
    write_json(folder / ABOUT, {**description, "files": files})


def has_tokenizer(folder: Path) -> bool:
    """Returns whether `save_tokenizer` has finished writing to a folder. A kill may leave one without its last file."""
    return (folder / ABOUT).is_file()


def load_tokenizer(folder: Path) -> Any:
    """Loads the tokenizer that `save_tokenizer` has written to a folder. None for a seqio vocabulary, which only its
    Task can create.

    Raises:
      ValueError: A file is missing or damaged, or the tokenizer has another fingerprint than the saved one.
    """
    about_file = folder / ABOUT
    if not has_tokenizer(folder):
        raise ValueError(f"tokenizer: {about_file} is missing, allowed: the folder that was made with the run, whole")
    with reading(about_file, "the file that was made with the run"):
        description = read_json(about_file)
        load, fingerprint = _LOADERS[description["kind"]], description["fingerprint"]
    for name, expected in description.get("files", {}).items():  # earlier versions wrote none
        file = folder / name
        if not file.is_file():
            raise DamagedError(f"tokenizer: {file} is missing, {MADE_WITH_RUN}")
        if file_checksum(file) != expected:
            raise DamagedError(f"tokenizer: {file} is damaged (it is not what memjax wrote), {MADE_WITH_RUN}")
    tokenizer = load(folder)
    if tokenizer is not None and tokenizer.fingerprint != fingerprint:
        raise ValueError(
            f"tokenizer: {folder} holds {tokenizer.fingerprint}, allowed: {fingerprint}, which the run was trained with"
        )
    return tokenizer
