"""Makes, checks and reads run directories.

A run directory has these files and folders:

    config.json      the resolved configuration
    command.txt      the command of every attempt
    versions.json    command, versions and devices of every attempt
    metrics.jsonl    one line per log and evaluation
    data.json        the record of the data, see `memjax.training.run_data`
    tokenizer/       the tokenizer, see `memjax.data.saved_tokenizers`
    checkpoints/     the checkpoints, see `memjax.training.checkpoints`
    profile/         traces of steps, if requested
    finished.json    the results of a finished run
"""

import copy
import dataclasses
import fcntl
import shlex
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter
from pathlib import Path
from typing import Any, NamedTuple

from memjax.config import Config
from memjax.data.saved_tokenizers import has_tokenizer, load_tokenizer, save_tokenizer
from memjax.durable_files import is_unfinished, read_json, write_json
from memjax.settings.checks import check_fields
from memjax.settings.compatibility import (
    current_path,
    in_saved_names,
    settings_class,
    type_name,
    upgrade_saved_settings,
)
from memjax.settings.earlier_fields import ADDED
from memjax.settings.pointers import import_kinds
from memjax.training.metrics import COUNT
from memjax.training.processes import is_first
from memjax.training.run_identity import NAME, make_identity, read_identity, read_run_file, write_run_file
from memjax.training.run_versions import read_attempts, versions
from memjax.training.stages import GROWTH

__all__ = ["config_from_dict", "config_to_dict", "load_config", "run_path"]

IGNORED = (
    *("name", "workdir", "data.cache_dir", "data.neighbors_dir", "lifelong.sources_dir"),
    *("sharding.data", "sharding.fsdp", "sharding.model", "sharding.split_memory_by", "sharding.process_timeout"),
    *("training.tensorboard", "training.wandb_project", "training.save_in_background"),
    "model.attention_implementation",
)
"""Fields that may change when a run continues: locations of data and runs, sharding, views, how it is saved, and
programs that agree but for rounding."""
STEPS = "training.steps"
"""Field that may grow when a run continues."""
MEMORY_FIELDS = ("data.batch_size",)
"""Further fields that may change when a run continues with empty memories."""
TOKENIZER = "tokenizer"
"""Folder of the tokenizer in a run directory."""


class RunRequest(NamedTuple):
    """A configuration that has been checked and may begin or continue the run in its directory, and how it does so.
    Nothing has been written yet.

    Attributes:
      config: Configuration of the run.
      path: Run directory. It need not exist.
      settings: The configuration as JSON values.
      saved_at: Time in ns at which the `config.json` of the directory was written. None if there is none.
      adds_tasks: Whether the configuration has more tasks than the run in the directory.
      adds_steps: Whether the configuration differs from that of the run only in a larger number of training steps.
        False for streams of tasks, which count their steps themselves.
      reset_memory: Whether the run continues with empty memories, so that `MEMORY_FIELDS` may have changed.
    """

    config: Config
    path: Path
    settings: dict[str, Any]
    saved_at: int | None = None
    adds_tasks: bool = False
    adds_steps: bool = False
    reset_memory: bool = False

    @property
    def extends_run(self) -> bool:
        """Whether the run gets more tasks or more steps than before, so that it goes on even if it is finished."""
        return self.adds_tasks or self.adds_steps


