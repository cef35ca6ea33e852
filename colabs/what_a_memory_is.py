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
# # What a memory is
#
# A Transformer reads a text in segments and forgets each one when the next begins. A memory is what it keeps. In this
# notebook you call one by hand, watch it fill, empty it, and then train two small models on a task that needs it: one
# with the memory, one without.

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
# ## A state that you hold
#
# Every memory of memjax is called in the same way. `init_state` makes an empty state, and a call takes the state and
# gives a new one. The module itself keeps nothing.
#
#     state         = memory.init_state(rows)
#     y, state, aux = memory(x, state, start_of_document=..., mask=...)
#
# Here it is the memory of the Memorizing Transformer: it stores a key and a value for every token that it has read, in
# 12 slots, and looks up the 2 best of them for every new token.

# %%
import jax
import jax.numpy as jnp

from memjax.memory import MemorizingAttention

ROWS, LENGTH, DIM, SLOTS = 3, 4, 16, 12
memory = MemorizingAttention(
    dim=DIM, num_heads=2, head_dim=8, memory_length=SLOTS, num_neighbors=2, track_positions=True
)
empty = memory.init_state(ROWS)  # needs no parameters
for path, leaf in jax.tree.leaves_with_path(empty):
    print(f"state{jax.tree_util.keystr(path):26} {leaf.dtype!s:8} {leaf.shape}")
print(f"{sum(leaf.nbytes for leaf in jax.tree.leaves(empty)):,} bytes for {ROWS} rows")

# %% [markdown]
# `x` is one segment of every row, `[rows, length, dim]`. `y` is what the next layer gets, of the same shape. `aux` is
# what the memory says of itself.

# %%
everywhere, nowhere = jnp.ones(ROWS, bool), jnp.zeros(ROWS, bool)
segment = lambda number: jax.random.normal(jax.random.key(number), (ROWS, LENGTH, DIM))

params = jax.jit(memory.init)(jax.random.key(0), segment(0), empty, start_of_document=everywhere)
call = jax.jit(memory.apply)

y, state, aux = call(params, segment(0), empty, start_of_document=everywhere)
print("y:", y.shape, " slots in use before:", empty.memory.valid.sum(axis=1), " after:", state.memory.valid.sum(axis=1))
print("aux:", *aux.metrics, *aux.arrays)

# %% [markdown]
# ## The ring, slot by slot
#
# Three rows are three texts, read side by side. Row 0 is one long text. Row 1 begins another text with its fourth
# segment: `start_of_document` says so. Row 2 has a short segment: `mask` says which tokens are real, and from then on
# it has none at all.
#
# Every line of the pictures is the memory after a segment, and a number is the place of a token in its text. The new
# segment goes into the next four slots. When the ring is full, it overwrites what is oldest.

# %%
import numpy as np

SEGMENTS = 6
state, history, cursors = empty, [], []
for number in range(SEGMENTS):
    start = jnp.array([number == 0, number in (0, 3), number == 0])
    real = jnp.array([LENGTH, LENGTH, LENGTH if number < 2 else 2 if number == 2 else 0])
    mask = jnp.arange(LENGTH) < real[:, None]
    y, state, aux = call(params, segment(number), state, start_of_document=start, mask=mask)
    history.append(np.where(state.memory.valid, state.memory.positions, -1))
    cursors.append(np.asarray(state.memory.cursor))
history, cursors = np.stack(history, axis=1), np.stack(cursors, axis=1)  # [rows, segments, slots], [rows, segments]

# %%
import matplotlib.pyplot as plt

titles = ("row 0: one long text", "row 1: a new text at segment 3", "row 2: two real tokens at segment 2, then none")
figure, panels = plt.subplots(1, ROWS, figsize=(14, 3.4), layout="constrained")
for panel, title, slots, cursor in zip(panels, titles, history, cursors, strict=True):
    panel.imshow(np.where(slots < 0, np.nan, slots), cmap="viridis", vmin=0, vmax=SEGMENTS * LENGTH, alpha=0.6)
    for (line, slot), place in np.ndenumerate(slots):
        panel.text(slot, line, place if place >= 0 else "·", ha="center", va="center", fontsize=9)
    panel.plot(cursor, np.arange(SEGMENTS), "s", color="crimson", markersize=17, fillstyle="none")
    panel.set(title=title, xlabel="slot", ylabel="after segment", xticks=range(SLOTS), yticks=range(SEGMENTS))
figure.suptitle("What stands in the slots: the place of a token in its text (· = empty; red = written next)")
plt.show()

# %% [markdown]
# ## What is promised
#
# These promises hold for every memory of the library, and its tests check them for each. Here they are by hand.

# %%
same = lambda one, other: all(jax.tree.leaves(jax.tree.map(lambda a, b: bool((a == b).all()), one, other)))

# The old state has not changed: it is a value, like a number.
assert same(empty, memory.init_state(ROWS))

# A row that starts a document remembers nothing, whatever the state held.
_, full, _ = call(params, segment(1), empty, start_of_document=everywhere)
after_full, _, _ = call(params, segment(2), full, start_of_document=everywhere)
after_empty, _, _ = call(params, segment(2), empty, start_of_document=everywhere)
assert same(after_full, after_empty)
going_on, _, _ = call(params, segment(2), full, start_of_document=nowhere)
print(f"the same segment, going on or starting anew: y differs by up to {abs(going_on - after_full).max():.2f}")

