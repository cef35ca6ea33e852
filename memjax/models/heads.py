"""Heads, which turn the hidden states of an encoder into an output, and scorers, which compare an output with targets.

The scorer of an output (`VocabularyScorer`, `SmoothedVocabularyScorer`, `ChoiceScorer`) says how probable its targets
are.
Training minimises `nll`, and evaluation reports `token_nll` and `log_probs`. Sums and weights are left to the model
(`memjax.models.interface.Model`). A task of text encoders has its own head with parameters between the last hidden
states and these scores: `MaskedTokenHead`, `ClassificationHead`, `SpanHead`.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from memjax.axes import named
from memjax.functional.losses import token_cross_entropy
from memjax.memory.layer_parts import ACTIVATIONS, Activation, make_norm, matrix_init
from memjax.memory.next_token_candidates import Prediction, mix_log_prob, mix_log_probs, recalled_log_prob
from memjax.settings.compatibility import warn_of_renamed_members
from memjax.typing import Activations, Mask

INIT_STDDEV = 0.02
MASKED_POSITIONS, TOKEN_TYPES = "masked_positions", "token_types"
"""Keys of `Batch.extras` for an encoder: positions of the hidden tokens, `[batch, targets]`, and the types of all
tokens, `[batch, length]`."""
STATES = "states"
"""Key of `Batch.extras` for an encoder without embeddings: the input of its first layer, `[batch, length, dim]`."""
CLASSES = "classes"
"""Key of `Batch.extras`: bool `[batch, classes]`, classes that may be answered. In a row without any, all may be."""
SEEN_ONLY = "seen_only"
"""Key of `Batch.extras`: bool `[batch]`, rows that may only be answered with classes that training has read."""
FALLBACK = "fallback"
"""Key of `Batch.extras`: bool `[batch, classes]`, classes to compare with where `SEEN_ONLY` leaves at most one."""
ALLOWED = (CLASSES, SEEN_ONLY, FALLBACK)
"""Keys of all extras that say which classes may be answered."""
SEEN = "seen"
"""Name of a constant of a classification head: bool `[classes]`, classes that training has read examples of."""
UNSEEN_SCORE = -1e4
"""Score of classes that training has not read. Their probability is practically 0, but the loss stays finite."""
INITS = {
    "normal": matrix_init(INIT_STDDEV),
    "lecun": matrix_init(None),
    "uniform": nn.initializers.variance_scaling(1 / 3, "fan_in", "uniform"),
}
"""Initialisers of matrices by the names that settings give them."""


@dataclasses.dataclass(frozen=True)
class VocabularyScorer:
    """A scorer of targets given hidden states, by the softmax of a vocabulary. Instead of hidden states it also takes a
    `Prediction`, with the candidates of output memories to mix in.

    Attributes:
      vocabulary: Bound `memjax.models.vocabulary.Vocabulary`.
    """

    vocabulary: Any

    def nll(self, output: Any, targets: Int[Array, "batch length"], scored: Mask) -> Array:
        """Returns the training loss of each target in nats, `[batch, length]`. Where `scored` is False, it has no
        gradient and its value has no meaning.
        """
        return self.token_nll(_mask_unscored(output, scored), jnp.where(scored, targets, 0))

    def token_nll(self, output: Any, targets: Int[Array, "batch length"]) -> Float[Array, "batch length"]:
        """Returns the negative log-likelihood of each target in nats, at least float32."""
        if not isinstance(output, Prediction):
            return self.vocabulary.token_nll(output, targets)
        model_log_probs = -self.vocabulary.token_nll(output.hidden, targets)
        return -mix_log_prob(
            model_log_probs, targets, output.recalled, lambda: self.vocabulary.log_normalizer(output.hidden)
        )

    def token_log_probs(self, output: Any, targets: Int[Array, "batch length"]) -> Float[Array, "parts batch length"]:
        """Returns log-probabilities of the targets, `[parts, batch, length]`: first under the model alone, then under
        the candidates of each mixture alone.

        Where a mixture has no candidates it is that of the model, so that mixing them changes nothing.
        """
        recalled = output.recalled if isinstance(output, Prediction) else ()
        hidden = output.hidden if isinstance(output, Prediction) else output
        model_log_probs = -self.vocabulary.token_nll(hidden, targets)
        has_candidates = [(part.scores > -jnp.inf).any(axis=-1) for part in recalled]
        others = [
            jnp.where(s, recalled_log_prob(part, targets), model_log_probs)
            for s, part in zip(has_candidates, recalled, strict=True)
        ]
        return jnp.stack([model_log_probs, *others])

    def log_probs(self, output: Any) -> Float[Array, "batch length vocab"]:
        """Returns the log-probabilities of the whole vocabulary at every position, with the candidates of output
        memories mixed in, at least float32.
        """
        if not isinstance(output, Prediction):
            return self.vocabulary.log_probs(output)
        model_log_probs = self.vocabulary.log_probs(output.hidden)
        return mix_log_probs(model_log_probs, output.recalled, lambda: self.vocabulary.log_normalizer(output.hidden))

    def logits(self, output: Any) -> Float[Array, "batch length vocab"]:
        """Returns the scores of the whole vocabulary given hidden states (`output`), `[batch, length, vocab]`. The
        output must be no `Prediction`, and the vocabulary no `AdaptiveVocabulary`.
        """
        return self.vocabulary.logits(output)


@dataclasses.dataclass(frozen=True)
class SmoothedVocabularyScorer(VocabularyScorer):
    """A `VocabularyScorer` whose training loss `nll` smooths the targets. Its other methods do not.

    Attributes:
      label_smoothing: Share of the target distribution that is spread evenly over the vocabulary. See
        `token_cross_entropy`.
    """

    label_smoothing: float = 0.0

    def nll(self, output: Any, targets: Int[Array, "batch length"], scored: Mask) -> Array:
        """Returns the training loss of each target in nats, with label smoothing. 0 where `scored` is False."""
        logits = self.vocabulary.logits(_mask_unscored(output, scored))
        return token_cross_entropy(logits, jnp.where(scored, targets, -1), label_smoothing=self.label_smoothing)


class ChoiceScorer:
    """A scorer of targets given an output that already holds a score for each value that a target can have: a class, or
    a place in a text.
    """

    def nll(self, output: Any, targets: Int[Array, "batch targets"], scored: Bool[Array, "batch targets"]) -> Array:
        """Returns the training loss of each target in nats. 0, without a gradient, where `scored` is False."""
        return self.token_nll(output, jnp.where(scored, targets, -1))

    def token_nll(self, output: Any, targets: Int[Array, "batch targets"]) -> Float[Array, "batch targets"]:
        """Returns the negative log-likelihood of each target in nats, at least float32. 0 for a target of -1."""
        return token_cross_entropy(output, targets)

    def log_probs(self, output: Any) -> Float[Array, "batch targets choices"]:
        """Returns the log-probabilities of all choices for each target, at least float32."""
        return jax.nn.log_softmax(output.astype(jnp.promote_types(output.dtype, jnp.float32)), axis=-1)

    def logits(self, output: Any) -> Float[Array, "batch targets choices"]:
        """Returns the output unchanged, since it already holds the scores of all choices."""
        return output


class EncodedText(NamedTuple):
    """The result of a text encoder, which its head reads: last hidden states, one vector of the whole text, the mask,
    and extras.

    Attributes:
      hidden: `[batch, length, dim]`, last hidden states.
      pooled: `[batch, dim]`, vector of the whole text for heads of classes: the first token's, after the pooler if
        there is one, or the mean.
      mask: `[batch, length]`, real tokens.
      extras: Part of the batch's extras that the encoder reads.
    """

    hidden: Activations
    pooled: Float[Array, "batch dim"]
    mask: Mask
    extras: Mapping[str, Array]


class TaskHead(nn.Module):
    """The base class of heads: modules that turn the `EncodedText` of an encoder into the output by which targets are
    scored.

    `scores_vocabulary` says whether the vocabulary, which then has a bias, scores the output. `named` says whether the
    head compares texts with the encoded names of classes, which it finds in the extras.
    """

    scores_vocabulary = False
    named = False

    def __init_subclass__(cls, **arguments: Any) -> None:
        super().__init_subclass__(**arguments)
        warn_of_renamed_members(cls)

    @nn.nowrap
    def scorer(self, vocabulary: Any) -> VocabularyScorer | ChoiceScorer:
        """Returns the object that scores targets given the output, by default a `ChoiceScorer`. `vocabulary` is that of
        the model, for heads whose output the vocabulary scores.
        """
        del vocabulary
        return ChoiceScorer()

    @nn.nowrap
    def num_targets(self, length: int) -> int:
        """Returns the number of targets of a text with `length` tokens, by default as many."""
        return length

    @nn.nowrap
    def count_classes(self) -> int:
        """Returns the number of classes that the head scores. 0 where targets are not classes."""
        return 0


class MaskedTokenHead(TaskHead):
    """A head that predicts hidden tokens: a dense layer, an activation and a norm. Its output is hidden states `[batch,
    targets, dim]`, which the vocabulary with a bias scores.

    Attributes:
      dim: Width of the encoder.
      weighted_norms: Whether the means in the norm weigh the entries (`WeightedNorm`), for a model that has grown in
        width.
      dtype: Dtype of the computation.
      norm_epsilon: Number added to the variance in the norm. None = the default of `make_norm`.
      activation: Activation function, one of `ACTIVATIONS`.
    """

    dim: int
    weighted_norms: bool = False
    dtype: Any = jnp.float32
    norm_epsilon: float | None = None
    activation: Activation = "gelu_exact"

    scores_vocabulary = True

    def setup(self) -> None:
        self.dense = make_dense(self.dim, self.dtype, outer="embed")
        options: dict[str, Any] = {"weighted": self.weighted_norms, "epsilon": self.norm_epsilon}
        self.layer_norm = make_norm("layer_exact", self.dtype, **options)

    @nn.nowrap
    def scorer(self, vocabulary: Any) -> VocabularyScorer:
        """Returns a `VocabularyScorer`, which scores the head's hidden states by the vocabulary."""
        return VocabularyScorer(vocabulary)

    def __call__(self, text: EncodedText, deterministic: bool) -> Float[Array, "batch targets dim"]:
        """Computes the hidden states of the targets in an `EncodedText`. Without `MASKED_POSITIONS` in its extras, all
        tokens are targets.
        """
        hidden = text.hidden
        if MASKED_POSITIONS in text.extras:
            hidden = jnp.take_along_axis(hidden, text.extras[MASKED_POSITIONS][..., None], axis=1, mode="clip")
        return self.layer_norm(ACTIVATIONS[self.activation](self.dense(hidden)))


