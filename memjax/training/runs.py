"""Run directories: what a run writes, and who may write there.

config.json      the resolved configuration
command.txt      the command of every attempt
versions.json    versions and devices of every attempt
metrics.jsonl    one line per log and evaluation
data.json        what its data was, see `memjax.training.run_data`
tokenizer/       see `memjax.data.saved_tokenizers`
checkpoints/     see `memjax.training.checkpoints`
profile/         traces of steps, where asked for
finished.json    the results, once the run is through
"""

import copy
import dataclasses
import fcntl
import importlib.metadata
import json
import platform
import shlex
import sys
import time
from collections.abc import Mapping, Sequence
from operator import attrgetter
from pathlib import Path
from typing import Any

import jax

from memjax.config import Config
from memjax.data.saved_tokenizers import load_tokenizer, save_tokenizer
from memjax.settings.compatibility import (
    ADDED,
    SAVED_TYPES,
    current_path,
    in_saved_names,
    settings_class,
    upgrade_saved_settings,
)
from memjax.settings.relations import check_fields
from memjax.training.processes import is_first
from memjax.training.stages import GROWTH

__all__ = ["config_from_dict", "config_to_dict", "load_config", "run_path"]

IGNORED = (
    *("name", "workdir", "data.cache_dir", "data.neighbors", "lifelong.folder"),
    *("sharding.data", "sharding.fsdp", "sharding.model", "sharding.memory", "sharding.timeout"),
    *("training.tensorboard", "training.wandb"),
)
"""fields that may differ when a run goes on: where things are and are shown, the run itself included"""
STEPS = "training.steps"
"""the field that may grow when a run goes on"""
MEMORY_FIELDS = ("data.rows",)
"""fields that may differ besides when a run goes on with empty memories"""
TOKENIZER = "tokenizer"
"""the folder of a run's own tokenizer"""
PACKAGES = ("memjax", "jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "numpy", "sentencepiece")


class RunDirectory:
    """The directory of one run, opened by one attempt at a time; of several processes only the first one writes.

    Attributes:
      path: `workdir/name`.
      attempt: how often the run has been started, this time included.
    """

    def __init__(self, config: Config, *, reset_memory: bool = False):
        """Opens the directory of `config` and makes it where it is new.

        A stream takes more tasks than its run has had, and plain training more steps, whether the run is through or
        not: the configuration replaces the one there.

        Args:
          config: of the run.
          reset_memory: `MEMORY_FIELDS` may differ from those there, and replace them.

        Raises:
          ValueError: it is not empty and not a run directory, its config differs, or another process trains in it.
        """
        self.path, self._lock, self._writes = run_path(config), None, is_first()
        check_directory(self.path, config, reset_memory=reset_memory)
        replaces = reset_memory or takes_more(self.path, config)
        if self._writes:
            self.path.mkdir(parents=True, exist_ok=True)
            self._lock = _lock(self.path)
        try:
            if self._writes and (replaces or not (self.path / "config.json").exists()):
                (self.path / "finished.json").unlink(missing_ok=True)  # first: what is not through is gone on with
                write_json(self.path / "config.json", config_to_dict(config))
            self._earlier = read_json(self.path / "versions.json") or []
            if not isinstance(self._earlier, list):
                raise ValueError(f"{self.path / 'versions.json'}: damaged, allowed: a list of attempts; remove it")
        except Exception:
            self.close()
            raise
        self.attempt = len(self._earlier) + 1

    def check_shared(self, seconds: float = 30.0) -> None:
        """Raises `ValueError` unless this process sees what the first one has written."""
        end = time.monotonic() + seconds
        while not (self.path / "config.json").exists():
            if time.monotonic() > end:
                raise ValueError(
                    f"workdir: {self.path} is not the folder that process 0 writes to, allowed: one that all processes "
                    "share (a mounted bucket or network file system)"
                )
            time.sleep(0.5)

    def keep_tokenizer(self, tokenizer: Any) -> None:
        """Copies the tokenizer into the directory, once; None = the data is tokens already."""
        if self._writes and tokenizer is not None and not (self.path / TOKENIZER).is_dir():
            save_tokenizer(tokenizer, self.path / TOKENIZER)

    def record_attempt(self, step: int) -> None:
        """Notes command, versions and devices of this attempt, which starts after `step`."""
        if not self._writes:
            return
        with (self.path / "command.txt").open("a", encoding="utf-8") as file:
            file.write(shlex.join(sys.argv) + "\n")
        attempt = {"attempt": self.attempt, "step": step, **versions()}
        write_json(self.path / "versions.json", [*self._earlier, attempt])

    def finish(self, step: int, results: dict[str, Any]) -> None:
        """Marks the run as through."""
        if self._writes:
            write_json(self.path / "finished.json", {"step": step, "attempts": self.attempt, "results": results})

    def close(self) -> None:
        if self._lock is not None:
            self._lock.close()


def run_path(config: Config) -> Path:
    """The run directory of a configuration.

    Raises:
      ValueError: the workdir is an address; as a path it would be a folder of that name on a machine that goes away.
    """
    if "://" in config.workdir:
        raise ValueError(
            f"workdir: given {config.workdir!r}, allowed: a folder; mount a bucket with gcsfuse and name its folder "
            "(`tools/tpu_vm.sh --bucket` does)"
        )
    return Path(config.workdir).expanduser() / config.name


def check_directory(path: Path, config: Config, *, reset_memory: bool = False) -> None:
    """Raises `ValueError` unless a run of `config` may begin or go on in `path`."""
    if not path.exists():
        return
    if not path.is_dir():
        raise ValueError(f"{path}: is a file, allowed: a directory; give another name or workdir")
    if not (path / "config.json").exists():
        # Another process may just be writing the config, and a kill may have left it half written.
        others = sorted(entry.name for entry in path.iterdir() if entry.name not in (".lock", "config.tmp"))
        if others:
            raise ValueError(
                f"{path}: not empty ({others[0]}{', ...' if len(others) > 1 else ''}) and not a run directory; "
                "give another name or workdir"
            )
        return
    old, new = load_config(path), config
    if new.takes_tasks_of(old):
        old, new = _same_tasks(path, old, new)
    there, here = config_to_dict(old), config_to_dict(new)
    if takes_steps(path, config):
        before, wanted = old.training.steps, new.training.steps
        if wanted < before:
            raise ValueError(
                f"training.steps: given {wanted}, allowed: {before} or more, which the run in {path} was made for; a "
                "shorter one needs another name"
            )
        there["training"]["steps"] = wanted
    difference = describe_difference(there, here, (*IGNORED, *MEMORY_FIELDS) if reset_memory else IGNORED)
    if difference:
        hint = "give another name, or remove the directory"
        if not describe_difference(there, here, (*IGNORED, *MEMORY_FIELDS)):
            hint = "its memories belong to those rows; --reset-memory goes on with empty ones"
        raise ValueError(f"{path}: holds a run of another config, {difference}; {hint}")


def takes_tasks(path: Path, config: Config) -> bool:
    """Whether a stream of tasks has a run in `path` that knows less of them."""
    return (path / "config.json").exists() and config.takes_tasks_of(load_config(path))


def takes_steps(path: Path, config: Config) -> bool:
    """Whether a run in `path` differs from a configuration in the number of steps alone; streams have their own."""
    if config.lifelong is not None or not (path / "config.json").exists():
        return False
    old, new = (config_to_dict(settings) for settings in (load_config(path), config))
    return bool(describe_difference(old, new)) and not describe_difference(old, new, (*IGNORED, STEPS))


def takes_more(path: Path, config: Config) -> bool:
    """Whether a run in `path`, finished or not, goes on with more tasks or more steps than it was begun with."""
    return takes_tasks(path, config) or takes_steps(path, config)


def _same_tasks(path: Path, old: Config, new: Config) -> tuple[Config, Config]:
    """Both with the tasks of the old one, which the new one must begin with."""
    assert old.lifelong is not None and new.lifelong is not None
    learned, given = ([task.name for task in stream.in_order] for stream in (old.lifelong, new.lifelong))
    if given[: len(learned)] != learned:
        raise ValueError(f"lifelong.order: given {given}, allowed: {learned} first, the tasks of the run in {path}")
    return old.of_first_tasks(len(learned)), new.of_first_tasks(len(learned))


def config_to_dict(config: Any) -> Any:
    """A configuration as JSON values; every dataclass names its type.

    Example:
      >>> from memjax.config import Bytes
      >>> config_to_dict(Bytes())
      {'type': 'Bytes'}
    """
    if dataclasses.is_dataclass(config):
        fields = {f.name: config_to_dict(getattr(config, f.name)) for f in dataclasses.fields(config)}
        if fields.get("cache_dir") == "":
            fields["cache_dir"] = None  # where earlier versions wrote '', they meant the default folder
        return {"type": SAVED_TYPES.get(name := type(config).__name__, name), **fields}
    return [config_to_dict(value) for value in config] if isinstance(config, tuple | list) else config


def model_for_fingerprint(model: Any) -> Any:
    """Returns the settings of a model as JSON values for a fingerprint, which stays when settings are added.

    Args:
      model: Settings of a model. Fields that earlier versions lacked are left out where they change nothing (`ADDED`).

    Example:
      >>> from memjax.config import Model
      >>> "norm_epsilon" in model_for_fingerprint(Model())
      False
      >>> model_for_fingerprint(Model(norm_epsilon=1e-6))["norm_epsilon"]
      1e-06
    """
    values = in_saved_names(config_to_dict(model))
    added = ADDED.get(values["type"], {})
    return {name: value for name, value in values.items() if name not in added or value != added[name]}


def config_from_dict(value: Any) -> Any:
    """The inverse of `config_to_dict`; fields that are missing have their defaults, or what was there before them.

    Raises:
      ValueError: a type or field that this version does not have.
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


def load_config(path: Path | str) -> Config:
    """The configuration of a run directory.

    Raises:
      ValueError: it is not a run directory, or its configuration is damaged or of another version of memjax.
    """
    path = Path(path).expanduser()
    value = read_json(path / "config.json")
    if value is None:
        raise ValueError(
            f"{path}: no run directory (it has no config.json), allowed: a directory made by `memjax train`"
        )
    try:
        config = config_from_dict(value)
        if not isinstance(config, Config):
            raise ValueError(f"config: given {type(config).__name__}, allowed: a Config")
        check_fields(config)
    except ValueError as error:
        raise ValueError(f"{path / 'config.json'}: {error}") from None
    return config


def open_tokenizer(path: Path | str, wanted: str | None = None) -> Any:
    """The tokenizer that a run carries; None where it has none of its own (see `memjax.data.saved_tokenizers`).

    Args:
      path: the run directory.
      wanted: the fingerprint that its checkpoint names; None = it names none.

    Raises:
      ValueError: the tokenizer is gone, damaged or another one.
    """
    folder = Path(path).expanduser() / TOKENIZER
    return load_tokenizer(folder) if folder.is_dir() or wanted is not None else None


def check_tokenizer(found: str | None, wanted: str | None, run: Path | str) -> None:
    """Raises `ValueError` unless the texts of a run become the ids that its checkpoint was trained on.

    Args:
      found: fingerprint of the tokenizer that is there.
      wanted: that of the checkpoint; None = it names none.
      run: the directory.
    """
    if wanted is not None and found != wanted:
        raise ValueError(f"{run}: its tokenizer is {found}, allowed: {wanted}, which its checkpoint was trained with")


def config_after_growth(config: Config, lineage: Sequence[Mapping[str, Any]]) -> Config:
    """The configuration of a model that has grown.

    Args:
      config: as the run began.
      lineage: field -> value, in the order of growth, as `{"model.feed_forward.dim": 512}`; `GROWTH` is no field.

    Raises:
      ValueError: a field that the configuration does not have.
    """
    config = copy.deepcopy(config)
    for path, value in (item for fields in lineage for item in fields.items() if item[0] != GROWTH):
        part, _, name = current_path(config, path).rpartition(".")
        try:
            setattr(attrgetter(part)(config) if part else config, name, value)
        except AttributeError:  # settings have slots: no other name can be set
            raise ValueError(f"lineage: given {path!r}, allowed: a field of the configuration") from None
    if config.lifelong is not None and lineage:
        config.lifelong.growths = len(lineage)
    return config


def describe_difference(there: Any, given: Any, ignored: Sequence[str] = IGNORED) -> str:
    """Which fields differ between two configurations as dicts, '' where none does."""
    a, b = flat_settings(there), flat_settings(given)
    names = [name for name in {**a, **b} if a.get(name) != b.get(name) and name not in ignored]
    shown = [f"{name} = {_show(a, name)} there and {_show(b, name)} here" for name in names[:3]]
    return ", ".join(shown) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def versions() -> dict[str, Any]:
    """Versions and devices of this process."""
    found = {"python": platform.python_version(), "platform": platform.platform()}
    for package in PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    devices = jax.devices()
    found |= {"backend": jax.default_backend(), "devices": f"{len(devices)} x {devices[0].device_kind}"}
    return found | {"processes": jax.process_count(), "random_generator": random_generator()}


def random_generator() -> str:
    """Names the random number generator of JAX in this process, such as 'threefry2x32, partitionable'."""
    config: Any = jax.config  # its flags are no attributes that a type checker knows
    name = str(config.jax_default_prng_impl)
    if name != "threefry2x32":
        return name
    return f"{name}, {'' if config.jax_threefry_partitionable else 'not '}partitionable"


def generator_of(path: Path | str) -> str:
    """Names the random number generators that the attempts at a run have recorded.

    Returns:
      The generators in their order, joined by " then "; '' where the run has recorded none.
    """
    try:
        attempts = read_json(Path(path).expanduser() / "versions.json")
    except (ValueError, OSError):  # what says where a run was made is not needed to read it
        return ""
    attempts = attempts if isinstance(attempts, list) else []
    names = [attempt.get("random_generator", "") for attempt in attempts if isinstance(attempt, dict)]
    return " then ".join(dict.fromkeys(filter(None, names)))


def describe_generator(path: Path | str) -> str:
    """Returns a line about a run made under another random number generator than this process has; '' for others."""
    recorded, present = generator_of(path), random_generator()
    if recorded in ("", present):
        return ""
    return (
        f"{path}: made under another random number generator, {recorded}; here {present}: what is drawn is not the same"
    )


def read_json(path: Path) -> Any:
    """The value of a JSON file, None where it does not exist.

    Raises:
      ValueError: it is damaged.
    """
    if not path.exists():
        return None
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path}: damaged ({error}), allowed: the JSON file that was written there") from None


def read_finished(path: Path | str) -> dict[str, Any] | None:
    """What `finished.json` of a run directory says, None where its run is not through.

    Raises:
      ValueError: it is damaged.
    """
    file = Path(path).expanduser() / "finished.json"
    found = read_json(file)
    fields = found.get("results") if isinstance(found, dict) else None
    if found is not None and not (isinstance(fields, dict) and "evaluation" in fields and "step" in found):
        raise ValueError(f"{file}: damaged (it has no step or no results), allowed: the JSON file of a finished run")
    return found


def write_json(path: Path, value: Any) -> None:
    """Writes a JSON file whole or not at all."""
    temporary = path.with_suffix(".tmp")
    temporary.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")
    temporary.replace(path)


def flat_settings(value: Any, prefix: str = "") -> dict[str, Any]:
    """Field -> value of a configuration as a dict; the kind of a part stands under the part's own name.

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
        # The kind of a part goes under the part's own name.
        flat |= {prefix.removesuffix("."): item} if name == "type" else flat_settings(item, f"{prefix}{name}.")
    return flat


def _show(flat: dict[str, Any], name: str) -> str:
    return repr(flat[name]) if name in flat else "nothing"


def _lock(path: Path) -> Any:
    """An advisory lock that ends with the process, also when it is killed."""
    file = (path / ".lock").open("a")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        raise ValueError(
            f"{path}: another process trains in this directory; wait for it, or give another name"
        ) from None
    except OSError:  # File systems without locks: nothing to hold.
        pass
    return file
