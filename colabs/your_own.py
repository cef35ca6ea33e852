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
# # A method, a memory and a data set of your own
#
# Nothing of memjax is changed here. Each part is a class of settings in a file of yours: a method against forgetting in
# 15 lines, a memory in 40, a data set in 10. A run saves the name of the class, such as `averaging:Averaging`, and
# every command works with the run.

# %% cellView="form" jupyter={"source_hidden": true}
# @title Setup: memjax, JAX and the folder of the runs
# Where memjax comes from: "memjax" (the newest release), a wheel, "git+https://...", a checkout; "" = it is here, or as
# a wheel beside this notebook.
SOURCE = ""  # @param {"type":"string"}
# Folder for texts and runs, such as /content/drive/MyDrive/memjax: what a session begins there goes on in the next one.
FOLDER = ""  # @param {"type":"string"}
ALSO = []

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
# ## A method
#
# `make` returns the method. This one has a single component: after each task, the model becomes the mean of itself
# before and after the task.

# %%
# %%writefile averaging.py
"""A method of my own: after each task, the model becomes the mean of itself before and after the task."""

from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp

from memjax.config import Method
from memjax.lifelong import Component, chain_components


@dataclass(slots=True, kw_only=True)
class Averaging(Method):
    """Averages the parameters before and after every task but the first."""

    share: float = 0.5
    """share of the parameters before the task"""

    def make(self):
        copy = lambda params: jax.tree.map(jnp.copy, params)

        def before(state, context, task):
            return replace(state, method={**state.method, "before": copy(state.params)})

        def after(state, context, task):
            share = self.share if task.index else 0.0
            mean = lambda old, new: share * old + (1 - share) * new
            return replace(state, params=jax.tree.map(mean, state.method["before"], state.params))

        return chain_components(Component("before", copy, before_task=before, after_task=after))


# %% [markdown]
# Four tasks, each with two of eight clouds of points, learned one after the other: plainly, and with the method.

# %%
import dataclasses

import averaging

from memjax.config import (
    SGD,
    Blobs,
    Classification,
    Config,
    Data,
    Evaluation,
    Lifelong,
    Perceptron,
    Schedule,
    Sequential,
    TaskData,
    Training,
)
from memjax.lifelong import train

clouds = [Blobs(classes=(first, first + 1), num_train=400, num_test=100) for first in (0, 2, 4, 6)]
tasks = tuple(TaskData(name=f"clouds_{number}", source=source) for number, source in enumerate(clouds))
stream = Config(
    task=Classification(num_classes=10),
    model=Perceptron(widths=(64,)),
    data=Data(source=clouds[0], batch_size=16, segment_length=16),
    training=Training(optimizer=SGD(), schedule=Schedule(learning_rate=0.1, warmup_steps=0, decay="constant")),
    evaluation=Evaluation(batch_size=100),
    lifelong=Lifelong(tasks=tasks, epochs=2),
)
averages = {}
for name, method in (("plain", Sequential()), ("averaged", averaging.Averaging())):
    result = train(dataclasses.replace(stream, name=name), method=method, on_event=lambda event: None)
    scores = [task["accuracy"] for task in result.results["evaluations"].values()]
    averages[name] = sum(scores) / len(scores)
    print(f"{name:9} {averages[name]:.3f} on average:", *(f"{score:.2f}" for score in scores))
assert averages["averaged"] > averages["plain"]

# %% [markdown]
# ## A data set
#
# `read` returns the texts of a split. Every line of a text repeats the colour of its first line.

# %%
# %%writefile colours.py
"""A data set of my own: texts about a box, whose colour every line repeats."""

import random
from dataclasses import dataclass

from memjax.config import Source
from memjax.data import Texts

COLOURS = ["black", "blue", "brown", "green", "pink", "red", "white", "yellow"]


@dataclass(slots=True, kw_only=True)
class Colours(Source):
    """Texts of eight lines about a box of one colour."""

    count: int = 200
    """number of texts of each split"""

    def read(self, split):
        draw, texts = random.Random(split), {}
        for number in range(self.count):
            line = f"day {{}}: nobody came, and the {draw.choice(COLOURS)} box is still shut"
            texts[f"{split}/{number}"] = "\n".join(line.format(day) for day in draw.sample(range(10, 100), 8))
        return Texts.from_mapping(texts)


