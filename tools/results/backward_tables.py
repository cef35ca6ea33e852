"""Tables of what the backward pass keeps and costs under each form of replay and each policy of rematerialization."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from typing import Any

from tools.results.ledger import Measurement, apart
from tools.results.speed_tables import MIB, Record, grid, versions_text

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


def _median(r: Record) -> float:
    return statistics.median(r["seconds"])


def _met(condition: bool) -> str:
    return "met" if condition else "missed"


TABLES: dict[str, Callable[[Measurement], str]] = {"replay": replay, "rematerialization": rematerialization}
"""kind of a measurement -> its table"""
