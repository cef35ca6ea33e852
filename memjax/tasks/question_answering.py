"""Question answering: finds the span of a text that answers a question, scored by the official metrics of SQuAD 1.1.

Long texts are cut into windows, and an answer is chosen over them, as for BERT (Devlin et al. 2019). A window is a row
like any other. An episodic memory stores windows, and the K neighbours that MbPA++ adapts to are K windows, several of
which may belong to one question. Each window of a long text searches for neighbours by itself, and the best answer over
all windows counts.
"""

from __future__ import annotations

import collections
import copy
import dataclasses
import functools
import hashlib
import json
import math
import re
import string
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from memjax.data.documents import Example, Examples
from memjax.data.encoder_states import attach_encoder_states
from memjax.data.opening import Datasets, make_examples
from memjax.data.questions import Question
from memjax.data.squad import read_questions
from memjax.data.token_files import Progress
from memjax.data.wordpiece import WordPieceTokenizer, join_texts
from memjax.models.heads import SpanHead
from memjax.tasks.interface import Query, ReadBatch, Task, neighbor_numbers, read_examples
from memjax.typing import Batch

__all__ = ["QuestionWindows"]


class QuestionAnswering(Task):
    """A task of questions whose answer is a span of a text, read in windows. A window has two targets, the ends of the
    answer, and the best answers are scored by exact match and F1.
    """

    main_metrics = ("exact_match", "f1")
    matrix_metrics, extra_metrics = ("f1",), ("exact_match",)
    target_unit = "ends of answers"
    second_input = "question"

    def data(self, progress: Progress | None = None, *, tokenizer: Any = None) -> Datasets:
        """Opens the questions of each split as `QuestionWindows`, with a tokenizer of the training texts. See
        `Task.data` for the arguments.
        """
        data, fields, first = self.config.data, dataclasses.asdict(self.settings), self.config.model.first_trained_layer
        datasets = make_examples(
            data,
            "questions",
            lambda question: (question.question, question.context),
            lambda datasets, tokenizer: QuestionWindows(datasets, tokenizer, length=data.segment_length, **fields),
            tokenizer=tokenizer,
            progress=progress,
        )

        def documents(split: str) -> Examples:
            windows = datasets.documents(split)
            windows = windows.answered() if self.settings.answers_in_context_only and split == "train" else windows
            return (
                attach_encoder_states(windows, data.encoder_states_dir, first) if data.encoder_states_dir else windows
            )

        return dataclasses.replace(datasets, documents=documents)

    def head(self) -> SpanHead:
        """Returns a head that scores every token as the first and as the last token of an answer."""
        return SpanHead(jnp.dtype(self.config.model.compute_dtype), self.settings.answers_in_context_only)

    def make_measure(self, split: Any) -> Callable[[], AnswerMeasure]:
        """Returns a function without arguments that makes the `AnswerMeasure` of a split. `split` is the opened windows
        of its questions.
        """
        return functools.partial(AnswerMeasure, split.without_states)

    def predict(
        self,
        model: Any,
        variables: Mapping[str, Any],
        queries: Sequence[Query],
        data: Datasets,
        *,
        read: ReadBatch | None = None,
        **how: Any,
    ) -> list[dict[str, Any]]:
        """Returns a dict for each query: as `answer` the span of its text that answers its question, as `score` the sum
        of the scores of both ends, and a `probability`. `read` applies the model to a batch.

        Its probability is the product of the probabilities of both ends in their window.
        """
        del how
        if not all(question for _, question in queries):
            raise ValueError("question: given none, allowed: one about the text")
        length, fields = self.config.data.segment_length, dataclasses.asdict(self.settings)
        questions = [Question(question, text, ()) for text, question in queries]
        windows = QuestionWindows(questions, data.tokenizer, length=length, **fields)
        best: list[tuple[float, dict[str, Any]]] = [(-math.inf, {"answer": "", "score": None}) for _ in queries]
        for part in read_examples(model, variables, windows, length=length, read=read):
            for row in np.flatnonzero(np.asarray(part.batch.mask).any(axis=1)):
                window = int(part.batch.extras["window"][row, 0])
                number, (scores, log_probs) = windows.windows[window][0], (part.output[row], part.log_probs[row])
                # Scores and log-probabilities of an end differ by the same number for all tokens.
                above = sum(float(np.max(scores[end]) - np.max(log_probs[end])) for end in (0, 1))
                for score, words in windows.candidates(window, scores):
                    answer = {"answer": words, "score": score, "probability": round(math.exp(score - above), 6)}
                    answer |= neighbor_numbers(part, int(row))
                    best[number] = max(best[number], (score, answer), key=lambda scored: scored[0])
        return [answer for _, answer in best]

    def read_queries(self, file: str) -> list[Query]:
        """Reads the questions, with their texts, of a file in SQuAD's JSON format. Answers in it are ignored."""
        return [Query(question.context, question.question) for question in read_questions(Path(file))]


