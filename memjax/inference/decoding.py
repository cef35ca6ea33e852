"""Generation with an explicit decode state: the memory at the start of the running segment and the segment's tokens.

A prompt is read as in training: whole segments by the model's `__call__`, the rest, at least its last token, token by
token by its `decode`. Rows are out of phase, so prompts of different lengths need no padding inside the memory: a row
that is behind is idle.
Every function that runs on the device is traced once for a batch size, whatever the prompts' lengths.
"""

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int

from memjax.inference.sampling import Sampling, row_keys, sample
from memjax.memory.contract import where_rows
from memjax.programs import jit_by_model
from memjax.typing import Rows, tree_dataclass

__all__ = ["Prefix", "Recall", "generate", "prefill", "stream_tokens"]

NO_TOKEN = -1
"""Stands in blocks of generated ids where a row was already finished."""
NOT_FINITE = -2
"""Stands in blocks of generated ids where a row had no probabilities to choose by."""


@tree_dataclass
class Prefix:
    """Rows that have read something and can predict their next token.

    Attributes:
      hidden: `[batch, dim]`, the model's output at each row's last token, or a tree of such (`Prediction`).
      state: the model's decode state after that token.
    """

    hidden: Any
    state: Any


Recall = Callable[[Prefix, Sequence[Sequence[int]]], Prefix]
"""Given the rows and the tokens that they have read since the last call (first the prompts), gives the rows with what
was found for them."""


def prefill(
    model: Any,
    variables: Any,
    prompts: Sequence[Sequence[int]],
    *,
    segment_length: int,
    state: Any = None,
    dtype: Any = None,
) -> Prefix:
    """Reads one prompt a row.

    Args:
      model: a language model (see `memjax.models`).
      variables: its variables.
      prompts: token ids of every row, at least one each, a begin token included where the model was trained with one.
      segment_length: tokens of a segment, as in training: memory is written once a segment.
      state: memory to continue from, at a segment border; None = a document starts.
      dtype: of the activations in a new memory; None = the model's own.

    Returns:
      The rows' last output and decode state.

    Raises:
      ValueError: a prompt without tokens.
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
    """Continues every prompt and yields the new tokens of each row after every `block` tokens.

    Args:
      model: a language model.
      variables: its variables.
      prompts: token ids of every row (see `prefill`).
      segment_length: tokens of a segment, as in training.
      max_tokens: tokens generated per row, at most.
      sampling: settings; None draws from the whole distribution.
      seed: the text of a prompt depends on it and the prompt, not on the other rows (see `row_keys`).
      stop_tokens: ids that end a row; they are not yielded.
      finished: asked after every block with all tokens generated so far; True ends a row (stop texts).
      block: tokens generated between two looks at the host.
      dtype: of the activations in a new memory; None = the model's own.
      recall: called on the host before every token (`memjax.retrieval.generation`); `block` is then 1.
      prefix: rows that have read the prompts already; it can be continued again. None = they are read.

    Raises:
      FloatingPointError: The logits of a row are not finite.
    """
    block = 1 if recall else block
    if max_tokens < 0:
        raise ValueError(f"max_tokens: given {max_tokens!r}, allowed: 0 or more")
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
    """The continuation of every prompt, without the prompt; arguments are those of `stream_tokens`."""
    rows: list[list[int]] = [[] for _ in prompts]
    for new in stream_tokens(model, variables, prompts, **settings):
        for row, more in zip(rows, new, strict=True):
            row.extend(more)
    return rows


@jit_by_model()
def _read_segment(model: Any, variables: Any, tokens: Int[Array, "batch length"], reads: Rows, state: Any) -> Any:
    """The state after one whole segment of the rows that have one; the others are padding and keep theirs."""
    mask = jnp.broadcast_to(reads[:, None], tokens.shape)
    start = jnp.zeros(tokens.shape[0], bool)
    return model.apply(variables, tokens, state, start_of_document=start, mask=mask, deterministic=True)[1]


@jit_by_model()
def read_tokens(
    model: Any, variables: Any, tokens: Int[Array, "batch length"], lengths: Int[Array, " batch"], prefix: Prefix
) -> Prefix:
    """Reads token by token the first `lengths` tokens of every row."""

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
    """Up to `limit` tokens of every row that is not done; token i is drawn with the row's key folded with i."""

    def more(carry: tuple[Array, Any, Array, Array]) -> Bool[Array, ""]:
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
    _, prefix, done, tokens = jax.lax.while_loop(more, step, carry)
    return prefix, done, tokens


def _advance(model: Any, variables: Any, token: Int[Array, " batch"], active: Rows, prefix: Prefix) -> Prefix:
    """One token of every active row."""
    hidden, state = _decode(model, variables, token, active, prefix.state)
    return Prefix(where_rows(active, hidden, prefix.hidden), state)


def _decode(model: Any, variables: Any, token: Int[Array, " batch"], active: Rows, state: Any) -> tuple[Any, Any]:
    """The output of one token of every row, `[batch, ...]`, and the decode state after it."""
    hidden, state = model.apply(variables, token[:, None], state, active=active, method="decode")
    return jax.tree.map(lambda leaf: leaf[:, 0], hidden), state
