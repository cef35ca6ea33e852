"""Adapters of Hugging Face's library `peft`: import of a folder with LoRA adapters, and export.

A folder holds `adapter_config.json` and `adapter_model.safetensors`. A module of transformers has `lora_A [rank, in]`
and `lora_B [out, rank]`. Which matrices of memjax belong to it is said by the table of the family, for every family.
Where one module of transformers holds several matrices, as GPT-2's `c_attn`, its adapter becomes one for each of them,
with equal A. They go back into one adapter of the same rank as long as A is equal, else of the sum of the ranks.

Nothing here imports torch or peft.
"""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from memjax import config
from memjax.data.added_tokens import read_json_object
from memjax.durable_files import write_json
from memjax.interop import folders
from memjax.interop.family import ModelFamily
from memjax.models.adapters import LayerMatrix, layer_matrices
from memjax.models.layer_factory import make_stack

CONFIG_FILE, WEIGHTS_FILE = "adapter_config.json", "adapter_model.safetensors"
PREFIX, WEIGHT = "base_model.model.", ".weight"
A, B = ".lora_A.weight", ".lora_B.weight"
REQUIRED: dict[str, tuple[Any, ...]] = {
    "peft_type": ("LORA",),
    "bias": ("none", None),
    "init_lora_weights": (True, False, None, "gaussian", "orthogonal", "eva"),
}
"""Key -> values that are supported. Other initialisations change the weights of the base."""
READ = (
    *("auto_mapping", "base_model_name_or_path", "parent_library", "revision", "task_type", "inference_mode"),
    *("peft_version", "target_modules", "exclude_modules", "layers_to_transform", "layers_pattern", "modules_to_save"),
    *("r", "lora_alpha", "lora_dropout", "fan_in_fan_out", "rank_pattern", "alpha_pattern", "use_rslora"),
    *("megatron_core", "qalora_group_size", "eva_config", "runtime_config"),
)
"""Keys that may have any value: those that are read, and those that only matter for keys that are refused."""


class PeftAdapters(NamedTuple):
    """Adapters in the form of memjax.

    Attributes:
      lora: Settings of the adapters.
      arrays: Path of an array in a single layer, such as `stack/layer_00/attention/adapter_query/a`, -> array.
      saved: Tensors of the base that were trained whole, by their names in the table of the family.
    """

    lora: config.LoRA
    arrays: dict[str, np.ndarray]
    saved: dict[str, np.ndarray]


Modules = dict[str, tuple[LayerMatrix, ...]]
"""Name of a module of transformers -> the matrices in it, in the order of its outputs."""


