"""Write policies of an episodic memory: they decide which rows are stored, and which stored rows they replace.

A policy is a function of the contents of the memory and of the rows that are offered. It assigns each offered row a
slot or none:

    decision = policy(entries, offered, key)

All randomness comes from `key` and a policy has no state, so the same arguments give the same decision. The first
`count` slots are in use. A policy takes free slots in their order before it replaces rows. If it assigns a slot twice,
the later row is written. `memjax.lifelong.episodic_memory` calls policies, on devices and on the host.
"""

from collections.abc import Callable
from typing import Any, Literal, NamedTuple, get_args

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from memjax.typing import Leaf, WeightedSum

Full = Literal["ring", "drop"]
"""Treatment of rows when no slot is free: they replace the row written longest ago ("ring"), or are dropped."""

BLOCK = 8192
"""Number of stored keys that are compared at once."""
DRAWS = 1024
"""Number of different random values that break ties."""


class MemoryEntries(NamedTuple):
    """The contents of a memory in the form that policies read: keys, groups, scores and counters, without the rows.

    Attributes:
      keys: Keys of the rows, `[capacity, key_dim]`. None for a memory without keys.
      groups: Task or class of every row, int32 `[capacity]`. -1 if it is unknown.
      scores: Score that the policy has stored with every row, float32 `[capacity]`.
      count: Number of rows in use, which are the first ones, int32 scalar.
      offered: Number of rows that were offered so far, at most 2^31 - 1, int32 scalar.
      written: Number of rows that were written so far, int32 scalar.
    """

    keys: Leaf
    groups: Leaf
    scores: Leaf
    count: Leaf
    offered: Leaf
    written: Leaf

    @property
    def capacity(self) -> int:
        """Number of slots."""
        return self.groups.shape[0]


class CandidateRows(NamedTuple):
    """Rows that are offered to a memory, in the form that policies read: keys, groups, scores, and whether there is a
    row.

    Attributes:
      keys: Keys of the rows, `[offered, key_dim]`. None for a memory without keys.
      groups: Task or class of every row, int32 `[offered]`. -1 if it is unknown.
      scores: Score that the learner gives every row, such as its uncertainty, float32 `[offered]`.
      present: Whether there is a row, bool `[offered]`. False for padding.
    """

    keys: Leaf
    groups: Leaf
    scores: Leaf
    present: Leaf


class WriteDecision(NamedTuple):
    """The slots that a policy assigns to offered rows, with the scores to store there. A slot as large as the capacity
    means that a row is not written.

    Attributes:
      slots: Slot of every row, int32 `[offered]`. The capacity means that the row is not written.
      scores: Score to store with every row that is written, float32 `[offered]`.
    """

    slots: Leaf
    scores: Leaf


Policy = Callable[[MemoryEntries, CandidateRows, Any], WriteDecision]
"""A function `policy(entries, offered, key)` that returns a `WriteDecision`."""


def write_all_policy(full: Full = "ring") -> Policy:
    """Makes the policy that writes every row. If no slot is free, `full` "ring" replaces the row that was written
    longest ago, and "drop" writes no more.

    Args:
      full: Treatment of rows when no slot is free, "ring" or "drop". After deletions a ring replaces slots in turn,
        whatever the age of their rows.

    Example:
      >>> empty = MemoryEntries(None, jnp.zeros(2, int), jnp.zeros(2), jnp.int32(0), jnp.int32(0), jnp.int32(0))
      >>> rows = CandidateRows(None, jnp.zeros(3, int), jnp.zeros(3), jnp.array([True, False, True]))
      >>> print(write_all_policy()(empty, rows, None).slots)
      [0 2 1]
    """
    return random_policy(1.0, full)


