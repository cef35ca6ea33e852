import dataclasses
import math

import jax
import numpy as np
import pytest

from memjax.data.documents import ArrayDocuments
from memjax.data.reading_plan import ReadingPlan
from memjax.data.windows import sliding_windows
from memjax.training.evaluation import EvaluationInterrupted, Evaluator, evaluate
from memjax.training.scores import DocumentScores, EvaluationResult
from tests.training.toy import LENGTH, ToyModel, toy_documents, toy_state, toy_stream

DOCUMENTS = toy_documents(9, seed=3)


@pytest.fixture(scope="module")
def variables():
    return {"params": toy_state(ToyModel(), batch=next(toy_stream())).params}


EVALUATORS = {}


def read(**arguments):
    return ReadingPlan(**{"rows": 3, "segment_length": LENGTH, "begin_token": 0, **arguments})


def score(variables, observe=None, **arguments):
    """One evaluation; compiled programs are kept by the shapes they were compiled for."""
    fields = [field.name for field in dataclasses.fields(ReadingPlan)]
    reading = read(**{name: arguments.pop(name) for name in fields if name in arguments})
    evaluator = Evaluator(ToyModel(), arguments.pop("documents", DOCUMENTS), reading, **arguments)
    key = (
        arguments.get("compute_accuracy", False),
        arguments.get("change_memory"),
        reading.rows if "host_rows" not in arguments else 2,
    )
    evaluator._score = EVALUATORS.setdefault(key, evaluator._score)
    return evaluator(variables, **({"observe": observe} if observe else {}))


@pytest.mark.parametrize("rows", [1, 2, 3, 8])
def test_every_document_has_its_sums(variables, rows):
    scores = DocumentScores()
    result = score(variables, rows=rows, observe=scores.observe)
    assert sorted(scores.targets.tolist()) == sorted(len(DOCUMENTS[i]) for i in range(9))
    assert scores.nats.sum() == pytest.approx(result.nats)
    alone = DocumentScores()
    document = ArrayDocuments([DOCUMENTS[4]], num_bytes=[DOCUMENTS.num_bytes(4)])
    score(variables, rows=rows, documents=document, observe=alone.observe)
    assert alone.targets.tolist() == [len(DOCUMENTS[4])]
    assert np.min(np.abs(scores.nats - alone.nats)) == pytest.approx(0, abs=1e-5)


def test_a_row_of_streams_and_a_window_are_documents(variables):
    streams, windows = DocumentScores(), DocumentScores()
    result = score(variables, protocol="contiguous", observe=streams.observe)
    assert len(streams.targets) == 3 and streams.targets.sum() == result.targets
    result = score(variables, protocol="sliding_window", observe=windows.observe)
    assert len(windows.targets) > 9 and windows.nats.sum() == pytest.approx(result.nats)
    assert DocumentScores().nats.tolist() == []


@pytest.fixture(scope="module")
def expected(variables):
    """The equations in float64, one document after the other."""
    model, params = ToyModel(), jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), variables["params"])
    nats, odd, odd_bytes = [], [], 0
    for index in range(len(DOCUMENTS)):
        tokens, memory = DOCUMENTS[index], np.zeros((0, model.dim))
        inputs = np.concatenate([[0], tokens[:-1]])
        for begin in range(0, len(tokens), LENGTH):
            x = params["embed"]["embedding"][inputs[begin : begin + LENGTH]]
            recalled = memory[-model.memory_length :].sum(axis=0) / max(len(memory), 1)
            pre = (x + recalled) @ params["mix"]["kernel"] + params["mix"]["bias"]
            hidden = 0.5 * pre * (1 + np.tanh(math.sqrt(2 / math.pi) * (pre + 0.044715 * pre**3)))
            logits = hidden @ params["output"]["kernel"] + params["output"]["bias"]
            log_probs = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
            targets = tokens[begin : begin + LENGTH]
            losses = -log_probs[np.arange(len(targets)), targets]
            nats += losses.tolist()
            odd += losses[targets % 2 == 1].tolist()
            odd_bytes += int((1 + targets % 3)[targets % 2 == 1].sum())
            memory = np.concatenate([memory, x])[-model.memory_length :]
    return {"nats": sum(nats), "targets": len(nats), "odd": (sum(odd), len(odd), odd_bytes)}


