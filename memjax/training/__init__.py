"""Segment-recurrent training: losses over segments, the train step and its state, the loop, checkpoints, evaluation."""

from memjax.training.checkpoints import Checkpoints
from memjax.training.costs import count_flops, jaxpr_flops
from memjax.training.evaluation import EvaluationResult, Evaluator, Score, evaluate
from memjax.training.experiment import (
    Experiment,
    LoadedRun,
    init_from,
    load_run,
    load_variables,
    make_experiment,
    make_model,
)
from memjax.training.loop import Hook, StepInfo, Stopped, TrainingResult, every, train, training_steps
from memjax.training.metrics import read_metrics
from memjax.training.neighbors import (
    CachedNeighbors,
    Targets,
    Tuning,
    find_neighbors,
    score_mixture,
    score_targets,
    tune,
)
from memjax.training.optimizers import adafactor, adam, make_optimizer, make_schedule, matrices
from memjax.training.precomputation import near, precompute_neighbors, same_document
from memjax.training.progress import Event, Progress
from memjax.training.retrieved import describe_retrieved, largest_gains, read_retrieved
from memjax.training.runs import config_from_dict, config_to_dict, load_config, run_path
from memjax.training.segments import add_segments, loss_over_segments, segment_keys
from memjax.training.step import (
    SegmentLoss,
    TrainState,
    init_train_state,
    init_variables,
    language_model_loss,
    make_train_step,
    model_variables,
)
from memjax.training.tables import TableOptimizer, Tables, TouchedRows, sparse_sgd, table_adam
from memjax.training.usage import SlotCounts, class_divergence, class_overlap, count_usage, measure_usage, staleness

__all__ = [
    "CachedNeighbors",
    "Checkpoints",
    "EvaluationResult",
    "Evaluator",
    "Event",
    "Experiment",
    "Hook",
    "LoadedRun",
    "Progress",
    "Score",
    "SegmentLoss",
    "SlotCounts",
    "StepInfo",
    "Stopped",
    "TableOptimizer",
    "Tables",
    "Targets",
    "TouchedRows",
    "TrainState",
    "TrainingResult",
    "Tuning",
    "adafactor",
    "adam",
    "add_segments",
    "class_divergence",
    "class_overlap",
    "config_from_dict",
    "config_to_dict",
    "count_flops",
    "count_usage",
    "describe_retrieved",
    "evaluate",
    "every",
    "find_neighbors",
    "init_from",
    "init_train_state",
    "init_variables",
    "jaxpr_flops",
    "language_model_loss",
    "largest_gains",
    "load_config",
    "load_run",
    "load_variables",
    "loss_over_segments",
    "make_experiment",
    "make_model",
    "make_optimizer",
    "make_schedule",
    "make_train_step",
    "matrices",
    "measure_usage",
    "model_variables",
    "near",
    "precompute_neighbors",
    "read_metrics",
    "read_retrieved",
    "run_path",
    "same_document",
    "score_mixture",
    "score_targets",
    "segment_keys",
    "sparse_sgd",
    "staleness",
    "table_adam",
    "train",
    "training_steps",
    "tune",
]
