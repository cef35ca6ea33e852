"""The laws of the memory contract, each a function of one `Run` that raises AssertionError where it is broken."""

import collections
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from memjax.memory.interface import DecodeState, num_rows, restore_state, save_state, state_axes, take_rows, where_rows
from memjax.typing import WeightedSum
from tests.contract.harness import (
    DIM,
    LENGTH,
    ROWS,
    SEGMENTS,
    Run,
    Segments,
    assert_close,
    assert_identical,
    floating,
    full_mask,
    named_leaves,
    prefix_mask,
    random_keys,
    row,
    rows_of,
    starts,
)


def reset(run: Run) -> None:
    """1: the old state has no effect on rows that start a document, in this segment and in those after it."""
    start, xs = starts(True, False, True), run.xs(4)
    used, new, saw_effect = run.any_state(11), run.init_state(), False
    for segment, x in enumerate(xs):
        here = start if segment == 0 else starts()
        (y, used, _), (expected, new, _) = run.forward(x, used, start=here), run.forward(x, new, start=here)
        assert_identical(rows_of(y, [0, 2]), rows_of(expected, [0, 2]))
        saw_effect |= not np.array_equal(y[1], expected[1])
    assert saw_effect or not run.case.slots, "no state has any effect: the law is empty here"
    everywhere = starts(*[True] * ROWS)
    for state in (run.any_state(12), run.init_state()):
        y, after, aux = run.forward(xs[0], state, start=everywhere)
        expected, other, other_aux = run.forward(xs[0], run.init_state(), start=everywhere)
        assert_identical((y, aux), (expected, other_aux))
    # init_state means "a document starts here"
    y, after, aux = run.forward(xs[0], run.init_state(), start=starts())
    assert_identical((y, after, aux), (expected, other, other_aux))


def not_finite(run: Run) -> None:
    """1, of states full of NaN or infinity: on rows that start a document they change no output, state or gradient, in
    this segment and two later, nor when decoding goes on from there. A row that does not start reaches no other row.
    """
    # NumPy puts states together: an operation outside `jax.jit` is a compilation for each of their shapes.
    start = np.zeros((SEGMENTS, ROWS), bool)
    start[0, [0, 2]] = True
    mask = np.ones((SEGMENTS, ROWS, LENGTH), bool)
    mask[0, 2, 2:] = False
    x, new, used, random = (
        np.asarray(run.xs(SEGMENTS, seed=41)),
        run.init_state(),
        run.used_state(2),
        run.any_state(43),
    )
    segments = Segments(None, x, start, mask, np.ones(SEGMENTS, run.dtype), random_keys(41))
    tokens = np.asarray(run.random(44, 2 * LENGTH + 1, ROWS, 1, DIM))

    def follow(state: Any) -> tuple[Any, Any]:
        gradients, (ys, after, aux) = run.gradients(segments.replace(state=select_rows(start[0], state, used)))
        y, memory, _ = run.forward(x[0], state, start=start[0])
        outputs = [y]
        if run.case.causal:
            current = run.module.init_decode_state(memory, LENGTH, ROWS)
            for token in tokens:
                y, current = run.decode(token, current, np.ones(ROWS, bool))
                outputs.append(y)
        return (gradients, ys, remembered(run, after), aux), [rows_of(y, [0, 2]) for y in outputs]

    expected = follow(new)
    for name, leaf in named_leaves(expected):
        assert np.isfinite(np.asarray(leaf, np.float32)).all(), name
    for value in (np.nan, np.inf, -np.inf):
        broken = [np.full_like(leaf, value) for leaf in floating(random)[0]]
        assert_identical(follow(floating(random)[1](broken)), expected)


def select_rows(rows: np.ndarray, a: Any, b: Any) -> Any:
    """`where_rows` in NumPy."""
    along = lambda leaf, axis: rows.reshape([-1 if i == axis else 1 for i in range(leaf.ndim)])
    return jax.tree.map(lambda x, y, axis: np.where(along(x, axis), x, y), a, b, state_axes(a))


