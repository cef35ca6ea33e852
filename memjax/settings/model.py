"""Models: their sizes, and the kinds of their parts."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Annotated, Any, Literal

from memjax.settings.attention import RFA, T2R, AttentionKind, Carrier, FullAttention, LinearTransformer, MemSizer
from memjax.settings.feed_forward import Dense, FeedForwardKind
from memjax.settings.output import Output, OutputKind, Softmax
from memjax.settings.ranges import Count, Number, Positive, Range, Rate, zero_or_more
from memjax.settings.relations import Settings, require
from memjax.settings.training import SGD

if TYPE_CHECKING:
    from memjax.config import Config

__all__ = [
    "MemoryTokens",
    "AnyModel",
    "LayeredModel",
    "ModelSettings",
    "EncoderDecoder",
    "Memformer",
    "Perceptron",
    "BiLSTM",
    "TokenBag",
    "ModelKind",
]


@dataclass(slots=True, kw_only=True)
class MemoryTokens(Settings):
    """Memory tokens (Burtsev et al. 2020): learned rows before the sequence that all layers read and write."""

    num_tokens: Number = 10
    """memory tokens"""
    kind: Literal["transformer", "control", "bottleneck"] = "transformer"
    """ordinary layers over both; layers of its own for the memory; or those, and tokens that read the memory alone"""
    shared: bool = False
    """of 'control' and 'bottleneck': one layer for the memory instead of one beside every layer"""
    decoder_reads: Literal["all", "memory"] = "all"
    """what a decoder sees of the source: memory rows and tokens as published, or the memory rows alone"""
    init_stddev: Annotated[float, zero_or_more()] | None = None
    """of the learned rows; None = that of the embeddings, as layers read them; much shorter rows all become one"""


@dataclass(slots=True, kw_only=True)
class AnyModel(Settings):
    """What every model says of itself.

    Attributes:
      reads: 'tokens', 'words' of a sentence, or 'vectors' of numbers.
      learns: the tasks that it has a head for, where it is none of tokens.
      translates: whether it reads a text to translate besides the one that it writes.
      memory_dtype: of activations stored in memory states; None = it has no choice.
      scale_embeddings: whether input embeddings are multiplied by sqrt(dim).
      head: learning rule of its classes: 'softmax', or 'bayes', which sums counts.
    """

    reads = "tokens"
    head = "softmax"
    learns = ""
    translates = False
    memory_dtype = None
    scale_embeddings = True

    @property
    def carrier(self) -> Carrier:
        """What carries its memory: its attention, or the model itself."""
        raise NotImplementedError

    @property
    def attention_kind(self) -> str:
        """What carries its memory, by name."""
        return type(self.carrier).__name__

    def warnings(self, field: str, config: Config) -> list[str]:
        segments = config.training.segments_per_update
        scored = segments - config.training.segments_without_gradient
        if scored <= 1 or self.carrier.crosses_segments:
            return []
        return [
            f"training.segments_per_update = {segments}: {self.attention_kind} stops gradients between segments, so "
            "more than 1 costs memory and buys no gradient"
        ]


@dataclass(slots=True, kw_only=True)
class LayeredModel(AnyModel):
    """The sizes that all models of attention and feed-forward parts have."""

    dim: Count = 256
    """width of the residual stream"""
    num_layers: Count = 4
    """number of layers"""
    num_heads: Count = 4
    """attention heads"""
    dropout: Rate = 0.0
    """rate on embeddings, residual branches and the output"""
    attention_dropout: Rate = 0.0
    """rate on attention weights"""
    scan_layers: bool | None = None
    """one scan over equal neighbouring layers (compile time independent of depth); None = from 6 layers up"""
    compute_dtype: Literal["float32", "bfloat16"] = "float32"
    """activations; parameters and statistics stay float32"""
    feed_forward: FeedForwardKind = field(default_factory=Dense)
    """the feed-forward part of the layers"""
    output: OutputKind = field(default_factory=Softmax)
    """embeddings and softmax"""

    @property
    def scans(self) -> bool:
        """Whether its layers are scanned."""
        return self.num_layers >= 6 if self.scan_layers is None else self.scan_layers


@dataclass(slots=True, kw_only=True)
class ModelSettings(LayeredModel):
    """A decoder-only language model, or a text encoder where `attention` is Bidirectional."""

    head_dim: Annotated[int, zero_or_more("dim / num_heads")] = 0
    """width of one head; 0 = dim / num_heads"""
    scale_embeddings: bool = True
    """multiply input embeddings by sqrt(dim)"""
    positions: Literal["none", "sinusoids"] = "none"
    """'sinusoids' of the place in the document are added to embeddings, for attention without positions of its own"""
    memory_dtype: Literal["float32", "bfloat16"] = "float32"
    """activations stored in memory states"""
    attention: AttentionKind = field(default_factory=FullAttention)
    """the attention part of the layers, and the memory it carries"""
    markers: Annotated[int, zero_or_more("none", "ids")] = 0
    """last ids of the vocabulary that mark what follows them, as the speakers of a dialogue do: every token gets a
    learned embedding of the last mark before it; 0 = none"""
    weighted_norms: bool = False
    """means of norms weigh the entries of the residual stream, equally at first: a model that is to grow in width"""
    norm_epsilon: Positive | None = None
    """number added to the variance in the norms of layers, embeddings, output and head of masked tokens; None = 1e-5 of
    layer norms, 1e-12 of text encoders, 1e-6 of norms without mean"""
    first_layer: Number = 0
    """of a text encoder without embeddings and without the layers below: what those give of each text is trained no
    more, and read from `data.states`"""
    memory_tokens: MemoryTokens | None = None
    """memory tokens: of the encoder, or before every segment of a Transformer-XL; None = no memory tokens"""

    @property
    def carrier(self) -> Carrier:
        return self.attention

    def with_memory(self, length: int) -> ModelSettings:
        return replace(self, attention=self.attention.with_memory(length))

    def check(self, field: str, config: Config) -> None:
        if not self.head_dim and self.attention.has_heads:
            _check_heads(self.num_heads, self.dim)
        fits = self.positions == "none" or self.dim % 2 == 0
        require(fits, "model.dim", self.dim, "an even number (sines and cosines of model.positions)")
        decodes = not self.translates and not config.task.encodes
        require(decodes or not self.markers, "model.markers", self.markers, "0 but in a decoder-only language model")
        first, task = self.first_layer, config.task
        require(first < self.num_layers, "model.first_layer", first, f"up to {self.num_layers - 1}, the last layer")
        allowed = "a folder, where model.first_layer is above 0, and nowhere else"
        require(bool(first) == bool(config.data.states), "data.states", config.data.states, allowed)
        allowed = "0 but for Classification and QuestionAnswering"
        require(not first or task.takes_states, "model.first_layer", first, allowed)
        require(not first or not self.memory_tokens, "model.first_layer", first, "0 with model.memory_tokens")
        tokens = self.memory_tokens
        if tokens is not None and not self.translates:
            allowed = f"None with {self.attention_kind}, or TransformerXL or Bidirectional"
            require(self.attention.takes_memory_tokens, "model.memory_tokens", "MemoryTokens", allowed)
            fits = tokens.kind == "transformer"
            require(fits, "model.memory_tokens.kind", tokens.kind, "'transformer' but in translation")


@dataclass(slots=True, kw_only=True)
class EncoderDecoder(ModelSettings):
    """A translation model: an encoder, and a decoder that also attends to the source. `attention` is the decoder's."""

    attention: AttentionKind = field(default_factory=lambda: FullAttention(query_key_norm=False, num_buckets=0))
    """causal attention of the decoder's layers"""
    cross_attention: FullAttention | LinearTransformer | RFA | T2R | MemSizer = field(
        default_factory=lambda: FullAttention(query_key_norm=False, num_buckets=0)
    )
    """attention of the decoder to the source; of FullAttention `bias` alone has an effect"""
    encoder_bias: bool = False
    """biases of all projections of the encoder's attention"""
    positions: Literal["none", "sinusoids"] = "sinusoids"
    """added to the embeddings of source and target"""
    encoder_layers: Annotated[int, zero_or_more("num_layers")] = 0
    """layers of the encoder; 0 = num_layers"""
    norm: Literal["post", "pre"] = "post"
    """place of the layer norms; in front, both stacks end with one"""
    label_smoothing: Annotated[float, Range(words="a share in [0, 1)", least=0, below=1)] = 0.1
    """share of the target distribution spread over the vocabulary, in training"""

    translates = True

    def check(self, field: str, config: Config) -> None:
        ModelSettings.check(self, field, config)
        source = config.data.source
        allowed = "ParallelText, TfdsTranslation, NumberWords or CopiedLetters with an EncoderDecoder"
        require("pairs" in source.gives, "data.source", type(source).__name__, allowed)
        self.feed_forward.require_dense("in a translation model")
        _check_output(self.output)
        allowed = "an attention in a translation model"
        require(self.attention.has_heads, "model.attention", self.attention_kind, allowed)
        tokens = self.memory_tokens
        if tokens is not None:
            needing = {"decoder_reads = 'memory'": tokens.decoder_reads == "memory"}
            needing |= {repr(tokens.kind): tokens.kind != "transformer"}
            for what, needs in needing.items():
                fits, allowed = tokens.num_tokens > 0 or not needs, f"1 or more for {what}"
                require(fits, "model.memory_tokens.num_tokens", tokens.num_tokens, allowed)


