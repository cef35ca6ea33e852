"""The search of `memjax plan --mesh auto`, with a compiler that is a sum, and one tiny model that is compiled."""

import dataclasses
import importlib.util
import io
import json

import pytest

from memjax.cli import main
from memjax.config import Config, Data, Evaluation, Model, Sharding, Training
from memjax.planning.mesh_candidates import (
    MOST_ROWS,
    Candidate,
    apply_candidate,
    candidate_options,
    candidates_of,
    list_candidates,
    needs_at_least,
    with_mesh,
)
from memjax.planning.mesh_report import describe_best, describe_tokens, fit_line, report_search, search_table
from memjax.planning.mesh_search import CompiledCandidate, choose_next, predict, read_sizes, search_meshes
from memjax.planning.topologies import GIB, parse_topology
from memjax.settings.overrides import UsageError, load_config
from tests.planning.report_test import CONFIG

TOPOLOGY = parse_topology("v5e:4x4")
LIMIT = TOPOLOGY.hbm_limit
TOKENS = 512  # of a row


def config(**training) -> Config:
    return Config(
        name="sums",
        model=Model(dim=1024, num_layers=12, num_heads=8, compute_dtype="bfloat16"),
        data=Data(batch_size=64, segment_length=TOKENS),
        training=Training(**training),
        evaluation=Evaluation(batch_size=64),
        sharding=Sharding(data=16),
    )


def compile_as_sums(candidate: Candidate, row_traffic: float = 1e9, row_gib: float = 1.0) -> dict:
    """Facts about a step of 200 million parameters whose times and bytes are sums of those of parameters and rows."""
    parameters, split, again = 800e6, candidate.fsdp * candidate.model, 0 if candidate.remat == "none" else 1
    row_flops, own_rows = 6 * 200e6 * TOKENS, candidate.rows / candidate.model
    arguments = 3 * parameters / split + own_rows * 0.05 * GIB
    total = arguments + parameters / split + own_rows * row_gib * GIB * (0.2 if again else 1)
    flops = own_rows * row_flops * (3 + again) / 3
    seconds = {
        "compute": flops / TOPOLOGY.peak_flops,
        "hbm": (8 * parameters / split + own_rows * row_traffic * (3 + again) / 3) / TOPOLOGY.hbm_bandwidth,
        "ici": (2 * parameters / split + (candidate.fsdp > 1) * parameters) / TOPOLOGY.ici_bandwidth,
    }
    bound = max(seconds, key=seconds.__getitem__)
    tokens, fits = candidate.batch_size * TOKENS, total <= LIMIT
    estimate = {**seconds, "step": seconds[bound], "bound": bound, "tokens_per_second": tokens / seconds[bound]}
    utilization = own_rows * row_flops / TOPOLOGY.peak_flops / seconds[bound]
    return {
        "mesh": {"data": candidate.data, "fsdp": candidate.fsdp, "model": candidate.model},
        "rows": candidate.batch_size,
        "rematerialize": candidate.remat,
        "fits": fits,
        "tokens": tokens,
        "chips": 16,
        "limit": LIMIT,
        "required": 0 if fits else int(total),
        "memory": {"total": int(total)} if fits else None,
        "parts": {"parameters": parameters / split, "optimizer": 2 * parameters / split, "memory": own_rows * 5e7},
        "model_flops": row_flops * candidate.batch_size,
        "hbm_bytes": seconds["hbm"] * TOPOLOGY.hbm_bandwidth if fits else 0,
        "estimate": {**estimate, "utilization": utilization} if fits else None,
        "assumptions": "sums",
    }


def compiled(data: int, fsdp: int, model: int, rows: int, remat: str = "none", **sums: float) -> CompiledCandidate:
    candidate = Candidate(data, fsdp, model, rows, remat)
    return CompiledCandidate(candidate, compile_as_sums(candidate, **sums))


def search(most: int, lines: list[str] | None = None, **sums: float) -> list[CompiledCandidate]:
    tell = (lambda line: None) if lines is None else lines.append
    return search_meshes(config(), TOPOLOGY, lambda one: compile_as_sums(one, **sums), most=most, tell=tell)


# Candidates


