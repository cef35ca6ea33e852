"""One process; several are in tests/integration/processes_test.py."""

import jax
import pytest

from memjax.training import processes

TIMED_OUT = """DEADLINE_EXCEEDED: Barrier timed out. Id: start::0. This usually happens because a task triggered it.
# of tasks that reached the barrier: 2/4.
The first task at the barrier: 0. Some timed out task names:
3
1

RPC: /xla.coordination.CoordinationService/Barrier"""
UNHEALTHY = """UNAVAILABLE: The following tasks are unhealthy (stopped sending heartbeats):
2
The tasks have crashed. Check the task logs"""
NO_ANSWER = "UNAVAILABLE: Failed to send RPC to coordination service."


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("host:1",), "allowed: all three, or none"),
        (("", 2, 0), "allowed: all three, or none"),
        (("auto", 2, 0), "allowed: all three, or none"),
        (("host", 2, 0), "allowed: host:port"),
        (("host:1", 2, 2), "0 to num_processes - 1"),
    ],
)
def test_processes_that_cannot_be_connected(arguments, told):
    with pytest.raises(ValueError, match=told):
        processes.connect(*arguments)


def test_one_process_waits_for_nobody():
    processes.connect()
    assert processes.num_processes() == 1 and processes.is_first()
    processes.barrier("here", timeout=0)
    assert processes.gather_json({"rows": [1, 2]}) == [{"rows": [1, 2]}]
    processes.check_equal("config", {"a": 1})
    with processes.run_together("here"), processes.ProcessMonitor(timeout=0):
        pass
    with pytest.raises(ZeroDivisionError), processes.run_together("here"):
        1 / 0  # noqa: B018
    assert processes.explain_failure(jax.errors.JaxRuntimeError("INTERNAL: of the program's own making")) is None


def test_one_process_obeys_at_once():
    asked = [0, 15, 0]
    agreed = processes.SharedRequest(lambda: asked.pop(0))
    assert (agreed(), agreed(), agreed.value) == (0, 15, 15)


def test_who_is_missing_is_named(monkeypatch):
    monkeypatch.setattr(processes, "num_processes", lambda: 4)
    monkeypatch.setattr(jax, "process_index", lambda: 2)
    assert processes._name_missing_processes(TIMED_OUT) == "processes 1, 3 of 4"
    assert processes._name_missing_processes(UNHEALTHY) == "process 2 of 4"
    assert processes._name_missing_processes(NO_ANSWER) == "process 0 (the coordinator)"
    assert processes._name_missing_processes("another error") == "another process"


def test_the_coordinator_does_not_name_itself(monkeypatch):
    assert jax.process_index() == 0
    monkeypatch.setattr(processes, "num_processes", lambda: 4)
    assert processes._name_missing_processes(NO_ANSWER) == "another process"
    monkeypatch.setattr(processes, "num_processes", lambda: 2)
    assert (
        processes._name_missing_processes(NO_ANSWER)
        == processes._name_missing_processes("another error")
        == "process 1 of 2"
    )
