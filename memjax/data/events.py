"""Recall of events by their time: documents with a long past of events, and questions for the event at each time.

A document has three parts:

    past        `num_events` spans of `span` tokens: random filler, and at a random place in each an event, a token that
                is repeated `duration` times
    filler      `filler_length` random tokens
    questions   one question for every span, in random order: its event is the *answer*

A question is a token for the number of a span, after which the event of that span must be predicted. Events are drawn
anew for each document, independently of each other, and nothing but the position distinguishes the spans. A memory can
only answer if it can be read by position. A memory that stores what happened, but not when, is right about as often as
`chance`.
"""

import dataclasses
import hashlib
from typing import Any

import numpy as np

from memjax import config as configs
from memjax.data.documents import FixedLengthDocuments
from memjax.data.sources import SPLITS, count_in_split

__all__ = ["MarkedEventDocuments"]

IS_ANSWER = "is_answer"


class MarkedEventDocuments(FixedLengthDocuments):
    """Synthetic documents with events at different times, which ask at their end for the event at each time.

    Documents are generated when they are read. The same arguments give the same documents on every machine. `annotate`
    returns `is_answer` (bool per token) and `weights` (1 for answers, otherwise 0).

    Ids: 0 pad, 1 begin, 2 unused, then fillers, times and events.

    Example:
      >>> documents = MarkedEventDocuments(10, num_events=2, span=4, duration=1, filler_length=3)
      >>> tokens, notes = documents[0], documents.annotate(0)
      >>> len(tokens), int(notes["is_answer"].sum()), documents.chance
      (15, 2, 0.125)
    """

    begin_id = 1
    pad_id = 0

    def __init__(
        self,
        num_documents: int,
        *,
        num_events: int = 4,
        num_values: int = 8,
        span: int = 16,
        duration: int = 8,
        filler_length: int = 16,
        num_fillers: int = 4,
        seed: int = 0,
    ):
        """Sets the sizes of the task. A tiny model learns the default task in about half a CPU minute.

        Args:
          num_documents: Number of documents.
          num_events: Number of events in a document, and of questions.
          num_values: Number of different events. `chance` is 1 / num_values.
          span: Number of tokens of a span, which contains one event.
          duration: Number of tokens of an event, at most `span`.
          filler_length: Number of tokens between the last span and the first question.
          num_fillers: Number of different filler tokens.
          seed: Seed of the documents. Splits have different seeds.

        Raises:
          ValueError: A size that is too small, or events longer than a span.
        """
        sizes = {"num_documents": num_documents, "num_events": num_events, "num_values": num_values}
        for name, value in {**sizes, "span": span, "duration": duration, "num_fillers": num_fillers}.items():
            if value < 1:
                raise ValueError(f"{name}: given {value}, allowed: at least 1")
        if filler_length < 0:
            raise ValueError(f"filler_length: given {filler_length}, allowed: 0 or more")
        if duration > span:
            raise ValueError(f"duration: given {duration}, allowed: at most span = {span}")
        super().__init__(num_documents, num_events * (span + 2) + filler_length)
        self.num_events, self.num_values = num_events, num_values
        self._span, self._duration, self._filler_length = span, duration, filler_length
        self._num_fillers, self._seed = num_fillers, seed
        settings = f"{num_events}/{num_values}/{span}/{duration}/{filler_length}/{num_fillers}/{seed}"
        self.fingerprint = "events-" + hashlib.sha256(settings.encode()).hexdigest()[:16]

    @property
    def vocab_size(self) -> int:
        """Number of ids of the vocabulary."""
        return self._first_event + self.num_values

    @property
    def chance(self) -> float:
        """Accuracy of the answers of a model that remembers nothing: 1 / num_values."""
        return 1 / self.num_values

    def __getitem__(self, index: int, /) -> np.ndarray:
        random, past = self._random(f"events/{self._seed}", index), self.num_events * self._span
        events = self._first_event + random.randint(self.num_values, size=self.num_events)
        begins = random.randint(self._span - self._duration + 1, size=self.num_events)
        begins += self._span * np.arange(self.num_events)
        tokens = 3 + random.randint(self._num_fillers, size=past + self._filler_length)
        tokens[(begins[:, None] + np.arange(self._duration)).ravel()] = events.repeat(self._duration)
        order = random.permutation(self.num_events)
        questions = np.stack([self._first_time + order, events[order]], axis=1)
        return np.concatenate([tokens, questions.ravel()]).astype(np.int32)

    def annotate(self, index: int, /) -> dict[str, np.ndarray]:
        """Returns `is_answer` (bool per token) and `weights` (1 for answers, otherwise 0) of a document by name."""
        place_in_questions = np.arange(self.num_tokens(index)) - self.num_events * self._span - self._filler_length
        is_answer = (place_in_questions >= 0) & (place_in_questions % 2 == 1)
        return {IS_ANSWER: is_answer, "weights": is_answer.astype(np.float32)}

    @property
    def _first_time(self) -> int:
        return 3 + self._num_fillers

    @property
    def _first_event(self) -> int:
        return self._first_time + self.num_events


def open_marked_events(data: configs.Data, split: str) -> MarkedEventDocuments:
    """Generates one split of `MarkedEventDocuments` with the sizes in `data.source`. Held-out splits have an eighth as
    many documents.
    """
    source: Any = data.source
    sizes: Any = dataclasses.asdict(source) | {"num_documents": count_in_split(source.num_documents, split)}
    return MarkedEventDocuments(seed=SPLITS.index(split), **sizes)
