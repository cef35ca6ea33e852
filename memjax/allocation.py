"""Configures glibc's malloc to keep freed memory for the next training step on a CPU. Commands do it at their start; a
notebook or a loop of your own does the same by one call, before its first computation:

    from memjax.allocation import keep_freed_memory

    keep_freed_memory()

XLA allocates the temporary arrays of a step in one block and frees it afterwards. By default glibc maps such a block
anew in every step, and the kernel zeroes each of its pages at the first access: tens of thousands of page faults in a
step. Three parameters of glibc keep the block instead. A fourth one, a single arena, makes them effective in the
threads of a training step too: arenas of other threads consist of heaps of 64 MiB, and a larger block is mapped anew
whatever the parameters are. All four are set by `mallopt` before the process has other threads, and the kernel is asked
for huge pages in the heap, so that `GLIBC_TUNABLES` need not be set for a new process.

After `import jax` alone all of this still works. JAX starts its threads with the first computation, and the kernel of
a notebook has threads from the beginning. Arenas that threads already have stay, and threads of JAX share them: then
blocks up to 64 MiB are kept, larger ones are not, and the call warns. In this case set `MALLOC_ARENA_MAX=1` in the
environment before the process starts, and call it as well.

`python -m tools.bench` measures its contenders with and without it (`tools/results/tables/bench.md`).
"""

import os
import sys
import threading
import warnings
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from memjax import platforms

HUGE_PAGES = "huge_pages"
SWITCH = "MEMJAX_MALLOC"
"""environment variable that keeps the defaults of the C library where it is '0'"""
# A larger block is mapped and unmapped as by default, and so is free memory beyond it at the end of the heap: a process
# keeps at most 2 GiB there that it does not use.
LARGEST = 2**31 - 1
"""largest number of bytes that `mallopt` takes"""


class Parameter(NamedTuple):
    """A parameter of glibc's malloc: its number for `mallopt`, the value that memjax sets, and its environment
    variable.

    Attributes:
      number: Number of the parameter for `mallopt`.
      value: Value to set.
      variable: Environment variable by which a user can set the parameter.
    """

    number: int
    value: int
    variable: str


PARAMETERS = {
    # Fewer threads wait for its lock than would seem: each has a cache of small blocks, and JAX holds large ones.
    "arena_max": Parameter(-8, 1, "MALLOC_ARENA_MAX"),
    "mmap_threshold": Parameter(-3, LARGEST, "MALLOC_MMAP_THRESHOLD_"),
    "trim_threshold": Parameter(-1, LARGEST, "MALLOC_TRIM_THRESHOLD_"),
    # Bytes by which the heap grows beyond a request; pages that nobody touches cost nothing.
    "top_pad": Parameter(-2, 64 * 2**20, "MALLOC_TOP_PAD_"),
}
"""name of the parameter among glibc's tunables -> the parameter and its value"""
NO_MAPPING = -4
"""number for `mallopt` of the maximum number of mapped blocks, for versions of glibc that refuse a large threshold"""

HEAP, HUGE_PAGE, MADV_HUGEPAGE = 2**30, 2 * 2**20, 14
"""bytes of the heap to be in huge pages, bytes of a huge page, and the number of that advice for `madvise`"""
BLOCK = 96 * 2**20
"""bytes of the block that `memjax doctor` uses twice; more than a heap of another thread's arena can hold"""


def keep_freed_memory(environment: Mapping[str, str] | None = None, *, only_cpu: bool | None = None) -> list[str]:
    """Makes malloc keep freed memory, on Linux with glibc and without an accelerator, and returns the names of the
    parameters that it set. Call it before JAX computes anything.

    Parameters that the environment sets stay as they are. Where threads already have arenas of their own, it warns.

    Args:
      environment: Environment of the process. None for `os.environ`.
      only_cpu: Whether JAX uses no accelerator. An accelerator would hold the arrays itself, so nothing is set. None to
        find out by `memjax.platforms.only_cpu`.

    Returns:
      The names of the parameters that were set, and `huge_pages` if the kernel was asked for huge pages.

    Example:
      >>> keep_freed_memory({"MEMJAX_MALLOC": "0"})
      []
    """
    environment = os.environ if environment is None else environment
    if why_not_applicable(environment, only_cpu=platforms.only_cpu() if only_cpu is None else only_cpu):
        return []
    arenas = count_arenas()
    if arenas > 1:
        warnings.warn(
            f"malloc: other threads already have {arenas - 1} arenas, where blocks of more than 64 MiB are mapped anew "
            "in every step: call keep_freed_memory before JAX computes anything, or set MALLOC_ARENA_MAX=1 in the "
            "environment before the process starts",
            stacklevel=2,
        )
    done = set_parameters([name for name in PARAMETERS if not _is_given(name, environment)])
    by_environment = {"arena_max"} if environment.get(PARAMETERS["arena_max"].variable) == "1" else set()
    all_set = by_environment.union(done) == set(PARAMETERS)
    if all_set and transparent_huge_pages() == "madvise" and advise_huge_pages():
        done.append(HUGE_PAGES)
    return done


