import pytest

from memjax.config import (
    GPT2,
    LSTM,
    RFA,
    T2R,
    AdaptiveSoftmax,
    Bidirectional,
    Classification,
    Compressive,
    Config,
    ContinuousCache,
    Data,
    Dense,
    EncoderDecoder,
    FullAttention,
    Glue,
    InfinityFormer,
    KeyValueRecall,
    LinearTransformer,
    MaskedLanguageModeling,
    Memformer,
    Memorizing,
    MemoryTokens,
    MemSizer,
    Model,
    NumberWords,
    ProductKey,
    QaSrl,
    QuestionAnswering,
    Softmax,
    Spalm,
    Squad,
    TableAdam,
    Templates,
    TextFiles,
    TransformerXL,
    WordPiece,
)
from memjax.settings.checks import validate, warnings


def refused(config: Config) -> str:
    """The line with which a configuration is refused."""
    with pytest.raises(ValueError) as error:
        validate(config)
    return str(error.value)


def attention(inside, outside, line):
    """A row of the test below for two kinds of attention."""
    return Model(attention=inside), Model(attention=outside), f"model.attention.{line}"


TIES = (False, True, True, True)
RATE = "allowed: a divisor of data.segment_length = 128, or up to model.attention.memory_length + 1"


@pytest.mark.parametrize(
    "inside, outside, line",
    [
        attention(
            FullAttention(max_distance=17),
            FullAttention(max_distance=16),
            "max_distance: given 16, allowed: more than half of model.attention.num_buckets = 32",
        ),
        attention(
            TransformerXL(memory_length=1, same_length=True),
            TransformerXL(memory_length=0, same_length=True),
            "same_length: given True, allowed: False when model.attention.memory_length is 0",
        ),
        attention(
            Memorizing(num_neighbors=8192),
            Memorizing(num_neighbors=8193),
            "num_neighbors: given 8193, allowed: 1 to model.attention.memory_length = 8192",
        ),
        attention(
            Memorizing(memory_length=0, cache_length=0),
            Memorizing(memory_length=1, cache_length=0),
            "num_neighbors: given 32, allowed: 1 to model.attention.memory_length = 1",
        ),
        attention(
            Compressive(compression_rate=129),
            Compressive(compression_rate=130),
            f"compression_rate: given 130, {RATE} = 129",
        ),
        attention(
            Compressive(memory_length=0, compression_rate=3),
            Compressive(memory_length=1, compression_rate=3),
            f"compression_rate: given 3, {RATE} = 2",
        ),
        attention(
            LinearTransformer(chunk_length=0),
            LinearTransformer(chunk_length=-1),
            "chunk_length: given -1, allowed: 0 (the segment) or more tokens",
        ),
        attention(
            RFA(num_directions=1), RFA(num_directions=0), "num_directions: given 0, allowed: an integer of at least 1"
        ),
        attention(T2R(num_features=1), T2R(num_features=0), "num_features: given 0, allowed: an integer of at least 1"),
        attention(
            MemSizer(num_slots=1), MemSizer(num_slots=0), "num_slots: given 0, allowed: an integer of at least 1"
        ),
        attention(
            InfinityFormer(memory_length=128),
            InfinityFormer(memory_length=127),
            "memory_length: given 127, allowed: 0 or a multiple of 128 tokens",
        ),
        attention(
            InfinityFormer(base_attention="gpt2", num_positions=128),
            InfinityFormer(base_attention="gpt2", num_positions=127),
            "num_positions: given 127, allowed: at least data.segment_length = 128",
        ),
        attention(
            InfinityFormer(num_basis=0),
            InfinityFormer(num_basis=1),
            "num_basis: given 1, allowed: 0 (none) or a multiple of the 2 widths",
        ),
        attention(
            GPT2(num_positions=128),
            GPT2(num_positions=127),
            "num_positions: given 127, allowed: at least data.segment_length = 128",
        ),
        (
            Memformer(encoder_layers=0),
            Memformer(encoder_layers=-1),
            "model.encoder_layers: given -1, allowed: 0 or more",
        ),
        (Memformer(num_slots=0), Memformer(num_slots=-1), "model.num_slots: given -1, allowed: 0 or more"),
        (
            Model(feed_forward=ProductKey(num_neighbors=512)),
            Model(feed_forward=ProductKey(num_neighbors=513)),
            "model.feed_forward.num_neighbors: given 513, allowed: 1 to model.feed_forward.num_keys = 512",
        ),
        (  # an LSTM has no heads that would have to divide the width
            Model(attention=LSTM(), dim=30),
            Model(attention=FullAttention(), dim=30),
            "model.num_heads: given 4, allowed: a divisor of model.dim = 30, or set model.head_dim",
        ),
        (
            Model(output=AdaptiveSoftmax(div_val=6, tie_projections=TIES)),
            Model(output=AdaptiveSoftmax(div_val=7, tie_projections=TIES)),
            "model.output.div_val: given 7, allowed: model.dim = 256 divided 3 times is at least 1",
        ),
    ],
)
def test_a_model_is_valid_up_to_its_border(inside, outside, line):
    validate(Config(model=inside))
    assert refused(Config(model=outside)) == line


