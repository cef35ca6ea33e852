"""The tokenizer of a run, kept in the run's own directory: its files, and `about.json` with its kind and fingerprint.

What a tokenizer is trained on changes (another machine, another Python, a file that was edited), and its ids with it:
parameters are worth nothing without the tokenizer they were trained with, so a run carries it.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from memjax.data.byte_pairs import BytePairTokenizer
from memjax.data.tokenizers import ByteTokenizer, SentencePieceTokenizer, Tokenizer, WordTokenizer
from memjax.data.wordpiece import WordPieceTokenizer

__all__ = ["fingerprint_of", "load_tokenizer", "save_tokenizer"]

ABOUT = "about.json"

_LOADERS: dict[str, Callable[[Path], Any]] = {
    "ByteTokenizer": lambda folder: ByteTokenizer(),
    "SentencePieceTokenizer": lambda folder: SentencePieceTokenizer(folder / "sentencepiece.model"),
    "WordTokenizer": lambda folder: WordTokenizer.load(folder / "words.json"),
    "BytePairTokenizer": lambda folder: BytePairTokenizer(folder / "tokenizer.json"),
    "WordPieceTokenizer": lambda folder: WordPieceTokenizer(folder / "tokenizer.json"),
    "SeqioVocabulary": lambda folder: None,
}


def fingerprint_of(tokenizer: Tokenizer | None) -> str | None:
    """What tells this tokenizer from others; None where there is none."""
    return None if tokenizer is None else tokenizer.fingerprint


def save_tokenizer(tokenizer: Tokenizer, folder: Path) -> None:
    """Writes a tokenizer into a folder, whole or not at all; one that is there is replaced.

    Args:
      tokenizer: any that `memjax.data` makes; of one with marks or ends around another, that other one.
      folder: made where it is missing.
    """
    base, partial = tokenizer.base, folder.with_name(f"{folder.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    for name, content in base.files().items():
        (partial / name).write_bytes(content)
    about = {"kind": type(base).__name__, "fingerprint": base.fingerprint, "vocab_size": base.vocab_size}
    (partial / ABOUT).write_text(json.dumps(about, indent=2) + "\n", "utf-8")
    shutil.rmtree(folder, ignore_errors=True)
    partial.replace(folder)


def load_tokenizer(folder: Path) -> Any:
    """The tokenizer that `save_tokenizer` wrote; None for a vocabulary of seqio that only its Task knows.

    Raises:
      ValueError: a file is missing or damaged, or the tokenizer is not the one that was saved.
    """
    about = folder / ABOUT
    if not about.is_file():
        raise ValueError(f"tokenizer: {about} is missing, allowed: the folder that was made with the run, whole")
    try:
        told = json.loads(about.read_text("utf-8"))
        load, wanted = _LOADERS[told["kind"]], told["fingerprint"]
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"tokenizer: {about} is damaged, allowed: the file that was made with the run") from error
    found = load(folder)
    if found is not None and found.fingerprint != wanted:
        raise ValueError(
            f"tokenizer: {folder} holds {found.fingerprint}, allowed: {wanted}, which the run was trained with"
        )
    return found
