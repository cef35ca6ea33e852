"""One step of a configuration as a function with the shapes of its arguments: nothing is computed, no data is read."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, Literal

import jax
import jax.numpy as jnp

from memjax.axes import parameter_names
from memjax.config import Config
from memjax.tasks import task_of
from memjax.training.assembly import make_parts
from memjax.training.evaluation import make_score
from memjax.training.experiment import evaluation_model
from memjax.training.sharding import Layout, check_rows, train_state_names
from memjax.training.step import init_variables

What = Literal["train", "eval", "decode"]
"""an update, one scored segment, or one generated token"""
WHATS: tuple[What, ...] = ("train", "eval", "decode")


@dataclasses.dataclass(frozen=True)
class Program:
    """A function, and where its arguments and results live.

    Attributes:
      function: of the arguments.
      arguments: part -> tree of shapes, in order; parts are named for people.
      shardings: of the arguments.
      results: shardings of the results; None = the compiler's choice.
      names: of the axes of the first argument.
      donated: numbers of the arguments that may be overwritten.
      tokens: read in one run, over all rows.
      padding: parameters of the model that are padding of its vocabulary.
    """

    function: Callable[..., Any]
    arguments: Mapping[str, Any]
    shardings: tuple[Any, ...]
    results: Any
    names: Any
    donated: tuple[int, ...]
    tokens: int
    padding: int


def make_program(config: Config, what: What, vocab_size: int, layout: Layout) -> Program:
    """The step that a configuration describes; nothing is computed.

    Args:
      config: the configuration.
      what: 'train', 'eval' (one segment of `evaluation.rows` rows) or 'decode' (one token of as many).
      vocab_size: ids.
      layout: where arrays live.

    Raises:
      ValueError: rows that do not divide over the mesh.
    """
    if what == "train":
        check_rows(config.data.rows, layout.mesh)
        return _train_program(config, vocab_size, layout)
    check_rows(config.evaluation.rows, layout.mesh, what="evaluation.rows")
    return (_score_program if what == "eval" else _decode_program)(config, vocab_size, layout)


def _train_program(config: Config, vocab_size: int, layout: Layout) -> Program:
    training, data = config.training, config.data
    model = task_of(config).model(vocab_size)
    parts = make_parts(config, model)
    rows, length, segments = data.rows, data.segment_length, training.segments_per_update
    leading = lambda leaf: jax.ShapeDtypeStruct((segments, *leaf.shape), leaf.dtype)
    batch = jax.tree.map(leading, model.example(rows, length))
    key = lambda: jax.random.key(training.seed)

    def init() -> Any:
        return parts.init(init_variables(model, key(), length), model.init_state(rows), batch, key())

    state = jax.eval_shape(init)
    names = train_state_names(state, parameter_names(lambda: init_variables(model, key(), length)))
    places = layout.of(names, state)
    return Program(
        parts.step,
        {"state": state, "batch": batch},
        (places, layout.batch(batch)),
        (places, layout.replicated),
        names,
        donated=(0,),
        tokens=segments * rows * length,
        padding=model.padding(),
    )


def _score_program(config: Config, vocab_size: int, layout: Layout) -> Program:
    evaluation = config.evaluation
    model: Any = evaluation_model(config, vocab_size)
    rows, length = evaluation.rows, evaluation.segment_length or config.data.segment_length
    variables, names, places = _variables(model, config, layout)
    memory = jax.eval_shape(lambda: model.init_state(rows))
    held, row = layout.memory(memory), layout.rows()
    batch = model.example(rows, length)
    arguments = {"inputs": batch.inputs, "targets": batch.targets, "mask": batch.mask}
    arguments |= {"start_of_document": batch.start_of_document, "extras": batch.extras}
    return Program(
        make_score(model, accuracy=evaluation.accuracy),
        {"variables": variables, "memory": memory, **arguments},
        (places, held, row, row, row, row, row),
        (held, layout.replicated, layout.replicated),
        names,
        donated=(1,),
        tokens=rows * length,
        padding=model.padding(),
    )


def _decode_program(config: Config, vocab_size: int, layout: Layout) -> Program:
    """One token of every row, read and continued with the most probable next one."""
    model: Any = evaluation_model(config, vocab_size)
    rows = config.evaluation.rows
    variables, names, places = _variables(model, config, layout)
    state = model.example_decode_state(variables, rows, config.data.segment_length)

    def decode(variables: Any, state: Any, token: Any, active: Any) -> Any:
        hidden, state = model.apply(variables, token[:, None], state, active=active, method="decode")
        log_probs = model.apply(variables, hidden, method="log_probs")
        return state, jnp.argmax(log_probs[:, 0], axis=-1)

    held, row = layout.memory(state), layout.rows()
    token, active = jax.ShapeDtypeStruct((rows,), jnp.int32), jax.ShapeDtypeStruct((rows,), bool)
    return Program(
        decode,
        {"variables": variables, "memory": state, "token": token, "active": active},
        (places, held, row, row),
        (held, row),
        names,
        donated=(1,),
        tokens=rows,
        padding=model.padding(),
    )


def _variables(model: Any, config: Config, layout: Layout) -> tuple[Any, Any, Any]:
    """Shapes, names and places of the variables."""
    init = lambda: init_variables(model, jax.random.key(0), config.data.segment_length)
    shapes, names = jax.eval_shape(init), parameter_names(init)
    return shapes, names, layout.of(names, shapes)
