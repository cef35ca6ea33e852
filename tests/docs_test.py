"""Pages of `docs/` and others: links lead somewhere, commands have their options, code runs, Sphinx has no warning."""

import ast
import importlib
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from memjax.cli import main
from memjax.settings.overrides import load_config

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted(ROOT.glob("docs/*.md")), *sorted(ROOT.glob("docs/*/*.md"))]
"""pages that are written by hand: `make docs` writes further ones below the folders of `docs/api`"""
LINKING = [
    *PAGES,
    *(ROOT / name for name in ("CONTRIBUTING.md", "CHANGELOG.md", "tools/results/README.md", "tests/golden/README.md")),
    *sorted(ROOT.glob("tools/results/tables/*.md")),
]
WITHOUT_PAGE = {"cli", "settings", "configs"}
"""parts of memjax with no page of their own in the reference: commands, and what `memjax.config` shows"""


@pytest.fixture
def docs_modules(monkeypatch):
    """The module `docs/modules.py`, which lists the modules and names of the reference."""
    monkeypatch.syspath_prepend(str(ROOT / "docs"))
    return importlib.import_module("modules")


def name(page: Path) -> str:
    return str(page.relative_to(ROOT))


def blocks(page: Path, language: str, before: str = "") -> list[str]:
    return re.findall(rf"{before}```{language}\n(.*?)```", page.read_text(), re.S)


def prose(text: str) -> str:
    """A text without code: what it links to."""
    return re.sub(r"`[^`\n]*`", "", re.sub(r"```.*?```", "", text, flags=re.S))


def anchors(text: str) -> set[str]:
    """Of its headings, as a file browser makes them."""
    headings = re.findall(r"^#+ (.*)$", re.sub(r"```.*?```", "", text, flags=re.S), re.M)
    return {re.sub(r"[^\w\- ]", "", re.sub(r"\]\(.*?\)", "]", head).lower()).replace(" ", "-") for head in headings}


def broken(text: str, folder: Path) -> list[str]:
    """Links inside the repository that lead nowhere."""
    found = []
    for link in re.findall(r"\]\(([^)\s]+)\)", prose(text)):
        place, _, anchor = link.partition("#")
        target = folder / place if place else None
        if "://" in link or link.startswith("mailto:"):
            continue
        if target is not None and not target.exists():
            found.append(link)
        elif anchor and anchor not in anchors(text if target is None else target.read_text()):
            found.append(link)
    return found


def test_links_lead_somewhere():
    found = {name(page): broken(page.read_text(), page.parent) for page in LINKING}
    for notebook in ROOT.glob("colabs/*.py"):
        said = "\n".join(line[2:] for line in notebook.read_text().splitlines() if line.startswith("# "))
        found[name(notebook)] = broken(said, notebook.parent)
    assert {page: links for page, links in found.items() if links} == {}


def test_links_that_are_named_like_a_file_lead_to_it():
    links = [
        (name(page), *link) for page in LINKING for link in re.findall(r"\[(\w+\.py)\]\(([^)#]+)", page.read_text())
    ]
    assert len(links) > 20 and [link for link in links if not link[2].endswith(f"/{link[1]}")] == []


def test_a_link_that_leads_nowhere_is_found(tmp_path):
    (tmp_path / "a.md").write_text("# One, two `three`\n")
    text = "# Here\n[x](a.md#one-two-three) [x](a.md#four) [x](b.md) [x](#here) [x](#there) [x](https://x) `[x](c.md)`"
    assert broken(text, tmp_path) == ["a.md#four", "b.md", "#there"]


def test_every_page_is_reached_from_the_index():
    named = set()
    for index in (ROOT / "docs/index.md", ROOT / "docs/api/index.md"):
        for tree in blocks(index, r"{toctree}"):
            named |= {f"{index.parent.relative_to(ROOT)}/{line}" for line in tree.splitlines() if line}
    assert {name(page).removesuffix(".md") for page in PAGES[1:]} - {"docs/index"} <= named