def read_adapters(folder: str | Path) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Reads a folder of `peft` and returns its `adapter_config.json` as a dict and its tensors by name.

    Raises:
      ValueError: A file is missing or not whole.
    """
    folder = Path(folder).expanduser()
    for name in (CONFIG_FILE, WEIGHTS_FILE):
        if not (folder / name).is_file():
            raise ValueError(
                f"adapters: {folder} has no {name}, allowed: a folder as save_pretrained of peft writes it"
            )
    weights = folders.read_weights(folder / WEIGHTS_FILE)
    return read_json_object(folder / CONFIG_FILE), {name: np.asarray(weight) for name, weight in weights.items()}


def write_adapters(folder: Path, described: Mapping[str, Any], tensors: Mapping[str, Any]) -> None:
    """Writes `adapter_config.json` and the tensors of adapters to an existing folder, as `peft` does."""
    write_json(folder / CONFIG_FILE, described, checked=False)
    folders.save_weights(
        {name: np.ascontiguousarray(tensor) for name, tensor in tensors.items()}, folder / WEIGHTS_FILE
    )


def adapters_from_peft(
    described: Mapping[str, Any],
    tensors: Mapping[str, Any],
    family: ModelFamily,
    model: config.Model,
    task: config.TaskKind | None = None,
) -> PeftAdapters:
    """Converts adapters of `peft` for a model of a family to those of memjax.

    Adapters of different ranks get the largest one, filled up with zeros, which no training changes. Adapters of
    another scale than most get it in B.

    Args:
      described: The adapters' configuration.
      tensors: Name in the file -> tensor.
      family: Family of the base model.
      model: Settings of the base model.
      task: Task of the base model.

    Raises:
      ValueError: Another kind of adapters, or tensors that do not fit the model, in one line.
    """
    check_config(described)
    entries = tuple(family.tensors(model, task))
    modules, known = _modules(family, model, task), {name for entry in entries for name in entry.tensors}
    by_name = {
        _name_in_table(name.removeprefix(PREFIX), family, modules, known): array for name, array in tensors.items()
    }
    adapted = list(dict.fromkeys(name.removesuffix(A) for name in by_name if name.endswith(A)))
    pairs = {module: (by_name.pop(module + A), by_name.pop(module + B, None)) for module in adapted}
    problems = [f"{name} has no place" for name in by_name if name not in known]
    problems += [problem for module, (a, b) in pairs.items() for problem in _misfits(module, modules.get(module), a, b)]
    if not pairs:
        problems.append("there is no lora_A")
    if problems:
        more = f"; and {len(problems) - 3} more" if len(problems) > 3 else ""
        raise ValueError(f"adapters: {'; '.join(problems[:3])}{more}; allowed: LoRA adapters of this {family.name}")
    usual, rank = _scale(described, ""), max(len(a) for a, _ in pairs.values())
    lora = config.LoRA(
        rank=rank, dropout=float(described.get("lora_dropout") or 0), rank_stabilized=_is_stabilized(described)
    )
    lora.alpha = usual * (rank**0.5 if lora.rank_stabilized else rank)
    arrays: dict[str, np.ndarray] = {}
    for module, (a, b) in pairs.items():
        assert b is not None
        ratio = _scale(described, module) / usual
        arrays |= _split_module(modules[module], a, b if np.isclose(ratio, 1) else b * np.float32(ratio), rank)
    lora.targets = _targets([matrix for module in pairs for matrix in modules[module]], modules)
    lora.fully_trained = tuple(
        path for entry in entries if by_name.keys() & entry.tensors.keys() for path in _here(entry.paths)
    )
    return PeftAdapters(lora, arrays, {name: np.asarray(tensor) for name, tensor in by_name.items()})


def adapters_to_peft(
    arrays: Mapping[str, Any],
    lora: config.LoRA,
    family: ModelFamily,
    model: config.Model,
    task: config.TaskKind | None = None,
    saved: Mapping[str, Any] | None = None,
) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Converts adapters of memjax to the configuration and the tensors of `peft`, the inverse of `adapters_from_peft`.

    Args:
      arrays: Path of an array in a single layer -> array, as `PeftAdapters.arrays`.
      lora: Settings of the adapters.
      family: Family of the base model.
      model: Settings of the base model.
      task: Task of the model.
      saved: Tensors that were trained whole, by their names in the table of the family. None for none.
    """
    modules, tensors, ranks, alphas = _modules(family, model, task), dict[str, np.ndarray](), {}, {}
    for module, matrices in modules.items():
        paths = [matrix.adapter for matrix in matrices]
        if not any(f"{path}/a" in arrays for path in paths):
            continue
        a, b = _join_module(arrays, matrices, paths)
        tensors |= {f"{PREFIX}{module}{A}": a, f"{PREFIX}{module}{B}": b}
        ranks[module] = len(a)
        alphas[module] = _number(lora.scale * (len(a) ** 0.5 if lora.rank_stabilized else len(a)))
    saved = saved or {}
    rank = max(set(ranks.values()), key=[*ranks.values()].count)
    alpha = next(alphas[module] for module in ranks if ranks[module] == rank)
    described = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM" if task is None or not task.needs_text_encoder else None,
        "base_model_name_or_path": "",
        "inference_mode": True,
        "r": rank,
        "lora_alpha": alpha,
        "lora_dropout": lora.dropout,
        "use_rslora": lora.rank_stabilized,
        "target_modules": sorted(ranks),
        "rank_pattern": {module: number for module, number in ranks.items() if number != rank},
        "alpha_pattern": {module: number for module, number in alphas.items() if number != alpha},
        "modules_to_save": sorted({name.rpartition(".")[0] for name in saved}) or None,
        "fan_in_fan_out": family.inputs_first,
        "bias": "none",
        "use_dora": False,
        "init_lora_weights": True,
    }
    return described, tensors | {PREFIX + name: np.asarray(tensor) for name, tensor in saved.items()}


