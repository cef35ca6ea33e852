import json

import numpy as np
import pytest

from memjax.data.annotations import (
    NEIGHBORS,
    NUMBER,
    AnnotatedDocuments,
    compare_target_shares,
    open_neighbors,
    target_shares,
    write_neighbors,
)
from memjax.data.document_batches import DocumentBatches
from memjax.data.documents import ArrayDocuments
from memjax.data.token_files import TokenFile, TokenizedDocument, write_tokens
from memjax.data.windows import sliding_windows
from memjax.durable_files import read_json

LENGTHS = [5, 1, 7]
TOKENS = [np.arange(10 * i, 10 * i + n, dtype=np.int32) for i, n in enumerate(LENGTHS)]
PAIRS = np.arange(26, dtype=np.float32).reshape(13, 2)
OWN = [{"target_bytes": (ids % 7).astype(np.int32)} for ids in TOKENS]


def annotated(own=OWN, **settings) -> AnnotatedDocuments:
    return AnnotatedDocuments(ArrayDocuments(TOKENS, annotations=own), {"pairs": PAIRS}, **settings)


@pytest.mark.parametrize("protocol, rows", [("separate", 2), ("contiguous", 2), ("sliding_window", 2)])
def test_entries_of_any_shape_come_with_their_target(protocol, rows):
    documents, everything = annotated(numbers=True), np.concatenate(TOKENS)
    if protocol == "sliding_window":
        batches = list(sliding_windows(documents, rows=rows, length=4, stride=2, begin_token=99))
    else:
        stream = DocumentBatches(documents, rows=rows, segment_length=4, protocol=protocol, begin_token=99, epochs=1)
        batches = [type(b)(*(leaf[0] for leaf in (b.inputs, b.targets, b.mask, b.weights, b.start_of_document)),
                           {name: array[0] for name, array in b.extras.items()}) for b in stream]  # fmt: skip
    seen = []
    for batch in batches:
        assert batch.extras["pairs"].shape == (rows, 4, 2) and batch.extras["pairs"].dtype == np.float32
        chosen = batch.weights > 0
        numbers = batch.extras[NUMBER][chosen]
        np.testing.assert_array_equal(batch.targets[chosen], everything[numbers])
        np.testing.assert_array_equal(batch.extras["pairs"][chosen], PAIRS[numbers])
        np.testing.assert_array_equal(batch.extras["target_bytes"][chosen], everything[numbers] % 7)
        assert not batch.extras["pairs"][~batch.mask].any()
        seen += numbers.tolist()
    assert sorted(seen) == list(range(13))


def test_windows_of_a_token_file_are_read_in_pieces(tmp_path):
    tokenized = lambda first: iter([TokenizedDocument("x", ids, len(ids)) for ids in TOKENS[first:]])
    write_tokens(tmp_path / "tokens", tokenized, token_bytes=np.ones(40, np.int32), source="a", tokenizer="b")
    documents = AnnotatedDocuments(TokenFile(tmp_path / "tokens"), {"pairs": PAIRS}, numbers=True)
    tokens, notes = documents.window(2, 2, 5)
    np.testing.assert_array_equal(tokens, TOKENS[2][2:5])
    np.testing.assert_array_equal(notes["pairs"], PAIRS[8:11])
    np.testing.assert_array_equal(notes[NUMBER], [8, 9, 10])
    assert notes["target_bytes"].tolist() == [1, 1, 1]
    assert documents.num_tokens(2) == 7 and len(documents) == 3


def test_contexts_stay_in_their_document():
    documents = annotated()
    assert documents.before(6, 4).tolist() == [] and documents.before(5, 4).tolist() == []
    assert documents.before(4, 2).tolist() == [2, 3] and documents.before(12, 99).tolist() == TOKENS[2][:6].tolist()
    with pytest.raises(ValueError, match="number: given 13, allowed: 0 to 12"):
        documents.before(13, 4)


def test_fingerprints_and_mistakes():
    plain = ArrayDocuments(TOKENS)
    assert annotated().fingerprint != annotated(numbers=True).fingerprint != plain.fingerprint
    assert annotated().fingerprint == annotated().fingerprint
    with pytest.raises(ValueError, match="pairs: given 12 entries, allowed: 13"):
        AnnotatedDocuments(plain, {"pairs": PAIRS[1:]})
    with pytest.raises(ValueError, match="arrays: given 'target_bytes', which the documents have"):
        AnnotatedDocuments(ArrayDocuments(TOKENS, annotations=OWN), {"target_bytes": PAIRS})


