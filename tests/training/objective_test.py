import dataclasses

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from memjax import config as configs
from memjax.axes import RULES, Names, axes_of
from memjax.models.heads import CLASSES, ClassificationHead
from memjax.models.perceptron import Perceptron
from memjax.training.checkpoints import Checkpoints
from memjax.training.gradients import compute_gradients
from memjax.training.objective import Objective, model_loss, with_distillation, with_penalty
from memjax.training.optimizers import freeze_parameters, is_named, make_optimizer, make_reference_gradients
from memjax.training.sharding import train_state_names
from memjax.training.step import apply_gradients, make_train_step
from memjax.training.update_functions import make_objective
from memjax.typing import Aux, Batch, WeightedSum, tree_dataclass
from tests.training.recorded import CASES, after_three_steps
from tests.training.toy import ROWS, ToyModel, toy_state, toy_stream

distance = lambda params, method: sum(
    jnp.sum((a - b) ** 2) for a, b in zip(*map(jax.tree.leaves, (params, method)), strict=True)
)


def batch_of(**kwargs):
    return jax.tree.map(jnp.asarray, next(toy_stream(**kwargs)))


def gradients(objective, state, batch, **kwargs):
    return jax.jit(lambda state, batch: compute_gradients(objective, state, batch, **kwargs)[1])(state, batch)


@pytest.mark.parametrize("arguments", [pytest.param({}, marks=pytest.mark.laws), {"accumulate": 2}])
def test_penalties_add_their_gradient_and_lie_over_one_another(arguments):
    model, batch = ToyModel(detach=False), batch_of(segments=2)
    state = toy_state(model, batch=batch)
    anchors = jax.tree.map(lambda leaf: leaf + 0.5, state.params)
    state = dataclasses.replace(state, method={"anchors": anchors})
    plain = gradients(Objective(model_loss(model)), state, batch, **arguments)
    loss = with_penalty(model_loss(model), "first", lambda params, method: distance(params, method["anchors"]))
    loss = with_penalty(loss, "second", lambda params, method: distance(params, method["anchors"]))
    found = gradients(Objective(loss, {"first": 0.25, "second": 1.0}), state, batch, **arguments)
    wanted = jax.tree.map(lambda leaf: leaf - 2 * 1.25 * 0.5, plain.params)
    chex.assert_trees_all_close(found.params, wanted, rtol=1e-5, atol=1e-6)
    size = 0.25 * sum(leaf.size for leaf in jax.tree.leaves(anchors))
    np.testing.assert_allclose(found.sums["losses/first"].mean(), size, rtol=1e-6)
    logged = gradients(Objective(loss, {"first": 0.0, "second": 0.0}), state, batch, **arguments)
    chex.assert_trees_all_close(logged.params, plain.params, rtol=1e-6, atol=1e-8)


def test_distillation_is_zero_at_the_teacher_and_pulls_towards_it():
    model, batch = ToyModel(), batch_of()
    state = toy_state(model, batch=batch)
    teacher = lambda method: {"params": method}
    loss = with_distillation(model_loss(model, output=True), "teacher", model, teacher, temperature=2.0)
    alone = lambda *arguments: (lambda memory, stats, nll, aux: (memory, stats, WeightedSum(0.0, nll.weight), aux))(
        *loss(*arguments)
    )
    objective = Objective(alone, {"teacher": 1.0})
    found = jax.jit(lambda state, batch: compute_gradients(objective, state, batch)[1])
    at = found(dataclasses.replace(state, method=state.params), batch)
    np.testing.assert_allclose(at.objective, 0, atol=1e-6)
    chex.assert_trees_all_close(at.params, jax.tree.map(jnp.zeros_like, at.params), atol=1e-6)
    state = dataclasses.replace(state, method=jax.tree.map(lambda leaf: leaf * 1.5, state.params))
    step, values = jax.jit(make_train_step(objective, optax.sgd(0.5), jit=False)), []
    for _ in range(3):
        values.append(float(found(state, batch).objective))
        state = step(state, batch)[0]
        state = dataclasses.replace(state, memory=model.init_state(ROWS))
    assert values[0] > values[1] > values[2] > 0


