"""infinity-former on WikiText-103, trained from scratch: Transformer-XL with a continuous long-term memory beside it.

    memjax train --config infinity_former_wikitext --data.source.path DIR
    memjax train --config infinity_former_wikitext --variant sticky --data.source.path DIR

Paper: Martins, Marinho and Martins, "infinity-former: Infinite Memory Transformer", ACL 2022,
https://arxiv.org/abs/2109.00301.
Paper's number: test perplexity 24.29, 24.22 with sticky memories; Transformer-XL 24.52, Compressive 24.41.
Our number: not run at full size.
Hardware: not said in the paper.

Where the values come from
  paper    16 layers, 410 wide, 10 heads, feed-forward 2,100, short-term memory and segment 150, 150 basis functions,
           tau 0.5, 40 streams, 250,000 steps, Adam 2.5e-4 with cosine decay, prior 0.1, coefficient 1e-5, "memory
           threshold" 900, read as tokens after which the signal begins anew
  code     widths 0.01 and 0.05, ridge penalty 0.5, 512 samples of the past, 128 bins
"""

from memjax.config import (
    AdaptiveSoftmax,
    Config,
    Data,
    Dense,
    Evaluation,
    InfinityFormer,
    Model,
    PythonLibrary,
    Schedule,
    SentencePiece,
    Training,
    WikiText,
    Words,
)

VARIANTS = {
    "default": "short-term memory of 150 tokens and a signal of 150 basis functions",
    "sticky": "`default` with sticky memories: updates read the past where the queries looked",
    "transformer_xl": "`default` without the signal",
    "smoke": "seconds: 2 layers, 32 wide, subwords of Python sources in contiguous streams",
}


def get_config(variant: str = "default") -> Config:
    """Returns the config of a variant, a key of `VARIANTS`, without `data.source.path`."""
    attention = InfinityFormer(
        num_basis=150,
        memory_length=150,
        reset_after_tokens=900,
        prior_stddev=0.1,
        kl_weight=1e-5,
    )
    config = Config(
        name=f"infinity_former_wikitext_{variant}",
        model=Model(
            dim=410,
            num_layers=16,
            num_heads=10,
            head_dim=41,
            dropout=0.1,
            attention=attention,
            feed_forward=Dense(dim=2100),
            output=AdaptiveSoftmax(cutoffs=(20_000, 40_000, 200_000)),
        ),
        data=Data(source=WikiText(), tokenizer=Words(), batch_size=40, segment_length=150, protocol="contiguous"),
        training=Training(
            steps=250_000,
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
        case "sticky":
            attention.sticky = "sample"
        case "transformer_xl":
            attention.num_basis = 0
        case "smoke":
            config.model = Model(
                dim=32,
                num_layers=2,
                num_heads=2,
                attention=InfinityFormer(num_basis=16, num_samples=8, memory_length=16, sticky="sample", num_bins=8),
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
