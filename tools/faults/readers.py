"""Every reader of foreign files with damaged inputs.

Each reader has a small valid input. A file of it is damaged at random (bits, cuts, types, nesting, shapes, packing).
The reader must read what is left, or refuse it in one line that names the file. Nothing else is right: no traceback, no
value of another type than the reader promises, and no reader that never ends.
"""

from __future__ import annotations

import bz2
import contextlib
import dataclasses
import faulthandler
import gzip
import io
import json
import lzma
import random
import signal
import tempfile
import traceback
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from memjax.cli.errors import explain
from memjax.data.sources import Texts
from tools.faults.input_files import to_zip
from tools.faults.inputs import READERS
from tools.faults.results import Results, Row

__all__ = ["DAMAGES", "TABLE", "Outcome", "try_inputs", "try_reader", "try_readers"]

TABLE = "inputs"
NUM_INPUTS = 10_000

SHARED = Path("/dev/shm")
"""Folder in memory, where there is one, since no input has to survive."""
SECONDS = 20
"""CPU time after which a reader counts as one that never ends."""
VALUES = (None, True, 5, -1, 1e400, "", "x", "5", "\0", [], {}, [[]], {"a": 1}, "x" * 5000)
"""Values that replace one of another type in JSON."""


class Outcome(NamedTuple):
    """The outcome of one input, with the line or the traceback that it ended in.

    Attributes:
      kind: 'read', 'said' (refused in a line that names the file), or a mistake: 'unnamed' (a line without the file),
        'wrong type', 'hang' or 'traceback'.
      details: Line of the error, or the traceback.
    """

    kind: str
    details: str = ""


Draw = random.Random
Damage = Callable[[bytes, Draw], bytes]


def flip_bits(content: bytes, draw: Draw) -> bytes:
    """Flips one to three bits."""
    changed = bytearray(content)
    for _ in range(draw.randint(1, 3) if changed else 0):
        changed[draw.randrange(len(changed))] ^= 1 << draw.randrange(8)
    return bytes(changed)


def cut_off(content: bytes, draw: Draw) -> bytes:
    """Keeps the beginning."""
    return content[: draw.randrange(len(content) + 1)]


def drop_span(content: bytes, draw: Draw) -> bytes:
    """Removes some bytes."""
    begin, end = sorted(draw.randrange(len(content) + 1) for _ in range(2))
    return content[:begin] + content[end:]


def repeat_span(content: bytes, draw: Draw) -> bytes:
    """Repeats some bytes."""
    begin, end = sorted(draw.randrange(len(content) + 1) for _ in range(2))
    return content[:end] + content[begin:]


def insert_zeros(content: bytes, draw: Draw) -> bytes:
    """Inserts NUL bytes."""
    place = draw.randrange(len(content) + 1)
    return content[:place] + b"\0" * draw.randint(1, 9) + content[place:]


def change_digit(content: bytes, draw: Draw) -> bytes:
    """Changes one digit, or makes it a very long number."""
    places = [place for place, byte in enumerate(content) if chr(byte).isdecimal() and byte < 128]
    if not places:
        return flip_bits(content, draw)
    place, digits = draw.choice(places), draw.choice([b"0", b"9", b"-1", b"9" * 30, b"9" * 5000, b"1e999", b"x"])
    return content[:place] + digits + content[place + 1 :]


def change_fields(content: bytes, draw: Draw) -> bytes:
    """Drops, adds or repeats a field or a line."""
    mark = draw.choice([mark for mark in (b"\t", b",", b" ", b"\n", b'"') if mark in content] or [b"\n"])
    parts = content.split(mark)
    place = draw.randrange(len(parts))
    parts[place : place + 1] = draw.choice([[], [parts[place]] * 3, [b""], [b"\xff\xfe"], [b"x", b'"'], [b"\r"]])
    return mark.join(parts)