@dataclass(slots=True, kw_only=True)
class Memformer(LayeredModel, Carrier):
    """Memformer (Wu et al. 2020): an encoder with a memory of slots, and a decoder of `num_layers` layers."""

    encoder_layers: Number = 4
    """layers that read the memory; 0 = a decoder alone, which knows its own segment only (ablation)"""
    num_slots: Number = 64
    """slots of the memory, one memory for all layers; 0 = the encoder reads the segment before only (ablation)"""
    temperature: Annotated[float, Range(words="above 0", above=0)] = 0.25
    """of the writer's attention; 1 is the ablation"""
    unit_values: bool = True
    """what the writer adds has the length of a slot; False = that of hidden states, beside which slots do not last"""
    writes_begin: bool = False
    """write the encoding of the begin token, which has no content; False = a document's first text reads the learned
    memory"""
    retain_bias: Annotated[float, zero_or_more("none, as published")] = 8.0
    """added to the score of a slot on itself in the writer, at the start: a number that each head learns; 0 = none"""
    segment_positions: Literal["none", "sinusoids"] = "sinusoids"
    """'sinusoids' of the place in the segment are added to embeddings; 'none' = buckets of distances alone"""
    forgetting: bool = True
    """move every slot towards its learned bias at each update; False is the ablation"""
    single_head: bool = False
    """one head in memory reader and writer (ablation)"""
    slots_per_chunk: Number = 256
    """slots that are written at a time, which bounds the memory of the writer's weights; 0 = all"""
    num_classification_tokens: Number = 1
    """learned tokens after each segment in the encoder"""

    @property
    def carrier(self) -> Carrier:
        return self

    @property
    def crosses_segments(self) -> bool:
        return self.num_slots > 0 and self.encoder_layers > 0

    def check(self, field: str, config: Config) -> None:
        _check_heads(self.num_heads, self.dim)
        fits = self.segment_positions != "sinusoids" or self.dim % 2 == 0
        require(fits, "model.dim", self.dim, "an even number (sines and cosines of model.segment_positions)")
        length, scored = config.data.segment_length, config.evaluation.segment_length
        require(scored in (0, length), "evaluation.segment_length", scored, f"0 or data.segment_length = {length}")
        task = type(config.task).__name__
        self.feed_forward.require_dense("in a Memformer")
        _check_output(self.output)
        require(task == "LanguageModeling", "task", task, "LanguageModeling with a Memformer")

    def warnings(self, field: str, config: Config) -> list[str]:
        if self.crosses_segments and config.training.segments_per_update == 1:
            return [
                "training.segments_per_update = 1: the writer of Memformer learns from later segments of the same "
                "update only; with 1 it never does"
            ]
        return AnyModel.warnings(self, field, config)


