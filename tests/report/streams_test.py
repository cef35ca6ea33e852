"""Panels of a stream of tasks, from lines: matrix, forgetting, age, costs, and what the method logs."""

import math

import numpy as np
import pytest

from memjax.config import TaskData
from memjax.report import charts, streams
from memjax.report.method_log import method_metrics, split_at_tasks, task_borders
from memjax.report.outcomes import check_log, count_spikes, phase_costs
from memjax.report.streams import Scores, growth_rows, scores_of
from tests.report.crafted import AFTER, crafted, parts_of, smoke

MATRIX = np.array([[1.0, 0.25, 0.0], [0.5, 0.75, 0.5], [0.25, 0.5, 1.0]])


def lines_of(matrix, measure, names, **fields):
    """Evaluations of tasks after each of them, four updates a task."""
    return [
        {**AFTER, **fields, "stage": stage, "step": 4 * (stage + 1), "name": name, measure: value}
        for stage, row in enumerate(matrix)
        for name, value in zip(names, row, strict=True)
    ]


def training(step, **fields):
    common = {"tokens": 64.0, "targets": 8.0, "tokens_per_second": 640.0, "skipped": 0.0}
    return {"kind": "train", "step": step, "nats_per_token": 1.0 / step, **common, **fields}


def test_means_and_ages_are_those_of_the_matrix():
    scores = Scores("accuracy", ("a", "b", "c"), MATRIX, less=False)
    np.testing.assert_allclose(scores.means(), [1.0, 0.625, 1.75 / 3])
    np.testing.assert_allclose(scores.by_age(), [2.75 / 3, 0.5, 0.25])
    assert scores.numbers == "{:.2f}" and not scores.at_once
    through = Scores("accuracy", ("a", "b", "c"), MATRIX[:2], less=False)
    np.testing.assert_allclose(through.by_age(), [0.875, 0.5])


def test_tasks_that_were_not_learned_yet_are_blank_and_the_largest_class_stands_below():
    facts = {"measure": "accuracy", "tasks": ["a", "b", "c"], "num_tasks": 3, "scores": MATRIX.tolist()}
    scores = scores_of({**facts, "largest_classes": [0.5, 0.625, None]})
    assert np.isnan(scores.raw[0, 1:]).all() and scores.raw[2].tolist() == [0.25, 0.5, 1.0]
    with charts.new_figure() as figure:
        streams._draw_matrix(figure, scores)
        numbers = [text.get_text() for text in figure.axes[0].texts]
        names = [label.get_text() for label in figure.axes[0].get_yticklabels()]
    assert names == ["after a", "after b", "after c", "largest class"]
    assert [*filter(None, numbers)] == ["1.00", "0.50", "0.75", "0.25", "0.50", "1.00", "0.50", "0.62"]
    first = scores_of({**facts, "num_tasks": 1, "scores": [[0.75, 0.25, 0.0]]})
    assert first.at_once and first.raw[0, 0] == 0.75 and np.isnan(first.raw[0, 1:]).all()
    whole = scores_of({**facts, "scores": [[0.75, 0.25, 0.5]], "largest_classes": [0.5, 0.25, 1.0]})
    with charts.new_figure() as figure:
        streams._draw_bars(figure, whole)
        widths = [[bar.get_width() for bar in bars] for bars in figure.axes[0].containers]
    assert widths == [[0.75, 0.25, 0.5], [0.5, 0.25, 1.0]]


def test_perplexities_are_averaged_by_their_logarithm():
    nats = np.log([[2.0, 99.0], [4.0, 16.0]])
    found = scores_of({"measure": "nats_per_token", "tasks": ["a", "b"], "scores": nats.tolist()})
    assert (found.label, found.less, found.numbers) == ("perplexity", True, "{:.1f}")
    np.testing.assert_allclose(found.means(), [2.0, 8.0])
    np.testing.assert_allclose(found.by_age(), [math.sqrt(2.0 * 16.0), 4.0])


def test_curves_are_what_only_the_method_logs():
    lines = [
        training(1, **{"odds_of_writing": 0.5, "layer_00/transformer_xl/memory_share": 0.5, "replay/nll": None}),
        training(2, **{"odds_of_writing": 0.25, "replay/nll": 2.0, "replay/targets": 4.0, "losses/ewc": 0.0}),
        training(3, **{"odds_of_writing": None, "replay/nll": 3.0, "replay/gradient_norm": 1.0}),
    ]
    found = method_metrics(lines)
    assert found == {"odds_of_writing": ([1, 2], [0.5, 0.25]), "replay/nll": ([2, 3], [2.0, 3.0])}
    steps, values = split_at_tasks(*found["replay/nll"], [2, 9])
    assert steps.tolist() == [2, 3, 3] and np.isnan(values[1]) and values[[0, 2]].tolist() == [2.0, 3.0]


def test_growth_stands_before_the_task_that_follows():
    ends = [{**AFTER, "name": "a", "step": 4}, {**AFTER, "name": "a", "step": 8, "stage": 1}]
    grown = {"kind": "grown", "step": 4, "seconds": 0.5, "nats_before": 2.0, "nats_after": 2.5}
    lineage = [{"model.num_layers": 2, "model.dim": 12, "model.num_heads": 3}]
    assert task_borders(ends, ["a"]) == [4, 8] and task_borders(ends, ["b"]) == []
    assert growth_rows([ends[0], grown, ends[1]], ["a", "b"], lineage) == [("b", 4, 2, 12, 3, 2.0, 2.5, 0.5)]


