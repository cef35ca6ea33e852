"""Memorizing Transformers for TPU slices: 200 million to 8 billion parameters with a memory of 65,536.

    memjax plan --config memorizing_scale --topology v5e:4x4
    memjax plan --config memorizing_scale --variant 8b --topology v5p-128
    memjax train --config memorizing_scale --data.cache-dir DIR      # extra `data`; PG-19 is about 11 GB

Paper: Wu, Rabe, Hutchins and Szegedy, "Memorizing Transformers", ICLR 2022, https://arxiv.org/abs/2203.08913.
Paper's number: none for these settings (200M and 8B parameters were trained with other optimizers, rows and hardware;
  see memorizing_pg19).
Our number: not run. tools/results/tables/plans.md has the memory and time of each variant on slices (`memjax plan`).
Hardware: none; planned for v5e, v5p and v6e.

Where the values come from
  paper       200m: 12 layers, width 1,024, 8 heads of 128, feed-forward 4,096, memory in the 9th layer, k = 32, segment
              and cache 512; 1,000 steps of warm-up, then 1/sqrt(step); SentencePiece of 32,000
  authors' code   bfloat16 activations and memory, feed-forward without bias
  ours        Adam, whose state is the largest that a plan has to find room for; the sizes of the others (1b: 24 layers,
              width 2,048, 16 heads, feed-forward 8,192; 8b: 32 layers, width 4,096, 32 heads, gated feed-forward of
              14,336), the memory in the layer at three quarters of the depth; rows and sharding; approximate search,
              since the exact one sorts all scores on a TPU; no dropout
"""

from memjax.config import (
    Adam,
    Bytes,
    Config,
    Data,
    Dense,
    Evaluation,
    Memorizing,
    Model,
    PythonLibrary,
    Schedule,
    SentencePiece,
    Sharding,
    TfdsBuilder,
    Training,
)

VARIANTS = {
    "default": "200M parameters: 64 rows, for 16 small chips",
    "200m": "another name of `default`",
    "1b": "1.3 billion parameters, split over 16 devices: 256 rows",
    "8b": "7.9 billion parameters, split over 32 devices: 256 rows",
    "smoke": "seconds: 2 layers, 32 wide, bytes of Python sources, no TensorFlow",
}


def get_config(variant: str = "default") -> Config:
    """Returns the config of a variant, a key of `VARIANTS`."""
    attention = Memorizing(
        layers_with_memory=(8,), memory_length=65_536, num_neighbors=32, cache_length=512, retrieval="approximate"
    )
    config = Config(
        name=f"memorizing_scale_{variant}",
        model=Model(
            dim=1024,
            num_layers=12,
            num_heads=8,
            head_dim=128,
            compute_dtype="bfloat16",
            memory_dtype="bfloat16",
            attention=attention,
            feed_forward=Dense(dim=4096, activation="relu", bias=False),
        ),
        data=Data(
            source=TfdsBuilder(name="pg19", field="book_text"),
            tokenizer=SentencePiece(vocab_size=32000),
            batch_size=64,
            segment_length=512,
        ),
        training=Training(
            steps=500_000,
            optimizer=Adam(b2=0.95),
            schedule=Schedule(learning_rate=3e-4, warmup_steps=1000, decay="rsqrt"),
            log_every=100,
            checkpoint_every=5000,
            evaluate_every=10_000,
        ),
        evaluation=Evaluation(batch_size=64),
        # Parameters and moments over all chips: of so few rows a chip, they would be most of the traffic of its HBM.
        sharding=Sharding(data=1, fsdp=0),
    )
    match variant:
        case "default" | "200m":
            pass
        case "1b":
            attention.layers_with_memory = (17,)
            _enlarge(config, layers=24, heads=16, hidden=8192)
            config.sharding = Sharding(fsdp=16)
        case "8b":
            attention.layers_with_memory = (23,)
            _enlarge(config, layers=32, heads=32, hidden=14_336)
            config.model.feed_forward.activation = "swiglu"
            config.sharding = Sharding(fsdp=32)
        case "smoke":
            attention = Memorizing(
                layers_with_memory=(-1,), memory_length=64, num_neighbors=4, cache_length=16, retrieval="approximate"
            )
            config.model = Model(dim=32, num_layers=2, num_heads=2, attention=attention, compute_dtype="bfloat16")
            config.data = Data(source=PythonLibrary(), tokenizer=Bytes(), batch_size=2, segment_length=16)
            rsqrt = Schedule(learning_rate=0.01, warmup_steps=2, decay="rsqrt")
            config.training = Training(steps=4, schedule=rsqrt, log_every=1)
            config.evaluation, config.sharding = Evaluation(batch_size=2, max_segments=4), Sharding()
    return config


def _enlarge(config: Config, *, layers: int, heads: int, hidden: int) -> None:
    """Enlarges a model, with heads of 128."""
    model = config.model
    model.num_layers, model.num_heads, model.dim = layers, heads, 128 * heads
    model.feed_forward.dim = hidden
    config.training.remat = "per_layer"
    config.data.batch_size = config.evaluation.batch_size = 256
