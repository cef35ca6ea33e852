"""Tokenizers from text to ids and back: bytes, SentencePiece, words (WikiText), and any seqio vocabulary.

Byte and SentencePiece tokenizers are lossless: `decode(encode(text)) == text` for every text that has a UTF-8 form,
and `token_bytes` sums to its UTF-8 length. Bits per byte are therefore exact with every vocabulary. The tokenizers also
accept bytes that are not UTF-8 as surrogate escapes (PEP 383). Such bytes stand at the ends of a corpus that was cut
inside a character.
"""

from __future__ import annotations

import codecs
import collections
import contextlib
import functools
import hashlib
import json
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeAlias, runtime_checkable

import numpy as np

from memjax import config as configs
from memjax.data.reader_errors import expect, reading
from memjax.data.records import parse_json_text
from memjax.data.sentencepiece_models import SPACE, fit_sentencepiece
from memjax.durable_files import explain_full_disk, sync_to_disk

__all__ = [
    "ByteTokenizer",
    "SentencePieceTokenizer",
    "StreamingDecoder",
    "Tokenizer",
    "WordTokenizer",
    "train_sentencepiece",
]

# Characters that SentencePiece would change. They are written in byte pieces instead.
_SPELLED = re.compile("([\u2581\udc80-\udcff]+)")

Ids: TypeAlias = Sequence[int | np.integer] | np.ndarray


@runtime_checkable
class Tokenizer(Protocol):
    """Interface of all tokenizers: text to ids and back, with the number of bytes of each id.

    Attributes:
      vocab_size: Number of ids, including special ids.
      begin_id: Special id that is read before the first token of a document.
      end_id: Special id that ends a text.
      pad_id: Special id of padding. Special ids stand for no bytes.
      lossless: Whether every text can be decoded from its ids, and `token_bytes` sums to its UTF-8 length.
      fingerprint: Hash that changes when the ids of some text change.
      base: The innermost tokenizer, inside all wrappers that add marks or end tokens. The tokenizer itself if it wraps
        none.
    """

    vocab_size: int
    begin_id: int
    end_id: int
    pad_id: int
    lossless: bool
    fingerprint: str

    @property
    def base(self) -> Any: ...

    def files(self) -> dict[str, bytes]:
        """Returns name -> content of the files from which `memjax.data.saved_tokenizers` can load the tokenizer."""
        ...

    def encode(self, text: str) -> np.ndarray:
        """Returns the int32 ids of a text, without begin or end id."""
        ...

    def decode(self, ids: Ids) -> str:
        """Returns the text of ids. Bytes that are not UTF-8 become U+FFFD."""
        ...

    def token_bytes(self, ids: Ids) -> np.ndarray:
        """Returns the number of UTF-8 bytes that each id stands for, int32 in the shape of `ids`."""
        ...


def utf8_bytes(text: str) -> bytes:
    """Encodes a text as UTF-8. A surrogate escape becomes the byte that it stands for."""
    return text.encode("utf-8", "surrogateescape")