def assigned(part, **fields):
    """The part with fields assigned as in a notebook: nothing checks them before `validate`."""
    for name, value in fields.items():
        setattr(part, name, value)
    return part


def small_memory(**fields) -> Memorizing:
    return assigned(Memorizing(memory_length=64, num_neighbors=4), **fields)


@pytest.mark.parametrize(
    "model, line",
    [
        ({"dim": 0}, "model.dim: given 0, allowed: an integer of at least 1"),
        ({"num_heads": 3}, "model.num_heads: given 3, allowed: a divisor of model.dim = 256, or set model.head_dim"),
        ({"head_dim": -1}, "model.head_dim: given -1, allowed: 0 (dim / num_heads) or more"),
        ({"dropout": 1.0}, "model.dropout: given 1.0, allowed: a rate in [0, 1)"),
        ({"attention_dropout": -0.1}, "model.attention_dropout: given -0.1, allowed: a rate in [0, 1)"),
        ({"compute_dtype": "float16"}, "model.compute_dtype: given 'float16', allowed: one of 'float32', 'bfloat16'"),
        (
            {"feed_forward": assigned(Dense(), activation="mish")},
            "model.feed_forward.activation: given 'mish', allowed: one of 'relu', 'gelu', 'gelu_exact', 'silu', "
            "'quick_gelu', 'tanh', 'relu_squared', 'swiglu', 'geglu'",
        ),
        ({"feed_forward": Dense(dim=-4)}, "model.feed_forward.dim: given -4, allowed: 0 (4 * dim) or more"),
        (
            {"attention": TransformerXL(), "dim": 15, "num_heads": 1},
            "model.dim: given 15, allowed: an even number (sines and cosines of TransformerXL)",
        ),
        (
            {"attention": InfinityFormer(num_basis=5)},
            "model.attention.num_basis: given 5, allowed: 0 (none) or a multiple of the 2 widths",
        ),
        (
            {"attention": InfinityFormer(memory_length=100)},
            "model.attention.memory_length: given 100, allowed: 0 or a multiple of 128 tokens",
        ),
        (
            {"attention": InfinityFormer(base_attention="gpt2", memory_length=128)},
            "model.attention.memory_length: given 128, allowed: 0 with base_attention = 'gpt2', which has no "
            "short-term memory",
        ),
        (
            {"attention": InfinityFormer(contraction=1.0)},
            "model.attention.contraction: given 1.0, allowed: above 0 and below 1",
        ),
        (
            {"attention": GPT2(num_positions=100)},
            "model.attention.num_positions: given 100, allowed: at least data.segment_length = 128",
        ),
        (
            {"attention": GPT2(compressed_memory_length=8, compression_rate=3)},
            "model.attention.compression_rate: given 3, allowed: a divisor of data.segment_length = 128",
        ),
        (
            {"attention": TransformerXL(memory_length=-1)},
            "model.attention.memory_length: given -1, allowed: 0 or more slots",
        ),
        (
            {"attention": TransformerXL(memory_length=0, same_length=True)},
            "model.attention.same_length: given True, allowed: False when model.attention.memory_length is 0",
        ),
        (
            {"attention": TransformerXL(clamp_length=-1)},
            "model.attention.clamp_length: given -1, allowed: 0 (off) or more tokens",
        ),
        (
            {"attention": assigned(TransformerXL(), norm="both")},
            "model.attention.norm: given 'both', allowed: one of 'post', 'pre'",
        ),
        (
            {"attention": Compressive(), "dim": 15, "num_heads": 1},
            "model.dim: given 15, allowed: an even number (sines and cosines of Compressive)",
        ),
        (
            {"attention": Compressive(memory_length=-1)},
            "model.attention.memory_length: given -1, allowed: 0 or more slots",
        ),
        (
            {"attention": Compressive(compressed_memory_length=-1)},
            "model.attention.compressed_memory_length: given -1, allowed: 0 (TransformerXL) or more slots",
        ),
        (
            {"attention": Compressive(compression_rate=0)},
            "model.attention.compression_rate: given 0, allowed: an integer of at least 1",
        ),
        (
            {"attention": Compressive(compression_rate=3, memory_length=1)},
            "model.attention.compression_rate: given 3, allowed: a divisor of data.segment_length = 128, or up to "
            "model.attention.memory_length + 1 = 2",
        ),
        (
            {"attention": Compressive(compression="dilated", dilations=(1, 0))},
            "model.attention.dilations: given (1, 0), allowed: one or more numbers of slots, each at least 1",
        ),
        (
            {"attention": Compressive(loss_weight=-1.0)},
            "model.attention.loss_weight: given -1.0, allowed: 0 (logged only) or more",
        ),
        (
            {"attention": Compressive(clamp_length=-1)},
            "model.attention.clamp_length: given -1, allowed: 0 (off) or more tokens",
        ),
        (
            {"attention": assigned(Compressive(), compression="median")},
            "model.attention.compression: given 'median', allowed: one of 'convolution', 'dilated', 'max', 'mean', "
            "'most_used'",
        ),
        (
            {"attention": assigned(Compressive(), norm="sonnet")},
            "model.attention.norm: given 'sonnet', allowed: one of 'post', 'pre', 'pre_sonnet'",
        ),
        (
            {"attention": FullAttention(num_buckets=1)},
            "model.attention.num_buckets: given 1, allowed: 0 (no positions), or 2 or more",
        ),
        (
            {"attention": small_memory(max_distance=16)},
            "model.attention.max_distance: given 16, allowed: more than half of model.attention.num_buckets = 32",
        ),
        (
            {"attention": small_memory(num_neighbors=65)},
            "model.attention.num_neighbors: given 65, allowed: 1 to model.attention.memory_length = 64",
        ),
        (
            {"attention": small_memory(layers_with_memory=(4,))},
            "model.attention.layers_with_memory: given (4,), allowed: layers from -4 to 3",
        ),
        (
            {"attention": small_memory(write_policy="evicted", cache_length=0)},
            "model.attention.write_policy: given 'evicted', allowed: 'current' when cache_length is 0",
        ),
        (
            {"attention": small_memory(cache_length=-2)},
            "model.attention.cache_length: given -2, allowed: 0 or more tokens",
        ),
        (
            {"attention": small_memory(local_window=-1)},
            "model.attention.local_window: given -1, allowed: 0 (all) or more keys or None",
        ),
        (
            {"attention": small_memory(recall_target=0.0)},
            "model.attention.recall_target: given 0.0, allowed: above 0, up to 1",
        ),
        (
            {"attention": RFA(num_directions=0)},
            "model.attention.num_directions: given 0, allowed: an integer of at least 1",
        ),
        ({"attention": RFA(temperature=0.0)}, "model.attention.temperature: given 0.0, allowed: more than 0"),
        ({"attention": MemSizer(num_slots=0)}, "model.attention.num_slots: given 0, allowed: an integer of at least 1"),
        (
            {"attention": LinearTransformer(chunk_length=-1)},
            "model.attention.chunk_length: given -1, allowed: 0 (the segment) or more tokens",
        ),
        (
            {"positions": "sinusoids", "dim": 15, "num_heads": 1},
            "model.dim: given 15, allowed: an even number (sines and cosines of model.positions)",
        ),
        (
            {"attention": LSTM(), "feed_forward": ProductKey()},
            "model.feed_forward: given 'ProductKey', allowed: Dense (it has no effect) with LSTM",
        ),
        (
            {"memory_tokens": MemoryTokens()},
            "model.memory_tokens: given 'MemoryTokens', allowed: None with FullAttention, or TransformerXL or "
            "Bidirectional",
        ),
        (
            {"memory_tokens": MemoryTokens(kind="control"), "attention": TransformerXL()},
            "model.memory_tokens.kind: given 'control', allowed: 'transformer' but in translation",
        ),
        (
            {"feed_forward": ProductKey(num_neighbors=33, num_keys=32)},
            "model.feed_forward.num_neighbors: given 33, allowed: 1 to model.feed_forward.num_keys = 32",
        ),
        (
            {"feed_forward": ProductKey(key_dim=7)},
            "model.feed_forward.key_dim: given 7, allowed: an even number (two halves)",
        ),
        (
            {"feed_forward": ProductKey(memory_heads=0)},
            "model.feed_forward.memory_heads: given 0, allowed: an integer of at least 1",
        ),
        (
            {"feed_forward": ProductKey(num_keys=50_000)},
            "model.feed_forward.num_keys: given 50000, allowed: up to 46340 (slots have 32-bit numbers)",
        ),
        (
            {"feed_forward": ProductKey(query_hidden=(8, 0))},
            "model.feed_forward.query_hidden: given (8, 0), allowed: widths from 1",
        ),
        (
            {"feed_forward": ProductKey(key_dropout=1.0)},
            "model.feed_forward.key_dropout: given 1.0, allowed: a rate in [0, 1)",
        ),
        (
            {"feed_forward": ProductKey(memory_scale=0.0)},
            "model.feed_forward.memory_scale: given 0.0, allowed: another number than 0 where "
            "model.feed_forward.dense_scale is 0",
        ),
        (
            {"feed_forward": ProductKey(layers=(4,))},
            "model.feed_forward.layers: given (4,), allowed: layers from -4 to 3",
        ),
        (
            {"feed_forward": assigned(ProductKey(), query_norm="rms")},
            "model.feed_forward.query_norm: given 'rms', allowed: one of 'batch', 'layer', 'none'",
        ),
        (
            {"output": AdaptiveSoftmax(cutoffs=(40, 20))},
            "model.output.cutoffs: given (40, 20), allowed: positive ids in ascending order, at least one",
        ),
        (
            {"output": AdaptiveSoftmax(cutoffs=())},
            "model.output.cutoffs: given (), allowed: positive ids in ascending order, at least one",
        ),
        ({"output": AdaptiveSoftmax(div_val=0)}, "model.output.div_val: given 0, allowed: an integer of at least 1"),
        (
            {"output": AdaptiveSoftmax(div_val=8)},
            "model.output.div_val: given 8, allowed: model.dim = 256 divided 3 times is at least 1",
        ),
        (
            {"output": AdaptiveSoftmax(div_val=2, tie_projections=(True,))},
            "model.output.tie_projections: given (True,), allowed: () or one entry for each of the 4 clusters",
        ),
        (
            {"output": AdaptiveSoftmax(tie_projections=(False, True, True, True))},
            "model.output.tie_projections: given (False, True, True, True), allowed: () where div_val is 1",
        ),
    ],
)
def test_a_wrong_model_gets_one_line(model, line):
    assert refused(Config(model=assigned(Model(), **model))) == line


