"""Drawn images are images, and follow the model."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from memjax import config
from memjax.data.images import ImageDocuments
from memjax.inference.images import sample_images
from memjax.models.factory import make_memformer
from tests.reference.parameters import params_of


def small():
    sizes = {"dim": 8, "num_layers": 1, "num_heads": 2, "encoder_layers": 1, "num_slots": 2}
    described = config.Memformer(**sizes, feed_forward=config.Dense(dim=8))
    model = make_memformer(described, ImageDocuments.vocab_size, segment_length=3)
    start, ids = jnp.ones(1, bool), jnp.zeros((1, 3), jnp.int32)
    arrays = params_of(model, ids, model.init_state(1), start_of_document=start, dtype=np.float32)
    return model, {"params": jax.tree.map(jnp.asarray, arrays)}


def test_images_follow_their_seed_and_differ():
    model, variables = small()
    draw = lambda seed: sample_images(model, variables, 3, (2, 4), segment_length=3, seed=seed, block=4)
    first = draw(0)
    assert first.shape == (3, 2, 4) and first.dtype == np.uint8
    np.testing.assert_array_equal(first, draw(0))
    assert not np.array_equal(first, draw(1)) and not np.array_equal(first[0], first[1])


def test_no_images_are_refused():
    with pytest.raises(ValueError, match="count, shape: given 0 and"):
        sample_images(None, {}, 0, (2, 2), segment_length=4)
