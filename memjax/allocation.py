"""How the C library hands out memory: one arena that keeps what a step gave back, for the command line on a CPU.

XLA asks for the temporary arrays of a step in one block and gives it back afterwards. glibc maps such a block anew in
every step, and the kernel zeroes every page of it at its first touch: tens of thousands of page faults a step. Three of
glibc's parameters keep the block instead, and a fourth, one arena, is what makes them hold for the threads of a
training step as well: the arenas of other threads consist of heaps of 64 MiB, and a larger block is mapped anew
whatever the parameters say. All are set in the process by `mallopt`, before other threads are there, and the heap is
advised to consist of huge pages. So nothing is left that only `GLIBC_TUNABLES` could set, in another process.

`python -m tools.bench allocation_transformer_xl allocation_memorizing` measures what each of them gives
(`tools/results/tables/bench.md`).
"""

import os
import sys
import threading
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

HUGE_PAGES = "huge_pages"
SWITCH = "MEMJAX_MALLOC"
"""'0' in the environment leaves the defaults of the C library"""
LARGEST = 2**31 - 1
"""bytes, the most that `mallopt` takes: a block that is larger is mapped and given back as ever, and so is what is free
at the end of the heap beyond it, so that a process keeps at most 2 GiB that it does not use there"""


class Parameter(NamedTuple):
    """One of glibc's.

    Attributes:
      number: of `mallopt`.
      value: what it is set to.
      variable: of the environment, which sets it as well.
    """

    number: int
    value: int
    variable: str


PARAMETERS = {
    # Fewer threads wait for its lock than would seem: each has a cache of small blocks, and JAX holds large ones.
    "arena_max": Parameter(-8, 1, "MALLOC_ARENA_MAX"),
    "mmap_threshold": Parameter(-3, LARGEST, "MALLOC_MMAP_THRESHOLD_"),
    "trim_threshold": Parameter(-1, LARGEST, "MALLOC_TRIM_THRESHOLD_"),
    # What the heap grows by beyond what is asked for; pages that nobody touches cost nothing.
    "top_pad": Parameter(-2, 64 * 2**20, "MALLOC_TOP_PAD_"),
}
"""name among glibc's tunables -> what it is set to"""
NO_MAPPING = -4
"""`mallopt`'s number of how many blocks may be mapped; for versions of glibc that refuse a large threshold"""

HEAP, HUGE_PAGE, MADV_HUGEPAGE = 2**30, 2 * 2**20, 14
"""bytes of the heap that are to consist of huge pages, bytes of one, and the advice"""
BLOCK = 96 * 2**20
"""bytes, what `memjax doctor` uses twice: more than a heap of a thread's own arena holds"""


def keep_memory(environment: Mapping[str, str], *, only_cpu: bool) -> list[str]:
    """Sets what the environment has not set itself, on Linux with glibc; before the process has other threads.

    Args:
      environment: of the process.
      only_cpu: JAX uses no accelerator, which would hold the arrays itself.

    Returns:
      The names of what was set: those of `PARAMETERS`, and `huge_pages`.

    Example:
      >>> keep_memory({"MEMJAX_MALLOC": "0"}, only_cpu=True)
      []
    """
    if reason_against(environment, only_cpu=only_cpu):
        return []
    done = set_parameters([name for name in PARAMETERS if not _is_given(name, environment)])
    if len(done) == len(PARAMETERS) and transparent_huge_pages() == "madvise" and advise_huge_pages():
        done.append(HUGE_PAGES)
    return done


def set_parameters(names: Iterable[str]) -> list[str]:
    """Sets some of `PARAMETERS` by `mallopt`, whatever the environment says; returns those that glibc took."""
    import ctypes

    mallopt = ctypes.CDLL(None).mallopt
    done = {name: mallopt(PARAMETERS[name].number, PARAMETERS[name].value) for name in names}
    if done.get("mmap_threshold") == 0:
        done["mmap_threshold"] = mallopt(NO_MAPPING, 0)
    return [name for name, taken in done.items() if taken]


