"""Generation of tokens with an explicit decode state, for models with a memory.

The decode state is the memory at the start of the current segment and the tokens of this segment. A prompt is read as
in training: whole segments by the `__call__` of the model, and the rest, at least the last token, by its
`decode_segment`, or token by token by its `decode` where a memory has no other way. Each row has a separate position in
its segment, and a row that has nothing to read is idle. Prompts of different lengths therefore need no padding in the
memory. Every function that runs on the device is traced once per batch size, for prompts of any length.
"""

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int

from memjax.inference.sampling import Sampling, row_keys, sample
from memjax.memory.interface import where_rows
from memjax.models.compiled_programs import jit_by_model
from memjax.models.feature_taps import regroup_layers
from memjax.typing import Rows, tree_dataclass

__all__ = ["Prefix", "Recall", "generate", "prefill", "stream_tokens"]

NO_TOKEN = -1
"""Entry in blocks of generated ids for a row that was already finished."""
NOT_FINITE = -2
"""Entry in blocks of generated ids for a row whose logits were not finite."""


@tree_dataclass
class Prefix:
    """Last output and decode state of rows that have read tokens and can predict the next one.

    Attributes:
      hidden: Output of the model at the last token of each row, `[batch, dim]`. A tree of such arrays for a model with
        mixtures (`Prediction`).
      state: Decode state of the model after this token.
    """

    hidden: Any
    state: Any


Recall = Callable[[Prefix, Sequence[Sequence[int]]], Prefix]
"""Function `recall(prefix, new_tokens) -> prefix` that retrieves entries of a datastore before every generated token.

It receives the state of the rows and the tokens that each row has read since the last call. In the first call these are
the prompts. It returns the state with the retrieved entries.
"""


def prefill(
    model: Any,
    variables: Any,
    prompts: Sequence[Sequence[int]],
    *,
    segment_length: int,
    state: Any = None,
    dtype: Any = None,
) -> Prefix:
    """Reads one prompt of token ids per row into the memory of a model, a new one or `state`. Returns last output and
    decode state as a `Prefix`.

    Args:
      model: A language model (see `memjax.models`).
      variables: Variables of the model.
      prompts: Token ids of each row, at least one, with a begin token if the model was trained with one.
      segment_length: Tokens per segment in training. The memory is written once per segment.
      state: Memory to continue from, at the end of a segment. None starts a document.
      dtype: Dtype of the activations in a new memory. None for the dtype of the model.

    Returns:
      Last output and decode state of the rows.

    Raises:
      ValueError: There are no prompts, or a prompt has no tokens.
    """
    for row, prompt in enumerate(prompts):
        if not len(prompt):
            raise ValueError(
                f"prompts: given an empty prompt in row {row}, allowed: at least one token (a begin token)"
            )
    if not prompts:
        raise ValueError("prompts: given none, allowed: at least one prompt")
    rows = len(prompts)
    lengths = np.array([len(prompt) for prompt in prompts])
    whole = (lengths - 1) // segment_length
    tokens = np.zeros((rows, int(whole.max()) + 1, segment_length), np.int32)
    for row, prompt in enumerate(prompts):
        tokens[row].reshape(-1)[: len(prompt)] = prompt
    if state is None:
        state = model.init_state(rows, dtype)
    for segment in range(int(whole.max())):
        state = _read_segment(model, variables, jnp.asarray(tokens[:, segment]), jnp.asarray(segment < whole), state)
    decode_state = model.init_decode_state(state, segment_length, rows)
    tails, rest = jnp.asarray(tokens[np.arange(rows), whole]), jnp.asarray(lengths - whole * segment_length)
    if model.decodes_segments:
        return _read_beginnings(model, variables, tails, rest, decode_state)
    nothing = jnp.zeros(rows, jnp.int32), jnp.zeros(rows, bool)
    shapes, _ = jax.eval_shape(functools.partial(_decode, model), variables, *nothing, decode_state)
    hidden = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)
    return read_tokens(model, variables, tails, rest, Prefix(hidden, decode_state))