def remembered(run: Run, state: Any) -> Any:
    """A state without what stands in slots that are not valid, where a restart leaves it there."""
    leaves, axes = dict(named_leaves(state)), dict(named_leaves(state_axes(state)))
    kept = []
    for path, leaf in leaves.items():
        name = next((name for name in run.case.left if path.endswith(name)), None)
        if name is not None:
            axis, valid = axes[path] + run.case.slots[name], leaves[f"{path.rpartition('/')[0]}/valid"]
            shape = [size if i <= axes[path] or i == axis else 1 for i, size in enumerate(leaf.shape)]
            leaf = np.where(np.reshape(valid, shape), leaf, np.zeros((), leaf.dtype))
        kept.append(leaf)
    return jax.tree.unflatten(jax.tree.structure(state), kept)


def shape(run: Run) -> None:
    """2: the state keeps structure, shapes and dtypes; every leaf has its rows; no two leaves share a buffer."""
    for dtype in ("float32", "bfloat16"):
        state = run.init_state(jnp.dtype(dtype))

        def step(state, length=LENGTH):
            mask = full_mask(length)
            return run.step(run.variables, run.xs(1, length=length)[0], state, starts(), mask, run.extras())[1]

        after = jax.eval_shape(step, state)
        assert jax.tree.structure(after) == jax.tree.structure(state)
        for (name, old), new in zip(named_leaves(state), jax.tree.leaves(after), strict=True):
            assert (new.shape, new.dtype, new.weak_type) == (old.shape, old.dtype, old.weak_type), name
            assert old.size, f"{name}: an array of size zero"
            kinds = (jnp.bfloat16, jnp.float32) if dtype == "bfloat16" else (jnp.float32,)
            assert old.dtype in (bool, jnp.int32, *kinds), name
        jax.eval_shape(lambda p, s: jax.lax.cond(p, step, lambda s: s, s), True, state)
        check_rows_and_buffers(state)
        if run.case.causal:
            decode_state = run.module.init_decode_state(state, LENGTH, ROWS)
            check_rows_and_buffers(decode_state)
            token = run.xs(1, length=1)[0]
            args = (run.variables, token, decode_state)
            _, new = jax.eval_shape(lambda *a: run.apply(*a, active=starts(), method="decode"), *args)
            described = [jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype), s) for s in (new, decode_state)]
            assert described[0] == described[1]
    if run.case.fixed_length:
        try:
            jax.eval_shape(lambda s: step(s, LENGTH - 1), state)
        except ValueError:
            return
        raise AssertionError("fixed_length: another length must be refused")
    assert jax.tree.structure(jax.eval_shape(lambda s: step(s, LENGTH + 1), state)) == jax.tree.structure(state)


def rows(run: Run) -> None:
    """3: rows are independent streams: they permute, and none sees another."""
    x, state, start = run.xs(1)[0], run.any_state(13), starts(True, False, False)
    mask, order = prefix_mask(LENGTH, LENGTH, 2), np.array([2, 0, 1])
    y, new, _ = run.forward(x, state, start=start, mask=mask)
    assert num_rows(state) in (ROWS, None)
    places = jax.device_put(order)
    shuffled = take_rows(run.extras(), places) if run.extras() else {}
    x_there, start_there, mask_there = (np.asarray(leaf)[order] for leaf in (x, start, mask))
    other = run.forward(x_there, take_rows(state, places), start=start_there, mask=mask_there, extras=shuffled)
    assert_close((other[0], other[1]), (np.asarray(y)[order], take_rows(new, places)), run.tolerance)

    first, changed = starts(True, False, False), {"start": ~start, "mask": prefix_mask(1, LENGTH, 2)}
    for name, value in {"x": run.xs(1, seed=2)[0], "state": run.any_state(14), **changed}.items():
        args = {"x": x, "state": state, "start": start, "mask": mask}
        args[name] = where_rows(first, value, args[name])
        other = run.forward(args.pop("x"), args.pop("state"), **args)
        assert_identical((rows_of(other[0], [1, 2]), rows_of(other[1], [1, 2])), (y[1:], rows_of(new, [1, 2])))


