"""Tables of layers that stand alone and of scanned groups; `step_test` has the whole step."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from memjax.training.tables import ids_of, make_sinks, sparse_sgd, touched_rows

ROWS, DIM = 5, 2
TABLES = {
    "stack": {
        "layers_0": {"feed_forward": {"values": np.zeros((2, ROWS, DIM), np.float32)}},
        "layers_2": {"feed_forward": {"values": np.zeros((ROWS, DIM), np.float32)}},
    }
}
PATHS = [("stack", f"layers_{index}", "feed_forward", "values") for index in (0, 2)]


def arrays(groups, segments):
    generator = np.random.default_rng(0)
    ids = lambda: jnp.asarray(generator.integers(0, ROWS, (groups, segments, 3, 4)))
    return {
        **{f"layer_{i:02d}/values/ids": ids() for i in range(3)},
        "layer_00/output": jnp.zeros((groups, segments, 3)),
    }


def test_ids_and_gradients_of_every_layer_meet():
    groups, segments = 2, 2
    ids = arrays(groups, segments)
    one = {name: array[0, 0] for name, array in ids.items()}
    sinks = make_sinks(TABLES, one, segments)
    assert sinks["stack"]["layers_0"]["feed_forward"]["values"].shape == (segments, 2, 3, 4, DIM)
    assert sinks["stack"]["layers_2"]["feed_forward"]["values"].shape == (segments, 3, 4, DIM)

    generator = np.random.default_rng(1)
    gradients = {
        "stack": {
            "layers_0": {"feed_forward": {"values": generator.normal(size=(groups, segments, 2, 3, 4, DIM))}},
            "layers_2": {"feed_forward": {"values": generator.normal(size=(groups, segments, 3, 4, DIM))}},
        }
    }
    touched = touched_rows(TABLES, gradients, ids)
    update = sparse_sgd(lambda step: 0.5).update
    values = jax.tree.map(jnp.asarray, TABLES)
    new, _ = update(values, {}, touched, step=jnp.zeros((), jnp.int32), ok=jnp.asarray(True))
    expected = np.zeros((3, ROWS, DIM))
    scanned, alone = (gradients["stack"][f"layers_{i}"]["feed_forward"]["values"] for i in (0, 2))
    for layer in range(3):
        gradient = scanned[:, :, layer] if layer < 2 else alone
        np.add.at(expected[layer], np.asarray(ids[f"layer_{layer:02d}/values/ids"]), -0.5 * gradient)
    np.testing.assert_allclose(new["stack"]["layers_0"]["feed_forward"]["values"], expected[:2], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(new["stack"]["layers_2"]["feed_forward"]["values"], expected[2], rtol=1e-5, atol=1e-6)

    same, _ = update(values, {}, touched, step=jnp.zeros((), jnp.int32), ok=jnp.asarray(False))
    assert not np.any(same["stack"]["layers_0"]["feed_forward"]["values"])


def test_a_lookup_that_reports_no_ids_is_named():
    table = TABLES["stack"]["layers_2"]["feed_forward"]["values"]
    with pytest.raises(ValueError, match="stack/layers_2/feed_forward/values reports no ids, .* 'layer_02/values/ids'"):
        ids_of(PATHS[1], table, {})
