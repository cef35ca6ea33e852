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
# # From Hugging Face, and back
#
# A GPT-2 comes in as the folder that `transformers` writes. It computes the same here as there. Then it gets memories:
# one that needs no training, and two that are trained for a moment. Then it goes out again as such a folder. At the end
# a BERT gets facts beside its feed-forward networks (ResM). Neither PyTorch nor `transformers` is needed.

# %% cellView="form" jupyter={"source_hidden": true}
# @title Setup: memjax, JAX and the folder of the runs
# Where memjax comes from: "memjax" (the newest release), a wheel, "git+https://...", a checkout; "" = it is here, or as
# a wheel beside this notebook.
SOURCE = ""  # @param {"type":"string"}
# Folder for texts and runs, such as /content/drive/MyDrive/memjax: what a session begins there goes on in the next one.
FOLDER = ""  # @param {"type":"string"}
ALSO = ["matplotlib", "tokenizers"]

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
# ## A folder with weights
#
# With a GPT-2 of your own, put its folder into `FOLDER`: `config.json`, `model.safetensors` and the files of the
# tokenizer, as `save_pretrained` writes them or as they lie on the hub. Without one the next cells make a small GPT-2
# first. It learns from the articles of Python's `help()`, which every machine has; some are held out.

# %%
import pydoc_data.topics
import shlex
from pathlib import Path

from memjax import cli, config
from memjax.training import train

FOLDER = ""
SEGMENT = 64  # tokens that the model sees at once; what is beyond, only a memory can know

text = Path("articles")
text.mkdir(exist_ok=True)
for name, article in pydoc_data.topics.topics.items():
    (text / f"{name}.txt").write_text(article, encoding="utf-8")


def command(line):
    print(f"$ memjax {line}")
    if code := cli.main(shlex.split(line)):
        raise SystemExit(code)


def data(tokenizer):
    source = config.TextFiles(path=str(text), validation_percent=10, test_percent=15)
    return config.Data(source=source, tokenizer=tokenizer, batch_size=8, segment_length=SEGMENT)


scored = config.Evaluation(batch_size=4, split="test")

# %%
made_here = not FOLDER
if made_here:
    FOLDER = "gpt2_small"
    tiny = config.Config(
        name="made",
        model=config.Model(
            dim=128,
            num_layers=2,
            num_heads=4,
            scale_embeddings=False,
            attention=config.GPT2(num_positions=SEGMENT),
            feed_forward=config.Dense(activation="gelu"),
        ),
        data=data(config.BytePairs(vocab_size=1024)),
        training=config.Training(
            steps=500,
            schedule=config.Schedule(learning_rate=3e-3, warmup_steps=50),
            log_every=250,
            checkpoint_every=500,
        ),
        evaluation=scored,
    )
    train(tiny)
    if not Path(FOLDER).exists():
        command(f"export --run runs/made --to {FOLDER}")
print(*sorted(file.name for file in Path(FOLDER).iterdir()))

# %% [markdown]
# ## In
#
# A run is made of the folder, at step 0. Everything that takes a run takes it: `generate`, `eval`, `train`.

# %%
if not Path("runs/gpt2").exists():
    command(f"import --weights {FOLDER} --run runs/gpt2")
command('generate --run runs/gpt2 --prompt "The statement" --max-tokens 40 --seed 1 --temperature 0.7')

# %% [markdown]
# Does it compute the same? Here is GPT-2 as it was published, in a few lines of NumPy, on the tensors of the folder.
# The scores of all tokens agree to rounding.

# %%
import json

import jax.numpy as jnp
import numpy as np
from safetensors.numpy import load_file

from memjax.training import load_run

described = json.loads(Path(FOLDER, "config.json").read_text())
files = sorted(Path(FOLDER).glob("*.safetensors"))
tensors = {name.removeprefix("transformer."): tensor for file in files for name, tensor in load_file(file).items()}


def published(ids):
    """Scores of the next token at every place, by the tensors alone."""
    linear = lambda name, x: x @ tensors[f"{name}.weight"] + tensors[f"{name}.bias"]
    gelu = lambda x: 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))

    def norm(name, x):
        x = x - x.mean(-1, keepdims=True)
        return x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-5) * tensors[f"{name}.weight"] + tensors[f"{name}.bias"]

    x, heads = tensors["wte.weight"][ids] + tensors["wpe.weight"][: len(ids)], described["n_head"]
    for layer in (f"h.{index}" for index in range(described["n_layer"])):
        parts = np.split(linear(f"{layer}.attn.c_attn", norm(f"{layer}.ln_1", x)), 3, axis=-1)
        q, k, v = (part.reshape(len(ids), heads, -1).swapaxes(0, 1) for part in parts)
        scores = q @ k.swapaxes(1, 2) / np.sqrt(q.shape[-1])
        scores = np.where(np.tri(len(ids), dtype=bool), scores, -np.inf)
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        read = (weights / weights.sum(-1, keepdims=True)) @ v
        x = x + linear(f"{layer}.attn.c_proj", read.swapaxes(0, 1).reshape(len(ids), -1))
        x = x + linear(f"{layer}.mlp.c_proj", gelu(linear(f"{layer}.mlp.c_fc", norm(f"{layer}.ln_2", x))))
    return norm("ln_f", x) @ tensors["wte.weight"].T


