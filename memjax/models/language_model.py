"""Decoder-only language models whose layers and output may carry memories."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from memjax.axes import constrain, named
from memjax.functional.positions import sinusoids
from memjax.memory.checks import refuse_padding_in_front
from memjax.memory.interface import OutputMemory, StackState, broadcast_mask, count_positions
from memjax.memory.layer_parts import NormKind, make_norm
from memjax.memory.memory_tokens import memory_aux, prepend_memory
from memjax.memory.next_token_candidates import NextTokenCandidates, Prediction
from memjax.models.causal_encoder import CausalTextEncoder
from memjax.models.heads import TaskHead, VocabularyScorer
from memjax.models.interface import Model
from memjax.models.transformer import LateralInputs, Stack
from memjax.typing import Activations, Aux, EmptyState, Mask, Rows, tree_dataclass

__all__ = ["LanguageModel", "LanguageModelState"]

MODEL_INPUTS = ("tokens", "features", "embed_output")
"""Inputs that a model can give to a memory at the output site (`input_names`): the tokens read, its features by name,
and the function from ids to output weights. All other inputs come with the batch (`Batch.extras`)."""


@tree_dataclass
class LanguageModelState:
    """The state of a language model between segments: the states of its layers and output memories, and positions in
    the document.

    Attributes:
      stack: State of the layers.
      output: State of the memory at the output site. `EmptyState` without one.
      mixtures: States of the memories whose candidates are mixed in.
      position: int32 `[batch]`, number of tokens of the document read so far. `EmptyState` where nothing depends on it.
      marker: int32 `[batch]`, 1 + the number of the last marker read, 0 before the first. `EmptyState` without markers.
    """

    stack: StackState
    output: Any
    mixtures: tuple[Any, ...] = ()
    position: Any = EmptyState()
    marker: Any = EmptyState()


class LanguageModel(Model):
    """A decoder-only language model whose layers and output may carry memories. Its output is the last hidden states,
    which the vocabulary scores.

    With `mixtures` the output is a `Prediction` instead of hidden states. Mixtures have no parameters, so they can be
    added to any trained model: `model.clone(mixtures=(ContinuousCacheMemory(dim=model.dim, memory_length=2000),))`.

    Attributes:
      stack: Layers of the model.
      vocabulary: Embeddings and softmax.
      output_memory: Memory at the output site, which maps the last hidden state to a hidden state. None = no memory.
      mixtures: Memories at the output site that propose tokens (`NextTokenCandidates`). Their distributions are mixed
        in one after the other.
      final_norm: Norm of the last hidden state: 'layer', 'rms' or '' for none (post-norm layers end with one).
      weighted_norms: Whether the means in the norms weigh the entries (`WeightedNorm`), for a model that grows in
        width.
      norm_epsilon: Number added to the variance in norms. None = the default of `make_norm`.
      num_positions: Number of learned positions of the tokens in their segment, added to the embeddings. 0 = none.
      positions: Positions in the document that are added to the embeddings: 'sinusoids' or 'none'.
      markers: Token ids that mark the tokens after them in the document, such as the speakers of a dialogue. Every
        token gets a learned embedding of the last marker up to it, or another one before the first.
      memory_tokens: Number of learned memory tokens before every segment, for layers that support them
        (`MemoryTokenXLAttention`). They are returned as `memory` in `Aux.arrays`.
      memory_stddev: Standard deviation of the memory tokens' initial values, best that of the embeddings.
      dropout: Dropout rate on embeddings and on the last hidden state.
      features: Inner tensors to return in `Aux.arrays`: `output` (before the final norm) or `output_normed`. Those of
        layers are named in the stack.
      dtype: Dtype of the computation.
      memory_dtype: Dtype of the activations that memories store, unless `init_state` gets another.
    """

    stack: Stack
    vocabulary: nn.Module
    output_memory: OutputMemory | None = None
    mixtures: tuple[OutputMemory, ...] = ()
    final_norm: Literal[NormKind, ""] = "rms"
    weighted_norms: bool = False
    norm_epsilon: float | None = None
    num_positions: int = 0
    positions: str = "none"
    markers: tuple[int, ...] = ()
    memory_tokens: int = 0
    memory_stddev: float = 1.0
    dropout: float = 0.0
    features: tuple[str, ...] = ()
    dtype: Any = jnp.float32
    memory_dtype: Any = jnp.float32

    decodes = resizes = mixes = has_stack = True

    @property
    def num_memory_tokens(self) -> int:
        """The number of learned memory tokens before every segment."""
        return self.memory_tokens

    @property
    def stores_keys(self) -> bool:
        """Whether a datastore can be made from inner tensors, which needs one row for each token. False with memory
        tokens.
        """
        return not self.memory_tokens

    def setup(self) -> None:
        if self.final_norm:
            options: dict[str, Any] = {"weighted": self.weighted_norms, "epsilon": self.norm_epsilon}
            self.layer_norm = make_norm(self.final_norm, self.dtype, **options)
        self.drop = nn.Dropout(self.dropout)
        if self.num_positions:
            init, dim = named(nn.initializers.normal(0.02), None, "embed"), self.stack.layers[0].attention.dim
            self.positions_table = self.param("positions", init, (self.num_positions, dim))
        if self.markers:
            init = named(nn.initializers.normal(0.02), None, "embed")
            self.marker_table = self.param("markers", init, (len(self.markers) + 1, self.vocabulary.dim))
        if self.memory_tokens:
            if self.features or self.stack.features:
                raise ValueError("features: given with memory_tokens, allowed: none (they have rows of their own)")
            init = named(nn.initializers.normal(self.memory_stddev), None, "embed")
            self.memory_rows = self.param("memory_tokens", init, (self.memory_tokens, self.vocabulary.dim))

    @nn.nowrap
    def as_encoder(self, head: TaskHead | None = None) -> Model:
        """Returns the layers and embeddings of the model as an encoder of whole texts, with a head on the last token
        or with none. The parameters have the same names.
        """
        vocabulary: Any = self.vocabulary
        return CausalTextEncoder(
            self.stack,
            vocabulary.clone(tied=True),
            head,
            final_norm=self.final_norm,
            weighted_norms=self.weighted_norms,
            norm_epsilon=self.norm_epsilon,
            num_positions=self.num_positions,
            dropout=self.dropout,
            features=self.features,
            dtype=self.dtype,
        )

    @nn.nowrap
    def output_norm(self) -> str:
        """Returns the path prefix of the final norm, `layer_norm/`. A model without one raises an error.

        Raises:
          ValueError: There is none. In post-norm models, the result of the last norm is also a residual stream.
        """
        if not self.final_norm:
            raise ValueError("output_norm: given a model that ends without a norm, allowed: untied output weights")
        return "layer_norm/"

    @nn.nowrap
    def init_state(self, batch_size: int, dtype: Any = None) -> LanguageModelState:
        """Returns the state with which every row starts a document. Needs no parameters. `dtype` is that of stored
        activations, by default `memory_dtype`.
        """
        dtype = dtype or self.memory_dtype
        output = self.output_memory.init_state(batch_size, dtype) if self.output_memory else EmptyState()
        mixtures = tuple(memory.init_state(batch_size, dtype) for memory in self.mixtures)
        count = lambda counts: jnp.zeros((batch_size,), jnp.int32) if counts else EmptyState()
        counters = count(self.positions != "none"), count(self.markers)
        return LanguageModelState(self.stack.init_state(batch_size, dtype), output, mixtures, *counters)

    @nn.nowrap
    def init_decode_state(self, state: LanguageModelState, segment_length: int, batch_size: int) -> LanguageModelState:
        """Returns the decode state at the start of a segment, one `DecodeState` for each memory, from the state between
        segments. `segment_length` is the number of tokens in a segment.
        """
        output = EmptyState()
        if self.output_memory:
            output = self.output_memory.init_decode_state(state.output, segment_length, batch_size)
        mixtures = tuple(
            memory.init_decode_state(memory_state, segment_length, batch_size)
            for memory, memory_state in zip(self.mixtures, state.mixtures, strict=True)
        )
        stack = self.stack.init_decode_state(state.stack, segment_length, batch_size)
        return LanguageModelState(stack, output, mixtures, state.position, state.marker)

    @nn.nowrap
    def example_extras(self, batch_size: int, length: int) -> dict[str, Any]:
        """Returns the shapes and dtypes of the extras that output memories need in a batch, by name."""
        shapes = [memory.example_extras(batch_size, length) for memory in self._output_memories()]
        return {name: shape for memory_shapes in shapes for name, shape in memory_shapes.items()}

    @nn.nowrap
    def select_extras(self, extras: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the entries of a batch's extras that output memories read.

        Raises:
          ValueError: The batch lacks one that a memory needs.
        """
        chosen = {}
        for memory in self._output_memories():
            missing = [name for name in memory.required_extras if name not in extras]
            if missing:
                raise ValueError(
                    f"extras: given {sorted(extras)}, {type(memory).__name__} needs {', '.join(missing)}: documents "
                    "annotated with neighbours"
                )
            names = [name for name in memory.input_names if name not in MODEL_INPUTS]
            chosen |= {name: extras[name] for name in names if name in extras}
        return chosen

    def __call__(
        self,
        tokens: Int[Array, "batch length"],
        state: LanguageModelState,
        *,
        start_of_document: Rows,
        mask: Mask | None = None,
        deterministic: bool = True,
        extras: Mapping[str, Any] | None = None,
        side: LateralInputs | None = None,
    ) -> tuple[Activations | Prediction, LanguageModelState, Aux]:
        """Reads one segment.

        Args:
          tokens: `[batch, length]`, token ids of the segment.
          state: State before the segment.
          start_of_document: `[batch]`, rows that start a document. Their memories are reset first.
          mask: Real tokens. None = all.
          deterministic: Whether to run without dropout and sampling.
          extras: Extras for memories at the output site, from `select_extras`.
          side: Function from a layer's index to the tensor added to its output, see `Stack`. Only without memory
            tokens.

        Returns:
          The last hidden states (or a `Prediction`) for `nll` and `log_probs`, the new state, and an `Aux` with losses,
          metrics and requested inner tensors.
        """
        options = {"start_of_document": start_of_document, "mask": mask, "deterministic": deterministic}
        fresh = lambda count: jnp.where(start_of_document, 0, count)
        position, marker = jax.tree.map(fresh, (state.position, state.marker))
        real = broadcast_mask(mask, *tokens.shape)
        x, marker = self._mark(self._embed(tokens, position, real), jnp.where(real, tokens, -1), marker)
        x = self.drop(x, deterministic=deterministic)
        x = constrain(x, "batch", None, None)
        x, stack, aux = self._run_stack(x, state.stack, **options, side=side)
        hidden, output = self._normed(x), EmptyState()
        aux = aux + Aux(arrays=self._own_features(x, hidden))
        inputs = {"tokens": tokens, "features": aux.arrays, "embed_output": self.embed_output, **(extras or {})}
        if self.output_memory is not None:
            hidden, output, more = self.output_memory(
                hidden, state.output, **options, **_select_inputs(self.output_memory, inputs)
            )
            aux = aux + more.prefixed("output_memory")
        hidden = self.drop(hidden, deterministic=deterministic)
        if self.num_positions:
            hidden = refuse_padding_in_front(hidden, mask)
        if self.is_initializing():
            self.vocabulary.log_probs(hidden[:, :1])
        recalled, mixtures = [], []
        for memory, before in zip(self.mixtures, state.mixtures, strict=True):
            part, after, more = memory(hidden, before, **options, **_select_inputs(memory, inputs))
            recalled.append(part)
            mixtures.append(after)
            aux = aux + more
        count = real.sum(axis=1, dtype=jnp.int32)
        position = jax.tree.map(lambda new, old: jnp.where(count > 0, new + count, old), position, state.position)
        marker = jax.tree.map(lambda new, old: jnp.where(count > 0, new, old), marker, state.marker)
        return _predict(hidden, recalled), LanguageModelState(stack, output, tuple(mixtures), position, marker), aux

    @property
    def decodes_segments(self) -> bool:
        """Whether `decode_segment` reads the beginning of a segment at once: with layers that do, no memory at the
        output and no memory tokens.
        """
        return self.stack.decodes_segments and not (self.memory_tokens or self.features or self._output_memories())

    def decode_segment(
        self, tokens: Int[Array, "batch length"], state: LanguageModelState, *, lengths: Int[Array, " batch"]
    ) -> tuple[Activations, LanguageModelState]:
        """Reads the first `lengths` tokens of a segment in every row at once, and returns the last hidden states and
        the decode state after them.

        Args:
          tokens: `[batch, length]`, a whole segment. What stands behind `lengths` is not read.
          state: Decode state at the start of a segment in every row.
          lengths: `[batch]`, 1 to the length of the segment.
        """
        real = jnp.arange(tokens.shape[1])[None] < lengths[:, None]
        x = self._embed(tokens, state.position, real)
        x, marker = self._mark(x, jnp.where(real, tokens, -1), state.marker)
        x, stack = self.stack.decode_segment(x, state.stack, lengths=lengths)
        position = jax.tree.map(lambda read: read + lengths.astype(read.dtype), state.position)
        return self._normed(x), LanguageModelState(stack, state.output, state.mixtures, position, marker)

    def decode(
        self,
        tokens: Int[Array, "batch 1"],
        state: LanguageModelState,
        *,
        active: Rows,
        extras: Mapping[str, Any] | None = None,
    ) -> tuple[Float[Array, "batch 1 dim"] | Prediction, LanguageModelState]:
        """Reads one token of every active row, `tokens` of shape `[batch, 1]`, and returns the last hidden states (or a
        `Prediction`) and the new state. Inactive rows keep their state.
        """
        x = self._embed(tokens, state.position, decode_state=state.stack)
        x, marker = self._mark(x, jnp.where(active[:, None], tokens, -1), state.marker)
        if self.memory_tokens:
            x, _ = prepend_memory(self.memory_rows, x)
        x, stack, features = self.stack.decode_features(x, state.stack, active=active)
        x = x[:, self.memory_tokens :] if self.memory_tokens else x
        hidden, output = self._normed(x), EmptyState()
        features |= self._own_features(x, hidden)
        inputs = {"tokens": tokens, "features": features, "embed_output": self.embed_output, **(extras or {})}
        if self.output_memory is not None:
            options = _select_inputs(self.output_memory, inputs)
            hidden, output = self.output_memory.decode(hidden, state.output, active=active, **options)
        recalled, mixtures = [], []
        for memory, before in zip(self.mixtures, state.mixtures, strict=True):
            part, after = memory.decode(hidden, before, active=active, **_select_inputs(memory, inputs))
            recalled.append(part)
            mixtures.append(after)
        position = jax.tree.map(lambda read: read + active.astype(read.dtype), state.position)
        return _predict(hidden, recalled), LanguageModelState(stack, output, tuple(mixtures), position, marker)

    def token_log_probs(
        self, output: Activations | Prediction, targets: Int[Array, "batch length"]
    ) -> Float[Array, "parts batch length"]:
        """Returns log-probabilities of the targets, `[parts, batch, length]`: first under the model alone, then under
        the candidates of each mixture alone.

        Each is alone, without mixing.
        """
        return VocabularyScorer(self.vocabulary).token_log_probs(output, targets)

    def _embed(self, tokens: Array, position: Any, mask: Array | None = None, decode_state: Any = None) -> Array:
        """Embeds tokens, and adds their positions in the document and in the segment, where the model has any.

        In decoding (`decode_state`) each row is at its own position in its segment.
        """
        x, length = self.vocabulary.embed(tokens), tokens.shape[1]
        if self.positions == "sinusoids":
            places = jnp.arange(length)[None] if mask is None else count_positions(mask)
            x = x + sinusoids(position[:, None] + places, x.shape[-1]).astype(x.dtype)
        if not self.num_positions:
            return x
        if length > self.num_positions:
            raise ValueError(
                f"tokens: given {length} in a segment, allowed: up to num_positions = {self.num_positions}"
            )
        if decode_state is None:
            return x + self.positions_table[:length].astype(x.dtype)[None]
        # Every layer counts the tokens of the current segment, so the first layer of a scanned group is enough.
        place = decode_state.groups[0].attention.position
        place = place[0] if decode_state.sizes[0] else place
        return x + jnp.take(self.positions_table, place, axis=0, mode="clip").astype(x.dtype)[:, None]

    def _mark(self, x: Array, tokens: Array, marker: Any) -> tuple[Array, Any]:
        """Adds the embedding of the last marker to every token, and returns the last marker at the end too."""
        if not self.markers:
            return x, marker
        marks = last_markers(tokens, marker, self.markers)
        return x + jnp.take(self.marker_table, marks, axis=0).astype(x.dtype), marks[:, -1]

    def _run_stack(self, x: Array, state: StackState, *, mask: Array | None, **named: Any) -> tuple[Array, Any, Aux]:
        """Runs all layers over one segment, after the memory tokens where there are any."""
        num_memory = self.memory_tokens
        if not num_memory:
            return self.stack(x, state, mask=mask, **named)
        x_with_memory, mask_with_memory = prepend_memory(self.memory_rows, x, mask)
        rows, state, aux = self.stack(x_with_memory, state, mask=mask_with_memory, **named)
        counted = broadcast_mask(mask, *x.shape[:2]).any(axis=1)
        return rows[:, num_memory:], state, aux + memory_aux(rows[:, :num_memory], counted)

    def _normed(self, x: Array) -> Array:
        """Applies the final norm, if there is one."""
        return self.layer_norm(x) if self.final_norm else x

    def _own_features(self, x: Array, normed: Array) -> dict[str, Array]:
        """Returns the requested inner tensors of the output."""
        tensors = {"output": x, "output_normed": normed}
        return {name: tensors[name] for name in self.features}

    @nn.nowrap
    def _output_memories(self) -> tuple[OutputMemory, ...]:
        """Returns all memories at the output site."""
        return (() if self.output_memory is None else (self.output_memory,)) + self.mixtures


