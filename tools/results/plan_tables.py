"""Renders tables of training steps and other programs that were compiled for TPUs without a TPU."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from memjax.planning.mesh_report import search_table
from memjax.planning.report import comparison, explain
from tools.results.ledger import Measurement, apart, command_of_today
from tools.results.speed_tables import Record, grid, versions_text

PLANNED = ("topology", "chips", "mesh", "arguments", "temporaries", "peak", "total GiB", "limit GiB", "TFLOPs/step")
ESTIMATED = ("step ms", "bound by", "MFU")


def plans(measurements: Sequence[Measurement]) -> str:
    """Returns a table with one row for each compiled step, and further parts.

    They are advice for the steps that do not fit, the assumptions of the estimates, and the command of each plan.
    """
    facts = [plan for measurement in measurements for plan in apart(measurement.facts)]
    header, cells = comparison(facts)
    shown = [header.index(name) for name in (*PLANNED, *ESTIMATED)]
    heads = ["parameters", "memory", "rows", "rematerialize", *PLANNED, *[f"{name}, estimate" for name in ESTIMATED]]
    rows = []
    for plan, row in zip(facts, cells, strict=True):
        memory = int(plan["value"].rpartition(" = ")[2])
        trained = plan.get("trained", plan["parameters"])
        size = f"{plan['parameters'] / 1e6:,.0f} M" + f", {trained / 1e6:,.0f} M trained" * (
            trained < plan["parameters"]
        )
        settings = [size, f"{memory:,}", plan["rows"], plan["rematerialize"]]
        rows.append([*settings, *(row[i] for i in shown)])
    parts = [
        "What the TPU compiler says of one training step, without a TPU. Memory in GiB per device, which is a chip; "
        "TFLOPs of all devices together.",
        grid(heads, rows),
    ]
    for plan in facts:
        if not plan["fits"]:
            first, *rest = explain(plan, name=True)
            parts += [first, "\n".join(f"    {command_of_today(line.strip())}" for line in rest)]
    parts += ["Estimates are no measurements:"]
    parts += ["\n".join(f"- {text}." for text in dict.fromkeys(plan["assumptions"] for plan in facts))]
    origins = [
        [
            f"`{command_of_today(measurement.command)}`",
            measurement.facts["date"],
            versions_text(measurement.facts["versions"]),
        ]
        for measurement in measurements
    ]
    return "\n\n".join([*parts, grid(["command", "date", "compiled by"], origins)])


def plan_cells(records: Sequence[Record]) -> list[list[str]]:
    """Returns the cells of a shorter table of compiled steps, with one row for each step."""
    rows = []
    for record in records:
        policy = f", `{record['rematerialize']}`" if record["rematerialize"] != "none" else ""
        size = record["parameters"] / 1e6
        memory = [record["memory"][name] / 2**30 for name in ("arguments", "temporaries", "total")]
        estimate = record.get("estimate") if record["fits"] else None
        shown = (
            f"{1e3 * estimate['step']:.0f} ms, MFU {100 * estimate['utilization']:.0f}%" if estimate else "does not fit"
        )
        rows.append(
            [
                f"{size:.0f} M{policy}" if size < 1000 else f"{size / 1e3:.1f} B{policy}",
                f"{int(record['value'].rpartition(' = ')[2]):,}",
                *(f"{record['topology']} ({record['chips']} chips)", str(record["rows"])),
                ", ".join(f"{part:.1f}" for part in memory),
                *(f"{record['limit'] / 2**30:.1f}", shown),
            ]
        )
    return rows


def learner_plans(measurement: Measurement) -> str:
    """Returns a table with one row for each compiled program of a learner."""
    heads = ["slice", "program", "GiB of a device", "limit", "TFLOPs", "estimate, ms", "copies at once, at most"]
    rows = []
    records = apart(measurement.facts)
    grows = any(record.get("generation") for record in records)
    if grows:
        heads[1:1] = ["model for", "parameters"]
    for record in records:
        estimate, copies = record.get("estimate"), record.get("copies") or {}
        generation = [record["generation"], f"{record['parameters']:,}"] if grows else []
        rows.append(
            [
                *(f"{record['topology']} ({record['chips']} chips)", *generation, record["program"]),
                f"{record['memory']['total'] / 2**30:.2f}" + ("" if record["fits"] else ", does not fit"),
                *(f"{record['limit'] / 2**30:.1f}", f"{record['flops'] / 1e12:,.1f}"),
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


def attention_programs(measurement: Measurement) -> str:
    """Returns a table with one row for each program of attention and chip.

    One of its columns is the HBM traffic as a multiple of the traffic of the reference program.
    """
    records = apart(measurement.facts)
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


def searched_plan(measurement: Measurement) -> str:
    """Returns a table of the candidates that a search of meshes has compiled, the fastest first."""
    about = (
        "Candidates of a search of the mesh, the rows and the rematerialisation, compiled for a slice that is not "
        f"there, and not run. Estimates, as above. Compiled by {versions_text(measurement.facts['versions'])}."
    )
    return f"{about}\n\n{grid(*search_table(apart(measurement.facts)))}"


TABLES: dict[str, Callable[[Measurement], str]] = {
    "learner_plan": learner_plans,
    "searched_plan": searched_plan,
    "attention_programs": attention_programs,
}
"""Kind of a measurement -> function that renders its table"""
