"""Plans steps on TPUs that are not here: their memory, computation and communication, and an estimate of their time.

The TPU compiler (libtpu, the extra `plan`) compiles the step of a configuration for a named slice on any x86 Linux
machine and reports how much memory each device needs. FLOPs are counted in the traced program, memory traffic in the
compiled one. The time of a step is an estimate from published peaks, not a measurement:

    step = max(FLOPs / peak FLOP/s, HBM bytes / HBM bandwidth, sent bytes / ICI bandwidth)

It assumes that work is split evenly, that computation, memory traffic and communication overlap completely, that
matrix products run at the bfloat16 peak, that every operand is read from the HBM once, and that collectives use all
links of a chip at once. It is therefore a lower bound of the time. Model FLOPs utilisation (MFU) is the time that the
model's own FLOPs would take at the peak, divided by the time of the step. It is an upper bound. The model's own FLOPs
are all matrix products of the step, including attention and search in a memory, without recomputation.
"""

import dataclasses
import importlib.metadata
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from memjax.config import Config
from memjax.planning.advice import advise
from memjax.planning.topologies import Topology
from memjax.settings.pointers import files_of_kinds
from memjax.training.runs import config_to_dict

ENVIRONMENT = {
    "JAX_PLATFORMS": "cpu",
    # Programs that are compiled for a TPU would be written to the cache and never found again.
    "JAX_ENABLE_COMPILATION_CACHE": "0",
    # libtpu asks for its machine. These variables answer, and let several processes compile at once.
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "TPU_ACCELERATOR_TYPE": "v5litepod-8",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
}
"""Environment variables of the process that compiles. They are set nowhere else."""


@dataclasses.dataclass(frozen=True)
class Case:
    """A configuration, a TPU slice and a kind of step that are to be planned.

    Attributes:
      config: Configuration of the step.
      topology: TPU slice.
      what: Kind of step: 'train', 'eval' or 'decode'.
      value: Swept field and its value, such as 'data.batch_size = 8'. '' without a sweep.
      generation: Task for which the model has been grown. '' for a model that does not grow.
    """

    config: Config
    topology: Topology
    what: str = "train"
    value: str = ""
    generation: str = ""


@dataclasses.dataclass(frozen=True)
class Estimate:
    """An estimate of the time of a step in seconds, and of how well it uses the devices.

    Attributes:
      compute: Seconds of matrix products.
      hbm: Seconds of memory traffic.
      ici: Seconds of collectives.
      step: Seconds of the step, the largest of these three.
      bound: Name of the largest: 'compute', 'hbm' or 'ici'.
      utilization: Model FLOPs utilisation, the share of the peak that the model's own FLOPs reach.
      intensity: FLOPs per byte of HBM traffic.
      balance: Intensity above which the chip needs more time to compute than to read and write.
      tokens_per_second: Tokens that all devices together read per second.
    """

    compute: float
    hbm: float
    ici: float
    step: float
    bound: str
    utilization: float
    intensity: float
    balance: float
    tokens_per_second: float


def plan(case: Case, *, vocab_size: int = 0, widest: bool = False) -> list[dict[str, Any]]:
    """Compiles the steps of one case in a separate process and returns a list of dicts with the facts about each.
    `widest` also finds how many rows with parameters of their own fit.

    Args:
      case: Configuration, slice and kind of step to plan.
      vocab_size: Size of the vocabulary. 0 for the one of the configuration's data.
      widest: Whether to find how many rows with their own parameters fit. See `memjax.planning.compile_ahead.measure`.

    Returns:
      Facts of each step as JSON values: the fields of `memjax.planning.compile_ahead.Measurement`, and `name`, `what`,
      `value`, `generation`, `topology`, `chips`, `devices`, `rows`, `rematerialize`, `estimate` (fields of `Estimate`,
      None if the step does not fit), `tips` (fields of each `Suggestion` if it does not fit), `assumptions`, and
      `versions` of the compiler.

    Raises:
      ModuleNotFoundError: libtpu is not installed.
      ValueError: The configuration cannot be run on the slice, such as rows that do not divide over its devices.
      RuntimeError: The compiler failed.
    """
    facts = {
        "name": case.config.name,
        "what": case.what,
        "value": case.value,
        "generation": case.generation,
        "topology": case.topology.name,
        "chips": case.topology.num_chips,
        "devices": case.topology.num_devices,
        "rows": (case.config.data if case.what == "train" else case.config.evaluation).batch_size,
        "rematerialize": case.config.training.remat,
    }
    request = {"config": config_to_dict(case.config), "vocab_size": vocab_size, "widest": widest}
    request |= {"modules": files_of_kinds(case.config)}
    steps = _compile({**facts, **request})
    versions = {name: importlib.metadata.version(name) for name in ("jax", "jaxlib", "libtpu")}
    known = {"assumptions": assumptions(case.topology), "versions": versions}

    def add_estimate(step: dict[str, Any]) -> dict[str, Any]:
        complete = {**facts, **step}
        complete["estimate"] = dataclasses.asdict(estimate(complete, case.topology)) if complete["fits"] else None
        complete["tips"] = (
            [] if complete["fits"] else [dataclasses.asdict(tip) for tip in advise(case.config, complete)]
        )
        return {**complete, **known}

    return [add_estimate(step) for step in steps]


