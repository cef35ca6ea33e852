"""Names that earlier versions gave to settings, and the names of today.

One table, read in both directions. To the names of today: `config.json` of a run (`upgrade_saved_settings`), options of
the command line (`describe_renamed_option`), keywords and attributes of a config file (`describe_renamed_field`), the
files that `memjax migrate` rewrites, and commands that are printed (`current_command`). To the names of earlier
versions: what is hashed or compared on disk, such as the fingerprint of a datastore (`in_saved_names`), so that
everything that an earlier version has written opens unchanged.

A field that is renamed gets a line in `FIELDS`. Keys inside of checkpoints and of `metrics.jsonl` are not listed here:
they are never renamed.
"""

from __future__ import annotations

import dataclasses
import functools
import re
import shlex
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, get_args

CLASSES: dict[str, str] = {
    "AnyModel": "ModelBase",
    "AskedTexts": "QuestionSource",
    "Episodic": "MetaLearningMethod",
    "HeldOut": "HoldoutSource",
    "LayeredModel": "TransformerBase",
    "Made": "SyntheticVectors",
    "MadeRelations": "SyntheticRelations",
    "Neighborly": "NeighborAdaptationMethod",
    "Rehearsing": "RehearsalMethod",
}
"""class of settings in an earlier version -> its name today"""
FIELDS: dict[str, dict[str, str]] = {
    "AGEM": {
        "every": "projection_interval",
        "rows": "reference_batch_size",
    },
    "Bidirectional": {
        "positions": "num_positions",
        "token_types": "num_token_types",
        "gate": "gate_dim",
    },
    "CachedPairs": {
        "known": "earlier_relations",
    },
    "Classification": {
        "mask_unseen": "mask_unseen_classes",
    },
    "ClassifiedTexts": {
        "text": "row_text",
        "sampling": "subset_sampling",
    },
    "Compressive": {
        "loss": "compression_loss",
        "positions": "compressed_positions",
    },
    "ContinuousCache": {
        "scale": "similarity_scale",
        "offset": "score_offset",
        "mixing": "interpolation",
        "across_documents": "keep_across_documents",
    },
    "Data": {
        "rows": "batch_size",
        "half": "train_half",
        "neighbors": "neighbors_dir",
        "states": "encoder_states_dir",
    },
    "EAEMR": {
        "selection": "example_selection",
        "alignments": "alignment_epochs",
        "learning_rate": "alignment_learning_rate",
    },
    "ELLE": {
        "dims": "dim_per_task",
        "layers": "num_layers_per_task",
        "copies": "copy_rule",
        "norms": "norm_expansion",
        "noise": "copy_noise",
        "depth": "new_layer_init",
        "moments": "optimizer_moments",
        "rows": "replay_batch_size",
        "warm_up": "recovery_steps",
        "warm_up_rows": "recovery_batch_size",
        "annealed": "anneal_norms",
        "share": "memory_fraction",
        "replayed": "replay_sampling",
    },
    "EMAR": {
        "selection": "example_selection",
        "embedding": "prototype_anchor",
        "first": "first_pass_examples",
        "activations": "activation_epochs",
        "reconsolidations": "reconsolidation_epochs",
        "instances": "instances_per_class",
        "rows": "reconsolidation_batch_size",
        "new_optimizer": "reset_optimizer",
    },
    "EMR": {
        "selection": "example_selection",
        "normalized": "normalize_features",
    },
    "EWC": {
        "weight": "penalty_weight",
        "fisher": "fisher_estimate",
        "batches": "fisher_batches",
        "form": "consolidation",
    },
    "EpisodicMemory": {
        "policy": "write_policy",
        "probability": "write_probability",
        "full": "when_full",
        "groups": "balance_by",
        "temperature": "diversity_temperature",
        "unit": "distance_scale",
        "sign": "prefer",
        "place": "storage",
        "index": "key_search",
    },
    "Evaluation": {
        "rows": "batch_size",
        "score_first": "score_first_token",
        "memory_state": "memory_intervention",
        "memory_part": "intervention_path",
        "accuracy": "compute_accuracy",
        "answers": "max_answers",
        "distance": "identifier_distance",
        "prompt": "prompt_of_task",
    },
    "GEM": {
        "rows": "examples_per_task",
        "margin": "memory_strength",
        "stored": "cache_gradients",
    },
    "InfinityFormer": {
        "host": "base_attention",
        "layers": "layers_with_memory",
        "first_densities": "density_init",
        "reset_after": "reset_after_tokens",
        "over_layers": "kl_over_layers",
        "jitter": "jitter_samples",
    },
    "InstructionLines": {
        "answered_by": "answer_metric",
    },
    "Joint": {
        "stages": "schedule",
    },
    "LAMOL": {
        "share": "sample_ratio",
        "samples": "sample_source",
        "tokens": "generation_token",
        "language_weight": "lm_loss_weight",
        "rows": "replay_batch_size",
        "written_at_once": "generation_batch_size",
    },
    "LabelledFile": {
        "numbers": "class_ids",
    },
    "LanguageModeling": {
        "pieces": "fixed_length_examples",
    },
    "Lifelong": {
        "order": "task_order",
        "folder": "sources_dir",
        "limits": "max_examples_per_task",
        "borders": "task_boundaries",
        "evaluate_before": "evaluate_before_training",
        "border_width": "blur_width",
        "last_batch": "last_batch_weighting",
        "growths": "num_growths",
        "least_updates": "min_updates_per_task",
    },
    "LogitKD": {
        "weight": "distillation_weight",
        "rows": "replay_batch_size",
        "annealed": "anneal_weight",
    },
    "LwF": {
        "weight": "distillation_weight",
    },
    "MAS": {
        "weight": "penalty_weight",
        "flavour": "gradient_granularity",
        "batches": "importance_batches",
        "alpha": "old_importance_fraction",
    },
    "MaskedLanguageModeling": {
        "rate": "mask_rate",
        "masked": "mask_token_fraction",
        "random": "random_token_fraction",
    },
    "MbPA": {
        "neighbors": "neighbor_choice",
    },
    "MemSizer": {
        "frozen_queries": "freeze_slot_keys",
    },
    "Memformer": {
        "unit_values": "unit_length_updates",
        "writes_begin": "write_begin_token",
        "forgetting": "use_forgetting",
        "single_head": "single_memory_head",
        "slots_per_chunk": "write_chunk_size",
    },
    "Memorizing": {
        "layers": "layers_with_memory",
        "write": "write_policy",
        "window": "local_window",
        "dropout_place": "dropout_on",
    },
    "MemoryTokens": {
        "shared": "share_memory_layer",
    },
    "MetaLearningMethod": {
        "every": "replay_interval",
        "rate": "replay_rate",
        "steps": "inner_steps",
        "order": "first_order",
        "reduction": "replay_loss_reduction",
    },
    "MetaMbPA": {
        "meta": "meta_train",
        "shared": "share_neighborhood",
        "order": "first_order",
        "inference": "adaptation_scope",
        "learning_rate": "adaptation_learning_rate",
    },
    "ModelSettings": {
        "markers": "num_speaker_markers",
        "first_layer": "first_trained_layer",
    },
    "NeighborAdaptationMethod": {
        "every": "replay_interval",
        "rows": "replay_batch_size",
        "weights": "neighbor_weighting",
        "metric": "key_distance",
        "key": "key_source",
        "steps": "adaptation_steps",
        "learning_rate": "adaptation_learning_rate",
        "momentum": "adaptation_momentum",
        "penalty": "adaptation_l2",
        "adapted": "adapted_parameters",
        "queries": "adaptation_batch_size",
    },
    "Perceptron": {
        "gate": "gate_dim",
    },
    "ProgressiveNetwork": {
        "columns": "num_columns",
    },
    "Prompted": {
        "domain": "prompt_task_index",
    },
    "QuestionAnswering": {
        "num_best": "num_best_spans",
        "context_only": "answers_in_context_only",
    },
    "RFA": {
        "redraw": "redraw_each_segment",
    },
    "RehearsalMethod": {
        "size": "examples_per_task",
    },
    "RelationExtraction": {
        "vectors": "relation_vectors",
        "learned": "train_choices",
        "scored": "eval_choices",
        "fallback": "keep_two_candidates",
        "name_length": "max_name_words",
    },
    "Relations": {
        "known": "earlier_relations",
    },
    "Replay": {
        "every": "replay_interval",
        "rows": "replay_batch_size",
        "replace": "with_replacement",
        "compared": "softmax_classes",
    },
    "SI": {
        "weight": "penalty_weight",
    },
    "SeqioInstructions": {
        "answered_by": "answer_metric",
    },
    "Sharding": {
        "memory": "split_memory_by",
        "tables": "split_tables_by",
        "vocab_multiple": "pad_vocab_to_multiple",
        "timeout": "process_timeout",
    },
    "T2R": {
        "folded": "fold_features",
    },
    "Training": {
        "accumulate": "num_microbatches",
        "apply_every": "gradient_accumulation_steps",
        "segments_without_gradient": "burn_in_segments",
        "rematerialize": "remat",
        "segments_per_checkpoint": "segments_per_remat",
        "tables": "value_table_optimizer",
        "train_layers": "num_trainable_layers",
        "frozen": "frozen_parameters",
        "reinitialized": "reinitialized_parameters",
        "max_skipped": "max_skipped_steps",
        "wandb": "wandb_project",
    },
}
"""class -> field in an earlier version -> its name today; a class has the entries of its bases too"""
VALUES: dict[str, dict[str, dict[Any, Any]]] = {
    "EpisodicMemory": {"prefer": {"unlike": "dissimilar", "like": "similar"}},
    "MetaLearningMethod": {"first_order": {1: True, 2: False}},
    "MetaMbPA": {
        "first_order": {1: True, 2: False},
        "adaptation_scope": {"random": "once", "together": "per_batch", "each": "per_example"},
    },
}
"""class -> field by its name today -> value in an earlier version -> value today"""
NAMES: dict[str, dict[str, str]] = {
    "memjax.data": {
        "Dialogues": "DialogueDocuments",
        "Entry": "QuestionRecord",
        "ExampleStream": "ExampleBatches",
        "KeyValueRecall": "KeyValueRecallDocuments",
        "MarkedEvents": "MarkedEventDocuments",
        "MarkingTokenizer": "TokenizerWithDialogueMarks",
        "Reading": "ReadingPlan",
        "RowStream": "BatchIterator",
        "Sorting": "SortingDocuments",
        "Streams": "DocumentBatches",
        "Vectors": "VectorArrays",
        "asked_questions": "read_all_questions",
        "blobs": "make_blobs",
        "cached_features": "open_cached_features",
        "classified_texts": "read_classified_texts",
        "cmu_dog": "read_cmu_dog",
        "digits": "read_digits",
        "directories": "texts_from_directories",
        "field_of": "get_field",
        "gather": "collect_questions",
        "half_of": "split_at_half",
        "images_of": "images_from_tokens",
        "instructions_of": "read_instructions",
        "json_lines": "texts_from_records",
        "labels_of": "find_labels",
        "lack_of_text": "missing_text_error",
        "packing_of": "detect_compression",
        "permuted_bags": "make_permuted_bags",
        "propose_encoding": "guess_encoding",
        "relation_splits": "read_relation_splits",
        "text_files": "texts_from_files",
        "unlike_neighbors": "compare_target_shares",
    },
    "memjax.datastore": {
        "Block": "EntryBlock",
        "recall": "measure_recall",
    },
    "memjax.inspection": {
        "Figure": "MemoryMetric",
        "Found": "MemoryMetricValue",
        "read_tracked": "read_with_attention",
        "with_signal": "with_long_term_fields",
    },
    "memjax.lifelong": {
        "Consolidated": "ImportanceState",
        "Episodes": "MemoryOptions",
        "EpisodicMemory": "EpisodicMemoryState",
        "Plan": "StreamPlan",
        "Replayed": "ReplayOptions",
        "Rule": "Component",
        "Schedule": "ReplaySchedule",
        "compose": "chain_components",
        "course_of": "make_learner_and_stages",
    },
    "memjax.memory": {
        "Absent": "NotProvided",
        "ContinuousCache": "ContinuousCacheMemory",
        "LSTM": "LSTMLayer",
        "LongMemory": "KeyValueMemory",
        "MemoryTokens": "MemoryTokenEncoder",
        "Recalled": "NextTokenCandidates",
        "Spalm": "SpalmMemory",
        "Stateless": "StatelessMemory",
        "Tokens": "TokenProjections",
        "Usage": "AttentionUsage",
    },
    "memjax.models": {
        "FeedForward": "FeedForwardLayer",
        "Fixed": "LazyConstant",
        "Side": "LateralInputs",
        "cut_tables": "unpad_tables",
        "regroup": "regroup_layers",
    },
    "memjax.planning": {
        "Tip": "Suggestion",
    },
    "memjax.report": {
        "Words": "Paragraph",
    },
    "memjax.retrieval": {
        "Found": "StoreNeighbors",
        "Half": "CrossFittingHalf",
        "KeySource": "KeyExtractor",
        "Mixing": "InterpolationWeights",
        "Targets": "ScoredTargets",
        "WithStore": "ModelWithStore",
        "add_store": "model_with_store",
        "kept_mixing": "load_interpolation",
        "knn_recall": "knn_retriever",
        "near": "exclude_nearby",
        "neighbors_by_halves": "cross_fitted_neighbors",
        "same_document": "exclude_same_document",
        "spalm_recall": "spalm_retriever",
        "tune": "tune_interpolation",
        "tune_both": "tune_with_memory",
    },
    "memjax.tasks": {
        "Answers": "GeneratedAnswers",
        "Asked": "Query",
        "Measure": "TaskMetric",
        "task_of": "make_task",
    },
}
"""package of memjax -> public name in an earlier version -> its name today"""
MEMBERS = {
    "Memory": {
        "feature": "query_feature",
        "gated": "gate_description",
        "gates": "gate_values",
        "inputs": "input_names",
        "needs": "required_extras",
        "replaced": "replaced_parameter_names",
        "stands_alone": "excluded_from_scan",
        "tracked": "with_attention_tracking",
    },
    "Model": {
        "answer": "apply_head",
        "asks_task": "needs_task_id",
        "choose_extras": "select_extras",
        "groups": "layer_groups",
        "head_place": "head_path",
        "represent": "encode",
        "represents": "has_separate_head",
        "scores": "scorer",
    },
    "Task": {
        "about": "second_input",
        "ask": "read_queries",
        "beside": "extra_metrics",
        "counted": "counted_tokens",
        "headline": "main_metrics",
        "matrix": "matrix_metrics",
        "scored": "target_unit",
    },
    "TaskHead": {"scores": "scorer"},
}
"""Base class -> earlier name of a member that subclasses define -> its name today."""