class RunDirectory:
    """The directory of one run, locked by one attempt at a time. Of several processes only the first one writes.

    Attributes:
      request: Configuration of the run, and how it continues the run in the directory.
      path: Path of the directory, `workdir/name`.
      attempt: Number of times that the run was started, including this one.
    """

    def __init__(self, request: RunRequest):
        """Opens the run directory of a configuration. It is created if it does not exist.

        The configuration replaces the saved one if it has more tasks or more training steps, whether the run is
        finished or not, or if the run continues with empty memories.

        Args:
          request: Configuration of the run and its directory, from `request_run`.

        Raises:
          ValueError: Another process trains in the directory, or has written a configuration since the request.
        """
        self.request, self.path = request, request.path
        self._lock, self._writes = None, is_first()
        if self._writes:
            self.path.mkdir(parents=True, exist_ok=True)
            self._lock = _lock(self.path)
        try:
            if self._writes:
                self._save_config()
            self._earlier = read_attempts(self.path)
        except Exception:
            self.close()
            raise
        self.attempt = len(self._earlier) + 1

    def _save_config(self) -> None:
        """Writes the configuration if it is new, or replaces that of the run."""
        request, file = self.request, self.path / "config.json"
        if _write_time(file) != request.saved_at:
            raise ValueError(f"{self.path}: another process has written its config.json meanwhile; start again")
        if request.saved_at is None or request.extends_run or request.reset_memory:
            # First, so that the run counts as unfinished from now on.
            (self.path / "finished.json").unlink(missing_ok=True)
            identity = make_identity(request.settings) if request.saved_at is None else read_identity(self.path)
            write_json(file, {**request.settings, **({NAME: identity} if identity else {})})

    def check_shared(self, seconds: float = 30.0) -> None:
        """Raises `ValueError` unless this process sees the files of process 0 in the directory. It waits for them, at
        most some `seconds`.
        """
        end = time.monotonic() + seconds
        while not (self.path / "config.json").exists():
            if time.monotonic() > end:
                raise ValueError(
                    f"workdir: {self.path} is not the folder that process 0 writes to, allowed: one that all processes "
                    "share (a mounted bucket or network file system)"
                )
            time.sleep(0.5)

    def keep_tokenizer(self, tokenizer: Any) -> None:
        """Copies the tokenizer into the directory, unless there is one. None, for data that consists of tokens, copies
        nothing.
        """
        if self._writes and tokenizer is not None and not has_tokenizer(self.path / TOKENIZER):
            save_tokenizer(tokenizer, self.path / TOKENIZER)

    def record_attempt(self, step: int) -> None:
        """Records the command, versions and devices of this attempt, which starts after `step`."""
        if not self._writes:
            return
        command = shlex.join(sys.argv)
        with (self.path / "command.txt").open("a", encoding="utf-8") as file:  # for people, who may copy its lines
            file.write(f"{command}\n")
        attempt = {"attempt": self.attempt, "step": step, "command": command, **versions()}
        write_run_file(self.path / "versions.json", {"attempts": [*self._earlier, attempt]})

    def finish(self, step: int, results: dict[str, Any], *, log_lines: int = 0) -> None:
        """Writes `finished.json` with the step, the results and the number of lines of the log, which marks the run as
        finished.
        """
        if self._writes:
            content = {"step": step, "attempts": self.attempt, COUNT: log_lines, "results": results}
            write_run_file(self.path / "finished.json", content)

    def close(self) -> None:
        """Releases the lock of the directory."""
        if self._lock is not None:
            self._lock.close()


def run_path(config: Config) -> Path:
    """Returns the path of the run directory of a configuration.

    Raises:
      ValueError: `workdir` is a URL, such as that of a bucket.
    """
    # As a path, a URL would be a local folder of that name, on a machine that may go away.
    if "://" in config.workdir:
        raise ValueError(
            f"workdir: given {config.workdir!r}, allowed: a folder; mount a bucket with gcsfuse and name its folder "
            "(`tools/tpu_vm.sh --bucket` does)"
        )
    return Path(config.workdir).expanduser() / config.name