def test_totals_equal_the_equations_for_any_rows_and_hosts(variables, expected):
    results = [score(variables, rows=rows) for rows in (1, 3, 8)]
    hosts = [Evaluator(ToyModel(), DOCUMENTS, read(rows=4), host_rows=part) for part in ((0, 2), (2, 4))]
    results.append(hosts[0](variables).merge(hosts[1](variables)))
    for result in results:
        assert result.targets == expected["targets"] == sum(len(DOCUMENTS[i]) for i in range(9))
        assert result.bytes == sum(DOCUMENTS.num_bytes(i) for i in range(9)) and result.complete
        np.testing.assert_allclose(result.nats, expected["nats"], rtol=1e-6)
        odd = result.subsets["odd"]
        assert (odd.targets, odd.bytes) == expected["odd"][1:]
        np.testing.assert_allclose(odd.nats, expected["odd"][0], rtol=1e-6)
    nats = [result.nats for result in results]
    assert max(nats) - min(nats) < 1e-6 * nats[0]
    result = results[0]
    assert result.bits_per_byte == pytest.approx(result.nats / math.log(2) / result.bytes)
    assert result.perplexity == pytest.approx(math.exp(result.nats / result.targets))
    assert result.memory_bytes == 6 * (8 * 4 + 1)
    assert set(result.metrics) == {"toy/filled"}


def test_bytes_come_from_the_documents_where_tokens_have_none(variables):
    bare = ArrayDocuments([DOCUMENTS[i] for i in range(9)], num_bytes=[DOCUMENTS.num_bytes(i) for i in range(9)])
    assert score(variables, documents=bare).bytes == sum(DOCUMENTS.num_bytes(i) for i in range(9))
    cut = score(variables, documents=bare, max_segments=1)
    assert not cut.complete and cut.bytes == 0 and cut.bits_per_byte is None and cut.targets == 4 + 3 + 4


def test_words_are_counted_where_every_token_was_scored(variables):
    words = {"num_words": lambda: 7}
    result = score(variables, **words)
    assert result.words == 7 and result.bytes == sum(DOCUMENTS.num_bytes(i) for i in range(9))
    assert result.word_perplexity == pytest.approx(math.exp(result.nats / 7))
    assert result.as_dict()["word_perplexity"] == result.word_perplexity
    for part in (score(variables, **words, max_segments=1), score(variables)):
        assert part.word_perplexity is None and "words" not in part.as_dict()


def test_accuracy_counts_what_the_model_would_have_chosen(variables):
    result = score(variables, compute_accuracy=True, rows=2)
    plain = score(variables, rows=2)
    assert plain.accuracy is None and plain.correct is None
    np.testing.assert_allclose(result.nats, plain.nats, rtol=1e-6)
    certain = jax.tree.map(np.zeros_like, variables)
    certain["params"]["output"]["bias"][5] = 9.0
    always_five = score(certain, compute_accuracy=True, rows=2)
    tokens = np.concatenate([DOCUMENTS[i] for i in range(9)])
    assert always_five.correct == (tokens == 5).sum() and always_five.subsets["odd"].accuracy == np.mean(
        tokens[tokens % 2 == 1] == 5
    )


def test_first_tokens_need_not_be_scored(variables):
    result = evaluate(ToyModel(), variables, DOCUMENTS, read(score_first=False, rows=2))
    assert result.targets == sum(len(DOCUMENTS[i]) - 1 for i in range(9)) and not result.score_first


def test_contiguous_streams_score_every_token_once(variables):
    for rows in (1, 3):
        result = score(variables, protocol="contiguous", rows=rows)
        assert result.targets == sum(len(DOCUMENTS[i]) for i in range(9)) and result.protocol == "contiguous"


