"""WordPiece tokenizers, as in BERT, with the Hugging Face library `tokenizers` (the extra `hf`)."""

from __future__ import annotations

import functools
import hashlib
import os
import types
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from memjax import config as configs
from memjax.data.added_tokens import Added, add_tokens
from memjax.data.paths import read_text
from memjax.data.reader_errors import reading
from memjax.data.tokenizers import Ids, write_then_rename

__all__ = ["WordPieceTokenizer"]

PAD, UNKNOWN, CLASS, SEPARATOR, MASK = SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
MOST_CHARACTERS = 1000
"""largest number of characters that training keeps, as in the library"""


class WordPieceTokenizer:
    """A WordPiece tokenizer from BERT's `vocab.txt` or a `tokenizer.json`.

    A text is cleaned, then lower-cased and stripped of accents if the vocabulary is uncased, then cut at white space
    and punctuation. Each word is cut into its longest known pieces. White space and case are lost, so `lossless` is
    False. Special tokens in a text, such as "[MASK]", are read as such, as in BERT's tokenizer.

    Attributes:
      begin_id: Id of [CLS], before every text.
      end_id: Id of [SEP], after every text.
      pad_id: Id of [PAD], which fills rows.
      unknown_id: Id of [UNK], which replaces unknown words.
      mask_id: Id of [MASK], which hides a token.
      special_ids: Ids of all special tokens.

    Example:
      >>> tokenizer = WordPieceTokenizer.train(["a cat sat", "a cat ran"], vocab_size=40)
      >>> tokenizer.decode(tokenizer.encode("A cat"))
      'a cat'
    """

    lossless = False
    extra_end_ids: tuple[int, ...] = ()
    chat_template = ""

    def __init__(
        self,
        path: str | os.PathLike[str] | None = None,
        *,
        lowercase: bool = True,
        content: str = "",
        strip_accents: bool | None = None,
        split_chinese: bool = True,
        added: Added = types.MappingProxyType({}),
    ):
        """Loads a vocabulary from a file, or from the content of a file.

        Args:
          path: Path of a `vocab.txt` with one piece per line, or of a `tokenizer.json` (also `.xz`, `.gz`). None to
            read `content`.
          lowercase: Whether a `vocab.txt` is uncased, so that texts are lower-cased. No effect on a `tokenizer.json`,
            which has its own settings, like the next two arguments.
          content: Content of the file, read instead of `path`. Empty to read `path`.
          strip_accents: Whether accents are removed from texts. None for the value of `lowercase`.
          split_chinese: Whether each Chinese character is a word.
          added: Tokens to add to a `vocab.txt`: id -> fields (see `memjax.data.added_tokens`).

        Raises:
          ValueError: No such file, no WordPiece vocabulary, or one that lacks a special token.
        """
        import tokenizers

        if path is not None and not Path(path).is_file():
            raise ValueError(f"vocab: {path} is not a file, allowed: a vocab.txt or a tokenizer.json")
        text = content if path is None else content or read_text(Path(path))
        if text.lstrip().startswith("{"):
            with reading(path, "a tokenizer.json"):
                self._tokenizer = tokenizers.Tokenizer.from_str(text)
            kind = type(self._tokenizer.model).__name__
            if kind != "WordPiece":
                raise ValueError(f"vocab: {path} is a tokenizer of the kind {kind}, allowed: WordPiece")
        else:
            pieces = text.replace("\r\n", "\n").rstrip("\n").split("\n")
            if len(set(pieces)) != len(pieces) or UNKNOWN not in pieces:
                what = f"no list of different pieces with {UNKNOWN}"
                raise ValueError(f"vocab: {path} is {what}, allowed: a vocab.txt of BERT")
            ids = {piece: index for index, piece in enumerate(pieces)}
            self._tokenizer = _make_bert_tokenizer(
                lowercase, ids, strip_accents=strip_accents, split_chinese=split_chinese
            )
            with reading(path, "a vocab.txt with added tokens that have the next ids"):
                add_tokens(self._tokenizer, added, path)
        self._tokenizer.no_padding()
        self._tokenizer.no_truncation()
        vocabulary = self._tokenizer.get_vocab()
        missing = [token for token in SPECIAL if token not in vocabulary]
        if missing:
            raise ValueError(f"vocab: {path} has no {', '.join(missing)}, allowed: a vocabulary of BERT's kind")
        self._tokenizer.add_special_tokens(list(SPECIAL))
        self.vocab_size: int = self._tokenizer.get_vocab_size()
        if (largest := max(self._tokenizer.get_vocab().values())) >= self.vocab_size:
            allowed = f"ids below {self.vocab_size}, the number of entries"
            raise ValueError(f"vocab: {path} has an entry with the id {largest}, allowed: {allowed}")
        self.pad_id, self.unknown_id, self.begin_id, self.end_id, self.mask_id = (vocabulary[t] for t in SPECIAL)
        self.special_ids = np.array(sorted(vocabulary[token] for token in SPECIAL), np.int32)
        self.fingerprint = "wordpiece-" + hashlib.sha256(self._tokenizer.to_str().encode("utf-8")).hexdigest()[:16]
        lengths = {i: 0 if p in SPECIAL else len(p.removeprefix("##").encode("utf-8")) for p, i in vocabulary.items()}
        self._lengths = np.array([lengths.get(index, 0) for index in range(self.vocab_size)], np.int32)

    @classmethod
    def train(cls, texts: Iterable[str], *, vocab_size: int, lowercase: bool = True) -> WordPieceTokenizer:
        """Returns a tokenizer whose vocabulary is trained on texts, with at most `vocab_size` pieces. `lowercase` makes
        it uncased.

        Args:
          texts: Training texts.
          vocab_size: Largest number of pieces, including special tokens.
          lowercase: Whether the vocabulary is uncased.
        """
        import tokenizers

        texts, tokenizer = list(texts), _make_bert_tokenizer(lowercase, {})
        # The library meets further pieces in random order, and ties between merges depend on it: they are given to it.
        trainer = tokenizers.trainers.WordPieceTrainer(
            vocab_size=vocab_size,
            special_tokens=[*SPECIAL, *_further_characters(tokenizer, texts)],
            show_progress=False,
        )
        tokenizer.train_from_iterator(texts, trainer)
        return cls(content=_make_bert_tokenizer(lowercase, tokenizer.get_vocab()).to_str())

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the tokenizer to a `tokenizer.json`."""
        with write_then_rename(path) as partial:
            partial.write_bytes(self.files()["tokenizer.json"])

    @property
    def base(self) -> Any:
        return self

    def for_encoder(self) -> WordPieceTokenizer:
        """Returns the tokenizer itself, which already has begin, end and mask tokens."""
        return self

    def files(self) -> dict[str, bytes]:
        """Returns a mapping from `tokenizer.json` to the content of that file, for saving the tokenizer."""
        return {"tokenizer.json": self._tokenizer.to_str().encode("utf-8")}

    def encode(self, text: str) -> np.ndarray:
        """Returns the int32 ids of a text, without special tokens around them."""
        return np.array(self._tokenizer.encode(text, add_special_tokens=False).ids, np.int32)

    def encode_offsets(self, text: str) -> tuple[np.ndarray, np.ndarray]:
        """Returns the int32 ids of a text, and an int32 array `[tokens, 2]` with the begin and end of each token among
        the characters of the text.
        """
        encoding = self._tokenizer.encode(text, add_special_tokens=False)
        return np.array(encoding.ids, np.int32), np.array(encoding.offsets, np.int32).reshape(-1, 2)

    def encode_many(self, texts: Sequence[str]) -> list[np.ndarray]:
        """Returns a list with the int32 ids of each text, encoded on several threads. See `encode`."""
        encodings = self._tokenizer.encode_batch(list(texts), add_special_tokens=False)
        return [np.array(encoding.ids, np.int32) for encoding in encodings]

    def markers(self, count: int) -> np.ndarray:
        """Returns the int32 ids of `count` pieces without a meaning: [unused0], [unused1], ..., or [SEP] if missing."""
        unused_ids = [self._tokenizer.token_to_id(f"[unused{number}]") for number in range(count)]
        return np.array([self.end_id if unused_id is None else unused_id for unused_id in unused_ids], np.int32)

    def decode(self, ids: Ids) -> str:
        """Returns the text of ids, words with single spaces. Special tokens are left out."""
        return self._tokenizer.decode([int(i) for i in np.asarray(ids)], skip_special_tokens=True)

    def token_bytes(self, ids: Ids) -> np.ndarray:
        """Returns the number of UTF-8 bytes of each piece, without white space, int32 in the shape of `ids`."""
        return self._lengths[np.asarray(ids, np.int64)]


def _further_characters(tokenizer: Any, texts: Iterable[str]) -> list[str]:
    """Returns the sorted pieces `##c` of the characters that occur in texts and can stand inside a word. Of more than
    `MOST_CHARACTERS` the most frequent ones count.
    """
    counts: Counter[str] = Counter()
    for text in texts:
        counts.update(tokenizer.normalizer.normalize_str(text))
    words = lambda text: tokenizer.pre_tokenizer.pre_tokenize_str(tokenizer.normalizer.normalize_str(text))
    inside = [char for char in counts if not char.isspace() and len(words(f"{char}{char}")) == 1]
    chosen = sorted(inside, key=lambda char: (-counts[char], char))[:MOST_CHARACTERS]
    return [f"##{char}" for char in sorted(chosen)]


def join_texts(tokenizer: Any, *texts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Joins the ids of one text or of a pair with special tokens, `[CLS] a [SEP] b [SEP]`. Returns the ids and the
    token type of each: 0 for the first text, 1 for the second.

    Args:
      tokenizer: Tokenizer with `begin_id` and `end_id`.
      *texts: Ids of one or two texts.

    Returns:
      The int32 ids, and the token type of each: 0 for the first text, 1 for the second.

    Example:
      >>> tokenizer = WordPieceTokenizer.train(["a b"], vocab_size=20)
      >>> join_texts(tokenizer, np.array([7]), np.array([8, 8]))[1].tolist()
      [0, 0, 0, 1, 1, 1]
    """
    begin, end = np.array([tokenizer.begin_id], np.int32), np.array([tokenizer.end_id], np.int32)
    parts = [np.concatenate([begin] * (not number) + [text, end]) for number, text in enumerate(texts)]
    types = [np.full(len(part), number, np.int32) for number, part in enumerate(parts)]
    return np.concatenate(parts).astype(np.int32), np.concatenate(types)


