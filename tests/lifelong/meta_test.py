"""Learning to adapt: inner steps, episodes, OML-ER and its kin, Meta-MbPA, against closed forms and their limits."""

import dataclasses
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from memjax.config import ANML, MAML, OML, EpisodicMemory, MbPA, MetaMbPA, Sequential
from memjax.data.example_batches import EXAMPLE
from memjax.lifelong import policies
from memjax.lifelong.adaptation import inner_steps
from memjax.lifelong.factory import make_learner_and_stages
from memjax.lifelong.mbpa import neighbors_of
from memjax.lifelong.memory_backends import DeviceMemoryBackend
from memjax.lifelong.oml import adapt_by_loss, adapt_head
from memjax.lifelong.update_streams import EpisodeSchedule, StreamPlan, replay_frequency
from memjax.training.experiment import make_experiment
from memjax.training.objective import model_loss
from memjax.training.stages import STREAM
from memjax.training.update_functions import make_objective
from tests.lifelong.learner_cases import ALL, EPISODE, NEAR, ROWS, assert_equal, config_of, flat, memory_of, play


@pytest.fixture
def x64():
    with jax.enable_x64(True):
        yield


def network(params, batch):
    """The mean squared error of a small network."""
    inputs, targets = batch
    return jnp.mean((jnp.tanh(inputs @ params["first"]) @ params["head"] - targets) ** 2)


def start(seed=0, dtype=np.float64):
    rng = np.random.default_rng(seed)
    return {"first": rng.normal(size=(3, 4)).astype(dtype), "head": rng.normal(size=(4, 2)).astype(dtype)}


def batches(steps, seed=1, dtype=np.float64, rows=5):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(steps, rows, 3)).astype(dtype), rng.normal(size=(steps, rows, 2)).astype(dtype)


def at(found, index):
    return jax.tree.map(lambda leaf: leaf[index], found)


# Inner steps


@pytest.mark.parametrize("select", [None, lambda path: path == "head"])
def test_derivatives_of_the_first_order_are_the_gradient_at_the_adapted_parameters(x64, select):
    params, support, query = start(), batches(3), at(batches(1, seed=2), 0)
    adapt = lambda p: inner_steps(network, p, support, learning_rate=0.1, select=select)
    by_hand = dict(params)
    for step in range(3):
        gradient = jax.grad(network)(by_hand, at(support, step))
        by_hand = {
            name: leaf - 0.1 * gradient[name] if select is None or select(name) else leaf
            for name, leaf in by_hand.items()
        }
    found = adapt(params)
    np.testing.assert_allclose(flat(found), flat(by_hand), rtol=1e-14)
    through = jax.grad(lambda p: network(adapt(p), query))(params)
    np.testing.assert_array_equal(flat(through), flat(jax.grad(network)(found, query)))
    if select is not None:
        np.testing.assert_array_equal(found["first"], params["first"])  # bit for bit


@pytest.mark.parametrize("select", [None, lambda path: path == "head"])
def test_derivatives_of_the_second_order_are_those_of_finite_differences(x64, select):
    params, support, query = start(), batches(3), at(batches(1, seed=2), 0)
    value = jax.jit(
        lambda p: network(inner_steps(network, p, support, learning_rate=0.3, select=select, order=2), query)
    )
    found, step = jax.grad(value)(params), 1e-5
    for name, leaf in params.items():
        for place in np.ndindex(leaf.shape):
            moved = [
                {
                    **params,
                    name: leaf
                    + side
                    * step
                    * (np.arange(leaf.size).reshape(leaf.shape) == np.ravel_multi_index(place, leaf.shape)),
                }
                for side in (1, -1)
            ]
            wanted = (value(moved[0]) - value(moved[1])) / (2 * step)
            assert abs(wanted - found[name][place]) < 1e-6


def test_the_orders_differ_in_proportion_to_the_rate(x64):
    params, support, query = start(), batches(3), at(batches(1, seed=2), 0)

    def gap(rate):
        def gradient(order):
            adapt = lambda p: inner_steps(network, p, support, learning_rate=rate, order=order)
            return flat(jax.grad(lambda p: network(adapt(p), query))(params))

        return np.linalg.norm(gradient(1) - gradient(2))

    gaps = [gap(rate) for rate in (1e-3, 5e-4, 2.5e-4)]
    np.testing.assert_allclose([gaps[0] / gaps[1], gaps[1] / gaps[2]], 2, rtol=0.02)


