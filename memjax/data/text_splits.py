"""Splits texts with classes so that no text is in two splits or twice in training, and selects some of them by a hash.

Two texts are equal if they agree after Unicode's NFC normalisation and with white space folded. The published recipes
compare letters and digits only, without case, because the files of one data set differ in punctuation.
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
from memjax.data.sources import SPLITS, assign_split

__all__ = [
    "TEXT_KEYS",
    "TextSplits",
    "TitledText",
    "exact_key",
    "letters_and_digits_key",
    "select_texts",
    "split_texts",
]

_MIN_SHARED_ROWS = 10
"""Smallest number of shared rows from which two files can be checked for the same numbering of classes."""
_NO_LETTERS_OR_DIGITS = re.compile(r"[\W_]+")


@dataclasses.dataclass(frozen=True)
class TitledText:
    """A text with its title, and the number of its class or None.

    Attributes:
      title: Title of the text. Empty if it has none.
      text: The text.
      label: Number of the class. None if it has none.
    """

    title: str
    text: str
    label: int | None


@dataclasses.dataclass(frozen=True)
class TextSplits:
    """The examples of a data set of texts with classes, by split, and the numbers of problematic rows.

    Attributes:
      texts: Mapping from split to its examples.
      shared: Number of rows of a file whose text also occurs in another file, by (file, other file). For (file, file),
        the number of rows that repeat another row of the file.
      other_class: Number of the rows counted in `shared` that have another class in the other file, by (file, other
        file).
      removed: Number of rows that were left out so that no text is in two splits or read twice.
      without_class: Number of rows without a class, which are left out, by file.
      nearly_shared: Number of texts of the test split that differ from a training text only in punctuation, case or
        white space. They are not removed.
      skipped: Line about rows that cannot be read. Empty if there are none.
    """

    texts: Mapping[str, Sequence[LabelledText]]
    shared: Mapping[tuple[str, str], int]
    other_class: Mapping[tuple[str, str], int]
    removed: int
    without_class: Mapping[str, int]
    nearly_shared: int = 0
    skipped: str = ""

    def unseen_classes(self, split: str) -> dict[int, int]:
        """Counts the examples of a split whose class does not occur in the training split: number of the class ->
        count.

        Returns:
          Mapping from the number of such a class to the number of its examples in the split.
        """
        trained = {example.label for example in self.texts["train"]}
        counts = collections.Counter(example.label for example in self.texts[split])
        return {label: counts[label] for label in sorted(counts.keys() - trained)}

    def notes(self, names: Mapping[int, str] | None = None) -> list[str]:
        """Returns a list with a line about each count that is not 0, such as rows that were left out. `names` maps the
        number of a class to its name, None to write numbers.

        Args:
          names: Mapping from the number of a class to its name. None to write numbers.
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
    """Returns the key that equal texts share: the text in Unicode's NFC, with white space folded into single blanks.

    Example:
      >>> exact_key("It's  over!  "), exact_key("good :)") == exact_key("good :(")
      ("It's over!", False)
    """
    return " ".join(unicodedata.normalize("NFC", text).split())


def letters_and_digits_key(text: str) -> str:
    """Returns the letters and digits of a text in lower case, as the key that similar texts share, or the text itself
    if it has none.

    Example:
      >>> letters_and_digits_key("It #39;s over!") == letters_and_digits_key("it 39s  OVER")
      True
    """
    return _NO_LETTERS_OR_DIGITS.sub("", text.lower()) or text


