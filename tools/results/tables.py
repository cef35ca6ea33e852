"""Renders Markdown tables of recipes and of measurements on trained models, by pure functions of recorded numbers."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tools.recipes import Recipe
from tools.results.ledger import Measurement, Run, apart, command_of_today
from tools.results.speed_tables import grid

SPLITS = ("validation", "test")
"""Splits whose perplexities a table has, in the order of its columns"""
USAGE = ("usage", "top_usage", "count_divergence", "weight_divergence")
"""Measures of the use of a table of values, see `memjax.inspection.slot_usage.SlotCounts`"""
LABELS = {"bleu": "BLEU", "bleu_of_words": "BLEU of words"}
LABELS |= {"f1": "F1", "rouge_1": "ROUGE-1", "rouge_l": "ROUGE-L", "meteor": "METEOR"}
"""Measure -> its name in tables, for measures whose field name is not readable as it is"""

Curves = Mapping[tuple[str, str, int], Sequence[Mapping[str, Any]]]
"""Key of a run -> the lines that it logged"""


def numbers(run: Run, recipe: Recipe | None = None) -> dict[str, float]:
    """Returns the numbers of a run that a table shows, by name. They are read off its results and evaluations."""
    measures, final = (recipe.measures, recipe.final) if recipe else ((), "")
    results, shown = run.results, {}
    last = results["evaluation"]
    scores = {label: score for label, score in run.evaluations.items() if "targets" in score or "perplexity" in score}
    scores = scores or {label: s for label, s in run.evaluations.items() if "nats_per_token" in s}
    if recipe:  # in the order of the recipe
        scores = {label: scores[label] for label in (*recipe.evaluations, *scores) if label in scores}
    if final:
        scores = {final: last, **scores}
    if scores:
        for label, score in scores.items():
            for measure in measures or ("accuracy" if "accuracy" in score else "perplexity",):
                shown |= {f"{label} {_readable_name(measure)}": score[measure]} if measure in score else {}
            shown |= {f"{label} targets": score["targets"]} if "targets" in score else {}
        first = next(iter(scores.values()))
    elif measures:
        shown = {_readable_name(measure): last[measure] for measure in (*measures, "targets") if measure in last}
        first = last
    else:
        subsets = {name: score["bits_per_byte"] for name, score in last["subsets"].items() if score["bytes"]}
        shown = {_readable_name(name): last[name] for name in ("accuracy", "bits_per_byte") if name in last}
        shown |= {f"bits per byte of {_readable_name(name)}": value for name, value in subsets.items()}
        shown |= {"nats per token": last["nats_per_token"], "targets": last["targets"]}
        first = last
    shown |= {
        "parameters": results["parameters"],
        "memory bytes per row": first.get("memory_bytes", last["memory_bytes"]),
    }
    for label, evaluation in run.evaluations.items():
        shown |= evaluation.get("numbers", {})
        if label == "usage":
            shown |= slots(evaluation["tables"])
    return shown


def slots(usage_by_table: Mapping[str, Mapping[str, Any]]) -> dict[str, float]:
    """Returns measures of the use of tables of values, averaged over the tables."""
    tables, names = usage_by_table.values(), USAGE[:3] if usage_by_table else ()
    return {f"slots: {_readable_name(name)}": statistics.fmean(table[name] for table in tables) for name in names}


def rows(runs: Sequence[Run], recipe: Recipe | None = None) -> str:
    """Returns a table with one row for each contender: mean and range of every number over seeds."""
    by_row: dict[str, list[tuple[int, dict[str, float]]]] = {}
    for run in runs:
        by_row.setdefault(run.row, []).append((run.seed, numbers(run, recipe)))
    names = list(dict.fromkeys(name for seeds in by_row.values() for _, values in seeds for name in values))
    cells = [
        [
            row,
            ", ".join(str(seed) for seed, _ in seeds),
            *(spread([values[name] for _, values in seeds if name in values]) for name in names),
        ]
        for row, seeds in by_row.items()
    ]
    return grid(["row", "seeds", *names], cells)


def origins(runs: Sequence[Run]) -> str:
    """Returns a table with the command, commit and hardware of every run, and the CPU seconds where they are known."""
    command = lambda run: command_of_today(run.command, run.config, run.variant)
    cells = [[run.row, run.seed, f"`{command(run)}`", run.commit, run.hardware] for run in runs]
    heads = ["row", "seed", "command", "commit", "hardware"]
    if any(run.cpu_seconds is not None for run in runs):
        heads.append("CPU s")
        for cell, run in zip(cells, runs, strict=True):
            cell.append("" if run.cpu_seconds is None else f"{run.cpu_seconds:.0f}")
    return grid(heads, cells)


def usage(runs: Sequence[Run]) -> str:
    """Returns a table of how much of each table of values the runs use. '' where no run has a table of values."""
    cells = []
    for run in runs:
        for label, evaluation in run.evaluations.items():
            for table, values in evaluation.get("tables", {}).items():
                subset = values.get("subsets", {}).get("class_1", {})
                shown = [values.get(name) for name in USAGE]
                shown += [subset.get("divergence_from_rest"), subset.get("overlap_with_rest")]
                cells.append([run.row, label, table, *("" if value is None else f"{value:.4f}" for value in shown)])
    if not cells:
        return ""
    heads = ["row", "when", "table", *map(_readable_name, USAGE), "class 1 diverges by", "overlap"]
    num_columns = len(heads) if any(line[-1] for line in cells) else len(heads) - 2
    return f"Slots in use:\n\n{grid(heads[:num_columns], [line[:num_columns] for line in cells])}"


def curve(runs: Sequence[Run], curves: Curves, measure: str) -> str:
    """Returns a table of a measure in the evaluations during training: a row for each run, a column for each step."""
    values_by_run = {}
    for run in runs:
        lines = [line for line in curves[run.key] if line["kind"] == "evaluation" and measure in line]
        values_by_run[f"{run.row}, seed {run.seed}"] = {line["step"]: line[measure] for line in lines}
    steps = sorted({step for values in values_by_run.values() for step in values})
    cells = [
        [name, *(f"{values[step]:.2f}" if step in values else "" for step in steps)]
        for name, values in values_by_run.items()
    ]
    title = _readable_name(measure).capitalize()
    return f"{title} on the way, by steps of the run itself:\n\n{grid(['row', *steps], cells)}"


def gap(runs: Sequence[Run], curves: Curves) -> str:
    """Returns a table of how far a model that gets its memory later closes the gap to one that always had it."""
    by_row = {run.row: run for run in runs}
    label, score = "validation, 60 segments", "nats_per_token"
    before, after = (by_row[row].evaluations[label][score] for row in ("local cache only", "memory from the start"))

    def scores_by_step(row: str) -> dict[int, float]:
        lines = curves[by_row[row].key]
        return {line["step"]: line[score] for line in lines if line["kind"] == "evaluation"}

    without_memory = scores_by_step("goes on without")
    cells = [[0, "", "", f"{before:.4f}"]]
    for step, nats in scores_by_step("goes on with the memory").items():
        closed = f"{100 * (before - nats) / (before - after):.0f} %"
        cells.append([step, f"{nats:.4f}", closed, f"{without_memory[step]:.4f}"])
    cells.append(["the memory from the start", f"{after:.4f}", "100 %", ""])
    return grid(["steps after those without memory", "with memory", "gap closed", "control: without"], cells)


def flops(measurement: Measurement, runs: Sequence[Run], recipe: Recipe | None) -> str:
    """Returns a table of the quality of runs beside FLOPs, size of the state and parameters, the best run first."""
    quality, cost = measurement.facts["quality"], measurement.facts["flops per token"]
    known = {f"{run.row}, seed {run.seed}": numbers(run, recipe) for run in runs}
    best_first = sorted((name for name in cost if name in known), key=lambda name: known[name][quality])
    cells = []
    for name in reversed(best_first) if "accuracy" in quality else best_first:
        values = known[name]
        state = f"{values['memory bytes per row'] / 1024:,.1f}"
        shown = [f"{values[quality]:.4f}", f"{cost[name] / 1e6:.3f}", state, f"{values['parameters']:,.0f}"]
        cells.append([name, *shown])
    return grid(["run", quality, "MFLOPs a token", "state, KiB a row", "parameters"], cells)


def regression(measurement: Measurement) -> str:
    """Returns two tables of the errors of the regression of each run: over all tokens by the number of basis functions,
    and with the run's number of functions by the updates since a token was written.
    """
    runs = measurement.facts["runs"]
    sizes = sorted({size for run in runs.values() for size in run["errors"]["sizes"]})
    ages = sorted({age for run in runs.values() for age in _select_ages(run["errors"])})
    size_cells, age_cells = [], []
    for name, run in runs.items():
        errors = run["errors"]
        accuracy = "" if run["accuracy"] is None else f"{run['accuracy']:.4f}"
        size_index = errors["sizes"].index(run["num_basis"])
        for layer_index, layer in enumerate(errors["layers"]):
            by_size = dict(zip(errors["sizes"], errors["overall"][layer_index], strict=True))
            about = [name, run["sticky"], run["num_basis"], accuracy, f"{run['perplexity']:.4f}", layer]
            size_cells.append([*about, *(f"{by_size[size]:.4f}" if size in by_size else "" for size in sizes)])
            by_age = errors["relative"][layer_index][size_index]
            age_cells.append([name, layer, *(f"{by_age[age]:.4f}" if age < len(by_age) else "" for age in ages)])
    heads = ["run", "sticky", "functions", "accuracy", "perplexity", "layer", *(f"{size:,}" for size in sizes)]
    return "\n\n".join(
        [
            "Of all tokens, by the number of basis functions of the regression:",
            grid(heads, size_cells),
            "With the functions of the run itself, by updates since a token was written:",
            grid(["run", "layer", *ages], age_cells),
        ]
    )


def _select_ages(errors: Mapping[str, Any]) -> list[int]:
    """Returns the numbers of updates since a token was written that a table shows: 0 and powers of 2."""
    last = len(errors["variance"][0]) - 1
    return [0, *(2**power for power in range(last.bit_length()) if 2**power <= last)]


def gains(measurement: Measurement) -> str:
    """Returns tables of the loss by the length of the memory and of what it retrieves by group of targets, and a list
    of the targets that gain most from a longer memory.
    """
    facts = measurement.facts
    lengths = [row["memory_length"] for row in facts["growth"]]
    growth = [[f"{row['memory_length']:,}", f"{row['nats_per_token']:.4f}"] for row in facts["growth"]]
    heads = ["targets", "number", "mean gain in nats", "target came after a retrieved token", "weight of such"]
    groups = []
    for name, row in facts["groups"].items():
        cells = [f"{row[field]:.3f}" for field in ("gain", "retrieved", "weight", "identifiers_seen_before")]
        groups.append([name, f"{row['targets']:,}", *cells])
    lines = []
    for example in facts["examples"]:
        before, after = example["probabilities"]
        text = f"{_on_one_line(example['before'], 44)} | {_on_one_line(example['token'])}"
        lines.append(f"{text}   ({before:.4f} -> {after:.4f})")
        for place in example["retrieved"]:
            text = f"{_on_one_line(place['before'], 30)} | {_on_one_line(place['token'])}"
            lines.append(f"    {place['weight']:.2f}  {place['tokens_ago']:>4} tokens ago   {text}")
    return "\n\n".join(
        [
            grid(["memory", "nats per token"], growth),
            f"What the {lengths[-1]:,} slots retrieve, by target:",
            grid([*heads, "identifiers"], groups),
            f"The targets that gain most from {lengths[0]:,} to {lengths[-1]:,} slots, each with what its heads "
            "weighted most:",
            "\n".join(["```text", *lines, "```"]),
        ]
    )


def _on_one_line(text: str, width: int = 0) -> str:
    """Returns a text on one line, without backquotes, and cut or filled on the left to `width` characters.

    Width 0 leaves the length as it is.
    """
    text = text.replace("\n", "\\n").replace("`", "'")
    return f"{text[-width:]:>{width}}" if width else text


def knn_lm(measurement: Measurement) -> str:
    """Returns a table of the perplexities of the model alone and with the store, by the number of neighbours."""
    base, cells = measurement.facts["base"], []
    cells.append(["base model", "", "", "", *(perplexity(base[split]) for split in SPLITS)])
    for row in measurement.facts["knn_lm"]:
        shown = ["+ kNN-LM", row["neighbors"], row["weight"], f"{row['temperature']:g}"]
        cells.append([*shown, *(perplexity(row[split]) for split in SPLITS)])
    heads = ["system", "neighbours", "weight", "temperature", "validation perplexity", "test perplexity"]
    return grid(heads, cells)


def _make_store_table(
    columns: Sequence[str], base_cells: Sequence[Any], label_cells: Callable[[Mapping[str, Any]], Sequence[Any]]
) -> Callable[[Measurement], str]:
    """Returns a function that renders a table of kNN-LM: the model alone, and every row of the measurement with its
    tuned weight and temperature and its perplexities.

    Args:
      columns: Heads of the first columns, which label a row.
      base_cells: Cells of these columns in the row of the model alone.
      label_cells: Function `label_cells(row) -> cells` that returns the cells of these columns in any other row.
    """

    def table(measurement: Measurement) -> str:
        before, show = measurement.facts["base"], lambda nats: [perplexity(nats[split]) for split in SPLITS]
        cells = [[*base_cells, "", "", *show(before), ""]]
        for row in measurement.facts["rows"]:
            setting = [row["weight"], f"{row['temperature']:g}"]
            cells.append([*label_cells(row), *setting, *show(row), change(row["test"], before["test"])])
        return grid([*columns, "weight", "temperature", "validation", "test", "change"], cells)

    return table


def domain(measurement: Measurement) -> str:
    """Returns a table of the perplexity of every text with every store, over all targets and without unknown ones."""
    cells = []
    for row in measurement.facts["rows"]:
        if row["store"] == "Wikipedia":
            nats = [perplexity(row["base"][split]) for split in SPLITS]
            cells.append([row["texts"], "none", "", "", *nats, "", perplexity(row["base_known"]["test"]), ""])
        shown = [row["texts"], row["store"], row["weight"], f"{row['temperature']:g}"]
        shown += [*(perplexity(row[split]) for split in SPLITS), change(row["test"], row["base"]["test"])]
        known, before = row["known"]["test"], row["base_known"]["test"]
        cells.append([*shown, perplexity(known), change(known, before)])
    heads = ["text", "store", "weight", "temperature", "validation", "test", "change", "test without `<unk>`", "change"]
    return grid(heads, cells)


SYSTEMS = {
    "no_memory": "Transformer, no memory",
    "transformer_xl": "Transformer-XL",
    "transformer_xl_knn_lm": "Transformer-XL + kNN-LM",
    "compressive": "Compressive Transformer",
    "compressive_knn_lm": "Compressive Transformer + kNN-LM",
    "spalm": "SPALM",
    "spalm_knn_lm": "SPALM + kNN-LM",
}
"""System that is compared with SPALM -> its name in tables"""


def spalm(measurement: Measurement) -> str:
    """Returns a table of the perplexities of `SYSTEMS`, and one of the distribution of the gate of SPALM."""
    facts = measurement.facts
    before, cells = facts["rows"]["transformer_xl"]["test"], []
    for name, label in SYSTEMS.items():
        row = facts["rows"][name]
        setting = [f"{row[field]:g}" if field in row else "" for field in ("weight", "temperature")]
        nats = [perplexity(row[split]) for split in SPLITS]
        cells.append([label, f"{row['parameters']:,}", *setting, *nats, change(row["test"], before)])
    bins = [
        [f"up to {end}", *(f"{shares[end]:.3f}" for shares in facts["gate"].values())]
        for end in facts["gate"]["validation"]
    ]
    means = ["mean", *(f"{mean:.3f}" for mean in facts["mean_gate"].values())]
    heads = ["system", "parameters", "kNN weight", "temperature", "validation", "test", "change on test"]
    return f"{grid(heads, cells)}\n\n{grid(['gate of SPALM', *facts['gate']], [*bins, means])}"


def neighbor_hits(measurement: Measurement) -> str:
    """Returns a table of how often a token is among its neighbours by split, and one of kNN-LM with the same store."""
    facts, cells = measurement.facts, []
    for row in facts["rows"]:
        shares = {split: row["target_among"][split] for split in ("train", "validation")}
        about = [row["trained_on"], *("yes" if row[name] else "no" for name in ("learned", "own_article"))]
        shown = [f"{100 * shares[split][-1]:.1f} %" for split in shares]
        all_points, nearest_points = (100 * (shares["train"][i] - shares["validation"][i]) for i in (-1, 0))
        cells.append([*about, *shown, f"{all_points:+.1f}", f"{nearest_points:+.1f}"])
    heads = ["keys and store of", "model has learned the token", "own article in the store", "training", "validation"]
    heads += ["training over validation, points", "of the nearest alone"]
    base, knn = facts["base"], facts["knn_lm"]
    mixed = ["+ kNN-LM", knn["weight"], f"{knn['temperature']:g}", *(perplexity(knn[split]) for split in SPLITS)]
    alone = ["model of all articles", "", "", *(perplexity(base[split]) for split in SPLITS), ""]
    systems = [alone, [*mixed, change(knn["test"], base["test"])]]
    titles = ["system", "weight", "temperature", *(f"{split} perplexity" for split in SPLITS), "change on test"]
    return f"{grid(heads, cells)}\n\n{grid(titles, systems)}"


def both(measurement: Measurement) -> str:
    """Returns a table of the perplexities of the model alone, with a continuous cache, with a store, and with both."""
    labels = {"base": "base model", "cache": "+ continuous cache", "knn_lm": "+ kNN-LM", "both": "+ both"}
    facts, cells = measurement.facts["rows"], []
    for name, label in labels.items():
        row = facts[name]
        temperature = f"{row['temperature']:g}" if "temperature" in row else ""
        nats = [perplexity(row[split]) for split in SPLITS]
        shown = [label, row.get("cache_weight", ""), row.get("weight", ""), temperature]
        cells.append([*shown, *nats, change(row["test"], facts["base"]["test"])])
    heads = ["system", "cache weight", "kNN weight", "temperature", "validation", "test", "change on test"]
    return grid(heads, cells)


def memorization(measurement: Measurement) -> str:
    """Returns a table of the perplexities of the model alone, with a model that has learnt the training split by
    heart, and with the store.
    """
    facts, cells = measurement.facts["rows"], []
    for name, row in facts.items():
        nats = [perplexity(row[split]) for split in SPLITS]
        cells.append([name, row.get("weight", ""), *nats, change(row["test"], facts["base model"]["test"])])
    return grid(["system", "weight", "validation", "test", "change"], cells)


def continuous_cache(measurement: Measurement) -> str:
    """Returns a table of the perplexity of every setting of a continuous cache that was tried."""
    cells = [
        [r["split"], r["scale"], r["interpolation_weight"], f"{r['perplexity']:.2f}", f"{r['targets']:,}"]
        for r in apart(measurement.facts)
    ]
    return grid(["split", "scale", "weight", "perplexity", "targets"], cells)


def records(measurement: Measurement) -> str:
    """Returns a table with a row for each record, and a column for each field of any record that is not a dict."""
    rows = apart(measurement.facts)
    names = list(dict.fromkeys(name for row in rows for name, value in row.items() if not isinstance(value, dict)))
    names.sort(key=lambda name: not isinstance(rows[0].get(name), str))  # Text, which names the row, comes first.
    show = lambda value: f"{value:,.4g}" if isinstance(value, float) and abs(value) < 1000 else f"{value:,}"
    cell = lambda value: value if isinstance(value, str) else show(value)
    return grid(
        [name.replace("_", " ") for name in names], [[cell(row.get(name, "")) for name in names] for row in rows]
    )


def perplexity(nats: float) -> str:
    """Returns the perplexity of a loss in nats per token, as a cell of a table."""
    return f"{math.exp(nats):.2f}"


def change(nats: float, before: float) -> str:
    """Returns the change of the perplexity in percent, as a cell of a table. Both losses are in nats per token."""
    return f"{100 * math.expm1(nats - before):+.1f} %"


def spread(values: Sequence[float]) -> str:
    """Returns mean and range of some values, as a cell of a table. '' for no values. Equal values have no range."""
    if not values:
        return ""
    mean = statistics.fmean(values)
    shown = f"{mean:.4f}" if abs(mean) < 1000 else f"{mean:,.0f}"
    if len(values) == 1 or max(values) == min(values):
        return shown
    return f"{shown} ({min(values):.4f} to {max(values):.4f})"


def _readable_name(name: str) -> str:
    """Returns the name of a measure in words. A way of decoding, `nucleus` or `greedy`, comes last."""
    way, _, measure = name.partition("_")
    if way in ("nucleus", "greedy"):
        return f"{LABELS.get(measure, measure)}, {way}"
    return LABELS.get(name, name.replace("_", " "))


_show_entries = lambda row: f"{row['entries']:,}"
TABLES: dict[str, Callable[[Measurement], str]] = {
    **dict.fromkeys(("llm_memories", "llm_windows", "llm_speed", "llm_recall", "adapter_states"), records),
    "knn_lm": knn_lm,
    "store_size": _make_store_table(
        ["store", "entries"],
        ["none", 0],
        lambda row: ["all" if row["part"] == 1 else f"1/{row['part']}", _show_entries(row)],
    ),
    "larger_store": _make_store_table(
        ["store", "entries"], ["none", 0], lambda row: [row["store"], _show_entries(row)]
    ),
    "distances": _make_store_table(
        ["distances", "found"],
        ["base model", ""],
        lambda row: [row["label"], "" if row["found"] is None else f"{row['found']:.3f}"],
    ),
    "key_positions": _make_store_table(["key"], ["none"], lambda row: [f"{row['label']} (`{row['key']}`)"]),
    "domain": domain,
    "spalm": spalm,
    "neighbor_hits": neighbor_hits,
    "both": both,
    "memorization": memorization,
    "continuous_cache": continuous_cache,
    "gains": gains,
    "regression": regression,
}
"""Kind of a measurement -> function that renders its table"""
