"""Import and export of an architecture of Hugging Face's `transformers`, which is described by tables.

A family maps keys of `config.json` to settings (`memjax.interop.config_keys`) and tensors to parameters
(`memjax.interop.state_dicts.WeightMapping`). Reading, writing and all checks are in the base class, so that a new
family inherits them.
"""

import abc
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from memjax import config
from memjax.data.dialogue import NUM_MARKS
from memjax.interop import config_keys, folders
from memjax.interop.config_keys import Described, Field
from memjax.interop.parameters import (
    check_finite,
    extend_tables,
    layer_groups,
    merge_params,
    uneven_tables,
    vocab_size,
)
from memjax.interop.state_dicts import WeightMapping, check_fields, dump_entries, feed_forward_checks, load_entries
from memjax.interop.tensor_names import Names, read_names
from memjax.models.transformer import join_collection, split_collection

MOST_PROBLEMS = 8
"""maximum number of mismatches that an error line names"""


class ImportedWeights(NamedTuple):
    """A model that was read from a folder of transformers: settings, parameters, default data and task, and the tensors
    that memjax does not use.

    Attributes:
      model: Settings of the model.
      params: Parameters of the model.
      data: Data that a run of the model reads by default.
      task: Task whose head the weights have. None for weights without a head.
      left: Name in the file -> tensor, of tensors that memjax has no parameters for, such as heads of other tasks.
      notes: A line for each option that is accepted although memjax does it differently.
      rows: Name of a tensor and `[:count]` -> its first rows, which are no parameters in memjax.
    """

    model: config.Model
    params: dict[str, Any]
    data: config.Data
    task: config.TaskKind | None = None
    left: Mapping[str, Any] = MappingProxyType({})
    notes: tuple[str, ...] = ()
    rows: Mapping[str, Any] = MappingProxyType({})


def join_read(params: Mapping[str, Any], model: config.Model) -> dict[str, Any]:
    """Reads the parameters of single layers and groups them as the model does."""
    read = jax.tree.map(lambda leaf: jnp.asarray(np.asarray(leaf)), params)
    return join_collection(read, layer_groups(model))


