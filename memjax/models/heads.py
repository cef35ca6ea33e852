"""Heads: what the output of a model says of its targets.

The scores of an output (`VocabularyScores`, `SmoothedScores`, `ChoiceScores`) say how probable its targets are:
`nll` is what training minimises, `token_nll` and `log_probs` are what evaluation reports. Sums and weights are the
model's (`memjax.models.contract.Model`). A task of text encoders has a head of its own between the last hidden states
and these scores, with parameters: `MaskedTokenHead`, `ClassificationHead`, `SpanHead`.
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
from memjax.memory.mixtures import Prediction, mix_log_prob, mix_log_probs, recalled_log_prob
from memjax.memory.projections import ACTIVATIONS, make_norm, matrix_init
from memjax.typing import Activations, Mask

INIT_STDDEV = 0.02
MASKED_POSITIONS, TOKEN_TYPES = "masked_positions", "token_types"
"""`Batch.extras` of an encoder: places of the hidden tokens, `[batch, targets]`, and the type of each token read."""
STATES = "states"
"""`Batch.extras` of an encoder without embeddings: `[batch, length, dim]`, what its first layer reads."""
CLASSES = "classes"
"""`Batch.extras` of what is classified: bool `[batch, classes]`, those that may be answered; a row without any: all."""
SEEN_ONLY = "seen_only"
"""`Batch.extras`: bool `[batch]`, rows that may be answered with classes alone that training has read examples of"""
FALLBACK = "fallback"
"""`Batch.extras`: bool `[batch, classes]`, what such a row is compared with where it would be left alone"""
ALLOWED = (CLASSES, SEEN_ONLY, FALLBACK)
"""of what may be answered"""
SEEN = "seen"
"""of a classification head, in its constants: bool `[classes]`, those that training has read examples of"""
UNSEEN_SCORE = -1e4
"""of the other classes: as if they were not there, but what asks for one is finite"""
INITS = {
    "normal": matrix_init(INIT_STDDEV),
    "lecun": matrix_init(None),
    "uniform": nn.initializers.variance_scaling(1 / 3, "fan_in", "uniform"),
}
"""initial values of matrices by the names that settings give them"""


@dataclasses.dataclass(frozen=True)
class VocabularyScores:
    """An output of hidden states, which a vocabulary scores; with memories laid over it a `Prediction`.

    Attributes:
      vocabulary: a `memjax.models.vocabulary.Vocabulary`, bound.
    """

    vocabulary: Any

    def nll(self, output: Any, targets: Int[Array, "batch length"], scored: Mask) -> Array:
        """Nats of each target for training: of those that are not scored nothing reaches a gradient."""
        return self.token_nll(_keep(output, scored), jnp.where(scored, targets, 0))

    def token_nll(self, output: Any, targets: Int[Array, "batch length"]) -> Float[Array, "batch length"]:
        """Nats of each target, at least float32."""
        if not isinstance(output, Prediction):
            return self.vocabulary.token_nll(output, targets)
        own = -self.vocabulary.token_nll(output.hidden, targets)
        return -mix_log_prob(own, targets, output.recalled, lambda: self.vocabulary.log_normalizer(output.hidden))

    def token_log_probs(self, output: Any, targets: Int[Array, "batch length"]) -> Float[Array, "parts batch length"]:
        """Log-probability of each target under the model alone, and under the candidates of each mixture alone.

        Where a mixture has no candidates it is that of the model, so that mixing them changes nothing.
        """
        recalled = output.recalled if isinstance(output, Prediction) else ()
        own = output.hidden if isinstance(output, Prediction) else output
        alone = -self.vocabulary.token_nll(own, targets)
        some = [(part.scores > -jnp.inf).any(axis=-1) for part in recalled]
        others = [jnp.where(s, recalled_log_prob(part, targets), alone) for s, part in zip(some, recalled, strict=True)]
        return jnp.stack([alone, *others])

    def log_probs(self, output: Any) -> Float[Array, "batch length vocab"]:
        """Log-probabilities of the whole vocabulary, at least float32."""
        if not isinstance(output, Prediction):
            return self.vocabulary.log_probs(output)
        own = self.vocabulary.log_probs(output.hidden)
        return mix_log_probs(own, output.recalled, lambda: self.vocabulary.log_normalizer(output.hidden))

    def logits(self, output: Any) -> Float[Array, "batch length vocab"]:
        """Scores of the whole vocabulary."""
        return self.vocabulary.logits(output)


@dataclasses.dataclass(frozen=True)
class SmoothedScores(VocabularyScores):
    """The same with a training loss whose targets are smoothed.

    Attributes:
      label_smoothing: as in `token_cross_entropy`.
    """

    label_smoothing: float = 0.0

    def nll(self, output: Any, targets: Int[Array, "batch length"], scored: Mask) -> Array:
        """Nats of each smoothed target."""
        logits = self.vocabulary.logits(_keep(output, scored))
        return token_cross_entropy(logits, jnp.where(scored, targets, -1), label_smoothing=self.label_smoothing)


class ChoiceScores:
    """An output of scores, one for each choice: of classes, or of the tokens of a text."""

    def nll(self, output: Any, targets: Int[Array, "batch targets"], scored: Bool[Array, "batch targets"]) -> Array:
        """Nats of each target for training: of those that are not scored nothing reaches a gradient."""
        return self.token_nll(output, jnp.where(scored, targets, -1))

    def token_nll(self, output: Any, targets: Int[Array, "batch targets"]) -> Float[Array, "batch targets"]:
        """Nats of each target, at least float32; 0 for one of -1."""
        return token_cross_entropy(output, targets)

    def log_probs(self, output: Any) -> Float[Array, "batch targets choices"]:
        """Log-probabilities of all choices for each target, at least float32."""
        return jax.nn.log_softmax(output.astype(jnp.promote_types(output.dtype, jnp.float32)), axis=-1)

    def logits(self, output: Any) -> Float[Array, "batch targets choices"]:
        """The output."""
        return output


class EncodedText(NamedTuple):
    """What a text encoder hands to its head.

    Attributes:
      hidden: the last hidden states.
      first: of the first token, behind the pooler where there is one.
      mask: real tokens.
      extras: those of the batch that the encoder takes.
    """

    hidden: Activations
    first: Float[Array, "batch dim"]
    mask: Mask
    extras: Mapping[str, Array]


class TaskHead(nn.Module):
    """The head of a text encoder: from its last hidden states to an output, and how many targets a text has.

    `scores_vocabulary`: its output is scored by the vocabulary, which then has a bias. `named`: it compares with what
    the encoder makes of the names of classes, which it finds in the extras.
    """

    scores_vocabulary = False
    named = False

    @nn.nowrap
    def scores(self, vocabulary: Any) -> VocabularyScores | ChoiceScores:
        """What the output says of its targets."""
        del vocabulary
        return ChoiceScores()

    @nn.nowrap
    def num_targets(self, length: int) -> int:
        """Targets of a text of so many tokens."""
        return length

    @nn.nowrap
    def count_classes(self) -> int:
        """Returns the number of classes that it scores. 0 where targets are no classes."""
        return 0


class MaskedTokenHead(TaskHead):
    """Head that predicts hidden tokens: dense, activation and norm, then the vocabulary's scores with a bias.

    Attributes:
      dim: width of the encoder.
      weighted_norms: as in `make_norm`.
      dtype: of the computation.
      norm_epsilon: as in `make_norm`.
      activation: one of `ACTIVATIONS`.
    """

    dim: int
    weighted_norms: bool = False
    dtype: Any = jnp.float32
    norm_epsilon: float | None = None
    activation: str = "gelu_exact"

    scores_vocabulary = True

    def setup(self) -> None:
        self.dense = dense(self.dim, self.dtype, outer="embed")
        options: dict[str, Any] = {"weighted": self.weighted_norms, "epsilon": self.norm_epsilon}
        self.layer_norm = make_norm("layer_exact", self.dtype, **options)

    @nn.nowrap
    def scores(self, vocabulary: Any) -> VocabularyScores:
        """The vocabulary's."""
        return VocabularyScores(vocabulary)

    def __call__(self, text: EncodedText, deterministic: bool) -> Float[Array, "batch targets dim"]:
        """Hidden states of the targets, of all tokens where the extras do not say which."""
        hidden = text.hidden
        if MASKED_POSITIONS in text.extras:
            hidden = jnp.take_along_axis(hidden, text.extras[MASKED_POSITIONS][..., None], axis=1, mode="clip")
        return self.layer_norm(ACTIVATIONS[self.activation](self.dense(hidden)))


