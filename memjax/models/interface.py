"""The model interface: the methods that training, evaluation, generation and planning call on any model.

A model is a Linen module that reads one segment and returns the state of its memories to the caller:

    state = model.init_state(rows)
    output, state, aux = model.apply(variables, inputs, state, start_of_document=..., mask=..., extras=...)
    nll = model.apply(variables, output, targets, weights, method="nll")

`output` is whatever the model's head reads. No other code looks into it.
"""

from collections.abc import Mapping
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from memjax.memory.checks import CheckedModule
from memjax.models.heads import ChoiceScorer, VocabularyScorer
from memjax.models.vocabulary import num_padding
from memjax.settings.compatibility import warn_of_renamed_members
from memjax.typing import Batch, WeightedSum

ALWAYS = ("train", "eval", "plan")
CAPABILITIES = {
    "decodes": ("goes on from a prompt token by token", "generate"),
    "translates": ("reads a source and writes a target", "translate"),
    "resizes": ("reads with another memory size", "--evaluation.memory-length"),
    "mixes": ("takes memories over its output", "--evaluation.cache"),
    "stores_keys": ("shows the inner tensors of its layers", "datastore"),
}
"""Capability of a model -> its description, and the subcommand, option or function that needs it."""


class Model(CheckedModule):
    """The base class of all models, which are Linen modules. It has no fields of its own, and by default a model has
    none of the capabilities, such as `decodes`.

    A subclass has the field `vocabulary`, `init_state` and `__call__`, and states its capabilities as class attributes:

    * `decodes`: it has `init_decode_state` and `decode`.
    * `decodes_segments`: it has `decode_segment`, which reads the beginning of a segment at once.
    * `translates`: it has `start_decoding(source, source_mask, segment_length)` and `decode`.
    * `resizes`: the memory of its `attention` may have another size than in training.
    * `mixes`: it has the field `mixtures`, and `token_log_probs`.
    * `stores_keys`: it can return inner tensors in `Aux.arrays` (`memjax.models.add_features`).
    * `has_separate_head`: it has `encode(inputs, ...)`, everything below its head, and `apply_head(encoded, ...)`, the
      head, whose parameters are under `head/`. The input of the head is an array for each row.
    * `needs_task_id`: its answers depend on the task of a stream, which `of_task` chooses. Without a choice it answers
      as for the last task.
    * `head_path`: names of the modules down to the head that learns.
    * `has_stack`: it has the field `stack`, a `memjax.models.transformer.Stack`.
    * `has_slots`: an encoder reads and writes slots (`memjax.inspection.slot_map`).
    * `num_memory_tokens`: number of learned memory tokens that its attention reads and writes before the tokens of each
      text.
    * `task_parameters`: prefixes of the paths of parameters that belong to one task. A model that continues with
      another task need not have or load them.
    """

    def __init_subclass__(cls, **arguments: Any) -> None:
        super().__init_subclass__(**arguments)
        warn_of_renamed_members(cls)

    decodes = False
    decodes_segments = False
    translates = False
    resizes = False
    mixes = False
    stores_keys = False
    has_separate_head = False
    needs_task_id = False
    head_path = ("head",)
    has_stack = False
    has_slots = False
    num_memory_tokens = 0
    task_parameters = ()

    @nn.nowrap
    def scorer(self) -> VocabularyScorer | ChoiceScorer:
        """Returns the object that turns the model's output into losses and log-probabilities of targets, such as a
        `VocabularyScorer`.
        """
        return VocabularyScorer(self.vocabulary)

    @nn.nowrap
    def init_state(self, batch_size: int, dtype: Any = None) -> Any:
        """Returns the state with which every row starts a document. Needs no parameters. `dtype` is that of stored
        activations, None for the default of the model.
        """
        raise NotImplementedError(f"{type(self).__name__} has no init_state")

    @nn.nowrap
    def layer_groups(self) -> tuple[tuple[int, int], ...]:
        """Returns a pair of numbers for each group of the stack: its first layer, and its number of layers. The latter
        is 0 for a layer outside of groups. Empty without a stack.

        The number is 0 for a layer that is not in a group. Empty without a stack.
        """
        return self.stack.layer_groups() if self.has_stack else ()

    @nn.nowrap
    def scanned_groups(self) -> tuple[str, ...]:
        """Returns the names of the parameter groups, `layers_<first layer>`, whose arrays hold several layers, at axis
        0.
        """
        return tuple(f"layers_{first}" for first, size in self.layer_groups() if size)

    @nn.nowrap
    def replaced_parameters(self) -> tuple[str, ...]:
        """Returns path prefixes, `stack/layer_<index>/...`, of parameters that an ordinary model has and that memories
        have replaced in this one.
        """
        layers: Any = self.stack.layers if self.has_stack else ()
        parts = [(f"stack/layer_{i:02d}/feed_forward/", layer.feed_forward) for i, layer in enumerate(layers)]
        return tuple(f"{path}{name}/" for path, part in parts for name in part.replaced_parameter_names())

    @nn.nowrap
    def output_norm(self) -> str:
        """Returns the path prefix of the norm whose result the tied vocabulary scores, such as `layer_norm/`. '' where
        there is none.
        """
        return ""

    @nn.nowrap
    def padding(self) -> int:
        """Returns the number of parameters that only pad the vocabulary."""
        return num_padding(self.vocabulary)

    @nn.nowrap
    def num_targets(self, length: int) -> int:
        """Returns the number of targets of a row with `length` inputs, by default as many."""
        return length

    @nn.nowrap
    def num_choices(self, length: int) -> int:
        """Returns the number of values that a target can have: the number of classes, without classes the entries of
        the vocabulary, and without both `length`, the tokens of a row.

        Args:
          length: Number of inputs of a row.
        """
        vocabulary = getattr(self, "vocabulary", None)  # a user's own model may have none
        return self.num_classes() or (0 if vocabulary is None else vocabulary.vocab_size) or length

    @nn.nowrap
    def num_classes(self) -> int:
        """Returns the number of classes of the model's head. 0 for a head without classes."""
        return 0

    @nn.nowrap
    def of_task(self, index: int) -> Any:
        """Returns the model that answers the task with the number `index` of a stream. By default this is the model
        itself.
        """
        del index
        return self

    @nn.nowrap
    def as_encoder(self) -> "Model":
        """Returns the model without a head, as an encoder of whole texts that has `hidden_states`.

        Raises:
          ValueError: It is no encoder of texts.
        """
        allowed = "a run of a text encoder, or of a language model with Rotary or GPT2"
        raise ValueError(f"run: given one of a {type(self).__name__}, allowed: {allowed}")

    @nn.nowrap
    def example(self, batch_size: int, length: int) -> Batch:
        """Returns a `Batch` of one segment with shapes and dtypes (`jax.ShapeDtypeStruct`) instead of arrays."""
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
        """Returns the shapes and dtypes of the extras that the model needs in a batch, by name. By default there are
        none.
        """
        return {}

    @nn.nowrap
    def select_extras(self, extras: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the entries of a batch's extras that the model reads, by default none.

        Raises:
          ValueError: The batch lacks one that it needs.
        """
        return {}

    @nn.nowrap
    def example_decode_state(self, variables: Any, batch_size: int, length: int) -> Any:
        """Returns the state before the first decoded token, in segments of `length` tokens, with shapes and dtypes
        instead of arrays.
        """
        self.require("decodes", "decode")
        return jax.eval_shape(lambda: self.init_decode_state(self.init_state(batch_size), length, batch_size))

    @nn.nowrap
    def require(self, capability: str, what: str = "") -> None:
        """Raises a `ValueError` if the model lacks a capability, a key of `CAPABILITIES` such as 'decodes'. `what`
        names the subcommand or option that needs it, for the message.

        Args:
          capability: Name of the capability, a key of `CAPABILITIES`.
          what: Subcommand or option that needs it, for the message. '' = the one in `CAPABILITIES`.

        Raises:
          ValueError: The model lacks the capability. The line names its class, and the subcommands and options that it
            supports.
        """
        meaning, verb = CAPABILITIES[capability]
        if not getattr(self, capability):
            served = [*ALWAYS, *(other for name, (_, other) in CAPABILITIES.items() if getattr(self, name))]
            kind = type(self).__name__
            raise ValueError(
                f"{what or verb}: given {kind}, allowed: a model that {meaning}; {kind} serves " + ", ".join(served)
            )

    def nll(
        self, output: Any, targets: Int[Array, "batch targets"], weights: Float[Array, "batch targets"]
    ) -> WeightedSum:
        """Returns the training loss as a `WeightedSum`: the sum of the losses of the targets times their weights, and
        the sum of the weights.

        A target with weight 0 has no effect on any gradient.
        """
        nats = self.scorer().nll(output, targets, weights != 0)
        weights = weights.astype(nats.dtype)
        return WeightedSum((nats * weights).sum(), weights.sum())

    def token_nll(self, output: Any, targets: Int[Array, "batch targets"]) -> Float[Array, "batch targets"]:
        """Returns the negative log-likelihood of each target in nats, `[batch, targets]`, at least float32."""
        return self.scorer().token_nll(output, targets)

    def log_probs(self, output: Any) -> Float[Array, "batch targets choices"]:
        """Returns the log-probabilities of all values that each target can have, tokens of the vocabulary or other
        choices, at least float32.
        """
        return self.scorer().log_probs(output)

    def logits(self, output: Any) -> Float[Array, "batch targets choices"]:
        """Returns the scores of all values that each target can have, tokens of the vocabulary or other choices."""
        return self.scorer().logits(output)

    def embed_output(self, ids: Int[Array, "*tokens"]) -> Float[Array, "*tokens dim"]:
        """Looks up the output weights of token ids, vectors `[..., dim]` with which hidden states are compared."""
        return self.vocabulary.embed_output(ids)
