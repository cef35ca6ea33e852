"""kNN-LM on WikiText-2: a small Transformer-XL with a datastore of its hidden states on the training split.

    memjax train --config knn_lm_wikitext --data.source.path DIR
    python -m tools.measurements.knn_lm runs/knn_lm_wikitext_default --data.source.path DIR

Paper: Khandelwal, Levy, Jurafsky, Zettlemoyer and Lewis, "Generalization through Memorization: Nearest Neighbor
  Language Models", ICLR 2020, https://arxiv.org/abs/1911.00172.
Paper's number: WikiText-103 test perplexity 18.65 without and 16.12 with the datastore (247M parameters); none on
  WikiText-2.
Our number: test perplexity without and with the datastore, with a continuous cache, and of novels:
tools/results/tables/knn_lm.md.
Hardware: 2 CPU cores.

Where the values come from
  paper       keys: the input of the last feed-forward layer after its normalisation, so a pre-norm model
  ours        everything else, a size that minutes of CPU can train: four layers, 128 wide; adaptive clusters; memory
              and segment of 64; contiguous streams, the published protocol of WikiText
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
    "default": "WikiText-2, 4 layers, 128 wide",
    "smoke": "seconds: 2 layers, 32 wide, subwords of Python sources in contiguous streams",
}


def get_config(variant: str = "default") -> Config:
    """Returns the config of a variant, a key of `VARIANTS`, without `data.source.path`."""
    config = Config(
        name=f"knn_lm_wikitext_{variant}",
        model=Model(
            dim=128,
            num_layers=4,
            num_heads=4,
            dropout=0.1,
            attention=TransformerXL(memory_length=64, norm="pre"),
            feed_forward=Dense(dim=512),
            output=AdaptiveSoftmax(cutoffs=(2_000, 10_000), div_val=2),
        ),
        data=Data(source=WikiText(), tokenizer=Words(), batch_size=16, segment_length=64, protocol="contiguous"),
        training=Training(
            steps=8_000,
            schedule=Schedule(learning_rate=2e-3, warmup_steps=300, decay="cosine", final_fraction=0.02),
            log_every=200,
            checkpoint_every=1000,
            evaluate_every=4000,
        ),
        evaluation=Evaluation(batch_size=16, protocol="contiguous"),
    )
    match variant:
        case "default":
            pass
        case "smoke":
            config.model.dim, config.model.num_layers, config.model.num_heads = 32, 2, 2
            config.model.attention = TransformerXL(memory_length=16, norm="pre")
            config.model.feed_forward.dim = 64
            config.model.output = AdaptiveSoftmax(cutoffs=(100, 300), div_val=2)
            config.data.source, config.data.tokenizer = PythonLibrary(), SentencePiece(vocab_size=512)
            config.data.batch_size, config.data.segment_length = 2, 16
            config.training = Training(steps=4, schedule=Schedule(warmup_steps=2), log_every=1)
            config.evaluation = Evaluation(batch_size=2, protocol="contiguous", max_segments=4)
    return config
