"""Output of `memjax plan --mesh auto`: a table of the compiled candidates, and what bounds the best one."""

import dataclasses
import datetime
import json
import shlex
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from memjax.config import Config
from memjax.planning.advice import bytes_needed
from memjax.planning.mesh_candidates import Candidate, candidate_options, describe
from memjax.planning.mesh_search import CompiledCandidate, correct, predict, read_sizes
from memjax.planning.report import print_table
from memjax.planning.topologies import GIB, Topology

COLUMNS = ("mesh", "rows", "tokens a chip", "remat", "total GiB", "limit GiB", "step ms", "tokens/s", "bound by", "MFU")
"""Columns of the table of candidates, after their rank."""

RESOURCES = {"hbm": "HBM traffic", "ici": "traffic between chips"}
"""Bound of an estimate other than 'compute' -> its description."""


def search_table(ranked: Sequence[Mapping[str, Any]]) -> tuple[list[str], list[list[str]]]:
    """Returns the header and the rows of a table of compiled candidates, lists of strings.

    Args:
      ranked: Facts about the step of each candidate, the best first, as `memjax.planning.plan_cases.plan` returns them.
    """
    return ["", *COLUMNS], [[str(rank), *_cells(facts)] for rank, facts in enumerate(ranked, start=1)]


def _cells(facts: Mapping[str, Any]) -> list[str]:
    estimate, tokens = facts["estimate"], facts["tokens"] / facts["chips"]
    cells = ["x".join(map(str, facts["mesh"].values())), f"{facts['rows']:,}", f"{tokens:,.0f}", facts["rematerialize"]]
    cells += [f"{bytes_needed(facts) / GIB:.2f}", f"{facts['limit'] / GIB:.2f}"]
    if estimate is None:
        return [*cells, "", "", "does not fit", ""]
    speed = [f"{estimate['step'] * 1e3:,.2f}", f"{estimate['tokens_per_second']:,.0f}"]
    return [*cells, *speed, estimate["bound"], f"{estimate['utilization']:.1%}"]


def report_search(
    config: Config,
    topology: Topology,
    ranked: Sequence[CompiledCandidate],
    *,
    as_json: bool = False,
    command: str = "",
    stream: Any = None,
) -> bool:
    """Prints the compiled candidates of a search as a table with lines about the best one. Returns whether it fits.

    Args:
      config: Configuration of the search.
      topology: TPU slice.
      ranked: Compiled candidates, the best first.
      as_json: Whether to print one JSON object for each candidate instead: the facts about its step, its `rank` from 1,
        and the `options` of the command line that give it.
      command: Command line of the user, which the JSON objects repeat.
      stream: Stream to print to. None for standard output.

    Returns:
      Whether the best candidate fits.
    """
    out = sys.stdout if stream is None else stream
    best = ranked[0].facts
    if as_json:
        started = {"command": command, "date": datetime.date.today().isoformat()}
        for rank, compiled in enumerate(ranked, start=1):
            options = candidate_options(config, compiled.candidate)
            print(json.dumps({**started, "rank": rank, "options": options, **compiled.facts}), file=out, flush=True)
        return best["fits"]
    print(f"{config.name}: train on {topology.name}", file=out)
    header, rows = search_table([compiled.facts for compiled in ranked])
    print_table(header, rows, out)
    for line in describe_best(config, topology, ranked):
        print(line, file=out)
    print(f"Estimate: {best['assumptions']}.", file=out)
    return best["fits"]


def describe_best(config: Config, topology: Topology, ranked: Sequence[CompiledCandidate]) -> list[str]:
    """Returns lines of text about the best candidate: the options to type, what bounds it, and how many tokens a chip
    it has and would need to be bound by compute. If none fits, one line says so.

    Args:
      config: Configuration of the search.
      topology: TPU slice.
      ranked: Compiled candidates, the best first.
    """
    best = ranked[0]
    if not best.facts["fits"]:
        least = min(ranked, key=lambda compiled: bytes_needed(compiled.facts))
        needed, limit = bytes_needed(least.facts) / GIB, least.facts["limit"] / GIB
        smallest = f"{describe(least.candidate)} needs {needed:.2f} GiB of {limit:.2f} GiB"
        return [f"none of {len(ranked)} candidates fits: {smallest}; more --candidates, or a larger --topology"]
    estimate = best.facts["estimate"]
    times = ", ".join(f"{name} {estimate[name] * 1e3:,.2f} ms" for name in ("compute", "hbm", "ici"))
    return [
        f"Best: {shlex.join(candidate_options(config, best.candidate))}",
        f"  {estimate['tokens_per_second']:,.0f} tokens a second at most, MFU {estimate['utilization']:.1%}, bound by "
        f"{estimate['bound']}: {times}",
        f"  {describe_tokens(config, topology, best, ranked)}",
    ]


def describe_tokens(
    config: Config, topology: Topology, best: CompiledCandidate, compiled: Sequence[CompiledCandidate]
) -> str:
    """Describes how many tokens a chip reads in a step, and how many it would need to be bound by compute.

    The times of a compiled candidate with the same mesh and rematerialisation and other rows show how those of `best`
    grow with its tokens. Without one they are predicted.

    Args:
      config: Configuration of the search.
      topology: TPU slice.
      best: The candidate in question.
      compiled: All compiled candidates.
    """
    tokens, estimate = best.facts["tokens"] / topology.num_chips, best.facts["estimate"]
    start = f"{tokens:,.0f} tokens a chip and step"
    if estimate["bound"] == "compute":
        return f"{start}, enough to be bound by compute"
    others = [other for other in compiled if _differs_in_rows(best.candidate, other)]
    if others:
        other = min(others, key=lambda other: other.candidate.rows)
        more, times = other.facts["tokens"] / topology.num_chips, other.facts["estimate"]
    else:
        double = dataclasses.replace(best.candidate, rows=2 * best.candidate.rows)
        sizes = read_sizes(config, best, topology)
        prediction = correct(predict(double, sizes, topology), double, [best], sizes, topology)
        more, times = 2 * tokens, dataclasses.asdict(prediction)
    needed, reasons, compute = tokens, [], estimate["compute"] / tokens
    for name, resource in RESOURCES.items():
        fixed, growth = fit_line((tokens, estimate[name]), (more, times[name]))
        if growth >= compute:
            reasons.append(f"the {resource} of a token takes {growth / compute:.2f} times as long as its products")
        else:
            needed = max(needed, fixed / (compute - growth))
    if reasons:
        return f"{start}; no number would be bound by compute: {' and '.join(reasons)}"
    return f"{start}; about {needed:,.0f} would be bound by compute"


def _differs_in_rows(candidate: Candidate, other: CompiledCandidate) -> bool:
    """Returns whether a compiled candidate fits and is another one that has the same mesh and rematerialisation."""
    same = dataclasses.replace(other.candidate, rows=candidate.rows)
    return other.facts["fits"] and other.candidate != candidate and same == candidate


def fit_line(first: tuple[float, float], second: tuple[float, float]) -> tuple[float, float]:
    """Fits a line through two points, of which neither the height at 0 nor the slope may be negative. Returns both.

    Args:
      first: A point, through which the line goes in any case.
      second: Another point.

    Example:
      >>> fit_line((1.0, 3.0), (2.0, 5.0)), fit_line((2.0, 2.0), (3.0, 5.0)), fit_line((2.0, 2.0), (3.0, 1.0))
      ((1.0, 2.0), (0.0, 1.0), (2.0, 0.0))
    """
    (x, y), (other_x, other_y) = first, second
    slope = min(max((other_y - y) / (other_x - x), 0.0), y / x)
    return y - slope * x, slope
