"""Memories on WikiText-2: a small language model with each of them, on equal text, steps and protocol.

    memjax train --config wikitext2_memories --variant compressive --data.source.path DIR
    python -m tools.results run wikitext2_memories        # all variants; MEMJAX_WIKITEXT2=DIR

`spalm` needs `--data.neighbors-dir FOLDER`, which `memjax datastore neighbors --run RUN --path STORE --to FOLDER`
makes for
each split, with a trained `knn_lm_wikitext` and a store of its final hidden states (`--key output_normed`). By
halves they exclude what the key model has learned (docs/guides/datastores.md). Training continues from `one_softmax`:
`--training.init-from RUN`.

Paper: none; each variant's memory has its own, named in its class of `memjax.config`.
Paper's number: none at this size.
Our number: tools/results/tables/knn_lm.md, "Systems beside SPALM" (`compressive` there with segments of 64, longer than
its memory); `compressive` with shorter segments, and SPALM by its neighbours, also from a trained parent:
tools/results/tables/wikitext2_memories.md.
Hardware: 2 CPU cores.

Where the values come from
  ours        all: four layers, 128 wide, adaptive clusters, segments of 64, 16 contiguous streams, 8,000 steps of
              1,024 tokens, one learning rate (`knn_lm_wikitext`, its `default` is this one).
              `compressive` attends to as many slots as `default`: 32 of the memory and 32 compressed ones,
              which stand for 128 tokens; its 32 streams have segments of 32, no longer than its memory, as the paper
              has them, and so have `short` and `long`, with what it remembers without and with what is compressed.
              `spalm` has the memory of `default`, 4 neighbours as the paper of SPALM, and one softmax, in which the
              output weights of all tokens are as wide as the hidden state; `one_softmax` is its parent. The bias 2
              of its gate leaves a trained parent what it has learned (from scratch, 1,000 steps, one seed: perplexity
              351.6 with it and 361.6 without). `spalm_adaptive` is what the tables of before have measured
"""

from memjax.config import Config, Softmax
from memjax.settings.named_memories import make_memory_settings
from memjax.settings.overrides import load_config

VARIANTS = {
    "default": "Transformer-XL, memory of 64 tokens in every layer",
    "no_memory": "a Transformer that sees each segment of 64 tokens alone",
    "compressive": "Compressive Transformer: segments of 32, memory of 32 tokens and 32 compressed slots of 4 tokens",
    "short": "Transformer-XL with segments of 32 and 32 slots, those that `compressive` does not compress",
    "long": "Transformer-XL with segments of 32 and 160 slots, the number of tokens that `compressive` remembers",
    "one_softmax": "`default` with one softmax instead of adaptive clusters",
    "spalm": "`one_softmax` with SPALM: the tokens after 4 similar contexts of the training split",
    "spalm_adaptive": "`default` with SPALM as published, whose neighbours are not scaled",
    "smoke": "seconds: 2 layers, 32 wide, subwords of Python sources in contiguous streams",
}


def get_config(variant: str = "default") -> Config:
    """Returns the config of a variant, a key of `VARIANTS`, without `data.source.path`."""
    config = load_config("knn_lm_wikitext", "smoke" if variant == "smoke" else "default")
    config.name = f"wikitext2_memories_{variant}"
    match variant:
        case "default":
            config.model.attention = make_memory_settings("transformer_xl", memory_length=64)
        case "no_memory":
            config.model.attention = make_memory_settings("none")
        case "compressive":
            config.model.attention = make_memory_settings("compressive", memory_length=32, compressed_memory_length=32)
        case "short" | "long":
            slots = 32 if variant == "short" else 160
            config.model.attention = make_memory_settings("transformer_xl", memory_length=slots)
        case "one_softmax":
            config.model.attention = make_memory_settings("transformer_xl", memory_length=64)
            config.model.output = Softmax()
        case "spalm":
            config.model.attention = make_memory_settings("transformer_xl", memory_length=64)
            config.model.output = make_memory_settings("spalm", softmax=Softmax(), gate_bins=10)
        case "spalm_adaptive":
            config.model.attention = make_memory_settings("transformer_xl", memory_length=64)
            published = {"gate_bias": None, "scale_neighbors": False, "gate_bins": 10}
            config.model.output = make_memory_settings("spalm", softmax=config.model.output.softmax, **published)
        case "smoke":
            config.model.attention = make_memory_settings("compressive", memory_length=16, compressed_memory_length=8)
    if variant in ("compressive", "short", "long"):
        config.data.batch_size, config.data.segment_length = 32, 32
    return config
