"""Transformer layers and the stack that threads memory through them.

A layer is an attention part (which may carry a memory) and a feed-forward part; each part gets the un-normalised
residual stream and owns its norm, dropout and residual connection. Neighbouring layers with equal fields form one
scanned group, so that compile time does not grow with depth.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from memjax.axes import constrain, named
from memjax.memory.contract import LayerMemory, LayerState, Memory, StackState, Stateless
from memjax.memory.projections import ACTIVATIONS, Residual, matrix_init
from memjax.typing import Activations, Aux, EmptyState, Mask, Rows

__all__ = ["FeedForward", "Layer", "NoFeedForward", "Side", "Stack", "join_layers", "split_layers"]

Side = Callable[[int], Array]
"""Layer -> what is added to its output from beside the stack."""
TAPS = ("attention_input", "attention_input_normed", "feed_forward_input", "feed_forward_input_normed", "output")
"""Inner tensors of a layer that `features` can name, `layer_<index>/<tap>`: the positions of kNN-LM's keys."""


class FeedForward(Residual, Stateless):
    """The feed-forward part: norm, two matrices, residual; with a memory in their place or beside them.

    `x + dense_scale * dense(norm(x)) + memory_scale * memory(norm(x))`, or the norm of the sum where it is 'post'. With
    the scales (1, 0) it is the ordinary part, with (0, 1) the memory replaces the matrices (PKM), with (1, 1) both read
    the same input (ResM, Kim & Jung 2020, where the scales are alpha and beta).

    Attributes:
      dim: width of the residual stream.
      hidden_dim: width of the hidden layer.
      activation: one of `ACTIVATIONS` ('gelu' is the tanh form), or 'swiglu' (the hidden layer is gated, a third
        matrix).
      norm: 'pre' or 'post'.
      norm_kind: as in `make_norm`.
      bias: biases in both layers.
      dropout: rate after each layer.
      hidden_dropout: False = after the second layer only.
      init_stddev: of both matrices; None = variance scaling by fan-in.
      dtype: of the computation.
      memory: a memory in parameters, such as `ProductKeyMemory`, or None.
      dense_scale: of the two matrices; 0 = there are none.
      memory_scale: of the memory; 0 = there is none.
    """

    dim: int
    hidden_dim: int
    activation: str = "relu"
    norm: str = "pre"
    norm_kind: str = "rms"
    bias: bool = True
    dropout: float = 0.0
    hidden_dropout: bool = True
    init_stddev: float | None = None
    dtype: Any = jnp.float32
    memory: Stateless | None = None
    dense_scale: float = 1.0
    memory_scale: float = 1.0

    def setup(self) -> None:
        super().setup()
        init = matrix_init(self.init_stddev)
        gates = 2 if self.activation == "swiglu" else 1
        self.wide = _dense(gates * self.hidden_dim, self.bias, init, "embed", "mlp", self.dtype)
        self.narrow = _dense(self.dim, self.bias, init, "mlp", "embed", self.dtype)

    def read(self, x: Activations, mask: Mask | None, deterministic: bool) -> tuple[Activations, Aux]:
        """The residual stream after the part."""
        normed, aux = self.normed(x), Aux()
        y = self._dense(normed, deterministic) if self.dense_scale else jnp.zeros_like(x)
        if self.dense_scale not in (0, 1):
            y = self.dense_scale * y
        if self.memory is not None and self.memory_scale:
            recalled, _, aux = self.memory(normed, EmptyState(), mask=mask, deterministic=deterministic)
            y = y + self.memory_scale * recalled
        return self.added(x, y, deterministic), aux

    def _dense(self, x: Array, deterministic: bool) -> Array:
        """The two matrices."""
        # Products of plain matrices: a CPU runs them faster than products with a batch and a length axis.
        y = self.wide(x.reshape(-1, self.dim))
        if self.activation == "swiglu":
            gate, y = jnp.split(y, 2, axis=-1)
            y = nn.silu(gate) * y
        else:
            y = ACTIVATIONS[self.activation](y)
        y = self.drop(y, deterministic=deterministic or not self.hidden_dropout)
        return self.narrow(y).reshape(x.shape)

    @nn.nowrap
    def replaced(self) -> tuple[str, ...]:
        """The two matrices, where there is only the memory."""
        return () if self.dense_scale else ("wide", "narrow")

    @nn.nowrap
    def stands_alone(self) -> bool:
        """As the memory in it."""
        return self.memory is not None and self.memory.stands_alone()


