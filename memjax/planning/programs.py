"""Builds the steps of a configuration as functions with the shapes of their arguments, without data or computation."""

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
from memjax.tasks import make_task
from memjax.training.compiled_learner import CompiledLearner
from memjax.training.evaluation import make_score
from memjax.training.experiment import Experiment, evaluation_model
from memjax.training.metrics import count_bytes
from memjax.training.sharding import Layout, check_rows, train_state_names
from memjax.training.stages import STREAM, Learner
from memjax.training.train_state import init_variables
from memjax.typing import Batch

What = Literal["train", "eval", "decode"]
"""Kind of step: 'train' for updates, 'eval' for one scored segment, 'decode' for one generated token."""


class PerRowParameterCopies(NamedTuple):
    """The bytes of one copy of the parameters, which each row needs that is adapted by itself, and the name of the
    setting for the number of rows at once.

    Attributes:
      field: Name of the setting for the number of rows that a device scores at once.
      bytes: Bytes of one copy.
    """

    field: str
    bytes: int


class EpisodicMemoryBytes(NamedTuple):
    """The size of a learner's episodic memory in rows and in bytes on a device, and that of the rest of the training
    state.

    Attributes:
      field: Name of the setting for the number of rows.
      capacity: Number of rows on all devices together.
      bytes: Bytes of the episodic memory on a device.
      beside: Bytes of the rest of the training state on a device.
    """

    field: str
    capacity: int
    bytes: int
    beside: int


@dataclasses.dataclass(frozen=True)
class Program:
    """A step as a function, with the shapes and shardings of its arguments and the shardings of its results.

    Attributes:
      function: Function that computes the step from its arguments.
      arguments: Readable name of an argument -> its tree of shapes, in the order of the arguments.
      shardings: Shardings of each argument.
      results: Shardings of the results. None leaves them to the compiler.
      names: Logical names of the axes of the first argument's arrays.
      donated: Numbers of the arguments that may be overwritten.
      tokens: Number of tokens that one execution reads, over all rows.
      padding: Number of the model's parameters that are padding of its vocabulary.
      copies: Size of the copies of parameters for rows that are adapted one by one. None without such rows.
      rows_kept: Size of the learner's episodic memory. None without one.
    """

    function: Callable[..., Any]
    arguments: Mapping[str, Any]
    shardings: tuple[Any, ...]
    results: Any
    names: Any
    donated: tuple[int, ...]
    tokens: int
    padding: int
    copies: PerRowParameterCopies | None = None
    rows_kept: EpisodicMemoryBytes | None = None


class Planned(Experiment):
    """An experiment that reads no data, for planning: its batches are shapes alone, and it has no evaluations."""

    def example(self, split: Any = None) -> Batch:
        """Returns the shapes of a batch. `split` is opened examples whose context is added to the extras, None for the
        model's inputs alone.
        """
        config = self.config
        batch = self.model.example(config.data.batch_size, config.data.segment_length)
        extras = {} if split is None else split.example(0).context
        shapes = {name: jax.ShapeDtypeStruct((config.data.batch_size, *a.shape), a.dtype) for name, a in extras.items()}
        batch = dataclasses.replace(batch, extras={**batch.extras, **shapes})
        segments = config.training.segments_per_update
        return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct((segments, *leaf.shape), leaf.dtype), batch)

    def of_task(self, name: str) -> Experiment:
        """Returns this experiment itself for the task named `name`, since all tasks have batches of one shape."""
        del name
        return self

    def evaluators(self, layout: Layout | None = None) -> dict[str, Any]:
        """Returns an empty dict, since nothing is evaluated. `layout` is not used."""
        del layout
        return {}


class PlaceholderExamples(Examples):
    """A placeholder for a data set that is not read: it has a single empty example."""

    def __len__(self) -> int:
        return 1

    def example(self, index: int, /, epoch: int = 0) -> Example:
        del index, epoch
        return Example(np.zeros(1, np.int32), np.zeros(1, np.int32), np.zeros(1, np.float32))

    def num_bytes(self, index: int, /) -> int:
        del index
        return 0


