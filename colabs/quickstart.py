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
# # memjax in five minutes
#
# Your own text, a small model with a memory, the same model with its memory off, a sample, and the run in another
# folder. No accelerator is needed. Put files of your own into the folder `my_text`, and the second cell takes them.

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
# ## A text
#
# Any files of text do. Without any it is what the interpreter on this machine says about Python: 79 articles, 460 kB.
# A file is a document; some are held out, so that what is measured was never read in training.

# %%
import pydoc_data.topics
from pathlib import Path

text = Path("my_text")
if not text.exists():
    text.mkdir()
    for name, article in pydoc_data.topics.topics.items():
        (text / f"{name}.txt").write_text(article, encoding="utf-8")
print(sum(file.stat().st_size for file in text.iterdir()), "bytes in", len(list(text.iterdir())), "files")

# %% [markdown]
# ## Training
#
# A Transformer-XL: every layer remembers what it saw at the last 128 tokens, beyond its segment of 64. A run is a
# folder, here `runs/quickstart`. Interrupt the cell whenever you like and run it again: it goes on where it was. With a
# FOLDER of a mounted drive in the first cell it also goes on in another session, tomorrow or on another machine. In a
# terminal `memjax train --text my_text` chooses a model by the size of the text.

# %%
from memjax import config
from memjax.training import train

settings = config.Config(
    name="quickstart",
    model=config.Model(
        dim=128, num_layers=3, num_heads=4, dropout=0.1, attention=config.TransformerXL(memory_length=128, norm="pre")
    ),
    data=config.Data(
        source=config.TextFiles(path=str(text), validation_percent=10),
        tokenizer=config.SentencePiece(vocab_size=1024),
        batch_size=8,
        segment_length=64,
    ),
    training=config.Training(
        steps=600,
        schedule=config.Schedule(learning_rate=3e-3, warmup_steps=50, decay="cosine"),
        log_every=100,
        checkpoint_every=200,
    ),
    evaluation=config.Evaluation(batch_size=4),
)
result = train(settings)
print(f"held-out text: {result.results['evaluation']['bits_per_byte']:.3f} bits per byte")

# %% [markdown]
# ## Memory on and off
#
# The same parameters with memories of other sizes, on the articles that were held out. Nothing is trained again: the
# state is an argument of the model. In a terminal, the line after the `$` does the same.

# %%
import shlex

from memjax import cli


def command(line):
    print(f"$ memjax {line}")
    if code := cli.main(shlex.split(line)):
        raise SystemExit(code)


command("eval --run runs/quickstart --memory off,32,128,256")

# %% [markdown]
# A memory of another kind, added now: a continuous cache of the last 1,000 hidden states and the words that came after
# them. It knows no parameters; it makes what has just been said more likely.

# %%
command("eval --run runs/quickstart --evaluation.cache.memory-length 1000 --evaluation.cache.similarity-scale 0.3")

# %% [markdown]
# ## Text from the model
#
# Six hundred steps make no writer, but words and forms are those of the text. Equal seeds give equal text.

# %%
from contextlib import redirect_stdout
from io import StringIO


def generated(run):
    with redirect_stdout(StringIO()) as out:
        command(f'generate --run {run} --prompt "The statement" --max-tokens 100 --seed 1 --temperature 0.7')
    return out.getvalue().partition("\n")[2]


sample = generated("runs/quickstart")
print(sample)

# %% [markdown]
# ## The run, elsewhere
#
# A run is all that generation needs: its parameters, its settings and its tokenizer. Copy the folder to another
# machine. Here it goes to another folder, with the text out of reach, and says the same.

# %%
import shutil

elsewhere = Path("elsewhere")
shutil.rmtree(elsewhere, ignore_errors=True)
shutil.copytree("runs/quickstart", elsewhere / "quickstart")
text.rename("my_text_away")
try:
    assert generated(elsewhere / "quickstart") == sample
finally:
    Path("my_text_away").rename(text)
print("the same text from", elsewhere / "quickstart")
