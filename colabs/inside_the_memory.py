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
# # Inside a memory
#
# Four small models with four memories read the same text, and then each is opened: what is looked up, and how long ago
# it was read; which heads let it through; what becomes of slots; where a continuous signal is looked at; how much of a
# table is in use. These are the panels of `memjax report`, which draws them of any run. The models are trained for
# seconds: what is shown is how to look, not what a large model would do.

# %% cellView="form" jupyter={"source_hidden": true}
# @title Setup: memjax, JAX and the folder of the runs
# Where memjax comes from: "memjax" (the newest release), a wheel, "git+https://...", a checkout; "" = it is here, or as
# a wheel beside this notebook.
SOURCE = ""  # @param {"type":"string"}
# Folder for texts and runs, such as /content/drive/MyDrive/memjax: what a session begins there goes on in the next one.
FOLDER = ""  # @param {"type":"string"}
ALSO = ["matplotlib", "jinja2"]

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
# ## Four models
#
# What the interpreter on this machine says about Python is the text. A Memorizing Transformer looks up single tokens, a
# Memformer writes slots, an infinity-former keeps the past as a smooth signal, and product keys are a table of learned
# values in the place of a feed-forward part.

# %%
import pydoc_data.topics
from pathlib import Path

from memjax import config
from memjax.training import train

text = Path("my_text")
text.mkdir(exist_ok=True)
for name, article in pydoc_data.topics.topics.items():
    (text / f"{name}.txt").write_text(article, encoding="utf-8")

sizes = dict(dim=64, num_layers=2, num_heads=4)
local = config.TransformerXL(memory_length=32, norm="pre")
models = {
    "memorizing": config.Model(
        **sizes,
        attention=config.Memorizing(layers_with_memory=(-1,), memory_length=256, num_neighbors=8, cache_length=32),
    ),
    "memformer": config.Memformer(**sizes, encoder_layers=1, num_slots=8),
    "infinity_former": config.Model(
        **sizes, attention=config.InfinityFormer(num_basis=32, num_samples=32, memory_length=32, sticky="quantile")
    ),
    "product_key": config.Model(
        **sizes, attention=local, feed_forward=config.ProductKey(layers=(-1,), num_keys=32, num_neighbors=8, key_dim=32)
    ),
}
for name, model in models.items():
    settings = config.Config(
        name=name,
        model=model,
        data=config.Data(
            source=config.TextFiles(path=str(text), validation_percent=10),
            tokenizer=config.SentencePiece(vocab_size=512),
            batch_size=8,
            segment_length=32,
        ),
        training=config.Training(
            steps=300,
            segments_per_update=4 if name == "memformer" else 1,
            schedule=config.Schedule(learning_rate=3e-3, warmup_steps=20),
            log_every=300,
            checkpoint_every=100,
            keep_checkpoints=9,
        ),
        evaluation=config.Evaluation(batch_size=4, max_segments=40),
    )
    result = train(settings, on_event=lambda event: None)
    print(f"{name:16} {result.results['evaluation']['bits_per_byte']:.2f} bits per byte of held-out text")

# %% [markdown]
# ## What is looked up
#
# A panel is a question with its pictures, and `PROVIDERS` are who to ask. The Memorizing Transformer attends to what it
# has just read, and to the eight tokens of its memory whose keys are most like the query. First: how old is what it
# reads? Then: what did it find, and where?

# %%
import textwrap
import warnings

import matplotlib.pyplot as plt

from memjax.report import Figure, OpenedRun, charts
from memjax.report.providers import PROVIDERS

plt.rcParams.update(charts.style())
warnings.filterwarnings("ignore", "Glyph .* missing from font")


def show(run, name):
    """The pictures of the panels of one kind, each with what it says."""
    pictures = [
        part for panel in PROVIDERS[name](OpenedRun(f"runs/{run}")) for part in panel.items if isinstance(part, Figure)
    ]
    assert pictures, f"{run} has nothing to show of its {name}"
    for part in pictures:
        part.draw(plt.figure(figsize=(charts.WIDTH, part.height), layout="constrained"))
        plt.show()
        print(textwrap.fill(f"{part.title}. {part.caption}", 110), end="\n\n")


show("memorizing", "attention")

# %% [markdown]
# ## Gates by head
#
# Every head has a gate between its local attention and its memory: 0 = local alone, 1 = memory alone. They begin in the
# middle, and after a few hundred updates are not far from it.

# %%
show("memorizing", "gates")

# %% [markdown]
# ## Slots and their writer
#
# A Memformer rewrites all of its slots after every segment. How much of a slot is left says what it is for: one that
# keeps nearly everything retains, one that keeps nothing is rewritten, and between them slots aggregate.

# %%
show("memformer", "slots")

# %% [markdown]
# ## A signal and its densities
#
# An infinity-former keeps the past as a function of time from 0 (long ago) to 1 (now), and a query looks at it with a
# bell of its own: a density. With sticky memories a place that is looked at much gets more room when the past is
# squeezed to make room for what is new.

# %%
show("infinity_former", "signal")

# %% [markdown]
# ## A table in use
#
# Product keys choose a few of 1,024 values for every token. A table of which a small part is in use is a waste.

# %%
show("product_key", "usage")

# %% [markdown]
# ## All of it on a page
#
# `memjax report` writes these pictures, with everything else that it knows of a run, into one file that needs no
# network. Here it is for one run and one part; without `--only` it has all, and more runs make a page together.

# %%
from memjax import cli

line = ["report", "runs/memorizing", "--only", "gates", "--figures", "figures"]
print("$ memjax", *line)
if code := cli.main(line):
    raise SystemExit(code)
print(*sorted(path.name for path in Path("figures").iterdir()))
