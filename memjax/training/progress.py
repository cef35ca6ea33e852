"""Shows the progress of a run: a bar on a terminal, plain lines elsewhere."""

import dataclasses
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

__all__ = ["Event", "Progress", "report_preparation"]


@dataclasses.dataclass(frozen=True)
class Event:
    """An event of a run to show to the user, such as a log line, an evaluation or the end.

    Attributes:
      kind: Kind of event: `start`, `log`, `evaluation`, `checkpoint`, `note`, `stopped` or `finished`.
      step: Number of steps done.
      steps: Number of steps of the whole run.
      values: Values of the event by name. Log lines and evaluations have the values of their line in `metrics.jsonl`.
      text: Description of the event in one line.
    """

    kind: str
    step: int
    steps: int
    values: Mapping[str, Any]
    text: str


class Progress:
    """Function that shows an `Event`, except for checkpoints, as a line, by default on standard error. On a terminal,
    log lines update a progress bar instead.
    """

    def __init__(self, stream: Any = None):
        """Prepares to write to `stream`. None for standard error."""
        self._stream = sys.stderr if stream is None else stream
        self._bar: Any = None
        self._task: Any = None

    def __call__(self, event: Event) -> None:
        """Shows one event. Checkpoints are not shown."""
        if event.kind in ("stopped", "finished"):
            self.close(event.step)
        if self._bar is None and event.kind in ("start", "log") and self._stream.isatty():
            self._open(event)
        if event.kind == "checkpoint":
            return
        if self._bar is None:
            print(event.text, file=self._stream, flush=True)
        elif event.kind == "log":
            self._bar.update(self._task, completed=event.step, numbers=describe_numbers(event.values))
        else:
            self._bar.console.print(event.text, markup=False)

    def close(self, step: int | None = None) -> None:
        """Ends the progress bar, if there is one, at a step. None leaves it at the last step that it has shown."""
        if self._bar is not None:
            if step is not None:
                self._bar.update(self._task, completed=step)
            self._bar.stop()
            self._bar = None

    def _open(self, event: Event) -> None:
        """Opens the progress bar at the step of an event."""
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
        from rich.progress import Progress as Bar

        columns = (BarColumn(bar_width=None), MofNCompleteColumn(), TextColumn("{task.fields[numbers]}"))
        console = Console(file=self._stream, highlight=False)
        self._bar = Bar(*columns, TextColumn("ETA"), TimeRemainingColumn(), console=console)
        self._task = self._bar.add_task("", total=event.steps, completed=event.step, numbers="")
        self._bar.start()


def describe_numbers(values: Mapping[str, Any]) -> str:
    """Describes the main numbers of a log line or an evaluation, such as loss, accuracy and tokens per second, in one
    short line.

    Example:
      >>> describe_numbers({"nats_per_token": 2.0, "bits_per_byte": 1.5, "tokens_per_second": 12345.6, "other": 1.0})
      'loss 2.0000  bits/byte 1.5000  12,346 tokens/s'
      >>> describe_numbers({"nats_per_token": 2.0, "accuracy": 0.451, "largest_class": 0.549})
      'loss 2.0000  accuracy 0.451  (largest class 0.549)'
      >>> describe_numbers({"score": 45.1, "largest_class": 54.9})
      'score 45.10  (largest class 54.90)'
      >>> unseen = {"unseen_class_targets": 3.0, "seen_class_nats": 0.5, "seen_class_accuracy": 0.75}
      >>> describe_numbers({"nats_per_token": 3000.0, "accuracy": 0.6, **unseen})
      'loss 0.5000  accuracy 0.750 without 3 of classes that training has not read'
    """
    unseen = values.get("unseen_class_targets")
    if unseen and "seen_class_nats" in values:
        seen = {"nats_per_token": values["seen_class_nats"], "accuracy": values["seen_class_accuracy"]}
        of_all = ("seen_", "unseen_", "largest_class")
        others = {name: number for name, number in values.items() if not name.startswith(of_all)}
        return f"{describe_numbers({**others, **seen})} without {unseen:,.0f} of classes that training has not read"
    if unseen:
        return "not read yet: training has read none of its classes"
    shown = [("nats_per_token", "loss {:.4f}"), ("bits_per_byte", "bits/byte {:.4f}"), ("accuracy", "accuracy {:.3f}")]
    largest = "(largest class {:.2f})" if "score" in values else "(largest class {:.3f})"
    shown += [("score", "score {:.2f}"), ("largest_class", largest)]
    shown += [("matthews", "Matthews {:.3f}"), ("exact_match", "exact match {:.2f}"), ("f1", "F1 {:.2f}")]
    texts = [form.format(values[name]) for name, form in shown if values.get(name) is not None]
    # 0 means not measured: a single batch, or an update that reads no tokens.
    texts += [f"{values['tokens_per_second']:,.0f} tokens/s"] if values.get("tokens_per_second") else []
    return "  ".join(texts)


def describe_duration(seconds: float) -> str:
    """Formats seconds as hours, minutes and seconds.

    Example:
      >>> describe_duration(3725), describe_duration(42)
      ('1:02:05', '0:42')
    """
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def pace_counts(
    tell: Callable[[str, str, int, int | None], None], seconds: float, wait: float = 0.0
) -> Callable[[str, int, int | None], None]:
    """Makes a function `progress(what, done, total)` that passes a few counts to `tell(line, what, done, total)`: of
    each kind `what` the first one, then one in `seconds`, and the end of a count of which anything was told.

    Args:
      tell: Function that is called with a line such as 'tokenise: 12 of 723' and the three arguments of the count.
      seconds: Least time between two lines of one kind.
      wait: Time in seconds before the first line.

    Returns:
      The function `progress`. A total of None is an unknown one. With a total of 0, `what` is a line that is always
      told.

    Example:
      >>> progress = pace_counts(lambda line, *count: print(line), seconds=60)
      >>> for done in (1, 2, 3):
      ...     progress("tokenise", done, 3)
      tokenise: 1 of 3
      tokenise: 3 of 3
    """
    start, next_line, unfinished = time.monotonic() + wait, dict[str, float](), set[str]()

    def progress(what: str, done: int, total: int | None) -> None:
        if total == 0:
            tell(what, what, done, total)
            return
        now, ends = time.monotonic(), done == total
        if now < next_line.get(what, start) and not (ends and what in unfinished):
            return
        next_line[what] = now + seconds
        (unfinished.discard if ends else unfinished.add)(what)
        tell(f"{what}: {done:,}" + (f" of {total:,}" if total else ""), what, done, total)

    return progress


def report_preparation(report: Callable[[Event], None], steps: int) -> Callable[[str, int, int | None], None]:
    """Makes a function `progress(what, done, total)` that passes the progress of preparing data to `report`, as an
    `Event` every five seconds. `steps` is the number of steps of the run.

    Args:
      report: Function that is called with each event.
      steps: Number of steps of the run.
    """

    def tell(line: str, what: str, done: int, total: int | None) -> None:
        values = {} if total == 0 else {"what": what, "done": done, "total": total}
        report(Event("note", 0, steps, values, line))

    return pace_counts(tell, seconds=5)
