"""ELLE and its baselines: a language model learns domains of text one after the other, and grows before each.

    memjax train --config lifelong_pretraining --variant elle --lifelong.sources-dir DIR    # DIR/encyclopedia.jsonl,
    ... memjax train --config lifelong_pretraining --variant bert_elle --lifelong.sources-dir DIR
    memjax eval --run runs/lifelong_pretraining_elle                                  # nats of every domain, forgetting

DIR has a file of JSON lines with the field `text` for each domain (`tools.measurements.domains` makes them):
`encyclopedia`, `news` and `reviews`, in this order, and `python` after them for the variants `four`. Texts are joined
and cut into pieces of one segment, which are independent examples and are read three times. The tokenizer of byte-level
pairs is trained on the first domain. A memory stores pieces. The first model has two layers of width 64, the last one
four layers of width 128. All variants have the same number of operations in a stage: those with more operations in an
update read fewer pieces.

Paper: Qin et al. 2022, https://arxiv.org/abs/2203.06311.
Paper's number: none that compares, since its domains (Wikipedia, news, reviews, biomedicine, computer science; 3.4 GB
each) are not available to us.
Our number: perplexities of the small models (tools/results/tables/lifelong_pretraining.md); not run at full size.
Hardware: 2 CPU cores.

Where the values come from
  paper       rows of the memory to rows of the domain, about 1 to 9; noise of 0.01; Adam (0.9, 0.98), 1e-6, decay
              0.01; `paper`: rate 5e-4, its five models from 6 layers of 384 to 12 of 768, 512 tokens, 5,000 updates to
              recover; `paper_large`: rate 2.5e-4, from 12 layers of 768 to 24 of 1,024, 1,000 updates to recover; BERT
              likewise
  ours        not searched: sizes of the small model, 128 tokens, batches of 28, 1,000 pieces in the memory, 30 updates
              to recover; weights of EWC and MAS, and of distillation
"""

import copy

from memjax.config import (
    ELLE,
    GPT2,
    Adam,
    Bidirectional,
    BytePairs,
    Config,
    Data,
    Dense,
    EpisodicMemory,
    Evaluation,
    JsonLines,
    KeyValueRecall,
    LanguageModeling,
    Lifelong,
    MaskedLanguageModeling,
    Model,
    Schedule,
    TaskData,
    Training,
)
from memjax.settings.named_methods import make_method_settings