def test_over_exchangeable_batches_the_first_order_asks_for_gradients_that_agree(x64):
    """Over all ordered tuples of a pool: the mean query gradient - alpha/2 grad of inner products, up to alpha^2."""
    params, pool, steps = start(), batches(4, rows=3), 2

    @jax.jit
    def gradient(rate, support, query):
        adapted = inner_steps(network, params, support, learning_rate=rate)
        return jax.grad(network)(adapted, query)

    def mean_gradient(rate, others):
        tuples = itertools.permutations(range(4), steps + 1)
        each = [gradient(rate, at(pool, np.array(support)), at(others, query)) for *support, query in tuples]
        return np.mean([flat(one) for one in each], axis=0)

    def inner_products(p):
        gradients = [jax.grad(network)(p, at(pool, index)) for index in range(4)]
        total = 0.0
        for *support, query in itertools.permutations(range(4), steps + 1):
            for index in support:
                both = jax.tree.map(lambda a, b: jnp.sum(a * b), gradients[index], gradients[query])
                total += sum(jax.tree.leaves(both))
        return total / 24

    plain = np.mean([flat(jax.grad(network)(params, at(pool, index))) for index in range(4)], axis=0)
    products = flat(jax.grad(inner_products)(params))
    other = jax.tree.map(lambda leaf: leaf + 1, pool)
    residual = [np.abs(mean_gradient(rate, pool) - plain + rate / 2 * products).max() for rate in (1e-2, 5e-3)]
    np.testing.assert_allclose(residual[0] / residual[1], 4, rtol=0.1)
    # With queries from elsewhere it is another gradient, and not by alpha^2 alone.
    alien = np.mean([flat(jax.grad(network)(params, at(other, index))) for index in range(4)], axis=0)
    apart = [np.abs(mean_gradient(rate, other) - alien + rate / 2 * products).max() for rate in (1e-2, 5e-3)]
    np.testing.assert_allclose(apart[0] / apart[1], 2, rtol=0.1)


def test_temporaries_do_not_grow_with_steps_of_the_first_order_and_linearly_with_those_of_the_second():
    params = jax.tree.map(lambda leaf: jnp.tile(leaf.astype(np.float32), (20, 20)), start())

    def temporaries(steps, order):
        rows = jnp.ones((steps, 4, 60)), jnp.ones((steps, 4, 40))
        loss = lambda p: network(inner_steps(network, p, rows, learning_rate=0.1, order=order), at(rows, 0))
        return jax.jit(jax.grad(loss)).lower(params).compile().memory_analysis().temp_size_in_bytes

    size = sum(leaf.nbytes for leaf in jax.tree.leaves(params))
    first = [temporaries(steps, 1) for steps in (1, 5, 20)]
    assert first[1] == first[2] and first[2] - first[0] < 8 * size
    second = [temporaries(steps, 2) for steps in (5, 20)]
    assert second[1] - second[0] <= 1.1 * 15 * size


@jax.custom_vjp
def once(x):
    return x**2


once.defvjp(lambda x: (x**2, x), lambda x, g: (jax.pure_callback(lambda x, g: 2 * x * g, g, x, g),))


def test_a_kernel_without_second_derivative_is_named():
    loss = lambda w, batch: once(w) * batch
    run = lambda w, order: inner_steps(loss, w, jnp.ones(2), learning_rate=0.1, order=order)
    np.testing.assert_allclose(jax.grad(run)(1.0, 1), 1.0)
    with pytest.raises(ValueError, match="order: given 2, allowed: 1 where a kernel .*allback"):
        jax.grad(run)(1.0, 2)
    for order in (0, 3):
        with pytest.raises(ValueError, match=f"order: given {order}, allowed: 1 or 2"):
            run(1.0, order)


# Episodes


@pytest.mark.parametrize(
    "interval, batch, steps, frequency, examples, episodes, replays, gap",
    [(9600, 16, 5, 101, 575_000, 5999, 59, 9680), (1600, 4, 5, 67, 44_800, 1871, 27, 1604)],
)
def test_episodes_of_the_published_sizes(interval, batch, steps, frequency, examples, episodes, replays, gap):
    assert replay_frequency(interval, batch, steps) == frequency
    plan = StreamPlan(examples, batch, 1, 0, EpisodeSchedule(interval, steps=steps))
    planned = [plan.update(number) for number in range(plan.updates)]
    sizes, due = (
        np.array([update.reads for update in planned]),
        [n for n, update in enumerate(planned) if update.kind != STREAM],
    )
    assert (len(sizes), len(due)) == (episodes, replays)
    assert set(np.diff((np.cumsum(sizes) * batch)[due])) == {gap} and set(sizes[due]) == {steps}


