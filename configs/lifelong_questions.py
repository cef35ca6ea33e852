"""MbPA++ and its baselines on extractive question answering: four stages one after the other, one pass.

    memjax train --config lifelong_questions --variant mbpa_pp --lifelong.sources-dir DIR --training.init-from RUN \\
        --data.tokenizer.vocab RUN/tokenizer/tokenizer.json                # DIR/squad, DIR/qa-srl
    memjax eval --run runs/lifelong_questions_mbpa_pp                      # F1 of every stage, forgetting, exact match

The stages are two groups of articles of SQuAD 1.1, and the two sets of the gold standard of QA-SRL
(`memjax.config.QaSrl`). The papers have other stages, QuAC, TriviaQA (web and Wikipedia) and SQuAD, as only the variant
`paper` does, so that no other result compares with published ones. The stages are in the published orders, with the
first group in place of QuAC and QA-SRL in place of TriviaQA. Only the last layer of MiniLM and the head are trained.
The hidden states of the other layers are computed once, and stored in the folder `--data.encoder-states-dir`. RUN is
the run that
`memjax import` makes from the weights of MiniLM. Answers must begin and end in the text. A memory stores windows of
texts, and K is a number of windows.

Paper: de Masson d'Autume et al. 2019, https://arxiv.org/abs/1906.01076; Wang et al. 2020 (Meta-MbPA),
https://arxiv.org/abs/2010.02500.
Paper's number: recalled and not verified: F1 62.0 of MbPA++ on average over four orders, 53.1 of plain training.
Our number: none: not run at full size, and at the small size, 300 questions a stage in one pass or 170 updates, nothing
was learned. Small variants show that everything runs, not what a method is worth.
Hardware: 2 CPU cores, 2.3 minutes for plain training.

Where the values come from
  paper       K = 32, L = 30, uniform weights, 1 % replayed, batches of 32, one pass, keys of the first token of the
              question, the four orders (`memjax.lifelong.orders`; this is the first)
  recalled    of the paper, not verified: its rate 3e-5, the 5e-3 of the adaptation and its 1e-4 for questions, 384
              tokens
  ours        not searched: windows of 128 tokens, 64 apart, 300 questions a stage to train on and 40 to test; rate
              3e-4, batches of 8; replays every 200 windows; 8 neighbours and 5 steps of the head only; of Meta-MbPA one
              adaptation for all, of 30 steps
"""

import copy
from typing import Any

from memjax.config import (
    Config,
    Data,
    EpisodicMemory,
    Evaluation,
    Lifelong,
    MbPA,
    QaSrl,
    Quac,
    QuestionAnswering,
    Schedule,
    Squad,
    TaskData,
    Templates,
    Training,
    TriviaQa,
    WordPiece,
)
from memjax.lifelong.orders import QUESTION_ORDERS
from memjax.settings.named_methods import make_method_settings
from memjax.settings.overrides import load_config

PLACES = {"quac": "squad_1", "trivia_qa_web": "wikinews", "trivia_qa_wikipedia": "wikipedia", "squad": "squad_2"}
"""stage of the papers -> the one that stands in its place"""
ORDERS = tuple(tuple(PLACES[name] for name in order) for order in QUESTION_ORDERS)
SIZES: dict[str, Any] = {
    "num_train": 300,
    "num_validation": 40,
    "num_test": 40,
    "validation_percent": 15,
    "test_percent": 25,
}
"""questions of a stage, and the shares of SQuAD's articles that are held out"""
ALL = EpisodicMemory(write_policy="all", capacity=4000, storage="host")
ADAPTED = {
    "key_source": "question",
    "num_neighbors": 8,
    "adaptation_steps": 5,
    "adapted_parameters": ("head/",),
    "adaptation_learning_rate": 5e-3,
    "adaptation_batch_size": 4,
}
REPLAYED = {"memory": ALL, "replay_interval": 200, "replay_batch_size": 16}
METHODS = {
    "default": make_method_settings("sequential"),
    "multi_task": make_method_settings("multi_task"),
    "replay": make_method_settings("replay", mode="sparse", **REPLAYED),
    "agem": make_method_settings("agem", memory=ALL, reference_batch_size=16, projection_interval=200),
    "ewc_online": make_method_settings("ewc", penalty_weight=1.0, consolidation="online", decay=1.0),
    "mbpa_random": make_method_settings("mbpa_pp", neighbor_choice="random", **REPLAYED, **ADAPTED),
    "mbpa": make_method_settings("mbpa", memory=ALL, **ADAPTED),
    "mbpa_pp": make_method_settings("mbpa_pp", **REPLAYED, **ADAPTED),
    "meta_mbpa": make_method_settings(
        "meta_mbpa",
        memory=EpisodicMemory(write_policy="diversity", write_probability=0.01, capacity=100),
        replay_interval=200,
        replay_batch_size=16,
        key_source="question",
        num_neighbors=8,
        adapted_parameters=("head/",),
        inner_learning_rate=5e-3,
        adaptation_learning_rate=5e-3,
    ),
}
VARIANTS = {
    "default": "plain training, one stage after the other",
    "multi_task": "all stages shuffled together",
    "replay": "sparse experience replay",
    "agem": "sparse A-GEM",
    "ewc_online": "online elastic weight consolidation",
    "mbpa_random": "MbPA++ with random neighbours",
    "mbpa": "MbPA: neighbours weighted by distance, no replay",
    "mbpa_pp": "MbPA++",
    "meta_mbpa": "Meta-MbPA with a hundredth of the windows",
    "paper": "MbPA++ at the published size: BERT-base twice, the four published stages, 384 tokens",
    "smoke": "seconds: MbPA++ on questions about synthetic sentences, in windows",
}


