"""Tasks beside next tokens, from a configuration to their measures."""

import dataclasses
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from memjax.config import (
    Bidirectional,
    Classification,
    Config,
    Data,
    Dense,
    Evaluation,
    MaskedLanguageModeling,
    Model,
    ProductKey,
    QuestionAnswering,
    Schedule,
    Templates,
    TextFiles,
    Training,
    WordPiece,
)
from memjax.durable_files import write_json
from memjax.inspection.slot_usage import measure_usage
from memjax.models.transformer import split_collection
from memjax.tasks.question_answering import AnswerMeasure
from memjax.training.checkpoints import Checkpoints
from memjax.training.experiment import make_experiment
from memjax.training.loaded_runs import init_from
from memjax.training.named_arrays import flatten
from memjax.training.objective import model_loss
from memjax.training.run_start import train
from memjax.training.runs import config_to_dict, run_path
from memjax.training.scores import Score
from memjax.training.tables import Tables
from memjax.training.train_state import TrainState, init_variables
from memjax.training.variables import split_state

QUESTIONS = QuestionAnswering(stride=8, max_question_length=8, max_answer_length=4)


def make_config(tmp_path, task, name="run", **model):
    source = Templates(num_examples=40)
    if isinstance(task, MaskedLanguageModeling):
        (tmp_path / "texts").mkdir(exist_ok=True)
        for number in range(40):
            (tmp_path / "texts" / f"{number}.txt").write_text(f"the cat {number} sat on the mat\n" * 3)
        source = TextFiles(path=str(tmp_path / "texts"), validation_percent=30, test_percent=20)
    attention = Bidirectional(num_positions=24)
    return Config(
        name=name,
        workdir=str(tmp_path),
        task=task,
        model=Model(dim=8, num_heads=2, num_layers=2, attention=attention, feed_forward=Dense(dim=8), **model),
        data=Data(
            source=source,
            tokenizer=WordPiece(vocab_size=90),
            cache_dir=str(tmp_path / "c"),
            batch_size=4,
            segment_length=24,
        ),
        training=Training(steps=3, schedule=Schedule(warmup_steps=0), log_every=1),
        evaluation=Evaluation(batch_size=4),
    )


def random_variables(experiment, seed=0):
    generator = np.random.default_rng(seed)
    length = experiment.config.data.segment_length
    shapes = jax.eval_shape(lambda: init_variables(experiment.model, jax.random.key(0), length))
    variables = jax.tree.map(lambda leaf: jnp.asarray(generator.normal(size=leaf.shape), leaf.dtype), shapes)
    return {name: jax.tree.map(jnp.abs, tree) if name == "batch_stats" else tree for name, tree in variables.items()}


def save_run(config, seed=0):
    """A run directory with a checkpoint, as `train` leaves it."""
    experiment = make_experiment(config)
    variables, path = random_variables(experiment, seed), run_path(config)
    path.mkdir(parents=True)
    write_json(path / "config.json", config_to_dict(config))
    rows = np.zeros(2, bool)
    tables, statistics = Tables(variables.get("tables", {})), variables.get("batch_stats", {})
    state = TrainState(np.int32(3), variables["params"], tables, (), statistics, {}, {}, jax.random.key(0), {}, rows)
    checkpoints = Checkpoints(path / "checkpoints")
    checkpoints.save(3, split_state(state, experiment.model.layer_groups()))
    checkpoints.close()
    return path, variables


@pytest.mark.parametrize(
    "task",
    [
        MaskedLanguageModeling(),
        pytest.param(Classification(), marks=pytest.mark.laws),
        pytest.param(QUESTIONS, marks=pytest.mark.laws),
    ],
    ids=["mlm", "classes", "spans"],
)
def test_the_loss_is_that_of_the_targets_asked_for(task, tmp_path):
    experiment = make_experiment(make_config(tmp_path, task))
    variables, model = random_variables(experiment), experiment.model
    batch = jax.tree.map(lambda leaf: jnp.asarray(leaf[0]), next(experiment.stream()))
    loss = jax.jit(model_loss(model))
    _, _, nll, _ = loss(variables, model.init_state(4), batch, jax.random.key(0))
    extras = model.select_extras(batch.extras)

    @jax.jit
    def score(variables):
        output, _, _ = model.apply(variables, batch.inputs, model.init_state(4), mask=batch.mask, extras=extras)
        return model.apply(variables, output, method="log_probs")

    log_probs = np.asarray(score(variables))
    chosen = np.take_along_axis(log_probs, np.asarray(batch.targets)[..., None], axis=-1)[..., 0]
    np.testing.assert_allclose(nll.total, -(chosen * batch.weights).sum(where=batch.weights > 0), rtol=1e-4)
    targets = {MaskedLanguageModeling: 3, Classification: 1, QuestionAnswering: 2}[type(task)]
    assert batch.targets.shape == (4, targets) and float(nll.weight) == float(batch.weights.sum()) > 0


