import pytest

from memjax.config import (
    AttentionKind,
    Config,
    FeedForwardKind,
    Memformer,
    Model,
    OutputKind,
    Perceptron,
    SourceKind,
    TaskKind,
    TokenizerKind,
    TransformerXL,
)
from memjax.memory.compressive import LOSSES
from memjax.memory.infinity_former import LOSS
from memjax.settings.checks import validate
from memjax.settings.long_memory import RECONSTRUCTION, Compressive, InfinityFormer
from memjax.settings.ranges import Count, Range, Share, describe_invalid, type_hints_of, zero_or_more

KINDS = [
    kind
    for union in (AttentionKind, FeedForwardKind, OutputKind, SourceKind, TaskKind, TokenizerKind)
    for kind in union.__args__
] + [Config, Model, Memformer, Perceptron]


@pytest.mark.parametrize(
    "value, hint, allowed",
    [
        (3, Count, ""),
        (0, Count, "an integer of at least 1"),
        ("3", Count, "an integer of at least 1"),
        (float("nan"), Share, "a share from 0 to 1"),
        ((1, 2), tuple[Count, ...], ""),
        ((1, 0), tuple[Count, ...], "an integer of at least 1"),
        (None, Count | None, ""),
        (0, Count | None, "an integer of at least 1 or None"),
        (Model(), Model | Memformer, ""),
        (TransformerXL(), Model | Memformer, "ModelSettings or Memformer"),
    ],
)
def test_one_walker_words_every_annotation(value, hint, allowed):
    assert describe_invalid(value, hint) == allowed


def test_a_range_of_a_tuple_is_that_of_its_entries():
    some = Range(words="some", above=0, entries=1)
    assert (1, 2) in some and () not in some and (1, 0) not in some
    assert -1 not in zero_or_more() and 0 in zero_or_more()


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_a_misspelt_field_is_an_error(kind):
    part = kind()
    with pytest.raises(AttributeError):
        part.memory_lenght = 3
    assert "memory_lenght" not in type_hints_of(kind)


def test_facts_are_no_fields():
    facts = {"norm_place", "learned_positions", "crosses_segments", "added_parameters", "encodes", "gives", "reads"}
    assert not facts & {name for kind in KINDS for name in type_hints_of(kind)}


def test_a_part_of_another_kind_is_named():
    config = Config()
    config.model.attention = config.model.feed_forward
    with pytest.raises(ValueError, match="^model.attention: given 'Dense', allowed: FullAttention or TransformerXL or"):
        validate(config)


def test_losses_have_one_name():
    assert RECONSTRUCTION == LOSSES
    assert set(InfinityFormer().auxiliary_loss_weights()) == {LOSS} and set(
        Compressive().auxiliary_loss_weights()
    ) <= set(LOSSES.values())