def planned_learner(config: Config, vocab_size: int, layout: Layout | None) -> Learner:
    """Makes the learner of a configuration without reading data, of which only shapes and compiled programs are used.
    `vocab_size` is the size of the vocabulary.

    Args:
      config: Configuration of the learner.
      vocab_size: Size of the vocabulary.
      layout: Shardings of all arrays over the mesh. None on a single device.
    """
    documents = lambda split: PlaceholderExamples()
    if config.lifelong is not None:  # data that is not read cannot be limited
        config = dataclasses.replace(config, lifelong=dataclasses.replace(config.lifelong, max_examples_per_task=()))
    return make_learner(Planned(config, make_task(config).model(vocab_size), documents, begin_token=0), layout)


def make_programs(config: Config, what: What, vocab_size: int, layout: Layout) -> dict[str, Program]:
    """Returns a dict of the steps of a configuration by name (`Program`), without computing anything. `what` is
    'train', 'eval' or 'decode'.

    Args:
      config: Configuration of the steps.
      what: 'train' for every kind of update of the learner, parts of updates that run by themselves, and the scoring of
        rows that are adapted one by one. 'eval' for one segment of `evaluation.batch_size` rows. 'decode' for one
        token of `evaluation.batch_size` rows.
      vocab_size: Size of the vocabulary.
      layout: Shardings of all arrays over the mesh.

    Raises:
      ValueError: The rows do not divide over the mesh.
    """
    if what == "train":
        check_rows(config.data.batch_size, layout.mesh)
        return _train_programs(config, vocab_size, layout)
    check_rows(config.evaluation.batch_size, layout.mesh, what="evaluation.batch_size")
    if what == "eval" and config.lifelong is not None:
        programs = _train_programs(config, vocab_size, layout)
        if "adapt" in programs:
            return {"adapt": programs["adapt"]}
    return {what: (_score_program if what == "eval" else _decode_program)(config, vocab_size, layout)}


def _train_programs(config: Config, vocab_size: int, layout: Layout) -> dict[str, Program]:
    learner = planned_learner(config, vocab_size, layout)
    compiled, adapt_rows = CompiledLearner(layout, learner), learner.adapt_rows
    state, replicated = compiled.state, layout.replicated
    rows = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), learner.batch_shapes[STREAM])
    names = train_state_names(compiled.shapes, parameter_names(learner.make_variables))
    common: dict[str, Any] = {
        "names": names,
        "padding": learner.model.padding(),
        "rows_kept": _rows_kept(learner, compiled),
    }
    read = lambda batch: 0 if batch is None else batch.mask.size
    programs = {
        kind: Program(
            compiled.make_update(kind),
            {"state": compiled.shapes, "batch": batch},
            (state, compiled.batches[kind]),
            (state, replicated),
            donated=(0,),
            tokens=read(batch),
            **common,
        )
        for kind, batch in learner.batch_shapes.items()
    }
    if learner.stored_rows is not None:
        fields = {"arguments": {"state": compiled.shapes, "rows": rows}, "tokens": read(rows), **common}
        fields["shardings"] = (state, layout.batch(rows, segments=False))
        programs["write"] = Program(learner.stored_rows.write, results=state, donated=(0,), **fields)
        if adapt_rows is not None:
            retrieve, variables = adapt_rows.retrieve_support, learner.adapt_variables
            search = lambda state, rows: retrieve(variables(state, None, state.key), rows)
            programs["search"] = Program(search, results=None, donated=(), **fields)
    if adapt_rows is not None and not adapt_rows.runs_outside_jit:
        programs["adapt"] = _adapt_program(config, learner, compiled, layout, common)
    return programs


