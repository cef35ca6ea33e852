"""MemSizer and other linear states in translation: WMT14, English to German, at the size of a big Transformer.

    memjax train --config memsizer_wmt
    memjax train --config memsizer_wmt --variant softmax
    memjax train --config memsizer_wmt --variant t2r --training.init-from runs/memsizer_wmt_softmax
    memjax eval --run RUN --evaluation.split test --evaluation.max-answers 3003  # with BLEU, beam 5, length penalty 1

Paper: Zhang and Cai, "Linearizing Transformer with Key-Value Memory", EMNLP 2022, https://arxiv.org/abs/2203.12644.
Paper's number: about 17 % fewer parameters than the Transformer (210M); its BLEU is not at hand.
Our number: 175,915,016 parameters instead of 209,911,808; not run at full size (a small one: configs/multi30k.py).
Hardware: 8 GPUs (authors' scripts).

Where the values come from
  scripts     (authors, fairseq) 6 + 6 layers, 1,024, 16 heads, feed-forward 4,096, post-norm, biases in all attention,
              one vocabulary for both languages and the output; the encoder keeps softmax attention, the decoder has 4
              slots in causal and 32 in cross attention, whose matrices start 8 ** -0.5 as large; dropout 0.3, label
              smoothing 0.1, Adam 0.9 / 0.98 at 5e-4, 4,000 steps of warm-up, then the inverse root; 90,000 updates
  ours        32,768 subwords by SentencePiece; rows of sentences and not of tokens: 512 pairs an update
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
    FullAttention,
    LinearTransformer,
    MemSizer,
    NumberWords,
    Schedule,
    SentencePiece,
    TfdsTranslation,
    Training,
)

VARIANTS = {
    "default": "MemSizer: 4 slots in causal, 32 in cross attention",
    "softmax": "softmax attention everywhere; T2R continues from it",
    "linear_transformer": "Linear Transformer in causal and cross attention",
    "rfa": "RFA in causal and cross attention",
    "t2r": "T2R: 4 learned features in causal, 32 in cross attention; meant to continue from `softmax`",
    "smoke": "seconds: numbers in words, 1 + 1 layers, 16 wide",
}


def get_config(variant: str = "default") -> Config:
    """Returns the config of a variant, a key of `VARIANTS`."""
    slots = lambda number: MemSizer(num_slots=number, query_init_scale=8.0, source_init_scale=8.0)
    model = EncoderDecoder(
        dim=1024,
        num_layers=6,
        num_heads=16,
        dropout=0.3,
        feed_forward=Dense(dim=4096),
        attention=slots(4),
        cross_attention=slots(32),
        encoder_bias=True,
    )
    config = Config(
        name=f"memsizer_wmt_{variant}",
        model=model,
        data=Data(
            source=TfdsTranslation(), tokenizer=SentencePiece(vocab_size=32_768), batch_size=512, segment_length=128
        ),
        training=Training(
            steps=90_000,
            optimizer=Adam(b1=0.9, b2=0.98),
            schedule=Schedule(learning_rate=5e-4, warmup_steps=4000, decay="rsqrt"),
            log_every=200,
            checkpoint_every=2000,
            evaluate_every=2000,
        ),
        evaluation=Evaluation(batch_size=64),
    )
    match variant:
        case "default":
            pass
        case "softmax":
            plain = lambda: FullAttention(query_key_norm=False, num_buckets=0, bias=True)
            model.attention, model.cross_attention = plain(), plain()
        case "linear_transformer":
            model.attention, model.cross_attention = LinearTransformer(), LinearTransformer()
        case "rfa":
            model.attention, model.cross_attention = RFA(), RFA()
        case "t2r":
            model.attention, model.cross_attention = T2R(num_features=4), T2R(num_features=32)
        case "smoke":
            model.dim, model.num_layers, model.num_heads, model.feed_forward.dim = 16, 1, 2, 32
            config.data = Data(source=NumberWords(num_documents=32), tokenizer=Bytes(), batch_size=2, segment_length=96)
            config.training = Training(steps=4, schedule=Schedule(warmup_steps=2), log_every=1)
            config.evaluation = Evaluation(batch_size=2, max_segments=4)
    return config
