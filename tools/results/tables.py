"""Tables of recipes, and of what trained models say: pure functions of runs, curves and facts, in Markdown."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tools.recipes import Recipe
from tools.results.ledger import Measurement, Run, apart, command_of_today
from tools.results.speed_tables import grid

SPLITS = ("validation", "test")
USAGE = ("usage", "top_usage", "count_divergence", "weight_divergence")
"""of a table of values, see `memjax.inspection.slot_usage.SlotCounts`"""
LABELS = {"bleu": "BLEU", "bleu_of_words": "BLEU of words"}
LABELS |= {"f1": "F1", "rouge_1": "ROUGE-1", "rouge_l": "ROUGE-L", "meteor": "METEOR"}
"""measures whose names are no words"""

Curves = Mapping[tuple[str, str, int], Sequence[Mapping[str, Any]]]
"""key of a run -> what it logged"""


def numbers(run: Run, recipe: Recipe | None = None) -> dict[str, float]:
    """What a table shows of a run: name -> value, all read off its results and evaluations."""
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
                shown |= {f"{label} {_words(measure)}": score[measure]} if measure in score else {}
            shown |= {f"{label} targets": score["targets"]} if "targets" in score else {}
        first = next(iter(scores.values()))
    elif measures:
        shown = {_words(measure): last[measure] for measure in (*measures, "targets") if measure in last}
        first = last
    else:
        subsets = {name: score["bits_per_byte"] for name, score in last["subsets"].items() if score["bytes"]}
        shown = {_words(name): last[name] for name in ("accuracy", "bits_per_byte") if name in last}
        shown |= {f"bits per byte of {_words(name)}": value for name, value in subsets.items()}
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


def slots(found: Mapping[str, Mapping[str, Any]]) -> dict[str, float]:
    """How much tables of values are used, on average."""
    names = USAGE[:3] if found else ()
    return {f"slots: {_words(name)}": statistics.fmean(table[name] for table in found.values()) for name in names}


def rows(runs: Sequence[Run], recipe: Recipe | None = None) -> str:
    """One row per contender, with the mean and range over seeds."""
    found: dict[str, list[tuple[int, dict[str, float]]]] = {}
    for run in runs:
        found.setdefault(run.row, []).append((run.seed, numbers(run, recipe)))
    names = list(dict.fromkeys(name for seeds in found.values() for _, values in seeds for name in values))
    cells = [
        [
            row,
            ", ".join(str(seed) for seed, _ in seeds),
            *(spread([values[name] for _, values in seeds if name in values]) for name in names),
        ]
        for row, seeds in found.items()
    ]
    return grid(["row", "seeds", *names], cells)


def origins(runs: Sequence[Run]) -> str:
    """Where every run of a table comes from."""
    command = lambda run: command_of_today(run.command, run.config, run.variant)
    cells = [[run.row, run.seed, f"`{command(run)}`", run.commit, run.hardware] for run in runs]
    heads = ["row", "seed", "command", "commit", "hardware"]
    if any(run.cpu_seconds is not None for run in runs):
        heads.append("CPU s")
        for cell, run in zip(cells, runs, strict=True):
            cell.append("" if run.cpu_seconds is None else f"{run.cpu_seconds:.0f}")
    return grid(heads, cells)


def usage(runs: Sequence[Run]) -> str:
    """How much of each table of values the runs use; '' where none has any."""
    cells = []
    for run in runs:
        for label, found in run.evaluations.items():
            for table, values in found.get("tables", {}).items():
                last = values.get("subsets", {}).get("class_1", {})
                shown = [values.get(name) for name in USAGE]
                shown += [last.get("divergence_from_rest"), last.get("overlap_with_rest")]
                cells.append([run.row, label, table, *("" if value is None else f"{value:.4f}" for value in shown)])
    if not cells:
        return ""
    heads = ["row", "when", "table", *map(_words, USAGE), "class 1 diverges by", "overlap"]
    wanted = len(heads) if any(line[-1] for line in cells) else len(heads) - 2
    return f"Slots in use:\n\n{grid(heads[:wanted], [line[:wanted] for line in cells])}"


def curve(runs: Sequence[Run], curves: Curves, measure: str) -> str:
    """A measure of the evaluations on the way, by steps of the run itself."""
    found = {}
    for run in runs:
        lines = [line for line in curves[run.key] if line["kind"] == "evaluation" and measure in line]
        found[f"{run.row}, seed {run.seed}"] = {line["step"]: line[measure] for line in lines}
    steps = sorted({step for line in found.values() for step in line})
    cells = [[name, *(f"{line[step]:.2f}" if step in line else "" for step in steps)] for name, line in found.items()]
    return f"{_words(measure).capitalize()} on the way, by steps of the run itself:\n\n{grid(['row', *steps], cells)}"


def gap(runs: Sequence[Run], curves: Curves) -> str:
    """How much of the gap to a model with memory from the start one closes that gets it later."""
    by_row = {run.row: run for run in runs}
    label, score = "validation, 60 segments", "nats_per_token"
    before, after = (by_row[row].evaluations[label][score] for row in ("local cache only", "memory from the start"))

    def steps(row: str) -> dict[int, float]:
        lines = curves[by_row[row].key]
        return {line["step"]: line[score] for line in lines if line["kind"] == "evaluation"}

    alone = steps("goes on without")
    cells = [[0, "", "", f"{before:.4f}"]]
    for step, nats in steps("goes on with the memory").items():
        closed = f"{100 * (before - nats) / (before - after):.0f} %"
        cells.append([step, f"{nats:.4f}", closed, f"{alone[step]:.4f}"])
    cells.append(["the memory from the start", f"{after:.4f}", "100 %", ""])
    return grid(["steps after those without memory", "with memory", "gap closed", "control: without"], cells)


def flops(found: Measurement, runs: Sequence[Run], recipe: Recipe | None) -> str:
    """Quality beside what it costs, the best first."""
    quality, cost = found.facts["quality"], found.facts["flops per token"]
    known = {f"{run.row}, seed {run.seed}": numbers(run, recipe) for run in runs}
    best_first = sorted((name for name in cost if name in known), key=lambda name: known[name][quality])
    cells = []
    for name in reversed(best_first) if "accuracy" in quality else best_first:
        values = known[name]
        state = f"{values['memory bytes per row'] / 1024:,.1f}"
        shown = [f"{values[quality]:.4f}", f"{cost[name] / 1e6:.3f}", state, f"{values['parameters']:,.0f}"]
        cells.append([name, *shown])
    return grid(["run", quality, "MFLOPs a token", "state, KiB a row", "parameters"], cells)


def regression(found: Measurement) -> str:
    """The error of all tokens by number of functions, and that of the run's own number by updates."""
    runs = found.facts["runs"]
    sizes = sorted({size for one in runs.values() for size in one["errors"]["sizes"]})
    ages = sorted({age for one in runs.values() for age in _ages(one["errors"])})
    shown, after = [], []
    for name, one in runs.items():
        errors = one["errors"]
        accuracy = "" if one["accuracy"] is None else f"{one['accuracy']:.4f}"
        own = errors["sizes"].index(one["num_basis"])
        for place, layer in enumerate(errors["layers"]):
            at = dict(zip(errors["sizes"], errors["overall"][place], strict=True))
            about = [name, one["sticky"], one["num_basis"], accuracy, f"{one['perplexity']:.4f}", layer]
            shown.append([*about, *(f"{at[size]:.4f}" if size in at else "" for size in sizes)])
            by_age = errors["relative"][place][own]
            after.append([name, layer, *(f"{by_age[age]:.4f}" if age < len(by_age) else "" for age in ages)])
    heads = ["run", "sticky", "functions", "accuracy", "perplexity", "layer", *(f"{size:,}" for size in sizes)]
    return "\n\n".join(
        [
            "Of all tokens, by the number of basis functions of the regression:",
            grid(heads, shown),
            "With the functions of the run itself, by updates since a token was written:",
            grid(["run", "layer", *ages], after),
        ]
    )


