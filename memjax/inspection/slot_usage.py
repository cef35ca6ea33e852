"""Measures how many slots of a value table are in use, and how evenly, with exact counters of every slot.

For each slot i = 1..R of a table three numbers are counted over tokens: how often the slot was chosen (u_i), the sum of
its weights (z_i), and how often it had the largest weight of a token (t_i). Lample et al. 2019 report the share of
slots with u_i > 0 and the divergence of z from the uniform distribution, Kim & Jung 2020 the share with t_i > 0.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np

from memjax.memory.interface import NotProvided
from memjax.training.slot_counters import COUNTERS
from memjax.training.tables import layer_prefixes

__all__ = ["SlotCounts", "class_divergence", "class_overlap", "last_used", "measure_usage", "staleness"]

NO_TABLES = "usage: the model has no value tables, allowed: one with model.feed_forward ProductKey"
"""Line about a run without value tables"""


@dataclasses.dataclass
class SlotCounts:
    """Exact counts of the use of each slot of one value table, in 64 bits on the host: how often it was chosen, how
    often with the largest weight of a token, and the sum of its weights.

    Attributes:
      lookups: Number of times that a head of a token chose the slot (u), int64 `[slots]`.
      top: Number of tokens for which the slot had the largest weight (t), int64 `[slots]`. The weights of a token's
        heads that chose the same slot are added first.
      weights: Sum of the slot's weights (z), float64 `[slots]`.

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
        """Makes counts of zero for a table with `slots` slots.

        Args:
          slots: Number of slots of the table.
        """
        return cls(np.zeros(slots, np.int64), np.zeros(slots, np.int64), np.zeros(slots))

    def add(self, ids: np.ndarray, weights: np.ndarray) -> None:
        """Adds the lookups of some tokens to these counts, in place: the `ids` of the slots that each token chose and
        their `weights`.

        Args:
          ids: Slots that each token chose, `[..., lookups]`. Ids beyond the table mark padding.
          weights: Weights of the chosen slots, `[..., lookups]`.
        """
        slots = len(self.lookups)
        ids, weights = ids.reshape(-1, ids.shape[-1]), weights.reshape(-1, ids.shape[-1])
        real = ids[:, 0] < slots
        ids, weights = ids[real], weights[real].astype(np.float64)
        self.lookups += np.bincount(ids.ravel(), minlength=slots)
        self.weights += np.bincount(ids.ravel(), weights.ravel(), minlength=slots)
        self.top += np.bincount(_find_top_slots(ids, weights), minlength=slots)

    def plus(self, other: SlotCounts) -> SlotCounts:
        """Returns new counts, the sum of these and of other counts of the same table."""
        return SlotCounts(*(getattr(self, name) + getattr(other, name) for name in COUNTERS))

    @property
    def usage(self) -> float:
        """Share of the slots that were chosen at least once."""
        # Not the share of slots with a weight above 0: weights may underflow.
        return float(np.mean(self.lookups > 0))

    @property
    def top_usage(self) -> float:
        """Share of the slots that had the largest weight of some token."""
        return float(np.mean(self.top > 0))

    @property
    def count_divergence(self) -> float:
        """Divergence from the uniform distribution of how often each of the R slots was chosen, in nats:
        `log R + sum p log p` with p = u / sum u.
        """
        return divergence_from_uniform(self.lookups)

    @property
    def weight_divergence(self) -> float:
        """Divergence from the uniform distribution of the sums of weights of the R slots, in nats:
        `log R + sum p log p` with p = z / sum z.
        """
        return divergence_from_uniform(self.weights)

    def as_dict(self) -> dict[str, float]:
        """Returns `usage`, `top_usage`, `count_divergence` and `weight_divergence` by name."""
        names = ("usage", "top_usage", "count_divergence", "weight_divergence")
        return {name: getattr(self, name) for name in names}


