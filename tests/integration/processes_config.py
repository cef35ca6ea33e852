"""A run that several processes train in seconds."""

from memjax import config as configs


def get_config(variant: str = "") -> configs.Config:
    del variant
    attention = configs.Memorizing(layers_with_memory=(1,), memory_length=16, num_neighbors=4, cache_length=8)
    source = configs.KeyValueRecall(num_documents=32, filler_length=8, num_pairs=2)
    return configs.Config(
        name="run",
        model=configs.Model(dim=16, num_layers=2, num_heads=8, head_dim=8, attention=attention),
        data=configs.Data(source=source, batch_size=8, segment_length=8),
        training=configs.Training(steps=8, log_every=1, checkpoint_every=3, evaluate_every=4),
        evaluation=configs.Evaluation(batch_size=8),
        sharding=configs.Sharding(fsdp=2, process_timeout=15),
    )
