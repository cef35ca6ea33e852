"""Splits of texts with classes: no text in two of them, none trained on twice, and some of them chosen for ever.

Two texts are the same where their letters and digits are, without case.
"""

import collections
import dataclasses
import functools
import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from memjax.data.glue import LabelledText
from memjax.data.sources import SPLITS, split_of

__all__ = ["TextSplits", "TitledText", "same_text", "select_texts", "split_texts"]

_ENOUGH = 10
"""rows that two files share, and more, say whether their classes have the same numbers"""
_NO_SIGN = re.compile(r"[\W_]+")


@dataclasses.dataclass(frozen=True)
class TitledText:
    """A row of a file: its title ('' where it has none), its text, and the number of its class (None = it has none)."""

    title: str
    text: str
    label: int | None


@dataclasses.dataclass(frozen=True)
class TextSplits:
    """What is read of a set of texts.

    Attributes:
      texts: split -> its examples.
      shared: (file, other) -> rows of the file whose text the other has too; with itself, rows that repeat one.
      other_class: those of `shared` that have another class there.
      removed: rows that were left out for it: what is in a test file is not trained on, and no text twice.
      without_class: file -> rows without a class, which are left out.
    """

    texts: Mapping[str, Sequence[LabelledText]]
    shared: Mapping[tuple[str, str], int]
    other_class: Mapping[tuple[str, str], int]
    removed: int
    without_class: Mapping[str, int]

    def notes(self) -> list[str]:
        """A line for every number that is not 0."""
        lines = [
            f"{count} rows of {file} have no class, and are left out" for file, count in self.without_class.items()
        ]
        for (file, other), count in self.shared.items():
            differ = self.other_class.get((file, other), 0)
            lines.append(
                f"{count} rows of {file} {f'are in {other} too' if file != other else 'repeat another'}"
                f"{f', {differ} of them with another class' if differ else ''}"
            )
        return lines + ([f"{self.removed} rows are left out, so that no text is read twice"] if self.removed else [])


def same_text(text: str) -> str:
    """What two texts that are the same have in common: their letters and digits, in lower case.

    Example:
      >>> same_text("It #39;s over!") == same_text("it 39s  OVER")
      True
    """
    return _NO_SIGN.sub("", text.lower()) or text


def split_texts(
    files: Mapping[str, Mapping[str, Sequence[TitledText]]],
    *,
    text: str = "title_and_text",
    validation: float = 0.1,
    test: float = 0.1,
    num_train: int = 0,
    num_validation: int = 0,
    num_test: int = 0,
    sampling: str = "balanced",
    seed: int = 0,
) -> TextSplits:
    """The three splits of some files: no text is in two of them, and what is tested stays as it is.

    A split without a file is a share of the training files (of the test files, where there are no others), by a hash of
    the texts, so that nothing is ever selected on what is tested.

    Args:
      files: 'train', 'validation' or 'test' -> name of a file -> its rows. Where a text is in a file to be tested,
        other files lose it; of the rows to train on the first stays.
      text: 'title_and_text' (`title. text`), or 'text' alone.
      validation: share held out where no file is one, in [0, 1].
      test: likewise.
      num_train: examples that are kept, by `select_texts`; 0 = all.
      num_validation: likewise.
      num_test: likewise.
      sampling: 'balanced' over classes or 'random'.
      seed: of what is kept.

    Raises:
      ValueError: another text or sampling, or two files that give most of the texts they share other classes.

    Example:
      >>> rows = [TitledText("", f"text {number}", number % 2) for number in range(40)]
      >>> found = split_texts({"train": {"a": rows + rows[:3]}, "test": {"b": rows[:2]}}, num_train=8)
      >>> found.shared, found.removed, len(found.texts["train"]), len(found.texts["test"])
      ({('a', 'b'): 4, ('a', 'a'): 3}, 5, 8, 2)
    """
    if text not in ("title_and_text", "text"):
        raise ValueError(f"data.source.text: given {text!r}, allowed: 'title_and_text', 'text'")
    there = [split for split in ("test", "validation", "train") if files.get(split)]
    pool = next(split for split in ("train", "test", "validation") if split in there)
    shared: dict[tuple[str, str], int] = {}
    without_class: dict[str, int] = {}
    other_class: dict[tuple[str, str], int] = {}
    seen: dict[str, dict[str, int | None]] = {}
    kept: dict[str, list[tuple[str, TitledText]]] = {split: [] for split in SPLITS}
    removed = 0
    for split in there:
        for name, rows in files[split].items():
            keyed = [(same_text(row.text), row) for row in rows if row.label is not None]
            _count(without_class, name, len(rows) - len(keyed))
            labels = {key: row.label for key, row in reversed(keyed)}  # of the first of equal ones
            if split != "test" or split == pool:
                for other, others in seen.items():
                    there_too = [others[key] == row.label for key, row in keyed if key in others]
                    _count(shared, (name, other), len(there_too))
                    _count(other_class, (name, other), there_too.count(False))
                    _check_classes(name, other, there_too)
                _count(shared, (name, name), len(keyed) - len(labels))
                fresh = list(_fresh(keyed, set().union(*seen.values())))
                removed += len(keyed) - len(fresh)
                keyed = fresh
            seen[name] = labels
            kept[split] += keyed
    shares = {"validation": validation, "test": test}
    shares = {name: share if name == pool or name not in there else 0.0 for name, share in shares.items()}
    pooled, kept[pool] = kept[pool], []
    for key, row in pooled:
        kept[split_of(key, **shares)].append((key, row))
    join = functools.partial(_example, titled=text == "title_and_text")
    numbers = {"train": num_train, "validation": num_validation, "test": num_test}
    chosen = {
        split: [join(row) for _, row in select_texts(rows, numbers[split], sampling=sampling, seed=seed)]
        for split, rows in kept.items()
    }
    return TextSplits(chosen, shared, other_class, removed, without_class)


