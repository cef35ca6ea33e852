"""Transformer layers, and the stack that passes the states of their memories through them.

A layer is an attention part (which may carry a memory) and a feed-forward part. Each part reads the un-normalised
residual stream and owns its norm, dropout and residual connection. Neighbouring layers with equal fields form one
scanned group, so that compile time does not grow with depth.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from memjax.axes import constrain
from memjax.memory.interface import LayerMemory, LayerState, Memory, StackState, StatelessMemory
from memjax.typing import Activations, Aux, Mask, Rows

__all__ = ["Layer", "LateralInputs", "Stack", "join_layers", "split_layers"]

LateralInputs = Callable[[int], Array]
"""A function from a layer's index to the tensor that is added to its output from outside the stack."""
TAPS = ("attention_input", "attention_input_normed", "feed_forward_input", "feed_forward_input_normed", "output")
"""Inner tensors of a layer that `features` can name, `layer_<index>/<tap>`: the positions of kNN-LM's keys."""


class Layer(Memory):
    """A Transformer layer: an attention part, then a feed-forward part.

    Attributes:
      attention: Memory of the layer site (see `memjax.memory.interface`).
      feed_forward: Feed-forward part, with or without a memory of its own.
    """

    attention: LayerMemory
    feed_forward: StatelessMemory

    @nn.nowrap
    def init_state(self, batch_size: int, dtype: Any = jnp.float32) -> LayerState:
        """Returns the states of both parts with which every row starts a document. `dtype` is that of stored
        activations.
        """
        return LayerState(*(part.init_state(batch_size, dtype) for part in self._parts()))

    @nn.nowrap
    def init_decode_state(self, state: LayerState, segment_length: int, batch_size: int) -> LayerState:
        """Returns the decode states of both parts at the start of a segment, from their state between segments.
        `segment_length` is the number of tokens in a segment.
        """
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
        """Reads one segment with the attention part and then the feed-forward part.

        Args:
          x: `[batch, length, dim]`, residual stream.
          state: State before the segment.
          start_of_document: Rows that start a document.
          mask: Real tokens. None = all.
          deterministic: Whether to run without dropout and sampling.
          shared: Parameters that all layers of the stack share, such as the biases of Transformer-XL. None = nothing.
          taps: Names of inner tensors to return in `Aux.arrays`, from `TAPS`.
        """
        options = {"start_of_document": start_of_document, "mask": mask, "deterministic": deterministic}
        tapped = _tap("attention_input", self.attention, x, taps)
        with jax.named_scope("attention"):
            x, attention, aux = self.attention(x, state.attention, **options, **_shared_argument(shared))
        tapped |= _tap("feed_forward_input", self.feed_forward, x, taps)
        with jax.named_scope("feed_forward"):
            x, feed_forward, more = self.feed_forward(x, state.feed_forward, **options)
        tapped["output"] = x
        aux = aux + more + Aux(arrays={name: tapped[name] for name in taps})
        return x, LayerState(attention, feed_forward), aux

    def decode(
        self, x: Float[Array, "batch rows dim"], state: LayerState, *, active: Rows, shared: Any = None
    ) -> tuple[Float[Array, "batch rows dim"], LayerState]:
        """Reads one token of every active row, and returns the new `x` and state. `x` is `[batch, rows, dim]`: the
        model's memory tokens where it has any, then the token. `shared` holds parameters that all layers share.
        """
        return self.decode_features(x, state, active=active, shared=shared)[:2]

    @property
    def decodes_segments(self) -> bool:
        """Whether both parts have `decode_segment`."""
        return all(part.decodes_segments for part in self._parts())

    def decode_segment(
        self, x: Activations, state: LayerState, *, lengths: Int[Array, " batch"], shared: Any = None
    ) -> tuple[Activations, LayerState]:
        """Reads the first `lengths` tokens of a segment in every row at once. See `LayerMemory.decode_segment`."""
        x, attention = self.attention.decode_segment(x, state.attention, lengths=lengths, **_shared_argument(shared))
        x, feed_forward = self.feed_forward.decode_segment(x, state.feed_forward, lengths=lengths)
        return x, LayerState(attention, feed_forward)

    def decode_features(
        self,
        x: Float[Array, "batch rows dim"],
        state: LayerState,
        *,
        active: Rows,
        shared: Any = None,
        taps: tuple[str, ...] = (),
    ) -> tuple[Float[Array, "batch rows dim"], LayerState, dict[str, Array]]:
        """Reads one token of every active row as `decode`. Returns the new `x`, the new state, and a dict of the inner
        tensors that `taps` names.
        """
        tapped = _tap("attention_input", self.attention, x, taps)
        x, attention = self.attention.decode(x, state.attention, active=active, **_shared_argument(shared))
        tapped |= _tap("feed_forward_input", self.feed_forward, x, taps)
        x, feed_forward = self.feed_forward.decode(x, state.feed_forward, active=active)
        tapped["output"] = x
        return x, LayerState(attention, feed_forward), {name: tapped[name] for name in taps}

    def _parts(self) -> tuple[Any, Any]:
        """Returns both parts of the layer."""
        return self.attention, self.feed_forward


