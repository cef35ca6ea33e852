"""Runs one training on several processes: connects them, exchanges values, and detects lost processes.

On a pod every host runs the same command, and JAX connects the hosts. This module adds barriers with a timeout that
name the missing processes, errors that end all processes together, and signals that all processes obey after the same
step. With a single process these functions return at once.
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
"""Default time to wait for other processes, in seconds."""


class ProcessTimeout(RuntimeError):  # noqa: N818 (as `TimeoutError`)
    """Another process of the run did not reach a barrier in time."""


class RemoteError(ValueError):
    """Another process of the run raised an error, so that this process cannot continue."""


def connect(
    coordinator: str = "", num_processes: int | None = None, process_id: int | None = None, *, timeout: float = TIMEOUT
) -> None:
    """Connects this process with the other processes of the run. `coordinator` is the address `host:port` of process 0,
    'auto' to find it, or '' for a single process, with which nothing is done. `timeout` is in seconds.

    It must be called before anything has asked JAX for its devices.

    Args:
      coordinator: Address of process 0, `host:port`. 'auto' reads it from a TPU pod, Slurm, Open MPI or Kubernetes and
        means a single process if none of them is found. '' for a single process.
      num_processes: Number of processes of the run. Required with an address, otherwise None.
      process_id: Number of this process, from 0. Required with an address, otherwise None.
      timeout: Seconds to wait for the other processes, here and at the end of the run. If they are not connected by
        then, this process prints one line and exits with code 1.

    Raises:
      ValueError: `coordinator`, `num_processes` and `process_id` do not fit each other.
    """
    explicit = coordinator not in ("", "auto")
    if explicit != (num_processes is not None) or explicit != (process_id is not None):
        raise ValueError(
            f"processes: given coordinator {coordinator!r}, num_processes {num_processes}, process_id {process_id}, "
            "allowed: all three, or none (or 'auto' alone)"
        )
    if num_processes is not None and process_id is not None:
        if ":" not in coordinator or not 0 <= process_id < num_processes:
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
    # Nothing in Python can interrupt the wait, hence the exit. JAX would end the process too, but later and with a
    # stack trace: it takes long for its own timeouts.
    alarm = threading.Timer(seconds, _exit_with_message, (line,))
    alarm.start()
    try:
        jax.distributed.initialize(
            coordinator if explicit else None,
            num_processes,
            process_id,
            initialization_timeout=2 * seconds,
            heartbeat_timeout_seconds=2 * seconds,  # `ProcessMonitor` reports first, and in one line
            shutdown_timeout_seconds=seconds,
        )
    except ValueError:
        if explicit:
            raise
    finally:
        alarm.cancel()


def num_processes() -> int:
    """Returns the number of processes of the run."""
    return jax.process_count()


def is_first() -> bool:
    """Returns whether this is process 0, the only one that prints and writes shared files."""
    return jax.process_index() == 0


def barrier(name: str, timeout: float = TIMEOUT) -> None:
    """Waits until all processes have reached the barrier of this name. Raises `ProcessTimeout` if one of them does not
    within `timeout` seconds.

    Args:
      name: Name of the barrier. Every process must reach the same barriers in the same order.
      timeout: Seconds to wait.

    Raises:
      ProcessTimeout: A process did not come in time. The message names the missing processes.
    """
    if num_processes() == 1:
        return
    import orbax.checkpoint as ocp

    try:
        ocp.multihost.get_barrier_sync_fn()(key=f"memjax/{name}", timeout_ms=int(timeout * 1000))
    except jax.errors.JaxRuntimeError as error:
        raise ProcessTimeout(
            f"{name}: {_name_missing_processes(str(error))} did not come within {timeout:g} s"
        ) from error


def _name_missing_processes(error: str) -> str:
    """Describes the missing processes by the numbers in an error message of JAX's coordination service."""
    match = re.search(r"(?:timed out task names|unhealthy[^\n]*):\s*\n([\d\s,/:a-z_]+)", error)
    names = sorted({int(number) for number in re.findall(r"(?:task:)?(\d+)", match[1])}) if match else []
    this_process = jax.process_index()
    if not names and "UNAVAILABLE" in error and this_process != 0:
        return "process 0 (the coordinator)"
    if not names and num_processes() == 2:  # the coordinator itself is not always told who was lost
        names = [1 - this_process]
    if not names:
        return "another process"
    return f"process{'es' if len(names) > 1 else ''} {', '.join(map(str, names))} of {num_processes()}"


