"""FLOPs of a recipe's runs beside their quality."""

import dataclasses
import json

import pytest

from memjax.settings.overrides import apply_overrides, load_config
from memjax.training.runs import config_to_dict
from tools.measurements import costs, flops
from tools.results import runner
from tools.results.ledger import Book


def test_flops_are_those_of_the_configuration_and_stand_beside_the_quality(tmp_path, capsys):
    book, kept = Book(tmp_path), Book().runs()
    for row in ("Transformer-XL", "Compressive"):
        run = next(run for run in kept if (run.recipe, run.row) == ("sorting_small", row))
        book.add(run)
        given = runner.arguments("sorting_small", row, 0, tmp_path, "")
        config = apply_overrides(load_config("sorting", given[3]), given[4:], prog="memjax train")
        (tmp_path / "runs" / run.name).mkdir(parents=True)
        (tmp_path / "runs" / run.name / "config.json").write_text(json.dumps(config_to_dict(config)))
    arguments = ["--quality", "1,000 accuracy", "--workdir", str(tmp_path / "runs"), "--out", str(tmp_path)]
    assert flops.main(["--recipe", "sorting_small", *arguments]) == 0
    counted = book.measurements()[0].facts["flops per token"]
    # What was counted when the runs were recorded.
    (recorded,) = (one for one in Book().measurements() if (one.kind, one.name) == ("flops", "sorting_small"))
    assert counted == {name: recorded.facts["flops per token"][name] for name in counted} and len(counted) == 2
    # Products of a forward pass: twice the parameters but the embeddings' for each token, and what attention adds.
    assert counted["Transformer-XL, seed 0"] > 2 * (101_700 - 23 * 60)
    loss, shapes = costs.program(config.model, 23, 8, 128)
    assert counted["Compressive, seed 0"] == costs.count_flops(loss, *shapes) / (8 * 128)
    page = (tmp_path / "tables" / "sorting.md").read_text()
    assert page.index("| Compressive, seed 0 | 0.3345 | ") < page.index("| Transformer-XL, seed 0 | 0.2555 | ")

    with pytest.raises(SystemExit):
        flops.main(["--recipe", "nothing", *arguments])
    assert "allowed: sorting_small" in capsys.readouterr().err
    other = dataclasses.replace(
        run, evaluations={name: {**e, "memory_bytes": 1} for name, e in run.evaluations.items()}
    )
    with pytest.raises(ValueError, match="a state of 1 bytes"):
        flops.measure(other, tmp_path / "runs" / run.name)