DOMAINS = ("encyclopedia", "news", "reviews")
FOUR = (*DOMAINS, "python")
MEMORY = EpisodicMemory(capacity=1000)
SIZES = {"dim_per_task": (96, 128), "num_layers_per_task": (3, 4)}
RECOVERS = {"memory": MEMORY, "replay_batch_size": 3, "recovery_steps": 30, "recovery_batch_size": 28}
METHODS = {
    "default": make_method_settings("sequential"),
    "replay": make_method_settings("replay", memory=MEMORY, replay_batch_size=3),
    "agem": make_method_settings("agem", memory=MEMORY, reference_batch_size=28),
    "ewc": make_method_settings("ewc", penalty_weight=1.0),
    "mas": make_method_settings("mas", penalty_weight=0.1),
    "logit_kd": make_method_settings("logit_kd", memory=MEMORY, replay_batch_size=3, distillation_weight=1.0),
    "pnn": make_method_settings("progressive"),
    "elle": make_method_settings("elle", **SIZES, **RECOVERS),
    "elle_prompt": make_method_settings("elle", **SIZES, **RECOVERS),
    "elle_paper": ELLE.as_published(**SIZES, **RECOVERS),
    "wider": make_method_settings("elle", dim_per_task=SIZES["dim_per_task"], **RECOVERS),
    "deeper": make_method_settings("elle", num_layers_per_task=SIZES["num_layers_per_task"], **RECOVERS),
    "no_warm_up": make_method_settings("elle", **SIZES, **{**RECOVERS, "recovery_steps": 0}),
    "no_noise": make_method_settings("elle", **SIZES, copy_noise="none", **RECOVERS),
    "annealed": make_method_settings("elle", **SIZES, **RECOVERS, anneal_norms=True),
    "share": make_method_settings("elle", **SIZES, **RECOVERS, memory_fraction=0.06),
    "progress": make_method_settings("elle", **SIZES, **RECOVERS, replay_sampling="progress"),
    "logit_kd_annealed": make_method_settings(
        "logit_kd", memory=MEMORY, replay_batch_size=3, distillation_weight=1.0, anneal_weight=True
    ),
    "bert": make_method_settings("sequential"),
    "bert_replay": make_method_settings("replay", memory=MEMORY, replay_batch_size=3),
    "bert_elle": make_method_settings("elle", **SIZES, new_layer_init="copy", **RECOVERS),
    "bert_elle_prompt": make_method_settings("elle", **SIZES, new_layer_init="copy", **RECOVERS),
    "bert_elle_paper": ELLE.as_published(**SIZES, **RECOVERS),
    "four": make_method_settings("sequential"),
    "four_replay": make_method_settings("replay", memory=MEMORY, replay_batch_size=3),
    "four_elle": make_method_settings("elle", dim_per_task=(80, 96, 128), num_layers_per_task=(3, 3, 4), **RECOVERS),
}
LIMITS = {
    "replay": (3416, 3948, 4256),
    "agem": (1876, 2184, 2352),
    "ewc": (3500, 4088, 4424),
    "mas": (3500, 4088, 4424),
    "logit_kd": (3136, 3612, 3892),
    "pnn": (3789, 3892, 3752),
    "elle": (3416, 1680, 896),
    "elle_prompt": (3416, 1680, 896),
    "elle_paper": (3416, 1680, 896),
    "wider": (3416, 2100, 1456),
    "deeper": (3416, 3136, 2940),
    "no_warm_up": (3416, 1932, 1148),
    "no_noise": (3416, 1680, 896),
    "annealed": (3416, 1680, 896),
    "share": (3416, 1680, 896),
    "progress": (3416, 1680, 896),
    "logit_kd_annealed": (3136, 3612, 3892),
    "bert_replay": (3472, 4032, 4340),
    "bert_elle": (3472, 1232, 476),
    "bert_elle_prompt": (3472, 1232, 476),
    "bert_elle_paper": (3472, 1232, 476),
    "four_replay": (3416, 3948, 4256, 6860),
    "four_elle": (3416, 2240, 1848, 1596),
}
"""variant -> number of pieces that it reads of each domain, three times. Every stage then has as many operations as
plain training on the whole domain: 3.45, 3.98, 4.29 and, on Python sources, 6.90 times 10^12; for BERT 1.53, 1.77 and
1.91 (`python -m tools.measurements.work`)"""
PAPER = {
    "paper": (
        (384, 6, 6),
        {"dim_per_task": (512, 640, 704, 768), "num_layers_per_task": (8, 10, 11, 12), "recovery_steps": 5000},
        {"learning_rate": 5e-4, "warmup_steps": 5000},
    ),
    "paper_large": (
        (768, 12, 12),
        {"dim_per_task": (960, 1024, 1024, 1024), "num_layers_per_task": (15, 18, 21, 24), "recovery_steps": 1000},
        {"learning_rate": 2.5e-4, "warmup_steps": 12_500},
    ),
}
PAPER |= {f"bert_{variant}": sizes for variant, sizes in PAPER.items()}
"""variant -> width, layers and heads of its first model, how it grows, and its rate"""
VARIANTS = {
    "default": "plain training of the first model, one domain after the other",
    "replay": "experience replay: 3 stored pieces beside 28 new ones",
    "agem": "A-GEM",
    "ewc": "elastic weight consolidation",
    "mas": "memory aware synapses",
    "logit_kd": "experience replay with the model before the domain as teacher",
    "pnn": "a progressive network: a column of layers for every domain, of which each is evaluated with its own",
    "elle": "ELLE with the exact expansion, which does not change what the model computes",
    "elle_prompt": "ELLE with a learned prompt for every domain, before each of its pieces",
    "elle_paper": "ELLE with the expansion of the paper, which changes what the model computes",
    "wider": "ELLE that grows in width only",
    "deeper": "ELLE that grows in depth only",
    "no_warm_up": "ELLE without recovery updates after a growth",
    "no_noise": "ELLE without noise, so that copies stay equal",
    "annealed": "ELLE whose weighted norms become ordinary ones while it recovers",
    "share": "ELLE whose memory stores 6% of every domain",
    "progress": "ELLE that replays mostly the domain whose loss falls most, as the published code does",
    "logit_kd_annealed": "`logit_kd` with a weight of the teacher that falls to 0 in the course of a domain",
    "bert": "plain training of BERT by masked language modelling, at the sizes of `default`",
    "bert_replay": "BERT with experience replay: 3 stored pieces beside 28 new ones",
    "bert_elle": "ELLE on BERT, exact in width; new layers are plain copies, since post-norm layers cannot be exact",
    "bert_elle_prompt": "`bert_elle` with a learned prompt for every domain, after the first token",
    "bert_elle_paper": "ELLE on BERT with the expansion of the paper",
    "four": "plain training on four domains, the last of which is Python sources",
    "four_replay": "experience replay on four domains: 3 stored pieces beside 28 new ones",
    "four_elle": "ELLE on four domains",
    "paper": "ELLE at the published sizes: five models from 6 layers of 384 to 12 of 768",
    "paper_large": "ELLE at the larger published sizes: from 12 layers of 768 to 24 of 1,024",
    "bert_paper": "ELLE on BERT at the published sizes of `paper`",
    "bert_paper_large": "ELLE on BERT at the published sizes of `paper_large`",
    "smoke": "seconds: ELLE on keys and values",
}