@pytest.mark.parametrize("keeps", [False, True])
def test_every_batch_is_in_one_episode_but_for_the_last_ones(keeps):
    for examples, rows, steps, every in itertools.product((1, 11, 40), (3, 4), (0, 1, 3), (0, 4, 12)):
        plan = StreamPlan(examples, rows, 2, 3, EpisodeSchedule(every, steps=steps, keeps_last=keeps))
        planned = [plan.update(number) for number in range(plan.updates)]
        full = planned[:-1] if keeps else planned
        assert all(update.reads == steps + (update.kind == STREAM) for update in full)
        left = plan.batches - sum(update.reads for update in planned)
        assert left == 0 if keeps else left <= steps
        assert (plan.left_out == 0) == (left == 0)


def test_episodes_are_counted_over_stages():
    schedule = EpisodeSchedule(8, steps=1)
    first = schedule.plan(12, 4, 1, None)
    second = schedule.plan(12, 4, 1, first)
    kinds = [first.update(0).kind, first.update(1).kind, second.update(0).kind]
    assert kinds == [STREAM, schedule.kind, STREAM]
    assert second.earlier == first.updates == 2


# Learners


def params_of(method, **fields):
    return flat(play(config_of(method, **fields)).state.params)


@pytest.mark.laws
def test_without_inner_steps_or_at_rate_0_the_outer_step_is_on_queries_alone():
    plain = params_of(OML(**{**EPISODE, "replay_interval": 0, "inner_steps": 0}))
    np.testing.assert_array_equal(plain, params_of(Sequential()))
    how = {**EPISODE, "replay_interval": 0, "inner_learning_rate": 0.0}
    played = play(config_of(OML(**how)))
    queries = [batch for _, batch in played.updates]
    sequential = play(config_of(Sequential()))
    state = sequential.places.init(sequential.places.new_variables())
    for batch in queries:
        state, _ = sequential.places.update_inlined(state, (STREAM, jax.tree.map(lambda leaf: leaf[1:], batch)))
    np.testing.assert_allclose(flat(played.state.params), flat(state.params), atol=1e-6)
    assert not np.allclose(flat(played.state.params), params_of(OML(**{**EPISODE, "replay_interval": 0})), atol=1e-4)


@pytest.mark.laws
def test_the_first_order_of_an_episode_is_the_gradient_at_the_adapted_head():
    """One update by hand, with the clipped gradient of what is learned and not of its copies."""
    training = {"clip_norm": 0.01}
    config = config_of(OML(**{**EPISODE, "replay_interval": 0}), training=training)
    config.model.dropout = 0.0
    played = play(config, stages=1)
    experiment = make_experiment(config)
    params = played.places.new_variables()["params"]
    loss = model_loss(experiment.model, deterministic=True)
    batch = jax.tree.map(jnp.asarray, played.updates[0][1])
    nats = lambda p, rows: loss({"params": p}, experiment.model.init_state(ROWS), rows, jax.random.key(0))[2].mean()
    head = jax.grad(nats)(params, at(batch, 0))["head"]
    adapted = {**params, "head": jax.tree.map(lambda leaf, g: leaf - 0.1 * g, params["head"], head)}
    gradient = jax.grad(nats)(adapted, at(batch, 1))
    norm = np.linalg.norm(flat(gradient))
    assert norm > 0.01
    wanted = jax.tree.map(lambda leaf, g: leaf - 0.2 * g * 0.01 / norm, params, gradient)
    state = played.places.init(played.places.new_variables())
    state, _ = played.places.update_inlined(state, played.updates[0])
    np.testing.assert_allclose(flat(state.params), flat(wanted), atol=2e-6)


