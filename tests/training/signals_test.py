"""Signals: the first is told at once, the second ends the process, also while no Python runs in the main thread."""

import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from memjax.training.signals import StopSignal

BUSY = """
    import hashlib
    print("busy", flush=True)
    hashlib.pbkdf2_hmac("sha256", b"", b"", 10**9)  # minutes in C, without the lock of Python
"""
COMPILING = """
    import jax, jax.numpy as jnp
    def f(x):
        for i in range(9000):
            x = jnp.sin(x) + jnp.dot(x, x) * i
        return x
    lowered = jax.jit(f).lower(jnp.ones((4, 4)))
    print("busy", flush=True)
    lowered.compile()
"""
SCRIPT = """
from memjax.training.signals import StopSignal
with StopSignal():
    {work}
    print("through", flush=True)
"""


@pytest.mark.laws
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signals_act_while_the_main_thread_is_busy(number):
    script = SCRIPT.format(work=BUSY.strip())
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout.readline() == b"busy\n"
        process.send_signal(number)
        assert process.stderr.readline() == b"stopping after this step; again: now, unsaved\n"
        assert process.poll() is None
        process.send_signal(number)
        start = time.monotonic()
        assert process.wait(timeout=20) in (128 + number, -number) and time.monotonic() - start < 5
        assert process.stdout.read() == b""


@pytest.mark.slow
def test_the_second_signal_ends_a_long_compilation():
    script = SCRIPT.format(work=COMPILING.strip())
    environment = {**os.environ, "JAX_ENABLE_COMPILATION_CACHE": "0"}
    with subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment
    ) as process:
        assert process.stdout.readline() == b"busy\n"
        time.sleep(15)
        process.send_signal(signal.SIGTERM)
        start = time.monotonic()
        assert process.stderr.readline() == b"stopping after this step; again: now, unsaved\n"
        assert time.monotonic() - start < 1
        time.sleep(15)
        assert process.poll() is None  # still compiling, half a minute after it began
        process.send_signal(signal.SIGTERM)
        start = time.monotonic()
        assert process.wait(timeout=20) in (128 + signal.SIGTERM, -signal.SIGTERM) and time.monotonic() - start < 1.5
        assert process.stdout.read() == b""


def test_handlers_and_threads_end_with_it(capfd):
    before, threads = signal.getsignal(signal.SIGTERM), threading.active_count()
    with StopSignal() as stop:
        assert not stop()
        os.kill(os.getpid(), signal.SIGTERM)
        assert stop() and stop.received == signal.SIGTERM and signal.getsignal(signal.SIGTERM) == before
        time.sleep(0.1)
    assert capfd.readouterr().err == "stopping after this step; again: now, unsaved\n"
    deadline = time.monotonic() + 5
    while threading.active_count() > threads and time.monotonic() < deadline:
        time.sleep(0.01)
    assert threading.active_count() == threads and signal.set_wakeup_fd(-1) == -1