def test_accuracy_of_a_split_is_that_of_its_texts_one_by_one(tmp_path):
    experiment = make_experiment(make_config(tmp_path, Classification(), dropout=0.1))
    variables, documents = random_variables(experiment), experiment.documents("validation")
    result = experiment.evaluator()(variables)
    right, none = 0, experiment.model.init_state(1)

    @jax.jit
    def logits(ids, kinds, mask):
        return experiment.model.apply(variables, ids, none, mask=mask, extras={"token_types": kinds})[0]

    for index in range(len(documents)):
        example = documents.example(index)
        size = len(example.inputs)
        padded = np.zeros((2, 1, 24), np.int32)
        padded[:, 0, :size] = example.inputs, example.annotations["token_types"]
        ids, kinds, mask = map(jnp.asarray, (*padded, np.arange(24)[None] < size))
        right += int(np.argmax(logits(ids, kinds, mask)[0, 0])) == example.targets[0]
    assert len(documents) == 5 and result.targets == 5 and result.measures["accuracy"] == right / 5
    assert result.as_dict()["accuracy"] == right / 5 and result.protocol == "separate" and not result.bytes
    # Of the batch behind the first, which compiles.
    assert result.tokens_per_second / result.examples_per_second == pytest.approx(documents.num_tokens(4))
    json.dumps(result.as_dict())


def test_masks_of_an_evaluation_are_fixed_and_scores_do_not_depend_on_rows(tmp_path):
    config = make_config(tmp_path, MaskedLanguageModeling(mask_rate=0.4))
    experiment = make_experiment(config)
    variables = random_variables(experiment)
    seeded = dataclasses.replace(config, data=dataclasses.replace(config.data, seed=5))
    results = [
        experiment.evaluator()(variables),
        make_experiment(seeded).evaluator(Evaluation(batch_size=3, compute_accuracy=True))(variables),
    ]
    assert results[0].targets == results[1].targets > 20
    assert results[0].nats == pytest.approx(results[1].nats, rel=1e-5)
    assert 0 <= results[1].accuracy <= 1 and isinstance(results[0], Score) and not results[0].measures


def test_answers_of_a_split_are_measured(tmp_path):
    experiment = make_experiment(make_config(tmp_path, QUESTIONS))
    documents = experiment.documents("validation")
    seen = []
    result = experiment.evaluator()(
        random_variables(experiment), observe=lambda batch, scored: seen.append((batch, scored))
    )
    measure = AnswerMeasure(documents)
    for batch, scored in seen:
        measure.observe(batch, scored.output)
    assert result.measures == measure.result() and set(result.measures) == {"exact_match", "f1"}
    assert len(measure.answers) == len(documents.questions) == 5 and len(documents) > 5
    assert all(words in documents.questions[number].context for number, (_, words) in measure.answers.items())


def test_another_task_begins_with_what_it_shares(tmp_path):
    run, old = save_run(make_config(tmp_path, MaskedLanguageModeling(), "old"))
    config = make_config(tmp_path, Classification(num_classes=3), "new")
    config.data = dataclasses.replace(
        config.data, tokenizer=WordPiece(vocab=str(next((tmp_path / "c").glob("*.json"))))
    )
    experiment = make_experiment(config)
    fresh = random_variables(experiment, seed=9)
    start, new = init_from(run, fresh, experiment.model)
    assert new == ["params/head/classifier/bias", "params/head/classifier/kernel"]
    params = start["params"]
    np.testing.assert_array_equal(params["vocabulary"]["embedding"], old["params"]["vocabulary"]["embedding"])
    np.testing.assert_array_equal(params["pooler"]["kernel"], old["params"]["pooler"]["kernel"])
    np.testing.assert_array_equal(
        params["head"]["classifier"]["kernel"], fresh["params"]["head"]["classifier"]["kernel"]
    )
    assert jax.tree.structure(start) == jax.tree.structure(fresh)
    # A head of other classes, and a model without pooler.
    run, _ = save_run(dataclasses.replace(config, name="three"))
    two = dataclasses.replace(config, task=Classification(), name="two", model=dataclasses.replace(config.model))
    two.model.attention = Bidirectional(num_positions=24, pooler=False)
    model = make_experiment(two).model
    _, new = init_from(run, random_variables(make_experiment(two)), model)
    assert new == ["params/head/classifier/bias", "params/head/classifier/kernel"]
    two.model.attention = Bidirectional(num_positions=23, pooler=False)
    two.data.segment_length = 23
    shorter = make_experiment(two)
    with pytest.raises(ValueError, match=r"params/position_embedding \[24, 8\] there and \[23, 8\] here"):
        init_from(run, random_variables(shorter), shorter.model)
    fields = r"training.init_from: model.attention.num_positions: given 23, allowed: 24, as in .*; give "
    with pytest.raises(ValueError, match=fields + "--model.attention.num-positions 24, or begin with --from"):
        init_from(run, random_variables(shorter), shorter.model, config=two)


