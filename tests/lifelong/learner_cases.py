"""One `Case` for each method of lifelong learning, on a stream of three small tasks, and a loop without a directory.

A new method is one more case. `learner_laws_test.py` checks every case against every law.
"""

import dataclasses
from collections import Counter
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from memjax.config import (
    AGEM,
    ANML,
    EAEMR,
    ELLE,
    EMAR,
    EMR,
    EWC,
    GEM,
    GPT2,
    LAMOL,
    MAML,
    MAS,
    OML,
    SGD,
    SI,
    Blobs,
    Bytes,
    Classification,
    Config,
    Data,
    Dense,
    EpisodicMemory,
    Evaluation,
    Instructions,
    Joint,
    Lifelong,
    LogitKD,
    LwF,
    MbPA,
    MetaMbPA,
    Model,
    Perceptron,
    ProgressiveNetwork,
    Replay,
    Schedule,
    Sequential,
    SingleTask,
    TaskData,
    ToyInstructions,
    Training,
)
from memjax.lifelong.factory import make_learner_and_stages
from memjax.lifelong.memory_backends import EPISODES, HostExchange
from memjax.training.compiled_learner import CompiledLearner
from memjax.training.experiment import make_experiment
from memjax.training.stages import PhaseContext, phase_key
from memjax.training.update_functions import make_objective

ROWS, SIZE, TASKS, DIM, CAPACITY = 4, 10, 3, 6, 12
"""Rows of a batch, examples of a task (the last batch is partial), tasks, width of an example, rows of a memory."""
MEMORY = EpisodicMemory(capacity=CAPACITY)
ALL = EpisodicMemory(write_policy="all", capacity=40)
EPISODE: dict[str, Any] = {
    "memory": ALL,
    "replay_interval": 8,
    "replay_rate": 0.5,
    "inner_steps": 1,
    "inner_learning_rate": 0.1,
}
"""Settings of OML-ER and related methods. Every second episode replays."""
NEAR: dict[str, Any] = {
    "memory": ALL,
    "replay_interval": 8,
    "replay_batch_size": 4,
    "num_neighbors": 4,
    "inner_learning_rate": 0.1,
}
NEAR |= {"adaptation_steps": 2, "adaptation_learning_rate": 0.1}


RANKED: dict[str, Any] = {"similarity": "cosine", "margin": 0.5}
HEADS: dict[type, dict[str, Any]] = {EMAR: {"similarity": "dot"}, EMR: RANKED, EAEMR: RANKED}
"""Fields of the task for methods that compare by similarity, by class of the method."""


class Case(NamedTuple):
    """A method that the laws check.

    Attributes:
      name: Name of the case.
      method: Settings of the method.
    """

    name: str
    method: Any


