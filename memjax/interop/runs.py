"""Import of Hugging Face's `transformers` weights into run directories, and export of runs.

    import_run("gpt2", "runs/gpt2")    # then: memjax generate --run runs/gpt2 --prompt ...
    export_run("runs/gpt2", "again")   # equal tensors, configuration and tokenizer

An imported run stores everything in the folder that it has no use for in `RUN/huggingface` (configuration, files of the
tokenizer, heads of other tasks), and an export restores it.
"""

import contextlib
import dataclasses
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from flax.traverse_util import unflatten_dict

from memjax import config
from memjax.data.added_tokens import read_json_object
from memjax.data.saved_tokenizers import save_tokenizer
from memjax.durable_files import read_json, write_json
from memjax.interop import folders, peft
from memjax.interop.families import family_of_run, family_of_weights
from memjax.interop.family import ModelFamily
from memjax.interop.gguf_files import is_gguf
from memjax.interop.gguf_models import convert_gguf
from memjax.interop.parameters import is_padded
from memjax.interop.peft import PeftAdapters, adapters_from_peft, adapters_to_peft
from memjax.interop.state_dicts import dump_entries
from memjax.interop.tokenizer_files import FILES, describe_files, read_tokenizer
from memjax.models.adapters import is_adapter, is_trained_with_adapters, join_earlier_adapters, merge_adapters
from memjax.models.vocabulary import Vocabulary, pad_tables, unpad_tables
from memjax.tasks.interface import make_task
from memjax.training.checkpoints import Checkpoints
from memjax.training.experiment import Experiment, make_experiment
from memjax.training.loaded_runs import LoadedCheckpoint, load_arrays
from memjax.training.named_arrays import flatten
from memjax.training.runs import (
    TOKENIZER,
    check_tokenizer,
    config_after_growth,
    config_to_dict,
    load_config,
    open_tokenizer,
)
from memjax.training.tables import Tables
from memjax.training.train_state import TrainState
from memjax.training.variables import join_arrays, split_state

__all__ = ["ExportedFolder", "ImportedRun", "export_adapters", "export_run", "import_run"]

KEPT = "huggingface"
NAMES_FILE, REST_FILE = "names.json", "rest.safetensors"
GENERATION_FILE = "generation_config.json"
BESIDE = (*FILES, GENERATION_FILE)
"""names of files beside the weights that an export restores unchanged"""
LEFT_OUT_FILE = "memjax_left_out.json"
UNLIMITED = 10**30
"""maximum length that transformers writes for a model that takes texts of any length"""


@dataclasses.dataclass(frozen=True)
class ImportedRun:
    """Facts about a run directory that `import_run` has made from a folder of transformers: its configuration, sizes,
    and the tensors that were not used.

    Attributes:
      config: Configuration of the run.
      num_parameters: Number of parameters of the model.
      vocab_size: Number of ids of the tokenizer.
      left: Names of tensors that the model has no parameters for. They are stored in the run, and exported again.
      notes: A line for each option that is accepted although memjax does it differently.
    """

    config: config.Config
    num_parameters: int
    vocab_size: int
    left: tuple[str, ...]
    notes: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class ExportedFolder:
    """Facts about a folder that `export_run` has written for transformers: its files, sizes, and the arrays that were
    left out.

    Attributes:
      checkpoint: Checkpoint that was read.
      model_type: Name of the architecture in transformers.
      num_parameters: Number of parameters in the folder.
      files: Names of all files of the folder.
      left_out: Name in a checkpoint -> shape, of arrays that transformers' class has no parameters for.
      notes: Lines about differences of the exported model's computation, and about things that were not exported.
    """

    checkpoint: LoadedCheckpoint
    model_type: str
    num_parameters: int
    files: tuple[str, ...]
    left_out: dict[str, tuple[int, ...]]
    notes: tuple[str, ...]