class ModelFamily(abc.ABC):
    """Base class of the importers and exporters of one architecture of transformers, such as GPT-2. A family holds
    tables of keys and tensors, and no weights.

    Attributes:
      name: Name of the architecture in messages.
      model_type: Name of the architecture in `config.json`.
      fields: Keys of `config.json`.
      prefix: Prefix of the names of tensors of the model without a head.
      layer: Start of the names of the first layer, after the prefix.
      head_parts: Starts of the names of heads.
      beside: Parts of the names of tensors that may be left over.
      constants: Ends of the names of tensors that are no parameters, such as masks.
      has_headless: Whether an export without a task uses the names of the class without a head.
      writes_tied: Whether a state dict repeats tied tensors.
      gated: Whether feed-forward parts are gated.
      takes_dialogues: Whether the marks of dialogues can be added to the vocabulary.
      inputs_first: Whether the matrices of the layers have their inputs first in transformers.
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
    gated = False
    takes_dialogues = False
    inputs_first = False

    # Methods of subclasses

    @abc.abstractmethod
    def base(self) -> config.Model:
        """Returns new settings of a model with the values that all models of the family share. The keys of
        `config.json` set the others.
        """

    @abc.abstractmethod
    def tensors(self, model: config.Model, task: config.TaskKind | None) -> Iterator[WeightMapping]:
        """Yields a `WeightMapping` for each group of parameters of a model and of the head of `task`, with the tensor
        names of transformers' class for the task.
        """

    @abc.abstractmethod
    def heads(self, described: Described, weights: Mapping[str, Any]) -> Mapping[str, config.TaskKind | None]:
        """Returns, for a `config.json` and a state dict, a mapping from the classes of transformers that can be
        imported to tasks. None where the weights lack the head of a class, or it is a language model.
        """

    @abc.abstractmethod
    def data(self, model: config.Model, task: config.TaskKind | None, dialogues: bool) -> config.Data:
        """Returns the settings of the data that a run of the model reads by default. With `dialogues`, the vocabulary
        has the marks of dialogues and the data may be dialogues.
        """

    @abc.abstractmethod
    def class_name(self, model: config.Model, task: config.TaskKind | None) -> str:
        """Returns the name of transformers' class that an export of the model with the head of `task` is for, such as
        "GPT2LMHeadModel".
        """

    def class_keys(self, model: config.Model, task: config.TaskKind | None) -> dict[str, Any]:
        """Returns additional keys and values of `config.json` for the class of an export, such as the names of classes.
        {} by default.
        """
        del model, task
        return {}

    def check(self, model: config.Model) -> None:
        """Raises `ValueError` for a model that the architecture in transformers cannot express. The memory is not
        checked, since an export leaves it out.
        """
        check_fields([*self.checks(model), *feed_forward_checks(model, gated=self.gated)], self.name)

    @abc.abstractmethod
    def checks(self, model: config.Model) -> Iterable[tuple[str, Any, Any]]:
        """Returns (name, value, allowed value) of each setting that `config.json` has no key for. An export is refused
        where the two values differ.
        """

    def adapt(self, model: config.Model, names: Iterable[str]) -> config.Model:
        """Returns the settings of a model, changed where only the names of the tensors in a state dict tell a setting,
        such as a pooler. Unchanged by default.
        """
        del names
        return model

    def task_here(self, model: config.Model, task: config.TaskKind | None) -> config.TaskKind | None:
        """Returns `task`, or None where transformers has a different head for it, so that an export leaves out the
        head. `task` by default.
        """
        del model
        return task

    def complete(self, params: Mapping[str, Any], model: config.Model) -> Mapping[str, Any]:
        """Returns the parameters together with constant ones that the class of transformers has and memjax does not,
        such as zero biases. Unchanged by default.
        """
        del model
        return params

    def buffers(self, model: config.Model) -> dict[str, Any]:
        """Returns tensors that a state dict holds although they are no parameters, such as fixed frequencies: name ->
        array. {} by default.
        """
        del model
        return {}

    def differences(self, model: config.Model) -> tuple[str, ...]:
        """Returns a line for each way in which the exported model computes something else than the memjax model.
        Leaving out the memory is not counted.
        """
        del model
        return ()

    # Methods of all families

    def model_config(self, hf_config: Described) -> config.Model:
        """Converts a configuration of transformers, a dict from `config.json` or from `to_dict()`, to the settings of a
        memjax model. Weights are not read.

        Args:
          hf_config: The configuration. Missing keys have the defaults of its class.

        Raises:
          ValueError: Another kind of model, or an option that has no counterpart here.
        """
        return self._settings(hf_config)[0]

    def _settings(self, described: Described) -> tuple[config.Model, tuple[str, ...]]:
        """Returns the model, and a line for each option that differs in training or was chosen by the import."""
        described = self.text_config(described)
        kind = described.get("model_type", self.model_type)
        if kind != self.model_type:
            raise ValueError(f"hf_config['model_type']: given {kind!r}, allowed: {self.model_type!r}")
        complete = config_keys.complete_keys(self.fields, described)
        if described.get("quantization_config"):
            method = described["quantization_config"].get("quant_method", "")
            allowed = "weights of 16 or 32 bits, as `dequantize` of transformers makes them"
            raise ValueError(f"hf_config['quantization_config']: given {method!r}, allowed: none; {allowed}")
        notes, model = config_keys.check_keys(self.fields, complete), self.base()
        config_keys.load_settings(self.fields, complete, model)
        self.finish(model, complete)
        return model, (*notes, *self.choices(complete))

    def text_config(self, described: Described) -> Described:
        """Returns the keys of the language model in the configuration `described` of a larger model. By default the
        configuration itself.
        """
        return described

    def choices(self, described: Described) -> tuple[str, ...]:
        """Returns a line for each choice that the import makes where the configuration `described` leaves one. () by
        default.
        """
        del described
        return ()

    def finish(self, model: config.Model, described: Described) -> None:
        """Sets, in `model`, the settings that depend on several keys of the configuration `described`. By default there
        are none.

        Raises:
          ValueError: The keys do not fit each other.
        """
        del model, described

    def export_config(
        self, model: config.Model, vocab_size: int, task: config.TaskKind | None = None
    ) -> dict[str, Any]:
        """Converts the settings of a model to a dict for `config.json`, the inverse of `model_config`. No file is
        written.

        Args:
          model: The settings of the model.
          vocab_size: Entries of the vocabulary.
          task: See `export_params`.

        Raises:
          ValueError: A model that transformers' class cannot express.
        """
        self.check(model)
        task = self.task_here(model, task)
        described = config_keys.dump_settings(self.fields, model)
        described |= {"architectures": [self.class_name(model, task)], "model_type": self.model_type}
        return {**described, "vocab_size": vocab_size, **self.class_keys(model, task)}

    def import_params(
        self,
        weights: Mapping[str, Any] | str | Path,
        model: config.Model,
        task: config.TaskKind | None = None,
        *,
        initial: Any = None,
        extra_ids: int = 0,
    ) -> dict[str, Any]:
        """Converts a state dict or a safetensors file to the parameters of a model, with the head of `task`. Parameters
        that the weights lack, such as a memory, are taken from `initial`. `extra_ids` entries are added to the
        vocabulary.

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
        if initial is None and (model.attention.auxiliary_loss_weights() or model.num_speaker_markers):
            raise ValueError("initial: given None for a model with a memory or marks, allowed: its initial parameters")
        params = self._map_weights(folders.read_weights(weights), model, task, extra_ids)[0]
        if initial is not None:
            params = merge_params(split_collection(initial, layer_groups(model)), params)
        return join_read(params, model)

    def _map_weights(
        self, weights: Mapping[str, Any], model: config.Model, task: Any, extra_ids: int
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Returns the parameters by single layers, each a `LazyArray`, and the tensors that memjax has no parameters
        for by their names in the file.
        """
        if extra_ids < 0:
            raise ValueError(f"extra_ids: given {extra_ids}, allowed: 0 or more")
        check_finite(weights)
        self.check(model)
        names = self.read_names(weights)
        written = {plain: name for name, plain in names.plain.items()}
        arrays = {names.plain[name]: weight for name, weight in weights.items()}
        params, left, problems = load_entries(self.tensors(model, task), arrays, lambda name: written.get(name, name))
        others = [name for name in left if not self._is_beside(name)]
        problems += [f"{written[name]} is left over" for name in sorted(others)]
        if not problems:
            problems = uneven_tables(params["vocabulary"])
        if problems:
            count, shown = len(problems), "; ".join(problems[:MOST_PROBLEMS])
            more = f"; and {count - MOST_PROBLEMS} more" if count > MOST_PROBLEMS else ""
            words = "tensor does" if count == 1 else "tensors do"
            raise ValueError(f"weights: {count} {words} not fit the model: {shown}{more}; allowed: a {self.name}")
        if extra_ids:
            params["vocabulary"] = extend_tables(params["vocabulary"], extra_ids)
        return params, {written[name]: arrays[name] for name in left}

    def vocabulary_tensors(self, model: config.Model, task: config.TaskKind | None) -> tuple[str, ...]:
        """Returns the names of all tensors that have one row for each entry of the vocabulary, such as the word
        embeddings.
        """
        entries = tuple(self.tensors(model, task))
        tensors = {name: shape for entry in entries for name, shape in entry.tensors.items()}
        spare = [entry.spare for entry in entries if entry.spare]
        tied = [name for entry in entries if -1 in next(iter(entry.tensors.values()))[:1] for name in entry.tied]
        return (*(name for name, shape in tensors.items() if shape[0] == -1), *tied, *spare)

    def _is_beside(self, name: str) -> bool:
        return name.endswith(self.constants) or any(part in name for part in self.beside)

    def read_names(self, names: Iterable[str]) -> Names:
        """Returns a mapping from the names of the tensors in a state dict to the names in the family's tables, without
        prefixes of wrappers such as `module.`.

        Prefixes of `torch.compile` (`_orig_mod.`), of DistributedDataParallel (`module.`) and of wrappers, and old
        names of norms (`gamma`, `beta`) are no part of a name in the tables.

        Raises:
          ValueError: No layers of this family, those of several models, or one tensor twice.
        """
        return read_names(names, self.name, self.prefix, self.layer, self.head_parts)

    def find_task(self, described: Described, weights: Mapping[str, Any]) -> config.TaskKind | None:
        """Returns the task of the head in a state dict, by the classes that the configuration `described` names. None
        for weights without a head, and for a language model.

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
        self, described: Described, weights: Mapping[str, Any], *, dialogues: bool = False
    ) -> ImportedWeights:
        """Converts a configuration `described` and a state dict to settings, parameters, default data and task of a
        memjax model, as `open_model` does, and reads the parameters, grouped by layers as the model does.
        """
        opened = self.open_model(described, weights, dialogues=dialogues)
        return opened._replace(params=join_read(opened.params, opened.model))

    def open_model(
        self, described: Described, weights: Mapping[str, Any], *, dialogues: bool = False
    ) -> ImportedWeights:
        """Converts a configuration `described` and a state dict to settings, parameters, default data and task of a
        memjax model. The head decides the task. With `dialogues`, the marks of dialogues are added to the vocabulary.
        The parameters are those of single layers, and each is a `LazyArray` that is read when it is used.

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
        params, left = self._map_weights(weights, model, task, NUM_MARKS if dialogues else 0)
        rows, described = vocab_size(params) - (NUM_MARKS if dialogues else 0), self.text_config(described)
        if rows != described.get("vocab_size", rows):
            allowed = f"{described['vocab_size']}, the vocab_size of {folders.CONFIG_FILE}"
            raise ValueError(f"weights: given {rows} word embeddings, allowed: {allowed}")
        return ImportedWeights(model, params, self.data(model, task, dialogues), task, left, notes)

    def entries(self, model: config.Model, task: config.TaskKind | None = None) -> Iterator[WeightMapping]:
        """Yields a `WeightMapping` for each group of parameters that an export writes. The head of `task` is left out
        where transformers has another one.
        """
        return self.tensors(model, self.task_here(model, task))

    def export_params(
        self, params: Mapping[str, Any], model: config.Model, task: config.TaskKind | None = None
    ) -> dict[str, Any]:
        """Converts parameters to a state dict (name -> array) with the names of transformers' class for the task, the
        inverse of `import_params`. Parameters of a memory are left out.

        Embeddings of the marks of speakers are left out too.

        Args:
          params: Parameters of the model; those of a padded vocabulary after `unpad_tables`.
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
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Converts parameters to two state dicts: the tensors by their names in the family's tables, and the tied
        tensors that repeat some of them. See `export_params` for the arguments.
        """
        self.check(model)
        split = split_collection(self.complete(params, model), layer_groups(model))
        weights, tied = dump_entries(self.entries(model, task), split)
        return weights | self.buffers(model), tied

    def load_pretrained(
        self, folder: str | Path, task: config.TaskKind | None = None, *, extra_ids: int = 0
    ) -> tuple[config.Model, dict[str, Any]]:
        """Reads a folder of transformers and returns (settings, parameters) of the model with the head of `task`, None
        for no head. `extra_ids` entries are added to the vocabulary.

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
        """Writes settings and parameters, with the head of `task`, to a folder, as `config.json` and safetensors, which
        `from_pretrained` of transformers and `load_pretrained` read. No tokenizer is written.
        """
        described = self.export_config(model, vocab_size(params), task)
        folders.write_folder(folder, described, self.export_params(params, model, task))
