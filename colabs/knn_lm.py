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
# # A store of another domain
#
# A small model learns English: articles about Python. Then it has to read something else: Python code. It is not
# trained again. Instead it gets a store: for every token of some code, what the model had in mind there (a vector, the
# key) and which token came next (the value). When it reads new code it looks for similar moments in the store, and
# believes a little in what came next there. This is kNN-LM (Khandelwal et al. 2020).

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
# ## Two texts
#
# Both come with every Python: the articles of `help()`, and sources of the standard library. A file is a document; some
# are held out for choosing settings (validation), others for the last word (test).

# %%
import pydoc_data.topics
from pathlib import Path

from memjax.data.python_sources import read_python_sources

sources = {name: text for name, text in read_python_sources().items() if 2_000 < len(text) < 50_000}
chosen = sorted(sources)[::4][:32]
texts = {"articles": pydoc_data.topics.topics, "code": {name: sources[name] for name in chosen}}
for name, documents in texts.items():
    folder = Path(name)
    folder.mkdir(exist_ok=True)
    for title, text in documents.items():
        (folder / f"{title}.txt").write_text(text, encoding="utf-8")
    print(f"{name}: {len(documents)} files, {sum(map(len, documents.values())):,} characters")

# %% [markdown]
# ## A model of the articles
#
# A small Transformer without any memory.

# %%
from memjax import config
from memjax.training import train

held_out = {"validation_percent": 10, "test_percent": 15}
settings = config.Config(
    name="articles",
    model=config.Model(dim=96, num_layers=2, num_heads=4),
    data=config.Data(
        source=config.TextFiles(path="articles", **held_out),
        tokenizer=config.SentencePiece(vocab_size=1024),
        batch_size=8,
        segment_length=64,
    ),
    training=config.Training(
        steps=500, schedule=config.Schedule(learning_rate=3e-3, warmup_steps=50), log_every=250, checkpoint_every=500
    ),
    evaluation=config.Evaluation(batch_size=4),
)
result = train(settings)

# %% [markdown]
# ## The same model before other text
#
# `load_run` opens the run with another `data.source`. Code is new to the model: it needs far more bits for it.

# %%
import dataclasses

from memjax.retrieval import make_key_extractor
from memjax.training import load_run

readers = {}
for name in texts:
    data = dataclasses.replace(settings.data, source=config.TextFiles(path=name, **held_out))
    run = load_run("runs/articles", dataclasses.replace(settings, data=data))
    readers[name] = make_key_extractor(run)
    result = run.experiment.evaluate(run.variables, dataclasses.replace(settings.evaluation, split="test"))
    print(f"held-out {name:9} {result.bits_per_byte:.3f} bits per byte")

# %% [markdown]
# ## Two stores
#
# One pass of the model over the training files of each text, nothing more. In a terminal:
# `memjax datastore build --run runs/articles --path store --data.source.path code`.

# %%
from memjax.retrieval import build_datastore

stores = {name: build_datastore(reader, f"store_{name}") for name, reader in readers.items()}
for name, store in stores.items():
    size = sum(file.stat().st_size for file in store.path.rglob("*") if file.is_file())
    print(f"store of {name}: {store.entries:,} entries of {store.dim} numbers, {size / 1e6:.1f} MB")

# %% [markdown]
# ## How much to believe it
#
# For every token of held-out code the 32 nearest keys are looked up once. Then two numbers are tried on the validation
# files: the weight of the store beside the model, and the temperature. A low one believes the nearest neighbour alone,
# a high one all 32 alike.

# %%
from memjax.datastore import open_index
from memjax.retrieval import neighbors_in_store, tune_interpolation

reader, found, results = readers["code"], {}, {}
for name, store in stores.items():
    index = open_index(store, "exact")
    for split in ("validation", "test"):
        results[split], found[name, split] = neighbors_in_store(reader, store, index, reader.evaluator(split), 32)
tuned = {}
for name in stores:
    neighbors = found[name, "validation"]
    tuned[name] = tune_interpolation(neighbors.targets, neighbors.neighbors)
