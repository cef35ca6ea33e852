"""Relation extraction: the relation that a sentence tells, of candidates, of those seen so far, or of all."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from memjax.data.documents import Example, Examples, Split
from memjax.data.opening import Datasets, cache_folder, make_tokenizer
from memjax.data.paths import read_text
from memjax.data.readers import open_source, relation_splits
from memjax.data.relation_sentences import RelationSentence, drawn_candidates, name_words
from memjax.data.sources import Texts
from memjax.data.token_files import Progress
from memjax.data.word_vectors import WordVectors, read_word_vectors, table_of
from memjax.data.wordpiece import WordPieceTokenizer, join_texts
from memjax.models.bilstm import Fixed
from memjax.models.contract import Model
from memjax.models.heads import CLASSES, FALLBACK, SEEN_ONLY
from memjax.models.similarity_head import SimilarityHead
from memjax.tasks.classification import Classification
from memjax.tasks.contract import Asked
from memjax.typing import Batch

__all__ = ["LabelledSentences", "RelationMeasure"]


class RelationExtraction(Classification):
    """Sentences with relations, one target each; a right answer is more similar than each other candidate."""

    headline = ("accuracy",)
    scored = "sentences"
    about = ""

    def __init__(self, config: Any):
        super().__init__(config)
        self._tokenizer: Any = None
        """of the data, once it is open"""

    def data(self, progress: Progress | None = None, *, tokenizer: Any = None) -> Datasets:
        """Sentences with the tokenizer of their words.

        Raises:
          ValueError: word vectors of another width, names of another number of relations.
        """
        data, task = self.config.data, self.settings
        source: Any = data.source
        if data.half:
            raise ValueError(f"data.half: given {data.half!r}, allowed: '' for sentences (documents have halves)")

        def texts() -> Texts:
            splits = relation_splits(source)
            lines = [one.text for one in splits.sentences["train"]]
            lines += [" ".join(name_words(name)) for name in splits.names]
            return Texts.from_mapping({str(number): line for number, line in enumerate(lines)})

        found = tokenizer or make_tokenizer(data.tokenizer, texts, cache_folder(data), progress=progress)
        self._tokenizer = found
        if tokenizer is None and (vectors := self._vectors()) is not None:
            width, dim = vectors.values.shape[1], self.config.model.dim
            if width != dim:
                raise ValueError(
                    f"model.dim: given {dim}, allowed: {width}, the numbers of a vector in the file of words"
                )

        @functools.cache
        def documents(split: str) -> LabelledSentences:
            names = relation_splits(source).names
            if len(names) != task.num_classes:
                allowed = f"{len(names)}, the names of relations"
                raise ValueError(f"task.num_classes: given {task.num_classes}, allowed: {allowed}")
            return self._examples(open_source(data, split), found, split)

        return Datasets(documents, found, found.vocab_size, found.begin_id)

    def _examples(self, sentences: Sequence[RelationSentence], tokenizer: Any, split: str) -> LabelledSentences:
        task, data, stream = self.settings, self.config.data, self.config.lifelong is not None
        training = split == "train"
        choices = task.learned if training else task.scored
        source: Any = data.source
        one_of_several = training or bool(source.relations)
        return LabelledSentences(
            sentences,
            tokenizer,
            length=data.segment_length,
            num_classes=task.num_classes,
            candidates=choices == "candidates",
            seen_only=stream and (choices == "seen" or (choices == "candidates" and one_of_several)),
            fallback=task.fallback,
            most=task.max_candidates if training else 0,
        )

    def _vectors(self) -> WordVectors | None:
        """The word vectors of the tokenizer's file; None = it has none."""
        settings: Any = self.config.data.tokenizer
        return read_word_vectors(settings.path, num_words=settings.num_words) if settings.has_vectors else None

    def model(self, vocab_size: int, *, vocab_multiple: int | None = None) -> Model:
        """The model, with the words of the names and the vectors of the words, which a fresh one begins with."""
        made = super().model(vocab_size, vocab_multiple=vocab_multiple)
        if self.config.model.reads != "words":
            return made
        task, tokenizer = self.settings, self._tokenizer
        shape = (task.num_classes, task.name_length)

        def names() -> np.ndarray:
            ids = np.full(shape, -1, np.int32)
            for row, name in enumerate(relation_splits(self.config.data.source).names):
                found = words_of(tokenizer, " ".join(name_words(name)))[: task.name_length]
                ids[row, : len(found)] = found
            return ids

        fields: dict[str, Any] = {"names": Fixed(names, shape, np.int32)}
        if self.config.data.tokenizer.has_vectors and tokenizer is not None:
            fields["vectors"] = Fixed(self._table, (vocab_size, self.config.model.dim), np.float32)
        return made.clone(**fields)

    def _table(self) -> np.ndarray:
        """The vector of every id."""
        vectors = self._vectors()
        assert vectors is not None
        return table_of(vectors, ["", "", "<eos>", "<unk>", *self._tokenizer.words])

    def head(self) -> SimilarityHead:
        """Similarities with the relations."""
        task, stream = self.settings, self.config.lifelong is not None
        named = {"named": task.vectors == "names", "keeps_seen": stream, "dropout": self.config.model.dropout}
        return self.similarity_head(**named)

    def make_measure(self, split: Split) -> Callable[[], RelationMeasure]:
        del split
        return RelationMeasure

    def notes(self, split: Split) -> list[str]:
        """What was left out of the whole data, of which a stream's tasks are parts, and what is lost of the rest."""
        lines = relation_splits(self._source()).notes() if self.config.lifelong else []
        return lines + (split.notes() if isinstance(split, Examples) else [])

    def ask(self, file: str) -> list[Asked]:
        """The lines of a `.txt`."""
        if ".txt" not in Path(file).suffixes:
            raise ValueError(f"{file}: given with sentences, allowed: a .txt with a sentence in every line")
        return [Asked(line) for line in read_text(file).splitlines() if line.strip()]

    def examples_of(self, asked: Sequence[Asked], data: Datasets) -> Examples:
        """What is asked as examples that all relations may answer, or all that were seen."""
        sentences = [RelationSentence(one.text.lower(), 0, ()) for one in asked]
        length, stream = self.config.data.segment_length, self.config.lifelong is not None
        named: dict[str, Any] = {"length": length, "num_classes": self.settings.num_classes, "seen_only": stream}
        return LabelledSentences(sentences, data.tokenizer, candidates=False, **named)

    def class_names(self) -> dict[int, str]:
        """Number -> name of the relations."""
        names = relation_splits(self._source()).names
        return {number: " ".join(name_words(name)) for number, name in enumerate(names)}

    def _source(self) -> Any:
        """That of the whole data, where it lies."""
        stream, source = self.config.lifelong, self.config.data.source
        return source if stream is None else stream.located(source)


