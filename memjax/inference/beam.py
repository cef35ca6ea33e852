"""Translation: beam search over the decoder of an encoder-decoder, and BLEU."""

import re
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from memjax.memory.contract import take_rows
from memjax.programs import jit_by_model
from memjax.typing import Leaf

__all__ = ["beam_search", "detokenized_bleu", "tokenized_bleu", "translate"]


class Hypotheses(NamedTuple):
    """What a beam search found, the best first.

    Attributes:
      tokens: int32 `[batch, beam, max_length]`, the end token included where there is one; after it 0.
      lengths: int32 `[batch, beam]`.
      scores: `[batch, beam]`, log-probability divided by `length ** length_penalty`; -inf where none was found.
    """

    tokens: Int[Array, "batch beam max_length"]
    lengths: Int[Array, "batch beam"]
    scores: Float[Array, "batch beam"]


@jit_by_model(
    static_argnames=("begin_token", "end_token", "beam_size", "max_length", "length_penalty", "segment_length")
)
def beam_search(
    model: Any,
    variables: Any,
    source: Int[Array, "batch source"],
    source_mask: Bool[Array, "batch source"],
    *,
    begin_token: int,
    end_token: int,
    beam_size: int = 5,
    max_length: int = 64,
    length_penalty: float = 1.0,
    segment_length: int = 64,
) -> Hypotheses:
    """The most probable translations that a beam finds.

    A hypothesis of n tokens (with its end) and log-probability s has the score `s / n ** length_penalty`, as in
    fairseq. The search ends where no running hypothesis can become better than those found, or at `max_length` tokens;
    running ones count only where a row has found none.

    Args:
      model: an `EncoderDecoder`.
      variables: its variables.
      source: ids to translate.
      source_mask: real tokens.
      begin_token: read before the first token.
      end_token: ends a hypothesis.
      beam_size: hypotheses that go on.
      max_length: tokens of a hypothesis.
      length_penalty: exponent; 0 = the plain log-probability, more favours longer translations.
      segment_length: tokens of a target segment, as in training.
    """
    batch, rows = source.shape[0], jnp.arange(source.shape[0])[:, None]
    state = model.apply(variables, source, source_mask, segment_length, method="start_decoding")
    state = take_rows(state, jnp.repeat(jnp.arange(batch), beam_size))
    everywhere = jnp.ones(batch * beam_size, bool)
    at_end = lambda log_probs, length: log_probs / jnp.asarray(length, log_probs.dtype) ** length_penalty

    def advance(carry: _Beams) -> _Beams:
        hidden, state = model.apply(
            variables, carry.last.reshape(-1, 1), carry.state, active=everywhere, method="decode"
        )
        log_probs = model.apply(variables, hidden, method="log_probs").reshape(batch, beam_size, -1)
        vocab = log_probs.shape[-1]
        # At most one candidate per beam ends it, so that twice as many leave enough that go on.
        total, place = jax.lax.top_k((carry.log_probs[..., None] + log_probs).reshape(batch, -1), 2 * beam_size)
        parent, token = place // vocab, (place % vocab).astype(jnp.int32)
        tokens = carry.running[rows, parent].at[:, :, carry.length].set(token)
        ends = token == end_token

        found = jnp.where(ends, at_end(total, carry.length + 1), -jnp.inf)
        scores = jnp.concatenate([carry.found.scores, found], axis=1)
        best, chosen = jax.lax.top_k(scores, beam_size)
        both = lambda old, new: jnp.concatenate([old, new], axis=1)[rows, chosen]
        lengths = jnp.full(ends.shape, carry.length + 1, jnp.int32)
        found = Hypotheses(both(carry.found.tokens, tokens), both(carry.found.lengths, lengths), best)

        log_probs, kept = jax.lax.top_k(jnp.where(ends, -jnp.inf, total), beam_size)
        state = take_rows(state, (rows * beam_size + parent[rows, kept]).reshape(-1))
        return _Beams(carry.length + 1, state, token[rows, kept], log_probs, tokens[rows, kept], found)

    def goes_on(carry: _Beams) -> Bool[Array, ""]:
        # What goes on only loses probability; at best it ends at the last place, where the divisor is largest.
        bound = at_end(carry.log_probs[:, 0], max_length if length_penalty > 0 else 1)
        return (carry.length < max_length) & (bound > carry.found.scores[:, -1]).any()

    empty = jnp.zeros((batch, beam_size, max_length), jnp.int32)
    nothing = jnp.full((batch, beam_size), -jnp.inf, jnp.float32)
    start = _Beams(
        length=jnp.zeros((), jnp.int32),
        state=state,
        last=jnp.full((batch, beam_size), begin_token, jnp.int32),
        log_probs=nothing.at[:, 0].set(0),  # all beams are the same: only the first goes on
        running=empty,
        found=Hypotheses(empty, jnp.zeros((batch, beam_size), jnp.int32), nothing),
    )
    end = jax.lax.while_loop(goes_on, advance, start)
    lengths = jnp.full((batch, beam_size), end.length, jnp.int32)
    unfinished = Hypotheses(end.running, lengths, at_end(end.log_probs, jnp.maximum(end.length, 1)))
    has_found = jnp.isfinite(end.found.scores[:, 0])
    choose = lambda a, b: jnp.where(has_found.reshape(-1, *(1,) * (a.ndim - 1)), a, b)
    return jax.tree.map(choose, end.found, unfinished)


