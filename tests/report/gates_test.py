"""Panels of gates: heads of layers, and the words of a text."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from memjax import config
from memjax.data.documents import ArrayDocuments
from memjax.data.tokenizers import ByteTokenizer
from memjax.memory.spalm import SpalmMemory
from memjax.models.factory import make_language_model
from memjax.report import charts, gates
from memjax.training.train_state import init_variables
from tests.report.crafted import parts_of
from tests.report.opened import TEXT, drawn, opened

LENGTH = 8


def built(part):
    described = config.Model(dim=8, num_layers=2, num_heads=2, attention=part)
    settings = config.Config(model=described, data=config.Data(source=config.PythonLibrary(), segment_length=LENGTH))
    model = make_language_model(described, 259, segment_length=LENGTH)
    shapes = jax.eval_shape(lambda: init_variables(model, jax.random.key(0), LENGTH))
    return settings, model, drawn(shapes)


class WithNeighbours(ArrayDocuments):
    """Two neighbours of every token propose the letters a and b."""

    def annotate(self, index, /):
        values = np.tile(np.array([3 + ord("a"), 3 + ord("b")], np.int32), (len(self[index]), 1))
        return {"neighbor_values": values}


def test_gates_of_heads_are_written_in_the_cells():
    settings, model, variables = built(config.Memorizing(layers_with_memory=(-1,), memory_length=8, num_neighbors=2))
    gate = jnp.array([0.0, np.log(3.0)], jnp.float32)
    variables["params"]["stack"]["layers_1"]["attention"]["gate"] = gate
    (panel,) = gates.panels(opened(settings, model, variables, segments=2))
    parts = parts_of([panel])
    assert [*parts] == ["gates"] and "the long memory" in panel.text
    with charts.new_figure() as figure:
        parts["gates"].draw(figure)
        (axes,) = figure.axes
        assert [text.get_text() for text in axes.texts] == ["0.50", "0.75"]
        assert [label.get_text() for label in axes.get_yticklabels()] == ["layer 1"]


def test_gates_of_tokens_have_a_histogram():
    parts = parts_of(gates.panels(opened(*built(config.RFA(gate=True, num_directions=3)), segments=2)))
    assert [*parts] == ["gates", "gates_by_token"] and "Share of 32 tokens" in parts["gates_by_token"].caption


def test_words_are_darker_where_neighbours_count():
    settings, model, variables = built(config.TransformerXL(memory_length=0))
    model = model.clone(output_memory=SpalmMemory(dim=8, num_neighbors=2, gate_bias=1.0))
    weight = {"weight": jnp.linspace(-2, 2, 8), "bias": jnp.ones(1)}
    variables = {**variables, "params": {**variables["params"], "output_memory": weight}}
    documents = WithNeighbours([ByteTokenizer().encode(TEXT)] * 2)
    run = opened(settings, model, variables, documents=documents, segments=3)
    object.__setattr__(
        run.loaded_run, "experiment", dataclasses.replace(run.loaded_run.experiment, tokenizer=ByteTokenizer())
    )
    (panel,) = gates.panels(run)
    parts = parts_of([panel])
    assert [*parts] == ["output_gate", "output_gate_words"]
    words = parts["output_gate_words"]
    assert "".join(words.words).endswith("def area(width, height)") and len(words.shades) == 3 * LENGTH
    assert len({round(value, 3) for value in words.shades}) > 5 and all(0 < value < 1 for value in words.shades)
    assert words.notes[0] == f"gate {1 - words.shades[0]:.2f}; neighbours propose: a, b"


def test_models_without_gates_have_no_panel():
    assert list(gates.panels(opened(*built(config.TransformerXL(memory_length=4)), segments=1))) == []
