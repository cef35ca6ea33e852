"""Recipes of translation, dialogue, and text encoders."""

from tools.recipes.recipe import BOTH_SPLITS, SIGNAL_BEFORE, TOKENS_BEFORE, Recipe, signal
from tools.recipes.search import search_rates


def _sizes(rows: int, length: int, steps: int) -> str:
    """Returns the arguments with the sizes of a fine-tuning. It has checkpoints on the way, so that an interrupted run
    goes on.
    """
    return (
        f"--data.batch-size {rows} --data.segment-length {length} --training.steps {steps} "
        f"--training.schedule.warmup-steps {steps // 10} --training.checkpoint-every {max(steps // 4, 1)}"
    )


def _make_evaluations(count: int) -> dict[str, str]:
    """Returns evaluations of both splits. The model also answers the first `count` examples of the test split."""
    answers = {"validation": 0, "test": count}
    return {split: f"{words} --evaluation.max-answers {answers[split]}" for split, words in BOTH_SPLITS.items()}


_SMALL_TRANSLATION = (
    "--model.num-layers 2 --model.dim 128 --model.feed-forward.dim 256 --model.dropout 0.1 "
    "--data.tokenizer.vocab-size 3000 --data.batch-size 32 --data.source.max-length 32 --data.segment-length 32 "
    "--training.schedule.warmup-steps 100"
)
_SMALL_DIALOGUE = "--data.segment-length 126 --data.batch-size 16"
_MINILM = "--data.tokenizer.vocab $MEMJAX_MINILM/tokenizer/tokenizer.json"
_FROM_MINILM = f"{_MINILM} --training.init-from $MEMJAX_MINILM"
_GLUE = {
    "CoLA": ("cola", "$MEMJAX_GLUE_COLA", _sizes(16, 24, 1000)),
    "SST-2": ("sst2", "$MEMJAX_GLUE_SST2", _sizes(16, 40, 200)),
    "QNLI": ("qnli", "$MEMJAX_GLUE_QNLI", _sizes(16, 96, 150)),
}
_TUNED = {
    "MiniLM": ("", "$MEMJAX_MINILM"),
    "MiniLM, then MLM": ("", "@bert_going_on/MLM"),
    "MiniLM, then MLM with ResM": ("_resm", "@bert_going_on/MLM_with_ResM"),
    "the same, memories frozen": (
        "_resm",
        "@bert_going_on/MLM_with_ResM --training.frozen-parameters feed_forward/memory/",
    ),
}
"""Row -> ending of its variant, and the weights that it begins with (`--training.init-from`), with further arguments"""
_FINE_TUNING = (
    "--training.log-every 10 --training.evaluate-every 0 --training.keep-checkpoints 1 --evaluation.split test"
)
_STAGE_2 = "--training.init-from @bert_pretraining/FFN,_stage_1"
_ANEW = " ".join(f"layer_{layer:02d}/feed_forward/{part}/" for layer in (1, 2) for part in ("wide", "narrow"))
_ANSWERED = tuple(
    f"{way}_{measure}" for way in ("nucleus", "greedy") for measure in ("f1", "rouge_1", "rouge_l", "meteor")
)