def random_policy(probability: float, full: Full = "ring") -> Policy:
    """Makes the policy that writes each row with a fixed probability, independently of the others. If no slot is free,
    `full` "ring" replaces the row that was written longest ago, and "drop" writes no more.

    Args:
      probability: Probability of writing a row, 0 to 1.
      full: Treatment of rows when no slot is free, "ring" or "drop".
    """
    _check_share("probability", probability)
    check_full(full)

    def decide(entries: MemoryEntries, offered: CandidateRows, key: Any) -> WriteDecision:
        accepted = offered.present
        if probability < 1:
            accepted &= jax.random.uniform(key, accepted.shape) < probability
        return WriteDecision(_append(entries, accepted, full), offered.scores)

    return decide


def reservoir_policy() -> Policy:
    """Makes the reservoir policy: every row offered so far is stored with equal probability (Vitter 1985, algorithm R).

    https://doi.org/10.1145/3147.3165. The i-th row (from 0) takes a free slot. If there is none, it draws a number from
    0 to i and replaces the row of that slot if there is such a slot. Probabilities are equal only in a memory that no
    other policy has written to and from which nothing was deleted.
    """

    def decide(entries: MemoryEntries, offered: CandidateRows, key: Any) -> WriteDecision:
        rank = _rank(offered.present)
        candidates = jax.random.randint(key, rank.shape, 0, entries.offered + rank + 1)
        slots = jnp.where(entries.count + rank < entries.capacity, entries.count + rank, candidates)
        accepted = offered.present & (slots < entries.capacity)
        return WriteDecision(jnp.where(accepted, slots, entries.capacity), offered.scores)

    return decide


def priority_policy() -> Policy:
    """Makes a reservoir policy by priorities: each row draws a random priority from 0 to 1, which is its score, and the
    rows with the highest are stored.

    Every row offered so far is stored with equal probability, as by `reservoir_policy`. The priorities are stored as
    scores. Rows may be offered in batches of any sizes if no other policy writes to the memory.
    """

    def decide(entries: MemoryEntries, offered: CandidateRows, key: Any) -> WriteDecision:
        priorities = jax.random.uniform(key, offered.present.shape)
        return WriteDecision(_keep_highest(entries, priorities, offered.present), priorities)

    return decide


def uncertainty_policy() -> Policy:
    """Makes the policy that stores the rows with the highest scores from the learner, such as 1 - max softmax (Wang et
    al. 2020).

    https://arxiv.org/abs/2010.02500. An offered row replaces only a row with a lower score. A row whose score is NaN is
    not written.
    """
    return lambda entries, offered, key: WriteDecision(
        _keep_highest(entries, offered.scores, offered.present), offered.scores
    )


def forgetting_policy() -> Policy:
    """Makes the policy that stores the rows that were forgotten most often (Toneva et al. 2019).

    https://arxiv.org/abs/1812.05159. In a forgetting event a row is answered correctly and later wrongly, so it must
    have been read twice. Within one pass over the data only replayed rows are. The stored score is the number of
    events plus a random value from 0 to 1 that breaks ties. `add_forgetting_events` adds events to scores, and
    `memjax.lifelong.episodic_memory.set_scores` stores them.
    """

    def decide(entries: MemoryEntries, offered: CandidateRows, key: Any) -> WriteDecision:
        tie_breaks = jax.random.randint(key, offered.present.shape, 0, DRAWS) / DRAWS
        scores = offered.scores + tie_breaks
        return WriteDecision(_keep_highest(entries, scores, offered.present), scores)

    return decide


def add_forgetting_events(scores: Float[Array, " some"], right: Bool[Array, " some"]) -> Float[Array, " some"]:
    """Returns the scores with one forgetting event more for each row that was answered correctly the last time and is
    wrong now. `right` tells whether each row is answered correctly now.

    For the scores of `forgetting_policy`. A score also stores the last answer, in a part too small to change the order
    of rows with different random values.

    Args:
      scores: Stored scores of the rows, up to 4,096 events.
      right: Whether each row is answered correctly now.

    Returns:
      The new scores.

    Example:
      >>> once = add_forgetting_events(jnp.array([0.5, 0.5]), jnp.array([True, False]))
      >>> print(jnp.floor(once), jnp.floor(add_forgetting_events(once, jnp.array([False, False]))))
      [0. 0.] [1. 0.]
    """
    ticks = jnp.round(scores * (2 * DRAWS)).astype(jnp.int32)
    was = ticks % 2
    ticks += jnp.where((was == 1) & ~right, 2 * DRAWS, 0) - was + right
    return ticks.astype(scores.dtype) / (2 * DRAWS)