def swap_type(content: bytes, draw: Draw) -> bytes:
    """Replaces a value of a JSON text by one of another type, or nests it deeply."""
    lines = content.split(b"\n") if not _is_json(content) else [content]
    place = draw.randrange(len(lines))
    if not _is_json(lines[place]):
        return change_fields(content, draw)
    value = json.loads(lines[place])
    places = list(_places(value))
    target = draw.choice(places)
    if draw.random() < 0.1:
        new: Any = "deep"
    elif target and draw.random() < 0.2:
        new = ...
    else:
        new = draw.choice(VALUES)
    text = json.dumps(_replace(value, target, new))
    if new == "deep":
        text = text.replace('"deep"', "[" * 20000 + "]" * 20000, 1)
    lines[place] = text.encode()
    return b"\n".join(lines)


def nest_deeply(content: bytes, draw: Draw) -> bytes:
    """Returns JSON of far too many levels."""
    return draw.choice([b"[" * 200_000, b'{"a":' * 100_000, b"[" * 50_000 + b"]" * 50_000])


def other_array(content: bytes, draw: Draw) -> bytes:
    """Returns an array of another shape, type or form, as a .npy or .npz."""
    del content
    shape = tuple(draw.randrange(4) for _ in range(draw.randrange(4)))
    array = np.zeros(shape, draw.choice(["<f4", "<f8", "<i4", "<i8", "u1", "?", "<U3", "<c8", "M8[s]", "i4,f4"]))
    buffer = io.BytesIO()
    (np.save if draw.random() < 0.7 else np.savez)(buffer, array)
    if draw.random() < 0.3:  # as many entries as no memory has
        return buffer.getvalue().replace(b"'shape': (", b"'shape': (99999999999, ", 1)
    return buffer.getvalue()


def noise(content: bytes, draw: Draw) -> bytes:
    """Returns random bytes."""
    return draw.randbytes(draw.randrange(2 * len(content) + 2))


def empty(content: bytes, draw: Draw) -> bytes:
    """Returns nothing."""
    return b""


def other_file(content: bytes, draw: Draw) -> bytes:
    """Returns a file of another reader."""
    return draw.choice([*_input(draw.choice([*READERS])).values()])


def pack(content: bytes, draw: Draw) -> bytes:
    """Packs the content, and damages the result, or the content before."""
    form = draw.choice(["gz", "bz2", "xz", "zip"])
    packed = {"gz": gzip.compress, "bz2": bz2.compress, "xz": lzma.compress}
    result = to_zip("content.txt", content) if form == "zip" else packed[form](content)
    return draw.choice([flip_bits, cut_off, drop_span, flip_bits, insert_zeros])(result, draw)


DAMAGES: tuple[Damage, ...] = (
    *(flip_bits, cut_off, drop_span, repeat_span, insert_zeros, change_digit, change_fields, swap_type, swap_type),
    *(swap_type, nest_deeply, other_array, noise, empty, other_file, pack, pack),
)


def _is_json(text: bytes) -> bool:
    with contextlib.suppress(ValueError):
        return isinstance(json.loads(text), dict | list)
    return False


