"""Byte-pair tokenizers, as in GPT-2, RoBERTa, Llama and Gemma, with the Hugging Face library `tokenizers`."""

import functools
import hashlib
import json
import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from memjax import config as configs
from memjax.data.added_tokens import SETTINGS, add_tokens, read_added_tokens
from memjax.data.reader_errors import reading
from memjax.data.records import parse_json_text
from memjax.data.reserved_ids import TokenizerWithFrameIds
from memjax.data.sentencepiece_models import SPACE
from memjax.data.special_tokens import GENERATION, SpecialTokens, read_special_tokens
from memjax.data.tokenizers import _ByteTable, utf8_bytes, write_then_rename

__all__ = ["BytePairTokenizer", "train_byte_pairs"]

END_OF_TEXT, MASK = "<|endoftext|>", "<mask>"
_BYTE = re.compile("<0x([0-9A-F]{2})>")
SPECIAL: tuple[dict[str, str], ...] = (
    dict.fromkeys(("bos_token", "eos_token", "unk_token", "pad_token"), END_OF_TEXT),
    {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"},
)
"""Special tokens of GPT-2, and of RoBERTa: name of the setting -> text of the token."""
MOST_GAPS = 16
"""Largest id per entry. A damaged id would ask for a table of any size."""


class BytePairTokenizer(_ByteTable):
    """A byte-pair tokenizer, loaded from a `tokenizer.json`, or from `vocab.json` and `merges.txt`. Its entries are
    bytes as in GPT-2, RoBERTa, Llama 3, Qwen and SmolLM, or pieces of texts and single bytes as in Llama 2 and Gemma.

    A folder says which tokens begin and end documents, and which is the padding (see `SpecialTokens`). Without such
    files, documents begin and end with `<|endoftext|>`, which is also the padding, as in GPT-2. Where a folder says
    that its tokenizer puts no begin before a text, documents begin with `<|endoftext|>` if there is one: the begin that
    it names is then the mark of a message, as in SmolLM2-Instruct. With a tokenizer like
    RoBERTa's they begin with `<s>` and end with `</s>`, and `<mask>` in a text is read as the mask token. Bytes that
    are not UTF-8 are refused, because the library `tokenizers` encodes texts only.

    Attributes:
      mask_id: Id of `<mask>`. None if the tokenizer has none, as in GPT-2.
      special_names: Mapping from `bos_token`, `eos_token`, `unk_token` and `pad_token` to the text of the token.
      extra_end_ids: Ids that end a generated text besides `end_id`.
      chat_template: Template that makes a prompt of the messages of a chat. '' for none.
      lossless: Whether every text is preserved. False if added tokens absorb the blanks beside them, a normaliser
        changes texts, or entries are pieces of texts.
    """

    def __init__(self, path: str | os.PathLike[str]):
        """Loads a tokenizer.

        Args:
          path: A `tokenizer.json`, or a folder with one or with GPT-2's `vocab.json` and `merges.txt`.

        Raises:
          ValueError: No such file, a tokenizer of another kind, or one without a token that ends documents.
        """
        with reading(path, "a byte-level tokenizer like GPT-2's, or RoBERTa's with <s>, </s> and <pad>"):
            self._tokenizer = _load(Path(path))
            self._tokenizer.no_truncation()
            self._tokenizer.no_padding()
            super().__init__(self._read_vocabulary(Path(path)))

    def _read_vocabulary(self, path: Path) -> list[bytes]:
        """Finds the special tokens, and returns the bytes of every id. Sets the fingerprint.

        Raises:
          ValueError: No special tokens, an id far beyond the number of entries, or an entry that is not written in
            byte-level characters.
        """
        vocabulary = self._tokenizer.get_vocab(with_added_tokens=True)
        added = self._tokenizer.get_added_tokens_decoder()
        special = SpecialTokens({}, (), "")
        if path.is_dir():
            special = read_special_tokens(path, lambda number: added[number].content if number in added else None)
        if (largest := max(vocabulary.values())) > MOST_GAPS * len(vocabulary):
            raise ValueError(f"the id {largest} with {len(vocabulary)} entries")
        self.special_names = names = _find_names(vocabulary, special.names, path)
        self.begin_id, self.end_id, self.pad_id = (vocabulary[names[f"{kind}_token"]] for kind in ("bos", "eos", "pad"))
        self._adds_begin = special.adds_begin or names["bos_token"] == END_OF_TEXT or END_OF_TEXT not in vocabulary
        if not self._adds_begin:
            self.begin_id = vocabulary[END_OF_TEXT]
        self.mask_id: int | None = vocabulary.get(MASK) if names == SPECIAL[1] else None
        self.extra_end_ids = tuple(end for end in special.end_ids if end != self.end_id)
        self.chat_template = special.chat_template
        texts = dict.fromkeys([*names.values(), *(added[end].content for end in self.extra_end_ids)])
        content = self._tokenizer.to_str()
        has_pieces = bool(parse_json_text(content)["model"].get("byte_fallback"))
        bytes_of = _bytes_of_piece if has_pieces else _bytes_of_characters
        table = [b""] * (largest + 1)
        for piece, number in vocabulary.items():
            if piece in texts or number == self.mask_id:
                continue
            table[number] = piece.encode("utf-8") if number in added else bytes_of(piece, path)
        self._special = re.compile(f"({'|'.join(map(re.escape, texts))})")
        strips = any(token.lstrip or token.rstrip for number, token in added.items() if number != self.mask_id)
        self.lossless = self._tokenizer.normalizer is None and not strips and not has_pieces
        key = content if names in SPECIAL else content + json.dumps(names, sort_keys=True)
        key += "" if self._adds_begin else END_OF_TEXT
        self.fingerprint = "byte-pairs-" + hashlib.sha256(key.encode("utf-8")).hexdigest()[:16]
        return table

    def for_encoder(self) -> TokenizerWithFrameIds:
        """Returns this tokenizer as a `TokenizerWithFrameIds`, with the begin, end and mask ids that a text encoder
        needs.
        """
        return TokenizerWithFrameIds(self)

    def files(self) -> dict[str, bytes]:
        """Returns a mapping from `tokenizer.json`, and from the names of files with special tokens of other tokenizers
        than those of GPT-2 and RoBERTa, to the contents of the files as bytes, for saving the tokenizer.
        """
        files = {"tokenizer.json": self._tokenizer.to_str().encode("utf-8")}
        settings = {} if self.special_names in SPECIAL else dict(self.special_names)
        settings |= {"chat_template": self.chat_template} if self.chat_template else {}
        settings |= {} if self._adds_begin else {"add_bos_token": False}
        if settings:
            files[SETTINGS] = json.dumps(settings).encode("utf-8")
        if self.extra_end_ids:
            files[GENERATION] = json.dumps({"eos_token_id": [self.end_id, *self.extra_end_ids]}).encode("utf-8")
        return files

    def encode(self, text: str) -> np.ndarray:
        """Returns the int32 ids of a text. The name of a special token in the text is encoded as ordinary text, except
        `<mask>` of a tokenizer like RoBERTa's.
        """
        ids: list[int] = []
        for number, part in enumerate(self._special.split(text)):
            # A name is spelled piece by piece: the library would read it as the special token.
            ids += self._spell(part[:2]) + self._spell(part[2:]) if number % 2 else self._spell(part)
        return np.array(ids, np.int32)

    def encode_special(self, text: str) -> np.ndarray:
        """Returns the int32 ids of a text in which the names of special tokens are read as these tokens, as in the
        prompt that a chat template makes.
        """
        return np.array(self._tokenizer.encode(text, add_special_tokens=False).ids, np.int32)

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
        partial.write_text(tokenizer.to_str(pretty=True), encoding="utf-8")  # `save` raises no OSError
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


def _find_names(vocabulary: Mapping[str, int], given: Mapping[str, str], path: object) -> dict[str, str]:
    """Returns the texts of the special tokens by their roles: those that a folder gives as far as the vocabulary has
    them, else those of GPT-2 or RoBERTa. Begin and padding are the end where there are none.
    """
    known = next((names for names in SPECIAL if vocabulary.keys() >= set(names.values())), {})
    names = {**known, **{role: text for role, text in given.items() if text in vocabulary}}
    if "eos_token" not in names:
        allowed = (
            "a byte-level tokenizer like GPT-2's, RoBERTa's with <s>, </s> and <pad>, or a folder with an eos_token"
        )
        raise ValueError(f"tokenizer: {path} has no {END_OF_TEXT}, allowed: {allowed}")
    end = names["eos_token"]
    return {"bos_token": end, "pad_token": end, **names}


def _bytes_of_characters(piece: str, path: object) -> bytes:
    """Returns the bytes that an entry of a byte-level vocabulary stands for.

    Raises:
      ValueError: An entry with characters that stand for no byte.
    """
    byte_of = _byte_of_character()
    if set(piece) - byte_of.keys():
        raise ValueError(f"tokenizer: {path} has the entry {piece!r}, allowed: a byte-level tokenizer")
    return bytes(byte_of[character] for character in piece)


def _bytes_of_piece(piece: str, path: object) -> bytes:
    """Returns the bytes of a piece of a text, in which `SPACE` is a blank, or of a byte's name, such as `<0x0A>`."""
    del path
    match = _BYTE.fullmatch(piece)
    return bytes([int(match[1], 16)]) if match else piece.replace(SPACE, " ").encode("utf-8")


@functools.cache
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
