"""Docstrings and names stay as plain as they are."""

import pytest

from tools.words import count_words, describe_counts, find_words

# The limits are the counts of the tree: lower them when a count falls, never raise them.
LIMITS = {"fragment": 0, "field": 0, "riddle": 0, "participle": 19, "local": 11, "vague": 111}


def test_the_tree_is_within_its_limits():
    counts = count_words()
    over = {kind: counts[kind] for kind, limit in LIMITS.items() if counts[kind] > limit}
    assert not over, f"{describe_counts(counts)}; `python -m tools.words PATH` lists them"
    assert counts["entry"] > 4000 and counts["text"] > 900


@pytest.mark.parametrize(
    "source, kinds",
    [
        ('def f(a):\n    """Adds one.\n\n    Args:\n      a: of the other.\n    """', ["entry", "fragment"]),
        ('def f(a):\n    """Adds one.\n\n    Args:\n      a: A number.\n    """', ["entry"]),
        ('class A:\n    seed: int = 0\n    """of all that is drawn"""', ["text", "field"]),
        ('class A:\n    seed: int = 0\n    """Seed of all random choices."""', ["text"]),
        ('def f():\n    """What is left."""', ["riddle"]),
        ("def grown(): pass", ["participle"]),
        ("class A:\n    @property\n    def grown(self): pass", []),
        ("def grow():\n    found = 1", ["local"]),
        ("def grow(value):\n" + "    y = value\n" * 20, ["vague"]),
        ("def grow(value):\n    y = value\n" * 2, []),
    ],
)
def test_each_kind_is_found(source, kinds):
    assert [finding.kind for finding in find_words(source)] == kinds
