"""Renders tables of streams of tasks: scores, costs and comparisons of every method, over orders and seeds.

The row of such a run in the ledger is `ROW, ORDER`. Its evaluation `stream` has the matrix of `memjax eval`, the score
of every task after every task.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from memjax.lifelong.metrics import accuracy_by_age, forgetting, score_deviations
from memjax.report.verdicts import Comparison, compare_pairs, describe_test
from tools.recipes import Recipe
from tools.results.comparisons import LEAST, Claim, grid_of_comparisons
from tools.results.ledger import Measurement, Run
from tools.results.searches import ALONE, RowSearch, describe_searches, has_diverged, settle_verdicts
from tools.results.speed_tables import grid

MARGIN = 0.05
"""Smallest margin of a task's accuracy, learned alone, over the share of its largest class. Tasks with a smaller margin
are left out of every mean."""
AVERAGE, LEARNED = "average", "learning_accuracy"
MEASURES = {LEARNED: "after its own task", "forgetting": "forgetting", "last_task_accuracy": "last task"}
"""Measure of a run -> head of its column"""
WORDS = {"f1": "F1", "score": "score"}
"""Measure of a matrix -> its name in texts, for measures whose field name is not readable as it is"""
WHOLE = {"f1": 100.0, "score": 100.0}
"""Measure of a matrix -> its largest value, for measures where that is not 1"""
BESIDE = {"exact_match": "Exact match"}
"""Further measure that some tasks report beside that of the matrix -> its name in texts"""
ABOUT = (
    "Average {measure} over the tasks at the end, in percent: mean over orders and seeds, the deviation of the orders' "
    "means, the deviation of seeds within an order, and the mean of each order. Beside it the {measure} of each task "
    "right after it was learned (compare it with that of the tasks learned apart: where it is far lower, tasks are not "
    "forgotten but not learned), {forgetting}and the {measure} of the last task."
)
GROWING = (
    " A test compares candidates of the tasks so far, more after every task, so that scores fall without forgetting, "
    "also those of a model that is trained anew on all tasks: there is no column of forgetting."
)


def scores(
    runs: Sequence[Run], recipe: Recipe, row: str, measure: str, tasks: Sequence[str] | None = None
) -> np.ndarray:
    """Returns a measure of the runs of a row in percent, `[orders, seeds]`. NaN for missing runs and missing values.

    Args:
      runs: Runs of the recipe.
      recipe: The recipe.
      row: Row of the recipe's table.
      measure: Name of the measure, such as "average".
      tasks: Names of the tasks that count. None for all tasks.
    """
    values_by_run = {run.key[1:]: _measures(run, tasks).get(measure) for run in runs}
    values = [
        [values_by_run.get((f"{row}, {order}", seed)) for seed in recipe.seeds_of(row, order)]
        for order in recipe.orders
    ]
    return 100 * np.array(values, np.float64)


def name_orders(runs: Sequence[Run], recipe: Recipe, row: str) -> str:
    """Returns in how many orders a row was run, such as '3 of 6 orders'. '' where it was run in all of them.

    Args:
      runs: Runs of the recipe.
      recipe: The recipe.
      row: Row of the recipe's table.
    """
    rows = {run.row for run in runs}
    number = sum(f"{row}, {order}" in rows for order in recipe.orders)
    return "" if number == len(recipe.orders) else f"{number} of {len(recipe.orders)} orders"


def _label(runs: Sequence[Run], recipe: Recipe, row: str) -> str:
    """Returns the name of a row whose means stand in a table, with its number of orders where some are missing."""
    orders = name_orders(runs, recipe, row)
    return f"{row} ({orders})" if orders else row


def alone(runs: Sequence[Run], texts: Measurement) -> dict[str, tuple[float, float]]:
    """Returns the accuracy of each task that was learned alone and the share of its largest class: task -> both.

    The accuracy is the mean over orders and seeds. Both numbers are shares between 0 and 1.

    Args:
      runs: Runs of the recipe.
      texts: Measurement of the texts of the stream, which has the share of the largest class in the test split.
    """
    accuracies: dict[str, list[float]] = {}
    for run in runs:
        if run.row.rpartition(", ")[0] == ALONE:
            for name, value in zip(run.evaluations["stream"]["tasks"], np.diag(_matrix(run)), strict=True):
                accuracies.setdefault(name, []).append(float(value))
    largest = {task["task"]: task["largest_class"] for task in texts.facts["tasks"]}
    return {name: (float(np.mean(values)), largest[name]) for name, values in accuracies.items()}


def kept_tasks(runs: Sequence[Run], texts: Measurement | None) -> list[str] | None:
    """Returns the tasks that count: learned alone, their accuracy is clearly above the share of their largest class.

    `MARGIN` is the smallest distance. Returns None, for all tasks, where no such task is known.

    Args:
      runs: Runs of the recipe.
      texts: Measurement of the texts of the stream. None where there is no such measurement.
    """
    accuracies = alone(runs, texts) if texts else {}
    return [name for name, (value, largest) in accuracies.items() if value >= largest + MARGIN] or None


def tasks_alone(runs: Sequence[Run], texts: Measurement) -> str:
    """Returns a table of the accuracy of each task, learned alone, beside the share of its largest class.

    Its last column says whether the task counts in means. '' where no task was learned alone.
    """
    accuracies, counted_tasks = alone(runs, texts), kept_tasks(runs, texts) or []
    if not accuracies:
        return ""
    cells = [
        [name, _cell(100 * value), _cell(100 * largest), "yes" if name in counted_tasks else "no"]
        for name, (value, largest) in accuracies.items()
    ]
    about = (
        f"A task counts where its accuracy, learned alone, is at least {100 * MARGIN:g} points above the share of its "
        "largest class in the test; the others are in the matrices and in no mean."
    )
    return f"{about}\n\n{grid(['task', 'learned alone', 'largest class', 'counts'], cells)}"


def methods(runs: Sequence[Run], recipe: Recipe, tasks: Sequence[str] | None = None) -> str:
    """Returns a table of the scores of every method over orders and seeds, with one row for each method.

    Args:
      runs: Runs of the recipe.
      recipe: The recipe.
      tasks: Names of the tasks that count. None for all tasks.
    """
    cells = []
    grows = recipe.candidates_grow
    measures = {measure: head for measure, head in MEASURES.items() if not (grows and measure == "forgetting")}
    for row in recipe.variants:
        average = scores(runs, recipe, row, AVERAGE, tasks)
        others = [scores(runs, recipe, row, measure, tasks) for measure in measures]
        if np.isnan(others[0]).all() and np.isnan(average).all():
            continue
        deviations, orders = score_deviations(average), [_mean(seed_scores) for seed_scores in average]
        runs_of = f"{int(np.sum(~np.isnan(average)))} of {average.size}"
        shown = [deviations.mean, deviations.orders, deviations.seeds, *orders, *map(_mean, others)]
        updates = np.mean([run.step for run in runs if run.row.rpartition(", ")[0] == row])
        cells.append([row, runs_of, *map(_cell, shown), f"{updates:,.0f}"])
    heads = ["row", "runs", "average", "± orders", "± seeds", *recipe.orders, *measures.values(), "updates"]
    about = ABOUT.format(measure=measure_of(runs), forgetting="" if grows else "forgetting, ")
    parts = [f"{about}{GROWING if grows else ''}", describe_units(recipe)]
    return f"{' '.join(filter(None, parts))}\n\n{grid(heads, cells)}"


def describe_units(recipe: Recipe) -> str:
    """Describes the orders of a recipe as units of a test: their seeds, and in how many different tasks they end.

    '' for a recipe with one order.
    """
    if len(recipe.orders) < 2:
        return ""
    seeds = sorted({seed for order in recipe.orders for seed in recipe.seeds_of("", order)})
    first = ", ".join(map(str, recipe.seeds))
    if recipe.own_seeds:
        said = f"Each order has a seed of its own ({seeds[0]} to {seeds[-1]}) for initial parameters and draws."
        said += f" In the rows {', '.join(recipe.one_seed)} all have seed {first}." if recipe.one_seed else ""
    else:
        said = f"All orders have seed {first}, so that what is said holds for one initialisation."
    tasks = [words.split()[1:] for words in recipe.orders.values()]
    if not all(tasks):
        return said
    last, number = len({order[-1] for order in tasks}), len(tasks[0])
    drawn = number * (1 - (1 - 1 / number) ** len(tasks))
    return (
        f"{said} The {len(tasks)} orders end in {last} of the {number} tasks; as many drawn at random end in "
        f"{drawn:.1f} on average."
    )


def averages_by_size(runs: Sequence[Run], recipe: Recipe) -> str:
    """Returns a table of the averages of methods by size. '' where the recipe names no rows by size.

    Args:
      runs: Runs of all recipes.
      recipe: Recipe that names the methods, the sizes and the row of each of them.
    """
    if not recipe.rows_by_size:
        return ""
    sizes = [*dict.fromkeys(size for rows in recipe.rows_by_size.values() for size in rows)]
    cells = []
    for method, rows in recipe.rows_by_size.items():
        cells.append([method])
        for source, _, row in (rows[size].partition("/") for size in sizes):
            averages = scores([run for run in runs if run.recipe == source], recipe, row, AVERAGE)
            number, deviations = int(np.sum(~np.isnan(averages))), score_deviations(averages)
            cells[-1].append(f"{deviations.mean:.1f} ± {_cell(deviations.orders)} ({number})" if number else "")
    about = "Average by texts a task, in percent: mean and deviation of orders (number of runs):"
    return f"{about}\n\n{grid(['row', *sizes], cells)}"


def beside(runs: Sequence[Run], recipe: Recipe) -> str:
    """Returns a table for each further measure of the tasks (`BESIDE`), with one row for each method.

    '' where no run reports such a measure.
    """
    parts = []
    for measure, name in BESIDE.items():
        values_by_row = {row: scores(runs, recipe, row, measure) for row in recipe.variants}
        cells = [
            [row, *map(_cell, [*score_deviations(values), *map(_mean, values)])]
            for row, values in values_by_row.items()
            if not np.isnan(values).all()
        ]
        if cells:
            about = f"{name}, mean over the tasks at the end, in percent:"
            parts.append(f"{about}\n\n{grid(['row', 'average', '± orders', '± seeds', *recipe.orders], cells)}")
    return "\n\n".join(parts)


COSTS = (
    "Room that a run has for what it keeps beside the model, by kind, full or not, and where its seconds go (means "
    "over orders and seeds of the runs that say it; rows are not timed side by side): of updates, of the first ones of "
    "all stages, compilation included where no earlier run had compiled the same, of writing examples of earlier "
    "tasks, of answering one test example."
)
SHARES = {
    "class_of_another_task": "answers that are a class of another task",
    "class_of_no_task": "answers that are no class of any task",
    "answer_in_prompt": "test prompts whose context, cut to fit, holds a right answer",
}
"""Share that runs with generated answers measure -> description of the share"""


def costs(runs: Sequence[Run], recipe: Recipe) -> str:
    """Returns a table of the costs of every method: stored bytes and seconds. '' where no run reports its costs."""
    cells = []
    for row in recipe.variants:
        streams = [run.evaluations["stream"] for run in runs if run.row.rpartition(", ")[0] == row]
        known = [stream for stream in streams if "update_seconds" in stream.get("cost", {})]
        if known:
            mean = lambda name: _mean([stream["cost"].get(name, np.nan) for stream in known])  # noqa: B023
            seconds = [mean(name) for name in ("update_seconds", "compilation_seconds", "generation_seconds")]
            rate, answer = mean("samples") / mean("generation_seconds"), 1000 * mean("seconds_per_test_example")
            size = mean("parameters")
            stored = kept_in_words([stream["kept_bytes"] for stream in known])
            shown = "" if np.isnan(size) else f"{size:,.0f}"
            cells.append([row, len(known), shown, stored, *map(_cell, [*seconds, rate, answer])])
    heads = ["row", "runs", "parameters", "room, MB", "updates, s", "compiling, s", "writing, s"]
    heads += ["samples a second", "ms a test example"]
    return f"{COSTS}\n\n{grid(heads, cells)}" if cells else ""


def kept_in_words(stored: Sequence[Mapping[str, int]]) -> str:
    """Returns the mean megabytes that runs store beside the model as a text: the total, and the kinds of stored data.

    Kinds that round to 0 are left out.

    Args:
      stored: Kind -> bytes, for each run. Kinds that the first run lacks are left out. The kind `total` is the sum.

    Example:
      >>> kept_in_words([{"memory": 2_000_000, "keys": 1_000_000, "anchors": 8, "total": 3_000_008}])
      '3.0 (memory 2.0, keys 1.0)'
      >>> kept_in_words([{"memory": 0, "total": 0}]), kept_in_words([{"anchors": 500_000, "total": 500_000}])
      ('0.0', '0.5 (anchors)')
    """
    means = {name: float(np.mean([sizes.get(name, 0) for sizes in stored])) / 1e6 for name in stored[0]}
    whole = means.pop("total")
    kinds = {name: value for name, value in means.items() if round(value, 1)}
    described = (
        ", ".join(kinds) if len(kinds) == 1 else ", ".join(f"{name} {value:.1f}" for name, value in kinds.items())
    )
    return f"{whole:.1f} ({described})" if kinds else f"{whole:.1f}"


def shares_of_answers(runs: Sequence[Run], recipe: Recipe) -> str:
    """Returns a table for each of `SHARES` that runs measure, with a row for each method and a column for each task.

    '' where no run measures any of them.
    """
    return "\n\n".join(filter(None, (_share(runs, recipe, name) for name in SHARES)))


def _share(runs: Sequence[Run], recipe: Recipe, share: str) -> str:
    """Returns the table of one of `SHARES`. '' where no run measures it."""
    values_by_row: dict[str, dict[str, list[float]]] = {row: {} for row in recipe.variants}
    for run in runs:
        for task, score in run.results.get("evaluations", {}).items():
            if share in score:
                values_by_row[run.row.rpartition(", ")[0]].setdefault(task, []).append(score[share])
    names = list(dict.fromkeys(task for tasks in values_by_row.values() for task in tasks))
    if not names:
        return ""
    cells = [
        [_label(runs, recipe, row), *(_cell(_mean(tasks.get(name, ()))) for name in names)]
        for row, tasks in values_by_row.items()
        if tasks
    ]
    about = f"Share of {SHARES[share]}, after the last task, in percent, mean over orders and seeds:"
    return f"{about}\n\n{grid(['row', *names], cells)}"


def diverged_rows(runs: Sequence[Run], recipe: Recipe) -> str:
    """Returns a sentence with the rows of which runs have diverged, and their number of such runs. '' for none."""
    counts = {
        row: sum(has_diverged(run) for run in runs if run.row.rpartition(", ")[0] == row) for row in recipe.variants
    }
    rows = ", ".join(f"{row} in {count} runs" for row, count in counts.items() if count)
    about = "Diverged, with updates that were not finite and skipped to the end, or with a last loss beyond all bounds"
    return f"{about}: {rows}." if rows else ""


def written_texts(runs: Sequence[Run], recipe: Recipe) -> str:
    """Returns a table of measures of the texts that methods have generated, with a row for each method and task.

    '' where no method has generated texts.
    """
    heads = {"kept": "kept", "of_task": "answer of the task", "written_nats": "nats", "real_nats": "nats of real texts"}
    cells = []
    for row in recipe.variants:
        written_by_run = [
            run.evaluations["stream"].get("written", {}) for run in runs if run.row.rpartition(", ")[0] == row
        ]
        for task in dict.fromkeys(name for written in written_by_run for name in written):
            known = [written[task] for written in written_by_run if task in written]
            mean = lambda name: _mean([measures.get(name, np.nan) for measures in known])  # noqa: B023
            shares, nats = [100 * mean(name) for name in ("kept", "of_task")], [mean(name) for name in [*heads][2:]]
            cells.append([row, task, len(known), *map(_cell, [*shares, *nats])])
    about = (
        "What was written of each task, mean over the tasks before which it was written, orders and seeds: the share "
        "of texts that is kept, and the share whose answer also has the form of the task's answers (for classes: is "
        "one of its own), in percent; nats a token of the kept texts, and of real texts of the task, under the model "
        "that wrote:"
    )
    return f"{about}\n\n{grid(['row', 'task', 'runs', *heads.values()], cells)}" if cells else ""


def measure_of(runs: Sequence[Run]) -> str:
    """Returns the name in texts of the measure of some runs' matrices, such as "F1" or "accuracy"."""
    measure = runs[0].evaluations["stream"].get("measure", "accuracy") if runs else "accuracy"
    return WORDS.get(measure, measure)


