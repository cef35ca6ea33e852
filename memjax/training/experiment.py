"""The parts of a run, built from a configuration."""

from __future__ import annotations

import copy
import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import optax

from memjax import config as configs
from memjax.config import Config
from memjax.data.annotations import open_neighbors
from memjax.data.datasets import make_datasets
from memjax.data.documents import Documents
from memjax.data.identifiers import ANNOTATION
from memjax.data.streams import Streams
from memjax.memory.compressive import LOSSES
from memjax.memory.infinity_former import LOSS as KL
from memjax.models.encoder_decoder import make_encoder_decoder
from memjax.models.language_model import make_language_model, make_mixtures
from memjax.models.memformer import memformer_of
from memjax.models.text_encoder import make_text_encoder
from memjax.models.transformer import join_layers, split_layers
from memjax.models.vocabulary import AdaptiveVocabulary, Vocabulary, num_padding
from memjax.training import optimizers
from memjax.training.checkpoints import Checkpoints, describe_difference, flatten, unflatten
from memjax.training.evaluation import Evaluator, Subset
from memjax.training.runs import load_config
from memjax.training.sharding import Layout
from memjax.training.step import TrainState, init_variables
from memjax.training.tables import TableOptimizer, freeze_tables, table_adam
from memjax.training.usage import count_usage
from memjax.validation import validate

COLLECTIONS = {
    "params": "params/",
    "tables": "tables/values/",
    "batch_stats": "batch_stats/",
    "constants": "constants/",
}
"""Linen collection -> where its arrays stand in a checkpoint"""


MEMORY_PARAMETERS = (
    "compressed_position",
    "compressed_relative",
    "compression_kernel",
    "decompression_kernel",
    "dilated_kernels",
    "gate",
    "long_term",
)
"""what memories add to the parameters of a model without them (`training.memory_learning_rate`)"""


@dataclasses.dataclass(frozen=True)
class Experiment:
    """A configuration with the objects it describes.

    Attributes:
      config: the configuration.
      model: a Linen language model, or a text encoder with the head of its task.
      documents: split -> its documents.
      begin_token: id read before the first token of a document.
      tokenizer: of the documents, or None where they have none.
    """

    config: Config
    model: Any
    documents: Callable[[str], Documents]
    begin_token: int
    tokenizer: Any = None

    def stream(self, position: Mapping[str, Any] | None = None, host_rows: tuple[int, int] | None = None) -> Streams:
        """The training batches from a position on; of the rows `(start, stop)` only, where given."""
        data = self.config.data
        return Streams(
            self.documents("train"),
            rows=data.rows,
            segment_length=data.segment_length,
            segments_per_update=self.config.training.segments_per_update,
            seed=data.seed,
            protocol=stream_protocol(self.config),
            begin_token=self.begin_token,
            host_rows=host_rows,
            position=position,
        )

    def subsets(self, evaluation: configs.Evaluation) -> dict[str, Subset]:
        """The targets that are scored apart: those where a boolean annotation holds, and distant identifiers of code.

        A distant identifier was last seen in the document more than `evaluation.distance` tokens before.
        """
        documents = self.documents(evaluation.split)
        annotations = documents.annotate(0) if hasattr(documents, "annotate") else {}  # type: ignore[attr-defined]
        names = [name for name, array in annotations.items() if array.dtype == bool]
        subsets: dict[str, Subset] = {name: lambda extras, name=name: extras[name] for name in names}
        if ANNOTATION in annotations:
            distance = evaluation.distance or local_window(self.config)
            subsets["distant_identifier"] = lambda extras: extras[ANNOTATION] > distance
        return subsets

    def evaluator(
        self,
        evaluation: configs.Evaluation | None = None,
        *,
        model: Any = None,
        documents: Documents | None = None,
        layout: Layout | None = None,
        **shown: Any,
    ) -> Evaluator:
        """The evaluation that the configuration describes, or another one.

        Args:
          evaluation: another one.
          model: another one, with the same variables.
          documents: instead of those of the split, such as the same with annotations.
          layout: on a mesh.
          **shown: `parts` and `features` of `Evaluator`.
        """
        evaluation = evaluation or self.config.evaluation
        return Evaluator(
            model or make_evaluation_model(self, evaluation),
            documents or self.documents(evaluation.split),
            rows=evaluation.rows,
            segment_length=evaluation.segment_length or self.config.data.segment_length,
            protocol=evaluation.protocol or stream_protocol(self.config),
            stride=evaluation.stride,
            begin_token=self.begin_token,
            score_first=evaluation.score_first,
            max_segments=evaluation.max_segments,
            subsets=self.subsets(evaluation),
            accuracy=evaluation.accuracy,
            layout=layout,
            **shown,
        )


