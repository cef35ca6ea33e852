"""The verb `memjax plan`: cases, tables, exit codes."""

import importlib.util
import io
import json
import time

import pytest

from memjax.cli import main
from memjax.planning.report import describe_shapes, make_cases, report
from memjax.planning.topologies import GIB
from memjax.settings.overrides import UsageError
from tests.planning.plan_cases_test import tiny

CONFIG = """
from memjax.config import *

VARIANTS = {"default": "tiny"}

def get_config(variant="default"):
    sizes = {"memory_length": 16, "num_neighbors": 2, "cache_length": 4}
    attention = Memorizing(layers_with_memory=(-1,), **sizes, retrieval="approximate")
    return Config(
        name="tiny",
        model=Model(dim=8, num_layers=1, num_heads=2, attention=attention),
        data=Data(tokenizer=Bytes(), batch_size=4, segment_length=8),
        evaluation=Evaluation(batch_size=4),
    )
"""


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tiny.py").write_text(CONFIG)
    return tmp_path


def facts(value: str = "", *, fits: bool = True) -> dict:
    """As `memjax.planning.plan_cases.plan` gives them."""
    guess = {"compute": 0.002, "hbm": 0.001, "ici": 0.0, "step": 0.002, "bound": "compute"}
    guess |= {"utilization": 0.75, "intensity": 60.0, "balance": 240.5, "tokens_per_second": 1e6}
    memory = {"arguments": 2 * GIB, "outputs": GIB, "aliased": GIB, "temporaries": 3 * GIB, "total": 5 * GIB}
    tip = {"change": "--data.batch-size 2", "why": "fewer rows", "saves": 2 * GIB, "enough": True}
    return {
        "name": "tiny",
        "what": "train",
        "program": "stream",
        "kept": None,
        "copies": None,
        "value": value,
        "topology": "v5e:2x2",
        "chips": 4,
        "devices": 4,
        "rows": 4,
        "rematerialize": "none",
        "mesh": {"data": 4, "fsdp": 1, "model": 1},
        "parameters": 1234567,
        "trained": 1234567,
        "tokens": 32,
        "fits": fits,
        "memory": memory,
        "required": 0 if fits else 17 * GIB,
        "limit": 16 * GIB,
        "peak": 4 * GIB,
        "code": 2**20,
        "flops": 5e12,
        "model_flops": 4e12,
        "hbm_bytes": 10**9,
        "collectives": [{"kind": "all-reduce", "count": 3, "bytes": 10**6, "sent_bytes": 1.5e6}],
        "parts": {"parameters": GIB, "memory": GIB},
        "arguments": [("state/memory/keys", "bfloat16[4,8]", GIB)],
        "temporaries": [("layers_0/attention", "f32[8]", GIB // 2)],
        "skipped": ["params/x: vocab = 5 over model = 2"],
        "notes": [],
        "seconds": 1.0,
        "estimate": guess if fits else None,
        "tips": [] if fits else [tip],
        "assumptions": "an estimate",
        "versions": {"jax": "1.2", "libtpu": "3.4"},
    }


def printed(*cases: dict, as_json: bool = False) -> tuple[str, bool]:
    out, found = io.StringIO(), iter(cases)
    whole = make_cases(tiny(), ["v5e:2x2"]) * len(cases)
    fits = report(whole, lambda case: [next(found)], as_json=as_json, command="memjax plan", stream=out)
    return out.getvalue(), fits


def test_one_case_is_printed_in_full():
    text, fits = printed(facts())
    assert fits
    for part in (
        "tiny: train",
        "1,234,567",
        "5.00 GiB   of 16.00 GiB, 31%",
        "all-reduce",
        "bound by compute",
        "75%",
        "state/memory/keys",
        "layers_0/attention",
        "vocab = 5 over model = 2",
        "FLOPs per byte of HBM traffic; above 240",
        "Estimate: an estimate.",
        "Compiled by jax 1.2, libtpu 3.4.",
    ):
        assert part in text, part
    assert "\x1b" not in text  # plain where it is no terminal


def test_on_a_terminal_it_is_a_table_with_lines():
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    out = Terminal()
    report(make_cases(tiny(), ["v5e:2x2"]), lambda case: [facts()], stream=out)
    assert "│" in out.getvalue() and "bfloat16[4,8]" in out.getvalue()


def test_several_cases_are_a_row_each():
    text, fits = printed(facts("model.attention.memory_length = 8"), facts("model.attention.memory_length = 16"))
    header, first, second, *_ = text.splitlines()
    assert fits
    assert header.split()[:4] == ["topology", "memory_length", "chips", "mesh"]
    assert first.split()[:5] == ["v5e:2x2", "8", "4", "4x1x1", "2.00"]
    assert second.split()[1] == "16"


def test_what_does_not_fit_comes_with_advice():
    text, fits = printed(facts("data.batch_size = 4"), facts("data.batch_size = 8", fits=False))
    assert not fits
    lines = [line for line in text.splitlines() if "does not fit:" in line or "--data.batch-size 2" in line]
    assert lines[0].startswith("v5e:2x2 data.batch_size = 8: does not fit: 17.00 GiB of 16.00 GiB, 1.00 GiB too much")
    assert "The largest: state/memory/keys bfloat16[4,8] 1.00 GiB, layers_0/attention f32[8] 0.50 GiB." in lines[0]
    assert "2.00 GiB less, enough: fewer rows" in lines[1]


def test_json_is_a_line_for_each_case():
    text, fits = printed(facts(), facts(fits=False), as_json=True)
    assert not fits
    lines = [json.loads(line) for line in text.splitlines()]
    assert [line["fits"] for line in lines] == [True, False]
    assert all(line["command"] == "memjax plan" and len(line["date"]) == 10 for line in lines)


def test_cases_are_all_slices_with_all_values():
    cases = make_cases(tiny(), ["v5e:2x2", "v5p-8"], "train", "memory_length=8,16")
    assert [(case.topology.name, case.config.model.attention.memory_length) for case in cases] == [
        ("v5e:2x2", 8),
        ("v5e:2x2", 16),
        ("v5p:2x2x1", 8),
        ("v5p:2x2x1", 16),
    ]
    assert cases[0].value == "model.attention.memory_length = 8"
    assert make_cases(tiny(), ["v5e:2x2"], "eval", "batch_size=4,8")[1].config.evaluation.batch_size == 8
    assert make_cases(tiny(), ["v5e:2x2"], "train", "data.batch_size=4,8")[1].config.data.batch_size == 8


@pytest.mark.parametrize(
    "sweep, part",
    [
        ("memory_length", "sweep: given 'memory_length', allowed: FIELD=VALUE,VALUE"),
        ("memory_length=8,", "sweep: given 'memory_length=8,'"),
        ("memory_lenth=8", "did you mean --evaluation.memory-length?"),
        ("memory_length=x", "model.attention.memory_length: given 'x', allowed: an integer"),
        ("model.attention.num_neighbors=1000", "num_neighbors: given 1000"),
    ],
)
def test_a_sweep_that_cannot_be(sweep, part):
    with pytest.raises(ValueError, match="(?s).") as caught:
        make_cases(tiny(), ["v5e:2x2"], "train", sweep)
    assert part in str(caught.value)
    assert isinstance(caught.value, UsageError) or "num_neighbors" in part


@pytest.mark.parametrize(
    "arguments, part",
    [
        (["--topology", "v9:2x2"], "topology: given 'v9:2x2'"),
        ([], "--topology"),
        (["--topology", "v5e:2x2", "--what", "fly"], "fly"),
        (["--topology", "v5e:2x2", "--data.batch-sise", "3"], "did you mean --data.batch-size?"),
    ],
)
def test_a_mistake_is_one_line_and_code_2(here, capsys, arguments, part):
    assert main(["plan", "--config", "tiny.py", *arguments]) == 2
    captured = capsys.readouterr()
    assert captured.out == "" and captured.err.count("\n") == 1 and part in captured.err


def test_without_libtpu_it_says_which_extra_to_install(here, capsys, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert main(["plan", "--config", "tiny.py", "--topology", "v5e:2x2"]) == 2
    assert "pip install 'memjax[plan]'" in capsys.readouterr().err.splitlines()[-1]


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("libtpu") is None, reason="needs the extra `plan`")
def test_a_sweep_to_where_it_does_not_fit_has_code_3(here, capsys):
    command = ["plan", "--config", "tiny.py", "--topology", "v5e:2x2", "--json"]
    assert main([*command, "--sweep", "memory_length=16,268435456"]) == 3
    small, large = (json.loads(line) for line in capsys.readouterr().out.splitlines())
    assert small["command"] == f"memjax {' '.join(command)} --sweep memory_length=16,268435456"
    assert small["fits"] and small["value"] == "model.attention.memory_length = 16"
    assert small["peak"] > 0 and set(small["versions"]) == {"jax", "jaxlib", "libtpu"}
    assert not large["fits"] and large["estimate"] is None
    assert large["required"] > large["limit"] == 15.75 * GIB
    assert large["arguments"][0][0].endswith(("memory/keys", "memory/values"))
    changes = [tip["change"] for tip in large["tips"]]
    assert any(change.startswith("--model.attention.memory-length ") for change in changes)
    assert "--model.memory-dtype bfloat16" in changes


def test_it_says_how_long_the_rest_takes(monkeypatch, capsys):
    now = iter([0.0, 0.0, 30.0, 180.0])
    monkeypatch.setattr(time, "monotonic", lambda: next(now))
    cases = make_cases(tiny(), ["v5e:2x2", "v5e:2x4", "v5e:4x4"])
    report(cases, lambda case: [facts(case.topology.name)], stream=io.StringIO())
    first, second, third = capsys.readouterr().err.splitlines()
    assert first.startswith("compiling 1 of 3: ") and "each takes about a minute" in first
    assert second.endswith("(30 s each so far, about 60 s left)")
    assert third.endswith("(90 s each so far, about 90 s left)")


def test_of_a_number_with_several_shapes_it_says_which_is_taken():
    assert describe_shapes(["v5e:4x4", "v5e-1"]) == []
    (line,) = describe_shapes(["v5p-1280"])
    assert line == "v5p-1280: taken as v5p:4x8x20; the same number of chips: v5p:4x4x40"
