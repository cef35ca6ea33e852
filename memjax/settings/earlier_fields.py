"""Tables of the fields and values that earlier versions gave to settings, each with its name or value today.

`memjax.settings.compatibility` reads them in both directions, and says what each table is for.
"""

from __future__ import annotations

from typing import Any

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


SAVED_TYPES = {"ModelSettings": "Model"}
"""class -> its name in every `config.json` and fingerprint, today's included"""


DROPPED = {
    "InfinityFormer": {"segment_length"},
    "Memformer": {
        *("attention", "head_dim", "markers", "memory_dtype", "memory_tokens", "positions", "scale_embeddings"),
        "segment_length",
    },
    "Rotary": {"implementation"},
}
"""type in a config.json -> fields that earlier versions wrote, and that never had an effect of their own"""


FORMERLY: dict[str, dict[str, Any]] = {
    "AGEM": {"reference_tasks": "all"},
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


_SCALES = {"embedding_scale": None, "residual_scale": 1.0, "logit_divisor": 1.0, "logit_cap": 0.0}
ADDED: dict[str, dict[str, Any]] = {"Model": {"norm_epsilon": None, **_SCALES}, "EncoderDecoder": _SCALES}
"""type in a fingerprint -> field that older fingerprints lack -> value with which a model is the same as before"""
