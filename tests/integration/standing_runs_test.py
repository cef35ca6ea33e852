"""Runs begun by an earlier version go on with this one: resumed, evaluated and decoded bit for bit.

`tests/fixtures/runs.tar.xz` holds one interrupted run of each class of model, the data they read, and what the version
that made them found when it went on; `tests/fixtures/README.md` says how they were made. That is bit for bit on the
lock of Python 3.11. Another Python has another JAX, and a file of its own with what the runs found there, which
`python -m tests.integration.standing_runs_test RUN ...` writes (what the file has already stays). So has Python 3.11
for runs whose sums are taken in another order since: these equal the archive to 1e-3, and their own line bit for bit.
"""

import contextlib
import hashlib
import io
import json
import math
import os
import platform
import shutil
import sys
import tarfile
import tempfile
from importlib.metadata import version
from pathlib import Path

import numpy as np
import pytest

from memjax.cli import main
from memjax.config import Config
from memjax.settings.compatibility import current_command
from memjax.settings.earlier_fields import FIELDS

ARCHIVE = Path(__file__).parent.parent / "fixtures" / "runs.tar.xz"
REFERENCES = ARCHIVE.with_name(f"runs_py{sys.version_info.major}{sys.version_info.minor}.jsonl")
"""What runs find on the lock of this Python, where the archive says it of another or of earlier sums: a line each."""
RUNS = (
    *("full_attention", "transformer_xl", "transformer_xl_adaptive", "memory_tokens", "memorizing", "compressive"),
    *("infinity_former", "infinity_former_sorting", "linear_transformer", "rfa", "gpt2_compressed", "lstm"),
    *("product_keys", "spalm", "dialogues", "masked", "classification", "question_answering"),
    *("translation", "translation_linear", "memformer", "images"),
)
PROMPTS = ("--prompt", "Ada lives in ", "--prompt", "Boole", "--max-tokens", "12", "--greedy")
GENERATE = ("generate", *PROMPTS)
WITHOUT_MEMORY = ("eval", "--evaluation.memory-length", "0")
CACHE = ("--evaluation.cache.memory-length", "8", "--evaluation.cache.interpolation-weight", "0.3")
CACHED = ("eval", *CACHE)
TEST = ("eval", "--evaluation.split", "test")
STORE = ("datastore", "build", "--path", "store", "--split", "test", "--shards", "1")
TEXT = (("eval", "--evaluation.compute-accuracy"), TEST, CACHED, GENERATE, ("generate", *PROMPTS, *CACHE))
PIXELS = (("eval", "--evaluation.compute-accuracy"), TEST, CACHED)
COMMANDS = {
    "full_attention": (*TEXT, ("eval", "--evaluation.protocol", "sliding_window")),
    "transformer_xl": (*TEXT, WITHOUT_MEMORY, ("eval", "--evaluation.memory-length", "24"), STORE),
    "transformer_xl_adaptive": TEXT,
    "memory_tokens": TEXT,
    "memorizing": (*TEXT, ("eval", "--evaluation.memory-length", "16"), ("eval", "--evaluation.segment-length", "4")),
    "compressive": TEXT,
    "infinity_former": TEXT,
    "infinity_former_sorting": PIXELS,
    "linear_transformer": TEXT,
    "rfa": TEXT,
    "gpt2_compressed": TEXT,
    "lstm": TEXT,
    "product_keys": (*TEXT, ("usage",)),
    "spalm": (TEST,),
    "dialogues": (TEST, CACHED),
    "masked": (TEST,),
    "classification": (TEST,),
    "question_answering": (TEST,),
    "translation": (TEST,),
    "translation_linear": (TEST,),
    "memformer": (TEST, GENERATE),
    "images": PIXELS,
}
"""run -> the commands whose results are compared, besides those of going on"""
TIMES = ("tokens_per_second", "seconds", "first_step_seconds", "checksum")
"""what no two runs have in common: times, and the checksums of lines with times"""
RESTATED = ("memformer/retaining", "memformer/aggregating", "memformer/rewriting")
"""figures of the same numerics that are counted in another way since: by what is left of a slot, not by its weight"""


