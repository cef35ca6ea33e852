"""Renders tables of memory and speed of the backward pass, by form of replay and by policy of rematerialization."""

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
"""Form of the gradient over segments -> its name in tables"""
REPLAY_GOAL = {"memory": 0.05, "speed": 0.85}
"""Goals at the largest number of segments, as shares of back-propagation through time. `memory` is the largest allowed
share of the temporaries of both replays. `speed` is the smallest allowed share of the speed of "mrbp", for models whose
encoder is a third of the model or less."""


def replay(measurement: Measurement) -> str:
    """Returns a table of the forms of the gradient over segments, after the sizes of the model and before the goals.

    Each form has a row. Each number of segments has three columns: temporaries, FLOPs and speed, as ratios to the first
    form. Temporaries are in MiB too.
    """
    records = apart(measurement.facts)
    numbers = sorted({r["segments"] for r in records})
    heads = [head for n in numbers for head in (f"{n} segments: MiB (x)", "FLOPs x", "speed x")]
    rows = []
    for form in dict.fromkeys(r["form"] for r in records):
        cells = []
        for number in numbers:
            some = {r["form"]: r for r in records if r["segments"] == number}
            cells += _replay_cells(some[form], next(iter(some.values())))
        rows.append([REPLAYED.get(form, form), *cells])
    settings = ", ".join(f"{name} {value}" for name, value in measurement.facts["settings"].items())
    return f"Sizes: {settings}.\n\n{grid(['form', *heads], rows)}\n\n{replay_goals(records)}"


def replay_goals(records: Sequence[Record]) -> str:
    """Returns a sentence with the goals of both replays at the largest number of segments, and the reached values."""
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
"""Names of methods and their megabytes of a GPU, from the table of Wu et al. 2022"""
SCAN_GOAL = {"memory_ratio": 0.03, "growth": 1.3, "flops_ratio": 1.6}
"""Largest allowed ratios of the slot memory under the policy "segment_nested". See `with_ratios`."""


def rematerialization(measurement: Measurement) -> str:
    """Returns the table of policies of a model, after its sizes and before its goals."""
    records, settings, model = with_ratios(apart(measurement.facts)), measurement.facts["settings"], measurement.name
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
        f"hardware; nothing was run. {versions_text(measurement.facts['versions'])}. MiB: the compiler's temporaries, "
        "so without parameters and the gradients returned (*host*: what is in the host's memory); *wants*: it does not "
        "fit"
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
    """Returns the records with the ratios `memory_ratio` and `flops_ratio`, `growth` and `code_growth`.

    The first two are ratios to the policy "none" with as many segments. `growth` and `code_growth` are ratios of memory
    and of machine code to the same policy with the fewest segments. `code_growth` is missing where a program does not
    fit. The memory of a program that does not fit is the memory that the compiler wants.
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
    """Returns a table with one row for each policy, and three columns for each number of segments.

    Args:
      records: Records of a model with the ratios of `with_ratios`.
    """
    numbers = sorted({r["segments"] for r in records})
    records_by_cell = {(_policy(r), r["segments"]): r for r in records}
    heads = [head for n in numbers for head in (f"{n} segments: MiB", "x plain", "FLOPs x plain")]
    rows = []
    for policy in dict.fromkeys(_policy(r) for r in records):
        some = [records_by_cell.get((policy, number)) for number in numbers]
        last = some[-1]
        growth = f"{last['growth']:.2f}" if last and some[0] and len(some) > 1 else "-"
        rows.append([policy_name(*policy), *(cell for r in some for cell in _scan_cells(r)), growth])
    return grid(["policy", *heads, "growth"], rows)


def scan_goal(records: Sequence[Record]) -> str:
    """Returns a sentence with the goals of the slot memory under "segment_nested", and the worst reached values.

    Args:
      records: Records of the slot memory with the ratios of `with_ratios`.
    """
    nested = [r for r in records if _policy(r) == ("segment_nested", 0)]
    words = {"memory_ratio": "of plain's memory", "growth": "growth", "flops_ratio": "of plain's FLOPs"}
    shown = []
    for key, bound in SCAN_GOAL.items():
        worst = max(r[key] for r in nested)
        shown.append(f"{worst:.3f} {words[key]} (at most {bound}: {_met(worst <= bound)})")
    return f"Goal of segment_nested, in the worst column: {', '.join(shown)}."


def policy_name(policy: str, segments_per_checkpoint: int) -> str:
    """Returns the name of a policy in a table.

    Args:
      policy: Name of the policy in `training.remat`.
      segments_per_checkpoint: Number of segments for each checkpoint. 0 where the policy has no such number.
    """
    return f"{policy}, {segments_per_checkpoint} segments per checkpoint" if segments_per_checkpoint else policy


def size_text(r: Record) -> str:
    """Returns the MiB of the temporaries of a program as a text, or the MiB that it wants where it does not fit."""
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
"""Kind of a measurement -> function that renders its table"""