def compare_averages(
    runs: Sequence[Run], recipe: Recipe, searches: Mapping[str, RowSearch], tasks: Sequence[str] | None = None
) -> dict[Claim, Comparison]:
    """Compares the average of every row with that of its controls, by pairs of runs of the same order and seed.

    Args:
      runs: Runs of the recipe.
      recipe: The recipe.
      searches: Row -> its search. Rows that were not searched alike have no verdict.
      tasks: Names of the tasks that count. None for all tasks.

    Returns:
      Row and control -> the comparison with its verdict, where there are pairs of runs.
    """
    compared: dict[Claim, Comparison] = {}
    for row, controls in recipe.controls.items():
        for control in controls:
            comparison = compare_pairs(*(scores(runs, recipe, name, AVERAGE, tasks) for name in (row, control)))
            if comparison.units:
                compared[row, control] = comparison
    return settle_verdicts(compared, searches)


def differences(
    runs: Sequence[Run], recipe: Recipe, searches: Mapping[str, RowSearch], tasks: Sequence[str] | None = None
) -> str:
    """Returns a table of every row against its controls, and how each row was searched.

    Runs of the same order and seed are compared. '' where there is no comparison.

    Args:
      runs: Runs of the recipe.
      recipe: The recipe.
      searches: Row -> its search. Rows that were not searched alike have no verdict.
      tasks: Names of the tasks that count. None for all tasks.
    """
    about = f"Average {measure_of(runs)}, run by run of the same order and seed"
    return table_of(compare_averages(runs, recipe, searches, tasks), searches, about, "points", 2)


