"""Writes and checks all pages with results: `tables/`, the README beside it, and texts between markers elsewhere."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from tools.recipes import RECIPES, Recipe, page_of
from tools.results import (
    backward_tables,
    comparisons,
    perplexities,
    plan_tables,
    race,
    speed_tables,
    streams,
    survey,
    tables,
)
from tools.results.claims import check_texts
from tools.results.ledger import MOST_POINTS, ROOT, Book, Measurement, Run, command_of_today
from tools.results.marked_texts import marked_text
from tools.results.searches import (
    RowSearch,
    describe_hours,
    describe_lengths,
    find_searches,
    qualify_findings,
)
from tools.results.verdicts import compare_recipe, fill_in
from tools.texts.known import Known
from tools.texts.pictures import pictures

DOCS = (
    "papers",
    *(f"guides/{name}" for name in ("training", "pods", "plan", "datastores", "lifelong", "llms")),
    *(f"guides/llms_{name}" for name in ("memory", "adapters")),
)
"""Pages of `docs/` that have results between markers"""
MOST_FILES = 80
"""Largest number of files in the folder of a book, such as `tools/results`"""
MOST_CHARACTERS = 200
"""Largest number of characters in a table cell of a README or guide, as it is shown. They fill two lines"""
TOP = ROOT.parents[1]
TEXTS = tuple(TOP / name for name in ("README.md", *(f"docs/{page}.md" for page in DOCS)))
"""Markdown files outside of `tools/results` that have results between markers"""
_LINKS = re.compile(r"\]\((?=tools/|tests/|docs/)")
"""Beginning of a link in a cell whose target is a path from the top of the repository"""
LOGS = "b2cbca3"
"""Last commit with a folder of logs for every run"""

TABLES: Mapping[str, Callable[[Measurement], str]] = {
    **tables.TABLES,
    **speed_tables.TABLES,
    **backward_tables.TABLES,
    **plan_tables.TABLES,
    **race.TABLES,
    "avalanche": streams.avalanche,
    "job_lines": streams.job_lines,
    "same_job": streams.same_job,
    "texts": streams.texts,
    "few_texts": streams.few_texts,
    "written": streams.written,
    "ancestors": perplexities.ancestors,
    "shared_texts": perplexities.shared_texts,
}
MEASURED = {
    "knn_lm": ("knn_lm", "continuous_cache", "both", "spalm", "store_size", "larger_store")
    + ("distances", "key_positions", "domain", "memorization"),
    "wikitext2_memories": ("neighbor_hits",),
    "memory_gain": ("gains",),
    "sorting": ("regression",),
    "lifelong_mnist": ("avalanche", "job_lines", "same_job"),
    "texts": ("texts",),
    "lifelong_vectors": ("few_texts",),
    "bench": ("bench", "end_to_end", "profile"),
    "replay": ("replay", "rematerialization"),
    "costs": ("costs", "memory_costs", "checksums", "saves", "compile_times"),
    "search": ("store_choice", "search"),
    "decode_speed": ("decode_speed", "decode_positions"),
    "episodes": ("episodes",),
    "lifelong_meta": ("coarse", "neighbor_tasks"),
    "lifelong_lamol": ("written",),
    "lifelong_pretraining": ("shared_texts", "ancestors"),
    "product_key_steps": ("product_key_steps",),
    "plans": ("plan", "learner_plan", "searched_plan", "attention_programs"),
    "language_models": ("llm_memories", "llm_windows", "llm_speed", "llm_recall", "adapter_states"),
    "learns": ("learns",),
}
"""Page -> kinds of measurements on it. They stand after the runs of the recipe of the same name"""
TITLES = {
    "texts": "Texts of streams",
    "bench": "Speed beside other implementations",
    "replay": "Memory of the backward pass through many segments",
    "costs": "FLOPs and state",
    "search": "Indices of a datastore",
    "decode_speed": "Speed of decoding",
    "episodes": "Episodic memory",
    "lifelong_meta": "Learning to adapt",
    "product_key_steps": "Product keys",
    "plans": "Plans",
    "language_models": "Imported language models",
    "learns": "What models learn to use of their memories",
}
"""Page or recipe -> its title, where that is not its name"""

LOST_COMMITS = (
    *("00b1c4b5f133", "3c5e39774204", "5eba7ff92a50", "61138eb95b7d", "6ad5d025117a", "c3e36c1e4574", "cc790677ba1d"),
    "d6325c266f02",
)
"""Commits of runs that the history does not have, since they were joined with others"""
JOINED = "d088dbba"
"""Commit that has the changes of `LOST_COMMITS`, and the first with their runs"""
HEADER = """# Results