# Padding writes nothing: a row without a real token keeps its state bit for bit.
_, kept, _ = call(
    params, segment(2), full, start_of_document=nowhere, mask=jnp.array([[True] * 4, [True] * 4, [False] * 4])
)
assert same(jax.tree.map(lambda leaf: leaf[2], kept), jax.tree.map(lambda leaf: leaf[2], full))

# Rows do not see each other.
other_text = segment(2).at[0].set(0.0)
alone, _, _ = call(params, other_text, full, start_of_document=nowhere)
assert same(alone[1:], going_on[1:])
assert not same(alone[0], going_on[0])
print("all of it holds")

# %% [markdown]
# A text is written token by token, not in segments. `decode` gives for each token what the whole segment gives.

# %%
decode_state = memory.init_decode_state(full, LENGTH, ROWS)
step = jax.jit(lambda x, state: memory.apply(params, x, state, active=everywhere, method="decode"))
tokens = []
for place in range(LENGTH):
    token, decode_state = step(segment(2)[:, place : place + 1], decode_state)
    tokens.append(token)
difference = float(abs(jnp.concatenate(tokens, axis=1) - going_on).max())
print(f"token by token against the whole segment: y differs by up to {difference:.1e}")
assert difference < 1e-5

# %% [markdown]
# ## A task that needs a memory
#
# A document says which value belongs to which of eight keys, and asks for each of them right away, for practice. Then
# come 48 tokens that mean nothing, and then it asks for all eight values again. The models read 8 tokens at a time, so
# that the answers are many segments away.

# %%
from memjax.settings.overrides import load_config

config = load_config("key_value_recall")
slots, layers = config.model.attention.memory_length, config.model.num_layers
print(
    f"segments of {config.data.segment_length} tokens, {layers} layers, a memory of {slots} slots in the first of them"
)

# %%
from memjax.data.key_value_recall import KeyValueRecallDocuments

documents = KeyValueRecallDocuments(1)
first = {"~": 3, "=": 3 + 8, "?": 3 + 8 + documents.num_values}  # noise, values, keys; then pairs of key and value
pairs = first["?"] + documents.num_keys


def word(token):
    if token >= pairs:
        key, value = divmod(token - pairs, documents.num_values)
        return f"[key {key} is {value}]"
    kind = max((kind for kind in first if first[kind] <= token), key=first.get)
    return "~" if kind == "~" else f"{kind}{token - first[kind]}"


print(" ".join(word(int(token)) for token in documents[0]))
print(
    f"{len(documents[0])} tokens; whoever remembers nothing is right in {100 * documents.chance:.2f} % of the answers"
)

# %% [markdown]
# Two models are trained, equal but for the memory of the first layer. This takes about half a minute each on two CPU
# cores. In a terminal: `memjax train --config key_value_recall`, and the same with `--variant cache_only`.

# %%
from memjax.training import read_metrics, train

found, curves = {}, {}
for name, slots in {"with memory": None, "without": 0}.items():
    settings = config.with_memory(slots)  # None = as it is, 0 = no memory
    settings.name = f"recall_{name.replace(' ', '_')}"
    settings.training.steps, settings.training.evaluate_every, settings.training.log_every = 2000, 200, 1000
    result = train(settings)
    found[name] = result.results["evaluation"]
    lines = [line for line in read_metrics(result.path / "metrics.jsonl") if line["kind"] == "evaluation"]
    curves[name] = [(line["step"], line["accuracy"]) for line in lines]

for name, evaluation in found.items():
    print(f"{name:12} {100 * evaluation['accuracy']:5.1f} % of {evaluation['targets']:,} held-out answers are right")
assert found["with memory"]["accuracy"] > 0.9
assert found["without"]["accuracy"] < 0.15

# %%
figure, panel = plt.subplots(figsize=(6.5, 3.4), layout="constrained")
for name, points in curves.items():
    steps, accuracies = zip(*points, strict=True)
    panel.plot(steps, [100 * accuracy for accuracy in accuracies], marker="o", label=name)
panel.axhline(100 * documents.chance, color="gray", linestyle="--", label="chance")
panel.set(xlabel="updates", ylabel="answers right (%)", ylim=(0, 103), title="Values asked for many segments later")
panel.legend()
plt.show()

# %% [markdown]
# ## It is the memory
#
# The trained model has the same parameters in all three lines. Only the state that it is given differs: the one that it
# left, an empty one at every segment, or that of another row.

# %%
import dataclasses

from memjax.training import load_run

run = load_run("runs/recall_with_memory")
asked = run.experiment.config.evaluation
answered = {}
for state in ("kept", "cleared", "shuffled"):
    evaluation = run.experiment.evaluate(run.variables, dataclasses.replace(asked, memory_intervention=state))
    answered[state] = evaluation.accuracy
    print(f"memory {state:9} {100 * evaluation.accuracy:5.1f} %")
assert answered["kept"] > 0.9 > 0.15 > max(answered["cleared"], answered["shuffled"])
