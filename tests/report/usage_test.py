"""The panel of value tables: numbers, ranks, kinds of tokens, and what is used no more."""

import numpy as np
import pytest

from memjax.inspection.slot_usage import SlotCounts
from memjax.report import charts, usage
from memjax.report.panel import OpenedRun
from memjax.training import train
from tests.report.crafted import parts_of, smoke


def counts(*lookups):
    each = np.array(lookups, np.int64)
    return {"": SlotCounts(each, (each > 2).astype(np.int64), each.astype(float))}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    config = smoke("product_key_python", tmp_path_factory.mktemp("usage"))
    config.training.steps, config.training.checkpoint_every = 2, 1
    train(config)
    return OpenedRun(str(tmp_path_factory.getbasetemp() / "usage0" / "run"))


def drawn_axes(draw, *arguments):
    with charts.new_figure() as figure:
        draw(figure, *arguments)
        return figure.axes


def test_a_run_with_product_keys(run):
    (panel,) = usage.panels(run)
    parts = parts_of([panel])
    assert {"usage_numbers", "usage_ranks", "usage_histogram", "usage_staleness"} <= {*parts}
    (row,) = parts["usage_numbers"].rows
    values = dict(zip(parts["usage_numbers"].columns, row, strict=True))
    assert values["slots"] == 256 and 0 < values["top usage"] <= values["usage"] <= 1
    assert values["count divergence"] > 0
    axes = drawn_axes(parts["usage_staleness"].draw)[0]
    assert [label.get_text() for label in axes.get_xticklabels()] == ["never", "1", "2"]
    assert sum(bar.get_height() for bar in axes.patches) == pytest.approx(1)


def test_ranks_begin_with_the_slot_that_is_chosen_most():
    found = {"layer_03/values": counts(0, 8, 2, 2)}
    (axes,) = drawn_axes(usage.draw_ranks, found)
    line = next(line for line in axes.get_lines() if line.get_label() == "layer 3")
    np.testing.assert_allclose(line.get_xdata(), [1, 2, 3])
    np.testing.assert_allclose(line.get_ydata(), [8 / 3, 2 / 3, 2 / 3])
    (axes,) = drawn_axes(usage.draw_histogram, {"layer_03/values": counts(*[0] * 50, *[2] * 50)})
    np.testing.assert_allclose(sum(axes.patches[0].get_data().values), 1)


def test_stale_slots_are_shares_of_their_table():
    (axes,) = drawn_axes(usage.draw_staleness, {"a": {"never": 1, "5": 0, "9": 3}, "b": {"never": 1, "9": 1}})
    heights = [round(bar.get_height(), 3) for bar in axes.patches]
    assert heights == [0.25, 0, 0.75, 0.5, 0, 0.5]


def test_kinds_of_tokens_are_compared_table_by_table():
    of = lambda overlap: {"k": {"usage": 0.5, "overlap_with_rest": overlap, "divergence_from_rest": 0.25}}
    facts = {"layer_01/values": {"subsets": of(0.5)}, "layer_03/values": {"subsets": of(0.125)}}
    facts["layer_01/values"]["subsets"]["none"] = {"usage": 0.0}
    table, figure = usage._subsets(facts, "somewhere")
    assert table.rows == (("layer_01/values", "k", 0.5, 0.25), ("layer_03/values", "k", 0.125, 0.25))
    (axes,) = drawn_axes(figure.draw)
    assert [bar.get_width() for bar in axes.patches] == [0.5, 0.125]
