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
# # Gradients through many segments
#
# A memory must be written now to be read many segments later. What to write is learned only if a gradient comes back
# through all of them. Back-propagation through time keeps everything that it has computed in every segment until then;
# memory replay back-propagation (Wu et al. 2020, https://arxiv.org/abs/2010.06891) keeps the memories alone, and
# computes a segment again when its turn comes. Here both are compared: gradients, bytes, seconds, and what for.

# %% cellView="form" jupyter={"source_hidden": true}
# @title Setup: memjax, JAX and the folder of the runs
# Where memjax comes from: "memjax" (the newest release), a wheel, "git+https://...", a checkout; "" = it is here, or as
# a wheel beside this notebook.
SOURCE = ""  # @param {"type":"string"}
# Folder for texts and runs, such as /content/drive/MyDrive/memjax: what a session begins there goes on in the next one.
FOLDER = ""  # @param {"type":"string"}
ALSO = ["matplotlib"]

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
# ## A task that needs it
#
# Four pairs of a key and a value are said in the first segment of 8 tokens, then comes noise, and in the fourth segment
# the keys are asked for. The model is a Memformer: between segments it has 16 slots, written by its encoder, and
# nothing else. `encode` makes the next memory, `head` the loss: that is how replay wants a model cut in two.

# %%
import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import optax

from memjax import config
from memjax.models.memformer import replay_parts
from memjax.report import charts
from memjax.training import init_variables, make_experiment

plt.rcParams.update(charts.style())
picture = lambda height: plt.figure(figsize=(charts.WIDTH, height), layout="constrained")

ROWS, LENGTH, SEGMENTS = 32, 8, 4
settings = config.Config(
    name="long_recurrence",
    model=config.Memformer(
        dim=32, num_layers=1, num_heads=4, feed_forward=config.Dense(dim=64), encoder_layers=1, num_slots=16
    ),
    data=config.Data(
        source=config.KeyValueRecall(
            num_pairs=4, num_keys=8, num_values=8, filler_length=20, group=0, num_documents=16_384
        ),
        batch_size=ROWS,
        segment_length=LENGTH,
    ),
    training=config.Training(segments_per_update=SEGMENTS),
)
experiment = make_experiment(settings)
model = experiment.model
encode, head = replay_parts(model)
begin = jax.jit(lambda key: init_variables(model, key, LENGTH)["params"])
batch = next(experiment.stream())
print("segments, rows, tokens:", batch.inputs.shape)
print("row 0, segment 0:", batch.inputs[0, 0], "and 3:", batch.inputs[3, 0])

# %% [markdown]
# ## Equal gradients
#
# The same loss twice: by JAX's own back-propagation through a scan over the segments, and by replay. In float64, so
# that a difference would be one of mathematics and not of rounding.

# %%
import dataclasses

from memjax.functional import mrbp_value_and_grad
from memjax.models import make_memformer


def through_time(encode, head, params, memory, segments):
    """Value and gradient of the sum of the losses; everything is kept."""

    def loss(params):
        def step(memory, segment):
            memory, encoded = encode(params, memory, segment)
            return memory, head(params, encoded, segment)[0]

        return jax.lax.scan(step, memory, segments)[1].sum()

    return jax.value_and_grad(loss)(params)


def by_replay(encode, head, params, memory, segments):
    replay = mrbp_value_and_grad(encode, head, params, memory, segments)
    return replay.value, replay.gradients


with jax.enable_x64(True):
    exact = make_memformer(dataclasses.replace(settings.model, compute_dtype="float64"), 256, segment_length=LENGTH)
    parts = replay_parts(exact)
    wide = lambda leaf: leaf.astype(jnp.float64) if leaf.dtype == jnp.float32 else leaf
    # Random, so that no gradient is zero by an accident of the beginning.
    draw = lambda leaf: jnp.asarray(np.random.default_rng(leaf.size).normal(size=leaf.shape) * leaf.shape[-1] ** -0.5)
    exact_params = jax.tree.map(
        draw, jax.eval_shape(lambda: init_variables(exact, jax.random.key(0), LENGTH)["params"])
    )
    segments = jax.tree.map(jnp.asarray, (batch, jax.random.split(jax.random.key(0), SEGMENTS)))
    found = {}
    for name, how in {"through time": through_time, "by replay": by_replay}.items():
        memory = jax.tree.map(wide, exact.init_state(ROWS))
        value, found[name] = jax.jit(lambda p, how=how, memory=memory: how(*parts, p, memory, segments))(exact_params)
        print(f"{name:12} loss {float(value):.12f}, length of the gradient {float(optax.tree.norm(found[name])):.12f}")
    apart = float(optax.tree.norm(jax.tree.map(jnp.subtract, *found.values())) / optax.tree.norm(found["by replay"]))
print(f"apart by {apart:.0e} of their length")
assert apart < 1e-12

# %% [markdown]
# ## What it saves, and what it costs
#
# The bytes that a compiled program needs beside its arguments and results are known before it runs: the compiler plans
# them. A somewhat larger model, 4 rows of 32 tokens a segment, over 4 to 64 segments. A third form is a setting of any
# run: `--training.remat segment` is replay by JAX's checkpoints, for any memory with gradients across segments
# (`segment_nested` also computes the layers of a segment again, one by one).