def _tap(name: str, part: Any, x: Array, taps: tuple[str, ...]) -> dict[str, Array]:
    """Returns the input of a part by its name, and also its normed input if a tap asks for it."""
    normed = f"{name}_normed"
    return {name: x, **({normed: part.apply_norm(x)} if normed in taps else {})}


class Stack(Memory):
    """A stack of Transformer layers with their memories, where neighbouring layers with equal fields form one scanned
    group.

    The parameters of a group are under `layers_<index of its first layer>`. In a scanned group they have layers at axis
    0. `split_layers` and `join_layers` address them by layer whatever the grouping.

    Attributes:
      layers: Layers of the stack, unbound.
      scan_layers: Whether to run equal neighbours by one `nn.scan`. False unrolls them (faster on a CPU, slower to
        compile).
      rematerialize: Whether to recompute each layer in the backward pass.
      features: Inner tensors to return in `Aux.arrays`, `layer_<index>/<tap>` with a tap from `TAPS`. Negative indices
        count from the end. A layer with a tap leaves its group.
      first: Index of the first layer that runs. Layers below it have no parameters, and `x` is what they would compute.
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
        """Returns a dict from the index of each layer with requested inner tensors (`features`) to their names, such as
        `output`.
        """
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
    def layer_groups(self) -> tuple[tuple[int, int], ...]:
        """Returns a pair of numbers for each group: its first layer, and its number of layers, which is 0 for a single
        layer.
        """
        ungrouped = [index for index, layer in enumerate(self.layers) if layer.feed_forward.excluded_from_scan()]
        ungrouped = tuple(index - self.first for index in (*self.taps(), *ungrouped))
        groups = group_layers(self.layers[self.first :], scan_layers=self.scan_layers, alone=ungrouped)
        return tuple((self.first + index, size) for index, size in groups)

    @nn.nowrap
    def init_state(self, batch_size: int, dtype: Any = jnp.float32) -> StackState:
        """Returns the state of all layers with which every row starts a document. `dtype` is that of stored
        activations.
        """
        return self._map_groups(lambda index: self.layers[index].init_state(batch_size, dtype))

    @nn.nowrap
    def init_decode_state(self, state: StackState, segment_length: int, batch_size: int) -> StackState:
        """Returns the decode state at the start of a segment, one `DecodeState` for each memory, from the state between
        segments. `segment_length` is the number of tokens in a segment.
        """
        groups = []
        for (first, size), group in zip(self.layer_groups(), state.groups, strict=True):
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
        side: LateralInputs | None = None,
    ) -> tuple[Activations, StackState, Aux]:
        """Reads one segment with all layers. The names in `Aux` start with `layer_<index>/`.

        Args:
          x: `[batch, length, dim]`, residual stream.
          state: State before the segment.
          start_of_document: Rows that start a document.
          mask: Real tokens. None = all.
          deterministic: Whether to run without dropout and sampling.
          side: Function from a layer's index to the tensor that is added to its output, after its tap. Every layer must
            have a tap then, which takes it out of its group. None = nothing is added.
        """
        options = {"start_of_document": start_of_document, "mask": mask, "deterministic": deterministic}
        shared = None if self.shared is None else self.shared()
        taps, new_groups, total = self.taps(), [], Aux()

        for (first, size), group in zip(self.layer_groups(), state.groups, strict=True):

            def body(layer: Layer, y: Array, layer_state: LayerState, first: int = first) -> tuple[Array, Any]:
                y, new, aux = layer(y, layer_state, **options, shared=shared, taps=taps.get(first, ()))
                return constrain(y, "batch", None, None), (new, aux)

            x, (new, aux) = self._run(body, first, size, x, group)
            x = x if side is None else x + side(first)
            new_groups.append(new)
            for offset in range(max(size, 1)):
                layer_aux = jax.tree.map(lambda leaf, i=offset: leaf[i], aux) if size else aux
                total = total + layer_aux.prefixed(f"layer_{first + offset:02d}")
        return x, StackState(tuple(new_groups), state.sizes), total

    def decode(
        self, x: Float[Array, "batch rows dim"], state: StackState, *, active: Rows
    ) -> tuple[Float[Array, "batch rows dim"], StackState]:
        """Reads one token of every active row with all layers, and returns the new `x` and state. `x` is `[batch, rows,
        dim]`: the model's memory tokens where it has any, then the token.
        """
        return self.decode_features(x, state, active=active)[:2]

    @property
    def decodes_segments(self) -> bool:
        """Whether all layers have `decode_segment`, and no inner tensor is asked for."""
        return not self.features and all(layer.decodes_segments for layer in self.layers)

    def decode_segment(
        self, x: Activations, state: StackState, *, lengths: Int[Array, " batch"]
    ) -> tuple[Activations, StackState]:
        """Reads the first `lengths` tokens of a segment in every row at once with all layers. See
        `LayerMemory.decode_segment`.
        """
        shared = None if self.shared is None else self.shared()
        groups = []

        def body(layer: Layer, y: Array, layer_state: LayerState) -> tuple[Array, Any]:
            return layer.decode_segment(y, layer_state, lengths=lengths, shared=shared)

        for (first, size), group in zip(self.layer_groups(), state.groups, strict=True):
            x, new = self._run(body, first, size, x, group)
            groups.append(new)
        return x, StackState(tuple(groups), state.sizes)

    def decode_features(
        self, x: Float[Array, "batch rows dim"], state: StackState, *, active: Rows
    ) -> tuple[Float[Array, "batch rows dim"], StackState, dict[str, Array]]:
        """Reads one token of every active row as `decode`. Returns the new `x`, the new state, and a dict of the inner
        tensors that the field `features` names.
        """
        shared = None if self.shared is None else self.shared()
        taps, groups, features = self.taps(), [], {}
        for (first, size), group in zip(self.layer_groups(), state.groups, strict=True):

            def body(layer: Layer, y: Array, layer_state: LayerState, first: int = first) -> tuple[Array, Any]:
                options = {"active": active, "shared": shared, "taps": taps.get(first, ())}
                y, new, tapped = layer.decode_features(y, layer_state, **options)
                return y, (new, tapped)

            x, (new, tapped) = self._run(body, first, size, x, group)
            groups.append(new)
            features |= {f"layer_{first:02d}/{name}": tensor for name, tensor in tapped.items()}
        return x, StackState(tuple(groups), state.sizes), features

    def _run(self, body: Callable[..., Any], first: int, size: int, x: Array, group: Any) -> tuple[Array, Any]:
        """Runs `body` over a single layer, or over a scanned group of layers."""
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
        """Makes the states of all groups from a function that makes the state of one layer."""
        groups = self.layer_groups()
        states = []
        for first, size in groups:
            layer_state = init(first)
            # A broadcast view would let two leaves share a buffer, which donation forbids. So each is written out.
            states.append(
                jax.tree.map(lambda leaf, n=size: jnp.tile(leaf[None], (n,) + (1,) * leaf.ndim), layer_state)
                if size
                else layer_state
            )
        return StackState(tuple(states), tuple(size for _, size in groups))


def group_layers(
    layers: Sequence[Any], *, scan_layers: bool, alone: tuple[int, ...] = ()
) -> tuple[tuple[int, int], ...]:
    """Groups equal neighbours among `layers`. Returns the first index and the number of layers of each group, 0 for a
    single layer. Layers whose index is in `alone`, and all without `scan_layers`, stay single.

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
    """Returns whether two modules have equal fields, wherever they are bound."""
    # The modules' own `==` compares parents too.
    if not isinstance(a, nn.Module):
        return a == b
    names = [field.name for field in dataclasses.fields(a) if field.name not in ("parent", "name")]
    return type(a) is type(b) and all(_equal(getattr(a, name), getattr(b, name)) for name in names)


