"""Settings of the kinds of model: sizes, and the settings of their parts."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Annotated, Any, Literal

from memjax.settings.attention import RFA, T2R, AttentionKind, FullAttention, LinearTransformer, MemSizer
from memjax.settings.attention_bases import Attention, Carrier
from memjax.settings.checks import Settings, require
from memjax.settings.feed_forward import Dense, FeedForwardKind
from memjax.settings.output import Output, OutputKind, Softmax
from memjax.settings.ranges import Count, HeadDim, Number, Positive, Range, Rate, zero_or_more
from memjax.settings.training import SGD

if TYPE_CHECKING:
    from memjax.config import Config

__all__ = [
    "MemoryTokens",
    "ModelBase",
    "TransformerBase",
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
    """Memory tokens (Burtsev et al. 2020): learned vectors before the sequence that all layers read and write."""

    num_tokens: Number = 10
    """number of memory tokens"""
    kind: Literal["transformer", "control", "bottleneck"] = "transformer"
    """layers for memory and sequence: 'transformer' = ordinary layers over both; 'control' = separate layers for the
    memory; 'bottleneck' = those, and the sequence reads the memory alone"""
    share_memory_layer: bool = False
    """use one layer for the memory instead of one beside every layer, where `kind` is 'control' or 'bottleneck'"""
    decoder_reads: Literal["all", "memory"] = "all"
    """part of the source that a decoder attends to: 'all' = memory and tokens, as published; 'memory' = only the
    memory"""
    init_stddev: Annotated[float, zero_or_more()] | None = None
    """standard deviation of the initial memory tokens; None = that of the embeddings at the input of the layers; much
    smaller values let all memory tokens become equal"""


@dataclass(slots=True, kw_only=True)
class ModelBase(Settings):
    """Base class of the settings of all models, with facts that a kind may override.

    Attributes:
      reads: Kind of input: 'tokens', 'words' of a sentence, 'bags' of tokens, or 'vectors' of numbers.
      learns: Name of the only task that the model can learn. '' for a model that predicts tokens.
      translates: Whether the model reads a source text and generates its translation.
      memory_dtype: Dtype of the activations in memory states. None for a model without that choice.
      scale_embeddings: Whether input embeddings are multiplied by sqrt(dim).
      embedding_scale: Factor of input embeddings instead of that. None for no other factor.
      logit_divisor: Divisor of the scores of the vocabulary.
      logit_cap: Limit of the scores of the vocabulary. 0 for none.
      attention_implementation: Program that computes attention, 'reference' where there is no choice.
      num_heads: Number of attention heads. 1 for a model without.
      residual_entries: Entries of the residual stream of a token in all layers. 0 for a model without.
      first_trained_layer: Number of lowest layers that a text encoder leaves out. 0 for the whole model.
      head: Learning of classes: 'softmax' = by gradients, 'bayes' = by sums of counts.
    """

    reads = "tokens"
    head = "softmax"
    learns = ""
    translates = False
    memory_dtype = None
    scale_embeddings = True
    embedding_scale = None
    logit_divisor = 1.0
    logit_cap = 0.0
    attention_implementation = "reference"
    num_heads = 1
    residual_entries = 0
    first_trained_layer = 0

    @property
    def memory_facts(self) -> Carrier:
        """The settings that describe the memory, a `Carrier`: those of the attention, or of the model itself."""
        raise NotImplementedError

    @property
    def has_value_tables(self) -> bool:
        """Whether some layers have a product-key memory, whose values are rows of a table."""
        return False

    @property
    def attention_kind(self) -> str:
        """Name of the class of settings that describes the memory, such as 'TransformerXL'."""
        return type(self.memory_facts).__name__

    def without_memory(self) -> ModelBase:
        """Returns these settings with a memory of length 0 where its length can change, for texts that are read
        whole.
        """
        return self

    def warnings(self, field: str, config: Config) -> list[str]:
        segments = config.training.segments_per_update
        scored = segments - config.training.burn_in_segments
        if scored <= 1 or self.memory_facts.crosses_segments:
            return []
        return [
            f"training.segments_per_update = {segments}: {self.attention_kind} stops gradients between segments, so "
            "more than 1 costs memory and buys no gradient"
        ]


@dataclass(slots=True, kw_only=True)
class TransformerBase(ModelBase):
    """Common settings of models that are a stack of layers of attention and feed-forward parts."""

    dim: Count = 256
    """width of the residual stream"""
    num_layers: Count = 4
    """number of layers"""
    num_heads: Count = 4
    """number of attention heads"""
    dropout: Rate = 0.0
    """dropout rate on embeddings, residual branches and the output"""
    attention_dropout: Rate = 0.0
    """dropout rate on attention weights"""
    scan_layers: bool | None = None
    """scan over equal neighbouring layers, so that compile time does not grow with depth; None = where there are 6 or
    more layers"""
    compute_dtype: Literal["float32", "bfloat16"] = "float32"
    """dtype of activations; parameters and statistics stay float32"""
    feed_forward: FeedForwardKind = field(default_factory=Dense)
    """feed-forward part of the layers"""
    output: OutputKind = field(default_factory=Softmax)
    """embeddings and softmax, with a memory at the output if there is one"""

    @property
    def residual_entries(self) -> int:
        return self.dim * self.num_layers

    @property
    def scans(self) -> bool:
        """Whether equal neighbouring layers are scanned: `scan_layers`, or if that is None, whether there are 6 or more
        layers.
        """
        return self.num_layers >= 6 if self.scan_layers is None else self.scan_layers


@dataclass(slots=True, kw_only=True)
class ModelSettings(TransformerBase):
    """A decoder-only language model, or a text encoder where `attention` is Bidirectional."""

    head_dim: HeadDim = 0
    """width of one attention head; 0 = dim / num_heads"""
    scale_embeddings: bool = True
    """multiply input embeddings by sqrt(dim)"""
    embedding_scale: Positive | None = None
    """factor of input embeddings; None = sqrt(dim) where `scale_embeddings` is True, else 1"""
    residual_scale: Positive = 1.0
    """factor of the output of attention and feed-forward parts in the residual stream"""
    logit_divisor: Positive = 1.0
    """divisor of the scores of the vocabulary"""
    logit_cap: Annotated[float, zero_or_more("no limit")] = 0.0
    """limit of the scores of the vocabulary, cap * tanh(score / cap); 0 = no limit"""
    positions: Literal["none", "sinusoids"] = "none"
    """absolute positions that are added to embeddings: 'sinusoids' of the position in the document, for attention
    without positions of its own; 'none'"""
    memory_dtype: Literal["float32", "bfloat16"] = "float32"
    """dtype of the activations that are stored in memory states"""
    attention: AttentionKind | Attention = field(default_factory=FullAttention)
    """attention of the layers, and the memory that it carries"""
    attention_implementation: Literal["auto", "reference", "blocks", "fused"] = "auto"
    """program that computes attention to a segment and its memory: 'reference' = all scores in memory at once; 'blocks'
    = scores of a block of keys at a time; 'fused' = one kernel, on a TPU; 'auto' = by platform and sizes"""
    num_speaker_markers: Annotated[int, zero_or_more("none", "ids")] = 0
    """number of ids at the end of the vocabulary that mark the tokens after them, such as speakers of a dialogue: every
    token gets a learned embedding of the last mark before it; 0 = none"""
    weighted_norms: bool = False
    """use norms whose means weigh the entries of the residual stream, all equally at first, for a model that will grow
    in width"""
    norm_epsilon: Positive | None = None
    """number added to the variance in the norms of layers, embeddings, output and the head of masked tokens; None =
    1e-5 in layer norms, 1e-12 in text encoders, 1e-6 in norms without mean"""
    first_trained_layer: Number = 0
    """number of lowest layers that a text encoder leaves out, with its embeddings: their output for each text is no
    longer trained, but read from `data.encoder_states_dir`; 0 = the whole encoder"""
    memory_tokens: MemoryTokens | None = None
    """memory tokens of the encoder, or before every segment of a Transformer-XL; None = no memory tokens"""

    @property
    def memory_facts(self) -> Carrier:
        return self.attention

    @property
    def has_value_tables(self) -> bool:
        return self.feed_forward.has_memory

    def with_memory(self, length: int) -> ModelSettings:
        return replace(self, attention=self.attention.with_memory(length))

    def without_memory(self) -> ModelSettings:
        return self.with_memory(0) if self.attention.memory_length else self

    def check(self, field: str, config: Config) -> None:
        if not self.head_dim and self.attention.has_heads:
            _check_heads(self.num_heads, self.dim)
        kinds = ("auto", *self.attention.implementations)
        allowed = f"one of {', '.join(kinds)} with {self.attention_kind}"
        program = self.attention_implementation
        require(program in kinds, "model.attention_implementation", program, allowed)
        fits = self.positions == "none" or self.dim % 2 == 0
        require(fits, "model.dim", self.dim, "an even number (sines and cosines of model.positions)")
        decodes = not self.translates and not config.task.needs_text_encoder
        require(
            decodes or not self.num_speaker_markers,
            "model.num_speaker_markers",
            self.num_speaker_markers,
            "0 but in a decoder-only language model",
        )
        encodes = config.task.needs_text_encoder and self.attention.is_causal
        fits = self.positions == "none" or not encodes
        require(fits, "model.positions", self.positions, "'none' in a task of a text encoder")
        first, task = self.first_trained_layer, config.task
        require(
            first < self.num_layers, "model.first_trained_layer", first, f"up to {self.num_layers - 1}, the last layer"
        )
        allowed = "a folder, where model.first_trained_layer is above 0, and nowhere else"
        require(
            bool(first) == bool(config.data.encoder_states_dir),
            "data.encoder_states_dir",
            config.data.encoder_states_dir,
            allowed,
        )
        allowed = "0 but for Classification and QuestionAnswering"
        require(not first or task.takes_states, "model.first_trained_layer", first, allowed)
        require(not first or not self.memory_tokens, "model.first_trained_layer", first, "0 with model.memory_tokens")
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
    """attention of the decoder to the source; of FullAttention only `bias` has an effect"""
    encoder_bias: bool = False
    """add biases to all projections of the encoder's attention"""
    positions: Literal["none", "sinusoids"] = "sinusoids"
    """absolute positions that are added to the embeddings of source and target"""
    encoder_layers: Annotated[int, zero_or_more("num_layers")] = 0
    """number of layers of the encoder; 0 = `model.num_layers`"""
    norm: Literal["post", "pre"] = "post"
    """place of the layer norms: 'post' = after the residual; 'pre' = before each part, with a norm at the end of both
    stacks"""
    label_smoothing: Annotated[float, Range(words="a share in [0, 1)", least=0, below=1)] = 0.1
    """share of the target distribution that is spread over the vocabulary in training"""

    translates = True

    def check(self, field: str, config: Config) -> None:
        ModelSettings.check(self, field, config)
        source = config.data.source
        allowed = "ParallelText, TfdsTranslation, NumberWords or CopiedLetters with an EncoderDecoder"
        require("pairs" in source.content_types, "data.source", type(source).__name__, allowed)
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
class Memformer(TransformerBase, Carrier):
    """Memformer (Wu et al. 2020), a language model: an encoder that reads and writes a memory of slots, and a decoder
    of `num_layers` layers.
    """

    encoder_layers: Number = 4
    """number of encoder layers, which read the memory; 0 = a decoder alone, which sees only its own segment
    (ablation)"""
    num_slots: Number = 64
    """number of slots of the memory, which all layers share; 0 = the encoder reads only the segment before
    (ablation)"""
    temperature: Annotated[float, Range(words="above 0", above=0)] = 0.25
    """temperature of the attention of the memory writer; 1 in the paper's ablation"""
    unit_length_updates: bool = True
    """scale the values that the writer adds to the length of a slot; False = they have the length of hidden states,
    beside which the contents of slots do not last"""
    write_begin_token: bool = False
    """also write the encoding of the begin token, which has no content, into the memory; False = the first text of a
    document reads the learned initial memory"""
    retain_bias: Annotated[float, zero_or_more("none, as published")] = 8.0
    """initial value of a learned bias of each writer head on the score of a slot for itself, so that slots keep their
    contents; 0 = no bias, as published"""
    segment_positions: Literal["none", "sinusoids"] = "sinusoids"
    """absolute positions that are added to embeddings: 'sinusoids' of the position in the segment; 'none' = only
    relative position buckets"""
    use_forgetting: bool = True
    """move every slot towards its learned bias at each update; False in the paper's ablation"""
    single_memory_head: bool = False
    """use one head in the reader and the writer of the memory (ablation)"""
    write_chunk_size: Number = 256
    """number of slots that are written at a time, which bounds the size of the writer's attention weights; 0 = all at
    once"""
    num_classification_tokens: Number = 1
    """number of learned tokens after each segment in the encoder"""

    @property
    def memory_facts(self) -> Carrier:
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
        return ModelBase.warnings(self, field, config)


