"""Builds a report about runs from their facts, their settings and the panels of all providers."""

from __future__ import annotations

import dataclasses
import math
import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from memjax.report.comparison import split_finished
from memjax.report.contender_panels import contender_panels, contenders_table
from memjax.report.contenders import group_runs
from memjax.report.curves import compare_runs_panel, run_names, select_kind
from memjax.report.outcomes import describe_divergence
from memjax.report.page import LIGHT, Report, Section
from memjax.report.panel import Figure, OpenedRun, Panel, Table
from memjax.report.pictures import figure_to_svg
from memjax.report.providers import CURVES, PROVIDERS
from memjax.settings.checks import require

REFUSALS = (ValueError, OSError, ModuleNotFoundError, FloatingPointError)
"""Errors of a provider that become one line of the report and do not end it."""

SETTINGS = ("num_layers", "encoder_layers", "dim", "num_heads", "widths")
"""Settings of a model that the line about the model lists."""


def make_report(
    runs: Sequence[OpenedRun],
    *,
    only: Sequence[str] = (),
    over: Sequence[str] = (),
    say: Callable[[str], None] = lambda line: None,
) -> Report:
    """Makes a `Report`, not yet a page, with the panels of every provider about every run. `only` has the names of the
    providers to use, and `say` is called with lines of progress.

    If a provider fails for a run, the reason becomes a line of the report. Pictures are drawn here already.

    Args:
      runs: One or more opened runs. The training curves of several runs share their charts.
      only: Names of the providers to use. () for all.
      over: Fields of the configuration over which is averaged, such as "training.seed". The report then shows the means
        of all finished runs that differ only in these fields, and no single runs. () for single runs.
      say: Called with a line of progress before each provider starts.

    Raises:
      ValueError: There is no run, a path is no run directory, or a provider does not exist.
    """
    require(bool(runs), "runs", "none", "one run directory or more")
    for name in only:
        require(name in PROVIDERS, "--only", name, f"of {', '.join(PROVIDERS)}, several with commas")
    runs_by_name = run_names(runs)
    for run in runs:
        _ = run.config  # raises if the path is no run directory
    if over:
        return _make_report_of_means(runs, over)
    several = len(runs_by_name) > 1
    providers = [name for name in PROVIDERS if not only or name in only]
    sections, pictures = list[Section](), dict[str, str]()
    if several and CURVES in providers:
        say(CURVES)
        panels, left = _collect(lambda: compare_runs_panel(runs), CURVES)
        sections.append(Section("all", "All runs", *_with_unique_names(panels, "all", left, pictures)))
    for number, (name, run) in enumerate(runs_by_name.items(), start=1):
        panels, left = list[Panel](), list[tuple[str, str]]()
        for provider in providers:
            if several and provider == CURVES:
                continue
            say(f"{name}: {provider}" if several else provider)
            new_panels, reasons = _collect(lambda run=run, provider=provider: PROVIDERS[provider](run), provider)
            panels, left = panels + new_panels, left + reasons
        prefix = f"run{number}" if several else ""
        sections.append(
            Section(prefix or "panels", name if several else "", *_with_unique_names(panels, prefix, left, pictures))
        )
    return Report(
        title=" and ".join(runs_by_name) if len(runs_by_name) < 3 else f"{len(runs_by_name)} runs",
        about="Written by `memjax report`. All numbers and pictures come from the run directories listed below.",
        names=tuple(runs_by_name),
        header=_make_facts_table(runs_by_name),
        settings=_make_settings_table(runs_by_name),
        sections=tuple(section for section in sections if section.panels or section.left),
        pictures=pictures,
    )


