"""Chooses a config for a user's own text.

    config, why = text_config("novel.txt")
    result = memjax.training.train(config)

`memjax train --text PATH` calls these functions.
"""

import os
from dataclasses import replace
from pathlib import Path

from memjax.cli.from_run import describe_start, name_of_start, with_start
from memjax.config import Config, JsonLines, TextFiles
from memjax.data.file_contents import estimate_text_size
from memjax.data.paths import readable_files
from memjax.data.record_files import find_record_files
from memjax.data.records import detect_record_format
from memjax.data.source_readers import open_source
from memjax.data.tokenizers import utf8_bytes
from memjax.settings.named_kinds import in_name_of_run
from memjax.settings.named_memories import MEMORIES, with_memory_kind
from memjax.settings.overrides import (
    UsageError,
    load_config,
    shipped_config,
)
from memjax.settings.reading_rules import ReadingRules

CONFIG = "own_text"
SIZES = {"tiny": 50_000, "default": 4_000_000, "medium": 100_000_000}
"""variant of the config -> number of bytes below which a text gets it; the variant 'large' is for all larger texts"""
NO_MEMORY = "no_memory"
"""name for the variant of the text's size with the memory turned off"""
SMALL = 1_000_000
"""number of bytes from which on every split of a text is large enough"""


def text_config(
    path: str | os.PathLike[str],
    name: str = "",
    variant: str = "",
    rules: ReadingRules = ReadingRules(),
    *,
    memory_kind: str = "",
    from_run: str | None = None,
) -> tuple[Config, str]:
    """Makes the config for a user's text at a path, and returns it with a line that gives the reason. Its size chooses
    the variant, unless `name` or `variant` names another config or variant. `rules` say how files are read, and
    `from_run` is a run to start from.

    Args:
      path: A file, a folder, a glob, or records (JSON lines or arrays, CSV, TSV, Parquet, Arrow; their field `text`),
        packed or not.
      name: Name of a config of texts to use instead of `own_text`.
      variant: Variant of the config. '' for the variant of `own_text` for texts of this size, or the default variant of
        another config. 'no_memory' for the variant of this size with the memory turned off.
      rules: Encoding of the files, and which unreadable parts may be skipped.
      memory_kind: Name of a memory (`memjax.settings.named_memories.MEMORIES`), which replaces that of the config.
        `my_module:MyMemory` for a class of your own. '' for the memory of the config.
      from_run: Run whose model, tokenizer and parameters are taken. None for a new model.

    Raises:
      ValueError: There are no files at the path, they cannot be read, or the config does not read texts.
    """
    files, has_records = _readable(path, rules)
    size = sum(map(estimate_text_size, files))
    by_size = not name and variant in ("", NO_MEMORY)
    chosen = _variant_of(size) if by_size else variant
    config = with_start(load_config(name or shipped_config(CONFIG), chosen), from_run)
    config = config.with_memory(0) if by_size and variant else config
    if config.data.source.content_types[0] != "texts" or config.lifelong is not None:
        kind = type(config.data.source).__name__ if config.lifelong is None else "a stream of tasks"
        option = " ".join(["--config", name or CONFIG, *(["--variant", variant] if variant else [])])
        raise UsageError(f"--text: given with {option}, which reads {kind}, allowed: a config of texts")
    kind = JsonLines if has_records else TextFiles
    config.data.source = kind(path=str(path), encoding=rules.encoding, skip=rules.skip)
    stem = Path(str(path).rstrip("/*")).name.partition(".")[0].strip("*?[]") or "texts"
    parts = [Path(name).stem or "text", stem, variant, in_name_of_run(memory_kind), name_of_start(from_run)]
    config.name = "_".join(filter(None, parts))
    config = _with_memory_kind(config, memory_kind, has_documents=has_records) if memory_kind else config
    why = _why(config, path, len(files), size, name or CONFIG, chosen, memory_kind, by_size=by_size)
    return config, why + describe_start(from_run)