@pytest.mark.parametrize(
    "devices, heads, meshes",
    [
        (1, 8, {"1x1x1"}),
        (4, 1, {"4x1x1", "2x2x1", "1x4x1"}),
        (4, 2, {"4x1x1", "2x2x1", "1x4x1", "2x1x2", "1x2x2"}),
        (6, 3, {"6x1x1", "3x2x1", "2x3x1", "1x6x1", "2x1x3", "1x2x3"}),
    ],
)
def test_candidates_are_the_meshes_that_divide(devices, heads, meshes):
    candidates = list_candidates(devices, num_heads=heads, microbatches=3)
    assert {candidate.mesh for candidate in candidates} == meshes
    assert len(candidates) == len(set(candidates)) == len(meshes) * 7 * 2
    assert {candidate.rows for candidate in candidates} == {3 * 2**power for power in range(7)}
    assert max(candidate.rows for candidate in candidates) == 3 * MOST_ROWS


def test_the_configuration_comes_first():
    own, *others = candidates_of(config(), TOPOLOGY)
    assert own == Candidate(16, 1, 1, 4, "none") and own not in others
    assert {candidate.remat for candidate in others} == {"none", "per_layer"}
    changed = config()
    changed.data.batch_size = 50  # 3 rows and a rest on each device
    assert candidates_of(changed, TOPOLOGY)[0].batch_size == 48


def test_a_step_of_several_segments_may_recompute_segments():
    several = candidates_of(config(segments_per_update=4), TOPOLOGY)
    assert {candidate.remat for candidate in several} == {"none", "per_layer", "segment", "segment_nested"}


@pytest.mark.parametrize("rows, words", [(64, []), (24, ["--evaluation.batch-size", "128"])])
def test_options_give_the_candidate(rows, words):
    given = config()
    given.evaluation.batch_size = rows
    candidate = Candidate(4, 4, 1, 8, "per_layer")
    options = candidate_options(given, candidate)
    assert options[-2:] == words or not words and "--evaluation.batch-size" not in options
    changed = apply_candidate(given, candidate)
    assert candidates_of(changed, TOPOLOGY)[0] == candidate
    assert changed.evaluation.batch_size % candidate.row_shards == 0


@pytest.mark.parametrize("text", ["4x2", "4x2x1x1", "4x0x1", "axbxc", "", "4x-1x1"])
def test_another_mesh_is_one_line(text):
    with pytest.raises(UsageError, match="^--mesh: given '.*', allowed: auto, or data x fsdp x model devices"):
        with_mesh(config(), text)


@pytest.mark.parametrize(
    "candidate, needs",
    [
        ((4, 4, 1, 8, "per_layer"), True),
        ((4, 4, 1, 16, "per_layer"), True),
        ((4, 4, 1, 8, "none"), True),
        ((8, 2, 1, 8, "per_layer"), True),  # parameters are split less
        ((4, 4, 1, 4, "none"), False),  # fewer rows
        ((1, 16, 1, 8, "per_layer"), False),
        ((4, 2, 2, 8, "per_layer"), False),  # heads are split
        ((4, 4, 1, 8, "segment_nested"), False),
        ((4, 4, 1, 8, "segment"), False),  # neither more nor less recomputation
    ],
)
def test_what_does_not_fit_rules_out_what_needs_more(candidate, needs):
    assert needs_at_least(Candidate(*candidate), Candidate(4, 4, 1, 8, "per_layer")) == needs


# Predictions and the search


def test_a_candidate_is_predicted_as_it_was_compiled():
    for shape, remat in (((16, 1, 1, 4), "none"), ((4, 2, 2, 8), "per_layer")):
        known = compiled(*shape, remat=remat)
        expected = predict(known.candidate, read_sizes(config(), known, TOPOLOGY), TOPOLOGY)
        assert expected.tokens == known.facts["tokens"]
        assert expected.compute == pytest.approx(known.facts["estimate"]["compute"])
        assert expected.hbm == pytest.approx(known.facts["estimate"]["hbm"])
        assert expected.bytes == pytest.approx(known.facts["memory"]["total"], rel=1e-6)


