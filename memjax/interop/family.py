"""One architecture of Hugging Face `transformers` as tables, and everything that import and export do with them.

A family says which keys of `config.json` are which of our settings (`Field`) and which tensors are which of our
parameters (`memjax.interop.state_dicts.Entry`). Reading, writing and all checks are here, once, so that a new family
inherits them.
"""

import dataclasses
import functools
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from memjax import config
from memjax.data.dialogue import NUM_MARKS
from memjax.interop import folders
from memjax.interop.state_dicts import (
    ACTIVATIONS,
    Entry,
    check_fields,
    dump_entries,
    feed_forward_checks,
    load_entries,
)
from memjax.models.factory import make_stack
from memjax.models.transformer import join_collection, split_collection

__all__ = [
    "Family",
    "Field",
    "Imported",
    "activation_key",
    "epsilon_key",
    "fixed_key",
    "head_count_key",
    "hidden_size_key",
    "training_key",
]

Described = Mapping[str, Any]
"""a config.json"""


@dataclasses.dataclass(frozen=True)
class Field:
    """One key of a `config.json`.

    Attributes:
      key: Name of the key.
      default: Value where the file lacks the key.
      path: Our setting, its parts separated by '.'. Empty for a key without one, which `allowed` restricts.
      load: `load(value, described)` gives our value, None = the same.
      dump: `dump(ours, model)` gives theirs, None = the same.
      allowed: `allowed(described)` is the only value of a key without a setting that changes what the model computes.
      trains: Whether a key without a setting has an effect on training alone. A difference from `allowed` is then
        accepted and reported.
    """

    key: str
    default: Any
    path: str = ""
    load: Callable[[Any, Described], Any] | None = None
    dump: Callable[[Any, config.Model], Any] | None = None
    allowed: Callable[[Described], Any] | None = None
    trains: bool = False


def fixed_key(key: str, value: Any, allowed: Callable[[Described], Any] | None = None) -> Field:
    """Returns a key whose value must be the default, or what `allowed` gives, for lack of a setting."""
    return Field(key, value, allowed=allowed or (lambda described: value))


def training_key(key: str, value: Any, like: str) -> Field:
    """Returns a key that has an effect on training alone, where the setting of the key `like` stands for it."""
    return Field(key, value, allowed=operator.itemgetter(like), trains=True)


def activation_key(key: str, default: str) -> Field:
    """Returns the key that names the activation of feed-forward parts."""

    def load(name: str, described: Described) -> str:
        if name not in ACTIVATIONS:
            raise ValueError(f"hf_config[{key!r}]: given {name!r}, allowed: {', '.join(map(repr, ACTIVATIONS))}")
        return ACTIVATIONS[name]

    names = {ours: theirs for theirs, ours in reversed(ACTIVATIONS.items())}
    return Field(key, default, "feed_forward.activation", load, lambda ours, model: names[ours])


def head_count_key(key: str, default: int, dim: str) -> Field:
    """Returns the key of the number of heads, which divides the width that the key `dim` gives."""

    def load(heads: int, described: Described) -> int:
        if heads < 1 or described[dim] % heads:
            raise ValueError(f"hf_config[{key!r}]: given {heads}, allowed: a divisor of {dim} = {described[dim]}")
        return heads

    return Field(key, default, "num_heads", load)


def hidden_size_key(key: str, default: int | None, dim: str) -> Field:
    """Returns the key of the width of feed-forward parts; None = 4 times that which the key `dim` gives."""
    load = lambda width, described: width or 4 * described[dim]
    return Field(key, default, "feed_forward.dim", load, lambda ours, model: ours or 4 * model.dim)


def epsilon_key(key: str, default: float, ours: float) -> Field:
    """Returns the key of the number that norms add to the variance; None here = `ours`, the family's."""
    load = lambda value, described: None if value == ours else float(value)
    return Field(key, default, "norm_epsilon", load, lambda value, model: ours if value is None else value)