class ClassHead(TaskHead):
    """The base class of heads that score `num_classes` classes, one of which is the target of a text or a vector.

    Attributes:
      num_classes: Number of classes.
    """

    num_classes: int

    @nn.nowrap
    def num_targets(self, length: int) -> int:
        """Returns 1, since the class is the only target."""
        return 1

    @nn.nowrap
    def count_classes(self) -> int:
        """Returns the number of classes."""
        return self.num_classes


class ClassificationHead(ClassHead):
    """A head that scores classes, `[batch, 1, classes]`: dropout and one dense layer over `pooled`, the encoder's
    vector of a text or of the input vector.

    Classes that the extra `CLASSES` leaves out score -inf. They are never answered and have no gradient. So one head
    serves tasks that know their own classes (task-incremental learning).

    Attributes:
      dropout: Dropout rate.
      dtype: Dtype of the computation.
      initializer: Initial values of the matrix, one of `INITS`.
      masks_unseen: Whether classes that training has not read, such as those of later tasks, are not answered and not
        trained. A learner updates the record of read classes, `SEEN`.
    """

    dropout: float = 0.0
    dtype: Any = jnp.float32
    initializer: str = "normal"
    masks_unseen: bool = False

    def setup(self) -> None:
        if self.masks_unseen:
            self.seen = self.variable("constants", SEEN, named(jnp.zeros, None), (self.num_classes,), bool)
        self.classifier = make_dense(self.num_classes, self.dtype, initializer=self.initializer)
        self.drop = nn.Dropout(self.dropout)

    def __call__(self, text: EncodedText, deterministic: bool) -> Float[Array, "batch 1 classes"]:
        """Computes the scores of the classes from an `EncodedText`, -inf for classes that may not be answered."""
        scores = self.classifier(self.drop(text.pooled, deterministic=deterministic))
        if self.masks_unseen:
            scores = jnp.where(self.seen.value, scores, UNSEEN_SCORE)
        if CLASSES in text.extras:
            allowed = text.extras[CLASSES]
            allowed |= ~allowed.any(axis=1, keepdims=True)  # a softmax over nothing would not be finite
            scores = jnp.where(allowed, scores, -jnp.inf)
        return scores[:, None]


