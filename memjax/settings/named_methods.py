"""Methods of lifelong learning by name: what each does, and settings of it that fit the model and tasks of a config.

config = with_method(config, "ewc")  # memjax train --tasks A.csv B.csv --method ewc
config.lifelong.method = make_method_settings("replay", memory=EpisodicMemory(capacity=500))
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from memjax.settings.adapter_methods import OLoRA, TaskAdapters
from memjax.settings.checks import has_field, require
from memjax.settings.generation import LAMOL
from memjax.settings.growth import ELLE, ProgressiveNetwork
from memjax.settings.meta import ANML, MAML, OML, MetaMbPA
from memjax.settings.methods import (
    AGEM,
    EWC,
    GEM,
    MAS,
    SI,
    EpisodicMemory,
    Joint,
    LogitKD,
    LwF,
    MbPA,
    Method,
    Replay,
    Sequential,
    SingleTask,
)
from memjax.settings.named_kinds import NamedKind, NamedKinds, Values
from memjax.settings.overrides import UsageError
from memjax.settings.rehearsal_methods import EAEMR, EMAR, EMR

if TYPE_CHECKING:
    from memjax.config import Config

__all__ = ["METHODS", "NamedMethod", "make_method_settings", "with_method"]

STORED = EpisodicMemory(capacity=1000)
HUNDREDTH = EpisodicMemory(write_policy="diversity", write_probability=0.01, capacity=1000)
EPISODE = {"memory": STORED, "replay_interval": 400, "replay_rate": 0.04, "inner_learning_rate": 0.1}
ADAPTED = {"adapted_parameters": ("head/",), "adaptation_learning_rate": 0.2}
SPARSE = {"replay_interval": 400, "replay_batch_size": 32}


def _key_values(config: Config) -> Values:
    """Returns where the keys of rows come from, and which parameters are adapted, of the model of a config."""
    if config.task.is_generative:
        return {"key_source": "prompt", "adapted_parameters": (f"layers_{config.model.num_layers - 1}",)}
    if config.task.content == "questions":
        return {"key_source": "question"}
    return {} if config.model.reads == "vectors" else {"key_source": "first"}


def _mbpa_values(config: Config) -> Values:
    """Returns values of MbPA for the model of a config: an encoder is adapted as in MbPA++'s paper."""
    encodes = config.task.needs_text_encoder and config.model.reads == "tokens"
    rate = {"adaptation_learning_rate": 5e-3, "adaptation_batch_size": 4} if encodes else {}
    return {**_key_values(config), **rate}


def _meta_mbpa_values(config: Config) -> Values:
    """Returns values of Meta-MbPA for the model of a config: an encoder is adapted as in its paper."""
    encodes = config.task.needs_text_encoder and config.model.reads == "tokens"
    rates = {"inner_learning_rate": 1e-5, "adaptation_learning_rate": 1e-5} if encodes else {}
    return {**_key_values(config), **rates}


