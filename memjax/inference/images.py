"""Images token by token: what a model of `memjax.data.images` draws."""

from typing import Any

import numpy as np

from memjax.data.images import ImageDocuments, images_of
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
    """Draws images pixel by pixel, each from the begin token.

    Args:
      model: of images, as `memjax.data.ImageDocuments` writes them.
      variables: its variables.
      count: images.
      shape: height and width.
      segment_length: tokens of a segment, as in training.
      sampling: settings; ids that are no pixel are never drawn.
      **settings: of `stream_tokens`: seed, block, dtype.

    Returns:
      uint8 `[count, height, width]`, for `memjax.data.png_grid`.

    Raises:
      ValueError: no images, or images without pixels.
    """
    if count < 1 or min(shape) < 1:
        raise ValueError(f"count, shape: given {count} and {shape}, allowed: at least 1")
    sampling = (sampling or Sampling()).without(range(ImageDocuments.first_pixel))
    prompts = [[ImageDocuments.begin_id]] * count
    settings |= {"segment_length": segment_length, "max_tokens": shape[0] * shape[1], "sampling": sampling}
    return images_of(np.array(generate(model, variables, prompts, **settings)), *shape)
