"""A stream of two tasks that several processes train in seconds; a variant for each method."""

from memjax import config as configs

MEMORY = configs.EpisodicMemory(write_policy="all", capacity=64)
VARIANTS = {
    "replay": configs.Replay(memory=MEMORY, mode="sparse", replay_interval=16, replay_batch_size=6),
    "host": configs.Replay(memory=configs.EpisodicMemory(capacity=64, storage="host"), replay_batch_size=6),
    "mbpa_pp": configs.MbPA(
        memory=MEMORY,
        replay_interval=16,
        replay_batch_size=6,
        key_source="first",
        num_neighbors=4,
        adaptation_steps=2,
        adaptation_learning_rate=0.1,
        adaptation_batch_size=1,
    ),
}


def get_config(variant: str = "replay") -> configs.Config:
    blobs = [
        configs.Blobs(classes=(2 * i, 2 * i + 1), num_classes=4, dim=8, num_train=40, num_test=16) for i in range(2)
    ]
    return configs.Config(
        name="run",
        model=configs.Perceptron(widths=(16,)),
        task=configs.Classification(num_classes=4),
        data=configs.Data(source=blobs[0], batch_size=8, segment_length=8),
        training=configs.Training(log_every=1, checkpoint_every=2, evaluate_every=0),
        evaluation=configs.Evaluation(batch_size=8, split="test", compute_accuracy=True),
        lifelong=configs.Lifelong(
            method=VARIANTS[variant],
            tasks=tuple(configs.TaskData(name=f"task_{i}", source=source) for i, source in enumerate(blobs)),
            epochs=1,
        ),
        sharding=configs.Sharding(process_timeout=60),
    )