class Imported(NamedTuple):
    """The model in a folder of transformers: settings, parameters and everything that came with them.

    Attributes:
      model: Its architecture.
      params: Parameters of the model, in its own grouping of layers.
      data: Data that a run of the model reads by default.
      task: The task whose head the weights have. None = no head.
      left: Tensors that have no place here, such as the heads of other tasks, by the names of the file.
      notes: A line for each option that is accepted although it differs here.
      rows: First rows of tensors that are no parameters here, by the name of the tensor and `[:count]`.
    """

    model: config.Model
    params: dict[str, Any]
    data: config.Data
    task: config.TaskKind | None = None
    left: Mapping[str, np.ndarray] = MappingProxyType({})
    notes: tuple[str, ...] = ()
    rows: Mapping[str, np.ndarray] = MappingProxyType({})


class Names(NamedTuple):
    """Names of the tensors of a file, and the prefixes that they have there.

    Attributes:
      plain: Name in the file -> name in the tables.
      outer: Prefix of every name in the file.
      body: Prefix of the names of the model without its head.
    """

    plain: Mapping[str, str]
    outer: str
    body: str

    def write(self, plain: str, prefix: str) -> str:
        """Returns the name of a tensor in the file.

        Args:
          plain: Its name in the tables.
          prefix: Prefix of the tables for the names of the model without its head.
        """
        inner = plain.removeprefix(prefix)
        return (self.outer if inner == plain else self.body) + inner


