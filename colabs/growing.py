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
# # A model that grows
#
# A trained model is made bigger without changing what it computes: it says tomorrow what it said today, and has room to
# learn more. Here it is done by hand to a small language model, then in a run over three kinds of text, which grows
# before each (ELLE, Qin et al. 2022, https://arxiv.org/abs/2203.06311). Two CPU cores, about two minutes.

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
# ## Three texts
#
# Three kinds of text that every Python brings along: articles in English about the language, source code, and the names
# of letters. One line of a file is a document; some are held out.

# %%
import json
import pydoc_data.topics
import sysconfig
import unicodedata
from pathlib import Path

from memjax import config

articles = list(pydoc_data.topics.topics.values())
sources = [path.read_text(encoding="utf-8") for path in sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))]
named = [name for number in range(0x3000) if (name := unicodedata.name(chr(number), ""))]
letters = ["\n".join(named[first : first + 50]) for first in range(0, len(named), 50)]
texts = {"english": articles, "python": sources, "letters": letters}

folder = Path("texts")
folder.mkdir(exist_ok=True)
for name, documents in texts.items():
    lines = [json.dumps({"text": document[:8000]}) + "\n" for document in documents]
    (folder / f"{name}.jsonl").write_text("".join(lines), encoding="utf-8")
    print(f"{name:8} {len(documents):4} documents, for example {documents[0][:50]!r}")
tasks = {
    name: config.JsonLines(path=str((folder / f"{name}.jsonl").resolve()), validation_percent=10) for name in texts
}

# %% [markdown]
# ## A small model
#
# Two layers of width 32, trained for some seconds to guess the next byte of the English articles.

# %%
from memjax.lifelong import load_run, train

small = config.Model(
    dim=32,
    num_layers=2,
    num_heads=2,
    scale_embeddings=False,
    attention=config.GPT2(num_positions=64),
    feed_forward=config.Dense(dim=128, activation="gelu"),
)
settings = config.Config(
    name="small",
    model=small,
    task=config.LanguageModeling(fixed_length_examples=True),
    data=config.Data(source=tasks["english"], tokenizer=config.Bytes(), batch_size=16, segment_length=64),
    training=config.Training(
        steps=300,
        schedule=config.Schedule(learning_rate=3e-3, warmup_steps=20, decay="constant"),
        log_every=50,
        checkpoint_every=0,
    ),
    evaluation=config.Evaluation(batch_size=32),
)
run = load_run(train(settings).path)

# %% [markdown]
# ## Twice as wide
#
# Every new entry of an array is a copy of one that was there. Where a matrix reads entries that now exist twice, its
# rows are halved, so that the sum is what it was. `make_growth` says who copies whom, and `expand` grows all arrays.

# %%
import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np

from memjax.lifelong.elle import make_growth
from memjax.lifelong.expansion import expand
from memjax.report import charts
from memjax.training import init_variables

plt.rcParams.update(charts.style())
picture = lambda height: plt.figure(figsize=(charts.WIDTH, height), layout="constrained")
rows = next(iter(run.experiment.reading().batches(run.experiment.documents("validation"))))
make = lambda model: init_variables(model, jax.random.key(0), segment_length=64)


def log_probs(model, variables):
    """What a model says of the next byte, everywhere in the held-out text."""

    @jax.jit
    def read(variables):
        state = model.init_state(len(rows.inputs))
        hidden, _, _ = model.apply(variables, rows.inputs, state, start_of_document=rows.start_of_document)
        return model.apply(variables, hidden, method="log_probs")

    return read(variables)


def bigger(dim=32, num_layers=2, how="random", norms="weighted", **noise_and_depth):
    """The small model made bigger: its answers, and who is a copy of whom."""
    entry, growth = make_growth(small, dim, num_layers, how=how, norms=norms)
    model = run.experiment.with_growth([entry]).model
    variables = expand(run.variables, run.experiment.model, model, growth, make=make, **noise_and_depth)
    return log_probs(model, variables), growth


