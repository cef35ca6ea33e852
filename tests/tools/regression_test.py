"""The table of regression errors of infinity-formers."""

import json

import jax.numpy as jnp
import numpy as np
import pytest

from memjax.inspection.regression import regression_errors
from memjax.settings.overrides import load_config
from tests.training.tasks_test import save_run
from tools.measurements import regression
from tools.results import tables
from tools.results.ledger import Book


@pytest.mark.slow
def test_the_table_is_that_of_the_run(tmp_path):
    config = load_config("sorting", "smoke")
    config.workdir = str(tmp_path)
    directory, variables = save_run(config)
    score = {"accuracy": 0.25, "perplexity": 4.5}
    (directory / "finished.json").write_text(json.dumps({"results": {"evaluation": score}}))
    facts, errors = regression.measure(directory, "validation", 2, 0)
    assert facts["documents"] == 2 and facts["accuracy"] == 0.25 and errors.num_basis == (2, 4, 8, 16)
    experiment = regression.load_run(directory).experiment
    tokens, mask = regression.read_documents(experiment, "validation", 2)
    assert tokens.shape == mask.shape == (5, 2, 8) and mask.sum() == 2 * 35 and (tokens[0, :, 0] == 1).all()
    documents = experiment.documents("validation")
    np.testing.assert_array_equal(tokens[:, 1][mask[:, 1]][1:], documents[1][:-1])
    expected = regression_errors(
        experiment.model, variables["params"], jnp.asarray(tokens), mask=jnp.asarray(mask), num_basis=(2, 4, 8, 16)
    )
    np.testing.assert_allclose(errors.squares, expected.squares, rtol=1e-5)
    assert regression.read_documents(experiment, "validation", 2, 3)[0].shape == (3, 2, 8)
    assert regression.main(["--run", str(directory), "--documents", "2", "--out", str(tmp_path)]) == 0
    (found,) = Book(tmp_path).measurements()
    page = tables.regression(found)
    first = [f"{value:.4f}" for value in errors.overall()[0]]
    assert f"| {directory.name} | sample | 8 | 0.2500 | 4.5000 | 0 | {' | '.join(first)} |" in page
    assert f"| {directory.name} | 1 | {errors.relative()[1, 2, 0]:.4f} | " in page
    written = found.facts["runs"][directory.name]["errors"]["overall"]
    np.testing.assert_allclose(written, errors.overall(), rtol=1e-6)
