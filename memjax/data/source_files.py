"""Opens a user's own files, finds the files that a source reads, and caches parsed sources until their files change."""

import contextlib
import functools
import json
import sys
import weakref
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar

from memjax import config as configs
from memjax.data.content import file_facts
from memjax.data.labelled_rows import find_labelled_files
from memjax.data.paths import find_files, find_packed, readable_files
from memjax.data.record_files import read_record_files, texts_from_records
from memjax.data.sources import Texts, find_directory_files, texts_from_directories, texts_from_files
from memjax.settings.pointers import import_by_name
from memjax.settings.reading_rules import held_out_shares, reading_rules_of

__all__ = ["keep_sources_cached", "cache_parsed_source", "source_files"]

Parsed = TypeVar("Parsed")
_holder: ContextVar[dict[int, Any] | None] = ContextVar("holder", default=None)


@contextlib.contextmanager
def keep_sources_cached(holder: dict[int, Any]) -> Iterator[None]:
    """Context manager that stores the results of functions of `cache_parsed_source` in `holder`, a dict, so that they
    stay cached as long as it exists.
    """
    token = _holder.set(holder)
    try:
        yield
    finally:
        _holder.reset(token)


def cache_parsed_source(parse: Callable[..., Parsed]) -> Callable[..., Parsed]:
    """Decorator that caches the results of `parse(source, *arguments)` while they are referenced (see
    `keep_sources_cached`), until a file of the source changes.

    A source is parsed again if one of its files has another size or time, or if its seqio Task was registered again.
    """
    held: weakref.WeakValueDictionary[Any, Any] = weakref.WeakValueDictionary()

    @functools.wraps(parse)
    def read(source: Any, *arguments: Any) -> Parsed:
        facts = [(str(file), *file_facts(file)) for file in source_files(source)]
        settings = json.dumps([type(source).__name__, asdict(source), facts, arguments], default=str)
        key = settings, _registered_task(source)
        result = held.get(key)
        if result is None:
            result = held[key] = parse(source, *arguments)
        if (holder := _holder.get()) is not None:
            holder[id(result)] = result
        return result

    return read


def open_text_files(data: configs.Data, split: str) -> Texts:
    """Returns one split of a user's own text files as `Texts`, one per file. See
    `memjax.data.sources.texts_from_files`.
    """
    source: Any = data.source
    return texts_from_files(source.path, split=split, rules=reading_rules_of(source), **held_out_shares(source))


def open_directories(data: configs.Data, split: str) -> Texts:
    """Returns one split of a user's own folders as `Texts`, one per folder. See
    `memjax.data.sources.texts_from_directories`.
    """
    source: Any = data.source
    options: Any = {"rules": reading_rules_of(source), **held_out_shares(source)}
    return texts_from_directories(
        source.path, pattern=source.pattern, order_file=source.order_file, split=split, **options
    )


def open_json_lines(data: configs.Data, split: str) -> Texts:
    """Returns one split of the records in a user's own files (JSON, CSV, TSV, Parquet or Arrow) as `Texts`, one per
    record. See `memjax.data.record_files.texts_from_records`.
    """
    source: Any = data.source
    options: Any = {"rules": reading_rules_of(source), **held_out_shares(source)}
    return texts_from_records(source.path, field=source.field, split=split, **options)


def note_own_files(source: configs.OwnFiles) -> list[str]:
    """Returns a list with a line about skipped files or records of a user's own files. Empty if there are none."""
    files: Any = source
    note = import_by_name(source.opened_by)(configs.Data(source=files), "train").note
    return [note] if note else []


def source_files(source: Any) -> list[Path]:
    """Lists the paths of the files that a source reads, without files of a folder that it skips. Empty if the settings
    name no path.

    All files of a folder are listed if it is not known which of them are read, or if the reader refuses the folder.
    """
    if not source.path:
        return []
    path = Path(source.path).expanduser()
    if path.is_dir() and (names := source.file_names()):
        return [file for name in names if (file := find_packed(path, name))]
    for find in (lambda: _list_files(source, path), lambda: find_files(path)):
        with contextlib.suppress(ValueError, OSError):
            return find()
    return []


def _list_files(source: Any, path: Path) -> list[Path]:
    """Lists the files that the reader of a source reads.

    Raises:
      ValueError: The reader refuses the path.
    """
    match source:
        case configs.TextFiles():
            return readable_files(path, reading_rules_of(source))[0]
        case configs.JsonLines(field=field):
            return read_record_files(path, field, reading_rules_of(source))
        case configs.Directories(pattern=pattern, order_file=order_file):
            members, _ = find_directory_files(
                path, pattern=pattern, order_file=order_file, rules=reading_rules_of(source)
            )
            return [file for files in members.values() for file in files]
        case configs.Novels() if path.is_dir():
            return find_files(path / "**" / "*.txt")
        case configs.LabelledFile():
            return [*find_labelled_files(str(path)).values()]
    return find_files(path)


def _registered_task(source: Any) -> Any:
    """Returns the seqio Task that a source names. None for other sources, and if seqio has not been imported yet."""
    if not source.names_seqio_task or (seqio := sys.modules.get("seqio")) is None:
        return None
    with contextlib.suppress(ValueError):  # what is not registered, its reader refuses
        return seqio.get_mixture_or_task(source.name)
