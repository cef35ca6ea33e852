"""The bench of memory replay: its programs agree, its table says what was measured."""

import jax
import pytest

from tools.bench import replay as bench
from tools.results import backward_tables
from tools.results.ledger import Measurement

TINY = {**bench.SETTINGS, "dim": 8, "encoder_layers": 1, "decoder_layers": 1, "heads": 2, "vocab": 7, "length": 4}
TINY |= {"batch": 2, "slots": 3}
FORMS = [form for form in (*bench.FORMS, "segment_nested") if form != "mrbp"]


def record(form, segments, mib, seconds):
    return {"form": form, "segments": segments, "flops": 10 * segments, "temp_size": mib * 2**20, "seconds": seconds}


RECORDS = [
    record("none", 4, 100, [1.0, 3.0, 2.0]),
    record("segment", 4, 4, [4.0, 4.0, 4.0]),
    record("mrbp", 4, 10, [2.5, 2.5, 9.0]),
]


@pytest.mark.slow
def test_all_forms_are_measured_and_agree():
    records = bench.measure(2, TINY, rounds=1, forms=("none", "mrbp"))
    assert [r["form"] for r in records] == ["none", "mrbp"]
    assert all(len(r["seconds"]) == 1 and r["temp_size"] > 0 and r["apart"] < 1e-4 for r in records)
    # The encoder runs once more, of a forward pass that is a third of the whole.
    assert 1 < records[1]["flops"] / records[0]["flops"] < 4 / 3


@pytest.mark.parametrize("form", ["mrbp", *(pytest.param(form, marks=pytest.mark.laws) for form in FORMS)])
def test_every_form_is_a_program_of_the_same_result(form):
    gradient, shapes = bench.program(form, TINY, 3)
    (value, memory), gradients = jax.eval_shape(gradient, *shapes)
    assert value.shape == () and jax.tree.structure(gradients) == jax.tree.structure(shapes[0])
    assert jax.tree.map(lambda leaf: leaf.shape, memory) == jax.tree.map(lambda leaf: leaf.shape, shapes[1])


def test_the_table_and_its_goals():
    facts = {"settings": {"dim": 4}, "records": RECORDS}
    shown = backward_tables.replay(Measurement("replay", "memformer", "", "", "", "", "", facts))
    assert "| back-propagation through time | 100.0 (1.000) | 1.00 | 1.00 |" in shown
    assert "| memory replay, scan and checkpoint | 4.0 (0.040) | 1.00 | 0.50 |" in shown
    assert "0.040 of the temporaries (at most 0.05: met)" in shown
    assert "0.100 of the temporaries (at most 0.05: missed)" in shown
    assert "0.80 of the speed (at least 0.85: missed)" in shown


def test_bad_arguments_are_refused(capsys):
    for argv in (["--segments", "0"], ["--set", "width=4"]):
        with pytest.raises(SystemExit, match="2"):
            bench.main(argv)
    assert "--set: given 'width', allowed: dim, " in capsys.readouterr().err