def check_config(described: Mapping[str, Any]) -> None:
    """Raises `ValueError` for a configuration of adapters that memjax does not have: another kind than LoRA, with
    magnitudes (DoRA), with biases, or with other options.
    """
    for key, allowed in REQUIRED.items():
        value = described.get(key, allowed[0])
        if value not in allowed:
            raise ValueError(f"{CONFIG_FILE}: given {key} {value!r}, allowed: {', '.join(map(repr, allowed))}")
    for key, value in described.items():
        if key not in REQUIRED and key not in READ and value not in (None, False, [], {}, "", 0):
            raise ValueError(f"{CONFIG_FILE}: given {key} {value!r}, allowed: none; plain LoRA adapters are read")
    rank = described.get("r")
    if not isinstance(rank, int) or rank < 1:
        raise ValueError(f"{CONFIG_FILE}: given r {rank!r}, allowed: an integer of at least 1")


def _modules(family: ModelFamily, model: config.Model, task: config.TaskKind | None) -> Modules:
    """Finds the modules of transformers that hold matrices which can have adapters, by the table of the family."""
    places = dict[str, list[LayerMatrix]]()
    for matrix in layer_matrices(make_stack(model, segment_length=1).layers):
        places.setdefault(f"{matrix.part}/{matrix.parameter.path}", []).append(matrix)
    modules: Modules = {}
    for entry in family.entries(model, task):
        if not all(path in places for path in entry.paths):
            continue
        matrices = tuple(matrix for path in entry.paths for matrix in places[path])
        names = [name.removesuffix(WEIGHT) for name in entry.tensors]
        shares = [matrices] if len(names) == 1 else [(matrix,) for matrix in matrices]
        modules |= zip(names, shares, strict=True)
    return modules


def _name_in_table(name: str, family: ModelFamily, modules: Modules, known: set[str]) -> str:
    """Returns a name with the prefix of the family where the class without a head leaves it out."""
    longer = family.prefix + name
    is_longer = longer in known or longer.removesuffix(A).removesuffix(B) in modules
    return longer if is_longer else name


def _misfits(
    module: str, matrices: tuple[LayerMatrix, ...] | None, a: np.ndarray, b: np.ndarray | None
) -> Iterator[str]:
    """Yields a phrase for each thing that keeps an adapter from its module."""
    if matrices is None:
        yield f"{module} is no module that can have an adapter"
    elif b is None:
        yield f"{module}{B} is missing"
    else:
        inner, outer = int(np.prod(matrices[0].inputs)), sum(int(np.prod(matrix.outputs)) for matrix in matrices)
        for name, array, shape in ((A, a, (len(a), inner)), (B, b, (outer, len(a)))):
            if array.shape != shape:
                yield f"{module}{name} has shape {array.shape} and not {shape}"
            elif not np.isfinite(np.asarray(array, np.float32)).all():
                yield f"{module}{name} has values that are not finite"


def _is_stabilized(described: Mapping[str, Any]) -> bool:
    return bool(described.get("use_rslora"))


def _scale(described: Mapping[str, Any], module: str) -> float:
    """Returns the factor of an adapter's output, by the patterns of ranks and alphas. '' for that of most modules."""
    rank, alpha = (
        next(
            (value for key, value in (described.get(pattern) or {}).items() if _matches(key, module)),
            described.get(usual, 8),
        )
        for pattern, usual in (("rank_pattern", "r"), ("alpha_pattern", "lora_alpha"))
    )
    return alpha / (rank**0.5 if _is_stabilized(described) else rank)


