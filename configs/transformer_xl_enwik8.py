"""Transformer-XL on enwik8 (or text8), the paper's 12-layer and 24-layer models.

    memjax train --config transformer_xl_enwik8 --data.source.path enwik8
    memjax eval --run runs/transformer_xl_enwik8_default --evaluation.split test --evaluation.segment-length 80 \
        --evaluation.memory-length 2100 --model.attention.clamp-length 820 --model.attention.same-length

Paper: Dai, Yang, Yang, Carbonell, Le and Salakhutdinov, "Transformer-XL", ACL 2019, https://arxiv.org/abs/1901.02860.
Paper's number: 1.06 bits per character (12 layers, 41M parameters), 0.99 (24 layers, 277M); text8 1.08 (24 layers).
Our number: not run at full size.
Hardware: 4 GPUs for the 12-layer model (authors' scripts).

Where the values come from
  scripts     run_enwik8_base.sh (authors): 12 layers, 512, 8 heads of 64, feed-forward 2,048, dropout 0.1, segment
              and memory 512, 22 streams, 400,000 steps, Adam 2.5e-4 with cosine decay to 0, no warm-up, gradient norm
              0.25; evaluation with segment 80, memory 2,100, distances clamped at 820, equal lengths.
              run_enwik8_large.sh: 24 layers, 1,024, 8 heads of 128, feed-forward 3,072, dropout 0.15, 768 / 768,
              64 streams, 4,000 steps of warm-up
  differs     bytes with a few special symbols, where theirs has the 204 symbols that occur
"""

from memjax.config import (
    Bytes,
    Config,
    Data,
    Dense,
    Enwik8,
    Evaluation,
    Model,
    PythonLibrary,
    Schedule,
    Softmax,
    Training,
    TransformerXL,
)

VARIANTS = {
    "default": "12 layers, 41M parameters",
    "large": "24 layers, 277M parameters",
    "smoke": "seconds: 2 layers, 32 wide, bytes of Python sources in contiguous streams",
}


def get_config(variant: str = "default") -> Config:
    """Returns the config of a variant, a key of `VARIANTS`, without `data.source.path`."""
    config = Config(
        name=f"transformer_xl_enwik8_{variant}",
        model=Model(
            dim=512,
            num_layers=12,
            num_heads=8,
            head_dim=64,
            dropout=0.1,
            attention=TransformerXL(memory_length=512),
            feed_forward=Dense(dim=2048),
            output=Softmax(tied=True, bias=True),
        ),
        data=Data(source=Enwik8(), tokenizer=Bytes(), batch_size=22, segment_length=512, protocol="contiguous"),
        training=Training(
            steps=400_000,
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
            config.model.dim, config.model.num_layers, config.model.head_dim = 1024, 24, 128
            config.model.dropout = config.model.attention_dropout = 0.15
            config.model.attention = TransformerXL(memory_length=768)
            config.model.feed_forward.dim = 3072
            config.data.batch_size, config.data.segment_length = 64, 768
            config.training.schedule.warmup_steps = 4000
        case "smoke":
            config.model = Model(
                dim=32,
                num_layers=2,
                num_heads=2,
                attention=TransformerXL(memory_length=16),
                output=Softmax(tied=True, bias=True),
            )
            config.data = Data(
                source=PythonLibrary(), tokenizer=Bytes(), batch_size=2, segment_length=16, protocol="contiguous"
            )
            config.training = Training(steps=4, schedule=Schedule(warmup_steps=0), clip_norm=0.25, log_every=1)
            config.evaluation = Evaluation(batch_size=2, max_segments=4)
    return config
