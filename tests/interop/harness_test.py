"""A run as a model of evaluation harnesses: its three functions against direct scores."""

import dataclasses

import jax
import numpy as np
import pytest

from memjax.config import Bytes, Config, Data, Evaluation, Memorizing, Model
from memjax.data.documents import ArrayDocuments
from memjax.data.tokenizers import ByteTokenizer
from memjax.interop.harness import RunScorer, harness_model
from memjax.training.experiment import make_experiment
from memjax.training.loaded_runs import LoadedCheckpoint, LoadedRun
from memjax.training.variables import init_variables

LENGTH = 8
PAIRS = (
    ("The keeper of the lighthouse is called ", "Ada"),
    ("", "begins a document"),
    ("a context much longer than a segment, so that the memory is read: ", "and a continuation that is longer, too"),
    ("trailing blanks belong to what follows   ", "x"),
    ("ends", ""),
    ("ab", "c"),
    ("Grüße aus ", "München €"),
    ("line one\n", "\tline two"),
)


@pytest.fixture(scope="module")
def run():
    """An untrained model whose scores are far from uniform."""
    attention = Memorizing(layers_with_memory=(-1,), memory_length=16, num_neighbors=2, cache_length=4)
    config = Config(
        name="harness",
        model=Model(dim=16, num_layers=2, num_heads=2, attention=attention),
        data=Data(tokenizer=Bytes(), batch_size=2, segment_length=LENGTH),
        evaluation=Evaluation(batch_size=2),
    )
    experiment = make_experiment(config, tokenizer=ByteTokenizer())
    variables = init_variables(experiment.model, jax.random.key(0), LENGTH)
    return LoadedRun(experiment, jax.tree.map(lambda leaf: 3 * leaf, variables), LoadedCheckpoint(1, 1))


@pytest.fixture(
    scope="module",
    params=[pytest.param(True, id="memory"), pytest.param(False, id="no_memory", marks=pytest.mark.laws)],
)
def scorer_and_log_probs(request, run):
    """A scorer, and the log-probabilities of every token after all before it, one segment after the other."""
    scorer = RunScorer(run, memory=request.param, rows=3, max_tokens=12)
    evaluation = dataclasses.replace(run.experiment.config.evaluation, memory_length=None if request.param else 0)
    evaluator = run.experiment.evaluator(evaluation, documents=ArrayDocuments([[0]]))
    model, variables = evaluator.model, evaluator.convert_variables(run.variables)

    @jax.jit
    def read(tokens, state, start, mask):
        hidden, state, _ = model.apply(variables, tokens, state, start_of_document=start, mask=mask)
        return model.apply(variables, hidden, method="log_probs"), state

    def log_probs(tokens):
        inputs = [ByteTokenizer().begin_id, *tokens[:-1]]
        state, rows = model.init_state(1), []
        for begin in range(0, len(inputs), LENGTH):
            part = inputs[begin : begin + LENGTH]
            padded = np.array([part + [0] * (LENGTH - len(part))], np.int32)
            mask = np.arange(LENGTH)[None] < len(part)
            log_probs, state = read(padded, state, np.array([begin == 0]), mask)
            rows.append(np.asarray(log_probs)[0, : len(part)])
        return np.concatenate(rows)

    return scorer, log_probs


def test_loglikelihood(scorer_and_log_probs):
    scorer, log_probs = scorer_and_log_probs
    answers = scorer.loglikelihood(PAIRS)
    for (context, continuation), (nats, greedy) in zip(PAIRS, answers, strict=True):
        tokens = ByteTokenizer().encode(context + continuation).tolist()
        number = len(tokens) - len(ByteTokenizer().encode(context.rstrip()))
        if not number:
            assert (nats, greedy) == (0.0, True)
            continue
        scores = log_probs(tokens)
        expected = scores[np.arange(len(tokens)), tokens][-number:].sum()
        np.testing.assert_allclose(nats, expected, rtol=1e-5)
        assert greedy == (scores.argmax(axis=1) == tokens)[-number:].all()


def test_the_most_probable_continuation_is_greedy_and_is_what_is_generated(scorer_and_log_probs):
    scorer, log_probs = scorer_and_log_probs
    (text,) = scorer.generate_until([(PAIRS[2][0], {"max_gen_toks": 3})])
    tokens = ByteTokenizer().encode(PAIRS[2][0]).tolist()
    special = [0, 1]  # never drawn
    for _ in range(3):
        scores = log_probs([*tokens, 3])[-1].copy()
        scores[special] = -np.inf
        tokens.append(int(scores.argmax()))
    assert text == ByteTokenizer().decode(tokens[-3:])


