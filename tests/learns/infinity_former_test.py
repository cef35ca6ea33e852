"""infinity-former learns to read its signal by time, and so do its sticky memories."""

from typing import Literal

import pytest

from memjax.config import Config
from memjax.overrides import load_config
from tests.learns.harness import SEEDS, Learns, check, measure


def events(num_basis: int = 64, sticky: Literal["none", "sample"] = "none") -> Config:
    """Four events in a segment each; noise and a border of segments lie between the last of them and the questions."""
    config = load_config("sorting", "events")
    config.model.attention.num_basis, config.model.attention.sticky = num_basis, sticky
    return config


# Measured, chance is 0.125:
#   even    kept 0.997, 1.000, 1.000; cleared 0.124, 0.129, 0.123; shuffled 0.118, 0.121, 0.120;
#           parent 0.125, 0.128, 0.124
#   sticky  kept 0.655, 0.546, 0.732; cleared 0.130, 0.096, 0.100; shuffled 0.124, 0.118, 0.133;
#           parent 0.125, 0.128, 0.124
NOTHING = {"cleared": 0.15, "shuffled": 0.15, "parent": 0.15}
ROWS = {
    "even": Learns(config=events, parent=lambda: events(num_basis=0), at_least={"kept": 0.995}, at_most=NOTHING),
    "sticky": Learns(
        config=lambda: events(sticky="sample"),
        parent=lambda: events(num_basis=0),
        at_least={"kept": 0.458},
        at_most=NOTHING,
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", ROWS)
def test_events_by_their_time(name, seed, tmp_path):
    check(ROWS[name], measure(ROWS[name], seed, tmp_path))
