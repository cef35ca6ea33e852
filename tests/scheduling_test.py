from tests.scheduling import ByFile


def test_files_and_cases_of_the_laws_stay_together():
    scope = lambda nodeid: ByFile._split_scope(None, nodeid)  # type: ignore[arg-type]
    assert scope("tests/a_test.py::test_b[x-y-z]") == scope("tests/a_test.py::test_c") == "tests/a_test.py"
    law = "tests/contract_test.py::test_law[spalm-{}-{}]".format
    assert scope(law("reset", "float32")) == scope(law("not_finite", "bfloat16"))
    assert scope(law("reset", "float32")) != scope("tests/contract_test.py::test_law[lstm-reset-float32]")
    assert scope("tests/contract_test.py::test_x[a]") != scope("tests/contract_test.py::test_x[b]")