def _make_report_of_means(runs: Sequence[OpenedRun], over: Sequence[str]) -> Report:
    """Makes the report about the means of finished runs that differ only in the fields `over`.

    Raises:
      ValueError: No run is finished, or a field is in no configuration.
    """
    finished, left_out = split_finished(run.files for run in runs)
    require(bool(finished), "runs", next(iter(left_out.values()), "none"), "finished runs")
    contenders, pictures = group_runs(finished.values(), over), dict[str, str]()
    panels, left = _collect(lambda: contender_panels(contenders, over), CURVES)
    shown, reasons = _with_unique_names(panels, "", left, pictures)
    first = {contender.label: OpenedRun(contender.first.path, record=contender.first) for contender in contenders}
    return Report(
        title=f"{len(finished)} runs",
        about=f"Written by `memjax report`, as means over {', '.join(over)}. The settings are those of the first run.",
        names=tuple(first),
        header=contenders_table(contenders),
        settings=_make_settings_table(first),
        sections=(Section("all", "", shown, (*reasons, *left_out.values())),),
        pictures=pictures,
    )


def _collect(panels: Callable[[], Iterator[Panel]], provider: str) -> tuple[list[Panel], list[tuple[str, str]]]:
    """Collects the panels of a provider. If it fails, (provider, reason) stands in the second list."""
    collected: list[Panel] = []
    try:
        collected.extend(panels())
    except REFUSALS as error:
        return collected, [(provider, _describe_error(error))]
    return collected, []


def _with_unique_names(
    panels: Sequence[Panel], prefix: str, left: Sequence[tuple[str, str]], pictures: dict[str, str]
) -> tuple[tuple[Panel, ...], tuple[str, ...]]:
    """Makes the names of panels and their items unique, draws their pictures, and lists what is left out.

    Pictures are stored in `pictures`. A picture that cannot be drawn is left out with a line that says why.
    """
    reasons: dict[str, dict[str, None]] = {}
    for provider, reason in left:
        reasons.setdefault(reason, {})[provider] = None
    taken: set[str] = set()
    unique_panels = []
    for panel in panels:
        parts = []
        for part in panel.items:
            item = dataclasses.replace(part, name=_unique_name(prefix, part.name, taken))
            try:
                if isinstance(item, Figure):
                    pictures[item.name] = figure_to_svg(item, LIGHT)
            except REFUSALS as error:
                reasons.setdefault(_describe_error(error), {})[part.title] = None
                continue
            parts.append(item)
        unique_panels.append(
            dataclasses.replace(panel, name=_unique_name(prefix, panel.name, taken), items=tuple(parts))
        )
    return tuple(unique_panels), tuple(f"{', '.join(names)}: {reason}" for reason, names in reasons.items())


def _unique_name(prefix: str, name: str, taken: set[str]) -> str:
    """Makes a name that is not yet in `taken`, of letters that file names, anchors and ids may have."""
    plain = "_".join(filter(None, [prefix, re.sub(r"\W", "_", name, flags=re.ASCII)]))
    unique, number = plain, 1
    while unique in taken:
        number += 1
        unique = f"{plain}_{number}"
    taken.add(unique)
    return unique


def _describe_error(error: Exception) -> str:
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.filename}: {error.strerror}"
    if isinstance(error, ModuleNotFoundError):
        from memjax.settings.extras import extra_of

        if extra := extra_of(error.name or ""):
            return f"{error.name} is not installed, allowed: pip install 'memjax[{extra[0]}]'"
    return " ".join(str(error).split())


def _make_facts_table(named: Mapping[str, OpenedRun]) -> Table:
    """Makes the table of facts and scores at the top of a report, with one column for each run.

    Args:
      named: Name of a run in the report -> the opened run.
    """
    facts = {name: collect_run_facts(run) for name, run in named.items()}
    rows = [*dict.fromkeys(fact for values in facts.values() for fact in values)]
    cells = tuple((row, *(values.get(row) for values in facts.values())) for row in rows)
    return Table("run_facts", "Runs", "", ("", *named), cells)


def _make_settings_table(named: Mapping[str, OpenedRun]) -> Table:
    """Makes the table of all settings, with one column for each run.

    Args:
      named: Name of a run in the report -> the opened run.
    """
    from memjax.training.runs import config_to_dict, flat_settings

    settings = {name: flat_settings(config_to_dict(run.config)) for name, run in named.items()}
    fields = [field for field in dict.fromkeys(f for values in settings.values() for f in values) if field]
    cells = tuple((field, *(_format_setting(values.get(field)) for values in settings.values())) for field in fields)
    return Table("settings", "All settings", "", ("field", *named), cells)


def _format_setting(value: Any) -> str:
    return "" if value is None else str(value)