def test_neighbors_of_a_split_are_kept_on_disk(tmp_path):
    values = np.arange(-1, 25).reshape(13, 2)
    documents = ArrayDocuments(TOKENS, annotations=OWN)
    write_neighbors(tmp_path / "neighbors", "train", values, documents)
    opened = open_neighbors(tmp_path / "neighbors", "train", documents)
    found = opened.annotate(2)
    np.testing.assert_array_equal(found[NEIGHBORS], values[6:])
    assert found[NEIGHBORS].dtype == np.int32 and set(found) == {NEIGHBORS, "target_bytes"}
    with pytest.raises(ValueError, match="neighbors: .* has none for the split test"):
        open_neighbors(tmp_path / "neighbors", "test", documents)
    with pytest.raises(ValueError, match=r"train.json is of other documents"):
        open_neighbors(tmp_path / "neighbors", "train", ArrayDocuments(TOKENS[:2]))
    write_neighbors(tmp_path / "neighbors", "train", -values // 2 % 9, documents)
    again = open_neighbors(tmp_path / "neighbors", "train", documents)
    assert len({documents.fingerprint, opened.fingerprint, again.fingerprint}) == 3  # a run does not go on with others
    with pytest.raises(ValueError, match="store: given 'b', allowed: '', the one of .*train.json"):
        write_neighbors(tmp_path / "neighbors", "validation", values, documents, store="b")
    for wrong, line in [
        (values[1:], r"values: given int64 \[12, 2\], allowed: integers \[13, neighbours\]"),
        (values.astype(float), "values: given float64"),
        (values - 1, "values: given -2, allowed: tokens, and -1"),
    ]:
        with pytest.raises(ValueError, match=line):
            write_neighbors(tmp_path / "neighbors", "train", wrong, documents)
    file = tmp_path / "neighbors" / "train.npy"
    whole = file.read_bytes()
    flipped = whole[:-3] + bytes([whole[-3] ^ 16]) + whole[-2:]
    other_shape = whole.replace(b"(13, 2), ", b"(2, 13), ")
    for damaged in (
        flipped,
        whole[:-8],
        b"",
        other_shape,
        whole.replace(b"<i4", b"<f4"),
        whole.replace(b"<i4", b"|O4"),
    ):
        file.write_bytes(damaged)
        with pytest.raises(ValueError, match=r"train.npy [^\n]*find them again"):
            open_neighbors(tmp_path / "neighbors", "train", documents)
    (tmp_path / "neighbors" / "train.json").unlink()  # as an interrupted write leaves it
    with pytest.raises(ValueError, match="has none for the split train"):
        open_neighbors(tmp_path / "neighbors", "train", documents)


@pytest.mark.parametrize(
    "changed",
    [
        *([], 5, "x", None),
        *({name: value} for name in ("documents", "store", "sha256", "neighbors") for value in (..., None, [1], 1.5)),
        *({"target_among": value} for value in (3, "x", [None], {"a": 1})),
    ],
    ids=str,
)
def test_a_description_of_neighbors_of_another_form_is_refused_in_one_line(tmp_path, changed):
    documents = ArrayDocuments(TOKENS)
    write_neighbors(tmp_path, "train", np.zeros((13, 2), int), documents)
    file = tmp_path / "train.json"
    value = {**read_json(file), **changed} if isinstance(changed, dict) else changed
    is_kept = lambda name: not isinstance(changed, dict) or changed.get(name) is not ...
    file.write_text(
        json.dumps({name: value[name] for name in value if is_kept(name)} if isinstance(value, dict) else value)
    )
    for read in (lambda: open_neighbors(tmp_path, "train", documents), lambda: target_shares(tmp_path)):
        with pytest.raises(ValueError, match=rf"path: {file} [^\n]*find them again"):
            read()


def test_how_often_targets_are_among_neighbors_is_kept_and_compared(tmp_path):
    """Of the tokens with neighbours, by the number of neighbours; a point apart is no word worth."""
    folder, texts = tmp_path / "neighbors", ArrayDocuments([[5, 6], [7, 8]])
    assert target_shares(folder) == {} and compare_target_shares(folder, 2) == ""
    write_neighbors(folder, "train", np.array([[5, 1], [1, 6], [-1, -1], [7, 9]]), texts)
    assert target_shares(folder) == {"train": [1 / 3, 2 / 3]} and compare_target_shares(folder, 2) == ""
    write_neighbors(folder, "validation", np.array([[5, 1], [-1, -1], [1, 1], [7, 9]]), texts)
    assert target_shares(folder)["validation"] == [1 / 3, 1 / 3] and compare_target_shares(folder, 1) == ""
    assert "of 66.7% of the training tokens and of 33.3% of those of validation" in compare_target_shares(folder, 2)
    tokens = np.arange(1000, dtype=np.int64)
    for missed, told in ((9, False), (11, True)):
        for split, wrong in (("train", 0), ("validation", missed)):
            write_neighbors(
                folder, split, np.where(tokens < wrong, tokens + 1, tokens)[:, None], ArrayDocuments([tokens])
            )
        assert bool(compare_target_shares(folder, 1)) == told
    assert "more than it should" in compare_target_shares(folder, 1)
    write_neighbors(folder, "train", (tokens + 1)[:, None], ArrayDocuments([tokens]))
    assert "less than it could" in compare_target_shares(folder, 1)


def test_neighbors_of_two_stores_are_not_read_side_by_side(tmp_path):
    """Copied together by hand: those of another key, or of another model."""
    texts, values = ArrayDocuments([[5, 6], [7, 8]]), np.full((4, 1), 5)
    for split, store in (("train", "a"), ("validation", "b")):
        write_neighbors(tmp_path / store, split, values, texts, store=store)
    for ending in ("json", "npy"):
        (tmp_path / "b" / f"validation.{ending}").rename(tmp_path / "a" / f"validation.{ending}")
    with pytest.raises(ValueError, match="validation.json is of store b, allowed: a, as the other splits"):
        open_neighbors(tmp_path / "a", "validation", texts)