class _Beams(NamedTuple):
    """A running search: all hypotheses that go on have the same length."""

    length: Leaf
    state: Any
    last: Leaf
    log_probs: Leaf
    running: Leaf
    found: Any


def translate(
    model: Any,
    variables: Any,
    sources: Sequence[Sequence[int]],
    *,
    rows: int = 32,
    source_length: int = 0,
    **search: Any,
) -> Iterator[list[int]]:
    """The best translation of every source, without its end token.

    Args:
      model: an `EncoderDecoder`.
      variables: its variables.
      sources: ids, the end token included where the model was trained with one.
      rows: sources translated side by side, in one compiled program.
      source_length: tokens that sources are padded to; 0 = the longest of them.
      **search: of `beam_search`; `begin_token` and `end_token` have to be given.

    Raises:
      ValueError: an empty source, or one longer than `source_length`.
    """
    longest = max((len(ids) for ids in sources), default=0)
    total = source_length or longest
    if min((len(ids) for ids in sources), default=1) < 1 or longest > total:
        raise ValueError(f"sources: given lengths up to {longest}, allowed: 1 to {total} tokens")
    for first in range(0, len(sources), rows):
        some = sources[first : first + rows]
        ids, mask = np.zeros((rows, total), np.int32), np.zeros((rows, total), bool)
        for row, source in enumerate(some):
            ids[row, : len(source)], mask[row, : len(source)] = source, True
        mask[len(some) :, 0] = True
        found = jax.device_get(beam_search(model, variables, jnp.asarray(ids), jnp.asarray(mask), **search))
        for row in range(len(some)):
            best = found.tokens[row, 0, : found.lengths[row, 0]].tolist()
            yield best[:-1] if best and best[-1] == search["end_token"] else best


class Bleu(NamedTuple):
    """A corpus BLEU of sacrebleu.

    Attributes:
      score: from 0 to 100.
      signature: sacrebleu's, which names its version and settings.
    """

    score: float
    signature: str


def detokenized_bleu(translations: Sequence[str], references: Sequence[str]) -> Bleu:
    """Sacrebleu's BLEU of plain texts, with its own tokenisation `13a` and cases. Needs the extra `eval`."""
    return _bleu(translations, references, tokenize="13a")


def tokenized_bleu(translations: Sequence[str], references: Sequence[str]) -> Bleu:
    """BLEU of lower-cased words and punctuation marks (`words_of`), without further tokenisation."""
    joined = ([" ".join(words_of(text)) for text in texts] for texts in (translations, references))
    return _bleu(*joined, tokenize="none")


def words_of(text: str) -> list[str]:
    """Lower-cased words, hyphens and apostrophes inside them kept, and every other mark alone.

    Example:
      >>> words_of('Ein T-Shirt, "rot".')
      ['ein', 't-shirt', ',', '"', 'rot', '"', '.']
    """
    return re.findall(r"\w+(?:[-'’]\w+)*|[^\w\s]", text.lower())


def _bleu(translations: Sequence[str], references: Sequence[str], *, tokenize: str) -> Bleu:
    if len(translations) != len(references) or not translations:
        raise ValueError(
            f"translations: given {len(translations)} for {len(references)} references, allowed: as many, at least one"
        )
    try:
        from sacrebleu.metrics.bleu import BLEU
    except ImportError:
        raise ValueError("BLEU needs sacrebleu; install memjax[eval]") from None
    metric = BLEU(tokenize=tokenize, force=True)
    score = metric.corpus_score(list(translations), [list(references)])
    return Bleu(float(score.score), str(metric.get_signature()))
