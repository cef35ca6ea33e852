"""Tables of training steps that were compiled for TPUs, without one."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from memjax.planning.mesh_report import search_table
from memjax.planning.report import comparison, explain
from tools.results.ledger import Measurement, apart, command_of_today
from tools.results.speed_tables import Record, grid, versions_text

PLANNED = ("topology", "chips", "mesh", "arguments", "temporaries", "peak", "total GiB", "limit GiB", "TFLOPs/step")
ESTIMATED = ("step ms", "bound by", "MFU")


def plans(found: Sequence[Measurement]) -> str:
    """One row per compiled step, what does not fit, and what estimates assume."""
    facts = [one for measurement in found for one in apart(measurement.facts)]
    header, cells = comparison(facts)
    shown = [header.index(name) for name in (*PLANNED, *ESTIMATED)]
    heads = ["parameters", "memory", "rows", "rematerialize", *PLANNED, *[f"{name}, estimate" for name in ESTIMATED]]
    rows = []
    for one, row in zip(facts, cells, strict=True):
        memory = int(one["value"].rpartition(" = ")[2])
        trained = one.get("trained", one["parameters"])
        size = f"{one['parameters'] / 1e6:,.0f} M" + f", {trained / 1e6:,.0f} M trained" * (trained < one["parameters"])
        given = [size, f"{memory:,}", one["rows"], one["rematerialize"]]
        rows.append([*given, *(row[i] for i in shown)])
    parts = [
        "What the TPU compiler says of one training step, without a TPU. Memory in GiB per device, which is a chip; "
        "TFLOPs of all devices together.",
        grid(heads, rows),
    ]
    for one in facts:
        if not one["fits"]:
            first, *rest = explain(one, name=True)
            parts += [first, "\n".join(f"    {command_of_today(line.strip())}" for line in rest)]
    parts += ["Estimates are no measurements:"]
    parts += ["\n".join(f"- {text}." for text in dict.fromkeys(one["assumptions"] for one in facts))]
    made = [
        [f"`{command_of_today(one.command)}`", one.facts["date"], versions_text(one.facts["versions"])] for one in found
    ]
    return "\n\n".join([*parts, grid(["command", "date", "compiled by"], made)])


def plan_cells(records: Sequence[Record]) -> list[list[str]]:
    """The short form: a row per compiled step, without what the compiler says in detail."""
    rows = []
    for one in records:
        policy = f", `{one['rematerialize']}`" if one["rematerialize"] != "none" else ""
        size = one["parameters"] / 1e6
        memory = [one["memory"][name] / 2**30 for name in ("arguments", "temporaries", "total")]
        estimate = one.get("estimate") if one["fits"] else None
        shown = (
            f"{1e3 * estimate['step']:.0f} ms, MFU {100 * estimate['utilization']:.0f}%" if estimate else "does not fit"
        )
        rows.append(
            [
                f"{size:.0f} M{policy}" if size < 1000 else f"{size / 1e3:.1f} B{policy}",
                f"{int(one['value'].rpartition(' = ')[2]):,}",
                *(f"{one['topology']} ({one['chips']} chips)", str(one["rows"])),
                ", ".join(f"{part:.1f}" for part in memory),
                *(f"{one['limit'] / 2**30:.1f}", shown),
            ]
        )
    return rows


def learner_plans(found: Measurement) -> str:
    """A row per compiled program of a learner."""
    heads = ["slice", "program", "GiB of a device", "limit", "TFLOPs", "estimate, ms", "copies at once, at most"]
    rows = []
    every = apart(found.facts)
    grows = any(one.get("generation") for one in every)
    if grows:
        heads[1:1] = ["model for", "parameters"]
    for one in every:
        estimate, copies = one.get("estimate"), one.get("copies") or {}
        generation = [one["generation"], f"{one['parameters']:,}"] if grows else []
        rows.append(
            [
                *(f"{one['topology']} ({one['chips']} chips)", *generation, one["program"]),
                f"{one['memory']['total'] / 2**30:.2f}" + ("" if one["fits"] else ", does not fit"),
                *(f"{one['limit'] / 2**30:.1f}", f"{one['flops'] / 1e12:,.1f}"),
                f"{1e3 * estimate['step']:,.1f}" if estimate else "",
                f"{copies['at_once']}, {copies['widest']}" if copies else "",
            ]
        )
    about = (
        "Compiled for a slice that is not there, and not run. Every kind of update, the write into the memory, the "
        "search in it, and the scoring of test texts with parameters of their own: how many copies are adapted at once "
        "as configured, and the most that the compiler finds room for."
    )
    return f"{about}\n\n{grid(heads, rows)}"


def attention_programs(found: Measurement) -> str:
    """A row a program and chip, with the traffic as a share of the reference's."""
    records = apart(found.facts)
    reference = {(r["positions"], r["chip"]): r for r in records if r["program"] == "reference"}
    rows = []
    for r in records:
        times = r["hbm_bytes"] / reference[r["positions"], r["chip"]]["hbm_bytes"]
        rows.append(
            [
                *(r["chip"], r["positions"], r["program"], f"{r['temporary_bytes'] / 2**20:,.0f}"),
                *(
                    f"{r['hbm_bytes'] / 2**20:,.0f}",
                    f"{times:.2f}",
                    f"{r['flops'] / 1e9:,.0f}",
                    f"{r['milliseconds']:.2f}",
                ),
            ]
        )
    of_one_chip = [r for r in reference.values() if r["chip"] == records[0]["chip"]]
    described = lambda sizes: ", ".join(f"{value:,} {name.replace('_', ' ')}" for name, value in sizes.items())
    sizes = "; ".join(f"{r['positions']}: {described(r['sizes'])}" for r in of_one_chip)
    heads = ["chip", "positions", "program", "temporaries, MiB", "HBM traffic, MiB", "times the reference's"]
    return f"{sizes}.\n\n{grid([*heads, 'GFLOPs', 'estimate, ms'], rows)}"


def searched_plan(found: Measurement) -> str:
    """A row per candidate that a search of meshes has compiled, the fastest first."""
    about = (
        "Candidates of a search of the mesh, the rows and the rematerialisation, compiled for a slice that is not "
        f"there, and not run. Estimates, as above. Compiled by {versions_text(found.facts['versions'])}."
    )
    return f"{about}\n\n{grid(*search_table(apart(found.facts)))}"


TABLES: dict[str, Callable[[Measurement], str]] = {
    "learner_plan": learner_plans,
    "searched_plan": searched_plan,
    "attention_programs": attention_programs,
}
"""kind of a measurement -> its table"""
