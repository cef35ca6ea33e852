"""The panel of the signal of an infinity-former."""

import jax
import numpy as np
import pytest

from memjax import config
from memjax.models.factory import make_language_model
from memjax.report import charts, signal
from memjax.training.train_state import init_variables
from tests.report.crafted import parts_of
from tests.report.opened import drawn, opened

LENGTH, SEGMENTS = 8, 2


def built(**fields):
    sizes = {"num_basis": 8, "widths": (0.1, 0.2), "num_samples": 6, "num_bins": 5, "memory_length": LENGTH}
    described = config.Model(dim=8, num_layers=2, num_heads=2, attention=config.InfinityFormer(**sizes, **fields))
    settings = config.Config(model=described, data=config.Data(source=config.PythonLibrary(), segment_length=LENGTH))
    model = make_language_model(described, 259, segment_length=LENGTH)
    shapes = jax.eval_shape(lambda: init_variables(model, jax.random.key(0), LENGTH))
    return settings, model, drawn(shapes)


@pytest.fixture(scope="module")
def parts():
    return parts_of(signal.panels(opened(*built(sticky="none"), segments=SEGMENTS)))


def drawn_axes(part):
    with charts.new_figure(part.height) as figure:
        part.draw(figure)
        return figure.axes


def test_every_layer_has_a_density(parts):
    names = ["signal_densities", "signal_space", "signal_attention", "signal_words", "signal_text"]
    assert [*parts] == names
    (axes,) = drawn_axes(parts["signal_densities"])
    lines = {line.get_label(): line.get_ydata() for line in axes.get_lines() if line.get_label().startswith("layer")}
    assert [*lines] == ["layer 0", "layer 1"]
    for density in lines.values():
        assert len(density) == signal.BINS and 0 < np.mean(density) <= 1 + 1e-5  # what is outside is left out


def test_even_updates_give_new_tokens_more_space(parts):
    (axes,) = drawn_axes(parts["signal_space"])
    lines = {line.get_label(): line for line in axes.get_lines()}
    assert {"even", "sticky"} <= {*lines} and "The run's own updates are even" in parts["signal_space"].caption
    space = lines["even"].get_ydata()
    assert space[1] > 1 > space[-1]


def test_remembered_words_are_shaded_by_attention(parts):
    words, rows = parts["signal_text"], parts["signal_words"].rows
    # Two segments are read behind six more; the last two have not entered the signal.
    assert len(words.words) == 6 * LENGTH and max(words.shades) == 1 and min(words.shades) >= 0
    assert "".join(words.words).startswith(" ·def area(width, height):")
    assert len(rows) == LENGTH and all("[" in cell and "(0." in cell for row in rows for cell in row[1:])
    (axes,) = drawn_axes(parts["signal_attention"])
    assert len(axes.get_yticklabels()) == LENGTH


def test_models_without_a_signal_have_no_panel_and_one_that_begins_anew_says_so():
    with pytest.raises(ValueError, match=r"^reset_after_tokens: given 16, allowed: None for a map of the signal$"):
        list(signal.panels(opened(*built(sticky="none", reset_after_tokens=16), segments=1)))
    described = config.Model(dim=8, num_layers=1, num_heads=2)
    model = make_language_model(described, 259)
    assert list(signal.panels(opened(config.Config(model=described), model, {}, segments=1))) == []