@pytest.mark.parametrize(
    "part, fields, line",
    [
        ("data", {"batch_size": 0}, "data.batch_size: given 0, allowed: an integer of at least 1"),
        ("data", {"protocol": "mixed"}, "data.protocol: given 'mixed', allowed: one of 'separate', 'contiguous'"),
        (
            "training",
            {"segments_per_update": 4, "burn_in_segments": 4},
            "training.burn_in_segments: given 4, allowed: from 0 to training.segments_per_update - 1 = 3",
        ),
        (
            "training",
            {"num_microbatches": 3},
            "training.num_microbatches: given 3, allowed: a divisor of data.batch_size = 8",
        ),
        (
            "training",
            {"value_table_optimizer": TableAdam(learning_rate=0.0)},
            "training.value_table_optimizer.learning_rate: given 0.0, allowed: more than 0",
        ),
        (
            "training",
            {"value_table_optimizer": TableAdam(b2=1.0)},
            "training.value_table_optimizer.b2: given 1.0, allowed: a number in [0, 1)",
        ),
        (
            "training",
            {"value_table_optimizer": TableAdam(eps=0.0)},
            "training.value_table_optimizer.eps: given 0.0, allowed: more than 0",
        ),
        ("training", {"clip_norm": -1.0}, "training.clip_norm: given -1.0, allowed: 0 (off) or more"),
        (
            "training",
            {"reinitialized_parameters": ("a/",)},
            "training.reinitialized_parameters: given ('a/',), allowed: () without training.init_from",
        ),
        (
            "evaluation",
            {"split": "dev"},
            "evaluation.split: given 'dev', allowed: one of 'train', 'validation', 'test'",
        ),
    ],
)
def test_other_parts_get_one_line(part, fields, line):
    config = Config()
    assigned(getattr(config, part), **fields)
    assert refused(config) == line


