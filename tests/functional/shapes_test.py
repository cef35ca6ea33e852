"""Every public function against axes in another order: the error names the argument and the axis."""

import inspect
import itertools
import re
import typing
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from memjax import functional
from memjax.functional.attention import attention
from memjax.functional.named_operations import operation
from memjax.functional.shapes import _annotations, check_shapes

SIZES = {
    "batch": 2,
    "length": 12,
    "heads": 3,
    "key_heads": 1,
    "memory": 7,
    "neighbors": 4,
    "keys": 9,
    "buckets": 8,
    "rate": 5,
}
FEATURES = {"features": 41, "value_dim": 42}
BASIS = functional.gaussian_basis(4, (0.1,))
STATE = functional.LinearState(jnp.zeros((2, 3, 41, 42)), jnp.zeros((2, 3, 41)))
RING, ENTRIES, CURSOR = jnp.zeros((2, 3, 7)), jnp.zeros((2, 3, 5)), jnp.zeros(2, jnp.int32)
PARTIAL = functional.PartialSoftmax(jnp.zeros((2, 12, 3, 42)), jnp.zeros((2, 12, 3)), jnp.zeros((2, 12, 3)))

OTHERS: dict[str, dict[str, Any]] = {
    "advance_cursor": {"amount": 1, "capacity": 9},
    "best_entries": {"number": 4},
    "best_groups": {"number": 4, "size": 2},
    "fused_attention": {"interpret": True},
    "bidirectional_bias": {"length": 5, "max_distance": 8},
    "bin_masses": {"num_bins": 4},
    "bucket_bias": {"distances": np.zeros((5, 5), np.int32), "max_distance": 8},
    "candidate_log_probs": {"vocab_size": 50},
    "lookup_spread": {"num_keys": 9},
    "causal_linear_attention": {"state": STATE},
    "dilated_convolutions": {"dilations": (1, 2, 4)},
    "expected_basis": {"basis": BASIS},
    "kl_to_prior": {"stddev": 1.0},
    "max_pool": {"rate": 4},
    "mean_pool": {"rate": 4},
    "keep_most_used": {"rate": 4},
    "window_validity": {"rate": 4},
    "quantile_positions": {"num_samples": 4},
    "sample_positions": {"num_samples": 4, "key": jax.random.key(0)},
    "read_linear_state": {"state": STATE, "normalizer": "add"},
    "reset_linear_state": {"state": STATE},
    "ring_ages": {"capacity": 9},
    "select_neighbors": {"num_neighbors": 4},
    "select_scored_neighbors": {"num_neighbors": 4},
    "select_product_keys": {"num_neighbors": 4},
    "sharded_neighbors": {"num_neighbors": 4, "slot_axis": "model"},
    "sinusoids": {"dim": 6},
    "threshold_mask": {"num_neighbors": 4},
    "visibility": {"length": 12},
    "update_rows": {"arrays": (jnp.zeros((50, 10)),), "rule": lambda rows, gradient: (rows[0] - gradient,)},
}
"""what the layouts do not say"""
EXACT = {
    "dilated_convolutions": {"layers": 3},
    "fused_attention": {"memory": 19},
    "rotate": {"pairs": 4},
    "strided_convolution": {"rate": 4},
    "update_rows": {"dim": 10},
}
PLAIN = {
    *(
        "at_least_float32",
        "renamed_names",
        "candidate_pairs",
        "check_shapes",
        "draw_directions",
        "why_not_fused",
        "evaluate_basis",
        "fit_matrix",
        "gaussian_basis",
    ),
    *("init_linear_state", "mrbp_value_and_grad", "num_shards", "operation", "relative_buckets", "relative_distances"),
    *("scan_with_replay", "slot_types", "table_shards", "token_positions", "update_matrices"),
    *("interpolate_linearly", "interpolate_llama3", "interpolate_longrope", "interpolate_yarn"),
    *("longrope_attention_factor", "rotary_frequencies", "rotary_waves", "yarn_attention_factor"),
    *("GaussianBasis", "LinearState", "PartialSoftmax", "RolloutResult", "UpdateMatrices"),
}
"""no arrays, one array of any shape, or any tree of arrays"""
RINGS = {
    "interpolate_log_probs": ((PARTIAL.maximum, PARTIAL.maximum, jnp.zeros((12, 2))), {}, "weight"),
    "join_log_probs": ((*(PARTIAL.maximum, jnp.zeros((2, 12)), PARTIAL.maximum), jnp.zeros((12, 2))), {}, "total"),
    "merge_partials": ((PARTIAL, PARTIAL._replace(maximum=jnp.zeros((2, 3, 12)))), {}, "maximum"),
    "order_after": ((CURSOR, jnp.zeros((3, 2))), {}, "arrays"),
    "read_window": ((RING, jnp.zeros(3, jnp.int32), 2), {"axis": 2}, "cursor"),
    "ring_append": ((RING, jnp.swapaxes(ENTRIES, 1, 2), CURSOR), {"axis": 2}, "new"),
    "sharded_append": ((RING, jnp.swapaxes(ENTRIES, 1, 2), CURSOR), {"axis": 2, "slot_axis": "model"}, "new"),
    "sharded_restore": ((RING, jnp.swapaxes(ENTRIES, 1, 2), CURSOR), {"axis": 2, "slot_axis": "model"}, "saved"),
    "sharded_save": ((RING, jnp.zeros(3, jnp.int32), 2), {"axis": 2, "slot_axis": "model"}, "cursor"),
    "write_window": ((RING, jnp.swapaxes(ENTRIES, 1, 2), CURSOR), {"axis": 2}, "new"),
}
"""functions whose layouts hang on `axis` or another rank, or stand in a tuple: a call, and what is wrong in it"""

