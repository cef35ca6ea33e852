"""Reading and writing of model folders of Hugging Face's `transformers`: config.json and safetensors files."""

import functools
import re
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import safetensors
import safetensors.numpy

from memjax.data.added_tokens import read_json_object
from memjax.durable_files import write_json
from memjax.training.lazy_arrays import LazyArray

CONFIG_FILE, WEIGHTS_FILE = "config.json", "model.safetensors"
INDEX_FILE = WEIGHTS_FILE + ".index.json"
PICKLES = ("pytorch_model.bin", "pytorch_model.bin.index.json")
SHARD_BYTES = 5_000_000_000
"""maximum number of bytes of a file of weights; larger weights are written to several files"""


DTYPES = {
    **{f"F{bits}": f"float{bits}" for bits in (16, 32, 64)},
    **{f"{kind}{bits}": f"{word}int{bits}" for kind, word in (("I", ""), ("U", "u")) for bits in (8, 16, 32, 64)},
    **{"BF16": "bfloat16", "BOOL": "bool", "F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2"},
}
"""dtype in a safetensors file -> its name in NumPy and JAX"""
HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")
HUB_FILES = (CONFIG_FILE, "generation_config.json", "*.safetensors", INDEX_FILE)


def find_folder(given: str | Path, files: Iterable[str]) -> Path:
    """Returns the local path of a model folder. `given` is a folder, or a name `org/name` on the Hugging Face hub, from
    which the configuration, the safetensors and `files` are downloaded.

    Args:
      given: A folder, or a name such as `org/name`.
      files: Names of further files to download, beside the configuration and the safetensors.

    Raises:
      ValueError: No such folder, and no name, no library or no network to download it.
    """
    folder = Path(given).expanduser()
    if folder.is_dir():
        return folder
    if folder.exists() or not HUB_NAME.fullmatch(str(given)):
        allowed = "one as save_pretrained writes it, a GGUF file, or a name org/name"
        raise ValueError(f"folder: {given} is no folder, allowed: {allowed}")
    try:
        import huggingface_hub
    except ImportError as error:
        raise ValueError(
            f"folder: {given} is no folder, and as a name of the Hugging Face hub it needs huggingface_hub: "
            "pip install 'memjax[hub]'"
        ) from error
    try:
        patterns = sorted({*HUB_FILES, *files})
        return Path(huggingface_hub.snapshot_download(str(given), allow_patterns=patterns))
    except Exception as error:  # of the network, of the hub, of the disk
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise ValueError(
            f"folder: {given} is no folder and cannot be downloaded ({reason}), allowed: a folder, or a name of the "
            "Hugging Face hub where there is a network"
        ) from error


