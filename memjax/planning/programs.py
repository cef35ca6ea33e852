"""The steps of a configuration as functions with the shapes of their arguments: nothing is computed or read."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from memjax.axes import parameter_names
from memjax.config import Config
from memjax.data.documents import Example, Examples
from memjax.lifelong.factory import make_learner
from memjax.tasks import task_of
from memjax.training.evaluation import make_score
from memjax.training.experiment import Experiment, evaluation_model
from memjax.training.metrics import count_bytes
from memjax.training.places import CompiledLearner
from memjax.training.sharding import Layout, check_rows, train_state_names
from memjax.training.stages import STREAM, Learner
from memjax.training.step import init_variables
from memjax.typing import Batch

What = Literal["train", "eval", "decode"]
"""updates, one scored segment, or one generated token"""
WHATS: tuple[What, ...] = ("train", "eval", "decode")


class Copies(NamedTuple):
    """Copies of parameters, one for each row that is scored at once.

    Attributes:
      field: the setting that says how many rows a device scores at once.
      bytes: of one copy.
    """

    field: str
    bytes: int


class RowsKept(NamedTuple):
    """The memory of rows that a learner keeps.

    Attributes:
      field: the setting that says how many.
      capacity: rows, on all devices.
      bytes: on a device.
      beside: bytes on a device of the rest of the state.
    """

    field: str
    capacity: int
    bytes: int
    beside: int


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
      copies: of parameters, where rows have their own.
      rows_kept: where a learner keeps rows.
    """

    function: Callable[..., Any]
    arguments: Mapping[str, Any]
    shardings: tuple[Any, ...]
    results: Any
    names: Any
    donated: tuple[int, ...]
    tokens: int
    padding: int
    copies: Copies | None = None
    rows_kept: RowsKept | None = None


class Planned(Experiment):
    """A configuration whose data is not read: its batches are shapes, and it evaluates nothing."""

    def example(self, split: Any = None) -> Batch:
        """The shapes of a batch, with what a split says of its examples beside what the model reads."""
        config = self.config
        batch = self.model.example(config.data.rows, config.data.segment_length)
        told = {} if split is None else split.example(0).context
        shapes = {name: jax.ShapeDtypeStruct((config.data.rows, *a.shape), a.dtype) for name, a in told.items()}
        batch = dataclasses.replace(batch, extras={**batch.extras, **shapes})
        segments = config.training.segments_per_update
        return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct((segments, *leaf.shape), leaf.dtype), batch)

    def of_task(self, name: str) -> Experiment:
        """All tasks have batches of one shape."""
        del name
        return self

    def evaluators(self, layout: Layout | None = None) -> dict[str, Any]:
        """None."""
        del layout
        return {}


class Unread(Examples):
    """The place of examples that are not read."""

    def __len__(self) -> int:
        return 1

    def example(self, index: int, /, epoch: int = 0) -> Example:
        del index, epoch
        return Example(np.zeros(1, np.int32), np.zeros(1, np.int32), np.zeros(1, np.float32))

    def num_bytes(self, index: int, /) -> int:
        del index
        return 0


def planned_learner(config: Config, vocab_size: int, layout: Layout | None) -> Learner:
    """The learner of a configuration, for its shapes and programs; it reads no data."""
    documents = lambda split: Unread()
    if config.lifelong is not None:  # what is not read has no parts
        config = dataclasses.replace(config, lifelong=dataclasses.replace(config.lifelong, limits=()))
    return make_learner(Planned(config, task_of(config).model(vocab_size), documents, begin_token=0), layout)