RECOVERS: dict[str, Any] = {"memory": MEMORY, "replay_batch_size": 2, "recovery_steps": 2, "recovery_batch_size": 4}
CASES = [
    Case("sequential", Sequential()),
    Case("single_task", SingleTask()),
    Case("multi_task", Joint()),
    Case("cumulative", Joint(schedule="cumulative")),
    Case("joint_anew", Joint(schedule="anew")),
    Case("replay", Replay(memory=MEMORY, replay_batch_size=4)),
    Case("replay_sparse", Replay(memory=ALL, mode="sparse", replay_interval=8, replay_batch_size=4)),
    Case(
        "replay_balanced",
        Replay(memory=EpisodicMemory(capacity=CAPACITY, write_policy="balanced"), replay_batch_size=4),
    ),
    Case(
        "replay_uncertain",
        Replay(memory=EpisodicMemory(capacity=CAPACITY, write_policy="uncertainty"), replay_batch_size=4),
    ),
    Case(
        "replay_forgettable",
        Replay(memory=EpisodicMemory(capacity=CAPACITY, write_policy="forgettable"), replay_batch_size=4),
    ),
    Case("agem", AGEM(memory=MEMORY, reference_batch_size=8)),
    Case("agem_sparse", AGEM(memory=MEMORY, reference_batch_size=8, projection_interval=8)),
    Case("agem_all", AGEM(memory=MEMORY, reference_batch_size=8, reference_tasks="all")),
    Case("gem", GEM(examples_per_task=4)),
    Case("ewc", EWC(penalty_weight=5.0, fisher_batches=2)),
    Case("ewc_online", EWC(penalty_weight=5.0, fisher_batches=2, consolidation="online", decay=0.5)),
    Case("ewc_true", EWC(penalty_weight=5.0, fisher_batches=2, fisher_estimate="true")),
    Case("mas", MAS(penalty_weight=0.5, importance_batches=2)),
    Case("si", SI(penalty_weight=1.0)),
    Case("lwf", LwF(distillation_weight=1.0)),
    Case("logit_kd", LogitKD(memory=MEMORY, replay_batch_size=4)),
    Case("logit_kd_annealed", LogitKD(memory=MEMORY, replay_batch_size=4, anneal_weight=True)),
    Case(
        "mbpa_pp",
        MbPA(
            memory=ALL,
            replay_interval=8,
            replay_batch_size=4,
            num_neighbors=4,
            adaptation_steps=2,
            adaptation_learning_rate=0.1,
        ),
    ),
    Case(
        "mbpa",
        MbPA(
            memory=ALL,
            replay_interval=0,
            num_neighbors=4,
            adaptation_steps=2,
            adaptation_learning_rate=0.1,
            neighbor_weighting="inverse_distance",
        ),
    ),
    Case(
        "mbpa_random",
        MbPA(
            memory=ALL,
            replay_interval=8,
            replay_batch_size=4,
            neighbor_choice="random",
            num_neighbors=4,
            adaptation_steps=2,
        ),
    ),
    Case("replay_host", Replay(memory=dataclasses.replace(MEMORY, storage="host"), replay_batch_size=4)),
    Case(
        "mbpa_host",
        MbPA(
            memory=dataclasses.replace(ALL, storage="host"),
            replay_interval=8,
            replay_batch_size=4,
            num_neighbors=4,
            adaptation_steps=2,
        ),
    ),
    Case(
        "mbpa_first",
        MbPA(
            memory=ALL, replay_interval=8, replay_batch_size=4, key_source="first", num_neighbors=4, adaptation_steps=2
        ),
    ),
    Case("oml", OML(**EPISODE)),
    Case("oml_second", OML(**EPISODE, first_order=False, last_episode="kept", replay_loss_reduction="sum")),
    Case("oml_host", OML(**{**EPISODE, "memory": dataclasses.replace(ALL, storage="host")})),
    Case("anml", ANML(**EPISODE)),
    Case("maml", MAML(**EPISODE)),
    Case("maml_second", MAML(**EPISODE, first_order=False)),
    Case("meta_mbpa", MetaMbPA(**NEAR)),
    Case("meta_mbpa_second", MetaMbPA(**NEAR, first_order=False, inner_steps=2, adaptation_scope="per_batch")),
    Case("meta_mbpa_rows", MetaMbPA(**NEAR, share_neighborhood=False, adaptation_scope="per_example")),
    Case(
        "meta_mbpa_diverse",
        MetaMbPA(
            **{**NEAR, "memory": EpisodicMemory(write_policy="diversity", write_probability=0.5, capacity=CAPACITY)}
        ),
    ),
    Case("emar", EMAR(examples_per_task=4, reconsolidation_batch_size=3, instances_per_class=2)),
    Case("emar_flat", EMAR(examples_per_task=4, example_selection="flat", instances_per_class=0, reset_optimizer=True)),
    Case("emr", EMR(examples_per_task=4)),
    Case("ea_emr", EAEMR(examples_per_task=4, alignment_epochs=2, alignment_learning_rate=1e-3)),
    Case("lamol", LAMOL(sample_ratio=0.4, replay_batch_size=2, capacity=8, generation_batch_size=4)),
    Case(
        "lamol_real",
        LAMOL(sample_ratio=0.4, replay_batch_size=2, capacity=8, sample_source="real", generation_token="shared"),
    ),
    Case("elle", ELLE(**RECOVERS)),
    Case("elle_grown", ELLE(dim_per_task=(12, 12), **RECOVERS)),
    Case("pnn", ProgressiveNetwork()),
]
CHANGES = ("copy", "reverse", "sort")
CASE = {case.name: case for case in CASES}


