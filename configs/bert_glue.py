"""BERT fine-tuned on a task of GLUE.

    memjax import --weights DIR --run runs/minilm
    memjax train --config bert_glue --variant cola --data.source.path DIR --training.init-from runs/minilm \
        --data.tokenizer.vocab runs/minilm/tokenizer/tokenizer.json
    memjax eval --run runs/bert_glue_cola --evaluation.split validation
    memjax train --config bert_glue --variant cola_resm --training.init-from runs/bert_mlm_wikitext_minilm_resm ...
    memjax train --config bert_glue --variant cola_resm --training.frozen-parameters feed_forward/memory/ --name frozen
    ...

Papers: Devlin et al., "BERT", NAACL 2019, https://arxiv.org/abs/1810.04805; the setting of Kim and Jung, "Large Product
Key Memory for Pretrained Language Models", Findings of EMNLP 2020, https://arxiv.org/abs/2010.03881.
Paper's number: on the development sets, BERT-base of Google as Kim and Jung measure it: SST-2 92.9, QNLI 88.4, CoLA
59.8 (Matthews); their own without memory 92.8, 89.3, 60.8, with ResM after 500,000 steps without 94.0, 90.4, 64.1;
medians of five seeds. With the memories frozen CoLA loses 2.5 to 4.8.
Our number: not run at full size. MiniLM weights fine-tuned for minutes, one seed, with and without memories:
tools/results/tables/bert_glue.md.
Hardware: not stated in the papers for fine-tuning.

Where the values come from
  Kim, Jung   learning rate 2e-5, 32 texts, 10 epochs, warm-up 6 %, weight decay 0.1, 128 tokens
  ours        linear decay after the warm-up, gradient norm 1.0; steps are epochs x examples / 32; the variants with
              MiniLM weights (sentence embeddings, 6 layers), which neither paper has, use learning rate 5e-5; memories
              of 16,384 slots in layers 1 and 3 of 6 (from 0)
"""

from typing import Literal

from memjax.config import (
    Adam,
    Bidirectional,
    Classification,
    Config,
    Data,
    Dense,
    Evaluation,
    Glue,
    Model,
    ProductKey,
    Schedule,
    Templates,
    Training,
    WordPiece,
)

VARIANTS = {
    "default": "BERT-base on SST-2, 110M parameters",
    "cola": "MiniLM weights on CoLA",
    "sst2": "MiniLM weights on SST-2",
    "qnli": "MiniLM weights on QNLI",
    "cola_resm": "MiniLM weights on CoLA, with memories beside two feed-forward networks",
    "sst2_resm": "MiniLM weights on SST-2, with memories beside two feed-forward networks",
    "qnli_resm": "MiniLM weights on QNLI, with memories beside two feed-forward networks",
    "smoke": "seconds: 2 layers, 32 wide, synthetic sentences",
}

EXAMPLES: dict[str, int] = {"cola": 8_551, "sst2": 67_349, "qnli": 104_743}
"""number of examples of the published training splits"""
Name = Literal["cola", "sst2", "qnli"]


def get_config(variant: str = "default") -> Config:
    """Returns the config of a variant, a key of `VARIANTS`, without the paths of texts and vocabulary."""
    config = Config(
        name=f"bert_glue_{variant}",
        task=Classification(),
        model=encoder(768, 12, 12),
        data=Data(source=Glue(name="sst2"), tokenizer=WordPiece(), batch_size=32, segment_length=128),
        training=fine_tuning("sst2", learning_rate=2e-5),
        evaluation=Evaluation(batch_size=32),
    )
    match variant:
        case "default":
            pass
        case "cola" | "sst2" | "qnli":
            config.model = encoder(384, 6, 12)
            config.data.source = Glue(name=variant)
            config.training = fine_tuning(variant, learning_rate=5e-5)
        case "cola_resm" | "sst2_resm" | "qnli_resm":
            config = get_config(variant.removesuffix("_resm"))
            config.name = f"bert_glue_{variant}"
            memory = ProductKey(activation="gelu_exact", layers=(1, 3), num_keys=128, dense_scale=1.0)
            config.model.feed_forward = memory
        case "smoke":
            config.model = encoder(32, 2, 2)
            config.data = Data(source=Templates(), tokenizer=WordPiece(vocab_size=128), batch_size=8, segment_length=32)
            config.training = Training(steps=4, schedule=Schedule(warmup_steps=2), log_every=1)
            config.evaluation = Evaluation(batch_size=8)
    return config


def fine_tuning(name: Name, *, learning_rate: float, epochs: int = 10) -> Training:
    """Returns training settings for some epochs over a task, with 32 texts a step."""
    steps = epochs * -(-EXAMPLES[name] // 32)
    return Training(
        steps=steps,
        optimizer=Adam(weight_decay=0.1),
        schedule=Schedule(learning_rate=learning_rate, warmup_steps=round(0.06 * steps), decay="linear"),
        log_every=50,
        evaluate_every=steps // epochs,
        checkpoint_every=steps // epochs,
    )


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
