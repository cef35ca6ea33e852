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
# # Tasks one after the other
#
# A model that learns one task after the other forgets: what it learns now is written over what it knew. Here that is
# seen, and cured by several methods, on a stream of four small tasks; then a run that is through takes a fifth one, and
# answers. Handwritten digits of 8 x 8 pixels, nothing is downloaded.

# %% cellView="form" jupyter={"source_hidden": true}
# @title Setup: memjax, JAX and the folder of the runs
# Where memjax comes from: "memjax" (the newest release), a wheel, "git+https://...", a checkout; "" = it is here, or as
# a wheel beside this notebook.
SOURCE = ""  # @param {"type":"string"}
# Folder for texts and runs, such as /content/drive/MyDrive/memjax: what a session begins there goes on in the next one.
FOLDER = ""  # @param {"type":"string"}
ALSO = ["matplotlib", "scikit-learn"]

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
# ## Five tasks
#
# Each task tells two digits apart, and the next one brings two new ones. A task is a folder: vectors and their classes,
# for training and for the test. The last two digits are kept for tomorrow.

# %%
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_digits

from memjax.data.vectors import write_features
from memjax.report import charts

plt.rcParams.update(charts.style())
picture = lambda height: plt.figure(figsize=(charts.WIDTH, height), layout="constrained")

pixels, digits = load_digits(return_X_y=True)
pixels, digits = np.float32(pixels / 16), np.int32(digits)
in_test = np.random.default_rng(0).random(len(digits)) < 0.25
pairs = [(0, 1), (2, 3), (4, 5), (6, 7), (8, 9)]
for first, second in pairs:
    own = (digits == first) | (digits == second)
    parts = {
        name: (pixels[own & chosen], digits[own & chosen]) for name, chosen in (("train", ~in_test), ("test", in_test))
    }
    write_features(
        f"digits/{first}_{second}", parts, {"what": f"digits {first} and {second}, 8 x 8 pixels from 0 to 1"}
    )
    print(f"digits/{first}_{second}: {len(parts['train'][0])} to learn, {len(parts['test'][0])} for the test")

figure, panels = plt.subplots(1, 10, figsize=(charts.WIDTH, 0.9), layout="constrained")
for digit, panel in enumerate(panels):
    panel.imshow(pixels[digits == digit][0].reshape(8, 8), cmap="gray_r")
    panel.set(xticks=[], yticks=[])
plt.show()

# %% [markdown]
# ## Forgetting
#
# A stream is a configuration like any other; its `method` says what is done against forgetting. `Sequential` is plain
# training: nothing. One head answers for all ten digits, and nobody tells it which task a picture is of.

# %%
from memjax import config
from memjax.lifelong import train

today = pairs[:4]


def settings(name, method):
    tasks = tuple(
        config.TaskData(name=f"{first}_{second}", source=config.CachedFeatures(path=f"{first}_{second}"))
        for first, second in today
    )
    return config.Config(
        name=name,
        model=config.Perceptron(widths=(128,)),
        task=config.Classification(num_classes=10),
        data=config.Data(source=tasks[0].source, batch_size=16, segment_length=64),
        training=config.Training(
            schedule=config.Schedule(learning_rate=3e-3, warmup_steps=0, decay="constant"),
            log_every=1000,
            checkpoint_every=0,
        ),
        evaluation=config.Evaluation(batch_size=64, split="test", compute_accuracy=True),
        lifelong=config.Lifelong(method=method, tasks=tasks, sources_dir=str(Path("digits").resolve()), epochs=6),
    )


plain = train(settings("plain", config.Sequential()))

# %% [markdown]
# Every task is scored after every task. In the matrix a row is a moment and a column a task: what has been learned last
# is known, everything before is at 0. The model may still tell a 0 from other digits: the head does not answer with 0
# any more.

# %%
names = [f"{first} or {second}" for first, second in today]
charts.heatmap(
    picture(2.6), plain.matrix, rows=names, columns=names, numbers="{:.2f}", high=1.0, x="accuracy on", y="after"
)
plt.show()
assert plain.matrix[-1, :-1].max() < 0.5

# %% [markdown]
# ## Cures
#
# What can be done, and what is kept for it:
#
# - **EWC** keeps how much each parameter mattered, and holds those that did.
# - **A-GEM** keeps 100 pictures, and takes no step against the gradient of their mean loss.
# - **GEM** keeps 25 pictures of each task, and takes no step against the gradient of any of them.
# - **Replay** keeps 100 pictures, and learns 16 of them again beside every 16 new ones.
# - **MbPA++** keeps every picture, and replays some now and then. Before it answers it learns the pictures most like
#   the one that it is asked about, for that answer only.
#
# The setting of each is a line. `Joint`, all tasks shuffled together, is the upper bound.