@pytest.mark.parametrize("told", [False, True])
def test_distillation_over_some_classes_pulls_these_alone_also_where_a_row_is_told_others(told):
    """Classes 2 and 3 are new: the teacher has an opinion of 0 and 1."""
    model, old = Perceptron(head=ClassificationHead(num_classes=4), widths=(8,)), jnp.array([True, True, False, False])
    allowed = {CLASSES: jnp.broadcast_to(~old, (ROWS, 4))} if told else {}
    inputs = jax.random.normal(jax.random.key(0), (ROWS, 3))
    new, valid = jnp.full((ROWS, 1), 2), jnp.ones(inputs.shape, bool)
    segment = Batch(inputs, new, valid, jnp.ones((ROWS, 1)), jnp.ones(ROWS, bool), allowed)
    variables = model.init(jax.random.key(1), inputs, model.init_state(ROWS), start_of_document=jnp.ones(ROWS, bool))
    moved = lambda leaf: leaf + 0.1 * jnp.sin(jnp.arange(leaf.size).reshape(leaf.shape))
    teacher = jax.tree.map(moved, variables["params"])
    loss = with_distillation(
        model_loss(model, output=True), "teacher", model, lambda method: {"params": method}, classes=lambda method: old
    )

    def divergence(params):
        given = {**variables, "params": params, "method": teacher}
        return loss(given, model.init_state(ROWS), segment, jax.random.key(2))[3].losses["teacher"].total

    (slopes,) = (leaf for leaf in jax.tree.leaves(jax.grad(divergence)(variables["params"])) if leaf.shape == (4,))
    assert jnp.abs(slopes[:2]).min() > 1e-4 and jnp.abs(slopes[2:]).max() < 1e-6


@pytest.mark.parametrize(
    "attention, wanted",
    [
        (configs.InfinityFormer(kl_weight=0.5), 1.5),
        (configs.InfinityFormer(kl_weight=0.5, kl_over_layers="mean"), 0.75),
        (configs.Compressive(loss_weight=0.5), 0.75),
        (configs.GPT2(compressed_memory_length=4, loss_weight=0.5), 0.75),
    ],
    ids=lambda value: type(value).__name__,
)
def test_the_losses_of_two_layers_are_added_up_or_averaged_as_published(attention, wanted):
    (name,) = attention.auxiliary_loss_weights()
    sum_of = lambda total: WeightedSum(jnp.float32(total), jnp.float32(2))
    aux, nll = Aux({f"layer_00/{name}": sum_of(4), f"layer_01/{name}": sum_of(2)}), sum_of(6)
    objective = make_objective(configs.Config(model=configs.Model(attention=attention)), None)
    assert float(objective.value(nll, aux, objective.divisors(nll, aux))) == 3.0 + wanted
    assert float(objective.losses(Aux({f"layer_01/{name}": sum_of(3)}))[name].mean()) == 1.5


def project(strength=1.0):
    """A link as A-GEM is one: what of the gradient goes against the reference is taken out."""

    def update(updates, state, params=None, *, reference):
        other = reference.gradient("other")
        dot, norm = reference.dots(updates)[0], optax.tree.vdot(other, other)
        share = strength * jnp.minimum(dot, 0) / norm
        return jax.tree.map(lambda update, leaf: update - share * leaf, updates, other), state

    return optax.GradientTransformationExtraArgs(lambda params: optax.EmptyState(), update)