SAVED_TYPES = {"ModelSettings": "Model"}
"""class -> its name in every `config.json` and fingerprint, today's included"""
DROPPED = {
    "InfinityFormer": {"segment_length"},
    "Memformer": {
        *("attention", "head_dim", "markers", "memory_dtype", "memory_tokens", "positions", "scale_embeddings"),
        "segment_length",
    },
}
"""type in a config.json -> fields that earlier versions wrote, and that never had an effect of their own"""
FORMERLY: dict[str, dict[str, Any]] = {
    "InfinityFormer": {"density_init": "published", "kl_over_layers": "mean"},
    "Memformer": {
        "unit_length_updates": False,
        "retain_bias": 0.0,
        "write_begin_token": True,
        "segment_positions": "none",
    },
    "Spalm": {"scale_neighbors": False},
    **{
        name: {"equality": "letters_and_digits"}
        for name in ("TextClasses", "CLBenchmark", "TfdsClasses", "SeqioClasses")
    },
    "LabelledFile": {"equality": "letters_and_digits", "escapes": "resolved"},
}
"""type in a config.json -> field of today that older files lack -> value with which their runs were trained"""
ADDED: dict[str, dict[str, Any]] = {"Model": {"norm_epsilon": None}}
"""type in a fingerprint -> field that older fingerprints lack -> value with which a model is the same as before"""


