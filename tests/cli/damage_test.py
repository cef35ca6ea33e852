"""`memjax doctor --files`: damaged files are found, whatever folder they are in, and an edited config is accepted."""

import json

import numpy as np
import pytest

from memjax.cli import main
from memjax.cli.damage import compare_files
from memjax.config import Bytes, Config
from memjax.data.saved_tokenizers import save_tokenizer
from memjax.data.sources import Texts
from memjax.data.token_files import write_token_file
from memjax.data.tokenizers import ByteTokenizer, WordTokenizer
from memjax.training.checkpoints import Checkpoints
from memjax.training.metrics import MetricsFile
from memjax.training.run_versions import read_attempts
from memjax.training.runs import RunDirectory, load_config, request_run


@pytest.fixture
def run(tmp_path):
    """A run directory with a file of each kind, and a data cache in it."""
    config = Config(name="run", workdir=str(tmp_path))
    config.data.tokenizer = Bytes()
    directory = RunDirectory(request_run(config))
    directory.record_attempt(0)
    directory.finish(3, {"evaluation": {"nats_per_token": 1.5}})
    directory.close()
    path = directory.path
    save_tokenizer(WordTokenizer(["a", "b"]), path / "tokenizer")
    MetricsFile(path / "metrics.jsonl").write("train", 1, {"nats_per_token": 2.5})
    checkpoints = Checkpoints(path / "checkpoints")
    for step in (1, 2):
        checkpoints.save(step, {"params": {"kernel": np.ones((2, 2), np.float32)}}, extra={"position": {}})
    checkpoints.close()
    write_token_file(path / "cache", Texts.from_mapping({"a": "hello"}), ByteTokenizer())
    return path


def change(file):
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


def test_an_intact_folder_has_no_damage(run, capsys):
    findings = [*compare_files(run)]
    assert [finding.remark for finding in findings] == [""] * len(findings) and len(findings) >= 11
    assert main(["doctor", "--files", str(run)]) == 0
    assert capsys.readouterr().out == f"{len(findings)} compared, 0 damaged\n"


NAMES = (
    *("config.json", "finished.json", "versions.json", "metrics.jsonl", "tokenizer/about.json", "tokenizer/words.json"),
    *("cache/header.json", "cache/tokens.bin", "cache/names.txt", "checkpoints/00000002/manifest/metadata"),
)


@pytest.mark.parametrize("name", NAMES)
def test_a_changed_file_is_found(run, capsys, name):
    change(run / name)
    assert main(["doctor", "--files", str(run), "--json"]) == 1
    facts = json.loads(capsys.readouterr().out)
    part = "checkpoint 2" if name.startswith("checkpoints") else name.rpartition("/")[2]
    assert facts["damaged"] >= 1 and any(part in line for line in facts["remarks"])


def test_an_edited_config_is_refused_until_it_is_accepted(run, capsys):
    file = run / "config.json"
    file.write_text(file.read_text().replace('"num_layers": ', '"num_layers": 1'))
    with pytest.raises(ValueError, match=rf"after an edit by hand: memjax doctor --files {run} --accept-config"):
        load_config(run)
    assert main(["doctor", "--files", str(run), "--accept-config"]) == 0
    assert load_config(run).model.num_layers > 10
    assert "edited by hand" in read_attempts(run)[-1]["note"]
    assert main(["doctor", "--accept-config"]) == 2
    assert "--accept-config: given without --files" in capsys.readouterr().err


def test_the_option_names_a_folder(tmp_path, capsys):
    assert main(["doctor", "--files", str(tmp_path / "none")]) == 2
    assert capsys.readouterr().err.startswith("memjax doctor: --files: given ")
