"""What a report is made of: panels of figures, tables and shaded words, and the opened run that they are read off."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

from memjax.config import Config, Evaluation

__all__ = ["Figure", "OpenedRun", "Panel", "Provider", "Table", "Words"]


@dataclasses.dataclass(frozen=True)
class Figure:
    """A picture, drawn when it is asked for.

    Attributes:
      name: of its file, unique in a report: letters, digits and `_`.
      title: what it shows, in a line.
      caption: how it was measured, on what, in which units; what a reader should see in it.
      draw: `draw(figure)` draws on an empty Matplotlib figure with the helpers and colours of `memjax.report.charts`.
      height: in inches, of a figure 7 inches wide.
    """

    name: str
    title: str
    caption: str
    draw: Callable[[Any], None]
    height: float = 3.0


@dataclasses.dataclass(frozen=True)
class Table:
    """Numbers and words in rows.

    Attributes:
      name: unique in a report.
      title: what it shows.
      caption: as that of a figure.
      columns: their headings.
      rows: a cell may be text, a number, or None (empty).
    """

    name: str
    title: str
    caption: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]


@dataclasses.dataclass(frozen=True)
class Words:
    """A text whose words are shaded by a number each, and may say something when they are pointed at.

    Attributes:
      name: unique in a report.
      title: what it shows.
      caption: as that of a figure.
      words: pieces of the text, in order, with their spaces.
      values: of each word, -1 (the colour of a loss) to 1 (that of a gain); 0 = plain.
      notes: of each word, '' = none.
    """

    name: str
    title: str
    caption: str
    words: tuple[str, ...]
    values: tuple[float, ...]
    notes: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class Panel:
    """What a report says about one question.

    Attributes:
      name: unique in a report: of its anchor.
      title: of the panel.
      text: a paragraph, plain text: the question, the paper whose figure it is, and what is left out and why.
      parts: shown one below the other.
    """

    name: str
    title: str
    text: str
    parts: tuple[Figure | Table | Words, ...] = ()


@dataclasses.dataclass(frozen=True)
class OpenedRun:
    """A run directory, opened as far as a panel asks.

    Attributes:
      path: of the directory.
      rows: of a batch that is looked at.
      segments: consecutive ones that are looked at.
      split: of the data that is looked at.
      tokens: of it that are scored, about, from the beginning; 0 = all.
      datastore: a store of this run whose neighbours are looked at too; '' = none.
    """

    path: str
    rows: int = 2
    segments: int = 8
    split: str = "validation"
    tokens: int = 16384
    datastore: str = ""

    @property
    def name(self) -> str:
        """Of the directory."""
        return self.directory.resolve().name

    @property
    def directory(self) -> Path:
        """As a path."""
        return Path(self.path).expanduser()

    @functools.cached_property
    def config(self) -> Config:
        """The configuration of the run."""
        from memjax.training.runs import load_config

        return load_config(self.path)

    @functools.cached_property
    def lines(self) -> list[dict[str, Any]]:
        """What the run has logged; [] where it has nothing yet."""
        from memjax.training import read_metrics

        file = self.directory / "metrics.jsonl"
        return read_metrics(file) if file.exists() else []

    @functools.cached_property
    def finished(self) -> Mapping[str, Any] | None:
        """`finished.json`, None before the end of the run."""
        from memjax.training.runs import read_finished

        return read_finished(self.path)

    @functools.cached_property
    def loaded(self) -> Any:
        """Model, data and variables of the newest checkpoint (`memjax.training.restoring.LoadedRun`)."""
        from memjax.lifelong import load_run

        return load_run(self.path)

    @functools.cached_property
    def evaluation(self) -> Evaluation:
        """How the split is scored: as the run's own evaluation reads it, but about `tokens` tokens of it."""
        experiment = self.loaded.experiment
        own = experiment.config.evaluation
        reading = experiment.reading(own)
        segments = -(-self.tokens // (reading.rows * (reading.stride or reading.segment_length)))
        return dataclasses.replace(own, split=self.split, answers=0, max_segments=segments)

    @functools.cached_property
    def remembers(self) -> bool:
        """Its memory has a state that goes from segment to segment, and it scores the tokens that follow."""
        from memjax.training.interventions import memory_leaves

        experiment = self.loaded.experiment
        return experiment.model.decodes and bool(memory_leaves(experiment.model))

    @functools.cached_property
    def kept(self) -> Any:
        """What the run makes of every scored token (`memjax.inspection.token_nats.TokenNats`)."""
        from memjax.inspection.token_nats import token_nats

        return token_nats(self.loaded.experiment, self.loaded.variables, self.evaluation)

    @functools.cached_property
    def cleared(self) -> Any:
        """The same where every segment finds the memory that a document begins with."""
        from memjax.inspection.token_nats import token_nats

        evaluation = dataclasses.replace(self.evaluation, memory_state="cleared", memory_part="")
        return token_nats(self.loaded.experiment, self.loaded.variables, evaluation)


class Provider(Protocol):
    """Panels about an opened run: none where the run has nothing of the kind, asked of its objects, not of its type."""

    def __call__(self, run: OpenedRun) -> Iterator[Panel]: ...