class ClassHead(TaskHead):
    """A head that scores classes, of which a text or a vector has one.

    Attributes:
      num_classes: Number of classes.
    """

    num_classes: int

    @nn.nowrap
    def num_targets(self, length: int) -> int:
        """Returns 1, the class."""
        return 1

    @nn.nowrap
    def count_classes(self) -> int:
        """Returns the number of classes."""
        return self.num_classes


class ClassificationHead(ClassHead):
    """The class of a text or a vector: dropout and one matrix over the first token.

    Classes that the extra `CLASSES` leaves out score -inf: they are never answered, and learn nothing. So one head
    serves tasks that know theirs (task-incremental learning).

    Attributes:
      dropout: rate.
      dtype: of the computation.
      initializer: of the matrix, one of `INITS`.
      masks_unseen: classes that training has not read (`SEEN`, which a learner keeps) are not answered, and learn
        nothing: those of later tasks.
    """

    dropout: float = 0.0
    dtype: Any = jnp.float32
    initializer: str = "normal"
    masks_unseen: bool = False

    def setup(self) -> None:
        if self.masks_unseen:
            self.seen = self.variable("constants", SEEN, named(jnp.zeros, None), (self.num_classes,), bool)
        self.classifier = dense(self.num_classes, self.dtype, initializer=self.initializer)
        self.drop = nn.Dropout(self.dropout)

    def __call__(self, text: EncodedText, deterministic: bool) -> Float[Array, "batch 1 classes"]:
        """Scores of the classes; -inf of those that may not be answered."""
        scores = self.classifier(self.drop(text.first, deterministic=deterministic))
        if self.masks_unseen:
            scores = jnp.where(self.seen.value, scores, UNSEEN_SCORE)
        if CLASSES in text.extras:
            allowed = text.extras[CLASSES]
            allowed |= ~allowed.any(axis=1, keepdims=True)  # a softmax over nothing would not be finite
            scores = jnp.where(allowed, scores, -jnp.inf)
        return scores[:, None]


