"""Byte-level byte-pair tokenizers, as in GPT-2 and RoBERTa, with the Hugging Face library `tokenizers`."""

import functools
import hashlib
import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from memjax import config as configs
from memjax.data.added_tokens import add_tokens, read_added_tokens
from memjax.data.reading import reading
from memjax.data.reserved_ids import TokenizerWithFrameIds
from memjax.data.tokenizers import _ByteTable, utf8_bytes, write_then_rename

__all__ = ["BytePairTokenizer", "train_byte_pairs"]

END_OF_TEXT, MASK = "<|endoftext|>", "<mask>"
SPECIAL: tuple[dict[str, str], ...] = (
    dict.fromkeys(("bos_token", "eos_token", "unk_token", "pad_token"), END_OF_TEXT),
    {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"},
)
"""Special tokens of GPT-2, and of RoBERTa: name of the setting -> text of the token."""
MOST_GAPS = 16
"""Largest id per entry. A damaged id would ask for a table of any size."""


class BytePairTokenizer(_ByteTable):
    """A byte-level byte-pair tokenizer like those of GPT-2 and RoBERTa, loaded from a `tokenizer.json`, or from
    `vocab.json` and `merges.txt`.

    As in GPT-2, documents begin and end with `<|endoftext|>`, which is also the padding. With a tokenizer like
    RoBERTa's they begin with `<s>` and end with `</s>`, and `<mask>` in a text is read as the mask token. Bytes that
    are not UTF-8 are refused, because the library `tokenizers` encodes texts only.

    Attributes:
      mask_id: Id of `<mask>`. None if the tokenizer has none, as in GPT-2.
      special_names: Mapping from `bos_token`, `eos_token`, `unk_token` and `pad_token` to the text of the token.
      lossless: Whether every text is preserved. False if added tokens absorb the blanks beside them, or a normaliser
        changes texts.
    """

    def __init__(self, path: str | os.PathLike[str]):
        """Loads a tokenizer.

        Args:
          path: A `tokenizer.json`, or a folder with one or with GPT-2's `vocab.json` and `merges.txt`.

        Raises:
          ValueError: No such file, a tokenizer that is not byte-level, or one without the special tokens of GPT-2 or
            RoBERTa.
        """
        with reading(path, "a byte-level tokenizer like GPT-2's, or RoBERTa's with <s>, </s> and <pad>"):
            self._tokenizer = _load(Path(path))
            self._tokenizer.no_truncation()
            self._tokenizer.no_padding()
            super().__init__(self._read_vocabulary())
        names = self.special_names.values()
        self._special = re.compile(f"({'|'.join(map(re.escape, dict.fromkeys(names)))})")
        self.fingerprint = "byte-pairs-" + hashlib.sha256(self._tokenizer.to_str().encode("utf-8")).hexdigest()[:16]

    def _read_vocabulary(self) -> list[bytes]:
        """Finds the special tokens, and returns the bytes of every id.

        Raises:
          KeyError: An entry that is not written in byte-level characters.
          ValueError: No special tokens, or an id far beyond the number of entries.
        """
        vocabulary = self._tokenizer.get_vocab(with_added_tokens=True)
        names = next((names for names in SPECIAL if vocabulary.keys() >= set(names.values())), None)
        if names is None:
            raise ValueError(f"no {END_OF_TEXT}")
        if (largest := max(vocabulary.values())) > MOST_GAPS * len(vocabulary):
            raise ValueError(f"the id {largest} with {len(vocabulary)} entries")
        self.special_names = names
        self.begin_id, self.end_id, self.pad_id = (vocabulary[names[f"{kind}_token"]] for kind in ("bos", "eos", "pad"))
        self.mask_id: int | None = vocabulary.get(MASK) if names is not SPECIAL[0] else None
        added = self._tokenizer.get_added_tokens_decoder()
        table, byte_of = [b""] * (largest + 1), _byte_of_character()
        for piece, number in vocabulary.items():
            if number in added and piece not in names.values() and number != self.mask_id:
                table[number] = piece.encode("utf-8")
            elif piece not in names.values() and number != self.mask_id:
                table[number] = bytes(byte_of[character] for character in piece)
        strips = any(token.lstrip or token.rstrip for number, token in added.items() if number != self.mask_id)
        self.lossless = self._tokenizer.normalizer is None and not strips
        return table

    def for_encoder(self) -> TokenizerWithFrameIds:
        """Returns this tokenizer as a `TokenizerWithFrameIds`, with the begin, end and mask ids that a text encoder
        needs.
        """
        return TokenizerWithFrameIds(self)

    def files(self) -> dict[str, bytes]:
        """Returns a mapping from `tokenizer.json` to the content of that file as bytes, for saving the tokenizer."""
        return {"tokenizer.json": self._tokenizer.to_str().encode("utf-8")}

    def encode(self, text: str) -> np.ndarray:
        """Returns the int32 ids of a text. The name of a special token in the text is encoded as ordinary text, except
        `<mask>` of a tokenizer like RoBERTa's.
        """
        ids: list[int] = []
        for number, part in enumerate(self._special.split(text)):
            # A name is spelled piece by piece: the library would read it as the special token.
            ids += self._spell(part[:2]) + self._spell(part[2:]) if number % 2 else self._spell(part)
        return np.array(ids, np.int32)

    def _spell(self, text: str) -> list[int]:
        """Returns the ids of a text that contains no whole name of a special token."""
        ids = self._tokenizer.encode(text, add_special_tokens=False).ids
        masked = self.mask_id is not None and MASK in text
        if self.lossless and not masked and self.decode_bytes(ids) != utf8_bytes(text):
            raise ValueError(f"text: given {text[:40]!r}, allowed: UTF-8; the tokenizer does not give it back")
        return ids


def train_byte_pairs(
    texts: Iterable[str], path: str | os.PathLike[str], *, vocab_size: int = 4096
) -> BytePairTokenizer:
    """Trains a byte-level byte-pair tokenizer on texts, writes it to `path`, a `tokenizer.json` (through a temporary
    file), and returns it.

    Args:
      texts: Training texts, read once in order.
      path: Path of the `tokenizer.json`.
      vocab_size: Number of ids, of which 257 are bytes and `<|endoftext|>`.

    Returns:
      The tokenizer.

    Raises:
      ValueError: A vocabulary too small to have room for pairs.
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
    with write_then_rename(path) as partial:
        tokenizer.save(str(partial))
    return BytePairTokenizer(path)


def _load(path: Path):  # noqa: ANN202 (a class of an optional library)
    """Loads the `tokenizers.Tokenizer` of a file or folder."""
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
    if (mask := tokenizer.token_to_id(MASK)) is not None:  # RoBERTa's swallows the blank before it
        add_tokens(tokenizer, {mask: {"content": MASK, "lstrip": True, "special": True, "normalized": False}}, path)
    add_tokens(tokenizer, read_added_tokens(path), path)
    return tokenizer


def _byte_of_character() -> dict[str, int]:
    """Returns the byte that each character of a byte-level vocabulary stands for.

    Printable Latin-1 characters stand for themselves. The characters from U+0100 on stand for the other bytes, in
    order.
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    not_printable = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {
        chr(0x100 + place): byte for place, byte in enumerate(not_printable)
    }


def make_byte_pair_tokenizer(settings: configs.BytePairs, train: Any) -> BytePairTokenizer:
    """Returns the byte-pair tokenizer of `settings`: that at `settings.path`, or without a path the result of
    `train(name, train_on, load)`, a function from `memjax.data.opening.make_tokenizer` that trains a new tokenizer
    once.
    """
    if settings.path:
        return BytePairTokenizer(settings.path)
    train_on = functools.partial(train_byte_pairs, vocab_size=settings.vocab_size)
    return train(f"byte-pairs-{settings.vocab_size}-{{}}.json", train_on, BytePairTokenizer)
