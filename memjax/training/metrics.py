"""Computes metrics for people, such as perplexity and bits per byte, and writes them to `metrics.jsonl`."""

import itertools
import json
import math
import re
import warnings
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np

from memjax.durable_files import CHECKSUM, DamagedError, DamageWarning, explain_full_disk, read_json, replace_file
from memjax.training.run_identity import read_identity
from memjax.typing import WeightedSum

__all__ = ["read_metrics"]

COUNT = "log_lines"
"""Name of the number of lines of the log, in `finished.json` and in checkpoints"""
LN2 = math.log(2.0)


def count_parameters(params: Any) -> int:
    """Counts the values in a tree of arrays or shapes.

    Example:
      >>> count_parameters({"kernel": np.zeros((2, 3)), "bias": np.zeros(3)})
      9
    """
    return sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(params))


def count_bytes(tree: Any) -> int:
    """Counts the bytes of a tree of arrays or shapes.

    Example:
      >>> count_bytes({"kernel": np.zeros((2, 3), np.float32)})
      24
    """
    return sum(math.prod(leaf.shape) * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))


def bits_per_byte(nats: float, num_bytes: float) -> float | None:
    """Converts the nats of a text to bits per UTF-8 byte. Returns None if `num_bytes` is 0, that is, not known."""
    return nats / LN2 / num_bytes if num_bytes else None


def perplexity(nats_per_token: float) -> float:
    """Computes the perplexity `exp(nats_per_token)`. Returns infinity if it overflows."""
    return math.exp(nats_per_token) if nats_per_token < 700 else math.inf


def describe_totals(totals: Mapping[str, WeightedSum]) -> dict[str, float | None]:
    """Computes the metrics of a log line by name from the totals of a train state, a `WeightedSum` by name. A mean of
    nothing is None, a number of nothing is 0.

    Args:
      totals: `TrainState.totals` on the host, a `WeightedSum` by name.

    Returns:
      Metrics by name: `nats_per_token`, `perplexity`, `bits_per_byte` if the batches count bytes, `tokens` (tokens
      read), `targets` (targets scored, for other kinds of update as `KIND/targets`), `gradient_norm`, `skipped`
      (number of steps), and the mean of every other sum. A mean of nothing is None.
    """
    values = {name: (float(s.total), float(s.weight)) for name, s in totals.items()}
    means = {name: total / weight if weight else None for name, (total, weight) in values.items()}
    nats, targets = values["nll"]
    line: dict[str, float | None] = {"nats_per_token": means["nll"]}
    line["perplexity"] = None if means["nll"] is None else perplexity(means["nll"])
    if "bytes" in values:
        line["bits_per_byte"] = bits_per_byte(nats, values["bytes"][0])
    line |= {"tokens": values["tokens"][0], "targets": targets}
    others = [name for name in values if name.endswith("/nll")]
    line |= {f"{name.removesuffix('nll')}targets": values[name][1] for name in others}
    line |= {"gradient_norm": means["gradient_norm"], "skipped": values["skipped"][0]}
    return line | {name: means[name] for name in sorted(means) if name not in ("nll", "bytes", *line)}


LINE_CHECKSUM = re.compile(rb', "checksum": "([0-9a-f]{8})"}$')
"""End of a line of `metrics.jsonl`: the CRC-32 of the identity of the run and the JSON object without this entry"""

LOST_END = re.compile(rb'(?<=[0-9a-f]{8}"})[^\n](?={"step": )')
"""Damaged end of a line, which is no longer a line feed"""


class MetricsFile:
    """The file `metrics.jsonl` of a run, with one JSON object per line, each with `step`, `attempt`, `kind` and a
    checksum.

    Evaluations are identified by `step`, `stage`, `phase` and `name`. A line without `stage` belongs to stage 0, a line
    without `phase` to the updates of its stage, and a line without `name` to `Config.evaluation`.

    Example:
      >>> import tempfile
      >>> file = MetricsFile(Path(tempfile.mkdtemp()) / "metrics.jsonl", attempt=1)
      >>> file.write("train", 20, {"nats_per_token": 2.5})
      >>> file.read()
      [{'step': 20, 'attempt': 1, 'kind': 'train', 'nats_per_token': 2.5}]
      >>> file.cut(10)
      >>> file.read()
      []
    """

    def __init__(self, path: Path, attempt: int = 1):
        self.path, self.attempt = path, attempt
        self._identity = read_identity(path.parent)

    def write(self, kind: str, step: int, values: Mapping[str, Any]) -> None:
        """Appends a line with `kind`, `step`, the number of the attempt and `values`, and writes it to the file at
        once. Numbers that are not finite become null.
        """
        line = {"step": step, "attempt": self.attempt, "kind": kind, **values}
        with explain_full_disk(self.path), self.path.open("ab") as file:
            file.write(encode_line(_replace_non_finite(line), self._identity))

    def count(self) -> int:
        """Counts the lines of the file, damaged ones too."""
        return len(_read_lines(self.path)) if self.path.exists() else 0

    def cut(self, step: int, stage: int | None = None, phase: str = "steps") -> None:
        """Removes the lines after a position of the run, and a half-written last line. Without `stage` all lines of
        `step` are kept. Damaged lines stay where they are.

        Args:
          step: Step of the last line to keep.
          stage: Stage of the last line to keep. None keeps all lines of `step`.
          phase: Phase of the last line to keep, if `stage` is given.
        """
        if not self.path.exists():
            return
        order = ("before", "steps", "after")
        place = lambda line: (line["step"], line.get("stage", 0), order.index(line.get("phase", "steps")))
        last = (step, math.inf, 0) if stage is None else (step, stage, order.index(phase))
        lines = _read_lines(self.path)
        replace_file(self.path, b"".join(raw + b"\n" for raw, line in lines if line is None or place(line) <= last))

    def read(self) -> list[dict[str, Any]]:
        """Reads all lines as dictionaries. The list is empty if there is no file."""
        return read_metrics(self.path)


