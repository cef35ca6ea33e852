"""Writes the .ipynb of `colabs/` from their .py, with a badge that opens each in Colab.

    python -m tools.notebooks

The badge needs the repository's address on GitHub, `Repository` of `[project.urls]` in pyproject.toml. Without it there
is no badge.
"""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parent.parent
IMAGE = "https://colab.research.google.com/assets/colab-badge.svg"
BADGE = re.compile(r"^# \[!\[Open in Colab\].*\n#\n", re.M)
"""Line of a badge in a script, with the empty one after it"""


def repository() -> str:
    """The repository's address in pyproject.toml. '' where there is none."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return project.get("urls", {}).get("Repository", "")


def make_badge(address: str, name: str) -> str:
    """A badge in Markdown that opens the notebook of a name in Colab. '' without an address on GitHub.

    Example:
      >>> make_badge("https://github.com/me/memjax", "growing").rpartition("/github/")[2]
      'me/memjax/blob/main/colabs/growing.ipynb)'
    """
    match = re.fullmatch(r"https://github\.com/([^/]+/[^/]+?)(?:\.git)?/?", address)
    if not match:
        return ""
    page = f"https://colab.research.google.com/github/{match[1]}/blob/main/colabs/{name}.ipynb"
    return f"[![Open in Colab]({IMAGE})]({page})"


def with_badge(script: str, badge: str) -> str:
    """The text of a script with this badge below the title of its first cell, instead of an earlier one. '' for none.

    Example:
      >>> print(with_badge("# %% [markdown]\\n# # Title\\n#\\n# Text.\\n", "[![Open in Colab](a)](b)"), end="")
      # %% [markdown]
      # # Title
      #
      # [![Open in Colab](a)](b)
      #
      # Text.
    """
    plain = BADGE.sub("", script)
    title = re.search(r"^# # .*\n#\n", plain, re.M)
    if not badge or title is None:
        return plain
    return f"{plain[: title.end()]}# {badge}\n#\n{plain[title.end() :]}"


def main() -> int:
    scripts, address = sorted((ROOT / "colabs").glob("*.py")), repository()
    for path in scripts:
        before = path.read_text(encoding="utf-8")
        after = with_badge(before, make_badge(address, path.stem))
        if after != before:
            path.write_text(after, encoding="utf-8")
    command = [sys.executable, "-m", "jupytext", "--quiet", "--update", "--to", "ipynb", *map(str, scripts)]
    return subprocess.run(command, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
