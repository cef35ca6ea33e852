"""Memorizing Transformer on the Python sources of the running interpreter: the default experiment.

    make run                                            # trains `default` and `cache_only` and compares them
    memjax train --config memorizing_python             # this config alone

Paper: Wu, Rabe, Hutchins and Szegedy, "Memorizing Transformers", ICLR 2022, https://arxiv.org/abs/2203.08913.
Paper's number: none on this corpus. On GitHub code (200M parameters, segment 512, token-level perplexity) a cache of
  512 alone gives 2.26 and a memory of 8,192 with it 2.03.
Our number: see tools/results/README.md.
Hardware: 2 CPU cores.

Where the values come from
  paper       one memory layer near the top, gate per head, keys and queries normalised with a learned scale, T5
              position bias (32 buckets up to 128), k = 32, memory written after it is read, gradients stopped
  ours        the size (4 layers, 192 wide, memory 4,096), a short segment and window (64 tokens: a memory is needed
              earlier where the window is short), memory in the last layer, the scale of the normalised scores starts
              at 10, Adam with cosine decay instead of Adafactor with 1/sqrt(step) (500,000 steps there, minutes here),
              SentencePiece 4,096 instead of 32,000
The corpus depends on the Python version; its SHA-256 and the version are printed with every result.
"""

from memjax.config import (
    Adam,
    Bytes,
    Config,
    Data,
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
    "default": "memory of 4,096 slots in one layer, local cache in all",
    "smoke": "seconds: 2 layers, 32 wide, bytes",
    "cache_only": "the same without the long memory: local cache only",
    "no_memory": "the same without any memory: each segment alone",
    "bytes": "the default on UTF-8 bytes",
}


def get_config(variant: str = "default") -> Config:
    """The experiment; `variant` is a key of `VARIANTS`."""
    attention = Memorizing(
        layers=(-1,), memory_length=4096, num_neighbors=32, cache_length=64, window=64, scale_init=10.0
    )
    config = Config(
        name=f"memorizing_python_{variant}",
        model=Model(dim=192, num_layers=4, num_heads=4, attention=attention),
        data=Data(source=PythonLibrary(), tokenizer=SentencePiece(vocab_size=4096), rows=16, segment_length=64),
        training=Training(
            steps=800,
            optimizer=Adam(b2=0.98),
            schedule=Schedule(learning_rate=2e-3, warmup_steps=100, decay="cosine", final_fraction=0.05),
        ),
        evaluation=Evaluation(rows=4),
    )
    match variant:
        case "default":
            pass
        case "smoke":
            attention = Memorizing(layers=(-1,), memory_length=64, num_neighbors=4, cache_length=16, window=16)
            config.model = Model(dim=32, num_layers=2, num_heads=2, attention=attention)
            config.data = Data(source=PythonLibrary(), tokenizer=Bytes(), rows=2, segment_length=16)
            config.training = Training(steps=4, schedule=Schedule(warmup_steps=2), log_every=1)
            config.evaluation = Evaluation(rows=2, max_segments=4)
        case "cache_only":
            attention.memory_length = 0
        case "no_memory":
            config.model.attention = FullAttention()
        case "bytes":
            config.data.tokenizer = Bytes()
        case _:
            raise ValueError(f"variant: given {variant!r}, allowed: {', '.join(VARIANTS)}")
    return config
