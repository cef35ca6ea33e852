"""Charts take colours that a page can turn, and draw what they are given."""

import re

import numpy as np
import pytest

from memjax.report import charts
from memjax.report.page import LIGHT
from memjax.report.panel import Figure
from memjax.report.pictures import figure_to_svg

CHARTS = {
    "lines": lambda figure: charts.line_chart(
        figure,
        {f"run {index}": ([1, 2, 3], [3.0, np.nan, 1.0]) for index in range(8)},
        bands={"run 0": ([2.0, 1.0, 0.0], [4.0, 3.0, 2.0])},
        borders=[2],
        levels={"guessing": 2.0},
    ),
    "log": lambda figure: charts.line_chart(figure, {"a": ([1, 10, 1000], [1.0, 10.0, 1e6])}, log_x=True, log_y=True),
    "bars": lambda figure: charts.bar_chart(
        figure,
        ["one", "a name that is much longer than the room beside a bar"],
        {"a": [1.0, -2.0], "b": [np.nan, 1.0]},
        errors={"a": [0.1, 0.2]},
        numbers="{:.1f}",
    ),
    "upright": lambda figure: charts.bar_chart(figure, ["x", "y"], {"a": [1.0, -1.0]}, upright=True, signed=True),
    "heat": lambda figure: charts.heatmap(figure, [[0.0, np.nan], [0.5, 1.0]], rows=["$x$", "b"], numbers="{:.1f}"),
    "signed": lambda figure: charts.heatmap(figure, np.linspace(-1, 1, 1200).reshape(30, 40), signed=True, x="slots"),
    "scatter": lambda figure: charts.scatter(figure, np.eye(4)[:, :2], ["a", "b", "a", "c"], names="pqrs", bare=True),
    "histogram": lambda figure: charts.histogram(figure, {"a": [0.0, 1.0, np.inf], "b": [0.5]}, bins=4, log_y=True),
}


def drawn(name, draw):
    return figure_to_svg(Figure(name, "A title", "A caption.", draw), LIGHT)


@pytest.mark.parametrize("name", CHARTS)
def test_all_colours_are_those_of_a_page(name):
    svg = drawn(name, CHARTS[name])
    assert not re.findall(r"#[0-9a-fA-F]{6}\b", svg) and "var(--" in svg
    assert "<text" in svg or name == "scatter"  # letters stay letters


def test_text_of_users_is_no_formula():
    assert "$x$" in drawn("heat", CHARTS["heat"])


def test_a_logarithmic_axis_has_plain_numbers():
    svg = drawn("log", CHARTS["log"])
    assert ">1M<" in svg and "mathdefault" not in svg
    flat = drawn("log", lambda figure: charts.line_chart(figure, {"a": ([0, 1], [1.0, 2.0])}, log_x=True))
    assert ">0<" in flat  # nothing has a logarithm there


def test_series_beyond_the_colours_have_other_strokes():
    with charts.new_figure() as figure:
        axes = CHARTS["lines"](figure)
        looks = {(line.get_color(), line.get_linestyle()) for line in axes.get_lines() if "run" in line.get_label()}
    assert len(looks) == 8


def test_a_large_matrix_is_one_image():
    assert drawn("signed", CHARTS["signed"]).count("<image") == 1
    assert "<image" not in drawn("heat", CHARTS["heat"])