def causality(run: Run) -> None:
    """4: no output depends on later tokens: the gradient is exactly zero. Every gradient is finite."""
    x, mask = run.xs(1)[0], prefix_mask(LENGTH, 2, LENGTH)
    for state, start in ((run.used_state(), starts()), (run.init_state(), starts(True, True, True))):
        gradient = np.asarray(run.sensitivities(x, state, start=start, mask=mask))  # [t, b, l, d]
        assert np.isfinite(gradient).all()
        for t in range(LENGTH):
            assert not gradient[t, :, t + 1 :].any(), f"token {t} sees later ones"
            assert gradient[t, :, t].any(axis=-1).all(), f"token {t} does not see itself"


def padding(run: Run) -> None:
    """4: what stands at padded positions has no effect on the row's tokens, on other rows or on later segments; no
    token is read wrongly where padding stands in front of it."""
    x, mask, state = run.xs(1)[0], prefix_mask(LENGTH, 2, 0), run.used_state()
    plain = run.forward(x, state, mask=mask)
    other = run.forward(jnp.where(mask[..., None], x, 1e3), state, mask=mask)
    assert_identical(other[0][mask], plain[0][mask])
    assert_identical(run.forward(x, other[1])[0], run.forward(x, plain[1])[0])
    # Padding in front: tokens are read as where they stand first, or refused.
    begin, lengths = {"start": starts(*[True] * ROWS)}, (LENGTH, 2, 1)
    behind = np.stack(
        [np.roll(one, LENGTH - tokens, axis=0) for one, tokens in zip(np.asarray(x), lengths, strict=True)]
    )
    plain = run.forward(x, state, mask=prefix_mask(*lengths), **begin)[0]
    other = run.forward(jnp.asarray(behind), state, mask=prefix_mask(*lengths)[:, ::-1], **begin)[0]
    for b, tokens in enumerate(lengths):
        if tokens == LENGTH or not np.isnan(other[b]).all():
            assert_close(other[b, LENGTH - tokens :], plain[b, :tokens], 1e-5)


def mixed_segments(run: Run, *, state: Any = None, seed: int = 6, keys: bool = False) -> Segments:
    """Segments with documents that start and end, one row that is idle, and a memory that is in use."""
    state = run.used_state() if state is None else state
    start = jnp.stack([starts(True, False, True), starts(False, True, False), starts(False, False, True)])
    mask = jnp.stack([full_mask(), prefix_mask(LENGTH, LENGTH, 2), prefix_mask(0, LENGTH, 3)])
    key = random_keys(seed) if keys else None
    weights = jnp.asarray([1.0, 0.5, 2.0], run.dtype)
    return Segments(state, run.xs(SEGMENTS, seed=seed), start, mask, weights, key)


def scan(run: Run) -> None:
    """5: `lax.scan` over segments equals a loop over the jitted step (with `jax.checkpoint`: see `replay`)."""
    segments = mixed_segments(run)
    state, outputs = segments.state, []
    for s in range(SEGMENTS):
        one = segments.at(s)
        y, state, aux = run.forward(one.x, state, start=one.start, mask=one.mask)
        outputs.append((y, aux))
    ys, auxes = jax.tree.map(lambda *leaves: np.stack(leaves), *outputs)
    assert_close(run.scan(segments), (ys, state, auxes), run.tolerance)
    assert run.traces["forward"] == 1, "the jitted step was traced more than once"


def gradient_policy(run: Run) -> None:
    """6: the gradient of a later segment to an earlier one is exactly zero where the paper stops it, else not."""
    last = jnp.asarray([0.0] * (SEGMENTS - 1) + [1.0], run.dtype)
    masks, none = jnp.ones((SEGMENTS, ROWS, LENGTH), bool), jnp.zeros((SEGMENTS, ROWS), bool)
    segments = Segments(run.used_state(), run.xs(SEGMENTS), none, masks, last, random_keys(3))
    to_x = np.asarray(run.gradients(segments)[0][1])
    assert to_x[-1].any(axis=-1).all()
    for segment in range(SEGMENTS - 1):
        if run.case.stops_gradient:
            assert not to_x[segment].any(), f"a gradient reaches segment {segment}"
        else:
            assert to_x[segment].any(axis=(1, 2)).all(), f"no gradient reaches segment {segment}"


