import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from memjax.models.vocabulary import AdaptiveVocabulary, Vocabulary
from tests.models.jaxprs import trace
from tests.reference import vocabulary as reference
from tests.reference.parameters import params_of

VOCAB, DIM, CUTOFFS = 15, 8, (5, 9)
LAYOUTS = {
    "equal widths": {"div_val": 1},
    "own projections": {"div_val": 2},
    "tied projections": {"div_val": 2, "tie_projections": (False, True, True)},
}
SCORED = ("equal widths", "tied projections")  # the latter has a projection of its own too
TARGETS = jnp.array([[0, 4, 5, 8, 9, 14, 3], [14, 14, 9, 0, 1, 6, 2]])  # every border; 14 tokens in 4 pieces


@pytest.fixture(autouse=True)
def float64():
    with jax.enable_x64(True):
        yield


def hidden_states() -> jax.Array:
    return jnp.asarray(np.random.default_rng(0).normal(size=(2, 7, DIM)))


# One softmax


@pytest.mark.parametrize("tied", (True, False))
@pytest.mark.parametrize("bias", (True, False))
def test_one_softmax(tied, bias):
    module = Vocabulary(VOCAB, DIM, tied=tied, bias=bias, scale=3.0, dtype=jnp.float64)
    hidden = hidden_states()
    params = params_of(module, hidden, method="log_probs")
    assert params.keys() == {"embedding"} | ({"bias"} if bias else set()) | (set() if tied else {"output"})
    apply = lambda method: jax.jit(functools.partial(module.apply, method=method))
    call = lambda method, *args: np.asarray(apply(method)({"params": params}, *args))
    np.testing.assert_allclose(call("embed", TARGETS), 3 * params["embedding"][TARGETS], rtol=1e-12)
    weights = params["embedding" if tied else "output"]
    np.testing.assert_array_equal(call("embed_output", TARGETS), weights[TARGETS])

    scores = np.asarray(hidden) @ weights.T + (params["bias"] if bias else 0)
    expected = scores - np.log(np.exp(scores).sum(axis=-1, keepdims=True))
    np.testing.assert_allclose(call("log_probs", hidden), expected, atol=1e-12)
    picked = np.take_along_axis(expected, TARGETS[..., None], axis=-1)[..., 0]
    np.testing.assert_allclose(call("token_nll", hidden, TARGETS), -picked, atol=1e-12)


def test_scores_of_bfloat16_states_are_float32():
    module = Vocabulary(VOCAB, DIM, dtype=jnp.bfloat16)
    hidden = jnp.asarray(hidden_states(), jnp.bfloat16)
    params = params_of(module, hidden, method="log_probs", dtype=np.float32)
    assert module.apply({"params": params}, TARGETS, method="embed").dtype == jnp.bfloat16
    log_probs = module.apply({"params": params}, hidden, method="log_probs")
    assert log_probs.dtype == jnp.float32
    np.testing.assert_allclose(np.exp(log_probs).sum(axis=-1), 1, atol=1e-5)


# Adaptive softmax


def adaptive(name: str, **fields) -> AdaptiveVocabulary:
    fields = {"pieces": 4, "dtype": jnp.float64, **LAYOUTS[name], **fields}
    return AdaptiveVocabulary(VOCAB, DIM, CUTOFFS, **fields)


@functools.cache
def adaptive_params(name: str) -> dict:
    module = adaptive(name)
    shapes = params_of(module, jnp.zeros((1, 1, DIM)), method="log_probs")
    return shapes


@functools.cache
def losses(name: str):
    """Compiled: nats and their gradients by the pieces, by all log-probabilities, and the log-probabilities."""
    module = adaptive(name)

    @jax.jit
    def both(params, hidden, targets):
        tilt = jnp.cos(jnp.arange(targets.size, dtype=hidden.dtype)).reshape(targets.shape)

        def pieces(params, hidden):
            nll = module.apply({"params": params}, hidden, targets, method="token_nll")
            return (nll * tilt).sum(), nll

        def whole(params, hidden):
            log_probs = module.apply({"params": params}, hidden, method="log_probs")
            nll = -jnp.take_along_axis(log_probs, targets[..., None], axis=-1)[..., 0]
            return (nll * tilt).sum(), (nll, log_probs)

        gradient = lambda f: jax.value_and_grad(f, argnums=(0, 1), has_aux=True)(params, hidden)
        ((_, nll), by_pieces), ((_, (whole_nll, log_probs)), by_whole) = gradient(pieces), gradient(whole)
        return nll, by_pieces, whole_nll, by_whole, log_probs

    return both


@pytest.mark.parametrize("name", SCORED)
def test_log_probabilities_equal_the_float64_reference(name):
    hidden = hidden_states()
    *_, log_probs = losses(name)(adaptive_params(name), hidden, TARGETS)
    expected = [[reference.log_probs(h, adaptive_params(name), CUTOFFS, VOCAB) for h in row] for row in hidden]
    np.testing.assert_allclose(log_probs, expected, atol=1e-12)
    np.testing.assert_allclose(np.exp(log_probs).sum(axis=-1), 1, atol=1e-12)


