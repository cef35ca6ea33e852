"""Text classifiers that learn from few texts: perceptrons over hashed counts of tokens and of pairs of neighbours.

Joulin, Grave, Bojanowski and Mikolov, "Bag of Tricks for Efficient Text Classification", EACL 2017,
https://aclanthology.org/E17-2068; Weinberger, Dasgupta, Langford, Smola and Attenberg, "Feature Hashing for Large Scale
Multitask Learning", ICML 2009, https://arxiv.org/abs/0902.2206.
"""

import dataclasses
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from memjax.axes import named
from memjax.models.heads import CLASSES, SEEN, UNSEEN_SCORE, ChoiceScorer, ClassHead, EncodedText
from memjax.models.interface import Model
from memjax.models.perceptron import Perceptron
from memjax.models.vocabulary import EmptyVocabulary
from memjax.typing import Batch, Mask

__all__ = ["BayesHead", "TokenBag", "count_hashed"]

_TOKEN, _FIRST, _SECOND = 2654435761, 2246822519, 3266489917  # Odd, so that no bit of a token is lost.


def count_hashed(
    tokens: Int[Array, "batch length"], mask: Mask, buckets: int, *, pairs: bool = True
) -> Float[Array, "batch buckets"]:
    """Counts the tokens of each row, and its pairs of neighbours if `pairs` is True, in `buckets` buckets selected by
    their hashes. Counts are divided by the square root of their sum in the row.

    Args:
      tokens: `[batch, length]`, token ids.
      mask: Real tokens. A pair counts if both its tokens are real.
      buckets: Number of buckets.
      pairs: Whether pairs of neighbouring tokens are counted as well.

    Returns:
      `[batch, buckets]`, counts divided by the square root of their sum in each row. 0 for a row without tokens.
    """
    ids = tokens.astype(jnp.uint32)
    hashes, present = ids * jnp.uint32(_TOKEN), mask
    if pairs:
        couples = ids[:, :-1] * jnp.uint32(_FIRST) + ids[:, 1:] * jnp.uint32(_SECOND)
        hashes = jnp.concatenate([hashes, couples], axis=1)
        present = jnp.concatenate([mask, mask[:, :-1] & mask[:, 1:]], axis=1)
    places = ((hashes ^ (hashes >> 15)) % buckets).astype(jnp.int32)
    rows = jnp.arange(len(tokens))[:, None]
    counts = jnp.zeros((len(tokens), buckets)).at[rows, places].add(present.astype(jnp.float32))
    return counts / jnp.sqrt(jnp.maximum(present.sum(axis=1, keepdims=True), 1))


@dataclasses.dataclass(frozen=True)
class SummedScorer(ChoiceScorer):
    """A scorer of classes for `BayesHead`, whose loss has a gradient that sums the features of each class.

    Attributes:
      weighs_errors: Whether an example is weighted by the probability that the scores give to all classes but its own.
    """

    weighs_errors: bool = False

    def nll(self, output: Any, targets: Int[Array, "batch targets"], scored: Bool[Array, "batch targets"]) -> Array:
        """Returns the nats of each target, 0 where `scored` is False. Their gradient is that of the target's negative
        score, which `weighs_errors` weights.
        """
        nats = self.token_nll(output, jnp.where(scored, targets, -1))
        score = jnp.take_along_axis(output, jnp.where(scored, targets, 0)[..., None], axis=-1)[..., 0]
        linear = jnp.where(scored, -score, 0)
        if self.weighs_errors:
            linear = linear * jax.lax.stop_gradient(1 - jnp.exp(-nats))
        return jax.lax.stop_gradient(nats - linear) + linear


