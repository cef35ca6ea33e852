# ---
# jupyter:
#   jupytext:
#     formats: ipynb,py:percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # A memory in your own model
#
# A memory of memjax is a value that you hold: `state = memory.init_state(rows)`, then
# `y, state, aux = memory(x, state, start_of_document=...)`, segment after segment. Nothing else is kept anywhere, so it
# stands in any training loop. Here it does so in three: plain JAX with optax, Flax NNX, and Equinox.

# %% cellView="form" jupyter={"source_hidden": true}
# @title Setup: memjax, JAX and the folder of the runs
# Where memjax comes from: "memjax" (the newest release), a wheel, "git+https://...", a checkout; "" = it is here, or as
# a wheel beside this notebook.
SOURCE = ""  # @param {"type":"string"}
# Folder for texts and runs, such as /content/drive/MyDrive/memjax: what a session begins there goes on in the next one.
FOLDER = ""  # @param {"type":"string"}
ALSO = ["equinox"]

# What was tested, by Python; an older JAX than the oldest is upgraded to it.
TESTED = {
    "3.11": {
        "jax": "0.10.2",
        "jaxlib": "0.10.2",
        "libtpu": "0.0.51",
        "flax": "0.12.8",
        "optax": "0.2.8",
        "equinox": "0.13.8",
    },
    "3.13": {"jax": "0.12.0.1", "jaxlib": "0.12.0.1", "flax": "0.12.12", "optax": "0.2.8", "equinox": "0.13.8"},
}
OLDEST_JAX = "0.10.1"

import glob
import importlib.metadata
import importlib.util
import os
import re
import subprocess
import sys


def tested():
    """The versions tested with this Python, or with the one before it."""
    return TESTED[max(python for python in TESTED if python <= f"3.{sys.version_info.minor}")]


def accelerator_here():
    """The kind of an accelerator whose device file is here: gpu, tpu or nothing."""
    tpu = os.path.exists("/dev/accel0") or os.path.exists("/dev/vfio/0")
    return "gpu" if os.path.exists("/dev/nvidia0") else "tpu" if tpu else ""


def pip_arguments(source, installed, accelerator):
    """JAX, jaxlib, libtpu and the CUDA plugin stay as they are, all of them, or are upgraded together."""
    family = {name: v for name, v in installed.items() if re.fullmatch(r"jax|jaxlib|libtpu|jax-cuda\d+-.*", name)}
    number = lambda version: tuple(int(part) for part in re.findall(r"\d+", version)[:3])
    if "jax" in family and number(family["jax"]) >= number(OLDEST_JAX):
        return [source, *ALSO, *(f"{name}=={version}" for name, version in sorted(family.items()))]
    cuda = {name.split("-")[1] for name in family if name.startswith("jax-cuda")} or {"cuda13"}
    extra = {"gpu": f"[{max(cuda)}]", "tpu": "[tpu]", "": ""}[accelerator]
    return ["--upgrade", source, *ALSO, f"jax{extra}=={tested()['jax']}"]


if not SOURCE and importlib.util.find_spec("memjax") is None:
    SOURCE = max(glob.glob("memjax-*.whl"), key=os.path.getmtime, default="")

if SOURCE:
    installed = {d.metadata["Name"].lower(): d.version for d in importlib.metadata.distributions()}
    arguments = pip_arguments(SOURCE, installed, accelerator_here())
    subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", *arguments], check=True)
    if "jax" in sys.modules and sys.modules["jax"].__version__ != importlib.metadata.version("jax"):
        raise SystemExit("JAX was upgraded: restart the session, then run this cell again")

if importlib.util.find_spec("memjax") is None:
    raise SystemExit(
        "SOURCE: given '', and memjax is not here; allowed: a release, a wheel, git+https://..., a checkout; "
        "or put a wheel beside this notebook"
    )

here = {re.sub(r"[-_.]+", "-", d.metadata["Name"].lower()) for d in importlib.metadata.distributions()}
if missing := [name for name in ALSO if re.split(r"[<>=~!]", name)[0].lower() not in here]:
    raise SystemExit(f"missing: {', '.join(missing)}; pip install them, or name a SOURCE, with which they come")

