"""Recurrent sentence encoders: word vectors, one LSTM for each direction, and the head of a task.

Hochreiter and Schmidhuber, "Long Short-Term Memory", Neural Computation 9, 1997; Schuster and Paliwal, "Bidirectional
Recurrent Neural Networks", IEEE Transactions on Signal Processing 45, 1997. The cells are flax's.
"""

from collections.abc import Callable, Mapping
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from memjax.axes import constrain, named
from memjax.memory.checks import refuse_padding_in_front
from memjax.models.encoder_with_head import EncoderWithHead
from memjax.models.heads import CLASSES, EncodedText, TaskHead
from memjax.models.similarity_head import NAMES
from memjax.models.vocabulary import EmptyVocabulary
from memjax.typing import Activations, Aux, Mask

__all__ = ["BiLSTM", "LazyConstant"]

AT_ONCE = 256
"""Number of class names that are encoded at once."""


class LazyConstant:
    """A constant array as a field of a module. The function `make` computes it, but only when a program that
    initialises the module runs.

    Two instances are equal only if they are the same object.

    Attributes:
      make: Function without arguments that returns the array in NumPy.
      shape: Shape of the array.
      dtype: Dtype of the array.
    """

    def __init__(self, make: Callable[[], np.ndarray], shape: tuple[int, ...], dtype: Any):
        self.make, self.shape, self.dtype = make, shape, dtype

    def value(self) -> Array:
        """Returns the array. It is computed on the host when the program runs, not embedded in the program."""
        return jax.pure_callback(self.make, jax.ShapeDtypeStruct(self.shape, self.dtype))