def test_the_reference_has_a_page_for_every_part():
    parts = {path.name for path in (ROOT / "memjax").iterdir() if path.is_dir() and path.name[0] != "_"}
    pages = {page.stem for page in ROOT.glob("docs/api/*.md")}
    assert pages == (parts - WITHOUT_PAGE) | {"index", "config", "typing"}
    for page in pages - {"index"}:
        assert f"{{package}} memjax.{page}\n" in (ROOT / f"docs/api/{page}.md").read_text()


def test_the_reference_has_a_page_for_every_module_with_names(docs_modules):
    for package in ("memory", "data", "lifelong"):
        files = {path.stem for path in (ROOT / f"memjax/{package}").glob("*.py") if path.stem[0] != "_"}
        shown = {module.short for module in docs_modules.modules_of(f"memjax.{package}")}
        assert [file for file in files - shown if docs_modules.read_module(f"memjax.{package}.{file}").names] == []
        assert len(shown) > 20
    kinds = {module.module for module in docs_modules.modules_of("memjax.config")}
    assert {"memjax.config", "memjax.settings.attention", "memjax.settings.training"} <= kinds


def test_the_table_of_names_begins_with_the_first_paper_and_has_all_first_lines(docs_modules):
    modules = docs_modules.modules_of("memjax.memory", ("papers",))
    assert [module.short for module in modules][:2] == ["transformer_xl", "compressive"]
    first = {name.name: name.line for name in modules[0].names}
    assert first["TransformerXLAttention"].endswith(".")
    packages = [page.stem for page in ROOT.glob("docs/api/*.md") if page.stem != "index"]
    every = [module for package in packages for module in docs_modules.modules_of(f"memjax.{package}")]
    assert [module.module for module in every if not module.line] == []
    assert [name for module in every for name in module.names if not name.line] == []


def test_the_tree_lists_what_is_there():
    tree = blocks(ROOT / "docs/tree.md", "text")[0]
    named = re.findall(r"^  (\w+(?:/|\.py))", tree, re.M)
    assert [one for one in named if not (ROOT / "memjax" / one).exists()] == []
    parts = {path.name for path in (ROOT / "memjax").iterdir() if path.is_dir() and path.name[0] != "_"}
    assert {f"{part}/" for part in parts if part != "configs"} <= set(named)


def defines(path: Path, dotted: str) -> bool:
    """Whether a module defines a function, a class, or a method of a class in its own body."""
    body: list[ast.stmt] = ast.parse(path.read_text()).body
    for name in dotted.split("."):
        node = next((node for node in body if getattr(node, "name", "") == name), None)
        if not isinstance(node, ast.ClassDef | ast.FunctionDef):
            return False
        body = node.body
    return True


def lost_stops(drawing: str) -> list[str]:
    """Returns the lines of a drawing that name a file or a function that does not exist."""
    stops = re.findall(r"^[ |+-]*([\w/]+\.py) +([A-Za-z_][\w.]*)?.*$", drawing, re.M)
    assert len(stops) > 10
    return [
        f"{file} {dotted}"
        for file, dotted in stops
        if not (path := ROOT / "memjax" / file).exists() or dotted and not defines(path, dotted)
    ]


def test_the_drawings_name_what_is_there():
    page = ROOT / "docs/tree.md"
    _, *drawings = blocks(page, "text")
    assert len(drawings) == 4
    assert [stop for drawing in drawings for stop in lost_stops(drawing)] == []
    named = re.findall(r"[\w/]+/\w+\.py|\b\w+\.py", page.read_text().partition("## ")[2])
    assert [file for file in named if not any((ROOT / "memjax").glob(f"**/{file}")) and "configs/" not in file] == []


def commands(page: Path) -> list[list[str]]:
    """Words of every `memjax` command on a page, without its name."""
    lines = [line for block in blocks(page, "bash") for line in block.splitlines()]
    found = (shlex.split(line, comments=True) for line in lines if re.search(r"(^|-- |bin/|\d |\n)memjax ", line))
    return [words[next(n for n, word in enumerate(words) if word.endswith("memjax")) + 1 :] for words in found]


