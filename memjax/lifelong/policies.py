"""Who enters an episodic memory and whose place it takes: write policies as functions of arrays.

A policy sees what the memory holds and the rows that are offered, and gives each of those a slot, or none:

    decision = policy(entries, offered, key)

It draws from `key` alone and keeps nothing, so the same arguments give the same decision. The rows in use are the first
`count`; a policy takes free slots in their order, before it replaces anything. Where it gives a slot twice, the later
row stays. `memjax.lifelong.memory` calls it, on devices and on the host.
"""

from collections.abc import Callable
from typing import Any, Literal, NamedTuple, get_args

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from memjax.typing import Leaf, Sum

__all__ = [
    "WriteDecision",
    "MemoryEntries",
    "Full",
    "CandidateRows",
    "Policy",
    "balanced_policy",
    "diversity_policy",
    "forgetting_policy",
    "priority_policy",
    "random_policy",
    "reservoir_policy",
    "add_forgetting_events",
    "spread_of_odds",
    "uncertainty_policy",
    "write_all_policy",
]

Full = Literal["ring", "drop"]
"""What happens to an accepted row where no slot is free: it replaces the one written longest ago, or is dropped."""

BLOCK = 8192
"""stored keys that are compared at once"""
DRAWS = 1024
"""different draws among equals"""


class MemoryEntries(NamedTuple):
    """What a memory holds.

    Attributes:
      keys: `[capacity, key_dim]`, or None where rows have no keys.
      groups: int32 `[capacity]`, the task or class of a row; -1 = not known.
      scores: float32 `[capacity]`, what a policy has kept of a row.
      count: int32 scalar, rows in use: the first ones.
      offered: int32 scalar, rows that have been offered so far, at most 2^31 - 1.
      written: int32 scalar, rows that have been given a slot so far.
    """

    keys: Leaf
    groups: Leaf
    scores: Leaf
    count: Leaf
    offered: Leaf
    written: Leaf

    @property
    def capacity(self) -> int:
        """Slots."""
        return self.groups.shape[0]


class CandidateRows(NamedTuple):
    """Rows that are offered, in their order.

    Attributes:
      keys: `[offered, key_dim]`, or None.
      groups: int32 `[offered]`.
      scores: float32 `[offered]`, what the learner says of a row: its uncertainty, its forgetting events.
      present: bool `[offered]`, False = padding, which is no row at all.
    """

    keys: Leaf
    groups: Leaf
    scores: Leaf
    present: Leaf


class WriteDecision(NamedTuple):
    """Where rows go.

    Attributes:
      slots: int32 `[offered]`, below the capacity; the capacity = not written.
      scores: float32 `[offered]`, kept of the row if it is written.
    """

    slots: Leaf
    scores: Leaf


Policy = Callable[[MemoryEntries, CandidateRows, Any], WriteDecision]
"""`policy(entries, offered, key)`"""


def write_all_policy(full: Full = "ring") -> Policy:
    """Every row is written.

    Args:
      full: what happens without a free slot; after deletions a ring replaces its slots in turn, whatever their age.

    Example:
      >>> empty = Entries(None, jnp.zeros(2, int), jnp.zeros(2), jnp.int32(0), jnp.int32(0), jnp.int32(0))
      >>> rows = Offered(None, jnp.zeros(3, int), jnp.zeros(3), jnp.array([True, False, True]))
      >>> print(write_all()(empty, rows, None).slots)
      [0 2 1]
    """
    return random_policy(1.0, full)