def table_of(
    compared: Mapping[Claim, Comparison],
    searches: Mapping[str, RowSearch],
    about: str,
    unit: str,
    digits: int,
) -> str:
    """Returns a table of comparisons after a line that names their test, and how each row was searched.

    '' where there is no comparison.

    Args:
      compared: Row and control -> their comparison.
      searches: Row -> its search.
      about: Description of the compared score.
      unit: Unit of the differences.
      digits: Decimals of the differences.
    """
    table = grid_of_comparisons(compared, ("row", "against"), unit, digits)
    about = f"{about} ({describe_test([*compared.values()])}; {LEAST}):"
    return f"{about}\n\n{table}\n\n{describe_searches(compared, searches)}" if compared else ""


def ages(runs: Sequence[Run], recipe: Recipe) -> str:
    """Returns a table of the mean score of a task by the number of tasks that were learned since.

    Scores after every task count. '' where no run has scores after every task.
    """
    cells = []
    for row in recipe.variants:
        matrices = [_matrix(run) for run in runs if run.row.rpartition(", ")[0] == row]
        square = [matrix for matrix in matrices if matrix.shape[0] == matrix.shape[1] > 1]
        if square:
            means = np.nanmean([accuracy_by_age(100 * matrix) for matrix in square], axis=0)
            cells.append([_label(runs, recipe, row), *map(_cell, means)])
    if not cells:
        return ""
    heads = ["tasks learned since", *range(len(cells[0]) - 1)]
    about = f"{measure_of(runs).capitalize()} of a task by how many were learned since, all stages, orders and seeds:"
    return f"{about}\n\n{grid(heads, cells)}"


