"""The panel of the slots of a Memformer."""

import jax
import numpy as np
import pytest

from memjax import config
from memjax.models.factory import make_language_model, make_memformer
from memjax.report import charts, slots
from memjax.training.train_state import init_variables
from tests.report.crafted import parts_of
from tests.report.opened import drawn, opened

LENGTH, SLOTS, SEGMENTS = 8, 5, 4


def built(num_slots=SLOTS):
    sizes = {"dim": 8, "num_layers": 1, "num_heads": 2, "encoder_layers": 1, "num_slots": num_slots}
    described = config.Memformer(**sizes, scan_layers=False, feed_forward=config.Dense(dim=12))
    settings = config.Config(model=described, data=config.Data(source=config.PythonLibrary(), segment_length=LENGTH))
    model = make_memformer(described, 259, segment_length=LENGTH)
    shapes = jax.eval_shape(lambda: init_variables(model, jax.random.key(0), LENGTH))
    return settings, model, drawn(shapes)


@pytest.fixture(scope="module")
def parts():
    return parts_of(slots.panels(opened(*built(), segments=SEGMENTS)))


def drawn_axes(part):
    with charts.new_figure(part.height) as figure:
        part.draw(figure)
        return figure.axes


def test_kinds_of_slots_fill_every_segment_but_the_first(parts):
    assert [*parts] == ["slot_types", "slot_writer", "slot_readers", "slot_forgetting"]
    assert f"{(SEGMENTS - 1) * 2 * SLOTS} writes" in parts["slot_types"].caption
    (axes,) = drawn_axes(parts["slot_types"])
    tops = np.zeros(SEGMENTS)
    for bar in axes.patches:
        tops[round(bar.get_x() + bar.get_width() / 2)] += bar.get_height()
    np.testing.assert_allclose(tops, [0, 1, 1, 1])


def test_words_stand_below_what_the_slots_take_in(parts):
    (axes,) = drawn_axes(parts["slot_writer"])
    words = [label.get_text() for label in axes.get_xticklabels()]
    assert words[0] == "itself" and words[-1] == "cls" and len(words) == 1 + LENGTH + 1
    assert "".join(words[1:-1]) == "␣height)"  # of the segment before the last
    assert sorted(label.get_text() for label in axes.get_yticklabels()) == ["0", "1", "2", "3", "4"]
    (axes,) = drawn_axes(parts["slot_readers"])
    assert len(axes.get_xticklabels()) == LENGTH


def test_lengths_of_biases_fall_with_their_rank(parts):
    left, right = drawn_axes(parts["slot_forgetting"])
    lengths = left.get_lines()[0].get_ydata()
    assert len(lengths) == SLOTS and (np.diff(lengths) <= 0).all()
    np.testing.assert_allclose(sum(bar.get_height() for bar in right.patches), 1)


def test_models_without_slots_have_no_panel():
    assert list(slots.panels(opened(*built(0), segments=1))) == []
    described = config.Model(dim=8, num_layers=1, num_heads=2)
    model = make_language_model(described, 259)
    assert list(slots.panels(opened(config.Config(model=described), model, {}, segments=1))) == []
