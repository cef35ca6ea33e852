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
# # Which memory?
#
# Memories cost differently and were made for different things. Here every one of the library stands in the same small
# Transformer. What each costs is measured in this notebook, on this machine. What each gives cannot be measured in a
# minute: it is read from the ledger of results, where every number has its error. At the end stands what each was made
# for.

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
# ## The contenders
#
# Four layers, 128 wide, segments of 64 tokens. Each memory holds about 256 tokens of the past, where it holds tokens at
# all. A kind of memory is a kind of attention, of feed-forward part or of output; the rest of the model stays.

# %%
from memjax import config

LENGTH, ROWS, VOCABULARY, PAST = 64, 8, 1024, 256
COMMON = {"dim": 128, "num_layers": 4, "num_heads": 4, "scan_layers": True}


def decoder(attention=None, **more):
    return config.Model(**COMMON, attention=attention or config.FullAttention(), **more)


linear = {"positions": "sinusoids"}
CONTENDERS = {
    "none": (decoder(), "the segment alone"),
    "Transformer-XL": (decoder(config.TransformerXL(memory_length=PAST)), "hidden states of the last tokens"),
    "Compressive": (
        decoder(config.Compressive(memory_length=64, compressed_memory_length=48, compression_rate=4)),
        "the same, and older ones four to a slot",
    ),
    "Memorizing": (
        decoder(config.Memorizing(memory_length=PAST, cache_length=0, num_neighbors=32)),
        "keys and values in one layer, searched",
    ),
    "infinity-former": (
        decoder(config.InfinityFormer(num_basis=64, num_samples=64, num_bins=16)),
        "a signal over all of the past",
    ),
    "Memformer": (
        config.Memformer(**{**COMMON, "num_layers": 2}, encoder_layers=2, num_slots=32),
        "32 slots, read and rewritten",
    ),
    "memory tokens": (
        decoder(config.TransformerXL(memory_length=0), memory_tokens=config.MemoryTokens(num_tokens=10)),
        "10 learned rows in front of a segment",
    ),
    "Linear Transformer": (decoder(config.LinearTransformer(), **linear), "one matrix a head"),
    "RFA": (decoder(config.RFA(num_directions=32), **linear), "one matrix a head, random features"),
    "T2R": (decoder(config.T2R(), **linear), "one matrix a head, learned features"),
    "MemSizer": (decoder(config.MemSizer(), **linear), "one matrix a head, 32 rows"),
    "product keys": (decoder(feed_forward=config.ProductKey(num_keys=64)), "facts in 4,096 learned slots"),
    "ResM": (decoder(feed_forward=config.ProductKey(num_keys=64, dense_scale=1.0)), "the same, beside the network"),
    "continuous cache": (decoder(), "last hidden states and the tokens after them"),
    "kNN-LM": (decoder(), "a store of texts, on disk"),
    "SPALM": (decoder(output=config.Spalm()), "a store of texts, gated in"),
}

# %% [markdown]
# ## What each costs
#
# One segment of 8 rows is read: the state goes in and comes out, and every token is scored. Operations are counted in
# the traced program (products of matrices, 2 for a multiplication and an addition); they are not time, since to look up
# slots moves many numbers and multiplies few. The parameters are random, which changes no cost. Of kNN-LM and SPALM it
# is the model's part: what the search costs is measured after it.

# %%
import dataclasses
import time

import jax
import jax.numpy as jnp
import numpy as np

from memjax.memory import KNNMemory
from memjax.models import add_mixtures, make_mixtures, make_model
from memjax.training import count_flops, init_variables
from memjax.training.metrics import count_bytes, count_parameters

CACHE = config.Evaluation(cache=config.ContinuousCache(memory_length=PAST))


def make(name, settings):
    model = make_model(config.Config(model=settings, data=config.Data(segment_length=LENGTH)), VOCABULARY)
    laid_over = {"continuous cache": make_mixtures(CACHE, settings), "kNN-LM": (KNNMemory(num_neighbors=32),)}
    return add_mixtures(model, *laid_over[name]) if name in laid_over else model