@pytest.mark.parametrize(
    "fields, line",
    [
        (
            {"cross_attention": T2R(num_features=0)},
            "model.cross_attention.num_features: given 0, allowed: an integer of at least 1",
        ),
        (
            {"feed_forward": ProductKey()},
            "model.feed_forward: given 'ProductKey', allowed: Dense in a translation model",
        ),
        ({"attention": LSTM()}, "model.attention: given 'LSTM', allowed: an attention in a translation model"),
        ({"label_smoothing": 1.0}, "model.label_smoothing: given 1.0, allowed: a share in [0, 1)"),
        ({"output": AdaptiveSoftmax()}, "model.output: given 'AdaptiveSoftmax', allowed: Softmax"),
        (
            {"memory_tokens": MemoryTokens(num_tokens=0, kind="bottleneck")},
            "model.memory_tokens.num_tokens: given 0, allowed: 1 or more for 'bottleneck'",
        ),
        (
            {"memory_tokens": MemoryTokens(num_tokens=0, decoder_reads="memory")},
            "model.memory_tokens.num_tokens: given 0, allowed: 1 or more for decoder_reads = 'memory'",
        ),
    ],
)
def test_a_wrong_translation_model_gets_one_line(fields, line):
    data = Data(source=NumberWords())
    validate(Config(model=EncoderDecoder(), data=data))
    assert refused(Config(model=assigned(EncoderDecoder(), **fields), data=data)) == line


