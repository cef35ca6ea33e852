"""Which page shows what: all of `tables/`, the README of the results, and what stands between markers elsewhere."""

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
    describe_earlier_search,
    describe_hours,
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
"""pages of `docs/` that have results between markers"""
MOST_FILES = 80
"""under `tools/results`"""
MOST_CHARACTERS = 200
"""of a cell of a table in a text for people, as it is shown: two lines"""
TOP = ROOT.parents[1]
TEXTS = tuple(TOP / name for name in ("README.md", *(f"docs/{page}.md" for page in DOCS)))
"""files that have results between markers"""
_LINKS = re.compile(r"\]\((?=tools/|tests/|docs/)")
"""from the top of the repository, in a cell"""
LOGS = "b2cbca3"
"""the last commit with a folder of logs for every run"""

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
    "second_tasks": streams.second_tasks,
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
    "lifelong_vectors": ("few_texts", "second_tasks"),
    "bench": ("bench", "end_to_end", "profile"),
    "replay": ("replay", "rematerialization"),
    "costs": ("costs", "memory_costs", "checksums", "saves", "compile_times"),
    "search": ("store_choice", "search"),
    "decode_speed": ("decode_speed", "decode_positions"),
    "episodes": ("episodes",),
    "lifelong_meta": ("coarse", "neighbor_tasks"),
    "lifelong_relations": ("relation_spread",),
    "lifelong_lamol": ("written",),
    "lifelong_pretraining": ("shared_texts", "ancestors"),
    "product_key_steps": ("product_key_steps",),
    "plans": ("plan", "learner_plan", "searched_plan", "attention_programs"),
    "language_models": ("llm_memories", "llm_windows", "llm_speed", "llm_recall", "adapter_states"),
    "learns": ("learns",),
}
"""page -> kinds of measurements that stand on it, after the runs of the recipe of that name"""
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
logs of all runs up to then, line by line, are in the history: `git show {logs}:tools/results/logs`.