def random_policy(probability: float, full: Full = "ring") -> Policy:
    """Each row is written with the same probability, independently of the others.

    Args:
      probability: 0 to 1.
      full: as for `write_all`.
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
    """Every row offered so far is in the memory with the same probability (Vitter 1985, algorithm R).

    https://doi.org/10.1145/3147.3165. The i-th row (from 0) finds a free slot, or draws a place from 0 to i and
    replaces what is there if the place is a slot. The law holds for a memory that no other policy has written to and
    from which nothing was deleted.
    """

    def decide(entries: MemoryEntries, offered: CandidateRows, key: Any) -> WriteDecision:
        rank = _rank(offered.present)
        drawn = jax.random.randint(key, rank.shape, 0, entries.offered + rank + 1)
        slots = jnp.where(entries.count + rank < entries.capacity, entries.count + rank, drawn)
        kept = offered.present & (slots < entries.capacity)
        return WriteDecision(jnp.where(kept, slots, entries.capacity), offered.scores)

    return decide


def priority_policy() -> Policy:
    """A reservoir by priorities: each row draws one from 0 to 1, and the highest stay; they are the scores.

    The law is that of `reservoir_policy`. A memory that was written to by priorities alone may be offered rows in
    parts of any size.
    """

    def decide(entries: MemoryEntries, offered: CandidateRows, key: Any) -> WriteDecision:
        drawn = jax.random.uniform(key, offered.present.shape)
        return WriteDecision(_keep_highest(entries, drawn, offered.present), drawn)

    return decide


def uncertainty_policy() -> Policy:
    """The rows with the highest scores stay, for example 1 - max softmax (Wang et al. 2020).

    https://arxiv.org/abs/2010.02500. A row that is offered replaces only one with a lower score, and none where its
    own is no number.
    """
    return lambda entries, offered, key: WriteDecision(
        _keep_highest(entries, offered.scores, offered.present), offered.scores
    )


def forgetting_policy() -> Policy:
    """The rows that were forgotten most often stay (Toneva et al. 2019), https://arxiv.org/abs/1812.05159.

    A forgetting event is a row that was answered rightly and then wrongly, so a row must have been seen twice: within
    one pass only replayed rows have any. The score that is kept is the number of events plus a draw from 0 to 1, so
    that chance decides among equals; `seen_again` adds events, `memjax.lifelong.memory.set_scores` keeps them.
    """

    def decide(entries: MemoryEntries, offered: CandidateRows, key: Any) -> WriteDecision:
        drawn = jax.random.randint(key, offered.present.shape, 0, DRAWS) / DRAWS
        scores = offered.scores + drawn
        return WriteDecision(_keep_highest(entries, scores, offered.present), scores)

    return decide


def add_forgetting_events(scores: Float[Array, " some"], right: Bool[Array, " some"]) -> Float[Array, " some"]:
    """Updates the scores of `forgetting_policy` after stored rows were answered again, adding forgetting events.

    How a row was answered last stands behind the draw in its score, where it decides between equal draws alone.

    Args:
      scores: kept of the rows, up to 4,096 events.
      right: whether each is answered rightly now.

    Example:
      >>> once = seen_again(jnp.array([0.5, 0.5]), jnp.array([True, False]))
      >>> print(jnp.floor(once), jnp.floor(seen_again(once, jnp.array([False, False]))))
      [0. 0.] [1. 0.]
    """
    ticks = jnp.round(scores * (2 * DRAWS)).astype(jnp.int32)
    was = ticks % 2
    ticks += jnp.where((was == 1) & ~right, 2 * DRAWS, 0) - was + right
    return ticks.astype(scores.dtype) / (2 * DRAWS)


def balanced_policy() -> Policy:
    """As many rows of each group as of any other, and of each a uniform sample (the scores are priorities).

    With G groups each keeps `capacity // G` rows, some of them one more; a group that has not been offered as many
    leaves its places to the others. How many groups there are need not be known: of all rows offered so far those stay
    whose rank within their group is lowest, which no later row can change for the better.
    """

    def decide(entries: MemoryEntries, offered: CandidateRows, key: Any) -> WriteDecision:
        capacity = entries.capacity
        drawn = jax.random.uniform(key, offered.present.shape)
        real = jnp.concatenate([lax.iota(jnp.int32, capacity) < entries.count, offered.present])
        worse = -jnp.concatenate([entries.scores, drawn])
        rank = _rank_within(jnp.concatenate([entries.groups, offered.groups]), worse, real)
        number = lax.iota(jnp.int32, rank.shape[0])
        best = lax.sort((rank, worse, number), num_keys=2)[2][:capacity]
        kept = jnp.zeros(rank.shape, bool).at[best].set(True) & real
        room = min(capacity, drawn.shape[0])
        free = jnp.nonzero(~kept[:capacity], size=room, fill_value=capacity)[0]
        slots = jnp.take(free, _rank(kept[capacity:]), mode="clip")
        return WriteDecision(jnp.where(kept[capacity:], slots, capacity).astype(jnp.int32), drawn)

    return decide


def diversity_policy(
    rate: float, beta: float = 10.0, *, sign: int = 1, relative: bool = False, full: Full = "ring"
) -> Policy:
    """A share of each batch, drawn by the distance to the nearest stored key: `log p = sign d^2 / beta + const`.

    Wang et al. 2020, https://arxiv.org/abs/2010.02500. Their formula has the other sign (-1) than their text, which
    wants rows unlike those in the memory (1); and it has no normaliser: here n rows that were offered have written
    `floor(rate n)`, whatever the batches. To an empty memory all rows are equally far. Rows of one batch are not
    compared with each other.

    Args:
      rate: 0 to 1, rows written of those offered; up to six decimals.
      beta: the larger, the nearer to uniform, in squared units of the keys, or of their median distance.
      relative: `beta` is times the median squared distance between the first 256 stored keys, where there are two.
      sign: 1 = rows unlike the stored ones, -1 = rows like them.
      full: as for `write_all`.
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
        wanted = _wanted(rate, entries, offered)
        logits = sign * _compared(entries, offered, beta, relative, wanted)
        drawn = jnp.where(offered.present, logits + jax.random.gumbel(key, logits.shape, logits.dtype), -jnp.inf)
        order = jnp.argsort(drawn, descending=True, stable=True)
        chosen = jnp.zeros(drawn.shape, bool).at[order].set(lax.iota(jnp.int32, drawn.shape[0]) < wanted)
        return WriteDecision(_append(entries, chosen & offered.present, full), offered.scores)

    return decide


