"""Recipes of language models on text, with memories and with datastores."""

from tools.recipes.recipe import BOTH_SPLITS, HIGHER_RATE, SIGNAL_BEFORE, TOKENS_BEFORE, Recipe, signal
from tools.recipes.search import search_rates

_CLEARED = " --evaluation.memory-intervention cleared --evaluation.intervention-path {}"
_NEIGHBORS = "--data.neighbors-dir $MEMJAX_WIKITEXT2_NEIGHBORS"
_RECURRENT = {
    "no memory": "no_memory",
    "Transformer-XL": "transformer_xl",
    "Compressive": "compressive --data.segment-length 64 --data.batch-size 32",
    "infinity-former": f"infinity_former {SIGNAL_BEFORE}",
    "infinity-former, sticky": f"sticky {SIGNAL_BEFORE}",
}
_GPT2_GOES_ON = (
    "--training.steps 250 --training.schedule.learning-rate 2e-4 --training.schedule.warmup-steps 12 "
    "--training.checkpoint-every 62 --training.init-from @gpt2_memories/GPT-2,_first_stage"
)
_GPT2_MEMORY = f"{_GPT2_GOES_ON} --training.memory-learning-rate 1e-3"
_GPT2_SIGNAL = (
    f"{signal(128)} --model.attention.widths 0.01 0.05 --model.attention.reset-after-tokens 0 "
    f"{_GPT2_MEMORY} {SIGNAL_BEFORE}"
)
_MEMORY_GOES_ON = (
    "--training.steps 1000 --training.evaluate-every 100 --training.schedule.learning-rate 0.0005 "
    "--training.schedule.warmup-steps 50 --evaluation.max-segments 60 "
    "--training.init-from @memory_added/local_cache_only"
)
_SPALM_SIZES = (
    "--training.log-every 50 --training.evaluate-every 0 --training.keep-checkpoints 1 --evaluation.max-segments 40"
)
_SPALM_GOES_ON = "--training.init-from @wikitext2_spalm_models/Transformer-XL"
_WHOLE_TEST = {"test": f"{BOTH_SPLITS['test']} --evaluation.max-segments 0"}