run = load_run("runs/gpt2")
model, variables, tokenizer = run.experiment.model, run.variables, run.experiment.tokenizer
ids = tokenizer.encode("The with statement is used to wrap the execution of a block with methods.")
start = {"start_of_document": jnp.ones(1, bool)}
hidden, _, _ = model.apply(variables, jnp.asarray(ids)[None], model.init_state(1), **start)
ours = np.asarray(model.apply(variables, hidden, method="logits"))[0, :, : tokenizer.vocab_size]
theirs = published(ids)
print(f"{ours.shape[0]} places, {ours.shape[1]} tokens: scores differ by up to {abs(ours - theirs).max():.1e}")
print("largest score:", abs(theirs).max())
assert np.allclose(ours, theirs, atol=1e-3)

# %% [markdown]
# ## A memory without training
#
# A continuous cache holds the last hidden states and the tokens that came after them. It has no parameters, so that any
# model can have it at once.

# %%
import dataclasses

imported = dataclasses.replace(run.experiment.config, data=data(config.BytePairs(path=FOLDER)), evaluation=scored)
cached = dataclasses.replace(
    scored,
    cache=config.ContinuousCache(
        memory_length=1000, similarity="cosine", similarity_scale=20.0, interpolation_weight=0.1
    ),
)
run = load_run("runs/gpt2", imported)
bits = {"GPT-2": run.experiment.evaluate(run.variables).bits_per_byte}
bits["GPT-2 + cache"] = run.experiment.evaluate(run.variables, cached).bits_per_byte
for name, value in bits.items():
    print(f"{name:14} {value:.4f} bits per byte of held-out articles")
assert bits["GPT-2 + cache"] < bits["GPT-2"] or not made_here

# %% [markdown]
# ## Memories that are trained for a moment
#
# A memory with parameters has to learn. Three models go on from the weights that came in, for as many updates each: the
# GPT-2 as it is (the control), one with 64 compressed slots of 4 tokens, and an infinity-former, whose memory is a
# signal over all of the past. `init_from` says what is new.

# %%
MEMORIES = {
    "goes on alone": {},
    "+ compressed slots": {"compressed_memory_length": 64, "compression_rate": 4},
    "+ infinity-former": {"num_basis": 64, "num_samples": 64, "num_bins": 16, "widths": (0.01, 0.05)},
}
positions = imported.model.attention.num_positions
for number, (name, fields) in enumerate(MEMORIES.items()):
    kind = {"base_attention": "gpt2", **fields} if "num_basis" in fields else fields
    make = config.InfinityFormer if "num_basis" in fields else config.GPT2
    settings = dataclasses.replace(
        imported,
        name=f"gpt2_{number}",
        model=dataclasses.replace(imported.model, attention=make(num_positions=positions, **kind)),
        training=config.Training(
            init_from="runs/gpt2",
            steps=150,
            schedule=config.Schedule(learning_rate=5e-4 if made_here else 5e-5, warmup_steps=0),
            memory_learning_rate=3e-3 if made_here else 2.5e-4,  # of what is new; the others are those of the paper
            log_every=150,
            checkpoint_every=150,
        ),
    )
    print(f"\n{name}")
    train(settings)

# %% [markdown]
# What has it given? Every model reads the same held-out articles. The error is that of the mean over articles, since
# tokens of one article are no independent evidence. Each model is trained once, so that the error says nothing of
# other seeds.

# %%
from memjax.data import AnnotatedDocuments
from memjax.retrieval import score_targets

nats = {}
for number, name in enumerate(MEMORIES):
    run = load_run(f"runs/gpt2_{number}")
    articles = AnnotatedDocuments(run.experiment.documents("test"), numbers=True)
    result, targets = score_targets(run.experiment.evaluator(documents=articles), run.variables)
    article = np.searchsorted(articles.offsets, targets.numbers, side="right") - 1
    nats[name] = -np.bincount(article, weights=targets.log_probs, minlength=len(articles))
    bits[name] = result.bits_per_byte
sizes = np.array([articles.num_bytes(index) for index in range(len(articles))])

change, error = {}, {}
for name, own in nats.items():
    difference = (own - nats["goes on alone"]) / np.log(2)
    change[name] = difference.sum() / sizes.sum()
    error[name] = np.std(difference - change[name] * sizes, ddof=1) * len(sizes) ** 0.5 / sizes.sum()
    print(f"{name:19} {bits[name]:.4f} bits per byte, against the control {change[name]:+.4f} ± {error[name]:.4f}")