TEXT_KEYS: Mapping[str, Callable[[str], str]] = {"exact": exact_key, "letters_and_digits": letters_and_digits_key}
"""Kind of equality, as in the settings -> function from a text to the key that equal texts share."""


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
    """Divides the rows in `files` (split -> file -> rows) into `TextSplits` that share no text. `text` says whether
    texts include titles, `names` maps the numbers of classes to their names for messages, `num_train` and so on limit
    the examples.

    A split without a file is a share of the training files (of the test files, if there are no others), by a hash of
    the texts. A text that also occurs in a test file is removed from the other files. Of equal training rows the first
    one stays.

    Args:
      files: Rows of files, by split ('train', 'validation' or 'test') and name of the file.
      text: 'title_and_text' (`title. text`), or 'text' alone.
      validation: Share in [0, 1] held out for validation if there is no validation file.
      test: Share in [0, 1] held out for the test if there is no test file.
      num_train: Number of training examples that `select_texts` chooses. 0 for all.
      num_validation: Number of validation examples. 0 for all.
      num_test: Number of test examples. 0 for all.
      sampling: 'balanced' over classes or 'random'.
      seed: Seed of the choice of examples.
      equality: Kind of equality of texts: "exact" (`exact_key`) or "letters_and_digits" (`letters_and_digits_key`).
      names: Mapping from the number of a class to its name, for error messages. None to write numbers.

    Raises:
      ValueError: An unknown value of `text`, `sampling` or `equality`, two files with different classes for most of
        their shared texts, or a class that loses all its texts because they are equal to others.

    Example:
      >>> rows = [TitledText("", f"text {number}", number % 2) for number in range(40)]
      >>> splits = split_texts({"train": {"a": rows + rows[:3]}, "test": {"b": rows[:2]}}, num_train=8)
      >>> splits.shared, splits.removed, len(splits.texts["train"]), len(splits.texts["test"])
      ({('a', 'b'): 4, ('a', 'a'): 3}, 5, 8, 2)
    """
    if text not in ("title_and_text", "text"):
        raise ValueError(f"data.source.row_text: given {text!r}, allowed: 'title_and_text', 'text'")
    if equality not in TEXT_KEYS:
        raise ValueError(f"data.source.equality: given {equality!r}, allowed: {', '.join(map(repr, TEXT_KEYS))}")
    key_of = TEXT_KEYS[equality]
    given_splits = [split for split in ("test", "validation", "train") if files.get(split)]
    pool = next(split for split in ("train", "test", "validation") if split in given_splits)
    shared: dict[tuple[str, str], int] = {}
    without_class: dict[str, int] = {}
    other_class: dict[tuple[str, str], int] = {}
    seen: dict[str, dict[str, int | None]] = {}
    rows_of_split: dict[str, list[tuple[str, TitledText]]] = {split: [] for split in SPLITS}
    removed = 0
    for split in given_splits:
        for name, rows in files[split].items():
            keyed = [(key_of(row.text), row) for row in rows if row.label is not None]
            _count(without_class, name, len(rows) - len(keyed))
            labels = {key: row.label for key, row in reversed(keyed)}  # the label of the first of equal rows
            if split != "test" or split == pool:
                for other, other_labels in seen.items():
                    has_same_class = [other_labels[key] == row.label for key, row in keyed if key in other_labels]
                    _count(shared, (name, other), len(has_same_class))
                    _count(other_class, (name, other), has_same_class.count(False))
                    _check_classes(name, other, has_same_class)
                _count(shared, (name, name), len(keyed) - len(labels))
                _count(other_class, (name, name), sum(labels[key] != row.label for key, row in keyed))
                new_rows = list(_yield_new(keyed, set().union(*seen.values())))
                removed += len(keyed) - len(new_rows)
                keyed = new_rows
            seen[name] = labels
            rows_of_split[split] += keyed
        _check_classes_remain(split, files[split], rows_of_split, names or {}, equality)
    shares = {"validation": validation, "test": test}
    shares = {name: share if name == pool or name not in given_splits else 0.0 for name, share in shares.items()}
    pooled, rows_of_split[pool] = rows_of_split[pool], []
    for key, row in pooled:
        rows_of_split[assign_split(key, **shares)].append((key, row))
    join = functools.partial(_example, titled=text == "title_and_text")
    numbers = {"train": num_train, "validation": num_validation, "test": num_test}
    selected = {
        split: [join(row) for _, row in select_texts(rows, numbers[split], sampling=sampling, seed=seed)]
        for split, rows in rows_of_split.items()
    }
    num_nearly_shared = _count_near(selected["train"], selected["test"]) if equality == "exact" else 0
    return TextSplits(selected, shared, other_class, removed, without_class, num_nearly_shared)


