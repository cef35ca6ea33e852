"""`python -m tools.bench.profile SUITE`: where the time of memjax's contender goes, by kind of operation.

Traces a few steps with `jax.profiler` and adds up the time of each compiled operation under the JAX primitive it came
from and the part of the model it belongs to. Operations of different threads are added, so shares are of CPU time.
"""

import argparse
import collections
import gzip
import json
import os
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

from tools.bench import worker
from tools.bench.suites import SUITES
from tools.results import pages
from tools.results.ledger import ROOT as RESULTS
from tools.results.ledger import Book, measured

_INSTRUCTION = re.compile(r'^\s*(?:ROOT )?%?([\w.\-]+) = .*metadata=\{.*?op_name="([^"]*)"', re.MULTILINE)


def operation_times(trace: dict[str, Any], names: dict[str, str]) -> dict[str, float]:
    """Milliseconds by label, longest first.

    Args:
      trace: a Chrome trace of compiled operations; only innermost ones are counted (a loop holds those of its body).
      names: instruction of the compiled program -> its `op_name`.
    """
    events = [e for e in trace["traceEvents"] if e.get("ph") == "X" and "hlo_op" in e.get("args", {})]
    total: dict[str, float] = collections.Counter()
    for event, own in zip(events, own_times(events), strict=True):
        total[label(event["args"]["hlo_op"], names)] += own / 1000
    return dict(sorted(total.items(), key=lambda item: -item[1]))


def own_times(events: list[dict[str, Any]]) -> list[float]:
    """Each event's duration without that of the events inside it, on its thread.

    Example:
      >>> outer, inner = {"tid": 1, "ts": 0, "dur": 10}, {"tid": 1, "ts": 2, "dur": 3}
      >>> own_times([outer, inner])
      [7, 3]
    """
    own = [event["dur"] for event in events]
    order = sorted(range(len(events)), key=lambda i: (events[i]["tid"], events[i]["ts"], -events[i]["dur"]))
    open_events: list[int] = []
    for i in order:
        event = events[i]
        while open_events:
            outer = events[open_events[-1]]
            if outer["tid"] == event["tid"] and event["ts"] < outer["ts"] + outer["dur"]:
                break
            open_events.pop()
        if open_events:
            own[open_events[-1]] -= event["dur"]
        open_events.append(i)
    return own


def label(instruction: str, names: dict[str, str]) -> str:
    """The part of the model and the primitive that an instruction belongs to.

    Example:
      >>> label("dot.3", {"dot.3": "jit(f)/transpose(jvp(M))/stack/layers_1/attention/bhld,bhmd->bhlm/dot_general"})
      'attention: dot_general'
    """
    path = names.get(instruction, names.get(instruction.split("_")[0], "")).split("/")
    parts = [part for part in ("attention", "feed_forward", "vocabulary") if any(part in scope for scope in path)]
    primitive = path[-1] if path[-1] else re.sub(r"[.\d]+$", "", instruction)
    return f"{parts[0] if parts else 'optimiser and rest'}: {primitive}"


def instruction_names(program: str) -> dict[str, str]:
    """Instruction -> `op_name` of a compiled program's text."""
    return dict(_INSTRUCTION.findall(program))


def profile(kind: str, settings: dict[str, Any], mode: str, steps: int) -> tuple[float, dict[str, float]]:
    """(milliseconds per step, milliseconds per step by label) of one contender."""
    import jax

    from tools.bench.models import Model

    model = Model(kind, settings)
    for _ in range(3):
        model.prepare(mode)
        model.step(mode)
    if mode == "train":
        compiled = model.train_step.lower(model.state, model.batch).compile()
    else:
        tokens, starts = model.batch.inputs[0], model.batch.start_of_document[0]
        compiled = model.infer_step.lower(model.variables, model.memory, tokens, starts).compile()
    with tempfile.TemporaryDirectory() as folder:
        with jax.profiler.trace(folder):
            for _ in range(steps):
                model.prepare(mode)
                model.step(mode)
        (path,) = Path(folder).glob("**/*.trace.json.gz")
        trace = json.loads(gzip.decompress(path.read_bytes()))
    times = operation_times(trace, instruction_names(compiled.as_text()))
    times = {name: value / steps for name, value in times.items()}
    return sum(times.values()), times


def shown(total: float, times: dict[str, float], rows: int) -> list[dict[str, Any]]:
    """The longest labels and the rest, with their share of the whole."""
    first = list(times.items())[:rows]
    first.append(("everything else", total - sum(value for _, value in first)))
    return [{"operations": name, "milliseconds": value, "percent": 100 * value / total} for name, value in first]


def main(argv: list[str] | None = None) -> int:
    """Profiles the memjax contenders of a suite."""
    parser = argparse.ArgumentParser(prog="python -m tools.bench.profile", description=__doc__.splitlines()[0])
    parser.add_argument("suite", choices=[name for name in SUITES if not name.startswith("search")])
    parser.add_argument("--steps", type=int, default=10, help="traced steps")
    parser.add_argument("--rows", type=int, default=12, help="rows of the table")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the measurements")
    arguments = parser.parse_args(argv)
    os.environ.update({"JAX_PLATFORMS": "cpu", **worker.WAIT_PASSIVELY})
    suite = SUITES[arguments.suite]()
    records = []
    for entry in suite.entries:
        if "tools.bench.models" not in entry.command:
            continue
        kind, settings = entry.command[-2], json.loads(entry.command[-1])
        for mode in suite.modes:
            total, times = profile(kind, settings, mode, arguments.steps)
            known = {"contender": entry.name, "mode": mode, "milliseconds": total}
            records.append({**known, "shown": shown(total, times, arguments.rows)})
    facts, title = {"steps": arguments.steps, "records": records}, f"{suite.name}: where the time goes"
    command = f"python -m tools.bench.profile {suite.name}"
    pages.record(measured("profile", suite.name, facts, command=command, title=title), Book(arguments.out))
    return 0


if __name__ == "__main__":
    sys.exit(main())