def config_of(method: Any, *, tasks: int = TASKS, epochs: int = 1, **fields: Any) -> Config:
    """Makes the configuration of a stream of clouds of points, with two new classes in every task and one head.

    LAMOL, and methods whose model becomes wider, get a stream of letters to be changed. See `texts_of`.

    Args:
      method: Settings of the method.
      tasks: Number of tasks.
      epochs: Number of passes over a task.
      **fields: Further fields of `Lifelong`. `training` is a dict of fields of `Training`.
    """
    if isinstance(method, LAMOL) or getattr(method, "dim_per_task", ()):
        return texts_of(method, tasks=tasks, epochs=epochs, **fields)
    source = lambda i: Blobs(classes=(2 * i, 2 * i + 1), num_classes=2 * TASKS, dim=DIM, num_train=SIZE, num_test=8)
    training = {
        "steps": 8,
        "optimizer": SGD(),
        "clip_norm": 0.0,
        "schedule": Schedule(learning_rate=0.2, warmup_steps=0, decay="constant"),
        "log_every": 0,
    }
    return Config(
        name="run",
        model=Perceptron(widths=(5,), dropout=0.1, gate_dim=4 if isinstance(method, ANML) else 0),
        task=Classification(num_classes=2 * TASKS, **HEADS.get(type(method), {})),
        data=Data(source=source(0), batch_size=ROWS, segment_length=DIM),
        training=Training(**{**training, **fields.pop("training", {})}),
        evaluation=Evaluation(batch_size=4, split="test", compute_accuracy=True),
        lifelong=Lifelong(
            method=method,
            tasks=tuple(TaskData(name=f"task {i}", source=source(i)) for i in range(tasks)),
            epochs=epochs,
            **fields,
        ),
    )


def texts_of(method: Any, *, tasks: int, epochs: int, **fields: Any) -> Config:
    """Makes the configuration of a stream of letters to be copied, reversed and sorted. See `config_of`."""
    toys = [ToyInstructions(change=change, num_examples=SIZE) for change in CHANGES[:tasks]]
    schedule = Schedule(learning_rate=1e-2, warmup_steps=0, decay="constant")
    return Config(
        name="run",
        model=Model(
            dim=8,
            num_layers=1,
            num_heads=2,
            scale_embeddings=False,
            attention=GPT2(num_positions=16),
            feed_forward=Dense(dim=16, activation="gelu"),
        ),
        task=Instructions(max_tasks=TASKS, max_answer_length=4),
        data=Data(source=toys[0], tokenizer=Bytes(), batch_size=ROWS, segment_length=16),
        training=Training(**{"schedule": schedule, "log_every": 0, **fields.pop("training", {})}),
        evaluation=Evaluation(batch_size=1, split="test", max_answers=1),
        lifelong=Lifelong(
            method=method,
            tasks=tuple(TaskData(name=f"task {i}", source=toy) for i, toy in enumerate(toys)),
            epochs=epochs,
            **fields,
        ),
    )


@dataclasses.dataclass
class Played:
    """A stream that has been played: the learner, its state and all updates.

    Attributes:
      learner: Learner of the last generation.
      places: The learner, compiled.
      state: State after the last stage.
      updates: Kind and batch of every update.
      sums: Sums that each update returned.
      traced: Number of traces of each kind of update, for each generation of the learner.
      lineage: Growth steps of the model.
      begun: State before the updates of each stage.
    """

    learner: Any
    places: CompiledLearner
    state: Any
    updates: list[tuple[str, Any]]
    sums: list[dict[str, Any]]
    traced: list[Counter]
    lineage: Any = ()
    begun: Any = ()