def test_seconds_of_updates_are_summed_until_each_task_is_through():
    lines = [
        training(2, first_step_seconds=1.5),
        training(4, tokens_per_second=None),
        training(8, tokens_per_second=16.0),
    ]
    found = phase_costs(lines, [4, 8])
    assert found["seconds_after_each"] == pytest.approx([0.1, 4.1]) and found["update_seconds"] == pytest.approx(4.1)
    assert found["compilation_seconds"] == 1.5 and "compilation_seconds" not in phase_costs(lines[1:])
    scores = Scores("accuracy", ("a", "b"), MATRIX[:2, :2], less=False)
    with charts.new_figure() as figure:
        streams._draw_seconds(figure, scores, found["seconds_after_each"])
        [line] = figure.axes[0].get_lines()
    np.testing.assert_allclose(line.get_xdata(), [0.1, 4.1])
    np.testing.assert_allclose(line.get_ydata(), [1.0, 0.625])


def test_a_spike_lies_within_a_task_and_behind_a_recovery():
    nats = {2: 5.0, 4: 5.6, 6: None, 8: 9.0, 10: 9.4, 12: 7.0, 14: 9.0}
    lines = [{"kind": "train", "step": step, "nats_per_token": value} for step, value in nats.items()]
    assert count_spikes(lines) == 2 and count_spikes(lines, [12]) == 1 and count_spikes(lines, [2, 12]) == 0


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    config = smoke("lifelong_text", tmp_path_factory.mktemp("runs"))
    config.lifelong.tasks = (*config.lifelong.tasks, TaskData(name="task_2", source=config.data.source))
    names = [task.name for task in config.lifelong.tasks]
    lines = lines_of(MATRIX, "accuracy", names, examples_per_second=500.0)
    lines += lines_of(MATRIX[:, :1], "accuracy", ["whole"])
    lines += [training(step, **{"replay/nll": 0.5, "odds_of_writing": 0.1 * step}) for step in range(1, 13)]
    panels = [*streams.panels(crafted(tmp_path_factory.mktemp("stream"), config, lines))]
    return {panel.name: panel for panel in panels}, parts_of(panels)


def test_a_stream_has_its_matrix_curves_and_costs(found):
    panels, parts = found
    assert [*panels] == ["stream_scores", "stream_costs", "stream_method"]
    curves = ("matrix", "forgetting", "means", "age", "seconds")
    assert {f"stream_{name}" for name in (*curves, "summary", "costs", "losses", "odds_of_writing")} == {*parts}
    assert "16 vectors of the test split of each task" in parts["stream_matrix"].caption
    assert "whole" in parts["stream_means"].caption and "higher is better" in panels["stream_scores"].text


def test_tables_say_what_the_command_says(found):
    _, parts = found
    summary = {row[0]: row[1] for row in parts["stream_summary"].rows}
    assert summary["average"] == pytest.approx(1.75 / 3) and summary["whole"] == 0.25
    assert summary["forgetting"] == pytest.approx((0.75 + 0.25) / 2)
    costs = {what: (value, unit) for what, value, unit in parts["stream_costs"].rows}
    assert costs["scoring, with adaptation"] == (2.0, "ms an example")
    assert costs["training"] == (80.0, "examples a second") and costs["all updates"][0] == pytest.approx(1.2)


def test_tasks_that_are_learned_at_once_are_bars(tmp_path):
    config = smoke("lifelong_mnist", tmp_path)
    names = [task.name for task in config.lifelong.tasks]
    run = crafted(tmp_path, config, lines_of([[0.5, 0.75]], "accuracy", names))
    panel = next(streams.panels(run))
    assert panel.title == "Tasks" and [*parts_of([panel])] == ["stream_tasks", "stream_summary"]


def test_other_runs_have_no_such_panels(tmp_path):
    config = smoke("lifelong_mnist", tmp_path)
    assert not [*streams.panels(crafted(tmp_path / "new", config, [training(1)]))]
    config.lifelong = None
    assert not [*streams.panels(crafted(tmp_path / "plain", config, [{**AFTER, "step": 1, "accuracy": 1.0}]))]


def test_updates_that_were_not_timed_took_no_known_time():
    lines = [training(4, tokens_per_second=None), training(8, tokens_per_second=None)]
    assert {"update_seconds", "seconds_after_each"}.isdisjoint(phase_costs(lines, [4, 8]))


def test_a_damaged_measure_of_written_texts_is_refused(tmp_path):
    line = {"kind": "generated", "step": 1, "seconds": 1.0, "samples": 2}
    check_log(tmp_path, [{**line, "kept_0": 0.5, "real_nats_1": None, "texts_0": ["a"]}], ())
    with pytest.raises(ValueError, match="line 1 is damaged .it has no number of_task_3"):
        check_log(tmp_path, [{**line, "of_task_3": "much"}], ())
