"""Compares the files of a run, a data cache, a datastore or another folder of memjax with their checksums."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from memjax.durable_files import DamagedError, has_checksum, read_json, write_json

WITHOUT = "has no checksum (an earlier version of memjax, or another program, wrote it)"
"""Remark on a JSON file that cannot be compared"""


class Finding(NamedTuple):
    """A file or a part of a folder that was compared, with a remark about damage.

    Attributes:
      path: File or folder that was compared.
      remark: Line about damage, or about a file that cannot be compared. "" for an intact one.
      is_damaged: Whether the file is not as it was written.
    """

    path: Path
    remark: str = ""
    is_damaged: bool = False


def compare_files(root: Path) -> Iterator[Finding]:
    """Compares everything below a folder that carries checksums: JSON files, logs, tokenizers, token files, datastores
    and checkpoints. Yields a `Finding` for each of them.

    Args:
      root: Run directory, data cache, datastore, or a folder that holds some.
    """
    for name, folders, files in os.walk(root):
        folder = Path(name)
        folders.sort()
        if folder.name == "checkpoints" and folder.parent.joinpath("config.json").exists():
            folders.clear()
            yield from _compare_checkpoints(folder)
            continue
        for file in sorted(files):
            if file.endswith(".json"):
                yield _compare_json(folder / file)
        if "metrics.jsonl" in files:
            yield _compare_log(folder / "metrics.jsonl")
        if {"done.json", "documents.bin"} <= {*files}:
            yield _compare_token_file(folder)
        if {"about.json"} <= {*files} and folder.name == "tokenizer":
            yield _compare_tokenizer(folder)
        if "meta.json" in files:
            yield from _compare_datastore(folder)


def accept_config(run: Path) -> None:
    """Accepts a `config.json` that was edited by hand: writes it anew with its checksum, and a note about that to
    `versions.json`.

    Args:
      run: The run directory.

    Raises:
      ValueError: The file is no configuration.
    """
    from memjax.training.run_identity import NAME, read_identity, write_run_file
    from memjax.training.run_versions import read_attempts
    from memjax.training.runs import config_to_dict, load_config

    config, attempts = load_config(run, accepts_edits=True), read_attempts(run) or [{}]
    attempts[-1]["note"] = "config.json was edited by hand after this attempt, and accepted"
    identity = read_identity(run)
    write_run_file(run / "versions.json", {"attempts": attempts})
    write_json(run / "config.json", {**config_to_dict(config), **({NAME: identity} if identity else {})})


def _compare_json(file: Path) -> Finding:
    try:
        value = read_json(file)
    except DamagedError as error:
        return Finding(file, str(error), is_damaged=True)
    is_compared = not isinstance(value, dict) or has_checksum(file)
    return Finding(file, "" if is_compared else f"{file}: {WITHOUT}")


def _compare_log(file: Path) -> Finding:
    from memjax.training.metrics import describe_damaged_lines

    damage = describe_damaged_lines(file)
    return Finding(file, damage, is_damaged=bool(damage))


def _compare_token_file(folder: Path) -> Finding:
    from memjax.data.token_files import TokenFile

    try:
        file = TokenFile(folder)
        file.compare()
    except (ValueError, OSError) as error:
        return Finding(folder, str(error), is_damaged=True)
    return Finding(folder, "" if file.has_checksums else f"{folder}: {WITHOUT}")


def _compare_tokenizer(folder: Path) -> Finding:
    from memjax.data.saved_tokenizers import load_tokenizer

    try:
        load_tokenizer(folder)
    except ValueError as error:
        return Finding(folder, str(error), is_damaged=True)
    return Finding(folder)


def _compare_datastore(folder: Path) -> Iterator[Finding]:
    from memjax.datastore.store import Store

    try:
        problems = [*Store(folder).find_problems()]
    except (ValueError, OSError) as error:
        problems = [str(error)]
    yield from (Finding(folder, problem, is_damaged=True) for problem in problems)
    if not problems:
        yield Finding(folder)


def _compare_checkpoints(folder: Path) -> Iterator[Finding]:
    import contextlib

    from memjax.training.checkpoints import Checkpoints

    with contextlib.closing(Checkpoints(folder, read_only=True)) as checkpoints:
        for step in checkpoints.steps():
            try:
                checkpoints.load("", step=step)
            except ValueError:
                yield Finding(folder, f"{folder}: checkpoint {step} is damaged", is_damaged=True)
            else:
                yield Finding(folder)
