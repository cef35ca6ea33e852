"""Records the data of a run in training, and compares it whenever the documents of the run are opened.

The file `data.json` of a run directory has these entries for every task ('' for `data.source`):

    paths      for each path as it was typed: the absolute path, and the path relative to the run directory
    files      for each file: its size, its time in ns, and its SHA-256 ('' if the files have too many bytes to hash)
    splits     for each split: the fingerprint of its documents, and their number

The files show what has changed, even if the settings of the task differ. The fingerprints exist for all sources,
including those without files.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Mapping, Sequence
from glob import iglob
from pathlib import Path
from typing import Any

from memjax.config import Config
from memjax.data.content import file_facts, file_sha256, remember_file
from memjax.data.source_files import keep_sources_cached, source_files
from memjax.training.run_identity import read_run_file, write_run_file
from memjax.training.runs import config_to_dict, flat_settings

FILE = "data.json"
MAX_HASHED_BYTES = 4 << 30  # A source with more bytes is not hashed, except for texts, which are hashed anyway.
NOT_OF_DOCUMENTS = ("batch_size", "seed", "cache_dir")  # Fields of `data` under which the documents stay the same.

Read = Callable[[str], Any]
Recorded = Mapping[str, Any]


class RunData:
    """The record of a run's data. All documents that the run opens are compared with it: data that has changed is
    refused, or reported if the user has named other data.

    Attributes:
      other: Descriptions of the other data that was read instead, without repetitions.
      held: Parsed sources of the run, so that each is read once (see `memjax.data.source_files.keep_sources_cached`).
    """

    def __init__(
        self,
        run: Path | str = "",
        *,
        recorded: Recorded | None = None,
        same_settings: bool = True,
        is_other: bool = False,
        is_training: bool = False,
        tell: Callable[[str], None] = lambda line: None,
    ):
        """Makes a record without reading any data.

        Args:
          run: Run directory. '' for no run.
          recorded: `paths`, `files` and `splits` of each task by name. None if the run has recorded nothing.
          same_settings: Whether the documents are read with the settings of the run, so that fingerprints can be
            compared.
          is_other: Whether the user has named other data. Data that differs is then read and reported, not refused.
          is_training: Whether the run is trained, which requires the data of the run.
          tell: Function that is called with lines for the user.
        """
        self.other: list[str] = []
        self.held: dict[int, Any] = {}
        self._run, self._recorded = Path(run).expanduser() if run else None, {**(recorded or {})}
        self._same_settings, self._is_other, self._is_training = same_settings, is_other, is_training
        self._tell, self._reported = tell, set[str]()
        self._opened: dict[tuple[str, str], tuple[Any, list[Any]]] = {}
        self._keeps = False

    @classmethod
    def of_run(
        cls,
        run: Path | str,
        config: Config,
        given: Config | None = None,
        *,
        extra: Mapping[str, Any] | None = None,
        is_named: bool = False,
        tell: Callable[[str], None] = lambda line: None,
    ) -> RunData:
        """Reads the record of a run that is opened for evaluation or generation. `given` is a configuration to use
        instead of `config`, that of the run, and `is_named` says that the user has named the data, which may then
        differ.

        Args:
          run: Run directory.
          config: Configuration of the run.
          given: Configuration to use instead. None for that of the run.
          extra: JSON value that was saved in the checkpoint. Runs of earlier versions have no other record.
          is_named: Whether the user has named the data, even if the path is that of the run.
          tell: Function that is called with lines for the user.
        """
        other = config if given is None else given
        recorded = read_record(run)
        return cls(
            run,
            recorded=_earlier_record(extra or {}) if recorded is None else recorded,
            same_settings=_settings(config) == _settings(other),
            is_other=is_named or _places(config) != _places(other),
            tell=tell,
        )

    def with_existing_paths(self, config: Config) -> Config:
        """Returns the configuration with paths of data that exist, if there are any.

        A path is looked up as typed, beside the run directory, and where it was in training.
        """
        if self._run is None:
            return config
        stream, data = config.lifelong, config.data
        place = stream.with_sources_dir if stream else lambda source: source
        changes: dict[str, Any] = {}
        for name in ("neighbors_dir", "encoder_states_dir"):
            if (path := self._find(getattr(data, name))) != getattr(data, name):
                changes[name] = path
        if (source := self._find_source(place(data.source))) != place(data.source):
            changes["source"] = source
        if changes:
            config = dataclasses.replace(config, data=dataclasses.replace(data, **changes))
        if stream is None:
            return config
        tasks = [(task, place(task.source), self._find_source(place(task.source), task.name)) for task in stream.tasks]
        moved = [dataclasses.replace(task, source=new) if new != old else task for task, old, new in tasks]
        if moved != [*stream.tasks]:
            config = dataclasses.replace(config, lifelong=dataclasses.replace(stream, tasks=tuple(moved)))
        return config

    def open(self, config: Config, task: str, split: str, read: Read, *, same_settings: bool = True) -> Any:
        """Opens the documents of a split by `read(split)`, compares them with those of training and returns them. Data
        that has changed raises `ValueError`, or is reported if the user has named other data.

        Args:
          config: Configuration whose `data.source` is read, with paths that exist.
          task: Name of the task of a stream. '' for `data.source`.
          split: Name of the split.
          read: Function `read(split)` that opens the documents.
          same_settings: Whether the settings are those with which the documents of the task were recorded.

        Raises:
          ValueError: The data differs from that of training, or does not exist.
        """
        source, known = config.data.source, self._recorded.get(task)
        if known is None and self._run and not self._is_training:
            self._report_once(
                f"the data{f' of {task}' * bool(task)} was not recorded in training, and cannot be compared"
            )
        changes = self._changes(source, known) if known else None
        try:
            with keep_sources_cached(self.held):
                documents = read(split)
        except (ValueError, OSError) as error:
            if line := self._missing(source):
                raise ValueError(line) from error
            if changes and not self._is_other:
                raise ValueError(self._refusal(config, task, changes)) from error
            raise
        same_settings = same_settings and self._same_settings
        if known:
            changes = self._compare(known, split, documents, changes, read, same_settings)
            if changes:
                self._refuse_or_tell(config, task, split, changes)
        if same_settings and not changes and (known is None or split not in known.get("splits", {})):
            self._opened[task, split] = source, [documents.fingerprint, len(documents)]
            if self._keeps:
                self._write()
        return documents

    def check_files(self, config: Config, task: str = "") -> None:
        """Raises `ValueError` if files of the source of a task have changed since training, unless the user has named
        other data. Documents are not opened.
        """
        known = self._recorded.get(task)
        if known and not self._is_other and (changes := self._changes(config.data.source, known)):
            raise ValueError(self._refusal(config, task, changes))

    def keep(self, run: Path) -> None:
        """Writes the record of all opened splits to a run directory, now and whenever a further split is opened."""
        self._run, self._keeps = run, True
        self._write()

    # Comparison

    def _compare(
        self,
        known: Recorded,
        split: str,
        documents: Any,
        changes: Sequence[str] | None,
        read: Read,
        same_settings: bool,
    ) -> Sequence[str]:
        """Describes the differences between the data and its record. Empty without differences or comparable data."""
        splits = known.get("splits", {})
        if same_settings and split in splits:
            recorded = splits[split]
            return () if _is_same(documents, recorded) else changes or [_split_change(split, documents, recorded)]
        if changes is not None:
            return changes
        if same_settings and splits:  # This split was not recorded. A recorded one shows whether the data is the same.
            other = next(iter(splits))
            try:
                recorded, other_documents = splits[other], read(other)
            except (ValueError, OSError) as error:
                self._report_once(f"the data cannot be compared with that of training: {error}")
                return ()
            return () if _is_same(other_documents, recorded) else [_split_change(other, other_documents, recorded)]
        self._report_once(
            f"the data of the {split} split was read with other settings in training, and cannot be compared"
        )
        return ()

    def _changes(self, source: Any, known: Recorded) -> list[str] | None:
        """Describes the files that differ from the record. None if no files were recorded."""
        recorded = known.get("files")
        if not recorded:
            return None
        files, is_hashed = _name_files(source_files(source)), all(sha256 for _, _, sha256 in recorded.values())
        for name in recorded.keys() & files.keys():
            if is_hashed:
                remember_file(files[name], *recorded[name])
        if len(files) == len(recorded) == 1:  # a single file may have another name
            recorded = dict(zip(files, recorded.values(), strict=True))
        folder = Path(source.path) if len(recorded) > 1 else Path(source.path).parent
        paths = {name: str(files.get(name, folder / name)) for name in {**recorded, **files}}
        lines = (_change(path, files.get(name), recorded.get(name), is_hashed) for name, path in paths.items())
        return [line for line in lines if line]

    def _refuse_or_tell(self, config: Config, task: str, split: str, changes: Sequence[str]) -> None:
        """Raises `ValueError` for data that has changed, or reports it if the user has named other data."""
        if not self._is_other:
            raise ValueError(self._refusal(config, task, changes))
        data = _describe_source(config.data.source)
        if data not in self.other:
            self.other.append(data)
        self._report_once(f"{f'{task}, ' * bool(task)}{split}: reads {data}, other data than that of training")

    def _refusal(self, config: Config, task: str, changes: Sequence[str]) -> str:
        """Returns the error message for data that has changed, with the option that reads it anyway."""
        shown = "; ".join(changes[:3]) + (f"; and {len(changes) - 3} more" if len(changes) > 3 else "")
        source = config.data.source
        if self._is_training:
            remedy = "a new run under another --name for what is there now"
        elif config.lifelong is not None and config.lifelong.sources_dir:
            remedy = f"--lifelong.sources-dir {config.lifelong.sources_dir}, to read what is there now"
        elif source.path:
            remedy = f"--data.source.path {source.path}, to read what is there now"
        else:
            remedy = f"--data.source.name {source.name or 'NAME'}, to read what is there now"
        problem = f"the data{f' of {task}' * bool(task)} has changed since it was trained"
        return f"{self._run}: {problem}: {shown}; allowed: the data as it was, or {remedy}"

    def _report_once(self, line: str) -> None:
        """Reports a line to the user, unless it was reported before."""
        if line not in self._reported:
            self._reported.add(line)
            self._tell(f"{self._run}: {line}")

    # Record

    def _write(self) -> None:
        """Adds the opened splits to the record and writes it."""
        assert self._run is not None
        if not self._opened:
            return
        for (task, split), (source, facts) in self._opened.items():
            known = self._recorded.get(task, {})
            if "files" not in known:
                path = source.path
                absolute = os.path.abspath(os.path.expanduser(path))
                paths = {path: [absolute, os.path.relpath(absolute, os.path.abspath(self._run))]} if path else {}
                known = {**known, "paths": paths, "files": _recorded_files(source)}
            self._recorded[task] = {**known, "splits": {**known.get("splits", {}), split: facts}}
        self._opened.clear()
        write_run_file(self._run / FILE, {"version": 1, "tasks": self._recorded})

    # Paths

    def _find_source(self, source: Any, task: str = "") -> Any:
        """Returns a source with a path that exists, preferably one with the recorded files."""
        path = source.path
        if not path:
            return source
        known = self._recorded.get(task, {})
        places = [place for place in self._possible_paths(path) if _exists(place)]
        if len(places) > 1 and known.get("files"):
            fits = lambda place: not self._changes(dataclasses.replace(source, path=place), known)
            places = [place for place in places if fits(place)] or places
        return dataclasses.replace(source, path=places[0]) if places and places[0] != path else source

    def _find(self, path: str) -> str:
        """Returns the first possible path that exists, or the path as typed."""
        return next(filter(_exists, self._possible_paths(path)), path) if path else path

    def _possible_paths(self, path: str) -> list[str]:
        """Lists the possible paths of data: as typed, beside the run directory, and where it was in training."""
        assert self._run is not None
        run = Path(os.path.abspath(self._run))
        beside = [] if Path(path).is_absolute() else [str(folder / path) for folder in (run.parent, run.parent.parent)]
        trained = [place for known in self._recorded.values() for place in known.get("paths", {}).get(path, ())]
        absolute, relative = trained[:1], [os.path.normpath(run / place) for place in trained[1:2]]
        return [*dict.fromkeys([path, *beside, *relative, *absolute])]

    def _missing(self, source: Any) -> str:
        """Returns the error message for data that does not exist, with all paths that were tried. '' if it exists."""
        path = source.path
        if not path or self._run is None or (self._is_training and not self._recorded) or _exists(path):
            return ""
        paths = ", ".join(self._possible_paths(path))
        return (
            f"data.source.path: given {path!r}, which is not there; looked for {paths}; "
            "allowed: a path that exists (--data.source.path PATH)"
        )


def read_record(run: Path | str) -> dict[str, Any] | None:
    """Reads the record of a run's data: for each task by name a dictionary with `paths`, `files` and `splits`. None if
    the run has no record.

    Raises:
      ValueError: The file is damaged.
    """
    file = Path(run).expanduser() / FILE
    value = read_run_file(file)
    if value is None:
        return None
    tasks = value.get("tasks") if isinstance(value, dict) else None
    if not isinstance(tasks, dict) or not all(isinstance(known, dict) for known in tasks.values()):
        raise ValueError(f"{file}: damaged (no tasks), allowed: the JSON file that was written there")
    return tasks


def _earlier_record(extra: Mapping[str, Any]) -> dict[str, Any]:
    """Makes the record of a run of an earlier version, which has no `data.json`, from its checkpoint.

    The record has the documents of plain training. It is empty for a stream of tasks.

    Args:
      extra: JSON value that was saved in a checkpoint of the run.
    """
    position = extra.get("position") or {}
    stream = position.get("stream") if "stage" in position else position
    identity = (stream or {}).get("stream") or {}
    if "read" in (stream or {}) or "episodes" in (stream or {}) or not identity.get("fingerprint"):
        return {}  # A stream of tasks joins documents.
    return {"": {"paths": {}, "splits": {"train": [identity["fingerprint"], identity.get("documents", 0)]}}}


def _describe_source(source: Any) -> str:
    """Describes a source by its path with the number and bytes of its files, or by its name.

    Example:
      >>> from memjax.config import SeqioTask
      >>> _describe_source(SeqioTask(name="books"))
      'SeqioTask books'
    """
    if not source.path:
        return f"{type(source).__name__} {source.name}".strip()
    files = source_files(source)
    count = "1 file" if len(files) == 1 else f"{len(files):,} files"
    return f"{source.path} ({count}, {sum(file.stat().st_size for file in files):,} bytes)"


def _recorded_files(source: Any) -> dict[str, list[Any]]:
    """Returns size, time and SHA-256 of all files of a source by name."""
    files = source_files(source)
    is_hashed = (
        source.content_types[0] in ("texts", "pairs") or sum(f.stat().st_size for f in files) <= MAX_HASHED_BYTES
    )
    return {name: list(_facts(file, is_hashed)) for name, file in _name_files(files).items()}


def _facts(file: Path, is_hashed: bool) -> tuple[int, int, str]:
    """Returns size, time in ns and SHA-256 of a file. The SHA-256 is '' unless `is_hashed`."""
    return *file_facts(file), file_sha256(file) if is_hashed else ""


def _name_files(files: Sequence[Path]) -> dict[str, Path]:
    """Returns files by their names relative to their common folder."""
    if not files:
        return {}
    root = Path(os.path.commonpath([os.path.abspath(file.parent) for file in files]))
    return {Path(os.path.abspath(file)).relative_to(root).as_posix(): file for file in files}


def _change(name: str, file: Path | None, recorded: Sequence[Any] | None, is_hashed: bool) -> str:
    """Describes how a file differs from its record. '' if it does not."""
    if file is None:
        return f"{name} is {'read no more' if os.path.exists(name) else 'gone'}"
    if recorded is None:
        return f"{name} is new"
    size, _, sha256 = _facts(file, is_hashed)
    if size != recorded[0]:
        return f"{name} has {size:,} bytes, it had {recorded[0]:,}"
    return f"{name} has other content in its {size:,} bytes" if is_hashed and sha256 != recorded[2] else ""


def _is_same(documents: Any, recorded: Sequence[Any]) -> bool:
    """Returns whether documents have the recorded fingerprint. True if none was recorded."""
    return recorded[0] is None or documents.fingerprint == recorded[0]


def _split_change(split: str, documents: Any, recorded: Sequence[Any]) -> str:
    """Describes how the documents of a split differ from their record: in number or in content."""
    number = len(documents)
    if number != recorded[1]:
        return f"the {split} split has {number:,} examples, it had {recorded[1]:,}"
    return f"the {split} split has other content{f' in its {number:,} examples' * (number > 1)}"


def _exists(path: str) -> bool:
    """Returns whether a path or a pattern of paths matches a file or a folder."""
    whole = os.path.expanduser(path)
    return os.path.exists(whole) or next(iglob(whole, recursive=True), None) is not None


def _settings(config: Config) -> tuple[Any, Any]:
    """Returns the settings that the documents of a run depend on, without the location of the data."""
    data = flat_settings(config_to_dict(config.data))
    places = (*config.data.places, *NOT_OF_DOCUMENTS)
    names = {place.removesuffix(".") for place in places}
    parts = tuple(f"{name}." for name in names)
    settings = {name: value for name, value in data.items() if name not in names and not name.startswith(parts)}
    return settings, config_to_dict(config.task)


def _places(config: Config) -> Any:
    """Returns the settings with the location of the data of a run."""
    data, stream = config.data, config.lifelong
    return (
        config_to_dict(data.source),
        data.neighbors_dir,
        data.encoder_states_dir,
        stream and (stream.sources_dir, len(stream.tasks)),
    )
