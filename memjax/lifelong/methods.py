"""The methods that are compositions of few rules: lower and upper bounds, replay, projected gradients, penalties,
distillation. Each function has the fields of its settings (`memjax.settings.methods`), which say what they mean.

Penalties and distillation hold a model near what it was: they were published for streams whose tasks share one solution
or have heads of their own. In one head for classes that come one task after the other they forget as plain training
does (van de Ven and Tolias 2019, https://arxiv.org/abs/1904.07734); replay does not.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterator
from typing import Any, Literal

import jax
import jax.numpy as jnp

from memjax.config import EpisodicMemory
from memjax.lifelong import penalties, policies, projection
from memjax.lifelong.compose import Replayed, Rule, compose, rows_of
from memjax.lifelong.contract import Method, TaskInfo
from memjax.lifelong.episodes import Episodes, purpose_key
from memjax.lifelong.spans import share_done
from memjax.models.heads import CLASSES
from memjax.training.assembly import make_parts
from memjax.training.objective import Objective, model_loss, read_segment, with_distillation, with_penalty
from memjax.training.stages import Context, Needs
from memjax.training.step import TrainState, model_variables
from memjax.typing import Batch

__all__ = [
    "agem",
    "episodes",
    "ewc",
    "gem",
    "joint",
    "logit_kd",
    "lwf",
    "mas",
    "replay",
    "sequential",
    "si",
    "single_task",
]

TOLD_BORDERS = Needs(boundaries=True)


def sequential() -> Method:
    """Nothing is done against forgetting."""
    return compose()


def single_task() -> Method:
    """Every task begins with the parameters that training began with."""
    return compose(anew())


def joint(*, stages: Literal["one", "cumulative", "anew"] = "one") -> Method:
    """The examples of all tasks, or of all tasks so far, shuffled together."""
    match stages:
        case "one":
            return compose(scope="all")
        case "cumulative":
            return compose(scope="seen")
        case "anew":
            return compose(anew(), scope="seen")


def replay(
    *,
    memory: EpisodicMemory,
    mode: Literal["sparse", "mixed"],
    every: int,
    rows: int,
    replace: bool,
    compared: Literal["seen", "batch"] = "seen",
) -> Method:
    """Rows of the memory are learned again."""
    replayed = Replayed(rows, mode, every if mode == "sparse" else 0, replace)
    rules = [Rule("compared", stream=compare_with_batch)] if compared == "batch" else []
    return compose(*rules, memory=episodes(memory), replay=replayed)


def compare_with_batch(objective: Objective, model: Any) -> Objective:
    """Returns an objective whose softmax over the classes has only the classes of the batch (ER-ACE).

    A batch with targets `[batch, 1]` gets the extra `CLASSES`, `[batch, classes]`: true for every class that a target
    with a weight above 0 has, and the same in every row. Where the batch has the extra already, both must allow a
    class.

    Caccia, Aljundi, Asadi, Tuytelaars, Pineau and Belilovsky, "New Insights on Reducing Abrupt Representation Change in
    Online Continual Learning", ICLR 2022, https://arxiv.org/abs/2104.05025.

    Differs from the paper or its code: with `training.accumulate` the classes are those of a group of rows.

    Args:
      objective: Objective of the update.
      model: Model with a head of classes.

    Raises:
      ValueError: A model without a head of classes.
    """
    count = model.num_classes()
    if not count:
        allowed = "'seen', or a model with a head of classes"
        raise ValueError(f"lifelong.method.compared: given 'batch' with {type(model).__name__}, allowed: {allowed}")

    def loss(variables: Any, memory: Any, segment: Batch, key: Any) -> Any:
        labels = jnp.where(segment.weights > 0, segment.targets, count)
        present = jnp.zeros(count, bool).at[labels.reshape(-1)].set(True, mode="drop")
        allowed = jnp.broadcast_to(present, (len(segment.targets), count)) & segment.extras.get(CLASSES, True)
        segment = dataclasses.replace(segment, extras={**segment.extras, CLASSES: allowed})
        return objective.loss(variables, memory, segment, key)

    return objective._replace(loss=loss)


def agem(*, memory: EpisodicMemory, rows: int, every: int) -> Method:
    """No update against the gradient of rows from the memory."""
    rule = Rule("agem", link=projection.agem())
    return compose(rule, memory=episodes(memory), replay=Replayed(rows, "reference", every))


def gem(*, rows: int, margin: float, epsilon: float, stored: bool) -> Method:
    """No update against the gradient of the rows of any earlier task; the memory is shared equally by the tasks."""
    link = projection.gem(margin=margin, epsilon=epsilon, stored=stored)
    rule = Rule("gem", link=link, needs=Needs(tasks_in_training=True))
    of_tasks: dict[str, Any] = {"groups": "task", "of_each_task": True, "setting": "lifelong.method.rows"}
    memory = Episodes(rows, policies.balanced_reservoir(), **of_tasks)
    return compose(rule, memory=memory, replay=Replayed(rows, "tasks"))


def ewc(
    *,
    weight: float = 1.0,
    fisher: Literal["example", "batch", "true"] = "example",
    batches: int = 32,
    form: Literal["separate", "online"] = "separate",
    decay: float = 1.0,
) -> Method:
    """A quadratic penalty around what earlier tasks left, weighed by the Fisher information of their data.

    Differs from the papers or their code: the information is of rows read from an empty memory, of the mean over a
    row's targets. Tables, which have no dense gradient, are not consolidated.
    """

    def importance(model: Any, state: TrainState, batch: Batch, key: Any) -> tuple[Any, Any]:
        likelihood, log_probs = row_functions(model, state)
        rows, there = rows_and_weights(batch)
        named: dict[str, Any] = {"log_probs": log_probs, "key": key} if fisher == "true" else {}
        labels = rows.targets
        return penalties.fisher(likelihood, state.params, rows, labels, kind=fisher, weights=there, **named)

    online = decay if form == "online" else None
    return compose(consolidating("ewc", weight, importance, batches, lambda first: {"decay": online}))


def mas(
    *,
    weight: float = 1.0,
    flavour: Literal["example", "batch"] = "example",
    batches: int = 32,
    alpha: float | None = None,
) -> Method:
    """The penalty weighed by how much the outputs depend on a parameter.

    Differs from the paper: it has no 1/2 in its penalty, so that its lambda is half of `weight`.
    """

    def importance(model: Any, state: TrainState, batch: Batch, key: Any) -> tuple[Any, Any]:
        del key
        rows, there = rows_and_weights(batch)
        outputs = lambda params, row: output_of(model, state, params, row)
        return penalties.sensitivity(outputs, state.params, rows, kind=flavour, weights=there)

    def how(first: bool) -> dict[str, float]:
        return {"decay": 1.0} if alpha is None else {"decay": alpha, "share": 1.0 if first else 1 - alpha}

    return compose(consolidating("mas", weight, importance, batches, how))


def si(*, weight: float = 1.0, damping: float = 0.1) -> Method:
    """The penalty weighed by what a parameter has contributed to the fall of the loss.

    Differs from the paper: it has no 1/2 in its penalty, so that its c is half of `weight`.
    """

    def init(params: Any) -> dict[str, Any]:
        copy = jax.tree.map(jnp.copy, params)
        kept = {"weight": jnp.asarray(weight, jnp.float32), "around": penalties.init_consolidated(params)}
        return {**kept, "path": penalties.init_path(params), "start": copy}

    def gather(kept: Any, before: Any, after: Any, gradients: Any) -> Any:
        # The task's own gradient: without that of the penalty, which would count as progress.
        pull = jax.grad(lambda params: kept["weight"] * penalties.quadratic_penalty(params, kept["around"]))(before)
        own = jax.tree.map(lambda gradient, part: gradient - part, gradients, pull)
        return {**kept, "path": penalties.accumulate_path(kept["path"], before, after, own)}

    @jax.jit
    def consolidated(state: TrainState) -> Any:
        kept, params = state.method["si"], state.params
        found = penalties.path_importance(kept["path"], kept["start"], params, damping=damping)
        around = penalties.consolidate(kept["around"], found, params, decay=1.0)
        path, start = penalties.init_path(params), jax.tree.map(jnp.copy, params)
        return {**kept, "around": around, "path": path, "start": start}

    def after(state: TrainState, context: Context, task: TaskInfo) -> TrainState:
        del context, task
        return with_kept(state, "si", consolidated(state))

    laid = penalised("si")
    rule = Rule("si", init, laid, laid, after_update=gather, after=after, needs=TOLD_BORDERS)
    return compose(rule)


def lwf(*, weight: float = 1.0, temperature: float = 2.0) -> Method:
    """The model before the task teaches on the task's inputs.

    Differs from the paper: one head for all classes, with a temperature of its own; before the first task nobody
    teaches. The divergence is over all classes of the head, of which those that nobody has seen count little.
    """
    return compose(taught("lwf", weight, temperature, stream=True))


def logit_kd(
    *, memory: EpisodicMemory, rows: int, weight: float = 1.0, temperature: float = 2.0, annealed: bool = False
) -> Method:
    """Replay, with the model before the task as teacher of the replayed rows."""
    rule = taught("logit_kd", weight, temperature, stream=False, annealed=annealed)
    return compose(rule, memory=episodes(memory), replay=Replayed(rows, "mixed"))


def episodes(settings: EpisodicMemory, *, keys: Any = None) -> Episodes:
    """The memory that settings describe.

    Args:
      settings: of the memory.
      keys: as in `Episodes`.

    Raises:
      ValueError: a policy that compares keys, for a memory without.
    """
    scores, again, metrics = None, None, {}
    match settings.policy:
        case "all":
            policy = policies.write_all(settings.full)
        case "random":
            policy = policies.random_write(settings.probability, settings.full)
        case "reservoir":
            policy = policies.reservoir()
        case "priority":
            policy = policies.priority_reservoir()
        case "balanced":
            policy = policies.balanced_reservoir()
        case "uncertainty":
            policy, scores = policies.uncertain(), uncertainty
        case "forgettable":
            policy, again = policies.forgettable(), answered
        case "diversity":
            if keys is None:
                raise ValueError(
                    "lifelong.method.memory.policy: given 'diversity', allowed: another one, or MbPA (it has keys)"
                )
            signs, relative = {"unlike": 1, "like": -1}, settings.unit == "median"
            how: dict[str, Any] = {"sign": signs[settings.sign], "relative": relative, "full": settings.full}
            policy = policies.diverse(settings.probability, settings.temperature, **how)
            if settings.place == "device":
                given = settings.probability, settings.temperature
                metrics = {"odds_of_writing": policies.spread_of_odds(*given, relative=relative)}
    found = Episodes(settings.capacity, policy, keys, settings.groups, scores, again, metrics)
    written = {"all": 1.0, "random": settings.probability}.get(settings.policy, 0.0)
    found = found._replace(written=written, drops=settings.full == "drop")
    return found._replace(place=settings.place, index=settings.index)


# Rules


def anew() -> Rule:
    """Before each task but the first, the parameters that training began with, and an optimiser at its beginning."""

    def before(state: TrainState, context: Context, task: TaskInfo) -> TrainState:
        del context
        if task.index == 0:
            return state
        start = jax.tree.map(jnp.copy, state.method["anew"])
        optimizer = make_parts(task.experiment.config, task.experiment.model).optimizer
        return dataclasses.replace(state, params=start, opt_state=optimizer.init(start))

    return Rule("anew", lambda params: jax.tree.map(jnp.copy, params), before=before, needs=TOLD_BORDERS)


def penalised(name: str) -> Callable[[Objective, Any], Objective]:
    """Lays over an objective the penalty around what is kept under this name; its strength is kept beside it."""

    def penalty(params: Any, method: Any) -> Any:
        kept = method[name]
        return kept["weight"] * penalties.quadratic_penalty(params, kept["around"])

    def lay(objective: Objective, model: Any) -> Objective:
        del model
        called = f"{name}/penalty"
        loss = with_penalty(objective.loss, called, penalty)
        return objective._replace(loss=loss, coefficients={**objective.coefficients, called: 1.0})

    return lay


def consolidating(
    name: str,
    weight: float,
    importance: Callable[[Any, TrainState, Batch, Any], tuple[Any, Any]],
    batches: int,
    how: Callable[[bool], dict[str, Any]],
) -> Rule:
    """A penalty whose importances are measured on the task's data after it.

    Args:
      name: of what is kept.
      weight: of the penalty.
      importance: `importance(model, state, batch, key) -> (sums, their weight)`.
      batches: of the task's data, from its beginning.
      how: `how(first task?)`, arguments of `penalties.consolidate`.
    """

    def init(params: Any) -> dict[str, Any]:
        return {"weight": jnp.asarray(weight, jnp.float32), "around": penalties.init_consolidated(params)}

    def after(state: TrainState, context: Context, task: TaskInfo) -> TrainState:
        model = task.experiment.model
        measured, sums = jax.jit(lambda state, batch, key: importance(model, state, batch, key)), None
        for number, batch in enumerate(itertools.islice(read(context), batches)):
            context.stop()
            more = measured(state, batch, purpose_key(context.key, "importance", number))
            sums = more if sums is None else jax.tree.map(jnp.add, sums, more)
        assert sums is not None
        information = jax.tree.map(lambda leaf: leaf / jnp.maximum(sums[1], 1), sums[0])
        kept = state.method[name]
        around = jax.jit(lambda *given: penalties.consolidate(*given, **how(task.index == 0)))(
            kept["around"], information, state.params
        )
        context.report(f"{name}: consolidated after task {task.index}, from {int(sums[1])} gradients")
        return with_kept(state, name, {**kept, "around": around})

    laid = penalised(name)
    return Rule(name, init, laid, laid, after=after, needs=TOLD_BORDERS)


def taught(name: str, weight: float, temperature: float, *, stream: bool, annealed: bool = False) -> Rule:
    """The model before a task teaches the rows of the stream, or those that are replayed; not in the first task.

    Where it is annealed, its weight falls to nothing in the course of a stage.
    """
    called = f"{name}/divergence"

    def init(params: Any) -> dict[str, Any]:
        return {"weight": jnp.zeros((), jnp.float32), "teacher": jax.tree.map(jnp.copy, params)}

    def teacher(method: Any) -> Any:
        return {"params": method[name]["teacher"]}

    def lay(objective: Objective, model: Any) -> Objective:
        distilled = with_distillation(model_loss(model, output=True), called, model, teacher, temperature=temperature)

        def weighed(variables: Any, memory: Any, segment: Batch, key: Any) -> Any:
            memory, batch_stats, nll, aux = distilled(variables, memory, segment, key)
            share, divergence = variables["method"][name]["weight"], aux.losses[called]
            share = share * (1 - share_done(variables["method"])) if annealed else share
            losses = {**aux.losses, called: dataclasses.replace(divergence, total=share * divergence.total)}
            return memory, batch_stats, nll, dataclasses.replace(aux, losses=losses)

        return objective._replace(loss=weighed, coefficients={**objective.coefficients, called: 1.0})

    def before(state: TrainState, context: Context, task: TaskInfo) -> TrainState:
        del context
        strength = jnp.asarray(weight if task.index else 0.0, jnp.float32)
        return with_kept(state, name, {"weight": strength, "teacher": jax.tree.map(jnp.copy, state.params)})

    laid: dict[str, Any] = {"stream": lay} if stream else {"memory": lay}
    return Rule(name, init, **laid, before=before, needs=TOLD_BORDERS, counts=annealed)


# What rules ask of a model


def uncertainty(model: Any, variables: Any, method: Any, rows: Batch) -> Any:
    """1 less the probability of the most probable class, `[rows]`."""
    del method
    output = read_segment(model, variables, model.init_state(rows.inputs.shape[0]), rows, deterministic=True)[0]
    log_probs = model.apply(variables, output, method="log_probs")
    return 1 - jnp.exp(jnp.max(log_probs, axis=-1))[:, 0]


def answered(model: Any, variables: Any, method: Any, rows: Batch) -> Any:
    """Whether the most probable choice is the target, of all targets of a row: bool `[rows]`."""
    del method
    output = read_segment(model, variables, model.init_state(rows.inputs.shape[0]), rows, deterministic=True)[0]
    found = jnp.argmax(model.apply(variables, output, method="log_probs"), axis=-1)
    return jnp.all((found == rows.targets) | (rows.weights == 0), axis=-1)


def with_kept(state: TrainState, name: str, kept: Any) -> TrainState:
    """The state with other things kept under a name."""
    return dataclasses.replace(state, method={**state.method, name: kept})


def read(context: Context) -> Iterator[Batch]:
    """The batches of a stage's stream, from its beginning."""
    return (batch for _, batch in context.data() if batch is not None)