def _matches(pattern: str, module: str) -> bool:
    """Whether a key of `rank_pattern` or `alpha_pattern` is the end of a module's name, as a regular expression."""
    return re.fullmatch(rf"(.*\.)?({pattern})", module) is not None


def _targets(matrices: list[LayerMatrix], modules: Modules) -> tuple[str, ...]:
    """Returns targets that name exactly these matrices: by their names where all layers have them, else by paths."""
    everything = [matrix for group in modules.values() for matrix in group]
    chosen, short = {matrix.path for matrix in matrices}, lambda matrix: matrix.path.split("/", 2)[2]
    names = dict.fromkeys(short(matrix) for matrix in matrices)
    is_short = all(matrix.path in chosen for matrix in everything if any(name in matrix.path for name in names))
    if is_short:
        return (config.ALL_LINEAR,) if len(chosen) == len(everything) else tuple(names)
    return tuple(matrix.path for matrix in matrices)


def _here(paths: tuple[str, ...]) -> Iterator[str]:
    """Yields the paths of parameters as settings name them. Layers are left out, since they may be in groups."""
    for path in paths:
        yield path.split("/", 2)[2] if path.startswith("stack/layer_") else f"/{path}"


def _split_module(matrices: tuple[LayerMatrix, ...], a: np.ndarray, b: np.ndarray, rank: int) -> dict[str, np.ndarray]:
    """Returns the arrays of the adapters of the matrices in one module, filled up with zeros to the rank."""
    missing = rank - len(a)
    a = np.pad(np.asarray(a, np.float32).T, ((0, 0), (0, missing)))
    b = np.pad(np.asarray(b, np.float32).T, ((0, missing), (0, 0)))
    arrays: dict[str, np.ndarray] = {}
    ends = np.cumsum([np.prod(matrix.outputs) for matrix in matrices])
    for matrix, share in zip(matrices, np.split(b, ends[:-1], axis=1), strict=True):
        arrays[f"{matrix.adapter}/a"] = a.reshape(*matrix.inputs, rank)
        arrays[f"{matrix.adapter}/b"] = share.reshape(rank, *matrix.outputs)
    return arrays


def _join_module(
    arrays: Mapping[str, Any], matrices: tuple[LayerMatrix, ...], paths: list[str]
) -> tuple[np.ndarray, np.ndarray]:
    """Joins the adapters of the matrices in one module: `lora_A [rank, in]` and `lora_B [out, rank]`."""
    factors = []
    for matrix, path in zip(matrices, paths, strict=True):
        if f"{path}/a" in arrays:
            a, b = (np.asarray(arrays[f"{path}/{factor}"], np.float32) for factor in "ab")
            factors.append((a.reshape(-1, a.shape[-1]).T, b.reshape(len(b), -1).T))
        else:
            factors.append((None, np.zeros((int(np.prod(matrix.outputs)), 0), np.float32)))
    present = [a for a, _ in factors if a is not None]
    if len(present) == len(factors) and all(np.array_equal(a, present[0]) for a in present):
        joined, outputs = present[0], np.concatenate([b for _, b in factors])
    else:
        joined, width = np.concatenate(present), sum(len(a) for a in present)
        outputs, place = np.zeros((sum(len(b) for _, b in factors), width), np.float32), (0, 0)
        for _, b in factors:
            rows, columns = place
            outputs[rows : rows + len(b), columns : columns + b.shape[1]] = b
            place = rows + len(b), columns + b.shape[1]
    used = np.flatnonzero(joined.any(axis=1) | outputs.any(axis=0))
    used = used if len(used) else np.arange(1)
    return joined[used], outputs[:, used]


def _number(value: float) -> float | int:
    """Returns a number as an integer where it is one but for rounding."""
    return round(value) if np.isclose(value, round(value), rtol=1e-12) else value
