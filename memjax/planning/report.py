"""Output of `memjax plan`: the planned cases, a table of facts, and suggestions for steps that do not fit."""

import datetime
import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from memjax.config import Config
from memjax.planning.advice import bytes_needed
from memjax.planning.plan_cases import Case
from memjax.planning.topologies import GIB, parse_shapes, parse_topology
from memjax.settings.checks import validate
from memjax.settings.overrides import UsageError, apply_overrides, find_field
from memjax.training.runs import config_after_growth
from memjax.training.stages import STREAM

COLUMNS = (
    "chips",
    "mesh",
    "arguments",
    "temporaries",
    "peak",
    "total GiB",
    "limit GiB",
    "TFLOPs/step",
    "HBM GB",
    "sent GB",
    "step ms",
    "bound by",
    "MFU",
)
"""Columns of the table of several cases, after the columns that name a case."""


def make_cases(config: Config, topologies: Sequence[str], what: str = "train", sweep: str = "") -> list[Case]:
    """Returns a list of a `Case` for every slice, every value of a swept field, and every size of a model that grows
    between tasks. `what` is 'train', 'eval' or 'decode', `sweep` is text such as `FIELD=A,B`.

    Args:
      config: Configuration to plan.
      topologies: Names of TPU slices.
      what: Kind of step: 'train', 'eval' or 'decode'.
      sweep: Field and its values as `FIELD=A,B`. The field is named in full or by its last part. '' for no sweep.

    Raises:
      ValueError: A topology, a field or a value does not exist.
    """
    slices, swept = [parse_topology(name) for name in topologies], [("", config)]
    if sweep:
        name, equals, values = sweep.partition("=")
        if not equals or not all(values.split(",")):
            raise UsageError(f"sweep: given {sweep!r}, allowed: FIELD=VALUE,VALUE, as memory_length=8192,65536")
        field = find_field(config, name, prefer="" if what == "train" else "evaluation.")
        swept = [(f"{field} = {value}", apply_overrides(config, [f"--{field}", value])) for value in values.split(",")]
        for _, changed in swept:
            validate(changed)
    every = [(value, *generation) for value, changed in swept for generation in generations(changed)]
    return [Case(changed, topology, what, value, name) for topology in slices for value, name, changed in every]


def generations(config: Config) -> list[tuple[str, Config]]:
    """Returns a list of the sizes of a model that grows between tasks, each as the name of the task before which it
    grows and its configuration. For other models it is ('', config) alone.

    Args:
      config: Configuration of the run. If its model does not grow, the result is ('', config) alone.
    """
    if config.lifelong is None:
        return [("", config)]
    from memjax.lifelong.factory import growth_histories

    histories = growth_histories(config)
    if not any(histories):
        return [("", config)]
    names = [task.name for task in config.lifelong.ordered_tasks]
    return [
        (name, config_after_growth(config, lineage))
        for number, (name, lineage) in enumerate(zip(names, histories, strict=True))
        if not number or lineage != histories[number - 1]
    ]


def report(
    cases: Sequence[Case],
    plan: Callable[[Case], Sequence[Mapping[str, Any]]],
    *,
    as_json: bool = False,
    command: str = "",
    stream: Any = None,
) -> bool:
    """Plans the cases by `plan(case)`, one after the other, and prints all facts of a single step, or a table of
    several. Returns whether every step fits. `command` is the user's command line, which JSON output repeats.

    Progress is printed to standard error.

    Args:
      cases: Cases to plan.
      plan: Function that returns the facts of the steps of a case, such as `memjax.planning.plan_cases.plan`.
      as_json: Whether to print one JSON object for each step instead, as soon as its case is planned.
      command: Command line of the user, which the JSON objects repeat.
      stream: Stream to print to. None for standard output.

    Returns:
      Whether every step fits.
    """
    out, known = sys.stdout if stream is None else stream, []
    start = time.monotonic()
    for number, case in enumerate(cases, start=1):
        parts = (case.config.name, case.what, case.topology.name, case.value, case.generation)
        what, wait = ", ".join(filter(None, parts)), _describe_wait(number - 1, len(cases), time.monotonic() - start)
        print(f"compiling {number} of {len(cases)}: {what} ({wait})", file=sys.stderr, flush=True)
        steps = plan(case)
        known += steps
        if as_json:
            started = {"command": command, "date": datetime.date.today().isoformat()}
            for facts in steps:
                print(json.dumps({**started, **facts}), file=out, flush=True)
    if not as_json:
        alone = len(known) == 1
        header, rows = full_table(known[0]) if alone else comparison(known)
        print_table(header, rows, out)
        for facts in known:
            for line in [*learner_bytes(facts), *explain(facts, name=not alone)]:
                print(line, file=out)
        for text in dict.fromkeys(facts["assumptions"] for facts in known):
            print(f"Estimate: {text}.", file=out)
        print(f"Compiled by {', '.join(' '.join(pair) for pair in known[0]['versions'].items())}.", file=out)
    return all(facts["fits"] for facts in known)


