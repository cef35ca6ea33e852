"""A language model of your own text (`memjax train --text PATH`), in variants for different sizes of text.

    memjax train --text novel.txt           # or: memjax train --config own_text --data.source.path novel.txt
    memjax generate --run runs/text_novel --prompt "Once"

PATH is a file, a folder, a glob, or JSON lines. The size of the text chooses the variant; `--variant NAME` chooses
another one, and every field can be changed as in any config. The memory is that of Transformer-XL. Perplexity of
WikiText-2 with it and without, one seed: [table](../tools/results/tables/knn_lm.md). `--memory-kind NAME` chooses
another one of those that `memjax configs` lists. Files are read one after the other as continuous streams, so that the
memory crosses from one file to the next. Of a few files the end of each is held out, of many files some whole files.

Paper: Dai, Yang, Yang, Carbonell, Le and Salakhutdinov, "Transformer-XL", ACL 2019, https://arxiv.org/abs/1901.02860.
Paper's number: none on these texts.
Our number: tinyshakespeare (1.1 MB), the default variant: 2.04 bits per character on the validation split, in 464
seconds of CPU time (about 4 minutes on two cores).
Hardware: 2 CPU cores.

Where the values come from
  paper       relative positions, hidden states of the last tokens in every layer, gradients stopped, cosine decay
  ours        the sizes, pre-norm (trains at a higher rate), dropout where the text is read several times
"""

from memjax.config import (
    Adam,
    Bytes,
    Config,
    Data,
    Evaluation,
    Model,
    PythonLibrary,
    Schedule,
    SentencePiece,
    TextFiles,
    Training,
)
from memjax.settings.named_memories import with_memory_kind

VARIANTS = {
    "default": "50 kB to 4 MB of text: 1,024 pieces, 4 layers of 192, minutes on two CPU cores",
    "tiny": "less than 50 kB: bytes, 3 layers of 128",
    "medium": "4 to 100 MB: 8,192 pieces, 6 layers of 384, for an accelerator (not run)",
    "large": "more than 100 MB: 32,768 pieces, 12 layers of 768, for a TPU slice (not run)",
    "no_memory": "`default` without memory: each segment alone",
    "smoke": "seconds: 2 layers of 32, bytes",
}


def get_config(variant: str = "default") -> Config:
    """Returns the config of a variant, a key of `VARIANTS`, without `data.source.path`, which `--text` sets."""
    size = "default" if variant == "no_memory" else variant
    dim, layers, heads = {
        "smoke": (32, 2, 2), "tiny": (128, 3, 4), "default": (192, 4, 6), "medium": (384, 6, 6), "large": (768, 12, 12)
    }[size]  # fmt: skip
    rows, length, steps = {
        "smoke": (2, 16, 4), "tiny": (8, 128, 1000), "default": (16, 64, 1500), "medium": (32, 256, 10000),
        "large": (64, 512, 100000),
    }[size]  # fmt: skip
    pieces = {"default": 1024, "medium": 8192, "large": 32768}.get(size)
    rate, dropout = {"medium": 1e-3, "large": 4e-4}.get(size, 2e-3), 0.1 if size in ("tiny", "default") else 0.0
    config = Config(
        name=f"own_text_{variant}",
        model=Model(dim=dim, num_layers=layers, num_heads=heads, dropout=dropout),
        data=Data(
            source=PythonLibrary() if variant == "smoke" else TextFiles(),
            tokenizer=SentencePiece(vocab_size=pieces) if pieces else Bytes(),
            batch_size=rows,
            segment_length=length,
            protocol="contiguous",
        ),
        training=Training(
            steps=steps,
            optimizer=Adam(b2=0.99, weight_decay=0.1),
            schedule=Schedule(
                learning_rate=rate, warmup_steps=min(100, steps // 2), decay="cosine", final_fraction=0.05
            ),
            clip_norm=1.0,
            log_every=max(steps // 20, 1),
            evaluate_every=max(steps // 4, 1),
            checkpoint_every=max(steps // 4, 1),
        ),
        evaluation=Evaluation(batch_size=min(rows, 8), protocol="contiguous"),
    )
    return with_memory_kind(config, "none" if variant == "no_memory" else "transformer_xl")
