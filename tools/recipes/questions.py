"""Questions one source after the other: what is done against forgetting, over orders and seeds."""

from memjax.lifelong.orders import QUESTION_ORDERS
from tools.recipes.recipe import Recipe

_FIRST = QUESTION_ORDERS[0]
_ORDERS = {
    f"order {number}": f"--lifelong.task-order {' '.join(str(_FIRST.index(name)) for name in names)}"
    for number, names in enumerate(QUESTION_ORDERS, 1)
}
"""the stages of the configuration stand in the places of the published ones"""
_ROWS = {
    "SEQ": "default",
    "replay": "replay",
    "A-GEM": "agem",
    "online EWC": "ewc_online",
    "random": "mbpa_random",
    "MbPA": "mbpa",
    "MbPA++": "mbpa_pp",
    "Meta-MbPA": "meta_mbpa",
    "multi-task": "multi_task",
}

RECIPES = {
    "lifelong_questions": Recipe(
        description=(
            "Spans of texts that answer questions: two groups of articles of SQuAD 1.1's development set, QA-SRL of "
            "Wikinews and of Wikipedia (the gold standard of Roit et al. 2020), which are not the stages of the papers "
            "(QuAC, TriviaQA of the web and of Wikipedia, SQuAD), in the four orders of the papers with the first "
            "group in the place of QuAC and QA-SRL in that of TriviaQA. 300 questions a stage for training, 40 to "
            "test, in windows of 128 tokens. The last of MiniLM's six layers and the head, trained on what the others "
            "give of each token, one pass, batches of 8, Adam; a replay or a projected update every 200 windows. "
            "Adaptation is of the head only, to 8 windows with 5 steps; Meta-MbPA keeps a hundredth of the windows, "
            "the others all. Settings not searched. "
            "MEMJAX_QUESTIONS is a folder with `squad` and `qa-srl`, `memjax import` makes MEMJAX_MINILM, and "
            "MEMJAX_STATES is a folder for what is computed once."
        ),
        config="lifelong_questions",
        variants=_ROWS,
        steps=0,
        orders=_ORDERS,
        seeds=(0, 1, 2),
        arguments=(
            "--lifelong.sources-dir $MEMJAX_QUESTIONS --training.init-from $MEMJAX_MINILM --data.encoder-states-dir "
            "$MEMJAX_STATES "
            "--data.tokenizer.vocab $MEMJAX_MINILM/tokenizer/tokenizer.json"
        ),
        controls={
            "replay": ("SEQ",),
            "A-GEM": ("SEQ",),
            "online EWC": ("SEQ",),
            "random": ("SEQ", "replay"),
            "MbPA": ("SEQ", "random"),
            "MbPA++": ("SEQ", "replay", "random", "MbPA"),
            "Meta-MbPA": ("SEQ", "MbPA++"),
            "multi-task": ("MbPA++", "Meta-MbPA"),
        },
    ),
}
