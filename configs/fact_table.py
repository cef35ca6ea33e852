"""A table of facts to be held in parameters: product keys beside feed-forward networks of equal and of higher cost.

    memjax train --config fact_table                        # product keys: the table is learned
    memjax train --config fact_table --variant dense        # a feed-forward network of equal cost
    python -m tools.results run fact_table                  # all, six seeds

A document (`memjax.data.facts`) is a list of facts: subject, relation, value. There are 9,216 pairs of a subject and a
relation, each with one of 16 values, which is 36,864 bits. The model has one layer: its attention joins subject and
relation, and its feed-forward part must know the value.

Paper: none; the task is ours. Product keys: Lample et al. 2019, https://arxiv.org/abs/1907.05242; beside the network
(ResM): Kim and Jung 2020, https://arxiv.org/abs/2010.03881.
Our number: tools/results/tables/fact_table.md, six seeds, rates searched on another table; chance
is 6.25 %.
Hardware: 2 CPU cores.

Where the values come from
  ours        all; every fact is seen 100 times. Products per token: of the memory 10,624 (queries 4,096, sub-keys
              6,144, values 384), of `make_dense` 10,240 (80 hidden), of `dense_320` 40,960. Rates 0.01, of values too:
              with 0.003 and 0.001, and 16,384 facts, next to nothing was learned in 300 steps
"""

from memjax.config import Config, Data, Dense, Evaluation, FactTable, Model, ProductKey, Schedule, TableAdam, Training

VARIANTS = {
    "default": "product keys with 9,216 slots instead of the feed-forward network",
    "residual": "product keys with 9,216 slots beside a feed-forward network of equal cost",
    "dense": "a feed-forward network of equal cost",
    "dense_320": "a feed-forward network of four times the cost",
    "smoke": "seconds: 16 facts",
}


def get_config(variant: str = "default") -> Config:
    """Returns the config of a variant, a key of `VARIANTS`."""
    memory = ProductKey(dim=80, layers=(), num_keys=96, memory_heads=2, num_neighbors=3, key_dim=32)
    config = Config(
        name=f"fact_table_{variant}",
        model=Model(dim=64, num_layers=1, num_heads=2, feed_forward=memory),
        data=Data(source=FactTable(num_subjects=96, num_relations=96), batch_size=32, segment_length=96),
        training=Training(
            steps=900,
            schedule=Schedule(learning_rate=1e-2, warmup_steps=50, decay="cosine"),
            value_table_optimizer=TableAdam(learning_rate=1e-2),
            log_every=100,
            checkpoint_every=500,
        ),
        evaluation=Evaluation(batch_size=32, compute_accuracy=True),
    )
    match variant:
        case "default":
            pass
        case "residual":
            memory.dense_scale = 1.0
        case "dense":
            config.model.feed_forward = Dense(dim=80)
        case "dense_320":
            config.model.feed_forward = Dense(dim=320)
        case "smoke":
            memory.num_keys, memory.key_dim, config.model.dim = 4, 8, 16
            config.data.source = FactTable(num_subjects=4, num_relations=4, num_facts=4, num_documents=32)
            config.data.batch_size = config.evaluation.batch_size = 2
            config.data.segment_length = 12
            config.training = Training(steps=4, schedule=Schedule(warmup_steps=2), log_every=1)
    return config