@dataclass(slots=True, kw_only=True)
class Perceptron(AnyModel, Carrier):
    """A multilayer perceptron: reads vectors of numbers (pixels, cached features) and answers with their class."""

    widths: tuple[Count, ...] = (256,)
    """of the hidden layers, each with a rectifier; () = none, a linear classifier"""
    dropout: Rate = 0.0
    """rate on the hidden layers"""
    initializer: Literal["lecun", "uniform"] = "lecun"
    """of matrices: normal of variance 1 / inputs, or uniform within 1 / sqrt(inputs), as torch.nn.Linear's"""
    gate: Annotated[int, zero_or_more("none")] = 0
    """width of the hidden layer of a gate on what the head reads, of the vector itself (ANML); 0 = none"""
    compute_dtype: Literal["float32", "bfloat16"] = "float32"
    """activations; parameters stay float32"""

    reads = "vectors"
    learns = "Classification"
    output = Softmax()  # over the classes; nothing is laid over it

    @property
    def carrier(self) -> Carrier:
        return self

    def check(self, field: str, config: Config) -> None:
        source = config.data.source
        allowed = "Digits, Blobs, PermutedBags, CachedFeatures or CachedPairs with a Perceptron"
        require("vectors" in source.gives, "data.source", type(source).__name__, allowed)


