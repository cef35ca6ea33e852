"""The command line: exit codes, one line for every mistake of a user, and nothing lost by it."""

import errno
import json
import os
import runpy
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from memjax.cli import main
from memjax.config import Spalm
from memjax.durable_files import read_json, write_json
from memjax.training.loop import StoppedBySignal
from memjax.training.run_identity import write_run_file
from memjax.training.run_versions import read_attempts
from memjax.training.runs import config_to_dict, load_config

CONFIG = """
from memjax.config import *

VARIANTS = {"default": "a memory", "local": "none"}

def get_config(variant="default"):
    attention = Memorizing(layers_with_memory=(-1,), memory_length=16, num_neighbors=2, cache_length=4)
    if variant == "local":
        attention = FullAttention()
    return Config(
        name=f"tiny_{variant}",
        model=Model(dim=8, num_layers=1, num_heads=2, attention=attention),
        data=Data(source=TextFiles(path="texts"), tokenizer=Bytes(), cache_dir="cache", batch_size=2, segment_length=8),
        training=Training(steps=2, schedule=Schedule(warmup_steps=1), log_every=1, checkpoint_every=1),
        evaluation=Evaluation(batch_size=2, max_segments=2),
    )
"""


@pytest.fixture(scope="module")
def workplace(tmp_path_factory):
    """A directory with a config, texts and a finished run of it."""
    folder = tmp_path_factory.mktemp("cli")
    (folder / "tiny.py").write_text(CONFIG)
    (folder / "texts").mkdir()
    for number in range(60):
        (folder / "texts" / f"{number}.txt").write_text(f"text {number}: " + "abcdefgh " * (1 + number % 5))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        assert main(["train", "--config", "tiny.py"]) == 0
    return folder


@pytest.fixture
def here(workplace, monkeypatch):
    monkeypatch.chdir(workplace)
    return workplace


def contents(folder: Path) -> dict[str, tuple[int, ...]]:
    """What tells that a file below a folder has changed; locks and caches of prepared data aside."""
    of = lambda status: (status.st_size, status.st_mtime_ns, status.st_ino)
    return {
        str(path.relative_to(folder)): of(path.stat())
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name != ".lock" and "__pycache__" not in path.parts and "cache" not in path.parts
    }