def request_run(
    config: Config,
    *,
    reset_memory: bool = False,
    check_added_tasks: Callable[[Config], None] = lambda config: None,
) -> RunRequest:
    """Checks that a run of a configuration may begin or continue in its directory, and returns a `RunRequest`.
    `check_added_tasks(config)` is a function that may refuse further tasks.

    Args:
      config: Configuration of the run.
      reset_memory: Whether `MEMORY_FIELDS` may differ from the saved configuration.
      check_added_tasks: Function `check_added_tasks(config)` that raises an error if a run cannot continue with further
        tasks. It is called if the configuration has more tasks than the run.

    Raises:
      ValueError: The directory belongs to something else, or to a run of another configuration.
    """
    path, settings = run_path(config), config_to_dict(config)
    request = RunRequest(config, path, settings, reset_memory=reset_memory)
    if not path.exists():
        return request
    if not path.is_dir():
        raise ValueError(f"{path}: is a file, allowed: a directory; give another name or workdir")
    saved_at = _write_time(path / "config.json")
    if saved_at is None:
        # Another process may just be writing the config, and a kill may have left it half written.
        entries = [entry for entry in path.iterdir() if not is_unfinished(entry, "config.json")]
        others = sorted(entry.name for entry in entries if entry.name != ".lock")
        if others:
            raise ValueError(
                f"{path}: not empty ({others[0]}{', ...' if len(others) > 1 else ''}) and not a run directory; "
                "give another name or workdir"
            )
        return request
    saved_config = load_config(path)
    adds_tasks = config.takes_tasks_of(saved_config)
    if adds_tasks:
        check_added_tasks(config)
        saved_config, first_tasks = _same_tasks(path, saved_config, config)
        saved, current = config_to_dict(saved_config), config_to_dict(first_tasks)
    else:
        saved, current = config_to_dict(saved_config), settings
    adds_steps = config.lifelong is None and _differ_in_steps(path, saved, current)
    if not adds_steps:
        _check_same_settings(path, saved, current, reset_memory=reset_memory)
    return request._replace(saved_at=saved_at, adds_tasks=adds_tasks, adds_steps=adds_steps)


def _differ_in_steps(path: Path, saved: Any, current: Any) -> bool:
    """Returns whether two configurations as JSON values differ only in the number of training steps.

    Raises:
      ValueError: The current one has fewer steps than the saved one.
    """
    if not describe_config_difference(saved, current) or describe_config_difference(saved, current, (*IGNORED, STEPS)):
        return False
    before, wanted = saved["training"]["steps"], current["training"]["steps"]
    if wanted < before:
        raise ValueError(
            f"training.steps: given {wanted}, allowed: {before} or more, which the run in {path} was made for; a "
            "shorter one needs another name"
        )
    return True


def _check_same_settings(path: Path, saved: Any, current: Any, *, reset_memory: bool) -> None:
    """Raises `ValueError` if two configurations as JSON values differ in a field that a run cannot change."""
    difference = describe_config_difference(saved, current, (*IGNORED, *MEMORY_FIELDS) if reset_memory else IGNORED)
    if difference:
        hint = "give another name, or remove the directory"
        if not describe_config_difference(saved, current, (*IGNORED, *MEMORY_FIELDS)):
            hint = "its memories belong to those rows; --reset-memory goes on with empty ones"
        raise ValueError(f"{path}: holds a run of another config, {difference}; {hint}")


def _same_tasks(path: Path, old: Config, new: Config) -> tuple[Config, Config]:
    """Returns both configurations with the tasks of the old one only.

    Raises:
      ValueError: The tasks of the new configuration do not begin with those of the old one.
    """
    assert old.lifelong is not None and new.lifelong is not None
    learned, order = ([task.name for task in stream.ordered_tasks] for stream in (old.lifelong, new.lifelong))
    if order[: len(learned)] != learned:
        raise ValueError(
            f"lifelong.task_order: given {order}, allowed: {learned} first, the tasks of the run in {path}"
        )
    return old.of_first_tasks(len(learned)), new.of_first_tasks(len(learned))


def config_to_dict(config: Any) -> Any:
    """Converts a configuration to JSON values. Every dataclass becomes a dictionary with its `type`.

    Example:
      >>> from memjax.config import Bytes
      >>> config_to_dict(Bytes())
      {'type': 'Bytes'}
    """
    if dataclasses.is_dataclass(config):
        fields = {f.name: config_to_dict(getattr(config, f.name)) for f in dataclasses.fields(config)}
        if fields.get("cache_dir") == "":
            fields["cache_dir"] = None  # in earlier versions '' was the default folder
        return {"type": type_name(type(config)), **fields}
    return [config_to_dict(value) for value in config] if isinstance(config, tuple | list) else config


