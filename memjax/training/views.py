"""Views of a run's metrics elsewhere, TensorBoard and Weights & Biases; `metrics.jsonl` stays the record."""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from memjax.config import Config

__all__ = ["TensorBoard", "MetricsView", "WeightsAndBiases", "open_views"]

WANDB_ID = "wandb_id.txt"
"""in the run directory: what Weights & Biases calls the run, for all its attempts"""


@runtime_checkable
class MetricsView(Protocol):
    """Where every line of metrics is also shown."""

    def write(self, kind: str, step: int, values: Mapping[str, Any]) -> None:
        """Shows the numbers of a line."""
        ...

    def close(self) -> None: ...


def open_views(config: Config, path: Path, after_step: int) -> list[MetricsView]:
    """The views that a configuration asks for.

    Args:
      config: of the run.
      path: its directory.
      after_step: where this attempt starts.

    Raises:
      ValueError: the package of one is missing.
    """
    views: list[MetricsView] = []
    if config.training.tensorboard:
        views.append(TensorBoard(path, after_step))
    if config.training.wandb:
        views.append(WeightsAndBiases(config, path))
    return views


class TensorBoard:
    """Event files of TensorBoard in the run directory."""

    def __init__(self, path: Path, after_step: int):
        """Opens `path/tensorboard`; events after `after_step` of an earlier attempt are hidden.

        Raises:
          ValueError: the package is missing.
        """
        try:
            from tensorboardX import SummaryWriter
        except ImportError:
            raise ValueError(
                "training.tensorboard: given True, but tensorboardX is missing; pip install 'memjax[tb]'"
            ) from None
        self._writer = SummaryWriter(str(path / "tensorboard"), purge_step=after_step + 1)

    def write(self, kind: str, step: int, values: Mapping[str, Any]) -> None:
        """Adds every number of a line."""
        for name, value in scalar_metrics(kind, values):
            self._writer.add_scalar(name, value, step)
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()


class WeightsAndBiases:
    """A run of Weights & Biases; each attempt goes on with the same one.

    Its own count of calls never goes back, and a run that goes on does, to the step of its checkpoint: the step is a
    metric that all others are drawn over, and steps that were repeated have two values.
    """

    def __init__(self, config: Config, path: Path):
        """Opens the run of the project `config.training.wandb`; its files are in `path/wandb`.

        Raises:
          ValueError: the package is missing.
        """
        try:
            import wandb  # type: ignore[import-not-found]
        except ImportError:
            given = f"training.wandb: given {config.training.wandb!r}, but wandb is missing"
            raise ValueError(f"{given}; pip install 'memjax[wandb]'") from None
        from memjax.training.runs import config_to_dict

        kept = path / WANDB_ID
        if not kept.exists():
            kept.write_text(secrets.token_hex(4), encoding="utf-8")
        self._run: Any = wandb.init(
            project=config.training.wandb,
            name=path.name,
            id=kept.read_text(encoding="utf-8").strip(),
            resume="allow",
            dir=str(path),
            config=config_to_dict(config),
        )
        self._run.define_metric("step")
        self._run.define_metric("*", step_metric="step")

    def write(self, kind: str, step: int, values: Mapping[str, Any]) -> None:
        """Sends every number of a line."""
        self._run.log({"step": step, **dict(scalar_metrics(kind, values))})

    def close(self) -> None:
        self._run.finish()


def scalar_metrics(kind: str, values: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    """Name and value of every number of a line; those of a named evaluation, and of a part of a line, stand apart.

    Example:
      >>> dict(numbers("evaluation", {"name": "news", "nats": 2.0, "done": True, "metrics": {"gate": 0.5}}))
      {'evaluation/news/nats': 2.0, 'evaluation/news/metrics/gate': 0.5}
    """
    place = f"{kind}/{values['name']}" if values.get("name") else kind
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from scalar_metrics(f"{place}/{name}", value)
        elif isinstance(value, int | float) and not isinstance(value, bool):
            yield f"{place}/{name}", value