def _growth_values(config: Config) -> Values:
    """Returns the widths of a model that grows by one head before every task, at most to twice its width."""
    model, stream = config.model, config.lifelong
    kind = model.attention_kind
    require(model.memory_facts.can_grow, "model", kind, "GPT2, Bidirectional or FullAttention, which grow (elle)")
    assert stream is not None
    head = model.head_dim or model.dim // model.num_heads
    widths = (min(model.dim + number * head, 2 * model.dim) for number in range(1, len(stream.tasks)))
    return {"dim_per_task": tuple(widths), "replay_batch_size": max(1, config.data.batch_size // 4)}


def _take_small_batches(config: Config) -> Config:
    """Returns the config with batches of 4, of which an episode has several."""
    return replace(config, data=replace(config.data, batch_size=min(4, config.data.batch_size)))


def _separate_layers(config: Config) -> Config:
    """Returns the config with a model whose layers are not scanned, so that every one of a column stands alone."""
    scans = has_field(config.model, "scan_layers")
    return replace(config, model=replace(config.model, scan_layers=False)) if scans else config


def _add_adapters(config: Config) -> Config:
    """Returns the config with adapters of rank 8 in all layers where it has none, and a learning rate that does not
    decay, since it starts again with every task.
    """
    training = config.training
    lora = training.lora if training.lora.rank else replace(training.lora, rank=8)
    schedule = replace(training.schedule, decay="constant")
    return replace(config, training=replace(training, lora=lora, schedule=schedule))


def _slow_down(config: Config) -> Config:
    """Returns the config with a warm-up of the learning rate, since the optimiser starts again with every task, and a
    rate of at most 3e-4: a small Transformer at 1e-3 may lose all tasks in the first updates after its growth.
    """
    schedule = config.training.schedule
    rate = min(schedule.learning_rate, 3e-4)
    slower = replace(schedule, learning_rate=rate, warmup_steps=max(schedule.warmup_steps, 40))
    return replace(config, training=replace(config.training, schedule=slower))


def _add_gate(config: Config) -> Config:
    """Returns the config with a gate on the input of the head, whose hidden layer has the width of a text encoder.
    Unchanged for a model that can have no gate.
    """
    model, facts = config.model, config.model.memory_facts
    if not has_field(facts, "gate_dim"):
        return config
    if facts is model:
        gated = replace(model, gate_dim=model.gate_dim or 256)
    else:
        gated = replace(model, attention=replace(facts, gate_dim=facts.gate_dim or model.dim))
    return _take_small_batches(replace(config, model=gated))


def _compare_classes(config: Config, **values: Any) -> Config:
    """Returns the config with a head that compares texts with vectors of classes, where its task can have one."""
    if not config.task.num_classes:
        return config
    return replace(config, task=replace(config.task, **{"similarity": config.task.similarity or "dot", **values}))


def _compare_learned_vectors(config: Config) -> Config:
    """Returns the config with learned vectors of classes and a softmax loss, as EMAR needs them."""
    of_relations = {"relation_vectors": "learned"} if config.task.numbers_relations else {}
    return _compare_classes(config, similarity="dot", margin=0.0, **of_relations)


def _check_tasks(config: Config, name: str) -> Config:
    """Returns the config of a stream of tasks, and raises `UsageError` for another one."""
    if config.lifelong is None:
        allowed = "with --tasks FILES, or a config of tasks, such as lifelong_text"
        raise UsageError(f"--method: given {name} with {config.name}, which has no tasks, allowed: {allowed}")
    return config


def _put_method(config: Config, method: Any) -> Config:
    """Returns the config with another method."""
    assert config.lifelong is not None
    return replace(config, lifelong=replace(config.lifelong, method=method))


@dataclass(frozen=True)
class NamedMethod(NamedKind):
    """A method of lifelong learning that has a name.

    Attributes:
      base: Name and variant of the config that labelled files get with this method.
    """

    put: Callable[[Config, Any], Config] = field(default=_put_method, kw_only=True)
    base: tuple[str, str] = ("lifelong_text", "bag_hidden")


_ENTRIES = {
    "sequential": NamedMethod("plain training, one task after the other", Sequential, {}),
    "single_task": NamedMethod("every task alone, from the initial parameters", SingleTask, {}),
    "multi_task": NamedMethod("all tasks shuffled together", Joint, {}),
    "replay": NamedMethod("experience replay: stored examples beside new ones", Replay, {"memory": STORED}),
    "agem": NamedMethod(
        "A-GEM: no update against the gradient of stored examples",
        AGEM,
        {"memory": STORED, "reference_batch_size": 100},
    ),
    "gem": NamedMethod("GEM: no update against the gradient of any earlier task", GEM, {"examples_per_task": 50}),
    "ewc": NamedMethod(
        "elastic weight consolidation: parameters that matter to earlier tasks are held", EWC, {"penalty_weight": 1e4}
    ),
    "mas": NamedMethod(
        "memory aware synapses: parameters that the outputs depend on are held", MAS, {"penalty_weight": 0.1}
    ),
    "si": NamedMethod(
        "synaptic intelligence: parameters that have reduced the loss are held", SI, {"penalty_weight": 100.0}
    ),
    "lwf": NamedMethod(
        "learning without forgetting: the model before the task is a teacher", LwF, {"distillation_weight": 0.3}
    ),
    "logit_kd": NamedMethod(
        "experience replay with the model before the task as teacher",
        LogitKD,
        {"memory": STORED, "distillation_weight": 3.0},
    ),
    "mbpa": NamedMethod(
        "MbPA: answers with parameters adapted to stored neighbours, without replay",
        MbPA,
        {"memory": STORED, "replay_interval": 0, "neighbor_weighting": "inverse_distance", **ADAPTED},
        _mbpa_values,
    ),
    "mbpa_pp": NamedMethod(
        "MbPA++: sparse replay, and parameters adapted to stored neighbours",
        MbPA,
        {"memory": STORED, **SPARSE, **ADAPTED},
        _mbpa_values,
    ),
    "meta_mbpa": NamedMethod(
        "Meta-MbPA: trained for the loss after an adaptation to a hundredth of the examples",
        MetaMbPA,
        {"memory": HUNDREDTH, **SPARSE, **ADAPTED, "inner_learning_rate": 0.1, "adaptation_learning_rate": 0.1},
        _meta_mbpa_values,
    ),
    "oml": NamedMethod(
        "OML-ER: an encoder is trained so that the head adapts quickly", OML, EPISODE, prepare=_take_small_batches
    ),
    "anml": NamedMethod(
        "ANML-ER: a gate is trained so that all other parameters adapt quickly",
        ANML,
        EPISODE,
        prepare=_add_gate,
    ),
    "maml": NamedMethod(
        "MAML-ER: all parameters are trained to adapt quickly", MAML, EPISODE, prepare=_take_small_batches
    ),
    "emr": NamedMethod(
        "EMR: before each batch, an update on stored examples of an earlier task", EMR, {}, prepare=_compare_classes
    ),
    "ea_emr": NamedMethod(
        "EA-EMR: EMR, and a linear map that restores earlier embeddings", EAEMR, {}, prepare=_compare_classes
    ),
    "emar": NamedMethod(
        "EMAR: after each task, training against prototypes of classes", EMAR, {}, prepare=_compare_learned_vectors
    ),
    "elle": NamedMethod(
        "ELLE: the model becomes wider before every task, and replays",
        ELLE,
        {"memory": STORED, "recovery_steps": 30},
        _growth_values,
        _slow_down,
        base=("lifelong_text", "small"),
    ),
    "progressive": NamedMethod(
        "progressive network: a column of layers for every task, which must be known",
        ProgressiveNetwork,
        {},
        prepare=_separate_layers,
    ),
    "task_adapters": NamedMethod(
        "one adapter a task: adapters (LoRA) and a head for every task, which must be known",
        TaskAdapters,
        {},
        prepare=_add_adapters,
        base=("lifelong_text", "small"),
    ),
    "o_lora": NamedMethod(
        "O-LoRA: new adapters (LoRA) for every task, orthogonal to those of earlier tasks",
        OLoRA,
        {},
        prepare=_add_adapters,
        base=("lifelong_text", "small"),
    ),
    "lamol": NamedMethod(
        "LAMOL: a language model learns tasks as text, and replays texts that it writes",
        LAMOL,
        {"replay_batch_size": 2},
        base=("lifelong_lamol", "default"),
    ),
}
METHODS = NamedKinds(
    _ENTRIES,
    option="--method",
    about="Methods for tasks that are learned one after the other, by name.",
    usage="name of the method that takes the place of the config's, for tasks",
    without=_check_tasks,
    make_entry=NamedMethod,
    base=Method,
)
"""name of a method, as `--method` takes it -> the method"""
make_method_settings, with_method = METHODS.make_settings, METHODS.replace_in
