"""Tables with more rows than entries: the rows after the last entry have no effect, whatever is in them."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from memjax import config
from memjax.axes import parameter_names
from memjax.inference import Sampling, generate
from memjax.models.factory import make_language_model
from memjax.models.vocabulary import AdaptiveVocabulary, Vocabulary, num_padding, pad_tables, unpad_tables
from memjax.training import optimizers
from memjax.training.experiment import make_evaluation_model, make_experiment
from memjax.training.sharding import Layout
from tests.reference.parameters import params_of, random_params

VOCAB, DIM, MULTIPLE = 15, 8, 4
ADAPTIVE = {"cutoffs": (5, 9), "div_val": 2, "tie_projections": (False, True, True), "pieces": 2}
KINDS = {
    "tied": functools.partial(Vocabulary, VOCAB, DIM),
    "own output weights": functools.partial(Vocabulary, VOCAB, DIM, tied=False, bias=True),
    "adaptive": functools.partial(AdaptiveVocabulary, VOCAB, DIM, **ADAPTIVE),
}
SOME = [pytest.param(kind, marks=[pytest.mark.laws] if kind == "own output weights" else []) for kind in KINDS]
PADDING = {
    "tied": 1 * DIM,
    "own output weights": 2 * 1 * DIM + 1,
    "adaptive": 3 * (DIM + 1) + 0 + 2 * (DIM // 4 + 1),  # clusters of 5, 4 and 6 entries
}
TARGETS = jnp.array([[0, 4, 5, 8, 9, 14, 3], [14, 14, 9, 0, 1, 6, 2]])
BIG = 30.0


def hidden_states() -> jax.Array:
    return jnp.asarray(np.random.default_rng(0).normal(size=(2, 7, DIM)))


def poisoned(params: dict, vocabulary) -> dict:
    """With rows of padding that would be the most probable, were they entries."""
    padded = pad_tables(params, vocabulary)
    for name, (entries, _) in vocabulary.tables().items():
        padded[name] = jnp.asarray(padded[name]).at[entries:].set(BIG)
    return padded


@functools.cache
def found(kind: str):
    """(outputs, gradients) without padding and with it, in float64."""
    with jax.enable_x64(True):
        plain, padded = (KINDS[kind](dtype=jnp.float64, multiple=multiple) for multiple in (1, MULTIPLE))
        params = params_of(plain, hidden_states(), method="log_probs")

        def outputs(module, params, hidden):
            call = lambda method, *args: module.apply({"params": params}, *args, method=method)
            methods = {"token_nll": (hidden, TARGETS), "log_probs": (hidden,)}
            methods |= {"embed": (TARGETS,), "embed_output": (TARGETS,)}
            return {method: call(method, *args) for method, args in methods.items()}

        def both(module, params):
            def loss(params, hidden):
                made = outputs(module, params, hidden)
                tilt = lambda x: jnp.cos(jnp.arange(x.size, dtype=x.dtype)).reshape(x.shape)
                return sum((tilt(x) * x).sum() for x in made.values()), made

            gradients, made = jax.jit(jax.grad(loss, argnums=(0, 1), has_aux=True))(params, hidden_states())
            return jax.tree.map(np.asarray, (made, gradients))

        return both(plain, params), both(padded, poisoned(params, padded)), padded


@pytest.mark.parametrize("kind", SOME)
def test_outputs_are_those_without_padding(kind):
    (expected, _), (outputs, _), _ = found(kind)
    for name, value in expected.items():
        np.testing.assert_allclose(outputs[name], value, atol=1e-12, err_msg=name)
    assert outputs["log_probs"].shape == (2, 7, VOCAB)
    np.testing.assert_allclose(np.exp(outputs["log_probs"]).sum(axis=-1), 1, atol=1e-12)


@pytest.mark.parametrize("kind", SOME)
def test_padding_has_no_gradient_and_entries_have_theirs(kind):
    (_, (by_params, by_hidden)), (_, (padded_params, padded_hidden)), vocabulary = found(kind)
    np.testing.assert_allclose(padded_hidden, by_hidden, atol=1e-11)
    cut = unpad_tables(padded_params, vocabulary)
    assert cut.keys() == by_params.keys()
    for name, expected in by_params.items():
        np.testing.assert_allclose(cut[name], expected, atol=1e-11, err_msg=name)
    for name, (entries, shape) in vocabulary.tables().items():
        assert padded_params[name].shape == shape
        assert not padded_params[name][entries:].any(), name


@pytest.mark.parametrize("kind", SOME)
def test_ids_that_are_no_entries_find_no_padding(kind):
    plain, padded = (KINDS[kind](multiple=multiple) for multiple in (1, MULTIPLE))
    hidden, ids = hidden_states(), jnp.array([[-1, VOCAB, VOCAB + 1, 99, 0, 1, 2]] * 2)
    params = params_of(plain, hidden, method="log_probs", dtype=np.float32)

    @jax.jit
    def both(params, poisoned):
        of = {"token_nll": (hidden, ids), "embed": (ids,), "embed_output": (ids,)}
        call = lambda module, params: [module.apply({"params": params}, *of[method], method=method) for method in of]
        return call(plain, params), call(padded, poisoned)

    for expected, value in zip(*both(params, poisoned(params, padded)), strict=True):
        assert np.isfinite(value).all()
        np.testing.assert_allclose(value, expected, atol=1e-5)


@pytest.mark.parametrize("kind", SOME)
def test_entries_begin_as_without_padding_and_padding_as_zeros(kind):
    init = lambda module: module.init(jax.random.key(0), hidden_states(), method="log_probs")["params"]
    plain, padded = jax.jit(lambda: [init(KINDS[kind](multiple=multiple)) for multiple in (1, MULTIPLE)])()
    vocabulary = KINDS[kind](multiple=MULTIPLE)
    jax.tree.map(np.testing.assert_array_equal, unpad_tables(padded, vocabulary), plain)
    jax.tree.map(np.testing.assert_array_equal, pad_tables(plain, vocabulary), padded)
    rows = [padded[name].shape[0] for name in vocabulary.tables()]
    assert all(count % MULTIPLE == 0 for count in rows)
    size = lambda tree: sum(leaf.size for leaf in jax.tree.leaves(tree))
    assert size(padded) - size(plain) == num_padding(vocabulary) == PADDING[kind]
    assert num_padding(KINDS[kind](multiple=1)) == 0


@pytest.mark.parametrize(
    "optimizer",
    [optimizers.adam(lambda step: 0.1, weight_decay=0.1), optimizers.adafactor(lambda step: 0.1, momentum=0.9)],
    ids=["adam", "adafactor"],
)
def test_padding_stays_zero(optimizer):
    module, hidden = KINDS["own output weights"](multiple=MULTIPLE), hidden_states()
    variables = jax.jit(functools.partial(module.init, method="log_probs"))(jax.random.key(0), hidden)

    def loss(params):
        embedded = module.apply({"params": params}, TARGETS, method="embed")
        return module.apply({"params": params}, embedded + hidden, TARGETS, method="token_nll").sum()

    @jax.jit
    def step(params, state):
        updates, state = optimizer.update(jax.grad(loss)(params), state, params)
        return optax.apply_updates(params, updates), state

    params, state = variables["params"], optimizer.init(variables["params"])
    for _ in range(3):
        params, state = step(params, state)
    for name in ("embedding", "output", "bias"):
        assert not params[name][VOCAB:].any()
        assert (params[name][:VOCAB] != variables["params"][name][:VOCAB]).any()


# The whole model


def variables_of(model, length: int = 4):
    tokens, start = jnp.zeros((1, length), jnp.int32), jnp.ones(1, bool)
    return model.init({"params": jax.random.key(0)}, tokens, model.init_state(1), start_of_document=start)


def test_a_generated_token_is_an_entry():
    described = config.Model(dim=DIM, num_layers=1, num_heads=2, output=config.Softmax(tied=False, bias=True))
    plain, padded = (make_language_model(described, VOCAB, vocab_multiple=multiple) for multiple in (1, MULTIPLE))
    params = random_params(jax.eval_shape(lambda: variables_of(plain))["params"], dtype=np.float32)
    params["vocabulary"] = poisoned(params["vocabulary"], padded.vocabulary)
    settings = {"segment_length": 4, "max_tokens": 24, "block": 24, "sampling": Sampling(temperature=3.0), "seed": 1}
    (tokens,) = generate(padded, {"params": params}, [[1, 2, 3]], **settings)
    assert len(tokens) == 24 and len(set(tokens)) > 5 and max(tokens) < VOCAB


@pytest.mark.parametrize("output", [config.Softmax(bias=True), config.AdaptiveSoftmax(cutoffs=(130, 400), div_val=2)])
def test_padded_tables_divide_over_the_axis_model(output):
    described = config.Model(dim=32, num_layers=1, num_heads=8, output=output)
    layout = Layout(jax.sharding.AbstractMesh((1, 2, 8), ("data", "fsdp", "model")))

    def left_out(multiple: int) -> list[str]:
        model = make_language_model(described, 1001, vocab_multiple=multiple)
        init = lambda: variables_of(model)
        return [note for note in layout.skipped(parameter_names(init), jax.eval_shape(init)) if "vocab = " in note]

    assert left_out(1) != []
    assert left_out(128) == []


def test_runs_are_padded_and_models_of_ones_own_are_not():
    source = config.KeyValueRecall(num_documents=8)
    attention = config.Memorizing(layers_with_memory=(-1,), memory_length=8, num_neighbors=2, cache_length=4)
    model = config.Model(dim=DIM, num_layers=1, num_heads=2, attention=attention)
    described = config.Config(model=model, data=config.Data(source=source, batch_size=2, segment_length=8))
    experiment = make_experiment(described)
    vocab_size = experiment.model.vocabulary.vocab_size
    assert experiment.model.vocabulary.multiple == 128 and vocab_size % 128
    evaluation = config.Evaluation(memory_length=16)
    assert make_evaluation_model(experiment, evaluation).vocabulary == experiment.model.vocabulary
    assert experiment.model.padding() == (-vocab_size % 128) * DIM
    assert make_language_model(model, vocab_size).padding() == 0
    described.sharding.pad_vocab_to_multiple = 0
    with pytest.raises(ValueError, match="sharding.pad_vocab_to_multiple: given 0, allowed: an integer of at least 1"):
        make_experiment(described)