PUBLIC = sorted(name for name, value in vars(functional).items() if name[0] != "_" and not inspect.ismodule(value))
TABLE = sorted(set(PUBLIC) - PLAIN - set(RINGS))


def arguments_of(name: str) -> tuple[dict[str, Any], dict[str, str]]:
    """Arguments in which no two axes of different names have one size, and the layouts of the arrays."""
    function = getattr(functional, name)
    sizes, fresh = {**SIZES, **FEATURES, **EXACT.get(name, {})}, itertools.count(20)
    given = dict(OTHERS.get(name, {}))
    layouts = {}
    for argument, hint in _annotations(function.__wrapped__)[1].items():
        if argument in given or argument in ("dropout_key", "sink"):
            continue
        layouts[argument] = max(hint.layouts, key=lambda layout: len(layout.split()))
        shape: tuple[int, ...] = ()
        for axis in layouts[argument].split():
            label = axis.lstrip("*#")
            size = int(label) if label.isdigit() else sizes.setdefault(label, next(fresh))
            shape += (size, size + 50) if "*" in axis else (size,)
        hint = str(typing.get_type_hints(function.__wrapped__)[argument])
        kind = jnp.bool_ if "Bool[" in hint else jnp.int32 if "Int[" in hint else jnp.float32
        given[argument] = jax.device_put(np.zeros(shape, kind))  # an operation of JAX is compiled for every shape
    return given, layouts


def swaps(name: str) -> list[tuple[str, int, int, bool]]:
    """Argument, two axes, and whether the swap can be noticed: one of both names stands elsewhere or is a number."""
    given, layouts = arguments_of(name)
    found = []
    for argument, layout in layouts.items():
        axes = layout.split()
        seen = " ".join(other for key, other in layouts.items() if key != argument)
        if "state" in given:
            seen += " batch heads features value_dim"
        elsewhere = [a.strip("*#").isdigit() or a.strip("*#") in re.findall(r"\w+", seen) for a in axes]
        for i, j in itertools.combinations(range(len(axes)), 2):
            if not {"*", "."} & {axes[i][0], axes[j][0]} and axes[i] != axes[j]:
                offset = sum("*" in axis for axis in axes[:i])
                known = elsewhere[i] or elsewhere[j] or axes.count(axes[i]) > 1 or axes.count(axes[j]) > 1
                found.append((argument, i + offset, j + offset, known))
    return found


@pytest.mark.parametrize("name", TABLE)
def test_axes_in_another_order(name):
    function = getattr(functional, name)
    given, layouts = arguments_of(name)
    static = {key: value for key, value in given.items() if key not in layouts}
    arrays = {key: value for key, value in given.items() if key in layouts}
    assert layouts
    jax.eval_shape(lambda arrays: function(**arrays, **static), arrays)
    for argument, i, j, known in swaps(name):
        wrong = {**given, argument: jax.device_put(np.swapaxes(given[argument], i, j))}
        if known:
            with pytest.raises(
                ValueError, match=r"^[\w.]+: given .*, allowed: \[.* at (axis|axes) .* \(\w+\)"
            ) as error:
                function(**wrong)
            assert argument in str(error.value)


@pytest.mark.parametrize("name", TABLE)
def test_none_and_another_kind_of_dtype(name):
    function = getattr(functional, name)
    given, layouts = arguments_of(name)
    hints = _annotations(function.__wrapped__)[1]
    wrong = {argument: [] if hints[argument].allows_others else [None] for argument in layouts}
    for argument, values in wrong.items():
        if kinds := hints[argument].kinds:
            dtype = np.float32 if jnp.bool_ in kinds else bool
            values.append(np.zeros(given[argument].shape, dtype))
    assert any(wrong.values()) or name == "relative_shift"  # which takes arrays of all dtypes
    for argument, values in wrong.items():
        for value in values:
            with pytest.raises(ValueError, match=rf"^{argument}: given (None|bool|float32), allowed: (an? |bool)\S+"):
                function(**{**given, argument: value})


