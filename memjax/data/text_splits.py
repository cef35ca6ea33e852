"""Splits of texts with classes: no text in two of them, none trained on twice, and some of them chosen for ever.

Two texts are equal where they are after Unicode's NFC and with white space folded. The published recipes compare the
letters and digits alone, without case, since the files of one set differ in signs.
"""

import collections
import dataclasses
import functools
import hashlib
import re
import unicodedata
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from memjax.data.glue import LabelledText
from memjax.data.sources import SPLITS, split_of

__all__ = [
    "TEXT_KEYS",
    "TextSplits",
    "TitledText",
    "exact_key",
    "letters_and_digits_key",
    "select_texts",
    "split_texts",
]

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
    """The examples of a set of texts, by split, and counts of what is unusual about them.

    Attributes:
      texts: Split -> its examples.
      shared: (file, other) -> number of rows of the file whose text the other has too. With itself, rows that repeat
        one.
      other_class: (file, other) -> number of rows in `shared` that have another class there.
      removed: Number of rows that were left out: a text of a test file is not trained on, and no text is read twice.
      without_class: File -> number of rows without a class, which are left out.
      nearly_shared: Number of texts of the test split that differ from one of the training split in signs, case or
        white space alone. They stay.
      skipped: Line about rows that cannot be read. Empty where there are none.
    """

    texts: Mapping[str, Sequence[LabelledText]]
    shared: Mapping[tuple[str, str], int]
    other_class: Mapping[tuple[str, str], int]
    removed: int
    without_class: Mapping[str, int]
    nearly_shared: int = 0
    skipped: str = ""

    def unseen_classes(self, split: str) -> dict[int, int]:
        """Counts the examples of the classes of a split that no example of the training split has.

        Returns:
          Number of the class -> number of its examples in the split.
        """
        trained = {example.label for example in self.texts["train"]}
        counts = collections.Counter(example.label for example in self.texts[split])
        return {label: counts[label] for label in sorted(counts.keys() - trained)}

    def notes(self, names: Mapping[int, str] | None = None) -> list[str]:
        """Says every count that is not 0, a line each.

        Args:
          names: Number of a class -> its name. None says the numbers.
        """
        names = names or {}
        lines = [self.skipped] if self.skipped else []
        lines += [
            f"{count} rows of {file} have no class, and are left out" for file, count in self.without_class.items()
        ]
        for (file, other), count in self.shared.items():
            differ = self.other_class.get((file, other), 0)
            lines.append(
                f"{count} rows of {file} {f'are in {other} too' if file != other else 'repeat another'}"
                f"{f', {differ} of them with another class' if differ else ''}"
            )
        if self.removed:
            lines.append(f"{self.removed} rows are left out, so that no text is read twice")
        if self.nearly_shared:
            lines.append(
                f"{self.nearly_shared} texts of the test split differ from one to train on in signs, case or blanks "
                "alone; they stay"
            )
        for split in ("validation", "test"):
            if unseen := self.unseen_classes(split):
                words = ", ".join(repr(names.get(label, label)) for label in list(unseen)[:5])
                more = ", ..." if len(unseen) > 5 else ""
                lines.append(
                    f"{sum(unseen.values())} texts of the {split} split have a class that no text to train on has "
                    f"({words}{more})"
                )
        return lines


def exact_key(text: str) -> str:
    """Returns what equal texts have in common: the text in Unicode's NFC, white space folded into single blanks.

    Example:
      >>> exact_key("It's  over!  "), exact_key("good :)") == exact_key("good :(")
      ("It's over!", False)
    """
    return " ".join(unicodedata.normalize("NFC", text).split())


def letters_and_digits_key(text: str) -> str:
    """Returns the letters and digits of a text in lower case, or the text itself where it has none.

    Example:
      >>> letters_and_digits_key("It #39;s over!") == letters_and_digits_key("it 39s  OVER")
      True
    """
    return _NO_SIGN.sub("", text.lower()) or text