def import_run(
    folder: str | Path, path: str | Path, *, dialogues: bool = False, adapters: str | Path | None = None
) -> ImportedRun:
    """Makes a new run directory `path`, at step 0, from a folder of transformers, a GGUF file or a model on the Hugging
    Face hub, and returns facts about it. With `dialogues`, the marks of dialogues are added to the vocabulary of a
    GPT-2. The folder `adapters` holds LoRA adapters of the model, as `peft` saves them.

    The run can be used by `memjax generate`, `eval` and `export`, and in `training.init_from`.

    Args:
      folder: Folder as `save_pretrained` writes it: `config.json`, `model.safetensors` (or its parts), and the files of
        the tokenizer; or its name on the Hugging Face hub (`org/name`), from where it is downloaded. `model_type` says
        which family it is (`memjax.interop.families`). Or a GGUF file, whose tensors are dequantised.
      path: Path of the run directory, which must not exist.
      dialogues: Whether to add the marks of dialogues (`memjax.data.dialogue`) to the vocabulary of a GPT-2. Their
        initial embeddings are the mean of all entries.
      adapters: Folder of `peft` with LoRA adapters of the model, which the run then has (`training.lora`). None for no
        adapters.

    Raises:
      ValueError: A file is missing or incomplete, weights, adapters or tokenizer do not fit, or the path exists.
    """
    path = Path(path).expanduser()
    if path.exists():
        raise ValueError(f"run: {path} exists, allowed: a new directory")
    if is_gguf(Path(folder).expanduser()):
        with tempfile.TemporaryDirectory() as converted:
            weights = convert_gguf(Path(folder).expanduser(), Path(converted))
            return _import_weights(Path(converted), weights, path, dialogues, adapters)
    folder = folders.find_folder(folder, FILES)
    return _import_weights(folder, folders.read_folder(folder)[1], path, dialogues, adapters)


def _import_weights(
    folder: Path, weights: dict[str, Any], path: Path, dialogues: bool, adapters: str | Path | None
) -> ImportedRun:
    """Makes a run directory from the state dict `weights` and the other files of a folder. See `import_run`."""
    described = folders.read_described(folder)
    types = {name: str(weight.dtype) for name, weight in weights.items()}
    family = family_of_weights(described)
    described = family.text_config(described)
    imported = family.open_model(described, weights, dialogues=dialogues)
    lora = PeftAdapters(config.LoRA(), {}, {})
    if adapters is not None:
        lora = adapters_from_peft(*peft.read_adapters(adapters), family, imported.model, imported.task)
        plain = family.read_names(weights).plain
        weights |= {name: lora.saved[plain[name]] for name in weights if plain[name] in lora.saved}
        imported = family.open_model(described, weights, dialogues=dialogues)
    tokenizer = read_tokenizer(imported.data.tokenizer, folder)
    entries, padding = tokenizer.vocab_size, dict[str, Any]()
    if "embedding" in imported.params["vocabulary"] and is_padded(described.get("vocab_size", entries), entries):
        plain = family.read_names(weights).plain
        long = [name for name in weights if plain[name] in family.vocabulary_tensors(imported.model, imported.task)]
        padding = {f"{name}[{entries}:]": weights[name][entries:] for name in long}
        weights |= {name: weights[name][:entries] for name in long}
        imported = family.open_model({**described, "vocab_size": entries}, weights, dialogues=dialogues)
    task = imported.task or config.LanguageModeling()
    settings = config.Config(
        name=path.name, workdir=str(path.parent), task=task, model=imported.model, data=imported.data
    )
    settings.training.lora = lora.lora
    experiment = make_experiment(settings, tokenizer=tokenizer)
    _check_entries(imported.params["vocabulary"], experiment.model.vocabulary, tokenizer.vocab_size)
    path.mkdir(parents=True)
    try:
        _keep(folder, path / KEPT, types, {**imported.left, **imported.rows, **padding})
        write_run(path, experiment, add_arrays(imported.params, lora.arrays))
    except BaseException:
        shutil.rmtree(path, ignore_errors=True)
        raise
    count = sum(leaf.size for leaf in jax.tree.leaves(imported.params))
    notes = imported.notes
    if padding:
        rows = described["vocab_size"] - entries
        padding_rows = f"{rows} rows behind the {entries:,} ids of the tokenizer"
        notes += (f"vocabulary: {padding_rows} are padding, kept for an export",)
    return ImportedRun(settings, count, tokenizer.vocab_size, tuple(sorted(imported.left)), notes)


