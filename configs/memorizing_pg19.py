"""Memorizing Transformer on PG-19, as the paper trained it.

    memjax data prepare --config memorizing_pg19 --data.cache-dir DIR      # extra `data`; PG-19 is about 11 GB
    memjax train --config memorizing_pg19 --data.cache-dir DIR

Paper: Wu, Rabe, Hutchins and Szegedy, "Memorizing Transformers", ICLR 2022, https://arxiv.org/abs/2203.08913.
Paper's number: token-level perplexity 11.93 (segment 512, memory 8,192, cache 512; cache alone 12.34).
Our number: not run at full size.
Hardware: 32 TPU cores in the paper.

Where the values come from
  paper       12 layers, width 1,024, 8 heads of 128, feed-forward 4,096, memory in the 9th layer, k = 32, segment and
              cache 512, gate, normalised queries and keys, dropout 0.05, Adafactor with 1,000 steps of warm-up, then
              1/sqrt(step), factor 1.0 (so that the peak is 1/sqrt(1000) = 0.0316), 500,000 steps of 2^17 tokens
              (256 documents of 512 tokens), SentencePiece of 32,000
  authors' code   bfloat16 activations and memory, feed-forward without bias, layers of the memory (-4,)
  ours        the initial scale of query-key norm (sqrt(head_dim); 1.0 in the authors' code)
"""

from memjax.config import (
    Adafactor,
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
    TfdsBuilder,
    Training,
)

VARIANTS = {
    "default": "the paper's 200M model with a memory of 8,192",
    "memory_65k": "fine-tuning to a memory of 65,536: 20,000 steps from `--training.init-from RUN` of the default",
    "cache_only": "the paper's baseline without the long memory",
    "smoke": "seconds: 2 layers, 32 wide, bytes of Python sources, no TensorFlow",
}


def get_config(variant: str = "default") -> Config:
    """Returns the config of a variant, a key of `VARIANTS`."""
    attention = Memorizing(layers_with_memory=(-4,), memory_length=8192, num_neighbors=32, cache_length=512)
    config = Config(
        name=f"memorizing_pg19_{variant}",
        model=Model(
            dim=1024,
            num_layers=12,
            num_heads=8,
            head_dim=128,
            dropout=0.05,
            attention_dropout=0.05,
            compute_dtype="bfloat16",
            memory_dtype="bfloat16",
            attention=attention,
            feed_forward=Dense(dim=4096, activation="relu", bias=False),
        ),
        data=Data(
            source=TfdsBuilder(name="pg19", field="book_text"),
            tokenizer=SentencePiece(vocab_size=32000),
            batch_size=256,
            segment_length=512,
        ),
        training=Training(
            steps=500_000,
            optimizer=Adafactor(decay_rate=0.8, momentum=0.9),
            schedule=Schedule(learning_rate=1000**-0.5, warmup_steps=1000, decay="rsqrt"),
            clip_norm=0.0,
            log_every=100,
            checkpoint_every=5000,
            evaluate_every=10_000,
        ),
        evaluation=Evaluation(batch_size=50),
    )
    match variant:
        case "default":
            pass
        case "memory_65k":
            attention.memory_length = 65_536
            config.training.steps = 20_000
        case "cache_only":
            attention.memory_length = 0
        case "smoke":
            attention = Memorizing(layers_with_memory=(-1,), memory_length=64, num_neighbors=4, cache_length=16)
            config.model = Model(dim=32, num_layers=2, num_heads=2, attention=attention, compute_dtype="bfloat16")
            config.data = Data(source=PythonLibrary(), tokenizer=Bytes(), batch_size=2, segment_length=16)
            rsqrt = Schedule(learning_rate=0.01, warmup_steps=2, decay="rsqrt")
            config.training = Training(steps=4, optimizer=Adafactor(momentum=0.9), schedule=rsqrt, log_every=1)
            config.evaluation = Evaluation(batch_size=2, max_segments=4)
    return config