def wholes(runs: Sequence[Run], recipe: Recipe) -> str:
    """Returns a table of two scores after every task: on the data of all tasks, and the mean over those learned so far.

    '' where no run has either of them.
    """
    cells = []
    for row in recipe.variants:
        row_runs = [run for run in runs if run.row.rpartition(", ")[0] == row]
        for what in ("of all", "of those learned"):
            values_by_run = [
                np.array(each[what]) / _whole(run)
                for run in row_runs
                if what in (each := run.evaluations["stream"].get("after_each") or {})
            ]
            if values_by_run and len({len(values) for values in values_by_run}) == 1:
                cells.append(
                    [f"{_label(runs, recipe, row)}, {what}", *map(_cell, 100 * np.mean(values_by_run, axis=0))]
                )
    if not cells:
        return ""
    heads = [f"{measure_of(runs)} after task", *range(1, len(cells[0]))]
    has_all = any(row.endswith(", of all") for row, *_ in cells)
    of_all = "On the test sentences of all relations, and as the mean" if has_all else "As the mean"
    about = f"{of_all} over the tasks learned so far, orders and seeds:"
    return f"{about}\n\n{grid(heads, cells)}"


def matrices(runs: Sequence[Run], recipe: Recipe) -> str:
    """Returns the matrix of scores of every method as a table, the mean over seeds of the first order."""
    first, parts = next(iter(recipe.orders)), []
    for row in recipe.variants:
        row_runs = [run for run in runs if run.row == f"{row}, {first}"]
        if row_runs:
            tasks: Sequence[str] = row_runs[0].evaluations["stream"]["tasks"]
            mean = 100 * np.mean([_matrix(run) for run in row_runs], axis=0)
            after = tasks if len(mean) > 1 else ["all tasks"]
            cells = [[name, *map(_cell, line)] for name, line in zip(after, mean, strict=False)]
            parts.append(grid([f"{row}, after", *tasks], cells))
    name = "Accuracies" if measure_of(runs) == "accuracy" else measure_of(runs)
    return "\n\n".join([f"{name} in percent, {first}, mean over seeds:", *parts])


