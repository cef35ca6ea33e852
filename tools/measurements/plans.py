"""Records plans of large models on TPU slices, a measurement for each command `memjax plan`.

python -m tools.measurements.plans [NAME ...]     # compiles what was not yet, minutes each; needs the extra `plan`
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import shlex
import sys
from collections.abc import Sequence

from memjax.cli import main as memjax
from tools.results import pages
from tools.results.ledger import Book, measured, together

BASE = ["plan", "--config", "memorizing_scale"]
PLANS: dict[str, list[str]] = {
    "200m": ["--topology", "v5e-16", "--sweep", "memory_length=8192,65536,262144"],
    "200m_512_rows": ["--topology", "v5e-16", "--data.batch-size", "512", "--sweep", "memory_length=65536"],
    "200m_512_rows_changed": [
        *("--topology", "v5e-16", "--data.batch-size", "512", "--training.remat", "per_layer"),
        *("--sweep", "memory_length=65536"),
    ],
    "1b": ["--variant", "1b", "--topology", "v5p-128,v6e-256", "--sweep", "memory_length=65536"],
    "8b": ["--variant", "8b", "--topology", "v5p-128,v6e-256", "--sweep", "memory_length=65536"],
}
"""Name of a plan -> options of `memjax plan`, after `BASE`."""
HOSTS: dict[str, list[str]] = {
    f"llama3_8b_{name}": f"--config llama_scale {options} --vocab-size 128256".split()
    for name, options in {
        "lora_v6e_8k": "--topology v6e:2x4 --sweep memory_length=8192",
        "lora_v6e_64k": "--topology v6e:2x4 --sweep memory_length=65536",
        "lora_v5p_8k": "--topology v5p:2x2x1 --sweep memory_length=8192",
        "lora_v5p_64k": "--topology v5p:2x2x1 --sweep memory_length=65536",
        "full_v5p_8k": "--variant full --topology v5p:2x2x1 --sweep memory_length=8192",
        "full_v6e_8k": "--variant full --topology v6e:4x4 --sweep memory_length=8192",
        "full_v5p_64k": "--variant full --topology v5p:2x2x1 --sweep memory_length=65536",
        "full_v6e_64k": "--variant full --topology v6e:4x4 --sweep memory_length=65536",
    }.items()
}
"""Name of a plan -> options of `memjax plan` for Llama 3 8B, with adapters or trained whole."""
LEARNERS: dict[str, list[str]] = {
    "mbpa_pp": [
        *("--config", "lifelong_text", "--variant", "paper", "--topology", "v5e-8"),
        *("--vocab-size", "30522", "--widest"),
    ],
    "elle": [
        *("--config", "lifelong_pretraining", "--variant", "paper", "--topology", "v5p-32"),
        *("--training.remat", "per_layer", "--vocab-size", "50257"),
    ],
    "lamol": [
        *("--config", "lifelong_lamol", "--variant", "paper", "--topology", "v5e-8"),
        *("--training.remat", "per_layer", "--vocab-size", "50257"),
    ],
}
"""Name of a plan -> options of `memjax plan` for learners of tasks: every kind of update, and the parts that count by
themselves."""
SEARCHES: dict[str, list[str]] = {
    "200m_mesh": [*BASE[1:], "--topology", "v5e:4x4", "--mesh", "auto", "--candidates", "5"],
    "1b_mesh": [*BASE[1:], "--variant", "1b", "--topology", "v6e:16x16", "--mesh", "auto", "--candidates", "4"],
    "8b_mesh": [*BASE[1:], "--variant", "8b", "--topology", "v6e:16x16", "--mesh", "auto", "--candidates", "4"],
}
"""Name of a plan -> options of `memjax plan` for a search of the mesh, the rows and the rematerialisation."""


def run(names: Sequence[str] = (), book: Book | None = None) -> None:
    """Compiles plans, and adds each to the measurements when it is complete.

    Args:
      names: Names of plans. Empty for all plans that the measurements do not have.
      book: Ledger of the measurements. None for the committed one.
    """
    book = book or Book()
    known = {
        measurement.name
        for measurement in book.measurements()
        if measurement.kind in ("plan", "learner_plan", "searched_plan")
    }
    plans = {name: ("plan", [*BASE, *options]) for name, options in PLANS.items()}
    plans |= {name: ("plan", ["plan", *options]) for name, options in HOSTS.items()}
    plans |= {name: ("learner_plan", ["plan", *options]) for name, options in LEARNERS.items()}
    plans |= {name: ("searched_plan", ["plan", *options]) for name, options in SEARCHES.items()}
    for name in names or [name for name in plans if name not in known]:
        kind, options = plans[name]
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            code = memjax([*options, "--json"])
        if code not in (0, 3):
            raise SystemExit(code)
        facts = together([json.loads(line) for line in out.getvalue().splitlines()])
        command = shlex.join(["memjax", *options, "--json"])
        facts.pop("command", None)
        pages.record(measured(kind, name, facts, command=command, title=f"Plan: {name}"), book)


def main(arguments: list[str] | None = None) -> int:
    allowed = [*PLANS, *HOSTS, *LEARNERS, *SEARCHES]
    parser = argparse.ArgumentParser(prog="python -m tools.measurements.plans", description="Plans of large models.")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(allowed)}; none = what is missing")
    names = parser.parse_args(arguments).names
    if unknown := [name for name in names if name not in allowed]:
        parser.error(f"names: given {', '.join(unknown)}, allowed: {', '.join(allowed)}")
    run(names)
    return 0


if __name__ == "__main__":
    sys.exit(main())
