"""What every model says of itself, and one step of each as a plan sees it: shapes only, nothing is compiled."""

from typing import get_args

import jax
import pytest

from memjax.config import (
    LSTM,
    Bidirectional,
    Classification,
    Config,
    Data,
    EncoderDecoder,
    Evaluation,
    KeyValueRecall,
    Memformer,
    Memorizing,
    Model,
    QuestionAnswering,
    Training,
)
from memjax.models import make_encoder_decoder, make_language_model, make_memformer, make_text_encoder
from memjax.planning.programs import What, make_programs
from memjax.tasks import make_task
from memjax.training.experiment import make_evaluation_model, make_experiment
from memjax.training.sharding import Layout, make_mesh
from memjax.training.train_state import init_variables

VOCAB, LENGTH = 11, 8
SIZES = {"dim": 8, "num_heads": 2, "num_layers": 2}
MODELS = {
    "language model": Model(**SIZES, attention=Memorizing(memory_length=8, num_neighbors=2, cache_length=4)),
    "LSTM": Model(**SIZES, attention=LSTM()),
    "Memformer": Memformer(**SIZES, encoder_layers=1, num_slots=2),
    "translation": EncoderDecoder(**SIZES),
}


def make(kind):
    match kind:
        case "translation":
            return make_encoder_decoder(MODELS[kind], VOCAB)
        case "Memformer":
            return make_memformer(MODELS[kind], VOCAB, segment_length=LENGTH)
    return make_language_model(MODELS[kind], VOCAB)


def config_of(kind):
    data = Data(source=KeyValueRecall(num_documents=4), batch_size=2, segment_length=LENGTH)
    return Config(name="run", model=MODELS[kind], data=data, training=Training(), evaluation=Evaluation(batch_size=2))


@pytest.mark.parametrize("kind", MODELS)
def test_the_example_of_a_model_is_a_batch_that_it_reads(kind):
    model = make(kind)
    batch = model.example(2, LENGTH)
    assert model.select_extras(batch.extras).keys() == batch.extras.keys()

    def run(batch):
        variables = init_variables(model, jax.random.key(0), LENGTH)
        state = model.init_state(2)
        named = {"start_of_document": batch.start_of_document, "mask": batch.mask, "extras": batch.extras}
        output, after, _ = model.apply(variables, batch.inputs, state, **named)
        nll = model.apply(variables, output, batch.targets, batch.weights, method="nll")
        return nll, model.apply(variables, output, batch.targets, method="token_nll"), state, after

    nll, nats, before, after = jax.eval_shape(run, batch)
    assert (nll.total.shape, nll.weight.shape, nats.shape) == ((), (), (2, LENGTH))
    assert jax.tree.map(lambda leaf: leaf.shape, before) == jax.tree.map(lambda leaf: leaf.shape, after)


@pytest.mark.parametrize(("task", "targets"), [(Classification(num_classes=3), 1), (QuestionAnswering(), 2)])
def test_a_text_has_as_many_targets_as_its_head(task, targets):
    described = Model(**SIZES, attention=Bidirectional())
    model = make_text_encoder(described, task and make_task(Config(task=task, model=described)).head(), VOCAB)
    assert model.example(2, LENGTH).targets.shape == (2, targets)
    assert model.layer_groups() == ((0, 0), (1, 0))


@pytest.mark.parametrize(
    "kind, what",
    [
        pytest.param(kind, what, marks=[] if kind == "language model" or what == "train" else pytest.mark.laws)
        for kind in MODELS
        for what in get_args(What)
    ],
)
def test_every_model_can_be_planned(kind, what):
    (program,) = make_programs(config_of(kind), what, VOCAB, Layout(make_mesh((1, 1, 1), jax.devices()[:1]))).values()
    result = jax.eval_shape(program.function, *program.arguments.values())
    state = result[0]
    held = program.arguments["memory" if what != "train" else "state"]
    assert jax.tree.map(lambda leaf: leaf.shape, state) == jax.tree.map(lambda leaf: leaf.shape, held)


@pytest.mark.parametrize(
    ("kind", "capability", "line"),
    [
        ("translation", "decodes", "generate: given EncoderDecoder, allowed: a model that goes on from a prompt .*; "),
        (
            "translation",
            "mixes",
            "--evaluation.cache: given EncoderDecoder, .* translate, --evaluation.memory-length$",
        ),
        ("Memformer", "stores_keys", "datastore: given Memformer, .*; Memformer serves train, eval, plan, generate"),
    ],
)
def test_a_model_refuses_what_it_cannot_serve_in_one_line(kind, capability, line):
    with pytest.raises(ValueError, match=line) as refusal:
        make(kind).require(capability)
    assert "\n" not in str(refusal.value)
    make("language model").require("mixes")


@pytest.mark.parametrize("kind", ["Memformer", "translation"])
def test_a_cache_over_a_model_that_takes_none_is_refused(kind):
    evaluation = Evaluation(batch_size=2)
    evaluation.cache.memory_length = 8
    config = config_of(kind)
    config.evaluation = evaluation
    with pytest.raises(ValueError, match="--evaluation.cache: given "):
        make_programs(config, "eval", VOCAB, Layout(make_mesh((1, 1, 1), jax.devices()[:1])))
    if kind == "Memformer":
        experiment = make_experiment(config_of(kind))
        with pytest.raises(ValueError, match="--evaluation.cache: given Memformer"):
            make_evaluation_model(experiment, evaluation)
        with pytest.raises(ValueError, match="--evaluation.memory-length: given Memformer|given 4, allowed: None with"):
            make_evaluation_model(experiment, Evaluation(memory_length=4))
