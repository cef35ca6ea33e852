"""The model contract: what training, evaluation, generation and planning ask of a model, before work begins and in it.

A model is a Linen module that reads one segment and hands the state of its memories back to the caller:

    state = model.init_state(rows)
    output, state, aux = model.apply(variables, inputs, state, start_of_document=..., mask=..., extras=...)
    nll = model.apply(variables, output, targets, weights, method="nll")

`output` is whatever the model's head reads; nobody else looks into it.
"""

from collections.abc import Mapping
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from memjax.memory.checks import check_calls
from memjax.models.heads import ChoiceScores, VocabularyScores
from memjax.models.vocabulary import num_padding
from memjax.typing import Batch, Sum

ALWAYS = ("train", "eval", "plan")
CAPABILITIES = {
    "decodes": ("goes on from a prompt token by token", "generate"),
    "translates": ("reads a source and writes a target", "translate"),
    "resizes": ("reads with another memory size", "--evaluation.memory-length"),
    "mixes": ("takes memories over its output", "--evaluation.cache"),
    "stores_keys": ("shows the inner tensors of its layers", "datastore"),
}
"""capability of a model -> what it means, and the verb, option or function that asks for it"""


class Model(nn.Module):
    """What every model is; it has no fields of its own, and each default says that a model lacks a thing.

    A subclass has the field `vocabulary`, `init_state` and `__call__`, and states its capabilities as class attributes:

    * `decodes`: it has `init_decode_state` and `decode`.
    * `translates`: it has `start_decoding(source, source_mask, segment_length)` and `decode`.
    * `resizes`: the memory of its `attention` may have another size than in training.
    * `mixes`: it has the field `mixtures`, and `token_log_probs`.
    * `stores_keys`: inner tensors come out in `Aux.arrays` (`memjax.models.add_features`).
    * `represents`: it is `represent(inputs, ...)`, whatever stands below its head, and `answer(represented, ...)`, the
      head with the parameters `head/`.
    * `asks_task`: it answers each task of a stream otherwise, and `of_task` says which; else it takes the last.
    * `head_place`: names of the modules down to the head that learns.
    * `has_stack`: it has the field `stack`, a `memjax.models.transformer.Stack`.
    * `has_slots`: an encoder reads and writes slots (`memjax.inspection.slot_map`).
    * `num_memory_tokens`: learned rows in front of what it reads, which its attention reads and writes.
    * `task_parameters`: beginnings of the paths of the parameters of one task; a model that goes on with another task
      need not have, or find, them.
    """

    def __init_subclass__(cls, **arguments: Any) -> None:
        super().__init_subclass__(**arguments)
        check_calls(cls)

    decodes = False
    translates = False
    resizes = False
    mixes = False
    stores_keys = False
    represents = False
    asks_task = False
    head_place = ("head",)
    has_stack = False
    has_slots = False
    num_memory_tokens = 0
    task_parameters = ()

    @nn.nowrap
    def scores(self) -> VocabularyScores | ChoiceScores:
        """What its output says of the targets."""
        return VocabularyScores(self.vocabulary)

    @nn.nowrap
    def init_state(self, batch_size: int, dtype: Any = None) -> Any:
        """The state in which a document starts in every row; needs no parameters."""
        raise NotImplementedError(f"{type(self).__name__} has no init_state")

    @nn.nowrap
    def groups(self) -> tuple[tuple[int, int], ...]:
        """(first layer, number of layers) of each group of its stack, 0 for a layer alone; () without a stack."""
        return self.stack.groups() if self.has_stack else ()

    @nn.nowrap
    def scanned_groups(self) -> tuple[str, ...]:
        """Names of the parameter groups with layers at axis 0."""
        return tuple(f"layers_{first}" for first, size in self.groups() if size)

    @nn.nowrap
    def replaced_parameters(self) -> tuple[str, ...]:
        """Beginnings of the paths, by layer, of what an ordinary model has and memories have taken the place of."""
        layers: Any = self.stack.layers if self.has_stack else ()
        part = lambda index: f"stack/layer_{index:02d}/feed_forward/"
        return tuple(f"{part(i)}{name}/" for i, layer in enumerate(layers) for name in layer.feed_forward.replaced())

    @nn.nowrap
    def output_norm(self) -> str:
        """Beginning of the path of the norm whose result its tied vocabulary scores; '' = it scores none."""
        return ""

    @nn.nowrap
    def padding(self) -> int:
        """Parameters that are padding of its vocabulary."""
        return num_padding(self.vocabulary)

    @nn.nowrap
    def num_targets(self, length: int) -> int:
        """Targets of a row of so many inputs."""
        return length

    @nn.nowrap
    def num_choices(self, length: int) -> int:
        """Returns the number of answers that a target is one of: classes, entries of the vocabulary, or tokens.

        Args:
          length: Number of inputs of a row.
        """
        vocabulary = getattr(self, "vocabulary", None)  # a model of one's own may have none
        return self.num_classes() or (0 if vocabulary is None else vocabulary.vocab_size) or length

    @nn.nowrap
    def num_classes(self) -> int:
        """Returns the number of classes of its head. 0 without a head of classes."""
        return 0

    @nn.nowrap
    def of_task(self, index: int) -> Any:
        """The model as it answers a task of a stream, by its place there: as it is, but with columns for tasks."""
        del index
        return self

    @nn.nowrap
    def example(self, batch_size: int, length: int) -> Batch:
        """Shapes of a batch of one segment."""
        shape = lambda dtype, *sizes: jax.ShapeDtypeStruct((batch_size, *sizes), dtype)
        return Batch(
            inputs=shape(jnp.int32, length),
            targets=shape(jnp.int32, self.num_targets(length)),
            mask=shape(bool, length),
            weights=shape(jnp.float32, self.num_targets(length)),
            start_of_document=shape(bool),
            extras=self.example_extras(batch_size, length),
        )

    @nn.nowrap
    def example_extras(self, batch_size: int, length: int) -> dict[str, jax.ShapeDtypeStruct]:
        """Shapes of what it needs of a batch's extras."""
        return {}

    @nn.nowrap
    def choose_extras(self, extras: Mapping[str, Any]) -> dict[str, Any]:
        """Those of a batch's extras that it takes.

        Raises:
          ValueError: the batch lacks one.
        """
        return {}

    @nn.nowrap
    def example_decode_state(self, variables: Any, batch_size: int, length: int) -> Any:
        """Shapes of the state before the first token is decoded, in segments of `length` tokens."""
        self.require("decodes", "decode")
        return jax.eval_shape(lambda: self.init_decode_state(self.init_state(batch_size), length, batch_size))

    @nn.nowrap
    def require(self, capability: str, what: str = "") -> None:
        """Refuses what the model cannot serve.

        Args:
          capability: of `CAPABILITIES`.
          what: the verb or option that needs it; '' = the one there.

        Raises:
          ValueError: one line with the model, and the verbs and options that it serves.
        """
        meaning, verb = CAPABILITIES[capability]
        if not getattr(self, capability):
            served = [*ALWAYS, *(other for name, (_, other) in CAPABILITIES.items() if getattr(self, name))]
            kind = type(self).__name__
            raise ValueError(
                f"{what or verb}: given {kind}, allowed: a model that {meaning}; {kind} serves " + ", ".join(served)
            )

    def nll(self, output: Any, targets: Int[Array, "batch targets"], weights: Float[Array, "batch targets"]) -> Sum:
        """The training loss: nats of the targets with their weights, and the sum of the weights.

        Nothing of a target without weight reaches a gradient.
        """
        nats = self.scores().nll(output, targets, weights != 0)
        weights = weights.astype(nats.dtype)
        return Sum((nats * weights).sum(), weights.sum())

    def token_nll(self, output: Any, targets: Int[Array, "batch targets"]) -> Float[Array, "batch targets"]:
        """Nats of each target, at least float32."""
        return self.scores().token_nll(output, targets)

    def log_probs(self, output: Any) -> Float[Array, "batch targets choices"]:
        """Log-probabilities of all tokens, or of all choices, at least float32."""
        return self.scores().log_probs(output)

    def logits(self, output: Any) -> Float[Array, "batch targets choices"]:
        """Scores of all tokens, or of all choices."""
        return self.scores().logits(output)

    def embed_output(self, ids: Int[Array, "*tokens"]) -> Float[Array, "*tokens dim"]:
        """Output weights of the ids."""
        return self.vocabulary.embed_output(ids)
