"""Relation extraction: predicts the relation that a sentence expresses.

The choice is among the candidates of the sentence, among the relations learned so far, or among all relations.
"""

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
from memjax.data.relation_sentences import RelationSentence, name_words, sample_candidates
from memjax.data.source_readers import open_source, read_relation_splits
from memjax.data.sources import Texts
from memjax.data.token_files import Progress
from memjax.data.word_vectors import WordVectors, embedding_table, read_word_vectors
from memjax.data.wordpiece import WordPieceTokenizer, join_texts
from memjax.models.bilstm import LazyConstant
from memjax.models.heads import CLASSES, FALLBACK, SEEN_ONLY
from memjax.models.interface import Model
from memjax.models.similarity_head import SimilarityHead
from memjax.tasks.classification import ClassificationTask
from memjax.tasks.interface import Query
from memjax.typing import Batch

__all__ = ["LabelledSentences", "RelationMeasure"]


class RelationExtraction(ClassificationTask):
    """A task of sentences, each with one target, the relation that it expresses. An answer is right if it scores higher
    than each other choice.
    """

    main_metrics = ("accuracy",)
    target_unit = "sentences"
    second_input = ""

    def __init__(self, config: Any):
        super().__init__(config)
        self._tokenizer: Any = None
        """Tokenizer of the data. None until `data` has been called."""

    def data(self, progress: Progress | None = None, *, tokenizer: Any = None) -> Datasets:
        """Opens the sentences of each split, with a tokenizer of the words in the training sentences and relation
        names. See `Task.data` for the arguments.

        Raises:
          ValueError: The word vectors have another width than `model.dim`, the number of relation names differs from
            `task.num_classes`, or `data.train_half` is set.
        """
        data, task = self.config.data, self.settings
        source: Any = data.source
        if data.train_half:
            raise ValueError(
                f"data.train_half: given {data.train_half!r}, allowed: '' for sentences (documents have halves)"
            )

        def texts() -> Texts:
            splits = read_relation_splits(source)
            lines = [sentence.text for sentence in splits.sentences["train"]]
            lines += [" ".join(name_words(name)) for name in splits.names]
            return Texts.from_mapping({str(number): line for number, line in enumerate(lines)})

        relation_tokenizer = tokenizer or make_tokenizer(data.tokenizer, texts, cache_folder(data), progress=progress)
        self._tokenizer = relation_tokenizer
        if tokenizer is None and (vectors := self._read_word_vectors()) is not None:
            width, dim = vectors.values.shape[1], self.config.model.dim
            if width != dim:
                raise ValueError(
                    f"model.dim: given {dim}, allowed: {width}, the numbers of a vector in the file of words"
                )

        @functools.cache
        def documents(split: str) -> LabelledSentences:
            names = read_relation_splits(source).names
            if len(names) != task.num_classes:
                allowed = f"{len(names)}, the names of relations"
                raise ValueError(f"task.num_classes: given {task.num_classes}, allowed: {allowed}")
            return self._make_examples(open_source(data, split), relation_tokenizer, split)

        return Datasets(documents, relation_tokenizer, relation_tokenizer.vocab_size, relation_tokenizer.begin_id)

    def _make_examples(self, sentences: Sequence[RelationSentence], tokenizer: Any, split: str) -> LabelledSentences:
        """Turns sentences into examples, with the choices that the settings give for training or for scoring."""
        task, data, stream = self.settings, self.config.data, self.config.lifelong is not None
        training = split == "train"
        choices = task.train_choices if training else task.eval_choices
        source: Any = data.source
        one_of_several = training or bool(source.relations)
        return LabelledSentences(
            sentences,
            tokenizer,
            length=data.segment_length,
            num_classes=task.num_classes,
            candidates=choices == "candidates",
            seen_only=stream and (choices == "seen" or (choices == "candidates" and one_of_several)),
            fallback=task.keep_two_candidates,
            most=task.max_candidates if training else 0,
        )

    def _read_word_vectors(self) -> WordVectors | None:
        """Reads the word vectors in the tokenizer's file. None where it has none."""
        settings: Any = self.config.data.tokenizer
        return read_word_vectors(settings.path, num_words=settings.num_words) if settings.has_vectors else None

    def model(self, vocab_size: int, *, vocab_multiple: int | None = None) -> Model:
        """Makes the model. A `BiLSTM` gets the words of the relation names, and initial word vectors if there is a file
        of them.
        """
        model = super().model(vocab_size, vocab_multiple=vocab_multiple)
        if self.config.model.reads != "words":
            return model
        task, tokenizer = self.settings, self._tokenizer
        shape = (task.num_classes, task.max_name_words)

        def names() -> np.ndarray:
            ids = np.full(shape, -1, np.int32)
            for row, name in enumerate(read_relation_splits(self.config.data.source).names):
                word_ids = encode_words(tokenizer, " ".join(name_words(name)))[: task.max_name_words]
                ids[row, : len(word_ids)] = word_ids
            return ids

        fields: dict[str, Any] = {"names": LazyConstant(names, shape, np.int32)}
        if self.config.data.tokenizer.has_vectors and tokenizer is not None:
            fields["vectors"] = LazyConstant(self._vectors_by_id, (vocab_size, self.config.model.dim), np.float32)
        return model.clone(**fields)

    def _vectors_by_id(self) -> np.ndarray:
        """Returns the word vectors in the order of the tokenizer's ids."""
        vectors = self._read_word_vectors()
        assert vectors is not None
        return embedding_table(vectors, ["", "", "<eos>", "<unk>", *self._tokenizer.words])

    def head(self) -> SimilarityHead:
        """Returns a `SimilarityHead`, which scores the similarity of a sentence to each relation."""
        task, stream = self.settings, self.config.lifelong is not None
        options = {
            "named": task.relation_vectors == "names",
            "keeps_seen": stream,
            "dropout": self.config.model.dropout,
        }
        return self.similarity_head(**options)

    def make_measure(self, split: Split) -> Callable[[], RelationMeasure]:
        """Returns the class `RelationMeasure`, which makes the measure of an evaluation. `split` has no effect."""
        del split
        return RelationMeasure

    def notes(self, split: Split) -> list[str]:
        """Returns lines of text about left-out data, unknown words and cut sentences. `split` is the opened examples of
        the training split.

        In a stream, the lines about left-out data cover the whole data set that the tasks are taken from.
        """
        lines = read_relation_splits(self._source()).notes() if self.config.lifelong else []
        return lines + (split.notes() if isinstance(split, Examples) else [])

    def read_queries(self, file: str) -> list[Query]:
        """Reads a sentence from every line of a `.txt` that is not blank, as queries."""
        if ".txt" not in Path(file).suffixes:
            raise ValueError(f"{file}: given with sentences, allowed: a .txt with a sentence in every line")
        return [Query(line) for line in read_text(file).splitlines() if line.strip()]

    def examples_of(self, queries: Sequence[Query], data: Datasets) -> Examples:
        """Turns the sentences of queries into examples, which all relations (in a stream all that training has read)
        may answer.
        """
        sentences = [RelationSentence(question.text.lower(), 0, ()) for question in queries]
        length, stream = self.config.data.segment_length, self.config.lifelong is not None
        options: dict[str, Any] = {"length": length, "num_classes": self.settings.num_classes, "seen_only": stream}
        return LabelledSentences(sentences, data.tokenizer, candidates=False, **options)

    def class_names(self) -> dict[int, str]:
        """Returns a dict from the number of each relation to its name in separate words."""
        names = read_relation_splits(self._source()).names
        return {number: " ".join(name_words(name)) for number, name in enumerate(names)}

    def _source(self) -> Any:
        """Returns the source of the whole data set, with its path resolved in a stream."""
        stream, source = self.config.lifelong, self.config.data.source
        return source if stream is None else stream.with_sources_dir(source)


