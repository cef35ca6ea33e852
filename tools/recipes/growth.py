"""Recipes of language models that grow from domain to domain."""

from tools.recipes.recipe import Recipe
from tools.recipes.search import RATE, Search, Setting
from tools.recipes.streams import VALIDATED

__all__ = ["RECIPES", "TASKS"]

ROWS = {
    "naive": "default",
    "replay": "replay",
    "A-GEM": f"agem {RATE} 0.001",
    "EWC": "ewc",
    "Logit-KD": "logit_kd",
    "progressive": "pnn",
    "ELLE": "elle",
    "ELLE, prompts": "elle_prompt",
    "ELLE, paper": "elle_paper",
    "width only": "wider",
    "depth only": "deeper",
    "no warm-up": "no_warm_up",
    "no noise": "no_noise",
    "Logit-KD, annealed": "logit_kd_annealed",
}
_BERT = {
    "naive": "bert",
    "replay": "bert_replay",
    "ELLE": "bert_elle",
    "ELLE, prompts": "bert_elle_prompt",
    "ELLE, paper": "bert_elle_paper",
}
TASKS = {
    "DBpedia": ("encyclopedia", 0, 2, "cl-benchmark"),
    "AG News": ("news", 1, 0, "ag-news"),
    "SST-2": ("reviews", 2, 1, "cl-benchmark"),
}
"""Task -> its domain, which is also its variant, the number of this domain, the number of another domain, and the
folder of its files"""
_PROMPTED = {
    f"{task}, {said}": f"{variant} --data.source.path $MEMJAX_INSTRUCTIONS/{folder} --task.prompt-task-index {domain}"
    for task, (variant, right, wrong, folder) in TASKS.items()
    for said, domain in (("right prompt", right), ("wrong prompt", wrong), ("no prompt", -1))
}
_SAME = {"config": "lifelong_pretraining", "steps": 0, "seeds": (0, 1, 2)}
_FOLDER = "--lifelong.sources-dir $MEMJAX_DOMAINS"
RECIPES = {
    "lifelong_pretraining": Recipe(
        description=(
            "Domains of text one after the other: encyclopedia (WikiText-2), news (test texts of AG News) and reviews "
            "(Yelp), about 1.8 to 2 million characters each, not the corpora of the paper. GPT-2 of two layers of "
            "width 64, which ELLE makes four of 128; pieces of 128 tokens of 4,096 byte-level pairs, trained on the "
            "first domain; batches of 28 pieces, Adam at 1e-3; 1,000 pieces in the memory, 30 updates to recover. "
            "Equal work: every row spends on a stage what plain training spends on all of the domain, read three "
            "times, by counted products of matrices (`tools.measurements.work`), replayed rows, teachers, recoveries "
            "and larger models included; who does more in an update reads less of the domain. One order and three "
            "seeds; a search of six rates of all rows would be 90 runs of 80 to 500 seconds. Lower is better. The "
            "reference of A-GEM has pieces of earlier domains alone. `tools.measurements.domains` makes MEMJAX_DOMAINS."
        ),
        variants=ROWS,
        orders={"order 1": "--lifelong.task-order 0 1 2"},
        arguments=_FOLDER,
        **_SAME,
        search=Search(
            # A-GEM was run again at the rate of the rows beside it, of which none has trials so far.
            {"": (Setting(RATE, 1e-3),), "A-GEM": ()},
            trials=6,
            arguments=f"--lifelong.task-order 2 1 0 {VALIDATED}",
        ),
        controls={
            "replay": ("naive",),
            "A-GEM": ("naive",),
            "EWC": ("naive",),
            "Logit-KD": ("naive", "replay"),
            "progressive": ("naive",),
            "ELLE": ("naive", "replay"),
            "ELLE, prompts": ("ELLE",),
            "ELLE, paper": ("ELLE",),
            "width only": ("ELLE",),
            "depth only": ("ELLE",),
            "no warm-up": ("ELLE",),
            "no noise": ("ELLE",),
            "Logit-KD, annealed": ("Logit-KD",),
        },
        findings=(
            "Nats against plain training in these runs: columns, which are told the domain of a test text, "
            "{progressive | naive}, replay {replay | naive}, distillation {Logit-KD | naive}, A-GEM "
            "{A-GEM | naive}, EWC {EWC | naive}. ELLE against replay: {ELLE | replay}; with equal work a model that "
            "has grown reads two fifths of the news and a fifth of the reviews, and its rows that grow in one "
            "direction alone read more: {depth only | ELLE} and {width only | ELLE} against ELLE. The exact expansion "
            "changes nothing of what a model computes; what that of the paper changes is in the last column, and in "
            "the end it has {ELLE, paper | ELLE}. Of the rows that say it none skipped an update."
        ),
    ),
    "lifelong_pretraining_bert": Recipe(
        description=(
            "The same domains, sizes and memory for BERT, which finds hidden tokens (15 %, the same ones in every "
            "evaluation), and equal work: post-norm layers, byte-level pairs. Perplexities of hidden tokens; layers "
            "are copied, since no post-norm layer is an identity."
        ),
        variants=_BERT,
        orders={"order 1": "--lifelong.task-order 0 1 2"},
        arguments=_FOLDER,
        controls={
            "replay": ("naive",),
            "ELLE": ("naive", "replay"),
            "ELLE, prompts": ("ELLE",),
            "ELLE, paper": ("ELLE",),
        },
        findings=(
            "Nats against plain training in these runs: replay {replay | naive}, ELLE {ELLE | naive}, whose larger "
            "models read 28 % and 10 % of the later domains for the same work. No post-norm layer is an "
            "identity, so that nats rise in each growth of the exact form too; that of the paper ends with {ELLE, "
            "paper | ELLE} against it, prompts with {ELLE, prompts | ELLE}."
        ),
        **_SAME,
    ),
    "elle_downstream": Recipe(
        description=(
            "Tasks of the domains, learned by the BERT of `lifelong_pretraining_bert`, row ELLE, prompts, seed 0 "
            "(MEMJAX_ELLE is its run): DBpedia of the encyclopedia, AG News of news (other rows; how many texts the "
            "domain has too stands below), SST-2 of reviews, with the prompt of the domain, with that of another one, "
            "and with none. Accuracy on the test texts; three seeds of the fine-tuning."
        ),
        findings=(
            "Accuracy with the prompt of the domain against that of another one: DBpedia {DBpedia, right prompt | "
            "DBpedia, wrong prompt | accuracy}, AG News {AG News, right prompt | AG News, wrong prompt | accuracy}, "
            "SST-2 {SST-2, right prompt | SST-2, wrong prompt | accuracy}."
        ),
        config="elle_downstream",
        variants=_PROMPTED,
        steps=0,
        page="lifelong_pretraining",
        seeds=(0, 1, 2),
        arguments="--training.init-from $MEMJAX_ELLE --data.tokenizer.path $MEMJAX_ELLE/tokenizer/tokenizer.json",
        controls={f"{task}, right prompt": (f"{task}, wrong prompt", f"{task}, no prompt") for task in TASKS},
    ),
}
