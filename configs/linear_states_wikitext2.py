"""Linear states on WikiText-2: a small language model with each of them, and with softmax attention.

    memjax train --config linear_states_wikitext2 --variant memsizer --data.source.path DIR
    memjax train --config linear_states_wikitext2 --variant t2r --data.source.path DIR \
        --training.init-from runs/linear_states_wikitext2_softmax      # the paper's way
    memjax train --config linear_states_wikitext2 --variant memsizer --model.attention.num-slots 128 ...
    python -m tools.results run linear_states_wikitext2         # small models of all kinds; MEMJAX_WIKITEXT2=DIR

Paper: none at this size; each variant's memory has its own, named in its class of `memjax.config`.
Paper's number: none at this size.
Our number: not run at this size. The recipe's two layers, 1,000 steps:
tools/results/tables/linear_states_wikitext2.md.
Hardware: 2 CPU cores.

Where the values come from
  ours        all: four layers, 128 wide, 4 heads, segments of 128 tokens, whole articles as documents, equal steps.
              Linear states go on over the segments of an article; `softmax` sees its segment only, and
              `transformer_xl` one segment more. Sinusoids of the place in the article for all but `transformer_xl`
"""

from memjax.config import (
    AdaptiveSoftmax,
    Config,
    Data,
    Evaluation,
    FullAttention,
    Model,
    PythonLibrary,
    Schedule,
    SentencePiece,
    Softmax,
    Training,
    WikiText,
    Words,
)
from memjax.settings.named_memories import make_memory_settings

VARIANTS = {
    "default": "Linear Transformer, features elu(x) + 1",
    "rfa": "RFA, 32 random directions",
    "rfa_gate": "RFA with a gate",
    "t2r": "T2R, 32 learned features, from scratch or from `softmax`",
    "memsizer": "MemSizer with 32 slots",
    "softmax": "softmax attention within a segment",
    "transformer_xl": "Transformer-XL, which also attends to the segment before",
    "memory_tokens": "`transformer_xl` with 20 memory tokens before every segment",
    "smoke": "seconds: 2 layers, 32 wide, subwords of Python sources",
}


def get_config(variant: str = "default") -> Config:
    """Returns the config of a variant, a key of `VARIANTS`, without `data.source.path`."""
    config = Config(
        name=f"linear_states_{variant}_wikitext2",
        model=Model(
            dim=128,
            num_layers=4,
            num_heads=4,
            dropout=0.1,
            attention=make_memory_settings("linear_transformer"),
            positions="sinusoids",
            output=AdaptiveSoftmax(cutoffs=(2_000, 10_000), div_val=2, tie_projections=(False, True, True)),
        ),
        data=Data(source=WikiText(), tokenizer=Words(), batch_size=16, segment_length=128),
        training=Training(
            steps=8000,
            schedule=Schedule(learning_rate=2e-3, warmup_steps=200),
            log_every=200,
            checkpoint_every=2000,
        ),
        evaluation=Evaluation(batch_size=8),
    )
    model = config.model
    match variant:
        case "default":
            pass
        case "rfa" | "rfa_gate":
            model.attention = make_memory_settings("rfa", gate=variant == "rfa_gate")
        case "t2r":
            model.attention = make_memory_settings("t2r", bias=False, norm_kind="rms")
        case "memsizer":
            model.attention = make_memory_settings("memsizer")
        case "softmax":
            model.attention = FullAttention(query_key_norm=False, num_buckets=0)
        case "transformer_xl" | "memory_tokens":
            model.attention, model.positions = make_memory_settings("transformer_xl", memory_length=128), "none"
            if variant == "memory_tokens":
                model.memory_tokens = make_memory_settings("memory_tokens", num_tokens=20)
        case "smoke":
            model.dim, model.num_layers, model.num_heads, model.output = 32, 2, 2, Softmax()
            model.attention = make_memory_settings("rfa", num_directions=8)
            config.data = Data(
                source=PythonLibrary(), tokenizer=SentencePiece(vocab_size=512), batch_size=2, segment_length=16
            )
            config.training = Training(steps=4, schedule=Schedule(warmup_steps=2), log_every=1)
            config.evaluation = Evaluation(batch_size=2, max_segments=4)
    return config
