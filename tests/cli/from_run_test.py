"""`--from RUN`: a run that starts from the model, the tokenizer and the parameters of another one."""

import pytest

from memjax.cli import main
from memjax.cli.from_run import config_from_run
from memjax.cli.own_tasks import tasks_config
from memjax.cli.own_text import text_config
from memjax.config import (
    Compressive,
    Config,
    Data,
    Evaluation,
    MemorizingGraft,
    Model,
    TextFiles,
    Training,
    TransformerXL,
    Words,
)
from memjax.data.saved_tokenizers import save_tokenizer
from memjax.settings.checks import validate
from memjax.training.experiment import make_experiment
from memjax.training.loaded_runs import check_start_fits
from memjax.training.runs import TOKENIZER
from tests.training.tasks_test import save_run

TEXT = "".join(f"line {number}: a sentence that goes on for a while.\n" for number in range(300))
OTHER = TEXT.replace("sentence", "novel").replace("a while", "some more words than those of the run")


@pytest.fixture
def run(tmp_path, monkeypatch):
    """A run of a small model with the words of its own text; beside it lie other data."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.txt").write_text(TEXT)
    (tmp_path / "b.txt").write_text(OTHER)
    for name in ("good", "bad"):
        (tmp_path / f"{name}.csv").write_text("".join(f"{name}{number % 2},some text\n" for number in range(20)))
    data = Data(source=TextFiles(path="a.txt"), tokenizer=Words(), cache_dir="c", batch_size=2, segment_length=16)
    model = Model(dim=8, num_layers=2, num_heads=2, attention=TransformerXL(memory_length=8))
    evaluation = Evaluation(batch_size=2)
    config = Config(name="old", model=model, data=data, training=Training(steps=2), evaluation=evaluation)
    path, _ = save_run(config)
    save_tokenizer(make_experiment(config).tokenizer, path / TOKENIZER)
    return str(path)


def test_other_data_for_the_model_of_a_run(run):
    config, line = text_config("b.txt", from_run=run)
    validate(config)
    check_start_fits(config)
    assert config.model.dim == 8 and config.data.tokenizer == Words() and config.data.segment_length == 16
    assert config.data.source.path == "b.txt" and config.training.init_from == run
    assert config.name == "text_b_from_old" and line.endswith(f"; model, tokenizer and parameters from {run}")
    again, _ = config_from_run(run)
    assert again.name == "old_from_old" and again.data.source.path == "a.txt" and again.training.steps == 2


@pytest.mark.laws
def test_a_memory_is_added_to_a_model_with_rotary_attention(run, capsys):
    """Only the parameters of the memory are new, and the first score is that of the run."""
    host = ["--model.dim", "16", "--training.steps", "2", "--data.cache-dir", "c", "--evaluation.batch-size", "2"]
    command = ["train", "--text", "a.txt", "--memory-kind", "rotary", "--variant", "smoke", "--name", "host", *host]
    assert main(command) == 0
    config, _ = text_config("b.txt", from_run="runs/host", memory_kind="memorizing")
    validate(config)
    check_start_fits(config)
    assert isinstance(config.model.attention.graft, MemorizingGraft)
    start = ["train", "--from", "runs/host", "--text", "a.txt", "--memory-kind", "memorizing", "--name", "memory"]
    assert main([*start, *host[2:]]) == 0
    line = next(line for line in capsys.readouterr().err.splitlines() if "new parameters" in line)
    assert line.count("attention/graft/gate") == 1 and "," not in line.partition("new parameters")[2]
    assert main([*start, *host[2:], "--memory-kind", "lstm"]) == 2
    assert "allowed: none, rotary, compressive, memorizing" in capsys.readouterr().err


FITS = [lambda model: setattr(model.attention, "memory_length", 4), lambda model: setattr(model, "dropout", 0.3)]


@pytest.mark.parametrize("change", FITS)
def test_what_makes_the_same_parameters_may_change(run, change):
    config, _ = text_config("b.txt", from_run=run)
    change(config.model)
    check_start_fits(config)


def test_a_misfit_names_fields_and_options(run):
    config, _ = text_config("b.txt", from_run=run)
    config.model.dim, config.model.num_layers, config.model.dropout = 16, 1, 0.3
    with pytest.raises(ValueError) as error:
        check_start_fits(config)
    assert str(error.value) == (
        "model.dim: given 16, allowed: 8; model.num_layers: given 1, allowed: 2, as in "
        f"{run}; give --model.dim 8 --model.num-layers 2, or begin with --from {run} and leave them out"
    )
    config, _ = text_config("b.txt", from_run=run)
    config.model.attention = Compressive(memory_length=8, compressed_memory_length=4, compression_rate=2, norm="pre")
    check_start_fits(config)  # a memory that adds parameters fits


@pytest.mark.laws
def test_the_tokenizer_of_the_run_is_taken_before_one_is_trained(run, capsys):
    assert main(["train", "--from", run, "--text", "b.txt", "--data.cache-dir", "c", "--training.steps", "1"]) == 0
    lines = capsys.readouterr().err
    assert f"parameters from {run}, step 3" in lines and "no new parameters" in lines


@pytest.mark.parametrize(
    "arguments, told",
    [
        (["--from", "nowhere", "--text", "b.txt"], "--from: nowhere: no run directory"),
        (["--from", "RUN", "--run", "RUN"], "--run: given with --from, allowed: one of the two"),
        (["--from", "RUN", "--variant", "tiny"], "--variant: given 'tiny' with --from alone, allowed: with --config"),
        (["--from", "RUN", "--text", "b.txt", "--model.dim", "16"], "model.dim: given 16, allowed: 8, as in"),
        (
            ["--from", "RUN", "--text", "b.txt", "--memory-kind", "memorizing"],
            "model.attention: given Memorizing, allowed: TransformerXL, as in RUN; begin with --from RUN and leave "
            "them out (--memory-kind chooses model.attention)",
        ),
        (["--from", "RUN", "--tasks", "good.csv"], "allowed:"),
    ],
)
def test_mistakes(run, tmp_path, capsys, arguments, told):
    assert main(["train", *(run if word == "RUN" else word for word in arguments)]) == 2
    *before, line = capsys.readouterr().err.splitlines()
    assert told.replace("RUN", run) in line and not any("tokenise" in text for text in before)
    assert [path.name for path in (tmp_path / "runs").iterdir()] == ["old"]


def test_tasks_need_a_model_that_fits(run):
    config, line = tasks_config(["good.csv", "bad.csv"], from_run=run)
    assert line.endswith(f"from {run}") and config.name.endswith("_from_old")
    with pytest.raises(ValueError, match="allowed"):
        validate(config)
