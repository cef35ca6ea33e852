"""Tables of what is no run and about speed, memory and size: pure functions of a measurement's facts, in Markdown."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tools.results.ledger import Measurement, apart

MIB = 2**20

Record = Mapping[str, Any]


def grid(heads: Sequence[Any], rows: Sequence[Sequence[Any]]) -> str:
    """A table.

    Example:
      >>> print(grid(["a", "b"], [[1, "x"]]))
      | a | b |
      | --- | --- |
      | 1 | x |
    """
    line = lambda cells: "| " + " | ".join(map(str, cells)) + " |"
    return "\n".join(map(line, [heads, ["---"] * len(heads), *rows]))


def bench(found: Measurement) -> str:
    """One row per contender and mode."""
    facts = found.facts
    unit, baseline, reference = facts["unit"], facts["baseline"], facts["reference"]
    records = apart(facts)
    heads = ["mode", "contender", "parameters", "ms per step", f"{unit}/s", f"x {baseline}", f"x {reference or '-'}"]
    heads += ["CPU ms per step", f"x {baseline} by CPU", "first step s", "peak RSS MiB"]
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
                *(_ratio(r["cpu_ratios"].get(baseline)), f"{r['first_step_seconds']:.1f}", f"{r['peak_rss_mib']:.0f}"),
                *([f"{r['page_faults']:,.0f}"] if counted else []),
            ]
        )
    about = (
        f"{facts['threads']} threads each; {facts['rounds']} alternating rounds after {facts['warm_steps']} warm-up "
        "steps. Time: median (quartiles). Ratio: how many times faster (95 % interval); by CPU time it says who "
        f"computes less, whatever else the machine did (load {records[0]['load_at_start']:.1f} at the start)."
    )
    return f"{about}\n\n{grid(heads, rows)}"


def profile(found: Measurement) -> str:
    """The longest operations of each contender and mode, and the rest."""
    parts = [f"{found.facts['steps']} steps."]
    for one in found.facts["records"]:
        parts.append(f"{one['contender']}, {one['mode']}: {one['milliseconds']:.0f} ms of operations per step")
        rows = [[r["operations"], f"{r['milliseconds']:.1f}", f"{r['percent']:.0f} %"] for r in one["shown"]]
        parts.append(grid(["operations", "ms", "share"], rows))
    return "\n\n".join(parts)


def search(found: Measurement) -> str:
    """One row per index and level of recall."""
    heads = ["index", "level", "setting", "recall@32", "queries/s", "x", "x by CPU", "MB", "build s"]
    rows = []
    for r in apart(found.facts):
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
    return f"Load {found.facts['load']:.1f} when rounds began.\n\n{grid(heads, rows)}"


def neighbor_tasks(found: Measurement) -> str:
    """A line for the test texts of each task: of which tasks their neighbours are, in percent."""
    tasks, shares = found.facts["tasks"], found.facts["shares"]
    cells = [[name, *(f"{100 * share:.1f}" for share in line)] for name, line in zip(tasks, shares, strict=True)]
    return grid(["neighbours of, in % of", *tasks], cells)


def relation_spread(found: Measurement) -> str:
    """Mean distances within a relation and between two, after each task."""
    cells = []
    for number, one in enumerate(found.facts["tasks"], start=1):
        ratio = one["between"] / one["within"]
        cells.append([str(number), f"{one['within']:.3f}", f"{one['between']:.3f}", f"{ratio:.3f}"])
    return grid(["tasks learned", "within a relation", "between two", "ratio"], cells)


def coarse(found: Measurement) -> str:
    """One adaptation for a test set, and one for each text."""
    cells = []
    for one in found.facts["forms"]:
        low, median, high = (one["seconds"][name] for name in ("low", "median", "high"))
        cells.append([one["form"], f"{median:.3f} ({low:.3f}-{high:.3f})", f"{100 * one['accuracy']:.1f}"])
    return grid(["adaptation", "seconds", "accuracy, %"], cells)


def episodes(found: Measurement) -> str:
    """One row per index of an episodic memory."""
    rows = [
        [
            *(r["index"], f"{r['recall']:.4f}", f"{100 * r['accuracy']:.1f} %"),
            f"{r['queries_per_second']['median']:,.0f} ({statistics.median(r['cpu_seconds']):.2f})",
            f"{r['first']['seconds']:.1f} ({r['first']['cpu_seconds']:.1f})",
        ]
        for r in found.facts["indices"]
    ]
    return grid(["index", "recall@32", "accuracy of MbPA++", "queries/s", "first search, s"], rows)


def decode_speed(found: Measurement) -> str:
    """Medians with the smallest and largest, a row per length; then bytes, operations and programs."""
    records = apart(found.facts)
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
    return f"JAX {found.facts['jax']}.\n\n{grid(['tokens', *names], rows)}"


def decode_positions(found: Measurement) -> str:
    """A row a memory: milliseconds a token at the first position, and how many times as long the others take."""
    records, tokens = apart(found.facts), found.facts["tokens"]
    times = list(dict.fromkeys(r["times"] for r in records))
    rows = []
    for name in dict.fromkeys(r["memory"] for r in records):
        first, *later = [r for r in records if r["memory"] == name]
        rows.append([name, f"{1e3 * statistics.median(first['seconds']) / tokens:.2f}"])
        rows[-1] += [_ratio(r["times_the_first"]) for r in later]
    heads = ["memory", "ms a token after 1 x the memory", *(f"x, after {number} times" for number in times[1:])]
    return f"JAX {found.facts['jax']}.\n\n{grid(heads, rows)}"


def compile_times(found: Measurement) -> str:
    """One row per way to apply the layers, with the CPU seconds of each part of the compilation."""
    records = apart(found.facts)
    parts = list(records[0]["cpu_seconds"])
    rows = [
        [r["layers"], f"{r['equations']:,}", *(f"{r['cpu_seconds'][part]:.2f}" for part in parts)]
        + [f"{sum(r['cpu_seconds'].values()):.2f}"]
        for r in records
    ]
    return f"JAX {found.facts['jax']}.\n\n{grid(['layers', 'equations', *parts, 'in all'], rows)}"


def checksums(found: Measurement) -> str:
    """One row per kind of checksum, and the time until a token file is open."""
    facts = found.facts
    heads = ["checksum of", "CPU microseconds", "share of a step"]
    rows = [[r["what"], f"{r['seconds'] * 1e6:.1f}", f"{r['share']:.3%}"] for r in apart(facts)]
    opened = (
        f"A token file of {facts['bytes'] / 1e9:g} GB is open after {facts['open_seconds'] * 1e3:.0f} ms, and its "
        f"first document is read after {facts['first_document_seconds'] * 1e3:.0f} ms."
    )
    return f"A step takes {facts['step_seconds'] * 1e3:.0f} ms of CPU time. {opened}\n\n{grid(heads, rows)}"


def saves(found: Measurement) -> str:
    """One row per way to save checkpoints."""
    heads = ["checkpoint", "seconds of a turn", "seconds of the save", "lost"]
    rows = [
        [
            r["mode"],
            f"{r['turn_seconds']:.2f}",
            f"{r['save_seconds']:.3f}",
            f"{r['save_seconds'] / r['turn_seconds']:.1%}",
        ]
        for r in apart(found.facts)
    ]
    return f"A checkpoint has {found.facts['bytes'] / MIB:.0f} MiB.\n\n{grid(heads, rows)}"


def product_key_steps(found: Measurement) -> str:
    """One row per number of slots and form of Adam."""
    settings = ", ".join(f"{key.replace('_', ' ')} {value}" for key, value in found.facts["settings"].items())
    heads = ["slots", "Adam", "ms per step", "times the smallest", "CPU ms per step", "temporary MiB", "in place MiB"]
    rows = []
    for r in apart(found.facts):
        wall, cpu = quartiles(r["seconds"]), quartiles(r["cpu_seconds"])
        rows.append(
            [
                *(f"{r['slots']:,}", "row-sparse" if r["form"] == "lazy" else "dense"),
                f"{wall['median'] * 1e3:.0f} ({wall['low'] * 1e3:.0f}-{wall['high'] * 1e3:.0f})",
                *(_ratio(r["times_the_smallest"]), f"{cpu['median'] * 1e3:.0f}"),
                *(f"{r['temporary_bytes'] / MIB:.0f}", f"{r['aliased_bytes'] / MIB:.0f}"),
            ]
        )
    load = f"load {apart(found.facts)[0]['load']:.1f} at the end"
    return f"{settings}; {load}.\n\n{grid(heads, rows)}"


def quartiles(values: Sequence[float]) -> dict[str, float]:
    """Median and quartiles (of one value: itself)."""
    low, median, high = statistics.quantiles(values, n=4, method="inclusive") if len(values) > 1 else [values[0]] * 3
    return {"median": median, "low": low, "high": high}


COSTED = {"memformer": "Memformer", "transformer_xl": "Transformer-XL", "transformer": "Transformer"}
TEMPORARIES = {"temp_bytes": "", "row_temp_bytes": " row by row"}
MEMORY_OF_LENGTHS = 1024


def costs(found: Measurement) -> str:
    """By memory, by length of the text, and the ratios."""
    records = found.facts["records"]
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
    ratios = [[name, f"{value:.3f}"] for name, value in found.facts["ratios"].items()]
    return "\n\n".join(
        [grid(heads, rows), grid(["tokens", *COSTED.values()], lengths), grid(["ratio", "counted"], ratios)]
    )


def memory_costs(found: Measurement) -> str:
    """A line for each memory: its form, the state of a row, FLOPs of a token, weights."""
    records = found.facts["records"]
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


REPLAYED = {
    "none": "back-propagation through time",
    "per_layer": "checkpoint per layer",
    "segment": "memory replay, scan and checkpoint",
    "mrbp": "memory replay, encoder first",
}
REPLAY_GOAL = {"memory": 0.05, "speed": 0.85}
"""temporaries of both replays at most, and speed of the second at least, as shares of back-propagation through time at
the largest number of segments; the speed where the encoder is a third of the model or less"""


def replay(found: Measurement) -> str:
    """One row per form, three columns per number of segments, each with its share of the first form; and the goals."""
    records = apart(found.facts)
    numbers = sorted({r["segments"] for r in records})
    heads = [head for n in numbers for head in (f"{n} segments: MiB (x)", "FLOPs x", "speed x")]
    rows = []
    for form in dict.fromkeys(r["form"] for r in records):
        cells = []
        for number in numbers:
            some = {r["form"]: r for r in records if r["segments"] == number}
            cells += _replay_cells(some[form], next(iter(some.values())))
        rows.append([REPLAYED.get(form, form), *cells])
    settings = ", ".join(f"{name} {value}" for name, value in found.facts["settings"].items())
    return f"Sizes: {settings}.\n\n{grid(['form', *heads], rows)}\n\n{replay_goals(records)}"


def replay_goals(records: Sequence[Record]) -> str:
    """What both replays should reach at the largest number of segments, and what they reach."""
    most = max(r["segments"] for r in records)
    some = {r["form"]: r for r in records if r["segments"] == most}
    plain, parts, goal = some["none"], [], REPLAY_GOAL
    for form in ("segment", "mrbp"):
        share = some[form]["temp_size"] / plain["temp_size"]
        reached = _met(share <= goal["memory"])
        parts.append(f"{REPLAYED[form]}: {share:.3f} of the temporaries (at most {goal['memory']}: {reached})")
    speed = _median(plain) / _median(some["mrbp"])
    reached = _met(speed >= goal["speed"])
    parts.append(f"{REPLAYED['mrbp']}: {speed:.2f} of the speed (at least {goal['speed']}: {reached})")
    return f"At {most} segments, to {REPLAYED['none']}: " + "; ".join(parts) + "."


def _replay_cells(r: Record, plain: Record) -> list[str]:
    memory = f"{r['temp_size'] / MIB:.1f} ({r['temp_size'] / plain['temp_size']:.3f})"
    speed = f"{_median(plain) / _median(r):.2f}" if r["seconds"] else "-"
    return [memory, f"{r['flops'] / plain['flops']:.2f}", speed]


PUBLISHED = (("BPTT", 16177), ("gradient checkpointing", 9885), ("MRBP", 7229))
"""megabytes of a GPU in the table of Wu et al. 2022"""
SCAN_GOAL = {"memory_ratio": 0.03, "growth": 1.3, "flops_ratio": 1.6}
"""at most, of the slot memory under "segment_nested" (`with_ratios`)"""


def rematerialization(found: Measurement) -> str:
    """The table of a model, its sizes, and what it should show."""
    records, settings, model = with_ratios(apart(found.facts)), found.facts["settings"], found.name
    memory = {
        "slots": f"{settings['slots']} slots, read by every layer and written once per segment; gradients cross "
        "segments",
        "memformer": f"{settings.get('encoder_layers')} of them encode and share {settings['slots']} slots, "
        f"{settings.get('decoder_layers')} decode; gradients cross segments",
        "transformer_xl": f"memory of {settings['memory_length']} tokens in every layer; gradients stop between "
        "segments",
    }[model]
    layers = settings["layers"]
    if model == "memformer":
        layers = settings["encoder_layers"] + settings["decoder_layers"]
    limits = sorted({r["limit"] / 2**30 for r in records if "limit" in r})
    parts = [
        f"Value and gradient of `loss_over_segments`, compiled for one chip of {settings['topology']} without the "
        f"hardware; nothing was run. {versions_text(found.facts['versions'])}. MiB: the compiler's temporaries, so "
        "without parameters and the gradients returned (*host*: what is in the host's memory); *wants*: it does not fit"
        + "".join(f" into {limit:.2f} GiB" for limit in limits)
        + ", and this is what the compiler says it wants in all, which ratios take for it. FLOPs: counted from the "
        "jaxpr, loops multiplied out. Growth: from the fewest to the most segments. Policies are those of "
        "`training.remat`.",
        f"{layers} scanned layers of width {settings['dim']} with {settings['heads']} heads, vocabulary "
        f"{settings['vocab']}, {records[0]['parameters'] / 1e6:.1f} M parameters; {memory}. {settings['batch']} rows, "
        f"segments of {settings['length']} tokens, computed in {settings['dtype']}.",
        policies(records),
        "Machine code, from the fewest segments to more of them: "
        f"at most {max(r.get('code_growth', 1) for r in records):.2f} times as much.",
    ]
    if model == "slots":
        published = ", ".join(f"{name} {size} ({size / PUBLISHED[0][1]:.2f})" for name, size in PUBLISHED)
        parts += [
            scan_goal(records),
            f"Published (Memformer, Wu et al. 2022), MB of a GPU in all, as none, per_layer, segment: {published}.",
        ]
    elif model == "memformer":
        parts.append("'mrbp' is memory replay that walks forward through encoder and writer only.")
    else:
        parts.append("No goal: every segment saves a whole memory, so what is saved grows with their number.")
    return "\n\n".join(parts)


def with_ratios(records: Sequence[Record]) -> list[dict[str, Any]]:
    """Adds to each record its `memory_ratio` and `flops_ratio` to plain over as many segments, and its growth.

    Growth, of memory and of machine code (`code_growth`, where it fits), is from the row's record of the fewest
    segments. Of what does not fit counts what the compiler wants.
    """
    plain = {r["segments"]: r for r in records if r["policy"] == "none"}
    first: dict[tuple[str, int], Record] = {}
    for r in sorted(records, key=lambda r: r["segments"]):
        first.setdefault(_policy(r), r)
    return [
        {
            **r,
            "memory_ratio": _size(r) / _size(plain[r["segments"]]),
            "flops_ratio": r["flops"] / plain[r["segments"]]["flops"],
            "growth": _size(r) / _size(first[_policy(r)]),
            **_code_growth(r, first[_policy(r)]),
        }
        for r in records
    ]


def policies(records: Sequence[Record]) -> str:
    """Of records with ratios: one row per policy, three columns per number of segments."""
    numbers = sorted({r["segments"] for r in records})
    found = {(_policy(r), r["segments"]): r for r in records}
    heads = [head for n in numbers for head in (f"{n} segments: MiB", "x plain", "FLOPs x plain")]
    rows = []
    for policy in dict.fromkeys(_policy(r) for r in records):
        some = [found.get((policy, number)) for number in numbers]
        last = some[-1]
        grown = f"{last['growth']:.2f}" if last and some[0] and len(some) > 1 else "-"
        rows.append([policy_name(*policy), *(cell for r in some for cell in _scan_cells(r)), grown])
    return grid(["policy", *heads, "growth"], rows)


def scan_goal(records: Sequence[Record]) -> str:
    """What the slot memory should reach under "segment_nested", and what it reaches, the worst of all columns."""
    nested = [r for r in records if _policy(r) == ("segment_nested", 0)]
    words = {"memory_ratio": "of plain's memory", "growth": "growth", "flops_ratio": "of plain's FLOPs"}
    shown = []
    for key, bound in SCAN_GOAL.items():
        worst = max(r[key] for r in nested)
        shown.append(f"{worst:.3f} {words[key]} (at most {bound}: {_met(worst <= bound)})")
    return f"Goal of segment_nested, in the worst column: {', '.join(shown)}."


def policy_name(policy: str, segments_per_checkpoint: int) -> str:
    """As a row of a table."""
    return f"{policy}, {segments_per_checkpoint} segments per checkpoint" if segments_per_checkpoint else policy


def size_text(r: Record) -> str:
    """MiB that a program takes, or wants."""
    if "wanted" in r:
        return f"wants {r['wanted'] / MIB:.0f}"
    host = f" + {r['host_temp_size'] / MIB:.0f} host" if r["host_temp_size"] else ""
    return f"{r['temp_size'] / MIB:.0f}{host}"


def _scan_cells(r: Record | None) -> list[str]:
    return [size_text(r), f"{r['memory_ratio']:.3f}", f"{r['flops_ratio']:.2f}"] if r else ["-"] * 3


def _policy(r: Record) -> tuple[str, int]:
    return r["policy"], r["segments_per_checkpoint"]


def _size(r: Record) -> int:
    return r["wanted"] if "wanted" in r else r["temp_size"]


def _code_growth(r: Record, first: Record) -> dict[str, float]:
    key = "generated_code_size"
    return {"code_growth": r[key] / first[key]} if key in r and key in first else {}


def _ratio(ratio: Mapping[str, float] | None) -> str:
    return f"{ratio['value']:.2f} ({ratio['low']:.2f}-{ratio['high']:.2f})" if ratio else "-"


def versions_text(versions: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {version}" for name, version in versions.items())


def _median(r: Record) -> float:
    return statistics.median(r["seconds"])


def _met(condition: bool) -> str:
    return "met" if condition else "missed"


TABLES: dict[str, Callable[[Measurement], str]] = {
    "bench": bench,
    "profile": profile,
    "search": search,
    "episodes": episodes,
    "coarse": coarse,
    "relation_spread": relation_spread,
    "neighbor_tasks": neighbor_tasks,
    "decode_speed": decode_speed,
    "decode_positions": decode_positions,
    "compile_times": compile_times,
    "product_key_steps": product_key_steps,
    "checksums": checksums,
    "saves": saves,
    "costs": costs,
    "memory_costs": memory_costs,
    "replay": replay,
    "rematerialization": rematerialization,
}
"""kind of a measurement -> its table"""