def get_config(variant: str = "default") -> Config:
    """Returns the config of a variant, a key of `VARIANTS`."""
    sources = {name: JsonLines(path=f"{name}.jsonl") for name in (FOUR if variant.startswith("four") else DOMAINS)}
    config = Config(
        name=f"lifelong_pretraining_{variant}",
        model=Model(
            dim=64,
            num_layers=2,
            num_heads=4,
            scale_embeddings=False,
            attention=GPT2(num_positions=128),
            feed_forward=Dense(dim=256, activation="gelu"),
        ),
        task=LanguageModeling(fixed_length_examples=True),
        data=Data(
            source=sources[DOMAINS[0]],
            tokenizer=BytePairs(vocab_size=4096),
            protocol="contiguous",
            batch_size=28,
            segment_length=128,
        ),
        training=Training(
            optimizer=Adam(b2=0.98, eps=1e-6, weight_decay=0.01),
            schedule=Schedule(learning_rate=1e-3, warmup_steps=0, decay="constant"),
            log_every=50,
            checkpoint_every=0,
        ),
        evaluation=Evaluation(batch_size=64),
        lifelong=Lifelong(
            method=copy.deepcopy(METHODS.get(variant, METHODS["elle"])),
            tasks=tuple(TaskData(name=name, source=source) for name, source in sources.items()),
            epochs=3,
            max_examples_per_task=LIMITS.get(variant, ()),
        ),
    )
    assert config.lifelong is not None
    if variant in ("elle_prompt", *PAPER):
        config.task = LanguageModeling(fixed_length_examples=True, prompt="before")
    if variant.startswith("bert"):
        config.model.attention = Bidirectional(num_positions=128)
        prompt = "before" if variant in PAPER else "after_first" if variant == "bert_elle_prompt" else "none"
        config.task = MaskedLanguageModeling(prompt=prompt)
    if variant in PAPER:
        first, sizes, how = PAPER[variant]
        config.model.dim, config.model.num_layers, config.model.num_heads = first
        config.model.feed_forward.dim = 4 * config.model.dim
        encodes = variant.startswith("bert")
        config.model.attention = Bidirectional(num_positions=512) if encodes else GPT2(num_positions=512)
        config.data.tokenizer, config.data.batch_size, config.data.segment_length = (
            BytePairs(vocab_size=50_257),
            1840,
            512,
        )
        config.training.schedule = Schedule(**how)
        config.lifelong.tasks = tuple(
            TaskData(name=f"domain_{number}", source=JsonLines(path=f"domain_{number}.jsonl")) for number in range(5)
        )
        config.data.source = config.lifelong.tasks[0].source
        config.lifelong.method = ELLE.as_published(
            **sizes, memory=EpisodicMemory(capacity=400_000), replay_batch_size=208, recovery_batch_size=2048
        )
    if variant == "smoke":
        tables = [
            KeyValueRecall(num_keys=4, num_values=4, num_pairs=2, filler_length=2 + i, num_documents=8)
            for i in range(2)
        ]
        config.model.dim, config.model.num_layers, config.model.num_heads = 8, 1, 2
        config.model.feed_forward.dim, config.data.source, config.data.segment_length = 16, tables[0], 8
        config.data.protocol, config.data.batch_size = "separate", 4
        config.evaluation.batch_size, config.training.log_every = 4, 1
        config.lifelong.tasks = tuple(TaskData(name=f"task_{i}", source=table) for i, table in enumerate(tables))
        config.lifelong.method = ELLE(
            dim_per_task=(12,),
            num_layers_per_task=(2,),
            memory=EpisodicMemory(capacity=16),
            replay_batch_size=2,
            recovery_steps=2,
            recovery_batch_size=4,
        )
    return config