def test_a_translation_model_and_sentence_pairs_belong_together():
    with pytest.raises(ValueError, match="data.source: given 'NumberWords', allowed: texts, where model is no Enc"):
        validate(Config(data=Data(source=NumberWords())))
    with pytest.raises(ValueError, match="data.source: given 'PythonLibrary', allowed: ParallelText, TfdsTransl"):
        validate(Config(model=EncoderDecoder()))
    with pytest.raises(ValueError, match="data.protocol: given 'contiguous', allowed: 'separate' for sentence pairs"):
        validate(Config(model=EncoderDecoder(), data=Data(source=NumberWords(), protocol="contiguous")))


@pytest.mark.parametrize("attention", (MemSizer(), LSTM()), ids=lambda part: type(part).__name__)
def test_gradients_of_recurrent_states_cross_segments(attention):
    config = Config(model=Model(attention=attention))
    config.training.segments_per_update = 4
    assert warnings(config) == []
    config.model.attention = FullAttention()
    assert len(warnings(config)) == 1


@pytest.mark.parametrize(
    "output, cache, line",
    [
        (Spalm(num_neighbors=0), {}, "model.output.num_neighbors: given 0, allowed: 1 or more"),
        (Spalm(neighbor_dropout=1.0), {}, "model.output.neighbor_dropout: given 1.0, allowed: a rate in [0, 1)"),
        (Spalm(gate_bins=-1), {}, "model.output.gate_bins: given -1, allowed: 0 (the mean only) or more"),
        (
            Spalm(softmax=AdaptiveSoftmax(cutoffs=())),
            {},
            "model.output.softmax.cutoffs: given (), allowed: positive ids in ascending order, at least one",
        ),
        (
            assigned(Spalm(), gate="wide"),
            {},
            "model.output.gate: given 'wide', allowed: one of 'scalar', 'vector'",
        ),
        (
            Softmax(),
            {"memory_length": -1},
            "evaluation.cache.memory_length: given -1, allowed: 0 (no cache) or more tokens",
        ),
        (
            Softmax(),
            {"interpolation_weight": 1.5},
            "evaluation.cache.interpolation_weight: given 1.5, allowed: a share from 0 to 1",
        ),
        (
            Spalm(softmax=AdaptiveSoftmax()),
            {"interpolation": "global"},
            "evaluation.cache.interpolation: given 'global', "
            "allowed: 'linear' with AdaptiveSoftmax (it has no single softmax)",
        ),
    ],
)
def test_memories_at_the_output_get_one_line(output, cache, line):
    config = Config(model=Model(output=output))
    assigned(config.evaluation.cache, **cache)
    assert refused(config) == line