class NoFeedForward(Stateless):
    """Stands in the place of the feed-forward part in layers that have none, such as those of an LSTM."""

    def read(self, x: Activations, mask: Mask | None, deterministic: bool) -> tuple[Activations, Aux]:
        """The input."""
        return x, Aux()

    def normed(self, x: Activations) -> Activations:
        """The input."""
        return x


def _dense(features: int, bias: bool, init: Any, inner: str, outer: str, dtype: Any) -> nn.Dense:
    """A dense layer with named axes."""
    bias_init = named(nn.initializers.zeros, outer)
    return nn.Dense(features, bias, kernel_init=named(init, inner, outer), bias_init=bias_init, dtype=dtype)


class Layer(Memory):
    """An attention part and a feed-forward part.

    Attributes:
      attention: a layer-site memory (see `memjax.memory.contract`).
      feed_forward: a part without or with a memory of its own, of the same signature.
    """

    attention: LayerMemory
    feed_forward: Stateless

    @nn.nowrap
    def init_state(self, batch_size: int, dtype: Any = jnp.float32) -> LayerState:
        """The state in which a document starts."""
        return LayerState(*(part.init_state(batch_size, dtype) for part in self._parts()))

    @nn.nowrap
    def init_decode_state(self, state: LayerState, segment_length: int, batch_size: int) -> LayerState:
        """The decode state at the start of a segment."""
        attention, feed_forward = self._parts()
        return LayerState(
            attention.init_decode_state(state.attention, segment_length, batch_size),
            feed_forward.init_decode_state(state.feed_forward, segment_length, batch_size),
        )

    def __call__(
        self,
        x: Activations,
        state: LayerState,
        *,
        start_of_document: Rows,
        mask: Mask | None = None,
        deterministic: bool = True,
        shared: Any = None,
        taps: tuple[str, ...] = (),
    ) -> tuple[Activations, LayerState, Aux]:
        """Both parts, one after the other; `taps` are returned in `Aux.arrays` under their names."""
        named = {"start_of_document": start_of_document, "mask": mask, "deterministic": deterministic}
        tapped = _tap("attention_input", self.attention, x, taps)
        with jax.named_scope("attention"):
            x, attention, aux = self.attention(x, state.attention, **named, **_shared_argument(shared))
        tapped |= _tap("feed_forward_input", self.feed_forward, x, taps)
        with jax.named_scope("feed_forward"):
            x, feed_forward, more = self.feed_forward(x, state.feed_forward, **named)
        tapped["output"] = x
        aux = aux + more + Aux(arrays={name: tapped[name] for name in taps})
        return x, LayerState(attention, feed_forward), aux

    def decode(
        self, x: Float[Array, "batch rows dim"], state: LayerState, *, active: Rows, shared: Any = None
    ) -> tuple[Float[Array, "batch rows dim"], LayerState]:
        """One token of every active row, behind the model's memory tokens where it has any."""
        return self.decode_features(x, state, active=active, shared=shared)[:2]

    def decode_features(
        self,
        x: Float[Array, "batch rows dim"],
        state: LayerState,
        *,
        active: Rows,
        shared: Any = None,
        taps: tuple[str, ...] = (),
    ) -> tuple[Float[Array, "batch rows dim"], LayerState, dict[str, Array]]:
        """`decode`, and the inner tensors that `taps` names."""
        tapped = _tap("attention_input", self.attention, x, taps)
        x, attention = self.attention.decode(x, state.attention, active=active, **_shared_argument(shared))
        tapped |= _tap("feed_forward_input", self.feed_forward, x, taps)
        x, feed_forward = self.feed_forward.decode(x, state.feed_forward, active=active)
        tapped["output"] = x
        return x, LayerState(attention, feed_forward), {name: tapped[name] for name in taps}

    def _parts(self) -> tuple[Any, Any]:
        return self.attention, self.feed_forward


def _tap(name: str, part: Any, x: Array, taps: tuple[str, ...]) -> dict[str, Array]:
    """What enters a part, also as its matrices see it where that is asked for."""
    normed = f"{name}_normed"
    return {name: x, **({normed: part.normed(x)} if normed in taps else {})}


