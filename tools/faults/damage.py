"""Every file that memjax has written, damaged in every way, and read by every command."""

from __future__ import annotations

import random
import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from tools.faults.judge import judge_damage
from tools.faults.results import Results, Row
from tools.faults.subjects import (
    COMMANDS,
    SUBJECTS,
    Command,
    compile_once,
    files_of,
    inside,
    make_subject,
    observe_command,
    written_files,
)

__all__ = ["DAMAGES", "TABLE", "damage_file", "try_damages"]

TABLE = "damage"
Draw = random.Random


def flip(content: bytes, draw: Draw) -> bytes:
    """Flips one bit."""
    place = draw.randrange(len(content))
    return content[:place] + bytes([content[place] ^ 1 << draw.randrange(8)]) + content[place + 1 :]


def cut(content: bytes, draw: Draw) -> bytes:
    """Keeps the beginning, at least one byte less."""
    return content[: draw.randrange(len(content))]


def empty(content: bytes, draw: Draw) -> bytes:
    """Returns nothing."""
    del content, draw
    return b""


def digit(content: bytes, draw: Draw) -> bytes:
    """Changes one digit."""
    places = [match.start() for match in re.finditer(rb"\d", content)]
    if not places:
        return content
    place = draw.choice(places)
    other = draw.choice([digit for digit in b"123456789" if digit != content[place]])
    return content[:place] + bytes([other]) + content[place + 1 :]


CHANGES: Mapping[str, Callable[[bytes, Draw], bytes]] = {"flip": flip, "cut": cut, "empty": empty, "digit": digit}
DAMAGES = (*CHANGES, "delete", "swap")
"""Names of the damages. 'swap': another file of the same name, or of the same kind, is in its place."""


def damage_file(file: Path, damage: str, draw: Draw, others: Sequence[Path] = ()) -> bool:
    """Damages a file. Returns whether it is another one than before.

    Args:
      file: File to damage.
      damage: Name of a damage in `DAMAGES`.
      draw: Random generator.
      others: Files that may take its place, for 'swap'.
    """
    content = file.read_bytes()
    if damage == "delete":
        file.unlink()
        return True
    if damage == "swap":
        contents = [other for other in map(Path.read_bytes, others) if other != content]
        changed = draw.choice(contents) if contents else content
    else:
        changed = CHANGES[damage](content, draw) if content else content
    file.write_bytes(changed)
    return changed != content


def partners(name: str, files: Mapping[str, Path]) -> list[Path]:
    """Returns the files that may take the place of a file: those of the same place in another run, folder or
    checkpoint, else those with the same ending."""
    kind = lambda name: re.sub(r"\d+$", "", "/".join(name.split("/")[-2:])) if "#" in name else name.split("/")[-1]
    same = [path for other, path in files.items() if other != name and kind(other) == kind(name)]
    ending = Path(name).suffix
    return same or [path for other, path in files.items() if other != name and ending and Path(other).suffix == ending]


def try_damages(results: Results, folder: Path, *, only: str = "") -> None:
    """Tries all rows of the table.

    Args:
      results: Results to add to. Rows that it has are not tried.
      folder: Empty folder, in memory where possible.
      only: Beginning of the names of the rows to try.
    """
    for name, subject in SUBJECTS.items():
        if not name.startswith(only.split(":")[0]):
            continue
        template, place = folder / name / "template", folder / name / "place"
        make_subject(subject, template)
        files = written_files(template)
        for title, command in {**COMMANDS, **subject.commands}.items():
            command = command._replace(words=command.words.format(subject=name))
            rows = {
                f"{name}: {title}: {damage} {file}": (damage, file)
                for file in files_of(command, files)
                for damage in DAMAGES
            }
            wanted = [row for row in rows if row.startswith(only) and results.is_wanted(TABLE, row)]
            if wanted:
                with compile_once():
                    try_command(results, command, template, place, files, {row: rows[row] for row in wanted})
        shutil.rmtree(folder / name)


def try_command(
    results: Results,
    command: Command,
    template: Path,
    place: Path,
    files: Mapping[str, Path],
    rows: Mapping[str, tuple[str, str]],
) -> None:
    """Tries the rows of one command.

    Args:
      results: Results to add to.
      command: Command that reads the files.
      template: Folder with intact files.
      place: Folder for their copies.
      files: Files of `template` by name.
      rows: Damage and name of the damaged file, by name of the row.
    """
    for _ in range(2):  # the first one compiles, and tells what is told once
        restore(template, place)
        with inside(place):
            expected = observe_command(command)
    if expected.code:
        raise RuntimeError(f"{command.words}: {expected.lines}")
    for row, (damage, name) in rows.items():
        restore(template, place)
        file = files[name].relative_to(template)
        if not damage_file(place / file, damage, results.draw(row), partners(name, files)):
            continue
        with inside(place):
            observed = observe_command(command)
        details = "\n".join([f"exit code {observed.code}", *observed.lines])
        results.add(Row(TABLE, row, judge_damage(file.as_posix(), expected, observed), details))


def restore(template: Path, place: Path) -> None:
    """Makes `place` a copy of `template`."""
    shutil.rmtree(place, ignore_errors=True)
    shutil.copytree(template, place)
