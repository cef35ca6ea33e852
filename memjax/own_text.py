"""A text of one's own: which config it gets, and why.

    config, why = text_config("novel.txt")
    result = memjax.training.train(config)

What `memjax train --text PATH` does.
"""

import os
from pathlib import Path

from memjax.config import Config, JsonLines, TextFiles
from memjax.data.sources import find_files
from memjax.overrides import UsageError, load_config

__all__ = ["text_config"]

CONFIG = "own_text"
SIZES = {"tiny": 50_000, "default": 4_000_000, "medium": 100_000_000}
"""variant of the config -> bytes of text that it is for, at most; 'large' is for more"""
NO_MEMORY = "no_memory"
"""variant that is the one of the text's size with its memory off"""
PACKED = {".xz": 4, ".gz": 3}
"""ending -> how many times as long prose is unpacked, roughly"""


def text_config(path: str | os.PathLike[str], name: str = "", variant: str = "") -> tuple[Config, str]:
    """The config for a text, and a line that says what was chosen and why.

    Args:
      path: a file, a folder, a glob, or JSON lines (`.jsonl`, `.json`; their field `text`), also packed (.xz, .gz).
      name: of a config of texts to use instead of `own_text`.
      variant: of the config; '' = by the size of the text, or the default one of another config; 'no_memory' = by the
        size too, with the memory off.

    Raises:
      ValueError: a path without files, or a config that reads no texts.
    """
    files = find_files(path)
    size = sum(file.stat().st_size * PACKED.get(file.suffix, 1) for file in files)
    by_size = not name and variant in ("", NO_MEMORY)
    chosen = _variant_of(size) if by_size else variant
    config = load_config(name or CONFIG, chosen)
    config = config.with_memory(0) if by_size and variant else config
    if config.data.source.gives[0] != "texts" or config.lifelong is not None:
        kind = type(config.data.source).__name__
        raise UsageError(f"--text: given with --config {name}, which reads {kind}, allowed: a config of texts")
    lines = {".jsonl", ".json"} & {suffix for file in files for suffix in file.suffixes[-2:]}
    config.data.source = JsonLines(path=str(path)) if lines else TextFiles(path=str(path))
    stem = Path(str(path).rstrip("/*")).name.partition(".")[0].strip("*?[]") or "texts"
    config.name = "_".join(filter(None, [name or "text", stem, variant]))
    return config, _why(config, path, len(files), size, name or CONFIG, chosen, by_size=by_size)


def _variant_of(size: int) -> str:
    return next((variant for variant, limit in SIZES.items() if size < limit), "large")


def _why(config: Config, path: object, count: int, size: int, name: str, variant: str, *, by_size: bool) -> str:
    """What was chosen, and why."""
    model, data = config.model, config.data
    amount = f"{size / 1e6:.1f} MB" if size >= 1e6 else f"{size / 1e3:.0f} kB"
    memory = model.carrier.memory_length
    slots = f"a memory of {memory} tokens" if memory else "no memory"
    pieces = getattr(data.tokenizer, "vocab_size", None)
    tokenizer = f"{type(data.tokenizer).__name__} of {pieces:,}" if pieces else type(data.tokenizer).__name__
    reason = "chosen by that size" if by_size else "as asked"
    sizes = f"{model.num_layers} layers of {model.dim}, {config.training.steps:,} steps of {data.rows} x "
    return (
        f"{path}: {amount} in {count:,} {'file' if count == 1 else 'files'}; config {name}"
        f"{f', variant {variant}' if variant else ''} ({reason}): {model.attention_kind} with {slots}, "
        f"{tokenizer}, {sizes}{data.segment_length} tokens; `memjax configs` lists others"
    )
