"""Product-key memories in a small decoder on the Python sources of the running interpreter, beside deeper models.

    memjax train --config product_key_python
    memjax train --config product_key_python --variant residual                     # memory beside the network (ResM)
    memjax train --config product_key_python --variant dense                        # no memory
    memjax usage --run runs/product_key_python_default                              # how many slots are in use

Papers: Lample, Sablayrolles, Ranzato, Denoyer and Jégou, "Large Memory Layers with Product Keys", NeurIPS 2019,
https://arxiv.org/abs/1907.05242. Kim and Jung, "Large Product Key Memory for Pretrained Language Models", 2020,
https://arxiv.org/abs/2010.03881 (`residual`).
Paper's number: none on this corpus. On news text, by the paper, 12 layers with one memory have a lower perplexity than
24 without.
Our number: 600 steps (`python -m tools.results run product_key_python`): tools/results/tables/product_key_python.md.
In these runs, of one seed a row, queries that are normalised over the batch use the most slots, as in the paper.
Hardware: 2 CPU cores.

Where the values come from
  paper       4 heads, batch normalisation of queries, a linear query network, values updated by sparse Adam at a
              constant 1e-3 without decay, the memory in the last layer but one (of 6 the 4th or 5th was best)
  ours        the size, the tokenizer, the learning rate; 128 sub-keys (16,384 slots) and 16 neighbours instead of 512
              and 32, since the corpus is small; queries of 64; two and three memories are spread over the layers
"""

from memjax.config import (
    Bytes,
    Config,
    Data,
    Dense,
    Evaluation,
    Model,
    ProductKey,
    PythonLibrary,
    Schedule,
    SentencePiece,
    Training,
)

VARIANTS = {
    "default": "one memory of 16,384 slots instead of a feed-forward network, in 4 layers",
    "dense": "4 layers without a memory",
    "deeper": "8 layers without a memory",
    "two": "two memories in 4 layers",
    "three": "three memories in 4 layers",
    "residual": "one memory beside the feed-forward network",
    "large": "one memory of 262,144 slots, updated row by row",
    "layer_norm": "queries normalised by layer norm, without the other tokens of the batch",
    "smoke": "seconds: 2 layers, 32 wide, bytes",
}


def get_config(variant: str = "default") -> Config:
    """Returns the config of a variant, a key of `VARIANTS`."""
    memory = ProductKey(activation="gelu", layers=(-2,), num_keys=128, num_neighbors=16, key_dim=64)
    config = Config(
        name=f"product_key_python_{variant}",
        model=Model(dim=192, num_layers=4, num_heads=4, feed_forward=memory),
        data=Data(source=PythonLibrary(), tokenizer=SentencePiece(vocab_size=4096), batch_size=8, segment_length=128),
        training=Training(
            steps=2000,
            schedule=Schedule(learning_rate=2e-3, warmup_steps=100, decay="cosine", final_fraction=0.05),
        ),
        evaluation=Evaluation(batch_size=8),
    )
    match variant:
        case "default":
            pass
        case "dense":
            config.model.feed_forward = Dense(activation="gelu")
        case "deeper":
            config.model.feed_forward = Dense(activation="gelu")
            config.model.num_layers = 8
        case "two":
            memory.layers = (0, 2)
        case "three":
            memory.layers = (0, 1, 2)
        case "residual":
            memory.dense_scale = 1.0
        case "large":
            memory.num_keys = 512
            config.training.value_table_optimizer.form = "lazy"
        case "layer_norm":
            memory.query_norm = "layer"
        case "smoke":
            memory = ProductKey(layers=(-1,), num_keys=16, memory_heads=2, num_neighbors=4, key_dim=16)
            config.model = Model(dim=32, num_layers=2, num_heads=2, feed_forward=memory)
            config.data = Data(source=PythonLibrary(), tokenizer=Bytes(), batch_size=2, segment_length=16)
            config.training = Training(steps=4, schedule=Schedule(warmup_steps=2), log_every=1)
            config.evaluation = Evaluation(batch_size=2, max_segments=4)
    return config
