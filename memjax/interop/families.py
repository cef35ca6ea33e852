"""Which architecture of Hugging Face `transformers` a folder holds, or a run can be written as."""

from collections.abc import Iterable, Mapping
from typing import Any, Protocol, get_args, runtime_checkable

import numpy as np

from memjax import config
from memjax.interop import folders, hf_bert, hf_gpt2, hf_transfo_xl
from memjax.interop.state_dicts import Entry, Imported

__all__ = ["FAMILIES", "Family", "family_of_run", "family_of_weights"]


@runtime_checkable
class Family(Protocol):
    """What a module says of one architecture."""

    def read_model(
        self, described: Mapping[str, Any], weights: Mapping[str, np.ndarray], *, dialogues: bool = False
    ) -> Imported:
        """What a configuration and a state dict hold."""
        ...

    def export_config(
        self, model: config.Model, vocab_size: int, task: config.TaskKind | None = None
    ) -> dict[str, Any]:
        """The `config.json` of a model; a `ValueError` for an option that the architecture lacks."""
        ...

    def export_params(
        self, params: Mapping[str, Any], model: config.Model, task: config.TaskKind | None = None
    ) -> dict[str, np.ndarray]:
        """The state dict of a model."""
        ...

    def entries(self, model: config.Model, task: config.TaskKind | None = None) -> Iterable[Entry]:
        """The parameters that stand in that state dict."""
        ...

    def differences(self, model: config.Model) -> tuple[str, ...]:
        """What the exported model computes otherwise, a line each."""
        ...


FAMILIES: dict[str, Family] = {
    "gpt2": hf_gpt2,
    "bert": hf_bert,
    "distilbert": hf_bert,
    "transfo-xl": hf_transfo_xl,
}
"""`model_type` of config.json -> the module that reads and writes it"""


def family_of_weights(described: Mapping[str, Any]) -> Family:
    """The family of a configuration.

    Args:
      described: as `config.json` has it.

    Raises:
      ValueError: it names none, or another one.
    """
    kind = described.get("model_type")
    if kind not in FAMILIES:
        allowed = ", ".join(map(repr, FAMILIES))
        raise ValueError(f"{folders.CONFIG_FILE}: given model_type {kind!r}, allowed: {allowed}")
    return FAMILIES[kind]


def family_of_run(model: config.AnyModel) -> Family:
    """The family that a model's weights can be written as, its memory aside.

    Args:
      model: the settings of it.

    Raises:
      ValueError: there is none.
    """
    kind = "" if model.translates else model.carrier.exports_as
    if kind not in FAMILIES:
        given = type(model).__name__ if model.translates else model.attention_kind
        allowed = [one.__name__ for one in get_args(config.AttentionKind) if one().exports_as]
        raise ValueError(f"export: given {given}, which transformers does not have, allowed: {', '.join(allowed)}")
    return FAMILIES[kind]