def truncate_texts(texts: Sequence[np.ndarray], length: int) -> list[np.ndarray]:
    """Cuts the ends of texts, given as ids, so that they fit into `length` tokens together with their special tokens,
    and returns them as a list.

    The longest text is cut first, at its end.

    Raises:
      ValueError: No room for one token of each text.

    Example:
      >>> [len(text) for text in truncate_texts([np.zeros(9), np.zeros(3)], length=10)]
      [4, 3]
    """
    sizes, room = [len(text) for text in texts], length - 1 - len(texts)
    if room < len(texts):
        raise ValueError(
            f"segment_length: given {length}, allowed: at least {2 * len(texts) + 1} for {len(texts)} texts"
        )
    # As one token after the other from the longest text, of equal ones the first, but many at once.
    while (excess := sum(sizes) - room) > 0:
        longest = max(sizes)
        places = [place for place, size in enumerate(sizes) if size == longest]
        shorter = max((size for size in sizes if size < longest), default=0)
        share, rest = divmod(min(excess, len(places) * (longest - shorter)), len(places))
        for number, place in enumerate(places):
            sizes[place] -= share + (number < rest)
    return [text[:size] for text, size in zip(texts, sizes, strict=True)]


def _make_bert_tokenizer(
    lowercase: bool, vocabulary: dict[str, int], *, strip_accents: bool | None = None, split_chinese: bool = True
) -> Any:
    """Makes a tokenizer of the library `tokenizers` with BERT's rules and a vocabulary (piece -> id)."""
    import tokenizers
    from tokenizers import decoders, models, normalizers, pre_tokenizers

    tokenizer = tokenizers.Tokenizer(
        models.WordPiece(vocabulary or {UNKNOWN: 0}, unk_token=UNKNOWN, max_input_chars_per_word=100)
    )
    tokenizer.normalizer = normalizers.BertNormalizer(
        clean_text=True,
        handle_chinese_chars=split_chinese,
        strip_accents=lowercase if strip_accents is None else strip_accents,
        lowercase=lowercase,
    )
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    return tokenizer


def make_wordpiece_tokenizer(settings: configs.WordPiece, train: Any) -> WordPieceTokenizer:
    """Returns the WordPiece tokenizer of `settings`: that of the file `settings.vocab`, or without one the result of
    `train(name, train_on, load)`, a function from `memjax.data.opening.make_tokenizer` that trains a new tokenizer
    once.
    """
    load = functools.partial(WordPieceTokenizer, lowercase=settings.lowercase)
    if settings.vocab:
        return load(settings.vocab)
    options = {"vocab_size": settings.vocab_size, "lowercase": settings.lowercase}
    name = f"wordpiece-{settings.vocab_size}-{'uncased' if settings.lowercase else 'cased'}-{{}}.json"
    return train(name, lambda texts, path: WordPieceTokenizer.train(texts, **options).save(path), load)