def model_for_fingerprint(model: Any) -> Any:
    """Converts the settings of a model to JSON values for a fingerprint. Newer settings are left out if they have no
    effect, so that the fingerprint does not change when settings are added.

    Args:
      model: Settings of a model. Fields that earlier versions lacked are left out if they have no effect (`ADDED`).

    Example:
      >>> from memjax.config import Model
      >>> "norm_epsilon" in model_for_fingerprint(Model())
      False
      >>> model_for_fingerprint(Model(norm_epsilon=1e-6))["norm_epsilon"]
      1e-06
    """
    values = in_saved_names(config_to_dict(model))
    added = ADDED.get(values["type"], {})
    has_effect = lambda name: name not in added or values[name] != added[name]
    return {name: value for name, value in values.items() if f"model.{name}" not in IGNORED and has_effect(name)}


def config_from_dict(value: Any) -> Any:
    """Builds a configuration from JSON values, the inverse of `config_to_dict`.

    Missing fields have their defaults, or the values that had their effect in earlier versions.

    Raises:
      ValueError: A type or field is unknown to this version.
    """
    if isinstance(value, list):
        return tuple(config_from_dict(item) for item in value)
    if not isinstance(value, dict):
        return value
    kind = settings_class(value.get("type"))
    if kind is None:
        raise ValueError(f"config: type {value.get('type')!r} is not known to this version of memjax")
    value = upgrade_saved_settings(value)
    if value["type"] == "Data" and "cache_dir" in value:
        folder = value["cache_dir"]
        value["cache_dir"] = "" if folder is None else "default" if folder == "" else folder
    known = {field.name for field in dataclasses.fields(kind)}
    unknown = sorted(value.keys() - known - {"type"})
    if unknown:
        raise ValueError(f"config: {value['type']}.{unknown[0]} is not known to this version of memjax")
    return kind(**{name: config_from_dict(item) for name, item in value.items() if name != "type"})


def load_config(path: Path | str, *, accepts_edits: bool = False) -> Config:
    """Reads the configuration of a run directory.

    Args:
      path: The run directory.
      accepts_edits: Whether to read a file that was edited by hand, whose checksum does not fit.

    Raises:
      ValueError: The path is not a run directory, or its configuration is damaged or of another version of memjax.
    """
    path = Path(path).expanduser()
    advice = (
        f"allowed: the file that was written there; after an edit by hand: memjax doctor --files {path} --accept-config"
    )
    settings = read_json(path / "config.json", advice=advice, compare=not accepts_edits)
    if settings is None:
        raise ValueError(
            f"{path}: no run directory (it has no config.json), allowed: a directory made by `memjax train`"
        )
    if isinstance(settings, dict):
        settings.pop(NAME, None)
    try:
        import_kinds(settings, path)
        config = config_from_dict(settings)
        if not isinstance(config, Config):
            raise ValueError(f"config: given {type(config).__name__}, allowed: a Config")
        check_fields(config)
    except ValueError as error:
        raise ValueError(f"{path / 'config.json'}: {error}") from None
    return config


def open_tokenizer(path: Path | str, wanted: str | None = None) -> Any:
    """Opens the tokenizer in a run directory. None if the run has none. `wanted` is its fingerprint according to a
    checkpoint: if given, a missing tokenizer is an error.

    Args:
      path: Run directory.
      wanted: Fingerprint of the tokenizer according to the checkpoint. None if the checkpoint has none.

    Raises:
      ValueError: The tokenizer is missing although `wanted` is given, or it is damaged.
    """
    folder = Path(path).expanduser() / TOKENIZER
    return load_tokenizer(folder) if folder.is_dir() or wanted is not None else None


def check_tokenizer(found: str | None, wanted: str | None, run: Path | str) -> None:
    """Raises `ValueError` unless `found`, the fingerprint of the tokenizer of a run, is `wanted`, that of its
    checkpoint. Nothing is raised if `wanted` is None.

    Args:
      found: Fingerprint of the tokenizer in the run directory.
      wanted: Fingerprint of the tokenizer according to the checkpoint. None if the checkpoint has none.
      run: Run directory.
    """
    if wanted is not None and found != wanted:
        raise ValueError(f"{run}: its tokenizer is {found}, allowed: {wanted}, which its checkpoint was trained with")