def divergence_from_uniform(counts: np.ndarray) -> float:
    """Computes the divergence KL(p || uniform) in nats, where p are the counts, or sums of weights, of the slots
    divided by their sum. It is 0 if all counts are 0.

    Args:
      counts: Counts or sums of weights of the slots, `[slots]`.

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
    """Computes KL(first || second) in nats between the slots that two classes of tokens chose. Both arguments say how
    often a class chose each slot, `[slots]`. One is added to every count, so that the divergence is finite.

    Args:
      first: Number of times that the first class chose each slot, `[slots]`.
      second: Number of times that the second class chose each slot, `[slots]`.

    Example:
      >>> first, second = np.array([3, 0]), np.array([0, 3])
      >>> class_divergence(first, first), round(class_divergence(first, second), 4)
      (0.0, 0.8318)
    """
    p, q = ((counts + 1.0) / (counts.sum(dtype=np.float64) + len(counts)) for counts in (first, second))
    return float(np.sum(p * np.log(p / q)))


def class_overlap(first: np.ndarray, second: np.ndarray) -> float:
    """Computes how much the slots that two classes of tokens chose overlap, from 0 to 1:
    `sum min(first, second) / sum max(first, second)` of the numbers of times that each class chose each slot.

    Args:
      first: Number of times that the first class chose each slot, `[slots]`.
      second: Number of times that the second class chose each slot, `[slots]`.

    Returns:
      `sum min(first, second) / sum max(first, second)`. 1 if all counts are 0.

    Example:
      >>> class_overlap(np.array([2, 1, 0]), np.array([1, 1, 2]))
      0.4
    """
    union = np.maximum(first, second).sum(dtype=np.float64)
    return float(np.minimum(first, second).sum(dtype=np.float64) / union) if union else 1.0


def staleness(tops: Sequence[np.ndarray]) -> np.ndarray:
    """Counts the slots by the last checkpoint at which they had the largest weight of some token, from `SlotCounts.top`
    at each checkpoint (`tops`), oldest first. Returns int `[1 + checkpoints]`, unused slots first.

    Args:
      tops: `SlotCounts.top` of the same data at each checkpoint, oldest first.

    Returns:
      int64 `[1 + checkpoints]`: the number of slots that were never in use, then the number of slots whose last use was
      at each checkpoint.

    Example:
      >>> staleness([np.array([1, 2, 0]), np.array([0, 3, 0])]).tolist()
      [1, 1, 1]
    """
    used = np.stack([np.asarray(top) > 0 for top in tops])
    last = len(tops) - np.argmax(used[::-1], axis=0)
    return np.bincount(np.where(used.any(axis=0), last, 0), minlength=len(tops) + 1)


def last_used(measured: Mapping[int, Mapping[str, Mapping[str, SlotCounts]]]) -> dict[str, dict[str, int]]:
    """Counts the slots of every table by the checkpoint at which they were last in use (`staleness`), from results of
    `measure_usage` by step. Returns for each table the number of slots by 'never' or step.

    Checkpoints at which a table was smaller than at the newest one are left out.

    Args:
      measured: Step of a checkpoint -> result of `measure_usage` on the same data, oldest first.

    Returns:
      For each table a mapping from 'never', and from the step of each checkpoint as text, to a number of slots.
    """
    *_, newest = measured.values()
    slots_by_table = {}
    for table, groups in newest.items():
        tops = {step: counts[table][""].top for step, counts in measured.items() if table in counts}
        # Growth gives a table other slots.
        tops = {step: top for step, top in tops.items() if len(top) == len(groups[""].top)}
        slots = staleness(list(tops.values())).tolist()
        slots_by_table[table] = dict(zip(["never", *map(str, tops)], slots, strict=True))
    return slots_by_table


def _find_top_slots(ids: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Finds the slot with the largest weight of each token. See `top_slots`. Works on 512 tokens at a time."""
    tops = []
    for start in range(0, len(ids), 512):
        some, heavy = ids[start : start + 512], weights[start : start + 512]
        merged = np.where(some[:, :, None] == some[:, None, :], heavy[:, None, :], 0).sum(axis=-1)
        tops.append(np.take_along_axis(some, merged.argmax(axis=-1)[:, None], axis=-1)[:, 0])
    return np.concatenate(tops) if tops else np.zeros(0, np.int64)


def measure_usage(
    experiment: Any, variables: Mapping[str, Any], evaluation: Any = None
) -> dict[str, dict[str, SlotCounts]]:
    """Counts the use of every value table over a split: of tokens with scored targets, or of all tokens of a text
    encoder. Returns `SlotCounts` by table, then by group of tokens, '' for all of them.

    Args:
      experiment: Experiment of the model (`memjax.training.experiment.Experiment`).
      variables: Variables of the model.
      evaluation: Settings that choose the split and how it is read. None for those of the configuration.

    Returns:
      For each table, such as `layer_03/values`, the counts of groups of tokens: '' for all tokens, `name` for tokens
      whose target is in a subset (`class_<number>` for texts of a class), and `not name` for all others.

    Raises:
      NotProvided: The model has no value tables.
    """
    leaves = jax.tree_util.tree_flatten_with_path(variables.get("tables", {}))[0]
    slots: dict[str, int] = {}
    for keys, table in leaves:
        path = tuple(str(key.key) for key in keys)
        slots |= {f"{prefix}{path[-1]}": table.shape[-2] for prefix in layer_prefixes(path, table)}
    if not slots:
        raise NotProvided(NO_TABLES)
    evaluation = evaluation or experiment.config.evaluation
    task = experiment.task
    choose = task.token_subsets(experiment.documents(evaluation.split), evaluation)
    groups = ["", *(label for name in choose for label in (name, f"not {name}"))]
    counts = {table: {group: SlotCounts.zeros(number) for group in groups} for table, number in slots.items()}

    def observe(batch: Any, scored: Any) -> None:
        inside = {"": task.counted_tokens(batch)}
        for name, subset in choose.items():
            chosen = subset(batch).astype(bool)
            inside |= {name: inside[""] & chosen, f"not {name}": inside[""] & ~chosen}
        for table in slots:
            ids, weights = (scored.features[f"{table}/{what}"] for what in ("ids", "weights"))
            for group, where in inside.items():
                counts[table][group].add(ids[where], weights[where])

    names = [f"{table}/{what}" for table in slots for what in ("ids", "weights")]
    experiment.evaluator(evaluation, feature_names=names)(variables, observe=observe)
    return counts


def describe_counts(counts: Mapping[str, Mapping[str, SlotCounts]]) -> dict[str, Any]:
    """Converts the result of `measure_usage` to JSON values by table: sizes, shares and divergences, and for each
    subset of tokens how its slots differ from those of all other tokens.

    Args:
      counts: Result of `measure_usage`.

    Returns:
      For each table its sizes, shares and divergences, and under `subsets` the numbers of each subset of tokens.
    """
    described: dict[str, Any] = {}
    for table, groups in counts.items():
        whole = {"slots": len(groups[""].lookups), "lookups": int(groups[""].lookups.sum()), **groups[""].as_dict()}
        subsets = {}
        for name in groups:
            if name and f"not {name}" in groups:
                subset, rest = groups[name], groups[f"not {name}"]
                subsets[name] = subset.as_dict()
                if subset.lookups.any() and rest.lookups.any():  # both groups need tokens to be compared
                    subsets[name] |= {
                        "divergence_from_rest": class_divergence(subset.lookups, rest.lookups),
                        "overlap_with_rest": class_overlap(subset.lookups, rest.lookups),
                    }
        described[table] = {**whole, **({"subsets": subsets} if subsets else {})}
    return described