@pytest.mark.parametrize(
    "apply_every, frozen",
    [(2, ("mix/",)), *(pytest.param(*case, marks=pytest.mark.laws) for case in ((1, ()), (1, ("mix/",)), (2, ())))],
)
def test_links_see_the_reference_before_clipping_and_inside_freeze(frozen, apply_every):
    model, batch = ToyModel(), batch_of()
    rule = make_optimizer(
        optax.sgd(1.0), clip_norm=0.01, gradient_accumulation_steps=apply_every, transformations=[project()]
    )
    optimizer = freeze_parameters(rule, lambda path: is_named(path, frozen)) if frozen else rule
    state = toy_state(model, optimizer, batch=batch)
    objective = Objective(model_loss(model))
    trained = lambda tree: [leaf for name, leaf in tree.items() if name != "mix" or not frozen]
    goal = trained(gradients(objective, state, batch).params)
    towards = lambda params: sum(
        jnp.vdot(g, p) for g, p in zip(*map(jax.tree.leaves, (goal, trained(params))), strict=True)
    )

    def step(state, sign):
        state, found = compute_gradients(objective, state, batch)
        reference = make_reference_gradients(lambda params: {"other": sign * towards(params)}, state.params)
        return apply_gradients(state, found, optimizer, reference=reference)[0]

    step, ends = jax.jit(step), {}
    for sign in (-1.0, 1.0):
        ends[sign] = state
        for _ in range(apply_every):
            ends[sign] = dataclasses.replace(step(ends[sign], sign), memory=state.memory)
    # Where the loss to protect is the negative of the trained one, all of the gradient is taken out; where it is that
    # loss itself, nothing is, and the update has the norm that clipping leaves.
    chex.assert_trees_all_close(ends[-1.0].params, state.params, atol=2e-6)
    moved = jax.tree.map(jnp.subtract, ends[1.0].params, state.params)
    np.testing.assert_allclose(optax.tree.norm(moved), 0.01, rtol=1e-3)
    if frozen:
        chex.assert_trees_all_equal(ends[1.0].params["mix"], state.params["mix"])


ADAM = optax.adam(1e-2)
STEEP = optax.adam(1e-2, b1=1000.0)
FAILURES = {
    "NaN in Adam's first moment": (ADAM, {"mu": np.nan}, 0.0),
    "infinity in Adam's second moment, which makes updates of 0": (ADAM, {"nu": 1e38, "mu": np.inf}, 0.0),
    "eps 0, and no gradient": (optax.adam(1e-2, eps=0.0, eps_root=0.0), {}, 0.0),
    "b1 of 1000": (STEEP, {"mu": 1e37}, 0.0),
    "a rate of infinity": (optax.sgd(np.inf), {}, 0.0),
    "a rate that takes parameters beyond float32": (optax.chain(optax.scale(1e30), optax.scale(1e30)), {}, 0.0),
    "a link that divides by 0": (optax.stateless(lambda updates, _: jax.tree.map(lambda u: u / 0.0, updates)), {}, 0.0),
    "what is gathered": (optax.sgd(0.1), {}, np.nan),
}
"""what makes an update that is not finite of a finite gradient: (rule, what its state is full of, what is gathered)"""


@pytest.fixture(scope="module")
def found():
    """A state, and finite gradients of it."""
    model, batch = ToyModel(), batch_of()
    state = dataclasses.replace(toy_state(model, batch=batch), method=jnp.zeros(2))
    found = jax.jit(lambda state, batch: compute_gradients(Objective(model_loss(model)), state, batch)[1])(state, batch)
    return state, found


SOME = ("NaN in Adam's first moment", "b1 of 1000", "what is gathered")


@pytest.mark.parametrize(
    "failure", [pytest.param(failure, marks=[] if failure in SOME else pytest.mark.laws) for failure in FAILURES]
)
def test_an_update_that_is_not_finite_changes_nothing_and_counts_as_skipped(found, failure):
    optimizer, filling, gathered = FAILURES[failure]
    state, gradients = found
    full = lambda path, leaf: next(
        (jnp.full_like(leaf, value) for name, value in filling.items() if name in jax.tree_util.keystr(path)), leaf
    )
    opt_state = jax.tree_util.tree_map_with_path(full, optimizer.init(state.params))
    state = dataclasses.replace(state, opt_state=opt_state, batch_stats={})
    gather = lambda method, before, after, gradients: method + gathered
    apply = jax.jit(lambda state, found: apply_gradients(state, found, optimizer, after_update=gather))
    after, metrics = apply(state, gradients)
    assert float(metrics["skipped"].total) == 1 and int(after.step) == 0
    for name in ("params", "opt_state", "memory", "method", "batch_stats"):
        chex.assert_trees_all_equal(getattr(after, name), getattr(state, name))