class Family:
    """One architecture of transformers: a subclass says what is its own.

    Attributes:
      name: Its name in messages.
      model_type: Its name in `config.json`.
      fields: The keys of `config.json`.
      prefix: Prefix of the names that the class without a head has too.
      layer: Beginning of the names of the first layer, behind the prefix.
      head_parts: Beginnings of the names of heads.
      beside: Parts of the names of tensors that may be left over.
      constants: Ends of the names of those that are no parameters, such as masks.
      has_headless: Whether an export without a task has the names of the class without a head.
      writes_tied: Whether a state dict repeats tied tensors.
      takes_dialogues: Whether the vocabulary may get the marks of dialogues.
    """

    name: str
    model_type: str
    fields: tuple[Field, ...]
    prefix: str
    layer: str
    head_parts: tuple[str, ...]
    beside: tuple[str, ...] = ()
    constants: tuple[str, ...] = ()
    has_headless = False
    writes_tied = False
    takes_dialogues = False

    # What a subclass says

    def base(self) -> config.Model:
        """Returns the settings that all models of the family share."""
        raise NotImplementedError

    def tensors(self, model: config.Model, task: config.TaskKind | None) -> Iterator[Entry]:
        """Yields the table of parameters, with the names of the class that has the head of the task."""
        raise NotImplementedError

    def heads(self, described: Described, weights: Mapping[str, np.ndarray]) -> Mapping[str, config.TaskKind | None]:
        """Returns the classes of transformers that are known, and the task of the head of each."""
        raise NotImplementedError

    def data(self, model: config.Model, task: config.TaskKind | None, dialogues: bool) -> config.Data:
        """Returns what a run reads, unless it is told something else."""
        raise NotImplementedError

    def class_name(self, model: config.Model, task: config.TaskKind | None) -> str:
        """Returns the class that an export is for."""
        raise NotImplementedError

    def class_keys(self, model: config.Model, task: config.TaskKind | None) -> dict[str, Any]:
        """Returns further keys of the `config.json` of that class."""
        del model, task
        return {}

    def check(self, model: config.Model) -> None:
        """Raises `ValueError` for a model that the family cannot express, its memory aside."""
        check_fields([*self.checks(model), *feed_forward_checks(model)], self.name)

    def checks(self, model: config.Model) -> Iterable[tuple[str, Any, Any]]:
        """Returns name, value and allowed value of settings that the family has no key for."""
        raise NotImplementedError

    def adapt(self, model: config.Model, names: Iterable[str]) -> config.Model:
        """Returns the model of a configuration, changed to what the names of the tensors say."""
        del names
        return model

    def task_here(self, model: config.Model, task: config.TaskKind | None) -> config.TaskKind | None:
        """Returns the task, or None where transformers has another head for it."""
        del model
        return task

    def complete(self, params: Mapping[str, Any], model: config.Model) -> Mapping[str, Any]:
        """Returns the parameters with those that only transformers has."""
        del model
        return params

    def buffers(self, model: config.Model) -> dict[str, np.ndarray]:
        """Returns the constants of a complete state dict."""
        del model
        return {}

    def differences(self, model: config.Model) -> tuple[str, ...]:
        """Returns what the exported model computes otherwise, its memory aside, a line each."""
        del model
        return ()

    # What every family does

    def model_config(self, hf_config: Described) -> config.Model:
        """Returns the model that a configuration (`config.json`, or `to_dict()` of its class) describes.

        Args:
          hf_config: The configuration. Missing keys have the defaults of its class.

        Raises:
          ValueError: Another kind of model, or an option that has no counterpart here.
        """
        return self._settings(hf_config)[0]

    def _settings(self, described: Described) -> tuple[config.Model, tuple[str, ...]]:
        """Returns the model, and a line for each option that differs in training."""
        kind = described.get("model_type", self.model_type)
        if kind != self.model_type:
            raise ValueError(f"hf_config['model_type']: given {kind!r}, allowed: {self.model_type!r}")
        given = {**{field.key: field.default for field in self.fields}, **described}
        for field in self.fields:
            _check_type(field, given[field.key])
        if described.get("quantization_config"):
            method = described["quantization_config"].get("quant_method", "")
            allowed = "weights of 16 or 32 bits, as `dequantize` of transformers makes them"
            raise ValueError(f"hf_config['quantization_config']: given {method!r}, allowed: none; {allowed}")
        notes = list[str]()
        for field in self.fields:
            if field.allowed is None or given[field.key] == (allowed := field.allowed(given)):
                continue
            what = f"hf_config[{field.key!r}]: given {given[field.key]!r}"
            if not field.trains:
                raise ValueError(f"{what}, allowed: {allowed!r}")
            notes.append(f"{what}, trained here with {allowed!r}; what the weights compute is the same")
        model = self.base()
        for field in self.fields:
            if field.path:
                value = given[field.key] if field.load is None else field.load(given[field.key], given)
                *parts, last = field.path.split(".")
                setattr(functools.reduce(getattr, parts, model), last, value)
        self.finish(model, given)
        return model, tuple(notes)

    def finish(self, model: config.Model, given: Described) -> None:
        """Sets what several keys say together; a `ValueError` where they do not fit."""

    def export_config(
        self, model: config.Model, vocab_size: int, task: config.TaskKind | None = None
    ) -> dict[str, Any]:
        """Returns the `config.json` of a model, the inverse of `model_config`.

        Args:
          model: The settings of the model.
          vocab_size: Entries of the vocabulary.
          task: See `export_params`.

        Raises:
          ValueError: A model that transformers' class cannot express.
        """
        self.check(model)
        task = self.task_here(model, task)
        written: dict[str, Any] = {}
        for field in self.fields:
            value = field.default
            if field.path:
                value = operator.attrgetter(field.path)(model)
                value = value if field.dump is None else field.dump(value, model)
            written[field.key] = value
        for field in self.fields:
            if field.allowed is not None:
                written[field.key] = field.allowed(written)
        named = {"architectures": [self.class_name(model, task)], "model_type": self.model_type}
        return {**written, **named, "vocab_size": vocab_size, **self.class_keys(model, task)}

    def import_params(
        self,
        weights: Mapping[str, np.ndarray] | str | Path,
        model: config.Model,
        task: config.TaskKind | None = None,
        *,
        initial: Any = None,
        extra_ids: int = 0,
    ) -> dict[str, Any]:
        """Returns the parameters of a model from a state dict.

        Entries that the weights do not have come last and begin as the mean of all others. The table is the output's
        too: rows drawn around 0 score near 0, and where all scores of a model are far below 0 they take the whole
        softmax. The score of a mean is the mean of the scores, so that the new entries take at most their share of the
        vocabulary: no token loses more than `log(1 + extra_ids / entries)` nats (Hewitt 2021, "Initializing new word
        embeddings for pretrained language models", https://nlp.stanford.edu/~johnhew/vocab-expansion.html).

        Args:
          weights: Name -> array, or a safetensors file. Tensors that are tied to another one may be missing.
          model: Settings of the model, from `model_config`; a memory, marks of speakers or scanning may be added.
          task: Task whose head is imported too. None = no head.
          initial: Parameters of the model, of which those that the weights have are replaced. Needed where the model
            has a memory or marks.
          extra_ids: Entries of the vocabulary after those of the weights.

        Raises:
          ValueError: Tensors that are missing, left over or of another shape, all of them in one line; a negative
            number of entries; a memory or marks without initial parameters.
        """
        return self._import(folders.read_weights(weights), model, task, initial, extra_ids)[0]

    def _import(
        self, weights: Mapping[str, np.ndarray], model: config.Model, task: Any, initial: Any, extra_ids: int
    ) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        """Returns the parameters, and the tensors that have no place by the names of the file."""
        if extra_ids < 0:
            raise ValueError(f"extra_ids: given {extra_ids}, allowed: 0 or more")
        check_finite(weights)
        self.check(model)
        if initial is None and (model.attention.coefficients() or model.markers):
            raise ValueError("initial: given None for a model with a memory or marks, allowed: its initial parameters")
        names = self.read_names(weights)
        written = {plain: name for name, plain in names.plain.items()}
        arrays = {names.plain[name]: np.asarray(weight) for name, weight in weights.items()}
        params, left, problems = load_entries(self.tensors(model, task), arrays, lambda name: written.get(name, name))
        others = [name for name in left if not self._is_beside(name)]
        problems += [f"{written[name]} is left over" for name in sorted(others)]
        if not problems:
            problems = _uneven_tables(params["vocabulary"])
        if problems:
            count, shown = len(problems), "; ".join(problems[:MOST_PROBLEMS])
            more = f"; and {count - MOST_PROBLEMS} more" if count > MOST_PROBLEMS else ""
            words = "tensor does" if count == 1 else "tensors do"
            raise ValueError(f"weights: {count} {words} not fit the model: {shown}{more}; allowed: a {self.name}")
        if extra_ids:
            params["vocabulary"] = _extended(params["vocabulary"], extra_ids)
        groups = _groups(model)
        if initial is not None:
            params = _merged(split_collection(initial, groups), params)
        params = jax.tree.map(jnp.asarray, join_collection(params, groups))
        return params, {written[name]: arrays[name] for name in left}

    def vocabulary_tensors(self, model: config.Model, task: config.TaskKind | None) -> tuple[str, ...]:
        """Returns the names of the tensors that have a row for every entry of the vocabulary."""
        entries = tuple(self.tensors(model, task))
        tensors = {name: shape for entry in entries for name, shape in entry.tensors.items()}
        spare = [entry.spare for entry in entries if entry.spare]
        tied = [name for entry in entries if -1 in next(iter(entry.tensors.values()))[:1] for name in entry.tied]
        return (*(name for name, shape in tensors.items() if shape[0] == -1), *tied, *spare)

    def _is_beside(self, name: str) -> bool:
        return name.endswith(self.constants) or any(part in name for part in self.beside)

    def read_names(self, names: Iterable[str]) -> Names:
        """Returns how the names of a state dict are written.

        Prefixes of `torch.compile` (`_orig_mod.`), of DistributedDataParallel (`module.`) and of wrappers, and old
        names of norms (`gamma`, `beta`) are no part of a name in the tables.

        Raises:
          ValueError: No layers of this family, those of several models, or one tensor twice.
        """
        shorter = {name: _shorter(name) for name in names}
        places = {name: f".{name}".find(f".{self.layer}") for name in shorter.values()}
        bodies = {name[:place] for name, place in places.items() if place >= 0}
        if len(bodies) != 1:
            several = f"several models ({', '.join(map(repr, sorted(bodies)))})"
            given = several if bodies else f"no layers of a {self.name}"
            raise ValueError(f"weights: {given}, allowed: the state dict of one {self.name}")
        body = bodies.pop()
        outer = body.removesuffix(self.prefix) if body.endswith(self.prefix) else body[: body[:-1].rfind(".") + 1]
        plain: dict[str, str] = {}
        for name, short in shorter.items():
            inner = short.removeprefix(body if short.startswith(body) else outer)
            in_body = short.startswith(body) and not inner.startswith(self.head_parts)
            plain[name] = self.prefix + inner if in_body else inner
        if len(set(plain.values())) < len(plain):
            seen: dict[str, str] = {}
            twice = next((seen[one], name) for name, one in plain.items() if seen.setdefault(one, name) != name)
            raise ValueError(f"weights: given {twice[0]!r} and {twice[1]!r}, allowed: every tensor once")
        return Names(plain, outer, body)

    def find_task(self, described: Described, weights: Mapping[str, np.ndarray]) -> config.TaskKind | None:
        """Returns the task whose head a state dict has. None = no head.

        `architectures` in the configuration and `problem_type` decide, and what the tensors are where the configuration
        names no class.

        Args:
          described: The configuration.
          weights: Name in the tables -> array.

        Raises:
          ValueError: A class that is not known, or a head that is not what its class has.
        """
        known = self.heads(described, weights)
        architecture = next(iter(described.get("architectures") or ()), None)
        if architecture is None:
            return next((task for task in known.values() if task is not None), None)
        if architecture not in known:
            allowed = ", ".join(known)
            raise ValueError(
                f"{folders.CONFIG_FILE}: given architectures [{architecture!r}], allowed: {allowed}; without the head "
                f"of the weights, name the last one"
            )
        return known[architecture]

    def read_model(
        self, described: Described, weights: Mapping[str, np.ndarray], *, dialogues: bool = False
    ) -> Imported:
        """Returns what a configuration and a state dict hold; the head, where there is one, says the task.

        Args:
          described: The configuration.
          weights: Name -> array.
          dialogues: Whether the vocabulary gets the marks of dialogues (`memjax.data.dialogue`) as further entries.

        Raises:
          ValueError: See `model_config`, `find_task` and `import_params`.
        """
        if not self.takes_dialogues:
            check_fields([("dialogues", dialogues, False)], self.name)
        plain = {self.read_names(weights).plain[name]: weight for name, weight in weights.items()}
        model, notes = self._settings(described)
        model = self.adapt(model, plain)
        task = self.find_task(described, plain)
        params, left = self._import(weights, model, task, None, NUM_MARKS if dialogues else 0)
        rows = vocab_size(params) - (NUM_MARKS if dialogues else 0)
        if rows != described.get("vocab_size", rows):
            allowed = f"{described['vocab_size']}, the vocab_size of {folders.CONFIG_FILE}"
            raise ValueError(f"weights: given {rows} word embeddings, allowed: {allowed}")
        return Imported(model, params, self.data(model, task, dialogues), task, left, notes)

    def entries(self, model: config.Model, task: config.TaskKind | None = None) -> Iterator[Entry]:
        """Returns the table of every parameter that transformers' class has; see `export_params` for the arguments."""
        return self.tensors(model, self.task_here(model, task))

    def export_params(
        self, params: Mapping[str, Any], model: config.Model, task: config.TaskKind | None = None
    ) -> dict[str, np.ndarray]:
        """Returns a state dict with the names of transformers' class for the task, the inverse of `import_params`.

        Parameters of a memory and embeddings of marks have no place in it and are left out.

        Args:
          params: Parameters of the model; those of a padded vocabulary after `cut_tables`.
          model: Settings of the model.
          task: Task whose head the parameters have. A head is left out where transformers has another one for it.

        Raises:
          ValueError: A model that transformers' class cannot express.
        """
        weights, tied = self.export_tables(params, model, task)
        plain = self.has_headless and self.task_here(model, task) is None
        written = {name.removeprefix(self.prefix) if plain else name: weight for name, weight in weights.items()}
        return written | tied if self.writes_tied else written

    def export_tables(
        self, params: Mapping[str, Any], model: config.Model, task: config.TaskKind | None = None
    ) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
        """Returns tensors by their names in the tables, and those that the class repeats; see `export_params`."""
        self.check(model)
        split = split_collection(self.complete(params, model), _groups(model))
        weights, tied = dump_entries(self.entries(model, task), split)
        return weights | self.buffers(model), tied

    def load_pretrained(
        self, folder: str | Path, task: config.TaskKind | None = None, *, extra_ids: int = 0
    ) -> tuple[config.Model, dict[str, Any]]:
        """Returns settings and parameters of a folder with `config.json` and `model.safetensors`.

        Args:
          folder: The folder.
          task: See `import_params`.
          extra_ids: See `import_params`.

        Raises:
          ValueError: A file that is missing, or weights that do not fit the configuration.
        """
        described, weights = folders.read_folder(folder)
        model = self.adapt(self.model_config(described), self.read_names(weights).plain.values())
        return model, self.import_params(weights, model, task, extra_ids=extra_ids)

    def save_pretrained(
        self,
        folder: str | Path,
        params: Mapping[str, Any],
        model: config.Model,
        task: config.TaskKind | None = None,
    ) -> None:
        """Writes a folder that `from_pretrained` of transformers and `load_pretrained` read."""
        described = self.export_config(model, vocab_size(params), task)
        folders.write_folder(folder, described, self.export_params(params, model, task))


