"""A language model small enough to train in a test, with one user for every seam of the train state.

It remembers the embeddings of the last tokens in a FIFO and adds their mean to every position. Each option uses one
collection: a row-sparse table (`tables`), a running mean (`batch_stats`), a random projection (`constants`).
"""

import dataclasses

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax

from memjax.data.document_batches import DocumentBatches
from memjax.data.documents import ArrayDocuments
from memjax.functional.losses import cross_entropy_sum, token_cross_entropy
from memjax.functional.table_rows import lookup_rows
from memjax.models.interface import Model
from memjax.training.objective import Objective, model_loss
from memjax.training.tables import TableOptimizer, map_tables
from memjax.training.train_state import init_train_state, init_variables
from memjax.typing import Aux, WeightedSum

VOCAB, DIM, MEMORY, LENGTH, ROWS = 11, 8, 6, 4, 4


class ToyModel(Model):
    vocab_size: int = VOCAB
    dim: int = DIM
    memory_length: int = MEMORY
    dropout: float = 0.0
    detach: bool = True
    use_table: bool = False
    use_batch_stats: bool = False
    use_constants: bool = False
    auxiliary_loss: bool = False

    @nn.nowrap
    def padding(self):
        return 0

    @nn.nowrap
    def init_state(self, batch_size, dtype=jnp.float32):
        slots = jnp.zeros((batch_size, self.memory_length, self.dim), dtype)
        return {"slots": slots, "valid": jnp.zeros((batch_size, self.memory_length), bool)}

    def setup(self):
        self.embed = nn.Embed(self.vocab_size, self.dim)
        self.mix = nn.Dense(self.dim)
        self.output = nn.Dense(self.vocab_size)
        self.drop = nn.Dropout(self.dropout)
        if self.use_table:
            values = lambda: 0.1 * jax.random.normal(self.make_rng("params"), (self.vocab_size, self.dim))
            self.values = self.variable("tables", "values", values)
        if self.use_batch_stats:
            self.running_mean = self.variable("batch_stats", "mean", jnp.zeros, (self.dim,))
        if self.use_constants:
            draw = lambda: jax.random.normal(self.make_rng("features"), (self.dim, self.dim))
            self.features = self.variable("constants", "features", draw)

    def __call__(self, tokens, state, *, start_of_document, mask=None, deterministic=True):
        mask = jnp.ones(tokens.shape, bool) if mask is None else mask
        valid = state["valid"] & ~start_of_document[:, None]
        slots = jnp.where(valid[..., None], state["slots"], 0)
        x, arrays, losses = self.embed(tokens), {}, {}
        if self.use_table:
            sink = self.get_variable("sinks", "values") if self.has_variable("sinks", "values") else None
            x = x + lookup_rows(self.values.value, tokens, sink)
            arrays["values/ids"] = jax.lax.stop_gradient(tokens)
        if self.use_constants:
            x = x + 0.1 * jnp.sin(x @ self.features.value)
        if self.use_batch_stats:
            if not deterministic:
                self.running_mean.value = 0.9 * self.running_mean.value + 0.1 * jnp.mean(x, axis=(0, 1))
            x = x - self.running_mean.value[None, None]
        count = jnp.maximum(jnp.sum(valid, axis=1), 1).astype(x.dtype)
        recalled = jnp.sum(slots.astype(x.dtype), axis=1) / count[:, None]
        hidden = nn.gelu(self.mix(x + recalled[:, None]))
        hidden = self.drop(hidden, deterministic=deterministic)
        if self.is_initializing():
            self.output(hidden)
        new = jax.lax.stop_gradient(x) if self.detach else x
        new = jnp.concatenate([slots, new.astype(slots.dtype)], axis=1)[:, -self.memory_length :]
        new_valid = jnp.concatenate([valid, mask], axis=1)[:, -self.memory_length :]
        idle = ~jnp.any(mask, axis=1)
        new = jnp.where(idle[:, None, None], state["slots"], new)
        new_valid = jnp.where(idle[:, None], state["valid"], new_valid)
        if self.auxiliary_loss:
            squares = jnp.where(mask[..., None], hidden**2, 0)
            losses["toy/size"] = WeightedSum(jnp.sum(squares), jnp.sum(mask).astype(x.dtype))
        metrics = {"toy/filled": WeightedSum(jnp.sum(new_valid).astype(x.dtype), jnp.asarray(new_valid.size, x.dtype))}
        return hidden, {"slots": new, "valid": new_valid}, Aux(losses, metrics, arrays)

    def nll(self, hidden, targets, weights):
        return cross_entropy_sum(self.output(hidden), targets, weights)

    def token_nll(self, hidden, targets):
        return token_cross_entropy(self.output(hidden), targets)

    def log_probs(self, hidden):
        return jax.nn.log_softmax(self.output(hidden))


