"""Translation with an encoder-decoder: beam search and BLEU."""

import re
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from memjax.memory.interface import take_rows
from memjax.models.compiled_programs import jit_by_model
from memjax.typing import Leaf

__all__ = ["beam_search", "detokenized_bleu", "tokenized_bleu", "translate"]


class Hypotheses(NamedTuple):
    """The hypotheses that a beam search has found for every row, best first: their tokens, lengths, and
    log-probabilities divided by a power of the length.

    Attributes:
      tokens: Token ids, int32 `[batch, beam, max_length]`, including the end token if it was reached. Places after the
        hypothesis are 0.
      lengths: Number of tokens of each hypothesis, int32 `[batch, beam]`.
      scores: Log-probability divided by `length ** length_penalty`, `[batch, beam]`. -inf if there is no such
        hypothesis.
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
    """Finds the most probable translations of source tokens with an `EncoderDecoder` by beam search. Returns
    `beam_size` of them for each row, as `Hypotheses`.

    A hypothesis with n tokens (including the end token) and log-probability s has the score `s / n ** length_penalty`,
    as in fairseq. The search stops when no unfinished hypothesis can become better than the finished ones, or after
    `max_length` tokens. Unfinished hypotheses are returned only for rows without any finished one.

    Args:
      model: An `EncoderDecoder`.
      variables: Variables of the model.
      source: Token ids to translate, `[batch, source]`.
      source_mask: Tokens that are not padding, `[batch, source]`.
      begin_token: Token id that is read before the first token.
      end_token: Token id that ends a hypothesis.
      beam_size: Number of hypotheses per row that are extended in each step, and that are returned.
      max_length: Largest number of tokens of a hypothesis.
      length_penalty: Exponent of the length in the score. 0 for the plain log-probability. Larger values favour longer
        translations.
      segment_length: Tokens per target segment in training.
    """
    batch, rows = source.shape[0], jnp.arange(source.shape[0])[:, None]
    state = model.apply(variables, source, source_mask, segment_length, method="start_decoding")
    state = take_rows(state, jnp.repeat(jnp.arange(batch), beam_size))
    all_active = jnp.ones(batch * beam_size, bool)
    score_of = lambda log_probs, length: log_probs / jnp.asarray(length, log_probs.dtype) ** length_penalty

    def advance(carry: _Beams) -> _Beams:
        hidden, state = model.apply(
            variables, carry.last.reshape(-1, 1), carry.state, active=all_active, method="decode"
        )
        log_probs = model.apply(variables, hidden, method="log_probs").reshape(batch, beam_size, -1)
        vocab = log_probs.shape[-1]
        # At most one candidate per beam ends it, so that twice as many candidates leave enough that continue.
        total, place = jax.lax.top_k((carry.log_probs[..., None] + log_probs).reshape(batch, -1), 2 * beam_size)
        parent, token = place // vocab, (place % vocab).astype(jnp.int32)
        tokens = carry.running[rows, parent].at[:, :, carry.length].set(token)
        ends = token == end_token

        end_scores = jnp.where(ends, score_of(total, carry.length + 1), -jnp.inf)
        scores = jnp.concatenate([carry.finished.scores, end_scores], axis=1)
        best, chosen = jax.lax.top_k(scores, beam_size)
        merge = lambda old, new: jnp.concatenate([old, new], axis=1)[rows, chosen]
        lengths = jnp.full(ends.shape, carry.length + 1, jnp.int32)
        finished = Hypotheses(merge(carry.finished.tokens, tokens), merge(carry.finished.lengths, lengths), best)

        log_probs, running = jax.lax.top_k(jnp.where(ends, -jnp.inf, total), beam_size)
        state = take_rows(state, (rows * beam_size + parent[rows, running]).reshape(-1))
        return _Beams(carry.length + 1, state, token[rows, running], log_probs, tokens[rows, running], finished)

    def should_continue(carry: _Beams) -> Bool[Array, ""]:
        # An unfinished hypothesis only loses probability. At best it ends at the last place, with the largest divisor.
        bound = score_of(carry.log_probs[:, 0], max_length if length_penalty > 0 else 1)
        return (carry.length < max_length) & (bound > carry.finished.scores[:, -1]).any()

    empty = jnp.zeros((batch, beam_size, max_length), jnp.int32)
    nothing = jnp.full((batch, beam_size), -jnp.inf, jnp.float32)
    start = _Beams(
        length=jnp.zeros((), jnp.int32),
        state=state,
        last=jnp.full((batch, beam_size), begin_token, jnp.int32),
        log_probs=nothing.at[:, 0].set(0),  # all beams are equal at the start: only the first one counts
        running=empty,
        finished=Hypotheses(empty, jnp.zeros((batch, beam_size), jnp.int32), nothing),
    )
    end = jax.lax.while_loop(should_continue, advance, start)
    lengths = jnp.full((batch, beam_size), end.length, jnp.int32)
    unfinished = Hypotheses(end.running, lengths, score_of(end.log_probs, jnp.maximum(end.length, 1)))
    has_finished = jnp.isfinite(end.finished.scores[:, 0])
    choose = lambda a, b: jnp.where(has_finished.reshape(-1, *(1,) * (a.ndim - 1)), a, b)
    return jax.tree.map(choose, end.finished, unfinished)


class _Beams(NamedTuple):
    """The state of a beam search. All unfinished hypotheses have the same length.

    Attributes:
      length: Number of tokens of the unfinished hypotheses, int32 scalar.
      state: Decode state of the model, with `batch * beam` rows.
      last: Last token of each unfinished hypothesis, int32 `[batch, beam]`.
      log_probs: Log-probability of each unfinished hypothesis, `[batch, beam]`.
      running: Tokens of the unfinished hypotheses, int32 `[batch, beam, max_length]`.
      finished: The best finished `Hypotheses`.
    """

    length: Leaf
    state: Any
    last: Leaf
    log_probs: Leaf
    running: Leaf
    finished: Any


def translate(
    model: Any,
    variables: Any,
    sources: Sequence[Sequence[int]],
    *,
    rows: int = 32,
    source_length: int = 0,
    **search: Any,
) -> Iterator[list[int]]:
    """Translates sources, lists of token ids, with beam search, `rows` at a time. Yields the token ids of the best
    translation of each, without its end token.

    Args:
      model: An `EncoderDecoder`.
      variables: Variables of the model.
      sources: Token ids of each source, with the end token if the model was trained with one.
      rows: Number of sources that are translated side by side in one compiled program.
      source_length: Number of tokens that sources are padded to. 0 for the length of the longest source.
      **search: Arguments of `beam_search`. `begin_token` and `end_token` are required.

    Raises:
      ValueError: A source is empty or longer than `source_length`.
    """
    longest = max((len(ids) for ids in sources), default=0)
    total = source_length or longest
    if min((len(ids) for ids in sources), default=1) < 1 or longest > total:
        raise ValueError(f"sources: given lengths up to {longest}, allowed: 1 to {total} tokens")
    for first in range(0, len(sources), rows):
        chunk = sources[first : first + rows]
        ids, mask = np.zeros((rows, total), np.int32), np.zeros((rows, total), bool)
        for row, source in enumerate(chunk):
            ids[row, : len(source)], mask[row, : len(source)] = source, True
        mask[len(chunk) :, 0] = True
        hypotheses = jax.device_get(beam_search(model, variables, jnp.asarray(ids), jnp.asarray(mask), **search))
        for row in range(len(chunk)):
            best = hypotheses.tokens[row, 0, : hypotheses.lengths[row, 0]].tolist()
            yield best[:-1] if best and best[-1] == search["end_token"] else best


class Bleu(NamedTuple):
    """A corpus BLEU score of sacrebleu, 0 to 100, with its signature.

    Attributes:
      score: BLEU score, from 0 to 100.
      signature: Signature of sacrebleu, which names its version and settings.
    """

    score: float
    signature: str


def detokenized_bleu(translations: Sequence[str], references: Sequence[str]) -> Bleu:
    """Computes sacrebleu's corpus BLEU of plain texts, case-sensitive and with its tokenisation `13a`.

    It needs the extra `eval`. `references` has one reference for each translation.
    """
    return _bleu(translations, references, tokenize="13a")


def tokenized_bleu(translations: Sequence[str], references: Sequence[str]) -> Bleu:
    """Computes corpus BLEU of lower-cased words and punctuation marks (`words_of`), without further tokenisation.

    It needs the extra `eval`. `references` has one reference for each translation.
    """
    joined = ([" ".join(words_of(text)) for text in texts] for texts in (translations, references))
    return _bleu(*joined, tokenize="none")


def words_of(text: str) -> list[str]:
    """Returns the lower-cased words of a text, which may contain hyphens and apostrophes, and its single punctuation
    marks, as a list in their order.

    Example:
      >>> words_of('Ein T-Shirt, "rot".')
      ['ein', 't-shirt', ',', '"', 'rot', '"', '.']
    """
    return re.findall(r"\w+(?:[-'’]\w+)*|[^\w\s]", text.lower())


def _bleu(translations: Sequence[str], references: Sequence[str], *, tokenize: str) -> Bleu:
    """Computes corpus BLEU with a tokenisation of sacrebleu."""
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
