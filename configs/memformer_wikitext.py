"""Memformer on WikiText-103: an encoder with 1,024 slots of memory, a decoder, a time horizon of 16 segments.

    memjax train --config memformer_wikitext --data.source.path DIR
    memjax train --config memformer_wikitext --variant no_forgetting --data.source.path DIR

Paper: Wu, Lan, Qian, Gu, Geramifard and Yu, "Memformer", Findings of AACL 2022, https://arxiv.org/abs/2010.06891.
Paper's number: test perplexity 22.74 (4 + 16 layers, 1,024 slots), 23.91 (4 + 12), 25.57 without memory.
Our number: not run at full size.
Hardware: not said in the paper.

Where the values come from
  paper    512 wide, 8 heads of 64, feed-forward 2,048, 4 + 16 layers, 1,024 slots, temperature 0.25, segments of 128
  ours     nobody published the rest: AdamW 3e-4 with 10 % warm-up and cosine, gradient norm 1, 32 streams, 16 segments
           per update, SentencePiece with 32,000 pieces
The ablations are taken from the model of the default variant.
"""

from memjax.config import (
    Adam,
    Config,
    Data,
    Dense,
    Evaluation,
    Memformer,
    PythonLibrary,
    Schedule,
    SentencePiece,
    Training,
    WikiText,
)

VARIANTS = {
    "default": "4 + 16 layers, 1,024 slots",
    "shallow": "4 + 12 layers",
    "slots_512": "512 slots",
    "no_memory": "`default` without reader and writer of the memory",
    "no_encoder": "the decoder of `default` alone, which sees only its own segment",
    "no_forgetting": "`default` whose slots are not moved towards their bias",
    "temperature_1": "`default` without temperature in the writer",
    "single_head": "`default` with one head in reader and writer",
    "smoke": "seconds: 1 + 1 layers, 32 wide, subwords of Python sources",
}


def get_config(variant: str = "default") -> Config:
    """Returns the config of a variant, a key of `VARIANTS`, without `data.source.path`."""
    model = Memformer(
        dim=512,
        num_layers=16,
        num_heads=8,
        dropout=0.1,
        feed_forward=Dense(dim=2048),
        encoder_layers=4,
        num_slots=1024,
    )
    config = Config(
        name=f"memformer_wikitext_{variant}",
        model=model,
        data=Data(source=WikiText(), tokenizer=SentencePiece(vocab_size=32_000), batch_size=32, segment_length=128),
        training=Training(
            steps=20_000,
            segments_per_update=16,
            remat="segment",
            optimizer=Adam(weight_decay=0.01),
            schedule=Schedule(learning_rate=3e-4, warmup_steps=2_000, decay="cosine"),
            clip_norm=1.0,
            evaluate_every=2_000,
        ),
        evaluation=Evaluation(batch_size=16),
    )
    match variant:
        case "default":
            pass
        case "shallow":
            model.num_layers = 12
        case "slots_512":
            model.num_slots = 512
        case "no_memory" | "no_encoder":
            model.num_slots = 0
            model.encoder_layers = 0 if variant == "no_encoder" else 4
            config.training.segments_per_update, config.training.steps = 1, 320_000
            config.training.schedule.warmup_steps = 32_000
        case "no_forgetting":
            model.use_forgetting = False
        case "temperature_1":
            model.temperature = 1.0
        case "single_head":
            model.single_memory_head = True
        case "smoke":
            config.model = Memformer(dim=32, num_layers=1, num_heads=2, encoder_layers=1, num_slots=8)
            config.data = Data(
                source=PythonLibrary(), tokenizer=SentencePiece(vocab_size=512), batch_size=2, segment_length=16
            )
            config.training = Training(
                steps=4, segments_per_update=2, remat="segment", schedule=Schedule(warmup_steps=0), log_every=1
            )
            config.evaluation = Evaluation(batch_size=2, max_segments=4)
    return config
