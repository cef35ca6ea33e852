"""Fine-tuning of a model pretrained by ELLE on a task of one domain, with the right, a wrong or no prompt.

    memjax train --config elle_downstream --variant news --training.init-from RUN --task.prompt-task-index 1 \\
        --data.tokenizer.path RUN/tokenizer/tokenizer.json --data.source.path DIR

RUN is a run of the config `lifelong_pretraining`, variant `bert_elle_prompt`. DIR is the folder of the task, with the
files of O-LoRA or of AG News. `task.prompt_task_index` chooses the domain whose prompt is put into every text: 0 =
encyclopedia, 1 = news, 2 = reviews, -1 = no prompt.

Paper: Qin et al. 2022, https://arxiv.org/abs/2203.06311, whose tasks are MNLI, HyperPartisan, Helpfulness, ChemProt and
ACL-ARC.
Paper's number: none that compares, since its tasks and corpora are not available to us.
Our number: accuracies with the right, a wrong and no prompt (tools/results/tables/lifelong_pretraining.md).
Hardware: 2 CPU cores.

Where the values come from
  ours        not searched: 320 updates of 32 texts of at most 128 tokens, Adam at 5e-4
"""

from memjax.config import (
    Adam,
    Bidirectional,
    BytePairs,
    Classification,
    CLBenchmark,
    Config,
    Data,
    Dense,
    Evaluation,
    Model,
    Schedule,
    Templates,
    TextClasses,
    Training,
)

SOURCES = {
    "encyclopedia": CLBenchmark(task="dbpedia", equality="letters_and_digits"),
    "news": TextClasses(data_set="ag_news", train=("alps_dev.tsv",), test=(), equality="letters_and_digits"),
    "reviews": CLBenchmark(task="sst2", equality="letters_and_digits"),
}
VARIANTS = {
    "encyclopedia": "DBpedia, 14 classes",
    "news": "AG News, 4 classes, on other texts than those of the domain `news`",
    "reviews": "SST-2, 2 classes",
    "default": "the same as `news`",
    "smoke": "seconds: synthetic sentences",
}


def get_config(variant: str = "default") -> Config:
    """Returns the config of a variant, a key of `VARIANTS`."""
    config = Config(
        name=f"elle_downstream_{variant}",
        model=Model(
            dim=128,
            num_layers=4,
            num_heads=8,
            head_dim=16,
            scale_embeddings=False,
            weighted_norms=True,
            attention=Bidirectional(num_positions=128),
            feed_forward=Dense(dim=512, activation="gelu"),
        ),
        task=Classification(num_classes=42, prompt="after_first", prompt_task_index=1),
        data=Data(
            source=SOURCES.get(variant, SOURCES["news"]), tokenizer=BytePairs(), batch_size=32, segment_length=128
        ),
        training=Training(
            steps=320,
            optimizer=Adam(b2=0.98, eps=1e-6, weight_decay=0.01),
            schedule=Schedule(learning_rate=5e-4, warmup_steps=20, decay="linear"),
            log_every=40,
            evaluate_every=0,
            checkpoint_every=0,
        ),
        evaluation=Evaluation(batch_size=64, split="test"),
    )
    if variant == "smoke":
        config.model.dim, config.model.num_layers, config.model.num_heads, config.model.head_dim = 16, 1, 2, 8
        config.model.feed_forward.dim = 16
        config.data = Data(source=Templates(), tokenizer=BytePairs(vocab_size=280), batch_size=4, segment_length=64)
        config.training = Training(steps=2, schedule=Schedule(warmup_steps=1), log_every=1)
        config.evaluation = Evaluation(batch_size=4)
    return config