def add_arrays(params: Mapping[str, Any], arrays: Mapping[str, Any]) -> Any:
    """Returns the parameters of single layers with further arrays, such as adapters, by their paths in a layer."""
    return unflatten_dict(flatten(params) | dict(arrays), sep="/")


def export_run(run: str | Path, folder: str | Path, *, shard_bytes: int = folders.SHARD_BYTES) -> ExportedFolder:
    """Writes the newest intact checkpoint of a run, with configuration and tokenizer, to a new folder that transformers
    can read. Weights above `shard_bytes` get several files. Returns facts about the folder.

    Parameters that the architecture in transformers lacks (a memory, the marks of dialogues) are left out, and listed
    in `memjax_left_out.json` beside the weights. Adapters of the run (`training.lora`) are merged with its matrices, in
    float32. `export_adapters` writes them alone.

    Args:
      run: The run directory.
      folder: Folder to write to, which must not exist or be empty.
      shard_bytes: Maximum number of bytes of a file of weights. Larger weights are written to several files.

    Raises:
      ValueError: Transformers has no such model, the run has no checkpoint, or the folder is not empty.
    """
    run, folder = Path(run).expanduser(), Path(folder).expanduser()
    family, checkpoint, experiment, arrays = _open_run(run, folder)
    if first := experiment.config.model.first_trained_layer:
        allowed = "0, the whole model; --adapters writes the adapters of the layers above alone"
        raise ValueError(f"model.first_trained_layer: given {first} in {run}, allowed: {allowed}")
    if experiment.config.training.lora.rank:
        arrays = merge_adapters(arrays, experiment.model)
        experiment = _without_adapters(experiment)
    settings, model = experiment.config, experiment.model
    params = join_arrays(arrays, model.layer_groups())["params"]
    params = {**params, "vocabulary": _cut(params["vocabulary"], model.vocabulary)}
    task = settings.task if "head" in params else None
    described = {**family.export_config(settings.model, model.vocabulary.vocab_size, task), "dtype": "float32"}
    ids = special_ids(experiment.tokenizer)
    described |= ids
    places = None
    weights = family.export_params(params, settings.model, task)
    if (run / KEPT).is_dir():
        tables, tied = family.export_tables(params, settings.model, task)
        described, weights = _as_it_came(run / KEPT, family, described, tables, tied)
        index = run / KEPT / folders.INDEX_FILE
        if index.is_file() and shard_bytes == folders.SHARD_BYTES:
            places = read_json_object(index)["weight_map"]
    taken = {f"params/{path}" for entry in family.entries(settings.model, task) for path in entry.paths}
    left_out = {name: tuple(leaf.shape) for name, leaf in arrays.items() if name not in taken}
    length = settings.model.attention.learned_positions or UNLIMITED
    with _whole_folder(folder) as partial:
        notes = _write_tokenizer(run, partial, experiment.tokenizer, length)
        folders.write_folder(partial, described, weights, shard_bytes=shard_bytes, places=places)
        if ids and not (partial / GENERATION_FILE).exists():
            write_json(partial / GENERATION_FILE, ids, checked=False)
        if left_out:
            write_json(partial / LEFT_OUT_FILE, {"run": str(run), "step": checkpoint.step, "left_out": left_out})
    parameters = [weight for name, weight in weights.items() if not name.endswith(family.constants)]
    count = sum(weight.size for weight in {id(weight): weight for weight in parameters}.values())
    files = tuple(sorted(file.name for file in folder.iterdir()))
    notes = (*family.differences(settings.model), *notes)
    return ExportedFolder(checkpoint, described["model_type"], count, files, left_out, notes)