def searches(runs: Sequence[Run]) -> str:
    """Returns a table of the trials of searches, with one row for each trial and seed. Those that diverged say so."""
    cells = []
    for run in runs:
        measures = _measures(run, None)
        shown = [_cell(100 * measures[name]) if name in measures else "" for name in (AVERAGE, LEARNED)]
        if has_diverged(run):
            shown = ["diverged", "diverged"]
        seconds = "" if run.cpu_seconds is None else f"{run.cpu_seconds:.0f}"
        cells.append([run.key_of_today[1], run.seed, *shown, seconds, run.commit])
    return grid(["row, trial", "seed", AVERAGE, MEASURES[LEARNED], "CPU s", "commit"], cells)


def texts(measurement: Measurement) -> str:
    """Returns a table of the texts of each task: their number by split, their classes, and which were left out."""
    heads = ["task", "train", "validation", "test", "classes", "largest class of the test, %", "left out"]
    cells = [
        [*(task[name] for name in (*heads[:5],)), _cell(100 * task["largest_class"]), "; ".join(task["notes"])]
        for task in measurement.facts["tasks"]
    ]
    return grid(heads, cells)


def few_texts(measurement: Measurement) -> str:
    """Returns tables of methods that learn from few texts, and their comparisons with the first method.

    One table has the accuracy on every set, the number of stored texts and the costs. Another one has the accuracy of
    each task right after it was learned, for methods that learn one task after the other.
    """
    tasks, rows = measurement.facts["tasks"], dict[str, list[dict[str, Any]]]()
    for record in measurement.facts["records"]:
        rows.setdefault(record["row"], []).append(record)
    mean = lambda records, key: np.mean([[record[key][task] for task in tasks] for record in records], axis=0)
    middle = lambda records, key: float(np.median([record[key] for record in records]))
    shown, learned, compared = [], [], dict[Claim, Comparison]()
    whole = {
        row: {record["draw"]: 100 * np.mean([*record["final"].values()]) for record in records}
        for row, records in rows.items()
    }
    first = next(iter(rows))
    for row, records in rows.items():
        accuracies, draws = 100 * mean(records, "final"), whole[row]
        spread_of_draws = f"{np.mean([*draws.values()]):.1f} ({min(draws.values()):.1f} to {max(draws.values()):.1f})"
        costs = [f"{middle(records, key):.0f}" for key in ("seconds", "cpu_seconds")]
        stored = f"{records[0]['stored']:,}"
        shown.append([row, len(records), stored, *map(_cell, accuracies), spread_of_draws, *costs])
        if "learned" in records[0]:
            after = 100 * mean(records, "learned")
            learned.append([row, *map(_cell, after), _cell(after.mean())])
        if row != first:
            shared = [draw for draw in draws if draw in whole[first]]
            pair = [np.array([scores[draw] for draw in shared]) for scores in (draws, whole[first])]
            compared[row, first] = compare_pairs(*pair, unit="draw")
    heads = ["row", "draws", "stored texts", *tasks, "mean (range of draws)", "s", "CPU s"]
    parts = [grid(heads, shown)]
    if learned:
        parts += ["Each task right after it was learned:", grid(["row", *tasks, "mean"], learned)]
    parts.append(table_of(settle_verdicts(compared, {}), {}, "Mean of the sets, draw by draw", "points", 2))
    return "\n\n".join(part for part in parts if part)


