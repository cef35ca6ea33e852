"""Heads that score the similarity between an encoded text and a vector of every class.

The class vectors are learned, or are encoded from the names of the classes. The extra `CLASSES` says which classes may
be answered. Classes that training has not read yet are excluded in rows where the extra `SEEN_ONLY` is set, or in all
rows. A class that may not be answered scores -inf.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any, Literal

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from memjax.axes import named
from memjax.functional.losses import token_cross_entropy
from memjax.models.heads import CLASSES, FALLBACK, SEEN, SEEN_ONLY, ChoiceScorer, ClassHead, EncodedText

NAMES = "names"
"""Key of `EncodedText.extras` for the encoded names of the classes, `[classes, dim]`."""
VECTORS = "vectors"
"""Name of the head's parameter with the class vectors, `[classes, dim]`."""
ALIGNMENT = "alignment"
"""Name of a linear map in the head's constants, applied to encoded texts and class vectors. No update changes it."""
NO_ANSWER_NATS = 1e4
"""Nats of a target that may not be answered. It stands for probability 0, and is finite."""
SMALLEST = 1e-12


@dataclasses.dataclass(frozen=True)
class RankingScorer(ChoiceScorer):
    """A scorer of targets given class scores, -inf where a class may not be answered. Its training loss is a margin
    loss or the cross-entropy.

    Attributes:
      margin: Margin of the training loss, the mean over the other classes of `max(0, margin - score of the target +
        their score)` (Wang et al. 2019). 0 = softmax cross-entropy. A row without another class has loss 0.
    """

    margin: float = 0.0

    def nll(self, output: Any, targets: Int[Array, "batch targets"], scored: Bool[Array, "batch targets"]) -> Array:
        """Returns the training loss of each target: a margin loss, or its nats if `margin` is 0. The loss is 0 where
        `scored` is False.
        """
        if not self.margin:
            return super().nll(output, targets, scored)
        output = output.astype(jnp.promote_types(output.dtype, jnp.float32))
        targets = jnp.where(scored, targets, 0)[..., None]
        right = jnp.take_along_axis(output, targets, axis=-1)
        allowed = _may_be_answered(output) & _may_be_answered(right) & scored[..., None]
        others = allowed & (jnp.arange(output.shape[-1])[None, None] != targets)
        gap = jnp.where(others, output, 0) - jnp.where(others, right, 0)
        lost = jnp.where(others, jnp.maximum(self.margin + gap, 0), 0)
        return jnp.sum(lost, axis=-1) / jnp.maximum(jnp.sum(others, axis=-1), 1)

    def token_nll(self, output: Any, targets: Int[Array, "batch targets"]) -> Float[Array, "batch targets"]:
        """Returns the negative log-likelihood of each target in nats, at least float32. 0 for a target of -1, and
        10,000 for one that may not be answered.
        """
        choices = jnp.maximum(targets, 0)[..., None]
        allowed = _may_be_answered(jnp.take_along_axis(output, choices, axis=-1)[..., 0])
        nats = token_cross_entropy(_replace_empty_rows(output), jnp.where(allowed, targets, -1))
        return jnp.where(allowed | (targets < 0), nats, NO_ANSWER_NATS)

    def log_probs(self, output: Any) -> Float[Array, "batch targets choices"]:
        """Returns the log-probabilities of all choices for each target, at least float32. Choices that may not be
        answered have -10,000.
        """
        return jnp.maximum(super().log_probs(_replace_empty_rows(output)), -NO_ANSWER_NATS)


