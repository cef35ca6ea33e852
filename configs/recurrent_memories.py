"""Recurrent memories on WikiText-2: a small language model with each of them, on equal text, steps and tokens.

    memjax train --config recurrent_memories --data.source.path DIR                       # Memformer
    memjax train --config recurrent_memories --variant sticky --data.source.path DIR
    python -m tools.results run recurrent_memories        # all variants; MEMJAX_WIKITEXT2=DIR

Paper: none; each variant's memory has its own, named in its class of `memjax.config`.
Paper's number: none at this size.
Our number: not run at 2,000 steps. 600 steps: tools/results/tables/recurrent_memories.md, one seed a row. The slots of
Memformer there are as published; those of today have three seeds in the part `memformer_slots` of that page.
Hardware: 2 CPU cores.

Where the values come from
  ours        all: four layers (Memformer: one of them encodes), 96 wide, 1,000 subwords, segments of 64, 2,048 tokens
              an update: 32 streams, for Memformer 8 streams of 4 segments. Transformer-XL and Compressive attend to 64
              slots, infinity-former to 32 and a signal of 64 basis functions over everything older
"""

from typing import Any

from memjax.config import (
    Compressive,
    Config,
    Data,
    Dense,
    Evaluation,
    InfinityFormer,
    Memformer,
    Model,
    PythonLibrary,
    Schedule,
    SentencePiece,
    Training,
    WikiText,
)
from memjax.settings.named_memories import make_memory_settings

VARIANTS = {
    "default": "Memformer with 64 slots, gradients through 4 segments",
    "slots_1": "Memformer with one slot",
    "no_forgetting": "Memformer without biased normalisation",
    "temperature_1": "Memformer without temperature in the writer",
    "no_slots": "Memformer without slots: the encoder reads only the segment before",
    "no_memory": "a Transformer that sees each segment alone",
    "transformer_xl": "Transformer-XL with a memory of 64 tokens in every layer",
    "compressive": "Compressive Transformer: segments of 32, memory of 32 tokens and 32 compressed slots of 4 tokens",
    "infinity_former": "infinity-former: segments of 32, memory of 32 tokens, and a signal of 64 basis functions",
    "sticky": "`infinity_former` with sticky memories: updates read the past where the queries looked",
    "smoke": "seconds: 1 + 1 layers, 32 wide, subwords of Python sources",
}

SIZES: dict[str, Any] = {"dim": 96, "num_heads": 4}
TOKENS = 2048
LENGTH = 64


def get_config(variant: str = "default") -> Config:
    """Returns the config of a variant, a key of `VARIANTS`, without `data.source.path`."""
    length, horizon = LENGTH, 4
    model: Any = make_memory_settings("memformer", **SIZES, num_layers=3, encoder_layers=1, feed_forward=Dense(dim=384))
    attention = {
        "no_memory": make_memory_settings("none"),
        "transformer_xl": make_memory_settings("transformer_xl", memory_length=64),
        "compressive": make_memory_settings("compressive", memory_length=32, compressed_memory_length=32),
        "infinity_former": _signal("none"),
        "sticky": _signal("sample"),
    }.get(variant)
    if attention is not None:
        model, horizon = Model(**SIZES, num_layers=4, attention=attention, feed_forward=Dense(dim=384)), 1
        length = 32 if isinstance(attention, Compressive | InfinityFormer) else LENGTH
    match variant:
        case "slots_1":
            model.num_slots = 1
        case "no_forgetting":
            model.use_forgetting = False
        case "temperature_1":
            model.temperature = 1.0
        case "no_slots":
            model.num_slots, horizon = 0, 1
    config = Config(
        name=f"recurrent_memories_{variant}",
        model=model,
        data=Data(
            source=WikiText(),
            tokenizer=SentencePiece(vocab_size=1000),
            batch_size=TOKENS // length // horizon,
            segment_length=length,
        ),
        training=Training(
            steps=2000,
            segments_per_update=horizon,
            remat="segment" if horizon > 1 else "none",
            schedule=Schedule(learning_rate=2e-3, warmup_steps=100, decay="cosine"),
            log_every=100,
            checkpoint_every=500,
        ),
        evaluation=Evaluation(batch_size=16),
    )
    if variant == "smoke":
        config.model = Memformer(dim=32, num_layers=1, num_heads=2, encoder_layers=1, num_slots=4)
        config.data = Data(
            source=PythonLibrary(), tokenizer=SentencePiece(vocab_size=512), batch_size=2, segment_length=16
        )
        config.training = Training(
            steps=4, segments_per_update=2, remat="segment", schedule=Schedule(warmup_steps=0), log_every=1
        )
        config.evaluation = Evaluation(batch_size=2, max_segments=4)
    return config


def _signal(sticky: str) -> InfinityFormer:
    sizes: Any = {"memory_length": 32, "num_basis": 64, "num_samples": 64}
    return make_memory_settings("infinity_former", **sizes, sticky=sticky, norm="post", kl_weight=1e-5)
