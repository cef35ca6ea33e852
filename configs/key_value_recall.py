"""Key-value recall: synthetic documents bind keys to values and ask for the values many segments later.

    memjax train --config key_value_recall                       # with a memory: nearly all answers right
    memjax train --config key_value_recall --variant cache_only  # with its local cache: chance

A document (`memjax.data.key_value_recall`) has bindings of values to keys with practice questions among them, then
filler, and
then a question for every key. The filler has 48 tokens and each of the two layers sees 16 tokens. So only a memory can
supply the answers, and the accuracy shows whether the model uses it.

The task resembles MQAR, the multi-query associative recall of Zoology (Arora et al. 2023,
https://arxiv.org/abs/2312.04927), with these differences: key and value of a binding are one token instead of two,
groups of four bindings are followed by practice questions, one block of filler tokens of their own lies before the
questions instead of filler between them, the value follows each question in the input, and a document is read in
segments. `--data.source.layout sequence --data.source.group 0` is closest to MQAR. See `memjax.data.key_value_recall`
for all differences.

Paper: none; the task is ours, after the associative recall of the memory literature.
Our number: tools/results/tables/learns.md, six seeds; chance is 6.25 %.
Hardware: 2 CPU cores, less than a minute each.

Where the values come from: trials. The memory is in the first layer, because the layers below a higher one would solve
the practice questions alone, and the memory would have little to learn from.
"""

from memjax.config import Config, Data, Evaluation, KeyValueRecall, Memorizing, Model, Schedule, Training

VARIANTS = {
    "default": "memory of 128 slots in the first of two layers",
    "cache_only": "`default` without the long memory: local cache only",
    "smoke": "seconds: a few short documents",
}


def get_config(variant: str = "default") -> Config:
    """Returns the config of a variant, a key of `VARIANTS`."""
    attention = Memorizing(layers_with_memory=(0,), memory_length=128, num_neighbors=8, cache_length=8)
    config = Config(
        name=f"key_value_recall_{variant}",
        model=Model(dim=64, num_layers=2, num_heads=2, attention=attention),
        data=Data(source=KeyValueRecall(), batch_size=32, segment_length=8),
        training=Training(
            steps=2500, schedule=Schedule(learning_rate=3e-3, warmup_steps=50), log_every=250, checkpoint_every=500
        ),
        evaluation=Evaluation(batch_size=32, compute_accuracy=True),
    )
    match variant:
        case "default":
            pass
        case "cache_only":
            attention.memory_length = 0
        case "smoke":
            attention.memory_length, attention.num_neighbors, config.model.dim = 32, 4, 16
            config.data.source = KeyValueRecall(
                num_pairs=2, num_keys=4, num_values=4, filler_length=16, num_documents=32
            )
            config.data.batch_size = config.evaluation.batch_size = 2
            config.training = Training(steps=4, schedule=Schedule(warmup_steps=2), log_every=1)
    return config
