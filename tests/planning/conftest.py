import pytest


@pytest.fixture(autouse=True, scope="module")
def no_flags_of_the_cpu():
    """The compiler of TPUs, which runs in a process of its own, does not know all flags of `tests/compiling.py`."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("XLA_FLAGS", raising=False)
        yield