"""
ABOUT_LEARNING = (
    "Small models on tasks that nothing but the memory can solve (`tests/learns`): with it `kept`; with every segment "
    "finding it `cleared`, or that of another row (`shuffled`); and the `parent`, the same model trained without. "
    "`make test-slow` trains them again, and its bounds are made of these numbers."
)
_MARKS = re.compile(r"<!--.*?-->|\]\([^)]*\)")
"""what stands in a cell and is not shown: markers, and where links lead"""
_MARKED = re.compile(r"<!-- result: (\w+) -->(.*?)<!-- end -->", re.DOTALL)


def pages(book: Book) -> dict[str, str]:
    """File in the folder of the book -> its text."""
    runs, measurements = book.runs(), book.measurements()
    names = dict.fromkeys([*(page_of(run.recipe.partition(":")[0]) for run in runs), *MEASURED])
    found: dict[str, str] = {}
    lines = []
    for name in names:
        own = [one for kind in MEASURED.get(name, ()) for one in measurements if one.kind == kind]
        shown = [run for run in runs if page_of(run.recipe.partition(":")[0]) == name]
        if shown or own:
            found[f"tables/{name}.md"] = page(name, shown, own, book)
            count = f"{len(shown)} runs" if shown else ""
            count += f"{', ' if shown and own else ''}{len(own)} measurements" if own else ""
            lines.append(f"- [{name}](tables/{name}.md): {count}")
    if any(run.recipe in RECIPES for run in runs):
        found[f"tables/{survey.PAGE}.md"] = survey.page(make_known(book))
        lines.append(f"- [{survey.PAGE}](tables/{survey.PAGE}.md): all systems of lifelong learning")
    header = HEADER.format(points=MOST_POINTS, logs=LOGS)
    return {"README.md": header + "\n".join(lines) + "\n", **found}


def page(name: str, runs: Sequence[Run], measurements: Sequence[Measurement], book: Book) -> str:
    """The runs of a recipe, or of those that share the page, and the measurements that belong to them."""
    recipes = dict.fromkeys(run.recipe.partition(":")[0] for run in runs)
    parts = [] if recipes else [f"# {TITLES.get(name, name)}"]
    for recipe in recipes:
        own = [run for run in runs if run.recipe.partition(":")[0] == recipe]
        parts += [f"# {TITLES.get(recipe, recipe)}", *_of_recipe(recipe, own, measurements, book)]
    plans = [one for one in measurements if one.kind == "plan"]
    if plans:
        parts.append(plan_tables.plans(plans))
    if learned := [one for one in measurements if one.kind == "learns"]:
        parts += [ABOUT_LEARNING, comparisons.learned(learned), comparisons.differences_of_learned(learned)]
    if suites := [one for one in measurements if one.kind == "bench"]:
        parts.append(race.summarise(suites))
    if profiles := [one for one in measurements if one.kind == "profile"]:
        parts.append(race.tabulate_profiles(profiles))
        parts += filter(None, [race.tabulate_bounds(suites, profiles)])
    parts += [section(one) for one in measurements if one.kind in TABLES]
    return "\n\n".join(parts) + "\n"


def section(found: Measurement) -> str:
    """A measurement: where it comes from, how it was made, its table."""
    known = [
        f"`{command_of_today(found.command)}`" if found.command else "",
        f"commit {found.commit}" if found.commit else "",
    ]
    origin = "; ".join(part for part in (*known, found.hardware) if part)
    parts = [f"## {found.title}", " ".join(part for part in (f"{origin}." if origin else "", found.about) if part)]
    if found.kind in TABLES:
        parts.append(TABLES[found.kind](found))
    return "\n\n".join(parts)


def marked(text: str, book: Book, up: str = "") -> str:
    """A text with what the book says between its markers.

    Args:
      text: with markers.
      book: what they say.
      up: from the folder of the text to the top of the repository: '', '../' and so on.

    Raises:
      ValueError: a marker that names no cell.
    """
    known = make_known(book)

    def said(match: re.Match[str]) -> str:
        found = _LINKS.sub(f"]({up}", marked_text(match[1], known))
        return f"<!-- result: {match[1]} -->{found}<!-- end -->"

    return _MARKED.sub(said, text)


def make_known(book: Book) -> Known:
    """Returns the runs and measurements of a book by name."""
    measured = {(one.kind, one.name): one for one in book.measurements()}
    return Known({run.key: run for run in book.runs()}, measured)


def elsewhere(book: Book) -> dict[Path, str]:
    """File outside of the book -> its text, with what the committed book says; {} of any other book."""
    if book != Book():
        return {}
    up = lambda file: "../" * (len(file.parts) - len(TOP.parts) - 1) if file.is_relative_to(TOP) else ""
    texts = {file: marked(file.read_text(encoding="utf-8"), book, up(file)) for file in TEXTS}
    return texts | {TOP / name: text for name, text in pictures(book).items()}


def write(book: Book | None = None) -> None:
    """Writes all pages of a book; of the committed one, the default, also what stands between markers elsewhere."""
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


def record(found: Measurement, book: Book | None = None) -> None:
    """Adds a measurement to a book, the committed one by default, writes its pages and prints its section."""
    (book or Book()).measure(found)
    write(book)
    print(section(found))


def check(book: Book | None = None) -> list[str]:
    """What is out of date or too much: pages, marked texts, claims by hand, cells of tables, the number of files."""
    book = book or Book()
    others = elsewhere(book)
    wanted = {book.folder / name: text for name, text in pages(book).items()} | others
    hint = "run `python -m tools.results table`"
    found = [
        f"{file.name}: does not say what the ledger says; {hint}"
        for file, text in wanted.items()
        if not file.exists() or file.read_text(encoding="utf-8") != text
    ]
    stale = {file for file in (book.folder / "tables").glob("*")} - wanted.keys()
    found += [f"tables/{file.name}: is of no recipe and no measurement; {hint}" for file in sorted(stale)]
    files = [file for file in book.folder.rglob("*") if file.is_file() and "__pycache__" not in file.parts]
    if len(files) > MOST_FILES:
        found.append(f"{book.folder.name}: given {len(files)} files, allowed: at most {MOST_FILES}")
    found += check_texts() if others else []
    for file in (file for file in others if file.suffix == ".md"):
        found += [
            f"{file.name}: a cell of {len(cell)} characters, allowed: at most {MOST_CHARACTERS}: {cell[:60]}..."
            for line in file.read_text(encoding="utf-8").splitlines()
            if line.startswith("| ")
            for cell in map(str.strip, _MARKS.sub("", line).strip("|").split(" | "))
            if len(cell) > MOST_CHARACTERS
        ]
    return found


def _of_recipe(name: str, runs: Sequence[Run], measurements: Sequence[Measurement], book: Book) -> list[str]:
    recipe = RECIPES.get(name)
    about = (describe_earlier_search(runs, name), describe_hours(runs, name)) if recipe else ()
    parts = [" ".join(filter(None, (recipe.description, *about)))] if recipe else []
    main = [run for run in runs if run.recipe == name]
    searched = [run for run in runs if run.recipe != name]
    searches = find_searches(runs, name)
    if recipe and recipe.orders:
        texts = [one for one in book.measurements() if recipe.texts and (one.kind, one.name) == ("texts", recipe.texts)]
        findings = fill_in(qualify_findings(recipe, searches), compare_recipe(name, runs, *texts))
        parts += filter(None, [streams.averages_by_size(book.runs(), recipe)])
        return parts + _of_streams(main, searched, searches, recipe, findings, texts[0] if texts else None)
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
    for one in (one for one in book.measurements() if (one.kind, one.name) == ("flops", name)):
        parts += [section(one), tables.flops(one, main, recipe)]
    parts += ["## Where the runs come from", tables.origins(main)]
    if searched:
        parts += ["## Search", tables.rows(searched), tables.origins(searched)]
    return parts


def _of_streams(
    runs: Sequence[Run],
    searched: Sequence[Run],
    searches: Mapping[str, RowSearch],
    recipe: Recipe,
    findings: str,
    texts: Measurement | None,
) -> list[str]:
    """Rows over orders and seeds; of the commands, those of the first order and seed."""
    if perplexities.is_of_nats(runs):
        own = [perplexities.methods(runs, recipe), perplexities.differences(runs, recipe, searches)]
        own += [perplexities.costs(runs, recipe), findings]
        own += ["## Where the runs come from", tables.origins([run for run in runs if run.seed == recipe.seeds[0]])]
        return [part for part in own if part]
    kept = streams.kept_tasks(runs, texts)
    parts = [
        streams.methods(runs, recipe, kept),
        streams.beside(runs, recipe),
        streams.differences(runs, recipe, searches, kept),
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
