"""Memformer on MNIST as 784 tokens of 256 values, and its ablations.

    memjax train --config memformer_mnist --data.source.path DIR
    memjax train --config memformer_mnist --variant transformer_xl --data.source.path DIR

Paper: Wu, Lan, Qian, Gu, Geramifard and Yu, "Memformer", Findings of AACL 2022, https://arxiv.org/abs/2010.06891.
Paper's number: perplexity per pixel 1.555 (4 + 8 layers, 64 slots); of the 2 + 6 model 1.594 with 64 slots, 1.600 with
32, 1.604 with 16, 1.627 with 1, 1.612 without temperature, 1.630 without forgetting, 1.626 with single heads, 1.745
without memory; Transformer-XL 1.650, 1.618 and 1.611 with memories of 56, 224 and 784; LSTM 1.698; Transformer decoder
1.569.
Our number: not run at full size. 64 wide, 300 steps of 16 images: tools/results/tables/memformer_mnist.md, one
seed a row. The slots there are as published; not measured with those of today.
Hardware: not said in the paper.

Where the values come from
  paper    128 wide, 4 heads of 32, feed-forward 256, temperature 0.25; Transformer-XL with 8 layers
  ours     nobody published the rest: segments of 56 tokens (two rows of pixels), 64 streams, 8 segments per update,
           AdamW 3e-4 with 10 % warm-up and cosine, gradient norm 1
  paper    LSTM with 4 layers, 512 wide; Transformer decoder with 8 layers, the whole image at once
  ours     what both leave open: the LSTM's gradient goes back over 8 segments, as Memformer's; the Transformer has
           softmax attention and sinusoids as Vaswani et al. (2017) have them, with RMS norms in front, and reads 36
           images per update, which are as many pixels as the others' 64 streams of 8 segments, to 2 %
"""

from typing import Literal

from memjax.config import (
    LSTM,
    Adam,
    AttentionKind,
    Config,
    Data,
    Dense,
    Evaluation,
    FullAttention,
    KeyValueRecall,
    Memformer,
    Mnist,
    Model,
    Schedule,
    Training,
    TransformerXL,
)

VARIANTS = {
    "default": "4 + 8 layers, 64 slots",
    "ablation": "2 + 6 layers, 64 slots",
    "slots_1": "2 + 6 layers, one slot",
    "no_memory": "2 + 6 layers, without reader and writer of the memory",
    "no_encoder": "6 layers of a decoder, which sees only its own segment",
    "no_forgetting": "2 + 6 layers, slots are not moved towards their bias",
    "temperature_1": "2 + 6 layers, no temperature in the writer",
    "single_head": "2 + 6 layers, one head in reader and writer",
    "transformer_xl": "Transformer-XL, 8 layers, a memory of 224",
    "transformer_xl_56": "`transformer_xl` with a memory of 56",
    "transformer_xl_784": "`transformer_xl` with a memory of 784, the whole image",
    "transformer": "Transformer decoder, 8 layers, the whole image as one segment",
    "lstm": "LSTM, 4 layers, 512 wide",
    "smoke": "seconds: 1 + 1 layers, 16 wide, synthetic documents in place of images",
}


def get_config(variant: str = "default") -> Config:
    """Returns the config of a variant, a key of `VARIANTS`, without `data.source.path`."""
    model = Memformer(
        dim=128,
        num_layers=6,
        num_heads=4,
        dropout=0.1,
        feed_forward=Dense(dim=256),
        encoder_layers=2,
        num_slots=64,
    )
    config = Config(
        name=f"memformer_mnist_{variant}",
        model=model,
        data=Data(source=Mnist(), batch_size=64, segment_length=56),
        training=Training(
            steps=20_000,
            segments_per_update=8,
            remat="segment",
            optimizer=Adam(weight_decay=0.01),
            schedule=Schedule(learning_rate=3e-4, warmup_steps=2_000, decay="cosine"),
            evaluate_every=2_000,
        ),
        evaluation=Evaluation(batch_size=64),
    )
    match variant:
        case "default":
            model.num_layers, model.encoder_layers = 8, 4
        case "ablation":
            pass
        case "slots_1":
            model.num_slots = 1
        case "no_memory" | "no_encoder":
            model.num_slots = 0
            model.encoder_layers = 0 if variant == "no_encoder" else 2
            config.training.segments_per_update, config.training.steps = 1, 160_000
            config.training.schedule.warmup_steps = 16_000
        case "no_forgetting":
            model.use_forgetting = False
        case "temperature_1":
            model.temperature = 1.0
        case "single_head":
            model.single_memory_head = True
        case "transformer_xl" | "transformer_xl_56" | "transformer_xl_784":
            memory = int(variant.removeprefix("transformer_xl").removeprefix("_") or 224)
            config.model = _decoder(TransformerXL(memory_length=memory))
            config.training.segments_per_update, config.training.steps = 1, 160_000
            config.training.schedule.warmup_steps = 16_000
        case "transformer":
            config.model = _decoder(FullAttention(query_key_norm=False, num_buckets=0), positions="sinusoids")
            config.data.segment_length, config.data.batch_size, config.training.segments_per_update = 784, 36, 1
        case "lstm":
            config.model = Model(dim=512, num_layers=4, dropout=0.1, attention=LSTM())
        case "smoke":
            config.model = Memformer(dim=16, num_layers=1, num_heads=2, encoder_layers=1, num_slots=4)
            source = KeyValueRecall(num_pairs=2, num_keys=4, num_values=4, filler_length=16, num_documents=32)
            config.data = Data(source=source, batch_size=2, segment_length=8)
            config.training = Training(
                steps=4, segments_per_update=2, remat="segment", schedule=Schedule(warmup_steps=0), log_every=1
            )
            config.evaluation = Evaluation(batch_size=2)
    return config


def _decoder(attention: AttentionKind, positions: Literal["none", "sinusoids"] = "none") -> Model:
    """Returns a decoder of the paper's size without an encoder."""
    return Model(
        dim=128,
        num_layers=8,
        num_heads=4,
        dropout=0.1,
        attention=attention,
        positions=positions,
        feed_forward=Dense(dim=256),
    )