def make_programs(config: Config, what: What, vocab_size: int, layout: Layout) -> dict[str, Program]:
    """The steps that a configuration describes, by name; nothing is computed.

    Args:
      config: the configuration.
      what: 'train' (every kind of update of its learner, pieces of them that count by themselves, and the scoring of
        rows that have parameters of their own), 'eval' (one segment of `evaluation.rows` rows) or 'decode' (one token
        of as many).
      vocab_size: ids.
      layout: where arrays live.

    Raises:
      ValueError: rows that do not divide over the mesh.
    """
    if what == "train":
        check_rows(config.data.rows, layout.mesh)
        return _train_programs(config, vocab_size, layout)
    check_rows(config.evaluation.rows, layout.mesh, what="evaluation.rows")
    if what == "eval" and config.lifelong is not None:
        made = _train_programs(config, vocab_size, layout)
        if "adapt" in made:
            return {"adapt": made["adapt"]}
    return {what: (_score_program if what == "eval" else _decode_program)(config, vocab_size, layout)}


def _train_programs(config: Config, vocab_size: int, layout: Layout) -> dict[str, Program]:
    learner = planned_learner(config, vocab_size, layout)
    places, sizes = CompiledLearner(layout, learner), learner.plan_info
    state, replicated = places.state, layout.replicated
    rows = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), learner.batch_shapes[STREAM])
    names = train_state_names(places.shapes, parameter_names(learner.make_variables))
    common: dict[str, Any] = {
        "names": names,
        "padding": learner.model.padding(),
        "rows_kept": _rows_kept(learner, places),
    }
    read = lambda batch: 0 if batch is None else batch.mask.size
    made = {
        kind: Program(
            places.make_update(kind),
            {"state": places.shapes, "batch": batch},
            (state, places.batches[kind]),
            (state, replicated),
            donated=(0,),
            tokens=read(batch),
            **common,
        )
        for kind, batch in learner.batch_shapes.items()
    }
    for name, part in sizes.parts.items():
        made[name] = Program(
            part.run,
            {"state": places.shapes, "rows": rows},
            (state, layout.batch(rows, segments=False)),
            state if part.writes else None,
            donated=(0,) if part.writes else (),
            tokens=read(rows),
            **common,
        )
    if learner.adapt_rows is not None and not learner.adapt_rows.runs_outside_jit:
        made["adapt"] = _adapt_program(config, learner, places, layout, common)
    return made


def _rows_kept(learner: Learner, places: CompiledLearner) -> RowsKept | None:
    """What a memory of rows takes of a device."""
    if not learner.plan_info.parts:
        return None
    sizes = lambda tree, shardings: sum(
        math.prod(sharding.shard_shape(leaf.shape)) * itemsize(leaf.dtype)
        for leaf, sharding in zip(jax.tree.leaves(tree), jax.tree.leaves(shardings), strict=True)
    )
    kept = learner.plan_info.kept
    memory = places.shapes.method[kept]
    own = sizes(memory, places.state.method[kept])
    return RowsKept(learner.plan_info.capacity, memory.capacity, own, sizes(places.shapes, places.state) - own)


def itemsize(dtype: Any) -> int:
    """Bytes of an entry; a random key is two words."""
    return 8 if jnp.issubdtype(dtype, jax.dtypes.prng_key) else dtype.itemsize


def _adapt_program(
    config: Config, learner: Learner, places: CompiledLearner, layout: Layout, common: Mapping[str, Any]
) -> Program:
    """One batch of an evaluation whose rows have parameters of their own, beside all that training holds."""
    evaluation, model = config.evaluation, learner.model
    check_rows(evaluation.rows, layout.mesh, what="evaluation.rows")
    batch = model.example(evaluation.rows, evaluation.segment_length or config.data.segment_length)
    score = make_score(model, accuracy=evaluation.accuracy, adapt_rows=learner.adapt_rows)

    def adapt(state: Any, batch: Any) -> Any:
        read = (batch.inputs, batch.targets, batch.mask, batch.start_of_document, batch.extras)
        return score(
            learner.evaluation_variables(state, config.training.seed), model.init_state(evaluation.rows), *read
        )[1:]

    return Program(
        adapt,
        {"state": places.shapes, "batch": batch},
        (places.state, layout.batch(batch, segments=False)),
        layout.replicated,
        donated=(),
        tokens=batch.mask.size,
        copies=Copies(learner.plan_info.width, count_bytes(learner.plan_info.copied(places.shapes.params))),
        **common,
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