def _with_memory_kind(config: Config, name: str, *, has_documents: bool) -> Config:
    """Returns the config with the memory `name`. A memory that forgets nothing begins anew with every document, if the
    text has documents.
    """
    config = with_memory_kind(config, name)
    if MEMORIES.find(name).forgets or not has_documents:
        return config
    scored = replace(config.evaluation, protocol="separate")
    return replace(config, data=replace(config.data, protocol="separate"), evaluation=scored)


def _readable(path: str | os.PathLike[str], rules: ReadingRules) -> tuple[list[Path], bool]:
    """Returns the files at a path, and whether they are records (by most of their bytes) or texts."""
    files = find_record_files(path)
    sizes = {file: file.stat().st_size for file in files}
    of_records = sum(size for file, size in sizes.items() if detect_record_format(file))
    if of_records > sum(sizes.values()) / 2:
        return files, True
    return readable_files(path, rules)[0], False


def check_size(config: Config, option: str = "--text") -> None:
    """Raises `UsageError` where a split of the user's text has too few bytes for its rows, before a tokenizer is
    trained. `option` is the name of the option that the message blames.

    Args:
      config: A configuration. Only one that reads text files or records is checked.
      option: Option by which the user has named the text.

    Raises:
      ValueError: A split with fewer bytes than rows, or without text.
    """
    source, data = config.data.source, config.data
    if not isinstance(source, TextFiles | JsonLines) or config.lifelong is not None:
        return
    size = sum(file.stat().st_size for file in find_record_files(source.path))
    if size >= SMALL or data.protocol != "contiguous":
        return
    validation = max(source.validation_percent, 1)
    needed = max(data.batch_size, config.evaluation.batch_size * 100 // validation) + 1
    for split, rows in {"train": data.batch_size, "validation": config.evaluation.batch_size}.items():
        num_bytes = sum(len(utf8_bytes(text)) for text in open_source(data, split))
        if num_bytes < rows:
            allowed = f"{rows:,} or more, one for every row: a text of about {needed:,} bytes"
            raise UsageError(
                f"{option}: {source.path} has {num_bytes:,} bytes in its {split} split, allowed: {allowed}"
            )


def _variant_of(size: int) -> str:
    """Returns the variant for a text of `size` bytes."""
    return next((variant for variant, limit in SIZES.items() if size < limit), "large")


def _why(
    config: Config, path: object, count: int, size: int, name: str, variant: str, memory_kind: str, *, by_size: bool
) -> str:
    """Describes in one line which config was chosen, and why."""
    model, data, memory_entry = config.model, config.data, MEMORIES.find(memory_kind or "none")
    amount = f"{size / 1e6:.1f} MB" if size >= 1e6 else f"{size / 1e3:.0f} kB"
    memory = model.memory_facts.memory_length
    slots = f"a memory of {memory} tokens" if memory else "no memory"
    described = (
        f"{model.attention_kind} with {slots}" if not memory_kind else f"memory {memory_kind} ({memory_entry.about})"
    )
    then = f"; {memory_entry.commands}" if memory_entry.commands else ""
    if not memory_entry.forgets and data.protocol == "contiguous":
        then += f"; {memory_kind} forgets nothing, records of which each is a document suit it better than a long text"
    pieces = data.tokenizer.vocab_size
    tokenizer = f"{type(data.tokenizer).__name__} of {pieces:,}" if pieces else type(data.tokenizer).__name__
    tokenizer = "" if config.training.init_from else f"{tokenizer}, "  # that of the run
    reason = "chosen by that size" if by_size else "as asked"
    sizes = f"{model.num_layers} layers of {model.dim}, {config.training.steps:,} steps of {data.batch_size} x "
    return (
        f"{path}: {amount} in {count:,} {'file' if count == 1 else 'files'}; config {name}"
        f"{f', variant {variant}' if variant else ''} ({reason}): {described}, "
        f"{tokenizer}{sizes}{data.segment_length} tokens; `memjax configs` lists others{then}"
    )
