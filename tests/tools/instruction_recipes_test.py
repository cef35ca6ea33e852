"""Rows of the comparison on texts that differ from LAMOL in one thing each."""

import dataclasses

import pytest

from memjax.settings.overrides import load_config
from tools.recipes import RECIPES

TEXTS = RECIPES["lifelong_lamol_texts"]


def settings_of(row):
    config = load_config("lifelong_lamol", TEXTS.variants[row])
    return dataclasses.asdict(config.lifelong.method), dataclasses.replace(config, name="", lifelong=None)


@pytest.mark.parametrize(
    ("row", "changed"),
    [("LAMOL, real", {"sample_source": "real"}), ("equal replay", {"sample_source": "real", "lm_loss_weight": 0.0})],
)
def test_a_control_of_lamol_changes_only_what_it_is_named_after(row, changed):
    """So it reads as many rows of earlier tasks, in the same updates."""
    (method, rest), (wanted, others) = settings_of(row), settings_of("LAMOL")
    assert method == {**wanted, **changed} != wanted and rest == others
    assert row in TEXTS.controls["LAMOL"]


def test_every_row_and_control_of_the_texts_is_a_variant():
    rows = {row: options.split()[0] for row, options in TEXTS.variants.items()}
    assert len({load_config("lifelong_lamol", variant).name for variant in rows.values()}) == len(rows)
    assert {*TEXTS.controls} | {name for names in TEXTS.controls.values() for name in names} <= {*rows}