def rows_and_weights(batch: Batch) -> tuple[Batch, Any]:
    """All rows of a batch, of all its segments, `[rows, ...]`; and 1 for those that ask for something."""
    rows = rows_of(batch)
    return rows, jnp.any(rows.weights > 0, axis=-1).astype(jnp.float32)


def output_of(model: Any, state: TrainState, params: Any, row: Batch) -> Any:
    """What the model gives for one row, in evaluation mode."""
    variables, one = {**model_variables(state), "params": params}, jax.tree.map(lambda leaf: leaf[None], row)
    return read_segment(model, variables, model.init_state(1), one, deterministic=True)[0]


def row_functions(model: Any, state: TrainState) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """`log_likelihood(params, row, targets)`, the mean over a row's targets, and `log_probs(params, row)`."""

    def log_likelihood(params: Any, row: Batch, targets: Any) -> Any:
        variables = {**model_variables(state), "params": params}
        output = output_of(model, state, params, row)
        targets = jnp.broadcast_to(targets, row.targets.shape)
        return -model.apply(variables, output, targets[None], row.weights[None], method="nll").mean()

    def log_probs(params: Any, row: Batch) -> Any:
        variables = {**model_variables(state), "params": params}
        return model.apply(variables, output_of(model, state, params, row), method="log_probs")[0]

    return log_likelihood, log_probs
