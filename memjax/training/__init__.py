"""Segment-recurrent training: losses over segments, the train step and its state, the loop, checkpoints, evaluation."""

from memjax.training.checkpoints import Checkpoints
from memjax.training.costs import count_flops, jaxpr_flops
from memjax.training.evaluation import EvaluationResult, Evaluator, Score, evaluate
from memjax.training.experiment import Experiment, make_experiment
from memjax.training.loop import Hook, StepInfo, Stopped, TrainingResult, every, train, training_steps
from memjax.training.metrics import read_metrics
from memjax.training.optimizers import adafactor, adam, make_optimizer, make_schedule, matrices
from memjax.training.progress import Event, Progress
from memjax.training.restoring import LoadedRun, init_from, load_run, load_variables
from memjax.training.runs import config_from_dict, config_to_dict, load_config, run_path
from memjax.training.segments import add_segments, loss_over_segments, segment_keys
from memjax.training.slot_counters import count_usage
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

__all__ = [
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
    "StepInfo",
    "Stopped",
    "TableOptimizer",
    "Tables",
    "TouchedRows",
    "TrainState",
    "TrainingResult",
    "adafactor",
    "adam",
    "add_segments",
    "config_from_dict",
    "config_to_dict",
    "count_flops",
    "count_usage",
    "evaluate",
    "every",
    "init_from",
    "init_train_state",
    "init_variables",
    "jaxpr_flops",
    "language_model_loss",
    "load_config",
    "load_run",
    "load_variables",
    "loss_over_segments",
    "make_experiment",
    "make_optimizer",
    "make_schedule",
    "make_train_step",
    "matrices",
    "model_variables",
    "read_metrics",
    "run_path",
    "segment_keys",
    "sparse_sgd",
    "table_adam",
    "train",
    "training_steps",
]
