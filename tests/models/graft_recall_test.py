"""A memory that is closed at first opens in training, and holds what the window of its host does not."""

import functools

import jax
import jax.numpy as jnp
import optax
import pytest

from memjax.config import MemorizingGraft, Model, Rotary
from memjax.interop.parameters import merge_params
from memjax.models.factory import make_language_model
from memjax.training.train_state import init_variables

KEYS, VALUES, LENGTH, ROWS = 4, 8, 8, 16
PAIRS, QUESTIONS, FILLER = VALUES, VALUES + KEYS * VALUES, VALUES + KEYS * VALUES + KEYS
"""first ids of pairs of a key and a value, of keys alone, and the id that stands between them"""


def documents(key, *, is_long):
    """Pairs, and all keys in another order: in one segment, or in the first and the third of three. Returns segments of
    tokens, and the values of the keys, which are the last tokens.
    """
    order, values, questions = jax.random.split(key, 3)
    draw = jax.vmap(lambda key: jax.random.permutation(key, KEYS))
    values = jax.random.randint(values, (ROWS, KEYS), 0, VALUES)
    keys, asked = draw(jax.random.split(order, ROWS)), draw(jax.random.split(questions, ROWS))
    pairs = PAIRS + keys * VALUES + jnp.take_along_axis(values, keys, axis=1)
    nothing, asked_ids = jnp.full((ROWS, KEYS), FILLER), QUESTIONS + asked
    parts = [pairs, *[nothing] * 4, asked_ids] if is_long else [pairs, asked_ids]
    tokens = jnp.concatenate(parts, axis=1).astype(jnp.int32).reshape(ROWS, -1, LENGTH)
    return jnp.moveaxis(tokens, 1, 0), jnp.take_along_axis(values, asked, axis=1)


def trained(graft, params, *, is_long, steps, rate=3e-3):
    """Trains a small model from some parameters, or with a graft the graft alone. Returns the new parameters and the
    share of right values.
    """
    host = Rotary(memory_length=LENGTH, key_heads=2, graft=graft)
    sizes = {"dim": 64, "num_layers": 1, "num_heads": 2, "scale_embeddings": False}
    model = make_language_model(Model(attention=host, **sizes), FILLER + 1)
    is_host = lambda path, leaf: graft is not None and "graft" not in jax.tree_util.keystr(path)
    frozen = functools.partial(jax.tree_util.tree_map_with_path, is_host)
    optimizer = optax.chain(optax.adam(rate), optax.masked(optax.set_to_zero(), frozen))
    new = init_variables(model, jax.random.key(0), LENGTH)["params"]
    params = new if params is None else merge_params(new, params)

    def log_probs(params, tokens):
        state = model.init_state(ROWS)
        for index, segment in enumerate(tokens):
            arguments = {"start_of_document": jnp.full(ROWS, index == 0)}
            output, state, _ = model.apply({"params": params}, segment, state, **arguments)
        return model.apply({"params": params}, output, method="log_probs")[:, -KEYS:]

    def loss(params, key):
        tokens, values = documents(key, is_long=is_long)
        return -jnp.take_along_axis(log_probs(params, tokens), values[..., None], axis=-1).mean()

    def step(carry, key):
        params, moments = carry
        updates, moments = optimizer.update(jax.grad(loss)(params, key), moments)
        return (optax.apply_updates(params, updates), moments), None

    @jax.jit
    def train(params):
        keys = jax.random.split(jax.random.key(1), steps)
        (params, _), _ = jax.lax.scan(step, (params, optimizer.init(params)), keys)
        tokens, values = jax.vmap(lambda key: documents(key, is_long=is_long))(jax.random.split(jax.random.key(2), 8))
        right = jax.lax.map(lambda pair: (log_probs(params, pair[0]).argmax(-1) == pair[1]).mean(), (tokens, values))
        return params, right.mean()

    params, right = train(params)
    return params, float(right)


@pytest.mark.slow
def test_a_memory_recalls_what_stands_before_the_window():
    host, inside = trained(None, None, is_long=False, steps=1000)
    _, without = trained(None, host, is_long=True, steps=200)
    graft = MemorizingGraft(layers=(0,), memory_length=3 * LENGTH, num_neighbors=4)
    opened, right = trained(graft, host, is_long=True, steps=300, rate=0.03)
    gate = float(abs(opened["stack"]["layers_0"]["attention"]["graft"]["gate"]).max())
    print(
        f"right values inside the window {inside:.3f}; before it {right:.3f} with the memory, {without:.3f} without it"
    )
    print(f"largest parameter of the gate {gate:.2f}")
    assert inside > 0.9 and without < 0.25 and right > 0.6 and gate > 0.1