# %%
import time

from memjax.training import loss_over_segments
from memjax.typing import Batch

LARGER = dataclasses.replace(settings.model, dim=64, num_layers=2, scan_layers=True, feed_forward=config.Dense(dim=256))
COUNTS = (4, 16, 64)
FORMS = {
    "through time": "none",
    "replay": "replay",
    "rematerialize segment": "segment",
}


def compiled(form, count):
    """The gradient over so many segments as a compiled program, and its arguments."""
    replayed = form == "replay"
    larger = make_memformer(LARGER, 256, segment_length=32, rematerialize="none" if replayed else form)
    encode, head = replay_parts(larger, deterministic=True)
    tokens = jax.random.randint(jax.random.key(0), (count, 4, 32), 0, 256)
    every = jnp.ones(tokens.shape, bool)
    begins = jnp.zeros((count, 4), bool).at[0].set(True)
    rows = Batch(tokens, tokens, every, every.astype(jnp.float32), begins), jnp.zeros(count, int)

    def step(params, memory, segment):
        memory, encoded = encode(params, memory, segment)
        return memory, head(params, encoded, segment)[1]

    def loss(params):
        return loss_over_segments(step, params, larger.init_state(4), rows, rematerialize=form)[1].total

    def gradient(params):
        return by_replay(encode, head, params, larger.init_state(4), rows)[1] if replayed else jax.grad(loss)(params)

    params = jax.jit(lambda key: init_variables(larger, key, 32)["params"])(jax.random.key(1))
    return jax.jit(gradient).lower(params).compile(), params


megabytes, seconds = {}, {}
for name, form in FORMS.items():
    programs = [compiled(form, count) for count in COUNTS]
    megabytes[name] = [program.memory_analysis().temp_size_in_bytes / 2**20 for program, _ in programs]
    seconds[name] = []
    for program, params in programs:
        times = []
        for _ in range(4):  # the first call is a rehearsal
            start = time.perf_counter()
            jax.block_until_ready(program(params))
            times.append(time.perf_counter() - start)
        seconds[name].append(min(times[1:]))
    print(f"{name:30}", *(f"{count} segments: {m:7.1f} MiB;" for count, m in zip(COUNTS, megabytes[name], strict=True)))

for title, found in {"MiB of temporaries": megabytes, "seconds a step": seconds}.items():
    curves = {name: (COUNTS, values) for name, values in found.items()}
    charts.line_chart(picture(2.6), curves, y=title, x="segments", log_x=True, log_y=True, marks=True)
    plt.show()
share = megabytes["replay"][-1] / megabytes["through time"][-1]
longer = seconds["replay"][-1] / seconds["through time"][-1]
print(f"replay over 64 segments: {share:.1%} of the temporaries in {longer:.2f} times the seconds")
assert share < 0.3

# %% [markdown]
# Through time, every segment adds all that it has computed; by replay it adds a memory. What replay computes twice is
# the encoder alone, and with checkpoints the head too.
#
# ## What for
#
# Now the task is learned with a horizon: after so many segments the gradient through the memory is cut. The batches,
# the updates and the model are the same. What was said in the first segment is asked for in the fourth, so a gradient
# that stays in its segment never tells the writer what to keep.

# %%
STEPS = 600


def learn(horizon):
    """The loss of each update; guessing is log(8)."""
    schedule = optax.warmup_cosine_decay_schedule(0.0, 4e-3, 50, STEPS)
    optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adam(schedule))

    @jax.jit
    def step(params, moments, batch, key):
        segments = batch, jax.random.split(key, SEGMENTS)
        replay = mrbp_value_and_grad(encode, head, params, model.init_state(ROWS), segments, horizon=horizon)
        answers = replay.aux.weight.sum()
        gradients = jax.tree.map(lambda leaf: leaf / answers, replay.gradients)
        updates, moments = optimizer.update(gradients, moments, params)
        return optax.apply_updates(params, updates), moments, replay.value / answers

    params, stream, losses = begin(jax.random.key(0)), experiment.stream(), []
    moments = optimizer.init(params)
    for number in range(STEPS):
        params, moments, loss = step(params, moments, next(stream), jax.random.key(number))
        losses.append(float(loss))
    return losses


losses = {f"horizon {horizon}": learn(horizon) for horizon in (1, 4)}
smooth = {name: np.reshape(curve, (-1, 20)).mean(axis=1) for name, curve in losses.items()}
charts.line_chart(
    picture(3.0),
    {name: (np.arange(20, STEPS + 1, 20), curve) for name, curve in smooth.items()},
    x="updates",
    y="nats an answer",
    levels={"guessing": np.log(8)},
)
plt.show()
end = {name: float(np.mean(curve[-50:])) for name, curve in losses.items()}
print({name: round(value, 2) for name, value in end.items()}, "nats an answer, by guessing", round(np.log(8), 2))
assert end["horizon 4"] < 0.8 * end["horizon 1"]

# %% [markdown]
# With a short horizon something is kept by accident, since a writer with random weights keeps a little of everything,
# and the reader learns to make use of it. Only the whole horizon teaches the writer. In a run the horizon is
# `--training.segments-per-update`, and for very many segments there is `--training.segments-per-remat`:
#
#     memjax train --config memformer_recall --training.segments-per-update 6 --training.remat segment