def _rows_kept(learner: Learner, compiled: CompiledLearner) -> EpisodicMemoryBytes | None:
    """Measures the bytes of a learner's episodic memory on a device. None for a learner without one."""
    stored = learner.stored_rows
    if stored is None:
        return None
    sizes = lambda tree, shardings: sum(
        math.prod(sharding.shard_shape(leaf.shape)) * itemsize(leaf.dtype)
        for leaf, sharding in zip(jax.tree.leaves(tree), jax.tree.leaves(shardings), strict=True)
    )
    memory = compiled.shapes.method[stored.name]
    memory_bytes = sizes(memory, compiled.state.method[stored.name])
    return EpisodicMemoryBytes(
        stored.capacity, memory.capacity, memory_bytes, sizes(compiled.shapes, compiled.state) - memory_bytes
    )


def itemsize(dtype: Any) -> int:
    """Returns the number of bytes of one element of a dtype. A random key takes 8."""
    return 8 if jnp.issubdtype(dtype, jax.dtypes.prng_key) else dtype.itemsize


def _adapt_program(
    config: Config, learner: Learner, compiled: CompiledLearner, layout: Layout, common: Mapping[str, Any]
) -> Program:
    """Makes the step that scores one batch with parameters adapted to each row, beside the whole training state."""
    evaluation, model, adapt_rows = config.evaluation, learner.model, learner.adapt_rows
    assert adapt_rows is not None
    check_rows(evaluation.batch_size, layout.mesh, what="evaluation.batch_size")
    batch = model.example(evaluation.batch_size, evaluation.segment_length or config.data.segment_length)
    score = make_score(model, compute_accuracy=evaluation.compute_accuracy, adapt_rows=adapt_rows)

    def adapt(state: Any, batch: Any) -> Any:
        read = (batch.inputs, batch.targets, batch.mask, batch.start_of_document, batch.extras)
        return score(
            learner.evaluation_variables(state, config.training.seed), model.init_state(evaluation.batch_size), *read
        )[1:]

    return Program(
        adapt,
        {"state": compiled.shapes, "batch": batch},
        (compiled.state, layout.batch(batch, segments=False)),
        layout.replicated,
        donated=(),
        tokens=batch.mask.size,
        copies=PerRowParameterCopies(adapt_rows.width, count_bytes(adapt_rows.copied(compiled.shapes.params))),
        **common,
    )


def _score_program(config: Config, vocab_size: int, layout: Layout) -> Program:
    evaluation = config.evaluation
    model: Any = evaluation_model(config, vocab_size)
    rows, length = evaluation.batch_size, evaluation.segment_length or config.data.segment_length
    variables, names, shardings = _variables(model, config, layout)
    memory = jax.eval_shape(lambda: model.init_state(rows))
    held, row = layout.memory(memory), layout.rows()
    batch = model.example(rows, length)
    arguments = {"inputs": batch.inputs, "targets": batch.targets, "mask": batch.mask}
    arguments |= {"start_of_document": batch.start_of_document, "extras": batch.extras}
    return Program(
        make_score(model, compute_accuracy=evaluation.compute_accuracy),
        {"variables": variables, "memory": memory, **arguments},
        (shardings, held, row, row, row, row, row),
        (held, layout.replicated, layout.replicated),
        names,
        donated=(1,),
        tokens=rows * length,
        padding=model.padding(),
    )


def _decode_program(config: Config, vocab_size: int, layout: Layout) -> Program:
    """Makes the step that reads one token of every row and returns the most probable next token."""
    model: Any = evaluation_model(config, vocab_size)
    rows = config.evaluation.batch_size
    variables, names, shardings = _variables(model, config, layout)
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
        (shardings, held, row, row),
        (held, row),
        names,
        donated=(1,),
        tokens=rows,
        padding=model.padding(),
    )


def _variables(model: Any, config: Config, layout: Layout) -> tuple[Any, Any, Any]:
    """Returns the shapes, the logical axis names and the shardings of a model's variables."""
    init = lambda: init_variables(model, jax.random.key(0), config.data.segment_length)
    shapes, names = jax.eval_shape(init), parameter_names(init)
    return shapes, names, layout.of(names, shapes)