print(f"over {len(sizes)} articles of {sizes.sum():,} bytes")

# %%
import matplotlib.pyplot as plt

figure, panel = plt.subplots(figsize=(8, 2.8), layout="constrained")
for place, name in enumerate(reversed(bits)):
    color = "tab:orange" if name == "GPT-2 + cache" else "tab:blue" if "+" in name else "tab:gray"
    panel.errorbar(bits[name], place, xerr=error.get(name, 0), fmt="o", color=color, markersize=9, capsize=4)
panel.set_yticks(range(len(bits)), list(reversed(bits)))
panel.set(xlabel="bits per byte of held-out articles (error: of the difference to the control)", ylim=(-0.6, 4.6))
panel.set_title("Gray: no memory. Orange: not trained. Blue: trained for a moment")
panel.grid(axis="x", alpha=0.4)
plt.show()

# %% [markdown]
# So short a training teaches a new memory little or nothing, and the error says how much of it is luck.
# `tools/results/tables/gpt2_wikitext.md` of a checkout has the numbers of a longer one. The cache needs none.
#
# ## Out
#
# `export` writes the folder that `transformers` reads. What it has no place for, the memory, stays behind and is named.

# %%
import shutil

shutil.rmtree("again", ignore_errors=True)
shutil.rmtree("with_memory", ignore_errors=True)
command("export --run runs/gpt2 --to again")
command("export --run runs/gpt2_1 --to with_memory")


def read_folder(folder):
    files = sorted(Path(folder).glob("*.safetensors"))
    return {name: tensor for file in files for name, tensor in load_file(file).items()}


came, went = read_folder(FOLDER), read_folder("again")
assert came.keys() == went.keys()
assert all(np.array_equal(came[name], went[name]) for name in came)
print(f"\n{len(went)} tensors: those that came in, bit for bit")

# %% [markdown]
# ## BERT, with facts beside its networks
#
# The same with a text encoder. ResM puts product keys beside a feed-forward network: 1,024 slots of parameters, of
# which a token reads a few. Again a small BERT is made first, written as a folder and read from it; put the folder of
# one of your own into `BERT`.

# %%
BERT = ""


def masked(name, tokenizer, model, **training):
    return config.Config(
        name=name,
        task=config.MaskedLanguageModeling(),
        model=model,
        data=dataclasses.replace(data(tokenizer), batch_size=16, segment_length=SEGMENT),
        training=config.Training(log_every=150, **training),
        evaluation=dataclasses.replace(scored, compute_accuracy=True),
    )


if not BERT:
    BERT = "bert_small"
    encoder = config.Model(
        dim=96,
        num_layers=2,
        num_heads=4,
        attention=config.Bidirectional(num_positions=SEGMENT),
        feed_forward=config.Dense(activation="gelu_exact"),
    )
    peak = config.Schedule(learning_rate=2e-3, warmup_steps=50)
    train(masked("bert_made", config.WordPiece(vocab_size=1024), encoder, steps=300, schedule=peak))
    if not Path(BERT).exists():
        command(f"export --run runs/bert_made --to {BERT}")
if not Path("runs/bert").exists():
    command(f"import --weights {BERT} --run runs/bert")

# %%
bert = load_run("runs/bert").experiment.config.model
plain = bert.feed_forward
beside = config.ProductKey(
    dim=plain.dim, activation=plain.activation, layers=(-1,), num_keys=32, num_neighbors=8, dense_scale=1.0
)
found = {}
for name, part in {"bert_alone": plain, "bert_resm": beside}.items():
    settings = masked(
        name,
        config.WordPiece(vocab="runs/bert/tokenizer/tokenizer.json"),
        dataclasses.replace(bert, feed_forward=part),
        init_from="runs/bert",
        steps=150,
        schedule=config.Schedule(learning_rate=5e-4, warmup_steps=20),
    )
    found[name] = train(settings).results
for name, results in found.items():
    right, hidden = results["evaluation"]["accuracy"], results["evaluation"]["targets"]
    error, size = (right * (1 - right) / hidden) ** 0.5, results["parameters"]
    print(f"{name:10} {100 * right:.1f} ± {100 * error:.1f} % of {hidden:,} hidden tokens, {size:,} parameters")

# %% [markdown]
# Out again: the BERT goes, the facts stay. What ResM gives BERT in longer runs: `tools/results/tables/bert_glue.md` and
# `bert_mlm_wikitext.md`; what facts it holds where no document tells them: `fact_table.md`.

# %%
shutil.rmtree("bert_again", ignore_errors=True)
command("export --run runs/bert_resm --to bert_again")
went, described = read_folder("bert_again"), json.loads(Path("bert_again", "config.json").read_text())
assert described["model_type"] == "bert"
assert not [name for name in went if "memory" in name]
print(f"\n{len(went)} tensors of a {described['model_type']} with {described['num_hidden_layers']} layers")