if FOLDER:
    if FOLDER.startswith("/content/drive") and not os.path.ismount("/content/drive"):
        from google.colab import drive

        drive.mount("/content/drive")
    os.makedirs(FOLDER, exist_ok=True)
    os.chdir(FOLDER)

import memjax.cli.doctor

facts = memjax.cli.doctor.diagnose()
print(
    f"memjax {facts['memjax']}, Python {sys.version.split()[0]},",
    f"JAX {facts['base']['jax']} (tested: {tested()['jax']})",
)
print("devices:", *facts["devices"])
if facts["hint"] and not os.environ.get("JAX_PLATFORMS"):
    raise SystemExit(f"stopped: {facts['hint']}")

# %% [markdown]
# ## The task
#
# Each row is told the value of eight keys in one segment and asked for them in the next. A model that forgets between
# segments can only guess: `log(8)`, 2.08 nats. Everything under that is memory.

# %%
import math

import jax
import jax.numpy as jnp
import optax

ROWS, KEYS, DIM, STEPS = 16, 8, 32, 200


def batch(step):
    """Keys and values of the first segment, the keys asked for in the second, and the answers."""
    order, values, asked = jax.random.split(jax.random.key(step), 3)
    shuffled = lambda key: jax.vmap(lambda k: jax.random.permutation(k, KEYS))(jax.random.split(key, ROWS))
    keys, asked = shuffled(order), shuffled(asked)
    values = jax.random.randint(values, (ROWS, KEYS), 0, KEYS)
    answers = jnp.take_along_axis(values, jnp.take_along_axis(jnp.argsort(keys, axis=1), asked, axis=1), axis=1)
    return keys, values, asked, answers


def nats(logits, answers):
    return optax.softmax_cross_entropy_with_integer_labels(logits, answers).mean()


losses = {}

# %% [markdown]
# ## Plain JAX and optax
#
# `MemorizingAttention` is the attention part of a layer: its `y` is the new residual stream, with residual and
# norm. Every memory's docstring says in one sentence what its `y` is (`help(MemorizingAttention)`).

# %%
from memjax.memory import MemorizingAttention

memory = MemorizingAttention(
    dim=DIM, num_heads=2, head_dim=16, memory_length=16, num_neighbors=8, retrieval="threshold"
)
start, empty = jnp.ones(ROWS, bool), memory.init_state(ROWS)  # every row begins a document


def init(key):
    keys = jax.random.split(key, 4)
    normal = lambda key, *shape: jax.random.normal(key, shape) * DIM**-0.5
    part = memory.init(keys[0], jnp.zeros((ROWS, KEYS, DIM)), empty, start_of_document=start)
    return {
        "memory": part,
        "keys": normal(keys[1], KEYS, DIM),
        "values": normal(keys[2], KEYS, DIM),
        "out": normal(keys[3], DIM, KEYS),
    }


def model(params, keys, values, asked):
    told = params["keys"][keys] + params["values"][values]
    _, state, _ = memory.apply(params["memory"], told, empty, start_of_document=start)
    y, state, _ = memory.apply(params["memory"], params["keys"][asked], state, start_of_document=~start)
    return y @ params["out"]


optimizer = optax.adam(1e-2)


@jax.jit
def step(params, moments, keys, values, asked, answers):
    loss, gradients = jax.value_and_grad(lambda p: nats(model(p, keys, values, asked), answers))(params)
    updates, moments = optimizer.update(gradients, moments, params)
    return optax.apply_updates(params, updates), moments, loss


params = jax.jit(init)(jax.random.key(0))
moments, losses["plain JAX"] = optimizer.init(params), []
for i in range(STEPS):
    params, moments, loss = step(params, moments, *batch(i))
    losses["plain JAX"].append(float(loss))
print(
    f"plain JAX: {losses['plain JAX'][0]:.2f} -> {losses['plain JAX'][-1]:.2f} nats, by guessing {math.log(KEYS):.2f}"
)

# %% [markdown]
# The state is yours: look into it, keep some rows of it, or begin a document in one row only.

# %%
from memjax.memory import take_rows

keys, values, asked, answers = batch(STEPS)
told = params["keys"][keys] + params["values"][values]
_, state, _ = memory.apply(params["memory"], told, empty, start_of_document=start)
print("slots in use, by row:", state.memory.valid.sum(axis=1))
two_rows = take_rows(state, jnp.array([0, 3]))
print("two rows of it:", jax.tree.map(jnp.shape, two_rows.memory.keys), "= [batch, heads, memory, head_dim]")