def check_topologies(topologies: Iterable[Topology]) -> None:
    """Raises ValueError if libtpu does not offer one of the slices, before the first is compiled for.

    Args:
      topologies: Slices that are to be compiled for.

    Raises:
      ModuleNotFoundError: libtpu is not installed.
      ValueError: libtpu does not offer one of the slices.
    """
    _compile({"topologies": [topology.name for topology in topologies]})


def assumptions(topology: Topology) -> str:
    """Returns a text that tells the user what the estimated time of a step on this slice assumes."""
    generation = topology.generation
    return (
        f"step = the longest of FLOPs / {generation.peak_flops / 1e12:,.0f} TFLOP/s (bfloat16), HBM bytes / "
        f"{generation.hbm_bandwidth / 1e9:,.0f} GB/s and sent bytes / {generation.ici_bandwidth / 1e9:,.0f} GB/s "
        f"(published, per {generation.name} chip). This assumes that work is split evenly, that all three overlap "
        "completely, that each compiled operation reads its operands once and that all links are busy. Nothing was "
        "run, and a real step takes longer. "
        "MFU = the model's own FLOPs (matrix products, without recomputation) / (peak x step)"
    )


def estimate(facts: dict[str, Any], topology: Topology) -> Estimate:
    """Estimates the time of a step on a slice by a roofline model (`Estimate`). `facts` are the fields of its
    `Measurement`. See the module's docstring for its assumptions.

    Args:
      facts: Facts about the step (`memjax.planning.compile_ahead.Measurement`).
      topology: Slice that the step runs on.
    """
    devices = topology.num_devices
    sent = sum(part["sent_bytes"] for part in facts["collectives"])
    seconds = {
        "compute": facts["flops"] / devices / topology.peak_flops,
        "hbm": facts["hbm_bytes"] / topology.hbm_bandwidth,
        "ici": sent / topology.ici_bandwidth,
    }
    bound = max(seconds, key=lambda name: seconds[name])
    step = seconds[bound]
    return Estimate(
        **seconds,
        step=step,
        bound=bound,
        utilization=facts["model_flops"] / devices / topology.peak_flops / step if step else 0.0,
        intensity=facts["flops"] / devices / facts["hbm_bytes"] if facts["hbm_bytes"] else 0.0,
        balance=topology.peak_flops / topology.hbm_bandwidth,
        tokens_per_second=facts["tokens"] / step if step else 0.0,
    )


def environment(folder: str) -> dict[str, str]:
    """Returns a dict of the environment variables of the compiling process, which dumps its programs into the path
    `folder`.
    """
    package = str(Path(__file__).parent.parent.parent)
    flags = f"--xla_dump_to={folder} --xla_dump_hlo_as_text --xla_dump_hlo_module_re=jit_plan_"
    return {
        **os.environ,
        **ENVIRONMENT,
        "XLA_FLAGS": " ".join(filter(None, [os.environ.get("XLA_FLAGS"), flags])),
        "MEMJAX_DUMP": folder,
        "PYTHONPATH": os.pathsep.join(filter(None, [package, os.environ.get("PYTHONPATH")])),
    }


def _compile(request: dict[str, Any]) -> list[dict[str, Any]]:
    """Runs the compiling process and returns its JSON answer for each step."""
    if importlib.util.find_spec("libtpu") is None:
        raise ModuleNotFoundError(
            "libtpu is not installed; pip install 'memjax[plan]' (Linux on x86-64)", name="libtpu"
        )
    with tempfile.TemporaryDirectory(prefix="memjax-plan-") as folder:
        done = subprocess.run(
            [sys.executable, "-m", "memjax.planning.compile_ahead"],
            input=json.dumps(request),
            capture_output=True,
            text=True,
            check=False,
            env=environment(folder),
        )
    lines = done.stdout.splitlines()
    if done.returncode or not lines:
        raise RuntimeError(f"the compiler ended with code {done.returncode}:\n{done.stderr[-4000:]}")
    answers = [json.loads(line) for line in lines]
    if "mistake" in answers[-1]:
        raise ValueError(answers[-1]["mistake"])
    return answers