def _ages(errors: Mapping[str, Any]) -> list[int]:
    """Updates that a table shows: 0, and powers of 2."""
    last = len(errors["variance"][0]) - 1
    return [0, *(2**power for power in range(last.bit_length()) if 2**power <= last)]


def gains(found: Measurement) -> str:
    """What a longer memory improves, and the list of targets."""
    facts = found.facts
    lengths = [row["memory_length"] for row in facts["growth"]]
    growth = [[f"{row['memory_length']:,}", f"{row['nats_per_token']:.4f}"] for row in facts["growth"]]
    heads = ["targets", "number", "mean gain in nats", "target came after a retrieved token", "weight of such"]
    groups = []
    for name, row in facts["groups"].items():
        cells = [f"{row[field]:.3f}" for field in ("gain", "retrieved", "weight", "identifiers_seen_before")]
        groups.append([name, f"{row['targets']:,}", *cells])
    lines = []
    for one in facts["examples"]:
        before, after = one["probabilities"]
        lines.append(f"{_line(one['before'], 44)} | {_line(one['token'])}   ({before:.4f} -> {after:.4f})")
        for place in one["retrieved"]:
            text = f"{_line(place['before'], 30)} | {_line(place['token'])}"
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


def _line(text: str, width: int = 0) -> str:
    text = text.replace("\n", "\\n").replace("`", "'")
    return f"{text[-width:]:>{width}}" if width else text