TEXT_KEYS: Mapping[str, Callable[[str], str]] = {"exact": exact_key, "letters_and_digits": letters_and_digits_key}
"""name of a kind of equality, as settings have it -> the key that equal texts share"""


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
    equality: str = "exact",
    names: Mapping[int, str] | None = None,
) -> TextSplits:
    """The three splits of some files: no text is in two of them, and what is tested stays as it is.

    A split without a file is a share of the training files (of the test files, where there are no others), by a hash of
    the texts, so that nothing is ever selected on what is tested.

    Args:
      files: 'train', 'validation' or 'test' -> name of a file -> its rows. Where a text is in a file to be tested,
        other files lose it; of the rows to train on the first stays.
      text: 'title_and_text' (`title. text`), or 'text' alone.
      validation: Share held out for validation where no file is one, in [0, 1].
      test: Share held out for the test where no file is one, in [0, 1].
      num_train: Number of training examples that `select_texts` chooses. 0 for all.
      num_validation: Number of validation examples. 0 for all.
      num_test: Number of test examples. 0 for all.
      sampling: 'balanced' over classes or 'random'.
      seed: Seed of the choice.
      equality: Kind of equality of texts: "exact" (`exact_key`) or "letters_and_digits" (`letters_and_digits_key`).
      names: Number of a class -> its name, for errors.

    Raises:
      ValueError: another text, sampling or equality; two files that give most of the texts they share other classes; or
        a class all of whose texts to train on are left out, since they are equal to others.

    Example:
      >>> rows = [TitledText("", f"text {number}", number % 2) for number in range(40)]
      >>> found = split_texts({"train": {"a": rows + rows[:3]}, "test": {"b": rows[:2]}}, num_train=8)
      >>> found.shared, found.removed, len(found.texts["train"]), len(found.texts["test"])
      ({('a', 'b'): 4, ('a', 'a'): 3}, 5, 8, 2)
    """
    if text not in ("title_and_text", "text"):
        raise ValueError(f"data.source.text: given {text!r}, allowed: 'title_and_text', 'text'")
    if equality not in TEXT_KEYS:
        raise ValueError(f"data.source.equality: given {equality!r}, allowed: {', '.join(map(repr, TEXT_KEYS))}")
    key_of = TEXT_KEYS[equality]
    given_splits = [split for split in ("test", "validation", "train") if files.get(split)]
    pool = next(split for split in ("train", "test", "validation") if split in given_splits)
    shared: dict[tuple[str, str], int] = {}
    without_class: dict[str, int] = {}
    other_class: dict[tuple[str, str], int] = {}
    seen: dict[str, dict[str, int | None]] = {}
    kept: dict[str, list[tuple[str, TitledText]]] = {split: [] for split in SPLITS}
    removed = 0
    for split in given_splits:
        for name, rows in files[split].items():
            keyed = [(key_of(row.text), row) for row in rows if row.label is not None]
            _count(without_class, name, len(rows) - len(keyed))
            labels = {key: row.label for key, row in reversed(keyed)}  # of the first of equal ones
            if split != "test" or split == pool:
                for other, others in seen.items():
                    there_too = [others[key] == row.label for key, row in keyed if key in others]
                    _count(shared, (name, other), len(there_too))
                    _count(other_class, (name, other), there_too.count(False))
                    _check_classes(name, other, there_too)
                _count(shared, (name, name), len(keyed) - len(labels))
                _count(other_class, (name, name), sum(labels[key] != row.label for key, row in keyed))
                fresh = list(_fresh(keyed, set().union(*seen.values())))
                removed += len(keyed) - len(fresh)
                keyed = fresh
            seen[name] = labels
            kept[split] += keyed
        _check_kept(split, files[split], kept, names or {}, equality)
    shares = {"validation": validation, "test": test}
    shares = {name: share if name == pool or name not in given_splits else 0.0 for name, share in shares.items()}
    pooled, kept[pool] = kept[pool], []
    for key, row in pooled:
        kept[split_of(key, **shares)].append((key, row))
    join = functools.partial(_example, titled=text == "title_and_text")
    numbers = {"train": num_train, "validation": num_validation, "test": num_test}
    chosen = {
        split: [join(row) for _, row in select_texts(rows, numbers[split], sampling=sampling, seed=seed)]
        for split, rows in kept.items()
    }
    near = _count_near(chosen["train"], chosen["test"]) if equality == "exact" else 0
    return TextSplits(chosen, shared, other_class, removed, without_class, near)


def select_texts(
    rows: Sequence[tuple[str, TitledText]], number: int, *, sampling: str = "balanced", seed: int = 0
) -> list[tuple[str, TitledText]]:
    """Some of the rows, in their order: those whose text has the smallest hash, whatever else stands in the files.

    Args:
      rows: Rows, each after the key of its text.
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


def _check_kept(
    split: str,
    files: Mapping[str, Sequence[TitledText]],
    kept: Mapping[str, Sequence[tuple[str, TitledText]]],
    names: Mapping[int, str],
    equality: str,
) -> None:
    """Raises `ValueError` where a class loses all its rows to texts that count as equal, and no other split has it."""
    rows = {row.label: row for rows in files.values() for row in reversed(rows) if row.label is not None}
    if lost := rows.keys() - {row.label for part in kept.values() for _, row in part}:
        label = min(lost)
        looser = "" if equality == "exact" else ", or data.source.equality exact, which tells signs and case apart"
        raise ValueError(
            f"{', '.join(files)}: every text of class {names.get(label, label)!r} in the {split} split is that of "
            f"another row, such as {rows[label].text[:40]!r}, allowed: a class with a text of its own{looser}"
        )


def _count_near(train: Sequence[LabelledText], test: Sequence[LabelledText]) -> int:
    """Counts the texts of the test split that equal one to train on but for signs, case and white space."""
    keys = {letters_and_digits_key(example.texts[0]) for example in train}
    return sum(letters_and_digits_key(example.texts[0]) in keys for example in test)


def _example(row: TitledText, *, titled: bool) -> LabelledText:
    assert row.label is not None  # rows without a class are left out before
    return LabelledText((". ".join(filter(None, (row.title, row.text))) if titled else row.text,), row.label)


def _count(counts: dict[Any, int], key: Any, number: int) -> None:
    if number:
        counts[key] = number
