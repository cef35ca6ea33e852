"""Memorizing Transformer on the Python sources of the running interpreter, the default config.

    make run                                            # trains `default` and `cache_only` and compares them
    memjax train --config memorizing_python             # this config alone

Paper: Wu, Rabe, Hutchins and Szegedy, "Memorizing Transformers", ICLR 2022, https://arxiv.org/abs/2203.08913.
Paper's number: none on this corpus. On GitHub code (200M parameters, segment 512, token-level perplexity) a cache of
  512 alone gives 2.26 and a memory of 8,192 with it 2.03.
Our number: not run at this size; smaller, tools/results/tables/memory_gain.md.
Hardware: 2 CPU cores.

Where the values come from
  paper       one memory layer near the top, gate per head, keys and queries normalised with a learned scale, T5
              position bias (32 buckets up to 128), memory written after it is read, gradients stopped
  ours        what makes minutes enough, as in configs/memory_gain.py, which trains longer: 3 layers, 128 wide, a
              segment and a cache of 32 tokens, 256 tokens an update, a memory of 512 slots in the last layer with 16
              neighbours, the scale of the normalised scores starts at 10, Adam with cosine decay instead of Adafactor
              with 1/sqrt(step) (500,000 steps there), SentencePiece 4,096 instead of 32,000
The corpus depends on the Python version; its SHA-256 and the version are printed with every result.
"""

from memjax.config import (
    Adam,
    Bytes,
    Config,
    Data,
    Dense,
    Evaluation,
    FullAttention,
    Memorizing,
    Model,
    PythonLibrary,
    Schedule,
    SentencePiece,
    Training,
)

VARIANTS = {
    "default": "memory of 512 slots in the last layer, local cache in all",
    "smoke": "seconds: 2 layers, 32 wide, bytes",
    "cache_only": "`default` without the long memory: local cache only",
    "no_memory": "`default` without any memory: each segment alone",
    "bytes": "`default` on UTF-8 bytes",
}


def get_config(variant: str = "default") -> Config:
    """Returns the config of a variant, a key of `VARIANTS`."""
    attention = Memorizing(
        layers_with_memory=(-1,), memory_length=512, num_neighbors=16, cache_length=32, scale_init=10.0
    )
    config = Config(
        name=f"memorizing_python_{variant}",
        model=Model(dim=128, num_layers=3, num_heads=4, attention=attention, feed_forward=Dense(activation="gelu")),
        data=Data(source=PythonLibrary(), tokenizer=SentencePiece(vocab_size=4096), batch_size=8, segment_length=32),
        training=Training(
            steps=6000,
            optimizer=Adam(b2=0.99),
            schedule=Schedule(learning_rate=6e-3, warmup_steps=200, decay="cosine", final_fraction=0.05),
            log_every=200,
            checkpoint_every=1000,
        ),
        evaluation=Evaluation(batch_size=4),
    )
    match variant:
        case "default":
            pass
        case "smoke":
            attention = Memorizing(
                layers_with_memory=(-1,), memory_length=64, num_neighbors=4, cache_length=16, local_window=16
            )
            config.model = Model(dim=32, num_layers=2, num_heads=2, attention=attention)
            config.data = Data(source=PythonLibrary(), tokenizer=Bytes(), batch_size=2, segment_length=16)
            config.training = Training(steps=4, schedule=Schedule(warmup_steps=2), log_every=1)
            config.evaluation = Evaluation(batch_size=2, max_segments=4)
        case "cache_only":
            attention.memory_length = 0
        case "no_memory":
            config.model.attention = FullAttention()
        case "bytes":
            config.data.tokenizer = Bytes()
    return config