def spread_of_odds(
    rate: float, beta: float, *, relative: bool = False
) -> Callable[[MemoryEntries, CandidateRows], Sum]:
    """Measures how strongly `diversity_policy` prefers distant rows: log odds of the 90th over the 10th percentile.

    Near 0 the choice is uniform, whatever the rule says. Of batches of which none is written, nothing.

    Args:
      rate: as for `diversity_policy`.
      beta: likewise.
      relative: likewise.
    """

    def spread(entries: MemoryEntries, offered: CandidateRows) -> Sum:
        wanted = _wanted(rate, entries, offered)
        logits = jnp.where(offered.present, _compared(entries, offered, beta, relative, wanted), jnp.nan)
        low, high = jnp.nanpercentile(logits, jnp.array([10.0, 90.0]))
        counts = (wanted > 0) & (entries.count > 0)
        return Sum(jnp.where(counts, high - low, 0), counts.astype(jnp.float32))

    return spread


def _wanted(rate: float, entries: MemoryEntries, offered: CandidateRows) -> Int[Array, ""]:
    """Rows of those offered that are written, of all that were offered so far an exact share."""
    # Below one row a batch, rounding by itself would write nothing, ever.
    before, after = entries.offered, entries.offered + jnp.sum(offered.present, dtype=jnp.int32)
    return _floor_share(rate, after) - _floor_share(rate, before)


def _compared(
    entries: MemoryEntries, offered: CandidateRows, beta: float, relative: bool, wanted: Int[Array, ""]
) -> Float[Array, " offered"]:
    """Squared distances to the nearest stored key in units of beta; 0 where none is wanted, and none compared."""

    def compared() -> Array:
        unit = _median_square(entries.keys, entries.count) if relative else 1.0
        return _nearest_squares(entries.keys, entries.count, offered.keys) / (beta * unit)

    return lax.cond(wanted > 0, compared, lambda: jnp.zeros_like(jax.eval_shape(compared)))


def _append(entries: MemoryEntries, accepted: Bool[Array, " offered"], full: Full) -> Int[Array, " offered"]:
    """Free slots in their order, then those of a ring, or none."""
    rank, capacity = _rank(accepted), entries.capacity
    behind = (entries.written + rank) % capacity if full == "ring" else capacity
    slots = jnp.where(entries.count + rank < capacity, entries.count + rank, behind)
    return jnp.where(accepted, slots, capacity)