@dataclass(slots=True, kw_only=True)
class Perceptron(ModelBase, Carrier):
    """A multilayer perceptron that classifies vectors of numbers (pixels, cached features)."""

    widths: tuple[Count, ...] = (256,)
    """widths of the hidden layers, each with a rectifier; () = a linear classifier"""
    dropout: Rate = 0.0
    """dropout rate on the hidden layers"""
    initializer: Literal["lecun", "uniform"] = "lecun"
    """distribution of initial matrices: 'lecun' = normal of variance 1 / inputs; 'uniform' = within 1 / sqrt(inputs),
    as torch.nn.Linear"""
    gate_dim: Annotated[int, zero_or_more("none")] = 0
    """width of the hidden layer of a gate that multiplies the head's input and is computed from the input vector
    (ANML); 0 = no gate"""
    compute_dtype: Literal["float32", "bfloat16"] = "float32"
    """dtype of activations; parameters stay float32"""

    reads = "vectors"
    learns = "Classification"
    output = Softmax()  # over the classes; nothing is laid over it

    @property
    def memory_facts(self) -> Carrier:
        return self

    def check(self, field: str, config: Config) -> None:
        source = config.data.source
        allowed = "Digits, Blobs, PermutedBags, CachedFeatures or CachedPairs with a Perceptron"
        require("vectors" in source.content_types, "data.source", type(source).__name__, allowed)


