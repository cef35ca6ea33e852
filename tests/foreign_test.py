"""Memories in models of other frameworks: about 30 lines each, and they learn what only a memory can know.

A row is told the value of eight keys in one segment and asked for them in the next: without a memory no model is better
than chance, `log(8)` nats.
"""

import equinox as eqx
import haiku as hk
import jax
import jax.numpy as jnp
import optax
import pytest
from flax import nnx

from memjax.functional import gather_slots, neighbor_attention, ring_append, select_neighbors
from memjax.memory import LinearTransformerAttention, TransformerXLAttention

ROWS, KEYS, DIM, STEPS = 16, 8, 32, 150
CHANCE = 2.08


@jax.jit
def batch(step):
    """Keys and values of the first segment, and keys and values asked for in the second."""
    order, values, asked = jax.random.split(jax.random.key(step), 3)
    shuffled = lambda key: jax.vmap(lambda k: jax.random.permutation(k, KEYS))(jax.random.split(key, ROWS))
    keys, asked = shuffled(order), shuffled(asked)
    values = jax.random.randint(values, (ROWS, KEYS), 0, KEYS)
    return keys, values, asked, jnp.take_along_axis(values, jnp.argsort(keys)[jnp.arange(ROWS)[:, None], asked], 1)


def nats(logits, targets):
    return optax.softmax_cross_entropy_with_integer_labels(logits, targets).mean()


def nnx_losses():
    """The Linen module inside NNX, through the bridge."""
    memory = TransformerXLAttention(dim=DIM, num_heads=2, head_dim=16, memory_length=8, norm="pre")

    class Model(nnx.Module):
        def __init__(self, rngs):
            self.keys, self.values = nnx.Embed(KEYS, DIM, rngs=rngs), nnx.Embed(KEYS, DIM, rngs=rngs)
            self.out = nnx.Linear(DIM, KEYS, rngs=rngs)
            start, x = jnp.ones(ROWS, bool), jnp.zeros((ROWS, KEYS, DIM))
            self.memory = nnx.bridge.ToNNX(memory, rngs).lazy_init(x, memory.init_state(ROWS), start_of_document=start)

        def __call__(self, keys, values, asked):
            start, state = jnp.ones(ROWS, bool), memory.init_state(ROWS)
            _, state, _ = self.memory(self.keys(keys) + self.values(values), state, start_of_document=start)
            y, _, _ = self.memory(self.keys(asked), state, start_of_document=~start)
            return self.out(y)

    model = Model(nnx.Rngs(0))
    optimizer = nnx.Optimizer(model, optax.adam(1e-2), wrt=nnx.Param)

    @nnx.jit
    def step(model, optimizer, keys, values, asked, targets):
        loss, gradients = nnx.value_and_grad(lambda model: nats(model(keys, values, asked), targets))(model)
        optimizer.update(model, gradients)
        return loss

    return [step(model, optimizer, *batch(i)) for i in range(STEPS)]


def equinox_losses():
    """A memory of one's own, of `memjax.functional` alone: a ring of keys and values by heads, and its neighbours."""

    class Model(eqx.Module):
        keys: eqx.nn.Embedding
        values: eqx.nn.Embedding
        maps: list
        out: eqx.nn.Linear

        def __init__(self, key):
            make = jax.random.split(key, 6)
            self.keys, self.values = (eqx.nn.Embedding(KEYS, DIM, key=k) for k in make[:2])
            self.maps = [eqx.nn.Linear(DIM, DIM, use_bias=False, key=k) for k in make[2:5]]
            self.out = eqx.nn.Linear(DIM, KEYS, key=make[5])

        def __call__(self, keys, values, asked):
            tokens = lambda f, x: jax.vmap(jax.vmap(f))(x)
            heads = lambda f, x: tokens(f, x).reshape(ROWS, KEYS, 2, DIM // 2)
            told, query = tokens(self.keys, keys) + tokens(self.values, values), tokens(self.keys, asked)
            slots = jnp.zeros((2, ROWS, 2, KEYS, DIM // 2))  # keys and values, [batch, heads, memory, head_dim]
            new = [jnp.swapaxes(heads(f, told), 1, 2) for f in self.maps[:2]]
            slots = [ring_append(old, one, jnp.zeros(ROWS, int), axis=2) for old, one in zip(slots, new, strict=True)]
            query = heads(self.maps[2], query)
            ids, valid = select_neighbors(jnp.swapaxes(query, 1, 2), slots[0], jnp.ones((ROWS, KEYS), bool), KEYS)
            read = neighbor_attention(query, *(gather_slots(one, ids) for one in slots), valid)
            return tokens(self.out, read.reshape(ROWS, KEYS, DIM))

    model = Model(jax.random.key(0))
    optimizer = optax.adam(1e-2)

    @eqx.filter_jit
    def step(model, state, keys, values, asked, targets):
        loss, gradients = eqx.filter_value_and_grad(lambda m: nats(m(keys, values, asked), targets))(model)
        updates, state = optimizer.update(gradients, state)
        return loss, eqx.apply_updates(model, updates), state

    state, losses = optimizer.init(eqx.filter(model, eqx.is_array)), []
    for i in range(STEPS):
        loss, model, state = step(model, state, *batch(i))
        losses.append(loss)
    return losses


def haiku_losses():
    """The Linen module by plain `init` and `apply`, its parameters beside Haiku's."""
    memory = LinearTransformerAttention(dim=DIM, num_heads=2, head_dim=16)

    start, state = jnp.ones(ROWS, bool), memory.init_state(ROWS)

    def forward(part, keys, values, asked):
        embed_key, embed_value = hk.Embed(KEYS, DIM, name="keys"), hk.Embed(KEYS, DIM, name="values")
        told = embed_key(keys) + embed_value(values)
        _, new, _ = memory.apply(part, told, state, start_of_document=start)
        y, _, _ = memory.apply(part, embed_key(asked), new, start_of_document=~start)
        return hk.Linear(KEYS)(y)

    model = hk.transform(forward)
    part = memory.init(jax.random.key(0), jnp.zeros((ROWS, KEYS, DIM)), state, start_of_document=start)
    params = {"memory": part, "model": model.init(jax.random.key(1), part, *batch(0)[:3])}
    optimizer = optax.adam(1e-2)

    @jax.jit
    def step(params, moments, keys, values, asked, targets):
        def loss(params):
            return nats(model.apply(params["model"], None, params["memory"], keys, values, asked), targets)

        value, gradients = jax.value_and_grad(loss)(params)
        updates, moments = optimizer.update(gradients, moments)
        return value, optax.apply_updates(params, updates), moments

    moments, losses = optimizer.init(params), []
    for i in range(STEPS):
        loss, params, moments = step(params, moments, *batch(i))
        losses.append(loss)
    return losses


@pytest.mark.parametrize("program", [pytest.param(nnx_losses, marks=pytest.mark.slow), equinox_losses, haiku_losses])
def test_a_memory_learns_inside_another_framework(program):
    losses = jnp.array(program())
    assert losses[0] > 0.9 * CHANCE and losses[-10:].mean() < 0.6 * CHANCE, losses[::10]