def _keep_highest(
    entries: MemoryEntries, scores: Float[Array, " offered"], present: Bool[Array, " offered"]
) -> Int[Array, " offered"]:
    """The best of the offered rows take the places of the worst stored ones, as long as they are better.

    No more rows can be replaced than are offered, so that nothing as large as the memory is sorted.
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
    """How many rows of its group are better than each; behind all others what is no row."""
    number = lax.iota(jnp.int32, groups.shape[0])
    none, groups, _, order = lax.sort((~real, groups, worse, number), num_keys=3)
    begins = jnp.concatenate([jnp.ones(1, bool), (groups[1:] != groups[:-1]) | (none[1:] != none[:-1])])
    rank = number - lax.cummax(jnp.where(begins, number, 0))
    return jnp.zeros_like(rank).at[order].set(jnp.where(none, groups.shape[0], rank))


def _nearest_squares(
    keys: Float[Array, "capacity key_dim"], count: Int[Array, ""], queries: Float[Array, "offered key_dim"]
) -> Float[Array, " offered"]:
    """The squared distance of each query to the nearest of the first `count` keys; 0 where there is none."""
    dtype = jnp.promote_types(jnp.promote_types(keys.dtype, queries.dtype), jnp.float32)
    centre = jnp.mean(queries, axis=0, dtype=dtype)[None]  # what all have in common would cost digits
    queries = queries.astype(dtype) - centre
    capacity = keys.shape[0]
    block = min(BLOCK, capacity)

    def step(i: Array, best: Array) -> Array:
        first = jnp.minimum(i * block, capacity - block)  # the last block begins early: no copy of the keys is padded
        part = lax.dynamic_slice_in_dim(keys, first, block).astype(dtype) - centre
        products = jnp.matmul(part, queries.T, precision="highest")  # [block, offered]
        squares = jnp.sum(part**2, axis=1)[:, None] - 2 * products
        used = first + lax.iota(jnp.int32, block) < count
        return jnp.minimum(best, jnp.min(jnp.where(used[:, None], squares, jnp.inf), axis=0))

    best = lax.fori_loop(0, -(-count // block), step, jnp.full(queries.shape[:1], jnp.inf, dtype))
    return jnp.where(count > 0, jnp.maximum(best + jnp.sum(queries**2, axis=1), 0), 0)


def _median_square(keys: Float[Array, "capacity key_dim"], count: Int[Array, ""]) -> Float[Array, ""]:
    """The median squared distance between the first 256 keys; 1 where there are not two, or they are the same."""
    first = min(256, keys.shape[0])
    some = keys[:first].astype(jnp.promote_types(keys.dtype, jnp.float32))
    used = lax.iota(jnp.int32, first) < count
    some -= jnp.sum(jnp.where(used[:, None], some, 0), axis=0, keepdims=True) / jnp.maximum(jnp.sum(used), 1)
    squares = jnp.sum(some**2, axis=1, keepdims=True)
    between = squares + squares.T - 2 * jnp.matmul(some, some.T, precision="highest")
    pairs = used[:, None] & used[None] & ~jnp.eye(first, dtype=bool)
    median = jnp.nanmedian(jnp.where(pairs, jnp.maximum(between, 0), jnp.nan))
    return jnp.where(median > 0, median, 1)  # no number is not above 0


def _floor_share(rate: float, number: Leaf) -> Leaf:
    """`floor(rate number)`, exactly, in steps that fit into 32 bits."""
    millionths = round(rate * 1_000_000)
    high, low = number // 1_000_000, number % 1_000_000
    tens, ones = low // 1000, low % 1000
    return high * millionths + (tens * millionths + ones * millionths // 1000) // 1000


def _rank(chosen: Bool[Array, " offered"]) -> Int[Array, " offered"]:
    """How many of the rows before each are chosen."""
    return jnp.cumsum(chosen, dtype=jnp.int32) - chosen


def _check_share(name: str, value: float) -> None:
    if not 0 <= value <= 1:
        raise ValueError(f"{name}: given {value}, allowed: 0 to 1")


def check_full(full: str) -> None:
    """Refuses what is no way to treat a full memory."""
    if full not in get_args(Full):
        raise ValueError(f"full: given {full!r}, allowed: {', '.join(get_args(Full))}")