before = log_probs(run.experiment.model, run.variables)
after, growth = bigger(64, how="cyclic", norms="plain", noise="none")
print("before", *(f"{value:.5f}" for value in before[0, 0, 97:103]))
print("after ", *(f"{value:.5f}" for value in after[0, 0, 97:103]))
assert np.allclose(before, after, atol=1e-3)

# %% [markdown]
# ## Any width
#
# Doubling is easy: every entry has one copy, and a mean over all entries, which is what a norm takes, stays the same.
# From 32 to 48 some entries get several copies and others none. Then an ordinary norm computes something else; a norm
# that weighs every entry by one over its number does not.

# %%
_, growth = bigger(48)
charts.bar_chart(
    picture(2.2),
    [str(entry) if entry % 4 == 0 else "" for entry in range(32)],
    {"": np.bincount(growth.embed)},
    upright=True,
    x="entry of the small model",
    y="times in the big one",
)
plt.show()

# %% [markdown]
# Copies that are equal get equal gradients and stay equal for ever. So noise is added to the rows that read them. The
# paper adds any noise; noise that adds up to zero over the copies of one entry cannot be seen from outside. Likewise
# for depth: a copied layer does its work twice, but one whose last matrices are zero does nothing at first.

# %%
forms = {
    "64 wide, each entry twice": dict(dim=64, how="cyclic", norms="plain", noise="none"),
    "48 wide, norms count copies": dict(dim=48, noise="none"),
    "and noise that adds up to 0": dict(dim=48, noise="zero_sum"),
    "4 layers, new ones silent": dict(num_layers=4, depth="identity"),
    "48 wide, ordinary norms": dict(dim=48, norms="plain", noise="none"),
    "and any noise (paper)": dict(dim=48, norms="plain", noise="paper"),
    "4 layers, plain copies (paper)": dict(num_layers=4, depth="copy"),
}
EXACT = [*forms][:4]


def of_text(said):
    """The log-probability of every byte of the held-out text."""
    each = jnp.take_along_axis(said, rows.targets[..., None], axis=-1)[..., 0]
    return np.asarray(each[rows.weights > 0])


shown, own = {}, of_text(before)
print(f"{'the small model':30} {-own.mean():.4f} nats a byte")
for name, how in forms.items():
    after, _ = bigger(**how)
    shown[name] = of_text(after)
    changed = float(jnp.abs(after - before).max())
    print(f"{name:30} {-shown[name].mean():.4f} nats a byte; a log-probability changes by {changed:.0e} at most")
    assert (changed < 1e-3) == (name in EXACT)

# %% [markdown]
# A dot is a byte of the text: what the small model says of it, and what the big one does. On the diagonal nothing has
# changed.

# %%
figure = picture(2.9)
titles = {EXACT[2]: "48, norms count", "48 wide, ordinary norms": "48, ordinary norms", [*forms][-1]: "layers copied"}
for place, (name, title) in enumerate(titles.items(), start=1):
    points = np.stack([own, shown[name]], axis=1)[:1500]
    y = "big model" if place == 1 else ""
    charts.scatter(figure, points, title=title, size=6, x="small model", y=y, place=(1, 3, place))
plt.show()

# %% [markdown]
# ## A run that grows
#
# Now three texts, one after the other. Before the second and the third the model grows, by one layer and by a half of
# its width, recovers for 20 updates on texts that it has kept, and then learns beside these. All of that is one
# setting, the method of the stream. What growth did to what the model
# says of its memory stands in the log, in lines of the kind `grown`.

# %%
from dataclasses import replace

stream = config.Lifelong(
    method=config.ELLE(
        dim_per_task=(48, 64),
        num_layers_per_task=(3, 4),
        memory=config.EpisodicMemory(capacity=500),
        replay_batch_size=4,
        recovery_steps=20,
        recovery_batch_size=16,
    ),
    tasks=tuple(config.TaskData(name=name, source=source) for name, source in tasks.items()),
    epochs=2,
    max_examples_per_task=(2400, 2400, 2400),
)
training = replace(settings.training, log_every=50, keep_checkpoints=99)
grown = train(replace(settings, name="grown", training=training, lifelong=stream))

