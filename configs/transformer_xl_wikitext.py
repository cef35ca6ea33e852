"""Transformer-XL on WikiText at word level, with adaptive embeddings and softmax.

    memjax train --config transformer_xl_wikitext --data.source.path DIR                        # WikiText-103
    memjax train --config transformer_xl_wikitext --variant wikitext2 --data.source.path DIR    # WikiText-2
    memjax eval --run runs/transformer_xl_wikitext_default --evaluation.split test --evaluation.segment-length 64 \
        --evaluation.memory-length 640 --model.attention.clamp-length 400 --model.attention.same-length

Paper: Dai, Yang, Yang, Carbonell, Le and Salakhutdinov, "Transformer-XL", ACL 2019, https://arxiv.org/abs/1901.02860.
Paper's number: WikiText-103 test perplexity 24.0 (151M parameters), 18.3 (257M; 285M by the authors' code).
Our number: not run at full size.
Hardware: 4 GPUs for the base model (authors' scripts).

Where the values come from
  scripts     run_wt103_base.sh (authors): 16 layers, 410, 10 heads of 41, feed-forward 2,100, dropout 0.1, segment
              and memory 150, 60 streams, 200,000 steps, Adam 2.5e-4 with cosine decay to 0, gradient norm 0.25;
              adaptive clusters at 20,000, 40,000 and 200,000; evaluation with segment 64, memory 640, distances
              clamped at 400, equal lengths.
              run_wt103_large.sh: 18 layers, 1,024, 16 heads of 64, feed-forward 4,096, dropout 0.2, 384 / 384,
              128 streams, 16,000 steps of warm-up, 4M steps, clusters 4 times narrower each
  ours        the variant `wikitext2`: the paper has no numbers on it
"""

from memjax.config import (
    AdaptiveSoftmax,
    Config,
    Data,
    Dense,
    Evaluation,
    Model,
    PythonLibrary,
    Schedule,
    SentencePiece,
    Training,
    TransformerXL,
    WikiText,
    Words,
)

VARIANTS = {
    "default": "WikiText-103, 16 layers, 151M parameters",
    "large": "WikiText-103, 18 layers, 285M parameters",
    "wikitext2": "WikiText-2, a size for one machine",
    "smoke": "seconds: 2 layers, 32 wide, subwords of Python sources in contiguous streams",
}


def get_config(variant: str = "default") -> Config:
    """Returns the config of a variant, a key of `VARIANTS`, without `data.source.path`."""
    config = Config(
        name=f"transformer_xl_wikitext_{variant}",
        model=Model(
            dim=410,
            num_layers=16,
            num_heads=10,
            head_dim=41,
            dropout=0.1,
            attention=TransformerXL(memory_length=150),
            feed_forward=Dense(dim=2100),
            output=AdaptiveSoftmax(cutoffs=(20_000, 40_000, 200_000)),
        ),
        data=Data(source=WikiText(), tokenizer=Words(), batch_size=60, segment_length=150, protocol="contiguous"),
        training=Training(
            steps=200_000,
            schedule=Schedule(learning_rate=2.5e-4, warmup_steps=0, decay="cosine"),
            clip_norm=0.25,
            log_every=200,
            checkpoint_every=4000,
            evaluate_every=4000,
        ),
        evaluation=Evaluation(batch_size=10),
    )
    match variant:
        case "default":
            pass
        case "large":
            config.model.dim, config.model.num_layers = 1024, 18
            config.model.num_heads, config.model.head_dim = 16, 64
            config.model.dropout = config.model.attention_dropout = 0.2
            config.model.attention = TransformerXL(memory_length=384)
            config.model.feed_forward.dim = 4096
            config.model.output = AdaptiveSoftmax(
                cutoffs=(20_000, 40_000, 200_000), div_val=4, tie_projections=(False, True, True, True)
            )
            config.data.batch_size, config.data.segment_length = 128, 384
            config.training.steps, config.training.schedule.warmup_steps = 4_000_000, 16_000
        case "wikitext2":
            config.model = Model(
                dim=256,
                num_layers=6,
                num_heads=8,
                dropout=0.3,
                attention=TransformerXL(memory_length=128),
                output=AdaptiveSoftmax(cutoffs=(4_000, 12_000)),
            )
            config.data.batch_size, config.data.segment_length = 16, 128
            config.training = Training(
                steps=20_000, schedule=Schedule(learning_rate=5e-4, warmup_steps=500), clip_norm=0.25
            )
        case "smoke":
            config.model = Model(
                dim=32,
                num_layers=2,
                num_heads=2,
                attention=TransformerXL(memory_length=16),
                output=AdaptiveSoftmax(cutoffs=(100, 300), div_val=2),
            )
            config.data = Data(
                source=PythonLibrary(),
                tokenizer=SentencePiece(vocab_size=512),
                batch_size=2,
                segment_length=16,
                protocol="contiguous",
            )
            config.training = Training(steps=4, schedule=Schedule(warmup_steps=0), clip_norm=0.25, log_every=1)
            config.evaluation = Evaluation(batch_size=2, max_segments=4)
    return config
