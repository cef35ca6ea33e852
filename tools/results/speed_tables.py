"""Renders Markdown tables of measurements of speed, memory and size, by pure functions of their facts."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tools.results.ledger import Measurement, apart

MIB = 2**20

Record = Mapping[str, Any]


def grid(heads: Sequence[Any], rows: Sequence[Sequence[Any]]) -> str:
    """Returns a Markdown table.

    Args:
      heads: Heads of the columns.
      rows: Cells of each row, as many as there are heads.

    Example:
      >>> print(grid(["a", "b"], [[1, "x"]]))
      | a | b |
      | --- | --- |
      | 1 | x |
    """
    line = lambda cells: "| " + " | ".join(map(str, cells)) + " |"
    return "\n".join(map(line, [heads, ["---"] * len(heads), *rows]))


def bench(measurement: Measurement) -> str:
    """Returns a table of a suite of benchmarks, with one row for each contender and mode."""
    facts = measurement.facts
    unit, baseline, reference = facts["unit"], facts["baseline"], facts["reference"]
    records = apart(facts)
    heads = ["mode", "contender", "parameters", "ms per step", f"{unit}/s", f"x {baseline}", f"x {reference or '-'}"]
    restarted = any(r.get("second_start_seconds") for r in records)  # not in measurements from before it was timed
    heads += ["CPU ms per step", f"x {baseline} by CPU", "first step s", *["of a second start"] * restarted]
    heads += ["peak RSS MiB"]
    counted = all("page_faults" in r for r in records)  # not in measurements from before they were counted
    heads += ["page faults per step"] * counted
    rows = []
    for r in records:
        seconds = {key: 1000 * r["seconds"][key] for key in ("median", "low", "high")}
        ratios = [_ratio(r["ratios"].get(name)) for name in (baseline, reference)]
        rows.append(
            [
                *(r["mode"], r["contender"], f"{r['parameters'] / 1e6:.2f} M"),
                f"{seconds['median']:.1f} ({seconds['low']:.1f}-{seconds['high']:.1f})",
                *(f"{r[f'{unit}_per_second']:.0f}", *ratios, f"{1000 * r['cpu_seconds']['median']:.1f}"),
                *(_ratio(r["cpu_ratios"].get(baseline)), f"{r['first_step_seconds']:.1f}"),
                *[f"{again:.1f}" if (again := r.get("second_start_seconds")) else "-"] * restarted,
                f"{r['peak_rss_mib']:.0f}",
                *([f"{r['page_faults']:,.0f}"] if counted else []),
            ]
        )
    about = (
        f"{facts['threads']} threads each; {facts['rounds']} alternating rounds after {facts['warm_steps']} warm-up "
        "steps. Time: median (quartiles). Ratio: how many times faster (95 % interval); by CPU time it says who "
        f"computes less, whatever else the machine did (load {records[0]['load_at_start']:.1f} at the start)."
    )
    if restarted:
        about += " The first step compiles; that of a second start finds the compiled programs on the disk."
    return f"{about}\n\n{grid(heads, rows)}"


def profile(measurement: Measurement) -> str:
    """Returns a table of the longest operations for each contender and mode. Its last row is all other operations."""
    parts = [f"{measurement.facts['steps']} steps."]
    for record in measurement.facts["records"]:
        parts.append(f"{record['contender']}, {record['mode']}: {record['milliseconds']:.0f} ms of operations per step")
        rows = [[r["operations"], f"{r['milliseconds']:.1f}", f"{r['percent']:.0f} %"] for r in record["shown"]]
        parts.append(grid(["operations", "ms", "share"], rows))
    return "\n\n".join(parts)


def search(measurement: Measurement) -> str:
    """Returns a table of searches among keys, with one row for each index and level of recall."""
    heads = ["index", "level", "setting", "recall@32", "queries/s", "x", "x by CPU", "MB", "build s"]
    rows = []
    for r in apart(measurement.facts):
        level = "" if r["level"] is None else r["level"]
        if not r["reached"]:
            rows.append(
                [r["index"], level, "not reached with any setting tried", f"at most {r['recall']:.3f}", *[""] * 5]
            )
            continue
        pace = r["queries_per_second"]
        rows.append(
            [
                *(r["index"], level, r["setting"], "" if r["recall"] is None else f"{r['recall']:.4f}"),
                f"{pace['median']:,.0f} ({pace['high']:,.0f}-{pace['low']:,.0f})",
                *(_ratio(r["ratio"]), _ratio(r["cpu_ratio"]), f"{r['bytes'] / 1e6:.1f}"),
                f"{r['build']['seconds']:.1f} ({r['build']['cpu_seconds']:.1f})",
            ]
        )
    return f"Load {measurement.facts['load']:.1f} when rounds began.\n\n{grid(heads, rows)}"


def store_choice(measurement: Measurement) -> str:
    """Returns a table of searches among keys, with one row for each size of a store, index and level of recall."""
    heads = ["keys", "index", "level", "setting", "recall@32", "queries/s", "x", "MB", "build s"]
    rows, loads = [], []
    for r in apart(measurement.facts):
        loads.append(r["load"])
        first = [f"{r['entries']:,}", r["index"], "" if r["level"] is None else r["level"]]
        if not r["reached"]:
            rows.append([*first, "not reached with any setting tried", f"at most {r['recall']:.3f}", *[""] * 4])
            continue
        pace = r["queries_per_second"]
        rows.append(
            [
                *(*first, r["setting"], f"{r['recall']:.4f}"),
                f"{pace['median']:,.0f} ({pace['high']:,.0f}-{pace['low']:,.0f})",
                *(_ratio(r["ratio"]), f"{r['bytes'] / 1e6:.1f}", f"{r['build']['seconds']:.1f}"),
            ]
        )
    return f"Load {min(loads):.1f} to {max(loads):.1f} when rounds began.\n\n{grid(heads, rows)}"


def neighbor_tasks(measurement: Measurement) -> str:
    """Returns a table of the tasks to which the neighbours of the test texts of each task belong, in percent."""
    tasks, shares = measurement.facts["tasks"], measurement.facts["shares"]
    cells = [[name, *(f"{100 * share:.1f}" for share in line)] for name, line in zip(tasks, shares, strict=True)]
    return grid(["neighbours of, in % of", *tasks], cells)


def coarse(measurement: Measurement) -> str:
    """Returns a table of the seconds and the accuracy of each form of adaptation at test time, and what tells the task.

    Forms are one adaptation for a whole test set, one for each text, and none.
    """
    cells = []
    names = {"each": "each text (`per_example`)", "together": "all texts together (`per_batch`)"}
    for adaptation in measurement.facts["forms"]:
        low, median, high = (adaptation["seconds"][name] for name in ("low", "median", "high"))
        cells.append(
            [
                names.get(adaptation["form"], adaptation["form"]),
                f"{median:.3f} ({low:.3f}-{high:.3f})",
                f"{100 * adaptation['accuracy']:.1f}",
            ]
        )
    told = "All texts are of one task, which the mean of their keys, to whose neighbours `per_batch` adapts, tells."
    return f"{grid(['adaptation', 'seconds', 'accuracy, %'], cells)}\n\n{told}"


def episodes(measurement: Measurement) -> str:
    """Returns a table with one row for each index of an episodic memory."""
    rows = [
        [
            *(r["index"], f"{r['recall']:.4f}", f"{100 * r['accuracy']:.1f} %"),
            f"{r['queries_per_second']['median']:,.0f} ({statistics.median(r['cpu_seconds']):.2f})",
            f"{r['first']['seconds']:.1f} ({r['first']['cpu_seconds']:.1f})",
        ]
        for r in measurement.facts["indices"]
    ]
    return grid(["index", "recall@32", "accuracy of MbPA++", "queries/s", "first search, s"], rows)


def decode_speed(measurement: Measurement) -> str:
    """Returns a table of the speed of decoding, with a column for each contender.

    A row for each length has tokens a second, medians with the smallest and the largest. The last rows are bytes of the
    state, operations of a token and numbers of programs.
    """
    records = apart(measurement.facts)
    names = list(dict.fromkeys(r["contender"] for r in records))
    rows = []
    for length in dict.fromkeys(r["length"] for r in records):
        rates = {r["contender"]: r["tokens_per_second"] for r in records if r["length"] == length}
        cells = [f"{statistics.median(v):,.0f} ({min(v):,.0f} to {max(v):,.0f})" for v in (rates[n] for n in names)]
        rows.append([f"{length:,}", *cells])
    for field in ("state_bytes", "flops_per_token", "programs"):
        cells = []
        for name in names:
            values = [r[field] for r in records if r["contender"] == name]
            cells.append(f"{values[0]:,}" if len(set(values)) == 1 else f"{min(values):,} to {max(values):,}")
        rows.append([field.replace("_", " "), *cells])
    return f"JAX {measurement.facts['jax']}.\n\n{grid(['tokens', *names], rows)}"


def decode_positions(measurement: Measurement) -> str:
    """Returns a table of the time of a decoded token by its position, with one row for each memory.

    The time at the first position is in milliseconds. Times at later positions are ratios to it.
    """
    records, tokens = apart(measurement.facts), measurement.facts["tokens"]
    times = list(dict.fromkeys(r["times"] for r in records))
    rows = []
    for name in dict.fromkeys(r["memory"] for r in records):
        first, *later = [r for r in records if r["memory"] == name]
        rows.append([name, f"{1e3 * statistics.median(first['seconds']) / tokens:.2f}"])
        rows[-1] += [_ratio(r["times_the_first"]) for r in later]
    heads = ["memory", "ms a token after 1 x the memory", *(f"x, after {number} times" for number in times[1:])]
    return f"JAX {measurement.facts['jax']}.\n\n{grid(heads, rows)}"


def compile_times(measurement: Measurement) -> str:
    """Returns a table of the CPU seconds of compilation by part, with one row for each way to apply the layers."""
    records = apart(measurement.facts)
    parts = list(records[0]["cpu_seconds"])
    rows = [
        [r["layers"], f"{r['equations']:,}", *(f"{r['cpu_seconds'][part]:.2f}" for part in parts)]
        + [f"{sum(r['cpu_seconds'].values()):.2f}"]
        for r in records
    ]
    return f"JAX {measurement.facts['jax']}.\n\n{grid(['layers', 'equations', *parts, 'in all'], rows)}"


def checksums(measurement: Measurement) -> str:
    """Returns a table with one row for each kind of checksum, and the time until a token file is open."""
    facts = measurement.facts
    heads = ["checksum of", "CPU microseconds", "share of a step"]
    rows = [[r["what"], f"{r['seconds'] * 1e6:.1f}", f"{r['share']:.3%}"] for r in apart(facts)]
    opened = (
        f"A token file of {facts['bytes'] / 1e9:g} GB is open after {facts['open_seconds'] * 1e3:.0f} ms, and its "
        f"first document is read after {facts['first_document_seconds'] * 1e3:.0f} ms."
    )
    return f"A step takes {facts['step_seconds'] * 1e3:.0f} ms of CPU time. {opened}\n\n{grid(heads, rows)}"


def saves(measurement: Measurement) -> str:
    """Returns a table of the time that checkpoints take, with one row for each way to save them."""
    heads = ["checkpoint", "seconds of a turn", "seconds of the save", "lost"]
    rows = [
        [
            r["mode"],
            f"{r['turn_seconds']:.2f}",
            f"{r['save_seconds']:.3f}",
            f"{r['save_seconds'] / r['turn_seconds']:.1%}",
        ]
        for r in apart(measurement.facts)
    ]
    return f"A checkpoint has {measurement.facts['bytes'] / MIB:.0f} MiB.\n\n{grid(heads, rows)}"


def product_key_steps(measurement: Measurement) -> str:
    """Returns a table of training steps, with one row for each number of slots and form of Adam."""
    settings = ", ".join(f"{key.replace('_', ' ')} {value}" for key, value in measurement.facts["settings"].items())
    heads = ["slots", "Adam", "ms per step", "times the smallest", "CPU ms per step", "temporary MiB", "in place MiB"]
    rows = []
    for r in apart(measurement.facts):
        wall, cpu = quartiles(r["seconds"]), quartiles(r["cpu_seconds"])
        rows.append(
            [
                *(f"{r['slots']:,}", "row-sparse" if r["form"] == "lazy" else "dense"),
                f"{wall['median'] * 1e3:.0f} ({wall['low'] * 1e3:.0f}-{wall['high'] * 1e3:.0f})",
                *(_ratio(r["times_the_smallest"]), f"{cpu['median'] * 1e3:.0f}"),
                *(f"{r['temporary_bytes'] / MIB:.0f}", f"{r['aliased_bytes'] / MIB:.0f}"),
            ]
        )
    load = f"load {apart(measurement.facts)[0]['load']:.1f} at the end"
    return f"{settings}; {load}.\n\n{grid(heads, rows)}"


def quartiles(values: Sequence[float]) -> dict[str, float]:
    """Returns the `median` and the quartiles `low` and `high` of some values. A single value is all three."""
    low, median, high = statistics.quantiles(values, n=4, method="inclusive") if len(values) > 1 else [values[0]] * 3
    return {"median": median, "low": low, "high": high}


COSTED = {"memformer": "Memformer", "transformer_xl": "Transformer-XL", "transformer": "Transformer"}
"""Kind of a model -> its name in tables"""
TEMPORARIES = {"temp_bytes": "", "row_temp_bytes": " row by row"}
"""Field of a record with temporaries -> end of the head of its column"""
MEMORY_OF_LENGTHS = 1024
"""Size of the memory of the models whose FLOPs are compared by length of the text"""


def costs(measurement: Measurement) -> str:
    """Returns three tables: costs by size of the memory, FLOPs by length of the text, and ratios."""
    records = measurement.facts["records"]
    heads = ["model", "memory", "GFLOPs of a segment", "state, KiB a row"]
    heads += [*(f"temporaries{how}, MiB" for how in TEMPORARIES.values()), "weights, MiB"]
    rows = []
    for r in (r for r in records if r["memory"]):
        cells = [COSTED[r["kind"]], f"{r['memory']:,}", f"{r['flops'] / 1e9:.2f}", f"{r['state_bytes'] / 1024:,.0f}"]
        cells += [f"{r[key] / MIB:,.1f}" if key in r else "-" for key in TEMPORARIES]
        rows.append([*cells, f"{r['parameter_bytes'] / MIB:,.1f}"])
    segment = {r["kind"]: r for r in records if r["memory"] == MEMORY_OF_LENGTHS}
    lengths = []
    for whole in (r for r in records if r["kind"] == "transformer"):
        cells = [math.ceil(whole["length"] / r["length"]) * r["flops"] for r in segment.values()]
        lengths.append([f"{whole['length']:,}", *(f"{flops / 1e9:,.1f}" for flops in (*cells, whole["flops"]))])
    ratios = [[name, f"{value:.3f}"] for name, value in measurement.facts["ratios"].items()]
    return "\n\n".join(
        [grid(heads, rows), grid(["tokens", *COSTED.values()], lengths), grid(["ratio", "counted"], ratios)]
    )


def memory_costs(measurement: Measurement) -> str:
    """Returns a table of memories: their form, the state of a row, FLOPs of a token, and size of the weights."""
    records = measurement.facts["records"]
    heads = ["memory", "form", "state, KiB a row", "MFLOPs a token", "x without", "weights, MiB"]
    rows = [
        [
            *(r["memory"], r["form"], f"{r['state_bytes'] / 1024:,.0f}", f"{r['flops_per_token'] / 1e6:.1f}"),
            f"{r['flops_per_token'] / records[0]['flops_per_token']:.3f}",
            f"{r['parameter_bytes'] / MIB:,.1f}",
        ]
        for r in records
    ]
    return grid(heads, rows)


def _ratio(ratio: Mapping[str, float] | None) -> str:
    """Returns a ratio with its interval as a cell of a table. "-" for None."""
    return f"{ratio['value']:.2f} ({ratio['low']:.2f}-{ratio['high']:.2f})" if ratio else "-"


def versions_text(versions: Mapping[str, str]) -> str:
    """Returns the names and versions of libraries as a text."""
    return ", ".join(f"{name} {version}" for name, version in versions.items())


TABLES: dict[str, Callable[[Measurement], str]] = {
    "bench": bench,
    "profile": profile,
    "search": search,
    "store_choice": store_choice,
    "episodes": episodes,
    "coarse": coarse,
    "neighbor_tasks": neighbor_tasks,
    "decode_speed": decode_speed,
    "decode_positions": decode_positions,
    "compile_times": compile_times,
    "product_key_steps": product_key_steps,
    "checksums": checksums,
    "saves": saves,
    "costs": costs,
    "memory_costs": memory_costs,
}
"""Kind of a measurement -> function that renders its table"""