class SimilarityHead(ClassHead):
    """A head that scores every class by the similarity between its vector and the encoded text. The vectors are
    learned, or encoded from the names of the classes.

    Attributes:
      similarity: Kind of similarity: "dot" product or "cosine".
      scale: Factor of the similarities.
      margin: Margin of the training loss, see `RankingScorer`. 0 = softmax cross-entropy.
      named: Whether the class vectors are encoded from the names of the classes (`NAMES`). False = they are learned.
      keeps_seen: Whether the head records which classes training has read (`SEEN`, updated by a learner).
      masks_unseen: Whether classes that training has not read are excluded in all rows. False = only in rows that say
        so.
      aligned: Whether a linear map is applied to encoded texts and class vectors first. It starts as the identity, and
        a learner may change it.
      dropout: Dropout rate on the encoded text.
      dtype: Dtype of the computation.
    """

    similarity: Literal["dot", "cosine"] = "dot"
    scale: float = 1.0
    margin: float = 0.0
    named: bool = False
    keeps_seen: bool = False
    masks_unseen: bool = False
    aligned: bool = False
    dropout: float = 0.0
    dtype: Any = jnp.float32

    @nn.nowrap
    def scorer(self, vocabulary: Any) -> RankingScorer:
        """Returns a `RankingScorer` with the margin of the head. `vocabulary` is ignored."""
        del vocabulary
        return RankingScorer(self.margin)

    @nn.compact
    def __call__(self, text: EncodedText, deterministic: bool) -> Float[Array, "batch 1 classes"]:
        """Computes the scores of the classes from an `EncodedText`, -inf for classes that may not be answered."""
        read = nn.Dropout(self.dropout)(text.pooled, deterministic=deterministic)
        dim = read.shape[-1]
        if self.named:
            vectors = text.extras[NAMES]
        else:
            init = named(nn.initializers.normal(dim**-0.5), None, "embed")
            vectors = self.param(VECTORS, init, (self.num_classes, dim))
        if self.aligned:
            kernel, bias = named(jnp.eye, None, None), named(jnp.zeros, None)
            start = lambda: {"kernel": kernel(dim), "bias": bias(dim)}
            alignment = self.variable("constants", ALIGNMENT, start).value
            read, vectors = apply_alignment(alignment, read), apply_alignment(alignment, vectors)
        scores = self.scale * similarities(read.astype(self.dtype), vectors.astype(self.dtype), self.similarity)
        if self.keeps_seen or self.masks_unseen:
            seen = self.variable("constants", SEEN, named(jnp.zeros, None), (self.num_classes,), bool).value
        else:
            seen = jnp.ones(self.num_classes, bool)
        allowed = _answer_mask(text.extras, seen, self.masks_unseen, scores.shape)
        return jnp.where(allowed, scores, -jnp.inf)[:, None]


def similarities(
    read: Float[Array, "batch dim"], vectors: Float[Array, "classes dim"], kind: str
) -> Float[Array, "batch classes"]:
    """Computes the similarities of all encoded texts `read` with all class vectors, `[batch, classes]`: cosines if
    `kind` is 'cosine', else dot products.

    Example:
      >>> similarities(jnp.array([[3.0, 4.0]]), jnp.array([[2.0, 0.0], [6.0, 8.0]]), "cosine").round(3).tolist()
      [[0.6000000238418579, 1.0]]
    """
    if kind == "cosine":
        unit = lambda x: x / jnp.sqrt(jnp.maximum(jnp.sum(x * x, axis=-1, keepdims=True), SMALLEST))
        read, vectors = unit(read), unit(vectors)
    return read @ vectors.T


def apply_alignment(alignment: Mapping[str, Any], x: Float[Array, "rows dim"]) -> Float[Array, "rows dim"]:
    """Applies the linear map `alignment`, a mapping with `kernel` and `bias`, to the rows of `x`."""
    return x @ alignment["kernel"].astype(x.dtype) + alignment["bias"].astype(x.dtype)[None]


def _answer_mask(
    extras: Mapping[str, Array], seen: Bool[Array, " classes"], masks_unseen: bool, shape: tuple[int, ...]
) -> Bool[Array, "batch classes"]:
    """Returns which classes each row may be answered with."""
    allowed = jnp.ones(shape, bool)
    if CLASSES in extras:
        allowed = extras[CLASSES] | ~extras[CLASSES].any(axis=1, keepdims=True)
    must_be_seen = extras.get(SEEN_ONLY, jnp.zeros(shape[0], bool)) | masks_unseen
    answerable = allowed & (seen[None] | ~must_be_seen[:, None])
    if FALLBACK in extras:
        has_no_choice = must_be_seen & (jnp.sum(answerable, axis=1) <= 1)
        answerable = jnp.where((has_no_choice & extras[FALLBACK].any(axis=1))[:, None], extras[FALLBACK], answerable)
    return answerable


def _replace_empty_rows(output: Array) -> Array:
    """Replaces a row of only -inf by zeros, since a softmax over nothing is not a number."""
    return jnp.where(_may_be_answered(output).any(axis=-1, keepdims=True), output, 0)


def _may_be_answered(scores: Array) -> Array:
    """Returns which scores are not -inf. One that is NaN counts, so that its loss is not finite either."""
    return scores != -jnp.inf