def balanced_policy(most: int | None = None) -> Policy:
    """Makes the policy that stores equally many rows of each group, at most `most`, a uniform sample of each.

    Scores are random priorities. With G groups each stores `capacity // G` rows, some of them one more. A group that
    was offered fewer rows leaves its slots to the others. The number of groups need not be known: the rows with the
    lowest rank within their group are stored, and later rows can only raise the rank of a row.

    Args:
      most: Largest number of rows of a group. If the memory has room for so many of every group, rows of one group
        never change those that are stored of another. None for no limit.
    """
    if most is not None and most < 1:
        raise ValueError(f"most: given {most}, allowed: 1 or more, or None")

    def decide(entries: MemoryEntries, offered: CandidateRows, key: Any) -> WriteDecision:
        capacity = entries.capacity
        priorities = jax.random.uniform(key, offered.present.shape)
        real = jnp.concatenate([lax.iota(jnp.int32, capacity) < entries.count, offered.present])
        worse = -jnp.concatenate([entries.scores, priorities])
        rank = _rank_within(jnp.concatenate([entries.groups, offered.groups]), worse, real)
        number = lax.iota(jnp.int32, rank.shape[0])
        best = lax.sort((rank, worse, number), num_keys=2)[2][:capacity]
        stored = jnp.zeros(rank.shape, bool).at[best].set(True) & real
        if most is not None:
            stored &= rank < most
        room = min(capacity, priorities.shape[0])
        free = jnp.nonzero(~stored[:capacity], size=room, fill_value=capacity)[0]
        slots = jnp.take(free, _rank(stored[capacity:]), mode="clip")
        return WriteDecision(jnp.where(stored[capacity:], slots, capacity).astype(jnp.int32), priorities)

    return decide


def diversity_policy(
    rate: float, beta: float = 10.0, *, sign: int = 1, relative: bool = False, full: Full = "ring"
) -> Policy:
    """Makes the policy that writes a fraction `rate` of the offered rows, drawn by their distance d to the nearest
    stored key: `log p = sign d^2 / beta + const`. With `relative`, `beta` is a multiple of squared distances between
    stored keys.

    Wang et al. 2020, https://arxiv.org/abs/2010.02500. Their formula has the other sign (-1) than their text, which
    asks for rows unlike those in the memory (1). Their formula also has no normaliser. Here exactly `floor(rate n)` of
    n offered rows are written, whatever the batches. With an empty memory all rows are equally likely. Rows of one
    batch are not compared with each other.

    Args:
      rate: Fraction of the offered rows to write, 0 to 1, with up to six decimals.
      beta: Temperature, in squared units of the keys. A larger value makes the choice more uniform.
      relative: Whether `beta` is multiplied by the median squared distance between the first 256 stored keys, if there
        are at least two.
      sign: 1 to prefer rows unlike the stored ones, -1 to prefer rows like them.
      full: Treatment of rows when no slot is free, "ring" or "drop".
    """
    _check_share("rate", rate)
    check_full(full)
    if sign not in (1, -1):
        raise ValueError(f"sign: given {sign}, allowed: 1 (unlike what is stored) or -1 (like it)")
    if not beta > 0:
        raise ValueError(f"beta: given {beta}, allowed: above 0")

    def decide(entries: MemoryEntries, offered: CandidateRows, key: Any) -> WriteDecision:
        if entries.keys is None or offered.keys is None:
            raise ValueError("policy: diverse compares keys, given a memory without; allowed: key_dim of 1 or more")
        wanted = _num_to_write(rate, entries, offered)
        logits = sign * _scaled_distances(entries, offered, beta, relative, wanted)
        draws = jnp.where(offered.present, logits + jax.random.gumbel(key, logits.shape, logits.dtype), -jnp.inf)
        order = jnp.argsort(draws, descending=True, stable=True)
        chosen = jnp.zeros(draws.shape, bool).at[order].set(lax.iota(jnp.int32, draws.shape[0]) < wanted)
        return WriteDecision(_append(entries, chosen & offered.present, full), offered.scores)

    return decide