@pytest.mark.parametrize("begin_token", [0, None])
def test_sliding_windows_score_every_target_once(begin_token):
    length, stride = 4, 2
    owners = []  # which document each window belongs to, from its targets
    windows = list(sliding_windows(DOCUMENTS, rows=3, length=length, stride=stride, begin_token=begin_token))
    pending = [(index, t) for index in range(9) for t in range(begin_token is None, len(DOCUMENTS[index]))]
    for batch in windows:
        assert batch.start_of_document.all()
        for row in range(3):
            scored = np.flatnonzero(batch.weights[row])
            if not len(scored):
                assert not batch.mask[row].any()
                continue
            index, first = pending[0]
            owners.append(index)
            for place in scored:
                assert pending.pop(0) == (index, first + place - scored[0])
                assert batch.targets[row, place] == DOCUMENTS[index][first + place - scored[0]]
                assert batch.extras["target_bytes"][row, place] == 1 + batch.targets[row, place] % 3
            begin = first - int(scored[0])
            context = np.concatenate([[begin_token or 0], DOCUMENTS[index]])[begin : begin + batch.mask[row].sum()]
            np.testing.assert_array_equal(batch.inputs[row, batch.mask[row]], context)
            new = first == (begin_token is None)
            assert len(scored) <= (length if new else stride) and (new or scored[0] >= length - stride)
    assert not pending and owners == sorted(owners)


def test_sliding_windows_on_hosts_add_up(variables):
    one = score(variables, protocol="sliding_window", stride=1, rows=4)
    assert one.stride == 1 and one.targets == sum(len(DOCUMENTS[i]) for i in range(9))
    parts = [score(variables, protocol="sliding_window", stride=1, rows=4, host_rows=part) for part in ((0, 2), (2, 4))]
    both = parts[0].merge(parts[1])
    assert both.targets == one.targets and both.bytes == one.bytes
    np.testing.assert_allclose(both.nats, one.nats, rtol=1e-6)
    # Windows have no memory of each other.
    assert score(variables, rows=3).nats != pytest.approx(one.nats, rel=1e-4)


def test_unscored_targets_count_nothing(variables):
    notes = [{"weights": (np.arange(len(DOCUMENTS[i])) > 0).astype(np.float32)} for i in range(9)]
    documents = ArrayDocuments([DOCUMENTS[i] for i in range(9)], annotations=notes)
    for protocol in ("separate", "sliding_window"):
        result = score(variables, documents=documents, protocol=protocol)
        assert result.targets == sum(len(DOCUMENTS[i]) - 1 for i in range(9))


def test_results_are_json_and_stopping_is_possible(variables):
    result = score(variables, rows=2)
    values = result.as_dict()
    assert values["protocol"] == "separate" and values["subsets"]["odd"]["targets"] == result.subsets["odd"].targets
    assert isinstance(result, EvaluationResult) and "metrics" in values and "examples_per_second" not in values
    empty = dataclasses.replace(result, nats=0.0, targets=0, bytes=0)
    assert empty.perplexity is None and empty.bits_per_byte is None
    with pytest.raises(EvaluationInterrupted):
        Evaluator(ToyModel(), DOCUMENTS, read(rows=2))(variables, stop=lambda: True)


@pytest.mark.parametrize(
    "arguments, line",
    [
        ({"protocol": "whole"}, "protocol: given 'whole', allowed: separate"),
        ({"stride": 2}, "stride: given 2, allowed: 0 with protocol 'separate'"),
        ({"protocol": "sliding_window", "stride": 9}, "stride: given 9, allowed: 1 to segment_length = 4"),
        ({"subsets": ["even"]}, "subsets: given 'even', allowed: annotations of the documents"),
    ],
)
def test_mistakes_are_named(variables, arguments, line):
    with pytest.raises(ValueError, match=line):
        score(variables, **arguments)


@pytest.mark.parametrize(
    "rates", [{}, {"tokens_per_second": 2.5}, {"tokens_per_second": 2.5, "examples_per_second": 0.5}]
)
def test_rates_that_were_not_measured_are_no_numbers(rates):
    values = EvaluationResult(nats=10.0, targets=5, protocol="contiguous", rows=1, segment_length=4, **rates).as_dict()
    assert {name: value for name, value in values.items() if name.endswith("_per_second")} == rates
