"""The table of memories that are added to a trained GPT-2."""

import pytest

from memjax.config import GPT2, InfinityFormer
from memjax.overrides import apply_overrides, load_config
from memjax.settings.relations import validate
from tools.results.recurrent import gpt2

RUNS = gpt2.runs(1200, 500)


@pytest.mark.parametrize("name", RUNS)
def test_commands_are_valid_and_begin_with_the_first_stage(name):
    run = RUNS[name]
    given = dict(zip(run.arguments[::2], run.arguments[1::2], strict=False))
    start = ["--training.init-from", run.after] if run.after else []
    config = load_config(given["--config"], given["--variant"])
    config = apply_overrides(config, [*run.arguments[4:], *start], prog="memjax train")
    validate(config)
    attention, length = config.model.attention, config.data.segment_length
    assert isinstance(attention, GPT2 | InfinityFormer) and attention.num_positions == length == gpt2.LENGTH
    assert config.data.protocol == "contiguous" and config.evaluation.max_segments == 0
    if run.after:
        assert run.after == next(iter(RUNS)) and config.training.steps == 500
        remembers = isinstance(attention, InfinityFormer) or attention.compressed_memory_length > 0
        rates = config.training.schedule.learning_rate, config.training.memory_learning_rate
        assert rates == (2e-4, 1e-3 if remembers else 0)
        assert remembers == ("alone" not in name)
    if isinstance(attention, InfinityFormer):
        assert (attention.sticky == "sample") == ("sticky" in name) and attention.reset_after == 0


def test_the_stages_differ_in_the_memory_only():
    """What must be the same for the parameters of the first stage to fit, and for a fair comparison."""
    described = []
    for run in RUNS.values():
        given = dict(zip(run.arguments[::2], run.arguments[1::2], strict=False))
        config = load_config(given["--config"], given["--variant"])
        config = apply_overrides(config, run.arguments[4:], prog="memjax train")
        config.model.attention = GPT2()
        described.append((config.model, config.data, config.evaluation))
    assert all(one == described[0] for one in described)


def test_the_table():
    score = {"perplexity": 20.5, "bits_per_byte": 1.25, "targets": 9}
    one = {"row": "+ infinity-former", "steps": 1700, "parameters": 1_330_000, "memory_bytes": 4096}
    page = gpt2.as_markdown({"runs": {"x": {**one, "validation": {**score, "perplexity": 19.25}, "test": score}}})
    assert "| + infinity-former | 1,700 | 1,330,000 | 4,096 | 19.2500 | 20.5000 | 1.2500 |" in page