class FeatureHead(TaskHead):
    """A head without parameters that returns the features a head of classes would read, the encoder's `pooled`, as
    `[batch, 1, dim]`.
    """

    @nn.nowrap
    def num_targets(self, length: int) -> int:
        """Returns 1, as for a head of classes."""
        return 1

    def __call__(self, text: EncodedText, deterministic: bool) -> Float[Array, "batch 1 dim"]:
        """Returns `pooled` of an `EncodedText` with an axis of one target, `[batch, 1, dim]`."""
        return text.pooled[:, None]


class SpanHead(TaskHead):
    """A head for the ends of an answer: one dense layer scores every token as the first and as the last of the answer,
    `[batch, 2, length]`.

    Attributes:
      dtype: Dtype of the computation.
      answers_in_context_only: Whether only tokens of the text may be answered: those of type 1 without the last one,
        [SEP]. Tokens of the question then have no gradient. False = all real tokens.
    """

    dtype: Any = jnp.float32
    answers_in_context_only: bool = False

    def setup(self) -> None:
        self.spans = make_dense(2, self.dtype)

    @nn.nowrap
    def num_targets(self, length: int) -> int:
        """Returns 2, since the first and the last token of the answer are the targets."""
        return 2

    def __call__(self, text: EncodedText, deterministic: bool) -> Float[Array, "batch 2 length"]:
        """Scores every token of an `EncodedText` as the first and as the last token of the answer,
        `[batch, 2, length]`. Tokens that may be neither score -inf.

        A row in which no token may be one has finite scores without meaning.
        """
        scores, allowed = jnp.swapaxes(self.spans(text.hidden), 1, 2), text.mask
        if self.answers_in_context_only and not self.is_initializing():
            if TOKEN_TYPES not in text.extras:
                raise ValueError(
                    "task.answers_in_context_only: given texts without types of tokens, allowed: texts with them"
                )
            followed = jnp.pad(text.mask[:, 1:], ((0, 0), (0, 1)))  # the last real token is [SEP]
            allowed &= followed & (text.extras[TOKEN_TYPES] == 1)
        allowed |= ~allowed.any(axis=1, keepdims=True)  # a softmax over nothing would not be finite
        return jnp.where(allowed[:, None], scores, -jnp.inf)