def export_adapters(run: str | Path, folder: str | Path) -> ExportedFolder:
    """Writes the LoRA adapters in the newest intact checkpoint of a run to a new folder that the library `peft` can
    read, without the model that they belong to. Returns facts about the folder.

    Args:
      run: The run directory.
      folder: Folder to write to, which must not exist or be empty.

    Raises:
      ValueError: The run has no adapters, transformers has no such model, or the folder is not empty.
    """
    run, folder = Path(run).expanduser(), Path(folder).expanduser()
    lora = load_config(run).training.lora
    if not lora.rank:
        raise ValueError(f"adapters: {run} has none, allowed: a run with training.lora.rank above 0")
    family, checkpoint, experiment, arrays = _open_run(run, folder)
    arrays = {name.removeprefix("params/"): np.asarray(array) for name, array in arrays.items()}
    plain, task = (
        _without_adapters(experiment),
        experiment.config.task if any(name.startswith("head/") for name in arrays) else None,
    )
    trained = [name for name in arrays if is_trained_with_adapters(name, lora)]
    adapters = join_earlier_adapters({name: array for name, array in arrays.items() if is_adapter(name)})
    whole, left_out = _trained_tensors(family, plain, arrays, [name for name in trained if name not in adapters], task)
    described, tensors = adapters_to_peft(adapters, lora, family, experiment.config.model, task, whole)
    with _whole_folder(folder) as partial:
        peft.write_adapters(partial, described, tensors)
    count, files = sum(array.size for array in tensors.values()), tuple(sorted(file.name for file in folder.iterdir()))
    return ExportedFolder(checkpoint, family.model_type, count, files, left_out, ())


class _OpenedRun(NamedTuple):
    """A run that is exported.

    Attributes:
      family: Family of its model.
      checkpoint: Checkpoint that was read.
      experiment: Experiment with the growth of the checkpoint.
      arrays: Arrays of the checkpoint by name.
    """

    family: ModelFamily
    checkpoint: LoadedCheckpoint
    experiment: Experiment
    arrays: dict[str, Any]


def _open_run(run: Path, folder: Path) -> _OpenedRun:
    """Opens a run for an export to a folder.

    Raises:
      ValueError: Transformers has no such model, the run has no checkpoint, or the folder is not empty.
    """
    if folder.exists() and not (folder.is_dir() and not any(folder.iterdir())):
        raise ValueError(f"to: {folder} exists and is not empty, allowed: a new or empty folder")
    settings = load_config(run)
    family = family_of_kept(run) or family_of_run(settings.model)
    family.export_config(settings.model, 1, settings.task)  # refuses before anything is read
    checkpoint, arrays, extra = load_arrays(run)
    settings = config_after_growth(settings, extra.get("lineage", ()))
    if (columns := settings.num_columns) > 1:
        raise ValueError(f"run: given {columns} columns, allowed: a model of one; transformers has none of several")
    experiment = make_experiment(settings, tokenizer=open_tokenizer(run, extra.get("tokenizer")))
    check_tokenizer(experiment.fingerprint, extra.get("tokenizer"), run)
    return _OpenedRun(family, checkpoint, experiment, dict(arrays))


def _without_adapters(experiment: Experiment) -> Experiment:
    """Returns an experiment for the model without adapters."""
    training = dataclasses.replace(experiment.config.training, lora=config.LoRA())
    settings = dataclasses.replace(experiment.config, training=training)
    model = make_task(settings).model(experiment.model.vocabulary.vocab_size)
    return dataclasses.replace(experiment, config=settings, model=model)