def processor() -> str:
    """What decides the last bits of a sum: the library, and the instructions of the machine."""
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    models = [line.partition(":")[2].strip() for line in lines if line.startswith(("model name", "flags"))]
    digest = hashlib.sha256(json.dumps(sorted({*models})).encode()).hexdigest()[:16]
    return f"{version('jaxlib')} {platform.machine()} {digest}"


def go_on(name: str) -> dict:
    """Trains to the end: the lines of the steps, and the results."""
    from memjax.training.run_start import train
    from memjax.training.runs import load_config

    result = train(load_config(Path("runs") / name), on_event=lambda event: None)
    lines = [json.loads(line) for line in (result.path / "metrics.jsonl").read_text().splitlines()]
    return {"lines": [line for line in lines if line["step"] > 3], "results": result.results}


def command(name: str, arguments) -> list:
    """The objects that a verb prints."""
    with contextlib.redirect_stdout(io.StringIO()) as out:
        assert main([*arguments, "--run", f"runs/{name}", "--json"]) == 0
    return [json.loads(line) for line in out.getvalue().splitlines()]


def decoded(name: str) -> dict:
    """What the models say that no verb asked when the runs were made."""
    if name == "dialogues":
        return {"answers": answers(name)}
    if name.startswith("translation"):
        return {"beams": beams(name)}
    if name == "images":
        return {"images": images(name)}
    return {}


def answers(name: str) -> list:
    from memjax.inference.sampling import Sampling
    from memjax.tasks import answer_turns
    from memjax.training.loaded_runs import load_run

    run = load_run(f"runs/{name}")
    experiment, greedy = run.experiment, Sampling(temperature=0.0)
    settings = {"segment_length": experiment.config.data.segment_length, "sampling": greedy, "rows": 2}
    found = answer_turns(experiment.model, run.variables, experiment.documents("test"), max_tokens=6, **settings)
    return [answer.tokens for answer in found]


def beams(name: str) -> list:
    from memjax.inference import beam_search
    from memjax.training.loaded_runs import load_run

    run = load_run(f"runs/{name}")
    tokenizer = run.experiment.tokenizer
    ids = np.stack([np.resize(tokenizer.encode(text), 12) for text in ("twenty one", "three")]).astype(np.int32)
    settings = {"begin_token": run.experiment.begin_token, "end_token": tokenizer.end_id, "segment_length": 96}
    found = beam_search(
        run.experiment.model, run.variables, ids, np.ones(ids.shape, bool), beam_size=3, max_length=8, **settings
    )
    return [np.asarray(part).tolist() for part in found]


def images(name: str) -> list:
    from memjax.inference import sample_images
    from memjax.inference.sampling import Sampling
    from memjax.training.loaded_runs import load_run

    run = load_run(f"runs/{name}")
    settings = {"segment_length": run.experiment.config.data.segment_length, "sampling": Sampling(temperature=0.0)}
    return sample_images(run.experiment.model, run.variables, 2, (4, 4), **settings).tolist()


def observe(name: str) -> dict:
    """Everything about a run that has to stay as it is; the working directory is that of the unpacked archive."""
    found = {"train": go_on(name)}
    found |= {" ".join(arguments): command(name, arguments) for arguments in COMMANDS[name]}
    return json.loads(json.dumps({**found, **decoded(name)}))


HASHES = ("model", "fingerprint")
"""entries of a store that is built which also hash settings that version 0.1.0 added after the archive; its keys are
compared by what is found with them"""