def select_texts(
    rows: Sequence[tuple[str, TitledText]], number: int, *, sampling: str = "balanced", seed: int = 0
) -> list[tuple[str, TitledText]]:
    """Selects `number` rows, 0 for all: those with the smallest hashes of their texts, 'balanced' over the classes or
    at 'random'. `rows` are pairs of the key of a text and its row. Their order is preserved.

    Args:
      rows: Pairs of the key of a text and its row.
      number: Number of rows to select. 0 for all.
      sampling: 'balanced' (equally many rows of each class, and more of the other classes if a class has too few) or
        'random'.
      seed: Seed of the hash.

    Raises:
      ValueError: Another kind of sampling.
    """
    if sampling not in ("balanced", "random"):
        raise ValueError(f"data.source.subset_sampling: given {sampling!r}, allowed: 'balanced', 'random'")
    if not number or number >= len(rows):
        return list(rows)
    hashes = [hashlib.sha256(f"{seed}/{key}".encode()).digest() for key, _ in rows]
    ranked = sorted(range(len(rows)), key=hashes.__getitem__)
    if sampling == "balanced":
        num_of_class: collections.Counter[int | None] = collections.Counter()
        turns: dict[int, int] = {}
        for place in ranked:  # the n-th of its class comes in the n-th turn
            label = rows[place][1].label
            num_of_class[label] += 1
            turns[place] = num_of_class[label]
        ranked.sort(key=turns.__getitem__)
    return [rows[place] for place in sorted(ranked[:number])]


def _yield_new(rows: Sequence[tuple[str, TitledText]], seen: set[str]) -> Iterator[tuple[str, TitledText]]:
    """Yields the rows whose text is not in `seen`, the first of equal ones, and adds their texts to `seen`."""
    for key, row in rows:
        if key not in seen:
            seen.add(key)
            yield key, row


def _check_classes(name: str, other: str, same: Sequence[bool]) -> None:
    """Raises `ValueError` if most rows that two files share have different classes, so that their numbering differs.

    Args:
      name: Name of a file.
      other: Name of the other file.
      same: Whether each shared row has the same class in both files.
    """
    if len(same) >= _MIN_SHARED_ROWS and sum(same) < len(same) / 2:
        raise ValueError(
            f"data.source.class_order: {len(same) - sum(same)} of the {len(same)} rows of {name} that are in {other} "
            "have another class there, allowed: files that number the classes alike, or the order of those that do not"
        )


def _check_classes_remain(
    split: str,
    files: Mapping[str, Sequence[TitledText]],
    kept: Mapping[str, Sequence[tuple[str, TitledText]]],
    names: Mapping[int, str],
    equality: str,
) -> None:
    """Raises `ValueError` if a class of a split loses all its rows to equal texts, and no other split has the class."""
    rows = {row.label: row for rows in files.values() for row in reversed(rows) if row.label is not None}
    if lost := rows.keys() - {row.label for part in kept.values() for _, row in part}:
        label = min(lost)
        looser = "" if equality == "exact" else ", or data.source.equality exact, which tells signs and case apart"
        raise ValueError(
            f"{', '.join(files)}: every text of class {names.get(label, label)!r} in the {split} split is that of "
            f"another row, such as {rows[label].text[:40]!r}, allowed: a class with a text of its own{looser}"
        )


def _count_near(train: Sequence[LabelledText], test: Sequence[LabelledText]) -> int:
    """Counts the texts of the test split that differ from a training text only in punctuation, case or white space."""
    keys = {letters_and_digits_key(example.texts[0]) for example in train}
    return sum(letters_and_digits_key(example.texts[0]) in keys for example in test)


def _example(row: TitledText, *, titled: bool) -> LabelledText:
    """Converts a row to an example, with the title before the text if `titled`."""
    assert row.label is not None  # rows without a class are left out before
    return LabelledText((". ".join(filter(None, (row.title, row.text))) if titled else row.text,), row.label)


def _count(counts: dict[Any, int], key: Any, number: int) -> None:
    """Sets a count unless it is 0."""
    if number:
        counts[key] = number