def last_markers(
    tokens: Int[Array, "batch length"], before: Int[Array, " batch"], markers: Sequence[int]
) -> Int[Array, "batch length"]:
    """Returns int `[batch, length]`: 1 + the index in `markers` of the last marker up to each token, or the row's entry
    of `before` where there is none yet. `markers` are token ids.

    Example:
      >>> last_markers(jnp.array([[7, 3, 8, 3]]), jnp.array([2]), markers=(7, 8)).tolist()
      [[1, 1, 2, 2]]
      >>> last_markers(jnp.array([[3, 3, 8, 3]]), jnp.array([0]), markers=(7, 8)).tolist()
      [[0, 0, 2, 2]]
    """
    equal = tokens[..., None] == jnp.array(markers, tokens.dtype)[None, None]
    numbers = jnp.where(equal.any(axis=-1), 1 + equal.argmax(axis=-1), 0).astype(before.dtype)  # [b, l]
    places = jnp.where(numbers > 0, 1 + jnp.arange(tokens.shape[1])[None], 0)
    known = jnp.concatenate([before[:, None], numbers], axis=1)
    return jnp.take_along_axis(known, jax.lax.cummax(places, axis=1), axis=1)


def _select_inputs(memory: OutputMemory, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Returns those of the available inputs that a memory reads."""
    return {name: inputs[name] for name in memory.input_names if name in inputs}


def _predict(hidden: Array, recalled: list[NextTokenCandidates]) -> Array | Prediction:
    """Returns hidden states, as a `Prediction` where memories proposed candidates."""
    return Prediction(hidden, tuple(recalled)) if recalled else hidden
