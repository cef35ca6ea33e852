"""Heads of a run that has grown twice beside those of its earlier generations, from its checkpoints."""

import numpy as np
import pytest

from memjax.config import Sequential
from memjax.lifelong import train
from tests.lifelong.elle_test import GROWN, config_of
from tools.measurements import ancestors
from tools.results.ledger import Book
from tools.results.perplexities import ancestors as table


@pytest.mark.slow
def test_generations_of_a_run_are_compared_and_one_alone_is_refused(tmp_path, capsys):
    config = config_of(tmp_path, GROWN)
    config.training.keep_checkpoints, config.training.checkpoint_every = 99, 0
    run, arrays = train(config, on_event=lambda event: None).path, tmp_path / "arrays.npz"
    given = ["--run", str(run), "--name", "toy", "--pieces", "4", "--to", str(arrays), "--out", str(tmp_path)]
    assert ancestors.main(given) == 0
    (found,) = Book(tmp_path).measurements()
    pairs = found.facts["pairs"]
    assert [pair["generations"] for pair in pairs] == [[0, 1], [0, 1], [0, 2], [0, 2], [1, 2], [1, 2]]
    assert [pair["sources"] for pair in pairs] == [[0], [0], [0, 0], [0, 0], [0, 0], [0, 0]]
    for pair in pairs:
        just_grown = pair["updates"][0] == pair["updates"][1]
        kept = [pair[kind]["layers"]["relatives"][0] for kind in ("weights", "beyond_even")]  # the second is a copy
        assert min(kept) > 1 - 1e-4 if just_grown else kept[1] < 1 - 1e-4
        assert just_grown == (pair is pairs[0] or pair is pairs[4])
        assert pair["beyond_even"]["others"] < 0.9
    with np.load(arrays) as file:
        named = dict(file)
    (last,) = [name for name in named if name.startswith("sources_1") and name.endswith(str(pairs[5]["updates"][1]))]
    assert named[last].shape == (2, 6, 2) and named[last.replace("sources", "beyond_even/relatives")].shape == (2, 6)
    assert table(found).count("\n") == 7 and "| 0 (0): 1.000" in table(found)

    config.name, config.training.keep_checkpoints, config.lifelong.method = "alone", 1, Sequential()
    alone = train(config, on_event=lambda event: None).path
    with pytest.raises(SystemExit) as ended:
        ancestors.main(["--run", str(alone), "--name", "toy"])
    assert ended.value.code == 2
    assert "checkpoints of 1 generation, allowed: " in capsys.readouterr().err
