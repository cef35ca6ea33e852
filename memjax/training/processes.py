"""Several processes as one run: connecting them, agreeing, and noticing when one is missing.

On a pod every host runs the same command. JAX connects the hosts; what a run needs besides is here: waits that end and
name who did not come, mistakes that end all processes and not only one, and signals that all of them obey after the
same step. With one process everything here is free and changes nothing.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

TIMEOUT = 300.0
"""seconds"""


class ProcessTimeout(RuntimeError):  # noqa: N818 (who, not what)
    """A process did not come in time."""


class RemoteError(ValueError):  # noqa: N818 (where, not what)
    """Another process has made a mistake, so that this one cannot go on."""


def connect(
    coordinator: str = "", num_processes: int | None = None, process_id: int | None = None, *, timeout: float = TIMEOUT
) -> None:
    """Makes this process part of a run of several; before anything has asked JAX for its devices.

    Args:
      coordinator: `host:port` of process 0; 'auto' = what TPU pods, Slurm, Open MPI or Kubernetes tell, one process
        where nothing tells; '' = one process.
      num_processes: of the run; with a coordinator.
      process_id: of this process, from 0; with a coordinator.
      timeout: seconds to wait for the others, here and when the run ends. When they do not come, the process ends
        with one line and code 1: nothing in Python can interrupt the wait.

    Raises:
      ValueError: arguments that do not fit each other.
    """
    explicit = coordinator not in ("", "auto")
    if explicit != (num_processes is not None) or explicit != (process_id is not None):
        raise ValueError(
            f"processes: given coordinator {coordinator!r}, num_processes {num_processes}, process_id {process_id}, "
            "allowed: all three, or none (or 'auto' alone)"
        )
    if explicit and (":" not in coordinator or not 0 <= process_id < num_processes):  # type: ignore[operator]
        raise ValueError(
            f"processes: given coordinator {coordinator!r}, process_id {process_id} of {num_processes}, allowed: "
            "host:port, and 0 to num_processes - 1"
        )
    if not coordinator:
        return
    jax.config.update("jax_enable_preemption_service", False)  # It would take SIGTERM, which the run obeys itself.
    seconds = max(int(timeout), 1)
    whom = "the other processes" if not process_id else f"process 0 at {coordinator}, or another one,"
    line = f"processes: {whom} did not come within {seconds} s; start all of them with the same coordinator"
    # JAX would end the process too, later and with a stack trace: it takes long for time-outs of its own.
    alarm = threading.Timer(seconds, _end, (line,))
    alarm.start()
    try:
        jax.distributed.initialize(
            coordinator if explicit else None,
            num_processes,
            process_id,
            initialization_timeout=2 * seconds,
            heartbeat_timeout_seconds=2 * seconds,  # `ProcessMonitor` speaks first, and in one line
            shutdown_timeout_seconds=seconds,
        )
    except ValueError:
        if explicit:
            raise
    finally:
        alarm.cancel()


def num_processes() -> int:
    """Processes of the run."""
    return jax.process_count()


def is_first() -> bool:
    """Whether this process speaks and writes for all of them."""
    return jax.process_index() == 0


def barrier(name: str, timeout: float = TIMEOUT) -> None:
    """Returns when all processes have come.

    Args:
      name: of the place; every process comes to the same places in the same order.
      timeout: seconds.

    Raises:
      Missing: the line names who did not come.
    """
    if num_processes() == 1:
        return
    import orbax.checkpoint as ocp

    try:
        ocp.multihost.get_barrier_sync_fn()(key=f"memjax/{name}", timeout_ms=int(timeout * 1000))
    except jax.errors.JaxRuntimeError as error:
        raise ProcessTimeout(f"{name}: {_missing(str(error))} did not come within {timeout:g} s") from error


def _missing(error: str) -> str:
    """Who is named in an error of JAX's coordination service."""
    found = re.search(r"(?:timed out task names|unhealthy[^\n]*):\s*\n([\d\s,/:a-z_]+)", error)
    names = sorted({int(number) for number in re.findall(r"(?:task:)?(\d+)", found[1])}) if found else []
    own = jax.process_index()
    if not names and "UNAVAILABLE" in error and own != 0:
        return "process 0 (the coordinator)"
    if not names and num_processes() == 2:  # the coordinator itself is not always told who was lost
        names = [1 - own]
    if not names:
        return "another process"
    return f"process{'es' if len(names) > 1 else ''} {', '.join(map(str, names))} of {num_processes()}"


def gather_json(value: Any) -> list[Any]:
    """The JSON values of all processes, in their order."""
    if num_processes() == 1:
        return [value]
    content = np.frombuffer(json.dumps(value).encode(), np.uint8)
    sizes = np.ravel(multihost_utils.process_allgather(np.int32(content.size)))
    padded = np.zeros(int(sizes.max()), np.uint8)
    padded[: content.size] = content
    rows = np.reshape(multihost_utils.process_allgather(padded), (num_processes(), -1))
    return [json.loads(bytes(row[:size])) for row, size in zip(rows, sizes, strict=True)]