class Stack(Memory):
    """Layers in order, equal neighbours as one scanned group.

    The parameters of a group stand under `layers_<index of its first layer>`; a scanned group's have layers at axis 0.
    `split_layers` and `join_layers` address them by layer whatever the grouping.

    Attributes:
      layers: the layers, unbound.
      scan_layers: one `nn.scan` over equal neighbours; False unrolls (faster on a CPU, slower to compile).
      rematerialize: recompute each layer in the backward pass.
      features: `layer_<index>/<tap>` of inner tensors to return in `Aux.arrays`, taps as in `TAPS`; negative indices
        count from the end. A layer with a tap leaves its group.
      first: index of the first layer that runs; those below have no parameters, and `x` is what they would give.
    """

    layers: tuple[Layer, ...]
    scan_layers: bool = True
    rematerialize: bool = False
    features: tuple[str, ...] = ()
    first: int = 0

    def setup(self) -> None:
        modules = [layer.attention.shared_module() for layer in self.layers]
        self.shared = next((module for module in modules if module is not None), None)

    @nn.nowrap
    def taps(self) -> dict[int, tuple[str, ...]]:
        """Tapped layer -> names of its taps."""
        taps: dict[int, tuple[str, ...]] = {}
        for feature in self.features:
            layer, _, tap = feature.partition("/")
            index = int(layer.removeprefix("layer_")) if layer.removeprefix("layer_").lstrip("-").isdigit() else None
            if index is None or tap not in TAPS or not -len(self.layers) <= index < len(self.layers):
                raise ValueError(
                    f"features: given {feature!r}, allowed: layer_<index>/<tap> with an index from "
                    f"{-len(self.layers)} to {len(self.layers) - 1} and a tap of {', '.join(TAPS)}"
                )
            index %= len(self.layers)
            taps[index] = (*taps.get(index, ()), tap)
        return taps

    @nn.nowrap
    def groups(self) -> tuple[tuple[int, int], ...]:
        """(first layer, number of layers) of each group; a layer that stands alone has the number 0."""
        alone = [index for index, layer in enumerate(self.layers) if layer.feed_forward.stands_alone()]
        alone = tuple(index - self.first for index in (*self.taps(), *alone))
        groups = group_layers(self.layers[self.first :], scan_layers=self.scan_layers, alone=alone)
        return tuple((self.first + index, size) for index, size in groups)

    @nn.nowrap
    def init_state(self, batch_size: int, dtype: Any = jnp.float32) -> StackState:
        """The state in which a document starts."""
        return self._map_groups(lambda index: self.layers[index].init_state(batch_size, dtype))

    @nn.nowrap
    def init_decode_state(self, state: StackState, segment_length: int, batch_size: int) -> StackState:
        """The decode state at the start of a segment, one `DecodeState` per memory."""
        groups = []
        for (first, size), group in zip(self.groups(), state.groups, strict=True):
            layer = self.layers[first]
            init = lambda s, layer=layer: layer.init_decode_state(s, segment_length, batch_size)
            groups.append(jax.vmap(init, axis_size=size)(group) if size else init(group))
        return StackState(tuple(groups), state.sizes)

    def __call__(
        self,
        x: Activations,
        state: StackState,
        *,
        start_of_document: Rows,
        mask: Mask | None = None,
        deterministic: bool = True,
        side: Side | None = None,
    ) -> tuple[Activations, StackState, Aux]:
        """All layers over one segment; the names of `Aux` begin with `layer_<index>/`.

        What `side(index)` gives is added to the output of each layer, which stands alone (a tap takes it out of its
        group), behind the tap.
        """
        named = {"start_of_document": start_of_document, "mask": mask, "deterministic": deterministic}
        shared = None if self.shared is None else self.shared()
        taps, new_groups, total = self.taps(), [], Aux()

        for (first, size), group in zip(self.groups(), state.groups, strict=True):

            def body(layer: Layer, y: Array, layer_state: LayerState, first: int = first) -> tuple[Array, Any]:
                y, new, aux = layer(y, layer_state, **named, shared=shared, taps=taps.get(first, ()))
                return constrain(y, "batch", None, None), (new, aux)

            x, (new, aux) = self._run(body, first, size, x, group)
            x = x if side is None else x + side(first)
            new_groups.append(new)
            for offset in range(max(size, 1)):
                one = jax.tree.map(lambda leaf, i=offset: leaf[i], aux) if size else aux
                total = total + one.prefixed(f"layer_{first + offset:02d}")
        return x, StackState(tuple(new_groups), state.sizes), total

    def decode(
        self, x: Float[Array, "batch rows dim"], state: StackState, *, active: Rows
    ) -> tuple[Float[Array, "batch rows dim"], StackState]:
        """One token of every active row through all layers, behind the model's memory tokens where it has any."""
        return self.decode_features(x, state, active=active)[:2]

    def decode_features(
        self, x: Float[Array, "batch rows dim"], state: StackState, *, active: Rows
    ) -> tuple[Float[Array, "batch rows dim"], StackState, dict[str, Array]]:
        """`decode`, and the inner tensors that `features` names."""
        shared = None if self.shared is None else self.shared()
        taps, groups, features = self.taps(), [], {}
        for (first, size), group in zip(self.groups(), state.groups, strict=True):

            def body(layer: Layer, y: Array, layer_state: LayerState, first: int = first) -> tuple[Array, Any]:
                named = {"active": active, "shared": shared, "taps": taps.get(first, ())}
                y, new, tapped = layer.decode_features(y, layer_state, **named)
                return y, (new, tapped)

            x, (new, tapped) = self._run(body, first, size, x, group)
            groups.append(new)
            features |= {f"layer_{first:02d}/{name}": tensor for name, tensor in tapped.items()}
        return x, StackState(tuple(groups), state.sizes), features

    def _run(self, body: Callable[..., Any], first: int, size: int, x: Array, group: Any) -> tuple[Array, Any]:
        if self.rematerialize:
            body = nn.remat(body, prevent_cse=not size)
        if not size:
            return body(self.layers[first], x, group)
        scan = nn.scan(
            body,
            variable_axes={"params": 0, "tables": 0, "sinks": 0, "batch_stats": 0, "constants": 0},
            split_rngs={"params": True, "dropout": True, "memory": True, "features": True},
            metadata_params={nn.PARTITION_NAME: None},
            length=size,
        )
        return scan(self.layers[first], x, group)

    @nn.nowrap
    def _map_groups(self, init: Callable[[int], Any]) -> StackState:
        groups = self.groups()
        states = []
        for first, size in groups:
            one = init(first)
            # A broadcast view would let two leaves share a buffer, which donation forbids: write each out.
            states.append(
                jax.tree.map(lambda leaf, n=size: jnp.tile(leaf[None], (n,) + (1,) * leaf.ndim), one) if size else one
            )
        return StackState(tuple(states), tuple(size for _, size in groups))