def mark_seen_classes(constants: Mapping[str, Any], place: Sequence[str], classes: Any) -> Mapping[str, Any]:
    """Returns the constants of a model with the class numbers `classes` marked as read by training. `place` are the
    names of the modules down to the head. If it keeps no such record, the constants are returned unchanged.

    Constants of a head without such a record are returned unchanged.

    Args:
      constants: Collection of constants of the model.
      place: Names of the modules down to the head (`Model.head_path`).
      classes: int, any shape, numbers of classes. Numbers outside the range are ignored.

    Example:
      >>> noted = mark_seen_classes({"head": {"seen": jnp.zeros(3, bool)}}, ("head",), jnp.array([2, 3]))
      >>> noted["head"]["seen"].tolist(), mark_seen_classes({}, ("head",), jnp.array([2]))
      ([False, False, True], {})
    """
    name = place[0] if place else SEEN
    if name not in constants:
        return constants
    if place:
        return {**constants, name: mark_seen_classes(constants[name], place[1:], classes)}
    return {**constants, name: constants[name].at[classes].set(True, mode="drop")}


def make_dense(
    features: int, dtype: Any, name: str | None = None, initializer: str = "normal", outer: str | None = None
) -> nn.Dense:
    """Makes a dense layer with `features` outputs, a matrix with the initial values `INITS[initializer]` and biases of
    0. `outer` is the logical axis name of the outputs, for sharding.

    Args:
      features: Width of the output.
      dtype: Dtype of the computation.
      name: Name of the module.
      initializer: Initial values of the matrix, one of `INITS`.
      outer: Logical axis name of the output, for sharding.
    """
    matrix, zeros = named(INITS[initializer], "embed", outer), named(nn.initializers.zeros, outer)
    return nn.Dense(features, kernel_init=matrix, bias_init=zeros, dtype=dtype, name=name)


def _mask_unscored(output: Any, scored: Array) -> Any:
    """Replaces hidden states by zeros where no target is scored."""
    keep = lambda hidden: jnp.where(scored[..., None], hidden, 0)
    return dataclasses.replace(output, hidden=keep(output.hidden)) if isinstance(output, Prediction) else keep(output)