def knn_lm(found: Measurement) -> str:
    """The model alone and with the store, by number of neighbours."""
    base, cells = found.facts["base"], []
    cells.append(["base model", "", "", "", *(perplexity(base[split]) for split in SPLITS)])
    for row in found.facts["knn_lm"]:
        shown = ["+ kNN-LM", row["neighbors"], row["weight"], f"{row['temperature']:g}"]
        cells.append([*shown, *(perplexity(row[split]) for split in SPLITS)])
    heads = ["system", "neighbours", "weight", "temperature", "validation perplexity", "test perplexity"]
    return grid(heads, cells)


def _tuned(
    columns: Sequence[str], alone: Sequence[Any], label: Callable[[Mapping[str, Any]], Sequence[Any]]
) -> Callable[[Measurement], str]:
    """A table of the model alone, and every row with its weight, temperature and perplexities.

    Args:
      columns: the first ones, which say what a row is.
      alone: in these columns, of the model alone.
      label: of a row, in these columns.
    """

    def table(found: Measurement) -> str:
        before, show = found.facts["base"], lambda nats: [perplexity(nats[split]) for split in SPLITS]
        cells = [[*alone, "", "", *show(before), ""]]
        for row in found.facts["rows"]:
            setting = [row["weight"], f"{row['temperature']:g}"]
            cells.append([*label(row), *setting, *show(row), change(row["test"], before["test"])])
        return grid([*columns, "weight", "temperature", "validation", "test", "change"], cells)

    return table


def domain(found: Measurement) -> str:
    """Every text with every store, over all targets and over those that are known."""
    cells = []
    for row in found.facts["rows"]:
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


def spalm(found: Measurement) -> str:
    """The systems, and the distribution of the gate."""
    facts = found.facts
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


def neighbor_hits(found: Measurement) -> str:
    """The share of tokens among their neighbours by split, and kNN-LM with the same store."""
    facts, cells = found.facts, []
    for row in facts["rows"]:
        shares = {split: row["target_among"][split] for split in ("train", "validation")}
        about = [row["trained_on"], *("yes" if row[name] else "no" for name in ("learned", "own_article"))]
        shown = [f"{100 * shares[split][-1]:.1f} %" for split in shares]
        apart = 100 * (shares["train"][-1] - shares["validation"][-1])
        cells.append([*about, *shown, f"{apart:+.1f}", f"{100 * (shares['train'][0] - shares['validation'][0]):+.1f}"])
    heads = ["keys and store of", "model has learned the token", "own article in the store", "training", "validation"]
    heads += ["training over validation, points", "of the nearest alone"]
    base, knn = facts["base"], facts["knn_lm"]
    mixed = ["+ kNN-LM", knn["weight"], f"{knn['temperature']:g}", *(perplexity(knn[split]) for split in SPLITS)]
    alone = ["model of all articles", "", "", *(perplexity(base[split]) for split in SPLITS), ""]
    systems = [alone, [*mixed, change(knn["test"], base["test"])]]
    titles = ["system", "weight", "temperature", *(f"{split} perplexity" for split in SPLITS), "change on test"]
    return f"{grid(heads, cells)}\n\n{grid(titles, systems)}"