@functools.cache
def renamed_fields(kind: type) -> Mapping[str, str]:
    """Returns the earlier names of the fields of a class of settings, each with its name today."""
    return _of_bases(FIELDS, kind)


@functools.cache
def changed_values(kind: type) -> Mapping[str, Mapping[Any, Any]]:
    """Returns the fields of a class whose values have changed their names, each with earlier value -> value today."""
    return _of_bases(VALUES, kind)


def saved_type(kind: type) -> str:
    """Returns the name of a class of settings in the file names and fingerprints of all versions."""
    earlier = {new: old for old, new in CLASSES.items()}
    return SAVED_TYPES.get(kind.__name__, earlier.get(kind.__name__, kind.__name__))


def in_saved_names(value: Any) -> Any:
    """Returns settings as JSON values under the names of earlier versions, for fingerprints and folders on disk.

    Args:
      value: Settings as `config_to_dict` returns them.

    Example:
      >>> in_saved_names({"type": "Bytes"})
      {'type': 'Bytes'}
    """
    if isinstance(value, list | tuple):
        return [in_saved_names(entry) for entry in value]
    if not isinstance(value, dict) or (kind := settings_class(value.get("type"))) is None:
        return value
    earlier = {new: old for old, new in renamed_fields(kind).items()}
    saved: dict[str, Any] = {}
    for name, entry in value.items():
        values = {new: old for old, new in changed_values(kind).get(name, {}).items()}
        known = not isinstance(entry, list | dict) and entry in values
        saved[str(earlier.get(name, name))] = values[entry] if known else in_saved_names(entry)
    return {**saved, "type": saved_type(kind)}


