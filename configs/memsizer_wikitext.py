"""MemSizer and other linear states on WikiText-103 at word level.

    memjax train --config memsizer_wikitext --data.source.path DIR
    memjax train --config memsizer_wikitext --variant t2r --training.init-from runs/softmax --data.source.path DIR

Paper: Zhang and Cai, "Linearizing Transformer with Key-Value Memory", EMNLP 2022, https://arxiv.org/abs/2203.12644.
Paper's number: about 20 % fewer parameters than the Transformer of equal layers (449M); its perplexities are not at
hand.
Our number: 357,225,472 parameters instead of 448,473,088, with the 267,744 words of the authors' dictionary (ours has
267,735); not run at full size.
Hardware: 8 GPUs (authors' scripts).

Where the values come from
  scripts     (authors, fairseq) 32 layers, 1,024, 8 heads, feed-forward 4,096, k = 32, dropout 0.2 (attention 0.1),
              pre-norm without a norm after the last layer, biases in all attention, adaptive clusters at 20,000 and
              60,000, each 4 times narrower, tied; segments of 512, 286,000 updates of 9,216 tokens
  ours        Adam with cosine decay instead of Nesterov momentum with restarts; no layer dropout; separate documents,
              over whose segments the state goes on
"""

from memjax.config import (
    RFA,
    T2R,
    AdaptiveSoftmax,
    Config,
    Data,
    Evaluation,
    FullAttention,
    LinearTransformer,
    MemSizer,
    Model,
    PythonLibrary,
    Schedule,
    SentencePiece,
    Softmax,
    Training,
    WikiText,
    Words,
)

VARIANTS = {
    "default": "MemSizer, 32 slots, 8 heads",
    "linear_transformer": "Linear Transformer, features elu(x) + 1",
    "rfa": "RFA, 64 random directions",
    "rfa_gate": "RFA with a gate",
    "t2r": "T2R, 32 learned features; meant to continue from `softmax`",
    "softmax": "softmax attention within a segment, without a state; T2R continues from it",
    "smoke": "seconds: 2 layers, 32 wide, subwords of Python sources",
}


def get_config(variant: str = "default") -> Config:
    """Returns the config of a variant, a key of `VARIANTS`, without `data.source.path`."""
    config = Config(
        name=f"memsizer_wikitext_{variant}",
        model=Model(
            dim=1024,
            num_layers=32,
            num_heads=8,
            dropout=0.2,
            attention_dropout=0.1,
            attention=MemSizer(num_slots=32, final_norm=False),
            positions="sinusoids",
            output=AdaptiveSoftmax(cutoffs=(20_000, 60_000), div_val=4, tie_projections=(True, True, True), bias=False),
        ),
        data=Data(source=WikiText(), tokenizer=Words(), batch_size=18, segment_length=512),
        training=Training(
            steps=286_000,
            schedule=Schedule(learning_rate=5e-4, warmup_steps=16_000),
            clip_norm=0.1,
            log_every=200,
            checkpoint_every=4000,
            evaluate_every=4000,
        ),
        evaluation=Evaluation(batch_size=8),
    )
    match variant:
        case "default":
            pass
        case "linear_transformer":
            config.model.attention = LinearTransformer(final_norm=False)
        case "rfa":
            config.model.attention = RFA(final_norm=False)
        case "rfa_gate":
            config.model.attention = RFA(gate=True, final_norm=False)
        case "t2r":
            config.model.attention = T2R(final_norm=False)
        case "softmax":
            config.model.attention = FullAttention(
                query_key_norm=False, num_buckets=0, bias=True, norm_kind="layer", final_norm=False
            )
        case "smoke":
            config.model = Model(
                dim=32,
                num_layers=2,
                num_heads=2,
                attention=MemSizer(num_slots=4),
                positions="sinusoids",
                output=Softmax(),
            )
            config.data = Data(
                source=PythonLibrary(), tokenizer=SentencePiece(vocab_size=512), batch_size=2, segment_length=16
            )
            config.training = Training(steps=4, schedule=Schedule(warmup_steps=2), log_every=1)
            config.evaluation = Evaluation(batch_size=2, max_segments=4)
    return config
