"""Tiny runs of every sort, and the commands that read their files.

Each subject has three runs in a folder of its own. `whole` and `other` are finished and differ in their seeds, and
`half` was stopped between two checkpoints. Everything that memjax has written there is found by listing it.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import hashlib
import json
import os
import re
import shlex
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from memjax.config import Adam, BytePairs, Config
from memjax.settings.overrides import load_config
from memjax.training import loop
from memjax.training.checkpoints import Checkpoints
from memjax.training.compiled_learner import CompiledLearner
from memjax.training.metrics import read_metrics
from memjax.training.runs import config_to_dict, read_finished
from tools.faults.judge import Observation, observe
from tools.verbs import Finished, call, make_config, write_data

__all__ = [
    "SUBJECTS",
    "Command",
    "Subject",
    "compile_once",
    "files_of",
    "inside",
    "make_subject",
    "observe_command",
    "written_files",
]

VOLATILE = {
    *(
        "attempt",
        "attempts",
        "seconds",
        "first_step_seconds",
        "tokens_per_second",
        "examples_per_second",
        "memory_bytes",
    ),
}
"""Names of values that no two runs have in common"""
FOREIGN = ("data/texts", "data/images", "data/vocab.txt")
"""Files and folders that memjax has not written"""


class Command(NamedTuple):
    """A command line and how its result is read.

    Attributes:
      words: Words of the command line.
      result: Function that returns the result of the finished command as JSON values.
      runs: Names of the runs that it reads.
    """

    words: str
    result: Callable[[Finished], Any]
    runs: tuple[str, ...]


class Subject(NamedTuple):
    """Runs of one sort.

    Attributes:
      make_config: Function that makes the configuration of a run.
      stop: Step after which `half` was stopped.
      prepare: Function that makes what the runs read, in the working directory.
      commands: Further commands by name.
    """

    make_config: Callable[[], Config]
    stop: int = 5
    prepare: Callable[[], None] = lambda: None
    commands: Mapping[str, Command] = {}


def read_run(name: str) -> Any:
    """Returns the result of training: everything in the last checkpoint, the results, and the lines of the metrics.

    Args:
      name: Name of the run in the folder `runs`.
    """
    run = Path("runs", name)
    checkpoints = Checkpoints(run / "checkpoints", read_only=True)
    with contextlib.closing(checkpoints):
        step, arrays, extra = checkpoints.load("")
    hashes = {key: hashlib.sha256(array.tobytes()).hexdigest() for key, array in arrays.items()}
    finished, lines = read_finished(run), read_metrics(run / "metrics.jsonl")
    return drop_volatile({"step": step, "arrays": hashes, "extra": extra, "finished": finished, "lines": lines})


def read_output(finished: Finished) -> Any:
    """Returns the JSON values that a command has printed."""
    return drop_volatile([json.loads(line) for line in finished.out.splitlines()])


def read_page(finished: Finished) -> Any:
    """Returns the hash of the page that `memjax report` has written."""
    del finished
    return hashlib.sha256(Path("page.html").read_bytes()).hexdigest()


def drop_volatile(value: Any) -> Any:
    """Returns JSON values without those that no two runs have in common."""
    if isinstance(value, Mapping):
        return {name: drop_volatile(part) for name, part in value.items() if name not in VOLATILE}
    return [drop_volatile(part) for part in value] if isinstance(value, list | tuple) else value


PARTS = "curves,samples,streams,neighbors"
"""Parts of the page that read the files of a run. The others open the same ones and compile more."""
COMMANDS = {
    "train, new": Command("train --config jobs.py --variant {subject} --name new", lambda _: read_run("new"), ()),
    "train": Command("train --run runs/half", lambda _: read_run("half"), ("half",)),
    "train, finished": Command(
        "train --run runs/whole", lambda _: drop_volatile(read_finished("runs/whole")), ("whole",)
    ),
    "eval": Command("eval --run runs/whole --json", read_output, ("whole",)),
    "compare": Command("compare runs/whole runs/other --json", read_output, ("whole", "other")),
    "report": Command(
        f"report runs/whole --segments 2 --tokens 64 --only {PARTS} --out page.html", read_page, ("whole",)
    ),
}
"""The commands that every subject is asked"""
LATER = 0.2
"""Seconds in which the threads of a command that has failed may still print something"""
WITH_STORE = Command("eval --run runs/keys --datastore stores/train --knn-neighbors 2 --json", read_output, ("keys",))


def text_config() -> Config:
    """Returns the configuration of a language model with a tokenizer that is trained, and a cache of tokens."""
    config = make_config("TransformerXL")
    config.data.tokenizer = BytePairs(vocab_size=270)
    return with_checkpoints(config)


def with_checkpoints(config: Config, steps: int = 6) -> Config:
    """Returns a configuration with a checkpoint after every two steps."""
    training = dataclasses.replace(config.training, steps=steps, checkpoint_every=2, log_every=1)
    return dataclasses.replace(config, training=training)


def states_config(*, is_encoder: bool = False) -> Config:
    """Returns the configuration of a text encoder whose last layer reads stored states of the first one, or of the
    encoder that makes them."""
    config = load_config("bert_glue", "smoke")
    config.model.scan_layers, config.model.dropout, config.model.attention_dropout = False, 0.0, 0.0
    config.data.cache_dir, config.data.batch_size = "data/cache", 4
    config.training.optimizer, config.training.init_from = Adam(), "" if is_encoder else "runs/encoder"
    if not is_encoder:
        config.model.first_trained_layer, config.data.encoder_states_dir = 1, "data/states"
    return with_checkpoints(config)


def prepare_encoder() -> None:
    """Trains the encoder whose states the runs read."""
    train(dataclasses.replace(states_config(is_encoder=True), name="encoder"))


STORE = "--path stores/train --run runs/keys --key output_normed"
NEIGHBORS = f"datastore neighbors {STORE} --backend exact --num-neighbors 2 --to data/neighbors --split"


def prepare_keys() -> None:
    """Trains the model whose keys are searched."""
    train(dataclasses.replace(with_checkpoints(make_config("TransformerXL"), 2), name="keys"))


def prepare_store() -> None:
    """Trains the model whose keys are searched, and builds its store."""
    prepare_keys()
    ask(f"datastore build {STORE} --shards 2")


def prepare_neighbors() -> None:
    """Builds the store, and writes the neighbours of both splits."""
    prepare_store()
    ask(f"{NEIGHBORS} train")
    ask(f"{NEIGHBORS} validation")


SUBJECTS = {
    "text": Subject(text_config),
    "stream": Subject(lambda: make_config("stream of tasks"), stop=9),
    "neighbors": Subject(
        lambda: with_checkpoints(make_config("SPALM")), prepare=prepare_neighbors, commands={"eval, store": WITH_STORE}
    ),
    "states": Subject(states_config, prepare=prepare_encoder),
    "growing": Subject(lambda: make_config("stream that grows"), stop=9),
}
"""name -> runs of that sort"""


def train(config: Config, stop: int | None = None) -> None:
    """Trains a run in the working directory, and stops it after a step as a signal does.

    Args:
      config: Configuration of the run.
      stop: Step after which the run is stopped. None trains it to the end.
    """
    from memjax.lifelong import train as train_run
    from memjax.training.loop import StoppedBySignal

    def send_signal(info: Any) -> None:
        if info.step == stop:
            os.kill(os.getpid(), signal.SIGTERM)

    with contextlib.suppress(StoppedBySignal):
        train_run(config, hooks=[send_signal], on_event=lambda event: None)


@contextlib.contextmanager
def compile_once() -> Iterator[None]:
    """Context manager in which runs with equal settings share their compiled updates, since most of the time of a tiny
    run is that of tracing them."""
    learners: dict[str, CompiledLearner] = {}
    switch, release = loop._RunLoop._switch_learner, loop._RunLoop.release

    def switch_learner(self: Any, lineage: Any) -> None:
        settings = dataclasses.replace(self.config, name="", workdir="")
        key = json.dumps([config_to_dict(settings), lineage, self.record.steps])
        if key in learners:
            self.lineage, self.learner = lineage, self.make_learner(lineage)
            self.compiled = copy.copy(learners[key])
            self.compiled.learner = self.learner
        else:
            switch(self, lineage)
            learners[key] = self.compiled

    loop._RunLoop._switch_learner, loop._RunLoop.release = switch_learner, lambda self: None  # type: ignore
    try:
        yield
    finally:
        loop._RunLoop._switch_learner, loop._RunLoop.release = switch, release


def ask(words: str) -> Finished:
    """Runs a command that prepares something.

    Raises:
      RuntimeError: It has failed.
    """
    finished = call(shlex.split(words))
    if finished.code:
        raise RuntimeError(f"{words}: {finished.err}")
    return finished


def make_subject(subject: Subject, folder: Path) -> None:
    """Writes the data and trains the runs of a subject in a folder.

    Args:
      subject: Sort of the runs.
      folder: Folder to write to, which is created.
    """
    write_data(folder)
    (folder / "jobs.py").write_text("from tools.faults.jobs import VARIANTS, get_config\n")
    with inside(folder):
        subject.prepare()
        for name, seed, stop in (("whole", 0, None), ("other", 1, None), ("half", 0, subject.stop)):
            config = dataclasses.replace(subject.make_config(), name=name)
            config.training, config.data.cache_dir = dataclasses.replace(config.training, seed=seed), "data/cache"
            train(config, stop)


@contextlib.contextmanager
def inside(folder: Path) -> Iterator[None]:
    """Context manager in which a folder is the working directory."""
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


@contextlib.contextmanager
def printed_later() -> Iterator[list[str]]:
    """Context manager that collects the tracebacks of errors that nobody can catch, as those in threads of TensorStore,
    instead of printing them."""
    lines, before = list[str](), sys.unraisablehook
    sys.unraisablehook = lambda error: lines.append(f"Traceback (most recent call last): {error.exc_value}\n")
    try:
        yield lines
    finally:
        sys.unraisablehook = before


def observe_command(command: Command) -> Observation:
    """Runs a command in the working directory and reads its result. A result that cannot be read is a line of an error,
    since the files are then damaged."""
    with printed_later() as later:
        finished = call(shlex.split(command.words))
        if finished.code:
            time.sleep(LATER)
    finished = finished._replace(err=finished.err + "".join(later))
    if finished.code:
        return observe(finished, None)
    try:
        return observe(finished, command.result(finished))
    except (ValueError, OSError) as error:
        return observe(finished, f"no result: {error}")


def written_files(folder: Path) -> dict[str, Path]:
    """Lists all files that memjax has written below a folder, by their names. Names that are drawn, as those of
    TensorStore are, become numbers.

    Args:
      folder: Folder of `make_subject`.
    """
    files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    paths, counts = {}, dict[str, int]()
    for path in sorted(files, key=lambda path: (path.stat().st_size, path.name)):
        name = path.relative_to(folder).as_posix()
        if name.startswith(FOREIGN) or "/" not in name:
            continue
        name = re.sub(r"\b[0-9a-f]{32}\b", "#", name)
        counts[name] = counts.get(name, 0) + 1
        paths[f"{name}{counts[name]}" if name.endswith("#") else name] = path
    return dict(sorted(paths.items()))


def files_of(command: Command, files: Mapping[str, Path]) -> Sequence[str]:
    """Returns the names of the files that a command may read: those of its runs, and all that belong to no run."""
    roots = tuple(f"runs/{run}/" for run in command.runs)
    return [name for name in files if not name.startswith("runs/") or name.startswith(roots)]
