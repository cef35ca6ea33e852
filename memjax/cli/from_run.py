"""Configs that start from another run (`--from RUN`)."""

from pathlib import Path

from memjax.config import Config
from memjax.settings.overrides import UsageError, load_config


def config_from_run(run: str, name: str | None = None, variant: str = "") -> tuple[Config, str]:
    """Returns a config that starts from a run, and a line that says so: the config of `name` and `variant`, or for None
    that of the run itself.

    Raises:
      UsageError: The directory is no run, the run has no checkpoint, or a variant without a name.
    """
    from memjax.training.runs import load_config as load_run_config

    if name is None and variant:
        raise UsageError(f"--variant: given {variant!r} with --from alone, allowed: with --config, too")
    config = with_start(load_run_config(run) if name is None else load_config(name, variant), run)
    config.name = f"{config.name}_{name_of_start(run)}"[:80]
    return config, f"{config.name}{describe_start(run)}"


def with_start(config: Config, run: str | None) -> Config:
    """Returns a config with the model, the tokenizer and the parameters of a run. The config itself for None.

    Raises:
      UsageError: The directory is no run, or the run has no checkpoint.
    """
    from memjax.training.loaded_runs import start_from

    if run is None:
        return config
    try:
        return start_from(config, run)
    except ValueError as error:
        raise UsageError(f"--from: {error}") from None


def name_of_start(run: str | None) -> str:
    """Returns the end of the name of a run that starts from another. '' for None."""
    return "" if run is None else f"from_{Path(run).expanduser().resolve().name}"


def describe_start(run: str | None) -> str:
    """Returns the end of the line about a chosen config that starts from a run. '' for None."""
    return "" if run is None else f"; model, tokenizer and parameters from {run}"