class _Context(NamedTuple):
    """A tokenised text.

    Attributes:
      ids: int `[tokens]`, token ids.
      offsets: int `[tokens, 2]`, first character of each token and the character after its last.
    """

    ids: np.ndarray
    offsets: np.ndarray


class QuestionWindows(Examples):
    """Questions as examples `[CLS] question [SEP] window of the text [SEP]` that ask for the ends of the answer.

    A text that is too long is read in windows whose starts are `stride` tokens apart. A window without the whole answer
    has [CLS] as its targets, as in the published code of BERT. With `answers_in_context_only` its targets have weight
    0 instead. A
    window has two targets, the first and the last token of the answer, the annotation `token_types`, and its number in
    `extras["window"]`.
    """

    def __init__(
        self,
        questions: Sequence[Question],
        tokenizer: WordPieceTokenizer,
        *,
        length: int,
        stride: int = 128,
        max_question_length: int = 64,
        max_answer_length: int = 30,
        num_best_spans: int = 20,
        answers_in_context_only: bool = False,
    ):
        """Tokenises all questions and texts, and cuts the texts into windows.

        Args:
          questions: Questions of one split.
          tokenizer: Tokenizer that encodes the texts.
          length: Number of tokens in a window, with the question and the special tokens.
          stride: Number of tokens from the start of a window to the start of the next.
          max_question_length: Largest number of tokens of a question. The rest is cut off.
          max_answer_length: Largest number of tokens in an answer of the model.
          num_best_spans: Number of best starts, and of best ends, of each window that are combined to find the best
            span.
          answers_in_context_only: Whether the targets of a window without the whole answer have weight 0. False = they
            are [CLS].

        Raises:
          ValueError: There are no questions, a question leaves no room for its text, or windows would leave gaps.
        """
        if not questions:
            raise ValueError("questions: none in this split; give more articles, or a larger share")
        self.questions, self._tokenizer = list(questions), tokenizer
        self._max_answer_length, self._num_best, self._context_only = (
            max_answer_length,
            num_best_spans,
            answers_in_context_only,
        )
        texts = list(dict.fromkeys(question.context for question in questions))
        self._contexts = {text: _Context(*tokenizer.encode_offsets(text)) for text in texts}
        self._asked = [ids[:max_question_length] for ids in tokenizer.encode_many([q.question for q in questions])]
        self.windows: list[tuple[int, int, int]] = []
        """Number of the question, first token in its text, and token after the last, of every window."""
        for number, question in enumerate(questions):
            room = length - len(self._asked[number]) - 3
            if room < 1:
                longest = f"at most {length - 4}, so that windows of {length} tokens have room for the text"
                raise ValueError(f"question: given {len(self._asked[number])} tokens, allowed: {longest}")
            if stride > room:
                raise ValueError(f"task.stride: given {stride}, allowed: up to {room}: windows must not leave gaps")
            size = len(self._contexts[question.context].ids)
            self.windows += [(number, *window) for window in cut_windows(size, room, stride)]
        settings = (
            f"{length}/{stride}/{max_question_length}/{tokenizer.fingerprint}/{'context' * answers_in_context_only}"
        )
        digest = hashlib.sha256(settings.encode())
        for question in questions:
            digest.update(json.dumps(dataclasses.astuple(question)).encode())
        self.fingerprint = "questions-" + digest.hexdigest()[:16]

    def __len__(self) -> int:
        return len(self.windows)

    def answered(self) -> QuestionWindows:
        """Returns a copy with only the windows that hold the whole answer, to train on. Its attribute `skipped` counts
        the others.

        Raises:
          ValueError: No window holds the whole answer.
        """
        subset = copy.copy(self)
        subset.windows = [window for index, window in enumerate(self.windows) if any(self.answer_span(index))]
        if not subset.windows:
            raise ValueError("questions: no window has a whole answer, allowed: one at least; give longer windows")
        subset.fingerprint, subset.skipped = f"{self.fingerprint}-answered", len(self.windows) - len(subset.windows)
        return subset

    def example(self, index: int, /, epoch: int = 0) -> Example:
        """Returns one window as an `Example` with the positions of the first and the last token of the answer as
        targets.
        """
        del epoch
        tokens, types = self._joined(index)
        ends, window = np.array(self.answer_span(index), np.int32), np.array([index], np.int32)
        weights, context = np.ones(2, np.float32), {"window": window}
        if self._context_only and not ends.any():
            ends, weights = np.full_like(ends, -1), np.zeros_like(weights)
        return Example(tokens, ends, weights, {"token_types": types}, context)

    def num_tokens(self, index: int, /) -> int:
        """Returns the number of tokens of one window, with its question and the special tokens."""
        number, begin, end = self.windows[index]
        return len(self._asked[number]) + end - begin + 3

    def num_bytes(self, index: int, /) -> int:
        """Returns the number of bytes of the text that the tokens of one window, with its question, stand for."""
        return int(self._tokenizer.token_bytes(self._joined(index)[0]).sum())

    def answer_span(self, index: int) -> tuple[int, int]:
        """Returns the positions of the first and last token of the answer in a window. (0, 0), the position of [CLS],
        where it does not hold all of it.
        """
        number, begin, end = self.windows[index]
        question = self.questions[number]
        if not question.answers:
            return 0, 0
        text, start = question.answers[0]
        first, last = self._tokens_of(question, start, start + len(text))
        if first > last or first < begin or last >= end:
            return 0, 0
        shift = len(self._asked[number]) + 2 - begin
        return first + shift, last + shift

    def candidates(self, index: int, scores: np.ndarray) -> list[tuple[float, str]]:
        """Returns a list with one pair, the best answer of a window as text after the sum of its two scores, or an
        empty list. `scores` are those of all tokens as ends, `[2, length]`.

        Args:
          index: Number of the window.
          scores: `[2, length]`, scores of every token as the first and as the last token of the answer.
        """
        number, begin, end = self.windows[index]
        question, context = self.questions[number], self._contexts[self.questions[number].context]
        shift = len(self._asked[number]) + 2
        span = scores[:, shift : shift + end - begin].astype(np.float64)
        best = [np.argsort(-part, kind="stable")[: self._num_best] for part in span]
        first, last = (places.reshape(shape) for places, shape in zip(best, ((-1, 1), (1, -1)), strict=True))
        # A token in several windows may begin an answer only in the window that gives it most context on both sides.
        allowed = (first <= last) & (last - first < self._max_answer_length) & self._has_most_context(index)[first]
        if not allowed.any():
            return []
        total = np.where(allowed, span[0][first] + span[1][last], -np.inf)
        row, column = np.unravel_index(int(np.argmax(total)), total.shape)
        ends = context.offsets[[begin + int(first[row, 0]), begin + int(last[0, column])]]
        return [(float(total[row, column]), question.context[int(ends[0, 0]) : int(ends[1, 1])])]

    def _has_most_context(self, index: int) -> np.ndarray:
        """Returns for each token of a window whether no other window of the question gives it more context.

        The context of a token is the smaller of its distances to the two ends of the window.
        """
        number, begin, end = self.windows[index]
        tokens = np.arange(begin, end)

        def context(window: tuple[int, int, int]) -> np.ndarray:
            left, right = tokens - window[1], window[2] - 1 - tokens
            smaller = np.minimum(left, right)
            return np.where(smaller >= 0, smaller + 0.01 * (window[2] - window[1]), -np.inf)

        own_context, result = context(self.windows[index]), np.ones(end - begin, bool)
        for step in (-1, 1):
            other = index + step
            while 0 <= other < len(self.windows) and self.windows[other][0] == number:
                other_context = context(self.windows[other])
                result &= (own_context > other_context) | ((own_context == other_context) & (step > 0))
                other += step
        return result

    def _joined(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        """Returns the token ids and token types of a window with its question and the special tokens."""
        number, begin, end = self.windows[index]
        context = self._contexts[self.questions[number].context]
        return join_texts(self._tokenizer, self._asked[number], context.ids[begin:end])

    def _tokens_of(self, question: Question, begin: int, end: int) -> tuple[int, int]:
        """Returns the first and last token that share a character with `[begin, end)` of the context."""
        offsets = self._contexts[question.context].offsets
        first = int(np.searchsorted(offsets[:, 1], begin, side="right"))
        return first, int(np.searchsorted(offsets[:, 0], end, side="left")) - 1


def cut_windows(size: int, room: int, stride: int) -> list[tuple[int, int]]:
    """Cuts `size` tokens into windows of at most `room` tokens, whose starts are `stride` apart. Returns pairs: the
    first token of each window, and the end, one after its last.

    Example:
      >>> cut_windows(10, room=6, stride=3)
      [(0, 6), (3, 9), (6, 10)]
    """
    windows = [(0, min(room, size))]
    while windows[-1][1] < size:
        begin = windows[-1][0] + stride
        windows.append((begin, min(begin + room, size)))
    return windows


class AnswerMeasure:
    """A `TaskMetric`: exact match and F1 of the best answers in percent, as in the official script of SQuAD 1.1."""

    def __init__(self, documents: QuestionWindows):
        """Prepares the measure.

        Args:
          documents: Windows that the model will answer.
        """
        self._documents = documents
        self.answers: dict[int, tuple[float, str]] = {}
        """Score and words of the best answer so far, by the number of the question."""

    def observe(self, batch: Batch, output: np.ndarray) -> None:
        """Adds a batch and its scores of all tokens as ends, `[batch, 2, length]`, including windows whose targets have
        no weight.
        """
        for row in np.flatnonzero(np.asarray(batch.mask).any(axis=1)):
            window = int(batch.extras["window"][row, 0])
            number = self._documents.windows[window][0]
            candidates = self._documents.candidates(window, output[row])
            self.answers[number] = max([self.answers.get(number, (-np.inf, "")), *candidates], key=lambda item: item[0])

    def result(self) -> dict[str, float]:
        """Returns `exact_match` and `f1`, means in percent over all questions of which a window was added."""
        measures, numbers = {"exact_match": exact_match, "f1": f1}, {}
        for name, measure in measures.items():
            best = [
                max(measure(words, right) for right, _ in self._documents.questions[number].answers)
                for number, (_, words) in self.answers.items()
            ]
            numbers[name] = 100 * float(np.mean(best))
        return numbers


def normalize_answer(text: str) -> str:
    """Returns the text of an answer normalised as SQuAD does: lower case, no punctuation or articles, single spaces.

    Example:
      >>> normalize_answer("The  U.S.A., a country")
      'usa country'
    """
    letters = "".join(character for character in text.lower() if character not in string.punctuation)
    return " ".join(re.sub(r"\b(a|an|the)\b", " ", letters).split())


def exact_match(given: str, right: str) -> float:
    """Returns 1.0 if a given answer and a right one, both texts, are equal after normalisation, else 0.0."""
    return float(normalize_answer(given) == normalize_answer(right))


def f1(given: str, right: str) -> float:
    """Returns the F1 score, from 0 to 1, of the words of a given answer and a right one after normalisation, counting
    each word as often as it occurs.

    Example:
      >>> f1("the cat sat", "a cat sat down")
      0.8
    """
    words = [normalize_answer(text).split() for text in (given, right)]
    common = sum((collections.Counter(words[0]) & collections.Counter(words[1])).values())
    return 2 * common / (len(words[0]) + len(words[1])) if common else 0.0