@pytest.mark.parametrize("name", SCORED)
@pytest.mark.parametrize("targets", (TARGETS, jnp.full_like(TARGETS, 3), jnp.full_like(TARGETS, 12)))
def test_nats_of_pieces_are_those_of_all_log_probabilities(name, targets):
    nll, by_pieces, whole_nll, by_whole, _ = losses(name)(adaptive_params(name), hidden_states(), targets)
    np.testing.assert_allclose(nll, whole_nll, atol=1e-12)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-12), by_pieces, by_whole)
    assert nll.shape == targets.shape


@pytest.mark.parametrize("name", LAYOUTS)
def test_embeddings_equal_the_reference(name):
    module, params, ids = adaptive(name, scale=2.0), adaptive_params(name), jnp.arange(VOCAB).reshape(3, 5)
    embed = lambda **kind: [[reference.embed(i, params, CUTOFFS, VOCAB, **kind) for i in row] for row in ids.tolist()]
    apply = jax.jit(lambda params: [module.apply({"params": params}, ids, method=m) for m in ("embed", "embed_output")])
    embedded, output = apply(params)
    np.testing.assert_allclose(embedded, 2 * np.array(embed()), atol=1e-12)
    np.testing.assert_allclose(output, embed(output=True), atol=1e-12)


def test_output_embeddings_are_what_hidden_states_are_compared_with():
    name, hidden = "tied projections", hidden_states()
    params = {key: value * (0 if "bias" in key else 1) for key, value in adaptive_params(name).items()}
    *_, log_probs = losses(name)(params, hidden, TARGETS)
    for ids in reference.clusters(CUTOFFS, VOCAB):  # inside a cluster only the scores differ
        rows = np.array([reference.embed(i, params, CUTOFFS, VOCAB, output=True) for i in ids])
        scores = hidden @ rows.T
        inside = np.asarray(log_probs)[..., ids.start : ids.stop]
        np.testing.assert_allclose(inside - inside[..., :1], scores - scores[..., :1], atol=1e-12)


def test_column_of_the_head_that_stands_for_a_cluster():
    name, hidden = "equal widths", hidden_states()
    for index, ids in enumerate(reference.clusters(CUTOFFS, VOCAB)[1:]):
        bias = np.full(2, -50.0)
        bias[index] = 50.0
        *_, log_probs = losses(name)(adaptive_params(name) | {"cluster_bias": bias}, hidden, TARGETS)
        np.testing.assert_allclose(np.exp(log_probs[..., ids.start : ids.stop]).sum(axis=-1), 1, atol=1e-10)


def test_parameters_of_the_layouts():
    names = {name: set(adaptive_params(name)) for name in LAYOUTS}
    tables = {f"{kind}_{i}" for kind in ("embedding", "bias") for i in range(3)} | {"cluster_weight", "cluster_bias"}
    projections = {f"projection_{i}" for i in range(3)}
    assert names["equal widths"] == tables
    assert names["own projections"] == tables | projections | {f"output_{name}" for name in projections}
    assert names["tied projections"] == tables | projections | {"output_projection_0"}
    assert [adaptive_params("own projections")[f"embedding_{i}"].shape for i in range(3)] == [(5, 8), (4, 4), (6, 2)]


def test_the_loss_never_builds_scores_of_the_whole_vocabulary():
    tokens, vocab, pieces = 64, 211, 8
    module = AdaptiveVocabulary(vocab, DIM, (20, 60), pieces=pieces, dtype=jnp.float64)
    hidden, targets = jnp.zeros((2, tokens // 2, DIM)), jnp.zeros((2, tokens // 2), jnp.int32)
    params = params_of(module, hidden, method="log_probs")
    loss = lambda params, hidden: module.apply({"params": params}, hidden, targets, method="token_nll").sum()
    largest_cluster = vocab - 60
    seen = [var.aval.shape for eqn in trace(jax.grad(loss, argnums=(0, 1)), params, hidden) for var in eqn.outvars]
    assert not [shape for shape in seen if vocab in shape]
    assert max(math.prod(shape) for shape in seen) <= max(tokens * DIM * 4, tokens // pieces * largest_cluster)
    log_probs = trace(lambda p, h: module.apply({"params": p}, h, method="log_probs"), params, hidden)
    assert (2, tokens // 2, vocab) in [var.aval.shape for eqn in log_probs for var in eqn.outvars]  # the check sees it


def test_cutoffs_beyond_the_vocabulary_are_refused():
    for cutoffs in ((), (5, VOCAB)):
        module = AdaptiveVocabulary(VOCAB, DIM, cutoffs)
        with pytest.raises(ValueError, match=r"cutoffs: given \(.*, allowed: at least one.* vocab_size = 15"):
            module.init(jax.random.key(0), jnp.zeros((1, 1, DIM)), method="log_probs")
