"""Settings of the kinds of tokenizer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from memjax.settings.checks import Settings
from memjax.settings.ranges import zero_or_more

__all__ = ["Tokenizer", "Bytes", "SentencePiece", "Words", "VectorWords", "BytePairs", "WordPiece", "TokenizerKind"]


@dataclass(slots=True, kw_only=True)
class Tokenizer(Settings):
    """Base class of the settings of all tokenizers, with facts that a kind may override.

    Attributes:
      made_by: Function `make(settings, train)` that makes the tokenizer, as 'module:function'. Where there is no file
        of it, `train(name, train_on, load)` trains it. See `memjax.data.opening.make_tokenizer`.
      vocab_size: Number of entries of a tokenizer that is trained. 0 where its data decides.
      has_vectors: Whether the words come from a file of word vectors.
    """

    made_by = ""
    vocab_size = 0
    has_vectors = False


@dataclass(slots=True, kw_only=True)
class Bytes(Tokenizer):
    """A tokenizer whose tokens are UTF-8 bytes and a few special symbols."""

    made_by = "memjax.data.tokenizers:make_byte_tokenizer"


@dataclass(slots=True, kw_only=True)
class SentencePiece(Tokenizer):
    """A SentencePiece tokenizer, trained on the training split or read from a file. It decodes every text exactly."""

    made_by = "memjax.data.tokenizers:make_sentencepiece_tokenizer"

    model: str = ""
    """model file; '' = train one on the training split and keep it with the prepared data"""
    vocab_size: int = 4096
    """number of pieces of a model that is trained"""


@dataclass(slots=True, kw_only=True)
class Words(Tokenizer):
    """A tokenizer whose tokens are the white-space separated words of the training split (WikiText's protocol)."""

    made_by = "memjax.data.tokenizers:make_word_tokenizer"


@dataclass(slots=True, kw_only=True)
class VectorWords(Tokenizer):
    """A tokenizer whose tokens are the words of a file of word vectors (GloVe), with which a BiLSTM starts."""

    made_by = "memjax.data.word_vectors:make_vector_word_tokenizer"
    has_vectors = True

    path: str = ""
    """file of word vectors (also .xz / .gz), in every line a word and its numbers"""
    num_words: Annotated[int, zero_or_more("all", "words")] = 0
    """number of words to read from the start of the file; 0 = all"""


@dataclass(slots=True, kw_only=True)
class BytePairs(Tokenizer):
    """A byte-level byte-pair tokenizer, as GPT-2 has one. It decodes every text exactly. Needs the extra `hf`."""

    made_by = "memjax.data.byte_pairs:make_byte_pair_tokenizer"

    path: str = ""
    """a tokenizer.json file, or a folder with GPT-2's vocab.json and merges.txt; '' = train one on the training
    split"""
    vocab_size: int = 4096
    """number of entries of a tokenizer that is trained"""


@dataclass(slots=True, kw_only=True)
class WordPiece(Tokenizer):
    """A WordPiece tokenizer as BERT's, read from a file or trained on the training split. Needs the extra `hf`."""

    made_by = "memjax.data.wordpiece:make_wordpiece_tokenizer"

    vocab: str = ""
    """vocab.txt or tokenizer.json file (also .xz / .gz); '' = train one on the training split"""
    vocab_size: int = 4096
    """number of pieces of a tokenizer that is trained"""
    lowercase: bool = True
    """lower-case all text, as an uncased vocabulary needs it; for a vocab.txt file or a tokenizer that is trained,
    since a tokenizer.json file says it itself"""


TokenizerKind = Bytes | SentencePiece | Words | VectorWords | BytePairs | WordPiece