def test_what_was_not_finite_before_does_not_hold_an_update_back(found):
    # Some rules begin with the best value so far at infinity.
    state, gradients = found
    state = dataclasses.replace(state, opt_state=jnp.array(np.inf))
    optimizer = optax.GradientTransformation(lambda params: jnp.array(np.inf), lambda u, s, p=None: (u, s + 0))
    after, metrics = jax.jit(lambda state, found: apply_gradients(state, found, optimizer))(state, gradients)
    assert float(metrics["skipped"].total) == 0 and int(after.step) == 1


def test_what_is_gathered_sees_both_parameters_and_the_gradient():
    model, batch = ToyModel(), batch_of()

    def path_integral(method, before, after, gradients):
        return jax.tree.map(lambda m, b, a, g: m - g * (a - b), method, before, after, gradients)

    state = toy_state(model, batch=batch)
    state = dataclasses.replace(state, method=jax.tree.map(jnp.zeros_like, state.params))
    objective = Objective(model_loss(model))
    found = gradients(objective, state, batch)
    step = make_train_step(objective, optax.sgd(0.1), after_update=path_integral, jit=False)
    after, _ = jax.jit(step)(state, batch)
    wanted = jax.tree.map(lambda leaf: 0.1 * leaf**2, found.params)
    chex.assert_trees_all_close(after.method, wanted, rtol=1e-4, atol=1e-7)


def test_a_memory_of_its_own_leaves_that_of_the_rows_alone():
    model, batch, few = ToyModel(), batch_of(), batch_of(rows=2)
    objective = Objective(model_loss(model))
    state = dataclasses.replace(toy_state(model, batch=batch), restart=np.array([True, False, True, False]))

    @jax.jit
    def step(state, batch):
        state, found = compute_gradients(objective, state, batch, memory=model.init_state(2))
        return apply_gradients(state, found, optax.sgd(0.1))

    after, sums = step(state, few)
    chex.assert_trees_all_equal((after.memory, after.restart), (state.memory, state.restart))
    assert int(after.step) == 1 and float(sums["nll"].weight) > 0
    assert not np.array_equal(after.params["mix"]["kernel"], state.params["mix"]["kernel"])


@tree_dataclass
class Kept:
    importance: object
    keys: object = dataclasses.field(metadata=axes_of("entries", None))
    count: object = 0


def test_what_a_learner_keeps_has_names():
    model, batch = ToyModel(), batch_of()
    state = toy_state(model, batch=batch)
    names = jax.tree.map(lambda leaf: Names(("mlp",) * leaf.ndim), {"params": state.params})
    keys, count = np.zeros((8, 3)), np.zeros(2)
    kept = {"one": Kept(state.params, keys, count), "two": [state.params]}
    named = train_state_names(dataclasses.replace(state, method=kept), names).method
    assert named["one"].importance == names["params"] and named["two"] == [names["params"]]
    assert named["one"].keys == Names(("entries", None)) and named["one"].count == Names((None,))
    assert RULES["entries"] == ("data",)


def test_checkpoints_without_it_are_restored(tmp_path):
    model, batch = ToyModel(), batch_of()
    state = toy_state(model, batch=batch)
    old = {f.name: getattr(state, f.name) for f in dataclasses.fields(state) if f.name not in ("method",)}
    checkpoints = Checkpoints(tmp_path / "checkpoints")
    checkpoints.save(1, old)
    restored = checkpoints.restore(jax.eval_shape(lambda: state)).tree
    assert restored.method == {}
    chex.assert_trees_all_equal(restored.params, state.params)
    checkpoints.close()


@pytest.mark.parametrize("name", CASES)
def test_steps_are_those_recorded(name):
    """Three steps as they were before the step had two halves; in tests/golden with its provenance."""
    recorded = np.load("tests/golden/train_step.npz")
    found = after_three_steps(*CASES[name])
    names = {key.removeprefix(f"{name}/") for key in recorded if key.startswith(f"{name}/")}
    assert names == found.keys()
    for key, array in found.items():
        np.testing.assert_allclose(array, recorded[f"{name}/{key}"], rtol=2e-5, atol=1e-6, err_msg=key)