def words_of(tokenizer: Any, text: str) -> np.ndarray:
    """The ids of the words of a line, without that of its end."""
    return tokenizer.encode(text)[:-1]


def read_words(tokenizer: Any, sentences: Sequence[RelationSentence], length: int) -> tuple[list[np.ndarray], int, int]:
    """The rows of sentences for a BiLSTM; how many were longer than `length` words; the id of unknown words."""
    whole = [words_of(tokenizer, one.text) for one in sentences]
    cut = sum(len(words) > length for words in whole)
    return [words[:length] for words in whole], cut, int(words_of(tokenizer, "\x00")[0])


def read_pieces(
    tokenizer: WordPieceTokenizer, sentences: Sequence[RelationSentence], length: int
) -> tuple[list[np.ndarray], int, int]:
    """The same for a text encoder, with markers, [CLS] and [SEP]."""
    whole, room = [marked(tokenizer, one) for one in sentences], length - 2
    rows = [join_texts(tokenizer, pieces[:room])[0] for pieces in whole]
    return rows, sum(len(pieces) > room for pieces in whole), tokenizer.unknown_id


def marked(tokenizer: WordPieceTokenizer, sentence: RelationSentence) -> np.ndarray:
    """The ids of a sentence with a marker before and behind each of its two things, where their places are known."""
    if not sentence.entities:
        return tokenizer.encode(sentence.text)
    words, marks = sentence.text.split(), tokenizer.markers(4)
    first, last, other, end = sentence.entities
    # Of two marks at one place the closing one comes first.
    places = sorted([(first, 1, 0), (last + 1, 0, 1), (other, 1, 2), (end + 1, 0, 3)])
    found, begin = [], 0
    for place, _, mark in places:
        found += [tokenizer.encode(" ".join(words[begin:place])), marks[mark : mark + 1]]
        begin = place
    return np.concatenate([*found, tokenizer.encode(" ".join(words[begin:]))]).astype(np.int32)