def stream_tokens(
    model: Any,
    variables: Any,
    prompts: Sequence[Sequence[int]],
    *,
    segment_length: int,
    max_tokens: int,
    sampling: Sampling | None = None,
    seed: int = 0,
    stop_tokens: Sequence[int] = (),
    finished: Callable[[list[list[int]]], Sequence[bool]] | None = None,
    block: int = 16,
    dtype: Any = None,
    recall: Recall | None = None,
    prefix: Prefix | None = None,
) -> Iterator[list[list[int]]]:
    """Continues every prompt and yields a list of the new token ids of each row after every `block` tokens. `finished`
    and `recall` are functions that end rows and retrieve. `prefix` has read the prompts.

    Args:
      model: A language model.
      variables: Variables of the model.
      prompts: Token ids of each row (see `prefill`).
      segment_length: Tokens per segment in training.
      max_tokens: Largest number of tokens to generate per row.
      sampling: Settings of sampling. None samples from the whole distribution.
      seed: Seed of sampling. The text of a prompt depends on the seed and the prompt, and not on the other rows (see
        `row_keys`).
      stop_tokens: Token ids that end a row. They are not yielded.
      finished: Function that is called after every block with all tokens generated so far. It returns True for each row
        that is to end, for example at a stop text.
      block: Number of tokens to generate before they are copied to the host.
      dtype: Dtype of the activations in a new memory. None for the dtype of the model.
      recall: Function that is called on the host before every token, for retrieval (`memjax.retrieval.generation`).
        `block` is then 1. None for no retrieval.
      prefix: State of rows that have already read the prompts, which stays usable. None reads the prompts.

    Raises:
      ValueError: `max_tokens` is negative, or a prompt has no tokens.
      FloatingPointError: The logits of a row are not finite.
    """
    block = 1 if recall else block
    if max_tokens < 0:
        raise ValueError(f"max_tokens: given {max_tokens!r}, allowed: 0 or more")
    if prefix is None and recall is None:  # both hold a state or variables of the model as it was given
        model, variables = without_scan(model, variables)
    if prefix is None:
        running = prefill(model, variables, prompts, segment_length=segment_length, dtype=dtype)
    else:
        running = jax.tree.map(jnp.copy, prefix)  # a block writes over the arrays it is given
    keys = row_keys(seed, prompts)
    stops = jnp.asarray(list(stop_tokens) or [NO_TOKEN])
    done = jnp.zeros(len(prompts), bool)
    so_far: list[list[int]] = [[] for _ in prompts]
    new: Sequence[Sequence[int]] = prompts
    for start in range(0, max_tokens, block):
        limit = jnp.asarray(min(block, max_tokens - start))
        running = recall(running, new) if recall else running
        running, done, tokens = _generate_block(
            model, variables, running, done, keys, jnp.asarray(start), limit, stops, sampling or Sampling(), block
        )
        tokens = np.asarray(tokens)
        if (tokens == NOT_FINITE).any():
            row = int((tokens == NOT_FINITE).any(axis=1).argmax())
            place = len(so_far[row]) + int((tokens[row] == NOT_FINITE).argmax()) + 1
            allowed = "allowed: finite ones; train the model again, with a smaller learning rate"
            raise FloatingPointError(f"logits: not finite at token {place} of row {row}, {allowed}")
        new = [[int(token) for token in row if token != NO_TOKEN] for row in tokens]
        for row, more in zip(so_far, new, strict=True):
            row.extend(more)
        yield [list(row) for row in new]
        if finished is not None:
            done = done | jnp.asarray(finished(so_far))
        if bool(done.all()):
            return


def generate(model: Any, variables: Any, prompts: Sequence[Sequence[int]], **settings: Any) -> list[list[int]]:
    """Generates the continuation of every prompt with further arguments of `stream_tokens`. Returns a list of token ids
    for each, without the prompt.

    `settings` are further arguments of `stream_tokens`.
    """
    rows: list[list[int]] = [[] for _ in prompts]
    for new in stream_tokens(model, variables, prompts, **settings):
        for row, more in zip(rows, new, strict=True):
            row.extend(more)
    return rows


def without_scan(model: Any, variables: Any) -> tuple[Any, Any]:
    """Returns a model whose layers are not scanned, and its variables, on a CPU, where reading a token through a scan
    copies the weights of every layer before they are used. Returns what was given on other platforms, and where nothing
    is scanned.

    The new variables are a second copy.
    """
    if jax.default_backend() != "cpu" or not model.scanned_groups():
        return model, variables
    unscanned = model.clone(stack=model.stack.clone(scan_layers=False))
    return unscanned, regroup_layers(variables, model, unscanned)


