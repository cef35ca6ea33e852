"""Saves and restores checkpoints: named arrays with checksums, written atomically.

A checkpoint is independent of Python classes. It is a flat mapping from names such as `params/stack/layer_03/...` or
`opt_state/0/mu/...` to arrays, with a JSON manifest of shapes, dtypes and checksums. Every process of a run writes its
parts of the arrays. Any number of processes and devices can read them, because names, shapes and checksums do not
depend on where an array is placed.

Orbax makes the commit atomic. It does not notice flipped bits, casts dtypes silently, and returns False if it did not
save. This module checks all three. Only this module and `processes` import orbax.
"""

import contextlib
import hashlib
import json
import logging
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from memjax.durable_files import explain_full_disk
from memjax.training.lazy_arrays import LazyArray
from memjax.training.named_arrays import (
    describe_array_difference,
    describe_arrays,
    find_keys,
    flatten,
    generator_name,
    key_kinds,
    preview_names,
    unflatten,
)
from memjax.training.processes import gather_json

__all__ = ["Checkpoints"]

FORMAT = 2
COMPLETE = "commit_success.txt"
"""File that Orbax writes last to the folder of a checkpoint"""


class RestoredCheckpoint(NamedTuple):
    """A checkpoint that was read and has passed its checks: its step, its tree of arrays and the JSON value that was
    saved with them.

    Attributes:
      step: Step of the checkpoint.
      tree: Arrays in the expected structure, with `jax.random` keys restored. Arrays with an expected sharding are on
        their devices, all others are NumPy arrays on the host.
      extra: JSON value that was saved with the arrays.
    """

    step: int
    tree: Any
    extra: Any


