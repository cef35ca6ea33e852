"""One memory under test: its inputs, and the few programs that all laws share and that are compiled once."""

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from memjax.memory.interface import state_axes
from memjax.typing import tree_dataclass
from tests.compiling import AS_USERS_DO

ROWS, LENGTH, DIM, SEGMENTS, SOURCE = 3, 4, 8, 3, 5


class Fifo(NamedTuple):
    """A first-in first-out memory as the laws see it, oldest slot first.

    Attributes:
      contents: `[batch, slots, features]`, what one token has stored.
      valid: bool `[batch, slots]`.
      positions: int `[batch, slots]`, the token's position in its document, or None.
    """

    contents: np.ndarray
    valid: np.ndarray
    positions: np.ndarray | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Case:
    """What the laws need to know about a memory.

    Attributes:
      name: of the case.
      make: `make(dtype)`, the module for a dtype of computation; its dropout is on, so that law 13 is not empty.
      site: "layer", "stack", "cross", "output", or "model" for a language model with a `SoftVocabulary`.
      causal: False for a bidirectional stack, which laws 4 and 11 do not concern.
      stops_gradient: what the paper says of the gradient from one segment to the one before.
      granularity: "segment" = the state is written once a segment; "token" = every token, with an empty buffer.
      capacity: tokens that the first of `fifos` holds; 0 = not a first-in first-out memory (no law 7).
      fifos: the state's first-in first-out memories, where every token stores what follows from its input alone.
      fixed_length: the memory takes one segment length only.
      slots: end of a leaf's path -> its slot axis in a state without layers, for law 8; {} = nothing is stored.
      unread: slots that no query reads, with the reason, by the same name.
      left: ends of paths of leaves that a restart does not empty, only marks as not valid, with the reason; they are
        among `slots`.
      exempt: law -> why it does not hold here.
      is_variant: its parts have cases of their own, or it is a toy: most of its laws are left to `make test-laws`.
    """

    name: str
    make: Callable[[Any], Any]
    site: str = "layer"
    causal: bool = True
    stops_gradient: bool = True
    granularity: str = "segment"
    capacity: int = 0
    fifos: Callable[[Any], list[Fifo]] | None = None
    fixed_length: bool = False
    slots: Mapping[str, int] = dataclasses.field(default_factory=dict)
    unread: Mapping[str, Mapping[int, str]] = dataclasses.field(default_factory=dict)
    left: Mapping[str, str] = dataclasses.field(default_factory=dict)
    exempt: Mapping[str, str] = dataclasses.field(default_factory=dict)
    is_variant: bool = False

    def exemptions(self) -> dict[str, str]:
        """Law -> reason, with those that follow from the other fields."""
        reasons = dict(self.exempt)
        if not self.causal:
            reasons |= {"causality": "reads both ways", "decode": "reads both ways: an encoder does not decode"}
        if not self.capacity:
            reasons["capacity"] = "not a first-in first-out memory"
        if not self.slots:
            reasons["use"] = "nothing is stored"
        return reasons