def differences(expected, found, place: str = "", *, exact: bool = True) -> list[str]:
    """Where two results differ; what only `found` has is news and no difference."""
    if isinstance(expected, dict) and isinstance(found, dict):
        lost = [f"{place}/{key}: gone" for key in expected if key not in found]
        left_out = (*TIMES, *RESTATED, *(HASHES if place.startswith("/datastore build") else ()))
        both = [key for key in expected if key in found and key not in left_out]
        return lost + [d for key in both for d in differences(expected[key], found[key], f"{place}/{key}", exact=exact)]
    if isinstance(expected, list) and isinstance(found, list) and len(expected) == len(found):
        pairs = enumerate(zip(expected, found, strict=True))
        return [d for i, (a, b) in pairs for d in differences(a, b, f"{place}/{i}", exact=exact)]
    if not exact and isinstance(expected, float) and isinstance(found, float):
        return [] if math.isclose(expected, found, rel_tol=1e-3, abs_tol=1e-6) else [f"{place}: {expected} -> {found}"]
    return [] if expected == found else [f"{place}: {expected} -> {found}"]


def with_names_of_today(value):
    """A result whose settings of a continuous cache have the names that they have today."""
    if isinstance(value, list):
        return [with_names_of_today(item) for item in value]
    if not isinstance(value, dict):
        return value
    names = FIELDS["ContinuousCache"] if "mixing" in value else {}
    return {names.get(key, key): with_names_of_today(item) for key, item in value.items()}


@pytest.fixture(scope="module")
def archive(tmp_path_factory):
    folder = tmp_path_factory.mktemp("standing")
    with tarfile.open(ARCHIVE) as file:
        file.extractall(folder, filter="data")
    return folder


@pytest.mark.slow
def test_every_run_of_the_archive_is_tested(archive):
    assert {path.name for path in (archive / "runs").iterdir()} == {*RUNS} == {*COMMANDS}


@pytest.mark.slow
@pytest.mark.parametrize("name", RUNS)
def test_a_standing_run_goes_on_as_it_did(archive, name, tmp_path, monkeypatch, pytestconfig):
    copy_run(archive, name, tmp_path)
    monkeypatch.chdir(tmp_path)
    recorded = json.loads((archive / "found.json").read_text())
    references = {
        "archive": {"processor": recorded["processor"], "found": recorded["runs"][name]},
        **own_reference(name),
    }
    found = observe(name)
    for source, reference in references.items():
        # Else sums are taken in another order, and what is decoded may differ where two tokens are as probable.
        is_latest = source == [*references][-1]
        exact = is_latest and reference["processor"] == processor() and pytestconfig.getoption("--optimized")
        # The archive names commands by the options of the version that made it.
        expected = {current_command(key, Config): with_names_of_today(v) for key, v in reference["found"].items()}
        if not exact:
            expected = {key: value for key, value in expected.items() if key == "train" or key.startswith("eval")}
        assert differences(expected, found, exact=exact) == [], source


def copy_run(archive: Path, name: str, folder: Path) -> None:
    shutil.copytree(archive / "data", folder / "data")
    shutil.copytree(archive / "runs" / name, folder / "runs" / name)


def own_reference(name: str) -> dict[str, dict]:
    """What the run found on the lock of this Python, by the name of its file; {} where no file says so."""
    lines = REFERENCES.read_text().splitlines() if REFERENCES.exists() else []
    own = [line for line in map(json.loads, lines) if line["run"] == name]
    return {REFERENCES.name: own[0]} if own else {}


def record(names) -> None:
    """Adds to the references of this Python those of these runs that are missing."""
    with tempfile.TemporaryDirectory() as archive, tarfile.open(ARCHIVE) as file:
        file.extractall(archive, filter="data")
        for name in names:
            if own_reference(name):
                continue
            with tempfile.TemporaryDirectory() as folder:
                copy_run(Path(archive), name, Path(folder))
                os.chdir(folder)
                line = {"run": name, "processor": processor(), "found": observe(name)}
                os.chdir(ARCHIVE.parent)
            with REFERENCES.open("a") as file_of_references:
                file_of_references.write(json.dumps(line) + "\n")
            print(name, flush=True)


if __name__ == "__main__":
    record(sys.argv[1:] or RUNS)
