"""Tests runs, caches and tokenizers on a stand-in for a bucket that is mounted with gcsfuse."""

import ast
import os
from pathlib import Path

import numpy as np
import pytest

from memjax.config import Config, Data, Evaluation, Schedule, Training
from memjax.data.saved_tokenizers import has_tokenizer, load_tokenizer, save_tokenizer
from memjax.data.sources import Texts
from memjax.data.token_files import TokenFile, write_token_file
from memjax.data.tokenizers import ByteTokenizer, WordTokenizer
from memjax.durable_files import DamagedError, read_json, write_json
from memjax.training.checkpoints import Checkpoints
from memjax.training.experiment import Experiment
from memjax.training.metrics import read_metrics
from memjax.training.run_start import train
from tests.mounted_bucket import Killed, MountedBucket
from tests.training.toy import LENGTH, ROWS, ToyModel, toy_documents

PACKAGE = Path(__file__).parent.parent / "memjax"
TEXTS = Texts.from_mapping({f"text {number}": f"{number} is a number" for number in range(12)})
RENAMES = {
    "durable_files.py": "a file that was written beside its place",
    "data/tokenizers.py": "a file that was written beside its place",
    "data/opening.py": "a file that was written beside its place",
    "cli/demonstration.py": "a file that was written beside its place",
    "data/token_folders.py": "the files of a damaged cache, one after the other",
    "interop/runs.py": "the folder of an export, of which docs/guides/pods.md says that it belongs on a local disk",
}
"""File of the product that renames -> what it renames"""


def test_the_product_renames_what_is_listed():
    renaming = set()
    for path in PACKAGE.rglob("*.py"):
        for call in ast.walk(ast.parse(path.read_text())):
            if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute):
                owner, name = ast.unparse(call.func.value), call.func.attr
                is_path = name == "rename" or (name == "replace" and len(call.args) == 1 and not call.keywords)
                if (owner in ("os", "shutil") and name in ("rename", "replace", "renames", "move")) or is_path:
                    renaming.add(str(path.relative_to(PACKAGE)))
    assert renaming == RENAMES.keys()


@pytest.mark.parametrize("kill_at", [1, 2, 3])
def test_a_small_file_is_the_old_or_the_new_one(tmp_path, monkeypatch, kill_at):
    file = tmp_path / "config.json"
    write_json(file, {"step": 1})
    with monkeypatch.context() as patch:
        bucket = MountedBucket(patch, kill_at=kill_at)
        try:
            write_json(file, {"step": 2})
        except Killed:
            pass
    assert read_json(file) == {"step": 2 if kill_at > 1 else 1} and bucket.operations >= min(kill_at, 2)
    write_json(file, {"step": 3})
    assert read_json(file) == {"step": 3}


def contents(file: TokenFile) -> list[tuple[str, list[int]]]:
    return [(file.name(number), file[number].tolist()) for number in range(len(file))]


def write(folder: Path) -> TokenFile:
    return write_token_file(folder, TEXTS, ByteTokenizer())


@pytest.mark.parametrize("damaged", ["tokens.bin", "header.json", "done.json", "blocks.json"])
def test_setting_a_damaged_cache_aside_may_be_killed_at_any_time(tmp_path, monkeypatch, damaged):
    expected, kill_at, is_through = contents(write(tmp_path / "expected")), 0, False
    while not is_through:
        kill_at += 1
        folder = tmp_path / f"cache {kill_at}"
        write(folder)
        content = (folder / damaged).read_bytes()
        (folder / damaged).write_bytes(content[:-9] + b"#" + content[-8:])
        if damaged == "tokens.bin":
            with pytest.raises(DamagedError):
                contents(TokenFile(folder))
        with monkeypatch.context() as patch:
            bucket = MountedBucket(patch, kill_at=kill_at)
            try:
                write(folder)
                is_through = True
            except Killed:
                pass
        assert not bucket.renamed_folders
        try:
            mended = contents(write(folder))
        except DamagedError:  # a block that is not what was written is found when it is read
            mended = contents(write(folder))
        assert mended == expected, kill_at
    assert kill_at > 10


