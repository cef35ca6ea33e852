"""Wrong calls of modules and functions: one line with the name as typed, what was given, and what is allowed."""

import typing
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import jaxtyping
import numpy as np
import pytest
from flax import serialization

from memjax import config, functional, memory
from memjax.lifelong import init_memory, nearest, sample, write
from memjax.lifelong.host_memory import HostMemory
from memjax.lifelong.policies import reservoir_policy
from memjax.memory.checks import CheckedModule, _field_hints
from memjax.models import make_language_model
from memjax.models.feed_forward import FeedForwardLayer
from memjax.typing import Batch, EmptyState
from tests.contract.cases import CASES
from tests.contract.harness import DIM, LENGTH, ROWS, Run, assert_identical
from tests.memory.docstrings_test import CLASSES

MEMORIES = [
    case
    for case in CASES
    if not case.is_variant
    and case.site in ("layer", "stack", "cross")
    and "memjax" in type(case.make(jnp.float32)).__module__
]
X = jax.ShapeDtypeStruct((ROWS, LENGTH, DIM), jnp.float32)
STARTS = jax.ShapeDtypeStruct((ROWS,), bool)


@pytest.fixture(autouse=True)
def no_type_checker():
    """With `--jaxtyping`, which would look at the arguments before memjax does."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


def like(shape: Any, dtype: Any = jnp.float32) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, dtype)


def other_state(module: Any) -> Any:
    """The state of another memory, with the rows of `X`."""
    lstm, transformer = memory.LSTMLayer(DIM), memory.TransformerXLAttention(DIM, 2, memory_length=3)
    return jax.eval_shape(lambda: (transformer if isinstance(module, memory.LSTMLayer) else lstm).init_state(ROWS))


MISTAKES: dict[str, tuple[Callable[[Any], dict[str, Any]], str]] = {
    "no segment": (lambda module: {"x": None}, r"x: given None, allowed: an array \[batch, length, dim\]"),
    "a list": (lambda module: {"x": [[0.5]]}, r"x: given list, allowed: an array \[batch, length, dim\]"),
    "one row without its axis": (
        lambda module: {"x": like((4, 8))},
        r"x: given \(4, 8\), allowed: \[batch, length, dim\]",
    ),
    "another width": (
        lambda module: {"x": like((ROWS, LENGTH, DIM - 2))},
        r"(x|source): given .*, allowed: .* at axis 2 \(dim\)( as in x|, the module's dim = 8)",
    ),
    "token ids": (lambda module: {"x": like(X.shape, jnp.int32)}, "x: given int32, allowed: a float dtype"),
    "no state": (
        lambda module: {"state": None},
        "state: given None, allowed: the state that init_state or the last call",
    ),
    "the state of another memory": (
        lambda module: {"state": other_state(module)},
        r"state: given \w+State, allowed: \w+State, as init_state\(3\) makes it",
    ),
    "a start without rows": (
        lambda module: {"start_of_document": like((), bool)},
        r"start_of_document: given \(\), allowed: \[batch\], not 0 axes",
    ),
    "a start of numbers": (
        lambda module: {"start_of_document": like((ROWS,))},
        "start_of_document: given float32, allowed: bool, True = a document begins here, and the memory of the row",
    ),
    "a mask of another length": (
        lambda module: {"mask": like((ROWS, 3), bool)},
        r"mask: given \(3, 3\), allowed: \[batch, length\] with 4 at axis 1 \(length\) as in x",
    ),
    "a mask that is added": (
        lambda module: {"mask": like((ROWS, LENGTH))},
        "mask: given float32, allowed: bool, True = it takes part; a mask is not added",
    ),
}


@pytest.mark.parametrize("case", MEMORIES, ids=lambda case: case.name)
def test_calls_of_every_memory(case):
    module, extras = case.make(jnp.float32), Run(case).extras()
    state = jax.eval_shape(lambda: module.init_state(ROWS))
    given = {"x": X, "state": state, "start_of_document": STARTS}
    for change, line in MISTAKES.values():
        with pytest.raises(ValueError, match=line) as error:
            jax.eval_shape(
                lambda arguments: module.init(jax.random.key(0), **arguments, **extras), {**given, **change(module)}
            )
        assert "\n" not in str(error.value).split("\n-----")[0]  # what JAX adds to errors of a trace
    if jax.tree.leaves(state):
        rows = jax.eval_shape(lambda: module.init_state(ROWS + 1))
        with pytest.raises(ValueError, match="state: given one of 4 rows, allowed: 3, the rows of x; begin with"):
            jax.eval_shape(
                lambda arguments: module.init(jax.random.key(0), **arguments, **extras), {**given, "state": rows}
            )
    for size in (0, 2.0, None, "2"):
        with pytest.raises(ValueError, match="batch_size: given .*, allowed: an integer of at least 1"):
            module.init_state(size)


def modules() -> dict[str, Any]:
    """An instance of every class of the package that a case is made of, with the parts inside."""
    found = {"FeedForwardLayer": FeedForwardLayer(DIM, 12)}

    def add(module: Any) -> None:
        if isinstance(module, tuple):
            for part in module:
                add(part)
        elif isinstance(module, CheckedModule):
            found.setdefault(type(module).__name__, module)
            for name in _field_hints(type(module)):
                add(getattr(module, name))

    for case in CASES:
        add(case.make(jnp.float32))
    return found


def words_of(hint: Any) -> list[str]:
    """All words of a `Literal`, also of one in a union."""
    parts = (hint, *typing.get_args(hint))
    return [word for part in parts if typing.get_origin(part) is typing.Literal for word in typing.get_args(part)]


MODULES = modules()
WORDS = [
    (name, field, words_of(hint))
    for name, module in MODULES.items()
    for field, hint in _field_hints(type(module)).items()
    if words_of(hint)
]


@pytest.mark.parametrize("name, field, words", WORDS, ids=lambda value: value if isinstance(value, str) else "")
def test_an_unknown_word_is_refused_when_the_module_is_made(name, field, words):
    with pytest.raises(ValueError) as error:
        MODULES[name].clone(**{field: "exakt"})
    line = str(error.value)
    assert line.startswith(f"{field}: given 'exakt', allowed: one of ") and all(repr(word) in line for word in words)


def test_no_memory_takes_any_text_for_a_word():
    """A field that is a word has a `Literal`; free texts are names."""
    names = {"query_feature", "slot_axis"}
    free = {
        (cls.__name__, field)
        for cls in CLASSES
        for field, hint in _field_hints(cls).items()
        if hint in (str, str | None)
    }
    assert {field for _, field in free} == names


OF_LAYERS = [name for name, module in MODULES.items() if {"dim", "head_dim"} <= _field_hints(type(module)).keys()]


@pytest.mark.parametrize("name", OF_LAYERS)
def test_the_width_of_a_head_has_the_usual_default(name):
    module = MODULES[name]
    assert module.clone(head_dim=0).head_dim == module.dim // module.num_heads
    with pytest.raises(ValueError, match="num_heads: given 3, allowed: a divisor of dim = 8; or give head_dim"):
        module.clone(head_dim=0, num_heads=3)


SIZES = {"dim": 8, "num_heads": 2}
MADE: dict[str, tuple[Callable[[], Any], str]] = {
    "a memory whose length was forgotten": (
        lambda: memory.MemorizingAttention(**SIZES),
        "memory_length: not given, allowed: 0 or more slots",
    ),
    "Transformer-XL without a length": (
        lambda: memory.TransformerXLAttention(**SIZES),
        "memory_length: not given, allowed: 0 or more slots",
    ),
    "compression without slots": (
        lambda: memory.CompressiveAttention(**SIZES, memory_length=4),
        "compressed_memory_length: not given, allowed: 0 or more slots",
    ),
    "memory tokens without a number": (
        lambda: memory.MemoryTokenEncoder((), 8),
        "num_tokens: not given, allowed: 0 or more slots",
    ),
    "a signal that was forgotten": (
        lambda: memory.InfinityFormerAttention(**SIZES, memory_length=0),
        "long_term: not given, allowed: LongTermMemory",
    ),
    "a signal without a segment": (
        lambda: memory.LongTermMemory(**SIZES),
        "segment_length: not given, allowed: an integer of at least 1",
    ),
    "a negative length": (
        lambda: memory.TransformerXLAttention(**SIZES, memory_length=-1),
        "memory_length: given -1, allowed: 0 or more slots",
    ),
    "a length with a point": (
        lambda: memory.TransformerXLAttention(**SIZES, memory_length=4.5),
        "memory_length: given 4.5, allowed: an integer",
    ),
    "no heads": (
        lambda: memory.TransformerXLAttention(dim=8, num_heads=0, memory_length=4),
        "num_heads: given 0, allowed: an integer of at least 1",
    ),
    "a width as a text": (lambda: memory.LSTMLayer("8"), "dim: given '8', allowed: an integer of at least 1"),
    "a projector by its name": (
        lambda: memory.TransformerXLAttention(**SIZES, memory_length=4, projector="gpt2"),
        "projector: given 'gpt2', allowed: Projector",
    ),
    "a memory in the place of a feed-forward part": (
        lambda: FeedForwardLayer(8, 16, memory=memory.LSTMLayer(8)),
        "memory: given LSTMLayer, allowed: StatelessMemory or None",
    ),
    "a state of integers": (
        lambda: memory.TransformerXLAttention(**SIZES, memory_length=4).init_state(2, jnp.int32),
        "dtype: given int32, allowed: a float dtype",
    ),
    "more neighbours than slots": (
        lambda: memory.MemorizingAttention(**SIZES, memory_length=4).init_state(2),
        "num_neighbors: given 32, allowed: 1 to memory_length = 4",
    ),
}


@pytest.mark.parametrize("make, line", MADE.values(), ids=MADE)
def test_modules_that_are_made_wrongly(make, line):
    with pytest.raises(ValueError) as error:
        make()
    assert str(error.value) == line


ALLOWED = r", allowed: \(x, state, \*, start_of_document, mask=None, deterministic=True, shared=None\)"


@pytest.mark.parametrize(
    "arguments, options, line",
    [
        ((X,), {}, "TransformerXLAttention: missing a required.* argument: 'state'" + ALLOWED),
        ((X, None), {}, "TransformerXLAttention: missing a required.* argument: 'start_of_document'" + ALLOWED),
        ((X, None, STARTS), {}, "TransformerXLAttention: too many positional arguments" + ALLOWED),
        ((X, None), {"reset": STARTS}, "TransformerXLAttention: .*" + ALLOWED),
    ],
)
def test_calls_with_too_few_too_many_or_other_arguments(arguments, options, line):
    module = memory.TransformerXLAttention(**SIZES, memory_length=4)
    with pytest.raises(TypeError, match=line):
        module.apply({}, *arguments, **options)


@pytest.mark.parametrize("value, kind", [(True, "bool"), (1, "int"), ([True], "list")])
def test_a_start_that_is_no_array(value, kind):
    module = memory.TransformerXLAttention(**SIZES, memory_length=4)
    with pytest.raises(ValueError, match=rf"^start_of_document: given {kind}, allowed: an array \[batch\]"):
        module.apply({}, jnp.zeros((1, 2, 8)), module.init_state(1), start_of_document=value)


def test_a_language_model_says_what_its_tokens_are():
    model = make_language_model(config.Model(dim=8, num_layers=1, num_heads=2), vocab_size=5)
    state, tokens = jax.eval_shape(lambda: model.init_state(ROWS)), like((ROWS, 4), jnp.int32)
    for change, line in (
        ({"tokens": like((ROWS, 4))}, "tokens: given float32, allowed: an integer dtype"),
        ({"tokens": like((4,), jnp.int32)}, r"tokens: given \(4,\), allowed: \[batch, length\], not 1 axes"),
        ({"state": other_state(model)}, "state: given .*, allowed: LanguageModelState, as init_state"),
        ({"tokens": like((ROWS, 0), jnp.int32)}, "x: given a segment of 0 tokens"),
    ):
        given = {"tokens": tokens, "state": state, "start_of_document": like((ROWS,), bool), **change}
        with pytest.raises(ValueError, match=line):
            jax.eval_shape(lambda given: model.init(jax.random.key(0), **given), given)


QUERIES, ROWS_OF_KEYS = np.zeros((2, 3, 4, 8), np.float32), np.zeros((2, 4, 5, 8), np.float32)
VALID = np.ones((2, 5), bool)
FUNCTIONS: dict[str, tuple[Callable[[], Any], str]] = {
    "a method that is none": (
        lambda: functional.select_neighbors(QUERIES.swapaxes(1, 2), ROWS_OF_KEYS, VALID, 2, method="exakt"),
        "method: given 'exakt', allowed: one of 'exact', 'approximate', 'bucket'",
    ),
    "more neighbours than slots": (
        lambda: functional.select_neighbors(QUERIES.swapaxes(1, 2), ROWS_OF_KEYS, VALID, 9),
        "num_neighbors: given 9, allowed: 1 to 5, the slots of the memory",
    ),
    "a normalizer that is none": (
        lambda: functional.init_linear_state(1, 1, 2, 2, normalizer="sum"),
        "normalizer: given 'sum', allowed: one of 'add', 'clamp', 'count', 'none'",
    ),
    "a mask of 0 and -inf": (
        lambda: functional.attention(QUERIES, QUERIES, QUERIES, mask=np.zeros((1, 1, 3, 3), np.float32)),
        "mask: given float32, allowed: bool, True = it takes part; a mask is not added",
    ),
    "no window": (
        lambda: functional.visibility(3, None, None, window=0),
        "window: given 0, allowed: at least 1 (the query itself), or None for no limit",
    ),
    "a rate above the slots": (
        lambda: functional.max_pool(np.zeros((1, 2, 3), np.float32), 4),
        "rate: given 4, allowed: 1 to 2, the slots that are compressed",
    ),
    "an odd width of sinusoids": (
        lambda: functional.sinusoids(np.arange(3), 5),
        "dim: given 5, allowed: a positive even number (one sine and one cosine per frequency)",
    ),
    "a state function of a memory without a state": (
        lambda: memory.where_rows(None, 1, 2),
        "condition: given None, allowed: an array [batch]",
    ),
}


@pytest.mark.parametrize("call, line", FUNCTIONS.values(), ids=FUNCTIONS)
def test_functions_that_are_called_wrongly(call, line):
    with pytest.raises(ValueError) as error:
        call()
    assert str(error.value) == line


KEY, POLICY = jax.random.key(0), reservoir_policy()
EMPTY = init_memory({"x": jnp.zeros(2), "y": jnp.zeros(())}, capacity=4)
OFFERED = {"x": jnp.ones((3, 2)), "y": jnp.ones(3)}
REPLAY: dict[str, tuple[Callable[[], Any], str]] = {
    "a row without arrays": (
        lambda: init_memory({}, 4),
        "row: given {}, allowed: a tree with one array or more, such as a Batch or a dict",
    ),
    "a row with a text": (
        lambda: init_memory({"text": "a"}, 4),
        "row.text: given 'a' of str, allowed: an array or jax.ShapeDtypeStruct",
    ),
    "a batch without weights": (
        lambda: init_memory(Batch(jnp.zeros(3), jnp.zeros(3), jnp.ones(3, bool), None, jnp.array(True)), 4),
        "row.weights: given None, allowed: an array; rows without it are a dict, not a Batch",
    ),
    "a capacity with a point": (lambda: init_memory(jnp.zeros(2), 4.0), "capacity: given 4.0, allowed: 1 or more rows"),
    "no memory": (
        lambda: sample(OFFERED, KEY, 2),
        "memory: given dict, allowed: the result of init_memory or write",
    ),
    "rows without an array": (
        lambda: write(EMPTY, {"x": OFFERED["x"]}, KEY, POLICY),
        "rows.y: given none, allowed: float32 [rows]",
    ),
    "rows of another width": (
        lambda: write(EMPTY, {**OFFERED, "x": jnp.ones((3, 5))}, KEY, POLICY),
        "rows.x: given float32 [3, 5], allowed: float32 [rows, 2]",
    ),
    "one row without its axis": (
        lambda: write(EMPTY, {"x": jnp.zeros(2), "y": jnp.zeros(())}, KEY, POLICY),
        "rows.x: given float32 [2], allowed: float32 [rows, 2]",
    ),
    "a tuple in place of a dict": (
        lambda: write(EMPTY, (OFFERED["x"], OFFERED["y"]), KEY, POLICY),
        "rows: given tuple, allowed: dict, as init_memory was given",
    ),
    "no rows": (lambda: write(EMPTY, None, KEY, POLICY), "rows: given None, allowed: dict, as init_memory was given"),
    "None for a memory": (
        lambda: sample(None, KEY, 2),
        "memory: given None, allowed: the result of init_memory or write",
    ),
    "rows of two numbers": (
        lambda: write(EMPTY, {**OFFERED, "y": jnp.ones(2)}, KEY, POLICY),
        "rows.y: given 2 rows, allowed: 3, as rows.x",
    ),
    "a seed for a key": (
        lambda: write(EMPTY, OFFERED, 0, POLICY),
        "key: given 0, allowed: a random key, such as jax.random.key(0)",
    ),
    "a policy that was not made": (
        lambda: write(EMPTY, OFFERED, KEY, reservoir_policy),
        "policy: given reservoir_policy, allowed: one of memjax.lifelong.policies, such as reservoir_policy()",
    ),
    "no rows to draw": (lambda: sample(EMPTY, KEY, 0), "number: given 0, allowed: 1 or more rows"),
    "a search without keys": (
        lambda: nearest(EMPTY, jnp.zeros((1, 2)), 1),
        "memory: given one without keys, allowed: init_memory with key_dim of 1 or more",
    ),
}


@pytest.mark.parametrize("call, line", REPLAY.values(), ids=REPLAY)
def test_replay_that_is_called_wrongly(call, line):
    with pytest.raises(ValueError) as error:
        call()
    assert str(error.value) == line


@pytest.mark.parametrize("row", [jnp.zeros(2), {"a": (jnp.zeros((2, 3), jnp.int32), jnp.zeros((), bool))}, [0.5, 1]])
@pytest.mark.parametrize("place", ["device", "host"])
def test_any_tree_is_a_row(row, place):
    """What was written is drawn, and padding has weights of 0."""
    rows = jax.tree.map(lambda leaf: jnp.full((2, *jnp.shape(leaf)), 1, jnp.result_type(leaf)), row)
    kept = init_memory(row, 4) if place == "device" else HostMemory(row, 4)
    if place == "device":
        kept = write(kept, rows, KEY, POLICY)
        drawn, weights = sample(kept, KEY, 3, replace=False)
    else:
        kept.write(rows, KEY, POLICY)
        drawn, weights = kept.sample(KEY, 3, replace=False)
    assert sorted(weights.tolist()) == [0, 1, 1] and jax.tree.structure(drawn) == jax.tree.structure(row)
    for leaf in jax.tree.leaves(drawn):
        assert (np.asarray(leaf).reshape(3, -1) == np.asarray(weights)[:, None]).all()


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_states_pass_through_flax_serialization(case):
    run = Run(case)
    state = run.any_state(1)
    again = serialization.from_bytes(run.init_state(), serialization.to_bytes(state))
    assert_identical(again, state)
    assert jax.tree.structure(again) == jax.tree.structure(state)
    assert_identical(serialization.from_state_dict(run.init_state(), serialization.to_state_dict(state)), state)
    assert state.replace() == state if isinstance(state, EmptyState) else type(state.replace()) is type(state)


def test_a_saved_state_of_another_memory_is_refused():
    states = [memory.LSTMLayer(8).init_state(1), memory.TransformerXLAttention(8, 2, memory_length=3).init_state(1)]
    line = "saved: given cell, hidden, allowed: hidden, valid, the fields of TransformerXLState"
    with pytest.raises(ValueError, match=line):
        serialization.from_state_dict(states[1], serialization.to_state_dict(states[0]))
    assert states[0].replace(cell=1.0).cell == 1.0


def test_there_are_forty_of_them_and_more():
    assert len(MISTAKES) + len(MADE) + len(FUNCTIONS) + len(REPLAY) >= 40