def test_a_step_that_does_not_fit_predicts_by_its_operations():
    known = compiled(16, 1, 1, 64)
    assert not known.facts["fits"]
    expected = predict(known.candidate, read_sizes(config(), known, TOPOLOGY), TOPOLOGY)
    assert expected.bytes == pytest.approx(known.facts["required"], rel=1e-6) and expected.bytes > LIMIT
    assert expected.hbm > expected.compute > 0


def test_the_search_finds_the_best_of_all_with_few_compilations():
    fitting = [one for one in candidates_of(config(), TOPOLOGY) if compile_as_sums(one)["fits"]]
    most = max(compile_as_sums(one)["estimate"]["tokens_per_second"] for one in fitting)
    ranked, lines = search(6, lines := []), lines
    assert ranked[0].tokens_per_second >= 0.97 * most
    assert len(ranked) <= 6 < len(fitting) and len({other.candidate for other in ranked}) == len(ranked)
    speeds = [other.tokens_per_second for other in ranked]
    assert speeds == sorted(speeds, reverse=True)
    assert lines[0] == "compiling 1 of at most 6: mesh 16x1x1, 64 rows, remat none (as configured)"


def test_the_search_begins_with_less_memory_where_nothing_fits():
    lines: list[str] = []
    ranked = search(4, lines, row_gib=13.0)
    assert ranked[0].facts["fits"] and not ranked[-1].facts["fits"]
    assert any("does not fit" in line for line in lines)
    none = search(3, row_gib=4000.0)
    assert [other.candidate.remat for other in none] == ["none", "per_layer"]  # and rules out all others
    assert not any(other.facts["fits"] for other in none)


def test_the_search_ends_where_nothing_promises_more():
    lines: list[str] = []
    assert len(search(500, lines)) < 60
    assert lines[-1] == "no other candidate promises more"