# %%
few = lambda: config.EpisodicMemory(capacity=100)
methods = {
    "EWC": config.EWC(penalty_weight=100.0),
    "A-GEM": config.AGEM(memory=few(), reference_batch_size=64),
    "GEM": config.GEM(examples_per_task=25, cache_gradients=True),
    "replay": config.Replay(memory=few(), replay_batch_size=16),
    "MbPA++": config.MbPA(
        memory=config.EpisodicMemory(write_policy="all", capacity=8000),
        replay_interval=160,
        replay_batch_size=32,
        adaptation_steps=10,
        adapted_parameters=("head/",),
        adaptation_learning_rate=0.2,
    ),
    "all at once": config.Joint(),
}
results = {"plain": plain}
for name, method in methods.items():
    run = name.replace(" ", "_").replace("+", "p")
    results[name] = train(settings(run, method), on_event=lambda event: None)
    print(f"{name:12} {results[name].average:.3f} of all digits in the end")

# %%
shown = [name for name in results if name != "all at once"]
figure = picture(5.2)
for place, name in enumerate(shown, start=1):
    charts.heatmap(
        figure,
        results[name].matrix,
        rows=["0 1", "2 3", "4 5", "6 7"] if place in (1, 4) else [""] * 4,
        columns=["0 1", "2 3", "4 5", "6 7"],
        numbers="{:.2f}",
        high=1.0,
        title=name,
        place=(2, 3, place),
    )
plt.show()

# %%
end = {name: result.average for name, result in results.items()}
bars = {"": [*end.values()]}
charts.bar_chart(picture(3.0), [*end], bars, numbers="{:.2f}", x="accuracy in the end", limits=(0, 1.1))
plt.show()
assert min(end[name] for name in ("GEM", "replay", "MbPA++")) > end["plain"] + 0.3

# %% [markdown]
# These are runs of one seed and one order, at settings that were not searched. They show what the methods do, and not
# which one to take. EWC holds parameters, A-GEM the mean of what is kept. GEM looks after the pictures task by task,
# replay learns them again, and MbPA++ keeps them all and looks things up. The tables of results have orders and seeds,
# and say where a comparison has a verdict.
#
# ## A task tomorrow
#
# The run with replay is through. Now there are two more digits. The run takes them as one more task, and ends as if it
# had known of them from the beginning; the head has had room for ten classes all along. In a terminal, the line after
# the `$` does the same.

# %%
import shlex

from memjax import cli


def command(line):
    print(f"$ memjax {line}")
    if code := cli.main(shlex.split(line)):
        raise SystemExit(code)


command("train --run runs/replay --add-task digits/8_9")

# %%
command("eval --run runs/replay")

# %% [markdown]
# ## Answers
#
# `predict` reads vectors from a file, and answers each with a class and a probability. These pictures are of the test.

# %%
import json
from contextlib import redirect_stdout
from io import StringIO

asked = np.flatnonzero(in_test)[:20]
np.save("asked.npy", pixels[asked])
with redirect_stdout(StringIO()) as said:
    command("predict --run runs/replay asked.npy --json")
answers = [json.loads(line) for line in said.getvalue().splitlines()[1:]]

figure, panels = plt.subplots(2, 10, figsize=(charts.WIDTH, 2.2), layout="constrained")
for number, answer, panel in zip(asked, answers, panels.flat, strict=True):
    right = int(answer["answer"]) == digits[number]
    panel.imshow(pixels[number].reshape(8, 8), cmap="gray_r")
    panel.set(xticks=[], yticks=[])
    panel.set_title(f"{answer['answer']}", color=charts.GAIN if right else charts.LOSS)
    panel.set_xlabel(f"{answer['probability']:.2f}", fontsize=9)
plt.show()
right = sum(int(answer["answer"]) == digits[number] for number, answer in zip(asked, answers, strict=True))
print(f"{right} of {len(asked)} are right, by what was learned one task after the other")
assert right > 15

# %% [markdown]
# `memjax report runs/replay` writes a page with the matrix, forgetting, accuracy by the age of a task and what the
# method keeps; `memjax train --tasks A.csv B.csv` learns texts of your own, one file a task.