def _describe_wait(done: int, cases: int, seconds: float) -> str:
    """Describes how long the remaining cases will take, judging by the finished ones."""
    if not done:  # measured on one core: 16 s with 1.6 million parameters, 140 s with 184 million in 12 layers
        each = "a minute, or a few minutes for a model with hundreds of millions of parameters"
        return f"takes about {each}" if cases == 1 else f"each takes about {each}"
    left = seconds / done * (cases - done)
    return f"{seconds / done:.0f} s each so far, about {_format_duration(left)} left"


def _format_duration(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.0f} min"


def describe_shapes(names: Sequence[str]) -> list[str]:
    """Returns a list of lines that tell which shape is taken for each name of a slice, such as `v5e-16`, that several
    shapes have.

    Args:
      names: Names of slices, see `memjax.planning.topologies.parse_topology`.

    Example:
      >>> describe_shapes(["v5p-1280", "v5e:4x4"])
      ['v5p-1280: taken as v5p:4x8x20; the same number of chips: v5p:4x4x40']
    """
    lines = []
    for name in names:
        first, *others = [topology.name for topology in parse_shapes(name)]
        if others:
            lines.append(f"{name}: taken as {first}; the same number of chips: {', '.join(others[:4])}")
    return lines


def comparison(facts: Sequence[Mapping[str, Any]]) -> tuple[list[str], list[list[str]]]:
    """Returns the header and the rows of a table, lists of strings, with one row for each step. `facts` are the facts
    about the steps from `memjax.planning.plan_cases.plan`.

    Args:
      facts: Facts about each step, as `memjax.planning.plan_cases.plan` returns them.
    """
    field = facts[0]["value"].partition(" = ")[0].rpartition(".")[2]
    swept = lambda plan: [plan["value"].partition(" = ")[2]] if field else []
    several = len({_program_name(plan) for plan in facts}) > 1
    step = lambda plan: [_program_name(plan)] if several else []
    # Older recorded plans have no generations.
    grows = any(plan.get("generation") for plan in facts)
    generation = lambda plan: [plan["generation"], f"{plan['parameters']:,}"] if grows else []
    heads = [*([field] if field else []), *(["model for", "parameters"] if grows else []), *["step"] * several]
    return ["topology", *heads, *COLUMNS], [
        [plan["topology"], *swept(plan), *generation(plan), *step(plan), *_cells(plan)] for plan in facts
    ]


def _program_name(facts: Mapping[str, Any]) -> str:
    """Returns the name of the step. Older recorded plans have only its kind."""
    return facts.get("program", facts["what"])


def _case_name(facts: Mapping[str, Any]) -> str:
    """Returns the name of a case: its slice, its swept value and the task that its model is grown for."""
    return " ".join(filter(None, (facts["topology"], facts["value"], facts.get("generation", ""))))


def learner_bytes(facts: Mapping[str, Any]) -> list[str]:
    """Returns lines of text about the memory that a learner takes on a device: its state, and copies of parameters for
    rows that are adapted one by one. `facts` are those about a step. Empty if it has neither.

    Args:
      facts: Facts about a step, as `memjax.planning.plan_cases.plan` returns them.

    Returns:
      Lines to print. Empty for a learner without episodic memory and adaptation.
    """
    lines, case = [], _case_name(facts)
    if facts["kept"] and facts["program"] == STREAM:
        rows = facts["kept"]
        parts = ", ".join(f"{name} {_gib(size)}" for name, size in facts["parts"].items() if name != "batch")
        lines.append(f"{case}: on a device {parts}; {rows['capacity']:,} rows on all of them ({rows['field']})")
    if facts["copies"]:
        copies = facts["copies"]
        size = copies["at_once"] * copies["bytes"]
        line = f"{case}: adapted copies of parameters {copies['at_once']} x {_gib(copies['bytes'])} = {_gib(size)}"
        widest = f"; at most {copies['widest']} fit side by side" if "widest" in copies else "; see --widest"
        lines.append(f"{line} on a device ({copies['field']}){widest}")
    return lines


