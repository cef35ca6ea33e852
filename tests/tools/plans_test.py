"""The table of plans is made from the files beside it."""

import json

import pytest

from tools.results import plans


def test_the_table_is_up_to_date():
    assert (plans.FOLDER / "README.md").read_text() == plans.table()


@pytest.mark.parametrize("name", plans.PLANS)
def test_every_command_has_its_file(name):
    lines = [json.loads(line) for line in (plans.FOLDER / f"{name}.jsonl").read_text().splitlines()]
    command = ["memjax", *plans.BASE, *plans.PLANS[name], "--json"]
    assert {line["command"] for line in lines} == {" ".join(command)}


def test_what_does_not_fit_fits_when_it_is_changed_as_advised():
    read = lambda name: json.loads((plans.FOLDER / f"{name}.jsonl").read_text())
    before, after = read("200m_256_rows"), read("200m_256_rows_changed")
    assert not before["fits"] and after["fits"]
    advised = [tip["change"] for tip in before["tips"] if tip["enough"]]
    assert any(change in after["command"] for change in advised)


def test_a_command_that_is_refused_writes_nothing(monkeypatch, tmp_path):
    monkeypatch.setattr(plans, "FOLDER", tmp_path)
    monkeypatch.setattr(plans, "PLANS", {"bad": ["--topology", "v9:2x2"]})
    with pytest.raises(SystemExit) as stopped:
        plans.run([])
    assert stopped.value.code == 2 and not list(tmp_path.iterdir())