@pytest.mark.laws
def test_what_an_inner_loop_adapts():
    config = config_of(ANML(**EPISODE))
    experiment = make_experiment(config)
    played = play(config, stages=1)
    params, batch = played.state.params, jax.tree.map(jnp.asarray, played.updates[0][1])
    variables, loss = {"params": params}, model_loss(experiment.model)
    given = (experiment.model, loss, variables, batch, jax.random.key(0))
    moved = lambda adapted: {name for name in params if not np.array_equal(flat(adapted[name]), flat(params[name]))}
    how = {"learning_rate": 0.1, "order": 1}
    assert moved(adapt_head(*given, select=lambda path: path.startswith("head/"), **how)) == {"head"}
    by_loss = adapt_by_loss(*given, select=lambda path: path.startswith("head/"), **how)
    assert moved(by_loss) == {"head"}
    assert moved(adapt_by_loss(*given, select=lambda path: not path.startswith("gate/"), **how)) == {"head", "layers_0"}
    assert moved(adapt_by_loss(*given, select=None, **how)) == {"head", "layers_0", "gate"}
    # Without dropout, the fast way is the slow one.
    quiet = experiment.model.clone(dropout=0.0)
    given = (quiet, model_loss(quiet), *given[2:])
    pair = [adapt(*given, select=lambda path: path.startswith("head/"), **how) for adapt in (adapt_head, adapt_by_loss)]
    np.testing.assert_allclose(flat(pair[0]), flat(pair[1]), atol=1e-6)


@pytest.mark.laws
def test_with_its_gate_forced_open_anml_is_maml():
    config = config_of(ANML(**EPISODE))
    played = play(config, stages=0)
    fresh = played.places.new_variables()
    params = dict(fresh["params"])
    second = params["gate"]["second"]
    params["gate"] = {**params["gate"], "second": {**second, "bias": second["bias"] + 1e3}}
    gated = play(config, start={**fresh, "params": params}).state.params
    plain = {name: leaf for name, leaf in params.items() if name != "gate"}
    bare = config_of(MAML(**EPISODE))
    found = play(bare, start={**fresh, "params": plain}).state.params
    np.testing.assert_allclose(flat({name: gated[name] for name in found}), flat(found), atol=1e-6)


@pytest.mark.laws
@pytest.mark.parametrize("shared", [True, False])
def test_meta_mbpa_with_rate_0_is_mbpa_pp_with_the_same_writes(shared):
    how = {"memory": ALL, "replay_interval": 8, "replay_batch_size": 4, "num_neighbors": 4, "adaptation_steps": 0}
    rows = {} if shared else {"share_neighborhood": False}
    config = config_of(MetaMbPA(**how, inner_learning_rate=0.0, **rows))
    config.model.dropout = 0.0
    bare = config_of(MbPA(**how))
    bare.model.dropout = 0.0
    plain, learned = play(bare), play(config)
    np.testing.assert_allclose(flat(plain.state.params), flat(learned.state.params), atol=1e-6)
    assert_equal(memory_of(plain).rows.extras[EXAMPLE], memory_of(learned).rows.extras[EXAMPLE])
    assert not np.allclose(flat(plain.state.params), params_of(MetaMbPA(**NEAR)), atol=1e-4)


@pytest.mark.laws
def test_in_one_inner_step_the_penalty_has_no_effect_and_in_two_it_has():
    of = lambda steps, penalty: params_of(MetaMbPA(**NEAR, inner_steps=steps, adaptation_l2=penalty))
    np.testing.assert_array_equal(of(1, 0.0), of(1, 10.0))
    assert not np.array_equal(of(2, 0.0), of(2, 10.0))


@pytest.mark.laws
def test_a_replayed_row_is_not_among_its_own_neighbours():
    played = play(config_of(MetaMbPA(**NEAR)))
    memory = played.state.method["episodes"]
    rows = jax.tree.map(lambda leaf: leaf[:6], memory.rows)
    experiment = make_experiment(config_of(MetaMbPA(**NEAR)))
    store = DeviceMemoryBackend(at(memory.rows, 0), 1, 0, policies.write_all_policy())
    variables = {"params": played.state.params, "method": played.state.method}
    how = {"num_neighbors": 4, "weights": "uniform", "metric": "squared_l2"}
    own = np.asarray(rows.extras[EXAMPLE])
    with_self, _ = neighbors_of(experiment.model, store, "inputs", **how)(variables, rows)
    assert (np.asarray(with_self.extras[EXAMPLE])[:, 0] == own).all()
    without, alpha = neighbors_of(experiment.model, store, "inputs", excludes=True, **how)(variables, rows)
    found = np.asarray(without.extras[EXAMPLE])
    assert not (found == own[:, None]).any() and (np.asarray(alpha) > 0).all()
    assert (found[:, :3] == np.asarray(with_self.extras[EXAMPLE])[:, 1:]).all()
    together, _ = neighbors_of(experiment.model, store, "inputs", excludes=True, **how)(variables, rows, together=True)
    assert not set(np.asarray(together.extras[EXAMPLE]).tolist()) & set(own.tolist())