@contextlib.contextmanager
def run_together(name: str, timeout: float = TIMEOUT) -> Iterator[None]:
    """All processes leave its body, or all raise: one that goes on alone would wait for the others for ever.

    Args:
      name: of the place, see `barrier`.
      timeout: seconds to wait for the slowest process after this one is through.

    Raises:
      Elsewhere: the body raised in another process; the line is that one's.
      Missing: a process did not come.
    """
    if num_processes() == 1:
        yield
        return
    error: Exception | None = None
    try:
        yield
    except Exception as raised:
        error = raised
    barrier(name, timeout)
    errors = gather_json(None if error is None else " ".join(str(error).split()) or type(error).__name__)
    if error is not None:
        raise error
    for process, line in enumerate(errors):
        if line is not None:
            raise RemoteError(f"process {process} of {num_processes()}: {line}")


def broadcast_from_first(value: Any) -> Any:
    """The JSON value of process 0, on every process."""
    return gather_json(value)[0]


def check_equal(what: str, value: Any) -> None:
    """Raises `ValueError` unless a JSON value is that of process 0 on every process."""
    values = gather_json(value)
    different = [process for process, other in enumerate(values) if other != values[0]]
    if different:
        raise ValueError(
            f"{what}: process {different[0]} was started with another one than process 0; give all the same command"
        )


class ProcessMonitor:
    """Ends this process when another one of the run is gone.

    A collective waits for a lost process for ever, and nothing in Python can interrupt it. So a thread meets the
    threads of the other processes now and then; when one does not come, it says who and exits with code 1. What is
    lost are the steps since the last checkpoint. It does not notice a process that lives and makes no progress.
    """

    def __init__(self, timeout: float = TIMEOUT):
        """Watches from `with` on; one at a time.

        Args:
          timeout: seconds within which every process must come.
        """
        self._timeout = timeout
        self._done = threading.Event()

    def __enter__(self) -> ProcessMonitor:
        if num_processes() > 1:
            threading.Thread(target=self._run, name="memjax-watch", daemon=True).start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:  # Whoever leaves first must not look lost to those who are not through.
            barrier("the end of the run", self._timeout)
        self._done.set()

    def _run(self) -> None:
        while not self._done.wait(self._timeout / 4):
            try:
                barrier("still here", self._timeout)
            except ProcessTimeout as missing:
                if not self._done.is_set():
                    _end(f"{missing}; this process ends, the same command goes on from the last checkpoint")
                return


def _end(line: str) -> None:
    print(f"memjax: {line}", file=sys.stderr, flush=True)
    exit_immediately(1)


def exit_immediately(code: int) -> None:
    """Ends a process of several at once: an ordinary end waits for the others, who wait for this one."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def explain_failure(error: BaseException) -> str | None:
    """The line about a computation that failed while other processes go on, or are gone; None for any other error."""
    if num_processes() == 1 or not isinstance(error, jax.errors.JaxRuntimeError):
        return None
    try:
        barrier("after an error", timeout=60.0)
    except ProcessTimeout as missing:
        what = " ".join(str(error).split())[:500]
        return f"{what}; {missing}; the same command goes on from the last checkpoint"
    return None


class SharedRequest:
    """A request that any process may get and all obey at the same moment.

    Every process calls it equally often. A call starts a sum over all processes and returns what came out of the sum
    that was started two calls before, so that nobody waits for it.

    Attributes:
      value: what all have agreed on so far, 0 for nothing.

    Example:
      >>> Agreed(lambda: 15)()
      15
    """

    DELAY = 2
    """calls"""

    def __init__(self, request: Callable[[], int]):
        """`request()` is this process's request, 0 for none."""
        self._request, self._alone = request, num_processes() == 1
        self._started: list[jax.Array] = []
        self.value = 0
        if not self._alone:
            mesh = Mesh(np.asarray(jax.devices()), ("devices",), axis_types=(AxisType.Auto,))
            self._split = NamedSharding(mesh, PartitionSpec("devices"))
            self._max = jax.jit(jnp.max, out_shardings=NamedSharding(mesh, PartitionSpec()))

    def __call__(self) -> int:
        """The request that all agree on, 0 for none."""
        if self._alone:
            self.value = self._request()
            return self.value
        own = np.full(1, self._request(), np.int32)
        flags = jax.make_array_from_callback((len(jax.devices()),), self._split, lambda index: own)
        self._started.append(self._max(flags))
        if len(self._started) > self.DELAY:
            self.value = max(self.value, int(self._started.pop(0)))
        return self.value
