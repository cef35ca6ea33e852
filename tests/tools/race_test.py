"""The top of the page about speed: ratios, the state of the code, where the time goes."""

import pytest

from tools.results import pages, race, timed_code
from tools.results.ledger import Book, Measurement

RATIO = {"low": 0.5, "high": 2.5}


def record(contender, mode, wall, cpu=1.0, beside=("peer",)):
    ratios = {name: {"value": wall, **RATIO} for name in beside}
    cpu_ratios = {name: {"value": cpu, **RATIO} for name in beside}
    return {"contender": contender, "mode": mode, "ratios": ratios, "cpu_ratios": cpu_ratios}


def suite(name, records, *, baseline="peer", reference="", timed_code="new", commit="0123"):
    facts = {"baseline": baseline, "reference": reference, "timed_code": timed_code, "records": records}
    return Measurement("bench", name, "", commit, "a processor", name, "", facts)


def test_all_ratios_stand_in_one_table_beside_the_peer_and_the_reference():
    records = [
        record("memjax A", mode, wall, 1.25, ("peer", "bare")) for mode, wall in (("infer", 1.5), ("train", 0.8))
    ]
    text = race.summarise([suite("s", [record("peer", "infer", 1.0, beside=()), *records], reference="bare")], "new")
    assert "| suite | contender | beside | inference | training |" in text
    assert "| s | memjax A | peer | 1.50 (0.50-2.50) [1.25] | **0.80** (0.50-2.50) [1.25] |" in text
    assert "| s | memjax A | bare | 1.50 (0.50-2.50) [1.25] | 0.80 (0.50-2.50) [1.25] |" in text
    assert "Slower than the other implementation: s, training, memjax A 0.80." in text
    assert text.count("| s |") == 2  # neither the peer nor the reference has a row of its own


def test_other_modes_have_a_table_of_their_own_and_memjax_beside_itself_has_none():
    measurements = [
        suite("search", [record("memjax exact", "32", 1.1)]),
        suite("own", [record("memjax B", "train", 0.3, beside=("memjax A",))], baseline="memjax A"),
        suite("gpt2", [record("memjax GPT-2", "infer", 1.2)]),
    ]
    text = race.summarise(measurements, "new")
    assert "| suite | contender | beside | 32 neighbours |" in text and "| search | memjax exact | peer | 1.10" in text
    assert "memjax B" not in text and text.endswith("Slower than the other implementation: nowhere.")


@pytest.mark.parametrize(
    ("states", "line"),
    [
        (("new", "new"), None),
        (("new", "old"), "- Measured at an older state of the code: b."),
        (("old", "older"), "- Measured at an older state of the code: all."),
    ],
)
def test_a_table_says_whether_the_timed_code_is_newer(states, line):
    measurements = [suite(name, [], timed_code=state) for name, state in zip("ab", states, strict=True)]
    assert race.list_states(measurements, "new").splitlines() == ["- Commit 0123, a processor: a, b."] + [line] * bool(
        line
    )


def test_the_committed_page_says_so_exactly_where_the_fingerprint_differs():
    measurements = [entry for entry in Book().measurements() if entry.kind == "bench"]
    page = (Book().folder / "tables" / "bench.md").read_text(encoding="utf-8")
    of = lambda facts: timed_code.timed_with(facts.get("timed_modules", timed_code.CONTENDERS))
    now = lambda suite: timed_code.fingerprint(timed=of(suite.facts))
    differs = [suite.name for suite in measurements if suite.facts.get("timed_code") != now(suite)]
    first = page.partition("\n\n| suite")[0]
    assert (race.OLDER in first) == bool(differs)
    assert all(name in first.partition(race.OLDER)[2] for name in differs) or len(differs) == len(measurements)