@jit_by_model()
def _read_segment(model: Any, variables: Any, tokens: Int[Array, "batch length"], reads: Rows, state: Any) -> Any:
    """Reads one whole segment of the rows that have one and returns the memory. All other rows keep their memory."""
    mask = jnp.broadcast_to(reads[:, None], tokens.shape)
    start = jnp.zeros(tokens.shape[0], bool)
    return model.apply(variables, tokens, state, start_of_document=start, mask=mask, deterministic=True)[1]


@jit_by_model()
def _read_beginnings(
    model: Any, variables: Any, tokens: Int[Array, "batch length"], lengths: Int[Array, " batch"], state: Any
) -> Prefix:
    """Reads the first `lengths` tokens of a segment of every row at once."""
    hidden, state = model.apply(variables, tokens, state, lengths=lengths, method="decode_segment")
    return Prefix(jnp.take_along_axis(hidden, lengths[:, None, None] - 1, axis=1)[:, 0], state)


@jit_by_model()
def read_tokens(
    model: Any, variables: Any, tokens: Int[Array, "batch length"], lengths: Int[Array, " batch"], prefix: Prefix
) -> Prefix:
    """Reads the first `lengths` tokens of every row, one by one, after those that `prefix` has read. Returns the new
    `Prefix`.
    """

    def read(carry: tuple[Array, Prefix]) -> tuple[Array, Prefix]:
        index, prefix = carry
        token = jax.lax.dynamic_index_in_dim(tokens, index, axis=1, keepdims=False)
        return index + 1, _advance(model, variables, token, index < lengths, prefix)

    return jax.lax.while_loop(lambda carry: carry[0] < lengths.max(), read, (jnp.zeros((), jnp.int32), prefix))[1]


@jit_by_model(static_argnums=(7, 8), donate_argnums=1)
def _generate_block(
    model: Any,
    variables: Any,
    prefix: Prefix,
    done: Rows,
    keys: Array,
    start: Int[Array, ""],
    limit: Int[Array, ""],
    stops: Int[Array, " stops"],
    sampling: Sampling,
    block: int,
) -> tuple[Prefix, Rows, Int[Array, "batch block"]]:
    """Generates up to `limit` tokens of every row that is not done.

    Token i of a row is drawn with the key of the row after folding in i.

    Returns:
      The state of the rows, whether each row is done, and the generated ids `[batch, block]`.
    """

    def should_continue(carry: tuple[Array, Any, Array, Array]) -> Bool[Array, ""]:
        index, _, done, _ = carry
        return (index < limit) & ~done.all()

    def step(carry: tuple[Array, Any, Array, Array]) -> tuple[Array, Any, Array, Array]:
        index, prefix, done, tokens = carry
        hidden = jax.tree.map(lambda leaf: leaf[:, None], prefix.hidden)
        log_probs = model.apply(variables, hidden, method="log_probs")[:, 0]
        step_keys = jax.vmap(jax.random.fold_in, (0, None))(keys, start + index)
        token = sample(step_keys, log_probs, sampling).astype(jnp.int32)
        broken = ~done & ~jnp.isfinite(log_probs.max(axis=-1))  # NaN, or no token that could be chosen
        done = done | (token[:, None] == stops[None]).any(axis=1)
        tokens = tokens.at[:, index].set(jnp.where(broken, NOT_FINITE, jnp.where(done, NO_TOKEN, token)))
        done = done | broken
        return index + 1, _advance(model, variables, token, ~done, prefix), done, tokens

    tokens = jnp.full((done.shape[0], block), NO_TOKEN, jnp.int32)
    carry = (jnp.zeros((), jnp.int32), prefix, done, tokens)
    _, prefix, done, tokens = jax.lax.while_loop(should_continue, step, carry)
    return prefix, done, tokens


def _advance(model: Any, variables: Any, token: Int[Array, " batch"], active: Rows, prefix: Prefix) -> Prefix:
    """Reads one token of every active row."""
    hidden, state = _decode(model, variables, token, active, prefix.state)
    return Prefix(where_rows(active, hidden, prefix.hidden), state)


def _decode(model: Any, variables: Any, token: Int[Array, " batch"], active: Rows, state: Any) -> tuple[Any, Any]:
    """Reads one token of every row and returns the output `[batch, ...]` and the decode state."""
    hidden, state = model.apply(variables, token[:, None], state, active=active, method="decode")
    return jax.tree.map(lambda leaf: leaf[:, 0], hidden), state