def refuse(arguments: list[str], capsys) -> str:
    """The line about a mistake, with relative paths; checks that it is one, that the code is 2, and that files stay.
    Lines about damaged checkpoints may stand before it.
    """
    before = contents(Path.cwd())
    capsys.readouterr()
    assert main(arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    lines = captured.err.splitlines()
    of_verb = [line for line in lines if line.startswith(f"memjax {arguments[0]}: ")]
    mistakes = [line for line in of_verb if not line.endswith(": going back to an older one")]
    progress = ("tokenise:", "train the tokenizer:", "eval: compiling", "memjax ")
    assert len(mistakes) == 1 and mistakes == lines[-1:]
    assert all(line.startswith(progress) or ": step " in line for line in lines), captured.err
    assert contents(Path.cwd()) == before
    return lines[-1].replace(f"{Path.cwd()}/", "")


TRAIN = ["train", "--config", "tiny.py"]


@pytest.mark.parametrize("module", ["memjax", "memjax.cli"])
@pytest.mark.parametrize("words", [["--help"], ["train", "--help"]])
def test_python_runs_the_package_as_the_command(module, words, monkeypatch, capsys):
    assert main(words) == 0
    expected = capsys.readouterr().out
    monkeypatch.setenv("MEMJAX_MALLOC", "0")  # the memory of this process stays as it is
    monkeypatch.setattr(sys, "argv", ["__main__.py", *words])
    with pytest.raises(SystemExit) as ended:
        runpy.run_module(module, run_name="__main__")
    assert ended.value.code == 0
    assert capsys.readouterr().out == expected and "usage: memjax" in expected


@pytest.mark.parametrize("number, code", [(errno.EACCES, 2), (errno.ENOSPC, 1)])
def test_the_system_says_why_a_file_cannot_be_written(here, capsys, monkeypatch, number, code):
    def refused(*arguments):
        raise OSError(number, os.strerror(number), "runs/new/config.json")

    monkeypatch.setattr("memjax.training.runs.write_json", refused)
    assert main([*TRAIN, "--name", "new"]) == code
    lines = capsys.readouterr().err.splitlines()
    said = (
        os.strerror(number) if code == 2 else "no space is left on the disk; free some and run the same command again"
    )
    assert lines[-1] == f"memjax train: runs/new/config.json: {said}"
    assert not (here / "runs" / "new").exists()


@pytest.mark.parametrize(
    "error", [MemoryError(), RuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 9 bytes.")]
)
def test_no_memory_is_one_line(here, capsys, monkeypatch, error):
    def exhausted(config, **options):
        raise error

    monkeypatch.setattr("memjax.lifelong.train", exhausted)
    assert main(TRAIN) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("memjax train: memory: not enough (") and "allowed: smaller data.batch_size" in line


def test_a_checkpoint_of_another_architecture_is_refused_with_the_difference(here, capsys):
    other = here / "runs" / "other"
    shutil.copytree(here / "runs" / "tiny_default", other)
    (other / "finished.json").unlink()
    config = read_json(other / "config.json")
    config["name"], config["model"]["feed_forward"]["dim"] = "other", 24
    write_json(other / "config.json", config)
    for arguments in (
        ["eval", "--run", "runs/other"],
        ["generate", "--run", "runs/other"],
        [*TRAIN, "--name", "other", "--model.feed-forward.dim", "24"],
    ):
        line = refuse(arguments, capsys)
        assert "another architecture" in line
        assert "feed_forward" in line and "24" in line


def test_init_from_another_architecture_is_refused(here, capsys):
    arguments = ["--name", "new", "--training.init-from", "runs/tiny_default", "--model.feed-forward.dim", "24"]
    line = refuse([*TRAIN, *arguments], capsys)
    assert "init-from" in line and "24" in line


def test_an_error_of_the_program_keeps_its_traceback(here, capsys, monkeypatch):
    def broken(config, **options):
        return [1][2]

    monkeypatch.setattr("memjax.lifelong.train", broken)
    assert main(TRAIN) == 1
    assert "Traceback" in capsys.readouterr().err


def test_debug_adds_the_traceback_to_a_mistake(here, capsys, monkeypatch):
    monkeypatch.setenv("MEMJAX_DEBUG", "1")
    assert main([*TRAIN, "--model.dim", "9"]) == 2
    error = capsys.readouterr().err
    assert "Traceback" in error and "model.num_heads: given 2" in error.splitlines()[-1]


def test_a_signal_gives_128_and_its_number(here, monkeypatch):
    def stopped(config, **options):
        raise StoppedBySignal(signal.SIGTERM, 1, here)

    monkeypatch.setattr("memjax.lifelong.train", stopped)
    assert main(TRAIN) == 128 + 15


def test_a_missing_package_names_its_extra(here, capsys, monkeypatch):
    def needs(config, **options):
        raise ModuleNotFoundError("No module named 'seqio'", name="seqio")

    monkeypatch.setattr("memjax.lifelong.train", needs)
    assert "pip install 'memjax[data]'" in refuse(TRAIN, capsys)


def test_train_again_says_that_the_run_is_finished(here, capsys):
    before = contents(here)
    assert main(TRAIN) == 0
    assert "finished" in capsys.readouterr().err
    assert contents(here) == before


def test_eval_with_other_memories(here, capsys):
    lengths = [None, 0, 64]
    found = []
    for length in lengths:
        more = [] if length is None else ["--evaluation.memory-length", str(length)]
        assert main(["eval", "--run", "runs/tiny_default", "--json", *more]) == 0
        found.append(json.loads(capsys.readouterr().out))
    assert [values["memory_length"] for values in found] == [16, 0, 64]
    assert len({values["memory_bytes"] for values in found}) == 3
    assert len({values["targets"] for values in found}) == 1
    split = ["--evaluation.split", "test", "--evaluation.memory-intervention", "cleared"]
    assert main(["eval", "--run", "runs/tiny_default", *split]) == 0
    text = capsys.readouterr().out
    assert "bits per byte" in text and "of the test split, memory 16 cleared)" in text
    assert "memory: what the gate lets through of memories that hold something  0.0000" in text


@pytest.mark.laws
def test_eval_and_generate_with_a_cache(here, capsys):
    cache = ["--evaluation.cache.memory-length", "20", "--evaluation.cache.interpolation-weight", "0.9"]
    found = []
    for more in ([], cache[:2] + ["--evaluation.cache.interpolation-weight", "0"], cache):
        assert main(["eval", "--run", "runs/tiny_default", "--json", *more]) == 0
        found.append(json.loads(capsys.readouterr().out))
    assert found[0]["nats"] == found[1]["nats"] != found[2]["nats"]
    assert "cache" not in found[0] and found[2]["cache"]["memory_length"] == 20
    assert found[2]["memory_bytes"] > found[0]["memory_bytes"] and found[2]["metrics"]["continuous_cache/pairs"] > 1
    texts = []
    for more in ([], cache):
        generate = ["generate", "--run", "runs/tiny_default", "--max-tokens", "9", "--greedy", *more]
        assert main([*generate, "--prompt", "abcabcabcab"]) == 0
        texts.append(capsys.readouterr().out)
    assert texts[0] != texts[1]


def test_generate_one_and_several_prompts(here, capsys):
    generate = ["generate", "--run", "runs/tiny_default", "--max-tokens", "5", "--greedy"]
    assert main([*generate, "--prompt", "abc"]) == 0
    alone = capsys.readouterr().out
    assert alone.startswith("abc") and "\x1b" not in alone
    (here / "prompt.txt").write_text("text 7: abcdefgh abcd")
    assert main([*generate, "--prompt", "abc", "--prompt-file", "prompt.txt", "--json"]) == 0
    first, second = (json.loads(line) for line in capsys.readouterr().out.splitlines())
    assert first["prompt"] + first["text"] == alone.removesuffix("\n")
    assert second["header"] == "prompt.txt"
    assert main([*generate, "--prompt", "abc", "--prompt-file", "prompt.txt"]) == 0
    both = capsys.readouterr().out
    assert "== prompt 1\nabc" in both and "== prompt.txt\ntext 7" in both


def test_generate_says_how_it_samples(here, capsys):
    generate = ["generate", "--run", "runs/tiny_default", "--max-tokens", "1", "--prompt", "abc"]
    assert main(generate) == 0
    assert "sampling at temperature 0.8 and top-p 0.95; " in capsys.readouterr().err
    assert main([*generate, "--temperature", "0.5", "--top_p", "1", "--top-k", "3"]) == 0
    assert "sampling at temperature 0.5, top-k 3 and top-p 1; " in capsys.readouterr().err


def test_data_prepare_counts_every_split(here, capsys):
    assert main(["data", "prepare", "--config", "tiny.py"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[1:]] == ["train", "validation", "test"]
    documents = [int(line.split()[1].replace(",", "")) for line in lines[1:]]
    assert sum(documents) == 60


def test_help_of_every_verb(here, capsys):
    assert main(["--help"]) == 0
    verbs = [line.split()[0] for line in capsys.readouterr().out.splitlines() if line.startswith("  ")]
    assert {"train", "eval", "generate", "data", "doctor", "demo"} <= set(verbs)
    for verb in verbs:
        assert main([verb, "--help"]) == 0
        text = capsys.readouterr().out
        assert f"usage: memjax {verb}" in text
        if verb in ("train", "eval", "data"):
            assert "--training.schedule.learning-rate" in text and "--model.attention.num-neighbors" in text
    assert main(["train", "--help", "--config", "tiny.py", "--variant", "local"]) == 0
    assert "--model.attention.num-neighbors" not in capsys.readouterr().out


def test_the_command_line_starts_without_jax():
    code = (
        "import sys, memjax.cli as cli; cli.main(['--help']); "
        "print([m for m in ('jax', 'flax', 'tensorflow', 'orbax', 'tyro') if m in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.splitlines()[-1] == "[]"


@pytest.mark.laws
def test_the_first_line_comes_within_two_seconds(here):
    """In CPU time of the main thread: the command that is asked shares its cores with other tests, and threads of
    libraries work beside it.
    """
    code = (
        "import sys, time, threading\n"
        "from memjax.cli import main\n"
        "clock = time.pthread_getcpuclockid(threading.main_thread().ident)\n"
        "class Clock:\n"
        "    def write(self, text): told.append((time.clock_gettime(clock), text))\n"
        "    def flush(self): pass\n"
        "told, sys.stderr = [], Clock()\n"
        "sys.argv = ['memjax', 'eval', '--run', 'runs/tiny_default']\n"
        "code = main()\n"
        "print(code, *told[0])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    exit_code, seconds, *text = done.stdout.splitlines()[-1].split()
    assert exit_code == "0" and float(seconds) < 2.0
    # Where JAX starts in less than a second, what is said first is which checkpoint was read.
    assert " ".join(text) in ("eval: reading the settings, starting JAX ...", "runs/tiny_default: step 2")
    code = "import sys; from memjax.cli import main; sys.argv = ['memjax', 'eval', '--rum', 'x']; main()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr == "memjax eval: --rum: no such option of memjax eval; did you mean --run?\n"


def test_a_run_of_spalm_is_not_continued_without_its_neighbors(here, capsys):
    config = load_config(here / "runs" / "tiny_default")
    config.model.output = Spalm()
    (here / "runs" / "spalm").mkdir()
    write_json(here / "runs" / "spalm" / "config.json", config_to_dict(config))
    assert "model.output: given Spalm" in refuse(["generate", "--run", "runs/spalm", "--prompt", "x"], capsys)


@pytest.mark.slow
def test_a_run_carries_its_tokenizer(here, capsys, monkeypatch):
    """Moved to another folder, without data and caches: equal text and numbers; with its tokenizer gone, one line."""
    config = CONFIG.replace("Bytes()", "SentencePiece(vocab_size=283)").replace("tiny_", "pieces_")
    (here / "pieces.py").write_text(config)
    assert main(["train", "--config", "pieces.py"]) == 0
    asked = ["--prompt", "text 7", "--max-tokens", "6", "--greedy"]
    generate = lambda run: [main(["generate", "--run", run, *asked]), capsys.readouterr().out]
    score = lambda run, *more: [main(["eval", "--run", run, "--json", *more]), capsys.readouterr().out]
    capsys.readouterr()
    text, (_, numbers) = generate("runs/pieces_default"), score("runs/pieces_default")
    elsewhere = here / "elsewhere"
    shutil.copytree(here / "runs" / "pieces_default", elsewhere / "mine")
    shutil.copytree(here / "texts", elsewhere / "texts")
    (elsewhere / "texts" / "another.txt").write_text("what was not there would make another tokenizer " * 9)
    monkeypatch.chdir(elsewhere)
    (elsewhere / "texts").rename(elsewhere / "moved")
    (here / "texts").rename(here / "gone")
    assert generate("mine") == text
    line = refuse(["eval", "--run", "mine"], capsys)
    assert "'texts', which is not there; looked for texts, " in line and str(here / "texts") in line
    (here / "gone").rename(here / "texts")
    (elsewhere / "moved" / "another.txt").unlink()
    _, found = score("mine", "--data.source.path", "moved", "--data.cache-dir", "other_cache")
    different = ("run", "tokens_per_second")
    plain = lambda text: {name: value for name, value in json.loads(text).items() if name not in different}
    assert plain(found) == plain(numbers) and plain(found)["step"] == 2
    (elsewhere / "mine" / "tokenizer" / "sentencepiece.model").unlink()
    assert "sentencepiece.model is missing" in refuse(["generate", "--run", "mine"], capsys)
    shutil.rmtree(elsewhere / "mine" / "tokenizer")
    assert "about.json is missing" in refuse(["generate", "--run", "mine"], capsys)


def test_a_verb_says_which_checkpoint_it_used(here, capsys):
    """The newest is damaged: the one before is used, in so many words."""
    shutil.copytree(here / "runs" / "tiny_default", here / "runs" / "kept")
    newest = here / "runs" / "kept" / "checkpoints" / f"{2:08d}"
    for file in newest.rglob("*"):
        if file.is_file():
            file.write_bytes(b"damaged")
    write_run_file(here / "runs" / "kept" / "versions.json", {"attempts": [{"random_generator": "rbg"}]})
    capsys.readouterr()
    for verb, more in (("eval", []), ("generate", ["--max-tokens", "2"])):
        assert main([verb, "--run", "runs/kept", "--json", *more]) == 0
        shown = capsys.readouterr()
        facts = json.loads(shown.out)
        assert (facts["step"], facts["newest_step"]) == (1, 2)
        assert "step 1 (not the newest: step 2 is damaged)" in shown.err
        assert "runs/kept: made under another random number generator, rbg; here threefry2x32" in shown.err


@pytest.mark.laws
def test_a_run_says_that_it_goes_on_under_another_generator(here, capsys):
    shutil.copytree(here / "runs" / "tiny_default", here / "runs" / "again")
    (here / "runs" / "again" / "finished.json").unlink()
    write_run_file(here / "runs" / "again" / "versions.json", {"attempts": [{"random_generator": "rbg"}]})
    assert main([*TRAIN, "--name", "again"]) == 0
    assert "runs/again: made under another random number generator, rbg" in capsys.readouterr().err
    attempts = read_attempts(here / "runs" / "again")
    assert [attempt["random_generator"] for attempt in attempts] == ["rbg", "threefry2x32, partitionable"]


def test_a_run_that_is_not_finite_is_one_line_and_exit_code_1():
    from memjax.cli.errors import explain
    from memjax.training.skipped import NonFiniteError

    assert explain(NonFiniteError("runs/x: ended\nafter step 8")) == ("runs/x: ended after step 8", 1)