def encode_words(tokenizer: Any, text: str) -> np.ndarray:
    """Encodes the words of a line as an array of ids, without an end token."""
    return tokenizer.encode(text)[:-1]


def read_words(tokenizer: Any, sentences: Sequence[RelationSentence], length: int) -> tuple[list[np.ndarray], int, int]:
    """Encodes sentences as rows of at most `length` word ids for a BiLSTM. Returns the rows, the number of sentences
    that were cut, and the id of unknown words.

    Returns:
      Rows of at most `length` words, the number of sentences that were longer, and the id of unknown words.
    """
    whole = [encode_words(tokenizer, sentence.text) for sentence in sentences]
    cut = sum(len(words) > length for words in whole)
    return [words[:length] for words in whole], cut, int(encode_words(tokenizer, "\x00")[0])


def read_pieces(
    tokenizer: WordPieceTokenizer, sentences: Sequence[RelationSentence], length: int
) -> tuple[list[np.ndarray], int, int]:
    """Encodes sentences as rows of at most `length` ids of word pieces, with entity markers, [CLS] and [SEP]. Returns
    the rows, the number of sentences that were cut, and the id of unknown words.

    Returns:
      Rows of at most `length` ids, the number of sentences that were longer, and the id of unknown words.
    """
    whole, room = [encode_with_markers(tokenizer, sentence) for sentence in sentences], length - 2
    rows = [join_texts(tokenizer, pieces[:room])[0] for pieces in whole]
    return rows, sum(len(pieces) > room for pieces in whole), tokenizer.unknown_id