def test_the_fingerprint_follows_contents_and_names(tmp_path):
    (tmp_path / "part").mkdir()
    (tmp_path / "part" / "a.py").write_text("1")
    (tmp_path / "alone.py").write_text("2")
    files = ("part", "alone.py")
    before = timed_code.fingerprint(tmp_path, files)
    (tmp_path / "part" / "notes.md").write_text("not timed")
    assert timed_code.fingerprint(tmp_path, files) == before
    (tmp_path / "part" / "a.py").write_text("3")
    changed = timed_code.fingerprint(tmp_path, files)
    (tmp_path / "part" / "a.py").rename(tmp_path / "part" / "b.py")
    assert len({before, changed, timed_code.fingerprint(tmp_path, files)}) == 3


def test_the_fingerprint_follows_code_and_not_comments(tmp_path):
    file = tmp_path / "a.py"

    def of(text):
        file.write_text(text)
        return timed_code.fingerprint(tmp_path, ["a.py"])

    plain = of('def f(x):\n    y = "# é" + x\n    return y\n')
    described = 'def f(x):\n    """Returns é,\n\n    more."""\n    # Why.\n    y = "# é" + x  # é.\n\n    return y\n'
    assert of(f'"""A module."""\n\n{described}') == plain
    changed = ('def f(x):\n    y = "# e" + x\n    return y\n', 'def f(x):\n    y = "# é" + x\n    return x\n')
    assert len({plain, *map(of, changed)}) == 3


def test_every_timed_file_is_there():
    files = timed_code.timed_files()
    assert all(file.exists() for file in files)
    assert {f"{name}.py" for name in ("attention", "transformer_xl", "suites")} <= {file.name for file in files}


def test_profiles_of_all_suites_stand_in_one_table():
    record = {"mode": "infer", "wall_milliseconds": 9.0, "kinds": {"products": 6.0, "softmax": 1.25}}
    facts = {"steps": 5, "timed_code": "old"}
    profiles = [
        Measurement("profile", name, "", "0123", "a processor", "", "", {**facts, "records": [{**record, **changes}]})
        for name, changes in {"encoder": {"contender": "plain"}, "s": {"contender": "memjax A", "mode": "32"}}.items()
    ]
    text = race.tabulate_profiles(profiles)
    assert "| suite | mode | contender | wall | products | softmax |" in text and race.OLDER in text
    assert "| encoder | inference | plain | 9.0 | 6.0 | 1.2 |" in text and "| s | 32 neighbours | memjax A |" in text


def test_cells_below_the_goal_have_a_bound_by_products_alone():
    kinds = {"products": 3.0, "softmax": 1.0, "gathers and sorts": 4.0, "no operation": 2.0}
    traced = {"contender": "memjax A", "mode": "infer", "wall_milliseconds": 10.0, "kinds": kinds}
    profiles = [Measurement("profile", "s", "", "0123", "a processor", "", "", {"records": [traced]})]
    for ratio, rows in {1.2: 1, 1.5: 0}.items():
        measured = suite("s", [record("peer", "infer", 1.0, beside=()), record("memjax A", "infer", ratio)])
        text = race.tabulate_bounds([measured], profiles)
        assert bool(text) == bool(rows)
        # 8 of the 10 milliseconds have operations, 3 of 8 are products: 3 milliseconds alone.
        assert ("| s | inference | memjax A | peer | 1.20 | 4.00 | gathers and sorts 4.0, no" in text) == bool(rows)
    assert race.tabulate_bounds([suite("s", [record("memjax A", "infer", 1.2)])], []) == ""


def test_a_run_stands_beside_its_step():
    facts = {"tokens_per_step": 100, "step_seconds": 0.5, "steps": 10, "run_seconds": 20.0, "first_step_seconds": 3.0}
    facts |= {"steady_steps": 4, "steady_seconds": 4.0, "timed_code": "old"}
    text = pages.section(Measurement("end_to_end", "x", "a command", "0123", "a processor", "A title", "", facts))
    assert "| the step alone | 1 | 0.50 | 200 | 100 % |" in text and race.OLDER in text
    assert "| the run after its first log line | 4 | 4.00 | 100 | 50 % |" in text
    assert "| 10 | 20.00 | 50 | 25 % |" in text