def random_batch(model):
    """A segment of random tokens, in the middle of a document."""
    shapes, random = model.example(ROWS, LENGTH), np.random.default_rng(0)
    batch = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)
    tokens = jnp.asarray(random.integers(1, VOCABULARY, (ROWS, LENGTH)), jnp.int32)
    return dataclasses.replace(batch, inputs=tokens, targets=tokens, mask=batch.mask | True)


def reading(model):
    """`read(variables, state, batch) -> (nats of each token, state)`"""

    def read(variables, state, batch):
        named = {"extras": batch.extras} if batch.extras else {}
        named |= {"start_of_document": batch.start_of_document, "mask": batch.mask}
        hidden, state, _ = model.apply(variables, batch.inputs, state, **named)
        return model.apply(variables, hidden, batch.targets, method="token_nll"), state

    return read


def prepare(name, settings):
    """What it costs by count, and a function that reads a segment and says how many seconds it took."""
    model = make(name, settings)
    batch, state = random_batch(model), model.init_state(ROWS)
    variables = jax.jit(lambda: init_variables(model, jax.random.key(0), LENGTH))()
    found = {
        "state bytes of a row": count_bytes(state) / ROWS,
        "parameters": count_parameters(variables),
        "FLOPs per token": count_flops(reading(model), variables, state, batch) / ROWS / LENGTH,
    }
    compiled = jax.jit(reading(model))

    def seconds():
        nonlocal state
        begin = time.perf_counter()
        _, state = jax.block_until_ready(compiled(variables, state, batch))
        return time.perf_counter() - begin

    return found, seconds


prepared = {name: prepare(name, settings) for name, (settings, _) in CONTENDERS.items()}
rounds = [
    {name: seconds() for name, (_, seconds) in prepared.items()} for _ in range(20)
]  # in turn; the first compiles
fastest = {name: min(each[name] for each in rounds[5:]) for name in prepared}  # the next four fill the memory
costs = {name: {**found, "tokens per second": ROWS * LENGTH / fastest[name]} for name, (found, _) in prepared.items()}

# %%
heads = list(costs["none"])
print(f"{'memory':19}{'what it keeps':46}" + "".join(f"{head:>22}" for head in heads))
for name, row in costs.items():
    print(f"{name:19}{CONTENDERS[name][1]:46}" + "".join(f"{row[head]:22,.0f}" for head in heads))

# %% [markdown]
# A store of texts is no state of a row: it is searched, here exactly, on the device.

# %%
from memjax.datastore import ExactIndex

random = np.random.default_rng(0)
keys = random.standard_normal((20_000, COMMON["dim"]), np.float32).astype(np.float16)
queries, index = random.standard_normal((ROWS * LENGTH, COMMON["dim"]), np.float32), ExactIndex(keys)
index.search(queries, 32)  # compiles
begin = time.perf_counter()
index.search(queries, 32)
seconds = time.perf_counter() - begin
print(
    f"a store of {len(keys):,} tokens: {keys.nbytes + 4 * len(keys):,} bytes, {len(queries) / seconds:,.0f} searches/s"
)

# %% [markdown]
# ## What more past costs
#
# The same counts for memories that reach further back. Nothing is run here: programs are traced. A memory that is
# attended to costs more with every token that it holds; one that is searched or summed up does not, or less so.

