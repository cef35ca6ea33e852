"""Which tests run in one process of several: what they share is made once.

`--dist loadgroup` reads the groups of tests from their ids, where pytest 9.2 no longer lets it write them: it takes
every test for a group of its own, silently.
"""

from xdist.scheduler import LoadScopeScheduling


class ByFile(LoadScopeScheduling):
    """A file's tests together; of the laws, which are most of all tests, those of one case."""

    def _split_scope(self, nodeid: str) -> str:
        file, _, test = nodeid.partition("::")
        if test.startswith("test_law["):
            return nodeid.rsplit("-", 2)[0]  # test_law[case-law-dtype]
        return nodeid if file.endswith("tests/contract_test.py") else file