def test_docstrings_begin_with_the_layout():
    """The first line of `Args` about an array holds its axes, as `[batch, length, heads, head_dim]`."""
    for name in TABLE:
        layouts = arguments_of(name)[1]
        if max(len(layout.split()) for layout in layouts.values()) > 1:
            args = getattr(functional, name).__doc__.split("Args:\n")[1]
            line = next(line.strip() for line in args.splitlines() if line.strip().split(":")[0] in layouts)
            assert "`[" in line, (name, line)


@pytest.mark.parametrize("name", RINGS)
def test_rings_and_tuples(name):
    args, kwargs, wrong = RINGS[name]
    with pytest.raises(ValueError, match=rf"{wrong}.*: given \(.*, allowed: \[.* at (axis|axes) \d"):
        getattr(functional, name)(*args, **kwargs)


def test_layouts_that_differ_between_functions():
    """Keys as `attention` has them where neighbours are wanted, and the other way round."""
    tokens, heads = jnp.zeros((2, 5, 3, 4)), jnp.zeros((2, 3, 5, 4))
    with pytest.raises(ValueError, match=r"keys: .* axis 1 \(heads\) as in queries, .*; axes 1 and 2 look swapped"):
        functional.neighbor_attention(tokens, jnp.zeros((2, 5, 3, 6, 4)), jnp.zeros((2, 5, 3, 6, 4)))
    with pytest.raises(ValueError, match=r"keys: given 5 heads, allowed: .* with a divisor of 3 at axis 2 \(heads\)"):
        functional.attention(tokens, heads, heads)
    with pytest.raises(ValueError, match=r"valid: .* at axis 1 \(memory\) as in keys"):
        functional.select_neighbors(tokens, tokens, jnp.ones((2, 5), bool), 2)


@pytest.mark.parametrize(
    "layouts, shapes, problem",
    [
        (("a b", "b a"), ((2, 3), (3, 2)), None),
        (("a b", "b a"), ((2, 3), (2, 3)), "allowed: [b, a] with 3 at axis 0 (b) as in x, (2, 3) for [a, b]; axes 0"),
        (("a b", "#a b"), ((2, 3), (1, 3)), None),
        (("a b", "#a b"), ((2, 3), (4, 3)), "[a or 1, b] with 2 at axis 0 (a)"),
        (("*a b", "*a"), ((2, 3, 4), (2, 3)), None),
        (("*a b", "*a"), ((2, 3, 4), (2,)), "[a...] with (2, 3) at axes 0 to 0 (a)"),
        (("*a b", "*#a"), ((2, 3, 4), (3,)), None),
        (("*#a b", "*a"), ((1, 3, 4), (2, 3)), None),
        (("*a b", "*#a"), ((2, 3, 4), (4,)), "[a...] with (2, 3)"),
        (("a 2", "a ..."), ((5, 2), (5, 7, 8)), None),
        (("a 2", "a"), ((5, 3), (5,)), "x: given (5, 3), allowed: [a, 2] with 2 at axis 1 (2)"),
        (("a a", "a"), ((5, 6), (5,)), "with 5 at axis 1 (a)"),
        (("a b", "a"), ((5, 6), (5, 1)), "y: given (5, 1), allowed: [a], not 2 axes"),
    ],
)
def test_check_shapes(layouts, shapes, problem):
    arrays = {name: (np.zeros(shape), layout) for name, layout, shape in zip("xy", layouts, shapes, strict=True)}
    if problem is None:
        return check_shapes(**arrays, z=(None, "whatever"))
    with pytest.raises(ValueError, match=re.escape(problem)):
        check_shapes(**arrays)
    return None


def test_a_wrong_call_is_pythons_own_error():
    with pytest.raises(TypeError, match="missing .* 'values'"):
        functional.attention(jnp.zeros((1, 1, 1, 1)), jnp.zeros((1, 1, 1, 1)))
    assert operation(lambda x: x)(3) == 3  # nothing that has a layout


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_a_mask_that_is_added_to_scores_is_refused(dtype):
    queries, added = jnp.ones((1, 2, 1, 4)), jnp.zeros((1, 1, 2, 2), dtype)
    line = f"^mask: given {jnp.dtype(dtype).name}, allowed: bool, True = it takes part; a mask is not added$"
    with pytest.raises(ValueError, match=line):
        attention(queries, queries, queries, mask=added)
    assert attention(queries, queries, queries, mask=added == 0).shape == queries.shape