def _places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yields the paths of all values in a JSON value."""
    yield path
    children = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, child in children:
        yield from _places(child, (*path, key))


def _replace(value: Any, path: tuple[Any, ...], new: Any) -> Any:
    """Returns a JSON value with another value at a path, or without it for `...`."""
    if not path:
        return new
    copy = dict(value) if isinstance(value, dict) else list(value)
    if len(path) == 1 and new is ...:
        del copy[path[0]]
    else:
        copy[path[0]] = _replace(copy[path[0]], path[1:], new)
    return copy


_inputs: dict[str, Mapping[str, bytes]] = {}


def _input(name: str) -> Mapping[str, bytes]:
    """Returns the valid input of a reader: name of a file -> content."""
    if name not in _inputs:
        _inputs[name] = READERS[name].files()
    return _inputs[name]


def check_types(value: Any) -> None:
    """Raises `AssertionError` if a value that a reader has returned has a field of another type than it declares."""
    match value:
        case None | str() | bytes() | bool() | int() | float():
            return
        case np.ndarray():
            value.sum() if value.dtype.kind in "fiub" else None
        case Texts():
            for name in [*value.names, *value]:
                assert type(name) is str, f"a text is a {type(name).__name__}"
        case Mapping():
            for part in value.values():
                check_types(part)
        case _ if dataclasses.is_dataclass(value) or hasattr(value, "_fields"):
            for name, hint in typing.get_type_hints(type(value)).items():
                part, kind = getattr(value, name), {str: str, int: int, bool: bool}.get(hint)
                assert kind is None or isinstance(part, kind), f"{name} is a {type(part).__name__}"
                check_types(part)
        case list() | tuple():
            for part in value:
                check_types(part)


class _HangError(BaseException):
    """The time of a reader is over. No reader catches it."""


def _stop(signum: int, frame: Any) -> None:
    raise _HangError


def try_reader(name: str, files: Mapping[str, bytes], seconds: int = SECONDS) -> Outcome:
    """Lets a reader read some files, in a folder of their own, and says what became of it.

    Args:
      name: Name of the reader, a key of `READERS`.
      files: Name -> content of its files.
      seconds: CPU time after which it counts as one that never ends.
    """
    with tempfile.TemporaryDirectory(prefix="reader-", dir=SHARED if SHARED.is_dir() else None) as place:
        folder = Path(place) / "data"
        for file, content in files.items():
            (folder / file).parent.mkdir(parents=True, exist_ok=True)
            (folder / file).write_bytes(content)
        earlier = signal.signal(signal.SIGPROF, _stop)
        signal.setitimer(signal.ITIMER_PROF, seconds)
        try:
            check_types(READERS[name].read(folder))
            return Outcome("read")
        except _HangError:
            return Outcome("hang", traceback.format_exc(limit=-8))
        except AssertionError as error:
            return Outcome("wrong type", f"{error}\n{traceback.format_exc(limit=-4)}")
        except Exception as error:
            line, code = explain(error)
            if not line or code != 2 or not isinstance(error, ValueError):
                return Outcome("traceback", traceback.format_exc(limit=-8))
            # A file that is gone for the reader may leave a split without documents, which is the split's mistake.
            is_named = (
                line.startswith("split: no ") or str(folder) in line or any(Path(file).name in line for file in files)
            )
            return Outcome("said" if is_named else "unnamed", line)
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
            signal.signal(signal.SIGPROF, earlier)


def try_inputs(name: str, numbers: Iterable[int], seed: int = 0) -> Iterator[tuple[str, Outcome]]:
    """Yields the damage and the outcome of some inputs of a reader, which are the same for equal numbers and seeds.

    Args:
      name: Name of the reader, a key of `READERS`.
      numbers: Numbers of the inputs.
      seed: Seed of all inputs.
    """
    files = _input(name)
    valid = try_reader(name, files, seconds=600)  # it imports libraries
    assert valid.kind == "read", f"{name}: the input is not valid: {valid.details}"
    for number in numbers:
        draw = random.Random(f"{seed}/{name}: {number}")
        damaged, damage = draw.choice(sorted(files)), draw.choice(DAMAGES)
        changed = damage(files[damaged], draw)
        label = f"{name} {number}: {damage.__name__} of {damaged}"
        yield label, try_reader(name, {**files, damaged: changed})


VERDICTS = {"read": "right", "said": "refused"}
"""Kinds of outcomes that have another name among the verdicts of `tools.faults.judge`"""


def try_readers(results: Results, folder: Path, *, only: str = "") -> None:
    """Tries all rows of the table, an input each.

    Args:
      results: Results to add to. Rows that it has are not tried.
      folder: Empty folder, in which nothing is written.
      only: Beginning of the names of the rows to try.
    """
    del folder
    faulthandler.enable()  # a reader that ends the process says where
    for name in READERS:
        rows = {number: f"{name}: {number}" for number in range(-(-NUM_INPUTS // len(READERS)))}
        numbers = [n for n, row in rows.items() if row.startswith(only) and results.is_wanted(TABLE, row)]
        if numbers:
            for number, (label, outcome) in zip(numbers, try_inputs(name, numbers, results.seed), strict=True):
                verdict = VERDICTS.get(outcome.kind, outcome.kind)
                results.add(Row(TABLE, rows[number], verdict, f"{label}\n{outcome.details}"))
