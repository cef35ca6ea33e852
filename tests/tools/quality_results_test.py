"""The table of quality, FLOPs and state."""

import dataclasses
import json

import pytest

from tools.results import records
from tools.results.recurrent import costs, quality


def test_the_page_has_the_quality_of_the_record_and_the_costs_of_the_configuration(tmp_path, monkeypatch, capsys):
    kept = [record for record in records.read() if record.recipe == "sorting_small"]
    chosen = [next(r for r in kept if r.row == row) for row in ("Transformer-XL", "Compressive")]
    first, second = map(quality.measure, chosen)
    # Products of a forward pass: twice the parameters but the embeddings' for each token, and what attention adds.
    assert first["flops per token"] > 2 * (first["parameters"] - 23 * 60)
    loss, shapes = costs.program(quality.load_config(records.LOGS / chosen[0].log).model, 23, 8, 128)
    assert first["flops per token"] == costs.count_flops(loss, *shapes) / (8 * 128)

    (tmp_path / quality.FOLDER).mkdir()
    monkeypatch.setattr(records, "ROOT", tmp_path)
    monkeypatch.setattr(records, "read", lambda: chosen)
    quality.main(["--recipe", "sorting_small", "--quality", "1,000 accuracy"])
    page = (tmp_path / quality.FOLDER / "quality_sorting_small.md").read_text()
    places = [
        page.index(f"| {record.row}, seed 0 | {record.numbers['1,000 accuracy']:.4f} | "
        f"{numbers['flops per token'] / 1e6:.3f} | {numbers['memory bytes per row'] / 1024:.1f} |")
        for record, numbers in zip(chosen, (first, second), strict=True)
    ]  # fmt: skip
    assert places[1] < places[0]  # the better one first
    assert "logs/sorting_small" in page
    content = json.loads((tmp_path / quality.FOLDER / "quality_sorting_small.json").read_text())
    assert content["runs"]["Compressive, seed 0"]["log"] == chosen[1].log

    with pytest.raises(SystemExit):
        quality.main(["--recipe", "nothing"])
    assert "allowed: sorting_small" in capsys.readouterr().err
    other = dataclasses.replace(chosen[0], numbers={**chosen[0].numbers, "memory bytes per row": 1})
    with pytest.raises(ValueError, match="a state of 1 bytes"):
        quality.measure(other)