@pytest.mark.laws
def test_a_memory_joins_a_trained_encoder_and_is_counted_by_class(tmp_path):
    run, old = save_run(make_config(tmp_path, Classification(), "old"))
    config = make_config(tmp_path, Classification(), "new")
    config.model.feed_forward = ProductKey(
        dim=8, layers=(1,), num_keys=4, memory_heads=2, num_neighbors=2, key_dim=4, dense_scale=1.0
    )
    experiment = make_experiment(config)
    start, new = init_from(run, random_variables(experiment), experiment.model)
    assert all("layer_01/feed_forward/memory/" in name for name in new) and any("values" in name for name in new)
    np.testing.assert_array_equal(
        start["params"]["head"]["classifier"]["kernel"], old["params"]["head"]["classifier"]["kernel"]
    )
    # The network beside the memory begins anew, as a memory without it would.
    fresh, both = random_variables(experiment, seed=9), ("layer_01/feed_forward/wide/", "layer_01/feed_forward/narrow/")
    anew, new = init_from(run, fresh, experiment.model, reinitialized=both)
    assert sorted(name.split("/")[-2] for name in new if "memory" not in name) == ["narrow", "narrow", "wide", "wide"]
    groups = experiment.model.layer_groups()
    merged, first, loaded = (
        flatten(split_collection(tree["params"], groups)["stack"]) for tree in (anew, fresh, start)
    )
    for name, leaf in merged.items():
        is_new = name.startswith((*both, "layer_01/feed_forward/memory/"))
        np.testing.assert_array_equal(leaf, (first if is_new else loaded)[name], err_msg=name)
    with pytest.raises(ValueError, match=r"training\.reinitialized_parameters: given 'wider/', allowed: a part"):
        init_from(run, fresh, experiment.model, reinitialized=["wider/"])
    documents = experiment.documents("validation")
    counts = measure_usage(experiment, start)["layer_01/values"]
    tokens = sum(documents.num_tokens(i) for i in range(len(documents)))
    assert counts[""].lookups.sum() == tokens * 4 and set(counts) >= {"class_0", "not class_0", "class_1"}
    positive = sum(documents.num_tokens(i) for i in range(len(documents)) if documents.example(i).targets[0] == 1)
    assert counts["class_1"].lookups.sum() == counts["not class_0"].lookups.sum() == positive * 4


@pytest.mark.laws
def test_a_frozen_memory_does_not_train(tmp_path):
    config = make_config(tmp_path, Classification())
    config.model.num_layers = 1
    config.model.feed_forward = ProductKey(dim=8, layers=(0,), num_keys=4, memory_heads=2, num_neighbors=2, key_dim=4)
    config.training.frozen_parameters = ("feed_forward/memory/", "nothing")
    with pytest.raises(
        ValueError, match="training.frozen_parameters: given 'nothing', allowed: a part of a parameter's path"
    ):
        train(config, on_event=lambda event: None)
    config.training.frozen_parameters, config.name = ("feed_forward/memory/",), "frozen"
    seen = []
    keep = lambda info: seen.append(jax.device_get((info.state.params, info.state.tables.values)))
    train(config, hooks=[keep], on_event=lambda event: None)
    flat = [dict(flatten(params), **flatten(tables)) for params, tables in seen]
    same = {name: np.array_equal(flat[0][name], flat[-1][name]) for name in flat[0]}
    assert all(frozen == ("feed_forward/memory/" in name) for name, frozen in same.items()), same


def test_a_run_ends_with_its_measure(tmp_path):
    config = make_config(tmp_path, Classification(), scan_layers=True)
    result = train(config, on_event=lambda event: None)
    assert result.step == 3 and 0 <= result.results["evaluation"]["accuracy"] <= 1
    lines = [json.loads(line) for line in (result.path / "metrics.jsonl").read_text().splitlines()]
    assert [line["targets"] for line in lines if line["kind"] == "train"] == [4.0] * 3
    assert next(line for line in lines if line["kind"] == "evaluation")["targets"] == 5


@pytest.mark.slow
@pytest.mark.parametrize("task", [Classification(), QUESTIONS], ids=["classes", "spans"])
def test_a_small_encoder_learns_what_it_is_shown(task, tmp_path):
    if task is QUESTIONS:  # some answers have five tokens
        task = dataclasses.replace(task, max_answer_length=8)
    config = make_config(tmp_path, task)
    config.model.dim, config.model.feed_forward = 32, Dense(dim=64, activation="gelu_exact")
    config.data.source = Templates(num_examples=16)
    config.data.batch_size = 16
    config.training = Training(steps=200, schedule=Schedule(learning_rate=3e-3, warmup_steps=20), log_every=50)
    config.evaluation = Evaluation(split="train", batch_size=16)
    scores = train(config, on_event=lambda event: None).results["evaluation"]
    assert scores["accuracy"] > 0.9 if isinstance(task, Classification) else scores["exact_match"] > 90
