"""BERT by masked language modelling on WikiText, with BERT's WordPiece vocabulary.

    memjax train --config bert_mlm_wikitext --data.source.path DIR --data.tokenizer.vocab vocab.txt
    memjax train --config bert_mlm_wikitext --variant minilm --training.init-from runs/minilm ...
    memjax train --config bert_mlm_wikitext --variant small_resm --training.init-from runs/bert_mlm_wikitext_small ...
    memjax eval --run runs/bert_mlm_wikitext_default --evaluation.split test
    memjax usage --run runs/bert_mlm_wikitext_small_resm
    python -m tools.results run bert_pretraining        # the variants of WikiText-2, MEMJAX_WIKITEXT2=DIR

Papers: Devlin, Chang, Lee and Toutanova, "BERT", NAACL 2019, https://arxiv.org/abs/1810.04805; the setting of Kim and
Jung, "Large Product Key Memory for Pretrained Language Models", Findings of EMNLP 2020,
https://arxiv.org/abs/2010.03881.
Paper's number: Kim and Jung pre-train on Wikipedia and books for 500,000 steps of 1,024 texts; perplexity of hidden
tokens on WikiText-2 and WikiText-103 (no training on either) 3.49 and 3.86, with PKM 3.26 and 3.39, with ResM 3.26 and
3.36; with another 500,000 steps from the model without memory 3.40 and 3.72 (none), 3.14 and 3.26 (PKM), 3.10 and 3.20
(ResM).
Our number: not run at full size. tools/results/tables/bert_mlm_wikitext.md has the sizes of `wikitext2`, with memories
from the start, added later, and without, and what goes on from MiniLM weights.
Hardware: 32 V100 for 2.8 days, in the paper.

Where the values come from
  BERT        15 % of the tokens, of which 80 % read as [MASK] and 10 % as a random token; 12 layers, 768, 12 heads,
              dropout 0.1, Adam 1e-4 over 10,000 steps of warm-up, then linear, weight decay 0.01;
              large: 24 layers, 1,024, 16 heads
  Kim, Jung   no next-sentence task, other masks in every epoch; memories in layers 3 and 7 of 12 (from 0), 262,144
              slots, 4 heads of 32 neighbours, queries of 256, sparse Adam at 1e-3; trained first without memory;
              BERT-large with values of 1,024: 340M, with PKM 860M, with ResM 876M in their table
  ours        in BERT-large layers 7 and 15 of 24, as deep (theirs are not said); WikiText-103 as text, texts of 128
              tokens, 20,000 steps of 256 of them; the sizes of `minilm` and `small`, with 16,384 slots; for WikiText-2
              4 layers of 128, 16 neighbours, a vocabulary of its own, 1,024 tokens a step
"""

from memjax.config import (
    Adam,
    Bidirectional,
    Config,
    Data,
    Dense,
    Evaluation,
    MaskedLanguageModeling,
    Model,
    ProductKey,
    PythonLibrary,
    Schedule,
    Training,
    WikiText,
    WordPiece,
)

VARIANTS = {
    "default": "BERT-base, 110M parameters, texts of 128 tokens",
    "large": "BERT-large, 336M parameters: 24 layers, 1,024 wide",
    "large_pkm": "BERT-large with memories in the place of two feed-forward networks, 859M parameters",
    "large_resm": "BERT-large with memories beside two feed-forward networks, 876M parameters",
    "minilm": "6 layers, 384 wide, as MiniLM: for its weights (memjax import), 23M parameters",
    "small": "4 layers, 256 wide: a size for one machine",
    "pkm": "BERT-base with memories in the place of two feed-forward networks, 506M parameters",
    "resm": "BERT-base with memories beside two feed-forward networks, 515M parameters",
    "minilm_resm": "the size of MiniLM with memories beside two feed-forward networks",
    "small_pkm": "the small size with memories in the place of two feed-forward networks",
    "small_resm": "the small size with memories beside two feed-forward networks",
    "wikitext2": "4 layers, 128 wide, a vocabulary of WikiText-2: minutes on a CPU",
    "wikitext2_pkm": "`wikitext2` with memories in the place of two feed-forward networks",
    "wikitext2_resm": "`wikitext2` with memories beside two feed-forward networks",
    "smoke": "seconds: 2 layers, 32 wide, a vocabulary trained on Python sources",
}


def get_config(variant: str = "default") -> Config:
    """Returns the config of a variant, a key of `VARIANTS`, without the paths of texts and vocabulary."""
    config = Config(
        name=f"bert_mlm_wikitext_{variant}",
        task=MaskedLanguageModeling(),
        model=encoder(768, 12, 12),
        data=Data(source=WikiText(), tokenizer=WordPiece(), batch_size=256, segment_length=128, protocol="contiguous"),
        training=Training(
            steps=20_000,
            optimizer=Adam(weight_decay=0.01),
            schedule=Schedule(learning_rate=1e-4, warmup_steps=10_000, decay="linear"),
            log_every=100,
            checkpoint_every=1000,
            evaluate_every=1000,
        ),
        evaluation=Evaluation(batch_size=32, compute_accuracy=True),
    )
    size, _, memory = variant.rpartition("_") if variant.endswith(("pkm", "resm")) else (variant, "", "")
    match size:
        case "default" | "":
            if memory:
                config.model.feed_forward = memories(memory, (3, 7), num_keys=512)
        case "large":
            config.model = encoder(1024, 24, 16)
            if memory:
                config.model.feed_forward = memories(memory, (7, 15), num_keys=512)
        case "minilm":
            config.model = encoder(384, 6, 12)
            config.data.batch_size, config.training.steps = 32, 2000
            config.training.schedule.warmup_steps = 120
            if memory:
                config.model.feed_forward = memories(memory, (1, 3), num_keys=128)
        case "small":
            config.model = encoder(256, 4, 4)
            config.data.batch_size = 32
            config.training.schedule = Schedule(learning_rate=5e-4, warmup_steps=500, decay="linear")
            if memory:
                config.model.feed_forward = memories(memory, (1, 2), num_keys=128)
        case "wikitext2":
            config.model = encoder(128, 4, 4)
            config.data.tokenizer, config.data.batch_size = WordPiece(vocab_size=4096), 8
            config.training.steps = 2000
            config.training.schedule = Schedule(learning_rate=1e-3, warmup_steps=100, decay="linear")
            config.training.evaluate_every = config.training.checkpoint_every = 250
            if memory:
                config.model.feed_forward = memories(memory, (1, 2), num_keys=128, num_neighbors=16)
        case "smoke":
            config.model = encoder(32, 2, 2)
            config.data = Data(
                source=PythonLibrary(), tokenizer=WordPiece(vocab_size=512), batch_size=2, segment_length=32
            )
            config.training = Training(steps=4, schedule=Schedule(warmup_steps=2), log_every=1)
            config.evaluation = Evaluation(batch_size=2, max_segments=4)
    return config


def memories(kind: str, layers: tuple[int, ...], num_keys: int, num_neighbors: int = 32) -> ProductKey:
    """Returns product keys in the place of feed-forward networks ('pkm') or beside them ('resm')."""
    return ProductKey(
        activation="gelu_exact",
        layers=layers,
        num_keys=num_keys,
        num_neighbors=num_neighbors,
        dense_scale=float(kind == "resm"),
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
