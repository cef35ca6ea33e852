"""Plans of large models among the measurements."""

import pytest

from tools.measurements import plans
from tools.results import plan_tables
from tools.results.ledger import Book, apart, command_of_today

MADE = Book().measurements()
KNOWN = {one.name: one for one in MADE if one.kind == "plan"}


def test_every_command_has_its_measurement():
    hosts = {name: " ".join(["memjax", "plan", *options, "--json"]) for name, options in plans.HOSTS.items()}
    assert {name: command_of_today(one.command) for name, one in KNOWN.items()} == hosts | {
        name: " ".join(["memjax", *plans.BASE, *options, "--json"]) for name, options in plans.PLANS.items()
    }


def test_every_learner_has_its_measurement_and_a_line_for_each_program():
    made = {one.name: one for one in MADE if one.kind == "learner_plan"}
    assert {name: command_of_today(one.command) for name, one in made.items()} == {
        name: " ".join(["memjax", "plan", *options, "--json"]) for name, options in plans.LEARNERS.items()
    }
    table = plan_tables.learner_plans(made["mbpa_pp"])
    programs = ("stream", "replay", "write", "search", "adapt")
    assert [name for name in programs if f"(8 chips) | {name} |" in table] == [*programs]


def test_what_does_not_fit_fits_when_it_is_changed_as_advised():
    (before,), (after,) = (apart(KNOWN[name].facts) for name in ("200m_512_rows", "200m_512_rows_changed"))
    assert not before["fits"] and after["fits"]
    advised = [tip["change"] for tip in before["tips"] if tip["enough"]]
    assert any(change in KNOWN["200m_512_rows_changed"].command for change in advised)


def test_a_command_that_is_refused_adds_nothing(monkeypatch, tmp_path):
    monkeypatch.setattr(plans, "PLANS", {"bad": ["--topology", "v9:2x2"]})
    with pytest.raises(SystemExit) as stopped:
        plans.run(book=Book(tmp_path))
    assert stopped.value.code == 2 and not list(tmp_path.iterdir())
    with pytest.raises(SystemExit, match="2"):
        plans.main(["good"])
