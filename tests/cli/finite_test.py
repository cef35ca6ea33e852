"""No verb ends well with a number that is none."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memjax.cli.errors import explain
from memjax.cli.parser import exit_code

NUMBERS = st.one_of(st.floats(), st.integers(), st.text(max_size=3), st.none(), st.booleans())


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan, 1e400])
@pytest.mark.parametrize("name", ["perplexity", "nats_per_token", "probability"])
def test_a_number_that_is_none_is_named(capsys, name, value):
    assert exit_code({"targets": 3, name: value, "split": "test"}) == 1
    assert capsys.readouterr().err == f"memjax: not finite: {name} is {value}\n"


@pytest.mark.parametrize("facts", [{}, {"perplexity": 1e300, "targets": 10**400}, {"split": "inf"}, {"bytes": None}])
def test_what_is_finite_ends_well(capsys, facts):
    assert exit_code(facts) == 0 and not capsys.readouterr().err


@settings(deadline=None)
@given(st.dictionaries(st.sampled_from("abc"), NUMBERS))
def test_the_code_says_whether_all_are_finite(facts):
    wrong = [value for value in facts.values() if isinstance(value, float) and not math.isfinite(value)]
    assert exit_code(facts) == bool(wrong)


def test_what_is_computed_and_not_finite_is_one_line_and_no_mistake_of_the_user():
    assert explain(FloatingPointError("logits: not finite,\n allowed")) == ("logits: not finite, allowed", 1)
