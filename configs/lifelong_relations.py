"""Continual relation learning: tasks of relations one after the other, EMAR, EA-EMR, EMR and their baselines.

    memjax train --config lifelong_relations --variant emar --lifelong.sources-dir DIR --data.tokenizer.path GLOVE.txt
    memjax eval --run runs/lifelong_relations_emar --lifelong.sources-dir DIR            # accuracies, forgetting,
    transfer

DIR has the files of Lifelong FewRel (or of SimpleQuestions, for `questions_*`) of Wang et al. 2019, and GLOVE.txt has
word vectors of 50 numbers. Each sentence has about ten candidate relations. The evaluation `whole`, after every task,
is the accuracy on the test sentences of all relations, with all candidates of each sentence. The average over the
learned tasks uses only candidates that have been seen.

The variants `pairs_*` follow another protocol, of Holla et al. 2020 (https://arxiv.org/abs/2009.04891): an example is a
pair of a sentence and the name of a relation, every pair is read once, and the method does not know the boundaries
between tasks. A perceptron reads vectors of pairs, which `python -m tools.measurements.vectors pairs` writes into a
folder with a frozen MiniLM:

    memjax train --config lifelong_relations --variant pairs_oml --lifelong.sources-dir PAIRS

Their accuracy counts sentences: an answer is right if the pair with the right name scores higher than the pairs with
the other candidates.

The variants `small_*` read fewer sentences with a smaller BiLSTM, for runs over several orders.

The variants `encoder_*` train MiniLM (RUN is the run that `memjax import` makes from its weights). The places of the
two things of a sentence are read from the files of CFRL in the same folder. Sentences that these files lack are read
without markers:

    memjax train --config lifelong_relations --variant encoder_emar --lifelong.sources-dir DIR --training.init-from RUN
    \\
        --data.tokenizer.vocab RUN/tokenizer/tokenizer.json

Papers: EMAR, Han et al. 2020, https://aclanthology.org/2020.acl-main.573; EA-EMR and EMR, Wang et al. 2019,
https://arxiv.org/abs/1903.02588.
Paper's number: on FewRel whole / average 66.0 / 77.9 of EMAR, 56.6 / 67.3 of EA-EMR, 51.0 / 62.0 of EMR (recalled, not
verified): 44,800 sentences to train on, GloVe of 300 numbers.
Our number: tools/results/tables/lifelong_relations.md, of `small_*` and `pairs_*`. It is not comparable: of the 11,200
sentences that the papers test on, 70 % of each relation are trained on and 20 % tested, split by a hash of the sentence
(`small_*` train on 30 %), and GloVe has 50 numbers for 20,000 words. The table's rates are searched, those of this file
are not.
Hardware: a CPU core, 2.6 minutes for plain training on ten tasks.

Where the values come from
  paper       two-level selection, 50 sentences a task in the memory, prototypes with the embedding of the relation,
              hidden 200 each way, Adam at 1e-3, clipping at 1, batches of 50; margin 0.5; three epochs of EMR and
              EA-EMR
  code        `emar_code`: flat k-means, names as relation embeddings, first pass over memory and task, two rounds,
              batches of 5 in reconsolidation, a new Adam in every pass, softmax over all relations; the alignment's
              Adam at 1e-4 for 20 epochs
              of `paper_pairs_oml` 4 sentences a batch, 5 batches before a query, 1,600 sentences from one replay to the
              next, a hundredth of them replayed, 64 tokens
  ours        a batch of `paper_pairs_oml` is 44 pairs, and a replay comes every 17,600: as many as 4 and 1,600
              sentences have with ten candidates; the pairs of a sentence do not stand together. `pairs_*`: batches of
              16 pairs, a replay or a projected update about every 1,600
              passes and rounds of `emar` as in its code; four sentences of a relation are drawn for a prototype or a
              reconsolidation; the weight of EWC; the tasks (`memjax.lifelong.relation_orders`)
"""

import copy
import dataclasses
import re
from typing import Any

from memjax.config import (
    ANML,
    EMAR,
    OML,
    BiLSTM,
    CachedPairs,
    Classification,
    Config,
    Data,
    EpisodicMemory,
    Evaluation,
    Lifelong,
    Perceptron,
    RelationExtraction,
    RelationFiles,
    Schedule,
    SyntheticRelations,
    TaskData,
    Training,
    VectorWords,
    Words,
)
from memjax.lifelong.relation_orders import FEWREL_TASKS, SIMPLE_QUESTIONS_TASKS
from memjax.settings.named_methods import make_method_settings
from memjax.settings.overrides import load_config