def read_folder(folder: str | Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Reads a folder of transformers and returns its `config.json` as a dict and its state dict, name of a tensor ->
    `LazyArray`, whose values are read when they are used.

    Args:
      folder: Folder with `config.json`, and with `model.safetensors` or its parts and `model.safetensors.index.json`.

    Raises:
      ValueError: A file is missing or incomplete.
    """
    folder = Path(folder).expanduser()
    described = read_described(folder)
    if (folder / WEIGHTS_FILE).is_file():
        return described, read_weights(folder / WEIGHTS_FILE)
    if not (folder / INDEX_FILE).is_file():
        pickles = [name for name in PICKLES if (folder / name).is_file()]
        if pickles:
            allowed = f"{WEIGHTS_FILE}, which `save_pretrained` of transformers makes of it"
            raise ValueError(f"folder: {folder} has {pickles[0]}, a pickle, which is not read; allowed: {allowed}")
        raise ValueError(f"folder: {folder} has no {WEIGHTS_FILE}, allowed: a folder as save_pretrained writes it")
    places: Any = read_json_object(folder / INDEX_FILE).get("weight_map")
    if not isinstance(places, dict):
        raise ValueError(f"{folder / INDEX_FILE}: has no weight_map, allowed: name of a tensor -> name of its file")
    weights: dict[str, Any] = {}
    for name in sorted(set(places.values())):
        if Path(name).name != name or not (folder / name).is_file():
            raise ValueError(f"folder: {folder} has no {name}, allowed: all files that {INDEX_FILE} names")
        weights |= read_weights(folder / name)
    missing = sorted(places.keys() - weights.keys())
    if missing:
        raise ValueError(f"{folder / INDEX_FILE}: {missing[0]!r} is not in {places[missing[0]]}, allowed: a whole file")
    return described, weights


def read_described(folder: Path) -> dict[str, Any]:
    """Reads the `config.json` of a folder and returns it as a dict.

    Raises:
      ValueError: The folder has no such file.
    """
    if not (folder / CONFIG_FILE).is_file():
        raise ValueError(f"folder: {folder} has no {CONFIG_FILE}, allowed: a folder as save_pretrained writes it")
    return read_json_object(folder / CONFIG_FILE)


def read_weights(weights: Mapping[str, Any] | str | Path) -> dict[str, Any]:
    """Opens a safetensors file and returns its state dict, name of a tensor -> `LazyArray`, whose values are read when
    they are used. A state dict instead of a path is copied.

    Raises:
      ValueError: The file is incomplete, or has a tensor of a dtype that is not known.
    """
    if not isinstance(weights, str | Path):
        return dict(weights)
    try:
        with safetensors.safe_open(weights, framework="np") as file:
            parts = {name: file.get_slice(name) for name in file.keys()}
            tensors = {name: (tuple(part.get_shape()), part.get_dtype()) for name, part in parts.items()}
    except safetensors.SafetensorError as error:
        raise ValueError(f"{weights}: given a file that is not whole ({error}), allowed: safetensors") from error
    for name, (_, dtype) in tensors.items():
        if dtype not in DTYPES:
            raise ValueError(f"{weights}: given {name!r} of dtype {dtype}, allowed: {', '.join(DTYPES)}")
    return {
        name: LazyArray(shape, jnp.dtype(DTYPES[dtype]), functools.partial(_read_tensor, Path(weights), name))
        for name, (shape, dtype) in tensors.items()
    }


def _read_tensor(path: Path, name: str) -> np.ndarray:
    """Reads one tensor of a safetensors file. The file is not kept open, so that no page of it stays in memory."""
    with safetensors.safe_open(path, framework="np") as file:
        return file.get_tensor(name)


def write_folder(
    folder: str | Path,
    described: Mapping[str, Any],
    weights: Mapping[str, Any],
    *,
    shard_bytes: int = SHARD_BYTES,
    places: Mapping[str, str] | None = None,
) -> None:
    """Writes the configuration `described` and a state dict to a folder as transformers does. Weights above
    `shard_bytes` are divided into several files, or as `places` maps tensors to files.

    Args:
      folder: Folder, which is made if it does not exist.
      described: Configuration.
      weights: State dict. An array with several names is written under the first one, as save_pretrained does.
      shard_bytes: Maximum number of bytes of a file. Larger weights are written to several files.
      places: Name of a tensor -> name of its file, instead of files by size. Tensors without an entry go to the first
        file.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / CONFIG_FILE, described, checked=False)
    seen: set[int] = set()
    unique = {n: w for n, w in weights.items() if not (id(w) in seen or seen.add(id(w)))}
    if places:
        files = {name: places.get(name, min(places.values())) for name in unique}
    else:
        parts = _parts(unique, shard_bytes)
        if len(parts) == 1:
            save_weights(unique, folder / WEIGHTS_FILE)
            return
        files: dict[str, str] = {}
        for number, names in enumerate(parts, 1):
            files |= dict.fromkeys(names, f"model-{number:05d}-of-{len(parts):05d}.safetensors")
    for file in dict.fromkeys(files.values()):
        save_weights({name: unique[name] for name in unique if files[name] == file}, folder / file)
    index = {"metadata": {"total_size": sum(w.nbytes for w in unique.values())}, "weight_map": files}
    write_json(folder / INDEX_FILE, index, checked=False)


def save_weights(weights: Mapping[str, Any], path: Path) -> None:
    """Writes a state dict to one safetensors file, with the metadata that transformers expects."""
    arrays = {name: np.asarray(weight) for name, weight in weights.items()}
    safetensors.numpy.save_file(arrays, path, metadata={"format": "pt"})


def copy_files(names: Iterable[str], folder: Path, to: Path) -> list[str]:
    """Copies the files with these names, as far as they exist, from `folder` to the folder `to`, and returns the names
    of the copied files.
    """
    existing = [name for name in names if (folder / name).is_file()]
    for name in existing:
        shutil.copyfile(folder / name, to / name)
    return existing


def _parts(weights: Mapping[str, Any], most: int) -> list[list[str]]:
    """Divides names of tensors, in their order, into parts of at most `most` bytes or of a single tensor."""
    parts: list[list[str]] = [[]]
    size = 0
    for name, weight in weights.items():
        if parts[-1] and size + weight.nbytes > most:
            parts.append([])
            size = 0
        parts[-1].append(name)
        size += weight.nbytes
    return parts
