"""Progress on the terminal: counts and bars reach their end."""

import io

import pytest

from memjax.training.progress import Event, Progress, pace_counts, report_preparation


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture
def clock(monkeypatch):
    seconds = [0.0]
    monkeypatch.setattr("time.monotonic", lambda: seconds[0])
    return seconds


def test_the_last_line_of_a_count_is_its_end(clock):
    lines = []
    progress = pace_counts(lambda line, *count: lines.append(line), seconds=5)
    for done in range(1, 10):
        clock[0] = done
        progress("tokenise", done, 9)
    assert lines == ["tokenise: 1 of 9", "tokenise: 6 of 9", "tokenise: 9 of 9"]
    for done in range(1, 4):  # another split, too quick to be told
        progress("tokenise", done, 3)
    assert len(lines) == 3


def test_a_count_without_a_total_ends_when_its_end_is_known(clock):
    lines = []
    progress = pace_counts(lambda line, *count: lines.append(line), seconds=5)
    for done in range(1, 10):
        progress("tokenise", done, None)
    progress("tokenise", 9, 9)
    assert lines == ["tokenise: 1", "tokenise: 9 of 9"]


def test_what_is_quick_is_not_told(clock):
    lines = []
    progress = pace_counts(lambda line, *count: lines.append(line), seconds=3, wait=1)
    progress("train the tokenizer", 0, 1)
    progress("train the tokenizer", 1, 1)
    progress("the vocabulary is small", 0, 0)
    assert lines == ["the vocabulary is small"]


def test_preparation_is_reported_as_events(clock):
    events = []
    progress = report_preparation(events.append, steps=7)
    progress("train the tokenizer", 0, 1)
    progress("train the tokenizer", 1, 1)
    progress("a note", 0, 0)
    assert [event.text for event in events] == ["train the tokenizer: 0 of 1", "train the tokenizer: 1 of 1", "a note"]
    assert [event.values for event in events][1:] == [{"what": "train the tokenizer", "done": 1, "total": 1}, {}]
    assert all((event.kind, event.step, event.steps) == ("note", 0, 7) for event in events)


@pytest.mark.parametrize("kind, step", [("finished", 50), ("stopped", 30)])
def test_the_bar_ends_at_the_last_step(kind, step):
    stream = Terminal()
    show = Progress(stream)
    show(Event("start", 0, 50, {}, "begins"))
    show(Event("log", 20, 50, {"nats_per_token": 2.0}, "step 20/50"))
    show(Event(kind, step, 50, {}, kind))
    assert f"{step}/50" in stream.getvalue() and stream.getvalue().splitlines()[-1].endswith(kind)
