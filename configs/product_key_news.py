"""Product-key memories in large decoders on news, as the paper trained them.

    memjax train --config product_key_news --data.source.path FILE.jsonl
    memjax train --config product_key_news --variant two --data.source.path FILE.jsonl
    memjax plan --config product_key_news --topology v5e:4x4 --sharding.model 4

Paper: Lample, Sablayrolles, Ranzato, Denoyer and Jégou, "Large Memory Layers with Product Keys", NeurIPS 2019,
https://arxiv.org/abs/1907.05242.
Paper's number: by the paper, on held-out Common Crawl news, 12 layers with one memory have a lower perplexity than 24
  without, and are almost twice as fast; the corpus (40 M articles) is not published.
Our number: not run at full size.
Hardware: GPUs in the paper.

Where the values come from
  paper       12, 16 or 24 layers of width 1,024, 16 heads, 262,144 slots (512 sub-keys a half), 4 heads of the memory
              with 32 neighbours each, queries of 512, batch normalisation, memories at regular intervals (6th and 12th
              of 16 layers), vocabulary of 60,000, values updated by sparse Adam at 1e-3
  ours        position of the single memory (8th of 12), T5 positions and pre-norm instead of learned positions and
              post-norm, the schedule, 64 rows of 512 tokens
The articles come from a file of JSON lines, one article each in the field `text`.
"""

from memjax.config import (
    Bytes,
    Config,
    Data,
    Dense,
    Evaluation,
    JsonLines,
    Model,
    ProductKey,
    PythonLibrary,
    Schedule,
    SentencePiece,
    Training,
)

VARIANTS = {
    "default": "12 layers with one memory",
    "two": "16 layers with two memories",
    "dense": "12 layers without memory",
    "deeper": "24 layers without memory",
    "smoke": "seconds: 2 layers, 32 wide, bytes of Python sources",
}


def get_config(variant: str = "default") -> Config:
    """Returns the config of a variant, a key of `VARIANTS`."""
    memory = ProductKey(activation="gelu", layers=(7,), key_dim=512)
    config = Config(
        name=f"product_key_news_{variant}",
        model=Model(dim=1024, num_layers=12, num_heads=16, dropout=0.1, feed_forward=memory),
        data=Data(
            source=JsonLines(path="news.jsonl"),
            tokenizer=SentencePiece(vocab_size=60_000),
            batch_size=64,
            segment_length=512,
        ),
        training=Training(
            steps=500_000,
            schedule=Schedule(learning_rate=2.5e-4, warmup_steps=10_000, decay="rsqrt"),
            remat="per_layer",
            checkpoint_every=5_000,
        ),
        evaluation=Evaluation(batch_size=32),
    )
    match variant:
        case "default":
            pass
        case "two":
            config.model.num_layers, memory.layers = 16, (5, 11)
        case "dense":
            config.model.feed_forward = Dense(activation="gelu")
        case "deeper":
            config.model.feed_forward = Dense(activation="gelu")
            config.model.num_layers = 24
        case "smoke":
            memory = ProductKey(
                layers=(0, 1), num_keys=16, memory_heads=2, num_neighbors=4, key_dim=16, dense_scale=1.0
            )
            config.model = Model(dim=32, num_layers=2, num_heads=2, feed_forward=memory)
            config.data = Data(source=PythonLibrary(), tokenizer=Bytes(), batch_size=2, segment_length=16)
            config.training = Training(steps=4, schedule=Schedule(warmup_steps=2), log_every=1)
            config.evaluation = Evaluation(batch_size=2, max_segments=4)
    return config
