"""Byte-pair tokenizers of Hugging Face `tokenizers`, as GPT-2 has them: text to ids and back without loss."""

import hashlib
import os
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from memjax.data.reserved_ids import FramingTokenizer
from memjax.data.tokenizers import _ByteTable, replaced, utf8_bytes

__all__ = ["BytePairTokenizer", "train_byte_pairs"]

END_OF_TEXT = "<|endoftext|>"


class BytePairTokenizer(_ByteTable):
    """A byte-level byte-pair tokenizer: a `tokenizer.json`, or a folder with GPT-2's `vocab.json` and `merges.txt`.

    Documents begin and end with `<|endoftext|>` as GPT-2's do, which is the padding too. Bytes that are no UTF-8 are
    not taken: a byte-level tokenizer of that library reads texts.
    """

    lossless = True

    def __init__(self, path: str | os.PathLike[str]):
        """Loads a tokenizer.

        Raises:
          ValueError: no such file, or a tokenizer that is not byte-level or has no `<|endoftext|>`.
        """
        try:
            self._tokenizer = _load(Path(path))
        except ValueError:
            raise
        except Exception as error:  # the library raises nothing more special
            raise ValueError(f"tokenizer: {path} is damaged ({error}), allowed: a byte-level tokenizer") from error
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        vocabulary = self._tokenizer.get_vocab(with_added_tokens=True)
        if END_OF_TEXT not in vocabulary:
            raise ValueError(f"tokenizer: {path} has no {END_OF_TEXT}, allowed: a byte-level tokenizer like GPT-2's")
        self.begin_id = self.end_id = self.pad_id = vocabulary[END_OF_TEXT]
        table, byte_of = [b""] * self._tokenizer.get_vocab_size(with_added_tokens=True), _byte_of_character()
        for piece, number in vocabulary.items():
            if piece == END_OF_TEXT:
                continue
            unknown = set(piece) - byte_of.keys()
            if unknown:
                raise ValueError(f"tokenizer: {path} has the entry {piece!r}, allowed: a byte-level tokenizer")
            table[number] = bytes(byte_of[character] for character in piece)
        super().__init__(table)
        self.fingerprint = "byte-pairs-" + hashlib.sha256(self._tokenizer.to_str().encode("utf-8")).hexdigest()[:16]

    def for_encoder(self) -> FramingTokenizer:
        """The same with what frames a text for an encoder."""
        return FramingTokenizer(self)

    def files(self) -> dict[str, bytes]:
        """A `tokenizer.json`."""
        return {"tokenizer.json": self._tokenizer.to_str().encode("utf-8")}

    def encode(self, text: str) -> np.ndarray:
        """int32 ids of a text; the name of a special token inside it is text like any other."""
        ids: list[int] = []
        for number, part in enumerate(text.split(END_OF_TEXT)):
            if number:  # spelled piece by piece: the library would read it as the special token
                ids += self._spell(END_OF_TEXT[:2]) + self._spell(END_OF_TEXT[2:])
            ids += self._spell(part)
        return np.array(ids, np.int32)

    def _spell(self, text: str) -> list[int]:
        ids = self._tokenizer.encode(text, add_special_tokens=False).ids
        if self.decode_bytes(ids) != utf8_bytes(text):
            raise ValueError(f"text: given {text[:40]!r}, allowed: UTF-8; the tokenizer does not give it back")
        return ids


def train_byte_pairs(
    texts: Iterable[str], path: str | os.PathLike[str], *, vocab_size: int = 4096
) -> BytePairTokenizer:
    """Trains a byte-level tokenizer and writes it to `path`, a `tokenizer.json` (through a temporary file).

    Args:
      texts: read once, in order.
      path: of the file.
      vocab_size: ids, of which 257 are bytes and `<|endoftext|>`.

    Raises:
      ValueError: a vocabulary that has no room for pairs.
    """
    if vocab_size <= 257:
        raise ValueError(f"vocab_size: given {vocab_size}, allowed: more than 257 (bytes and {END_OF_TEXT})")
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size, special_tokens=[END_OF_TEXT], initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(texts, trainer)
    with replaced(path) as partial:
        tokenizer.save(str(partial))
    return BytePairTokenizer(path)


def _load(path: Path):  # noqa: ANN202 (a class of an optional library)
    try:
        from tokenizers import Tokenizer, models, pre_tokenizers
    except ImportError as error:
        raise ValueError("tokenizer: byte pairs need the library tokenizers: pip install 'memjax[hf]'") from error
    if path.is_file():
        return Tokenizer.from_file(str(path))
    vocabulary, merges = path / "vocab.json", path / "merges.txt"
    if (path / "tokenizer.json").is_file():
        return Tokenizer.from_file(str(path / "tokenizer.json"))
    if not (vocabulary.is_file() and merges.is_file()):
        raise ValueError(
            f"tokenizer: given {path}, allowed: a tokenizer.json, or a folder with vocab.json and merges.txt"
        )
    tokenizer = Tokenizer(models.BPE.from_file(str(vocabulary), str(merges)))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    return tokenizer


def _byte_of_character() -> dict[str, int]:
    """The byte that each character of a byte-level vocabulary stands for.

    Printable Latin-1 characters stand for themselves, the other bytes, in order, for the characters from U+0100 on.
    """
    shown = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [byte for byte in range(256) if byte not in shown]
    return {chr(byte): byte for byte in shown} | {chr(0x100 + place): byte for place, byte in enumerate(hidden)}