def make_experiment(config: Config, *, progress: Callable[[str, int, int | None], None] | None = None) -> Experiment:
    """Builds the documents, tokenizer and model of a configuration; `progress` is told what is prepared.

    Raises:
      ValueError: the configuration is not valid, or its data cannot be read.
    """
    validate(config)
    if isinstance(config.model.output, configs.Spalm) and not config.data.neighbors:
        raise ValueError("data.neighbors: given '', allowed: a folder from `memjax datastore neighbors` for Spalm")
    data = make_datasets(config.data, task=config.task, progress=progress)
    model = make_model(config, data.vocab_size)

    def documents(split: str) -> Documents:
        plain = data.documents(split)
        return open_neighbors(config.data.neighbors, split, plain) if config.data.neighbors else plain

    return Experiment(config, model, functools.cache(documents), data.begin_token, data.tokenizer)


def make_model(config: Config, vocab_size: int, *, vocab_multiple: int | None = None) -> Any:
    """The Linen model that a configuration describes: a language model, a Memformer, an encoder-decoder, or a text
    encoder with the head of its task.

    Args:
      config: the configuration.
      vocab_size: entries of the tokenizer.
      vocab_multiple: instead of that of the configuration; 1 = no padding.
    """
    common: Any = {
        "rematerialize": config.training.rematerialize,
        "table_sharding": config.sharding.tables,
        "vocab_multiple": vocab_multiple or config.sharding.vocab_multiple,
    }
    if isinstance(config.model, configs.EncoderDecoder):
        return make_encoder_decoder(config.model, vocab_size, vocab_multiple=common["vocab_multiple"])
    if isinstance(config.model, configs.Memformer):
        common.pop("table_sharding")
        return memformer_of(config.model, vocab_size, **common)
    if isinstance(config.task, configs.LanguageModeling):
        return make_language_model(config.model, vocab_size, memory_sharding=config.sharding.memory, **common)
    return make_text_encoder(config.model, config.task, vocab_size, **common)


def stream_protocol(config: Config) -> str:
    """How documents are cut into rows: what a task asks about comes as one document a text."""
    return config.data.protocol if isinstance(config.task, configs.LanguageModeling) else "separate"


def local_window(config: Config) -> int:
    """Tokens that one layer sees without its long or compressed memory, the query included."""
    match config.model.attention:
        case configs.Memorizing() as part:
            return part.window or part.cache_length + config.data.segment_length
        case configs.TransformerXL() | configs.Compressive() | configs.InfinityFormer() as part:
            return part.memory_length + config.data.segment_length
    return config.data.segment_length


def make_evaluation_model(experiment: Experiment, evaluation: configs.Evaluation) -> Any:
    """The model with the memory size and the cache of an evaluation; its variables are those of the trained one.

    Raises:
      ValueError: a memory size for a model without memory.
    """
    mixtures = make_mixtures(evaluation, experiment.config.model)
    if evaluation.memory_length is None:
        return experiment.model.clone(mixtures=mixtures) if mixtures else experiment.model
    model = copy.deepcopy(experiment.config.model)
    attention: Any = model.attention
    if not hasattr(attention, "memory_length"):
        raise ValueError(
            f"evaluation.memory_length: given {evaluation.memory_length}, allowed: None with {type(attention).__name__}"
        )
    attention.memory_length = evaluation.memory_length
    config = dataclasses.replace(experiment.config, model=model)
    validate(config)
    return make_model(config, experiment.model.vocabulary.vocab_size).clone(mixtures=mixtures)


