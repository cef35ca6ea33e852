"""Memories that layers of a trained model read beside their attention, and that change nothing before they are trained.

A *graft* reads with the queries of its host, `memjax.memory.rotary.RotaryAttention`, before their rotation, and stores
what the host has projected. So it needs few parameters of its own, and the host keeps all of its own. Distances have no
effect on it: every stored token is scored as if it stood at the place of the query.

    graft = GraftedNeighbors(num_heads=2, key_heads=2, head_dim=4, memory_length=16)
    attention = RotaryAttention(dim=8, num_heads=2, memory_length=4, graft=graft)

Wu et al. 2022 (Memorizing Transformer), https://arxiv.org/abs/2203.08913; Rae et al. 2019 (Compressive Transformer),
https://arxiv.org/abs/1911.05507; Martins et al. 2022 (infinity-former), https://arxiv.org/abs/2109.00301. The gate that
is exactly closed at first is that of Alayrac et al. 2022, https://arxiv.org/abs/2204.14198.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from memjax.axes import named
from memjax.functional.fifo import reset_rows
from memjax.functional.mixing import GateKind, gate_openings, head_gate
from memjax.memory.checks import CheckedModule
from memjax.settings.ranges import Count
from memjax.typing import Aux, EmptyState, Mask, Rows, WeightedSum

__all__ = ["GraftReading", "GraftedMemory", "HostQueries", "HostTokens"]


class HostTokens(NamedTuple):
    """Keys and values that the host of a graft has projected, of its memory and of a segment, oldest first, and the
    input of the projections.

    Attributes:
      keys: `[batch, slots + length, key_heads, head_dim]`, keys before their rotation.
      values: `[batch, slots + length, key_heads, head_dim]`.
      valid: bool `[batch, slots + length]`, slots and tokens of the running document.
      hidden: `[batch, length, dim]`, input of the projections of the segment.
    """

    keys: Array
    values: Array
    valid: Array
    hidden: Array

    @property
    def length(self) -> int:
        """Number of tokens of the segment."""
        return self.hidden.shape[1]

    def segment(self) -> tuple[Array, Array, Array]:
        """Returns keys, values and validity of the tokens of the segment."""
        keys, values, valid = (leaf[:, -self.length :] for leaf in self[:3])
        return keys, values, valid

    def leaving(self) -> tuple[Array, Array, Array]:
        """Returns keys, values and validity of the oldest slots, which the segment displaces from the memory: as many
        as it has tokens. The segment itself for a host without a memory.
        """
        keys, values, valid = (leaf[:, : self.length] for leaf in self[:3])
        return keys, values, valid


class HostQueries(NamedTuple):
    """Queries of the host of a graft, what its own attention has read with them, and how it scores keys.

    Attributes:
      queries: `[batch, length, heads, head_dim]`, queries before their rotation.
      local: `[batch, length, heads, head_dim]`, result of the attention of the host.
      options: `scale` and dropout of the attention of the host, as `memjax.functional.attention.attention` takes them.
    """

    queries: Array
    local: Array
    options: Mapping[str, Any]


class GraftReading(NamedTuple):
    """Result of a layer's attention with what a graft has added.

    Attributes:
      z: `[batch, length, heads, head_dim]`, result of every head.
      further: `[batch, length, dim]`, summand of the output. None for none.
    """

    z: Array
    further: Array | None


class GraftedMemory(CheckedModule):
    """Base class of memories beside the attention of a host. It has no fields of its own.

    A subclass defines `init_state`, `__call__`, and `decode` and `finish` for tokens one by one.
    """

    @nn.nowrap
    def init_state(self, batch_size: int, dtype: Any = jnp.float32) -> Any:
        """Makes the state in which a document starts, with contents of `dtype`. A subclass defines it."""
        raise NotImplementedError

    @nn.nowrap
    def init_segment(self, state: Any, segment_length: int) -> Any:
        """Makes the buffers for decoding a segment. By default there are none."""
        return EmptyState()

    @nn.nowrap
    def reset(self, state: Any, start_of_document: Rows) -> Any:
        """Empties the rows that start a document. By default all leaves become 0."""
        return jax.tree.map(lambda leaf: reset_rows(leaf, start_of_document), state)

    def __call__(
        self, asked: HostQueries, host: HostTokens, state: Any, *, mask: Mask, deterministic: bool
    ) -> tuple[GraftReading, Any, Aux]:
        """Reads the memory with the queries of a segment, then writes the segment. A subclass defines it.

        Args:
          asked: Queries of the segment, and what the host has read.
          host: Keys, values and inputs of the host.
          state: State before the segment.
          mask: bool `[batch, length]`, real tokens.
          deterministic: Whether to run without dropout and sampling.
        """
        raise NotImplementedError

    def decode(
        self, asked: HostQueries, hidden: Array, state: Any, segment: Any, *, at: tuple[Array, Rows]
    ) -> tuple[GraftReading, Any]:
        """Reads the memory with one token of every active row. Returns the reading and the buffers. A subclass defines
        it.

        Args:
          asked: Query of the token, and what the host has read.
          hidden: `[batch, 1, dim]`, input of the projections of the host.
          state: State before the segment.
          segment: Buffers of the segment.
          at: Index of the token in its segment, int32 `[batch]`, and active rows, bool `[batch]`.
        """
        raise NotImplementedError

    def finish(self, state: Any, segment: Any, host: HostTokens) -> Any:
        """Returns the state after a segment that was decoded token by token. Rows whose tokens are not valid keep their
        state. A subclass defines it.
        """
        raise NotImplementedError

    @property
    def gate_description(self) -> str:
        """Text that says what the gate lets through. Empty for a graft without a gate."""
        return ""


class GatedGraft(GraftedMemory, kw_only=True):
    """Base class of grafts whose reading a gate for each head mixes with the attention of the host, `g memory + (1 - g)
    local`. A subclass defines `_read` and `_write`.

    Attributes:
      num_heads: Number of heads of the queries.
      key_heads: Number of heads of keys and values.
      head_dim: Width of an attention head.
      gate_kind: Kind of the gate: 'tanh', which is exactly closed at 0, or 'sigmoid', as in the Memorizing Transformer.
      gate_init: Initial parameter of the gate. None for 0 with 'tanh', and -7 with 'sigmoid', a share of 0.001.
    """

    num_heads: Count
    key_heads: Count
    head_dim: Count
    gate_kind: GateKind = "tanh"
    gate_init: float | None = None

    def setup(self) -> None:
        start = {"tanh": 0.0, "sigmoid": -7.0}[self.gate_kind] if self.gate_init is None else self.gate_init
        gate = named(nn.initializers.constant(start), "heads")
        self.gate = self.param("gate", gate, (self.num_heads,))

    def gate_values(self) -> Float[Array, " heads"]:
        """Returns how far the gate of every head is open, `[heads]`."""
        return gate_openings(self.gate, self.gate_kind)

    def __call__(
        self, asked: HostQueries, host: HostTokens, state: Any, *, mask: Mask, deterministic: bool
    ) -> tuple[GraftReading, Any, Aux]:
        """Reads the memory, mixes what was read with what the host has read, then writes. See `GraftedMemory`."""
        z, present = self._mix(asked, state)
        opening = jax.lax.stop_gradient(self.gate_values()).mean().astype(jnp.float32)
        share = lambda of: WeightedSum(opening * of.sum().astype(jnp.float32), of.sum().astype(jnp.float32))
        aux = Aux(metrics={"gate": share(mask), "graft/memory_share": share(mask & present[:, None])})
        state, more = self._write(state, host, z, (asked.queries, mask, asked.options.get("scale")))
        return GraftReading(z, None), state, aux + more

    def decode(
        self, asked: HostQueries, hidden: Array, state: Any, segment: Any, *, at: tuple[Array, Rows]
    ) -> tuple[GraftReading, Any]:
        """Reads the memory, and mixes what was read with what the host has read. See `GraftedMemory`."""
        return GraftReading(self._mix(asked, state)[0], None), segment

    def finish(self, state: Any, segment: Any, host: HostTokens) -> Any:
        """Writes the segment. See `GraftedMemory`."""
        return self._write(state, host)[0]

    def _mix(self, asked: HostQueries, state: Any) -> tuple[Array, Array]:
        """Reads the memory and mixes. Returns the result of every head, and which rows have something to read."""
        from_memory, present = self._read(asked.queries, state, asked.options)
        return head_gate(self.gate, from_memory, asked.local, present, kind=self.gate_kind), present

    def _read(self, queries: Array, state: Any, options: Mapping[str, Any]) -> tuple[Array, Array]:
        """Returns what was read, and which rows have something to read, bool `[batch]`."""
        raise NotImplementedError

    def _write(
        self, state: Any, host: HostTokens, after: Any = EmptyState(), reading: tuple[Any, ...] | None = None
    ) -> tuple[Any, Aux]:
        """Returns the state with a segment written after the arrays `after` are computed, and losses of the memory for
        the queries, their mask and their scale in `reading`.
        """
        raise NotImplementedError