def upgrade_saved_settings(value: Mapping[str, Any]) -> dict[str, Any]:
    """Returns one level of a `config.json` under the names of today.

    Fields that never had an effect are left out. Fields that did not exist have the value with which runs were trained.

    Args:
      value: Fields of one class of settings, with `type`.
    """
    kept = {name: entry for name, entry in value.items() if name not in DROPPED.get(value["type"], ())}
    kind = settings_class(value["type"])
    if kind is not None:
        kept = dict(current_field(kind, name, entry) for name, entry in kept.items())
    return FORMERLY.get(value["type"], {}) | kept


def current_field(kind: type, name: str, value: Any = None) -> tuple[str, Any]:
    """Returns a field of a class of settings and its value under the names of today.

    Args:
      kind: Class of settings.
      name: Name of the field today or in an earlier version.
      value: Its value. One that only earlier versions had is replaced by that of today.
    """
    new = str(renamed_fields(kind).get(name, name))
    values = changed_values(kind).get(new, {})
    # A value under the name of today is one of today, unless only values have changed.
    is_earlier = new != name or new not in renamed_fields(kind).values()
    if is_earlier and isinstance(value, str | int | float) and value in values:
        value = values[value]
    return new, value


def describe_renamed_field(kind: type, name: str) -> str:
    """Returns the line about a field of an earlier version, '' for every other name."""
    new = renamed_fields(kind).get(name)
    hint = "`memjax migrate FILE` renames it in a config file"
    return f"{kind.__name__}: {name} is now {new}{_describe_values(kind, new)}; {hint}" if new else ""


