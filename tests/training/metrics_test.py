import io
import json
import math
import warnings

import numpy as np
import pytest

from memjax.training.metrics import MetricsFile, describe_totals, perplexity, read_metrics
from memjax.training.progress import Event, Progress
from memjax.typing import WeightedSum


def number(total, weight):
    return WeightedSum(np.float32(total), np.float32(weight))


def test_totals_become_a_line():
    totals = {
        "nll": number(20.0, 10),
        "bytes": number(25.0, 2),
        "gradient_norm": number(3.0, 2),
        "skipped": number(1.0, 3),
        "tokens": number(12.0, 2),
        "layer_00/gate": number(0.5, 2),
        "replay/nll": number(9.0, 6),
    }
    line = describe_totals(totals)
    assert line["nats_per_token"] == 2.0 and line["perplexity"] == pytest.approx(math.e**2)
    assert line["bits_per_byte"] == pytest.approx(20 / math.log(2) / 25)
    assert line["tokens"] == 12.0
    assert (line["replay/nll"], line["replay/targets"]) == (1.5, 6.0)
    assert (line["targets"], line["gradient_norm"], line["skipped"], line["layer_00/gate"]) == (10.0, 1.5, 1.0, 0.25)
    nothing = describe_totals({name: number(0, 0) for name in totals})
    assert nothing["nats_per_token"] is None and nothing["bits_per_byte"] is None
    assert perplexity(1e9) == math.inf


def test_the_file_is_cut_to_a_step(tmp_path):
    path = tmp_path / "metrics.jsonl"
    first = MetricsFile(path, attempt=1)
    for step in (10, 20, 30):
        first.write("train", step, {"nats_per_token": np.float32(step), "rate": math.nan})
    with path.open("a") as file:
        file.write('{"step": 40, "att')  # killed while writing
    second = MetricsFile(path, attempt=2)
    second.cut(20)
    second.write("train", 30, {"nats_per_token": 1.0})
    lines = read_metrics(path)
    assert [(line["step"], line["attempt"]) for line in lines] == [(10, 1), (20, 1), (30, 2)]
    assert lines[0] == {"step": 10, "attempt": 1, "kind": "train", "nats_per_token": 10.0, "rate": None}
    MetricsFile(tmp_path / "none.jsonl").cut(3)
    assert read_metrics(tmp_path / "none.jsonl") == []


def write_log(path):
    file = MetricsFile(path)
    for step in range(1, 6):
        file.write("train", step, {"nats_per_token": step / 8})
    return path.read_bytes()


def read_steps(path):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        steps = [line["step"] for line in read_metrics(path)]
    return steps, [str(warning.message) for warning in caught]


def test_every_flipped_bit_of_a_log_costs_one_line(tmp_path):
    path = tmp_path / "metrics.jsonl"
    content = write_log(path)
    first, second = content.splitlines(keepends=True)[:2]
    start, end = len(first), len(first) + len(second)
    for place in range(start, end - 1):
        changed = bytearray(content)
        changed[place] ^= 1 << place % 8
        path.write_bytes(changed)
        steps, lines = read_steps(path)
        assert steps == [1, 3, 4, 5] and lines[0].startswith(f"{path}: line 2"), changed
        MetricsFile(path).cut(4)
        assert read_steps(path)[0] == [1, 3, 4] and changed[start:end] in path.read_bytes()


def test_a_flipped_end_of_a_line_costs_nothing(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(write_log(path).replace(b"\n", b"\x0b", 2))
    assert read_steps(path) == ([1, 2, 3, 4, 5], [])


def test_a_log_of_an_earlier_version_goes_on(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 0, "kind": "train"}\n{"step": 0, "kind"\n')
    content = write_log(path)
    steps, (line,) = read_steps(path)
    assert steps == [0, 1, 2, 3, 4, 5]
    assert line == f"{path}: line 2 damaged (not what memjax wrote); the other 6 are read"
    path.write_bytes(content[:-1])
    assert read_steps(path)[0] == [0, 1, 2, 3, 4, 5]
    path.write_bytes(content[:-9])
    assert read_steps(path)[0] == [0, 1, 2, 3, 4]


class Terminal(io.StringIO):
    def isatty(self):
        return True


def events():
    values = {"nats_per_token": 2.0, "bits_per_byte": 1.5, "tokens_per_second": 1234.0}
    yield Event("start", 0, 40, {}, "runs/x: 10 parameters")
    yield Event("log", 20, 40, values, "step 20/40  loss 2.0000")
    yield Event("checkpoint", 20, 40, {}, "step 20: saved")
    yield Event("note", 20, 40, {}, "[a note]")
    yield Event("finished", 40, 40, {}, "runs/x: finished")


def test_progress_writes_plain_lines_or_a_bar():
    plain = io.StringIO()
    show = Progress(plain)
    for event in events():
        show(event)
    assert plain.getvalue().splitlines() == [
        "runs/x: 10 parameters",
        "step 20/40  loss 2.0000",
        "[a note]",
        "runs/x: finished",
    ]

    terminal = Terminal()
    show = Progress(terminal)
    for event in events():
        show(event)
    shown = terminal.getvalue()
    assert "40/40" in shown and "bits/byte 1.5000" in shown and "[a note]" in shown and "ETA" in shown


def test_lines_are_json(tmp_path):
    file = MetricsFile(tmp_path / "metrics.jsonl")
    file.write("evaluation", 3, {"subsets": {"odd": {"nats": math.inf}}})
    assert json.loads((tmp_path / "metrics.jsonl").read_text())["subsets"]["odd"]["nats"] is None