def gather_json(value: Any) -> list[Any]:
    """Exchanges a JSON value between all processes and returns the values in the order of the processes."""
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
    """Context manager that runs its body on all processes: either all finish it, or all raise an error. `name` is that
    of the barrier at its end, where a process waits at most `timeout` seconds.

    Args:
      name: Name of the barrier at the end of the body. See `barrier`.
      timeout: Seconds to wait for the slowest process after this one has finished the body.

    Raises:
      RemoteError: The body raised an error in another process. The message is that of the other process.
      ProcessTimeout: A process did not finish the body in time.
    """
    # A process that went on alone would wait for the others for ever.
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
    """Returns the JSON value of process 0 on every process."""
    return gather_json(value)[0]


def check_equal(what: str, value: Any) -> None:
    """Raises `ValueError` unless all processes have the same JSON value. `what` names the value in the message."""
    values = gather_json(value)
    different = [process for process, other in enumerate(values) if other != values[0]]
    if different:
        raise ValueError(
            f"{what}: process {different[0]} was started with another one than process 0; give all the same command"
        )


class ProcessMonitor:
    """Context manager that ends this process when another process of the run is lost.

    A thread meets the threads of the other processes at a barrier from time to time. If a process does not come, the
    thread prints which one and exits with code 1. The steps since the last checkpoint are lost. A process that is alive
    but makes no progress is not detected.
    """

    # A thread, because a collective waits for a lost process for ever, and nothing in Python can interrupt it.

    def __init__(self, timeout: float = TIMEOUT):
        """Prepares a monitor. Only one may be active at a time.

        Args:
          timeout: Seconds within which every process must reach the barrier.
        """
        self._timeout = timeout
        self._done = threading.Event()

    def __enter__(self) -> ProcessMonitor:
        if num_processes() > 1:
            threading.Thread(target=self._run, name="memjax-watch", daemon=True).start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:  # The first process to leave must not look lost to those that are still running.
            barrier("the end of the run", self._timeout)
        self._done.set()

    def _run(self) -> None:
        """Meets the other processes four times per timeout until the monitor is closed."""
        while not self._done.wait(self._timeout / 4):
            try:
                barrier("still here", self._timeout)
            except ProcessTimeout as missing:
                if not self._done.is_set():
                    _exit_with_message(
                        f"{missing}; this process ends, the same command goes on from the last checkpoint"
                    )
                return


def _exit_with_message(line: str) -> None:
    """Prints a line to standard error and exits with code 1."""
    print(f"memjax: {line}", file=sys.stderr, flush=True)
    exit_immediately(1)


def exit_immediately(code: int) -> None:
    """Ends this process with an exit code, without waiting for the other processes of the run."""
    # An ordinary exit waits for the other processes, which wait for this one.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def explain_failure(error: BaseException) -> str | None:
    """Describes a failed JAX computation in one line if another process is lost or still running, else returns None. It
    may wait for the other processes for a minute.

    Returns None for other errors, for a single process, and if all processes come within a minute, as they do when the
    computation failed on all of them.
    """
    if num_processes() == 1 or not isinstance(error, jax.errors.JaxRuntimeError):
        return None
    try:
        barrier("after an error", timeout=60.0)
    except ProcessTimeout as missing:
        what = " ".join(str(error).split())[:500]
        return f"{what}; {missing}; the same command goes on from the last checkpoint"
    return None


class SharedRequest:
    """A request, such as the number of a signal, that any process may receive and that all processes obey at the same
    step. A call returns it, 0 for none.

    Every process must call it equally often. A call starts a maximum over all processes and returns the result of the
    maximum that was started two calls before, so that no process waits for it.

    Attributes:
      value: Request that all processes have agreed on so far. 0 for no request.

    Example:
      >>> SharedRequest(lambda: 15)()
      15
    """

    DELAY = 2
    """Number of calls between the start of a maximum and the use of its result."""

    def __init__(self, request: Callable[[], int]):
        """Prepares a shared request.

        Args:
          request: Function that returns the request of this process, a positive int32. 0 for no request.
        """
        self._request, self._alone = request, num_processes() == 1
        self._started: list[jax.Array] = []
        self.value = 0
        if not self._alone:
            mesh = Mesh(np.asarray(jax.devices()), ("devices",), axis_types=(AxisType.Auto,))
            self._split = NamedSharding(mesh, PartitionSpec("devices"))
            self._max = jax.jit(jnp.max, out_shardings=NamedSharding(mesh, PartitionSpec()))

    def __call__(self) -> int:
        """Returns the request that all processes have agreed on, 0 for no request."""
        if self._alone:
            self.value = self._request()
            return self.value
        request = np.full(1, self._request(), np.int32)
        flags = jax.make_array_from_callback((len(jax.devices()),), self._split, lambda index: request)
        self._started.append(self._max(flags))
        if len(self._started) > self.DELAY:
            self.value = max(self.value, int(self._started.pop(0)))
        return self.value
