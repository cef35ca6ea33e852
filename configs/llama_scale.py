"""Llama 3 8B with a memory of 8,192 to 65,536 tokens on TPU slices: adapters of the frozen model, or the whole model.

    memjax plan --config llama_scale --topology v5p:2x2x1,v6e:2x4 --sweep memory_length=8192,65536
    memjax plan --config llama_scale --variant full --topology v5p:2x2x1,v6e:4x4 --sweep memory_length=8192,65536
    memjax import Meta-Llama-3-8B runs/llama3                      # then: memjax train --config llama_scale \\
        --training.init-from runs/llama3 --data.cache-dir DIR      # extra `data`; PG-19 is about 11 GB

Paper: Dubey et al., "The Llama 3 Herd of Models", 2024, https://arxiv.org/abs/2407.21783 (the model); Hu et al.,
  "LoRA", ICLR 2022, https://arxiv.org/abs/2106.09685 (the adapters).
Paper's number: none for these settings.
Our number: not run. tools/results/tables/plans.md has the memory and time of each variant on slices (`memjax plan`).
Hardware: none; planned for v5p and v6e.

Where the values come from
  paper       32 layers, width 4,096, 32 heads of 128, 8 heads of keys and values, gated feed-forward of 14,336, theta
              500,000, vocabulary of 128,256, not tied
  ours        bfloat16 activations and memory; memory, segment and rows; adapters of rank 16 in all matrices of the
              layers; Adam; what the mesh splits
"""

from memjax.config import (
    Adam,
    BytePairs,
    Bytes,
    Config,
    Data,
    Dense,
    Evaluation,
    LoRA,
    Model,
    PythonLibrary,
    Rotary,
    RotaryPositions,
    Schedule,
    Sharding,
    Softmax,
    TfdsBuilder,
    Training,
)

VARIANTS = {
    "default": "adapters of rank 16, the model frozen: 8 rows",
    "full": "the whole model is trained, heads split over 2 devices: 8 rows",
    "smoke": "seconds: 2 layers, 32 wide, adapters, bytes of Python sources",
}


def get_config(variant: str = "default") -> Config:
    """Returns the config of a variant, a key of `VARIANTS`."""
    config = Config(
        name=f"llama_scale_{variant}",
        model=Model(
            dim=4096,
            num_layers=32,
            num_heads=32,
            scale_embeddings=False,
            compute_dtype="bfloat16",
            memory_dtype="bfloat16",
            attention=Rotary(memory_length=65_536, key_heads=8, rotary=RotaryPositions(theta=500_000.0)),
            feed_forward=Dense(dim=14_336, activation="swiglu", bias=False),
            output=Softmax(tied=False, bias=False),
        ),
        data=Data(
            source=TfdsBuilder(name="pg19", field="book_text"),
            tokenizer=BytePairs(vocab_size=128_256),
            batch_size=8,
            segment_length=512,
        ),
        training=Training(
            steps=10_000,
            optimizer=Adam(b2=0.95),
            schedule=Schedule(learning_rate=1e-4, warmup_steps=100, decay="cosine"),
            lora=LoRA(rank=16, alpha=32.0),
            remat="per_layer",
            log_every=10,
            checkpoint_every=500,
            evaluate_every=1000,
        ),
        evaluation=Evaluation(batch_size=8),
        sharding=Sharding(data=1, fsdp=0),
    )
    match variant:
        case "default":
            pass
        case "full":
            config.training.lora = LoRA()
            config.training.schedule.learning_rate = 1e-5
            config.sharding.model = 2
        case "smoke":
            config.model.dim, config.model.num_layers, config.model.num_heads = 32, 2, 4
            config.model.attention = Rotary(memory_length=32, key_heads=2, rotary=RotaryPositions(theta=500_000.0))
            config.model.feed_forward.dim = 48
            config.data = Data(source=PythonLibrary(), tokenizer=Bytes(), batch_size=2, segment_length=16)
            config.training.steps, config.training.log_every = 4, 1
            config.training.schedule = Schedule(learning_rate=0.01, warmup_steps=2)
            config.evaluation = Evaluation(batch_size=2, max_segments=4)
            config.sharding = Sharding()
    return config