def encode_with_markers(tokenizer: WordPieceTokenizer, sentence: RelationSentence) -> np.ndarray:
    """Encodes a sentence as an array of ids of word pieces, with a marker before and after each of its two entities.

    A sentence whose entities have unknown positions is encoded without markers.
    """
    if not sentence.entities:
        return tokenizer.encode(sentence.text)
    words, marks = sentence.text.split(), tokenizer.markers(4)
    first, last, other, end = sentence.entities
    # Of two markers at the same position the closing one comes first.
    places = sorted([(first, 1, 0), (last + 1, 0, 1), (other, 1, 2), (end + 1, 0, 3)])
    parts, begin = [], 0
    for place, _, mark in places:
        parts += [tokenizer.encode(" ".join(words[begin:place])), marks[mark : mark + 1]]
        begin = place
    return np.concatenate([*parts, tokenizer.encode(" ".join(words[begin:]))]).astype(np.int32)


class LabelledSentences(Examples):
    """Sentences as examples whose one target is the number of their relation.

    The context says which relations may be answered. `classes` marks the candidates and the relation itself. If it
    marks none, all relations may be answered. `seen_only` says whether only relations that training has read are
    compared.

    Attributes:
      truncated: Number of sentences that were longer than `length` and lost their end.
      words: Number of words in all sentences.
      unknown: Number of words that the tokenizer does not know.
      unmarked: Number of sentences that a text encoder reads without entity markers, because the positions of their
        entities are unknown.
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
        """Tokenises all sentences of a split.

        Args:
          sentences: Sentences of one split.
          tokenizer: Tokenizer of words, or a `WordPieceTokenizer` for a text encoder.
          length: Largest number of words, or of word pieces with markers, in a row.
          num_classes: Number of relations of the model.
          candidates: Whether each sentence is compared with its own candidates. False = with all relations.
          seen_only: Whether only relations that training has read are compared.
          fallback: Whether a sentence is compared with its last two candidates where `seen_only` leaves none but its
            own relation.
          most: Largest number of candidates kept for a sentence, drawn by a hash of the sentence. 0 = all.

        Raises:
          ValueError: There are no sentences, or a sentence has a relation that the model does not have.
        """
        if not sentences:
            raise ValueError("examples: none in this split; give more, or other relations")
        largest = max(max((sentence.label, *sentence.candidates)) for sentence in sentences)
        if largest >= num_classes:
            raise ValueError(
                f"task.num_classes: given {num_classes}, allowed: at least {largest + 1}, as the data have"
            )
        marks = isinstance(tokenizer, WordPieceTokenizer)
        self._texts, self.truncated, unknown = (read_pieces if marks else read_words)(tokenizer, sentences, length)
        self.unmarked = sum(not sentence.entities for sentence in sentences) if marks else 0
        self._sentences = [sentence._replace(candidates=sample_candidates(sentence, most)) for sentence in sentences]
        self._count, self._candidates, self._fallback = num_classes, candidates, fallback
        self._seen_only = np.array(seen_only)
        self.words = sum(map(len, self._texts))
        self.unknown = int(sum(np.sum(words == unknown) for words in self._texts))
        digest = hashlib.sha256(f"{length}/{num_classes}/{candidates}/{seen_only}/{fallback}".encode())
        for words, sentence in zip(self._texts, self._sentences, strict=True):
            digest.update(words.astype("<i4").tobytes() + repr((sentence.label, sentence.candidates)).encode())
        self.fingerprint = "relations-" + digest.hexdigest()[:16]

    def notes(self) -> list[str]:
        """Returns lines of text about unknown words, missing entity markers and sentences that lost their end."""
        counts_by_note = {
            f"{self.unknown} of {self.words} words of the training split are not in the vocabulary": self.unknown,
            f"{self.unmarked} of {len(self)} sentences are read without markers": self.unmarked,
            f"{self.truncated} sentences are longer than a row and lose their end": self.truncated,
        }
        return [line for line, count in counts_by_note.items() if count]

    def __len__(self) -> int:
        return len(self._texts)

    @property
    def labels(self) -> np.ndarray:
        """The number of the relation of each sentence, int32 `[sentences]`."""
        return np.array([sentence.label for sentence in self._sentences], np.int32)

    def example(self, index: int, /, epoch: int = 0) -> Example:
        """Returns one sentence as an `Example` with its relation as the target, and with masks of the relations that
        may be answered. It is the same in every epoch.
        """
        del epoch
        sentence, target = self._sentences[index], np.array([self._sentences[index].label], np.int32)
        allowed = np.zeros(self._count, bool)
        if self._candidates:
            allowed[[sentence.label, *sentence.candidates]] = True
        context = {CLASSES: allowed, SEEN_ONLY: self._seen_only}
        if self._fallback:
            last = np.zeros(self._count, bool)
            last[[sentence.label, *sentence.candidates[-2:]]] = self._candidates
            context[FALLBACK] = last
        return Example(self._texts[index], target, np.ones(1, np.float32), context=context)

    def num_bytes(self, index: int, /) -> int:
        """Returns the number of bytes of one sentence in UTF-8."""
        return len(self._sentences[index].text.encode("utf-8"))


class RelationMeasure:
    """A `TaskMetric`: the accuracy over the sentences whose relation is compared with at least one other relation.

    A tie is a wrong answer. Sentences without another relation to compare with are not scored. Their share is the
    number `alone`.

    Example:
      >>> measure = RelationMeasure()
      >>> measure.add(np.array([[0.5, 0.5, -np.inf], [0.1, 0.7, 0.2], [0.3, -np.inf, -np.inf]]), np.array([0, 1, 0]))
      >>> measure.result()["accuracy"]
      0.5
    """

    def __init__(self) -> None:
        self._right = self._scored = self._alone = 0

    def observe(self, batch: Batch, output: np.ndarray) -> None:
        """Adds a batch and the scores of all relations, `[batch, 1, relations]`."""
        asked = np.asarray(batch.weights)[:, 0] > 0
        self.add(np.asarray(output)[asked, 0], np.asarray(batch.targets)[asked, 0])

    def add(self, scores: np.ndarray, targets: np.ndarray) -> None:
        """Adds scores `[sentences, relations]`, -inf where a relation may not be answered, and the numbers of the right
        relations, `targets`.
        """
        rows = np.arange(len(targets))
        right, others = scores[rows, targets], scores.copy()
        others[rows, targets] = -np.inf
        best = others.max(axis=1, initial=-np.inf)
        has_no_choice = np.isfinite(right) & ~np.isfinite(best)
        self._right += int(np.sum((right > best) & ~has_no_choice))
        self._scored += int(np.sum(~has_no_choice))
        self._alone += int(np.sum(has_no_choice))

    def result(self) -> dict[str, float]:
        """Returns two numbers from 0 to 1: `accuracy`, and `alone`, the share of sentences that had no other relation
        to compare with and are not scored.
        """
        num_sentences = max(self._scored + self._alone, 1)
        return {"accuracy": self._right / max(self._scored, 1), "alone": self._alone / num_sentences}