# %% [markdown]
# The loss on the text that is being learned, over updates; dotted where the model grows. It rises at a border since the
# text is another one, not since the model has grown: of the texts that it has kept it says the same right before and
# right after.

# %%
from memjax.training import read_metrics

lines = read_metrics(grown.path / "metrics.jsonl")
training = [line for line in lines if line["kind"] == "train"]
growths = [line for line in lines if line["kind"] == "grown"]
for line in growths:
    print(f"step {line['step']}: {line['nats_before']:.6f} nats before growth, {line['nats_after']:.6f} after")
    assert abs(line["nats_before"] - line["nats_after"]) < 1e-3
charts.line_chart(
    picture(2.8),
    {"loss": ([line["step"] for line in training], [line["nats_per_token"] for line in training])},
    x="updates",
    y="nats a byte",
    borders=[line["step"] for line in growths],
)
plt.show()

# %% [markdown]
# What is left of each text after each of them, in nats a byte of what was held out. Down a column a text is forgotten,
# or is not; in a terminal, the line after the `$` does the same.

# %%
from memjax import cli

print("$ memjax eval --run runs/grown")
if code := cli.main(["eval", "--run", "runs/grown"]):
    raise SystemExit(code)

# %% [markdown]
# ## A head and its ancestor
#
# The run has kept a checkpoint at every border. A head of a bigger model is a copy of a head of the first one, and
# `head_sources` knows of which. The first picture is what one head of the first layer reads in the first bytes of a
# held-out text: blue = more than if it read all bytes before alike, red = less. The second is how much every head reads
# as its ancestor does: 1 = the same.

# %%
from memjax.inspection import attention_maps
from memjax.lifelong.ancestors import correlate_heads, head_sources, map_correlations, subtract_uniform_attention
from memjax.lifelong.growth_sources import Growth
from memjax.training.loaded_runs import checkpoint_extras

lineages = {step: extra.get("lineage", ()) for step, extra in checkpoint_extras(grown.path).items()}
of_generation = lambda number: [step for step, lineage in lineages.items() if len(lineage) == number]
moments = {
    "first model": of_generation(0)[-1],
    "right after growth": of_generation(1)[0],
    "the end": of_generation(2)[-1],
}

few, beyond, likeness = jax.tree.map(lambda leaf: leaf[:8], rows), {}, {}
for name, step in moments.items():
    loaded = load_run(grown.path, step=step)
    maps = attention_maps(loaded.experiment.model, loaded.variables, few)
    beyond[name] = subtract_uniform_attention(maps.weights, maps.seen)
    ancestor = beyond["first model"]
    growths = [Growth.from_json(entry["growth"]) for entry in lineages[step]]
    sources = head_sources(growths, ancestor.shape[0], ancestor.shape[2])
    likeness[name] = correlate_heads(map_correlations(ancestor, beyond[name], maps.seen), sources)

figure, panels = plt.subplots(1, 3, figsize=(charts.WIDTH, 2.7), layout="constrained")
for panel, (name, found) in zip(panels, beyond.items(), strict=True):
    panel.imshow(found[0, 0, 0, :32, :32], cmap="RdBu", vmin=-0.3, vmax=0.3)
    panel.set(title=name, xlabel="reads byte")
panels[0].set_ylabel("byte")
plt.show()

figure = picture(2.6)
for place, name in enumerate([*moments][1:], start=1):
    own = likeness[name].relatives
    layers, heads = ([str(number) for number in range(size)] for size in own.shape)
    charts.heatmap(
        figure, own, rows=layers, columns=heads, numbers="{:.2f}", title=name, x="head", y="layer", place=(1, 2, place)
    )
plt.show()
for name in [*moments][1:]:
    own, others = (float(np.nanmean(part)) for part in (likeness[name].relatives, likeness[name].others))
    print(f"{name}: correlation with the own ancestor {own:.2f}, with the other heads {others:.2f}")
    assert own > others

# %% [markdown]
# Right after growth the heads of the layers that were there read exactly as their ancestors. The layer that is new, a
# copy of one of the others, reads what its source has already changed, so its heads begin as something else. In the
# end, two texts later, a likeness is left, and it is one of families: with other heads there is hardly any.