def avalanche(measurement: Measurement) -> str:
    """Returns a table of the accuracy and the speed of memjax and Avalanche, with one row for each method."""
    cells = []
    for row in measurement.facts["rows"]:
        sides = [row["memjax"], row["Avalanche"]]
        means = [[100 * float(np.mean(run["accuracies"])) for run in side] for side in sides]
        shown = [f"{np.mean(side):.1f} ({min(side):.1f} to {max(side):.1f})" for side in means]
        seconds = [float(np.median([run["seconds"] for run in side])) for side in sides]
        compiling = float(np.median([run["compile_seconds"] for run in sides[0]]))
        cells.append([row["method"], *shown, f"{np.mean(means[0]) - np.mean(means[1]):+.1f}"])
        cells[-1] += [f"{seconds[0]:.2f}", f"{seconds[1]:.2f}", f"{seconds[1] / seconds[0]:.1f}", f"{compiling:.1f}"]
    heads = ["method", "memjax, %", "Avalanche, %", "points", "memjax, s", "Avalanche, s", "times as fast"]
    return grid([*heads, "memjax compiles, s"], cells)


def job_lines(measurement: Measurement, jobs: Sequence[Measurement] = ()) -> str:
    """Returns a table of the lines of code and commands of one job, with one row for each library.

    Args:
      measurement: Library -> numbers of its lines and commands.
      jobs: Measurements of the job with some of the libraries, whose results are added to their rows.
    """
    noted = {"shipped_lines": "in a shipped config", "reading_lines": "read the images"}
    done = {job.name: _job_cells(job) for job in jobs}
    heads = [*next(iter(done.values()))] if done else []
    cells = []
    for library, facts in measurement.facts.items():
        notes = "".join(f" ({facts[name]} {words})" for name, words in noted.items() if name in facts)
        row = [library, f"{facts['lines']}{notes}", facts["commands"]]
        cells.append([*row, *(done.get(library, {}).get(head, "") for head in heads)])
    return grid(["library", "lines of code", "commands", *heads], cells)


