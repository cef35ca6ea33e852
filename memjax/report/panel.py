"""Building blocks of a report: panels with figures, tables and shaded texts, and the run directory they describe."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

from memjax.config import Config, Evaluation
from memjax.report.comparison import RunRecord

__all__ = ["Figure", "OpenedRun", "Panel", "Provider", "Table", "Paragraph"]


@dataclasses.dataclass(frozen=True)
class Figure:
    """A figure of a report: title, caption, and the function that draws it with Matplotlib when it is needed.

    Attributes:
      name: Name of the picture's file and of its anchor. Unique in a report, made of letters, digits and `_`.
      title: One line that says what the picture shows.
      caption: Explanation below the picture: the measurement, its data and units, and what a reader should see.
      draw: `draw(figure)` draws on an empty Matplotlib figure with the helpers and colours of `memjax.report.charts`.
      height: Height in inches. Every figure is 7 inches wide.
    """

    name: str
    title: str
    caption: str
    draw: Callable[[Any], None]
    height: float = 3.0


@dataclasses.dataclass(frozen=True)
class Table:
    """A table of numbers and texts in a report, with title and caption.

    Attributes:
      name: Name of the table, unique in a report.
      title: One line that says what the table shows.
      caption: Explanation of the table: the measurement, its data and units, and what a reader should see.
      columns: Headings of the columns.
      rows: Cells of every row, one for each column. A cell is a text, a number, or None for an empty cell.
    """

    name: str
    title: str
    caption: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]


@dataclasses.dataclass(frozen=True)
class Paragraph:
    """A text in a report whose words have a background colour, from the full colour of a loss (-1) to that of a gain
    (1). Each word may have a note that pops up.

    Attributes:
      name: Name of the text, unique in a report.
      title: One line that says what the shading shows.
      caption: Explanation of the shading: the measurement, its data and units, and what a reader should see.
      words: Pieces of the text in order, with their spaces.
      shades: Shade of each word, from -1 (full colour of a loss) to 1 (full colour of a gain). 0 leaves a word plain.
      notes: Note of each word, shown when the pointer is on it. '' for no note, () for a text without any notes.
    """

    name: str
    title: str
    caption: str
    words: tuple[str, ...]
    shades: tuple[float, ...]
    notes: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class Panel:
    """A part of a report that answers one question: heading, a text, and figures, tables and shaded texts.

    Attributes:
      name: Name of the panel's anchor in the page, unique in a report.
      title: Heading of the panel.
      text: Paragraph of plain text: the question, the paper with such a figure, and what is left out and why.
      items: Figures, tables and shaded texts of the panel, shown one below the other.
    """

    name: str
    title: str
    text: str
    items: tuple[Figure | Table | Paragraph, ...] = ()


@dataclasses.dataclass(frozen=True)
class OpenedRun:
    """A run directory, with options for what panels inspect. Configuration, log, model and scores are read or computed
    when a panel first asks for them.

    Attributes:
      path: Path of the run directory.
      rows: Number of rows of the batches that the panels of gates, attention and memory states inspect.
      segments: Number of consecutive segments that these panels inspect.
      split: Split of the data that is inspected.
      tokens: Approximate number of tokens that are scored, from the beginning of the split. 0 for all tokens.
      datastore: Path of a datastore of this run whose neighbours are shown too. '' for none.
      record: Contents of the text files of the run, for a run whose files have been read already. None to read them
        when a panel first asks for them.
    """

    path: str
    rows: int = 2
    segments: int = 8
    split: str = "validation"
    tokens: int = 16384
    datastore: str = ""
    record: RunRecord | None = None

    @functools.cached_property
    def files(self) -> RunRecord:
        """The contents of the text files of the run: `record`, or one that reads them from the run directory."""
        return self.record or RunRecord(self.path)

    @property
    def name(self) -> str:
        """Name of the run directory, the last component of its resolved path."""
        return self.directory.resolve().name

    @property
    def directory(self) -> Path:
        """Path of the run directory, with `~` expanded."""
        return Path(self.path).expanduser()

    @property
    def config(self) -> Config:
        """The configuration of the run."""
        return self.files.config

    @property
    def log_lines(self) -> list[dict[str, Any]]:
        """Lines of the run's `metrics.jsonl`, each a dict. [] if nothing has been logged yet."""
        return self.files.log_lines

    @property
    def finished(self) -> Mapping[str, Any] | None:
        """Contents of the run's `finished.json`, a dict with results. None before the run has ended."""
        return self.files.finished

    @functools.cached_property
    def loaded_run(self) -> Any:
        """Model, data and variables of the newest checkpoint (`memjax.training.loaded_runs.LoadedRun`)."""
        from memjax.lifelong import load_run

        return load_run(self.path)

    @functools.cached_property
    def evaluation(self) -> Evaluation:
        """The run's own settings of the evaluation, changed to score the chosen split and only about `tokens` tokens of
        it.
        """
        experiment = self.loaded_run.experiment
        evaluation = experiment.config.evaluation
        reading = experiment.reading(evaluation)
        segments = -(-self.tokens // (reading.rows * (reading.stride or reading.segment_length)))
        return dataclasses.replace(evaluation, split=self.split, max_answers=0, max_segments=segments)

    @functools.cached_property
    def has_memory(self) -> bool:
        """Whether the model predicts next tokens and has a memory state that is carried from segment to segment."""
        from memjax.training.memory_interventions import memory_leaves

        experiment = self.loaded_run.experiment
        return experiment.model.decodes and bool(memory_leaves(experiment.model))

    @functools.cached_property
    def nats_with_memory(self) -> Any:
        """Losses in nats of the scored tokens, one for each token, with the memory as it is in the run
        (`memjax.inspection.token_nats.TokenNats`).
        """
        from memjax.inspection.token_nats import token_nats

        return token_nats(self.loaded_run.experiment, self.loaded_run.variables, self.evaluation)

    @functools.cached_property
    def nats_without_memory(self) -> Any:
        """Losses in nats of the same tokens (`TokenNats`), while the memory is reset to its initial state before every
        segment.
        """
        from memjax.inspection.token_nats import token_nats

        evaluation = dataclasses.replace(self.evaluation, memory_intervention="cleared", intervention_path="")
        return token_nats(self.loaded_run.experiment, self.loaded_run.variables, evaluation)


class Provider(Protocol):
    """The type of a function `provider(run)` that yields panels about an `OpenedRun`, or none if the run has nothing to
    show.

    A provider inspects the objects of the run (its model, memory, log), never their types, to decide what it can show.
    """

    def __call__(self, run: OpenedRun) -> Iterator[Panel]: ...
