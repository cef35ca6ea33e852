"""Panels of what is attended to: every figure is drawn, and says what the arrays say."""

import jax
import numpy as np
import pytest

from memjax import config
from memjax.data.key_value_recall import KeyValueRecallDocuments
from memjax.models.factory import make_language_model, make_model
from memjax.report import attention, charts
from memjax.report.retrieved_arcs import RetrievalArcs, draw_arcs, space_out
from memjax.report.run_text import first_segments, segments_since_start, token_texts
from memjax.training.train_state import init_variables
from memjax.typing import Batch
from tests.report.crafted import parts_of
from tests.report.opened import drawn, opened

LENGTH = 16


def built(attention_settings, vocab=259, **fields):
    described = config.Model(dim=8, num_layers=2, num_heads=2, attention=attention_settings, **fields)
    settings = config.Config(model=described, data=config.Data(source=config.PythonLibrary(), segment_length=LENGTH))
    model = make_language_model(described, vocab, segment_length=LENGTH)
    shapes = jax.eval_shape(lambda: init_variables(model, jax.random.key(0), LENGTH))
    return settings, model, drawn(shapes)


@pytest.fixture(scope="module")
def recall():
    documents = KeyValueRecallDocuments(2, num_pairs=4, num_keys=4, num_values=4, filler_length=40, num_fillers=2)
    part = config.Memorizing(
        layers_with_memory=(0,), memory_length=32, num_neighbors=2, cache_length=8, query_key_norm=False
    )
    run = opened(*built(part, vocab=documents.vocab_size), documents=documents, segments=2)
    return run, list(attention.panels(run))


def test_what_a_long_memory_looks_at(recall):
    run, panels = recall
    assert [panel.name for panel in panels] == ["attention_by_age", "retrieved"]
    parts = parts_of(panels)
    assert [*parts] == ["attention_by_age", "attention_by_source", "retrieved_tokens", "retrieved_contexts"]
    assert "56 tokens of the validation split, in 2 segments of 16 after" in parts["attention_by_age"].caption
    with charts.new_figure() as figure:
        parts["attention_by_age"].draw(figure)
        (axes,) = figure.axes
        lines = {line.get_label(): line for line in axes.get_lines() if line.get_label().startswith("layer")}
        assert [*lines] == ["layer 0", "layer 1"] and axes.get_xlabel() == "tokens ago"
        far = lines["layer 0"].get_xdata() > 2 * LENGTH  # cache and segment reach less
        assert lines["layer 0"].get_ydata()[far].max() > 0 and lines["layer 1"].get_ydata()[far].max(initial=0) == 0
    with charts.new_figure() as figure:
        parts["attention_by_source"].draw(figure)
        shares = [float(text.get_text()) for text in figure.axes[0].texts]
        assert len(shares) == 6 and sum(shares) == pytest.approx(2, abs=0.04)


def test_retrieved_tokens_are_named(recall):
    run, panels = recall
    parts = parts_of(panels)
    rows = parts["retrieved_contexts"].rows
    for asked, position, words, back, weight in rows:
        assert (asked is None) == (position is None) and "[" in words and back > 0 and 0 < weight <= 1
    assert rows[0][0] is not None and any("key" in row[2] or "." in row[2] for row in rows)
    with charts.new_figure() as figure:
        parts["retrieved_tokens"].draw(figure)
        shown = "\n".join(text.get_text() for axes in figure.axes for text in axes.texts)
    assert f"at {rows[0][1]}" in shown and f"{rows[0][4]:.2f}" in shown


def test_a_memory_of_the_segment_before_retrieves_nothing():
    run = opened(*built(config.TransformerXL(memory_length=8)), segments=2)
    (panel,) = attention.panels(run)
    assert [*parts_of([panel])] == ["attention_by_age", "attention_by_source"]


def test_models_that_remember_nothing_have_no_panel():
    run = opened(*built(config.TransformerXL(memory_length=0)), segments=2)
    assert list(attention.panels(run)) == []
    assert list(attention.panels(opened(*built(config.LinearTransformer()), segments=2))) == []


def test_memory_tokens_of_a_text():
    tokens = config.MemoryTokens(num_tokens=3)
    run = opened(*built(config.TransformerXL(memory_length=8), memory_tokens=tokens), segments=2)
    *_, panel = attention.panels(run)
    parts = parts_of([panel])
    assert [*parts] == ["memory_token_maps", "memory_token_words", "memory_token_shares"]
    rows = parts["memory_token_shares"].rows
    assert [row[0] for row in rows] == [0, 1] and all(row[1] == 1 and 0 < row[2] < 1 for row in rows)
    with charts.new_figure() as figure:
        parts["memory_token_words"].draw(figure)
        assert len(figure.axes[0].get_xticklabels()) == LENGTH and len(figure.axes[0].get_yticklabels()) == 3


def test_arcs_lead_from_a_token_to_what_it_retrieved():
    one = RetrievalArcs(40, "ask[ed]", ((10, 0.5), (30, 0.25)), ("fir[st]", "sec[ond]"))
    with charts.new_figure() as figure:
        (axes,) = draw_arcs(figure, [one])
        curves = [line.get_xdata() for line in axes.get_lines() if len(line.get_xdata()) > 2]
        np.testing.assert_allclose([[curve.min(), curve.max()] for curve in curves], [[0.25, 1], [0.75, 1]], atol=1e-3)
        widths = [line.get_linewidth() for line in axes.get_lines() if len(line.get_xdata()) > 2]
        assert widths[0] > widths[1]
        assert [text.get_text() for text in axes.texts] == ["fir[st]\n0.50", "sec[ond]\n0.25", "ask[ed]\nat 40"]
    assert space_out([0.1, 0.15, 0.2, 0.25, 1.0], 0.25) == [0.0, 0.25, 0.5, 0.75, 1.0]


def test_segments_of_a_document_and_their_words():
    run = opened(*built(config.TransformerXL(memory_length=0)), segments=2)
    segments, skip = first_segments(run, warm=True)
    assert (len(segments), skip) == (8, 6) and first_segments(run)[1] == 0
    assert "".join(token_texts(run, segments[0].inputs[0].tolist())) == " ·def area(width,"
    real = np.ones((1, 2), bool)
    one = lambda begins, mask=real: Batch(None, None, mask, None, np.array([begins]))
    assert segments_since_start([one(True), one(True), one(False), one(False, ~real)], 0) == [1, 2]


def test_a_translation_shows_the_memory_tokens_of_its_source(recall):
    del recall
    described = config.EncoderDecoder(dim=8, num_layers=1, num_heads=2, memory_tokens=config.MemoryTokens(num_tokens=2))
    settings = config.Config(
        model=described,
        data=config.Data(
            source=config.NumberWords(num_documents=8), tokenizer=config.Bytes(), batch_size=2, segment_length=96
        ),
        evaluation=config.Evaluation(batch_size=2),
    )
    from memjax.training.experiment import make_experiment

    experiment = make_experiment(settings)
    shapes = jax.eval_shape(lambda: init_variables(experiment.model, jax.random.key(0), 96))
    run = opened(settings, make_model(settings, 259), drawn(shapes), segments=1)
    run.loaded_run.experiment = experiment
    (panel,) = attention.panels(run)
    assert panel.name == "memory_tokens" and parts_of([panel])["memory_token_shares"].rows[0][0] == 0