class FeatureHead(TaskHead):
    """No head: the output is what a head of classes reads of a text or a vector, for a probe of it."""

    @nn.nowrap
    def num_targets(self, length: int) -> int:
        """As many as a head of classes has."""
        return 1

    def __call__(self, text: EncodedText, deterministic: bool) -> Float[Array, "batch 1 dim"]:
        """The first token, behind the pooler where there is one."""
        return text.first[:, None]


class SpanHead(TaskHead):
    """Where an answer begins and ends: one matrix over every token, and two softmaxes over the tokens.

    Attributes:
      dtype: of the computation.
      context_only: over the tokens of the text alone, those of type 1 but the last one, [SEP]: nothing in the question
        is ever answered, or learns; else over all real tokens.
    """

    dtype: Any = jnp.float32
    context_only: bool = False

    def setup(self) -> None:
        self.spans = dense(2, self.dtype)

    @nn.nowrap
    def num_targets(self, length: int) -> int:
        """The first token and the last."""
        return 2

    def __call__(self, text: EncodedText, deterministic: bool) -> Float[Array, "batch 2 length"]:
        """Scores of the tokens as the first and as the last of the answer; -inf of those that are none.

        A row without any token that may be one has finite scores, which mean nothing.
        """
        scores, allowed = jnp.swapaxes(self.spans(text.hidden), 1, 2), text.mask
        if self.context_only and not self.is_initializing():
            if TOKEN_TYPES not in text.extras:
                raise ValueError("task.context_only: given texts without types of tokens, allowed: texts with them")
            followed = jnp.pad(text.mask[:, 1:], ((0, 0), (0, 1)))  # the last real token is [SEP]
            allowed &= followed & (text.extras[TOKEN_TYPES] == 1)
        allowed |= ~allowed.any(axis=1, keepdims=True)  # a softmax over nothing would not be finite
        return jnp.where(allowed[:, None], scores, -jnp.inf)


def note_classes(constants: Mapping[str, Any], place: Sequence[str], classes: Any) -> Mapping[str, Any]:
    """Constants of a model with classes among those that training has read, where its head notes them; else the same.

    Args:
      constants: the collection.
      place: names of the modules down to the head (`Model.head_place`).
      classes: int, any shape; what is no class is left out.

    Example:
      >>> noted = note_classes({"head": {"seen": jnp.zeros(3, bool)}}, ("head",), jnp.array([2, 3]))
      >>> noted["head"]["seen"].tolist(), note_classes({}, ("head",), jnp.array([2]))
      ([False, False, True], {})
    """
    name = place[0] if place else SEEN
    if name not in constants:
        return constants
    if place:
        return {**constants, name: note_classes(constants[name], place[1:], classes)}
    return {**constants, name: constants[name].at[classes].set(True, mode="drop")}


def dense(
    features: int, dtype: Any, name: str | None = None, initializer: str = "normal", outer: str | None = None
) -> nn.Dense:
    """A dense layer with the initial values of a text encoder's, or others of `INITS`; `outer` names what it gives."""
    matrix, zeros = named(INITS[initializer], "embed", outer), named(nn.initializers.zeros, outer)
    return nn.Dense(features, kernel_init=matrix, bias_init=zeros, dtype=dtype, name=name)


def _keep(output: Any, scored: Array) -> Any:
    """The output with zeros where nothing is scored."""
    keep = lambda hidden: jnp.where(scored[..., None], hidden, 0)
    return dataclasses.replace(output, hidden=keep(output.hidden)) if isinstance(output, Prediction) else keep(output)
