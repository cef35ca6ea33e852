"""Compressive Transformer on WikiText at word level, with adaptive embeddings and softmax.

    memjax train --config compressive_wikitext --data.source.path DIR                        # WikiText-103
    memjax train --config compressive_wikitext --variant wikitext2 --data.source.path DIR    # WikiText-2
    memjax eval --run runs/compressive_wikitext_default --evaluation.split test --evaluation.memory-length 500 \
        --model.attention.compressed-memory-length 1500

Paper: Rae, Potapenko, Jayakumar and Lillicrap, "Compressive Transformers for Long-Range Sequence Modelling",
ICLR 2020, https://arxiv.org/abs/1911.05507.
Paper's number: WikiText-103 perplexity 16.0 on validation and 17.1 on test with 500 + 1,500 slots at evaluation (17.6
with the slots of training; Transformer-XL with a memory of 1,024: 18.1).
Our number: not run at full size.
Hardware: 64 TPU v3 cores, about 12 hours, in the paper.

Where the values come from
  paper       18 layers, 1,024, 16 heads, feed-forward 4,096, adaptive inputs, segment, memory and compressed memory
              512, c = 4, convolution, attention-reconstruction loss, 128 rows, Adam, learning rate up to 3e-4 over
              16,000 steps and by a cosine to 1e-6 at 500,000, gradient norm 0.1; evaluation with 500 and 1,500 slots
  authors' code   relative positions of their own for compressed slots
  ours        clusters and dropout as the large Transformer-XL; the variant `wikitext2`: the paper has no numbers on it;
              its segments are as long as its memory, as everywhere in the paper
  differs     from step 60,000 on the paper applies the mean gradient of every four steps
  (`training.gradient_accumulation_steps`)
"""

from memjax.config import (
    AdaptiveSoftmax,
    Compressive,
    Config,
    Data,
    Dense,
    Evaluation,
    Model,
    PythonLibrary,
    Schedule,
    SentencePiece,
    Training,
    WikiText,
    Words,
)

VARIANTS = {
    "default": "WikiText-103, 18 layers, 380M parameters",
    "wikitext2": "WikiText-2, a size for one machine: the attention length of transformer_xl_wikitext with 128 slots",
    "smoke": "seconds: 2 layers, 32 wide, subwords of Python sources in contiguous streams",
}


def get_config(variant: str = "default") -> Config:
    """Returns the config of a variant, a key of `VARIANTS`, without `data.source.path`."""
    config = Config(
        name=f"compressive_wikitext_{variant}",
        model=Model(
            dim=1024,
            num_layers=18,
            num_heads=16,
            head_dim=64,
            dropout=0.2,
            attention_dropout=0.2,
            attention=Compressive(memory_length=512, compressed_memory_length=512, compression_rate=4),
            feed_forward=Dense(dim=4096),
            output=AdaptiveSoftmax(
                cutoffs=(20_000, 40_000, 200_000), div_val=4, tie_projections=(False, True, True, True)
            ),
        ),
        data=Data(source=WikiText(), tokenizer=Words(), batch_size=128, segment_length=512, protocol="contiguous"),
        training=Training(
            steps=500_000,
            schedule=Schedule(learning_rate=3e-4, warmup_steps=16_000, decay="cosine", final_fraction=1 / 300),
            clip_norm=0.1,
            log_every=200,
            checkpoint_every=4000,
            evaluate_every=4000,
        ),
        evaluation=Evaluation(batch_size=10),
    )
    match variant:
        case "default":
            pass
        case "wikitext2":
            config.model = Model(
                dim=256,
                num_layers=6,
                num_heads=8,
                dropout=0.3,
                attention=Compressive(memory_length=64, compressed_memory_length=64, compression_rate=4),
                output=AdaptiveSoftmax(cutoffs=(4_000, 12_000)),
            )
            config.data.batch_size, config.data.segment_length = 32, 64
            config.training = Training(
                steps=20_000, schedule=Schedule(learning_rate=5e-4, warmup_steps=500), clip_norm=0.1
            )
        case "smoke":
            config.model = Model(
                dim=32,
                num_layers=2,
                num_heads=2,
                attention=Compressive(memory_length=16, compressed_memory_length=8, compression_rate=4),
                output=AdaptiveSoftmax(cutoffs=(100, 300), div_val=2),
            )
            config.data = Data(
                source=PythonLibrary(),
                tokenizer=SentencePiece(vocab_size=512),
                batch_size=2,
                segment_length=16,
                protocol="contiguous",
            )
            config.training = Training(steps=4, schedule=Schedule(warmup_steps=0), clip_norm=0.1, log_every=1)
            config.evaluation = Evaluation(batch_size=2, max_segments=4)
    return config
