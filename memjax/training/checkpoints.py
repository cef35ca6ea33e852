"""Checkpoints: one commit of named arrays with their checksums. Only this file and `processes` import orbax.

A checkpoint is independent of Python classes: a flat mapping from names such as `params/stack/layer_03/...` or
`opt_state/0/mu/...` to arrays, with a JSON manifest of shapes, dtypes and checksums. Orbax makes the commit atomic; it
does not notice flipped bits, casts dtypes silently and returns False where it did not save, so all three are checked
here.

Every process of a run writes its own parts of an array, and any other number of processes or devices may read it:
names, shapes and checksums do not depend on where an array lives.
"""

import contextlib
import functools
import hashlib
import json
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from memjax.training.processes import gather_json

__all__ = ["Checkpoints"]

FORMAT = 2
SHOWN = 4
"""names listed of each kind of difference"""


class RestoredCheckpoint(NamedTuple):
    """A checkpoint that has passed its checks.

    Attributes:
      step: of the run.
      tree: arrays in the expected structure (keys as `jax.random` keys), on devices where that says how they are
        sharded, else NumPy on the host.
      extra: the JSON value that was saved beside them.
    """

    step: int
    tree: Any
    extra: Any


class Checkpoints:
    """The checkpoints of one run, newest `keep` of them.

    Example:
      >>> import tempfile
      >>> checkpoints = Checkpoints(Path(tempfile.mkdtemp()) / "checkpoints")
      >>> checkpoints.save(3, {"params": {"kernel": jnp.ones((2, 2))}}, extra={"position": 7})
      >>> checkpoints.restore({"params": {"kernel": jax.ShapeDtypeStruct((2, 2), jnp.float32)}}).extra
      {'position': 7}
      >>> checkpoints.close()

    Attributes:
      directory: where they are.
      damaged: steps whose checkpoint could not be read.
      kept: a step whose checkpoint stays besides the newest ones; None = there is none.
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
          directory: made on the first save.
          keep: newest checkpoints that stay.
          read_only: do not make the directory, nor clear what an interrupted save has left.
          on_warning: gets one line for each checkpoint that is damaged.
        """
        self.directory = Path(directory).resolve()
        self._keep, self._read_only, self._on_warning = keep, read_only, on_warning
        self.damaged: set[int] = set()
        self.kept: int | None = None
        self._opened: Any = None

    def steps(self) -> list[int]:
        """Steps with a complete checkpoint, ascending; whether they are intact shows when they are read."""
        if self._opened is None and not self.directory.is_dir():
            return []
        return sorted(self._manager().all_steps())

    def save(self, step: int, tree: Any, *, extra: Any = None) -> None:
        """Writes one checkpoint and returns when it is complete.

        Args:
          step: greater than that of every checkpoint before.
          tree: arrays in any tree; its leaves are saved under `flatten`'s names. Of an array that is split over
            processes each writes its own part.
          extra: a JSON value, saved in the same commit.

        Raises:
          ValueError: an array of size zero.
          RuntimeError: the library declined to save.
        """
        import orbax.checkpoint as ocp

        arrays = {name: _local(leaf) for name, leaf in flatten(tree).items()}
        empty = [name for name, array in arrays.items() if not array.size]
        if empty:
            raise ValueError(
                f"checkpoint: {empty[0]} has shape {arrays[empty[0]].shape}; leave arrays of size zero out"
            )
        manager = self._manager()
        for damaged in sorted(self.damaged):
            manager.delete(damaged)
        self.damaged.clear()
        described = describe_arrays(arrays)
        manifest = {"format": FORMAT, "step": step, "extra": extra, "keys": key_kinds(tree), "arrays": described}
        manifest["checksum"] = _checksum_of_json(manifest)
        items = ocp.args.Composite(state=ocp.args.PyTreeSave(arrays), manifest=ocp.args.JsonSave(manifest))
        if not manager.save(step, args=items, force=True):
            raise RuntimeError(
                f"{self.directory}: step {step} was not saved; there is a checkpoint of it, or a later one"
            )
        manager.wait_until_finished()

    def restore(
        self, expected: Any, without: tuple[str, ...] = (), *, anew: tuple[str, ...] = (), step: int | None = None
    ) -> RestoredCheckpoint | None:
        """The newest intact checkpoint, or None where there is no checkpoint at all.

        Args:
          expected: a tree of `jax.ShapeDtypeStruct`: what the checkpoint must hold, no less and no more. Where one
            has a sharding, its array is read to those devices, each process its own part. Or `(step, extra) -> tree`,
            asked for each candidate, newest first: an older one may be that of a smaller model.
          without: begins of names that the checkpoint may hold besides; they are not read.
          anew: begins of names that the checkpoint may lack, and which are then zero, or hold besides.
          step: that of another checkpoint than the newest.

        Raises:
          ValueError: the checkpoint is that of another architecture (the line lists the difference), or none is intact.
        """
        tree: Any = expected
        lacking: dict[str, np.ndarray] = {}

        def select(manifest: Mapping[str, Any], step: int) -> tuple[list[str], Mapping[str, Any]]:
            nonlocal tree
            tree = expected(step, manifest["extra"]) if callable(expected) else expected
            shapes = flatten(tree)
            left_out = lambda name: name.startswith(without) or (name.startswith(anew) and name not in shapes)
            arrays = {name: array for name, array in manifest["arrays"].items() if not left_out(name)}
            absent = [name for name in shapes if name.startswith(anew) and name not in arrays]
            lacking.clear()
            lacking.update((name, np.zeros(shapes[name].shape, shapes[name].dtype)) for name in absent)
            shapes = {name: leaf for name, leaf in shapes.items() if name not in lacking}
            for name, leaf in _keys(tree):
                saved, here = manifest["keys"].get(name), _generator(leaf)
                if saved not in (None, here):
                    raise ValueError(
                        f"{self.directory}: checkpoint {step} was made under the random number generator {saved}, "
                        f"given {here}, allowed: {saved}; start with JAX_DEFAULT_PRNG_IMPL={saved} to go on"
                    )
            difference = describe_difference(shapes, arrays)
            if difference:
                raise ValueError(f"{self.directory}: checkpoint {step} is of another architecture: {difference}")
            return list(arrays), {name: getattr(leaf, "sharding", None) for name, leaf in shapes.items()}

        found = self._newest(select, only=step)
        if found is None:
            return None
        step, arrays, manifest = found
        return RestoredCheckpoint(step, unflatten(tree, {**arrays, **lacking}, manifest["keys"]), manifest["extra"])

    def shapes(self, step: int) -> dict[str, jax.ShapeDtypeStruct]:
        """Name -> shape of every array of a checkpoint, which are not read."""
        described = self._read_manifest(step)["arrays"]
        return {name: jax.ShapeDtypeStruct(shape, jnp.dtype(dtype)) for name, (dtype, shape, _) in described.items()}

    def extra(self, step: int) -> Any:
        """What was saved beside the arrays of a checkpoint, which are not read."""
        return self._read_manifest(step)["extra"]

    def load(
        self, prefix: str | tuple[str, ...] = "params/", *, step: int | None = None
    ) -> tuple[int, dict[str, np.ndarray], Any]:
        """(step, name -> array, extra) of the arrays under `prefix` in the newest intact checkpoint, or that of `step`.

        Raises:
          ValueError: there is no intact checkpoint.
        """
        if step is not None and step not in self.steps():
            raise ValueError(f"step: given {step}, allowed: steps with a checkpoint, {self.steps()}")
        under = lambda manifest, _: ([name for name in manifest["arrays"] if name.startswith(prefix)], {})
        found = self._newest(under, only=step)
        if found is None:
            raise ValueError(f"{self.directory}: has no checkpoint; give the directory of a run that has saved one")
        return found[0], found[1], found[2]["extra"]

    def should_preserve(self, checkpoints: Sequence[Any], *, context: Any) -> list[bool]:
        """Which of them stay (the library asks, after each save)."""
        newest = len(checkpoints) - self._keep
        return [place >= newest or found.step == self.kept for place, found in enumerate(checkpoints)]

    def close(self) -> None:
        if self._opened is not None:
            self._opened.close()
            self._opened = None

    def _newest(
        self, select: Callable[[Mapping[str, Any], int], tuple[list[str], Mapping[str, Any]]], only: int | None = None
    ) -> tuple[int, dict[str, Any], Any] | None:
        steps = self.steps() if only is None else [only]
        for step in reversed(steps):
            try:
                manifest = _attempt("its manifest cannot be read", self._read_manifest, step)
                if manifest["format"] != FORMAT:
                    raise ValueError(
                        f"{self.directory}: checkpoint {step} has format {manifest['format']}, allowed: {FORMAT}; read "
                        "it with the version of memjax that has written it"
                    )
                names, shardings = select(manifest, step)
                arguments = (step, names, manifest["arrays"], shardings)
                arrays = _attempt("its arrays cannot be read", self._read_arrays, *arguments)
                described = describe_arrays(arrays)
                wrong = [name for name in names if described[name] != manifest["arrays"][name]]
                if not wrong:
                    return step, {name: arrays[name] for name in names}, manifest
                raise _DamagedCheckpoint(f"{preview_names(wrong)} differ from what was saved")
            except (
                _DamagedCheckpoint
            ) as reason:  # Whatever damage makes the library raise, the next older one may be intact.
                self.damaged.add(step)
                self._on_warning(f"checkpoint {step} is damaged, {reason}: going back to an older one")
        if steps:
            raise ValueError(f"{self.directory}: none of the checkpoints {steps} is intact; delete them to start anew")
        return None

    def _read_manifest(self, step: int) -> dict[str, Any]:
        import orbax.checkpoint as ocp

        manifest = self._manager().restore(step, args=ocp.args.Composite(manifest=ocp.args.JsonRestore())).manifest
        if manifest.pop("checksum") != _checksum_of_json(manifest):
            raise ValueError("checksum")
        return manifest

    def _read_arrays(
        self, step: int, names: Sequence[str], described: Mapping[str, Any], shardings: Mapping[str, Any]
    ) -> dict[str, Any]:
        import orbax.checkpoint as ocp

        # Shapes and dtypes come from the manifest, which `restore` has compared: the library would cast without a word.
        def place(name: str) -> Any:
            if shardings.get(name) is None:
                return ocp.RestoreArgs(restore_type=np.ndarray)
            return ocp.ArrayRestoreArgs(restore_type=jax.Array, sharding=shardings[name])

        item = {name: jax.ShapeDtypeStruct(described[name][1], jnp.dtype(described[name][0])) for name in names}
        restore = ocp.args.PyTreeRestore(
            item=item, restore_args={name: place(name) for name in names}, partial_restore=True
        )
        with _stragglers_ignored():
            return self._manager().restore(step, args=ocp.args.Composite(state=restore)).state

    def _manager(self) -> Any:
        if self._opened is None:
            import orbax.checkpoint as ocp

            commit = ocp.options.AtomicityOptions(mode=ocp.options.AtomicityMode.COMMIT_FILE)
            self._opened = ocp.CheckpointManager(
                self.directory,
                item_names=("state", "manifest"),
                item_handlers={"state": ocp.PyTreeCheckpointHandler(), "manifest": ocp.JsonCheckpointHandler()},
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


def flatten(tree: Any) -> dict[str, Any]:
    """Name -> leaf, names as `params/layer_00/kernel`; `jax.random` keys become their uint32 data.

    Example:
      >>> flatten({"params": {"bias": 1}, "counts": (2, 3)})
      {'counts/0': 2, 'counts/1': 3, 'params/bias': 1}
    """
    leaves = jax.tree_util.tree_flatten_with_path(tree)[0]
    named = {_name(path): leaf for path, leaf in leaves}
    if len(named) != len(leaves):
        raise ValueError("checkpoint: two leaves have the same name; keep '/' out of the names of modules")
    return {name: _key_data(leaf) if _is_key(leaf) else leaf for name, leaf in named.items()}


def key_kinds(tree: Any) -> dict[str, str]:
    """Name -> generator of every `jax.random` key of a tree."""
    return {name: str(jax.random.key_impl(leaf)) for name, leaf in _keys(tree)}


def _keys(tree: Any) -> list[tuple[str, Any]]:
    """(name, leaf) of every `jax.random` key of a tree, or its shape."""
    leaves = jax.tree_util.tree_flatten_with_path(tree)[0]
    return [(_name(path), leaf) for path, leaf in leaves if _is_key(leaf)]


def _generator(leaf: Any) -> str:
    """The random number generator of a key, or of the shape of one."""
    kinds = ("threefry2x32", "rbg", "unsafe_rbg")
    dtypes = {jax.eval_shape(functools.partial(jax.random.key, impl=kind), 0).dtype: kind for kind in kinds}
    return dtypes.get(leaf.dtype, str(leaf.dtype))


def unflatten(expected: Any, arrays: Mapping[str, Any], keys: Mapping[str, str] | None = None) -> Any:
    """The inverse of `flatten`, in the structure of `expected`; `keys` are the `key_kinds` of the flattened tree."""

    def pick(path: tuple[Any, ...], leaf: Any) -> Any:
        name = _name(path)
        return jax.random.wrap_key_data(arrays[name], impl=(keys or {})[name]) if _is_key(leaf) else arrays[name]

    return jax.tree_util.tree_map_with_path(pick, expected)


def describe_difference(expected: Mapping[str, Any], found: Mapping[str, Any]) -> str:
    """One line on what differs between the expected arrays and a manifest's, '' where nothing does.

    Args:
      expected: name -> anything with shape and dtype.
      found: name -> (dtype, shape, checksum).
    """
    missing = [name for name in expected if name not in found]
    unexpected = [name for name in found if name not in expected]
    other = []
    for name, leaf in expected.items():
        if name in found:
            dtype, shape = str(jnp.dtype(leaf.dtype)), list(leaf.shape)
            if [dtype, shape] != list(found[name][:2]):
                other.append(f"{name} {found[name][0]}{found[name][1]} instead of {dtype}{shape}")
    kinds = (("lacks", missing), ("has besides", unexpected), ("has", other))
    return "; ".join(f"it {word} {preview_names(names)}" for word, names in kinds if names)


@contextlib.contextmanager
def _stragglers_ignored() -> Iterator[None]:
    """Keeps quiet about reads that end after another one has failed.

    Arrays are read side by side; when one cannot be read the library closes its event loop, and each of the others then
    prints a traceback of its own from a thread where nobody can catch it.
    """
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


def _name(path: tuple[Any, ...]) -> str:
    return jax.tree_util.keystr(path, simple=True, separator="/")


def preview_names(names: Iterable[str]) -> str:
    names = list(names)
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + more


class _DamagedCheckpoint(Exception):  # noqa: N818 (what is found, not a mistake)
    """A checkpoint is not what was saved."""


def _attempt(what: str, read: Callable[..., Any], *arguments: Any) -> Any:
    """What is read; raises `_DamagedCheckpoint` where that has failed in any process."""
    value, failed = None, None
    try:
        value = read(*arguments)
    except Exception as error:
        failed = type(error).__name__
    kinds = [kind for kind in gather_json(failed) if kind is not None]
    if kinds:
        raise _DamagedCheckpoint(f"{what} ({kinds[0]})")
    return value


def _local(leaf: Any) -> Any:
    """On the host, unless other processes hold parts of it: the library writes those without moving them."""
    return leaf if jax.process_count() > 1 and isinstance(leaf, jax.Array) else np.asarray(jax.device_get(leaf))


def _is_key(leaf: Any) -> bool:
    return jnp.issubdtype(getattr(leaf, "dtype", np.float32), jax.dtypes.prng_key)


def _key_data(leaf: Any) -> Any:
    if not isinstance(leaf, jax.ShapeDtypeStruct):
        return jax.random.key_data(leaf)
    data = jax.eval_shape(jax.random.key_data, leaf)
    return jax.ShapeDtypeStruct(data.shape, data.dtype, sharding=leaf.sharding)


def describe_arrays(arrays: Mapping[str, Any]) -> dict[str, list[Any]]:
    """Name -> (dtype, shape, checksum) of arrays on the host or on devices, as a manifest holds them.

    Example:
      >>> describe_arrays({"bias": np.zeros(2, np.float32)}) == describe_arrays({"bias": jnp.zeros(2)})
      True
    """
    if not arrays:
        return {}
    sums = jax.device_get(_checksums([_words(array) for array in arrays.values()]))
    return {
        name: [str(array.dtype), list(array.shape), "".join(f"{int(part):08x}" for part in parts)]
        for (name, array), parts in zip(arrays.items(), sums, strict=True)
    }


def _words(array: Any) -> Any:
    # Where JAX has no 64 bits, it would halve the values; their bits are all that counts.
    if isinstance(array, np.ndarray) and array.dtype.itemsize == 8:
        return np.ascontiguousarray(array).reshape(*array.shape, 1).view(np.uint32)
    return array


@jax.jit
def _checksums(arrays: Sequence[jax.Array]) -> jax.Array:
    # One program: several sums over processes under way at once may each wait for threads that the others hold.
    return jnp.stack([_checksum(array) for array in arrays])


def _checksum(array: jax.Array) -> jax.Array:
    """64 bits, uint32 `[2]`, that depend on every bit of an array and on its place, but not on where the array lives.

    Sums of hashes of (value, place) that are one-to-one in the value: another value in one place always changes them.
    """
    if array.dtype == bool:
        array = array.astype(jnp.uint8)
    bits = lax.bitcast_convert_type(array, jnp.dtype(f"uint{8 * min(array.dtype.itemsize, 4)}")).astype(jnp.uint32)
    place = jnp.zeros(bits.shape, jnp.uint32)
    for axis, size in enumerate(bits.shape):
        place = place * np.uint32(size) + lax.broadcasted_iota(jnp.uint32, bits.shape, axis)
    seeds = (np.uint32(0x9E3779B9), np.uint32(0x85EBCA77))
    return jnp.stack([jnp.sum(_mix(bits + _mix(place ^ seed)), dtype=jnp.uint32) for seed in seeds])


def _mix(x: jax.Array) -> jax.Array:
    """A one-to-one hash of uint32, the finaliser of MurmurHash3 (Appleby 2011)."""
    x = (x ^ (x >> np.uint32(16))) * np.uint32(0x85EBCA6B)
    x = (x ^ (x >> np.uint32(13))) * np.uint32(0xC2B2AE35)
    return x ^ (x >> np.uint32(16))


def _checksum_of_json(value: Any) -> str:
    text = json.dumps({k: v for k, v in value.items() if k != "checksum"}, sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
