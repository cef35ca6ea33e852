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
  memorizing_scale   the data, segments of 512, bfloat16 activations and memory, Adam, and the text of `smoke`
  ours        memory and rows; adapters of rank 16 in all matrices of the layers; what the mesh splits
"""

from memjax.config import (
    BytePairs,
    Config,
    Dense,
    LoRA,
    Model,
    Rotary,
    RotaryPositions,
    Schedule,
    Sharding,
    Softmax,
)
from memjax.settings.overrides import load_config

VARIANTS = {
    "default": "adapters of rank 16, the model frozen: 8 rows",
    "full": "the whole model is trained, heads split over 2 devices: 8 rows",
    "smoke": "seconds: 2 layers, 32 wide, adapters, bytes of Python sources",
}


def get_config(variant: str = "default") -> Config:
    """Returns the config of a variant, a key of `VARIANTS`."""
    is_small = variant == "smoke"
    config = load_config("memorizing_scale", "smoke" if is_small else "default")
    config.name = f"llama_scale_{variant}"
    config.model = Model(
        dim=4096,
        num_layers=32,
        num_heads=32,
        scale_embeddings=False,
        compute_dtype="bfloat16",
        memory_dtype="bfloat16",
        attention=Rotary(memory_length=65_536, key_heads=8, rotary=RotaryPositions(theta=500_000.0)),
        feed_forward=Dense(dim=14_336, activation="swiglu", bias=False),
        output=Softmax(tied=False, bias=False),
    )
    config.training.lora = LoRA() if variant == "full" else LoRA(rank=16, alpha=32.0)
    if is_small:
        config.model.dim, config.model.num_layers, config.model.num_heads = 32, 2, 4
        config.model.attention.memory_length, config.model.attention.key_heads = 32, 2
        config.model.feed_forward.dim = 48
        return config
    config.data.tokenizer = BytePairs(vocab_size=128_256)
    config.data.batch_size = config.evaluation.batch_size = 8
    config.training.steps, config.training.remat = 10_000, "per_layer"
    config.training.schedule = Schedule(learning_rate=1e-4, warmup_steps=100, decay="cosine")
    config.training.log_every, config.training.checkpoint_every, config.training.evaluate_every = 10, 500, 1000
    config.sharding = Sharding(data=1, fsdp=0)
    if variant == "full":
        config.training.schedule.learning_rate = 1e-5
        config.sharding.model = 2
    return config