def capacity(run: Run) -> None:
    """7: what is stored is what a deque of the documents' last tokens holds, before, at and after wrap-around."""
    lengths = [(4, 4, 4), (4, 4, 0), (4, 4, 1), (4, 2, 4), (4, 4, 4), (4, 4, 4), (4, 0, 4), (4, 4, 4)]
    document_starts = [(1, 1, 1), (0, 0, 0), (0, 0, 0), (0, 0, 1), (0, 1, 0), (0, 0, 0), (0, 0, 0), (0, 0, 0)]
    state, queues, read = run.init_state(), [], np.zeros(ROWS, int)
    sizes = [fifo.valid.shape[1] for fifo in run.case.fifos(state)]
    assert sizes[0] == run.case.capacity
    queues = [[collections.deque(maxlen=size) for _ in range(ROWS)] for size in sizes]
    for x, tokens, start in zip(run.xs(len(lengths)), lengths, document_starts, strict=True):
        start = np.array(start, bool)
        args = {"start": jnp.asarray(start), "mask": prefix_mask(*tokens)}
        # What a token stores follows from the token alone, so that an empty memory shows it.
        entries = run.case.fifos(run.forward(x, run.init_state(), start=args["start"])[1])
        _, state, _ = run.forward(x, state, **args)
        for b in range(ROWS):
            read[b] = 0 if start[b] else read[b]
            for queue, entry in zip(queues, entries, strict=True):
                if start[b]:
                    queue[b].clear()
                for t in range(LENGTH if tokens[b] else 0):
                    slot = t - LENGTH + entry.valid.shape[1]  # tokens that a short memory cannot hold have none
                    content = entry.contents[b, slot] if slot >= 0 else None
                    queue[b].append((content, t < tokens[b], read[b] + t))
            read[b] += tokens[b]
        for queue, fifo, size in zip(queues, run.case.fifos(state), sizes, strict=True):
            for b in range(ROWS):
                expected = [None] * (size - len(queue[b])) + list(queue[b])
                np.testing.assert_array_equal(fifo.valid[b], [e is not None and e[1] for e in expected])
                for slot in np.flatnonzero(fifo.valid[b]):
                    np.testing.assert_array_equal(fifo.contents[b, slot], expected[slot][0])
                    if fifo.positions is not None:
                        assert fifo.positions[b, slot] == expected[slot][2]


def use(run: Run) -> None:
    """8: every slot of every layer and leaf changes the output of some query."""
    state = run.used_state()
    queries = [(x, run.forward(x, state)[0]) for x in run.xs(12, seed=7)]
    axes = dict(named_leaves(state_axes(state)))
    seen = set()
    for place, (path, leaf) in enumerate(named_leaves(state)):
        name = next((name for name in run.case.slots if path.endswith(name)), None)
        if name is None:
            continue
        seen.add(name)
        axis = axes[path] + run.case.slots[name]
        for layer in range(leaf.shape[0] if axes[path] else 1):
            for slot in set(range(leaf.shape[axis])) - set(run.case.unread.get(name, {})):
                index = [slice(None)] * leaf.ndim
                index[axis] = slot
                if axes[path]:
                    index[0] = layer
                leaves = list(jax.tree.leaves(state))
                content = np.array(leaf)
                content[tuple(index)] += run.random(8, *content[tuple(index)].shape)
                leaves[place] = jnp.asarray(content)
                changed = jax.tree.unflatten(jax.tree.structure(state), leaves)
                moved = (np.abs(run.forward(x, changed)[0] - y).max() > 1e-6 for x, y in queries)
                assert any(moved), f"slot {slot} of {path} (layer {layer}) is never read"
    assert seen == set(run.case.slots)


def round_trip(run: Run) -> None:
    """9: flattening loses nothing, a rejected step gives the old state back, and two runs with the same keys are equal,
    all bit for bit."""
    state = run.used_state()
    leaves, structure = jax.tree.flatten(state)
    assert_identical(jax.tree.unflatten(structure, [jnp.asarray(np.asarray(leaf)) for leaf in leaves]), state)
    segments = mixed_segments(run, keys=True)
    first, second = run.gradients(segments), run.gradients(segments)
    assert_identical(first, second)
    assert_identical(run.used_state(), state)
    start = starts(False, True, False)
    same, saved = save_state(state, start, LENGTH)
    new = run.forward(run.xs(1)[0], same, start=start, mask=prefix_mask(LENGTH, 2, 0))[1]
    assert_identical(restore_state(jnp.array(False), new, saved), state)
    assert_identical(restore_state(jnp.array(True), new, saved), new)