@pytest.fixture(scope="module")
def helps():
    """Options of a verb, of the config that it is given: help is printed once for each."""
    return {}


@pytest.mark.parametrize("page", [page for page in PAGES if commands(page)], ids=name)
def test_commands_have_the_options_that_they_are_given(page, helps, capsys):
    for verb, *words in commands(page):
        words = words[: next((n for n, word in enumerate(words) if word in ("||", "&", "&&", ";")), len(words))]
        asked = words[words.index("--config") :][:2] if "--config" in words else []
        key = (verb, *(words[:1] if verb == "datastore" else asked))
        if key not in helps:
            assert main([*key, "--help"]) == 0, key
            helps[key] = set(re.findall(r"--[\w.-]+", capsys.readouterr().out))
        assert {word for word in words if word.startswith("--")} <= helps[key], (verb, words)
        if asked and "--variant" in words:
            for variant in words[words.index("--variant") + 1].split(","):  # `sweep` takes several
                load_config(asked[1], variant)


def test_every_verb_is_shown():
    import memjax.cli.dispatch as dispatch

    shown = {words[0] for page in PAGES for words in commands(page)}
    assert set(dispatch.VERBS) - shown <= {"configs"}


@pytest.mark.slow
@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page, "python")], ids=name)
def test_the_python_blocks_run(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(ROOT / ".cache"))
    namespace = {}
    for block in blocks(page, "python"):
        exec(compile(block, name(page), "exec"), namespace)  # noqa: S102
    assert namespace


RUNS = "<!-- runs -->\n"
"""stands before a shell block that takes seconds"""


@pytest.mark.slow
@pytest.mark.parametrize("page", [page for page in PAGES if RUNS in page.read_text()], ids=name)
def test_the_shell_blocks_run(page, tmp_path):
    places = [str(Path(sys.executable).parent), os.environ["PATH"]]
    env = {**os.environ, "PATH": os.pathsep.join(places), "XDG_CACHE_HOME": str(ROOT / ".cache")}
    for block in blocks(page, "bash", RUNS):
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", block],
            cwd=tmp_path,
            env=env,
            capture_output=True,
            text=True,
            timeout=1200,
        )
        assert done.returncode == 0, done.stderr[-2000:]
    assert list(tmp_path.glob("runs/*/config.json"))


@pytest.mark.slow
def test_sphinx_builds_all_pages_without_a_warning(tmp_path):
    command = [sys.executable, "-m", "sphinx", "-c", "docs", "-b", "html", "-W", "--keep-going", "-q"]
    trees = ["-d", str(tmp_path / "trees")]
    done = subprocess.run([*command, *trees, ".", str(tmp_path / "out")], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-4000:]
    built = {str(page.relative_to(tmp_path / "out").with_suffix(".md")) for page in tmp_path.glob("out/**/*.html")}
    assert {name(page) for page in PAGES} <= built
    room = (tmp_path / "out/docs/api/memory.html").read_text()
    assert 0 < room.index("TransformerXLAttention") < room.index("BidirectionalAttention")
    text = (tmp_path / "out/docs/api/memory/compressive.html").read_text()
    assert 'id="memjax.memory.compressive.CompressiveAttention"' in text
    interface = (tmp_path / "out/docs/api/memory/interface.html").read_text()
    assert "x: Float[Array, 'batch length dim']" in re.sub(r"<[^>]+>", "", interface)
    sources = re.findall(r'<(?:script|link|img)[^>]*(?:src|href)="(https?:[^"]+)"', text)
    assert sources == []


def test_the_page_of_the_report_names_what_is_there():
    import memjax.report

    made = "".join(path.read_text() for path in Path(memjax.report.__file__).parent.glob("*.py"))
    rows = [line for line in (ROOT / "docs/guides/report.md").read_text().splitlines() if line.startswith("| ")]
    named = {one for line in rows for one in re.findall(r"`(\w+)`", line)}
    assert len(named) > 50 and [one for one in sorted(named) if f'"{one}"' not in made] == []
    panels = set(re.findall(r'Panel\(\s*"(\w+)"', made))
    assert panels <= named
