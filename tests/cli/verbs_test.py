"""Every verb with every kind of run: `tools/verbs.md` says what each cell comes to, and it is so."""

from pathlib import Path

import pytest

from memjax.durable_files import write_json
from memjax.training.runs import config_to_dict
from tools.verbs import RUNS, TABLE, VERBS, arguments_of, ask, describe, make_config, measure, read_table, write_data

EXPECTED = read_table(TABLE.read_text(encoding="utf-8"))
REFUSED = [cell for cell, line in EXPECTED.items() if line]
EARLY = [
    (kind, verb)
    for kind, verb in REFUSED
    if verb.startswith(("eval", "datastore", "generate", "translate", "predict", "sample", "export"))
    and kind not in ("images", "synthetic", "stream that grows")  # refused once it is known that they have no tokenizer
    and not EXPECTED[kind, verb].startswith("neighbours: ")  # likewise that their every token is a target
    and verb != "eval, probe"  # one line for all, which `tests/cli/wrong_commands.py` has
]
"""what is refused before data and parameters are read"""


SOME = ("TransformerXL", "SPALM", "Memformer", "EncoderDecoder", "MaskedLanguageModeling", "Perceptron")
"""kinds of runs that `make test` asks: one of each class of models; `make test-laws` asks the others"""


@pytest.fixture
def workplace(tmp_path, monkeypatch):
    write_data(tmp_path)
    monkeypatch.chdir(tmp_path)


def test_the_table_has_every_cell_and_no_error():
    assert {*EXPECTED} == {(kind, verb) for kind in RUNS for verb in VERBS}
    assert not [line for line in EXPECTED.values() if "TRACEBACK" in line]


def test_the_table_reads_as_it_is_written(workplace):
    cells = {("LSTM", verb): ask(arguments_of(verb, "nothing")) for verb in ("eval", "compare", "data")}
    assert [outcome.code for outcome in cells.values()] == [2, 2, 2]
    assert read_table(describe(cells)) == {cell: outcome.line for cell, outcome in cells.items()}


@pytest.mark.parametrize("some", [True, pytest.param(False, marks=pytest.mark.laws)])
def test_a_refusal_is_one_line_before_work_begins(workplace, some):
    early = [(kind, verb) for kind, verb in EARLY if (kind in SOME) == some]
    for kind in {kind: None for kind, _ in early}:
        Path("runs", kind).mkdir(parents=True)
        write_json(Path("runs", kind, "config.json"), config_to_dict(make_config(kind)))
    found = {(kind, verb): ask(arguments_of(verb, kind)) for kind, verb in early}
    assert {cell: (outcome.code, outcome.line) for cell, outcome in found.items()} == {
        cell: (2, EXPECTED[cell]) for cell in early
    }
    assert not Path("stores").exists()


@pytest.mark.slow
@pytest.mark.parametrize("kind", RUNS)
def test_every_verb_does_what_the_table_says(workplace, kind):
    found = {(one, verb): outcome for one, verb, outcome in measure([kind])}
    assert [outcome.trace for outcome in found.values() if outcome.trace] == []
    assert {cell: (outcome.code, outcome.line) for cell, outcome in found.items()} == {
        cell: (2 if line else 0, line) for cell, line in EXPECTED.items() if cell[0] == kind
    }
