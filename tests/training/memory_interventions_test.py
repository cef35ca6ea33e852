"""What an evaluation does to the memory between segments."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from memjax import config
from memjax.models import make_language_model
from memjax.training.memory_interventions import make_memory_intervention
from tests.training.evaluation_test import DOCUMENTS, read, score, variables  # noqa: F401, the fixture
from tests.training.toy import ToyModel

COMPRESSIVE = config.Compressive(memory_length=4, compressed_memory_length=2, compression_rate=2)


def expected_nats(variables, find):  # noqa: F811
    """A loop over the segments: `find(state, number of the segment)` is what each finds."""
    model, reading = ToyModel(), read(rows=3)
    state, total, differs = model.init_state(3), 0.0, False

    @jax.jit
    def step(inputs, found, targets, arguments):
        hidden, state, _ = model.apply(variables, inputs, found, **arguments)
        return state, model.apply(variables, hidden, targets, method="token_nll")

    for batch in reading.batches(DOCUMENTS, (0, 3)):
        found = find(state)
        differs |= any(not np.array_equal(a, b) for a, b in zip(*map(jax.tree.leaves, (found, state)), strict=True))
        arguments = {"start_of_document": batch.start_of_document, "mask": batch.mask}
        state, nats = step(batch.inputs, found, batch.targets, arguments)
        total += float(np.where(batch.weights > 0, nats, 0).sum())
    assert differs
    return total


def test_every_segment_finds_an_empty_memory_or_that_of_another_row(variables):  # noqa: F811
    finds = {
        "cleared": lambda state: ToyModel().init_state(3),
        "shuffled": lambda state: jax.tree.map(lambda leaf: jnp.roll(leaf, 1, axis=0), state),
    }
    for kind, find in finds.items():
        change = make_memory_intervention(kind, ToyModel(), rows=3)
        nats = score(variables, change_memory=change, protocol="separate").nats
        np.testing.assert_allclose(nats, expected_nats(variables, find), rtol=1e-6)
    assert make_memory_intervention("kept", ToyModel()) is None


def test_only_the_part_that_is_named_changes():
    settings = config.Model(dim=8, num_layers=2, num_heads=2, attention=COMPRESSIVE, positions="sinusoids")
    model = make_language_model(settings, 5)
    used = jax.tree.map(jnp.ones_like, model.init_state(2))
    changed = make_memory_intervention("cleared", model, part="compressed")(used)
    named = lambda tree: {
        jax.tree_util.keystr(path): np.asarray(leaf) for path, leaf in jax.tree.leaves_with_path(tree)
    }
    before, after = named(used), named(changed)
    assert before.keys() == after.keys() and any("compressed" in name for name in before)
    for name, leaf in after.items():
        assert np.all(leaf == ("compressed" not in name)), name
    whole = named(make_memory_intervention("cleared", model)(used))
    assert whole[".position"].all() and not any(leaf.any() for name, leaf in whole.items() if name != ".position")


def test_what_cannot_be_changed_is_refused():
    stateless = make_language_model(config.Model(dim=8, num_layers=1, num_heads=2, attention=config.FullAttention()), 5)
    with pytest.raises(ValueError, match=r"evaluation.memory_intervention: given 'cleared', allowed: 'kept' with"):
        make_memory_intervention("cleared", stateless)
    model = make_language_model(config.Model(dim=8, num_layers=1, num_heads=2, attention=COMPRESSIVE), 5)
    with pytest.raises(ValueError, match=r"evaluation.intervention_path: given 'slot', allowed: .*compressed.*hidden"):
        make_memory_intervention("cleared", model, part="slot")
    with pytest.raises(ValueError, match=r"evaluation.batch_size: given 1, allowed: 2 or more"):
        make_memory_intervention("shuffled", ToyModel(), rows=1)
