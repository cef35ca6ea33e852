"""BERT fine-tuned on SQuAD 1.1.

    memjax import --weights DIR --run runs/minilm
    memjax train --config bert_squad --variant minilm --data.source.path DIR \
        --data.tokenizer.vocab runs/minilm/tokenizer/tokenizer.json --training.init-from runs/minilm
    memjax eval --run runs/bert_squad_minilm

Papers: Devlin et al., "BERT", NAACL 2019, https://arxiv.org/abs/1810.04805; the setting of Kim and Jung, "Large Product
Key Memory for Pretrained Language Models", Findings of EMNLP 2020, https://arxiv.org/abs/2010.03881.
Paper's number: on the development set, BERT-base of Google as Kim and Jung measure it: exact match 81.1, F1 88.5; their
own without memory 82.7 and 89.8, with ResM after 500,000 steps without 83.9 and 90.8; medians of five seeds.
Our number: not run at full size. MiniLM weights fine-tuned for minutes, one seed, with and without memories:
tools/results/tables/bert_squad.md.
Hardware: not stated in the papers for fine-tuning.

Where the values come from
  Kim, Jung   learning rate 5e-5, 32 windows, 3 epochs, warm-up 6 %, weight decay 0.01, 384 tokens, stride 128
  BERT        questions of at most 64 tokens, answers of at most 30, the 20 best starts and ends, one window's tokens
              begin an answer only where it has the most context
  ours        linear decay after the warm-up, gradient norm 1.0; steps are 3 x 87,599 questions / 32, a little less than
              3 epochs, since long texts have several windows; memories of 16,384 slots in layers 1 and 3 of 6 (from 0)
"""

from memjax.config import (
    Adam,
    Bidirectional,
    Config,
    Data,
    Dense,
    Evaluation,
    Model,
    ProductKey,
    QuestionAnswering,
    Schedule,
    Squad,
    Templates,
    Training,
    WordPiece,
)

VARIANTS = {
    "default": "BERT-base, 109M parameters",
    "minilm": "MiniLM weights, 6 layers, 384 wide",
    "minilm_resm": "MiniLM weights, with memories beside two feed-forward networks",
    "smoke": "seconds: 2 layers, 32 wide, questions about synthetic sentences, in windows",
}


def get_config(variant: str = "default") -> Config:
    """Returns the config of a variant, a key of `VARIANTS`, without the paths of texts and vocabulary."""
    steps = 3 * 87_599 // 32
    config = Config(
        name=f"bert_squad_{variant}",
        task=QuestionAnswering(),
        model=encoder(768, 12, 12),
        data=Data(source=Squad(), tokenizer=WordPiece(), batch_size=32, segment_length=384),
        training=Training(
            steps=steps,
            optimizer=Adam(weight_decay=0.01),
            schedule=Schedule(learning_rate=5e-5, warmup_steps=round(0.06 * steps), decay="linear"),
            log_every=50,
            evaluate_every=steps // 3,
            checkpoint_every=500,
        ),
        evaluation=Evaluation(batch_size=32),
    )
    match variant:
        case "default":
            pass
        case "minilm" | "minilm_resm":
            config.model = encoder(384, 6, 12)
            if variant == "minilm_resm":
                memory = ProductKey(activation="gelu_exact", layers=(1, 3), num_keys=128, dense_scale=1.0)
                config.model.feed_forward = memory
        case "smoke":
            config.task = QuestionAnswering(stride=8, max_question_length=8, max_answer_length=4)
            config.model = encoder(32, 2, 2)
            config.data = Data(source=Templates(), tokenizer=WordPiece(vocab_size=128), batch_size=8, segment_length=24)
            config.training = Training(steps=4, schedule=Schedule(warmup_steps=2), log_every=1)
            config.evaluation = Evaluation(batch_size=8)
    return config


def encoder(dim: int, layers: int, heads: int) -> Model:
    """Returns the settings of a BERT of another size."""
    return Model(
        dim=dim,
        num_layers=layers,
        num_heads=heads,
        dropout=0.1,
        attention_dropout=0.1,
        attention=Bidirectional(),
        feed_forward=Dense(activation="gelu_exact"),
    )
