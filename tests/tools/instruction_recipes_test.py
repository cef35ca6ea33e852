"""Rows of the comparison on texts that differ from LAMOL in one thing each."""

import dataclasses

import pytest

from memjax.settings.overrides import apply_overrides, load_config
from tools.recipes import RECIPES

TEXTS = RECIPES["lifelong_lamol_texts"]


def config_of(row):
    variant, *options = TEXTS.variants[row].split()
    return apply_overrides(load_config("lifelong_lamol", variant), options, prog="memjax train")


def settings_of(row):
    config = config_of(row)
    return dataclasses.asdict(config.lifelong.method), dataclasses.replace(config, name="", lifelong=None)


@pytest.mark.parametrize(
    ("row", "changed"),
    [
        ("LAMOL, real", {"sample_source": "real"}),
        ("equal replay", {"sample_source": "real", "lm_loss_weight": 0.0}),
        ("LAMOL, 5 %", {"sample_ratio": 0.05}),
        ("LAMOL, 100 %", {"sample_ratio": 1.0, "replay_batch_size": 8}),
    ],
)
def test_a_row_beside_lamol_changes_only_what_it_is_named_after(row, changed):
    """So a control reads as many rows of earlier tasks, in the same updates."""
    (method, rest), (wanted, others) = settings_of(row), settings_of("LAMOL")
    assert method == {**wanted, **changed} != wanted and rest == others
    assert row in TEXTS.controls["LAMOL"] or "LAMOL" in TEXTS.controls[row]


@pytest.mark.parametrize("row", ["fine-tuning", "LAMOL", "LAMOL, real"])
def test_a_narrow_model_differs_in_its_width_alone(row):
    narrow, wide = config_of(f"{row}, width 64"), config_of(row)
    assert narrow.lifelong == wide.lifelong and narrow.training.init_from != wide.training.init_from
    assert narrow.model.feed_forward.dim == 4 * narrow.model.dim and wide.model.feed_forward.dim == 4 * wide.model.dim
    narrow.model.dim, narrow.model.feed_forward.dim = wide.model.dim, wide.model.feed_forward.dim
    narrow.training.init_from = wide.training.init_from
    assert narrow == wide


def test_every_row_is_another_run_and_every_control_a_row():
    rows = {row: tuple(options.split()) for row, options in TEXTS.variants.items()}
    assert len({*rows.values()}) == len(rows)
    assert {*TEXTS.controls} | {name for names in TEXTS.controls.values() for name in names} <= {*rows}