def full_table(facts: Mapping[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Returns the header and the rows of a table, lists of strings, with all facts about one step. `facts` are those
    from `memjax.planning.plan_cases.plan`.

    Args:
      facts: Facts about the step, as `memjax.planning.plan_cases.plan` returns them.
    """
    mesh = " x ".join(f"{axis} {size}" for axis, size in facts["mesh"].items())
    rows = [
        ["parameters", f"{facts['parameters']:,}", _trained(facts)],
        ["tokens a step", f"{facts['tokens']:,}", f"{facts['rows']} rows on {facts['devices']} devices, {mesh}"],
        *_memory_rows(facts),
        [
            "FLOPs",
            _number(facts["flops"]),
            f"matrix products, all devices; {_number(facts['model_flops'])} of them without recomputation",
        ],
    ]
    if facts["fits"]:
        estimate = facts["estimate"]
        rows += [
            ["HBM traffic", _number(facts["hbm_bytes"], "B"), "read and written by each device, at least"],
            [
                "intensity",
                f"{estimate['intensity']:,.1f}",
                f"FLOPs per byte of HBM traffic; above {estimate['balance']:,.0f} computation takes longer",
            ],
            *(
                [
                    part["kind"],
                    _number(part["bytes"], "B"),
                    f"{part['count']:,} times; {_number(part['sent_bytes'], 'B')} sent by each device",
                ]
                for part in facts["collectives"]
            ),
            [
                "step",
                _time(estimate["step"]),
                f"bound by {estimate['bound']}: "
                + ", ".join(f"{by} {_time(estimate[by])}" for by in ("compute", "hbm", "ici")),
            ],
            ["tokens a second", f"{estimate['tokens_per_second']:,.0f}", "all devices, at most"],
            ["MFU", _share(estimate["utilization"]), "utilisation of the peak by the model's own FLOPs, at most"],
        ]
    for name, kind in (("arguments", "largest arguments"), ("temporaries", "largest temporaries")):
        for index, (where, shape, size) in enumerate(facts[name]):
            rows.append([kind if index == 0 else "", _gib(size), f"{where or 'unknown'} {shape}"])
    rows += [["sharding rules left out" if i == 0 else "", "", text] for i, text in enumerate(facts["skipped"])]
    rows += [["note", "", text] for text in facts["notes"]]
    step = "" if _program_name(facts) in (STREAM, facts["what"]) else f", {_program_name(facts)}"
    return [f"{facts['name']}: {facts['what']}{step}", facts["topology"], ""], rows


def explain(facts: Mapping[str, Any], *, name: bool = False) -> list[str]:
    """Returns lines of text that tell why a step does not fit and which changes would help. Empty if it fits. `name`
    tells whether the first line names the case.

    Args:
      facts: Facts about the step, as `memjax.planning.plan_cases.plan` returns them.
      name: Whether the first line names the case.

    Returns:
      Lines to print. Empty if the step fits.
    """
    if facts["fits"]:
        return []
    needed, limit = bytes_needed(facts), facts["limit"]
    step = "" if _program_name(facts) in (STREAM, facts["what"]) else _program_name(facts)
    which = " ".join(filter(None, (_case_name(facts), step))) + ": " if name else ""
    much = f"{_gib(needed)} of {_gib(limit)}, {_gib(needed - limit)} too much"
    largest = sorted([*facts["arguments"], *facts["temporaries"]], key=lambda buffer: -buffer[2])[:3]
    buffers = ", ".join(f"{where or 'unknown'} {shape} {_gib(size)}" for where, shape, size in largest)
    lines = [f"{which}does not fit: {much}. The largest: {buffers}. What would help, roughly:"]
    for tip in facts["tips"]:
        enough = ", enough" if tip["enough"] else ""
        lines.append(f"  {tip['change']}  ({_gib(tip['saves'])} less{enough}: {tip['why']})")
    if not any(tip["enough"] for tip in facts["tips"]):
        lines.append("  none of them alone is enough: several together, or a larger --topology")
    return lines


def print_table(header: Sequence[str], rows: Sequence[Sequence[str]], stream: Any) -> None:
    """Prints a table to a stream: with the library Rich on a terminal, as aligned columns elsewhere. The cells are
    strings.

    Args:
      header: Headings of the columns.
      rows: Cells of each row.
      stream: Stream to print to.
    """
    if stream.isatty():
        from rich.console import Console
        from rich.table import Table

        table = Table(*header)
        for row in rows:
            table.add_row(*row)
        Console(file=stream, markup=False, highlight=False).print(table)  # f32[8] is no markup
        return
    widths = [max(len(row[i]) for row in [header, *rows]) for i in range(len(header))]
    for row in [header, *rows]:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip(), file=stream)


def _trained(facts: Mapping[str, Any]) -> str:
    """Describes how many of the parameters are trained, '' for all."""
    return "" if facts["trained"] == facts["parameters"] else f"{facts['trained']:,} of them trained"


def _memory_rows(facts: Mapping[str, Any]) -> list[list[str]]:
    memory, limit = facts["memory"], facts["limit"]
    parts = ", ".join(f"{name} {_gib(size)}" for name, size in facts["parts"].items() if size >= GIB // 1000)
    if memory is None:
        return [["HBM a device", _gib(facts["required"]), f"of {_gib(limit)}: does not fit"], ["arguments", "", parts]]
    shared = f"{_gib(memory['outputs'])} of results, {_gib(memory['aliased'])} of them overwrite arguments"
    needed = bytes_needed(facts)
    state = f"{needed / limit:.0%}" + ("" if facts["fits"] else ": does not fit")
    rows = [
        ["HBM a device", _gib(needed), f"of {_gib(limit)}, {state}"],
        ["  arguments", _gib(memory["arguments"]), parts],
        ["  results", _gib(memory["outputs"] - memory["aliased"]), shared],
        ["  temporaries", _gib(memory["temporaries"]), ""],
    ]
    if facts["peak"]:
        rows.append(["  peak", _gib(facts["peak"]), "largest use at one time, as the compiler reports it"])
    if facts["code"]:
        rows.append(["machine code", _gib(facts["code"]), "not counted above"])
    return rows


def _cells(facts: Mapping[str, Any]) -> list[str]:
    memory, estimate = facts["memory"], facts["estimate"]
    sent = sum(part["sent_bytes"] for part in facts["collectives"])
    sizes = [f"{memory[name] / GIB:.2f}" if memory else "" for name in ("arguments", "temporaries")]
    cells = [str(facts["chips"]), "x".join(map(str, facts["mesh"].values())), *sizes]
    cells += [f"{facts['peak'] / GIB:.2f}" if facts["peak"] else ""]
    cells += [f"{bytes_needed(facts) / GIB:.2f}", f"{facts['limit'] / GIB:.2f}", f"{facts['flops'] / 1e12:,.2f}"]
    if estimate is None:
        return [*cells, "", "", "", "does not fit", ""]
    traffic = [f"{facts['hbm_bytes'] / 1e9:.2f}", f"{sent / 1e9:.2f}", f"{estimate['step'] * 1e3:.2f}"]
    return [*cells, *traffic, estimate["bound"], _share(estimate["utilization"])]


def _gib(size: float) -> str:
    if size >= GIB / 100:
        return f"{size / GIB:.2f} GiB"
    return f"{size / 2**20:.2f} MiB" if size >= 2**20 / 100 else f"{size / 2**10:.2f} KiB"


def _share(part: float) -> str:
    return f"{part:.0%}" if part >= 0.1 else f"{part:.2%}"


def _number(value: float, unit: str = "") -> str:
    for power, letter in ((15, "P"), (12, "T"), (9, "G"), (6, "M"), (3, "k")):
        if value >= 10**power:
            return f"{value / 10**power:.2f} {letter}{unit}"
    return f"{value:.0f} {unit}".rstrip()


def _time(seconds: float) -> str:
    return f"{seconds * 1e3:,.2f} ms" if seconds >= 1e-3 else f"{seconds * 1e6:,.1f} µs"