class Run:
    """A case with random variables in one dtype; programs are compiled when a law first needs them.

    With `as_users`, the float32 step and decode are compiled as users run them, which takes ten times as long.
    """

    def __init__(self, case: Case, dtype: str = "float32", state_dtype: str | None = None, *, as_users: bool = True):
        self.case, self.dtype, self.as_users = case, jnp.dtype(dtype), as_users
        self.state_dtype = jnp.dtype(state_dtype or dtype)
        self.tolerance = {"float32": 1e-5, "float64": 1e-11}.get(dtype, np.nan)
        self.traces = {"decode": 0, "forward": 0}
        with self.precision():
            self.module = case.make(self.dtype)

    def precision(self) -> contextlib.AbstractContextManager[Any]:
        return jax.enable_x64(True) if self.dtype == np.float64 else contextlib.nullcontext()

    # --- what goes in

    def random(self, seed: int, *shape: int) -> jax.Array:
        return jax.device_put(np.random.default_rng(seed).normal(size=shape).astype(self.dtype))

    def xs(self, segments: int, seed: int = 1, length: int = LENGTH) -> jax.Array:
        return self.random(seed, segments, ROWS, length, DIM)

    def extras(self) -> dict[str, jax.Array]:
        if self.case.site != "cross":
            return {}
        mask = jnp.arange(SOURCE)[None, :] < jnp.array([SOURCE, 2, 4])[:, None]
        return {"source": self.random(9, ROWS, SOURCE, DIM), "source_mask": mask}

    @functools.cached_property
    def variables(self) -> Any:
        with self.precision():
            return self.random_variables()

    def random_variables(self) -> Any:
        """Variables of the right shapes, nowhere zero: no compilation, and no bias or gate that hides a mistake."""
        init = functools.partial(self.module.init, start_of_document=starts())
        x = jnp.zeros((ROWS, LENGTH), jnp.int32) if self.case.site == "model" else self.xs(1)[0]
        keys = {name: jax.random.key(0) for name in ("params", "dropout", "memory", "features")}
        shapes = jax.eval_shape(functools.partial(init, **self.extras()), keys, x, self.init_state())

        def draw(path: Any, leaf: Any) -> jax.Array:
            name = jax.tree_util.keystr(path, simple=True, separator="/")
            seed = list(name.encode())
            value = np.random.default_rng(seed).normal(size=leaf.shape) * 0.4 + name.endswith("scale")
            return value.astype(jnp.promote_types(self.dtype, jnp.float32))

        variables = jax.tree_util.tree_map_with_path(draw, shapes)
        with jax.ensure_compile_time_eval():  # a law may first ask for them while it traces
            return jax.device_put(variables)

    def init_state(self, dtype: Any = None) -> Any:
        return self.module.init_state(ROWS, self.state_dtype if dtype is None else dtype)

    def fresh_state(self) -> Any:
        """The state of rows that begin to decode a document without any token read."""
        state = self.init_state()
        if self.case.site != "cross":
            return state
        return self.module.apply(self.variables, **self.extras(), state=state, method="read_source")

    def any_state(self, seed: int) -> Any:
        """Random finite contents, any validity, counters in range."""
        generator = np.random.default_rng(seed)
        shapes = jax.eval_shape(self.init_state)
        leaves = dict(named_leaves(shapes))

        def draw(path: Any, leaf: Any) -> jax.Array:
            if leaf.dtype == bool:
                return jax.device_put(generator.random(leaf.shape) < 0.7)
            if jnp.issubdtype(leaf.dtype, jnp.integer):
                # A cursor points at one of the slots beside it.
                ring = jax.tree_util.keystr(path[:-1], simple=True, separator="/") + "/valid"
                bound = leaves[ring].shape[-1] if ring in leaves else DIM
                return jax.device_put(generator.integers(0, bound, leaf.shape).astype(leaf.dtype))
            return jax.device_put(generator.normal(size=leaf.shape).astype(leaf.dtype))

        return jax.tree_util.tree_map_with_path(draw, shapes)

    def used_state(self, segments: int = 5) -> Any:
        """The state after some whole segments, every slot filled."""
        state = self.init_state()
        for segment, x in enumerate(self.xs(segments, seed=5)):
            state = self.forward(x, state, start=starts(*[segment == 0] * ROWS))[1]
        return state

    # --- programs

    def forward(self, x, state, *, start=None, mask=None, extras=None) -> tuple[Any, Any, Any]:
        """One deterministic segment, compiled once: `(y, state, aux)`."""
        start = starts() if start is None else start
        mask = full_mask(x.shape[1]) if mask is None else mask
        return self._forward(self.variables, x, state, start, mask, self.extras() if extras is None else extras)

    def sensitivities(self, x, state, *, start, mask) -> jax.Array:
        """`[t, batch, length, dim]`: gradient of a random combination of `y[:, t]` with respect to `x`."""
        return self._sensitivities(self.variables, x, state, start, mask, self.extras())

    def scan(self, segments: "Segments") -> tuple[Any, Any, Any]:
        """`lax.scan` over segments: `(ys, state, aux of each segment)`."""
        return self._scan(self.variables, segments, self.extras())

    def gradients(self, segments: "Segments") -> tuple[Any, Any]:
        """Of a scan with `jax.checkpoint`: gradients of `sum_s weight_s (<c, y_s> + losses_s)` to params and inputs,
        and `(ys, state, aux)`. The segments have keys: dropout and sampling are on.
        """
        return self._gradients(self.variables, segments, self.extras())

    def gradients_by_hand(self, segments: "Segments") -> tuple[Any, Any]:
        """The same by a Python loop over segments forward, and the chain rule backward: nothing is replayed."""
        states, outputs = [segments.state], []
        count = segments.x.shape[0]
        weighted, zeros = self._weighted(segments.weights, segments.x), self._zeros(segments)
        for s in range(count):
            y, state, aux, _ = self._pull(self.variables, states[-1], segments.at(s), self.extras(), *zeros)
            states.append(state)
            outputs.append((y, aux))
        to_params, to_x, to_state = None, [], zeros[1]
        for s in reversed(range(count)):
            cotangents = (weighted[s], to_state, segments.weights[s])
            *_, (more, x, to_state) = self._pull(self.variables, states[s], segments.at(s), self.extras(), *cotangents)
            to_params = more if to_params is None else jax.tree.map(np.add, to_params, more)
            to_x.insert(0, np.asarray(x))
        ys, aux = jax.tree.map(lambda *leaves: np.stack(leaves), *outputs)
        return (to_params, np.stack(to_x)), (ys, states[-1], aux)

    def decode(self, x, decode_state, active) -> tuple[Any, Any]:
        return self._decode(self.variables, x, decode_state, active)

    def decode_segment(self, x, decode_state, lengths) -> tuple[Any, Any]:
        read = functools.partial(self.apply, method="decode_segment")
        return jax.jit(read)(self.variables, x, decode_state, lengths=jnp.asarray(lengths))

    def apply(self, variables, x, state, **named) -> Any:
        """The module on embeddings, whatever its site takes."""
        if self.case.site != "model":
            return self.module.apply(variables, x, state, **named)
        variables = {**variables, "offsets": {"vocabulary": {"x": x}}}
        return self.module.apply(variables, jnp.zeros(x.shape[:2], jnp.int32), state, **named)

    def step(self, variables, x, state, start, mask, extras, key=None) -> tuple[Any, Any, Any]:
        noise = {}
        if key is not None:
            dropout, memory = jax.random.split(key)
            noise = {"deterministic": False, "rngs": {"dropout": dropout, "memory": memory}}
        return self.apply(variables, x, state, start_of_document=start, mask=mask, **extras, **noise)

    @functools.cached_property
    def _forward(self):
        def forward(*args):
            self.traces["forward"] += 1
            return self.step(*args)

        return jax.jit(forward, compiler_options=self._options())

    @functools.cached_property
    def _sensitivities(self):
        def sensitivities(variables, x, state, start, mask, extras):
            y, pull = jax.vjp(lambda x: self.step(variables, x, state, start, mask, extras)[0], x)
            at = jnp.eye(x.shape[1], dtype=y.dtype)[:, None, :, None]  # [t, 1, l, 1]
            return jax.vmap(lambda one: pull(one)[0])(at * self.random(3, *y.shape).astype(y.dtype)[None])

        return jax.jit(sensitivities)

    def _over(self, variables, segments: "Segments", extras, form: str) -> tuple[Any, Any, Any]:
        def body(state, one: Segments):
            y, state, aux = self.step(variables, one.x, state, one.start, one.mask, extras, one.key)
            return state, (y, aux)

        body = jax.checkpoint(body, prevent_cse=False) if form == "checkpoint" else body
        state, (ys, aux) = jax.lax.scan(body, segments.state, segments.without_state())
        return ys, state, aux

    @functools.cached_property
    def _scan(self):
        def scan(variables, segments, extras):
            return self._over(variables, segments, extras, "scan")

        return jax.jit(scan)

    def _weighted(self, weights, x) -> Any:
        return weights.reshape(-1, 1, 1, 1) * self.random(4, *x.shape).astype(weights.dtype)

    def _zeros(self, segments: "Segments") -> tuple[Any, Any]:
        """Cotangents of y, of the floating leaves of a state and of losses."""
        to_state = [jnp.zeros_like(leaf) for leaf in floating(segments.state)[0]]
        return jnp.zeros_like(segments.x[0]), to_state, jnp.zeros_like(segments.weights[0])

    @functools.cached_property
    def _gradients(self):
        def loss(params, xs, variables, segments: Segments, extras):
            outputs = self._over({**variables, "params": params}, segments.replace(x=xs), extras, "checkpoint")
            total = (self._weighted(segments.weights, xs) * outputs[0]).sum()
            return total + sum((segments.weights * loss).sum() for loss in totals(outputs[2])), outputs

        def gradients(variables, segments: Segments, extras):
            return jax.grad(loss, argnums=(0, 1), has_aux=True)(
                variables["params"], segments.x, variables, segments, extras
            )

        return jax.jit(gradients)

    @functools.cached_property
    def _pull(self):
        def pull(variables, state, segment: Segments, extras, to_y, to_state, to_losses):
            leaves, join = floating(state)

            def step(params, x, leaves):
                arguments = ({**variables, "params": params}, x, join(leaves), segment.start, segment.mask, extras)
                y, new, aux = self.step(*arguments, segment.key)
                return (y, floating(new)[0], totals(aux)), (new, aux)

            (y, _, losses), back, (new, aux) = jax.vjp(step, variables["params"], segment.x, leaves, has_aux=True)
            return y, new, aux, back((to_y, to_state, [jnp.asarray(to_losses, loss.dtype) for loss in losses]))

        return jax.jit(pull)

    @functools.cached_property
    def _decode(self):
        def decode(variables, x, decode_state, active):
            self.traces["decode"] += 1
            return self.apply(variables, x, decode_state, active=active, method="decode")

        return jax.jit(decode, compiler_options=self._options())

    def _options(self) -> dict[str, Any] | None:
        return AS_USERS_DO if self.as_users and self.dtype == np.float32 else None