def get_config(variant: str = "default") -> Config:
    """Returns the config of a variant, a key of `VARIANTS`."""
    paper = variant == "paper"
    sources = published_stages() if paper else stages()
    order = QUESTION_ORDERS[0] if paper else ORDERS[0]
    like = load_config("bert_squad", "default" if paper else "minilm")
    config = Config(
        name=f"lifelong_questions_{variant}",
        model=like.model,
        task=QuestionAnswering(stride=64, max_question_length=32, answers_in_context_only=True),
        data=Data(source=sources[order[0]], tokenizer=WordPiece(), batch_size=8, segment_length=128),
        training=Training(
            schedule=Schedule(learning_rate=3e-4, warmup_steps=0, decay="constant"),
            log_every=50,
            evaluate_every=0,
            checkpoint_every=0,
        ),
        evaluation=Evaluation(batch_size=16, split="test"),
        lifelong=Lifelong(
            method=copy.deepcopy(METHODS.get(variant, METHODS["mbpa_pp"])),
            tasks=tuple(TaskData(name=name, source=sources[name]) for name in order),
            epochs=1,
        ),
    )
    assert config.lifelong is not None
    if variant == "paper":
        config.task = QuestionAnswering(stride=128, answers_in_context_only=True)
        config.data.batch_size, config.data.segment_length, config.evaluation.batch_size = 32, 384, 32
        config.training.schedule.learning_rate = 3e-5
        memory = EpisodicMemory(write_policy="all", capacity=400_000, storage="host")
        config.lifelong.method = MbPA(memory=memory, key_source="question", adaptation_l2=1e-4, adaptation_batch_size=1)
    elif variant == "smoke":
        small = load_config("bert_squad", "smoke")
        config.model, config.data = small.model, small.data
        config.task = QuestionAnswering(
            stride=8, max_question_length=8, max_answer_length=4, answers_in_context_only=True
        )
        config.data.source, config.evaluation.batch_size, config.training.log_every = Templates(num_examples=16), 8, 1
        config.lifelong.tasks = tuple(
            TaskData(name=f"stage_{number}", source=Templates(num_examples=16 * number)) for number in (1, 2)
        )
        memory = EpisodicMemory(write_policy="all", capacity=128)
        config.lifelong.method = MbPA(
            memory=memory,
            replay_interval=16,
            replay_batch_size=4,
            key_source="question",
            num_neighbors=4,
            adaptation_steps=2,
        )
    else:
        config.model.first_trained_layer, config.data.encoder_states_dir = 5, "states"
    return config


def stages() -> dict[str, Squad | QaSrl]:
    """Returns the stages of the variants for small machines, by name."""
    squad = [Squad(path="squad", part=part, parts=2, **SIZES) for part in range(2)]
    srl = {domain: QaSrl(path="qa-srl", domain=domain, **SIZES) for domain in ("wikinews", "wikipedia")}
    return {"squad_1": squad[0], "squad_2": squad[1], **srl}


def published_stages() -> dict[str, Squad | Quac | TriviaQa]:
    """Returns the stages of the papers by name, in folders of the published files."""
    trivia = {f"trivia_qa_{pages}": TriviaQa(path="triviaqa-rc", pages=pages) for pages in ("web", "wikipedia")}
    return {"quac": Quac(path="quac"), "squad": Squad(path="squad"), **trivia}