# %% [markdown]
# ## Flax NNX
#
# The same module through NNX's bridge. `lazy_init` makes the parameters from one call.

# %%
from flax import nnx


class Model(nnx.Module):
    def __init__(self, rngs):
        self.keys, self.values = nnx.Embed(KEYS, DIM, rngs=rngs), nnx.Embed(KEYS, DIM, rngs=rngs)
        self.out = nnx.Linear(DIM, KEYS, rngs=rngs)
        x = jnp.zeros((ROWS, KEYS, DIM))
        self.memory = nnx.bridge.ToNNX(memory, rngs).lazy_init(x, empty, start_of_document=start)

    def __call__(self, keys, values, asked):
        _, state, _ = self.memory(self.keys(keys) + self.values(values), empty, start_of_document=start)
        y, _, _ = self.memory(self.keys(asked), state, start_of_document=~start)
        return self.out(y)


nnx_model = Model(nnx.Rngs(0))
nnx_optimizer = nnx.Optimizer(nnx_model, optax.adam(1e-2), wrt=nnx.Param)


@nnx.jit
def nnx_step(model, optimizer, keys, values, asked, answers):
    loss, gradients = nnx.value_and_grad(lambda m: nats(m(keys, values, asked), answers))(model)
    optimizer.update(model, gradients)
    return loss


losses["NNX"] = [float(nnx_step(nnx_model, nnx_optimizer, *batch(i))) for i in range(STEPS)]
print(f"NNX: {losses['NNX'][0]:.2f} -> {losses['NNX'][-1]:.2f} nats")

# %% [markdown]
# ## Equinox
#
# Without Flax: a memory of your own from `memjax.functional`. Tokens are `[batch, length, heads, head_dim]`; slots that
# are searched are stored by heads, `[batch, heads, memory, head_dim]`. A wrong order is an error that names the axis.

# %%
import equinox as eqx

from memjax.functional import gather_slots, neighbor_attention, ring_append, select_neighbors


class OwnMemory(eqx.Module):
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
        told = tokens(self.keys, keys) + tokens(self.values, values)
        slots = jnp.zeros((2, ROWS, 2, 16, DIM // 2))  # a ring of 16 keys and one of 16 values
        new = [jnp.swapaxes(heads(f, told), 1, 2) for f in self.maps[:2]]
        slots = [ring_append(old, one, jnp.zeros(ROWS, int), axis=2) for old, one in zip(slots, new, strict=True)]
        valid = jnp.broadcast_to(jnp.arange(16) < KEYS, (ROWS, 16))
        query = heads(self.maps[2], tokens(self.keys, asked))
        ids, found = select_neighbors(jnp.swapaxes(query, 1, 2), slots[0], valid, num_neighbors=8)
        read = neighbor_attention(query, *(gather_slots(one, ids) for one in slots), found)
        return tokens(self.out, read.reshape(ROWS, KEYS, DIM))


eqx_optimizer = optax.adam(1e-2)


@eqx.filter_jit
def eqx_step(model, moments, keys, values, asked, answers):
    loss, gradients = eqx.filter_value_and_grad(lambda m: nats(m(keys, values, asked), answers))(model)
    updates, moments = eqx_optimizer.update(gradients, moments)
    return eqx.apply_updates(model, updates), moments, loss


own = OwnMemory(jax.random.key(0))
moments, losses["Equinox"] = eqx_optimizer.init(eqx.filter(own, eqx.is_array)), []
for i in range(STEPS):
    own, moments, loss = eqx_step(own, moments, *batch(i))
    losses["Equinox"].append(float(loss))
print(f"Equinox: {losses['Equinox'][0]:.2f} -> {losses['Equinox'][-1]:.2f} nats")

# %% [markdown]
# ## What it shows
#
# All three know what was said a segment ago.

# %%
for name, curve in losses.items():
    last = sum(curve[-10:]) / 10
    print(f"{name:10} {last:5.2f} nats, by guessing {math.log(KEYS):.2f}")
    assert last < 0.6 * math.log(KEYS)