# %% [markdown]
# ## A memory
#
# `make` returns the attention part of a layer, a `LayerMemory`. Its state is what it keeps between segments: here three
# running means of hidden states. A new document begins with an empty state, and a row without a real token keeps its
# state. `generate` needs no further code: it reads the segment again for each token.

# %%
# %%writefile running_means.py
"""A memory of my own: attention to the segment, and to running means of the hidden states before it."""

from dataclasses import dataclass

import flax.linen as nn
import jax.numpy as jnp

from memjax.config import Attention
from memjax.memory import LayerMemory
from memjax.typing import Aux


@dataclass(slots=True, kw_only=True)
class RunningMeans(Attention):
    """Attention to the segment and to running means of earlier segments."""

    rates: tuple[float, ...] = (0.5, 0.9, 0.99)
    """share of each mean that stays from one segment to the next"""

    crosses_segments = True  # gradients reach earlier segments of an update

    def make(self, model, layer):
        return RunningMeansAttention(model.dim, model.num_heads, self.rates)


class RunningMeansAttention(LayerMemory):
    """The attention part of a layer, whose state is one mean of hidden states for each rate."""

    dim: int
    num_heads: int
    rates: tuple[float, ...]

    @nn.nowrap
    def init_state(self, batch_size, dtype=jnp.float32):
        return jnp.zeros((batch_size, len(self.rates), self.dim), dtype)

    @nn.compact
    def __call__(self, x, state, *, start_of_document, mask=None, deterministic=True):
        mask = jnp.ones(x.shape[:2], bool) if mask is None else mask
        means = jnp.where(start_of_document[:, None, None], 0, state)
        y = nn.RMSNorm()(x)
        keys = jnp.concatenate([means.astype(y.dtype), y], axis=1)
        earlier = jnp.tril(jnp.ones((y.shape[1],) * 2, bool)) & mask[:, None]
        visible = jnp.pad(earlier, [(0, 0), (0, 0), (len(self.rates), 0)], constant_values=True)
        read = nn.MultiHeadDotProductAttention(self.num_heads)(y, keys, mask=visible[:, None])
        mean = jnp.sum(y * mask[..., None], axis=1) / jnp.maximum(mask.sum(axis=1), 1)[:, None]
        rates = jnp.array(self.rates)[:, None]
        new = (rates * means + (1 - rates) * mean[:, None]).astype(state.dtype)
        return x + read, jnp.where(mask.any(axis=1)[:, None, None], new, state), Aux()


# %% [markdown]
# Both together: a model of two layers that reads 32 bytes at once. A line has more than 50, so that the model meets the
# colour in most segments without having read it in the same segment.

# %%
import colours
import running_means

from memjax.config import Bytes, Model

texts = Config(
    name="texts",
    model=Model(dim=64, num_layers=2, num_heads=4, positions="sinusoids"),
    data=Data(tokenizer=Bytes(), batch_size=16, segment_length=32),
    training=Training(steps=250, segments_per_update=4, schedule=Schedule(learning_rate=3e-3, warmup_steps=20)),
    evaluation=Evaluation(batch_size=16),
)
result = train(texts, memory=running_means.RunningMeans(), source=colours.Colours())

# %% [markdown]
# ## The commands
#
# A command in another process must know the files. `--module FILE` names one. A module that is installed, or that is in
# the folder of the config file, needs no option. The second line empties the memory before each segment, so that you
# see how much the model uses it.

# %%
import shlex

from memjax import cli

FILES = "--module running_means.py --module colours.py"
for line in (
    f"eval --run runs/texts {FILES}",
    f"eval --run runs/texts {FILES} --evaluation.memory-intervention cleared",
    f"generate --run runs/texts {FILES} --prompt 'the box is ' --max-tokens 60 --temperature 0",
    "eval --run runs/averaged --module averaging.py",
    "compare runs/plain runs/averaged --module averaging.py",
):
    print(f"$ memjax {line}", flush=True)
    if code := cli.main(shlex.split(line)):
        raise SystemExit(f"exit code {code}")