@tree_dataclass
class Segments:
    """Arguments of consecutive segments, leaves with segments at axis 0 (but for the state before them)."""

    state: Any
    x: Any
    start: Any
    mask: Any
    weights: Any
    key: Any = None

    def replace(self, **changes: Any) -> "Segments":
        return dataclasses.replace(self, **changes)

    def without_state(self) -> "Segments":
        return self.replace(state=None)

    def at(self, s: int) -> "Segments":
        return jax.tree.map(lambda leaf: leaf[s], self.without_state())


def floating(state: Any) -> tuple[list[Any], Callable[[list[Any]], Any]]:
    """The leaves of a state that have a gradient, and the function that puts them back."""
    leaves, structure = jax.tree.flatten(state)
    places = [place for place, leaf in enumerate(leaves) if jnp.issubdtype(leaf.dtype, jnp.floating)]

    def join(chosen: list[Any]) -> Any:
        new = list(leaves)
        for place, leaf in zip(places, chosen, strict=True):
            new[place] = leaf
        return jax.tree.unflatten(structure, new)

    return [leaves[place] for place in places], join


def totals(aux: Any) -> list[Any]:
    """The losses that a memory adds."""
    return [loss.total for loss in aux.losses.values()]


def starts(*rows: bool) -> jax.Array:
    return jax.device_put(np.array(rows or [False] * ROWS))