def split_layers(variables: Any, groups: Sequence[tuple[int, int]]) -> dict[str, Any]:
    """Returns the variables of a stack by layer: each entry `layers_<first>` of a group becomes an entry
    `layer_<index>` for each of its layers. `groups` is from `Stack.layer_groups`.

    Args:
      variables: Collection of variables of a `Stack`, such as its params.
      groups: Groups of the stack, `Stack.layer_groups()`.

    Returns:
      The same values by layer. Checkpoints and imports use this form, since the grouping changes with the model.
    """
    split = {name: value for name, value in variables.items() if not name.startswith("layers_")}
    for first, size in groups:
        group = variables.get(f"layers_{first}")
        if group is None:
            continue
        for offset in range(max(size, 1)):
            layer_variables = jax.tree.map(lambda leaf, i=offset: leaf[i], group) if size else group
            split[f"layer_{first + offset:02d}"] = layer_variables
    return split


def join_layers(variables: Any, groups: Sequence[tuple[int, int]]) -> dict[str, Any]:
    """Joins the entries `layer_<index>` of a stack's variables into one entry `layers_<first>` for each of the groups.
    The inverse of `split_layers`.
    """
    joined = {name: value for name, value in variables.items() if not name.startswith("layer_")}
    for first, size in groups:
        if f"layer_{first:02d}" not in variables:
            continue
        members = [variables[f"layer_{first + offset:02d}"] for offset in range(max(size, 1))]
        joined[f"layers_{first}"] = jax.tree.map(lambda *leaves: jnp.stack(leaves), *members) if size else members[0]
    return joined


def split_collection(collection: Any, groups: Sequence[tuple[int, int]]) -> Any:
    """Returns one collection of a model's variables, such as `params`, with the groups of its stack replaced by one
    entry for each layer. See `split_layers`.
    """
    if not groups or "stack" not in collection:
        return collection
    return {**collection, "stack": split_layers(collection["stack"], groups)}


def join_collection(collection: Any, groups: Sequence[tuple[int, int]]) -> Any:
    """Returns one collection of a model's variables, such as `params`, with the layers of its stack joined into groups.
    The inverse of `split_collection`.
    """
    if not groups or "stack" not in collection:
        return collection
    return {**collection, "stack": join_layers(collection["stack"], groups)}


def _shared_argument(shared: Any) -> dict[str, Any]:
    """Returns the keyword argument with the parameters that layers share, if there are any."""
    return {} if shared is None else {"shared": shared}