@dataclass(slots=True, kw_only=True)
class BiLSTM(AnyModel, Carrier):
    """A recurrent network that reads a sentence from both ends: its last states are what a head of classes reads."""

    dim: Count = 50
    """width of word vectors; that of the tokenizer's file, where it has one"""
    hidden: Count = 200
    """of each direction"""
    train_vectors: bool = False
    """word vectors learn; else they stay as they begin: as in the tokenizer's file, or random"""
    dropout: Rate = 0.0
    """rate on what the head reads"""
    compute_dtype: Literal["float32", "bfloat16"] = "float32"
    """activations; parameters stay float32"""

    reads = "words"
    learns = "RelationExtraction"
    output = Softmax()

    @property
    def carrier(self) -> Carrier:
        return self


@dataclass(slots=True, kw_only=True)
class TokenBag(AnyModel, Carrier):
    """A text classifier over hashed counts of tokens and of pairs of neighbours, which learns from few texts.

    A text is one vector of `buckets` counts; its output is a score a class. Hashed counts and pairs are those of
    fastText (Joulin, Grave, Bojanowski and Mikolov 2017, https://arxiv.org/abs/1607.01759). 'bayes' is multinomial
    naive Bayes (McCallum and Nigam 1998) with errors weighed as by Su, Zhang, Ling and Matwin 2008; see
    `memjax.models.token_bag.BayesHead`.
    """

    buckets: Count = 16_384
    """number of buckets of the hash: features of a text"""
    pairs: bool = False
    """pairs of neighbouring tokens are counted too"""
    widths: tuple[Count, ...] = ()
    """widths of the hidden layers, each with a rectifier; () = none, a linear classifier"""
    dropout: Rate = 0.0
    """rate on the hidden layers, and on the input of the head"""
    head: Literal["bayes", "softmax"] = "bayes"
    """learning of classes: 'bayes' sums the counts of each class (naive Bayes), so that no class changes another
    and one pass is enough; 'softmax' fits a linear classifier"""
    smoothing: Annotated[float, Range(words="a share in (0, 1)", above=0, below=1)] = 0.6
    """smoothing of 'bayes': share of every class's distribution that is uniform over all buckets"""
    weighs_errors: bool = False
    """weighting of 'bayes': a text counts by the probability of other classes than its own (Su et al. 2008), so that a
    replayed text that is known already adds nothing"""
    initializer: Literal["lecun", "uniform"] = "lecun"
    """initial matrices of hidden layers: normal of variance 1 / inputs, or uniform within 1 / sqrt(inputs)"""
    compute_dtype: Literal["float32", "bfloat16"] = "float32"
    """activations; parameters stay float32"""

    is_causal = False
    first_layer = 0
    reads = "bags"
    learns = "Classification"
    output = Softmax()

    @property
    def carrier(self) -> Carrier:
        return self

    def check(self, field: str, config: Config) -> None:
        if self.head == "bayes":
            require(not self.widths, f"{field}widths", self.widths, f"() with {field}head 'bayes'")
            optimizer, clip = config.training.optimizer, config.training.clip_norm
            sums = isinstance(optimizer, SGD) and not optimizer.momentum
            name = type(optimizer).__name__
            require(sums, "training.optimizer", name, f"SGD without momentum, which sums counts ({field}head 'bayes')")
            require(not clip, "training.clip_norm", clip, f"0 with {field}head 'bayes'")


if TYPE_CHECKING:  # configs assign `config.model.attention`, knowing which model they have made
    ModelKind = Any
else:
    ModelKind = ModelSettings | EncoderDecoder | Memformer | Perceptron | BiLSTM | TokenBag


def _check_heads(num_heads: int, dim: int) -> None:
    allowed = f"a divisor of model.dim = {dim}, or set model.head_dim"
    require(dim % num_heads == 0, "model.num_heads", num_heads, allowed)


def _check_output(output: Output) -> None:
    require(isinstance(output, Softmax), "model.output", type(output).__name__, "Softmax")
