"""All configuration dataclasses; what they may hold stands in `memjax.validation`.

A config is built by `configs/NAME.py:get_config(variant)`; the type of a part is its kind, so there is no `kind` field:
`config.model.attention = Memorizing(memory_length=4096)`. Only the model factory and the command line unpack these;
modules and functions take plain arguments.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Literal


@dataclasses.dataclass(slots=True, kw_only=True)
class FullAttention:
    """No memory: causal attention inside the segment. The degenerate case of every memory."""

    query_key_norm: bool = True
    """normalise queries and keys to unit length and learn a scale per head"""
    scale_init: float | None = None
    """initial scale of query-key norm; None = sqrt(head_dim)"""
    num_buckets: int = 32
    """T5 relative-position buckets; 0 = no positions"""
    max_distance: int = 128
    """tokens beyond which all distances share the last bucket"""


@dataclasses.dataclass(slots=True, kw_only=True)
class TransformerXL:
    """Transformer-XL (Dai et al. 2019): the hidden states of earlier segments, in every layer."""

    memory_length: int = 128
    """slots (tokens) of the hidden-state memory of each layer; 0 = no memory"""
    norm: Literal["post", "pre"] = "post"
    """place of the layer norm; the published models are post-norm"""
    final_norm: bool = True
    """a norm after the last layer where norm is 'pre'; the published code has none"""
    tied_biases: bool = False
    """share the biases u and v between all layers (as the paper's text does)"""
    clamp_length: int = 0
    """tokens; distances beyond it are treated as it; 0 = no clamping"""
    same_length: bool = False
    """every query sees exactly memory_length keys including itself (evaluation in the published scripts)"""
    empty_memory: Literal["mask", "zeros"] = "mask"
    """'zeros' attends to never-written slots as zero vectors, as the TensorFlow and Hugging Face code does"""


@dataclasses.dataclass(slots=True, kw_only=True)
class Compressive:
    """Compressive Transformer (Rae et al. 2019): Transformer-XL whose oldest memories are compressed, not forgotten."""

    memory_length: int = 128
    """slots (tokens) of the hidden-state memory of each layer; 0 = no memory, compressed or not"""
    compressed_memory_length: int = 128
    """slots of the compressed memory of each layer; 0 = Transformer-XL"""
    compression_rate: int = 4
    """tokens that one compressed slot stands for; best a divisor of data.segment_length"""
    compression: Literal["convolution", "dilated", "max", "mean", "most_used"] = "convolution"
    """'convolution' and 'dilated' (causal convolutions before it) are learned, 'max' and 'mean' pool, 'most_used' keeps
    the slots that received most attention"""
    dilations: tuple[int, ...] = (1, 2, 4)
    """slots back in each layer of 'dilated'"""
    loss: Literal["attention", "auto_encoding", "none"] = "attention"
    """what the compression learns from: attention to old slots stays as it was, or old slots can be decoded; 'none' =
    the loss of the model through later segments of the same update (training.segments_per_update of 2 or more)"""
    loss_weight: float = 1.0
    """coefficient of that loss; it reaches the compression only"""
    loss_reduction: Literal["mean_square", "norm"] = "mean_square"
    """of 'attention': the mean square as in the published code, or the L2 norm of the paper's text"""
    positions: Literal["separate", "contiguous"] = "separate"
    """of compressed slots: relative keys of their own, as in the published code, or one row of slots with the memory"""
    norm: Literal["post", "pre", "pre_sonnet"] = "post"
    """place of the layer norm; 'pre_sonnet' is the published code's: pre-norm, and memories hold the normed input"""
    final_norm: bool = True
    """a norm after the last layer where norm is not 'post'"""
    tied_biases: bool = False
    """share the biases u and v between all layers"""
    clamp_length: int = 0
    """tokens; distances beyond it are treated as it; 0 = no clamping"""
    empty_memory: Literal["mask", "zeros"] = "mask"
    """'zeros' attends to never-written slots as zero vectors, as the published code does"""


@dataclasses.dataclass(slots=True, kw_only=True)
class Memorizing:
    """Memorizing Transformer (Wu et al. 2022): k nearest (key, value) pairs of a long FIFO memory, in some layers."""

    layers: tuple[int, ...] = (-4,)
    """layers with the long memory, 0-based, negative from the end; () = all"""
    memory_length: int = 8192
    """slots (tokens) of the long memory per row and head; 0 = the local cache only"""
    num_neighbors: int = 32
    """slots retrieved per query and head"""
    cache_length: int = 512
    """tokens of earlier segments kept for local attention, in every layer; 0 = the segment only"""
    window: int = 0
    """keys of local attention including the query's own; 0 = all of cache and segment up to the query"""
    merge: Literal["gate", "joint", "add", "stop_forward"] = "gate"
    """how memory and local attention combine: the final version gates per head, the first one shared one softmax"""
    write: Literal["current", "evicted"] = "current"
    """what enters the long memory: the segment just read, or what leaves the local cache"""
    retrieval: Literal["exact", "approximate", "bucket", "threshold"] = "exact"
    """search over the long memory; 'threshold' is exact without a gather, 'bucket' has about 63 % recall"""
    recall_target: float = 0.95
    """expected recall of 'approximate' on a TPU (elsewhere it is exact)"""
    query_key_norm: bool = True
    """normalise queries and keys to unit length and learn a scale per head"""
    scale_init: float | None = None
    """initial scale of query-key norm; None = sqrt(head_dim)"""
    gate_init: float = 0.0
    """initial gate logit; positive favours the memory"""
    num_buckets: int = 32
    """T5 relative-position buckets of local attention; 0 = no positions"""
    max_distance: int = 128
    """tokens beyond which all distances share the last bucket"""
    track_positions: bool = False
    """let each slot carry the document position of its token"""
    compatibility: Literal["paper", "meliad"] = "paper"
    """'meliad' as the authors' code: no bias in memory layers, strict causality, unmasked empty slots"""


@dataclasses.dataclass(slots=True, kw_only=True)
class InfinityFormer:
    """infinity-former (Martins et al. 2022): the whole past as a signal of constant size, beside the attention."""

    segment_length: int = 128
    """tokens of a segment: the same as data.segment_length"""
    host: Literal["transformer_xl", "gpt2"] = "transformer_xl"
    """the attention it stands beside: relative positions and a short-term memory, or GPT-2's"""
    layers: tuple[int, ...] = ()
    """layers with the long-term memory, 0-based, negative from the end; () = all"""
    num_basis: int = 512
    """basis functions of the signal, a multiple of the number of widths; 0 = the host alone"""
    widths: tuple[float, ...] = (0.01, 0.05)
    """standard deviations of the basis functions; (0.005, 0.01) in the paper's GPT-2"""
    num_samples: int = 512
    """points at which the past is read when it is contracted"""
    contraction: float = 0.5
    """share of the signal that the past keeps at every update"""
    ridge: float = 0.5
    """penalty of the regression; 1.0 in the published code for sorting"""
    sticky: Literal["none", "sample", "quantile"] = "none"
    """sticky memories: read the past where the last queries looked, at random in training or at its quantiles"""
    num_bins: int = 128
    """bins of the histogram of where they looked"""
    jitter: bool = False
    """of 'sample': draw inside a bin instead of its left edge"""
    reset_after: int = 0
    """tokens after which the signal begins anew (2048 in the published GPT-2 code); 0 = never inside a document"""
    prior_stddev: float = 0.05
    """standard deviation that the regulariser draws the densities to; 0.1 for a model from scratch"""
    kl_weight: float = 1e-6
    """coefficient of the regulariser; 1e-5 in the paper for sorting"""
    min_variance: float = 1e-4
    """smallest variance of a density; 1e-6 in the published code for sorting"""
    memory_length: int = 0
    """slots (tokens) of the short-term memory of a Transformer-XL host, a multiple of the segment; 0 = none"""
    norm: Literal["post", "pre"] = "post"
    """place of the layer norm of a Transformer-XL host"""
    final_norm: bool = True
    """a norm after the last layer where norm is 'pre'"""
    tied_biases: bool = False
    """of a Transformer-XL host: share the biases u and v between all layers"""
    clamp_length: int = 0
    """of a Transformer-XL host, tokens; distances beyond it are treated as it; 0 = no clamping"""
    num_positions: int = 1024
    """learned positions of a GPT-2 host, at least a segment"""


@dataclasses.dataclass(slots=True, kw_only=True)
class GPT2:
    """GPT-2 (Radford et al. 2019): learned positions inside the segment; alone or with a compressed memory."""

    num_positions: int = 1024
    """learned positions, at least a segment"""
    compressed_memory_length: int = 0
    """slots of the compressed memory of each layer; 0 = none"""
    compression_rate: int = 4
    """tokens that one slot stands for, a divisor of data.segment_length"""
    loss_weight: float = 1.0
    """coefficient of the attention-reconstruction loss; it reaches the compression only"""


@dataclasses.dataclass(slots=True, kw_only=True)
class Bidirectional:
    """BERT (Devlin et al. 2019): every token sees the whole text; for tasks other than LanguageModeling.

    Post-norm, learned positions, embeddings that are normed and not scaled, output weights tied to them with a bias.
    """

    positions: int = 512
    """learned positions (tokens): the longest text"""
    token_types: int = 2
    """learned types of tokens, one for each text of a pair; 0 = none, as DistilBERT"""
    pooler: bool = True
    """a dense layer and tanh over the first token, which Classification reads; DistilBERT has none"""


@dataclasses.dataclass(slots=True, kw_only=True)
class LinearTransformer:
    """Linear Transformer (Katharopoulos et al. 2020): sums over all tokens so far, features elu(x) + 1."""

    chunk_length: int = 128
    """tokens multiplied with each other at once; a longer segment carries the sums from chunk to chunk"""
    bias: bool = True
    """biases of all projections"""
    norm: Literal["pre", "post"] = "pre"
    """place of the norm"""
    norm_kind: Literal["layer", "rms"] = "layer"
    """kind of the norm, in the feed-forward part too"""


@dataclasses.dataclass(slots=True, kw_only=True)
class RFA(LinearTransformer):
    """Random feature attention (Peng et al. 2021): sums over all tokens, features estimate the kernel of a softmax."""

    num_directions: int = 64
    """random directions of a head; features are twice as many"""
    temperature: float = 1.0
    """divides the directions"""
    gate: bool = False
    """let the sums decay by a gate per head and token"""
    gate_bias_init: float = 3.0
    """initial bias of the gate"""
    orthogonal: bool = False
    """directions orthogonal in blocks of the head's width"""
    redraw: bool = False
    """new directions in every training segment; no state then crosses a segment in training"""


@dataclasses.dataclass(slots=True, kw_only=True)
class T2R(LinearTransformer):
    """T2R (Kasai et al. 2021): sums over all tokens, learned features; goes on from a model with softmax attention."""

    num_features: int = 32
    """width of the feature map of a head"""
    folded: bool = False
    """the parameters are those that `memjax.memory.t2r.fold` returns (inference)"""


@dataclasses.dataclass(slots=True, kw_only=True)
class MemSizer(LinearTransformer):
    """MemSizer (Zhang & Cai 2022): a memory of few slots whose keys are parameters, one for all heads."""

    num_slots: int = 32
    """slots of the memory (the paper's k)"""
    frozen_queries: bool = False
    """the keys of the slots keep their random initial values"""
    query_init_scale: float = 32.0
    """the slots' initial keys have Xavier's size divided by its root"""
    source_init_scale: float = 1.0
    """the same of the two adaptors"""


@dataclasses.dataclass(slots=True, kw_only=True)
class LSTM:
    """LSTM (Hochreiter & Schmidhuber 1997) in the place of attention: layers without feed-forward part, norm, residual.

    Of the model, `num_heads`, `head_dim`, `attention_dropout` and `feed_forward` have no effect.
    """


Attention = (
    FullAttention
    | TransformerXL
    | Compressive
    | Memorizing
    | InfinityFormer
    | GPT2
    | Bidirectional
    | LinearTransformer
    | RFA
    | T2R
    | MemSizer
    | LSTM
)


@dataclasses.dataclass(slots=True, kw_only=True)
class Dense:
    """The ordinary feed-forward network."""

    dim: int = 0
    """width of the hidden layer; 0 = 4 * model.dim"""
    activation: Literal["relu", "gelu", "gelu_exact", "swiglu"] = "relu"
    """'gelu' is the tanh form"""
    bias: bool = True
    """biases in both layers"""


@dataclasses.dataclass(slots=True, kw_only=True)
class ProductKey(Dense):
    """Product keys (Lample et al. 2019) in the place of the feed-forward network, or beside it (Kim & Jung 2020).

    In some layers; `dim`, `activation` and `bias` are those of the ordinary network.
    """

    layers: tuple[int, ...] = (-2,)
    """layers with a memory, 0-based, negative from the end; () = all"""
    num_keys: int = 512
    """sub-keys of each half; num_keys ** 2 slots"""
    memory_heads: int = 4
    """heads of the memory, each with sub-keys of its own; all share the values"""
    num_neighbors: int = 32
    """slots read per token and head"""
    key_dim: int = 256
    """width of one head's query, two halves"""
    query_hidden: tuple[int, ...] = ()
    """widths of hidden layers of the query network; () = a linear one"""
    query_norm: Literal["batch", "layer", "none"] = "batch"
    """of queries; 'batch' raises the share of slots in use"""
    key_dropout: float = 0.0
    """rate on sub-keys"""
    dense_scale: float = 0.0
    """weight of the ordinary network in layers with a memory (the paper's alpha); 0 = the memory replaces it"""
    memory_scale: float = 1.0
    """weight of the memory (the paper's beta); 0 = none"""


FeedForward = Dense | ProductKey


@dataclasses.dataclass(slots=True, kw_only=True)
class Softmax:
    """One softmax over the whole vocabulary."""

    tied: bool = True
    """output weights are the input embeddings"""
    bias: bool = False
    """an output bias per vocabulary entry"""


@dataclasses.dataclass(slots=True, kw_only=True)
class AdaptiveSoftmax:
    """Adaptive embeddings and softmax (Grave et al. 2017; Baevski & Auli 2019), tied."""

    cutoffs: tuple[int, ...] = (20000, 40000, 200000)
    """first ids of the tail clusters, ascending"""
    div_val: int = 1
    """each further cluster's embedding is this factor narrower"""
    tie_projections: tuple[bool, ...] = ()
    """per cluster, whether the output projection is the input's; () = none"""
    bias: bool = True
    """an output bias per vocabulary entry"""


@dataclasses.dataclass(slots=True, kw_only=True)
class Spalm:
    """SPALM (Yogatama et al. 2021): the tokens after similar contexts, gated into the last hidden state."""

    softmax: Softmax | AdaptiveSoftmax = dataclasses.field(default_factory=Softmax)
    """embeddings and softmax"""
    num_neighbors: int = 4
    """similar contexts of each position; they come with the data (data.neighbors)"""
    gate: Literal["scalar", "vector"] = "scalar"
    """one gate per position, as published, or one per dimension"""
    gate_bias: float | None = None
    """initial value of a learned bias of the gate; None = no bias, as published (the gate begins at 1/2)"""
    gate_bins: int = 0
    """report the share of tokens whose gate lies in each of so many equal bins; 0 = the mean only"""


Output = Softmax | AdaptiveSoftmax | Spalm


def softmax_of(output: Any) -> Any:
    """The softmax of an output, with a memory or without; what is neither is given back for the caller to refuse."""
    return output.softmax if isinstance(output, Spalm) else output


@dataclasses.dataclass(slots=True, kw_only=True)
class MemoryTokens:
    """Memory tokens (Burtsev et al. 2020): learned rows before the sequence that all layers read and write."""

    num_tokens: int = 10
    """memory tokens"""
    kind: Literal["transformer", "control", "bottleneck"] = "transformer"
    """ordinary layers over both; layers of its own for the memory; or those, and tokens that read the memory alone"""
    shared: bool = False
    """of 'control' and 'bottleneck': one layer for the memory instead of one beside every layer"""
    init_stddev: float = 0.02
    """of the learned rows"""


@dataclasses.dataclass(slots=True, kw_only=True)
class Model:
    """A decoder-only language model, or a text encoder where `attention` is Bidirectional."""

    dim: int = 256
    """width of the residual stream"""
    num_layers: int = 4
    """number of layers"""
    num_heads: int = 4
    """attention heads"""
    head_dim: int = 0
    """width of one head; 0 = dim / num_heads"""
    dropout: float = 0.0
    """rate on embeddings, residual branches and the output"""
    attention_dropout: float = 0.0
    """rate on attention weights"""
    scale_embeddings: bool = True
    """multiply input embeddings by sqrt(dim)"""
    positions: Literal["none", "sinusoids"] = "none"
    """'sinusoids' of the place in the document are added to embeddings, for attention without positions of its own"""
    scan_layers: bool | None = None
    """one scan over equal neighbouring layers (compile time independent of depth); None = from 6 layers up"""
    compute_dtype: Literal["float32", "bfloat16"] = "float32"
    """activations; parameters and statistics stay float32"""
    memory_dtype: Literal["float32", "bfloat16"] = "float32"
    """activations stored in memory states"""
    attention: Attention = dataclasses.field(default_factory=FullAttention)
    """the attention part of the layers, and the memory it carries"""
    feed_forward: FeedForward = dataclasses.field(default_factory=Dense)
    """the feed-forward part of the layers"""
    output: Output = dataclasses.field(default_factory=Softmax)
    """embeddings and softmax"""
    markers: int = 0
    """last ids of the vocabulary that mark what follows them, as the speakers of a dialogue do: every token gets a
    learned embedding of the last mark before it; 0 = none"""
    memory_tokens: MemoryTokens | None = None
    """memory tokens: of the encoder, or before every segment of a Transformer-XL; None = no memory tokens"""


@dataclasses.dataclass(slots=True, kw_only=True)
class EncoderDecoder(Model):
    """A translation model: an encoder, and a decoder that also attends to the source. `attention` is the decoder's."""

    attention: Attention = dataclasses.field(default_factory=lambda: FullAttention(query_key_norm=False, num_buckets=0))
    """causal attention of the decoder's layers"""
    cross_attention: FullAttention | LinearTransformer | RFA | T2R | MemSizer = dataclasses.field(
        default_factory=lambda: FullAttention(query_key_norm=False, num_buckets=0)
    )
    """attention of the decoder to the source; of FullAttention no field has an effect"""
    positions: Literal["none", "sinusoids"] = "sinusoids"
    """added to the embeddings of source and target"""
    encoder_layers: int = 0
    """layers of the encoder; 0 = num_layers"""
    norm: Literal["post", "pre"] = "post"
    """place of the layer norms; in front, both stacks end with one"""
    label_smoothing: float = 0.1
    """share of the target distribution spread over the vocabulary, in training"""


@dataclasses.dataclass(slots=True, kw_only=True)
class ParallelText:
    """Sentence pairs: a folder of files STEM.LANGUAGE with a sentence a line (also .xz / .gz), as Multi30k has them."""

    path: str = ""
    """the folder"""
    source_language: str = "en"
    """ending of the files to translate"""
    target_language: str = "de"
    """ending of their translations"""
    train: str = "train"
    """stem of the training files"""
    validation: str = "val"
    """stem of the validation files"""
    test: str = "test_2016_flickr"
    """stem of the test files"""
    max_length: int = 64
    """tokens, the end included; pairs with a longer side are left out"""


@dataclasses.dataclass(slots=True, kw_only=True)
class TfdsTranslation:
    """Sentence pairs of a TFDS translation builder. Needs the extra `data`."""

    name: str = "wmt14_translate/de-en"
    """builder name, with config and version where wanted"""
    source_language: str = "en"
    """feature to translate"""
    target_language: str = "de"
    """feature that holds the translation"""
    max_length: int = 128
    """tokens, the end included; pairs with a longer side are left out"""
    data_dir: str = ""
    """prepared data sets; '' = the library's default"""


@dataclasses.dataclass(slots=True, kw_only=True)
class NumberWords:
    """Synthetic sentence pairs: numbers in English words, and in German ones."""

    num_documents: int = 2048
    """pairs of the training split; validation and test have an eighth each"""
    max_length: int = 96
    """tokens, the end included; pairs with a longer side are left out"""


Translation = ParallelText | TfdsTranslation | NumberWords


@dataclasses.dataclass(slots=True, kw_only=True)
class Memformer(Model):
    """Memformer (Wu et al. 2020): an encoder with a memory of slots, and a decoder of `num_layers` layers.

    Of the fields of `Model`, `attention`, `head_dim`, `memory_dtype`, `positions` and `memory_tokens` have no effect;
    `output` is a `Softmax` and `markers` is 0.
    """

    encoder_layers: int = 4
    """layers that read the memory; 0 = a decoder alone, which knows its own segment only (ablation)"""
    num_slots: int = 64
    """slots of the memory, one memory for all layers; 0 = the encoder reads the segment before only (ablation)"""
    temperature: float = 0.25
    """of the writer's attention; 1 is the ablation"""
    forgetting: bool = True
    """move every slot towards its learned bias at each update; False is the ablation"""
    single_head: bool = False
    """one head in memory reader and writer (ablation)"""
    slots_per_chunk: int = 256
    """slots that are written at a time, which bounds the memory of the writer's weights; 0 = all"""
    num_classification_tokens: int = 1
    """learned tokens after each segment in the encoder"""
    segment_length: int = 128
    """tokens of a segment: the same as data.segment_length"""


@dataclasses.dataclass(slots=True, kw_only=True)
class PythonLibrary:
    """The interpreter's standard library in source, one document per top-level module or package."""


@dataclasses.dataclass(slots=True, kw_only=True)
class TextFiles:
    """Plain text files, one document each. Compressed .xz and .gz are read as they are."""

    path: str = ""
    """a file, a directory or a glob"""
    validation_percent: int = 5
    """share of documents held out for validation, by a hash of the name"""
    test_percent: int = 5
    """share of documents held out for the test split, by a hash of the name"""


@dataclasses.dataclass(slots=True, kw_only=True)
class Directories:
    """One document per directory (a repository): its files joined in path order, each after a line with its path."""

    path: str = ""
    """the directory that holds the documents' directories"""
    pattern: str = "**/*"
    """glob of the files to join"""
    order_file: str = ""
    """a file inside each directory that lists its files in the order to join them; '' = path order"""
    validation_percent: int = 5
    """share of documents held out for validation"""
    test_percent: int = 5
    """share of documents held out for the test split"""


@dataclasses.dataclass(slots=True, kw_only=True)
class JsonLines:
    """JSON lines, one document a line."""

    path: str = ""
    """a file or a glob"""
    field: str = "text"
    """the field that holds the text"""
    validation_percent: int = 5
    """share of documents held out for validation"""
    test_percent: int = 5
    """share of documents held out for the test split"""


@dataclasses.dataclass(slots=True, kw_only=True)
class Enwik8:
    """enwik8 or text8: the first 90 M, next 5 M and last 5 M bytes are train, validation and test."""

    path: str = ""
    """the uncompressed or .xz / .gz file"""


@dataclasses.dataclass(slots=True, kw_only=True)
class WikiText:
    """WikiText at word level: train.txt, valid.txt and test.txt, one `<eos>` a line."""

    path: str = ""
    """the directory of the three files (also .xz / .gz)"""


@dataclasses.dataclass(slots=True, kw_only=True)
class Novels:
    """Whole books: a directory or a tar (.tar, .tar.xz, .tar.gz) of text files, one document a book."""

    path: str = ""
    """the directory or tar file"""


@dataclasses.dataclass(slots=True, kw_only=True)
class TfdsBuilder:
    """A TensorFlow Datasets builder. Needs the extra `data`."""

    name: str = "pg19"
    """builder name, with config and version where wanted"""
    field: str = "text"
    """feature that holds the text"""
    data_dir: str = ""
    """prepared data sets; '' = the library's default"""


@dataclasses.dataclass(slots=True, kw_only=True)
class SeqioTask:
    """A seqio Task or Mixture. Needs the extra `data`."""

    name: str = "memjax_pg19"
    """registered name"""
    feature: str = "targets"
    """feature that holds the tokens"""
    data_dir: str = ""
    """prepared TFDS data sets; '' = the library's default"""


@dataclasses.dataclass(slots=True, kw_only=True)
class KeyValueRecall:
    """Synthetic documents that define keys and values and ask for them many segments later."""

    num_pairs: int = 8
    """bindings per document"""
    num_keys: int = 16
    """different keys"""
    num_values: int = 16
    """different values; chance is 1 / num_values"""
    filler_length: int = 48
    """tokens between the definitions and the questions"""
    layout: Literal["joint", "sequence"] = "joint"
    """a binding is one token for the pair, or key and value one after the other"""
    num_documents: int = 2048
    """documents of the training split; validation and test have an eighth each"""


@dataclasses.dataclass(slots=True, kw_only=True)
class Sorting:
    """Synthetic documents whose symbols are to be named at the end by how often they occurred (Martins et al. 2022)."""

    length: int = 4000
    """symbols to sort; 4,000 to 16,000 in the paper"""
    num_symbols: int = 20
    """different symbols"""
    num_documents: int = 8000
    """documents of the training split; validation and test have a tenth each"""


@dataclasses.dataclass(slots=True, kw_only=True)
class Mnist:
    """Grey images in the files of MNIST, one token a pixel; the last 5,000 of training are the validation split."""

    path: str = ""
    """the folder of train-images-idx3-ubyte and t10k-images-idx3-ubyte (also .gz)"""


@dataclasses.dataclass(slots=True, kw_only=True)
class Dialogues:
    """Dialogues about documents: utterances are scored, documents are not."""

    document: Literal["none", "context", "memory"] = "memory"
    """where the document stands: nowhere, before the utterances in every segment, or whole in segments before them"""
    document_length: int = 0
    """tokens of the document that are kept; 0 = all"""
    max_utterance_length: int = 128
    """tokens of an utterance that are kept"""


@dataclasses.dataclass(slots=True, kw_only=True)
class CmuDog(Dialogues):
    """CMU-DoG (Zhou et al. 2018): dialogues about films."""

    path: str = ""
    """the folder with Conversations and WikiData, one with the archive cmu_dog.tar.xz, or the archive"""


@dataclasses.dataclass(slots=True, kw_only=True)
class TemplateDialogues(Dialogues):
    """Synthetic dialogues about who lives where, which only the document tells."""

    num_dialogues: int = 512
    """dialogues of the training split; validation and test have an eighth each"""


@dataclasses.dataclass(slots=True, kw_only=True)
class Glue:
    """A task of GLUE (Wang et al. 2019), for Classification. Where test has no labels it is the validation split."""

    name: Literal["cola", "sst2", "mrpc", "qqp", "mnli", "qnli", "rte", "wnli"] = "sst2"
    """which task; 'mnli' is scored on matched genres"""
    path: str = ""
    """the folder of its TSV files (also .xz / .gz); '' = `glue/NAME` of TensorFlow Datasets (needs the extra `data`)"""
    data_dir: str = ""
    """prepared TFDS data sets; '' = the library's default"""
    validation_percent: int = 10
    """share of the examples held out, by a hash of the text, where the folder has only one of the files"""
    test_percent: int = 10
    """likewise for the test split"""


@dataclasses.dataclass(slots=True, kw_only=True)
class Squad:
    """SQuAD 1.1 (Rajpurkar et al. 2016), for QuestionAnswering. Its test set is hidden: `test` is then validation."""

    path: str = ""
    """the folder of its JSON files (also .xz / .gz); '' = `squad` of TensorFlow Datasets (needs the extra `data`)"""
    data_dir: str = ""
    """prepared TFDS data sets; '' = the library's default"""
    validation_percent: int = 10
    """share of the articles held out, by a hash of the title, where the folder has only one of the files"""
    test_percent: int = 10
    """likewise for the test split"""


@dataclasses.dataclass(slots=True, kw_only=True)
class Templates:
    """Synthetic sentences about who lives where, for Classification and QuestionAnswering."""

    num_examples: int = 512
    """examples of the training split; validation and test have an eighth each"""


Source = (
    PythonLibrary
    | TextFiles
    | Directories
    | JsonLines
    | Enwik8
    | WikiText
    | Novels
    | TfdsBuilder
    | SeqioTask
    | KeyValueRecall
    | Sorting
    | Mnist
    | CmuDog
    | TemplateDialogues
    | Glue
    | Squad
    | Templates
    | ParallelText
    | TfdsTranslation
    | NumberWords
)


@dataclasses.dataclass(slots=True, kw_only=True)
class Bytes:
    """UTF-8 bytes and a few special symbols."""


@dataclasses.dataclass(slots=True, kw_only=True)
class SentencePiece:
    """A SentencePiece model; decodes every text exactly."""

    model: str = ""
    """model file; '' = train one on the training split and keep it with the prepared data"""
    vocab_size: int = 4096
    """pieces, when one is trained"""


@dataclasses.dataclass(slots=True, kw_only=True)
class Words:
    """White-space words of the training split (WikiText's protocol)."""


@dataclasses.dataclass(slots=True, kw_only=True)
class BytePairs:
    """A byte-level byte-pair tokenizer, as GPT-2 has one; decodes every text exactly. Needs the extra `hf`."""

    path: str = ""
    """a tokenizer.json, or a folder with GPT-2's vocab.json and merges.txt; '' = train one on the training split"""
    vocab_size: int = 4096
    """entries, when one is trained"""


@dataclasses.dataclass(slots=True, kw_only=True)
class WordPiece:
    """BERT's tokenizer. Needs the extra `hf`."""

    vocab: str = ""
    """vocab.txt or tokenizer.json (also .xz / .gz); '' = train one on the training split"""
    vocab_size: int = 4096
    """pieces, when one is trained"""
    lowercase: bool = True
    """the vocab.txt, or the one that is trained, is uncased"""


Tokenizer = Bytes | SentencePiece | Words | BytePairs | WordPiece


@dataclasses.dataclass(slots=True, kw_only=True)
class Data:
    """What is read, and how it is cut into rows."""

    source: Source = dataclasses.field(default_factory=PythonLibrary)
    """where documents come from"""
    tokenizer: Tokenizer = dataclasses.field(default_factory=SentencePiece)
    """text to tokens; sources that are tokens already ignore it"""
    cache_dir: str = ""
    """prepared token files; '' = the user's cache folder"""
    rows: int = 8
    """batch rows over all hosts: one document stream each"""
    segment_length: int = 128
    """tokens of one segment"""
    protocol: Literal["separate", "contiguous"] = "separate"
    """reset memory at document starts, or cut the corpus into `rows` contiguous streams that never reset"""
    min_document_length: int = 1
    """tokens; shorter documents are left out"""
    neighbors: str = ""
    """folder with the neighbours of every token of each split, which Spalm needs (`memjax datastore neighbors`)"""
    seed: int = 0
    """order of the documents"""


@dataclasses.dataclass(slots=True, kw_only=True)
class Adam:
    """Adam, or AdamW where weight_decay is positive."""

    b1: float = 0.9
    """decay of the first moment"""
    b2: float = 0.999
    """decay of the second moment"""
    eps: float = 1e-8
    """added to the root of the second moment"""
    weight_decay: float = 0.0
    """decoupled decay of matrices; vectors and scalars are never decayed"""


@dataclasses.dataclass(slots=True, kw_only=True)
class Adafactor:
    """Adafactor as T5X and the Memorizing Transformer use it."""

    decay_rate: float = 0.8
    """exponent of the second-moment decay"""
    momentum: float = 0.0
    """decay of the first moment; 0 = none"""
    multiply_by_parameter_scale: bool = True
    """relative step sizes"""


@dataclasses.dataclass(slots=True, kw_only=True)
class Schedule:
    """Learning rate over optimiser steps: linear warm-up from 0, then `decay`."""

    learning_rate: float = 1e-3
    """peak"""
    warmup_steps: int = 100
    """steps of linear warm-up"""
    decay: Literal["constant", "cosine", "linear", "rsqrt"] = "cosine"
    """rsqrt is learning_rate * sqrt(warmup_steps / step) after the warm-up"""
    final_fraction: float = 0.0
    """of the peak, where cosine and linear decay end"""


@dataclasses.dataclass(slots=True, kw_only=True)
class TableAdam:
    """Adam of value tables (product keys), updated in every step: no decay, outside the global gradient norm."""

    learning_rate: float = 1e-3
    """constant"""
    b1: float = 0.9
    """decay of the first moment"""
    b2: float = 0.999
    """decay of the second moment"""
    eps: float = 1e-8
    """added to the root of the second moment"""
    form: Literal["auto", "lazy", "dense"] = "auto"
    """'lazy' updates the rows that a step reads, 'dense' all; 'auto' = dense for a table of at most 4 rows a lookup"""


@dataclasses.dataclass(slots=True, kw_only=True)
class Training:
    """How the parameters are fitted."""

    steps: int = 1000
    """updates"""
    segments_per_update: int = 1
    """time horizon in segments; more than 1 only where gradients cross segments"""
    segments_without_gradient: int = 0
    """the first segments of every update that are only read: neither scored nor differentiated"""
    rematerialize: Literal["none", "per_layer", "segment", "segment_nested", "offload"] = "none"
    """what is recomputed in the backward pass: layers, segments (only memories are saved), both, or segments with the
    saved memories in the host's memory"""
    segments_per_checkpoint: int = 0
    """of very many segments, save the memory before every so many only; 0 = before each"""
    accumulate: int = 1
    """row groups computed one after the other inside a step"""
    apply_every: int = 1
    """steps whose gradients are averaged before one optimiser update; memory advances every step"""
    optimizer: Adam | Adafactor = dataclasses.field(default_factory=Adam)
    """update rule"""
    tables: TableAdam = dataclasses.field(default_factory=TableAdam)
    """update rule of value tables"""
    schedule: Schedule = dataclasses.field(default_factory=Schedule)
    """learning rate"""
    memory_learning_rate: float = 0.0
    """peak for the parameters that a memory adds to its host, on the same schedule; 0 = that of all others"""
    frozen: tuple[str, ...] = ()
    """parts of the paths of parameters and tables that stay as they are, such as feed_forward/memory/"""
    clip_norm: float = 1.0
    """global gradient norm; 0 = no clipping"""
    seed: int = 0
    """parameters and dropout"""
    init_from: str = ""
    """run directory whose newest parameters are the start; parts it lacks keep their initialisation and are listed"""
    reinitialized: tuple[str, ...] = ()
    """parts of the paths of parameters that keep their initialisation with init_from although the run has them"""
    log_every: int = 20
    """steps between lines of metrics"""
    checkpoint_every: int = 200
    """steps between checkpoints; 0 = only at the end and on a signal"""
    keep_checkpoints: int = 2
    """newest checkpoints that stay"""
    evaluate_every: int = 0
    """steps between evaluations; 0 = only at the end"""
    tensorboard: bool = False
    """also write TensorBoard event files (needs the extra `tb`)"""


@dataclasses.dataclass(slots=True, kw_only=True)
class LanguageModeling:
    """Predict every next token."""


@dataclasses.dataclass(slots=True, kw_only=True)
class MaskedLanguageModeling:
    """Predict tokens that were hidden: other ones in every epoch, the same ones in every evaluation."""

    rate: float = 0.15
    """share of the tokens of a text that are predicted"""
    masked: float = 0.8
    """share of them that read as the mask token"""
    random: float = 0.1
    """share of them that read as a random token; the rest stays as it is"""


@dataclasses.dataclass(slots=True, kw_only=True)
class Classification:
    """The class of a text, or of a pair of texts, from its first token."""

    num_classes: int = 2
    """classes of the data"""


@dataclasses.dataclass(slots=True, kw_only=True)
class QuestionAnswering:
    """The span of a text that answers a question (SQuAD); long texts are read in windows."""

    stride: int = 128
    """tokens from one window to the next"""
    max_question_length: int = 64
    """tokens of a question; the rest is cut off"""
    max_answer_length: int = 30
    """tokens of an answer that is given"""
    num_best: int = 20
    """most probable starts and ends of each window that are combined"""


Task = LanguageModeling | MaskedLanguageModeling | Classification | QuestionAnswering


@dataclasses.dataclass(slots=True, kw_only=True)
class ContinuousCache:
    """A continuous cache (Grave et al. 2017) over a trained model: recent hidden states with the tokens after them."""

    memory_length: int = 0
    """tokens it holds; 0 = no cache"""
    mixing: Literal["linear", "global"] = "linear"
    """interpolate two distributions, or one softmax over the model's scores and the cache's"""
    similarity: Literal["dot", "cosine", "negative_squared_l2"] = "dot"
    """of hidden states"""
    interpolation_weight: float = 0.1
    """share of the cache in linear mixing (the paper's lambda)"""
    scale: float = 0.1
    """multiplies similarities (the paper's theta); depends on the size of the hidden states: tune it"""
    offset: float = 0.0
    """added to the scores in global mixing (the paper's alpha)"""
    across_documents: bool = False
    """keep what earlier documents have left"""


@dataclasses.dataclass(slots=True, kw_only=True)
class Evaluation:
    """How a split is scored."""

    split: Literal["train", "validation", "test"] = "validation"
    """which documents"""
    rows: int = 8
    """streams scored side by side"""
    segment_length: int = 0
    """tokens; 0 = the training segment length"""
    protocol: Literal["", "separate", "contiguous", "sliding_window"] = ""
    """'' = the training protocol"""
    stride: int = 0
    """tokens scored per sliding window; 0 = half a segment"""
    score_first: bool = True
    """score each document's first token from a begin token"""
    memory_length: int | None = None
    """slots of the memory at evaluation; None = as trained, 0 = off"""
    max_segments: int = 0
    """stop after so many segments of every row; 0 = the whole split"""
    accuracy: bool = False
    """also count the targets that the model finds most probable"""
    distance: int = 0
    """source code: identifiers last seen more than so many tokens before are scored apart too; 0 = the local window"""
    cache: ContinuousCache = dataclasses.field(default_factory=ContinuousCache)
    """a continuous cache laid over the model"""


@dataclasses.dataclass(slots=True, kw_only=True)
class Sharding:
    """The mesh of devices, and what is split over it."""

    data: int = 0
    """devices that share nothing but gradients; batch rows are split; 0 = what is left"""
    fsdp: int = 1
    """devices that split parameters and optimiser state, and batch rows; 0 = what is left"""
    model: int = 1
    """devices that split heads, feed-forward width and vocabulary; 0 = what is left"""
    memory: Literal["heads", "slots"] = "heads"
    """what `model` splits of a long memory: 'slots' for one too large for a device"""
    tables: Literal["rows", "columns"] = "rows"
    """what `model` splits of a value table (product keys)"""
    vocab_multiple: int = 128
    """rows of the vocabulary's tables are padded to a multiple of it, to divide over `model`; 1 = no padding"""
    timeout: float = 300.0
    """seconds that the processes of a pod wait for each other; one that is silent for longer ends the others"""


@dataclasses.dataclass(slots=True, kw_only=True)
class Config:
    """One experiment: one row of the results table."""

    name: str = "unnamed"
    """name of the experiment; its runs go to workdir/name"""
    workdir: str = "runs"
    """folder of run directories"""
    task: Task = dataclasses.field(default_factory=LanguageModeling)
    """what is learned"""
    model: Model | EncoderDecoder | Memformer = dataclasses.field(default_factory=Model)
    data: Data = dataclasses.field(default_factory=Data)
    training: Training = dataclasses.field(default_factory=Training)
    evaluation: Evaluation = dataclasses.field(default_factory=Evaluation)
    sharding: Sharding = dataclasses.field(default_factory=Sharding)