@contextlib.contextmanager
def _whole_folder(folder: Path) -> Iterator[Path]:
    """Yields a new folder beside `folder`, which takes its place at the end unless an error has been raised."""
    partial = folder.with_name(f"{folder.name}.{os.getpid()}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    try:
        yield partial
        partial.replace(folder)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise


def _trained_tensors(
    family: ModelFamily, plain: Experiment, arrays: Mapping[str, Any], names: Sequence[str], task: Any
) -> tuple[dict[str, Any], dict[str, tuple[int, ...]]]:
    """Returns the tensors of transformers for parameters that were trained whole, and the shapes of those without one.

    Args:
      family: Family of the model.
      plain: Experiment of the model without adapters.
      arrays: Arrays of single layers by the paths of parameters.
      names: Paths of the parameters that were trained whole.
      task: Task of the model, None without a head.
    """
    entries = [e for e in family.entries(plain.config.model, task) if set(e.paths) & set(names)]
    tree = unflatten_dict(dict(arrays), sep="/")
    if "vocabulary" in tree:  # a run on stored states has no embeddings
        tree["vocabulary"] = _cut(tree["vocabulary"], plain.model.vocabulary)
    tensors, _ = dump_entries(entries, tree)
    taken = {path for entry in entries for path in entry.paths}
    return tensors, {f"params/{name}": arrays[name].shape for name in names if name not in taken}


def family_of_kept(run: Path) -> ModelFamily | None:
    """Returns the family of the weights that the run directory `run` was imported from. None for a run that was not
    imported.
    """
    return family_of_weights(folders.read_described(run / KEPT)) if (run / KEPT).is_dir() else None


def _as_it_came(
    kept: Path,
    family: ModelFamily,
    described: dict[str, Any],
    tables: Mapping[str, Any],
    tied: Mapping[str, Any],
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Returns the configuration and weights of an imported run, with the names and dtypes of its original files.

    Args:
      kept: Folder in the run with the original configuration, names and remaining tensors.
      family: Family of the run.
      described: Configuration of the run's model.
      tables: Tensors by their names in the tables of the family.
      tied: Tensors that repeat one of them.
    """
    described = described | {n: value for n, value in folders.read_described(kept).items() if n != "vocab_size"}
    types = read_json(kept / NAMES_FILE)
    names = family.read_names(types)
    twins = {name: weight for name, weight in tied.items() if name in names.plain.values()}
    weights = {name: tables[plain] for name, plain in names.plain.items() if plain in tables}
    weights |= {name: twins[plain].copy() for name, plain in names.plain.items() if plain in twins}
    for plain in tables.keys() - names.plain.values():  # of a head that was trained since
        if not plain.endswith(family.constants):
            weights[names.write(plain, family.prefix)] = tables[plain]
    rest = folders.read_weights(kept / REST_FILE) if (kept / REST_FILE).is_file() else {}
    rest = {name: np.asarray(weight) for name, weight in rest.items()}
    for name in [name for name in rest if name.endswith("]")]:  # rows that are no parameters here
        (tensor, _, place), rows = name.rpartition("["), rest.pop(name)
        array = weights[tensor]
        weights[tensor] = np.concatenate([array, rows] if place.endswith(":]") else [rows, array[len(rows) :]])
        if place.endswith(":]"):
            described["vocab_size"] = len(weights[tensor])
    dtype = described.get("dtype") or described.get("torch_dtype")
    usual = dtype if dtype in ("float16", "bfloat16") else "float32"
    known = types if isinstance(types, dict) else {}  # a list, in older runs
    cast = lambda name, weight: weight.astype(jax.numpy.dtype(known.get(name, usual)))
    return described, {**{name: cast(name, weight) for name, weight in weights.items()}, **rest}


def special_ids(tokenizer: Any) -> dict[str, int | list[int]]:
    """Returns the ids of the beginning, the end and the padding in a tokenizer by their keys in `config.json`, such as
    `bos_token_id`. Of several ends they are a list. {} without a tokenizer.
    """
    if tokenizer is None:
        return {}
    begin, ends, padding = tokenizer.begin_id, [tokenizer.end_id, *tokenizer.base.extra_end_ids], tokenizer.pad_id
    ends = [int(end) for end in ends]
    return {
        "bos_token_id": int(begin),
        "eos_token_id": ends if len(ends) > 1 else ends[0],
        "pad_token_id": int(padding),
    }


def _write_tokenizer(run: Path, to: Path, tokenizer: Any, length: int) -> list[str]:
    """Writes the files of the tokenizer, or copies those that came with imported weights.

    Returns:
      A line where there is no tokenizer to export.
    """
    if (run / KEPT).is_dir():
        folders.copy_files(BESIDE, run / KEPT, to)
        return []
    if tokenizer is None:
        return ["tokenizer: none, the data of this run is tokens already"]
    files, note = describe_files(tokenizer, length)
    for name, content in files.items():
        (to / name).write_bytes(content)
    return [note] if note else []


def _check_entries(tables: Mapping[str, Any], vocabulary: Any, size: int) -> None:
    """Raises `ValueError` for weights that are not for a tokenizer of `size` ids."""
    for name, (entries, _) in vocabulary.tables().items():
        if name in tables and len(tables[name]) != entries:
            rows = sum(len(table) for part, table in tables.items() if part.startswith("embedding"))
            more = vocabulary.vocab_size - size  # marks
            raise ValueError(f"tokenizer: given one of {size} ids, allowed: {rows - more}, which the weights are for")


def _cut(tables: Mapping[str, Any], vocabulary: Any) -> dict[str, Any]:
    """Returns the tables of a vocabulary without padding. An encoder without a head has no bias."""
    return unpad_tables(tables, _like(vocabulary, tables))


def _like(vocabulary: Any, tables: Mapping[str, Any]) -> Any:
    options: dict[str, Any] = {"bias": any(name.startswith("bias") for name in tables)}
    if isinstance(vocabulary, Vocabulary):
        options["tied"] = "output" not in tables
    return vocabulary.clone(**options)


def _keep(folder: Path, to: Path, types: Mapping[str, str], left: Mapping[str, Any]) -> None:
    """Stores files of a folder, names and types of its tensors, and the tensors that the run does not use."""
    to.mkdir()
    folders.copy_files((folders.CONFIG_FILE, folders.INDEX_FILE, *BESIDE), folder, to)
    write_json(to / NAMES_FILE, dict(sorted(types.items())))
    if left:
        folders.save_weights(left, to / REST_FILE)


def write_run(path: Path, experiment: Experiment, params: Mapping[str, Any]) -> None:
    """Writes configuration, tokenizer and a checkpoint at step 0, with these parameters, into the existing folder
    `path`, which becomes a run directory.

    Args:
      path: The folder.
      experiment: Experiment of the run.
      params: Parameters of the model or of its single layers, without the padding of the vocabulary.
    """
    model, tokenizer, tables = experiment.model, experiment.tokenizer, params["vocabulary"]
    params = {**params, "vocabulary": pad_tables(tables, _like(model.vocabulary, tables))}
    write_json(path / "config.json", config_to_dict(experiment.config))
    save_tokenizer(tokenizer, path / TOKENIZER)
    empty: Any = {}
    state = TrainState(
        step=np.int32(0), params=params, tables=Tables(), opt_state=(), batch_stats=empty, constants=empty,
        memory=empty, key=jax.random.key(0), totals=empty, restart=np.zeros(1, bool),
    )  # fmt: skip
    checkpoints = Checkpoints(path / "checkpoints")
    checkpoints.save(0, split_state(state, model.layer_groups()), extra={"tokenizer": tokenizer.fingerprint})
    checkpoints.close()