def vocab_size(params: Mapping[str, Any]) -> int:
    """Returns the number of entries of the vocabulary that the parameters are for.

    Example:
      >>> vocab_size({"vocabulary": {"embedding_0": jnp.zeros((5, 8)), "embedding_1": jnp.zeros((4, 4))}})
      9
    """
    tables = [leaf for name, leaf in params["vocabulary"].items() if name.startswith("embedding")]
    return sum(table.shape[0] for table in tables)


def check_finite(weights: Mapping[str, np.ndarray]) -> None:
    """Raises `ValueError` for the first array that has a value which is not finite."""
    for name, weight in weights.items():
        array = np.asarray(weight)
        if array.dtype.kind not in "biu" and not (finite := np.isfinite(array)).all():
            place = tuple(int(index) for index in np.argwhere(~finite)[0])
            where = f"{float(array[place])} at {list(place)}, {int((~finite).sum())} of {array.size} values not finite"
            raise ValueError(f"weights[{name!r}]: given {where}, allowed: finite numbers")


def is_tied(model: config.Model) -> bool:
    """Returns whether the scores of a vocabulary are made with its embeddings."""
    return getattr(model.output.softmax, "tied", True)


MOST_PROBLEMS = 8
"""mismatches that one line names"""
_DATA_PARALLEL, _COMPILED = "module.", "_orig_mod."