def collect_run_facts(run: OpenedRun) -> dict[str, Any]:
    """Returns the facts at the top of a report about a run, name -> text or number: configuration, model, memory,
    sizes, scores, versions and command.

    Facts that are not known are missing, and so are parts of the model that have their usual kind. The table of all
    settings has those.
    """
    from memjax.training.run_versions import describe_generator, generator_of, read_attempts
    from memjax.training.runs import config_to_dict

    config, memory_facts = run.config, run.config.model.memory_facts
    model, memory = config_to_dict(config.model), config_to_dict(memory_facts)
    facts: dict[str, Any] = {"config": config.name, "task": type(config.task).__name__}
    if config.lifelong is not None:
        facts["tasks"] = ", ".join(task.name for task in config.lifelong.ordered_tasks)
        facts["method"] = type(config.lifelong.method).__name__
    facts["model"] = _describe_settings(model, SETTINGS)
    same = memory["type"] == model["type"]
    int_fields = [name for name, value in memory.items() if isinstance(value, int) and not isinstance(value, bool)]
    memory_fields = [name for name in int_fields if name not in SETTINGS] if same else int_fields
    if not same or memory_facts.memory_length is not None:
        facts["memory"] = _describe_settings(memory, memory_fields)
    usual = config_to_dict(type(config.model)())
    for part in ("feed_forward", "output", "memory_tokens"):
        if isinstance(model.get(part), Mapping) and model[part]["type"] != (usual.get(part) or {}).get("type"):
            facts[part.replace("_", " ")] = _describe_settings(model[part], [*model[part]][:5])
    evaluations = [line for line in select_kind(run.log_lines, "evaluation") if not line.get("name")]
    results = dict(run.finished["results"]) if run.finished else {}
    last = evaluations[-1] if evaluations else {}
    score = results.get("evaluation", last)
    facts["parameters"] = results.get("parameters") or _saved_parameters(run)
    facts["memory state bytes per row"] = results.get("memory_bytes", last.get("memory_bytes")) or None
    facts["steps"] = (
        run.finished["step"] if run.finished else max((line["step"] for line in run.log_lines), default=None)
    )
    facts["finished"] = "yes" if run.finished else "no: this page shows what has been logged so far"
    facts["diverged"] = describe_divergence(results) or None
    from memjax.tasks import make_task

    for measure in (*make_task(config).main_metrics, "nats_per_token"):
        if isinstance(score.get(measure), int | float):
            facts[measure.replace("_", " ")] = score[measure]
    path = run.directory
    newest = (read_attempts(path) or [{}])[-1]
    shown = ("python", "memjax", "jax", "devices")
    facts["versions"] = ", ".join(f"{name} {newest[name]}" for name in shown if name in newest) or None
    if describe_generator(path):  # those of here are no fact of the run
        facts["random numbers"] = generator_of(path)
    if "command" in newest:
        program, *rest = shlex.split(newest["command"])
        facts["command"] = shlex.join([Path(program).name, *rest])
    return {name: value for name, value in facts.items() if value is not None}


def _describe_settings(part: Mapping[str, Any], fields: Sequence[str]) -> str:
    """Describes a part of a configuration in one line: its type and some of its settings, without those that are 0 or
    empty and so turn something off.

    Example:
      >>> _describe_settings({"type": "TransformerXL", "memory_length": 128, "norm": None}, ["memory_length", "norm"])
      'TransformerXL: memory length 128'
    """
    plain = [name for name in fields if part.get(name) and not isinstance(part[name], Mapping)]
    listed = ", ".join(f"{name.replace('_', ' ')} {_format_setting(part[name])}" for name in plain if name != "type")
    return f"{part['type']}: {listed}" if listed else str(part["type"])


def _saved_parameters(run: OpenedRun) -> int | None:
    """Counts the parameters of the newest checkpoint. None without a checkpoint."""
    from memjax.training.loaded_runs import saved_shapes

    if not (run.directory / "checkpoints").exists():
        return None
    shapes = [shape.shape for name, shape in saved_shapes(run.path).items() if name.startswith("params/")]
    return sum(map(math.prod, shapes)) or None