for name, best in tuned.items():
    print(f"store of {name}: weight {best.interpolation_weight}, temperature {best.temperature} are best on validation")

# %%
import matplotlib.pyplot as plt
import numpy as np

figure, panels = plt.subplots(1, 2, figsize=(12, 3.8), layout="constrained")
per_byte = len(found["code", "validation"].targets) / results["validation"].bytes / np.log(2)
lowest, alone = tuned["code"].nats_per_token.min() * per_byte, tuned["code"].nats_per_token[0, 0] * per_byte
for panel, (name, grid) in zip(panels, tuned.items(), strict=True):
    bits = grid.nats_per_token * per_byte
    picture = panel.imshow(bits, aspect="auto", cmap="viridis_r", vmin=lowest, vmax=alone * 1.1)
    row, column = np.unravel_index(bits.argmin(), bits.shape)
    panel.plot(column, row, "*", color="crimson", markersize=16)
    panel.set(title=f"store of {name}: best {bits.min():.3f}, model alone {alone:.3f}", xlabel="weight of the store")
    panel.set_xticks(range(0, len(grid.weights), 4), [f"{weight:.1f}" for weight in grid.weights[::4]])
    panel.set_yticks(range(len(grid.temperatures)), [f"{temperature:g}" for temperature in grid.temperatures])
panels[0].set_ylabel("temperature")
figure.colorbar(picture, ax=panels, label="bits per byte")
figure.suptitle("Held-out code (validation): which weight and temperature")
plt.show()

# %% [markdown]
# ## With and without, on files that nobody has looked at
#
# The store of articles is the control: text of another kind, made by the same model in the same way.

# %%
from memjax.retrieval import score_mixture

bits = {"model alone": results["test"].bits_per_byte}
for name, best in tuned.items():
    score, _ = score_mixture(*vars(found[name, "test"]).values(), best.interpolation_weight, best.temperature)
    bits[f"with the store of {name}"] = score.nats / np.log(2) / results["test"].bytes
for name, value in bits.items():
    print(f"{name:28} {value:.3f} bits per byte, {100 * (1 - value / bits['model alone']):+.1f} % saved")
assert bits["with the store of code"] < 0.97 * bits["model alone"]
assert bits["with the store of code"] < bits["with the store of articles"]

# %% [markdown]
# ## Neighbours of some tokens
#
# Some of the tokens whose probability has risen most. The first line of each is held-out code: what was read, a bar,
# the token that came next, and its probability without the store and with it. Under it are the nearest moments of the
# store: distance, weight, what had been read there, and what came next.

# %%
from memjax.data import AnnotatedDocuments
from memjax.retrieval import describe_retrieved, largest_gains, read_retrieved

here, best = found["code", "test"], tuned["code"]
_, mixed = score_mixture(here.targets, here.neighbors, best.interpolation_weight, best.temperature)
gain = mixed - here.targets.log_probs
print(f"{100 * (gain > 0).mean():.0f} % of {len(gain):,} tokens gain, {100 * (gain < 0).mean():.0f} % lose;", end=" ")
print(f"the most that one loses is {-gain.min():.2f} nats")

order = largest_gains(here.targets, mixed, len(gain))
_, first = np.unique(here.targets.tokens[order], return_index=True)  # one example of each token
read, stored = (AnnotatedDocuments(reader.run.experiment.documents(split)) for split in ("test", "train"))
numbers = reader.numbers("train")  # of an entry -> its place in the training files
rows = read_retrieved(
    order[np.sort(first)[:6]],
    here.targets,
    here.neighbors,
    before_target=lambda number: read.before(number, 20),
    before_entry=lambda entry: stored.before(numbers[entry], 20),
    decode=reader.run.experiment.tokenizer.decode,
    temperature=best.temperature,
    mixed=mixed,
    count=3,
)
print(describe_retrieved(rows, width=50))

# %% [markdown]
# `memjax eval --run runs/articles --datastore store_code --data.source.path code` does all of it in a terminal, and
# `memjax generate` with `--datastore` writes with the store. Larger stores are searched with an index
# (`memjax datastore index`), from the disk or on several devices.