def _shorter(name: str) -> str:
    """Returns a name without what compiling and wrapping add, and with today's names of norms."""
    name = name.replace(_COMPILED, "")
    while name.startswith(_DATA_PARALLEL):
        name = name.removeprefix(_DATA_PARALLEL)
    for old, new in ((".gamma", ".weight"), (".beta", ".bias")):
        name = name.removesuffix(old) + new if name.endswith(old) else name
    return name


def _check_type(field: Field, value: Any) -> None:
    """Raises `ValueError` for a value of another type than the default has."""
    default = field.default
    types = (int, float) if isinstance(default, float) else type(default)
    if default is not None and not isinstance(value, types):
        raise ValueError(f"hf_config[{field.key!r}]: given {value!r}, allowed: a value such as {default!r}")


def _uneven_tables(tables: Mapping[str, np.ndarray]) -> list[str]:
    """Returns a phrase for each table of a vocabulary that has not as many entries as the embeddings."""
    uneven = []
    for name, table in tables.items():
        entries = len(tables.get(f"embedding{name[name.find('_') :] if '_' in name else ''}", table))
        if name.startswith(("bias", "output")) and not name.startswith("output_") and len(table) != entries:
            uneven.append(f"{name} has {len(table)} entries and not {entries}")
    return uneven


def _extended(tables: Mapping[str, np.ndarray], count: int) -> dict[str, np.ndarray]:
    """Returns the tables of a vocabulary with `count` entries more, each the mean of all others."""

    def extend(table: np.ndarray) -> np.ndarray:
        mean = table.mean(axis=0, keepdims=True, dtype=np.float64).astype(table.dtype)
        return np.concatenate([table, np.repeat(mean, count, axis=0)])

    return {name: extend(table) for name, table in tables.items()}


def _merged(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    """Returns `old` with the leaves that `new` has."""
    both = lambda name: isinstance(old.get(name), Mapping) and isinstance(new[name], Mapping)
    return {**old, **{name: _merged(old[name], new[name]) if both(name) else new[name] for name in new}}


def _groups(model: config.Model) -> tuple[tuple[int, int], ...]:
    return make_stack(model, segment_length=1).groups()