A number has one home. [ledger.jsonl](ledger.jsonl) has a line a run: recipe, row, seed, command, commit, hardware, what
its configuration changes of the one shipped at that commit, versions, results and evaluations. `curves/` has, a
file a config, at most {points} points of what every run logged, all columns. [measurements.jsonl](measurements.jsonl)
has what is no run: rounds of benchmarks with all their times, plans, searches, stores. `tables/` and this page
are made of them:

    python -m tools.results search RECIPE  # searches the settings of every row; says the hours, may be interrupted
    python -m tools.results run RECIPE     # trains and records what the ledger does not have; may be interrupted
    python -m tools.results table          # writes the tables and what stands between markers elsewhere
    python -m tools.results check          # fails where a table is out of date, or a text claims a verdict by hand

Speed is never compared between rows of different runs: `python -m tools.bench` measures contenders in alternation. The
logs of all runs up to then, line by line, are in the history: `git show {logs}:tools/results/logs`. The commits {lost}
of the ledger are not in it: they were joined into {joined}.

"""
ABOUT_LEARNING = (
    "Small models on tasks that nothing but the memory can solve (`tests/learns`): with it `kept`; with every segment "
    "finding it `cleared`, or that of another row (`shuffled`); and the `parent`, the same model trained without. "
    "`make test-slow` trains them again, and its bounds are made of these numbers."
)
_MARKS = re.compile(r"<!--.*?-->|\]\([^)]*\)")
"""Parts of a cell that are not shown: markers and the targets of links"""
_MARKED = re.compile(r"<!-- result: (\w+) -->(.*?)<!-- end -->", re.DOTALL)


def pages(book: Book) -> dict[str, str]:
    """Returns the text of each generated file in the folder of a book: path in the folder -> text."""
    runs, measurements = book.runs(), book.measurements()
    names = dict.fromkeys([*(page_of(run.recipe.partition(":")[0]) for run in runs), *MEASURED])
    texts: dict[str, str] = {}
    lines = []
    for name in names:
        kinds = MEASURED.get(name, ())
        measured = [measurement for kind in kinds for measurement in measurements if measurement.kind == kind]
        shown = [run for run in runs if page_of(run.recipe.partition(":")[0]) == name]
        if shown or measured:
            texts[f"tables/{name}.md"] = page(name, shown, measured, book)
            count = f"{len(shown)} runs" if shown else ""
            count += f"{', ' if shown and measured else ''}{len(measured)} measurements" if measured else ""
            lines.append(f"- [{name}](tables/{name}.md): {count}")
    if any(run.recipe in RECIPES for run in runs):
        texts[f"tables/{survey.PAGE}.md"] = survey.page(make_known(book))
        lines.append(f"- [{survey.PAGE}](tables/{survey.PAGE}.md): systems of lifelong learning")
    header = HEADER.format(points=MOST_POINTS, logs=LOGS, lost=", ".join(LOST_COMMITS), joined=JOINED)
    return {"README.md": header + "\n".join(lines) + "\n", **texts}


def page(name: str, runs: Sequence[Run], measurements: Sequence[Measurement], book: Book) -> str:
    """Returns the text of a page: the runs of each recipe on it, then the measurements that belong to them.

    Args:
      name: Name of the page.
      runs: Runs of all recipes on the page, trials of their searches among them.
      measurements: Measurements on the page.
      book: Book of the page.
    """
    recipes = dict.fromkeys(run.recipe.partition(":")[0] for run in runs)
    parts = [] if recipes else [f"# {TITLES.get(name, name)}"]
    for recipe in recipes:
        recipe_runs = [run for run in runs if run.recipe.partition(":")[0] == recipe]
        parts += [f"# {TITLES.get(recipe, recipe)}", *_render_recipe(recipe, recipe_runs, measurements, book)]
    plans = [measurement for measurement in measurements if measurement.kind == "plan"]
    if plans:
        parts.append(plan_tables.plans(plans))
    if learned := [measurement for measurement in measurements if measurement.kind == "learns"]:
        parts += [ABOUT_LEARNING, comparisons.learned(learned), comparisons.differences_of_learned(learned)]
    if suites := [measurement for measurement in measurements if measurement.kind == "bench"]:
        parts.append(race.summarise(suites))
    if profiles := [measurement for measurement in measurements if measurement.kind == "profile"]:
        parts.append(race.tabulate_profiles(profiles))
        parts += filter(None, [race.tabulate_bounds(suites, profiles)])
    parts += [section(measurement) for measurement in measurements if measurement.kind in TABLES]
    return "\n\n".join(parts) + "\n"


def section(measurement: Measurement) -> str:
    """Returns the section of a measurement on its page: its title, its origin, how it was made, and its table."""
    command = f"`{command_of_today(measurement.command)}`" if measurement.command else ""
    commit = f"commit {measurement.commit}" if measurement.commit else ""
    origin = "; ".join(part for part in (command, commit, measurement.hardware) if part)
    about = " ".join(part for part in (f"{origin}." if origin else "", measurement.about) if part)
    parts = [f"## {measurement.title}", about]
    if measurement.kind in TABLES:
        parts.append(TABLES[measurement.kind](measurement))
    return "\n\n".join(parts)


def marked(text: str, book: Book, up: str = "") -> str:
    """Returns a text with results filled in between its markers.

    Args:
      text: Text with markers, `<!-- result: NAME -->` and `<!-- end -->`. Anything between them is replaced.
      book: Book with the results.
      up: Path from the folder of the text to the top of the repository, such as '' or '../'. It is put before the
        targets of links.

    Raises:
      ValueError: A marker names no result (`tools.results.marked_texts.MAKERS`).
    """
    known = make_known(book)

    def fill_marker(match: re.Match[str]) -> str:
        result = _LINKS.sub(f"]({up}", marked_text(match[1], known))
        return f"<!-- result: {match[1]} -->{result}<!-- end -->"

    return _MARKED.sub(fill_marker, text)


def make_known(book: Book) -> Known:
    """Returns the runs and measurements of a book by name."""
    measured = {(measurement.kind, measurement.name): measurement for measurement in book.measurements()}
    return Known({run.key: run for run in book.runs()}, measured)


def elsewhere(book: Book) -> dict[Path, str]:
    """Returns the text of each file outside of a book that has results of it: file -> text. Only the committed book has
    such files. {} for any other book.
    """
    if book != Book():
        return {}
    up = lambda file: "../" * (len(file.parts) - len(TOP.parts) - 1) if file.is_relative_to(TOP) else ""
    texts = {file: marked(file.read_text(encoding="utf-8"), book, up(file)) for file in TEXTS}
    return texts | {TOP / name: text for name, text in pictures(book).items()}


def write(book: Book | None = None) -> None:
    """Writes all pages of a book, and removes pages of `tables/` that it no longer has.

    Args:
      book: Book to write. None for the committed one, whose results are also written between markers elsewhere and into
        pictures.
    """
    book = book or Book()
    wanted = pages(book)
    for file in (book.folder / "tables").glob("*.md"):
        if f"tables/{file.name}" not in wanted:
            file.unlink()
    for name, text in wanted.items():
        (book.folder / name).parent.mkdir(parents=True, exist_ok=True)
        (book.folder / name).write_text(text, encoding="utf-8")
    for file, text in elsewhere(book).items():
        file.write_text(text, encoding="utf-8")


def record(measurement: Measurement, book: Book | None = None) -> None:
    """Adds a measurement to a book, writes the pages of the book, and prints the section of the measurement.

    Args:
      measurement: Measurement to add.
      book: Book that gets it. None for the committed one.
    """
    (book or Book()).measure(measurement)
    write(book)
    print(section(measurement))


def check(book: Book | None = None) -> list[str]:
    """Returns a line for each problem of a book and its pages. [] where there is none.

    Problems are files that are out of date, files of `tables/` that belong to no recipe and no measurement, too many
    files, and, for the committed book, verdicts that a text claims by hand and table cells that are too long.

    Args:
      book: Book to check. None for the committed one.
    """
    book = book or Book()
    others = elsewhere(book)
    wanted = {book.folder / name: text for name, text in pages(book).items()} | others
    hint = "run `python -m tools.results table`"
    problems = [
        f"{file.name}: does not say what the ledger says; {hint}"
        for file, text in wanted.items()
        if not file.exists() or file.read_text(encoding="utf-8") != text
    ]
    stale = {file for file in (book.folder / "tables").glob("*")} - wanted.keys()
    problems += [f"tables/{file.name}: is of no recipe and no measurement; {hint}" for file in sorted(stale)]
    files = [file for file in book.folder.rglob("*") if file.is_file() and "__pycache__" not in file.parts]
    if len(files) > MOST_FILES:
        problems.append(f"{book.folder.name}: given {len(files)} files, allowed: at most {MOST_FILES}")
    problems += check_texts() if others else []
    for file in (file for file in others if file.suffix == ".md"):
        problems += [
            f"{file.name}: a cell of {len(cell)} characters, allowed: at most {MOST_CHARACTERS}: {cell[:60]}..."
            for line in file.read_text(encoding="utf-8").splitlines()
            if line.startswith("| ")
            for cell in map(str.strip, _MARKS.sub("", line).strip("|").split(" | "))
            if len(cell) > MOST_CHARACTERS
        ]
    return problems


def _render_recipe(name: str, runs: Sequence[Run], measurements: Sequence[Measurement], book: Book) -> list[str]:
    """Returns the parts of a page with the runs of one recipe and the trials of its search."""
    recipe = RECIPES.get(name)
    said = [recipe.description, describe_lengths(recipe), describe_hours(runs, name)] if recipe else []
    parts = [" ".join(filter(None, said))] if recipe else []
    main = [run for run in runs if run.recipe == name]
    searched = [run for run in runs if run.recipe != name]
    searches = find_searches(runs, name)
    if recipe and recipe.orders:
        texts = _measurements_of(book, "texts", recipe.texts) if recipe.texts else []
        findings = fill_in(qualify_findings(recipe, searches), compare_recipe(name, runs, *texts))
        parts += filter(None, [streams.averages_by_size(book.runs(), recipe)])
        return parts + _render_stream(main, searched, searches, recipe, findings, texts[0] if texts else None)
    parts.append(tables.rows(main, recipe))
    if recipe and (compared := comparisons.differences(main, recipe, searches)):
        parts.append(compared)
    if figures := comparisons.memory_figures(main):
        parts.append(figures)
    curves = book.curves(name)
    if recipe and recipe.findings:
        parts.append(fill_in(qualify_findings(recipe, searches), compare_recipe(name, runs)))
    if recipe and recipe.curve:
        parts.append(tables.curve(main, curves, recipe.curve))
    if name == "memory_added":
        parts.append(tables.gap(main, curves))
    if used := tables.usage(main):
        parts.append(used)
    for flops in _measurements_of(book, "flops", name):
        parts += [section(flops), tables.flops(flops, main, recipe)]
    parts += ["## Where the runs come from", tables.origins(main)]
    if searched:
        parts += ["## Search", tables.rows(searched), tables.origins(searched)]
    return parts


def _measurements_of(book: Book, kind: str, name: str) -> list[Measurement]:
    return [measurement for measurement in book.measurements() if (measurement.kind, measurement.name) == (kind, name)]


def _render_stream(
    runs: Sequence[Run],
    searched: Sequence[Run],
    searches: Mapping[str, RowSearch],
    recipe: Recipe,
    findings: str,
    texts: Measurement | None,
) -> list[str]:
    """Returns the parts of a page with the runs of a stream of tasks: rows over orders and seeds, and the commands of
    the first order and seed.
    """
    if perplexities.is_of_nats(runs):
        parts = [perplexities.methods(runs, recipe), perplexities.differences(runs, recipe, searches)]
        parts += [perplexities.costs(runs, recipe), findings]
        parts += ["## Where the runs come from", tables.origins([run for run in runs if run.seed == recipe.seeds[0]])]
        return [part for part in parts if part]
    counted_tasks = streams.kept_tasks(runs, texts)
    parts = [
        streams.methods(runs, recipe, counted_tasks),
        streams.diverged_rows(runs, recipe),
        streams.beside(runs, recipe),
        streams.differences(runs, recipe, searches, counted_tasks),
        findings,
    ]
    parts += [streams.tasks_alone(runs, texts)] if texts else []
    parts += [
        streams.shares_of_answers(runs, recipe),
        streams.written_texts(runs, recipe),
        streams.costs(runs, recipe),
        streams.wholes(runs, recipe),
        streams.ages(runs, recipe),
        streams.matrices(runs, recipe),
    ]
    first = [run for run in runs if run.row.endswith(f", {next(iter(recipe.orders))}") and run.seed == recipe.seeds[0]]
    parts += ["## Where the runs come from", tables.origins(first)]
    if searched:
        parts += [
            "## Search",
            streams.searches(searched),
        ]
    return [part for part in parts if part]
