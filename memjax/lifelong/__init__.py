"""Lifelong learning: tasks that are learned one after the other, and methods against forgetting.

A method makes a `Learner`, and hooks that run before and after every task. `train` trains any configuration. Names are
loaded when they are first used, so that the mathematics (`memjax.lifelong.projection`, `penalties`, `policies`,
`kmeans`, `adaptation`, `metrics`) can be used in another training loop without the dependencies of this one.
"""

import importlib
from typing import Any

from memjax.settings.compatibility import renamed_names

ROOMS = {
    "adaptation": ("PRESETS", "adapt", "adapted_outputs", "neighbor_weights"),
    "components": ("Component", "ReplayOptions"),
    "composition": ("chain_components",),
    "episodic_memory": ("EpisodicMemoryState", "init_memory", "nearest", "sample", "write"),
    "factory": ("make_learner_and_stages", "load_run", "train"),
    "memory_backends": ("MemoryOptions", "WriteRule"),
    "method_interface": ("Method", "Scope", "TaskInfo", "task_stages", "make_method"),
    "metrics": ("average", "forgetting", "summary"),
    "orders": ("LONG_ORDERS", "MBPA_ORDERS"),
    "penalties": ("ImportanceState", "consolidate", "fisher", "init_consolidated", "quadratic_penalty", "sensitivity"),
    "projection": ("agem", "gem", "project_average", "solve_gem"),
    "update_streams": ("JoinedExamples", "ReplaySchedule", "StreamPlan", "task_free_order"),
}
"""Names that are available in this package, by the file that defines them."""
_FILES = {name: file for file, names in ROOMS.items() for name in names}
__all__ = sorted(_FILES)  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    if name not in _FILES:
        return renamed_names(__name__)(name)
    return getattr(importlib.import_module(f"{__name__}.{_FILES[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
