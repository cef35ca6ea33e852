"""Settings name their implementation: every name leads to a function or class, and no kind is without one."""

import inspect
from typing import get_args

import pytest

from memjax import config as configs
from memjax.data.source_readers import open_source
from memjax.settings.pointers import import_by_name
from memjax.tasks.interface import Task, make_task

SOURCES, TASKS = get_args(configs.SourceKind), get_args(configs.TaskKind)
TOKENIZERS, METHODS = get_args(configs.TokenizerKind), get_args(configs.MethodKind)

FUNCTIONS = {
    "opened_by": ["data", "split"],
    "noted_by": ["source"],
    "classes_named_by": ["source"],
}
"""Fact of a source -> arguments of the function that it names."""


def subclasses(kind):
    """Yields all subclasses of a class of settings, of which `dataclass(slots=True)` makes each twice."""
    for direct in {child.__qualname__: child for child in kind.__subclasses__()}.values():
        yield direct
        yield from subclasses(direct)


def arguments_of(function):
    return [*inspect.signature(function).parameters]


@pytest.mark.parametrize("kind", SOURCES, ids=lambda kind: kind.__name__)
def test_a_source_names_its_reader(kind):
    assert kind.opened_by or kind.opened_as or kind.content_types == ("seqio",), "no function opens it"
    for fact, arguments in FUNCTIONS.items():
        if name := getattr(kind, fact):
            assert arguments_of(import_by_name(name)) == arguments, name
    assert set(kind.opened_as) <= set(kind.content_types)
    for name in kind.opened_as.values():
        assert arguments_of(import_by_name(name)) == FUNCTIONS["opened_by"], name
    if kind.parsed_by:
        assert callable(import_by_name(kind.parsed_by))


@pytest.mark.parametrize("kind", [configs.ClassifiedTexts, configs.Relations, configs.QuestionSource], ids=str)
def test_every_source_of_a_family_names_its_parser(kind):
    assert all(child.parsed_by for child in subclasses(kind) if child in SOURCES)


@pytest.mark.parametrize("kind", TASKS, ids=lambda kind: kind.__name__)
def test_a_task_names_its_class(kind):
    names = [kind.made_by, *kind.made_for.values()]
    assert all(issubclass(import_by_name(name), Task) for name in names)
    contents = {content for source in SOURCES for content in source.content_types} | {"images"}
    assert {*kind.made_for, kind.content} <= contents | {""}


@pytest.mark.parametrize("kind", TOKENIZERS, ids=lambda kind: kind.__name__)
def test_a_tokenizer_names_its_maker(kind):
    assert arguments_of(import_by_name(kind.made_by)) == ["settings", "train"]


@pytest.mark.parametrize("kind", METHODS, ids=lambda kind: kind.__name__)
def test_a_method_names_its_maker(kind):
    assert callable(import_by_name(kind.made_by))


def test_a_kind_that_is_not_listed_needs_a_name_too():
    # A base class may lack the name, but no class below the one that has it.
    for base, fact in ((configs.Source, "opened_by"), (configs.Source, "opened_as"), (configs.Task, "made_by")):
        for kind in subclasses(base):
            for child in subclasses(kind):
                assert getattr(child, fact) or not getattr(kind, fact), child


def test_settings_without_an_implementation_are_refused(monkeypatch):
    with pytest.raises(ValueError, match="data.source: given SeqioTask, allowed: a source with a reader"):
        open_source(configs.Data(source=configs.SeqioTask()), "train")
    monkeypatch.setattr(configs.Instructions, "made_by", "")
    with pytest.raises(ValueError, match="task: given Instructions, allowed: one of memjax.config.TaskKind"):
        make_task(configs.Config(task=configs.Instructions()))