def play(
    config: Config,
    *,
    change: Any = lambda batch: batch,
    stages: int | None = None,
    start: Any = None,
    layout: Any = None,
    float64: bool = False,
) -> Played:
    """Runs a stream as the training loop does, without a directory.

    Args:
      config: Configuration of a stream.
      change: Function that changes every batch before the learner reads it.
      stages: Number of stages to run. None = all.
      start: Variables to start from. None for fresh ones.
      layout: Shardings of arrays over several devices, whose mesh is active. None on a single device.
      float64: Whether to compute in float64, parameters included. JAX must have it switched on.
    """
    experiment, cast = make_experiment(config), lambda leaf: leaf
    if float64:
        experiment = dataclasses.replace(experiment, model=as_float64(experiment.model))
        cast = lambda leaf: leaf if leaf.dtype == bool else leaf.astype(jnp.float64)
    make_learner, course = make_learner_and_stages(experiment, layout, make_objective)

    def generation(lineage: Any) -> tuple[Any, CompiledLearner, Counter]:
        plain, traced = make_learner(lineage), Counter()
        learner = plain._replace(make_variables=lambda: jax.tree.map(cast, plain.make_variables()))

        def count_traces(kind: str) -> Any:
            def update(state: Any, batch: Any) -> Any:
                traced[kind] += 1
                return learner.updates[kind](state, batch)

            return update

        updates = {kind: count_traces(kind) for kind in learner.updates}
        return learner, CompiledLearner(layout, learner._replace(updates=updates)), traced

    learner, places, traced = generation(())
    state = places.init(places.new_variables() if start is None else start)
    played, grows = Played(learner, places, state, [], [], [traced]), isinstance(config.lifelong.method, ELLE)
    for number, stage in enumerate(course[:stages]):

        def data(stage: Any = stage) -> Any:
            return map(played.places.put_update, stage.open_stream(played.state, None))

        # A run has the same keys, and so the same copies in growth.
        seed = config.training.seed
        key = phase_key(seed, number, "before") if grows else jax.random.fold_in(jax.random.key(0), number)
        context = PhaseContext(key, data, played.lineage, lambda: None, lambda line: None, layout)
        begun = stage.before(played.state, context)
        if grown := begun.lineage != played.lineage:
            played.lineage, (played.learner, places, traced) = begun.lineage, generation(begun.lineage)
            played.places, played.traced = places, [*played.traced, traced]
        played.state = places.adopt_state(begun.state, grown=grown)
        played.begun = (*played.begun, jax.tree.map(jnp.copy, played.state))
        for kind, batch in stage.open_stream(played.state, None):
            changed = None if batch is None else change(batch)
            played.updates.append((kind, changed))
            played.state, sums = places.update_inlined(played.state, places.put_update((kind, changed)))
            played.sums.append(sums)
        context = context._replace(lineage=played.lineage)
        played.state = places.adopt_state(stage.after(played.state, context).state, grown=False)
    return played


def as_float64(model: Any) -> Any:
    """Returns a perceptron that computes in float64."""
    gate = model.gate and model.gate.clone(dtype=jnp.float64)
    return model.clone(dtype=jnp.float64, head=model.head.clone(dtype=jnp.float64), gate=gate)


def flat(tree: Any) -> np.ndarray:
    """Returns all numbers of a tree in one float64 array, one leaf after the other."""
    return np.concatenate([np.ravel(np.asarray(leaf, np.float64)) for leaf in jax.tree.leaves(tree)])


def arrays(tree: Any) -> list[np.ndarray]:
    """Returns the leaves of a tree as arrays. Random keys become their numbers."""
    is_key = lambda leaf: jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
    return [np.asarray(jax.random.key_data(leaf) if is_key(leaf) else leaf) for leaf in jax.tree.leaves(tree)]


def assert_equal(first: Any, second: Any) -> None:
    """Asserts that two trees have equal numbers, bit for bit."""
    for a, b in zip(arrays(first), arrays(second), strict=True):
        np.testing.assert_array_equal(a, b)


def memory_of(played: Played) -> Any:
    """Returns the episodic memory at the end of a stream, or None if the method has none."""
    memory = played.state.method.get(EPISODES)
    return played.learner.host_arrays.arrays.__self__ if isinstance(memory, HostExchange) else memory