def same_job(measurement: Measurement) -> str:
    """Returns a table of the CPU time and the average accuracies of one job with one library."""
    cells = _job_cells(measurement)
    return grid([*cells], [[*cells.values()]])


def _job_cells(measurement: Measurement) -> dict[str, str]:
    """Returns the cells of a job by the heads of their columns.

    The first cell is the CPU time. The others are the average accuracy of each method with its interval.
    """
    shown = {
        row["method"]: f"{100 * row['mean']:.1f} ± {100 * row['half_width']:.1f}" for row in measurement.facts["rows"]
    }
    return {"CPU, minutes": f"{measurement.facts['cpu_seconds'] / 60:.1f}", **shown}


def _whole(run: Run) -> float:
    """Returns the largest value of the measure of a run's matrix."""
    return WHOLE.get(run.evaluations["stream"].get("measure", ""), 1.0)


def _matrix(run: Run) -> np.ndarray:
    """Returns the matrix of scores of a run, as shares of the largest value of its measure."""
    return np.array(run.evaluations["stream"]["scores"], np.float64) / _whole(run)


def _measures(run: Run, tasks: Sequence[str] | None) -> Mapping[str, Any]:
    """Returns the measures of a run, the numbers as shares, over the tasks that count.

    Args:
      run: The run.
      tasks: Names of the tasks that count. None for all tasks.
    """
    stream: Mapping[str, Any] = run.evaluations.get("stream", {})
    facts: dict[str, Any] = {**stream} | {
        name: value / _whole(run) for name, value in stream.items() if isinstance(value, float)
    }
    if tasks is None or set(tasks) == set(facts["tasks"]):
        return facts
    columns, matrix = [facts["tasks"].index(name) for name in tasks], _matrix(run)
    measures = {AVERAGE: float(np.mean(matrix[-1, columns]))}
    if len(matrix) > 1:
        lost = [*forgetting(matrix), np.nan]
        measures[LEARNED] = float(np.nanmean(np.diag(matrix)[columns]))
        measures["forgetting"] = float(np.nanmean([lost[column] for column in columns]))
    if facts["tasks"][-1] in tasks and "last_task_accuracy" in facts:
        measures["last_task_accuracy"] = facts["last_task_accuracy"]
    return measures


