"""Methods by name: every kind of method has a name, and settings that fit the model and the tasks."""

import copy
import re
import typing
from pathlib import Path

import pytest

from memjax.config import MethodKind, Model, Rotary
from memjax.settings.checks import validate
from memjax.settings.named_methods import METHODS, make_method_settings, with_method
from memjax.settings.overrides import UsageError, load_config


def test_every_kind_of_method_has_a_name():
    assert {method.kind for method in METHODS.values()} == set(typing.get_args(MethodKind))


@pytest.mark.parametrize("name", METHODS)
def test_every_method_fits_the_model_that_files_get_with_it(name):
    config = with_method(load_config(*METHODS[name].base), name)
    validate(config)
    assert type(config.lifelong.method) is METHODS[name].kind


OF_SOME_MODELS = ("elle", "lamol", "emr", "ea_emr", "emar", "o_lora", "task_adapters")


@pytest.mark.parametrize("name", [name for name in METHODS if name not in OF_SOME_MODELS])
@pytest.mark.parametrize("variant", ["default", "small", "bag_hidden", "encoder"])
def test_methods_fit_other_models(name, variant):
    validate(with_method(load_config("lifelong_text", variant), name))


def test_a_list_of_settings_is_no_one_s_own():
    before = copy.deepcopy(METHODS)
    make_method_settings("replay").memory.capacity = 1
    assert make_method_settings("replay").memory.capacity == 1000 and before == METHODS


def test_a_model_that_grows_does_so_before_every_task_but_the_first():
    config = with_method(load_config("lifelong_text", "small"), "elle")
    assert config.lifelong.method.dim_per_task == (160, 192, 224, 256)
    with pytest.raises(ValueError, match="model: given 'TokenBag', allowed: .* which grow"):
        with_method(load_config("lifelong_text", "bag"), "elle")


def test_a_model_without_a_gate_is_refused_in_a_line():
    config = load_config("lifelong_text", "encoder")
    config.model = Model(attention=Rotary())
    with pytest.raises(ValueError, match="model.gate_dim: given 0, allowed: 1 or more with ANML"):
        validate(with_method(config, "anml"))


def test_mistakes():
    with pytest.raises(
        UsageError,
        match="--method: given 'mbpa2', allowed: sequential, .*lamol, or my_module:MyClass; did you mean mbpa",
    ):
        make_method_settings("mbpa2")
    with pytest.raises(UsageError, match="--method: given ewc with own_text_tiny, which has no tasks, allowed"):
        with_method(load_config("own_text", "tiny"), "ewc")
    with pytest.raises(ValueError, match="task: given 'Classification', allowed: Instructions"):
        validate(with_method(load_config("lifelong_text"), "lamol"))


def test_the_guide_lists_every_method_with_its_line():
    guide = (Path(__file__).parents[2] / "docs" / "guides" / "lifelong.md").read_text()
    rows = dict(re.findall(r"^\| `(\w+)` \| (.*) \|$", guide, re.MULTILINE))
    assert {name: rows.get(name) for name in METHODS} == {name: method.about for name, method in METHODS.items()}
