"""A model that grows is planned as it will be for each task, and nothing of it is made."""

import importlib.util
import json

import jax
import pytest

from memjax.cli import main
from memjax.lifelong.factory import check_growth, growth_histories, make_method
from memjax.planning.programs import PlaceholderExamples, Planned, make_programs
from memjax.planning.report import comparison, make_cases
from memjax.settings.overrides import load_config
from memjax.tasks import make_task
from memjax.training.metrics import count_parameters
from memjax.training.sharding import Layout, make_mesh
from tests.planning.report_test import facts

SIZES = {
    "paper": [(384, 6), (512, 8), (640, 10), (704, 11), (768, 12)],
    "paper_large": [(768, 12), (960, 15), (1024, 18), (1024, 21), (1024, 24)],
}
PAPER = {f"{before}{variant}": sizes for variant, sizes in SIZES.items() for before in ("", "bert_")}


@pytest.mark.parametrize("variant", PAPER)
def test_every_generation_is_a_case(variant):
    config = load_config("lifelong_pretraining", variant)
    cases = make_cases(config, ["v5e-8", "v5e-16"])
    assert [case.generation for case in cases] == 2 * [f"domain_{number}" for number in range(5)]
    models = [case.config.model for case in cases[:5]]
    assert [(model.dim, model.num_layers) for model in models] == PAPER[variant]
    assert all(64 * model.num_heads == model.dim and model.feed_forward.dim == 4 * model.dim for model in models)
    swept = make_cases(config, ["v5e-8"], sweep="replay_batch_size=1840,920")
    assert (
        len(swept) == 10
        and swept[5].value == "lifelong.method.replay_batch_size = 920"
        and swept[9].config.model.dim == models[4].dim
    )


@pytest.mark.parametrize("variant", [pytest.param(one, marks=[pytest.mark.laws] * (one != "paper")) for one in PAPER])
def test_every_generation_grows_into_the_next(variant):
    """Shapes alone: every array of a model becomes one of the next, as a run looks before it begins."""
    config = load_config("lifelong_pretraining", variant)
    config.data.batch_size, config.lifelong.method.memory.capacity = 8, 8  # no parameter depends on them
    unread = Planned(config, make_task(config).model(50_304), lambda split: PlaceholderExamples(), begin_token=0)
    check_growth(unread, make_method(config.lifelong.method), growth_histories(config))


@pytest.mark.parametrize("variant", ["default", "replay"])
def test_a_model_that_stays_is_one_case(variant):
    [case] = make_cases(load_config("lifelong_pretraining", variant), ["v5e-8"])
    assert not case.generation and not any(growth_histories(case.config))


def test_a_generation_that_does_not_grow_is_no_case():
    config = load_config("lifelong_pretraining", "elle")
    config.lifelong.method.dim_per_task, config.lifelong.method.num_layers_per_task = (96, 96), (2, 2)
    cases = make_cases(config, ["v5e-8"])
    assert [(case.generation, case.config.model.dim) for case in cases] == [("encyclopedia", 64), ("news", 96)]


@pytest.mark.parametrize(("name", "variant"), [("lifelong_pretraining", "elle"), ("lifelong_mnist", "pnn")])
def test_programs_of_a_generation_have_its_parameters(name, variant):
    layout = Layout(make_mesh((1, 1, 1), jax.devices()[:1]))
    config = load_config(name, variant)
    counts, vocab_size = [], 128
    for case in make_cases(config, ["v5e-8"]):
        programs = make_programs(case.config, "train", vocab_size, layout)
        counts.append(count_parameters(programs["stream"].arguments["state"].params))
    assert len(counts) == len(config.lifelong.tasks) and counts == sorted(set(counts))
    if variant == "elle":
        # Embeddings, positions, layers and the last norm, by hand.
        layer = lambda dim: 4 * dim * dim + 4 * dim + 8 * dim * dim + 5 * dim + 4 * dim
        sizes = ((64, 2), (96, 3), (128, 4))
        assert counts == [(vocab_size + 128) * dim + layers * layer(dim) + 2 * dim for dim, layers in sizes]


def test_the_table_names_the_task_and_says_the_parameters():
    rows = [{**facts(), "generation": name, "parameters": size} for name, size in (("news", 1000), ("reviews", 2000))]
    header, cells = comparison(rows)
    assert header[:3] == ["topology", "model for", "parameters"]
    assert [row[1:3] for row in cells] == [["news", "1,000"], ["reviews", "2,000"]]


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("libtpu") is None, reason="needs the extra `plan`")
@pytest.mark.parametrize(
    "option", ["--training.remat none", "--training.remat per_layer", "--training.num-microbatches 2"]
)
def test_generations_are_compiled_with_what_is_recomputed(capsys, option):
    command = ["plan", "--config", "lifelong_pretraining", "--variant", "smoke", "--topology", "v5e:2x2"]
    assert main([*command, "--vocab-size", "128", *option.split(), "--json"]) == 0
    found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [one["generation"] for one in found if one["program"] == "stream"] == ["task_0", "task_1"]
    for one in found:
        assert one["model_flops"] <= one["flops"]
    small, large = (one for one in found if one["program"] == "stream")
    assert small["parameters"] < large["parameters"] and small["model_flops"] < large["model_flops"]
