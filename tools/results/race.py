"""Renders the top of the page about speed: commits and machines, all ratios in one table, and where the time goes.

Every sentence is made from the measurements.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tools.results.ledger import Measurement, apart
from tools.results.speed_tables import grid
from tools.results.timed_code import CONTENDERS, fingerprint, timed_with

OURS = "memjax"
"""Beginning of the names of contenders of memjax, which are compared with those of other implementations"""
MODES = {"infer": "inference", "train": "training"}
"""Mode of a benchmark of models -> its name in tables"""
PRODUCTS, IDLE = "products", "no operation"
"""Kinds of operations of a profile: products of matrices, and wall time without any operation"""
GOAL = 1.5
"""Smallest ratio by wall time that every contender of memjax should reach"""
OLDER = "Measured at an older state of the code"
ABOUT = (
    "A ratio says how many times as fast a contender of memjax is as the one beside it, by wall time with its 95 % "
    "interval, and [by CPU time]. Below 1 it is slower (bold beside another implementation). Contenders take turns in "
    "one run. They have the settings of malloc that the commands of memjax make; `default malloc` goes without. A "
    "reference has no memory."
)


def summarise(measurements: Sequence[Measurement], now: str = "") -> str:
    """Returns the text and the table of ratios above the tables of the suites.

    Args:
      measurements: Measurements of the suites.
      now: Fingerprint of the timed code as it is today. '' to compute it.
    """
    parts = [list_states(measurements, now), ABOUT]
    usual = [measurement for measurement in measurements if _modes(measurement) <= MODES.keys()]
    for group in (usual, [measurement for measurement in measurements if measurement not in usual]):
        if rows := _rows(group):
            modes = list(dict.fromkeys(r["mode"] for measurement in group for r in apart(measurement.facts)))
            heads = [MODES.get(mode, f"{mode} neighbours") for mode in modes]
            parts.append(grid(["suite", "contender", "beside", *heads], rows))
    return "\n\n".join([*parts, name_slower(measurements)])


def list_states(measurements: Sequence[Measurement], now: str = "") -> str:
    """Returns lines with the commits and machines of measurements, and which are of an older state of the timed code.

    Args:
      measurements: Measurements of the suites or profiles.
      now: Fingerprint of the timed code as it is today. '' to compute it.
    """
    places: dict[tuple[str, str], list[str]] = {}
    for measurement in measurements:
        places.setdefault((measurement.commit, measurement.hardware), []).append(measurement.name)
    lines = [f"- Commit {commit}, {hardware}: {', '.join(names)}." for (commit, hardware), names in places.items()]
    return "\n".join([*lines, *(f"- {line}" for line in name_older(measurements, now))])


def name_older(measurements: Sequence[Measurement], now: str = "") -> list[str]:
    """Returns a list with a line that names the measurements of an older state of the timed code. Empty for none.

    Args:
      measurements: Measurements that have the fingerprint of their code in the fact `timed_code`.
      now: Fingerprint of the timed code as it is today. '' to compute it.
    """
    code = lambda facts: now or fingerprint(timed=timed_with(facts.get("timed_modules", CONTENDERS)))
    names = [
        measurement.name
        for measurement in measurements
        if measurement.facts.get("timed_code") != code(measurement.facts)
    ]
    return [f"{OLDER}: {'all' if len(names) == len(measurements) else ', '.join(names)}."] if names else []


def name_slower(measurements: Sequence[Measurement]) -> str:
    """Returns a sentence that names where memjax is slower than the other implementation, by wall time."""
    cells = [
        f"{measurement.name}, {_mode(r['mode'])}, {r['contender']} {ratio:.2f}"
        for measurement, r in _raced(measurements)
        if (ratio := r["ratios"].get(measurement.facts["baseline"], {"value": 1})["value"]) < 1
    ]
    return f"Slower than the other implementation: {'; '.join(cells) or 'nowhere'}."


def tabulate_profiles(measurements: Sequence[Measurement]) -> str:
    """Returns one table of all profiles: milliseconds of a step by kind of operation."""
    records = [(measurement, r) for measurement in measurements for r in measurement.facts["records"]]
    kinds = list(dict.fromkeys(kind for _, r in records for kind in r["kinds"]))
    rows = [
        [
            *(measurement.name, _mode(r["mode"]), r["contender"], f"{r['wall_milliseconds']:.1f}"),
            *(f"{r['kinds'].get(kind, 0):.1f}" for kind in kinds),
        ]
        for measurement, r in records
    ]
    about = (
        "Where the time goes: milliseconds of a step by kind of operation, added over threads, from a trace of "
        f"{records[0][0].facts['steps']} steps. `no operation` is wall time in which no thread has any: dispatch, and "
        "work of Python. The encoder without memory is one of memjax, of the same sizes."
    )
    heads = ["suite", "mode", "contender", "wall", *kinds]
    return "\n\n".join([about, list_states(measurements), grid(heads, rows)])


def tabulate_bounds(measurements: Sequence[Measurement], profiles: Sequence[Measurement]) -> str:
    """Returns a table of the cells below the goal, with a bound of their ratio and the other operations that take most.

    The bound is the ratio if products of matrices alone took time. '' where no cell is below the goal.

    Args:
      measurements: Measurements of the suites.
      profiles: Profiles of the suites. A contender without a profile has no row.
    """
    traced = {
        (measurement.name, r["contender"], r["mode"]): r
        for measurement in profiles
        for r in measurement.facts["records"]
    }
    rows = []
    for measurement, r in _raced(measurements):
        baseline, profile = measurement.facts["baseline"], traced.get((measurement.name, r["contender"], r["mode"]))
        if profile is None or (ratio := r["ratios"][baseline]["value"]) >= GOAL:
            continue
        busy = {kind: value for kind, value in profile["kinds"].items() if kind != IDLE}
        of_products = busy[PRODUCTS] / sum(busy.values())
        wall = profile["wall_milliseconds"]
        others = sorted(
            (kind for kind in profile["kinds"] if kind != PRODUCTS), key=lambda kind: -profile["kinds"][kind]
        )
        rows.append(
            [
                *(measurement.name, _mode(r["mode"]), r["contender"], baseline, f"{ratio:.2f}"),
                f"{ratio * wall / ((wall - profile['kinds'].get(IDLE, 0.0)) * of_products):.2f}",
                ", ".join(f"{kind} {profile['kinds'][kind]:.1f}" for kind in others[:3]),
            ]
        )
    if not rows:
        return ""
    about = (
        f"Cells below {GOAL:g}. The bound is the ratio that would be left if all operations but products of matrices "
        "took no time, with products spread over threads as the trace has them. Beside it stands what takes most of "
        "the rest, in milliseconds as above."
    )
    return f"{about}\n\n{grid(['suite', 'mode', 'contender', 'beside', 'ratio', 'bound', 'the rest'], rows)}"


def compare_run(measurement: Measurement) -> str:
    """Returns a table of tokens a second: the update alone, the run after its first log line, and the whole call."""
    facts = measurement.facts
    alone = facts["tokens_per_step"] / facts["step_seconds"]
    rows = []
    for name, steps, seconds in [
        ("the step alone", 1, facts["step_seconds"]),
        ("the run after its first log line", facts["steady_steps"], facts["steady_seconds"]),
        ("the whole call, with start, compilation and evaluation", facts["steps"], facts["run_seconds"]),
    ]:
        rate = steps * facts["tokens_per_step"] / seconds
        rows.append([name, f"{steps:,}", f"{seconds:.2f}", f"{rate:,.0f}", f"{100 * rate / alone:.0f} %"])
    table = grid(["what", "steps", "seconds", "tokens/s", "of the step"], rows)
    return "\n\n".join([*name_older([measurement]), f"The first step took {facts['first_step_seconds']:.1f} s.", table])


TABLES = {"end_to_end": compare_run}
"""Kind of a measurement -> function that renders its table"""


def _rows(measurements: Sequence[Measurement]) -> list[list[str]]:
    """Returns the rows of the table of ratios: one for each suite, contender and implementation beside it."""
    modes = list(dict.fromkeys(r["mode"] for measurement in measurements for r in apart(measurement.facts)))
    rows = []
    for measurement in measurements:
        raced = [r for _, r in _raced([measurement])]
        for contender in dict.fromkeys(r["contender"] for r in raced):
            by_mode = {r["mode"]: r for r in raced if r["contender"] == contender}
            for beside in filter(None, (measurement.facts["baseline"], measurement.facts["reference"])):
                is_raced = beside == measurement.facts["baseline"]
                cells = [_cell(by_mode[mode], beside, bold=is_raced) if mode in by_mode else "" for mode in modes]
                rows.append([measurement.name, contender, beside, *cells])
    return rows


def _raced(measurements: Sequence[Measurement]) -> list[tuple[Measurement, Mapping[str, Any]]]:
    """Returns the records of contenders of memjax, each with its suite.

    Suites that compare memjax with itself have none.
    """
    return [
        (measurement, r)
        for measurement in measurements
        if not measurement.facts["baseline"].startswith(OURS)
        for r in apart(measurement.facts)
        if r["contender"].startswith(OURS)
    ]


def _cell(r: Mapping[str, Any], beside: str, *, bold: bool) -> str:
    """Returns the ratios of a record to another contender as a cell of a table. `bold` marks a ratio below 1."""
    wall, cpu = r["ratios"][beside], r["cpu_ratios"][beside]
    value = f"{wall['value']:.2f}"
    shown = f"**{value}**" if bold and wall["value"] < 1 else value
    return f"{shown} ({wall['low']:.2f}-{wall['high']:.2f}) [{cpu['value']:.2f}]"


def _modes(measurement: Measurement) -> set[str]:
    return {r["mode"] for r in apart(measurement.facts)}


def _mode(mode: str) -> str:
    return MODES.get(mode, f"{mode} neighbours")