def test_the_softmax_of_an_output():
    softmax = AdaptiveSoftmax()
    assert softmax.softmax is softmax and Spalm(softmax=softmax).softmax is softmax


def test_a_long_horizon_is_warned_about():
    config = Config(model=Model(attention=Memorizing()))
    assert warnings(config) == []
    config.training.segments_per_update = 4
    (line,) = warnings(config)
    assert "training.segments_per_update = 4: Memorizing stops gradients between segments" in line
    config.training.burn_in_segments = 3
    assert warnings(config) == []


def test_a_compression_that_cannot_learn_is_warned_about():
    config = Config(model=Model(attention=Compressive(compression_loss="none")))
    (line,) = warnings(config)
    assert line.startswith(
        "training.segments_per_update = 1: with model.attention.compression_loss = 'none' the compression"
    )
    config.training.segments_per_update = 2
    assert warnings(config) == []
    for attention in (
        Compressive(),
        Compressive(compression_loss="none", compression="mean"),
        Compressive(compression_loss="none", compressed_memory_length=0),
        Compressive(compression_loss="none", memory_length=0),
    ):
        config.model.attention = attention
        (line,) = warnings(config)
        assert "training.segments_per_update = 2: Compressive stops gradients between segments" in line
        config.training.segments_per_update = 1
        assert warnings(config) == []
        config.training.segments_per_update = 2


def test_windows_across_segments_are_warned_about():
    config = Config(model=Model(attention=Compressive(compression_rate=3)))
    (line,) = warnings(config)
    assert line.startswith("data.segment_length = 128: not a multiple of model.attention.compression_rate = 3")


def test_a_memory_that_is_shorter_than_the_segment_is_warned_about():
    config = Config(model=Model(attention=Compressive(memory_length=64)))
    (line,) = warnings(config)
    assert line.startswith("model.attention.memory_length = 64: shorter than data.segment_length = 128, so part of a")
    config.data.segment_length = 64
    assert warnings(config) == []