MADE_TASKS = ((1, 2, 3), (4, 5), (6, 7, 8))
METHODS = {
    "default": make_method_settings("sequential"),
    "upper": make_method_settings("multi_task", schedule="anew"),
    "ewc": make_method_settings("ewc", penalty_weight=100.0),
    "gem": make_method_settings("gem"),
    "agem": make_method_settings("agem", memory=EpisodicMemory(capacity=500), reference_batch_size=50),
    "emr": make_method_settings("emr"),
    "ea_emr": make_method_settings("ea_emr"),
    "emar": make_method_settings("emar"),
    "emar_code": EMAR.as_published(),
}
WORDS = {
    "default": "plain training, one task after the other, which papers call the lower bound",
    "upper": "training from scratch on all sentences so far, at every task, which papers call the upper bound",
    "ewc": "elastic weight consolidation",
    "gem": "GEM with 50 stored sentences of each task",
    "agem": "A-GEM, a reservoir of 500 sentences",
    "emr": "EMR: before each batch, an update on all stored sentences of one earlier task",
    "ea_emr": "EA-EMR: EMR, and a linear map that aligns embeddings",
    "emar": "EMAR as in the paper",
    "emar_code": "EMAR as in the authors' code",
}
SMALL_SIZE = "a BiLSTM of 50 units each way and 30 % of the sentences to train on"
ALL_PAIRS = EpisodicMemory(write_policy="all", capacity=100_000)
EPISODE = {"memory": ALL_PAIRS, "replay_interval": 1600}
PAIRS = {
    "default": make_method_settings("sequential"),
    "replay": make_method_settings("replay", **EPISODE, mode="sparse", replay_batch_size=64),
    "agem": make_method_settings(
        "agem", memory=ALL_PAIRS, projection_interval=1600, reference_batch_size=64, reference_tasks="all"
    ),
    "oml": make_method_settings("oml", **EPISODE),
    "anml": make_method_settings("anml", **EPISODE),
    "multi_task": make_method_settings("multi_task"),
}
PAIR_WORDS = {
    "default": "plain training, one task after the other",
    "replay": "sparse experience replay",
    "agem": "sparse A-GEM, whose reference has pairs of all tasks",
    "oml": "OML-ER",
    "anml": "ANML-ER",
    "multi_task": "all tasks shuffled together, with all candidates",
}
VARIANTS = {
    **WORDS,
    **{f"questions_{name}": f"SimpleQuestions, {words}" for name, words in WORDS.items()},
    **{f"small_{name}": f"{SMALL_SIZE}, {words}" for name, words in WORDS.items()},
    **{f"pairs_{name}": f"vectors of pairs, one pass, {words}" for name, words in PAIR_WORDS.items()},
    "paper_pairs_oml": "OML-ER on pairs at the published size: BERT-base, 64 tokens",
    "encoder_emar": "EMAR with MiniLM, which reads markers around the two things of a sentence",
    "encoder_emr": "EMR with MiniLM, which reads markers around the two things, and learned vectors of relations",
    "paper": "EMAR at the published size: GloVe of 300 numbers, 44,800 sentences to train on",
    "smoke": "seconds: EMAR on synthetic sentences",
}


