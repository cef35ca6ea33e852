"""A report about runs: what they are, and the panels of every provider that has something to say."""

from __future__ import annotations

import dataclasses
import math
import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from memjax.report.curves import compared, of_kind, run_names
from memjax.report.outcomes import describe_divergence
from memjax.report.page import LIGHT, Report, Section
from memjax.report.panel import Figure, OpenedRun, Panel, Table
from memjax.report.pictures import svg_of
from memjax.report.providers import CURVES, PROVIDERS
from memjax.settings.relations import require

__all__ = ["make_report"]

REFUSALS = (ValueError, OSError, ModuleNotFoundError, FloatingPointError)
"""what a provider that a run refuses raises, in one line"""

SETTINGS = ("num_layers", "encoder_layers", "dim", "num_heads", "widths")
"""of a model, in its line"""


def make_report(
    runs: Sequence[OpenedRun], *, only: Sequence[str] = (), say: Callable[[str], None] = lambda line: None
) -> Report:
    """Asks every provider about every run; what a run refuses becomes a line.

    Args:
      runs: one or more; the curves of several share their charts.
      only: names of providers, () = all.
      say: told what is looked at.

    Raises:
      ValueError: no run directory, or a provider that does not exist.
    """
    require(bool(runs), "runs", "none", "one run directory or more")
    for name in only:
        require(name in PROVIDERS, "--only", name, f"of {', '.join(PROVIDERS)}, several with commas")
    named = run_names(runs)
    for run in runs:
        _ = run.config  # what is no run directory is refused here
    several = len(named) > 1
    chosen = [name for name in PROVIDERS if not only or name in only]
    sections, drawn = list[Section](), dict[str, str]()
    if several and CURVES in chosen:
        say(CURVES)
        panels, left = _collect(lambda: compared(runs), CURVES)
        sections.append(Section("all", "All runs", *_unique(panels, "all", left, drawn)))
    for number, (name, run) in enumerate(named.items(), start=1):
        panels, left = list[Panel](), list[tuple[str, str]]()
        for provider in chosen:
            if several and provider == CURVES:
                continue
            say(f"{name}: {provider}" if several else provider)
            found, refused = _collect(lambda run=run, provider=provider: PROVIDERS[provider](run), provider)
            panels, left = panels + found, left + refused
        prefix = f"run{number}" if several else ""
        sections.append(Section(prefix or "panels", name if several else "", *_unique(panels, prefix, left, drawn)))
    return Report(
        title=" and ".join(named) if len(named) < 3 else f"{len(named)} runs",
        about="Written by `memjax report`: every number is of the runs below, every picture was drawn from them.",
        names=tuple(named),
        header=header_of(named),
        settings=settings_of(named),
        sections=tuple(section for section in sections if section.panels or section.left),
        drawn=drawn,
    )


def _collect(panels: Callable[[], Iterator[Panel]], provider: str) -> tuple[list[Panel], list[tuple[str, str]]]:
    """The panels of a provider, and (provider, line) where it refused."""
    found: list[Panel] = []
    try:
        found.extend(panels())
    except REFUSALS as error:
        return found, [(provider, _line(error))]
    return found, []


def _unique(
    panels: Sequence[Panel], prefix: str, left: Sequence[tuple[str, str]], drawn: dict[str, str]
) -> tuple[tuple[Panel, ...], tuple[str, ...]]:
    """The panels with names of their own, without pictures that cannot be drawn; and what is left out.

    Pictures are drawn here, into `drawn`, so that one that refuses to be drawn costs a line and no report.
    """
    reasons: dict[str, dict[str, None]] = {}
    for provider, reason in left:
        reasons.setdefault(reason, {})[provider] = None
    taken: set[str] = set()
    kept = []
    for panel in panels:
        parts = []
        for part in panel.parts:
            one = dataclasses.replace(part, name=_name(prefix, part.name, taken))
            try:
                if isinstance(one, Figure):
                    drawn[one.name] = svg_of(one, LIGHT)
            except REFUSALS as error:
                reasons.setdefault(_line(error), {})[part.title] = None
                continue
            parts.append(one)
        kept.append(dataclasses.replace(panel, name=_name(prefix, panel.name, taken), parts=tuple(parts)))
    return tuple(kept), tuple(f"{', '.join(names)}: {reason}" for reason, names in reasons.items())


def _name(prefix: str, name: str, taken: set[str]) -> str:
    """A name that no other has, of letters that a file, an anchor and an id may have."""
    plain = "_".join(filter(None, [prefix, re.sub(r"\W", "_", name, flags=re.ASCII)]))
    found, number = plain, 1
    while found in taken:
        number += 1
        found = f"{plain}_{number}"
    taken.add(found)
    return found