def test_of_equal_candidates_the_one_with_the_smallest_axis_model_and_fewest_rows_is_compiled():
    first = compiled(16, 1, 1, 1, row_traffic=1e3)
    sizes = dataclasses.replace(read_sizes(config(), first, TOPOLOGY), parameters=1.0, state=1.0)  # rows alone count
    sizes = dataclasses.replace(sizes, row_traffic=1e9, row_activations=1.0, row_memory=1.0)
    slow = CompiledCandidate(first.candidate, {**first.facts, "estimate": {"tokens_per_second": 1.0}, "memory": None})
    candidates = [Candidate(16 // model, 1, model, rows * model, "none") for model in (2, 1) for rows in (8, 2, 4)]
    chosen = choose_next(candidates, [slow], sizes, TOPOLOGY)
    assert chosen is not None and chosen[0] == Candidate(16, 1, 1, 2, "none")


# The report


def test_the_table_has_a_row_for_each_candidate():
    header, rows = search_table([compiled(16, 1, 1, 4).facts, compiled(16, 1, 1, 64).facts])
    assert all(len(row) == len(header) for row in rows)
    assert rows[0][:5] == ["1", "16x1x1", "64", "2,048", "none"] and rows[1][-2] == "does not fit"


def test_the_best_is_told_with_its_options_and_its_bound():
    ranked = [compiled(16, 1, 1, 4), compiled(16, 1, 1, 2)]
    best, speed, tokens = describe_best(config(), TOPOLOGY, ranked)
    assert best == (
        "Best: --sharding.data 16 --sharding.fsdp 1 --sharding.model 1 --data.batch-size 64 --training.remat none"
    )
    assert "bound by hbm: compute" in speed
    # Parameters take 8 x 800 MB, a row of 512 tokens 1 GB and 3.12 ms of products.
    compute, traffic = 6 * 200e6 * 512 / TOPOLOGY.peak_flops, 1e9 / TOPOLOGY.hbm_bandwidth
    needed = 8 * 800e6 / TOPOLOGY.hbm_bandwidth / (compute - traffic) * 512
    assert tokens == f"  2,048 tokens a chip and step; about {needed:,.0f} would be bound by compute"


@pytest.mark.parametrize(
    "others, sums, text",
    [
        ([2], {"row_traffic": 1e8}, "about 1,"),
        ([], {"row_traffic": 1e8}, "about "),  # predicted
        ([2], {"row_traffic": 5e9}, "no number would be bound by compute: the HBM traffic of a token takes 1.96 times"),
    ],
)
def test_tokens_that_would_be_bound_by_compute(others, sums, text):
    best = compiled(16, 1, 1, 1, **sums)
    every = [best, *(compiled(16, 1, 1, rows, **sums) for rows in others)]
    assert describe_tokens(config(), TOPOLOGY, best, every).startswith(f"512 tokens a chip and step; {text}")


def test_enough_tokens_are_enough():
    best = compiled(1, 16, 1, 64, remat="per_layer", row_traffic=1e8, row_gib=0.1)
    assert describe_tokens(config(), TOPOLOGY, best, [best]).endswith("enough to be bound by compute")


@pytest.mark.parametrize("slope", [0.0, 1.0, 5.0])
def test_a_line_goes_through_its_first_point(slope):
    fixed, fitted = fit_line((2.0, 4.0), (3.0, 4.0 + slope))
    assert fixed + 2 * fitted == 4.0 and fixed >= 0 and fitted == min(slope, 2.0)


def test_json_has_the_rank_and_the_options():
    out, ranked = io.StringIO(), [compiled(16, 1, 1, 4), compiled(16, 1, 1, 64)]
    assert report_search(config(), TOPOLOGY, ranked, as_json=True, command="memjax plan", stream=out)
    first, second = map(json.loads, out.getvalue().splitlines())
    assert (first["rank"], second["rank"], first["fits"], second["fits"]) == (1, 2, True, False)
    assert first["options"] == candidate_options(config(), ranked[0].candidate)


def test_nothing_that_fits_is_one_line():
    out = io.StringIO()
    assert not report_search(config(), TOPOLOGY, [compiled(16, 1, 1, 64)], stream=out)
    assert "none of 1 candidates fits: mesh 16x1x1, 1,024 rows, remat none needs " in out.getvalue()


@pytest.mark.parametrize(
    "words, line",
    [
        (["--mesh", "2x2"], "--mesh: given '2x2', allowed: auto, or data x fsdp x model devices, as 4x2x1"),
        (["--mesh", "auto", "--widest"], "--mesh: given auto with --widest, allowed: auto for the training step alone"),
        (["--mesh", "auto", "--what", "eval"], "--mesh: given auto with --what eval, allowed: auto for the training"),
        (["--mesh", "auto", "--candidates", "0"], "--candidates: given 0, allowed: an integer of at least 1"),
        (["--candidates", "3"], "--candidates: given 3 without --mesh auto, allowed: with it"),
        (["--mesh", "auto", "--sharding.fsdp", "3"], "sharding: given data x fsdp x model = 1 x 3 x 1, allowed: "),
    ],
)
def test_a_mistake_is_one_line(words, line, capsys):
    assert main(["plan", "--config", "memorizing_scale", "--topology", "v5e:2x2", *words]) == 2
    assert capsys.readouterr().err.splitlines()[-1].startswith(f"memjax plan: {line}")


def test_a_configuration_over_tasks_is_one_line():
    with pytest.raises(UsageError, match="^--mesh: given auto with a config over tasks, allowed: "):
        candidates_of(load_config("lifelong_text"), TOPOLOGY)


@pytest.mark.laws
@pytest.mark.skipif(importlib.util.find_spec("libtpu") is None, reason="needs the extra `plan`")
def test_a_tiny_model_is_searched(tmp_path, capsys):
    (tmp_path / "tiny.py").write_text(CONFIG)
    words = ["--config", str(tmp_path / "tiny.py"), "--topology", "v5e:2x2", "--mesh", "auto", "--candidates", "2"]
    assert main(["plan", *words, "--json"]) == 0
    first, second = map(json.loads, capsys.readouterr().out.splitlines())
    assert first["estimate"]["tokens_per_second"] >= second["estimate"]["tokens_per_second"]
    assert 4 in (first["rows"], second["rows"])  # as configured
    for facts in (first, second):
        options = dict(zip(facts["options"][::2], facts["options"][1::2], strict=True))
        assert options["--data.batch-size"] == str(facts["rows"])
        assert [options[f"--sharding.{axis}"] for axis in facts["mesh"]] == list(map(str, facts["mesh"].values()))
