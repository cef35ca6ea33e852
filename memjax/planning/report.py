"""What `memjax plan` prints: its cases, one table, and what to change where a step does not fit."""

import datetime
import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from memjax.config import Config
from memjax.overrides import UsageError, apply_overrides, find_field
from memjax.planning.advice import bytes_needed
from memjax.planning.cases import Case
from memjax.planning.topologies import GIB, parse_shapes, parse_topology
from memjax.settings.relations import validate
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
"""of the table with a row for each case, behind the names of the case"""


def make_cases(config: Config, topologies: Sequence[str], what: str = "train", sweep: str = "") -> list[Case]:
    """Every topology with every value of a field, and of a model that grows from task to task each generation.

    Args:
      config: the configuration.
      topologies: names of slices.
      what: 'train', 'eval' or 'decode'.
      sweep: `FIELD=A,B`, the field in full or by its last part; '' = the configuration alone.

    Raises:
      ValueError: a topology, a field or a value that does not exist.
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
    every = [(value, *one) for value, changed in swept for one in generations(changed)]
    return [Case(changed, topology, what, value, name) for topology in slices for value, name, changed in every]


def generations(config: Config) -> list[tuple[str, Config]]:
    """The task that each generation of a model is for, and its configuration; of one that stays, itself alone."""
    if config.lifelong is None:
        return [("", config)]
    from memjax.lifelong.factory import growth_histories

    found = growth_histories(config)
    if not any(found):
        return [("", config)]
    names = [task.name for task in config.lifelong.in_order]
    return [
        (name, config_after_growth(config, lineage))
        for number, (name, lineage) in enumerate(zip(names, found, strict=True))
        if not number or lineage != found[number - 1]
    ]


def report(
    cases: Sequence[Case],
    plan: Callable[[Case], Sequence[Mapping[str, Any]]],
    *,
    as_json: bool = False,
    command: str = "",
    stream: Any = None,
) -> bool:
    """Finds out about one case after the other and prints: a case alone in full, several as a row each.

    Args:
      cases: what to plan.
      plan: gives the facts of the steps of a case, as `memjax.planning.cases.plan`; standard error is told about which
        it is asked.
      as_json: print one JSON object per step, as soon as its case is known.
      command: that asked for it, for the JSON objects.
      stream: where to print; None = standard output.

    Returns:
      Whether every case fits.
    """
    out, known = sys.stdout if stream is None else stream, []
    start = time.monotonic()
    for number, case in enumerate(cases, start=1):
        named = (case.config.name, case.what, case.topology.name, case.value, case.generation)
        what, wait = ", ".join(filter(None, named)), _wait(number - 1, len(cases), time.monotonic() - start)
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
            for line in [*held(facts), *explain(facts, name=not alone)]:
                print(line, file=out)
        for text in dict.fromkeys(facts["assumptions"] for facts in known):
            print(f"Estimate: {text}.", file=out)
        print(f"Compiled by {', '.join(' '.join(pair) for pair in known[0]['versions'].items())}.", file=out)
    return all(facts["fits"] for facts in known)


def _wait(done: int, cases: int, seconds: float) -> str:
    """Says how long the rest will take, by what the cases before it took."""
    if not done:  # measured on one core: 16 s with 1.6 million parameters, 140 s with 184 million in 12 layers
        each = "a minute, or a few where the model has hundreds of millions of parameters"
        return f"takes about {each}" if cases == 1 else f"each takes about {each}"
    left = seconds / done * (cases - done)
    return f"{seconds / done:.0f} s each so far, about {_duration(left)} left"


def _duration(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.0f} min"


def describe_shapes(names: Sequence[str]) -> list[str]:
    """Says of every size by number which shape is taken, where there are several.

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
    """Header and rows of a table with a row for each case."""
    field = facts[0]["value"].partition(" = ")[0].rpartition(".")[2]
    swept = lambda one: [one["value"].partition(" = ")[2]] if field else []
    several = len({_program(one) for one in facts}) > 1
    step = lambda one: [_program(one)] if several else []
    # Plans that were recorded before there were any say nothing of generations.
    grows = any(one.get("generation") for one in facts)
    generation = lambda one: [one["generation"], f"{one['parameters']:,}"] if grows else []
    heads = [*([field] if field else []), *(["model for", "parameters"] if grows else []), *["step"] * several]
    return ["topology", *heads, *COLUMNS], [
        [one["topology"], *swept(one), *generation(one), *step(one), *_cells(one)] for one in facts
    ]


def _program(facts: Mapping[str, Any]) -> str:
    """Which step it is; plans that were recorded before there were several say only of what."""
    return facts.get("program", facts["what"])


def _where(facts: Mapping[str, Any]) -> str:
    """Which case it is, of several."""
    return " ".join(filter(None, (facts["topology"], facts["value"], facts.get("generation", ""))))


def held(facts: Mapping[str, Any]) -> list[str]:
    """What a learner keeps beside the model, on a device: its state, and copies of parameters while it scores."""
    lines, where = [], _where(facts)
    if facts["kept"] and facts["program"] == STREAM:
        kept = facts["kept"]
        parts = ", ".join(f"{name} {_gib(size)}" for name, size in facts["parts"].items() if name != "batch")
        lines.append(f"{where}: on a device {parts}; {kept['capacity']:,} rows on all of them ({kept['field']})")
    if facts["copies"]:
        copies = facts["copies"]
        size = copies["at_once"] * copies["bytes"]
        line = f"{where}: adapted copies of parameters {copies['at_once']} x {_gib(copies['bytes'])} = {_gib(size)}"
        widest = f"; at most {copies['widest']} fit side by side" if "widest" in copies else "; see --widest"
        lines.append(f"{line} on a device ({copies['field']}){widest}")
    return lines


