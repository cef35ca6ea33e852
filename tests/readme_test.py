"""What the README says is there, and its Python blocks run."""

import re
from pathlib import Path

import pytest

from memjax.cli import VERBS

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", README, re.S)


@pytest.mark.parametrize("name", ["README.md", "CONTRIBUTING.md"])
def test_links_lead_somewhere(name):
    links = re.findall(r"\]\(([^)#]+)\)", (ROOT / name).read_text())
    missing = [link for link in links if "://" not in link and not (ROOT / link).exists()]
    assert missing == []


def test_the_tree_lists_what_is_there():
    tree = re.search(r"## What is where\n\n```text\n(.*?)```", README, re.S).group(1)
    named = re.findall(r"^  (\w+(?:/|\.py))", tree, re.M)
    assert [name for name in named if not (ROOT / "memjax" / name).exists()] == []
    parts = {path.name for path in (ROOT / "memjax").iterdir() if path.is_dir() and path.name[0] != "_"}
    assert {f"{part}/" for part in parts if part != "configs"} <= set(named)


def test_commands_are_verbs():
    verbs = set(re.findall(r"memjax (\w+) (?:--|  )", README))
    assert verbs <= set(VERBS)


@pytest.mark.slow
def test_the_python_blocks_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(ROOT / ".cache"))
    namespace = {}
    for block in BLOCKS:
        exec(compile(block, "README.md", "exec"), namespace)
    assert len(BLOCKS) == 5
