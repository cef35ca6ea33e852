"""What a step would need on TPUs that are not here: memory, work, communication, and what limits its speed.

The TPU compiler (libtpu, the extra `plan`) compiles the step of a configuration for a named slice on any x86 Linux
machine. It says how much memory each device needs; operations are counted from the traced program, traffic from the
compiled one. The time of a step is an estimate from published peaks, not a measurement:

    step = max(FLOPs / peak FLOP/s, HBM bytes / HBM bandwidth, sent bytes / ICI bandwidth)

It assumes that work is split evenly, that computation, memory traffic and communication overlap completely, that
products of matrices run at the bfloat16 peak, that every operand is read from the HBM once, and that collectives use
all links of a chip at once. So it is a lower bound. Model FLOPs utilisation (MFU) is then the time that the model's own
FLOPs would take at the peak, over that of the step: an upper bound. They are all products of matrices of the step,
those of attention and of the search in a memory too, and nothing that is recomputed.
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
from memjax.training.runs import config_to_dict

ENVIRONMENT = {
    "JAX_PLATFORMS": "cpu",
    # What is compiled for a TPU is written to the cache and never found again.
    "JAX_ENABLE_COMPILATION_CACHE": "0",
    # libtpu looks for its machine; these answer, and let several processes compile at once.
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "TPU_ACCELERATOR_TYPE": "v5litepod-8",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
}
"""of the process that compiles; set nowhere else"""


@dataclasses.dataclass(frozen=True)
class Case:
    """One thing to plan.

    Attributes:
      config: the configuration.
      topology: the slice.
      what: 'train', 'eval' or 'decode'.
      value: the swept field and its value, '' where nothing is swept.
      generation: the task that the model of the configuration has grown for, '' of one that stays as it is.
    """

    config: Config
    topology: Topology
    what: str = "train"
    value: str = ""
    generation: str = ""


@dataclasses.dataclass(frozen=True)
class Estimate:
    """Seconds of a step, and what it makes of the devices.

    Attributes:
      compute: seconds of products of matrices.
      hbm: seconds of memory traffic.
      ici: seconds of collectives.
      step: the longest of them.
      bound: which it is: 'compute', 'hbm' or 'ici'.
      utilization: of the peak, by the FLOPs of the model.
      intensity: FLOPs per byte of HBM traffic.
      balance: the intensity from which on the chip computes longer than it reads and writes.
      tokens_per_second: read by all devices together.
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
    """Compiles the steps of one case in a process of its own.

    Args:
      case: what to plan.
      vocab_size: ids; 0 = what the configuration says.
      widest: as in `memjax.planning.aot.measure`.

    Returns:
      For each step the facts as JSON values: those of `memjax.planning.aot.Measurement`, and `name`, `what`, `value`,
      `generation`, `topology`, `chips`, `devices`, `rows`, `rematerialize`, `estimate` (of `Estimate`, None where it
      does not fit), `tips` (of `Tip`, where it does not fit), `assumptions` and `versions` of the compiler.

    Raises:
      ModuleNotFoundError: libtpu is not installed.
      ValueError: the configuration does not fit the topology.
      RuntimeError: the compiler failed.
    """
    facts = {
        "name": case.config.name,
        "what": case.what,
        "value": case.value,
        "generation": case.generation,
        "topology": case.topology.name,
        "chips": case.topology.num_chips,
        "devices": case.topology.num_devices,
        "rows": (case.config.data if case.what == "train" else case.config.evaluation).rows,
        "rematerialize": case.config.training.rematerialize,
    }
    request = {"config": config_to_dict(case.config), "vocab_size": vocab_size, "widest": widest}
    steps = _compile({**facts, **request})
    versions = {name: importlib.metadata.version(name) for name in ("jax", "jaxlib", "libtpu")}
    known = {"assumptions": assumptions(case.topology), "versions": versions}

    def explained(step: dict[str, Any]) -> dict[str, Any]:
        found = {**facts, **step}
        found["estimate"] = dataclasses.asdict(estimate(found, case.topology)) if found["fits"] else None
        found["tips"] = [] if found["fits"] else [dataclasses.asdict(tip) for tip in advise(case.config, found)]
        return {**found, **known}

    return [explained(step) for step in steps]


def check_topologies(topologies: Iterable[Topology]) -> None:
    """Asks libtpu whether it offers each slice, in one process: a second that would be refused stops the first.

    Args:
      topologies: Slices that are to be compiled for.

    Raises:
      ModuleNotFoundError: libtpu is not installed.
      ValueError: libtpu does not offer one of the slices.
    """
    _compile({"topologies": [topology.name for topology in topologies]})


def assumptions(topology: Topology) -> str:
    """What the estimate of a time rests on, in a few sentences."""
    generation = topology.generation
    return (
        f"step = the longest of FLOPs / {generation.peak_flops / 1e12:,.0f} TFLOP/s (bfloat16), HBM bytes / "
        f"{generation.hbm_bandwidth / 1e9:,.0f} GB/s and sent bytes / {generation.ici_bandwidth / 1e9:,.0f} GB/s "
        f"(published, per {generation.name} chip), as if work were split evenly, all three overlapped completely, each "
        "compiled operation read its operands once and all links were busy; nothing was run, and a step takes longer. "
        "MFU = FLOPs of the model (products of matrices, nothing recomputed) / (peak x step)"
    )


def estimate(facts: dict[str, Any], topology: Topology) -> Estimate:
    """The roofline of a step (see the module's docstring).

    Args:
      facts: as in `memjax.planning.aot.Measurement`.
      topology: of the devices.
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
    """The environment of the process that compiles and dumps what it compiles into `folder`."""
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
    """Runs the compiling process: what it says of each step."""
    if importlib.util.find_spec("libtpu") is None:
        raise ModuleNotFoundError(
            "libtpu is not installed; pip install 'memjax[plan]' (Linux on x86-64)", name="libtpu"
        )
    with tempfile.TemporaryDirectory(prefix="memjax-plan-") as folder:
        done = subprocess.run(
            [sys.executable, "-m", "memjax.planning.aot"],
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
