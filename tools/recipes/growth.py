"""Recipes of language models that grow from domain to domain."""

from tools.recipes.recipe import Recipe

__all__ = ["RECIPES"]

ROWS = {
    "naive": "default",
    "replay": "replay",
    "A-GEM": "agem",
    "EWC": "ewc",
    "MAS": "mas",
    "Logit-KD": "logit_kd",
    "progressive": "pnn",
    "ELLE": "elle",
    "ELLE, prompts": "elle_prompt",
    "ELLE, paper": "elle_paper",
    "width only": "wider",
    "depth only": "deeper",
    "no warm-up": "no_warm_up",
    "no noise": "no_noise",
}
RECIPES = {
    "lifelong_pretraining": Recipe(
        description=(
            "Domains of text one after the other: encyclopedia (WikiText-2), news (test texts of AG News) and reviews "
            "(Yelp, Amazon, IMDB), about 1.8 to 2 million characters each, not the corpora of the paper. GPT-2 of "
            "two layers of width 64, which ELLE makes four of 128; pieces of 128 tokens of 4,096 byte-level pairs, "
            "trained on the first domain; batches of 28 pieces, Adam at 1e-3; 1,000 pieces in the memory, 30 "
            "updates to recover. Equal work: every row spends on a stage what plain training spends on all of the "
            "domain, read three times, by counted products of matrices (`tools.measurements.work`), replayed rows, "
            "teachers, recoveries and larger models included; who does more in an update reads less of the domain. "
            "Settings not searched. Lower is better. `tools.measurements.domains` makes MEMJAX_DOMAINS."
        ),
        config="lifelong_pretraining",
        variants=ROWS,
        steps=0,
        orders={"order 1": "--lifelong.order 0 1 2"},
        seeds=(0, 1, 2),
        arguments="--lifelong.folder $MEMJAX_DOMAINS",
        controls={
            "replay": ("naive",),
            "A-GEM": ("naive",),
            "EWC": ("naive",),
            "MAS": ("naive",),
            "Logit-KD": ("naive", "replay"),
            "progressive": ("naive",),
            "ELLE": ("naive", "replay"),
            "ELLE, prompts": ("ELLE",),
            "ELLE, paper": ("ELLE",),
            "width only": ("ELLE",),
            "depth only": ("ELLE",),
            "no warm-up": ("ELLE",),
            "no noise": ("ELLE",),
        },
    ),
}