def full_table(facts: Mapping[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Header and rows of everything that is known about one case."""
    mesh = " x ".join(f"{axis} {size}" for axis, size in facts["mesh"].items())
    rows = [
        ["parameters", f"{facts['parameters']:,}", ""],
        ["tokens a step", f"{facts['tokens']:,}", f"{facts['rows']} rows on {facts['devices']} devices, {mesh}"],
        *_memory_rows(facts),
        [
            "FLOPs",
            _number(facts["flops"]),
            f"products of matrices, all devices; {_number(facts['model_flops'])} of them the model's own",
        ],
    ]
    if facts["fits"]:
        guess = facts["estimate"]
        rows += [
            ["HBM traffic", _number(facts["hbm_bytes"], "B"), "read and written by a device, at least"],
            [
                "intensity",
                f"{guess['intensity']:,.1f}",
                f"FLOPs a byte of it; from {guess['balance']:,.0f} on, computing takes longer",
            ],
            *(
                [
                    part["kind"],
                    _number(part["bytes"], "B"),
                    f"{part['count']:,} times; {_number(part['sent_bytes'], 'B')} sent by a device",
                ]
                for part in facts["collectives"]
            ),
            [
                "step",
                _time(guess["step"]),
                f"bound by {guess['bound']}: "
                + ", ".join(f"{by} {_time(guess[by])}" for by in ("compute", "hbm", "ici")),
            ],
            ["tokens a second", f"{guess['tokens_per_second']:,.0f}", "all devices, at most"],
            ["MFU", _share(guess["utilization"]), "utilisation by FLOPs of the model, at most"],
        ]
    for name, kind in (("arguments", "largest arguments"), ("temporaries", "largest temporaries")):
        for index, (where, shape, size) in enumerate(facts[name]):
            rows.append([kind if index == 0 else "", _gib(size), f"{where or 'unknown'} {shape}"])
    rows += [["rules left out" if i == 0 else "", "", text] for i, text in enumerate(facts["skipped"])]
    rows += [["note", "", text] for text in facts["notes"]]
    step = "" if _program(facts) in (STREAM, facts["what"]) else f", {_program(facts)}"
    return [f"{facts['name']}: {facts['what']}{step}", facts["topology"], ""], rows


def explain(facts: Mapping[str, Any], *, name: bool = False) -> list[str]:
    """Why a case does not fit, and what to change; nothing for one that does."""
    if facts["fits"]:
        return []
    needed, limit = bytes_needed(facts), facts["limit"]
    step = "" if _program(facts) in (STREAM, facts["what"]) else _program(facts)
    which = " ".join(filter(None, (_where(facts), step))) + ": " if name else ""
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
    """A rich table on a terminal, aligned columns elsewhere."""
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


def _memory_rows(facts: Mapping[str, Any]) -> list[list[str]]:
    memory, limit = facts["memory"], facts["limit"]
    parts = ", ".join(f"{name} {_gib(size)}" for name, size in facts["parts"].items() if size >= GIB // 1000)
    if memory is None:
        return [["HBM a device", _gib(facts["required"]), f"of {_gib(limit)}: does not fit"], ["arguments", "", parts]]
    shared = f"{_gib(memory['outputs'])} of results, {_gib(memory['aliased'])} of them in place of arguments"
    needed = bytes_needed(facts)
    state = f"{needed / limit:.0%}" + ("" if facts["fits"] else ": does not fit")
    rows = [
        ["HBM a device", _gib(needed), f"of {_gib(limit)}, {state}"],
        ["  arguments", _gib(memory["arguments"]), parts],
        ["  results", _gib(memory["outputs"] - memory["aliased"]), shared],
        ["  temporaries", _gib(memory["temporaries"]), ""],
    ]
    if facts["peak"]:
        rows.append(["  peak", _gib(facts["peak"]), "the most that is alive at one time, as the compiler reports it"])
    if facts["code"]:
        rows.append(["machine code", _gib(facts["code"]), "not counted above"])
    return rows


def _cells(facts: Mapping[str, Any]) -> list[str]:
    memory, guess = facts["memory"], facts["estimate"]
    sent = sum(part["sent_bytes"] for part in facts["collectives"])
    held = [f"{memory[name] / GIB:.2f}" if memory else "" for name in ("arguments", "temporaries")]
    cells = [str(facts["chips"]), "x".join(map(str, facts["mesh"].values())), *held]
    cells += [f"{facts['peak'] / GIB:.2f}" if facts["peak"] else ""]
    cells += [f"{bytes_needed(facts) / GIB:.2f}", f"{facts['limit'] / GIB:.2f}", f"{facts['flops'] / 1e12:,.2f}"]
    if guess is None:
        return [*cells, "", "", "", "does not fit", ""]
    traffic = [f"{facts['hbm_bytes'] / 1e9:.2f}", f"{sent / 1e9:.2f}", f"{guess['step'] * 1e3:.2f}"]
    return [*cells, *traffic, guess["bound"], _share(guess["utilization"])]


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