@pytest.mark.laws
@pytest.mark.parametrize("method", [OML(**EPISODE), ANML(**EPISODE), MAML(**EPISODE), MetaMbPA(**NEAR)])
def test_answers_have_no_dropout_are_adapted_and_of_every_example(method):
    config = config_of(method)
    played = play(config)
    scored = lambda one: one.learner.evaluators[""](one.learner.evaluation_variables(played.state, 0))
    assert scored(played).targets == 8  # two batches, and no row of any is left out
    config.model.dropout = 0.0
    np.testing.assert_array_equal(scored(play(config, stages=0)).nats, scored(played).nats)
    off = {"adaptation_steps": 0} if isinstance(method, MetaMbPA) else {"adapts_at_test": False}
    bare = play(config_of(dataclasses.replace(method, **off)))
    assert_equal(played.state.params, bare.state.params)
    assert scored(bare).nats != scored(played).nats


@pytest.mark.laws
def test_the_sum_over_batches_of_a_replay_is_as_many_times_the_mean():
    """Of eight rows in batches of four the step is twice that of their mean."""
    mean, total = (
        play(config_of(OML(**{**EPISODE, "replay_rate": 1.0}, replay_loss_reduction=kind)), stages=1)
        for kind in ("mean", "sum")
    )
    stream, replay = mean.updates[:2]
    assert (stream[0], replay[0]) == ("stream", "replay")
    moved = []
    for one in (mean, total):
        state, _ = one.places.update_inlined(one.places.init(one.places.new_variables()), stream)
        start = flat(state.params)
        moved.append(flat(one.places.update_inlined(state, replay)[0].params) - start)
    np.testing.assert_allclose(moved[1], 2 * moved[0], atol=1e-6)
    assert np.abs(moved[0]).max() > 1e-3


def test_what_is_refused():
    line = lambda method, **fields: pytest.raises(ValueError, match=fields["match"])
    with line(OML, match="lifelong.tasks.0: given 10 examples to train on in 3 batches, allowed: 6 batches and more"):
        make_learner_and_stages(make_experiment(config_of(OML(memory=ALL, replay_interval=0))), None, make_objective)
    config = config_of(ANML(**EPISODE))
    config.model.gate_dim = 0
    with line(ANML, match="model.gate_dim: given 0, allowed: 1 or more with ANML"):
        make_experiment(config)
    for settings, match in (
        (OML(**{**EPISODE, "inner_steps": -1}), "lifelong.method.inner_steps: given -1, allowed: 0"),
        (
            OML(**{**EPISODE, "replay_interval": 2}),
            "lifelong.method.replay_interval: given 2, allowed: 0, or the 4 rows",
        ),
        (
            OML(**{**EPISODE, "replay_rate": 0.01}),
            "lifelong.method.replay_rate: given 0.01, allowed: at least 1 / replay_interval",
        ),
        (
            MetaMbPA(memory=EpisodicMemory(diversity_temperature=0.0)),
            "diversity_temperature: given 0.0, allowed: more than 0",
        ),
        (
            MetaMbPA(memory=EpisodicMemory(write_probability=1.5)),
            "probability: given 1.5, allowed: a share from 0 to 1",
        ),
        (MetaMbPA(memory=EpisodicMemory(storage="host")), "memory.storage: given 'host', allowed: 'device' with"),
    ):
        with line(settings, match=match):
            make_experiment(config_of(settings))


def test_batches_that_tell_their_task_are_refused_where_borders_are_not_known():
    method = MetaMbPA(**NEAR, adaptation_scope="per_batch")
    allowed = "'known' with lifelong.method.adaptation_scope 'per_batch'"
    with pytest.raises(ValueError, match=f"lifelong.task_boundaries: given 'sharp', allowed: {allowed}"):
        make_experiment(config_of(method, task_boundaries="sharp"))
    make_experiment(config_of(method))


def test_what_fills_no_episode_is_said():
    config = config_of(OML(**{**EPISODE, "inner_steps": 1, "replay_interval": 0}))
    _, stages = make_learner_and_stages(make_experiment(config), None, make_objective)
    assert [stage.notes for stage in stages] == [
        [f"task {index}: the last 2 examples fill no episode, and are left out"] for index in range(3)
    ]
    config = config_of(OML(**{**EPISODE, "inner_steps": 1, "replay_interval": 0, "last_episode": "kept"}))
    assert not any(stage.notes for stage in make_learner_and_stages(make_experiment(config), None, make_objective)[1])