def describe_renamed_option(settings: Any, path: str) -> str:
    """Returns the line about an option of an earlier version, '' for every other path.

    Args:
      settings: Configuration to which the option belongs.
      path: Dotted path of the field, as 'data.segment_length', or the end of such a path. An end that is today the end
        of another path is not renamed.
    """
    from memjax.settings.checks import iterate_settings

    line = ""
    for prefix, part in iterate_settings(settings):
        for new, kind in _current_paths([part], path.split(".")):
            if new == path:
                return ""
            values = _describe_values(kind, new.rpartition(".")[2])
            line = line or f"{prefix}{path} is now {prefix}{new}{values}"
        if line and not prefix:
            return line
    return line


def current_path(settings: Any, path: str) -> str:
    """Returns a dotted path of a field under the names of today; a path that is not known stays as it is.

    Args:
      settings: Settings, or a class of them. Of a class, fields that differ between the kinds of a part stay.
      path: Dotted path, as 'data.segment_length'. Numbers stand for the entries of a tuple.
    """
    found = list(dict.fromkeys(new for new, _ in _current_paths([settings], path.split("."))))
    is_class = isinstance(settings, type)
    return path if not found or is_class and len(found) > 1 else found[0]


def current_command(command: str, settings: Any) -> str:
    """Returns a command line with its options under the names of today.

    Args:
      command: Command line as it was run.
      settings: The configuration whose fields it sets, or a class.
    """
    try:
        words = shlex.split(command)
    except ValueError:  # not a command line but a description
        return command
    if not any(word.startswith("--") and "." in word for word in words):
        return command
    changes = {}
    for word, following in zip(words, [*words[1:], ""], strict=True):
        option, equals, value = word.partition("=")
        if not option.startswith("--") or "." not in option:
            continue
        path = option[2:].replace("-", "_")
        for new, kind in _current_paths([settings], path.split(".")):
            if new == path:
                break
            changes[option] = f"--{new.replace('_', '-')}"
            changed = changed_values(kind).get(new.rpartition(".")[2], {})
            values, given = {str(old): new for old, new in changed.items()}, value if equals else following
            if given in values:
                changes[f"{option}{equals or ' '}{given}"] = _option(changes[option], equals or " ", values[given])
            break
    for old, new in sorted(changes.items(), key=lambda change: -len(change[0])):
        command = re.sub(rf"(?<!\S){re.escape(old)}(?![\w.-])", new.replace("\\", r"\\"), command)
    return command


