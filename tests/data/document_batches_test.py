"""Streams: every token once, rows that do not depend on hosts, and positions that resume exactly."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memjax.data.batch_iterator import epoch_order, merge_positions, restart_with_rows
from memjax.data.document_batches import DocumentBatches
from memjax.data.documents import ArrayDocuments, Documents

BEGIN = 1


def make_documents(lengths, annotate=True):
    """Document i holds the tokens 100 * i + 10 ...; token t has t % 7 bytes."""
    tokens = [np.arange(length) + 100 * i + 10 for i, length in enumerate(lengths)]
    annotations = [{"target_bytes": (ids % 7).astype(np.int32)} for ids in tokens] if annotate else None
    return ArrayDocuments(tokens, num_bytes=[int((ids % 7).sum()) for ids in tokens], annotations=annotations)


class NoExtras(Documents):
    """Only what every source has."""

    def __init__(self, documents):
        self._documents = documents

    def __len__(self):
        return len(self._documents)

    def __getitem__(self, index):
        return self._documents[index]

    def num_bytes(self, index):
        return self._documents.num_bytes(index)


class Windowed(NoExtras):
    """Slices only, as a token file gives them; reading a whole document is an error."""

    sliced = True

    def __getitem__(self, index):
        raise AssertionError("read whole")

    def num_tokens(self, index):
        return self._documents.num_tokens(index)

    def window(self, index, start, stop):
        annotations = self._documents.annotate(index)
        return self._documents[index][start:stop], {name: array[start:stop] for name, array in annotations.items()}


def arrays(batch):
    parts = (batch.inputs, batch.targets, batch.mask, batch.weights, batch.start_of_document)
    return *parts, *(batch.extras[name] for name in sorted(batch.extras))


def assert_equal(a, b):
    for x, y in zip(arrays(a), arrays(b), strict=True):
        np.testing.assert_array_equal(x, y)
        assert x.dtype == y.dtype


def row_segments(batches, row):
    """The segments of one row in order, without the padding segments."""
    for batch in batches:
        for segment in range(batch.inputs.shape[0]):
            index = (segment, row)
            if batch.mask[index].any():
                yield tuple(array[index] for array in arrays(batch))


def scored_documents(batches, rows):
    """Token lists, one per `start_of_document`, of what is scored."""
    found = []
    for row in range(rows):
        for _, targets, _, weights, start, *_ in row_segments(batches, row):
            if start:
                found.append([])
            found[-1] += targets[weights > 0].tolist()
    return found


@pytest.mark.parametrize("rows", [1, 3, 8])
@pytest.mark.parametrize("length", [1, 4, 16])
@pytest.mark.parametrize("wrap", [lambda d: d, NoExtras, Windowed], ids=["array", "minimal", "window"])
def test_separate_scores_every_token_once(rows, length, wrap):
    documents = make_documents([5, 1, 9, 4, 8])
    batches = list(
        DocumentBatches(wrap(documents), rows=rows, segment_length=length, begin_token=BEGIN, epochs=1, shuffle=False)
    )
    assert sorted(scored_documents(batches, rows)) == [documents[i].tolist() for i in range(5)]
    for batch in batches:
        assert batch.inputs.shape == (1, rows, length) and batch.start_of_document.shape == (1, rows)
        assert not (np.diff(batch.mask.astype(int)) > 0).any(), "the mask is a prefix of each row"
        np.testing.assert_array_equal(batch.weights, batch.mask.astype(np.float32))
        assert not batch.inputs[~batch.mask].any() and not batch.targets[~batch.mask].any()


def test_inputs_are_the_targets_one_later_and_begin_with_the_begin_token():
    documents = make_documents([5, 3])
    for row in range(2):
        batches = list(DocumentBatches(documents, rows=2, segment_length=2, begin_token=BEGIN, epochs=1, shuffle=False))
        inputs = np.concatenate([segment[0][segment[2]] for segment in row_segments(batches, row)])
        assert inputs.tolist() == [BEGIN, *documents[row].tolist()[:-1]]


def test_without_the_first_token_parity():
    documents = make_documents([5, 3])
    batches = list(DocumentBatches(documents, rows=1, segment_length=4, epochs=1, shuffle=False, score_first=False))
    assert scored_documents(batches, 1) == [documents[0].tolist()[1:], documents[1].tolist()[1:]]
    first = batches[0]
    assert first.inputs[0, 0].tolist() == documents[0].tolist()[:-1] and first.start_of_document.all()


@pytest.mark.parametrize("protocol", ["separate", "contiguous"])
@pytest.mark.parametrize("score_first", [True, False])
def test_totals_do_not_depend_on_rows_or_hosts(protocol, score_first):
    documents = make_documents([5, 2, 9, 4, 8, 2, 2])
    totals = set()
    for rows in (1, 3, 8):
        for hosts in [[(0, rows)], [(0, rows // 2), (rows // 2, rows)]] if rows > 1 else [[(0, 1)]]:
            total, sizes = np.zeros(2), set()
            for host in hosts:
                streams = DocumentBatches(
                    documents,
                    rows=rows,
                    segment_length=4,
                    segments_per_update=2,
                    begin_token=BEGIN,
                    epochs=1,
                    protocol=protocol,
                    score_first=score_first,
                    host_rows=host,
                )
                batches = list(streams)
                sizes.add(len(batches))
                total += [sum(b.weights.sum() for b in batches), sum(b.extras["target_bytes"].sum() for b in batches)]
            assert len(sizes) == 1, "hosts take the same number of steps"
            totals.add(tuple(total))
    assert len(totals) == 1
    if score_first:
        assert totals == {(32.0, float(sum(documents.num_bytes(i) for i in range(7))))}


@pytest.mark.parametrize("protocol", ["separate", "contiguous"])
@pytest.mark.parametrize("epochs", [None, 2])
def test_hosts_have_the_rows_of_one_host(protocol, epochs):
    documents = make_documents([5, 2, 9, 4, 8])

    def streams(host):
        return DocumentBatches(
            documents,
            rows=4,
            segment_length=3,
            segments_per_update=2,
            begin_token=BEGIN,
            seed=5,
            protocol=protocol,
            host_rows=host,
            epochs=epochs,
        )

    steps = 0
    for whole, left, right in zip(streams(None), streams((0, 1)), streams((1, 4)), strict=epochs is not None):
        for joined, *parts in zip(arrays(whole), arrays(left), arrays(right), strict=True):
            np.testing.assert_array_equal(joined, np.concatenate(parts, axis=1))
        steps += 1
        if steps == 9:
            break


@settings(max_examples=40, deadline=None)
@given(
    lengths=st.lists(st.integers(2, 9), min_size=1, max_size=6),
    rows=st.integers(1, 5),
    length=st.integers(1, 6),
    segments=st.integers(1, 3),
    protocol=st.sampled_from(["separate", "contiguous"]),
    epochs=st.sampled_from([None, 1, 3]),
    score_first=st.booleans(),
    seed=st.integers(0, 3),
)
def test_resumes_exactly_from_every_position(lengths, rows, length, segments, protocol, epochs, score_first, seed):
    documents = make_documents(lengths)
    rows = min(rows, sum(lengths) - 1)

    def streams(position=None, host=None):
        return DocumentBatches(
            documents,
            rows=rows,
            segment_length=length,
            segments_per_update=segments,
            begin_token=BEGIN,
            protocol=protocol,
            seed=seed,
            epochs=epochs,
            score_first=score_first,
            position=position,
            host_rows=host,
        )

    whole, positions = [], []
    reference = streams()
    while len(whole) < 12:
        positions.append(json.loads(json.dumps(reference.position)))
        try:
            whole.append(next(reference))
        except StopIteration:
            break
    for number in range(len(whole)):
        resumed = streams(positions[number])
        assert resumed.position == positions[number]
        for expected in whole[number : number + 3]:
            assert_equal(next(resumed), expected)
    # The same from the positions of two hosts, merged and split anew.
    if rows > 1 and len(whole) > 1:
        hosts = [streams(host=(0, 1)), streams(host=(1, rows))]
        for host in hosts:
            next(host)
        merged = merge_positions(host.position for host in hosts)
        assert merged == positions[1]
        part = next(streams(merged, (rows - 1, rows)))
        np.testing.assert_array_equal(part.inputs, whole[1].inputs[:, rows - 1 :])


def test_order_is_a_permutation_of_each_epoch_and_rows_take_every_rth():
    documents = make_documents([2] * 7, annotate=False)
    streams = DocumentBatches(documents, rows=3, segment_length=2, begin_token=BEGIN, seed=4)
    seen = {row: [] for row in range(3)}
    for batch in (next(streams) for _ in range(9)):
        for row in range(3):
            seen[row].append(int(batch.targets[0, row, 0] - 10) // 100)
    for row in range(3):
        expected = [i for epoch in range(9) for i in epoch_order(7, seed=4, epoch=epoch)[row::3].tolist()]
        assert seen[row] == expected[:9]
    assert sorted(epoch_order(7, seed=4, epoch=1)) == list(range(7))
    assert epoch_order(50, seed=4, epoch=1).tolist() != epoch_order(50, seed=4, epoch=0).tolist()
    # Frozen: the order of a run may never change between versions of memjax or NumPy.
    assert epoch_order(8, seed=0, epoch=0).tolist() == [7, 6, 3, 4, 1, 2, 5, 0]


def test_more_rows_than_documents():
    documents = make_documents([5, 3])
    batches = list(DocumentBatches(documents, rows=5, segment_length=4, begin_token=BEGIN, epochs=1))
    assert not any(batch.mask[:, 2:].any() for batch in batches)
    assert sorted(map(len, scored_documents(batches, 5))) == [3, 5]
    endless = DocumentBatches(documents, rows=5, segment_length=4, begin_token=BEGIN)
    assert all(next(endless).mask.any(axis=-1).all() for _ in range(10)), "no row starves in training"


def test_contiguous_cuts_the_joined_corpus():
    documents = make_documents([5, 1, 9, 4])
    joined = np.concatenate([documents[i] for i in range(4)])
    for rows in (1, 2, 3, 7):
        batches = list(
            DocumentBatches(
                documents,
                rows=rows,
                segment_length=4,
                begin_token=BEGIN,
                epochs=1,
                protocol="contiguous",
                shuffle=False,
            )
        )
        streams = [list(row_segments(batches, row)) for row in range(rows)]
        targets = [np.concatenate([s[1][s[2]] for s in segments]) for segments in streams]
        np.testing.assert_array_equal(np.concatenate(targets), joined)
        inputs = np.concatenate([np.concatenate([s[0][s[2]] for s in segments]) for segments in streams])
        np.testing.assert_array_equal(inputs, [BEGIN, *joined[:-1]])
        assert max(map(len, targets)) - min(map(len, targets)) <= 1
        assert [[bool(s[4]) for s in segments] for segments in streams] == [
            [True] + [False] * (len(segments) - 1) for segments in streams
        ]


def test_contiguous_marks_only_the_first_segment_of_each_epoch():
    documents = make_documents([5, 3])
    streams = DocumentBatches(documents, rows=1, segment_length=4, begin_token=BEGIN, protocol="contiguous")
    assert [bool(next(streams).start_of_document.all()) for _ in range(6)] == [True, False] * 3


def test_weights_of_the_documents_decide_what_is_scored():
    documents = ArrayDocuments([[5, 6, 7]], annotations=[{"weights": np.array([0, 1, 0], np.float32)}])
    batch = next(DocumentBatches(documents, rows=1, segment_length=4, begin_token=BEGIN))
    assert batch.weights.tolist() == [[[0, 1, 0, 0]]] and batch.mask.tolist() == [[[True, True, True, False]]]
    assert batch.extras == {} and batch.weights.dtype == np.float32


def test_annotations_are_aligned_to_targets():
    documents = make_documents([6])
    for batch in DocumentBatches(documents, rows=2, segment_length=4, begin_token=BEGIN, epochs=1):
        np.testing.assert_array_equal(batch.extras["target_bytes"], np.where(batch.mask, batch.targets % 7, 0))


@pytest.mark.parametrize(
    "change, message",
    [
        ({"documents": make_documents([5, 4])}, "fingerprint is"),
        ({"rows": 3}, "rows is 3 but the position has 2"),
        ({"seed": 9}, "seed is 9 but the position has 0"),
        ({"protocol": "contiguous"}, "protocol is 'contiguous'"),
        ({"begin_token": 2}, "begin_token is 2"),
    ],
)
def test_a_position_of_another_stream_is_refused(change, message):
    settings = {"documents": make_documents([5, 3]), "rows": 2, "segment_length": 4, "begin_token": BEGIN}
    position = DocumentBatches(**settings).position
    with pytest.raises(ValueError, match=message):
        DocumentBatches(**{**settings, **change}, position=position)


def test_a_position_without_the_rows_is_refused():
    settings = {"documents": make_documents([5, 3]), "rows": 2, "segment_length": 4, "begin_token": BEGIN}
    position = DocumentBatches(**settings, host_rows=(0, 1)).position
    with pytest.raises(ValueError, match=r"no rows \[1\]; join the hosts' positions"):
        DocumentBatches(**settings, position=position)
    with pytest.raises(ValueError, match=r"no rows \[1\]"):
        DocumentBatches(**settings, position=position, host_rows=(0, 1), epochs=1)
    own = {**settings, "host_rows": (0, 1), "epochs": 1, "shuffle": False}  # 5 tokens; those of row 1 are 3
    position = DocumentBatches(**own).position
    assert len(list(DocumentBatches(**own, position=position, in_step=False))) == 2
    own["host_rows"] = (1, 2)
    assert [len(list(DocumentBatches(**own, in_step=alike))) for alike in (True, False)] == [2, 1]
    with pytest.raises(ValueError, match="different streams, seed"):
        merge_positions([DocumentBatches(**settings).position, DocumentBatches(**settings, seed=1).position])


@pytest.mark.parametrize(
    "change, message",
    [
        ({"documents": ArrayDocuments([])}, "documents: none"),
        ({"rows": 0}, "rows: 0; give at least 1"),
        ({"segment_length": 0}, "segment_length: 0"),
        ({"segments_per_update": 0}, "segments_per_update: 0"),
        ({"epochs": 0}, "epochs: 0"),
        ({"protocol": "mixed"}, "protocol: 'mixed'; allowed are separate, contiguous"),
        ({"begin_token": None}, "begin_token: None; give the tokenizer's begin id"),
        ({"host_rows": (1, 1)}, r"host_rows: \(1, 1\)"),
        ({"host_rows": (0, 3)}, r"host_rows: \(0, 3\)"),
        ({"protocol": "contiguous", "rows": 9}, "rows: 9 streams of a corpus of 8 tokens"),
    ],
)
def test_bad_arguments_get_one_line(change, message):
    settings = {"documents": make_documents([5, 3]), "rows": 2, "segment_length": 4, "begin_token": BEGIN}
    with pytest.raises(ValueError, match=message) as error:
        DocumentBatches(**{**settings, **change})
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("lengths, score_first, needed", [([3, 0], True, "one"), ([3, 1], False, "two")])
@pytest.mark.parametrize("wrap", [lambda d: d, NoExtras], ids=["array", "minimal"])
def test_a_document_without_tokens_is_named(lengths, score_first, needed, wrap):
    documents = wrap(make_documents(lengths, annotate=False))
    with pytest.raises(ValueError, match=f"document 1 has {lengths[1]} tokens; needs at least {needed}") as error:
        DocumentBatches(documents, rows=1, segment_length=4, begin_token=BEGIN, score_first=score_first, shuffle=False)
    assert "\n" not in str(error.value)
    several = wrap(make_documents([*lengths, *lengths], annotate=False))
    with pytest.raises(ValueError, match="document 1 has . tokens, and so 1 more; needs"):
        DocumentBatches(several, rows=1, segment_length=4, begin_token=BEGIN, score_first=score_first)


def test_other_rows_begin_the_next_epoch():
    documents = make_documents([3] * 7, annotate=False)
    settings = {"segment_length": 2, "begin_token": BEGIN, "seed": 4}
    streams = DocumentBatches(documents, rows=3, **settings)
    for _ in range(11):
        next(streams)
    reached = max(epoch for epoch, _, _ in streams.position["rows"].values())
    moved = DocumentBatches(documents, rows=2, position=restart_with_rows(streams.position, 2), **settings)
    batch = next(moved)
    assert batch.start_of_document.all()
    order = epoch_order(7, seed=4, epoch=reached + 1)
    assert [int(batch.targets[0, row, 0] - 10) // 100 for row in (0, 1)] == order[:2].tolist()