def both(found: Measurement) -> str:
    """The model, its cache, its store, and both."""
    labels = {"base": "base model", "cache": "+ continuous cache", "knn_lm": "+ kNN-LM", "both": "+ both"}
    facts, cells = found.facts["rows"], []
    for name, label in labels.items():
        row = facts[name]
        temperature = f"{row['temperature']:g}" if "temperature" in row else ""
        nats = [perplexity(row[split]) for split in SPLITS]
        shown = [label, row.get("cache_weight", ""), row.get("weight", ""), temperature]
        cells.append([*shown, *nats, change(row["test"], facts["base"]["test"])])
    heads = ["system", "cache weight", "kNN weight", "temperature", "validation", "test", "change on test"]
    return grid(heads, cells)


def memorization(found: Measurement) -> str:
    """The model alone, one that has learnt the training split by heart, and the store."""
    facts, cells = found.facts["rows"], []
    for name, row in facts.items():
        nats = [perplexity(row[split]) for split in SPLITS]
        cells.append([name, row.get("weight", ""), *nats, change(row["test"], facts["base model"]["test"])])
    return grid(["system", "weight", "validation", "test", "change"], cells)


def continuous_cache(found: Measurement) -> str:
    """Every setting that was tried."""
    cells = [
        [r["split"], r["scale"], r["interpolation_weight"], f"{r['perplexity']:.2f}", f"{r['targets']:,}"]
        for r in apart(found.facts)
    ]
    return grid(["split", "scale", "weight", "perplexity", "targets"], cells)


def records(found: Measurement) -> str:
    """A row a record, a column for every name and figure that any of them has."""
    rows = apart(found.facts)
    names = list(dict.fromkeys(name for row in rows for name, value in row.items() if not isinstance(value, dict)))
    names.sort(key=lambda name: not isinstance(rows[0].get(name), str))  # what a row is stands first
    shown = lambda value: f"{value:,.4g}" if isinstance(value, float) and abs(value) < 1000 else f"{value:,}"
    cell = lambda value: value if isinstance(value, str) else shown(value)
    return grid(
        [name.replace("_", " ") for name in names], [[cell(row.get(name, "")) for name in names] for row in rows]
    )


def perplexity(nats: float) -> str:
    """As a cell of a table."""
    return f"{math.exp(nats):.2f}"


def change(nats: float, before: float) -> str:
    """Of perplexity, in percent, as a cell of a table."""
    return f"{100 * math.expm1(nats - before):+.1f} %"


def spread(values: Sequence[float]) -> str:
    """Mean and range."""
    if not values:
        return ""
    mean = statistics.fmean(values)
    shown = f"{mean:.4f}" if abs(mean) < 1000 else f"{mean:,.0f}"
    if len(values) == 1 or max(values) == min(values):
        return shown
    return f"{shown} ({min(values):.4f} to {max(values):.4f})"


def _words(name: str) -> str:
    way, _, measure = name.partition("_")
    if way in ("nucleus", "greedy"):
        return f"{LABELS.get(measure, measure)}, {way}"
    return LABELS.get(name, name.replace("_", " "))


_entries = lambda row: f"{row['entries']:,}"
TABLES: dict[str, Callable[[Measurement], str]] = {
    **dict.fromkeys(("llm_memories", "llm_windows", "llm_speed", "llm_recall", "adapter_states"), records),
    "knn_lm": knn_lm,
    "store_size": _tuned(
        ["store", "entries"],
        ["none", 0],
        lambda row: ["all" if row["part"] == 1 else f"1/{row['part']}", _entries(row)],
    ),
    "larger_store": _tuned(["store", "entries"], ["none", 0], lambda row: [row["store"], _entries(row)]),
    "distances": _tuned(
        ["distances", "found"],
        ["base model", ""],
        lambda row: [row["label"], "" if row["found"] is None else f"{row['found']:.3f}"],
    ),
    "key_positions": _tuned(["key"], ["none"], lambda row: [f"{row['label']} (`{row['key']}`)"]),
    "domain": domain,
    "spalm": spalm,
    "neighbor_hits": neighbor_hits,
    "both": both,
    "memorization": memorization,
    "continuous_cache": continuous_cache,
    "gains": gains,
    "regression": regression,
}
"""kind of a measurement -> its table"""
