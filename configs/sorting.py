"""Sorting symbols by how often they occurred: Transformer-XL, Compressive, infinity-former, sticky and Memformer.

    memjax train --config sorting                                        # sticky memories, 4,000 symbols
    memjax train --config sorting --variant transformer_xl --data.source.length 8000 \
        --training.segments-per-update 8 --training.burn-in-segments 7

Only the answers are scored; `evaluation.compute_accuracy` reports the share of right answers. An update reads a whole
document
in every row, and only its last segment has a gradient: `training.segments_per_update` is the length of a document in
segments, rounded up.

Paper: Martins, Marinho and Martins, "infinity-former: Infinite Memory Transformer", ACL 2022,
https://arxiv.org/abs/2109.00301.
Paper's number: curves only; the accuracy of infinity-former falls less than that of both others from 8,000 symbols on.
Our number: not run at full size. 0.1 to 0.17 M parameters, 2,000 updates on documents of 1,000 symbols, Memformer too;
on documents of 256, 5,000 updates, gradients in the last segments only, fewer slots: tools/results/tables/sorting.md.
Hardware: not said in the paper.

Where the values come from
  paper    3 layers, 6 heads, segments and short-term memory of 1,024, 1,024 basis functions, tau 0.75, 8 rows, 20,000
           steps, Adam 2.5e-4 (2e-4 for 16,000 symbols) with cosine decay to 0, gradient norm 0.25, coefficient 1e-5;
           Transformer-XL with a memory of 2,048, Compressive with 1,024 and 1,024 slots
  code     300 wide, heads of 50, feed-forward 300, dropout 0.1, widths 0.01 and 0.05, ridge penalty 1.0, smallest
           variance 1e-6; gradients in the last segment only
  ours     output weights of their own: tied to the embeddings, small Transformer-XLs did not begin to learn in trials;
           all of `events`
"""

from memjax.config import (
    Compressive,
    Config,
    Data,
    Dense,
    Evaluation,
    InfinityFormer,
    MarkedEvents,
    Memformer,
    Model,
    Schedule,
    Softmax,
    Sorting,
    Training,
    TransformerXL,
)

VARIANTS = {
    "default": "infinity-former: short-term memory of 1,024 and a sticky signal of 1,024 basis functions",
    "infinity_former": "`default` without sticky memories",
    "transformer_xl": "Transformer-XL with a memory of 2,048 tokens",
    "compressive": "Compressive Transformer: 1,024 tokens and 1,024 compressed slots, 4 tokens each",
    "memformer": "Memformer with 64 slots (not in the paper); gradients in all segments",
    "events": "recall of one of four marked events of a long past by its time (not in the paper): one layer, 64 wide",
    "smoke": "seconds: short documents, 2 layers",
}


def get_config(variant: str = "default") -> Config:
    """Returns the config of a variant, a key of `VARIANTS`."""
    signal = InfinityFormer(
        num_basis=1024,
        contraction=0.75,
        ridge=1.0,
        sticky="sample",
        kl_weight=1e-5,
        min_variance=1e-6,
        memory_length=1024,
    )
    config = Config(
        name=f"sorting_{variant}",
        model=Model(
            dim=300,
            num_layers=3,
            num_heads=6,
            dropout=0.1,
            attention=signal,
            feed_forward=Dense(dim=300),
            output=Softmax(tied=False),
        ),
        data=Data(source=Sorting(), batch_size=8, segment_length=1024),
        training=Training(
            steps=20_000,
            segments_per_update=4,
            burn_in_segments=3,
            schedule=Schedule(learning_rate=2.5e-4, warmup_steps=0, decay="cosine"),
            clip_norm=0.25,
            log_every=100,
            checkpoint_every=2000,
        ),
        evaluation=Evaluation(batch_size=8, compute_accuracy=True),
    )
    match variant:
        case "default":
            pass
        case "infinity_former":
            signal.sticky = "none"
        case "transformer_xl":
            config.model.attention = TransformerXL(memory_length=2048)
        case "compressive":
            config.model.attention = Compressive(memory_length=1024, compressed_memory_length=1024, compression_rate=4)
        case "memformer":
            config.model = Memformer(
                dim=300,
                num_layers=2,
                num_heads=6,
                dropout=0.1,
                encoder_layers=1,
                num_slots=64,
                feed_forward=Dense(dim=300),
                output=Softmax(tied=False),
            )
            config.training.burn_in_segments, config.training.remat = 0, "segment"
        case "events":
            config.model = Model(
                dim=64,
                num_layers=1,
                attention=InfinityFormer(num_basis=64, num_samples=64, num_bins=64, contraction=0.75, norm="pre"),
                feed_forward=Dense(dim=128),
            )
            config.data = Data(source=MarkedEvents(), batch_size=32, segment_length=16)
            config.training = Training(
                steps=400,
                segments_per_update=6,
                burn_in_segments=5,
                schedule=Schedule(learning_rate=3e-3, warmup_steps=20),
            )
            config.evaluation = Evaluation(batch_size=32, compute_accuracy=True)
        case "smoke":
            config.model = Model(
                dim=16,
                num_layers=2,
                num_heads=2,
                attention=InfinityFormer(num_basis=8, num_samples=8, memory_length=8, sticky="sample", num_bins=8),
            )
            config.data = Data(
                source=Sorting(length=30, num_symbols=4, num_documents=20), batch_size=2, segment_length=8
            )
            config.training = Training(
                steps=4,
                segments_per_update=5,
                burn_in_segments=4,
                schedule=Schedule(warmup_steps=0),
                log_every=1,
            )
            config.evaluation = Evaluation(batch_size=2, compute_accuracy=True)
    return config
