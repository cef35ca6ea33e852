"""Where the time of the tests goes: `pytest --cpu-seconds` ends with the CPU seconds of each file, children included.

CPU time, and not time on the clock, since several processes share the cores. Of the whole suite:
`make test ARGS=--cpu-seconds`.
"""

import collections
import resource

import pytest

IMPORTS = "(imports and collection)"


def now() -> float:
    """CPU seconds of this process and of its children that have ended."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)


class CpuSeconds:
    """CPU seconds and number of tests of each file; under xdist each worker sends its own to the controller."""

    def __init__(self):
        self.seconds: collections.Counter[str] = collections.Counter()
        self.tests: collections.Counter[str] = collections.Counter()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item):
        before = now()
        try:
            return (yield)
        finally:
            file = item.nodeid.split("::")[0]
            self.seconds[file] += now() - before
            self.tests[file] += 1

    def pytest_collection_finish(self, session):
        self.seconds[IMPORTS] += now()

    def pytest_sessionfinish(self, session):
        if hasattr(session.config, "workeroutput"):
            session.config.workeroutput["cpu_seconds"] = (dict(self.seconds), dict(self.tests))

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node, error):
        seconds, tests = getattr(node, "workeroutput", {}).get("cpu_seconds", ({}, {}))
        self.seconds.update(seconds)
        self.tests.update(tests)

    def pytest_terminal_summary(self, terminalreporter):
        terminalreporter.section("CPU seconds")
        for file, seconds in self.seconds.most_common():
            terminalreporter.write_line(f"{seconds:9.1f} s {self.tests[file]:6} tests  {file}")
        total = sum(self.seconds.values())
        terminalreporter.write_line(f"{total:9.1f} s {sum(self.tests.values()):6} tests  in all")