@dataclass(slots=True, kw_only=True)
class BiLSTM(ModelBase, Carrier):
    """A bidirectional LSTM over the words of a sentence, whose last states in both directions are the input of a head
    of classes.
    """

    dim: Count = 50
    """width of word vectors; it must be that of the tokenizer's file, where it has one"""
    hidden: Count = 200
    """width of the hidden state of each direction"""
    train_vectors: bool = False
    """train the word vectors; False = they keep their initial values, from the tokenizer's file or random"""
    dropout: Rate = 0.0
    """dropout rate on the input of the head"""
    compute_dtype: Literal["float32", "bfloat16"] = "float32"
    """dtype of activations; parameters stay float32"""

    reads = "words"
    learns = "RelationExtraction"
    output = Softmax()

    @property
    def memory_facts(self) -> Carrier:
        return self


@dataclass(slots=True, kw_only=True)
class TokenBag(ModelBase, Carrier):
    """A text classifier on hashed counts of tokens and, if chosen, of pairs of neighbouring tokens, which learns from
    few texts.

    A text is a vector of `buckets` counts, and the output is a score for each class. Hashed counts and pairs are those
    of fastText (Joulin, Grave, Bojanowski and Mikolov 2017, https://arxiv.org/abs/1607.01759). The head 'bayes' is
    multinomial naive Bayes (McCallum and Nigam 1998), with errors weighed as by Su, Zhang, Ling and Matwin (2008). See
    `memjax.models.token_bag.BayesHead`.
    """

    buckets: Count = 16_384
    """number of buckets of the hash, which are the features of a text"""
    pairs: bool = False
    """also count pairs of neighbouring tokens"""
    widths: tuple[Count, ...] = ()
    """widths of the hidden layers, each with a rectifier; () = a linear classifier"""
    dropout: Rate = 0.0
    """dropout rate on the hidden layers and on the input of the head"""
    head: Literal["bayes", "softmax"] = "bayes"
    """learning of classes: 'bayes' = sums of the counts of each class (naive Bayes), so that no class changes another
    and one pass is enough; 'softmax' = a linear classifier fitted by gradients"""
    smoothing: Annotated[float, Range(words="a share in (0, 1)", above=0, below=1)] = 0.6
    """share of every class's distribution that is uniform over all buckets, where `head` is 'bayes'"""
    weighs_errors: bool = False
    """weigh a text by the probability of all classes but its own (Su et al. 2008), where `head` is 'bayes', so that a
    replayed text that is known already adds nothing"""
    gate_dim: Annotated[int, zero_or_more("none")] = 0
    """width of the hidden layer of a gate that multiplies the head's input and is computed from the counts (ANML); 0 =
    no gate"""
    initializer: Literal["lecun", "uniform"] = "lecun"
    """distribution of initial matrices of hidden layers: 'lecun' = normal of variance 1 / inputs; 'uniform' = within 1
    / sqrt(inputs)"""
    compute_dtype: Literal["float32", "bfloat16"] = "float32"
    """dtype of activations; parameters stay float32"""

    is_causal = False
    first_trained_layer = 0
    reads = "bags"
    learns = "Classification"
    output = Softmax()

    @property
    def memory_facts(self) -> Carrier:
        return self

    def check(self, field: str, config: Config) -> None:
        if self.head == "bayes":
            require(not self.widths, f"{field}widths", self.widths, f"() with {field}head 'bayes'")
            require(not self.gate_dim, f"{field}gate_dim", self.gate_dim, f"0 with {field}head 'bayes'")
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