def toy_documents(num_documents=7, seed=0, **kwargs):
    generator = np.random.default_rng(seed)
    lengths = generator.integers(3, 14, num_documents)
    tokens = [1 + (np.cumsum(generator.integers(0, 3, n)) + generator.integers(10)) % (VOCAB - 1) for n in lengths]
    byte_counts = [1 + ids % 3 for ids in tokens]
    annotations = [
        {"target_bytes": b.astype(np.int32), "odd": ids % 2 == 1} for ids, b in zip(tokens, byte_counts, strict=True)
    ]
    return ArrayDocuments(tokens, num_bytes=[int(b.sum()) for b in byte_counts], annotations=annotations, **kwargs)


def toy_stream(*, rows=ROWS, segments=1, position=None, documents=None, **kwargs):
    return DocumentBatches(
        toy_documents() if documents is None else documents,
        rows=rows,
        segment_length=LENGTH,
        segments_per_update=segments,
        begin_token=0,
        position=position,
        **kwargs,
    )


def toy_state(model, optimizer=None, *, batch, seed=0, loss=None, dtype=np.float32, **kwargs):
    """The state before the first step as NumPy, made without compiling: random values, zeros elsewhere."""
    objective = Objective(model_loss(model) if loss is None else loss)
    optimizer = optax.sgd(0.1) if optimizer is None else optimizer

    def init():
        variables = init_variables(model, jax.random.key(0), batch.inputs.shape[2])
        memory = model.init_state(batch.inputs.shape[1])
        return init_train_state(objective, optimizer, variables, memory, batch, jax.random.key(0), **kwargs)

    generator = np.random.default_rng(seed)
    kind = lambda leaf: dtype if leaf.dtype == np.float32 else leaf.dtype
    random = lambda tree: jax.tree.map(lambda leaf: generator.normal(0, 0.3, leaf.shape).astype(kind(leaf)), tree)
    shapes = jax.eval_shape(init)
    state = jax.tree.map(lambda leaf: np.zeros(leaf.shape, kind(leaf)), dataclasses.replace(shapes, key=None))
    return dataclasses.replace(
        state,
        params=random(state.params),
        tables=dataclasses.replace(state.tables, values=random(state.tables.values)),
        constants=random(state.constants),
        key=jax.random.wrap_key_data(np.array([0, seed], np.uint32)),
    )


def again(state):
    """The state to start from once more: the step has donated its key."""
    return dataclasses.replace(state, key=jax.random.wrap_key_data(np.array([0, 0], np.uint32)))


def sparse_adam(learning_rate, b1=0.9, b2=0.999, eps=1e-8):
    """Adam on the touched rows only, moments of the others untouched (the dense-mask form: tables here are tiny)."""

    def init(values):
        return {"mu": jax.tree.map(jnp.zeros_like, values), "nu": jax.tree.map(jnp.zeros_like, values)}

    def update(values, moments, touched, *, step, ok):
        def one(path, table, mu, nu):
            rows = touched[path]
            every = rows.weights[..., None] * rows.gradients[:, None]
            gradient = jnp.zeros_like(table).at[rows.ids].add(every, mode="drop")
            used = jnp.any(gradient != 0, axis=-1, keepdims=True) & ok
            new_mu, new_nu = b1 * mu + (1 - b1) * gradient, b2 * nu + (1 - b2) * gradient**2
            time = (step + 1).astype(table.dtype)
            size = (new_mu / (1 - b1**time)) / (jnp.sqrt(new_nu / (1 - b2**time)) + eps)
            return tuple(
                jnp.where(used, n, o) for n, o in ((table - learning_rate * size, table), (new_mu, mu), (new_nu, nu))
            )

        results = jax.tree_util.tree_map_with_path(
            lambda path, *leaves: one(tuple(k.key for k in path), *leaves), values, moments["mu"], moments["nu"]
        )
        pick = lambda i: map_tables(lambda path, _: _at(results, path)[i], values)
        return pick(0), {"mu": pick(1), "nu": pick(2)}

    return TableOptimizer(init, update)


def _at(tree, path):
    for name in path:
        tree = tree[name]
    return tree