@pytest.mark.parametrize(
    "fields, line",
    [
        ({"num_slots": -1}, "model.num_slots: given -1, allowed: 0 or more"),
        ({"retain_bias": -1.0}, "model.retain_bias: given -1.0, allowed: 0 (none, as published) or more"),
        (
            {"dim": 15, "num_heads": 1},
            "model.dim: given 15, allowed: an even number (sines and cosines of model.segment_positions)",
        ),
        ({"temperature": 0.0}, "model.temperature: given 0.0, allowed: above 0"),
        ({"output": AdaptiveSoftmax()}, "model.output: given 'AdaptiveSoftmax', allowed: Softmax"),
    ],
)
def test_a_memformer_that_cannot_be_is_refused(fields, line):
    assert refused(Config(model=Memformer(**fields))) == line


def test_a_memformer_wants_a_time_horizon():
    config = Config(model=Memformer())
    assert [line.partition(":")[0] for line in warnings(config)] == ["training.segments_per_update = 1"]
    config.training.segments_per_update = 4
    assert warnings(config) == []
    config.model = Memformer(num_slots=0)
    assert [line.partition(":")[0] for line in warnings(config)] == ["training.segments_per_update = 4"]


def encoder(task, source=None, *, data=None, evaluation=None, **attention) -> Config:
    """A valid configuration of a text encoder, but for what is given."""
    sources = {Classification: Glue(), QuestionAnswering: Squad(), MaskedLanguageModeling: TextFiles()}
    given = {"source": source or sources[type(task)], "tokenizer": WordPiece(), "segment_length": 128, **(data or {})}
    config = Config(task=task, model=Model(attention=Bidirectional(**attention)), data=Data(**given))
    for name, value in (evaluation or {}).items():
        setattr(config.evaluation, name, value)
    return config


@pytest.mark.parametrize(
    "inside, outside, line",
    [
        (
            encoder(MaskedLanguageModeling(), data={"segment_length": 3}),
            encoder(MaskedLanguageModeling(), data={"segment_length": 2}),
            "data.segment_length: given 2, allowed: 3 or more tokens",
        ),
        (
            encoder(Classification(), num_positions=128),
            encoder(Classification(), num_positions=127),
            "data.segment_length: given 128, allowed: at most model.attention.num_positions = 127: a segment is a text",
        ),
        (
            encoder(Classification(), Templates()),
            encoder(MaskedLanguageModeling(), Templates()),
            "data.source: given 'Templates', allowed: a source of texts (MaskedLanguageModeling)",
        ),
        (
            encoder(QuestionAnswering(stride=61)),
            encoder(QuestionAnswering(stride=62)),
            "task.stride: given 62, allowed: at most 61: windows must not leave gaps",
        ),
        (
            encoder(MaskedLanguageModeling(), data={"protocol": "contiguous"}, num_token_types=0, pooler=False),
            encoder(MaskedLanguageModeling(), data={"protocol": "contiguous"}, num_token_types=-1, pooler=False),
            "model.attention.num_token_types: given -1, allowed: 0 (none) or more",
        ),
    ],
)
def test_a_task_of_a_text_encoder_is_valid_up_to_its_border(inside, outside, line):
    validate(inside)
    assert refused(outside) == line


