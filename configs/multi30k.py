"""Translation of Multi30k, English to German: softmax attention, linear states in the decoder, memory tokens.

    memjax train --config multi30k --data.source.path DIR
    memjax train --config multi30k --variant memsizer --data.source.path DIR
    memjax train --config multi30k --variant memory_tokens --model.num-layers 6 --model.memory-tokens.num-tokens 20 ...
    memjax eval --run RUN --evaluation.split test --evaluation.max-answers 1000  # with BLEU, beam 5, length penalty 1
    python -m tools.results run multi30k_translation        # small models of all kinds; MEMJAX_MULTI30K=DIR

Paper: Zhang and Cai, "Linearizing Transformer with Key-Value Memory", EMNLP 2022, https://arxiv.org/abs/2203.12644;
Burtsev et al., "Memory Transformer", 2020, https://arxiv.org/abs/2006.11527. Data: Elliott et al. 2016,
https://github.com/multi30k/dataset (task 1, raw text).
Paper's number: none on Multi30k (both have WMT; MemSizer's translation model has about 17 % fewer parameters).
Our number: not run at this size. The recipe's 2 + 2 layers of 128, 1,000 steps:
tools/results/tables/multi30k.md.
Hardware: 2 CPU cores.

Where the values come from
  scripts     (MemSizer's authors) 4 slots in causal and 32 in cross attention, label smoothing 0.1, Adam 0.9 / 0.98,
              inverse square root of the step
  ours        3 + 3 layers, 256 wide, dropout 0.3, 6,000 subwords of both languages, 64 pairs a step, since the corpus
              has 29,000 pairs; memory tokens at 4 + 4 layers (6 + 6: `--model.num-layers 6`)
"""

from memjax.config import (
    RFA,
    T2R,
    Adam,
    Bytes,
    Config,
    Data,
    Dense,
    EncoderDecoder,
    Evaluation,
    LinearTransformer,
    MemoryTokens,
    MemSizer,
    NumberWords,
    ParallelText,
    Schedule,
    SentencePiece,
    Training,
)

VARIANTS = {
    "default": "softmax attention everywhere",
    "linear_transformer": "Linear Transformer, elu(x) + 1, in causal and cross attention",
    "linear_causal": "Linear Transformer in causal attention only",
    "linear_cross": "Linear Transformer in cross attention only",
    "rfa": "RFA in causal and cross attention",
    "t2r": "T2R: 4 learned features in causal, 32 in cross attention",
    "memsizer": "MemSizer: 4 slots in causal, 32 in cross attention",
    "four_layers": "`default` with 4 + 4 layers",
    "memory_tokens": "4 + 4 layers, 10 memory tokens in the encoder",
    "control": "`memory_tokens` with separate layers for the memory",
    "control_shared": "`memory_tokens` with one separate layer for the memory at all depths",
    "bottleneck": "`memory_tokens` where tokens exchange information only through the memory",
    "smoke": "seconds: numbers in words, 1 + 1 layers, 16 wide",
}


def get_config(variant: str = "default") -> Config:
    """Returns the config of a variant, a key of `VARIANTS`, without `data.source.path`."""
    model = EncoderDecoder(dim=256, num_layers=3, num_heads=4, dropout=0.3, feed_forward=Dense(dim=1024))
    config = Config(
        name=f"multi30k_{variant}",
        model=model,
        data=Data(
            source=ParallelText(max_length=48),
            tokenizer=SentencePiece(vocab_size=6000),
            batch_size=64,
            segment_length=48,
        ),
        training=Training(
            steps=6000,
            optimizer=Adam(b1=0.9, b2=0.98),
            schedule=Schedule(learning_rate=1e-3, warmup_steps=1000, decay="rsqrt"),
            log_every=100,
            checkpoint_every=1000,
            evaluate_every=1000,
        ),
        evaluation=Evaluation(batch_size=64),
    )
    match variant:
        case "default":
            pass
        case "linear_transformer":
            model.attention, model.cross_attention = LinearTransformer(), LinearTransformer()
        case "linear_causal":
            model.attention = LinearTransformer()
        case "linear_cross":
            model.cross_attention = LinearTransformer()
        case "rfa":
            model.attention, model.cross_attention = RFA(), RFA()
        case "t2r":
            model.attention, model.cross_attention = T2R(num_features=4), T2R(num_features=32)
        case "memsizer":
            model.attention = MemSizer(num_slots=4, query_init_scale=8.0, source_init_scale=8.0)
            model.cross_attention = MemSizer(num_slots=32, query_init_scale=8.0, source_init_scale=8.0)
        case "four_layers":
            model.num_layers = 4
        case "memory_tokens":
            model.num_layers, model.memory_tokens = 4, MemoryTokens(num_tokens=10)
        case "control" | "control_shared":
            model.num_layers = 4
            model.memory_tokens = MemoryTokens(
                num_tokens=10, kind="control", share_memory_layer=variant == "control_shared"
            )
        case "bottleneck":
            model.num_layers, model.memory_tokens = 4, MemoryTokens(num_tokens=10, kind="bottleneck")
        case "smoke":
            model.dim, model.num_layers, model.num_heads, model.feed_forward.dim = 16, 1, 2, 32
            model.attention, model.memory_tokens = MemSizer(num_slots=4), MemoryTokens(num_tokens=2)
            config.data = Data(source=NumberWords(num_documents=32), tokenizer=Bytes(), batch_size=2, segment_length=96)
            config.training = Training(steps=4, schedule=Schedule(warmup_steps=2), log_every=1)
            config.evaluation = Evaluation(batch_size=2, max_segments=4)
    return config