def spread_of_odds(
    rate: float, beta: float, *, relative: bool = False
) -> Callable[[MemoryEntries, CandidateRows], WeightedSum]:
    """Makes a metric, a function of memory and offered rows, of how strongly `diversity_policy` with these arguments
    prefers some rows of a batch to others, as a difference of log odds.

    The metric is the difference of the log odds of the rows at the 90th and the 10th percentile of distance. Near 0 the
    policy is uniform in effect. Batches of which no row is written do not count.

    Args:
      rate: Fraction of the offered rows to write. See `diversity_policy`.
      beta: Temperature. See `diversity_policy`.
      relative: Whether `beta` is relative to the distances between stored keys. See `diversity_policy`.
    """

    def spread(entries: MemoryEntries, offered: CandidateRows) -> WeightedSum:
        wanted = _num_to_write(rate, entries, offered)
        logits = jnp.where(offered.present, _scaled_distances(entries, offered, beta, relative, wanted), jnp.nan)
        low, high = jnp.nanpercentile(logits, jnp.array([10.0, 90.0]))
        counts = (wanted > 0) & (entries.count > 0)
        return WeightedSum(jnp.where(counts, high - low, 0), counts.astype(jnp.float32))

    return spread


def _num_to_write(rate: float, entries: MemoryEntries, offered: CandidateRows) -> Int[Array, ""]:
    """Returns the number of rows of a batch to write, so that the fraction of all offered rows is exact."""
    # With less than one row to write in each batch, rounding every batch by itself would never write a row.
    before, after = entries.offered, entries.offered + jnp.sum(offered.present, dtype=jnp.int32)
    return _floor_share(rate, after) - _floor_share(rate, before)


def _scaled_distances(
    entries: MemoryEntries, offered: CandidateRows, beta: float, relative: bool, wanted: Int[Array, ""]
) -> Float[Array, " offered"]:
    """Computes squared distances to the nearest stored key in units of beta. All are 0 if no row is to be written."""

    def distances() -> Array:
        unit = _median_square(entries.keys, entries.count) if relative else 1.0
        return _nearest_squares(entries.keys, entries.count, offered.keys) / (beta * unit)

    return lax.cond(wanted > 0, distances, lambda: jnp.zeros_like(jax.eval_shape(distances)))


def _append(entries: MemoryEntries, accepted: Bool[Array, " offered"], full: Full) -> Int[Array, " offered"]:
    """Assigns accepted rows free slots in their order, then those of a ring, or none."""
    rank, capacity = _rank(accepted), entries.capacity
    behind = (entries.written + rank) % capacity if full == "ring" else capacity
    slots = jnp.where(entries.count + rank < capacity, entries.count + rank, behind)
    return jnp.where(accepted, slots, capacity)


def _keep_highest(
    entries: MemoryEntries, scores: Float[Array, " offered"], present: Bool[Array, " offered"]
) -> Int[Array, " offered"]:
    """Assigns the best offered rows the slots of the worst stored rows, as long as their scores are higher.

    At most as many rows are replaced as are offered, so that no array as large as the memory is sorted.
    """
    room = min(entries.capacity, scores.shape[0])
    used = lax.iota(jnp.int32, entries.capacity) < entries.count
    low, places = lax.top_k(jnp.where(used, -entries.scores, jnp.inf), room)  # free slots first, in their order
    high, order = lax.top_k(jnp.where(present & ~jnp.isnan(scores), scores, -jnp.inf), room)
    slots = jnp.where(high > -low, places, entries.capacity)
    return jnp.full(scores.shape, entries.capacity, jnp.int32).at[order].set(slots)


