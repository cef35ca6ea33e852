"""Memorizing Transformer on whole English novels.

    memjax train --config memorizing_novels --data.source.path DIR_OR_TAR
    memjax train --config memorizing_novels --variant cache_only --data.source.path DIR_OR_TAR

Paper: Wu, Rabe, Hutchins and Szegedy, "Memorizing Transformers", ICLR 2022, https://arxiv.org/abs/2203.08913.
Paper's number: PG-19, token-level perplexity, 200M parameters, segment 512: cache of 512 alone 12.34, with a memory of
  8,192 11.93. Their corpus has 28,602 books; the one meant here, computationalstylistics/100_english_novels without
  the books first published after 1930, has 98.
Our number: not run at full size.
Hardware: 2 CPU cores.

Where the values come from: as `memorizing_python`; whole books are held out, by a hash of the name.
"""

from memjax.config import (
    Adam,
    Bytes,
    Config,
    Data,
    Evaluation,
    FullAttention,
    Memorizing,
    Model,
    Novels,
    PythonLibrary,
    Schedule,
    SentencePiece,
    Training,
)

VARIANTS = {
    "default": "memory of 4,096 slots in one layer, local cache in all",
    "smoke": "seconds: 2 layers, 32 wide, bytes of Python sources, needs no path",
    "cache_only": "`default` without the long memory: local cache only",
    "no_memory": "`default` without any memory: each segment alone",
}


def get_config(variant: str = "default") -> Config:
    """Returns the config of a variant, a key of `VARIANTS`, without `data.source.path`."""
    attention = Memorizing(
        layers_with_memory=(-1,),
        memory_length=4096,
        num_neighbors=32,
        cache_length=64,
        local_window=64,
        scale_init=10.0,
    )
    config = Config(
        name=f"memorizing_novels_{variant}",
        model=Model(dim=192, num_layers=4, num_heads=4, attention=attention),
        data=Data(source=Novels(), tokenizer=SentencePiece(vocab_size=4096), batch_size=16, segment_length=64),
        training=Training(
            steps=4000,
            optimizer=Adam(b2=0.98),
            schedule=Schedule(learning_rate=2e-3, warmup_steps=200, decay="cosine", final_fraction=0.05),
        ),
        evaluation=Evaluation(batch_size=4),
    )
    match variant:
        case "default":
            pass
        case "smoke":
            attention = Memorizing(
                layers_with_memory=(-1,), memory_length=64, num_neighbors=4, cache_length=16, local_window=16
            )
            config.model = Model(dim=32, num_layers=2, num_heads=2, attention=attention)
            config.data = Data(source=PythonLibrary(), tokenizer=Bytes(), batch_size=2, segment_length=16)
            config.training = Training(steps=4, schedule=Schedule(warmup_steps=2), log_every=1)
            config.evaluation = Evaluation(batch_size=2, max_segments=4)
        case "cache_only":
            attention.memory_length = 0
        case "no_memory":
            config.model.attention = FullAttention()
    return config