def config_after_growth(config: Config, lineage: Sequence[Mapping[str, Any]]) -> Config:
    """Returns the configuration of a model after its growth steps (`lineage`), each a mapping from fields of the
    configuration to new values.

    Args:
      config: Configuration at the beginning of the run.
      lineage: Growth history. Each growth step maps fields to values, such as `{"model.feed_forward.dim": 512}`. The
        key `GROWTH` is not a field.

    Raises:
      ValueError: The configuration does not have a field.
    """
    config = copy.deepcopy(config)
    for path, value in (item for fields in lineage for item in fields.items() if item[0] != GROWTH):
        part, _, name = current_path(config, path).rpartition(".")
        try:
            setattr(attrgetter(part)(config) if part else config, name, value)
        except AttributeError:  # settings have slots: no other name can be set
            raise ValueError(f"lineage: given {path!r}, allowed: a field of the configuration") from None
    if config.lifelong is not None and lineage:
        config.lifelong.num_growths = len(lineage)
    return config


def describe_config_difference(there: Any, given: Any, ignored: Sequence[str] = IGNORED) -> str:
    """Describes the fields in which two configurations as JSON values differ: that in the run directory (`there`) and
    the given one. '' if they differ only in `ignored` fields.

    Args:
      there: Configuration in the run directory as JSON values.
      given: Configuration that the user has given as JSON values.
      ignored: Fields that may differ.
    """
    a, b = flat_settings(there), flat_settings(given)
    names = [name for name in {**a, **b} if a.get(name) != b.get(name) and name not in ignored]
    lines = [f"{name} = {_show(a, name)} there and {_show(b, name)} here" for name in names[:3]]
    return ", ".join(lines) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def read_finished(path: Path | str) -> dict[str, Any] | None:
    """Reads `finished.json` of a run directory, a dictionary with `step` and `results`. Returns None if the run is not
    finished.

    Raises:
      ValueError: The file is damaged, or that of another run.
    """
    file = Path(path).expanduser() / "finished.json"
    content = read_run_file(file)
    results = content.get("results") if isinstance(content, dict) else None
    if content is not None and not (isinstance(results, dict) and "evaluation" in results and "step" in content):
        raise ValueError(f"{file}: damaged (it has no step or no results), allowed: the JSON file of a finished run")
    return content


def flat_settings(value: Any, prefix: str = "") -> dict[str, Any]:
    """Flattens a configuration in JSON values to a dictionary by the dotted names of its fields.

    The type of a part is the value at the name of the part.

    Example:
      >>> flat_settings({"type": "A", "rows": 2, "parts": [{"type": "B", "size": [1, 2]}]})
      {'': 'A', 'rows': 2, 'parts.0': 'B', 'parts.0.size': [1, 2]}
    """
    if isinstance(value, list) and any(isinstance(item, dict) for item in value):
        value = {str(number): item for number, item in enumerate(value)}
    if not isinstance(value, dict):
        return {prefix.removesuffix("."): value}
    flat: dict[str, Any] = {}
    for name, item in value.items():
        flat |= {prefix.removesuffix("."): item} if name == "type" else flat_settings(item, f"{prefix}{name}.")
    return flat


def _show(flat: dict[str, Any], name: str) -> str:
    """Returns the value of a field as text, or "nothing" if the field is missing."""
    return repr(flat[name]) if name in flat else "nothing"


def _write_time(file: Path) -> int | None:
    """Returns the time in ns at which a file was written. None if it does not exist."""
    return file.stat().st_mtime_ns if file.exists() else None


def _lock(path: Path) -> Any:
    """Locks a run directory for this process. The lock ends with the process, even if it is killed.

    Raises:
      ValueError: Another process has the lock.
    """
    file = (path / ".lock").open("a")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        raise ValueError(
            f"{path}: another process trains in this directory; wait for it, or give another name"
        ) from None
    except OSError:  # The file system has no locks.
        pass
    return file
