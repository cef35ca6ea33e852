"""How the C library hands out memory to the command line."""

import json
import os
import subprocess
import sys

import pytest

from memjax import allocation, platforms
from memjax.cli import dispatch

glibc = pytest.mark.skipif(not allocation.glibc_version(), reason="the C library is not glibc")
OWN = [parameter.variable for parameter in allocation.PARAMETERS.values()]
CHILD = """
import json, os
from memjax import allocation
done = allocation.keep_freed_memory(os.environ, only_cpu=True)
print(json.dumps([done, allocation.diagnose(os.environ, only_cpu=True)]))
"""


LATE = """
import json, os, threading, warnings
from memjax import allocation
began, ended = threading.Event(), threading.Event()
def wait():
    bytearray(1000)
    began.set()
    ended.wait()
threading.Thread(target=wait, daemon=True).start()
began.wait()
with warnings.catch_warnings(record=True) as caught:
    done = allocation.keep_freed_memory(only_cpu=True)
print(json.dumps([done, {"arenas": allocation.count_arenas(), "warnings": [str(one.message) for one in caught]}]))
ended.set()
"""


def child(code: str = CHILD, **environment: str) -> tuple[list[str], dict]:
    """What a process of its own sets and finds."""
    others = {k: v for k, v in os.environ.items() if k not in (*OWN, "GLIBC_TUNABLES", allocation.SWITCH)}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, env={**others, **environment}, capture_output=True, text=True, check=True)
    assert done.stderr == ""
    return json.loads(done.stdout)


@glibc
def test_a_large_block_of_any_thread_is_kept():
    done, facts = child()
    pages = [allocation.HUGE_PAGES] if facts["transparent_huge_pages"] == "madvise" else []
    assert done == [*allocation.PARAMETERS, *pages] and facts["kept"] and facts["faults"] < 40
    text = allocation.describe(facts)
    assert text.startswith("a large block is kept between steps, ") and "MEMJAX_MALLOC=0 turns it off" in text


@glibc
def test_it_is_switched_off():
    done, facts = child(MEMJAX_MALLOC="0")
    assert done == [] and not facts["kept"]
    assert "anew in every step" in allocation.describe(facts) and "MEMJAX_MALLOC=0" in allocation.describe(facts)


@glibc
def test_what_the_environment_sets_stays():
    done, facts = child(GLIBC_TUNABLES="glibc.malloc.tcache_count=5:glibc.malloc.arena_max=4", MALLOC_TOP_PAD_="4096")
    assert done == ["mmap_threshold", "trim_threshold"]
    assert facts["from_environment"] == ["arena_max", "top_pad"] and not facts["kept"]  # arenas of threads give back
    assert "but arena_max, top_pad by the environment" in allocation.describe(facts)


@glibc
def test_a_process_whose_threads_have_arenas_is_warned():
    done, facts = child(LATE)
    assert facts["arenas"] == 2 and set(allocation.PARAMETERS) <= set(done)
    (warning,) = facts["warnings"]
    assert "other threads already have 1 arenas" in warning and "MALLOC_ARENA_MAX=1" in warning
    done, facts = child(LATE, MALLOC_ARENA_MAX="1")
    assert facts == {"arenas": 1, "warnings": []} and "arena_max" not in done
    assert (allocation.HUGE_PAGES in done) == (allocation.transparent_huge_pages() == "madvise")


@glibc
@pytest.mark.skipif(allocation.transparent_huge_pages() != "madvise", reason="huge pages are not by advice here")
def test_the_heap_consists_of_huge_pages():
    code = (
        "import ctypes\nfrom memjax import allocation\n"
        "assert allocation.keep_freed_memory({}, only_cpu=True)[-1] == 'huge_pages'\n"
        "library = ctypes.CDLL(None)\nlibrary.malloc.restype = ctypes.c_void_p\n"
        "ctypes.memset(library.malloc(ctypes.c_size_t(64 * 2**20)), 1, 64 * 2**20)\n"
        "lines = open('/proc/self/smaps').read().split('\\n')\n"
        "print(max(int(line.split()[1]) for line in lines if line.startswith('AnonHugePages')))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(done.stdout) >= 48 * 1024  # KiB; the kernel may have had no huge page for some of it


def test_not_with_an_accelerator_nor_with_another_library(monkeypatch):
    assert "accelerator" in allocation.why_not_applicable({}, only_cpu=False)
    assert allocation.keep_freed_memory({}, only_cpu=False) == []
    monkeypatch.setenv("JAX_PLATFORMS", "tpu")
    assert allocation.keep_freed_memory() == []
    monkeypatch.setattr(allocation, "glibc_version", lambda: "")
    assert allocation.keep_freed_memory({}, only_cpu=True) == []


def test_the_command_sets_it_and_a_call_of_main_does_not(monkeypatch):
    calls = []
    monkeypatch.setattr(dispatch, "keep_freed_memory", lambda: calls.append(platforms.only_cpu()))
    monkeypatch.setattr(sys, "argv", ["memjax", "doctor", "--help"])
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    assert dispatch.main(["doctor", "--help"]) == 0 and calls == []
    assert dispatch.main() == 0 and calls == [True]


def test_whether_an_accelerator_may_be_used(monkeypatch):
    monkeypatch.setattr(platforms, "_has_plugins", lambda: False)
    monkeypatch.setattr(platforms, "tpu_may_be_here", lambda: False)
    for value, expected in (("cpu", True), ("cuda,cpu", False), ("", True)):
        monkeypatch.setenv("JAX_PLATFORMS", value)
        assert platforms.only_cpu() is expected
    monkeypatch.setattr(platforms, "_has_plugins", lambda: True)
    assert not platforms.only_cpu()
