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

from memjax.durable_files import CHECKSUM, DamageWarning, explain_full_disk, replace_file
from memjax.typing import WeightedSum

__all__ = ["read_metrics"]

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
"""End of a line of `metrics.jsonl`: the CRC-32 of the JSON object without this entry"""

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

    def write(self, kind: str, step: int, values: Mapping[str, Any]) -> None:
        """Appends a line with `kind`, `step`, the number of the attempt and `values`, and writes it to the file at
        once. Numbers that are not finite become null.
        """
        line = {"step": step, "attempt": self.attempt, "kind": kind, **values}
        with explain_full_disk(self.path), self.path.open("ab") as file:
            file.write(encode_line(_replace_non_finite(line)))

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
    line.
    """
    path = Path(path)
    lines = _read_lines(path) if path.exists() else []
    if damage := _describe_damage(path, lines):
        warnings.warn(DamageWarning(damage), stacklevel=2)
    return [line for _, line in lines if line is not None]


def describe_damaged_lines(path: Path) -> str:
    """Describes the damaged lines of a file `metrics.jsonl` by their numbers, in one line. '' if it has none."""
    return _describe_damage(path, _read_lines(path))


def _describe_damage(path: Path, lines: list[tuple[bytes, dict[str, Any] | None]]) -> str:
    damaged = [str(number) for number, (_, line) in enumerate(lines, start=1) if line is None]
    if not damaged:
        return ""
    name = "line" if len(damaged) == 1 else "lines"
    numbers = ", ".join(damaged[:5]) + (f" and {len(damaged) - 5} more" if len(damaged) > 5 else "")
    return f"{path}: {name} {numbers} damaged (not what memjax wrote); the other {len(lines) - len(damaged)} are read"


def encode_line(line: Mapping[str, Any]) -> bytes:
    """Returns a JSON object as a line of `metrics.jsonl`, which ends with the checksum of what stands before it.

    Example:
      >>> encode_line({"step": 1})
      b'{"step": 1, "checksum": "3a87913d"}\\n'
    """
    content = json.dumps(line).encode()
    return content[:-1] + f', "{CHECKSUM}": "{zlib.crc32(content):08x}"}}\n'.encode()


def _read_lines(path: Path) -> list[tuple[bytes, dict[str, Any] | None]]:
    """Reads the lines of a log with their JSON objects, None for a damaged line. A half-written last line is left
    out.
    """
    *complete, last = path.read_bytes().split(b"\n")
    lines = [*complete, last] if last and _decode_line(last, needs_checksum=False) is not None else complete
    needs_checksum, pairs = False, []
    for raw in itertools.chain(*map(LOST_END.split, lines)):
        pairs.append((raw, _decode_line(raw, needs_checksum=needs_checksum)))
        # Lines of earlier versions have none, but none of them comes after a line of this version.
        needs_checksum = needs_checksum or LINE_CHECKSUM.search(raw) is not None
    return pairs


def _decode_line(raw: bytes, *, needs_checksum: bool) -> dict[str, Any] | None:
    """Returns the JSON object of a line of a log without its checksum. None if the line is damaged."""
    match = LINE_CHECKSUM.search(raw)
    if match is None and needs_checksum:
        return None
    if match is not None and zlib.crc32(raw[: match.start()] + b"}") != int(match[1], 16):
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
