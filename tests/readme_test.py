"""What the README says is there, and its Python blocks run."""

import re
from pathlib import Path

import pytest

from memjax.cli import main

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
SHELL = re.findall(r"```bash\n(.*?)```", README, re.S)
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


def test_commands_have_the_options_that_they_are_given(capsys):
    lines = [line.partition("  #")[0] for block in SHELL for line in block.splitlines()]
    commands = [line.partition("memjax ")[2].split() for line in lines if re.search(r"(^|-- |bin/)memjax ", line)]
    assert {words[0] for words in commands} >= {"train", "eval", "generate", "datastore", "plan", "doctor"}
    for verb, *words in commands:
        asked = words[words.index("--config") :][:2] if "--config" in words else []
        assert main([verb, *(words[:1] if verb == "datastore" else asked), "--help"]) == 0
        known = set(re.findall(r"--[\w.-]+", capsys.readouterr().out))
        assert {word for word in words if word.startswith("--")} <= known, (verb, words)


@pytest.mark.slow
def test_the_python_blocks_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(ROOT / ".cache"))
    namespace = {}
    for block in BLOCKS:
        exec(compile(block, "README.md", "exec"), namespace)
    assert len(BLOCKS) == 6
