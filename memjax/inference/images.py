"""Generation of images pixel by pixel, by models of `memjax.data.images`."""

from typing import Any

import numpy as np

from memjax.data.images import ImageDocuments, images_from_tokens
from memjax.inference.decoding import generate
from memjax.inference.sampling import Sampling

__all__ = ["sample_images"]


def sample_images(
    model: Any,
    variables: Any,
    count: int,
    shape: tuple[int, int],
    *,
    segment_length: int,
    sampling: Sampling | None = None,
    **settings: Any,
) -> np.ndarray:
    """Generates `count` images of height and width `shape`, pixel by pixel, with a language model of images. `settings`
    are the `seed`, the `block` and the `dtype`. Returns uint8 `[count, height, width]`.

    Args:
      model: Model that was trained on images in the tokens of `memjax.data.ImageDocuments`.
      variables: Variables of the model.
      count: Number of images.
      shape: Height and width of the images.
      segment_length: Tokens per segment in training.
      sampling: Settings of sampling. Token ids that are not pixels are never drawn. None samples from all pixels.
      **settings: `seed`, `block` and `dtype` of `stream_tokens`.

    Returns:
      Images, uint8 `[count, height, width]`, for `memjax.data.png_grid`.

    Raises:
      ValueError: `count` or a side of `shape` is less than 1.
    """
    if count < 1 or min(shape) < 1:
        raise ValueError(f"count, shape: given {count} and {shape}, allowed: at least 1")
    sampling = (sampling or Sampling()).without(range(ImageDocuments.first_pixel))
    prompts = [[ImageDocuments.begin_id]] * count
    settings |= {"segment_length": segment_length, "max_tokens": shape[0] * shape[1], "sampling": sampling}
    return images_from_tokens(np.array(generate(model, variables, prompts, **settings)), *shape)