def decode(run: Run) -> None:
    """11: token by token, out of phase, with idle steps and new documents, decoding equals the segment's forward; the
    beginning of a segment may be read at once.
    """
    total = 8 * LENGTH
    # Where each row's second document begins: never, inside a segment, at a border.
    boundary = [total, 3 * LENGTH + 2, 4 * LENGTH]
    tokens = run.random(21, ROWS, total, DIM)
    state, expected = decode_reference(run, tokens, boundary)

    # Whole segments are read by `__call__`: the first one here.
    y, memory, _ = run.forward(tokens[:, :LENGTH], run.init_state(), start=starts(*[True] * ROWS))
    outputs = [list(np.asarray(y[b])) for b in range(ROWS)]
    current = run.module.init_decode_state(memory, LENGTH, ROWS)
    size = state_bytes(current)
    fresh = run.module.init_decode_state(run.fresh_state(), LENGTH, ROWS)
    read = np.full(ROWS, LENGTH)
    if run.module.decodes_segments:
        lengths = np.array([2, LENGTH, 1])
        y, current = run.decode_segment(tokens[:, LENGTH : 2 * LENGTH], current, lengths)
        for b in range(ROWS):
            outputs[b].extend(np.asarray(y[b, : lengths[b]]))
        read += lengths
    for step in range(3 * total):
        if (read == total).all():
            break
        active = (read < total) & ((step + np.arange(ROWS)) % (np.arange(ROWS) + 2) > 0)
        reset_now = active & (read == boundary)
        current = where_rows(jnp.asarray(reset_now), fresh, current)
        x = tokens[np.arange(ROWS), np.minimum(read, total - 1)][:, None]
        before = current
        y, current = run.decode(x, current, jnp.asarray(active))
        idle = list(np.flatnonzero(~active))
        assert_identical(rows_of(current, idle), rows_of(before, idle))
        check_granularity(run, before, current)
        for b in np.flatnonzero(active):
            outputs[b].append(np.asarray(y[b, 0]))
        read += active
    for b in range(ROWS):
        np.testing.assert_allclose(outputs[b], expected[b], rtol=0, atol=run.tolerance, err_msg=f"row {b}")
    assert run.traces["decode"] == 1, "decode was traced more than once"
    assert state_bytes(current) == size
    memory = jax.tree.map(lambda node: getattr(node, "memory", node), current, is_leaf=is_decode_state)
    assert_close(row(memory, 0), row(state, 0), run.tolerance)


def decode_reference(run: Run, tokens, boundary):
    """Segment forward passes over each row's two documents; the state of the rows' last segment and all outputs."""
    total = tokens.shape[1]
    pieces = [
        [
            (begin, min(begin + LENGTH, end), begin == first)
            for first, end in documents
            for begin in range(first, end, 4)
        ]
        for documents in ([(0, cut), (cut, total)] for cut in boundary)
    ]
    state, outputs = run.init_state(), [[] for _ in range(ROWS)]
    for segment in range(max(map(len, pieces))):
        x, lengths, start = np.zeros((ROWS, LENGTH, DIM)), [0] * ROWS, [False] * ROWS
        for b in range(ROWS):
            if segment < len(pieces[b]):
                begin, end, start[b] = pieces[b][segment]
                lengths[b] = end - begin
                x[b, : lengths[b]] = tokens[b, begin:end]
        args = {"start": starts(*start), "mask": prefix_mask(*lengths)}
        y, state, _ = run.forward(jnp.asarray(x, tokens.dtype), state, **args)
        for b in range(ROWS):
            outputs[b].extend(np.asarray(y[b, : lengths[b]]))
    return state, outputs