class LabelledSentences(Examples):
    """Sentences as examples that ask for their relation, one target each.

    What may be answered stands in the context: `classes`, the candidates with the relation itself (none = all), and
    `seen_only`, whether those alone that training has read are compared.

    Attributes:
      truncated: sentences that were longer than `length` and lost their end.
      words: of all sentences.
      unknown: of them those that the tokenizer does not know.
      unmarked: sentences that a text encoder reads without markers, since the places of their things are not known.
    """

    def __init__(
        self,
        sentences: Sequence[RelationSentence],
        tokenizer: Any,
        *,
        length: int,
        num_classes: int,
        candidates: bool,
        seen_only: bool = False,
        fallback: bool = False,
        most: int = 0,
    ):
        """Tokenises all sentences.

        Args:
          sentences: the split.
          tokenizer: of words.
          length: words of a sentence.
          num_classes: relations of the model.
          candidates: each sentence is compared with its candidates; else with all relations.
          seen_only: of them with those that training has read.
          fallback: where that leaves none but its own, with the last two candidates.
          most: candidates of a sentence that are kept, drawn by a hash of the sentence; 0 = all.

        Raises:
          ValueError: no sentences, or a relation that the model does not have.
        """
        if not sentences:
            raise ValueError("examples: none in this split; give more, or other relations")
        largest = max(max((one.label, *one.candidates)) for one in sentences)
        if largest >= num_classes:
            raise ValueError(
                f"task.num_classes: given {num_classes}, allowed: at least {largest + 1}, as the data have"
            )
        marks = isinstance(tokenizer, WordPieceTokenizer)
        self._texts, self.truncated, unknown = (read_pieces if marks else read_words)(tokenizer, sentences, length)
        self.unmarked = sum(not one.entities for one in sentences) if marks else 0
        self._sentences = [one._replace(candidates=drawn_candidates(one, most)) for one in sentences]
        self._count, self._candidates, self._fallback = num_classes, candidates, fallback
        self._seen_only = np.array(seen_only)
        self.words = sum(map(len, self._texts))
        self.unknown = int(sum(np.sum(words == unknown) for words in self._texts))
        digest = hashlib.sha256(f"{length}/{num_classes}/{candidates}/{seen_only}/{fallback}".encode())
        for words, one in zip(self._texts, self._sentences, strict=True):
            digest.update(words.astype("<i4").tobytes() + repr((one.label, one.candidates)).encode())
        self.fingerprint = "relations-" + digest.hexdigest()[:16]

    def notes(self) -> list[str]:
        told = {
            f"{self.unknown} of {self.words} words of the training split are not in the vocabulary": self.unknown,
            f"{self.unmarked} of {len(self)} sentences are read without markers": self.unmarked,
            f"{self.truncated} sentences are longer than a row and lose their end": self.truncated,
        }
        return [line for line, count in told.items() if count]

    def __len__(self) -> int:
        return len(self._texts)

    @property
    def labels(self) -> np.ndarray:
        """int32 `[sentences]`, the relation of each."""
        return np.array([one.label for one in self._sentences], np.int32)

    def example(self, index: int, /, epoch: int = 0) -> Example:
        del epoch
        one, target = self._sentences[index], np.array([self._sentences[index].label], np.int32)
        allowed = np.zeros(self._count, bool)
        if self._candidates:
            allowed[[one.label, *one.candidates]] = True
        context = {CLASSES: allowed, SEEN_ONLY: self._seen_only}
        if self._fallback:
            last = np.zeros(self._count, bool)
            last[[one.label, *one.candidates[-2:]]] = self._candidates
            context[FALLBACK] = last
        return Example(self._texts[index], target, np.ones(1, np.float32), context=context)

    def num_bytes(self, index: int, /) -> int:
        return len(self._sentences[index].text.encode("utf-8"))


class RelationMeasure:
    """The share of the sentences whose relation scores higher than every other that it is compared with.

    A tie is a wrong answer. A sentence without another relation to compare with is not scored: `alone` is their share.

    Example:
      >>> measure = RelationMeasure()
      >>> measure.add(np.array([[0.5, 0.5, -np.inf], [0.1, 0.7, 0.2], [0.3, -np.inf, -np.inf]]), np.array([0, 1, 0]))
      >>> measure.result()["accuracy"]
      0.5
    """

    def __init__(self) -> None:
        self._right = self._scored = self._alone = 0

    def observe(self, batch: Batch, output: np.ndarray) -> None:
        """Takes in a batch and its scores `[batch, 1, relations]`."""
        asked = np.asarray(batch.weights)[:, 0] > 0
        self.add(np.asarray(output)[asked, 0], np.asarray(batch.targets)[asked, 0])

    def add(self, scores: np.ndarray, targets: np.ndarray) -> None:
        """Takes in scores `[sentences, relations]`, -inf of what may not be answered, and the right relations."""
        rows = np.arange(len(targets))
        right, others = scores[rows, targets], scores.copy()
        others[rows, targets] = -np.inf
        best = others.max(axis=1, initial=-np.inf)
        alone = np.isfinite(right) & ~np.isfinite(best)
        self._right += int(np.sum((right > best) & ~alone))
        self._scored += int(np.sum(~alone))
        self._alone += int(np.sum(alone))

    def result(self) -> dict[str, float]:
        """Name -> number."""
        every = max(self._scored + self._alone, 1)
        return {"accuracy": self._right / max(self._scored, 1), "alone": self._alone / every}