# %%
REACH = (64, 256, 1024, 4096)
GROWING = {
    "Transformer-XL": lambda past: decoder(config.TransformerXL(memory_length=past)),
    "Compressive (4:1)": lambda past: decoder(
        config.Compressive(memory_length=16, compressed_memory_length=(past - 16) // 4, compression_rate=4)
    ),
    "Memorizing": lambda past: decoder(config.Memorizing(memory_length=past, cache_length=0, num_neighbors=32)),
    "infinity-former": lambda past: CONTENDERS["infinity-former"][0],
    "Linear Transformer": lambda past: CONTENDERS["Linear Transformer"][0],
}


def counted(settings):
    model = make("", settings)
    batch, state = random_batch(model), jax.eval_shape(lambda: model.init_state(ROWS))
    variables = jax.eval_shape(lambda: init_variables(model, jax.random.key(0), LENGTH))
    return count_flops(reading(model), variables, state, batch) / ROWS / LENGTH, count_bytes(state) / ROWS


growth = {name: np.array([counted(settings(past)) for past in REACH]) for name, settings in GROWING.items()}

# %%
import matplotlib.pyplot as plt

figure, panels = plt.subplots(1, 2, figsize=(12, 4), layout="constrained")
for name, found in growth.items():
    for panel, values in zip(panels, found.T, strict=True):
        panel.plot(REACH, values, marker="o", label=name)
for panel, title in zip(panels, ("FLOPs per token", "state bytes of a row"), strict=True):
    panel.set(title=title, xscale="log", yscale="log", xlabel="tokens of the past that it holds")
    panel.set_xticks(REACH, [f"{past:,}" for past in REACH], minor=False)
panels[1].legend()
plt.show()

# %% [markdown]
# ## What each has given
#
# Hours of training on several seeds stand in the ledger of results, which is part of a checkout of memjax. Nothing is
# copied here: without the ledger the next cells say where to get it.

# %%
import json
from pathlib import Path

import memjax

LEDGER = ""  # the folder tools/results of a checkout; "" = that of the memjax in use, where it has one
book = Path(LEDGER) if LEDGER else Path(memjax.__file__).parents[1] / "tools" / "results"
read_lines = lambda name: [json.loads(line) for line in (book / name).read_text("utf-8").splitlines()]
here = (book / "ledger.jsonl").is_file()
runs, measurements = (read_lines(f"{name}.jsonl") if here else [] for name in ("ledger", "measurements"))
if here:
    print(f"{len(runs):,} runs and {len(measurements)} measurements")
else:
    print(f"no ledger in {book}: get a checkout of memjax and set LEDGER to its folder tools/results")


from memjax.report.verdicts import compare_pairs


def compare(own, other, more_is_better=True):
    """Compares two models of equal seeds: seed -> value of each."""
    seeds = [seed for seed in own if seed in other]
    return compare_pairs([own[seed] for seed in seeds], [other[seed] for seed in seeds], more_is_better=more_is_better)


# %% [markdown]
# First: do models learn to use it? Small tasks that nothing but the memory can solve, six seeds each. The difference is
# to the same model without the memory, or with it cleared; a gain or a loss has p < 0.05 (Student's t, paired).

# %%
learned = []
for one in measurements:
    if one["kind"] == "learns":
        found = [record["found"] for record in one["facts"]["records"]]
        without = next(name for name in ("not_compressed", "parent", "off", "cleared", "alone") if name in found[0])
        kept, other = ({seed: row[name] for seed, row in enumerate(found)} for name in ("kept", without))
        saves = one["facts"]["unit"].startswith("nats")  # of a token, over the model alone
        comparison = compare(kept, dict.fromkeys(kept, 0.0) if saves else other)
        difference = f"{comparison.difference:+.2f} ± {comparison.error:.2f} ({comparison.verdict})"
        learned.append((one["name"], comparison.difference, comparison.error, one["facts"]["unit"]))
        print(f"{one['name']:27} {difference:21} {one['facts']['unit']:22} {one['facts']['about']}")

# %%
if learned:
    figure, panel = plt.subplots(figsize=(8, 4), layout="constrained")
    names, differences, errors, units = zip(*reversed(learned), strict=True)
    colors = ["tab:blue" if unit == "accuracy" else "tab:green" for unit in units]
    panel.barh(names, differences, xerr=errors, color=colors, capsize=3)
    panel.set(title="On a task made for it, with the memory and without", xlim=(0, 1))
    panel.set_xlabel("difference in accuracy (blue), in nats of a token (green)")
    plt.show()

# %% [markdown]
# Then: what does it give on other text, or beside a network of equal cost? Every row stands against a control of equal
# tokens and updates, seed by seed. These are differences and no verdicts: three to five seeds are too few, and the
# settings of most rows were not searched. The tables of a checkout say which were.

# %%
AGAINST = [  # memory, recipe of the ledger, row, control, what is measured, where it stands in a run
    ("Transformer-XL", "memformer_slots", "Transformer-XL, 16 tokens", "no slots", "bits per byte, WikiText-2"),
    (
        "Compressive",
        "wikitext2_compressive",
        "Compressive, 32 and 32 slots",
        "Transformer-XL, 32 slots",
        "bits per byte, WikiText-2",
    ),
    ("Memorizing", "memory_gain_controls", "Memorizing", "local cache only", "bits per byte, Python"),
    ("Memorizing", "memory_gain_controls", "Memorizing", "cache of 544 tokens", "bits per byte, Python"),
    ("Memformer", "memformer_slots", "16 slots", "no slots", "bits per byte, WikiText-2"),
    ("memory tokens", "multi30k_memory_tokens", "10 memory tokens", "no memory tokens", "bits per byte, translation"),
    ("SPALM", "wikitext2_spalm", "SPALM, by halves", "goes on without", "bits per byte, WikiText-2"),
    (
        "Linear Transformer",
        "associative_recall",
        "Linear Transformer (ELU)",
        "softmax, one segment",
        "accuracy, 24 pairs",
    ),
    ("infinity-former", "events_signals", "infinity-former", "no signal", "accuracy, marked events"),
    ("product keys", "fact_table", "product keys", "network of equal cost", "accuracy, facts"),
    ("ResM", "fact_table", "product keys beside the network (ResM)", "network of equal cost", "accuracy, facts"),
]


def seeds_of(recipe, row, measure):
    """Seed -> what a run of the ledger has reached on its test split."""
    name = "accuracy" if measure.startswith("accuracy") else "bits_per_byte"
    chosen = [run for run in runs if (run["recipe"], run["row"]) == (recipe, row)]
    return {run["seed"]: run["evaluations"]["test"][name] for run in chosen}


if here:
    compared = [
        compare(*(seeds_of(recipe, name, measure) for name in (row, control)), measure.startswith("accuracy"))
        for _, recipe, row, control, measure in AGAINST
    ]
    for (memory, _, _, control, measure), found in zip(AGAINST, compared, strict=True):
        difference = f"{found.difference:+.3f} ± {found.error:.3f} ({found.counted})"
        print(f"{memory:19} {difference:26} {measure:27} against: {control}")

# %% [markdown]
# ## What each was made for
#
# This is what the papers had in mind, and no result of the runs above.
#
# | made for | memory | how |
# |---|---|---|
# | a trained model and texts that repeat themselves | a continuous cache | no training, one option of `memjax eval` |
# | a trained model and another domain | kNN-LM | no training, a store instead; see `knn_lm.ipynb` |
# | text longer than a segment | Transformer-XL | hidden states of the last tokens in every layer |
# | names, identifiers, facts said once, far back | Memorizing | looks up the nearest of many keys |
# | a longer past in fewer slots | Compressive | four tokens to a slot |
# | when something happened, over any length | infinity-former | a signal of fixed size over all of the past |
# | much text to write, or a small state | Linear Transformer, T2R, RFA, MemSizer | the state never grows |
# | a few things to carry over many segments | Memformer | learns what to write; needs gradients over segments |
# | facts that no document tells | product keys, ResM | many slots of parameters, few of them read |
# | a reader of whole texts, or a translator | memory tokens | a few learned rows |
# | a store, and time to train with it | SPALM | learns a gate for its neighbours |
#
# The default of `memjax train --text` is Transformer-XL. `memjax eval --memory off,...` says what your model makes of
# its memory, and `memjax compare --over training.seed` compares two memories on your text.