RECIPES = {
    "memory_gain_python": Recipe(
        description=(
            "Held-out documents of the Python standard library, bits per byte; validation split, separate documents, "
            "every token scored once. Equal tokens and window."
        ),
        config="memory_gain",
        variants={"Memorizing": "default", "local cache only": "cache_only", "no memory": "no_memory"},
        steps=30000,
        search=search_rates(3e-3, trials=3, steps=3000),
        seeds=(0, 1),
        controls={"Memorizing": ("local cache only",), "local cache only": ("no memory",)},
    ),
    "memory_gain_controls": Recipe(
        description=(
            "Memorizing against its cache on the Python standard library, bits per byte of the first 800 segments of "
            "every row of the test split, separate documents, every token scored once; the learning rate is chosen on "
            "the validation split. Equal tokens, updates and batches. One control has no memory and keeps 544 tokens "
            "in the cache of every layer (2.7 times the bytes), where Memorizing keeps 512 slots in one layer and 32 "
            "tokens in every one. Fewer updates than in `memory_gain_python` (30,000), so that the seeds of three "
            "contenders fit into hours."
        ),
        config="memory_gain",
        variants={
            "Memorizing": "default",
            "local cache only": "cache_only",
            "cache of 544 tokens": "cache_only --model.attention.cache-length 544",
        },
        steps=3000,
        search=search_rates(6e-3, trials=4, steps=500),
        seeds=(0, 1, 2),
        arguments="--evaluation.max-segments 800",
        evaluations={"test": "--evaluation.split test"},
        own_evaluations={"Memorizing": {"test, memory cleared": "--evaluation.split test" + _CLEARED.format("memory")}},
        measures=("bits_per_byte",),
        controls={"Memorizing": ("local cache only", "cache of 544 tokens")},
    ),
    "memory_gain_novels": Recipe(
        description=(
            "Held-out English novels (whole books, 100 English Novels without those published after 1930), bits per "
            "byte; validation split, first 2,000 segments of every row, separate documents. Equal tokens and window, "
            "and a learning rate of 0.006, the largest that the first search on Python documents tried."
        ),
        config="memory_gain",
        variants={"Memorizing": "novels", "local cache only": "novels_cache_only"},
        steps=16000,
        learning_rate=6e-3,
        seeds=(0, 1),
        arguments="--evaluation.max-segments 2000",
        data_path="MEMJAX_NOVELS",
        controls={"Memorizing": ("local cache only",)},
        findings="Memorizing against its cache, bits per byte: {Memorizing | local cache only | bits per byte}.",
    ),
    "memory_added": Recipe(
        description=(
            "A Memorizing Transformer trained without its memory gets it afterwards; Python documents, nats per token "
            "of the first 60 segments of every row of the validation split. 15,000 steps with the local cache only, "
            "then 1,000 at a twelfth of the peak learning rate from those parameters, with the memory of 512 tokens "
            "(its gates are new) and, as a control, without. The gap is that to the model that had the memory from the "
            "start."
        ),
        config="memory_gain",
        variants={
            "local cache only": "cache_only",
            "memory from the start": "default",
            "goes on with the memory": f"default {_MEMORY_GOES_ON}",
            "goes on without": f"cache_only {_MEMORY_GOES_ON}",
        },
        steps=15000,
        learning_rate=6e-3,
        seeds=(1,),
        evaluations={"validation, 60 segments": "--evaluation.max-segments 60"},
        measures=("nats_per_token",),
        final="validation, 60 segments",
    ),
    "wikitext2_memories": Recipe(
        description=(
            "WikiText-2 at word level, perplexity per token of the whole validation and test splits; contiguous "
            "streams, every token scored once. Equal text, steps and learning rate; memories attend to 64 slots. The "
            "segments of Compressive are longer than its memory here, unlike in its paper: see `wikitext2_compressive`."
        ),
        config="wikitext2_memories",
        variants={
            "no memory": "no_memory",
            "Transformer-XL": "default",
            "Compressive": "compressive --data.segment-length 64 --data.batch-size 16",
            "SPALM": f"spalm_adaptive {_NEIGHBORS}",
        },
        steps=8000,
        learning_rate=2e-3,
        data_path="MEMJAX_WIKITEXT2",
        evaluations=BOTH_SPLITS,
    ),
    "wikitext2_compressive": Recipe(
        description=(
            "WikiText-2 in 1,000 subwords, bits per byte of the whole test split; separate documents, every token "
            "scored once. Segments of 32, as long as the memory of Compressive, whose 32 compressed slots stand for "
            "128 tokens more. Transformer-XL remembers as many tokens as are not compressed, and as many as all slots "
            "stand for. Equal text, updates and learning rate, that of Transformer-XL's search in `memformer_slots`; a "
            "comparison at length would have 4,000 updates."
        ),
        config="recurrent_memories",
        variants={
            "Compressive, 32 and 32 slots": "compressive",
            "Transformer-XL, 32 slots": "transformer_xl --model.attention.memory-length 32",
            "Transformer-XL, 160 slots": "transformer_xl --model.attention.memory-length 160",
        },
        steps=300,
        learning_rate=1.2e-2,
        seeds=(0, 1, 2),
        arguments="--data.segment-length 32 --data.batch-size 64 --evaluation.max-segments 64",
        data_path="MEMJAX_WIKITEXT2",
        evaluations={"test": f"{BOTH_SPLITS['test']} --evaluation.max-segments 0"},
        own_evaluations={
            "Compressive, 32 and 32 slots": {
                "test, compressed part cleared": (
                    f"{BOTH_SPLITS['test']} --evaluation.max-segments 0{_CLEARED.format('compressed')}"
                )
            }
        },
        measures=("bits_per_byte",),
        controls={
            "Compressive, 32 and 32 slots": ("Transformer-XL, 32 slots", "Transformer-XL, 160 slots"),
            "Transformer-XL, 160 slots": ("Transformer-XL, 32 slots",),
        },
    ),
    "wikitext2_spalm_neighbors": Recipe(
        description=(
            "SPALM with 1 to 16 neighbours, each trained and evaluated with as many; WikiText-2 as above, fewer steps. "
            "All have the same neighbours, from ScaNN and a frozen Transformer-XL (`tools.results.knn_lm.spalm`)."
        ),
        config="wikitext2_memories",
        variants={
            "Transformer-XL": "default",
            **{
                f"SPALM, {n}": f"spalm_adaptive --model.output.num-neighbors {n} {_NEIGHBORS}" for n in (4, 16, 1, 2, 8)
            },
            "SPALM, 4, gate bias 2": f"spalm_adaptive --model.output.gate-bias 2.0 {_NEIGHBORS}",
        },
        steps=1000,
        learning_rate=2e-3,
        data_path="MEMJAX_WIKITEXT2",
        evaluations=BOTH_SPLITS,
        findings=(
            "One seed a row, trained from scratch: perplexities of SPALM with each number of neighbours and of "
            "Transformer-XL are above. Too few runs for a comparison."
        ),
    ),
    "wikitext2_spalm_models": Recipe(
        description=(
            "What `wikitext2_spalm` goes on from, and the models whose final hidden states are its keys: "
            "Transformer-XL of one softmax on the first quarter of the articles of WikiText-2 (150, with their 8,000 "
            "commonest words: `write_part` of `tools.measurements.knn_lm.larger_store`), and on each half of them. "
            "Word level, perplexity per token of the whole test split, contiguous streams. 1,200 steps read their text "
            "2.5 times, 400 on a half 1.6 times; of all of WikiText-2 they would read 0.6."
        ),
        config="wikitext2_memories",
        variants={
            "Transformer-XL": "one_softmax",
            "first half of the articles": "one_softmax --training.steps 400 --data.train-half first",
            "second half of the articles": "one_softmax --training.steps 400 --data.train-half second",
        },
        steps=1200,
        learning_rate=2e-3,
        arguments=f"--training.schedule.warmup-steps 100 {_SPALM_SIZES}",
        data_path="MEMJAX_WIKITEXT2_SMALL",
        evaluations=_WHOLE_TEST,
        measures=("perplexity",),
    ),
    "wikitext2_spalm": Recipe(
        description=(
            "SPALM from a trained Transformer-XL of one softmax (1,200 steps, `wikitext2_spalm_models`), against the "
            "same 120 further steps without; the first quarter of the articles "
            "of WikiText-2 in 8,000 words, perplexity per token of the whole test split, contiguous streams. "
            "All rows and seeds begin with the same trained model and read the same batches: a seed is one of "
            "dropout. `oracle`: the token is one of 4 neighbours, the others are random "
            "(`tools.measurements.oracle_neighbors`). `by halves`: 4 neighbours by final hidden states of models that "
            "were trained on the other half (`tools.measurements.neighbor_hits`, which also has kNN-LM). `one model`: "
            "4 neighbours by those of the model of all articles, which has learned the tokens that it searches for in "
            "training; the own article is left out. The rate of each row was searched by the perplexity of validation."
        ),
        config="wikitext2_memories",
        variants={
            "goes on without": f"one_softmax {_SPALM_GOES_ON}",
            "SPALM, oracle": f"spalm --data.neighbors-dir $MEMJAX_WIKITEXT2_ORACLE {_SPALM_GOES_ON}",
            "SPALM, by halves": (
                f"spalm --model.output.num-neighbors 4 --data.neighbors-dir $MEMJAX_WIKITEXT2_HALVES {_SPALM_GOES_ON}"
            ),
            "SPALM, one model": (
                # The default batch size is named, so that the run directories differ from those of `by halves`.
                "spalm --model.output.num-neighbors 4 --data.batch-size 16 "
                f"--data.neighbors-dir $MEMJAX_WIKITEXT2_APART {_SPALM_GOES_ON}"
            ),
        },
        steps=120,
        search=search_rates(5e-4, trials=5, steps=120),
        seeds=(0, 1, 2, 3, 4, 5),
        arguments=f"--training.schedule.warmup-steps 12 {_SPALM_SIZES}",
        data_path="MEMJAX_WIKITEXT2_SMALL",
        evaluations=_WHOLE_TEST,
        measures=("perplexity",),
        controls={
            "SPALM, oracle": ("goes on without",),
            "SPALM, by halves": ("goes on without",),
            "SPALM, one model": ("goes on without", "SPALM, by halves"),
        },
        findings=(
            "Perplexity against the same 120 steps without: with neighbours by halves {SPALM, by halves | goes on "
            "without | test perplexity}, by one model {SPALM, one model | goes on without | test perplexity}, with an "
            "oracle {SPALM, oracle | goes on without | test perplexity}; neighbours by one model against those by "
            "halves {SPALM, one model | SPALM, by halves | test perplexity}. The next token is one of the 4 neighbours "
            "for all tokens of the oracle, and for a quarter of the tokens by halves (the shares stand below, those "
            "of validation, and how far the gates open above); no share between them was run, and the rates of these "
            "rows differ (see the trials). The seeds are of dropout, of one model, and say "
            "nothing of other models. One rate serves the gate, which is new, and all that was trained before. kNN-LM "
            "with the store of the same articles stands below, of one model. There the own article raises the share "
            "of tokens that are among their own neighbours by more points than what the model has learned does, after "
            "1.6 or 2.5 passes."
        ),
    ),
    "knn_lm": Recipe(
        description=(
            "The models whose hidden states are the keys of kNN-LM: Transformer-XL on WikiText-2 at word level, and on "
            "a quarter of its articles. What their stores bring stands below."
        ),
        config="knn_lm_wikitext",
        page="knn_lm",
        variants={
            "Transformer-XL": "default --data.source.path $MEMJAX_WIKITEXT2",
            "Transformer-XL, a quarter of the articles": (
                "default --training.steps 2000 --data.source.path $MEMJAX_WIKITEXT2_QUARTER"
            ),
        },
        steps=8000,
        measures=("perplexity",),
    ),
    "recurrent_memories": Recipe(
        description=(
            "WikiText-2 in 1,000 subwords, bits per byte; validation split, separate documents, every token scored "
            "once. Equal text, tokens per update and steps; four layers each; learning rate 0.006 unless the row names "
            "another. A longer horizon has fewer documents in an update."
        ),
        config="recurrent_memories",
        variants={
            **{row: f"{variant} {HIGHER_RATE}" for row, variant in _RECURRENT.items()},
            **{f"{row}, learning rate 0.002": variant for row, variant in _RECURRENT.items()},
            "decoder of Memformer alone": (
                f"no_slots {HIGHER_RATE} --model.encoder-layers 0 --model.num-layers 4 "
                "--training.segments-per-update 1 --data.batch-size 32"
            ),
            "Memformer, learning rate 0.002": "default",
            "Memformer": f"default {HIGHER_RATE}",
            "Memformer, horizon 1": f"default {HIGHER_RATE} --training.segments-per-update 1 --data.batch-size 32",
            "Memformer, horizon 16": f"default {HIGHER_RATE} --training.segments-per-update 16 --data.batch-size 2",
            "Memformer, 1 slot": f"slots_1 {HIGHER_RATE}",
            "Memformer, no slots": f"no_slots {HIGHER_RATE}",
            "Memformer, no forgetting": f"no_forgetting {HIGHER_RATE}",
            "Memformer, temperature 1": f"temperature_1 {HIGHER_RATE}",
        },
        steps=600,
        learning_rate=2e-3,
        data_path="MEMJAX_WIKITEXT2",
        findings=(
            "One seed a row. The rows of Memformer are from before slots lasted (`unit_values`, `retain_bias`, "
            "`writes_begin`, `segment_positions`: all four as published), with types of slots by their weight on "
            "themselves. Slots of today: `memformer_slots`."
        ),
    ),
    "memformer_slots": Recipe(
        description=(
            "Slots of Memformer on WikiText-2 in 1,000 subwords: bits per byte of the test split, separate documents, "
            "every token scored once; the learning rate is chosen on the validation split. Four layers each, of which "
            "one encodes in Memformer; 8 streams and a horizon of 4 segments of 64 tokens for all: equal batches and "
            "updates. The state of Transformer-XL with 16 tokens in every layer has the bytes of 64 slots."
        ),
        config="recurrent_memories",
        variants={
            "no slots": "no_slots --training.segments-per-update 4 --data.batch-size 8",
            "16 slots": "default --model.num-slots 16",
            "64 slots": "default",
            "Transformer-XL, 16 tokens": (
                "transformer_xl --model.attention.memory-length 16 --training.segments-per-update 4 --data.batch-size 8"
            ),
        },
        steps=600,
        search=search_rates(1.2e-2, trials=4, steps=200),
        seeds=(0, 1, 2),
        data_path="MEMJAX_WIKITEXT2",
        evaluations={"test": BOTH_SPLITS["test"]},
        own_evaluations={
            row: {"test, memory cleared": BOTH_SPLITS["test"] + _CLEARED.format("memory")}
            for row in ("16 slots", "64 slots")
        },
        measures=("bits_per_byte",),
        controls={
            "16 slots": ("no slots", "Transformer-XL, 16 tokens"),
            "64 slots": ("no slots", "Transformer-XL, 16 tokens"),
        },
        findings=(
            "Bits per byte of 16 slots against no slots: {16 slots | no slots | test bits per byte}, of 64 slots "
            "against Transformer-XL with as many bytes: {64 slots | Transformer-XL, 16 tokens | test bits per byte}. "
            "With the memory cleared the scores of slots change in the fourth digit only: these models do not read "
            "them."
        ),
    ),
    "linear_states_wikitext2": Recipe(
        description=(
            "WikiText-2 at word level, perplexity per token of the whole validation and test splits; whole articles as "
            "documents, every token scored once. Two layers, 128 wide, segments of 64 tokens; equal text, steps and "
            "learning rate. Linear states go on over an article, `softmax` sees its segment, Transformer-XL one more."
        ),
        config="linear_states_wikitext2",
        variants={
            "softmax, one segment": "softmax",
            "Transformer-XL": "transformer_xl",
            "Transformer-XL, 20 memory tokens": f"memory_tokens {TOKENS_BEFORE}",
            "Linear Transformer (ELU)": "default",
            "RFA": "rfa",
            "RFA with a gate": "rfa_gate",
            "T2R, from scratch": "t2r",
            "MemSizer, 32 slots": "memsizer",
            **{f"MemSizer, {n} slots": f"memsizer --model.attention.num-slots {n}" for n in (8, 128)},
        },
        steps=1000,
        learning_rate=2e-3,
        arguments="--model.num-layers 2 --data.segment-length 64",
        data_path="MEMJAX_WIKITEXT2",
        evaluations=BOTH_SPLITS,
    ),
    "product_key_python": Recipe(
        description=(
            "Decoders with product-key memories of 16,384 slots instead of feed-forward networks, beside deeper ones; "
            "Python standard library, bits per byte of the validation split. Equal text, steps and learning rate."
        ),
        config="product_key_python",
        variants={
            "4 layers": "dense",
            "one memory": "default",
            "8 layers": "deeper",
            "two memories": "two",
            "three memories": "three",
            "one memory beside the network (ResM)": "residual",
            "one memory, queries normalised by layer": "layer_norm",
            "one memory, queries not normalised": "default --model.feed-forward.query-norm none",
            "one memory, first layer": "default --model.feed-forward.layers 0",
            "one memory, 1 head": "default --model.feed-forward.memory-heads 1",
            "one memory, 4 neighbours": "default --model.feed-forward.num-neighbors 4",
            "one memory, 262,144 slots": "large",
        },
        steps=600,
        learning_rate=2e-3,
        usage=True,
        findings="One seed a row, too few for a comparison. Shares of slots in use are in the last columns.",
    ),
    "gpt2_memories": Recipe(
        description=(
            "Memories added to a trained GPT-2: the two stages of infinity-former. WikiText-2 in byte pairs trained on "
            "it, 4 layers, 128 wide, segments of 64, 1,024 tokens a step; contiguous streams, every token scored once, "
            "one seed: the numbers compare these models only. After 800 steps of GPT-2 alone, at learning rate 2e-3, "
            "all others go on from its parameters for 250 steps (1,050 in all) at 2e-4, and at 1e-3 for what a memory "
            "adds. The compressed memory has 64 slots of 4 tokens (ALiBi on their scores) and its reconstruction loss; "
            "the signal has 128 basis functions and is never reset."
        ),
        config="gpt2_wikitext",
        variants={
            "GPT-2, first stage": "default",
            "GPT-2, goes on alone": f"default {_GPT2_GOES_ON}",
            "+ compressed memory": (
                "compressive --model.attention.compressed-memory-length 64 --model.attention.compression-rate 4 "
                f"{_GPT2_MEMORY}"
            ),
            "+ infinity-former": f"infinity_former {_GPT2_SIGNAL}",
            "+ infinity-former, sticky": f"sticky {_GPT2_SIGNAL}",
        },
        steps=800,
        learning_rate=2e-3,
        arguments=(
            "--data.tokenizer.vocab-size 4096 --data.batch-size 16 --data.segment-length 64 --evaluation.batch-size 16 "
            "--model.dim 128 --model.num-layers 4 --model.num-heads 4 --model.scan-layers True --model.dropout 0.0 "
            "--model.attention-dropout 0.0 --model.attention.num-positions 64 --training.schedule.warmup-steps 40 "
            "--training.log-every 50 --training.evaluate-every 0 --training.checkpoint-every 200 "
            "--training.keep-checkpoints 1"
        ),
        data_path="MEMJAX_WIKITEXT2",
        evaluations={"test": BOTH_SPLITS["test"]},
        measures=("perplexity", "bits_per_byte"),
        final="validation",
    ),
}