class Checkpoints:
    """Saves, restores and deletes the checkpoints of one run. Only the newest ones (`keep`) and that of the step `kept`
    stay.

    Example:
      >>> import tempfile
      >>> checkpoints = Checkpoints(Path(tempfile.mkdtemp()) / "checkpoints")
      >>> checkpoints.save(3, {"params": {"kernel": jnp.ones((2, 2))}}, extra={"position": 7})
      >>> checkpoints.restore({"params": {"kernel": jax.ShapeDtypeStruct((2, 2), jnp.float32)}}).extra
      {'position': 7}
      >>> checkpoints.close()

    Attributes:
      directory: Directory of the checkpoints.
      damaged: Steps whose checkpoint could not be read.
      kept: Step whose checkpoint is kept in addition to the newest ones. None for no such step.
    """

    def __init__(
        self,
        directory: Path | str,
        *,
        keep: int = 2,
        read_only: bool = False,
        on_warning: Callable[[str], None] = lambda line: None,
    ):
        """Opens a directory of checkpoints.

        Args:
          directory: Directory of the checkpoints. It is created by the first save.
          keep: Number of newest checkpoints to keep. Older ones are deleted after each save.
          read_only: Whether to leave the directory alone: it is not created, and files of an interrupted save are not
            removed.
          on_warning: Function that is called with one line for each damaged checkpoint.
        """
        self.directory = Path(directory).resolve()
        self._keep, self._read_only, self._on_warning = keep, read_only, on_warning
        self.damaged: set[int] = set()
        self.kept: int | None = None
        self._opened: Any = None

    def steps(self) -> list[int]:
        """Lists the steps with a complete checkpoint in ascending order. Damage shows only when one is read."""
        if self._opened is None and not self.directory.is_dir():
            return []
        return sorted(self._open_manager().all_steps())

    def save(self, step: int, tree: Any, *, extra: Any = None) -> None:
        """Writes a tree of arrays and a JSON value (`extra`) as the checkpoint of a step, and returns when it is
        complete.

        Args:
          step: Step of the checkpoint, greater than the steps of all earlier checkpoints.
          tree: Tree of arrays. Its leaves are saved under the names that `flatten` gives them. Each process writes its
            part of an array that is split over processes. Those of class `LazyArray` are read twice, for their
            checksums and when they are written, one after the other.
          extra: JSON value to save in the same commit.

        Raises:
          ValueError: An array has size zero.
          RuntimeError: Orbax did not save the checkpoint.
        """
        import orbax.checkpoint as ocp

        arrays = {name: _to_host(leaf) for name, leaf in flatten(tree).items()}
        empty = [name for name, array in arrays.items() if not array.size]
        if empty:
            raise ValueError(
                f"checkpoint: {empty[0]} has shape {arrays[empty[0]].shape}; leave arrays of size zero out"
            )
        manager = self._open_manager()
        for damaged in sorted(self.damaged):
            manager.delete(damaged)
        self.damaged.clear()
        descriptions = describe_arrays(arrays)
        manifest = {"format": FORMAT, "step": step, "extra": extra, "keys": key_kinds(tree), "arrays": descriptions}
        manifest["checksum"] = _checksum_of_json(manifest)
        items = ocp.args.Composite(state=ocp.args.PyTreeSave(arrays), manifest=ocp.args.JsonSave(manifest))
        message = f"step {step} is not saved; free some and run the same command again"
        with explain_full_disk(self.directory, message), _silence_failed_writes(), _silence_later_errors():
            saved = manager.save(step, args=items, force=True)
            manager.wait_until_finished()
        if not saved:
            raise RuntimeError(
                f"{self.directory}: step {step} was not saved; there is a checkpoint of it, or a later one"
            )

    def restore(
        self, expected: Any, without: tuple[str, ...] = (), *, anew: tuple[str, ...] = (), step: int | None = None
    ) -> RestoredCheckpoint | None:
        """Restores the newest intact checkpoint, or that of `step`, with the arrays in `expected`, a tree of shapes.
        Names that begin as in `without` are not read, as in `anew` may be missing. Returns None if there is no
        checkpoint.

        Args:
          expected: Tree of `jax.ShapeDtypeStruct` with exactly the arrays that the checkpoint must have. An array with
            a sharding is read to the devices of the sharding, by each process its part. Alternatively a function
            `expected(step, extra) -> tree`. It is called for each candidate, newest first, since an older checkpoint
            may belong to a smaller model.
          without: Beginnings of the names of arrays that the checkpoint may have in addition. They are not read.
          anew: Beginnings of the names of arrays that the checkpoint may lack or have in addition. Missing arrays are
            zero, and additional ones are not read.
          step: Step of the checkpoint to restore. None for the newest intact one.

        Raises:
          ValueError: The checkpoint belongs to another architecture (the message lists the difference), was made under
            another random number generator, or no checkpoint is intact.
        """
        tree: Any = expected
        lacking: dict[str, np.ndarray] = {}

        def select(manifest: Mapping[str, Any], step: int) -> tuple[list[str], Mapping[str, Any]]:
            nonlocal tree
            tree = expected(step, manifest["extra"]) if callable(expected) else expected
            shapes = flatten(tree)
            is_ignored = lambda name: name.startswith(without) or (name.startswith(anew) and name not in shapes)
            arrays = {name: array for name, array in manifest["arrays"].items() if not is_ignored(name)}
            absent = [name for name in shapes if name.startswith(anew) and name not in arrays]
            lacking.clear()
            lacking.update((name, np.zeros(shapes[name].shape, shapes[name].dtype)) for name in absent)
            shapes = {name: leaf for name, leaf in shapes.items() if name not in lacking}
            for name, leaf in find_keys(tree):
                saved, here = manifest["keys"].get(name), generator_name(leaf)
                if saved not in (None, here):
                    raise ValueError(
                        f"{self.directory}: checkpoint {step} was made under the random number generator {saved}, "
                        f"given {here}, allowed: {saved}; start with JAX_DEFAULT_PRNG_IMPL={saved} to go on"
                    )
            difference = describe_array_difference(shapes, arrays)
            if difference:
                raise ValueError(f"{self.directory}: checkpoint {step} is of another architecture: {difference}")
            return list(arrays), {name: getattr(leaf, "sharding", None) for name, leaf in shapes.items()}

        newest = self._read_newest(select, only=step)
        if newest is None:
            return None
        step, arrays, manifest = newest
        return RestoredCheckpoint(step, unflatten(tree, {**arrays, **lacking}, manifest["keys"]), manifest["extra"])

    def shapes(self) -> dict[str, jax.ShapeDtypeStruct]:
        """Returns the shapes and dtypes of the arrays in the newest checkpoint with an intact manifest by name, without
        reading them. Empty without one.
        """
        manifest = next(filter(None, map(self._intact_manifest, reversed(self.steps()))), {"arrays": {}})
        arrays = manifest["arrays"]
        return {name: jax.ShapeDtypeStruct(shape, jnp.dtype(dtype)) for name, (dtype, shape, _) in arrays.items()}

    def extras(self) -> dict[int, Any]:
        """Returns the JSON values that were saved with the checkpoints, by step in ascending order, without reading the
        arrays. Checkpoints with a damaged manifest are left out.
        """
        manifests = {step: self._intact_manifest(step) for step in self.steps()}
        return {step: manifest["extra"] for step, manifest in manifests.items() if manifest is not None}

    def load(
        self, prefix: str | tuple[str, ...] = "params/", *, step: int | None = None
    ) -> tuple[int, dict[str, np.ndarray], Any]:
        """Loads the arrays whose names begin with `prefix` from the newest intact checkpoint or that of `step`, without
        an expected structure. Returns `(step, arrays, extra)` with the arrays by name.

        Args:
          prefix: Beginning of the names of the arrays to load, or several.
          step: Step of the checkpoint to load. None for the newest intact one.

        Returns:
          `(step, arrays, extra)`: The step of the checkpoint, its arrays by name, and the JSON value saved with them.

        Raises:
          ValueError: There is no intact checkpoint, or none of this step.
        """
        if step is not None and step not in self.steps():
            raise ValueError(f"step: given {step}, allowed: steps with a checkpoint, {self.steps()}")
        select = lambda manifest, _: ([name for name in manifest["arrays"] if name.startswith(prefix)], {})
        newest = self._read_newest(select, only=step)
        if newest is None:
            raise ValueError(f"{self.directory}: has no checkpoint, allowed: the directory of a run that has saved one")
        return newest[0], newest[1], newest[2]["extra"]

    def should_preserve(self, checkpoints: Sequence[Any], *, context: Any) -> list[bool]:
        """Returns a list that says for each checkpoint whether to keep it. Orbax calls this after each save. `context`
        is not used.
        """
        newest = len(checkpoints) - self._keep
        return [place >= newest or checkpoint.step == self.kept for place, checkpoint in enumerate(checkpoints)]

    def close(self) -> None:
        """Closes the checkpoint manager of Orbax, if one was opened."""
        if self._opened is not None:
            self._opened.close()
            self._opened = None

    def _read_newest(
        self, select: Callable[[Mapping[str, Any], int], tuple[list[str], Mapping[str, Any]]], only: int | None = None
    ) -> tuple[int, dict[str, Any], Any] | None:
        """Reads the newest intact checkpoint, or the one of step `only`.

        Args:
          select: Function `select(manifest, step) -> (names, shardings)` that chooses the arrays to read. It raises
            `ValueError` if the checkpoint does not fit.
          only: Step of the only checkpoint to try. None tries all, newest first.

        Returns:
          `(step, arrays, manifest)`, or None if there is no checkpoint.
        """
        steps = self.steps() if only is None else [only]
        for step in reversed(steps):
            try:
                manifest = _read_on_all("its manifest cannot be read", self._read_manifest, step)
                if manifest["format"] != FORMAT:
                    raise ValueError(
                        f"{self.directory}: checkpoint {step} has format {manifest['format']}, allowed: {FORMAT}; read "
                        "it with the version of memjax that has written it"
                    )
                names, shardings = select(manifest, step)
                arguments = (step, names, manifest["arrays"], shardings)
                arrays = _read_on_all("its arrays cannot be read", self._read_arrays, *arguments)
                descriptions = describe_arrays(arrays)
                wrong = [name for name in names if descriptions[name] != manifest["arrays"][name]]
                if not wrong:
                    return step, {name: arrays[name] for name in names}, manifest
                raise _DamagedCheckpoint(f"{preview_names(wrong)} differ from what was saved")
            except _DamagedCheckpoint as reason:
                # Whatever the damage is, the next older checkpoint may be intact.
                self.damaged.add(step)
                self._on_warning(f"checkpoint {step} is damaged, {reason}: going back to an older one")
        if steps:
            raise ValueError(f"{self.directory}: none of the checkpoints {steps} is intact; delete them to start anew")
        return None

    def _intact_manifest(self, step: int) -> dict[str, Any] | None:
        """Reads the manifest of a checkpoint. None, with a warning, if it is damaged."""
        try:
            return _read_on_all("its manifest cannot be read", self._read_manifest, step)
        except _DamagedCheckpoint as reason:
            self.damaged.add(step)
            self._on_warning(f"checkpoint {step} is damaged, {reason}: it is left out")
            return None

    def _read_manifest(self, step: int) -> dict[str, Any]:
        """Reads the manifest of a checkpoint and checks its checksum."""
        import orbax.checkpoint as ocp

        manifest = self._open_manager().restore(step, args=ocp.args.Composite(manifest=ocp.args.JsonRestore())).manifest
        if manifest.pop("checksum") != _checksum_of_json(manifest):
            raise ValueError("checksum")
        return manifest

    def _read_arrays(
        self, step: int, names: Sequence[str], descriptions: Mapping[str, Any], shardings: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Reads arrays of a checkpoint by name. `descriptions` has the dtype, shape and checksum of each array."""
        import orbax.checkpoint as ocp

        # Shapes and dtypes come from the manifest, which `restore` has compared: Orbax would cast silently.
        def place(name: str) -> Any:
            if shardings.get(name) is None:
                return ocp.RestoreArgs(restore_type=np.ndarray)
            return ocp.ArrayRestoreArgs(restore_type=jax.Array, sharding=shardings[name])

        wanted = {name: jax.ShapeDtypeStruct(descriptions[name][1], jnp.dtype(descriptions[name][0])) for name in names}
        restore = ocp.args.PyTreeRestore(
            item=wanted, restore_args={name: place(name) for name in names}, partial_restore=True
        )
        with _silence_later_errors():
            arrays = self._open_manager().restore(step, args=ocp.args.Composite(state=restore)).state
        # Where the file of the tree is damaged, Orbax gives back what it was asked for instead of arrays.
        unread = [name for name in names if isinstance(arrays.get(name), None | jax.ShapeDtypeStruct)]
        if unread:
            raise ValueError(f"{preview_names(unread)} were not read")
        return arrays

    def _incomplete_steps(self) -> list[int]:
        """Lists the steps whose checkpoint was not completed, or is just being written."""
        folders = [path for path in sorted(self.directory.glob("[0-9]" * 8)) if not (path / COMPLETE).exists()]
        return [int(folder.name) for folder in folders]

    def _open_manager(self) -> Any:
        """Returns the checkpoint manager of Orbax, opened on first use."""
        if self._opened is None:
            import orbax.checkpoint as ocp

            logging.getLogger("asyncio").addFilter(_is_no_error_of_tensorstore)  # the same function is added once
            for step in self._incomplete_steps():  # before Orbax removes what an interrupted save has left
                self._on_warning(f"checkpoint {step} is not complete: it is left out")
            handler = ocp.PyTreeCheckpointHandler(type_handler_registry=_make_type_handlers())
            commit = ocp.options.AtomicityOptions(mode=ocp.options.AtomicityMode.COMMIT_FILE)
            self._opened = ocp.CheckpointManager(
                self.directory,
                item_names=("state", "manifest"),
                item_handlers={"state": handler, "manifest": ocp.JsonCheckpointHandler()},
                options=ocp.CheckpointManagerOptions(
                    preservation_policy=self,
                    atomicity_options=commit,
                    cleanup_tmp_directories=not self._read_only,
                    create=not self._read_only,
                    enable_async_checkpointing=False,
                    save_root_metadata=False,
                    step_format_fixed_length=8,
                ),
            )
        return self._opened


def _make_type_handlers() -> Any:
    """Makes the handlers of Orbax for the arrays of a checkpoint. Lazy ones are read and written one after the other,
    as NumPy arrays.
    """
    import orbax.checkpoint as ocp

    class LazyArrayHandler(ocp.type_handlers.NumpyHandler):
        async def serialize(self, values: Any, infos: Any, args: Any = None) -> Any:
            for place, (value, info) in enumerate(zip(values, infos, strict=True)):
                options = None if args is None else [args[place]]
                for written in await super().serialize([np.asarray(value)], [info], options):
                    written.result()  # the next array is read when this one is on disk
            return []

    known = [(kind, ocp.type_handlers.get_type_handler(kind)) for kind in (np.ndarray, jax.Array)]
    lazy = (LazyArray, LazyArrayHandler(deepcopy_host_arrays=False))
    return ocp.type_handlers.create_type_handler_registry(*known, lazy)


@contextlib.contextmanager
def _silence_failed_writes() -> Iterator[None]:
    """Context manager that suppresses what the threads of Orbax log about an error that a save then raises anyway."""
    is_other = lambda record: "_SignalingThread.run() raised an exception" not in record.getMessage()
    logger = logging.getLogger("absl")
    logger.addFilter(is_other)
    try:
        yield
    finally:
        logger.removeFilter(is_other)


@contextlib.contextmanager
def _silence_later_errors() -> Iterator[None]:
    """Context manager that suppresses the tracebacks of reads and writes that end after another one has failed."""
    # Arrays are read and written concurrently. If one fails, Orbax closes its event loop, and each of the others then
    # prints a traceback from a thread where nobody can catch it.
    previous = sys.unraisablehook

    def hook(unraisable: Any) -> None:
        if str(unraisable.exc_value) != "Event loop is closed":
            previous(unraisable)

    sys.unraisablehook = hook
    try:
        yield
    except Exception:
        time.sleep(0.5)
        raise
    finally:
        sys.unraisablehook = previous


def _is_no_error_of_tensorstore(record: logging.LogRecord) -> bool:
    """Filter of asyncio's log. It drops the tracebacks of reads and writes that have failed beside another one, which
    asyncio prints when their tasks are collected, at any later time.
    """
    error = str(record.exc_info[1]) if record.exc_info else ""
    return "tensorstore_spec" not in error and "OCDBT" not in error


class _DamagedCheckpoint(Exception):  # noqa: N818 (a state, not a mistake)
    """A checkpoint cannot be read or differs from what was saved."""


def _read_on_all(what: str, read: Callable[..., Any], *arguments: Any) -> Any:
    """Calls `read(*arguments)` and returns its result.

    Raises:
      _DamagedCheckpoint: The call failed in any process of the run. `what` begins the message.
    """
    value, failed = None, None
    try:
        value = read(*arguments)
    except Exception as error:
        failed = type(error).__name__
    kinds = [kind for kind in gather_json(failed) if kind is not None]
    if kinds:
        raise _DamagedCheckpoint(f"{what} ({kinds[0]})")
    return value


def _to_host(leaf: Any) -> Any:
    """Copies an array to the host, unless it is read when it is written, or the run has several processes, whose arrays
    Orbax writes from the devices.
    """
    if isinstance(leaf, LazyArray):
        return leaf
    return leaf if jax.process_count() > 1 and isinstance(leaf, jax.Array) else np.asarray(jax.device_get(leaf))


def _checksum_of_json(value: Any) -> str:
    """Computes the checksum of a JSON dictionary without its entry `checksum`."""
    text = json.dumps({k: v for k, v in value.items() if k != "checksum"}, sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
