"""Every memory, with the task that shows that a model learns to use it. A new memory is one more entry."""

from tests.learns import (
    compressive,
    continuous_cache,
    infinity_former,
    knn_lm,
    memformer,
    memorizing,
    memory_tokens,
    spalm,
    transformer_xl,
)

TASKS = {
    "Transformer-XL": transformer_xl.TASK,
    "Compressive": compressive.TASK,
    "Memorizing": memorizing.TASK,
    "Memformer": memformer.TASK,
    "infinity-former": infinity_former.TASK,
    "infinity-former, sticky": infinity_former.STICKY,
    "memory tokens, bottleneck": memory_tokens.TASK,
    "SPALM": spalm.TASK,
    "kNN-LM": knn_lm.TASK,
    "continuous cache": continuous_cache.TASK,
}