@contextlib.contextmanager
def write_then_rename(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Context manager to write a file atomically, so that no reader sees half of it: it yields a temporary path, which
    replaces `path` at the end.

    The temporary path is next to `path`. It only replaces `path` if the block ends without an error.
    """
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_name(f"{target.name}.{os.getpid()}.partial")
    try:
        with explain_full_disk(target):
            yield partial
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
    sync_to_disk(partial)
    partial.replace(target)


class _ByteTable:
    """Base class of tokenizers in which every id stands for a fixed string of bytes."""

    begin_id = 1
    end_id = 2
    pad_id = 0
    extra_end_ids: tuple[int, ...] = ()
    chat_template = ""

    def __init__(self, table: Sequence[bytes]):
        """Takes the bytes of every id. Special ids have none."""
        self._table, self.vocab_size = table, len(table)
        self._lengths = np.array([len(piece) for piece in table], np.int32)

    @property
    def base(self) -> Any:
        return self

    def files(self) -> dict[str, bytes]:
        """Returns name -> content of the files from which the tokenizer can be loaded. Empty if it needs none."""
        return {}

    def decode_bytes(self, ids: Ids) -> bytes:
        """Returns the bytes that ids stand for, joined."""
        return b"".join([self._table[i] for i in np.asarray(ids, np.int64).tolist()])

    def decode(self, ids: Ids) -> str:
        """Returns the text of ids. Bytes that are not UTF-8 become U+FFFD."""
        return self.decode_bytes(ids).decode("utf-8", "replace")

    def encode(self, text: str) -> np.ndarray:
        """Returns the int32 ids of a text, without begin or end id."""
        raise NotImplementedError(f"{type(self).__name__} has no encode")

    def encode_many(self, texts: Sequence[str]) -> list[np.ndarray]:
        """Returns a list with the int32 ids of each text. See `encode`."""
        return [self.encode(text) for text in texts]

    def token_bytes(self, ids: Ids) -> np.ndarray:
        """Returns the number of UTF-8 bytes of each id, int32 in the shape of `ids`."""
        return self._lengths[np.asarray(ids, np.int64)]


class ByteTokenizer(_ByteTable):
    """A tokenizer with one id per UTF-8 byte: 0 pad, 1 begin, 2 end, 3 + b for byte b.

    Example:
      >>> tokenizer = ByteTokenizer()
      >>> tokenizer.encode("hi").tolist(), tokenizer.decode([107, 108]), tokenizer.vocab_size
      ([107, 108], 'hi', 259)
    """

    lossless = True
    fingerprint = "bytes-3"

    def __init__(self):
        super().__init__([b"", b"", b"", *(bytes([value]) for value in range(256))])

    def encode(self, text: str) -> np.ndarray:
        """Returns the int32 ids of a text, one per UTF-8 byte."""
        return np.frombuffer(utf8_bytes(text), np.uint8).astype(np.int32) + 3


class SentencePieceTokenizer(_ByteTable):
    """A tokenizer from a SentencePiece model file.

    A model made by `train_sentencepiece` is lossless, and every `encode` is checked. A model with normalisation, with a
    dummy prefix or without byte pieces (T5, Llama) can be read too and has `lossless = False`. Its `token_bytes` counts
    the bytes of the pieces, which may differ from the bytes of the text.

    Example:
      >>> tokenizer = SentencePieceTokenizer("spm.model")  # doctest: +SKIP
      >>> tokenizer.decode(tokenizer.encode("def f():\\n\\treturn 1\\n"))  # doctest: +SKIP
      'def f():\\n\\treturn 1\\n'
    """

    def __init__(self, path: str | os.PathLike[str]):
        """Loads a model file.

        Raises:
          ValueError: The file is missing or is not a SentencePiece model.
        """
        import sentencepiece

        model = Path(path)
        if not model.is_file():
            raise ValueError(f"tokenizer: {model} is not a file; give a SentencePiece model, or train one")
        content = model.read_bytes()
        self.path, self._content = model, content
        self.fingerprint = "sentencepiece-" + hashlib.sha256(content).hexdigest()[:16]
        with reading(model, "a SentencePiece model; train one"):
            processor = self._processor = sentencepiece.SentencePieceProcessor()
            processor.LoadFromSerializedProto(content)
            super().__init__([_piece_bytes(processor, i) for i in range(processor.get_piece_size())])
        # A model without these ids (T5 has no begin id) starts documents with its padding id, as T5's decoder does.
        self.pad_id = max(processor.pad_id(), 0)
        self.begin_id = processor.bos_id() if processor.bos_id() >= 0 else self.pad_id
        self.end_id = processor.eos_id() if processor.eos_id() >= 0 else self.pad_id
        self._bytes = {self._table[i][0]: i for i in range(len(self._table)) if processor.is_byte(i)}
        exact = lambda text: self.decode_bytes(self._encode(text)) == utf8_bytes(text)
        self.lossless = len(self._bytes) == 256 and all(map(exact, ("a  b ", " \n\t", "ﬁ½")))

    def files(self) -> dict[str, bytes]:
        """Returns a mapping from `sentencepiece.model` to the content of the model file, for saving the tokenizer."""
        return {"sentencepiece.model": self._content}

    def encode(self, text: str) -> np.ndarray:
        """Returns the int32 ids of a text.

        Raises:
          ValueError: A lossless model does not preserve this text. This is a bug, not a mistake of the user.
        """
        ids = self._encode(text)
        if self.lossless and self.decode_bytes(ids) != utf8_bytes(text):
            raise ValueError(f"text: {self.path} does not give it back; report the model and the text")
        return np.array(ids, np.int32)

    def _encode(self, text: str) -> list[int]:
        if not self._bytes:
            return self._processor.encode(text)
        ids: list[int] = []
        for number, part in enumerate(_SPELLED.split(text)):
            ids += [self._bytes[value] for value in utf8_bytes(part)] if number % 2 else self._processor.encode(part)
        return ids


def _piece_bytes(processor: Any, index: int) -> bytes:
    """Returns the bytes that a piece of a SentencePiece model stands for. Special pieces have none."""
    if processor.is_byte(index):
        return bytes([int(processor.id_to_piece(index)[3:5], 16)])
    if processor.is_control(index) or processor.is_unknown(index):
        return b""
    return processor.id_to_piece(index).replace(SPACE, " ").encode("utf-8")


def make_byte_tokenizer(settings: configs.Bytes, train: Any) -> ByteTokenizer:
    """Returns a `ByteTokenizer`. The arguments are not used: `memjax.data.opening.make_tokenizer` passes them to every
    function that makes a tokenizer.
    """
    del settings, train
    return ByteTokenizer()


def make_sentencepiece_tokenizer(settings: configs.SentencePiece, train: Any) -> SentencePieceTokenizer:
    """Returns the SentencePiece tokenizer of `settings`: that of the file `settings.model`, or without one the result
    of `train(name, train_on, load)`, a function from `memjax.data.opening.make_tokenizer` that trains a new tokenizer
    once.
    """
    if settings.model:
        return SentencePieceTokenizer(settings.model)
    train_on = functools.partial(train_sentencepiece, vocab_size=settings.vocab_size)
    return train(f"sentencepiece-{settings.vocab_size}-{{}}.model", train_on, SentencePieceTokenizer)


def make_word_tokenizer(settings: configs.Words, train: Any) -> WordTokenizer:
    """Returns a tokenizer of words, the result of `train(name, train_on, load)`, a function from
    `memjax.data.opening.make_tokenizer` that trains a new tokenizer once. `settings` are not used.
    """
    del settings
    return train("words-{}.json", lambda texts, path: WordTokenizer.train(texts).save(path), WordTokenizer.load)


def train_sentencepiece(
    texts: Iterable[str],
    path: str | os.PathLike[str],
    *,
    vocab_size: int = 4096,
    model_type: str = "bpe",
    max_bytes: int | None = 100_000_000,
) -> SentencePieceTokenizer:
    """Trains a lossless SentencePiece model (`model_type` is `bpe` or `unigram`) on up to `max_bytes` of texts, writes
    it to `path` (through a temporary file), and returns it as a tokenizer.

    The model does not normalise texts, adds no dummy prefix and removes no white space. Runs of spaces may be pieces.
    Newlines are ordinary characters: a piece such as `:` and newline saves 10 % of the tokens of source code.
    Characters that are not in the vocabulary are written in 256 byte pieces.

    Args:
      texts: Training texts, read once in order.
      path: Path of the model file.
      vocab_size: Number of ids, of which 260 are special or bytes. Texts with fewer pieces give a smaller vocabulary.
      model_type: `bpe`, which trains in seconds, or `unigram`, which takes 30 times as long and needs half a percent
        fewer tokens for source code.
      max_bytes: Number of bytes after which no more texts are read. None to read all texts.

    Returns:
      The tokenizer.

    Raises:
      ValueError: No text, nothing but white space, or sizes that do not allow training.
    """
    if vocab_size <= 260:
        raise ValueError(f"vocab_size: {vocab_size}; give more than 260 (special ids and bytes), or use bytes alone")
    if model_type not in ("bpe", "unigram"):
        raise ValueError(f"model_type: {model_type!r}; allowed are bpe, unigram")
    sentences = list(_Sentences(texts, max_bytes))
    if not any(map(str.strip, sentences)):
        raise ValueError("texts: no text but white space; give text, or use bytes alone")
    try:
        model = fit_sentencepiece(sentences, vocab_size, model_type)
    except (RuntimeError, OSError) as error:
        reason = " ".join(str(error).split()).rsplit("] ", 1)[-1].rstrip(".")
        size = sum(len(utf8_bytes(sentence)) for sentence in sentences)
        raise ValueError(
            f"vocab_size: {vocab_size} cannot be trained on {size} bytes of text ({reason}); "
            "give more text or a smaller vocabulary, or use bytes alone"
        ) from error
    with write_then_rename(path) as partial:
        partial.write_bytes(model)
    return SentencePieceTokenizer(path)


class _Sentences:
    """Cuts texts at line ends into the trainer's sentences and counts their bytes."""

    def __init__(self, texts: Iterable[str], max_bytes: int | None):
        self._texts, self._max_bytes, self.bytes = texts, max_bytes, 0

    def __iter__(self) -> Iterator[str]:
        for text in self._texts:
            lines: list[str] = []
            size = 0
            for line in text.splitlines(keepends=True):
                for begin in range(0, len(line), 2000):
                    lines.append(line[begin : begin + 2000])
                    size += len(lines[-1])
                    if size >= 2000:
                        yield self._count("".join(lines))
                        lines, size = [], 0
            if lines:
                yield self._count("".join(lines))
            if self._max_bytes is not None and self.bytes >= self._max_bytes:
                return

    def _count(self, sentence: str) -> str:
        self.bytes += len(utf8_bytes(sentence))
        return _SPELLED.sub(" ", sentence)


def count_words(text: str) -> int:
    """Counts the words of a text, and one `<eos>` per line: the tokens of `WordTokenizer`, whatever its vocabulary.

    Example:
      >>> count_words(" a b a \\n = c = \\n"), count_words("")
      (8, 0)
    """
    return len(text.split()) + (text.removesuffix("\n").count("\n") + 1 if text else 0)


class WordTokenizer(_ByteTable):
    """A tokenizer of words between white space, with `<eos>` at every line end, as WikiText counts its tokens.

    Ids: 0 pad, 1 begin, 2 `<eos>` (also `end_id`), 3 `<unk>`, then words by falling count (ties by spelling). The
    training split of WikiText-2 gives the published vocabulary of 33,278, plus pad and begin.

    `token_bytes` counts the bytes of a word plus one space, and 2 for `<eos>`. This is exact for the files of WikiText,
    whose lines have the form `" word word \\n"`, if every word is in the vocabulary.

    Example:
      >>> tokenizer = WordTokenizer.train([" a b a \\n"])
      >>> tokenizer.encode(" a c \\n").tolist(), tokenizer.decode([4, 5, 2])
      ([4, 3, 2], ' a b \\n')
    """

    lossless = False

    def __init__(self, words: Sequence[str]):
        """Takes the vocabulary.

        Args:
          words: Words in the order of ids, without pad, begin, `<eos>` and `<unk>`. A list that contains `<eos>` is a
            complete vocabulary, as other libraries have it: positions are ids, and `<eos>` is also the begin and
            padding id.

        Raises:
          ValueError: A complete vocabulary without `<unk>`, or with a word twice.
        """
        self.words, is_whole = list(words), "<eos>" in words
        symbols = self.words if is_whole else ["", "", "<eos>", "<unk>", *words]
        self._ids = {symbol: number for number, symbol in enumerate(symbols)}
        if is_whole and ("<unk>" not in self._ids or len(self._ids) < len(symbols)):
            raise ValueError("words: given <eos> among them, allowed: a whole vocabulary, with <unk>, each word once")
        pieces = {"": b"", "<eos>": b" \n"}
        super().__init__([pieces.get(symbol, (symbol + " ").encode("utf-8")) for symbol in symbols])
        if is_whole:
            self.begin_id = self.end_id = self.pad_id = self._ids["<eos>"]
        self.fingerprint = "words-" + hashlib.sha256("\n".join(words).encode("utf-8")).hexdigest()[:16]

    @classmethod
    def train(cls, texts: Iterable[str], *, vocab_size: int | None = None, min_count: int = 1) -> WordTokenizer:
        """Returns a tokenizer of the most frequent words of texts, with at most `vocab_size` ids, and without words
        that occur fewer than `min_count` times.

        Args:
          texts: Training texts.
          vocab_size: Largest number of ids, including special ids. None for no limit.
          min_count: Smallest number of times that a word must occur.
        """
        counts: collections.Counter[str] = collections.Counter()
        for text in texts:
            counts.update(text.split())
        del counts["<unk>"], counts["<eos>"]
        words = sorted((word for word, count in counts.items() if count >= min_count), key=lambda w: (-counts[w], w))
        if not words:
            raise ValueError("texts: no words; give the training split")
        return cls(words if vocab_size is None else words[: max(vocab_size - 4, 0)])

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> WordTokenizer:
        """Loads a tokenizer whose vocabulary `save` has written."""
        if not Path(path).is_file():
            raise ValueError(f"tokenizer: {path} is not a file; give a vocabulary written by WordTokenizer.save")
        with reading(path, "a JSON list of words"):
            return cls(expect(parse_json_text(Path(path).read_bytes()), list))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the vocabulary to a JSON file."""
        with write_then_rename(path) as partial:
            partial.write_bytes(self.files()["words.json"])

    def files(self) -> dict[str, bytes]:
        """Returns a mapping from `words.json` to the content of that file, the vocabulary, for saving the tokenizer."""
        return {"words.json": json.dumps(self.words, ensure_ascii=False).encode("utf-8")}

    def encode(self, text: str) -> np.ndarray:
        """Returns the int32 ids of a text. A last line without a newline gets its `<eos>` too."""
        unknown, ids = self._ids["<unk>"], self._ids
        result: list[int] = []
        for line in text.removesuffix("\n").split("\n") if text else []:
            result += [ids.get(word, unknown) for word in line.split()]
            result.append(ids["<eos>"])
        return np.array(result, np.int32)

    def decode_bytes(self, ids: Ids) -> bytes:
        """Returns the text of ids as bytes in WikiText's form: a space before every word and before the newline."""
        end = self._ids["<eos>"]
        result, at_line_start = [], True
        for i in np.asarray(ids, np.int64).tolist():
            result.append((b" " if at_line_start and self._table[i] else b"") + (b"\n" if i == end else self._table[i]))
            at_line_start = i == end or (at_line_start and not self._table[i])
        return b"".join(result)


class StreamingDecoder:
    """Decodes the ids of a tokenizer to text as they arrive. A character is returned when its last byte has arrived.

    Example:
      >>> decoder, ids = StreamingDecoder(ByteTokenizer()), ByteTokenizer().encode("é")
      >>> [decoder.push(ids[:1]), decoder.push(ids[1:]), decoder.flush()]
      ['', 'é', '']
    """

    def __init__(self, tokenizer: Tokenizer):
        self._tokenizer = tokenizer
        self._table = tokenizer if isinstance(tokenizer, _ByteTable) else None
        self._bytes = codecs.getincrementaldecoder("utf-8")("replace")
        self._ids: list[int] = []
        self._num_returned = 0

    def push(self, ids: Ids) -> str:
        """Adds ids and returns the text that they complete, '' if none is complete."""
        if self._table is not None:
            return self._bytes.decode(self._table.decode_bytes(ids))
        # Without a table of bytes the whole text is decoded again: a piece may change the space before it.
        self._ids += [int(i) for i in np.asarray(ids)]
        text = self._tokenizer.decode(self._ids)
        new, self._num_returned = text[self._num_returned :], max(self._num_returned, len(text))
        return new

    def flush(self) -> str:
        """Returns the text that is left at the end: U+FFFD for an incomplete character, otherwise ''."""
        return self._bytes.decode(b"", final=True)
