"""O-LoRA and one adapter a task: the penalty by hand, what stays in later tasks, and the sum of all adapters."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from memjax.cli.own_tasks import tasks_config
from memjax.config import OLoRA, TaskAdapters
from memjax.lifelong import train
from memjax.lifelong.adapter_methods import TASK_ADAPTERS, begin_adapters, sum_overlaps, variables_of_task
from memjax.models.adapters import is_earlier_adapter, join_earlier_adapters
from memjax.settings.checks import validate
from memjax.training.named_arrays import flatten
from memjax.training.train_state import model_variables
from memjax.training.variables import name_arrays
from tests.lifelong.learner_cases import CASE, assert_equal, config_of, play
from tests.lifelong.lora_test import adapted
from tests.lifelong.own_files_test import write_split

RANK, TASKS = 2, 3
PART = "layer_00/attention/adapter_output"


def drawn(seed=0):
    """An adapter of a matrix with two input axes, beside room for those of two earlier tasks; numpy, float64."""
    rng = np.random.default_rng(seed)
    shapes = {"a": (3, 4, RANK), "b": (RANK, 5), "earlier_a": (3, 4, 2 * RANK), "earlier_b": (2 * RANK, 5)}
    return {name: rng.normal(size=shape) for name, shape in shapes.items()}


def tree(arrays):
    return {"layer_00": {"attention": {"adapter_output": {n: jnp.asarray(a, jnp.float32) for n, a in arrays.items()}}}}


@pytest.mark.parametrize("overlap", ["squared", "absolute"])
def test_the_penalty_and_its_gradient_are_those_by_hand(overlap):
    arrays = drawn()
    a, earlier = (arrays[name].reshape(12, -1) for name in ("a", "earlier_a"))
    products = earlier.T @ a
    value = np.sum(products**2 if overlap == "squared" else np.abs(products))
    slope = earlier @ (2 * products if overlap == "squared" else np.sign(products))
    computed, gradient = jax.value_and_grad(sum_overlaps)(tree(arrays), overlap)
    np.testing.assert_allclose(computed, value, rtol=1e-5)
    np.testing.assert_allclose(flatten(gradient)[f"{PART}/a"].reshape(12, -1), slope, rtol=1e-4, atol=1e-4)


def test_a_task_that_begins_keeps_the_sum_of_all_adapters():
    arrays = drawn() | {"earlier_a": np.zeros((3, 4, 2 * RANK)), "earlier_b": np.zeros((2 * RANK, 5))}
    product = lambda tree: np.tensordot(*(join_earlier_adapters(flatten(tree))[f"{PART}/{f}"] for f in "ab"), 1)
    start = tree(arrays)
    first = begin_adapters(start, 1, jax.random.key(0))
    np.testing.assert_allclose(product(first), arrays["a"] @ arrays["b"], rtol=1e-5, atol=1e-6)
    begun, found = flatten(start), flatten(first)
    assert np.array_equal(found[f"{PART}/earlier_a"][..., :RANK], begun[f"{PART}/a"])
    assert not found[f"{PART}/earlier_a"][..., RANK:].any() and not found[f"{PART}/b"].any()
    assert 0 < np.abs(found[f"{PART}/a"]).max() <= 12**-0.5 and not np.array_equal(
        found[f"{PART}/a"], begun[f"{PART}/a"]
    )
    trained = tree({**{n: found[f"{PART}/{n}"] for n in arrays}, "b": np.ones((RANK, 5))})
    second = begin_adapters(trained, 2, jax.random.key(1))
    np.testing.assert_allclose(product(second), product(trained), rtol=1e-5, atol=1e-6)
    assert np.array_equal(flatten(second)[f"{PART}/earlier_a"][..., :RANK], begun[f"{PART}/a"])


@pytest.mark.laws
def test_earlier_adapters_stay_bit_for_bit_and_the_penalty_makes_new_ones_orthogonal():
    overlaps = []
    for weight in (0.0, 50.0):
        config = adapted("o_lora")
        config.lifelong.method.penalty_weight = weight
        played = play(config)
        begun, end = (flatten(state.params) for state in (played.begun[1], played.state))
        earlier = [path for path in end if is_earlier_adapter(path)]
        assert earlier and all(end[path].any() and np.array_equal(end[path], begun[path]) for path in earlier)
        arrays = name_arrays({"params": played.state.params}, played.learner.model.layer_groups())
        overlaps.append(float(sum_overlaps({"x": {n.removeprefix("params/"): a for n, a in arrays.items()}})))
    assert overlaps[1] < 0.5 * overlaps[0]


@pytest.mark.laws
def test_each_task_is_answered_by_its_own_adapters_bit_for_bit():
    config = adapted("task_adapters")
    after = [play(config, stages=number).state for number in (1, 2)]
    variables = [{**model_variables(state), "method": {TASK_ADAPTERS: state.method[TASK_ADAPTERS]}} for state in after]
    first, later = variables_of_task(variables[0], 0), variables_of_task(variables[1], 0)
    assert_equal(first, later)
    assert_equal(first, variables_of_task(variables[0], None))
    assert_equal(model_variables(after[1]), variables_of_task(variables[1], 1))
    changed = [not np.array_equal(a, b) for a, b in zip(*(jax.tree.leaves(s.params) for s in after), strict=True)]
    assert any(changed)
    to_come, start = variables_of_task(variables[0], 1), play(config, stages=0).state
    assert_equal(to_come, model_variables(start))


@pytest.mark.parametrize("method", [OLoRA(), TaskAdapters()], ids=lambda method: type(method).__name__)
def test_methods_made_of_adapters_need_adapters(method):
    config = config_of(CASE["lamol"].method)
    config.lifelong.method = method
    with pytest.raises(ValueError, match="training.lora.rank: given 0, allowed: 1 or more with"):
        validate(config)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["o_lora", "task_adapters"])
def test_small_files_are_learned_by_adapters_of_a_random_encoder(method, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for number, name in enumerate(("first", "second")):
        (tmp_path / name).mkdir()
        for split, size in {"train": 1280, "validation": 20, "test": 200}.items():
            write_split(tmp_path / name / f"{split}.csv", name, f"{number} {split}", size)
    config, _ = tasks_config([str(tmp_path / "first"), str(tmp_path / "second")], method=method)
    config.data.cache_dir, config.training.schedule.learning_rate = str(tmp_path / "cache"), 1e-3
    config.data.segment_length, config.lifelong.epochs = 32, 12
    scores = {"first": [], "second": []}

    def note(event):
        if event.kind == "evaluation" and event.values.get("name") in scores:
            scores[event.values["name"]].append(event.values["accuracy"])

    train(config, on_event=note)
    assert scores["first"][0] > 0.7 and scores["second"][-1] > 0.7
    assert method == "o_lora" or scores["first"][0] == scores["first"][-1]