def full_mask(length: int = LENGTH) -> jax.Array:
    return jax.device_put(np.ones((ROWS, length), bool))


def prefix_mask(*lengths: int) -> jax.Array:
    """`[batch, length]`: as many real tokens in each row."""
    return jax.device_put(np.arange(LENGTH)[None, :] < np.array(lengths)[:, None])


def row(state: Any, index: int) -> Any:
    """One batch row of every leaf, as NumPy arrays."""
    return jax.tree.map(lambda leaf, axis: np.take(np.asarray(leaf), index, axis), state, state_axes(state))


def rows_of(tree: Any, indices: list[int]) -> Any:
    return jax.tree.map(lambda leaf, axis: np.take(np.asarray(leaf), indices, axis), tree, state_axes(tree))


def named_leaves(state: Any) -> Iterator[tuple[str, Any]]:
    for path, leaf in jax.tree_util.tree_flatten_with_path(state)[0]:
        yield jax.tree_util.keystr(path, simple=True, separator="/"), leaf


def assert_identical(a: Any, b: Any) -> None:
    """Equal structure, shapes, dtypes and bits (NaN equals itself)."""
    assert jax.tree.structure(a) == jax.tree.structure(b)
    for (name, x), y in zip(named_leaves(a), jax.tree.leaves(b), strict=True):
        x, y = np.asarray(x), np.asarray(y)
        assert (x.dtype, x.shape) == (y.dtype, y.shape), name
        assert np.ascontiguousarray(x).tobytes() == np.ascontiguousarray(y).tobytes(), f"{name} differs"


def assert_close(a: Any, b: Any, tolerance: float) -> None:
    """Equal structure; leaves within `tolerance`, relative to the largest number of the leaf where that exceeds 1."""
    assert jax.tree.structure(a) == jax.tree.structure(b)
    for (name, x), y in zip(named_leaves(a), jax.tree.leaves(b), strict=True):
        x, y = np.asarray(x), np.asarray(y)
        if x.dtype == bool or np.issubdtype(x.dtype, np.integer):
            np.testing.assert_array_equal(x, y, err_msg=name)
        else:
            scale = max(1.0, float(np.abs(y).max(initial=0)))
            np.testing.assert_allclose(x, y, rtol=0, atol=tolerance * scale, err_msg=name)


def random_keys(seed: int) -> jax.Array:
    """A key for each segment, of a generator that compiles fast: which bits it draws does not matter here."""
    return jax.random.split(jax.random.key(seed, impl="unsafe_rbg"), SEGMENTS)
