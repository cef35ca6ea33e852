"""Tables of streams of tasks: what every method has come to over orders and seeds, in percent, and what tells it apart.

A run of a stream is in the ledger as `ROW, ORDER`; its evaluation `stream` is the matrix of `memjax eval`.
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
from tools.results.searches import ALONE, RowSearch, describe_searches, settle_verdicts
from tools.results.speed_tables import grid

MARGIN = 0.05
"""a task that, learned alone, is not by so much above its largest class is left out of every mean"""
AVERAGE, LEARNED = "average", "learning_accuracy"
MEASURES = {LEARNED: "after its own task", "forgetting": "forgetting", "last_task_accuracy": "last task"}
WORDS = {"f1": "F1", "score": "score"}
"""what the measure of a matrix is called, where it is not its name"""
WHOLE = {"f1": 100.0, "score": 100.0}
"""measure -> what all of it is, where that is not 1"""
BESIDE = {"exact_match": "Exact match"}
"""what else some tasks measure"""
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
    runs: Sequence[Run], recipe: Recipe, row: str, measure: str, kept: Sequence[str] | None = None
) -> np.ndarray:
    """A number of a row's runs `[orders, seeds]`, in percent, of the tasks that are `kept` (None = all).

    NaN where a run or its number is not there.
    """
    found = {run.key[1:]: _measures(run, kept).get(measure) for run in runs}
    given = [[found.get((f"{row}, {order}", seed)) for seed in recipe.seeds] for order in recipe.orders]
    return 100 * np.array(given, np.float64)


def alone(runs: Sequence[Run], texts: Measurement) -> dict[str, tuple[float, float]]:
    """Task -> its accuracy learned alone, mean over orders and seeds, and the share of its largest class."""
    found: dict[str, list[float]] = {}
    for run in runs:
        if run.row.rpartition(", ")[0] == ALONE:
            for name, value in zip(run.evaluations["stream"]["tasks"], np.diag(_matrix(run)), strict=True):
                found.setdefault(name, []).append(float(value))
    largest = {task["task"]: task["largest_class"] for task in texts.facts["tasks"]}
    return {name: (float(np.mean(values)), largest[name]) for name, values in found.items()}


def kept_tasks(runs: Sequence[Run], texts: Measurement | None) -> list[str] | None:
    """The tasks that are clearly above their largest class where they are learned alone; None = all, nothing known."""
    found = alone(runs, texts) if texts else {}
    return [name for name, (value, largest) in found.items() if value >= largest + MARGIN] or None


def tasks_alone(runs: Sequence[Run], texts: Measurement) -> str:
    """Each task learned alone beside its largest class, and which are left out of every mean."""
    found, kept = alone(runs, texts), kept_tasks(runs, texts) or []
    if not found:
        return ""
    cells = [
        [name, _cell(100 * value), _cell(100 * largest), "yes" if name in kept else "no"]
        for name, (value, largest) in found.items()
    ]
    about = (
        f"A task counts where its accuracy, learned alone, is at least {100 * MARGIN:g} points above the share of its "
        "largest class in the test; the others are in the matrices and in no mean."
    )
    return f"{about}\n\n{grid(['task', 'learned alone', 'largest class', 'counts'], cells)}"


def methods(runs: Sequence[Run], recipe: Recipe, kept: Sequence[str] | None = None) -> str:
    """A line a method."""
    cells = []
    grows = recipe.candidates_grow
    measures = {measure: head for measure, head in MEASURES.items() if not (grows and measure == "forgetting")}
    for row in recipe.variants:
        average = scores(runs, recipe, row, AVERAGE, kept)
        others = [scores(runs, recipe, row, measure, kept) for measure in measures]
        if np.isnan(others[0]).all() and np.isnan(average).all():
            continue
        found, orders = score_deviations(average), [_mean(one) for one in average]
        runs_of = f"{int(np.sum(~np.isnan(average)))} of {average.size}"
        shown = [found.mean, found.orders, found.seeds, *orders, *map(_mean, others)]
        updates = np.mean([run.step for run in runs if run.row.rpartition(", ")[0] == row])
        cells.append([row, runs_of, *map(_cell, shown), f"{updates:,.0f}"])
    heads = ["row", "runs", "average", "± orders", "± seeds", *recipe.orders, *measures.values(), "updates"]
    about = ABOUT.format(measure=measure_of(runs), forgetting="" if grows else "forgetting, ")
    return f"{about}{GROWING if grows else ''}\n\n{grid(heads, cells)}"


def averages_by_size(runs: Sequence[Run], recipe: Recipe) -> str:
    """Returns a table of the methods and sizes that the recipe names, '' where it names none.

    Args:
      runs: Runs of all recipes.
      recipe: What names methods, sizes and their rows.
    """
    if not recipe.rows_by_size:
        return ""
    sizes = [*dict.fromkeys(size for rows in recipe.rows_by_size.values() for size in rows)]
    cells = []
    for method, rows in recipe.rows_by_size.items():
        cells.append([method])
        for source, _, row in (rows[size].partition("/") for size in sizes):
            averages = scores([run for run in runs if run.recipe == source], recipe, row, AVERAGE)
            number, found = int(np.sum(~np.isnan(averages))), score_deviations(averages)
            cells[-1].append(f"{found.mean:.1f} ± {_cell(found.orders)} ({number})" if number else "")
    about = "Average by texts a task, in percent: mean and deviation of orders (number of runs):"
    return f"{about}\n\n{grid(['row', *sizes], cells)}"


def beside(runs: Sequence[Run], recipe: Recipe) -> str:
    """A line a method of what else its tasks measure; '' where they measure nothing else."""
    parts = []
    for measure, name in BESIDE.items():
        found = {row: scores(runs, recipe, row, measure) for row in recipe.variants}
        cells = [
            [row, *map(_cell, [*score_deviations(values), *map(_mean, values)])]
            for row, values in found.items()
            if not np.isnan(values).all()
        ]
        if cells:
            about = f"{name}, mean over the tasks at the end, in percent:"
            parts.append(f"{about}\n\n{grid(['row', 'average', '± orders', '± seeds', *recipe.orders], cells)}")
    return "\n\n".join(parts)


COSTS = (
    "What a run keeps beside the model, by kind, and where its seconds go (means over orders and seeds of the runs "
    "that say it; rows are not timed side by side): of updates, of the first ones of all stages, compilation included "
    "where no earlier run had compiled the same, of writing examples of earlier tasks, of answering one test example."
)
SHARES = {
    "class_of_another_task": "answers that are a class of another task",
    "class_of_no_task": "answers that are no class of any task",
    "no_class": "answers that are no class of their own task (older runs: of another task, or of none)",
    "answer_in_prompt": "test prompts whose context, cut to fit, holds a right answer",
}
"""Shares that runs of written answers measure -> what they are of, in words"""


def costs(runs: Sequence[Run], recipe: Recipe) -> str:
    """A line a method; '' where no run says what it costs."""
    cells = []
    for row in recipe.variants:
        own = [run.evaluations["stream"] for run in runs if run.row.rpartition(", ")[0] == row]
        known = [stream for stream in own if "update_seconds" in stream.get("cost", {})]
        if known:
            mean = lambda name: _mean([one["cost"].get(name, np.nan) for one in known])  # noqa: B023
            found = [mean(name) for name in ("update_seconds", "compilation_seconds", "generation_seconds")]
            rate, answer = mean("samples") / mean("generation_seconds"), 1000 * mean("seconds_per_test_example")
            size = mean("parameters")
            kept = kept_in_words([stream["kept_bytes"] for stream in known])
            shown = "" if np.isnan(size) else f"{size:,.0f}"
            cells.append([row, len(known), shown, kept, *map(_cell, [*found, rate, answer])])
    heads = ["row", "runs", "parameters", "kept, MB", "updates, s", "compiling, s", "writing, s"]
    heads += ["samples a second", "ms a test example"]
    return f"{COSTS}\n\n{grid(heads, cells)}" if cells else ""


def kept_in_words(kept: Sequence[Mapping[str, int]]) -> str:
    """Megabytes that some runs keep beside the model, in the mean: all, and of which kinds, unless these round to 0.

    Example:
      >>> kept_in_words([{"memory": 2_000_000, "keys": 1_000_000, "anchors": 8, "total": 3_000_008}])
      '3.0 (memory 2.0, keys 1.0)'
      >>> kept_in_words([{"memory": 0, "total": 0}]), kept_in_words([{"anchors": 500_000, "total": 500_000}])
      ('0.0', '0.5 (anchors)')
    """
    means = {name: float(np.mean([one.get(name, 0) for one in kept])) / 1e6 for name in kept[0]}
    whole = means.pop("total")
    kinds = {name: value for name, value in means.items() if round(value, 1)}
    said = ", ".join(kinds) if len(kinds) == 1 else ", ".join(f"{name} {value:.1f}" for name, value in kinds.items())
    return f"{whole:.1f} ({said})" if kinds else f"{whole:.1f}"


def shares_of_answers(runs: Sequence[Run], recipe: Recipe) -> str:
    """A table of each of `SHARES` that runs measure, a line a method and a column a task; '' where there is none."""
    return "\n\n".join(filter(None, (_share(runs, recipe, name) for name in SHARES)))


def _share(runs: Sequence[Run], recipe: Recipe, share: str) -> str:
    found: dict[str, dict[str, list[float]]] = {row: {} for row in recipe.variants}
    for run in runs:
        for task, score in run.results.get("evaluations", {}).items():
            if share in score:
                found[run.row.rpartition(", ")[0]].setdefault(task, []).append(score[share])
    names = list(dict.fromkeys(task for tasks in found.values() for task in tasks))
    if not names:
        return ""
    cells = [[row, *(_cell(_mean(tasks.get(name, ()))) for name in names)] for row, tasks in found.items() if tasks]
    about = f"Share of {SHARES[share]}, after the last task, in percent, mean over orders and seeds:"
    return f"{about}\n\n{grid(['row', *names], cells)}"


def written_texts(runs: Sequence[Run], recipe: Recipe) -> str:
    """A table of the texts that methods have generated, a line a method and a task; '' where none has generated any."""
    heads = {"kept": "kept", "of_task": "answer of the task", "written_nats": "nats", "real_nats": "nats of real texts"}
    cells = []
    for row in recipe.variants:
        own = [run.evaluations["stream"].get("written", {}) for run in runs if run.row.rpartition(", ")[0] == row]
        for task in dict.fromkeys(name for written in own for name in written):
            known = [written[task] for written in own if task in written]
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
    """What the matrices of some runs are of, in words."""
    measure = runs[0].evaluations["stream"].get("measure", "accuracy") if runs else "accuracy"
    return WORDS.get(measure, measure)


def compare_averages(
    runs: Sequence[Run], recipe: Recipe, searches: Mapping[str, RowSearch], kept: Sequence[str] | None = None
) -> dict[Claim, Comparison]:
    """Compares the average of every row with that of its controls, run by run of the same order and seed, where there
    are pairs of runs. Returns row and control -> the comparison with its verdict.
    """
    compared: dict[Claim, Comparison] = {}
    for row, controls in recipe.controls.items():
        for control in controls:
            comparison = compare_pairs(*(scores(runs, recipe, name, AVERAGE, kept) for name in (row, control)))
            if comparison.units:
                compared[row, control] = comparison
    return settle_verdicts(compared, searches)


def differences(
    runs: Sequence[Run], recipe: Recipe, searches: Mapping[str, RowSearch], kept: Sequence[str] | None = None
) -> str:
    """Every row against its controls, run by run of the same order and seed, and how each row was searched; '' where
    the recipe names no controls.
    """
    about = f"Average {measure_of(runs)}, run by run of the same order and seed"
    return table_of(compare_averages(runs, recipe, searches, kept), searches, about, "points", 2)


def table_of(
    compared: Mapping[Claim, Comparison],
    searches: Mapping[str, RowSearch],
    about: str,
    unit: str,
    digits: int,
) -> str:
    """The comparisons of a stream after a line that names their test, and how each row was searched; '' where there is
    none.
    """
    table = grid_of_comparisons(compared, ("row", "against"), unit, digits)
    about = f"{about} ({describe_test([*compared.values()])}; {LEAST}):"
    return f"{about}\n\n{table}\n\n{describe_searches(compared, searches)}" if compared else ""


def ages(runs: Sequence[Run], recipe: Recipe) -> str:
    """Accuracy by how many tasks were learned since, after every task."""
    cells = []
    for row in recipe.variants:
        matrices = [_matrix(run) for run in runs if run.row.rpartition(", ")[0] == row]
        square = [matrix for matrix in matrices if matrix.shape[0] == matrix.shape[1] > 1]
        if square:
            found = np.nanmean([accuracy_by_age(100 * matrix) for matrix in square], axis=0)
            cells.append([row, *map(_cell, found)])
    if not cells:
        return ""
    heads = ["tasks learned since", *range(len(cells[0]) - 1)]
    about = f"{measure_of(runs).capitalize()} of a task by how many were learned since, all stages, orders and seeds:"
    return f"{about}\n\n{grid(heads, cells)}"


def wholes(runs: Sequence[Run], recipe: Recipe) -> str:
    """What is scored on the data of all tasks after every task, beside the mean over those learned so far."""
    cells = []
    for row in recipe.variants:
        own = [run.evaluations["stream"].get("after_each") for run in runs if run.row.rpartition(", ")[0] == row]
        for what in ("of all", "of those learned"):
            found = [np.array(each[what]) for each in own if each and what in each]
            if found and len({len(values) for values in found}) == 1:
                cells.append([f"{row}, {what}", *map(_cell, 100 * np.mean(found, axis=0))])
    if not cells:
        return ""
    heads = ["accuracy after task", *range(1, len(cells[0]))]
    has_all = any(row.endswith(", of all") for row, *_ in cells)
    of_all = "On the test sentences of all relations, and as the mean" if has_all else "As the mean"
    about = f"{of_all} over the tasks learned so far, orders and seeds:"
    return f"{about}\n\n{grid(heads, cells)}"


def matrices(runs: Sequence[Run], recipe: Recipe) -> str:
    """The matrix of every method, mean over seeds of the first order."""
    first, parts = next(iter(recipe.orders)), []
    for row in recipe.variants:
        own = [run for run in runs if run.row == f"{row}, {first}"]
        if own:
            tasks: Sequence[str] = own[0].evaluations["stream"]["tasks"]
            mean = 100 * np.mean([_matrix(run) for run in own], axis=0)
            after = tasks if len(mean) > 1 else ["all tasks"]
            cells = [[name, *map(_cell, line)] for name, line in zip(after, mean, strict=False)]
            parts.append(grid([f"{row}, after", *tasks], cells))
    name = "Accuracies" if measure_of(runs) == "accuracy" else measure_of(runs)
    return "\n\n".join([f"{name} in percent, {first}, mean over seeds:", *parts])


def searches(runs: Sequence[Run]) -> str:
    """What the searches tried."""
    cells = []
    for run in runs:
        found = _measures(run, None)
        shown = [_cell(100 * found[name]) if name in found else "" for name in (AVERAGE, LEARNED)]
        seconds = "" if run.cpu_seconds is None else f"{run.cpu_seconds:.0f}"
        cells.append([run.key_of_today[1], run.seed, *shown, seconds, run.commit])
    return grid(["row, trial", "seed", AVERAGE, MEASURES[LEARNED], "CPU s", "commit"], cells)


def texts(found: Measurement) -> str:
    """What the texts of each task are."""
    heads = ["task", "train", "validation", "test", "classes", "largest class of the test, %", "left out"]
    cells = [
        [*(task[name] for name in (*heads[:5],)), _cell(100 * task["largest_class"]), "; ".join(task["notes"])]
        for task in found.facts["tasks"]
    ]
    return grid(heads, cells)


def few_texts(found: Measurement) -> str:
    """Accuracy of every row by set, what it stores and costs, each task right after it was learned, and differences."""
    tasks, rows = found.facts["tasks"], dict[str, list[dict[str, Any]]]()
    for record in found.facts["records"]:
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


def second_tasks(found: Measurement) -> str:
    """Accuracy of a second task right after it was learned: a line a set and number of passes, a column a cell."""
    setting = lambda record: (ALONE,) if record["alone"] else (record["moments"], record["room"])
    records = found.facts["records"]
    learned = {(record["texts"], record["passes"], *setting(record)): record["learned"] for record in records}
    cells = [(ALONE,), *((moments, room) for moments in ("carried", "new") for room in (4, 33))]
    heads = ["texts", "passes", "alone", *(f"moments {moments}, head of {room}" for moments, room in cells[1:])]
    shown = []
    for texts, passes in dict.fromkeys((record["texts"], record["passes"]) for record in records):
        values = [learned.get((texts, passes, *cell)) for cell in cells]
        shown.append([texts, passes, *("" if value is None else _cell(100 * value) for value in values)])
    return grid(heads, shown)


def avalanche(found: Measurement) -> str:
    """Accuracy and speed of both sides, a line a method."""
    cells = []
    for row in found.facts["rows"]:
        sides = [row["memjax"], row["Avalanche"]]
        means = [[100 * float(np.mean(run["accuracies"])) for run in side] for side in sides]
        shown = [f"{np.mean(side):.1f} ({min(side):.1f} to {max(side):.1f})" for side in means]
        seconds = [float(np.median([run["seconds"] for run in side])) for side in sides]
        compiling = float(np.median([run["compile_seconds"] for run in sides[0]]))
        cells.append([row["method"], *shown, f"{np.mean(means[0]) - np.mean(means[1]):+.1f}"])
        cells[-1] += [f"{seconds[0]:.2f}", f"{seconds[1]:.2f}", f"{seconds[1] / seconds[0]:.1f}", f"{compiling:.1f}"]
    heads = ["method", "memjax, %", "Avalanche, %", "points", "memjax, s", "Avalanche, s", "times as fast"]
    return grid([*heads, "memjax compiles, s"], cells)


def job_lines(found: Measurement, jobs: Sequence[Measurement] = ()) -> str:
    """Lines of code and commands of one job, a line for each library, and the results of its runs if known."""
    noted = {"shipped_lines": "in a shipped config", "reading_lines": "read the images"}
    done = {job.name: _job_cells(job) for job in jobs}
    heads = [*next(iter(done.values()))] if done else []
    cells = []
    for library, facts in found.facts.items():
        notes = "".join(f" ({facts[name]} {words})" for name, words in noted.items() if name in facts)
        row = [library, f"{facts['lines']}{notes}", facts["commands"]]
        cells.append([*row, *(done.get(library, {}).get(head, "") for head in heads)])
    return grid(["library", "lines of code", "commands", *heads], cells)


def same_job(found: Measurement) -> str:
    """CPU time and average accuracies of one job with one library."""
    cells = _job_cells(found)
    return grid([*cells], [[*cells.values()]])


def _job_cells(found: Measurement) -> dict[str, str]:
    """Head of a column -> its cell: CPU time, then the average accuracy of each method with its interval."""
    shown = {row["method"]: f"{100 * row['mean']:.1f} ± {100 * row['half_width']:.1f}" for row in found.facts["rows"]}
    return {"CPU, minutes": f"{found.facts['cpu_seconds'] / 60:.1f}", **shown}


def _whole(run: Run) -> float:
    return WHOLE.get(run.evaluations["stream"].get("measure", ""), 1.0)


def _matrix(run: Run) -> np.ndarray:
    """Of shares, whatever the measure is."""
    return np.array(run.evaluations["stream"]["scores"], np.float64) / _whole(run)


def _measures(run: Run, kept: Sequence[str] | None) -> Mapping[str, Any]:
    """The numbers of a run as shares, of the tasks that are kept."""
    told: Mapping[str, Any] = run.evaluations["stream"]
    facts: dict[str, Any] = {**told} | {
        name: value / _whole(run) for name, value in told.items() if isinstance(value, float)
    }
    if kept is None or set(kept) == set(facts["tasks"]):
        return facts
    columns, matrix = [facts["tasks"].index(name) for name in kept], _matrix(run)
    found = {AVERAGE: float(np.mean(matrix[-1, columns]))}
    if len(matrix) > 1:
        lost = [*forgetting(matrix), np.nan]
        found[LEARNED] = float(np.nanmean(np.diag(matrix)[columns]))
        found["forgetting"] = float(np.nanmean([lost[column] for column in columns]))
    if facts["tasks"][-1] in kept and "last_task_accuracy" in facts:
        found["last_task_accuracy"] = facts["last_task_accuracy"]
    return found


def _mean(values: npt.ArrayLike) -> float:
    values = np.asarray(values, np.float64)
    known = values[~np.isnan(values)]
    return float(known.mean()) if known.size else float("nan")


def _cell(value: float) -> str:
    return "" if np.isnan(value) else f"{value:.1f}"


def written(found: Measurement) -> str:
    """What a model has written of each of its tasks, a line a task, and the first texts of each."""
    heads = ["task", "one mark", "of the task", "different", "score of these alone", "of as many real ones", "a second"]
    percent = lambda value: f"{100 * value:.0f} %"
    cells = [
        [
            one["task"],
            *(percent(one[name]) for name in ("one_mark", "of_task", "different")),
            f"{one['score_of_written']:.1f}",
            f"{one['score_of_real']:.1f}",
            f"{one['written'] / one['seconds']:.1f}",
        ]
        for one in found.facts["tasks"]
    ]
    shown = [f"- {one['task']}: {' '.join(text.split())}" for one in found.facts["tasks"] for text in one["texts"]]
    return "\n\n".join([grid(heads, cells), "The first texts of each task, cut at ANS:", "\n".join(shown)])