def test_rolling(scorer_and_log_probs):
    scorer, log_probs = scorer_and_log_probs
    texts = [context + continuation for context, continuation in PAIRS] + [""]
    for text, nats in zip(texts, scorer.loglikelihood_rolling(texts), strict=True):
        tokens = ByteTokenizer().encode(text).tolist()
        expected = log_probs(tokens)[np.arange(len(tokens)), tokens].sum() if tokens else 0.0
        np.testing.assert_allclose(nats, expected, rtol=1e-5)


@pytest.mark.laws
def test_generation_stops_and_keeps_the_order(scorer_and_log_probs):
    scorer, _ = scorer_and_log_probs
    requests = [(context, {"max_gen_toks": 4 + number % 2}) for number, (context, _) in enumerate(PAIRS)]
    texts = scorer.generate_until(requests)
    alone = [scorer.generate_until([request])[0] for request in requests[:3]]
    assert texts[:3] == alone and len(texts) == len(requests)
    (context, settings), text = requests[0], texts[0]
    assert text, "nothing was generated"
    until = [text[1]] if len(text) > 1 else text
    assert scorer.generate_until([(context, {**settings, "until": until})]) == [text[: text.index(until[0])]]


@pytest.mark.laws
def test_memory_off_is_another_model(run):
    requests = [PAIRS[2], PAIRS[0]]
    on, off = (RunScorer(run, memory=memory).loglikelihood(requests) for memory in (True, False))
    assert on[0][0] != off[0][0]


@pytest.mark.parametrize("settings, part", [({"rows": 0}, "rows: given 0"), ({"rows": -1}, "rows: given -1")])
def test_mistakes_are_one_line(run, settings, part):
    with pytest.raises(ValueError, match=part):
        RunScorer(run, **settings)


@pytest.mark.slow
def test_a_local_task_of_lm_eval(run, tmp_path):
    lm_eval, tasks_of = pytest.importorskip("lm_eval"), pytest.importorskip("lm_eval.tasks")
    (tmp_path / "data.jsonl").write_text(
        "".join(f'{{"text": "{a} and {b}", "choices": ["{a}", "{b}"], "label": 0}}\n' for a, b in ("xy", "ab", "cd"))
    )
    common = f"dataset_path: json\ndataset_kwargs:\n  data_files:\n    test: {tmp_path}/data.jsonl\ntest_split: test\n"
    kinds = {
        "choices": 'output_type: multiple_choice\ndoc_to_text: "{{text}}: "\ndoc_to_choice: "{{choices}}"\n'
        "doc_to_target: label\nmetric_list:\n  - metric: acc\n",
        "rolling": 'output_type: loglikelihood_rolling\ndoc_to_text: ""\ndoc_to_target: "{{text}}"\n'
        "metric_list:\n  - metric: bits_per_byte\n",
        "generating": 'output_type: generate_until\ndoc_to_text: "{{text}}"\ndoc_to_target: "{{choices[0]}}"\n'
        'generation_kwargs:\n  until: ["\\n"]\n  max_gen_toks: 4\nmetric_list:\n  - metric: exact_match\n',
    }
    for name, text in kinds.items():
        (tmp_path / f"local_{name}.yaml").write_text(f"task: local_{name}\n{common}{text}")
    manager = tasks_of.TaskManager(include_path=str(tmp_path), include_defaults=False)
    tasks = [f"local_{name}" for name in kinds]
    by_memory = {
        memory: lm_eval.simple_evaluate(
            model=harness_model(run, memory=memory, rows=2), tasks=tasks, task_manager=manager, bootstrap_iters=0
        )["results"]
        for memory in (True, False)
    }
    for results in by_memory.values():
        assert results["local_choices"]["acc,none"] in (0, 1 / 3, 2 / 3, 1)
        assert results["local_generating"]["exact_match,none"] >= 0
    texts = ["x and y", "a and b", "c and d"]
    nats = RunScorer(run, rows=2).loglikelihood_rolling(texts)
    bits = -sum(nats) / np.log(2) / sum(map(len, texts))
    np.testing.assert_allclose(by_memory[True]["local_rolling"]["bits_per_byte,none"], bits, rtol=1e-6)
