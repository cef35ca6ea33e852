"""Where compiled programs are kept."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import jax
import pytest

from memjax.cli import main
from memjax.cli.compilation import keep_programs

TRAIN = """
import sys, types, warnings
warnings.simplefilter("error")
from memjax import cli

def run(arguments):
    import jax, jax.numpy as jnp
    jax.jit(lambda x: jnp.sin(x) @ x)(jnp.ones((4, 4))).block_until_ready()
    return 0

sys.modules["memjax.cli.train"] = verb = types.ModuleType("memjax.cli.train")
verb.run = run
sys.exit(cli.main(["train"]))
"""


def command(environment: dict[str, str]) -> subprocess.CompletedProcess:
    """A command that compiles one small program, with nothing else in the environment about the cache."""
    others = {name: value for name, value in os.environ.items() if "CACHE" not in name}
    return subprocess.run([sys.executable, "-c", TRAIN], env={**others, **environment}, capture_output=True, text=True)


COUNT = """
import collections, json, sys
from jax import monitoring
from memjax import cli

events = collections.Counter()
monitoring.register_event_listener(lambda name, **_: events.update([name.rpartition("/")[2]]))
code = cli.main(sys.argv[1:])
print(json.dumps({name: events[name] for name in ("cache_hits", "cache_misses", "compile_requests_use_cache")}))
sys.exit(code)
"""


@pytest.mark.slow
def test_a_second_start_compiles_nothing(tmp_path):
    others = {name: value for name, value in os.environ.items() if "CACHE" not in name}
    # JAX reads them when it is imported, here before the command sets them.
    environment = {**others, "JAX_COMPILATION_CACHE_DIR": str(tmp_path / "programs")}
    keep_programs(environment)

    def count_programs(name: str) -> tuple[int, int, int]:
        words = ["train", "--config", "python_demo", "--variant", "smoke", "--workdir", str(tmp_path / name)]
        words += ["--data.cache-dir", str(tmp_path / "data")]
        done = subprocess.run([sys.executable, "-c", COUNT, *words], env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return tuple(json.loads(done.stdout.splitlines()[-1]).values())

    hits, misses, requests = count_programs("first")
    assert misses == requests > 10 and hits == 0
    assert count_programs("second") == (requests, 0, requests)


def programs(folder: Path) -> list[str]:
    return [path.name for path in folder.rglob("*-cache")]


def test_a_command_keeps_its_programs_in_the_cache_of_the_user(tmp_path):
    done = command({"XDG_CACHE_HOME": str(tmp_path)})
    assert (done.returncode, done.stderr) == (0, "")
    assert programs(tmp_path / "memjax" / "jax")
    assert (tmp_path / "memjax" / "jax").stat().st_mode & 0o077 == 0


def test_a_folder_that_cannot_be_written_is_one_line_and_no_more(tmp_path):
    (tmp_path / "file").write_text("")
    done = command({"XDG_CACHE_HOME": str(tmp_path / "file")})
    assert done.returncode == 0
    folder = re.escape(str(tmp_path / "file" / "memjax" / "jax"))
    assert re.fullmatch(
        rf"memjax train: {folder}: Not a directory, so compiled programs are not kept; .*\n", done.stderr
    )


def test_the_folder_is_in_the_home_of_the_user_by_default(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    environment = {}
    assert keep_programs(environment) == ""
    assert environment == {
        "JAX_COMPILATION_CACHE_DIR": str(tmp_path / ".cache" / "memjax" / "jax"),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    }


def test_the_shortest_compilation_that_is_kept_can_be_chosen(tmp_path):
    environment = {"XDG_CACHE_HOME": str(tmp_path), "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "60"}
    assert keep_programs(environment) == ""
    assert environment["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] == "60"


@pytest.mark.parametrize(
    "given",
    [
        {"JAX_COMPILATION_CACHE_DIR": ""},
        {"JAX_COMPILATION_CACHE_DIR": "gs://bucket/programs"},
        {"JAX_ENABLE_COMPILATION_CACHE": "0"},
        {"JAX_ENABLE_COMPILATION_CACHE": "False", "JAX_COMPILATION_CACHE_DIR": "/proc/nowhere"},
    ],
)
def test_what_the_environment_says_stays(tmp_path, given):
    environment = {"XDG_CACHE_HOME": str(tmp_path), **given}
    assert keep_programs(environment) == ""
    assert environment == {"XDG_CACHE_HOME": str(tmp_path), **given}
    assert not list(tmp_path.iterdir())


def test_a_folder_of_ones_own_is_made(tmp_path):
    environment = {"XDG_CACHE_HOME": str(tmp_path / "unused"), "JAX_COMPILATION_CACHE_DIR": str(tmp_path / "mine")}
    assert keep_programs(environment) == ""
    assert [entry.name for entry in tmp_path.iterdir()] == ["mine"]


def test_tests_use_the_folder_of_the_environment():
    assert jax.config.jax_compilation_cache_dir == os.environ["JAX_COMPILATION_CACHE_DIR"]
    assert jax.config.jax_persistent_cache_min_compile_time_secs == 0


def test_help_says_where(capsys):
    main(["--help"])
    assert "~/.cache/memjax/jax" in capsys.readouterr().out


@pytest.mark.parametrize("mode", [0o770, 0o707])
def test_a_folder_that_others_can_write_is_not_used(tmp_path, mode):
    (tmp_path / "jax").mkdir()
    (tmp_path / "jax").chmod(mode)
    environment = {"JAX_COMPILATION_CACHE_DIR": str(tmp_path / "jax")}
    assert "can be written by others, so compiled programs are neither kept nor used" in keep_programs(environment)
    assert environment["JAX_ENABLE_COMPILATION_CACHE"] == "0"
    (tmp_path / "jax").chmod(0o755)
    environment = {"JAX_COMPILATION_CACHE_DIR": str(tmp_path / "jax")}
    assert keep_programs(environment) == "" and "JAX_ENABLE_COMPILATION_CACHE" not in environment