def _line(error: Exception) -> str:
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.filename}: {error.strerror}"
    if isinstance(error, ModuleNotFoundError):
        from memjax.doctor import extra_of

        if extra := extra_of(error.name or ""):
            return f"{error.name} is not installed, allowed: pip install 'memjax[{extra[0]}]'"
    return " ".join(str(error).split())


def header_of(named: Mapping[str, OpenedRun]) -> Table:
    """What the runs are, and what they have come to: a column each."""
    facts = {name: run_facts(run) for name, run in named.items()}
    rows = [*dict.fromkeys(fact for values in facts.values() for fact in values)]
    cells = tuple((row, *(values.get(row) for values in facts.values())) for row in rows)
    return Table("run_facts", "Runs", "", ("", *named), cells)


def settings_of(named: Mapping[str, OpenedRun]) -> Table:
    """All settings of the runs: a column each."""
    from memjax.training.runs import config_to_dict, flat_settings

    settings = {name: flat_settings(config_to_dict(run.config)) for name, run in named.items()}
    fields = [field for field in dict.fromkeys(f for values in settings.values() for f in values) if field]
    cells = tuple((field, *(_setting(values.get(field)) for values in settings.values())) for field in fields)
    return Table("settings", "All settings", "", ("field", *named), cells)


def _setting(value: Any) -> str:
    return "" if value is None else str(value)


def run_facts(run: OpenedRun) -> dict[str, Any]:
    """A run in a column: its configuration, model, memory, sizes, score, versions and command; what is not known is not
    there.
    """
    from memjax.training.runs import config_to_dict, generator_of, read_json

    config, carrier = run.config, run.config.model.carrier
    model, memory = config_to_dict(config.model), config_to_dict(carrier)
    facts: dict[str, Any] = {"config": config.name, "task": type(config.task).__name__}
    if config.lifelong is not None:
        facts["tasks"] = ", ".join(task.name for task in config.lifelong.in_order)
        facts["method"] = type(config.lifelong.method).__name__
    facts["model"] = _described(model, SETTINGS)
    same = memory["type"] == model["type"]
    own = [name for name, value in memory.items() if isinstance(value, int) and not isinstance(value, bool)]
    facts["memory"] = _described(memory, [name for name in own if name not in SETTINGS] if same else own)
    for part in ("feed_forward", "output", "memory_tokens"):
        if isinstance(model.get(part), Mapping):
            facts[part.replace("_", " ")] = _described(model[part], [*model[part]][:5])
    evaluations = [line for line in of_kind(run.lines, "evaluation") if not line.get("name")]
    results = dict(run.finished["results"]) if run.finished else {}
    last = evaluations[-1] if evaluations else {}
    score = results.get("evaluation", last)
    facts["parameters"] = results.get("parameters") or _saved_parameters(run)
    facts["state bytes of a row"] = results.get("memory_bytes", last.get("memory_bytes"))
    facts["steps"] = run.finished["step"] if run.finished else max((line["step"] for line in run.lines), default=None)
    facts["finished"] = "yes" if run.finished else "no: what stands here is of what there is"
    facts["diverged"] = describe_divergence(results) or None
    from memjax.tasks import task_of

    for measure in (*task_of(config).headline, "nats_per_token"):
        if isinstance(score.get(measure), int | float):
            facts[measure.replace("_", " ")] = score[measure]
    path = run.directory
    versions = read_json(path / "versions.json") or [{}]
    newest = versions[-1] if isinstance(versions, list) else {}
    shown = ("python", "memjax", "jax", "flax", "numpy", "backend", "devices")
    facts["versions"] = ", ".join(f"{name} {newest[name]}" for name in shown if name in newest) or None
    facts["random numbers"] = generator_of(path) or None
    command = path / "command.txt"
    if command.exists():
        program, *rest = shlex.split(command.read_text(encoding="utf-8").strip().splitlines()[-1])
        facts["command"] = shlex.join([Path(program).name, *rest])
    return {name: value for name, value in facts.items() if value is not None}


def _described(part: Mapping[str, Any], fields: Sequence[str]) -> str:
    """A part of a configuration in a line.

    Example:
      >>> _described({"type": "TransformerXL", "memory_length": 128, "norm": None}, ["memory_length", "norm"])
      'TransformerXL: memory length 128'
    """
    plain = [name for name in fields if part.get(name) is not None and not isinstance(part[name], Mapping)]
    told = ", ".join(f"{name.replace('_', ' ')} {_setting(part[name])}" for name in plain if name != "type")
    return f"{part['type']}: {told}" if told else str(part["type"])


def _saved_parameters(run: OpenedRun) -> int | None:
    """Parameters of the newest checkpoint, None where there is none."""
    from memjax.training.restoring import saved_shapes

    if not (run.directory / "checkpoints").exists():
        return None
    shapes = [shape.shape for name, shape in saved_shapes(run.path).items() if name.startswith("params/")]
    return sum(map(math.prod, shapes)) or None