def count_arenas() -> int:
    """Returns the number of arenas of glibc's malloc, 1 in a process without other threads."""
    import ctypes

    library = ctypes.CDLL(None)
    library.open_memstream.restype = ctypes.c_void_p
    library.malloc_info.argtypes, library.fclose.argtypes = (ctypes.c_int, ctypes.c_void_p), (ctypes.c_void_p,)
    library.free.argtypes = (ctypes.c_void_p,)
    text, size = ctypes.c_void_p(), ctypes.c_size_t()
    stream = library.open_memstream(ctypes.byref(text), ctypes.byref(size))
    library.malloc_info(0, stream)
    library.fclose(stream)
    count = ctypes.string_at(text, size.value).count(b"<heap nr=")
    library.free(text)
    return count


def set_parameters(names: Iterable[str]) -> list[str]:
    """Sets the parameters of `PARAMETERS` with these names by `mallopt`, and returns the names of those that glibc
    accepted.
    """
    import ctypes

    mallopt = ctypes.CDLL(None).mallopt
    done = {name: mallopt(PARAMETERS[name].number, PARAMETERS[name].value) for name in names}
    if done.get("mmap_threshold") == 0:
        done["mmap_threshold"] = mallopt(NO_MAPPING, 0)
    return [name for name, taken in done.items() if taken]


def advise_huge_pages() -> bool:
    """Lets the heap grow by `HEAP` bytes, asks the kernel for huge pages there, and returns whether it accepted.

    It needs malloc to have a single arena, so that the blocks of all threads lie in this heap. Pages that nobody
    touches cost nothing.
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


def why_not_applicable(environment: Mapping[str, str], *, only_cpu: bool) -> str:
    """Returns the reason why `keep_freed_memory` sets nothing (turned off in the environment, an accelerator, no
    glibc), as text. '' where it sets parameters.

    Example:
      >>> why_not_applicable({"MEMJAX_MALLOC": "0"}, only_cpu=True)
      'MEMJAX_MALLOC=0'
    """
    if environment.get(SWITCH, "1").lower() in ("0", "false", "off", "no"):
        return f"{SWITCH}={environment[SWITCH]}"
    if not only_cpu:
        return "JAX may use an accelerator, which holds the arrays"
    return "" if glibc_version() else "the C library is not glibc"


def glibc_version() -> str:
    """Returns the version of glibc in the process. '' for another C library."""
    try:
        name, _, version = (os.confstr("CS_GNU_LIBC_VERSION") or "").partition(" ")
    except (ValueError, OSError, AttributeError):
        return ""
    return version if sys.platform == "linux" and name == "glibc" else ""


def count_reuse_page_faults() -> int | None:
    """Allocates and fills a large block twice in another thread, and returns the number of page faults of the second
    time. None where the system does not count them.

    The number is 0 where freed memory is kept.
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
    """Returns facts about malloc for `memjax doctor`, as JSON values: whether freed memory is kept (measured), and why.

    Args:
      environment: Environment of the process.
      only_cpu: Whether JAX uses no accelerator.
    """
    faults = count_reuse_page_faults()
    return {
        "kept": faults is not None and faults < BLOCK // 2**21,  # fewer than its huge pages
        "faults": faults,
        "glibc": glibc_version(),
        "reason_against": why_not_applicable(environment, only_cpu=only_cpu),
        "from_environment": [name for name in PARAMETERS if _is_given(name, environment)],
        "transparent_huge_pages": transparent_huge_pages(),
    }


def describe(facts: Mapping[str, Any]) -> str:
    """Describes the facts of `diagnose` in one line of text."""
    state = "a large block is kept between steps" if facts["kept"] else "a large block is mapped anew in every step"
    if facts["reason_against"]:
        how = f"defaults of the C library: {facts['reason_against']}"
    else:
        names = ", ".join(facts["from_environment"])
        how = f"set by mallopt{f', but {names} by the environment' if names else ''}; {SWITCH}=0 turns it off"
    faults = "" if facts["faults"] is None else f", {facts['faults']:,} page faults of using 96 MiB again"
    pages = facts["transparent_huge_pages"]
    return f"{state}{faults} ({how})" + (f"; transparent huge pages: {pages}" if pages else "")


def transparent_huge_pages() -> str:
    """Returns the kernel's setting of transparent huge pages: 'always', 'madvise', 'never', or '' if unknown."""
    try:
        with open("/sys/kernel/mm/transparent_hugepage/enabled", encoding="ascii") as file:
            return file.read().partition("[")[2].partition("]")[0]
    except OSError:
        return ""


def _is_given(name: str, environment: Mapping[str, str]) -> bool:
    """Whether the environment sets a parameter, by its variable or among glibc's tunables."""
    tunables = environment.get("GLIBC_TUNABLES", "").split(":")
    is_tuned = any(tunable.startswith(f"glibc.malloc.{name}=") for tunable in tunables)
    return PARAMETERS[name].variable in environment or is_tuned