def idle(run: Run) -> None:
    """12: a row of padding keeps its state bit for bit and has no weight in any sum."""
    x, state, mask = run.xs(1)[0], run.any_state(15), prefix_mask(LENGTH, 0, 2)
    _, new, aux = run.forward(x, state, mask=mask)
    assert_identical(row(new, 1), row(state, 1))
    other = run.forward(x.at[1].set(5.0), where_rows(starts(False, True, False), run.any_state(16), state), mask=mask)
    assert_identical(sums(other[2]), sums(aux))
    _, new, aux = run.forward(x, state, mask=prefix_mask(0, 0, 0))
    assert_identical(new, state)
    for total in sums(aux):
        assert (total.total, total.weight) == (0, 0)


def replay(run: Run) -> None:
    """13: scan with checkpoints, dropout and sampling gives the gradients of the plain loop with the same keys."""
    segments = mixed_segments(run, keys=True)
    replayed = run.gradients(segments)
    assert_close(replayed, run.gradients_by_hand(segments), run.tolerance)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(replayed[0]))
    different = run.gradients(segments.replace(key=random_keys(99)))
    assert not np.allclose(different[1][0], replayed[1][0]), "the keys change nothing: the law is empty here"


def float64(run: Run) -> None:
    """In float64 nothing is rounded to float32 on the way: difference quotients of two widths agree."""
    assert run.dtype == jnp.float64
    x, state, direction = run.xs(1)[0], run.used_state(), run.random(31, ROWS, LENGTH, DIM)
    y = lambda width: np.asarray(run.forward(x + width * direction, state)[0])
    assert y(0.0).dtype == np.float64
    narrow, wide = ((y(width) - y(-width)) / (2 * width) for width in (1e-6, 2e-6))
    np.testing.assert_allclose(narrow, wide, rtol=0, atol=1e-6 * max(1, np.abs(wide).max()))


LAWS = {
    "reset": reset,
    "not_finite": not_finite,
    "shape": shape,
    "rows": rows,
    "causality": causality,
    "padding": padding,
    "scan": scan,
    "gradient_policy": gradient_policy,
    "capacity": capacity,
    "use": use,
    "round_trip": round_trip,
    "decode": decode,
    "idle": idle,
    "replay": replay,
    "float64": float64,
}
"""Name -> law. Law 10, degenerate cases, compares two memories and stands in `tests/contract_test.py`."""

IDENTITIES = ("decode", "replay", "float64")
"""Laws that hold up to rounding: checked in float64 too, `float64` in float64 only (`replay` contains `scan`)."""


def check_rows_and_buffers(state) -> None:
    leaves, axes = jax.tree.leaves(state), jax.tree.leaves(state_axes(state))
    assert all(leaf.shape[axis] == ROWS for leaf, axis in zip(leaves, axes, strict=True))
    buffers = [leaf.unsafe_buffer_pointer() for leaf in leaves]
    assert len(set(buffers)) == len(buffers), "two leaves share a buffer, which donation forbids"


def check_granularity(run: Run, before, after) -> None:
    """A segment memory is written when a segment is full and not before; a token memory has no buffer."""
    nodes = zip(*(jax.tree.leaves(state, is_leaf=is_decode_state) for state in (before, after)), strict=True)
    memories = [pair for pair in nodes if is_decode_state(pair[0])]  # a model counts the tokens read beside them
    assert memories or not jax.tree.leaves(before)  # a part without a state decodes without one
    for old, new in memories:
        if run.case.granularity == "token":
            assert not jax.tree.leaves(new.segment)
            continue
        positions = np.asarray(new.position).reshape(-1, ROWS)
        assert (positions == positions[0]).all()
        partial, layers = np.flatnonzero(positions[0]), len(new.position.shape) > 1
        for x, y in zip(jax.tree.leaves(new.memory), jax.tree.leaves(old.memory), strict=True):
            np.testing.assert_array_equal(*(np.take(np.asarray(leaf), partial, axis=int(layers)) for leaf in (x, y)))


def is_decode_state(node) -> bool:
    return isinstance(node, DecodeState)


def state_bytes(state) -> int:
    return sum(leaf.nbytes for leaf in jax.tree.leaves(state))


def sums(aux) -> list[WeightedSum]:
    return [*aux.losses.values(), *aux.metrics.values()]
