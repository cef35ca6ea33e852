"""Synthetic documents that define keys and values and ask for the values many segments later.

    memjax train --config key_value_recall                       # with a memory: nearly all answers right
    memjax train --config key_value_recall --variant cache_only  # with its local cache: chance

The document: pairs (key, value), filler longer than the local window of all layers together, then every key again; the
value after it is the answer. Only what the memory kept can tell it, so the accuracy says whether a memory is used.

Paper: none; the task is ours, after the associative recall of the memory literature.
Our number: see tools/results/README.md.
Hardware: 2 CPU cores, about a minute.
"""

from memjax.config import Config, Data, Evaluation, KeyValueRecall, Memorizing, Model, Schedule, Training

VARIANTS = {
    "default": "memory of 512 slots",
    "cache_only": "the same without the long memory: local cache only",
    "smoke": "seconds: a few short documents",
}


def get_config(variant: str = "default") -> Config:
    """The experiment; `variant` is a key of `VARIANTS`."""
    attention = Memorizing(layers=(0,), memory_length=512, num_neighbors=8, cache_length=32, window=32)
    config = Config(
        name=f"key_value_recall_{variant}",
        model=Model(dim=64, num_layers=2, num_heads=2, attention=attention),
        data=Data(source=KeyValueRecall(), rows=16, segment_length=32),
        training=Training(steps=1000, schedule=Schedule(learning_rate=3e-3, warmup_steps=50), log_every=100),
        evaluation=Evaluation(rows=16),
    )
    match variant:
        case "default":
            pass
        case "cache_only":
            attention.memory_length = 0
        case "smoke":
            attention.memory_length, attention.num_neighbors, attention.cache_length, attention.window = 64, 4, 8, 8
            config.model.dim = 16
            config.data = Data(
                source=KeyValueRecall(num_pairs=4, num_keys=8, num_values=8, filler_length=16, num_documents=32),
                rows=2,
                segment_length=8,
            )
            config.training = Training(steps=4, schedule=Schedule(warmup_steps=2), log_every=1)
            config.evaluation = Evaluation(rows=2, max_segments=4)
        case _:
            raise ValueError(f"variant: given {variant!r}, allowed: {', '.join(VARIANTS)}")
    return config
