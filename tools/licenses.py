"""Prints the licence of every package that is installed, as the package states it."""

import importlib.metadata
from collections.abc import Iterator

LONGEST = 60
"""Number of characters after which the text of a licence is cut"""


def licenses() -> Iterator[tuple[str, str, str]]:
    """Yields name, version and licence of every installed package, by name. 'not stated' where a package has none."""
    packages = {package.name.lower(): package for package in importlib.metadata.distributions()}
    for _, package in sorted(packages.items()):
        facts = package.metadata
        classified = [
            line.split(" :: ")[-1] for line in facts.get_all("Classifier", []) if line.startswith("License ::")
        ]
        text = facts.get("License-Expression") or ", ".join(classified) or facts.get("License") or "not stated"
        yield package.name, package.version, text.splitlines()[0][:LONGEST]


if __name__ == "__main__":
    for row in licenses():
        print("  ".join(field.ljust(width) for field, width in zip(row, (36, 20, 0), strict=True)))