def read_metrics(path: Path | str) -> list[dict[str, Any]]:
    """Reads the lines of a file `metrics.jsonl` as dictionaries, without their checksums. The list is empty if there is
    no file. Damaged lines are left out, with a `DamageWarning` that gives their numbers, and so is a half-written last
    line. Another warning says how many lines of a finished run are missing.
    """
    path = Path(path)
    lines = _read_lines(path) if path.exists() else []
    if missing := describe_missing_lines(path, len(lines), _count_of_finished(path.parent)):
        warnings.warn(DamageWarning(missing), stacklevel=2)
    if damage := _describe_damage(path, lines):
        warnings.warn(DamageWarning(damage), stacklevel=2)
    return [line for _, line in lines if line is not None]


def describe_damaged_lines(path: Path) -> str:
    """Describes the damaged lines of a file `metrics.jsonl` by their numbers, and how many lines of a finished run are
    missing, in one line. '' for an intact file.
    """
    lines = _read_lines(path)
    missing = describe_missing_lines(path, len(lines), _count_of_finished(path.parent))
    return "; ".join(filter(None, [_describe_damage(path, lines), missing]))


def describe_missing_lines(path: Path, number: int, expected: int) -> str:
    """Describes in one line that a file `metrics.jsonl` has fewer lines than were written. '' if it has not.

    Args:
      path: The file.
      number: Number of lines that it has.
      expected: Number of lines that it had.
    """
    return f"{path}: {expected - number} of its {expected} lines are missing" if number < expected else ""


def _count_of_finished(run: Path) -> int:
    """Returns the number of lines of the log when the run in a directory was finished. 0 if that is not known."""
    try:
        finished = read_json(run / "finished.json")
    except DamagedError:  # which those who read the results say
        return 0
    count = finished.get(COUNT, 0) if isinstance(finished, dict) else 0
    return count if isinstance(count, int) else 0


def _describe_damage(path: Path, lines: list[tuple[bytes, dict[str, Any] | None]]) -> str:
    damaged = [str(number) for number, (_, line) in enumerate(lines, start=1) if line is None]
    if not damaged:
        return ""
    name = "line" if len(damaged) == 1 else "lines"
    numbers = ", ".join(damaged[:5]) + (f" and {len(damaged) - 5} more" if len(damaged) > 5 else "")
    return f"{path}: {name} {numbers} damaged (not what memjax wrote); the other {len(lines) - len(damaged)} are read"


def encode_line(line: Mapping[str, Any], identity: str = "") -> bytes:
    """Returns a JSON object as a line of `metrics.jsonl`, which ends with the checksum of what stands before it. The
    checksum is another one for each `identity` of a run.

    Example:
      >>> encode_line({"step": 1})
      b'{"step": 1, "checksum": "3a87913d"}\\n'
    """
    content = json.dumps(line).encode()
    return content[:-1] + f', "{CHECKSUM}": "{_crc(content, identity):08x}"}}\n'.encode()


def _read_lines(path: Path) -> list[tuple[bytes, dict[str, Any] | None]]:
    """Reads the lines of a log with their JSON objects, None for a damaged line. A half-written last line is left
    out.
    """
    *complete, last = path.read_bytes().split(b"\n")
    identity, needs_checksum, pairs = read_identity(path.parent), False, []
    lines = [*complete, last] if last and _decode_line(last, identity) is not None else complete
    for raw in itertools.chain(*map(LOST_END.split, lines)):
        pairs.append((raw, _decode_line(raw, identity, needs_checksum=needs_checksum)))
        # Lines of earlier versions have none, but none of them comes after a line of this version.
        needs_checksum = needs_checksum or LINE_CHECKSUM.search(raw) is not None
    return pairs


def _crc(content: bytes, identity: str) -> int:
    return zlib.crc32(content, zlib.crc32(identity.encode()))


def _decode_line(raw: bytes, identity: str, *, needs_checksum: bool = False) -> dict[str, Any] | None:
    """Returns the JSON object of a line of a log without its checksum. None if the line is damaged."""
    match = LINE_CHECKSUM.search(raw)
    if match is None and needs_checksum:
        return None
    if match is not None and _crc(raw[: match.start()] + b"}", identity) != int(match[1], 16):
        return None
    try:
        line = json.loads(raw)
    except (ValueError, RecursionError):
        return None
    if not isinstance(line, dict) or not isinstance(line.get("step"), int):
        return None
    return {name: value for name, value in line.items() if name != CHECKSUM}


def _replace_non_finite(value: Any) -> Any:
    """Replaces numbers that are not finite by None, since JSON cannot represent them."""
    if isinstance(value, Mapping):
        return {name: _replace_non_finite(v) for name, v in value.items()}
    if isinstance(value, float | np.floating):
        return float(value) if math.isfinite(value) else None
    return value