@pytest.mark.parametrize(
    "config, line",
    [
        (
            Config(model=Model(attention=Bidirectional())),
            "model.attention: given 'Bidirectional', allowed: a decoder's; with Bidirectional set task to "
            "MaskedLanguageModeling or another one of a text encoder",
        ),
        (Config(data=Data(source=Glue())), "data.source: given 'Glue', allowed: a source of documents"),
        (
            Config(task=MaskedLanguageModeling()),
            "model.attention: given 'FullAttention', allowed: Bidirectional (MaskedLanguageModeling)",
        ),
        (
            encoder(Classification(), data={"segment_length": 129}, num_positions=128),
            "data.segment_length: given 129, allowed: at most model.attention.num_positions = 128: a segment is a text",
        ),
        (
            encoder(Classification(), num_positions=0),
            "model.attention.num_positions: given 0, allowed: 1 or more tokens",
        ),
        (
            encoder(Classification(), num_token_types=-1),
            "model.attention.num_token_types: given -1, allowed: 0 (none) or more",
        ),
        (
            encoder(Classification(), data={"tokenizer": Data().tokenizer}),
            "data.tokenizer: given 'SentencePiece', allowed: WordPiece or BytePairs",
        ),
        (
            encoder(Classification(), Squad()),
            "data.source: given 'Squad', allowed: Glue or TextClasses or CLBenchmark or TfdsClasses or SeqioClasses or "
            "LabelledFile or Templates or RelationFiles or Tacred or SyntheticRelations (Classification)",
        ),
        (
            encoder(QuestionAnswering(), Glue()),
            "data.source: given 'Glue', allowed: Squad or TriviaQa or Quac or QaSrl or Templates (QuestionAnswering)",
        ),
        (
            encoder(MaskedLanguageModeling(), KeyValueRecall()),
            "data.source: given 'KeyValueRecall', allowed: a source of texts (MaskedLanguageModeling)",
        ),
        (
            encoder(Classification(), data={"protocol": "contiguous"}),
            "data.protocol: given 'contiguous', allowed: 'separate' (Classification)",
        ),
        (
            encoder(Classification(), evaluation={"protocol": "sliding_window"}),
            "evaluation.protocol: given 'sliding_window', allowed: '' (Classification)",
        ),
        (
            encoder(Classification(), evaluation={"cache": ContinuousCache(memory_length=4)}),
            "evaluation.cache.memory_length: given 4, allowed: 0",
        ),
        (encoder(Classification(num_classes=1)), "task.num_classes: given 1, allowed: 2 or more"),
        (encoder(MaskedLanguageModeling(mask_rate=0.0)), "task.mask_rate: given 0.0, allowed: a share between 0 and 1"),
        (
            encoder(MaskedLanguageModeling(mask_token_fraction=0.8, random_token_fraction=0.3)),
            "task.random_token_fraction: given 0.3, allowed: at most 1 - masked = 0.2",
        ),
        (
            encoder(QuestionAnswering(), data={"segment_length": 128}),
            "task.stride: given 128, allowed: at most 61: windows must not leave gaps",
        ),
        (
            encoder(QuestionAnswering(max_question_length=126)),
            "task.max_question_length: given 126, allowed: less than data.segment_length - 3",
        ),
        (
            encoder(QuestionAnswering(stride=8, answers_in_context_only=True), num_token_types=0),
            "model.attention.num_token_types: given 0, allowed: 1 or more, which tell question and text apart",
        ),
        (
            encoder(QuestionAnswering(stride=8), Squad(part=2, parts=2)),
            "data.source.part: given 2, allowed: below data.source.parts = 2",
        ),
        (
            encoder(QuestionAnswering(stride=8), QaSrl(data_dir="there")),
            "data.source.data_dir: given 'there', allowed: '' (QaSrl has files alone)",
        ),
    ],
)
def test_a_task_that_does_not_fit_gets_one_line(config, line):
    assert refused(config) == line


@pytest.mark.parametrize("num_layers", [1, 2, 3, 4, 6])
def test_defaults_are_for_models_of_any_depth(num_layers):
    """A long memory in the fourth layer from the end, a value table in the second, where there are so many."""
    memory, tables = Memorizing(), ProductKey()
    validate(Config(model=Model(num_layers=num_layers, attention=memory, feed_forward=tables)))
    assert memory.chosen_layers(num_layers) == (-min(4, num_layers),)
    assert tables.chosen_layers(num_layers) == (-min(2, num_layers),)
    assert Memorizing(layers_with_memory=(0, -1)).chosen_layers(num_layers) == (0, -1)
