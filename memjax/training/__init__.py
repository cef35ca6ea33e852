"""Segment-recurrent training: losses over segments, the train step and its state, the loop, checkpoints, evaluation."""

from memjax.training.assembly import Parts, make_parts
from memjax.training.checkpoints import Checkpoints
from memjax.training.costs import count_flops, jaxpr_flops
from memjax.training.evaluation import EvaluationResult, Evaluator, Score, evaluate
from memjax.training.experiment import Experiment, make_experiment
from memjax.training.loop import Hook, StepInfo, Stopped, TrainingResult, every, train, training_steps
from memjax.training.metrics import read_metrics
from memjax.training.objective import Objective, model_loss, with_distillation, with_penalty
from memjax.training.optimizers import Reference, adafactor, adam, make_optimizer, make_schedule, matrices
from memjax.training.progress import Event, Progress
from memjax.training.restoring import LoadedRun, init_from, load_run, load_variables
from memjax.training.runs import config_from_dict, config_to_dict, load_config, run_path
from memjax.training.segments import add_segments, loss_over_segments, segment_keys
from memjax.training.slot_counters import count_usage
from memjax.training.step import (
    Gradients,
    TrainState,
    apply_gradients,
    gradients_of,
    init_train_state,
    init_variables,
    make_train_step,
    model_variables,
)
from memjax.training.tables import TableOptimizer, Tables, TouchedRows, sparse_sgd, table_adam
from memjax.typing import SegmentLoss

__all__ = [
    "Checkpoints",
    "EvaluationResult",
    "Evaluator",
    "Event",
    "Experiment",
    "Gradients",
    "Hook",
    "LoadedRun",
    "Objective",
    "Parts",
    "Progress",
    "Reference",
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
    "apply_gradients",
    "config_from_dict",
    "config_to_dict",
    "count_flops",
    "count_usage",
    "evaluate",
    "every",
    "gradients_of",
    "init_from",
    "init_train_state",
    "init_variables",
    "jaxpr_flops",
    "load_config",
    "load_run",
    "load_variables",
    "loss_over_segments",
    "make_experiment",
    "make_optimizer",
    "make_parts",
    "make_schedule",
    "make_train_step",
    "matrices",
    "model_loss",
    "model_variables",
    "read_metrics",
    "run_path",
    "segment_keys",
    "sparse_sgd",
    "table_adam",
    "train",
    "training_steps",
    "with_distillation",
    "with_penalty",
]