def select_texts(
    rows: Sequence[tuple[str, TitledText]], number: int, *, sampling: str = "balanced", seed: int = 0
) -> list[tuple[str, TitledText]]:
    """Some of the rows, in their order: those whose text has the smallest hash, whatever else stands in the files.

    Args:
      rows: each with its `same_text`.
      number: how many; 0, or more than there are = all.
      sampling: 'balanced': equally many of each class, and where a class has too few, more of the others; 'random'.
      seed: of the hash.

    Raises:
      ValueError: another kind of sampling.
    """
    if sampling not in ("balanced", "random"):
        raise ValueError(f"data.source.sampling: given {sampling!r}, allowed: 'balanced', 'random'")
    if not number or number >= len(rows):
        return list(rows)
    hashes = [hashlib.sha256(f"{seed}/{key}".encode()).digest() for key, _ in rows]
    ranked = sorted(range(len(rows)), key=hashes.__getitem__)
    if sampling == "balanced":
        taken: collections.Counter[int | None] = collections.Counter()
        turns: dict[int, int] = {}
        for place in ranked:  # the n-th of its class comes in the n-th turn
            label = rows[place][1].label
            taken[label] += 1
            turns[place] = taken[label]
        ranked.sort(key=turns.__getitem__)
    return [rows[place] for place in sorted(ranked[:number])]


def _fresh(rows: Sequence[tuple[str, TitledText]], seen: set[str]) -> Iterator[tuple[str, TitledText]]:
    """The rows whose text is new, the first of equal ones."""
    for key, row in rows:
        if key not in seen:
            seen.add(key)
            yield key, row


def _check_classes(name: str, other: str, same: Sequence[bool]) -> None:
    """Raises `ValueError` where two files number their classes otherwise: most of what they share differs."""
    if len(same) >= _ENOUGH and sum(same) < len(same) / 2:
        raise ValueError(
            f"data.source.class_order: {len(same) - sum(same)} of the {len(same)} rows of {name} that are in {other} "
            "have another class there, allowed: files that number the classes alike, or the order of those that do not"
        )


def _example(row: TitledText, *, titled: bool) -> LabelledText:
    assert row.label is not None  # rows without a class are left out before
    return LabelledText((". ".join(filter(None, (row.title, row.text))) if titled else row.text,), row.label)


def _count(counts: dict[Any, int], key: Any, number: int) -> None:
    if number:
        counts[key] = number