def make_schedule(training: configs.Training) -> optimizers.Schedule:
    """The learning rate over optimiser steps."""
    schedule = training.schedule
    return optimizers.make_schedule(
        schedule.learning_rate,
        steps=max(training.steps // training.apply_every, 1),
        warmup_steps=schedule.warmup_steps,
        decay=schedule.decay,
        final_fraction=schedule.final_fraction,
    )


def make_optimizer(training: configs.Training, scanned: Sequence[str] = ()) -> optax.GradientTransformation:
    """The optimiser; `scanned` names the parameter groups with layers at axis 0 (see `optimizers.matrices`)."""
    schedule = make_schedule(training)
    match training.optimizer:
        case configs.Adam() as rule:
            chain = optimizers.adam(
                schedule,
                b1=rule.b1,
                b2=rule.b2,
                eps=rule.eps,
                weight_decay=rule.weight_decay,
                decay_mask=optimizers.matrices(scanned),
            )
        case configs.Adafactor() as rule:
            chain = optimizers.adafactor(
                schedule,
                decay_rate=rule.decay_rate,
                momentum=rule.momentum,
                multiply_by_parameter_scale=rule.multiply_by_parameter_scale,
            )
        case other:
            raise ValueError(f"training.optimizer: given {type(other).__name__}, allowed: Adam, Adafactor")
    if training.memory_learning_rate:
        factor = training.memory_learning_rate / training.schedule.learning_rate
        chain = optax.chain(chain, optimizers.scale_updates(MEMORY_PARAMETERS, factor))
    rule = optimizers.make_optimizer(chain, clip_norm=training.clip_norm, apply_every=training.apply_every)
    return optimizers.freeze(rule, training.frozen) if training.frozen else rule


def make_table_optimizer(config: Config) -> TableOptimizer:
    """The update rule of value tables, with counters of their slots."""
    rule = config.training.tables
    adam = table_adam(
        optimizers.make_schedule(rule.learning_rate, steps=1, decay="constant"),
        b1=rule.b1,
        b2=rule.b2,
        eps=rule.eps,
        form=rule.form,
        split=config.sharding.tables,
    )
    return count_usage(freeze_tables(adam, config.training.frozen))


def check_frozen(names: Sequence[str], state: TrainState) -> None:
    """Raises `ValueError` for a name of `training.frozen` that no parameter has."""
    paths = [*flatten(state.params), *flatten(state.tables.values)]
    for name in names:
        if not any(optimizers.is_named(path, [name]) for path in paths):
            raise ValueError(f"training.frozen: given {name!r}, allowed: a part of a parameter's path, as {paths[0]}")


def make_coefficients(attention: configs.Attention) -> dict[str, float]:
    """The coefficients of the model's auxiliary losses, by name (see `make_train_step`)."""
    match attention:
        case configs.Compressive(memory_length=memory, compressed_memory_length=slots) if memory and slots:
            return {LOSSES[attention.loss]: attention.loss_weight} if attention.loss in LOSSES else {}
        case configs.GPT2(compressed_memory_length=slots) if slots:
            return {LOSSES["attention"]: attention.loss_weight}
        case configs.InfinityFormer(num_basis=basis) if basis:
            return {KL: attention.kl_weight}
    return {}


def layer_groups(model: Any) -> tuple[tuple[int, int], ...]:
    """(first layer, number of layers) of the model's groups; () for a model without a stack."""
    return model.stack.groups() if hasattr(model, "stack") else ()


def padding_of(model: Any) -> int:
    """Parameters of the model that are padding of its vocabulary; 0 for a model without one of ours."""
    vocabulary = getattr(model, "vocabulary", None)
    return num_padding(vocabulary) if isinstance(vocabulary, Vocabulary | AdaptiveVocabulary) else 0


def scanned_groups(model: Any) -> tuple[str, ...]:
    """Names of the parameter groups with layers at axis 0."""
    return tuple(f"layers_{first}" for first, size in layer_groups(model) if size)


def split_state(
    state: TrainState, groups: Sequence[tuple[int, int]], run: Callable[..., Any] = lambda function: function
) -> TrainState:
    """The state with parameters, tables, statistics and constants addressed by layer, as checkpoints hold them.

    Args:
      state: arrays, shapes or names.
      groups: from `layer_groups`.
      run: `jax.jit` where arrays are split over devices.
    """
    return _map_collections(state, run(lambda collection: split_collection(collection, groups)))


def join_state(state: TrainState, groups: Sequence[tuple[int, int]]) -> TrainState:
    """The inverse of `split_state`."""
    return _map_collections(state, lambda collection: join_collection(collection, groups))


def split_collection(collection: Any, groups: Sequence[tuple[int, int]]) -> Any:
    """One collection of a language model with its layers addressed by index."""
    if not groups or "stack" not in collection:
        return collection
    return {**collection, "stack": split_layers(collection["stack"], groups)}


def join_collection(collection: Any, groups: Sequence[tuple[int, int]]) -> Any:
    """The inverse of `split_collection`."""
    if not groups or "stack" not in collection:
        return collection
    return {**collection, "stack": join_layers(collection["stack"], groups)}


def init_from(
    run: Path | str, variables: Mapping[str, Any], model: Any, *, reinitialized: Sequence[str] = ()
) -> tuple[dict[str, Any], list[str]]:
    """Starts a model from the newest checkpoint of another run, matching arrays by name and layer index.

    For a model trained without memory that goes on with one, or with another memory size: memory states are not
    parameters, so only what the memory adds keeps its initial values. The matrices of a feed-forward network that a
    memory has replaced are left out. An encoder that goes on with another task begins with what the tasks share: heads
    (`TextEncoder.task_parameters`) that do not fit are left out.

    Args:
      run: a run directory.
      variables: fresh ones of the model, in its own grouping of layers.
      model: the Linen language model.
      reinitialized: parts of the paths of arrays that keep their initial values although the checkpoint has them.

    Returns:
      The variables, and the names of arrays that keep their initial values.

    Raises:
      ValueError: no checkpoint, an array that the model lacks, one of another shape, or a name of `reinitialized` that
        no array has.
    """
    groups = layer_groups(model)
    split = {name: split_collection(collection, groups) for name, collection in variables.items()}
    ours = {COLLECTIONS[name] + path: leaf for name, tree in split.items() for path, leaf in flatten(tree).items()}
    theirs = _load_collections(run)
    for part in reinitialized:
        if not any(optimizers.is_named(name, [part]) for name in theirs):
            allowed = f"a part of a parameter's path, as {next(iter(theirs))}"
            raise ValueError(f"training.reinitialized: given {part!r}, allowed: {allowed}")
    theirs = {name: leaf for name, leaf in theirs.items() if not optimizers.is_named(name, reinitialized)}
    heads = tuple(COLLECTIONS["params"] + name for name in getattr(model, "task_parameters", ()))
    fits = lambda name: name in ours and ours[name].shape == theirs[name].shape
    theirs = {name: leaf for name, leaf in theirs.items() if not name.startswith(heads) or fits(name)}
    replaced = tuple(
        f"params/stack/layer_{index:02d}/feed_forward/{matrix}/"
        for index, layer in enumerate(model.stack.layers if groups else ())
        for matrix in ("wide", "narrow")
        if getattr(layer.feed_forward, "dense_scale", 1) == 0
    )
    unexpected = [name for name in theirs if name not in ours and not name.startswith(replaced)]
    shapes = [
        f"{name} {list(theirs[name].shape)} there and {list(leaf.shape)} here"
        for name, leaf in ours.items()
        if name in theirs and theirs[name].shape != leaf.shape
    ]
    if unexpected or shapes:
        lacks = f"the model lacks {_some(unexpected)}" if unexpected else ""
        raise ValueError(f"init_from: {run} does not fit: {'; '.join(filter(None, [lacks, _some(shapes)]))}")
    merged = {name: jnp.asarray(theirs[name], leaf.dtype) if name in theirs else leaf for name, leaf in ours.items()}
    joined = {}
    for name, tree in split.items():
        prefix = COLLECTIONS[name]
        own = {path.removeprefix(prefix): leaf for path, leaf in merged.items() if path.startswith(prefix)}
        joined[name] = join_collection(unflatten(tree, own), groups)
    return joined, [name for name in ours if name not in theirs]


def load_variables(run: Path | str, model: Any, segment_length: int, step: int | None = None) -> dict[str, Any]:
    """The variables of the newest intact checkpoint of a run.

    Args:
      run: a run directory.
      model: the Linen language model of the run, or one with another memory size.
      segment_length: tokens, as in training.
      step: of another checkpoint.

    Raises:
      ValueError: no checkpoint, or one of another architecture (the line lists the difference).
    """
    groups = layer_groups(model)

    def split() -> dict[str, Any]:
        variables = init_variables(model, jax.random.key(0), segment_length)
        return {name: split_collection(collection, groups) for name, collection in variables.items()}

    shapes = jax.eval_shape(split)
    expected = {COLLECTIONS[n] + path: leaf for n, tree in shapes.items() for path, leaf in flatten(tree).items()}
    theirs = _load_collections(run, step)
    difference = describe_difference(expected, {n: (str(a.dtype), list(a.shape)) for n, a in theirs.items()})
    if difference:
        raise ValueError(f"{run}: the checkpoint is of another architecture: {difference}")
    variables = {}
    for name, tree in shapes.items():
        prefix = COLLECTIONS[name]
        own = {path.removeprefix(prefix): jnp.array(leaf) for path, leaf in theirs.items() if path.startswith(prefix)}
        variables[name] = join_collection(unflatten(tree, own), groups)
    return variables


@dataclasses.dataclass(frozen=True)
class LoadedRun:
    """A run as its directory has it: the experiment and the newest variables."""

    experiment: Experiment
    variables: dict[str, Any]


def load_run(run: Path | str, config: Config | None = None) -> LoadedRun:
    """Opens a run directory for evaluation or generation.

    Args:
      run: the directory.
      config: instead of the one in the directory (another memory size, other documents).
    """
    experiment = make_experiment(load_config(run) if config is None else config)
    variables = load_variables(run, experiment.model, experiment.config.data.segment_length)
    return LoadedRun(experiment, variables)


def checkpoint_steps(run: Path | str) -> list[int]:
    """Steps of the checkpoints that a run has kept, ascending."""
    checkpoints = Checkpoints(Path(run).expanduser() / "checkpoints", read_only=True)
    try:
        return checkpoints.steps()
    finally:
        checkpoints.close()


def _load_collections(run: Path | str, step: int | None = None) -> dict[str, Any]:
    """Name -> array of all collections in a checkpoint, the newest intact one if None; names as there."""
    checkpoints = Checkpoints(Path(run).expanduser() / "checkpoints", read_only=True)
    try:
        return checkpoints.load(tuple(COLLECTIONS.values()), step=step)[1]
    finally:
        checkpoints.close()


def _map_collections(state: TrainState, function: Callable[[Any], Any]) -> TrainState:
    return dataclasses.replace(
        state,
        params=function(state.params),
        tables=dataclasses.replace(state.tables, values=function(state.tables.values)),
        batch_stats=function(state.batch_stats),
        constants=function(state.constants),
    )


def _some(names: Sequence[str], shown: int = 4) -> str:
    return ", ".join(names[:shown]) + (f" and {len(names) - shown} more" if len(names) > shown else "")