class BiLSTM(EncoderWithHead):
    """A sentence encoder with the head of a task. The head reads the last state of a forward LSTM over the words,
    joined with that of a backward LSTM.

    Differs from the published code of EMAR and EA-EMR: names of relations are read by the encoder of sentences (EA-EMR
    has a second one for them); LSTM cells are flax's `OptimizedLSTMCell`, with its initial values.

    Attributes:
      head: Head of the task. It reads the two states as the `pooled` of an `EncodedText`.
      vocabulary: Vocabulary of words, of which only the size is used.
      dim: Width of word vectors.
      hidden: Width of the state in each direction.
      vectors: float32 `[words, dim]`, initial vectors of the words. None = normal with standard deviation 0.1.
      train_vectors: Whether the word vectors are parameters. False = constants.
      names: int32 `[classes, words]`, word ids of the class names, -1 for padding. None = classes have no names.
      features: Inner tensors to return in `Aux.arrays`: `output`, the input of the head, `[batch, 1, dim]`.
      dtype: Dtype of the computation.
    """

    head: TaskHead
    vocabulary: EmptyVocabulary
    dim: int = 50
    hidden: int = 200
    vectors: LazyConstant | None = None
    train_vectors: bool = False
    names: LazyConstant | None = None
    features: tuple[str, ...] = ()
    dtype: Any = jnp.float32

    task_parameters = ("head/",)
    encodes_one_vector = True
    has_separate_head = False  # the encoded names of classes, which the head reads, are not of single rows

    def setup(self) -> None:
        shape = (self.vocabulary.vocab_size, self.dim)
        if self.train_vectors:
            init = lambda key, shape: self._vectors(key)
            self.table = self.param("vectors", named(init, None, "embed"), shape)
        else:
            self.held = self.variable(
                "constants", "vectors", named(lambda: self._vectors(self.make_rng("params")), None, None)
            )
        if self.names is not None:
            self.words = self.variable("constants", NAMES, named(self.names.value, None, None))
        inits: Any = {  # flax's defaults. A split recurrence would communicate between devices at every word.
            "kernel_init": named(nn.initializers.lecun_normal(), None, None),
            "recurrent_kernel_init": named(nn.initializers.orthogonal(), None, None),
            "bias_init": named(nn.initializers.zeros, None),
        }
        cell = lambda: nn.RNN(nn.OptimizedLSTMCell(self.hidden, dtype=self.dtype, **inits))
        self.lstm = nn.Bidirectional(cell(), cell())

    @nn.nowrap
    def _vectors(self, key: Any) -> Array:
        """Returns the word vectors before training."""
        if self.vectors is not None:
            return self.vectors.value()
        return 0.1 * jax.random.normal(key, (self.vocabulary.vocab_size, self.dim))

    def encode(
        self,
        inputs: Int[Array, "batch length"],
        *,
        mask: Mask | None = None,
        deterministic: bool = True,
        extras: Mapping[str, Any] | None = None,
    ) -> tuple[EncodedText, Aux]:
        """Computes the input of the head (an `EncodedText`) from word ids, and an `Aux` with the requested inner
        tensors. The extras of the text get the encoded names of classes if the head needs them. `deterministic` has no
        effect.

        See `__call__` for the arguments.
        """
        del deterministic
        mask, extras = jnp.ones(inputs.shape, bool) if mask is None else mask, dict(extras or {})
        vectors = self.encode_sentences(inputs, mask)
        if self.head.named:
            count = self.words.value.shape[0]
            needed = extras[CLASSES] if CLASSES in extras else jnp.ones((1, count), bool)
            needed |= ~needed.any(axis=1, keepdims=True)
            extras[NAMES] = self.name_vectors(needed.any(axis=0))
        hidden = vectors[:, None]
        return EncodedText(hidden, vectors, mask, extras), Aux(arrays={name: hidden for name in self.features})

    def encode_sentences(self, tokens: Int[Array, "batch length"], mask: Mask) -> Float[Array, "batch dim"]:
        """Encodes sentences, given by word ids and their mask, as vectors `[batch, 2 hidden]`, 0 for a sentence without
        words.
        """
        table = self.table if self.train_vectors else self.held.value
        lengths = jnp.sum(mask, axis=1)
        x: Activations = jnp.take(table, jnp.where(mask, tokens, 0), axis=0).astype(self.dtype)
        states: Any = self.lstm(constrain(x, "batch", None, None), seq_lengths=jnp.maximum(lengths, 1))
        ends = jnp.maximum(lengths - 1, 0)[:, None, None]
        forwards = jnp.take_along_axis(states[..., : self.hidden], ends, axis=1)[:, 0]
        read = jnp.concatenate([forwards, states[:, 0, self.hidden :]], axis=-1)
        return refuse_padding_in_front(jnp.where(lengths[:, None] > 0, read, 0), mask)

    @nn.nowrap
    def all_classes(self) -> Bool[Array, " classes"]:
        """Returns bool `[classes]`, True for every class: the argument `needed` of `name_vectors` that asks for the
        names of all classes.
        """
        assert self.names is not None
        return jnp.ones(self.names.shape[0], bool)

    def name_vectors(self, needed: Bool[Array, " classes"]) -> Float[Array, "classes dim"]:
        """Encodes the names of the classes as vectors `[classes, 2 hidden]`. Vectors of classes for which `needed`,
        bool `[classes]`, is False may be 0.
        """
        words = self.words.value
        count = words.shape[0]
        if count <= AT_ONCE:
            return self.encode_sentences(words, words >= 0)
        order = jnp.argsort(~needed, stable=True)  # needed names first, so that few parts contain any
        parts = -(-count // AT_ONCE)
        ids = jnp.pad(order, (0, parts * AT_ONCE - count), constant_values=count).reshape(parts, AT_ONCE)
        width = 2 * self.hidden

        def part(module: BiLSTM, _: None, numbers: Array) -> tuple[None, Array]:
            wanted = jnp.take(needed, numbers, mode="fill", fill_value=False)
            named_by = jnp.take(words, numbers, axis=0, mode="fill", fill_value=-1)
            zeros = lambda module: jnp.zeros((AT_ONCE, width), module.dtype)
            return None, nn.cond(wanted.any(), lambda m: m.encode_sentences(named_by, named_by >= 0), zeros, module)

        options = {"variable_broadcast": ["params", "constants"], "split_rngs": {"params": False}}
        vectors = nn.scan(part, **options)(self, None, ids)[1].reshape(-1, width)
        return jnp.zeros((count, width), vectors.dtype).at[ids.reshape(-1)].set(vectors, mode="drop")
