"""A memory that is closed at first opens in training, and holds what the window of its host does not."""

import jax
import jax.numpy as jnp
import optax
import pytest

from memjax.config import MemorizingGraft, Model, Rotary
from memjax.models.factory import make_language_model
from memjax.training.train_state import init_variables

KEYS, VALUES, LENGTH, ROWS = 4, 8, 4, 32
PAIRS, QUESTIONS, FILLER = VALUES, VALUES + KEYS * VALUES, VALUES + KEYS * VALUES + KEYS
"""first ids of pairs of a key and a value, of keys alone, and the id that stands between them"""


def documents(key):
    """Pairs in the first segment, nothing in the second, all keys in another order in the third. Returns segments of
    tokens, and the values of the last one.
    """
    order, values, questions = jax.random.split(key, 3)
    draw = jax.vmap(lambda key: jax.random.permutation(key, KEYS))
    values = jax.random.randint(values, (ROWS, KEYS), 0, VALUES)
    keys, asked = draw(jax.random.split(order, ROWS)), draw(jax.random.split(questions, ROWS))
    pairs = PAIRS + keys * VALUES + jnp.take_along_axis(values, keys, axis=1)
    nothing = jnp.full((ROWS, LENGTH), FILLER)
    return jnp.stack([pairs, nothing, QUESTIONS + asked]).astype(jnp.int32), jnp.take_along_axis(values, asked, axis=1)


def accuracy_and_gate(graft, steps=400):
    """Trains a small model, and returns its share of right values and its largest gate."""
    host = Rotary(memory_length=LENGTH, key_heads=2, graft=graft)
    sizes = {"dim": 64, "num_layers": 1, "num_heads": 2, "scale_embeddings": False}
    model = make_language_model(Model(attention=host, **sizes), FILLER + 1)
    optimizer = optax.adam(3e-3)

    def log_probs(params, tokens):
        state = model.init_state(ROWS)
        for index, segment in enumerate(tokens):
            arguments = {"start_of_document": jnp.full(ROWS, index == 0)}
            output, state, _ = model.apply({"params": params}, segment, state, **arguments)
        return model.apply({"params": params}, output, method="log_probs")

    def loss(params, key):
        tokens, values = documents(key)
        return -jnp.take_along_axis(log_probs(params, tokens), values[..., None], axis=-1).mean()

    def step(carry, key):
        params, moments = carry
        updates, moments = optimizer.update(jax.grad(loss)(params, key), moments)
        return (optax.apply_updates(params, updates), moments), None

    @jax.jit
    def train(params):
        keys = jax.random.split(jax.random.key(1), steps)
        (params, _), _ = jax.lax.scan(step, (params, optimizer.init(params)), keys)
        tokens, values = documents(jax.random.key(2))
        return params, (log_probs(params, tokens).argmax(-1) == values).mean()

    params, right = train(init_variables(model, jax.random.key(0), LENGTH)["params"])
    leaves = jax.tree_util.tree_flatten_with_path(params)[0]
    gates = [abs(leaf).max() for path, leaf in leaves if "gate" in jax.tree_util.keystr(path).split("'")]
    return float(right), float(max(gates, default=0.0))


@pytest.mark.slow
def test_a_memory_recalls_what_stands_before_the_window():
    without, _ = accuracy_and_gate(None)
    right, gate = accuracy_and_gate(MemorizingGraft(layers=(0,), memory_length=3 * LENGTH, num_neighbors=2))
    print(f"right values: {right:.3f} with the memory, {without:.3f} without, gate parameter {gate:.2f}")
    assert without < 0.25 and right > 0.6 and gate > 0.3
