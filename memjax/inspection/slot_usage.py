"""How much of a value table is in use: counters of its slots, what they say, and where they are kept.

Of a table with the slots i = 1..R, counted over tokens: how often a slot was chosen (u_i), how much weight it had
(z_i), and how often it had the largest weight of its token (t_i). Lample et al. 2019 report the share of slots with
u_i > 0 and the divergence of z from the uniform distribution, Kim & Jung 2020 the share of slots with t_i > 0.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np

from memjax.memory.contract import Absent
from memjax.training.slot_counters import COUNTERS
from memjax.training.tables import layer_prefixes

__all__ = ["SlotCounts", "class_divergence", "class_overlap", "last_used", "measure_usage", "staleness"]


@dataclasses.dataclass
class SlotCounts:
    """Exact counts of one table on the host, 64 bits each.

    Attributes:
      lookups: int64 `[slots]`, tokens and heads that chose the slot (u).
      top: int64 `[slots]`, tokens of whose weights the slot had the largest (t); the heads of a token that chose the
        same slot count together.
      weights: float64 `[slots]`, sum of its weights (z).

    Example:
      >>> counts = SlotCounts.zeros(4)
      >>> counts.add(np.array([[0, 1], [0, 3]]), np.array([[0.75, 0.25], [1.0, 0.0]]))
      >>> counts.usage, counts.top_usage
      (0.75, 0.25)
    """

    lookups: np.ndarray
    top: np.ndarray
    weights: np.ndarray

    @classmethod
    def zeros(cls, slots: int) -> SlotCounts:
        """Nothing counted yet."""
        return cls(np.zeros(slots, np.int64), np.zeros(slots, np.int64), np.zeros(slots))

    def add(self, ids: np.ndarray, weights: np.ndarray) -> None:
        """Counts the lookups of some tokens.

        Args:
          ids: `[..., lookups]`, of each token; slots beyond the table stand for padding.
          weights: `[..., lookups]`.
        """
        slots = len(self.lookups)
        ids, weights = ids.reshape(-1, ids.shape[-1]), weights.reshape(-1, ids.shape[-1])
        real = ids[:, 0] < slots
        ids, weights = ids[real], weights[real].astype(np.float64)
        self.lookups += np.bincount(ids.ravel(), minlength=slots)
        self.weights += np.bincount(ids.ravel(), weights.ravel(), minlength=slots)
        self.top += np.bincount(_top(ids, weights), minlength=slots)

    def plus(self, other: SlotCounts) -> SlotCounts:
        """The counts of both together."""
        return SlotCounts(*(getattr(self, name) + getattr(other, name) for name in COUNTERS))

    @property
    def usage(self) -> float:
        """Share of the slots that were chosen at all; chosen, not of a weight above 0, which may underflow."""
        return float(np.mean(self.lookups > 0))

    @property
    def top_usage(self) -> float:
        """Share of the slots that had the largest weight of some token."""
        return float(np.mean(self.top > 0))

    @property
    def count_divergence(self) -> float:
        """Nats by which the choices diverge from the uniform distribution, `log R + sum p log p` with p = u / sum u."""
        return divergence_from_uniform(self.lookups)

    @property
    def weight_divergence(self) -> float:
        """The same of the weights."""
        return divergence_from_uniform(self.weights)

    def as_dict(self) -> dict[str, float]:
        """The four numbers."""
        names = ("usage", "top_usage", "count_divergence", "weight_divergence")
        return {name: getattr(self, name) for name in names}


def divergence_from_uniform(counts: np.ndarray) -> float:
    """KL(counts || uniform) in nats; 0 for no counts at all.

    Example:
      >>> divergence_from_uniform(np.ones(8)), bool(divergence_from_uniform(np.eye(8)[2]) == np.log(8))
      (0.0, True)
    """
    total = counts.sum(dtype=np.float64)
    if not total:
        return 0.0
    shares = counts[counts > 0] / total
    return max(float(math.log(len(counts)) + np.sum(shares * np.log(shares))), 0.0)


def class_divergence(first: np.ndarray, second: np.ndarray) -> float:
    """KL(first || second) in nats of what two classes of tokens chose, 1 added to every count.

    Args:
      first: counts of the slots.
      second: the same of the other class.

    Example:
      >>> one, other = np.array([3, 0]), np.array([0, 3])
      >>> class_divergence(one, one), round(class_divergence(one, other), 4)
      (0.0, 0.8318)
    """
    p, q = ((counts + 1.0) / (counts.sum(dtype=np.float64) + len(counts)) for counts in (first, second))
    return float(np.sum(p * np.log(p / q)))


def class_overlap(first: np.ndarray, second: np.ndarray) -> float:
    """Intersection over union of what two classes chose, `sum min / sum max` of their counts; 1 for no counts at all.

    Example:
      >>> class_overlap(np.array([2, 1, 0]), np.array([1, 1, 2]))
      0.4
    """
    union = np.maximum(first, second).sum(dtype=np.float64)
    return float(np.minimum(first, second).sum(dtype=np.float64) / union) if union else 1.0


def staleness(tops: Sequence[np.ndarray]) -> np.ndarray:
    """How many slots had the largest weight of a token last at each of several checkpoints.

    Args:
      tops: `SlotCounts.top` of the same data at each checkpoint, oldest first.

    Returns:
      int64 `[1 + checkpoints]`: slots that never had, then those of each checkpoint.

    Example:
      >>> staleness([np.array([1, 2, 0]), np.array([0, 3, 0])]).tolist()
      [1, 1, 1]
    """
    used = np.stack([np.asarray(top) > 0 for top in tops])
    last = len(tops) - np.argmax(used[::-1], axis=0)
    return np.bincount(np.where(used.any(axis=0), last, 0), minlength=len(tops) + 1)


def last_used(measured: Mapping[int, Mapping[str, Mapping[str, SlotCounts]]]) -> dict[str, dict[str, int]]:
    """At which of several checkpoints the slots of every table were last in use (`staleness`).

    Args:
      measured: step -> `measure_usage` of the same data, oldest first.

    Returns:
      Table -> 'never' and the steps at which it had as many slots as at the newest -> slots.
    """
    *_, newest = measured.values()
    found = {}
    for table, groups in newest.items():
        tops = {step: counts[table][""].top for step, counts in measured.items() if table in counts}
        # A table grows into other slots.
        tops = {step: top for step, top in tops.items() if len(top) == len(groups[""].top)}
        slots = staleness(list(tops.values())).tolist()
        found[table] = dict(zip(["never", *map(str, tops)], slots, strict=True))
    return found


def _top(ids: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """As `top_slots`, some tokens at a time."""
    tops = []
    for start in range(0, len(ids), 512):
        some, heavy = ids[start : start + 512], weights[start : start + 512]
        merged = np.where(some[:, :, None] == some[:, None, :], heavy[:, None, :], 0).sum(axis=-1)
        tops.append(np.take_along_axis(some, merged.argmax(axis=-1)[:, None], axis=-1)[:, 0])
    return np.concatenate(tops) if tops else np.zeros(0, np.int64)


def measure_usage(
    experiment: Any, variables: Mapping[str, Any], evaluation: Any = None
) -> dict[str, dict[str, SlotCounts]]:
    """Counts of every table over the tokens of a split: those whose targets are scored, and all of a text encoder's.

    Args:
      experiment: a `memjax.training.experiment.Experiment`.
      variables: of its model.
      evaluation: which split, and how it is read; None = as the configuration says.

    Returns:
      Table (`layer_03/values`) -> counts, under '' of all tokens, under `name` of those whose target is in a subset (of
      texts of a class: `class_<number>`), and under `not name` of the others.

    Raises:
      Absent: a model without tables.
    """
    leaves = jax.tree_util.tree_flatten_with_path(variables.get("tables", {}))[0]
    slots: dict[str, int] = {}
    for keys, table in leaves:
        path = tuple(str(key.key) for key in keys)
        slots |= {f"{prefix}{path[-1]}": table.shape[-2] for prefix in layer_prefixes(path, table)}
    if not slots:
        raise Absent("usage: the model has no value tables, allowed: one with model.feed_forward ProductKey")
    evaluation = evaluation or experiment.config.evaluation
    task = experiment.task
    choose = task.token_subsets(experiment.documents(evaluation.split), evaluation)
    groups = ["", *(label for name in choose for label in (name, f"not {name}"))]
    counts = {table: {group: SlotCounts.zeros(number) for group in groups} for table, number in slots.items()}

    def observe(batch: Any, scored: Any) -> None:
        inside = {"": task.counted(batch)}
        for name, subset in choose.items():
            chosen = subset(batch).astype(bool)
            inside |= {name: inside[""] & chosen, f"not {name}": inside[""] & ~chosen}
        for table in slots:
            ids, weights = (scored.features[f"{table}/{what}"] for what in ("ids", "weights"))
            for group, where in inside.items():
                counts[table][group].add(ids[where], weights[where])

    names = [f"{table}/{what}" for table in slots for what in ("ids", "weights")]
    experiment.evaluator(evaluation, features=names)(variables, observe=observe)
    return counts


def describe_counts(counts: Mapping[str, Mapping[str, SlotCounts]]) -> dict[str, Any]:
    """`measure_usage` as JSON values: of every table its numbers, and of every subset how it differs from the rest."""
    found: dict[str, Any] = {}
    for table, groups in counts.items():
        whole = {"slots": len(groups[""].lookups), "lookups": int(groups[""].lookups.sum()), **groups[""].as_dict()}
        subsets = {}
        for name in groups:
            if name and f"not {name}" in groups:
                own, rest = groups[name], groups[f"not {name}"]
                subsets[name] = own.as_dict()
                if own.lookups.any() and rest.lookups.any():  # of no tokens there is nothing to compare
                    subsets[name] |= {
                        "divergence_from_rest": class_divergence(own.lookups, rest.lookups),
                        "overlap_with_rest": class_overlap(own.lookups, rest.lookups),
                    }
        found[table] = {**whole, **({"subsets": subsets} if subsets else {})}
    return found