class BayesHead(ClassHead):
    """A head that scores classes by multinomial naive Bayes over non-negative features. Gradient descent adds up its
    class counts.

    Gradient descent with a learning rate of `data.batch_size` adds the features of each example to the counts of its
    class:
    classes do not change each other, whatever their order. All classes are equally probable before a text is read.
    With `weighs_errors`, an example counts by the probability that the head gives to other classes than its own
    (discriminative frequency estimate). Replayed texts that the head already knows then add nothing. The order of texts
    matters a little.

    McCallum and Nigam, "A Comparison of Event Models for Naive Bayes Text Classification", AAAI Workshop on Learning
    for Text Categorization 1998; features of equal length as in Rennie, Shih, Teevan and Karger, "Tackling the Poor
    Assumptions of Naive Bayes Text Classifiers", ICML 2003; smoothing by a share as in Jelinek and Mercer 1980, with a
    uniform background; errors as in Su, Zhang, Ling and Matwin, "Discriminative
    Parameter Learning for Bayesian Networks", ICML 2008.

    Attributes:
      smoothing: Share, in (0, 1), of every class's distribution that is uniform over all features. It is the same for
        classes of few and of many texts.
      masks_unseen: Whether classes that training has not read are never answered.
      weighs_errors: Whether an example is weighted by the probability of all classes but its own.
    """

    smoothing: float = 0.6
    masks_unseen: bool = False
    weighs_errors: bool = False

    @nn.nowrap
    def scorer(self, vocabulary: Any) -> SummedScorer:
        """Returns a `SummedScorer`, which scores targets given class scores. `vocabulary` is ignored."""
        del vocabulary
        return SummedScorer(self.weighs_errors)

    @nn.compact
    def __call__(self, text: EncodedText, deterministic: bool) -> Float[Array, "batch 1 classes"]:
        """Computes the log-probability of the features of an `EncodedText` under each class, -inf for classes that may
        not be answered.
        """
        shape, features = (text.pooled.shape[-1], self.num_classes), text.pooled.astype(jnp.float32)
        counts: Any = self.param("counts", named(nn.initializers.zeros, "embed", None), shape)
        sums = jax.lax.stop_gradient(jnp.maximum(counts, 0))
        shares = sums / jnp.maximum(sums.sum(axis=0, keepdims=True), jnp.finfo(sums.dtype).tiny)
        bayes = features @ jnp.log((1 - self.smoothing) * shares + self.smoothing / shape[0])
        linear = features @ counts
        scores = linear + jax.lax.stop_gradient(bayes - linear)
        if self.masks_unseen:
            seen = self.variable("constants", SEEN, named(jnp.zeros, None), (self.num_classes,), bool)
            scores = jnp.where(seen.value[None], scores, UNSEEN_SCORE)
        if CLASSES in text.extras:
            allowed = text.extras[CLASSES]
            scores = jnp.where(allowed | ~allowed.any(axis=1, keepdims=True), scores, -jnp.inf)
        return scores[:, None]


class TokenBag(Perceptron):
    """A classifier of texts: hashed counts of tokens and pairs, dense layers with rectifiers, and the head of a task.

    Without hidden layers the head is linear in the counts, so that a class learns from its own words alone.

    Differs from the paper or its code: counts instead of the mean of learned vectors, which is what those are without
    a hidden layer; pieces of words where the tokenizer cuts them; Adam instead of plain descent.

    Attributes:
      vocabulary: Vocabulary of tokens, of which only the size is used.
      buckets: Number of buckets that tokens are hashed to.
      pairs: Whether pairs of neighbouring tokens are counted as well.
    """

    vocabulary: EmptyVocabulary = EmptyVocabulary()
    buckets: int = 16_384
    pairs: bool = False
    widths: tuple[int, ...] = ()

    @nn.nowrap
    def example(self, batch_size: int, length: int) -> Batch:
        """Returns a `Batch` of texts of `length` tokens, with shapes and dtypes instead of arrays."""
        return Model.example(self, batch_size, length)

    def vectors(self, inputs: Int[Array, "batch length"], mask: Mask | None) -> Float[Array, "batch buckets"]:
        """Returns the hashed counts of each text's tokens, and of its pairs. See `count_hashed`."""
        mask = jnp.ones(inputs.shape, bool) if mask is None else mask
        return count_hashed(inputs, mask, self.buckets, pairs=self.pairs)