@pytest.mark.parametrize("lost", ["tokens.bin", "names.txt", "documents.bin"])
@pytest.mark.parametrize("share", [0.0, 0.4, 0.99])
def test_a_cache_goes_on_where_all_of_its_files_have_a_document(tmp_path, lost, share):
    """A mounted bucket keeps what was uploaded of each file, and not in the order in which it was written."""
    expected, folder = contents(write(tmp_path / "expected")), tmp_path / "cache"
    write(folder)
    (folder / "done.json").unlink()
    os.truncate(folder / lost, int(share * (folder / lost).stat().st_size))
    assert contents(write(folder)) == expected
    TokenFile(folder).compare()


@pytest.mark.parametrize("number", range(1, 4))
def test_a_tokenizer_is_there_when_its_last_file_is(tmp_path, monkeypatch, number):
    folder, words = tmp_path / "tokenizer", WordTokenizer.train(["a tokenizer of words"])
    save_tokenizer(ByteTokenizer(), folder)
    with monkeypatch.context() as patch:
        bucket = MountedBucket(patch, kill_at=number)
        with pytest.raises(Killed):
            save_tokenizer(words, folder)
    assert not bucket.renamed_folders
    assert (
        not has_tokenizer(folder)
        or load_tokenizer(folder).fingerprint == (words if number > 2 else ByteTokenizer()).fingerprint
    )
    save_tokenizer(words, folder)
    assert load_tokenizer(folder).fingerprint == words.fingerprint


def make_run(workdir: Path, in_background: bool) -> Experiment:
    schedule = Schedule(learning_rate=1e-2, warmup_steps=2)
    every = {"log_every": 3, "checkpoint_every": 3, "evaluate_every": 6}
    training = Training(steps=9, schedule=schedule, save_in_background=in_background, **every)
    data = Data(batch_size=ROWS, segment_length=LENGTH)
    config = Config(name="run", workdir=str(workdir), data=data, training=training, evaluation=Evaluation(batch_size=3))
    return Experiment(config, ToyModel(dropout=0.1), lambda split: toy_documents(), begin_token=0)


def train_run(workdir: Path, in_background: bool = False) -> None:
    experiment = make_run(workdir, in_background)
    train(experiment.config, experiment=experiment)


def state_of(workdir: Path) -> tuple[int, dict[str, bytes], list[tuple[str, int]]]:
    """Returns the step and the arrays of the last checkpoint, and the lines of the log."""
    checkpoints = Checkpoints(workdir / "run" / "checkpoints", read_only=True)
    step, arrays, _ = checkpoints.load("")
    checkpoints.close()
    lines = [(line["kind"], line["step"]) for line in read_metrics(workdir / "run" / "metrics.jsonl")]
    return step, {name: np.asarray(array).tobytes() for name, array in arrays.items()}, lines


@pytest.mark.laws
@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("in_background", [False, True])
def test_a_run_goes_on_bit_for_bit_after_kills_on_a_mounted_bucket(tmp_path, monkeypatch, in_background):
    with monkeypatch.context() as patch:
        bucket = MountedBucket(patch)
        train_run(tmp_path / "expected")
    assert not bucket.renamed_folders  # checkpoints are complete by a file that is written last
    expected, total = state_of(tmp_path / "expected"), bucket.operations
    assert total > 20
    # Threads of TensorStore write some files more or less from run to run: the last operation is named, not counted.
    kills = [{"kill_at": int(number)} for number in np.linspace(1, total - 4, 6)] + [{"kill_on": "finished.json"}]
    for number, kill in enumerate(kills):
        workdir = tmp_path / f"killed {number}"
        with monkeypatch.context() as patch:
            bucket = MountedBucket(patch, **kill)
            with pytest.raises(Killed):
                train_run(workdir, in_background)
        assert not (workdir / "run" / "finished.json").exists()
        train_run(workdir, in_background)
        assert state_of(workdir) == expected, kill
        assert (workdir / "run" / "finished.json").exists()


@pytest.mark.laws
def test_a_checkpoint_without_its_last_file_is_none_and_one_that_lacks_another_is_not_used(tmp_path):
    train_run(tmp_path)
    expected, folder = state_of(tmp_path), tmp_path / "run" / "checkpoints"
    for step in (6, 9):
        files = {file.name for file in (folder / f"{step:08d}").iterdir()}
        assert "commit_success.txt" in files
    (folder / "00000009" / "commit_success.txt").unlink()
    assert state_of(tmp_path)[0] == 6
    (folder / "00000009" / "commit_success.txt").write_text("as by an upload in another order")
    assert state_of(tmp_path) == expected
    next(iter(sorted((folder / "00000009" / "state").rglob("d/*")))).unlink()
    assert state_of(tmp_path)[0] == 6