def _option(name: str, separator: str, value: Any) -> str:
    """Returns an option with its value as the command line takes it: truth values are names, with or without 'no-'."""
    if not isinstance(value, bool):
        return f"{name}{separator}{value}"
    path, dot, field = name.rpartition(".")
    return name if value else f"{path}{dot}no-{field}"


def settings_class(name: Any) -> type | None:
    """Returns the class of settings with a name of today or of an earlier version, None where there is none."""
    from memjax import config as configs

    kind = vars(configs).get(CLASSES.get(str(name), str(name)))
    return kind if isinstance(kind, type) and dataclasses.is_dataclass(kind) else None


def classes_in(hint: Any) -> list[type]:
    """Returns the classes of settings in the annotation of a field: those of a union, or of the entries of a tuple."""
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        return [hint]
    return [kind for argument in get_args(hint) for kind in classes_in(argument)]


def renamed_names(module: str, table: Mapping[str, str] | None = None) -> Callable[[str], Any]:
    """Makes the `__getattr__` of a package: a name of an earlier version gives today's, with a `DeprecationWarning`.

    Args:
      module: Name of the package.
      table: Earlier name -> name today. None for those of `NAMES`.

    Example:
      >>> __getattr__ = renamed_names(__name__, {})
    """
    renamed = NAMES.get(module, {}) if table is None else table

    def __getattr__(name: str) -> Any:
        if name not in renamed:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        import importlib

        warnings.warn(f"{module}.{name} is now {renamed[name]}", DeprecationWarning, stacklevel=2)
        return getattr(importlib.import_module(module), renamed[name])

    return __getattr__


def warn_of_renamed_members(kind: type) -> None:
    """Warns of members that a subclass still defines under the names of earlier versions (`MEMBERS`)."""
    for old, new in _of_bases(MEMBERS, kind).items():
        if old in vars(kind):
            warnings.warn(f"{kind.__name__}: {old} is now {new}", DeprecationWarning, stacklevel=3)


def _of_bases(table: Mapping[str, Mapping[str, Any]], kind: type) -> dict[str, Any]:
    merged: dict[str, Any] = {}
    for base in reversed(kind.__mro__):
        merged |= table.get(base.__name__, {})
    return merged


def _describe_values(kind: type, field: str) -> str:
    """Returns the part of a line about values that have new names, '' where they have kept theirs."""
    changes = [f"{old!r} is now {new!r}" for old, new in changed_values(kind).get(field, {}).items() if old != new]
    return f" ({', '.join(changes)})" if changes else ""


def _current_paths(places: Iterable[Any], names: list[str]) -> Iterator[tuple[str, type]]:
    """Yields paths that lead to a field, the kinds that a configuration has first, with the class of the field.

    Args:
      places: Settings, or classes of them.
      names: Path from there, in the names of today or of an earlier version.
    """
    from memjax.settings.ranges import type_hints_of

    first, *rest = names
    for place in places:
        kind = place if isinstance(place, type) else type(place)
        if first.startswith("no_"):  # a switch that is off
            known = first[3:] in renamed_fields(kind)
            name = f"no_{renamed_fields(kind)[first[3:]]}" if known else first
            field = name[3:]
        else:
            name = field = renamed_fields(kind).get(first, first)
        hints = type_hints_of(kind)
        if field not in hints:
            continue
        if not rest:
            yield name, kind
            continue
        value = None if isinstance(place, type) else getattr(place, field)
        parts = [*value] if isinstance(value, tuple | list) else [value]
        parts = [part for part in parts if dataclasses.is_dataclass(part)]
        numbered = rest[0].isdigit() and len(rest) > 1
        for path, owner in _current_paths([*parts, *classes_in(hints[field])], rest[1:] if numbered else rest):
            yield f"{name}.{rest[0] + '.' if numbered else ''}{path}", owner