def get_config(variant: str = "default") -> Config:
    """Returns the config of a variant, a key of `VARIANTS`."""
    if "pairs_" in variant:
        return _pairs(variant)
    questions, method_name = variant.startswith("questions_"), re.sub("^(questions|encoder|small)_", "", variant)
    source, parts, count, rows, length = RelationFiles(), FEWREL_TASKS, 80, 50, 40
    tokenizer, model = VectorWords(), BiLSTM(dim=300 if variant == "paper" else 50)
    if questions:
        files = ("valid.replace_ne.withpool", "test.replace_ne.withpool")
        source, parts = RelationFiles(names="relation.2M.list", train=files), SIMPLE_QUESTIONS_TASKS
        count, length = 6701, 24
    elif variant == "paper":
        source.train, source.test = ("training_data.txt",), ("val_data.txt",)
    elif variant == "smoke":
        source, parts, count, rows, length = SyntheticRelations(num_train=8), MADE_TASKS, 8, 8, 8
        tokenizer, model = Words(), BiLSTM(dim=8, hidden=8)
    elif variant.startswith("small"):
        # Half of the sentences are held out for validation, a tenth elsewhere; the tests are the same.
        source.validation_percent, model = 50, BiLSTM(dim=50, hidden=50)
    tasks = [dataclasses.replace(source, relations=relations) for relations in parts]
    method, epochs = copy.deepcopy(METHODS.get(method_name, METHODS["emar"])), 3
    task = RelationExtraction(num_classes=count, max_candidates=15 if questions else 0)
    if isinstance(method, EMAR):
        learned: Any = "all" if method_name == "emar_code" else "seen"
        similar: dict[str, Any] = {"similarity": "dot", "margin": 0.0, "relation_vectors": "learned"}
        task, epochs = dataclasses.replace(task, train_choices=learned, **similar), 1
    if variant == "smoke":
        method = EMAR(examples_per_task=4, instances_per_class=2)
    if variant.startswith("encoder"):
        like = load_config("bert_glue", "sst2")
        model, tokenizer, length = like.model, like.data.tokenizer, 96
        folder = "CFRLdata_10_100_10_5"
        files = (f"{folder}/train_0.txt", f"{folder}/test_0.txt")
        tasks = [dataclasses.replace(relations, entities=files) for relations in tasks]
        source = dataclasses.replace(source, entities=files)
        task = dataclasses.replace(task, relation_vectors="learned")
    config = _config(
        variant,
        tasks,
        Lifelong(method=method, epochs=epochs),
        model=model,
        task=task,
        data=Data(source=source, tokenizer=tokenizer, batch_size=rows, segment_length=length),
    )
    config.training.log_every = 1 if variant == "smoke" else 50
    if variant.startswith("encoder"):
        config.training.schedule.learning_rate = 3e-5
    return config


def _pairs(variant: str) -> Config:
    """Returns the config of a variant whose examples are pairs of a sentence and the name of a relation."""
    method = copy.deepcopy(PAIRS[variant.removeprefix("paper_").removeprefix("pairs_")])
    parts: dict[str, Any] = {"model": Perceptron(), "task": Classification()}
    source: Any = CachedPairs()
    parts["data"] = Data(source=source, batch_size=16, segment_length=384)
    if isinstance(method, ANML):
        parts["model"].gate_dim = 256
    rate = 4e-3
    if variant.startswith("paper"):
        like = load_config("bert_glue", "default")
        every = EpisodicMemory(write_policy="all", capacity=500_000)
        method, rate = OML(memory=every, replay_interval=17_600, replay_rate=0.01, replay_loss_reduction="sum"), 3e-5
        source = RelationFiles(train=("training_data.txt",), test=("val_data.txt",))
        parts["model"] = like.model
        parts["data"] = Data(source=source, tokenizer=like.data.tokenizer, batch_size=44, segment_length=64)
    tasks = [dataclasses.replace(source, relations=relations) for relations in FEWREL_TASKS]
    config = _config(variant, tasks, Lifelong(method=method, epochs=1), **parts)
    config.training.schedule.learning_rate = rate
    return config


def _config(variant: str, sources: list[Any], lifelong: Lifelong, *, data: Data, **parts: Any) -> Config:
    """Returns a config in which all tasks and the whole data are scored after every task."""
    tasks = tuple(TaskData(name=f"task_{number}", source=source) for number, source in enumerate(sources))
    scored = Evaluation(batch_size=data.batch_size, split="test", compute_accuracy=True)
    return Config(
        name=f"lifelong_relations_{variant}",
        data=data,
        **parts,
        training=Training(
            schedule=Schedule(learning_rate=1e-3, warmup_steps=0, decay="constant"),
            clip_norm=1.0,
            log_every=50,
            evaluate_every=0,
            checkpoint_every=0,
        ),
        evaluation=scored,
        evaluations=(
            *(dataclasses.replace(scored, name=task.name, task=task.name) for task in tasks),
            dataclasses.replace(scored, name="whole"),
        ),
        lifelong=dataclasses.replace(lifelong, tasks=tasks),
    )