def _rank_within(
    groups: Int[Array, " rows"], worse: Float[Array, " rows"], real: Bool[Array, " rows"]
) -> Int[Array, " rows"]:
    """Counts for each row the rows of its group that are better. Padding gets a rank behind all rows."""
    number = lax.iota(jnp.int32, groups.shape[0])
    none, groups, _, order = lax.sort((~real, groups, worse, number), num_keys=3)
    begins = jnp.concatenate([jnp.ones(1, bool), (groups[1:] != groups[:-1]) | (none[1:] != none[:-1])])
    rank = number - lax.cummax(jnp.where(begins, number, 0))
    return jnp.zeros_like(rank).at[order].set(jnp.where(none, groups.shape[0], rank))


def _nearest_squares(
    keys: Float[Array, "capacity key_dim"], count: Int[Array, ""], queries: Float[Array, "offered key_dim"]
) -> Float[Array, " offered"]:
    """Computes the squared distance of each query to the nearest of the first `count` keys, or 0 if `count` is 0."""
    dtype = jnp.promote_types(jnp.promote_types(keys.dtype, queries.dtype), jnp.float32)
    centre = jnp.mean(queries, axis=0, dtype=dtype)[None]  # Subtracting the mean saves precision.
    queries = queries.astype(dtype) - centre
    capacity = keys.shape[0]
    block = min(BLOCK, capacity)

    def step(i: Array, best: Array) -> Array:
        first = jnp.minimum(i * block, capacity - block)  # The last block begins early, so keys need no padding.
        part = lax.dynamic_slice_in_dim(keys, first, block).astype(dtype) - centre
        products = jnp.matmul(part, queries.T, precision="highest")  # [block, offered]
        squares = jnp.sum(part**2, axis=1)[:, None] - 2 * products
        used = first + lax.iota(jnp.int32, block) < count
        return jnp.minimum(best, jnp.min(jnp.where(used[:, None], squares, jnp.inf), axis=0))

    best = lax.fori_loop(0, -(-count // block), step, jnp.full(queries.shape[:1], jnp.inf, dtype))
    return jnp.where(count > 0, jnp.maximum(best + jnp.sum(queries**2, axis=1), 0), 0)


def _median_square(keys: Float[Array, "capacity key_dim"], count: Int[Array, ""]) -> Float[Array, ""]:
    """Computes the median squared distance of the first 256 keys. 1 if there are fewer than two, or all are equal."""
    first = min(256, keys.shape[0])
    some = keys[:first].astype(jnp.promote_types(keys.dtype, jnp.float32))
    used = lax.iota(jnp.int32, first) < count
    some -= jnp.sum(jnp.where(used[:, None], some, 0), axis=0, keepdims=True) / jnp.maximum(jnp.sum(used), 1)
    squares = jnp.sum(some**2, axis=1, keepdims=True)
    between = squares + squares.T - 2 * jnp.matmul(some, some.T, precision="highest")
    pairs = used[:, None] & used[None] & ~jnp.eye(first, dtype=bool)
    median = jnp.nanmedian(jnp.where(pairs, jnp.maximum(between, 0), jnp.nan))
    return jnp.where(median > 0, median, 1)  # This is also false for NaN.


def _floor_share(rate: float, number: Leaf) -> Leaf:
    """Computes `floor(rate * number)` exactly, in steps that fit into 32 bits."""
    millionths = round(rate * 1_000_000)
    high, low = number // 1_000_000, number % 1_000_000
    tens, ones = low // 1000, low % 1000
    return high * millionths + (tens * millionths + ones * millionths // 1000) // 1000


def _rank(chosen: Bool[Array, " offered"]) -> Int[Array, " offered"]:
    """Counts for each row the chosen rows before it."""
    return jnp.cumsum(chosen, dtype=jnp.int32) - chosen


def _check_share(name: str, value: float) -> None:
    """Checks that a value is from 0 to 1."""
    if not 0 <= value <= 1:
        raise ValueError(f"{name}: given {value}, allowed: 0 to 1")


def check_full(full: str) -> None:
    """Raises ValueError if `full` is not "ring" or "drop", the treatments of rows when no slot is free."""
    if full not in get_args(Full):
        raise ValueError(f"full: given {full!r}, allowed: {', '.join(get_args(Full))}")
