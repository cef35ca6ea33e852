"""Copies the metrics of a run to TensorBoard and Weights & Biases. The record of a run is `metrics.jsonl`."""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from memjax.config import Config

WANDB_ID = "wandb_id.txt"
"""File in the run directory with the id of the run at Weights & Biases, which all attempts share."""


@runtime_checkable
class MetricsView(Protocol):
    """A tool that also shows every line of the metrics of a run, such as TensorBoard."""

    def write(self, kind: str, step: int, values: Mapping[str, Any]) -> None:
        """Shows the numbers in `values`, a line of the metrics of this kind and step."""
        ...

    def close(self) -> None:
        """Finishes the view."""
        ...


def open_views(config: Config, path: Path, after_step: int) -> list[MetricsView]:
    """Opens the views of metrics that a configuration asks for and returns them in a list. `after_step` is the number
    of updates done when this attempt starts.

    Args:
      config: Configuration of the run.
      path: Run directory.
      after_step: Number of updates done when this attempt starts.

    Raises:
      ValueError: The package of a view is not installed.
    """
    views: list[MetricsView] = []
    if config.training.tensorboard:
        views.append(TensorBoard(path, after_step))
    if config.training.wandb_project:
        views.append(WeightsAndBiases(config, path))
    return views


class TensorBoard:
    """A view that writes event files of TensorBoard to the run directory."""

    def __init__(self, path: Path, after_step: int):
        """Opens the folder `path/tensorboard`. Events of an earlier attempt after `after_step` are hidden.

        Raises:
          ValueError: The package tensorboardX is not installed.
        """
        try:
            from tensorboardX import SummaryWriter
        except ImportError:
            raise ValueError(
                "training.tensorboard: given True, but tensorboardX is missing; pip install 'memjax[tb]'"
            ) from None
        self._writer = SummaryWriter(str(path / "tensorboard"), purge_step=after_step + 1)

    def write(self, kind: str, step: int, values: Mapping[str, Any]) -> None:
        """Writes every number of a line as a scalar."""
        for name, value in _scalar_metrics(kind, values):
            self._writer.add_scalar(name, value, step)
        self._writer.flush()

    def close(self) -> None:
        """Closes the event files."""
        self._writer.close()


class WeightsAndBiases:
    """A view that sends metrics to a run of Weights & Biases. All attempts continue the same run.

    Metrics are drawn over the metric `step`. Steps that were repeated after a restart have two values.
    """

    # The step counter of Weights & Biases never goes back. A run that continues from a checkpoint does.

    def __init__(self, config: Config, path: Path):
        """Opens a run of the project `config.training.wandb_project`. Its files are in `path/wandb`.

        Raises:
          ValueError: The package wandb is not installed.
        """
        try:
            import wandb  # type: ignore[import-not-found]
        except ImportError:
            problem = f"training.wandb_project: given {config.training.wandb_project!r}, but wandb is missing"
            raise ValueError(f"{problem}; pip install 'memjax[wandb]'") from None
        from memjax.training.runs import config_to_dict

        id_file = path / WANDB_ID
        if not id_file.exists():
            id_file.write_text(secrets.token_hex(4), encoding="utf-8")
        self._run: Any = wandb.init(
            project=config.training.wandb_project,
            name=path.name,
            id=id_file.read_text(encoding="utf-8").strip(),
            resume="allow",
            dir=str(path),
            config=config_to_dict(config),
        )
        self._run.define_metric("step")
        self._run.define_metric("*", step_metric="step")

    def write(self, kind: str, step: int, values: Mapping[str, Any]) -> None:
        """Sends every number of a line."""
        self._run.log({"step": step, **dict(_scalar_metrics(kind, values))})

    def close(self) -> None:
        """Finishes the run of Weights & Biases."""
        self._run.finish()


def _scalar_metrics(kind: str, values: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    """Yields the name and value of every number in a line of metrics.

    The names begin with the kind of the line and, for an evaluation with a name, that name. Nested numbers have the
    path of their keys.

    Example:
      >>> dict(_scalar_metrics("evaluation", {"name": "news", "nats": 2.0, "done": True, "metrics": {"gate": 0.5}}))
      {'evaluation/news/nats': 2.0, 'evaluation/news/metrics/gate': 0.5}
    """
    place = f"{kind}/{values['name']}" if values.get("name") else kind
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from _scalar_metrics(f"{place}/{name}", value)
        elif isinstance(value, int | float) and not isinstance(value, bool):
            yield f"{place}/{name}", value