def _mean(values: npt.ArrayLike) -> float:
    """Returns the mean of the values that are not NaN. NaN where there are none."""
    values = np.asarray(values, np.float64)
    known = values[~np.isnan(values)]
    return float(known.mean()) if known.size else float("nan")


def _cell(value: float) -> str:
    """Returns a number as a cell of a table. '' for NaN."""
    return "" if np.isnan(value) else f"{value:.1f}"


def written(measurement: Measurement) -> str:
    """Returns a table of the texts that a model has generated for each of its tasks, and the first texts of each."""
    heads = ["task", "one mark", "of the task", "different", "score of these alone", "of as many real ones", "a second"]
    percent = lambda value: f"{100 * value:.0f} %"
    cells = [
        [
            task["task"],
            *(percent(task[name]) for name in ("one_mark", "of_task", "different")),
            f"{task['score_of_written']:.1f}",
            f"{task['score_of_real']:.1f}",
            f"{task['written'] / task['seconds']:.1f}",
        ]
        for task in measurement.facts["tasks"]
    ]
    shown = [
        f"- {task['task']}: {' '.join(text.split())}" for task in measurement.facts["tasks"] for text in task["texts"]
    ]
    return "\n\n".join([grid(heads, cells), "The first texts of each task, cut at ANS:", "\n".join(shown)])
