"""Byte-pair tokenizers of Hugging Face `tokenizers`, as GPT-2 has them: text to ids and back without loss."""

import hashlib
import os
import re
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from memjax.data.added_tokens import add_tokens, read_added_tokens
from memjax.data.reserved_ids import FramingTokenizer
from memjax.data.tokenizers import _ByteTable, replaced, utf8_bytes

__all__ = ["BytePairTokenizer", "train_byte_pairs"]

END_OF_TEXT, MASK = "<|endoftext|>", "<mask>"
SPECIAL: tuple[dict[str, str], ...] = (
    dict.fromkeys(("bos_token", "eos_token", "unk_token", "pad_token"), END_OF_TEXT),
    {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"},
)
"""names of special tokens: of GPT-2, and of RoBERTa"""


class BytePairTokenizer(_ByteTable):
    """A byte-level byte-pair tokenizer: a `tokenizer.json`, or a folder with GPT-2's `vocab.json` and `merges.txt`.

    Documents begin and end with `<|endoftext|>` as GPT-2's do, which is the padding too; or with `<s>` and `</s>` as
    RoBERTa's, where `<mask>` in a text is read as such. Bytes that are no UTF-8 are not taken: a byte-level tokenizer
    of that library reads texts.

    Attributes:
      mask_id: Id of `<mask>`. None = a tokenizer of decoders.
      special_names: `bos_token` and so on -> name.
      lossless: False where added tokens swallow the blanks beside them, or a normaliser changes texts.
    """

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
        names = next((names for names in SPECIAL if vocabulary.keys() >= set(names.values())), None)
        if names is None:
            allowed = "a byte-level tokenizer like GPT-2's, or RoBERTa's with <s>, </s> and <pad>"
            raise ValueError(f"tokenizer: {path} has no {END_OF_TEXT}, allowed: {allowed}")
        self.special_names = names
        self.begin_id, self.end_id, self.pad_id = (vocabulary[names[f"{kind}_token"]] for kind in ("bos", "eos", "pad"))
        self.mask_id: int | None = vocabulary.get(MASK) if names is not SPECIAL[0] else None
        added = self._tokenizer.get_added_tokens_decoder()
        table, byte_of = [b""] * (max(vocabulary.values()) + 1), _byte_of_character()
        for piece, number in vocabulary.items():
            if piece in names.values() or number == self.mask_id:
                continue
            if number in added:
                table[number] = piece.encode("utf-8")
                continue
            unknown = set(piece) - byte_of.keys()
            if unknown:
                raise ValueError(f"tokenizer: {path} has the entry {piece!r}, allowed: a byte-level tokenizer")
            table[number] = bytes(byte_of[character] for character in piece)
        self._special = re.compile(f"({'|'.join(map(re.escape, dict.fromkeys(names.values())))})")
        strips = any(token.lstrip or token.rstrip for number, token in added.items() if number != self.mask_id)
        self.lossless = self._tokenizer.normalizer is None and not strips
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
        for number, part in enumerate(self._special.split(text)):
            # A name is spelled piece by piece: the library would read it as the special token.
            ids += self._spell(part[:2]) + self._spell(part[2:]) if number % 2 else self._spell(part)
        return np.array(ids, np.int32)

    def _spell(self, text: str) -> list[int]:
        ids = self._tokenizer.encode(text, add_special_tokens=False).ids
        masked = self.mask_id is not None and MASK in text
        if self.lossless and not masked and self.decode_bytes(ids) != utf8_bytes(text):
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
    if (mask := tokenizer.token_to_id(MASK)) is not None:  # RoBERTa's swallows the blank before it
        add_tokens(tokenizer, {mask: {"content": MASK, "lstrip": True, "special": True, "normalized": False}}, path)
    add_tokens(tokenizer, read_added_tokens(path), path)
    return tokenizer


def _byte_of_character() -> dict[str, int]:
    """The byte that each character of a byte-level vocabulary stands for.

    Printable Latin-1 characters stand for themselves, the other bytes, in order, for the characters from U+0100 on.
    """
    shown = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [byte for byte in range(256) if byte not in shown]
    return {chr(byte): byte for byte in shown} | {chr(0x100 + place): byte for place, byte in enumerate(hidden)}