RECIPES = {
    "cmu_dog_small": Recipe(
        description=(
            "CMU-DoG, answers in dialogues about films: perplexity of utterances, and F1, ROUGE and METEOR (exact and "
            "stem matches, no WordNet) of what the model says instead of each utterance of the test split's first 60 "
            "dialogues, drawn from a nucleus of 0.9 at temperature 0.7 and greedily; libraries are named in the logs. "
            "4 layers, 128 wide, 4,096 byte pairs, from scratch, equal steps. With a memory the document stands in "
            "segments before the dialogue, which is read in segments of 126 tokens; in the context, the first 256 "
            "tokens of it stand before the dialogue in every segment of 512."
        ),
        config="cmu_dog",
        variants={
            "no document": "no_document --data.segment-length 512 --data.batch-size 2",
            "document in context": (
                "default --data.segment-length 512 --data.batch-size 3 --data.source.document-length 256"
            ),
            "Compressive": f"compressive {_SMALL_DIALOGUE} --model.attention.compressed-memory-length 256",
            "infinity-former": f"infinity_former {_SMALL_DIALOGUE} {signal(256, 256)} {SIGNAL_BEFORE}",
            "infinity-former, sticky": f"sticky {_SMALL_DIALOGUE} {signal(256, 256)} {SIGNAL_BEFORE}",
        },
        steps=1000,
        learning_rate=2e-3,
        arguments=(
            "--model.num-layers 4 --model.dim 128 --model.num-heads 4 --data.tokenizer.vocab-size 4096 "
            "--training.schedule.warmup-steps 100 --training.memory-learning-rate 0 --training.evaluate-every 0"
        ),
        data_path="MEMJAX_CMU_DOG",
        evaluations=_make_evaluations(60),
        measures=("perplexity", "utterances", *_ANSWERED),
        findings="One seed a row; rows with a memory read segments of 126 tokens, the others of 512.",
    ),
    "multi30k_translation": Recipe(
        description=(
            "Multi30k, English to German: perplexity per subword, and BLEU of the 2016 test set (beam 5, length "
            "penalty 1) of detokenised text (sacrebleu, 13a) and of lower-cased words (no tokenizer); the signatures "
            "are in the logs. 2 + 2 layers, 128 wide, 3,000 subwords, pairs of at most 32 of them; equal pairs, steps "
            "and learning rate. Memory tokens are the encoder's; with layers of its own a model has more parameters."
        ),
        config="multi30k",
        variants={
            "softmax": "default",
            "Linear Transformer (ELU)": "linear_transformer",
            "Linear Transformer, causal only": "linear_causal",
            "Linear Transformer, cross only": "linear_cross",
            "MemSizer, 4 and 32 slots": "memsizer",
            **{
                f"{n} memory tokens": f"memory_tokens --model.memory-tokens.num-tokens {n} {TOKENS_BEFORE}"
                for n in (5, 10, 20)
            },
            "10 memory tokens, own layers": f"control {TOKENS_BEFORE}",
            "10 memory tokens, one own layer": f"control_shared {TOKENS_BEFORE}",
            "10 memory tokens, bottleneck": f"bottleneck {TOKENS_BEFORE}",
        },
        steps=1000,
        learning_rate=2e-3,
        arguments=_SMALL_TRANSLATION,
        data_path="MEMJAX_MULTI30K",
        evaluations=_make_evaluations(1000),
        measures=("perplexity", "bleu", "bleu_of_words", "pairs", "pairs_too_long"),
    ),
    "multi30k_memory_tokens": Recipe(
        description=(
            "Multi30k, English to German: 10 memory tokens in the encoder, against the same model without them; "
            "perplexity per subword of the 2016 test set and BLEU of its first 300 pairs as in `multi30k_translation`, "
            "sizes as there. Equal pairs, steps and learning rate, the best of three on validation without them."
        ),
        config="multi30k",
        variants={
            "no memory tokens": "memory_tokens --model.memory-tokens.num-tokens 0",
            "10 memory tokens": "memory_tokens",
            "10 memory tokens, bottleneck": "bottleneck",
            "10 memory tokens, bottleneck, short at first": f"bottleneck {TOKENS_BEFORE}",
            "10 memory tokens, own layers": "control",
        },
        steps=300,
        search=search_rates(4e-3, trials=3, steps=300),
        seeds=(0, 1, 2),
        arguments=_SMALL_TRANSLATION,
        data_path="MEMJAX_MULTI30K",
        evaluations=_make_evaluations(300),
        measures=("perplexity", "bleu", "bleu_of_words", "pairs", "pairs_too_long"),
        controls={
            "10 memory tokens": ("no memory tokens",),
            "10 memory tokens, own layers": ("no memory tokens",),
            "10 memory tokens, bottleneck": ("no memory tokens", "10 memory tokens, bottleneck, short at first"),
        },
    ),
    "bert_pretraining": Recipe(
        description=(
            "A small encoder on WikiText-2 with product keys instead of feed-forward networks (PKM), beside them "
            "(ResM), and without; masked language modelling, 1,024 tokens a step, one seed. From the first model, "
            "which has no memory, four others go on: with memories (+ Init), with memories beside networks that begin "
            "anew, and as a control without. All but the first stage have read as many tokens in the end. Slots are "
            "counted over 16 segments of every row of the validation split, and so much of it is scored on the way."
        ),
        config="bert_mlm_wikitext",
        variants={
            "FFN, stage 1": "wikitext2",
            "PKM": "wikitext2_pkm --training.steps 800",
            "ResM": "wikitext2_resm --training.steps 800",
            "FFN, equal budget": f"wikitext2 {_STAGE_2}",
            "PKM + Init": f"wikitext2_pkm {_STAGE_2}",
            "ResM + Init": f"wikitext2_resm {_STAGE_2}",
            "ResM + Init, networks anew": f"wikitext2_resm {_STAGE_2} --training.reinitialized-parameters {_ANEW}",
        },
        steps=400,
        arguments="--training.evaluate-every 100 --training.checkpoint-every 100 --evaluation.max-segments 16",
        data_path="MEMJAX_WIKITEXT2",
        evaluations={split: f"{words} --evaluation.max-segments 0" for split, words in BOTH_SPLITS.items()},
        usage=True,
        measures=("perplexity", "accuracy"),
        curve="perplexity",
        findings="One seed a row, too few for a comparison.",
    ),
    "bert_going_on": Recipe(
        description=(
            "300 steps of masked language modelling on WikiText-2 (1,024 tokens each) from MiniLM weights, with "
            "memories beside two feed-forward networks (layers 1 and 3 of 6) and, as a control of equal budget, "
            "without: perplexity of hidden tokens on validation. MEMJAX_MINILM is the run directory that "
            "`memjax import` makes of the weights. `bert_glue` and `bert_squad` begin with them."
        ),
        config="bert_mlm_wikitext",
        variants={"MLM": f"minilm {_FROM_MINILM}", "MLM with ResM": f"minilm_resm {_FROM_MINILM}"},
        steps=300,
        arguments=(
            "--training.schedule.warmup-steps 30 --data.batch-size 8 --training.log-every 10 "
            "--training.evaluate-every 0 --training.checkpoint-every 75 --training.keep-checkpoints 1"
        ),
        data_path="MEMJAX_WIKITEXT2",
        measures=("perplexity",),
    ),
    "bert_glue": Recipe(
        description=(
            "MiniLM weights fine-tuned with and without memories, the one with memories also with the memories frozen; "
            "one seed and few steps: the numbers compare these models only. Learning rate 1e-4. CoLA 1,000 steps of 16 "
            "texts of 24 tokens, SST-2 200 of 16 of 40, QNLI 150 of 16 of 96. Scored are the development sets of CoLA "
            "(in and out of domain) and SST-2 as GLUE has them; QNLI has only the development file here, of which a "
            "tenth (by a hash) is scored and a tenth left out. Slots are counted over the first 640 texts of that "
            "split; divergence (nats) and overlap are those of texts of class 1 against the others."
        ),
        config="bert_glue",
        variants={
            f"{name}, {row}": (
                f"{variant}{ending} --data.source.path {path} {_MINILM} {sizes} --training.init-from {start}"
            )
            for name, (variant, path, sizes) in _GLUE.items()
            for row, (ending, start) in _TUNED.items()
        },
        steps=200,
        learning_rate=1e-4,
        arguments=_FINE_TUNING,
        usage=True,
        measures=("matthews", "accuracy"),
    ),
    "bert_squad": Recipe(
        description=(
            "As `bert_glue`, on SQuAD: 100 steps of 8 windows of 256 tokens. Only the development file is here, of "
            "whose articles a tenth (by a hash) is scored and a tenth left out."
        ),
        config="bert_squad",
        variants={
            row: f"minilm{ending} {_MINILM} {_sizes(8, 256, 100)} --training.init-from {start}"
            for row, (ending, start) in _TUNED.items()
        },
        steps=100,
        learning_rate=1e-4,
        arguments=_FINE_TUNING,
        data_path="MEMJAX_SQUAD",
        usage=True,
        measures=("exact_match", "f1"),
    ),
}
