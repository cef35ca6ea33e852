"""Compressive Transformer on PG-19, as the paper trained it.

    memjax data prepare --config compressive_pg19 --data.cache-dir DIR      # extra `data`; PG-19 is about 11 GB
    memjax train --config compressive_pg19 --data.cache-dir DIR

Paper: Rae, Potapenko, Jayakumar and Lillicrap, "Compressive Transformers for Long-Range Sequence Modelling",
ICLR 2020, https://arxiv.org/abs/1911.05507.
Paper's number: perplexity per word 43.4 on validation and 33.6 on test (Transformer-XL 45.5 and 36.3), the nats of all
subwords divided by 3,007,061 and 6,966,499 words.
Our number: not run at full size.
Hardware: 256 TPU v3 cores in the paper.

Where the values come from
  paper       36 layers, segment, memory and compressed memory 512, c = 2, convolution, attention-reconstruction loss,
              512 rows, subwords of 32,000, Adam, learning rate up to 3e-4 over 16,000 steps and by a cosine to 1e-6 at
              500,000 (words), gradient norm 0.1; about 100 billion tokens are 381,000 of these steps
  authors' code   relative positions of their own for compressed slots
  ours        width 1,024, 16 heads of 64 and feed-forward 4,096, as on WikiText-103; SentencePiece instead of
              SubwordTextEncoder; no dropout; memory is reset at the beginning of a book
  differs     from step 60,000 on the paper applies the mean gradient of every four steps
  (`training.gradient_accumulation_steps`)
"""

from memjax.config import (
    Bytes,
    Compressive,
    Config,
    Data,
    Dense,
    Evaluation,
    Model,
    PythonLibrary,
    Schedule,
    SentencePiece,
    TfdsBuilder,
    Training,
)

VARIANTS = {
    "default": "36 layers, 640M parameters",
    "transformer_xl": "the paper's baseline: a memory of 1,024, nothing compressed",
    "smoke": "seconds: 2 layers, 32 wide, bytes of Python sources, no TensorFlow",
}


def get_config(variant: str = "default") -> Config:
    """Returns the config of a variant, a key of `VARIANTS`."""
    attention = Compressive(memory_length=512, compressed_memory_length=512, compression_rate=2)
    config = Config(
        name=f"compressive_pg19_{variant}",
        model=Model(
            dim=1024,
            num_layers=36,
            num_heads=16,
            head_dim=64,
            compute_dtype="bfloat16",
            memory_dtype="bfloat16",
            attention=attention,
            feed_forward=Dense(dim=4096),
        ),
        data=Data(
            source=TfdsBuilder(name="pg19", field="book_text"),
            tokenizer=SentencePiece(vocab_size=32_000),
            batch_size=512,
            segment_length=512,
        ),
        training=Training(
            steps=500_000,
            remat="per_layer",
            schedule=Schedule(learning_rate=3e-4, warmup_steps=16_000, decay="cosine", final_fraction=1 / 300),
            clip_norm=0.1,
            log_every=100,
            checkpoint_every=5000,
            evaluate_every=10_000,
        ),
        evaluation=Evaluation(batch_size=50),
    )
    match variant:
        case "default":
            pass
        case "transformer_xl":
            attention.memory_length, attention.compressed_memory_length = 1024, 0
        case "smoke":
            attention = Compressive(memory_length=16, compressed_memory_length=16, compression_rate=2)
            config.model = Model(dim=32, num_layers=2, num_heads=2, attention=attention, compute_dtype="bfloat16")
            config.data = Data(source=PythonLibrary(), tokenizer=Bytes(), batch_size=2, segment_length=16)
            config.training = Training(steps=4, schedule=Schedule(warmup_steps=2), clip_norm=0.1, log_every=1)
            config.evaluation = Evaluation(batch_size=2, max_segments=4)
    return config