def advise_huge_pages() -> bool:
    """Lets the heap grow by `HEAP` and asks the kernel for huge pages there; pages that nobody touches cost nothing.

    For one arena: blocks of all threads then lie there. Returns whether the kernel took the advice.
    """
    import ctypes

    library = ctypes.CDLL(None, use_errno=True)
    allocate, free, madvise, sbrk = library.malloc, library.free, library.madvise, library.sbrk
    allocate.restype = sbrk.restype = ctypes.c_void_p
    allocate.argtypes, free.argtypes = (ctypes.c_size_t,), (ctypes.c_void_p,)
    sbrk.argtypes, madvise.argtypes = (ctypes.c_ssize_t,), (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    library.mallopt(PARAMETERS["top_pad"].number, HEAP)
    block = allocate(HUGE_PAGE)  # more than is left at the end of the heap of a process that has just begun
    library.mallopt(PARAMETERS["top_pad"].number, PARAMETERS["top_pad"].value)
    if not block:
        return False
    end, begin = sbrk(0) or 0, -(-block // HUGE_PAGE) * HUGE_PAGE
    free(block)
    has_grown = end - begin > HEAP // 2  # not where the system gives no address space that may stay unused
    return has_grown and madvise(begin, (end - begin) // HUGE_PAGE * HUGE_PAGE, MADV_HUGEPAGE) == 0


def reason_against(environment: Mapping[str, str], *, only_cpu: bool) -> str:
    """Why `keep_memory` sets nothing; '' where it does.

    Example:
      >>> reason_against({"MEMJAX_MALLOC": "0"}, only_cpu=True)
      'MEMJAX_MALLOC=0'
    """
    if environment.get(SWITCH, "1").lower() in ("0", "false", "off", "no"):
        return f"{SWITCH}={environment[SWITCH]}"
    if not only_cpu:
        return "JAX may use an accelerator, which holds the arrays"
    return "" if glibc_version() else "the C library is not glibc"


def glibc_version() -> str:
    """Of the C library of the process; '' where that is another."""
    try:
        name, _, version = (os.confstr("CS_GNU_LIBC_VERSION") or "").partition(" ")
    except (ValueError, OSError, AttributeError):
        return ""
    return version if sys.platform == "linux" and name == "glibc" else ""


def faults_of_reuse() -> int | None:
    """Page faults of using a large block again in another thread: none where memory is kept.

    None where nothing counts them.
    """
    try:
        import ctypes
        import resource

        library = ctypes.CDLL(None)
        allocate, fill, free = library.malloc, library.memset, library.free
    except (ImportError, OSError, TypeError, AttributeError):  # no such module, or no such library, as on Windows
        return None
    allocate.restype, allocate.argtypes = ctypes.c_void_p, (ctypes.c_size_t,)
    fill.argtypes, free.argtypes = (ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t), (ctypes.c_void_p,)
    faults: list[int] = []

    def use() -> None:
        for _ in range(2):
            before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
            block = allocate(BLOCK)
            if block:
                fill(block, 1, BLOCK)
            free(block)
            faults.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)

    thread = threading.Thread(target=use)
    thread.start()
    thread.join()
    return faults[-1]


def diagnose(environment: Mapping[str, str], *, only_cpu: bool) -> dict[str, Any]:
    """What `memjax doctor` says of it, as JSON types: whether memory is kept (measured), how, and the huge pages."""
    faults = faults_of_reuse()
    return {
        "kept": faults is not None and faults < BLOCK // 2**21,  # fewer than its huge pages
        "faults": faults,
        "glibc": glibc_version(),
        "reason_against": reason_against(environment, only_cpu=only_cpu),
        "from_environment": [name for name in PARAMETERS if _is_given(name, environment)],
        "transparent_huge_pages": transparent_huge_pages(),
    }


def describe(facts: Mapping[str, Any]) -> str:
    """One line of what `diagnose` found."""
    kept = "a large block is kept between steps" if facts["kept"] else "a large block is mapped anew in every step"
    if facts["reason_against"]:
        how = f"defaults of the C library: {facts['reason_against']}"
    else:
        own = f", but {', '.join(facts['from_environment'])} by the environment" if facts["from_environment"] else ""
        how = f"set by mallopt{own}; {SWITCH}=0 turns it off"
    faults = "" if facts["faults"] is None else f", {facts['faults']:,} page faults of using 96 MiB again"
    pages = facts["transparent_huge_pages"]
    return f"{kept}{faults} ({how})" + (f"; transparent huge pages: {pages}" if pages else "")


def transparent_huge_pages() -> str:
    """'always', 'madvise' or 'never'; '' where the kernel does not say."""
    try:
        with open("/sys/kernel/mm/transparent_hugepage/enabled", encoding="ascii") as file:
            return file.read().partition("[")[2].partition("]")[0]
    except OSError:
        return ""


def _is_given(name: str, environment: Mapping[str, str]) -> bool:
    """Whether the environment sets a parameter, by its variable or among glibc's tunables."""
    tunables = environment.get("GLIBC_TUNABLES", "").split(":")
    return PARAMETERS[name].variable in environment or any(one.startswith(f"glibc.malloc.{name}=") for one in tunables)