def group_layers(
    layers: Sequence[Any], *, scan_layers: bool, alone: tuple[int, ...] = ()
) -> tuple[tuple[int, int], ...]:
    """Groups equal neighbours: (first layer, number of layers), number 0 for a layer that stands alone.

    Example:
      >>> group_layers("aaab", scan_layers=True)
      ((0, 3), (3, 0))
    """
    groups: list[list[int]] = []
    for index, layer in enumerate(layers):
        joins = groups and scan_layers and not {index, index - 1} & set(alone) and _equal(layers[groups[-1][0]], layer)
        if joins:
            groups[-1].append(index)
        else:
            groups.append([index])
    return tuple((group[0], len(group) if len(group) > 1 else 0) for group in groups)


def _equal(a: Any, b: Any) -> bool:
    """Whether two modules have equal fields, wherever they are bound (their own `==` compares parents too)."""
    if not isinstance(a, nn.Module):
        return a == b
    names = [field.name for field in dataclasses.fields(a) if field.name not in ("parent", "name")]
    return type(a) is type(b) and all(_equal(getattr(a, name), getattr(b, name)) for name in names)


def split_layers(variables: Any, groups: Sequence[tuple[int, int]]) -> dict[str, Any]:
    """Replaces the groups of a stack's variables by one entry `layer_<index>` per layer.

    Args:
      variables: a collection of a `Stack`, such as its params.
      groups: `Stack.groups()`.

    Returns:
      The same values, addressed by layer: what checkpoints and imports use, since the grouping changes with the model.
    """
    split = {name: value for name, value in variables.items() if not name.startswith("layers_")}
    for first, size in groups:
        group = variables.get(f"layers_{first}")
        if group is None:
            continue
        for offset in range(max(size, 1)):
            one = jax.tree.map(lambda leaf, i=offset: leaf[i], group) if size else group
            split[f"layer_{first + offset:02d}"] = one
    return split


def join_layers(variables: Any, groups: Sequence[tuple[int, int]]) -> dict[str, Any]:
    """The inverse of `split_layers`."""
    joined = {name: value for name, value in variables.items() if not name.startswith("layer_")}
    for first, size in groups:
        if f"layer_{first:02d}" not in variables:
            continue
        members = [variables[f"layer_{first + offset:02d}"] for offset in range(max(size, 1))]
        joined[f"layers_{first}"] = jax.tree.map(lambda *leaves: jnp.stack(leaves), *members) if size else members[0]
    return joined


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


def _shared_argument(shared: Any) -> dict[str, Any]:
    return {} if shared is None else {"shared": shared}
