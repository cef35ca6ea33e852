"""Write policies: laws of what stays, over many streams in one program each."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from scipy.special import chdtri

from memjax.lifelong import policies
from memjax.lifelong.episodic_memory import assign_slots
from memjax.lifelong.policies import CandidateRows, MemoryEntries, WriteDecision

ROWS, CAPACITY, BATCH = 60, 12, 20
"""a batch has more rows than the memory"""
REPEATS, DIM = 800, 2
KEYS = np.sin(np.arange(ROWS)[:, None] * np.array([[1.0, 2.0]])).astype(np.float32)
PRESENT = np.random.default_rng(0).random(ROWS) < 0.6
SCORES = np.random.default_rng(1).permutation(ROWS).astype(np.float32)
GROUPS = np.random.default_rng(2).choice(3, ROWS, p=[0.8, 0.12, 0.08]).astype(np.int32)


def run(policy, key, offered):
    """The entries after a stream of rows, and the number of the row in each slot (-1 = none)."""
    zero, blank = jnp.int32(0), jnp.zeros(CAPACITY)
    entries = MemoryEntries(jnp.zeros((CAPACITY, DIM)), jnp.full(CAPACITY, -1, jnp.int32), blank, zero, zero, zero)

    def step(carry, part):
        (entries, ids), (key, number, offered) = carry, part
        new = assign_slots(entries, offered, key, policy)
        put = lambda old, given: old.at[new.slots].set(given, mode="drop")
        kept = (put(entries.keys, offered.keys), put(entries.groups, offered.groups), put(entries.scores, new.scores))
        return (MemoryEntries(*kept, new.count, new.offered, new.written), put(ids, number)), None

    cut = lambda leaf: leaf.reshape(ROWS // BATCH, BATCH, *leaf.shape[1:])
    parts = (jax.random.split(key, ROWS // BATCH), cut(jnp.arange(ROWS)), jax.tree.map(cut, offered))
    return lax.scan(step, (entries, jnp.full(CAPACITY, -1)), parts)[0]


@functools.partial(jax.jit, static_argnames="policy")
def with_all_keys(policy, offered):
    keys = jax.random.split(jax.random.key(0), REPEATS)
    return jax.vmap(lambda key: run(policy, key, offered))(keys)


def many(policy, *, present=None, scores=None, groups=None):
    """`run` with many keys: (entries, numbers of rows), leaves `[REPEATS, ...]`."""
    fill = lambda given, value: np.full(ROWS, value) if given is None else given
    offered = CandidateRows(KEYS, fill(groups, np.int32(0)), fill(scores, np.float32(0)), fill(present, True))
    return jax.device_get(with_all_keys(policy, offered))


def statistic(ids, rows=ROWS, capacity=CAPACITY):
    """Chi-squared of how often each row stayed. Counts without replacement vary less, by `1 - capacity / rows`."""
    found = np.bincount(ids.ravel(), minlength=rows)
    wanted = ids.shape[0] * capacity / rows
    return float(np.sum((found - wanted) ** 2) / wanted / (1 - capacity / rows) * (rows - 1) / rows)


def overwriting(entries, offered, key):
    """Overwrites a random slot when the memory is full: every row is written, and the last ones stay."""
    random = jax.random.randint(key, offered.present.shape, 0, entries.capacity)
    rank = entries.count + jnp.arange(offered.present.shape[0])
    return WriteDecision(jnp.where(rank < entries.capacity, rank, random), offered.scores)


def counting_written(entries, offered, key):
    """A reservoir that counts the rows that were written instead of those that were offered."""
    return ALL["reservoir"](entries._replace(offered=entries.written), offered, key)


ALL = {
    "ring": policies.write_all_policy("ring"),
    "drop": policies.write_all_policy("drop"),
    "random_ring": policies.random_policy(0.3, "ring"),
    "random_drop": policies.random_policy(0.3, "drop"),
    "reservoir": policies.reservoir_policy(),
    "priority": policies.priority_policy(),
    "balanced": policies.balanced_policy(),
    "uncertain": policies.uncertainty_policy(),
    "forgettable": policies.forgetting_policy(),
    "diverse": policies.diversity_policy(0.5),
    "similar": policies.diversity_policy(0.5, sign=-1, full="drop"),
}


@pytest.mark.parametrize(
    "policy, is_uniform",
    [
        (ALL["reservoir"], True),
        (ALL["priority"], True),
        (ALL["balanced"], True),
        (overwriting, False),
        (counting_written, False),
        (ALL["drop"], False),
    ],
    ids=["reservoir", "priority", "balanced_one_group", "overwriting", "counting_written", "first"],
)
def test_reservoir_chi2(policy, is_uniform):
    """Every row offered stays with the same probability, within batches and over them; common mistakes fail by far."""
    entries, ids = many(policy)
    assert (ids >= 0).all() and (entries.count == CAPACITY).all() and (entries.offered == ROWS).all()
    assert all(len(set(row)) == CAPACITY for row in ids.tolist())
    low, high = chdtri(ROWS - 1, 1 - 5e-4), chdtri(ROWS - 1, 5e-4)
    found = statistic(ids)
    assert low < found < high if is_uniform else found > 5 * high


@pytest.mark.parametrize("name", ALL)
def test_only_rows_that_were_offered_are_kept_in_the_first_slots(name):
    for present in (PRESENT, np.arange(ROWS) % 7 == 3):  # more rows than slots, fewer
        entries, ids = many(ALL[name], present=present, scores=SCORES, groups=GROUPS)
        used = ids >= 0
        assert (used == (np.arange(CAPACITY)[None] < entries.count[:, None])).all()
        assert present[ids[used]].all() and (entries.offered == present.sum()).all()
        assert all(len(set(row[row >= 0])) == count for row, count in zip(ids, entries.count, strict=True))
        assert ((entries.count <= entries.written) & (entries.written <= entries.offered)).all()
        assert (entries.groups[used] == GROUPS[ids[used]]).all()
        if name not in ("random_ring", "random_drop", "diverse", "similar"):
            assert (entries.count == min(present.sum(), CAPACITY)).all()


def test_append_drop_and_ring():
    """The first rows, or the last ones, each in its turn: `count = min(written, capacity)`."""
    real = np.flatnonzero(PRESENT)
    entries, ids = many(ALL["drop"], present=PRESENT)
    assert ids[0].tolist() == real[:CAPACITY].tolist() and (entries.written == CAPACITY).all()
    entries, ids = many(ALL["ring"], present=PRESENT)
    turns = [max(i for i in range(len(real)) if i % CAPACITY == slot) for slot in range(CAPACITY)]
    assert ids[0].tolist() == real[turns].tolist() and (entries.written == len(real)).all()
    for name in ("random_ring", "random_drop"):
        entries, _ = many(ALL[name], present=PRESENT)
        assert (entries.count == np.minimum(entries.written, CAPACITY)).all() and len(set(entries.count)) > 1


def test_the_highest_scores_stay():
    real = np.flatnonzero(PRESENT)
    best = sorted(real[np.argsort(-SCORES[real])[:CAPACITY]].tolist())
    for name in ("uncertain", "forgettable"):
        entries, ids = many(ALL[name], present=PRESENT, scores=SCORES)
        assert all(sorted(row) == best for row in ids.tolist())
        assert (np.floor(entries.scores) == SCORES[ids]).all()
    scores = np.where(np.arange(ROWS) % 3 == 0, np.nan, np.float32(1))  # what is stored wins over its equals
    scores[50] = 2
    entries, ids = many(ALL["uncertain"], scores=scores)
    assert (entries.written == CAPACITY + 1).all() and (np.sort(ids)[:, -1] == 50).all()
    assert set(ids[0].tolist()) < {*np.flatnonzero(np.arange(20) % 3).tolist(), 50}


def test_chance_decides_between_equal_numbers_of_forgetting_events():
    _, ids = many(ALL["forgettable"], scores=(np.arange(ROWS) % 2).astype(np.float32))
    assert (ids % 2 == 1).all()
    assert statistic(ids // 2, ROWS // 2) < chdtri(ROWS // 2 - 1, 1e-3)


def test_random_write_rate():
    """The number of rows written is binomial; 1 writes all of them, 0 none."""
    entries, _ = many(ALL["random_ring"], present=PRESENT)
    trials = PRESENT.sum() * REPEATS
    assert abs(entries.written.sum() - trials * 0.3) < 4 * np.sqrt(trials * 0.3 * 0.7)
    variance = PRESENT.sum() * 0.3 * 0.7
    assert 0.75 * variance < np.var(entries.written) < 1.25 * variance
    assert (many(policies.random_policy(0.0))[0].written == 0).all()
    assert (many(ALL["ring"], present=PRESENT)[0].written == PRESENT.sum()).all()


def test_balanced_quota():
    """As even as the groups allow, and of each group a uniform sample."""
    sizes = np.bincount(GROUPS)
    assert sizes.min() < CAPACITY // 3, "a group that leaves places to the others"
    _, ids = many(ALL["balanced"], groups=GROUPS)
    counts = np.stack([(GROUPS[ids] == group).sum(axis=1) for group in range(3)], axis=1)
    short = sizes <= CAPACITY // 3
    assert (counts.sum(axis=1) == CAPACITY).all() and (counts[:, short] == sizes[None, short]).all()
    assert (np.ptp(counts[:, ~short], axis=1) <= 1).all()
    equal = (np.arange(ROWS) % 3).astype(np.int32)  # each has enough: a third of the memory
    _, ids = many(ALL["balanced"], groups=equal)
    found = [ids[equal[ids] == group].reshape(REPEATS, CAPACITY // 3) // 3 for group in range(3)]
    total = sum(statistic(part, ROWS // 3, CAPACITY // 3) for part in found)
    degrees = 3 * (ROWS // 3 - 1)
    assert chdtri(degrees, 1 - 5e-4) < total < chdtri(degrees, 5e-4)


def test_a_new_group_gets_its_share_of_a_full_memory():
    groups = np.repeat(np.int32([0, 1, 2]), [40, 10, 10])
    _, ids = many(ALL["balanced"], groups=groups)
    assert all(np.bincount(groups[row]).tolist() == [4, 4, 4] for row in ids)


def test_a_quota_holds_from_the_start_and_later_groups_change_nothing():
    groups = np.repeat(np.int32([0, 1, 2]), [40, 10, 10])
    policy = policies.balanced_policy(most=3)
    _, ids = many(policy, groups=groups)
    _, first = many(policy, groups=groups, present=groups == 0)
    counts = [np.bincount(groups[row[row >= 0]]).tolist() for row in ids]
    assert all(count == [3, 3, 3] for count in counts)
    kept = lambda row: {int(one) for one in row if one >= 0 and groups[one] == 0}
    assert all(kept(row) == kept(before) for row, before in zip(ids, first, strict=True))
    with pytest.raises(ValueError, match="most: given 0, allowed: 1 or more, or None"):
        policies.balanced_policy(most=0)


@functools.partial(jax.jit, static_argnames=("policy", "repeats"))
def accepted(policy, stored, count, keys, present, repeats, before=0):
    """How often each of the offered rows was accepted, and the numbers of rows that were."""
    blank = jnp.zeros(stored.shape[0])
    entries = MemoryEntries(stored, blank.astype(jnp.int32), blank, count, before, before)
    offered = CandidateRows(keys, jnp.zeros(len(keys), jnp.int32), jnp.zeros(len(keys)), present)
    decide = lambda key: policy(entries, offered, key).slots < entries.capacity
    taken = jax.vmap(decide)(jax.random.split(jax.random.key(0), repeats))
    return jnp.mean(taken, axis=0), jnp.sum(taken, axis=1)


def test_the_i_th_row_enters_a_full_reservoir_with_probability_capacity_over_i():
    present, repeats = np.array([1, 0, 1, 1], bool), 3000
    rates, _ = accepted(ALL["reservoir"], np.zeros((5, DIM)), 5, np.zeros((4, DIM)), present, repeats, before=7)
    wanted = np.array([5 / 8, 0, 5 / 9, 5 / 10])
    assert (np.abs(rates - wanted) <= 4 * np.sqrt(wanted * (1 - wanted) / repeats)).all()


@pytest.mark.parametrize("block", [64, 3])
@pytest.mark.parametrize("sign", [1, -1])
def test_diversity(monkeypatch, sign, block):
    """One row of four, by the softmax of the squared distance to the nearest of the keys in use."""
    monkeypatch.setattr(policies, "BLOCK", block)
    rng = np.random.default_rng(0)
    stored = rng.normal(size=(10, 3)).astype(np.float32) + 5
    keys = rng.normal(size=(6, 3)).astype(np.float32) * 2 + 5
    keys[1], keys[2] = stored[4], stored[8]  # stored, and no longer in use
    present, count, repeats = np.array([1, 1, 1, 0, 1, 0], bool), 7, 2000
    rates, numbers = accepted(
        policies.diversity_policy(0.25, beta=4.0, sign=sign), stored, count, keys, present, repeats
    )
    squares = ((keys[:, None] - stored[None, :count]) ** 2).sum(-1).min(axis=1)
    wanted = np.where(present, np.exp(sign * squares / 4.0), 0)
    wanted /= wanted.sum()
    assert (numbers == 1).all()
    assert (np.abs(rates - wanted) <= 4 * np.sqrt(wanted * (1 - wanted) / repeats)).all()
    assert np.argmin(np.where(present, sign * rates, 1)) == 1, "the duplicate of a stored row"


def test_diversity_writes_an_exact_share_of_what_was_offered_also_below_one_row_a_batch():
    keys, repeats = np.eye(4, dtype=np.float32), 2000
    policy, written = policies.diversity_policy(0.05), []
    for before in range(0, 400, 4):
        given = (policy, np.zeros((5, 4), np.float32), 2, keys, np.ones(4, bool), 1)
        written.append(int(accepted(*given, before=before)[1][0]))
    assert np.cumsum(written).tolist() == [int(0.05 * rows + 1e-9) for rows in range(4, 404, 4)]
    for count in (0, 2):
        rates, _ = accepted(policy, np.zeros((5, 4), np.float32), count, keys, np.ones(4, bool), repeats, before=16)
        assert (np.abs(rates - 0.25) < 4 * np.sqrt(0.25 * 0.75 / repeats)).all(), "all are equally far"


@pytest.mark.parametrize("rate", [0.01, 0.123457, 1.0])
def test_a_share_of_counters_of_any_size_is_exact(rate):
    numbers = np.array([0, 1, 99, 100, 12_345_678, 2**31 - 1])
    found = policies._floor_share(rate, jnp.asarray(numbers, jnp.int32))
    assert found.tolist() == [number * round(rate * 10**6) // 10**6 for number in numbers.tolist()]


def test_diversity_relative_to_the_median_distance_does_not_depend_on_the_unit_of_keys():
    rng = np.random.default_rng(0)
    stored, keys = (rng.normal(size=(rows, 3)).astype(np.float32) for rows in (10, 6))
    of = lambda unit, relative: accepted(
        policies.diversity_policy(0.25, 0.5, relative=relative),
        unit * stored,
        9,
        unit * keys,
        np.ones(6, bool),
        500,
        before=2,
    )[0]
    np.testing.assert_array_equal(of(1.0, True), of(64.0, True))
    assert not np.array_equal(of(1.0, False), of(64.0, False))
    between = ((stored[:9, None] - stored[None, :9]) ** 2).sum(-1)[~np.eye(9, dtype=bool)]
    np.testing.assert_allclose(
        policies._median_square(jnp.asarray(stored), jnp.int32(9)), np.median(between), rtol=1e-5
    )


def test_forgetting_events_are_rows_that_were_right_and_then_wrong():
    scores = jax.random.randint(jax.random.key(0), (50,), 0, policies.DRAWS) / policies.DRAWS
    draws, events, was = scores, np.zeros(50), np.zeros(50, bool)
    rng = np.random.default_rng(0)
    for _ in range(40):
        right = rng.random(50) < 0.5
        scores, events, was = policies.add_forgetting_events(scores, jnp.asarray(right)), events + (was & ~right), right
    assert np.floor(scores).tolist() == events.tolist() and events.max() > 9
    behind = np.asarray(scores) - events
    assert (behind >= np.asarray(draws)).all() and (behind - np.asarray(draws) < 1 / policies.DRAWS).all()


def test_the_spread_of_odds_says_when_a_choice_is_uniform():
    rng = np.random.default_rng(0)
    stored, keys = (jnp.asarray(rng.normal(size=(rows, 3)), jnp.float32) for rows in (10, 40))
    blank = jnp.zeros(10)
    entries = MemoryEntries(stored, blank.astype(jnp.int32), blank, *map(jnp.int32, (10, 0, 10)))
    offered = CandidateRows(keys, jnp.zeros(40, jnp.int32), jnp.zeros(40), jnp.ones(40, bool))
    found = {beta: policies.spread_of_odds(0.25, beta)(entries, offered).mean() for beta in (0.5, 1e6)}
    squares = ((np.asarray(keys)[:, None] - np.asarray(stored)) ** 2).sum(-1).min(axis=1) / 0.5
    np.testing.assert_allclose(found[0.5], np.subtract(*np.percentile(squares, [90, 10])), rtol=1e-4)
    assert found[0.5] > 1 and found[1e6] < 1e-5
    assert policies.spread_of_odds(0.0, 1.0)(entries, offered).weight == 0  # nothing is written


@pytest.mark.parametrize(
    "make, line",
    [
        (lambda: policies.random_policy(1.5), "probability: given 1.5, allowed: 0 to 1"),
        (lambda: policies.check_full("wrap"), "full: given 'wrap', allowed: ring, drop"),
        (lambda: policies.diversity_policy(-0.1), "rate: given -0.1, allowed: 0 to 1"),
        (lambda: policies.diversity_policy(0.1, 0.0), "beta: given 0.0, allowed: above 0"),
        (
            lambda: policies.diversity_policy(0.1, sign=0),
            "sign: given 0, allowed: 1 (unlike what is stored) or -1 (like it)",
        ),
    ],
)
def test_what_is_refused(make, line):
    with pytest.raises(ValueError) as error:
        make()
    assert str(error.value) == line
