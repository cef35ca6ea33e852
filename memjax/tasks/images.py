"""Image modelling: a language model predicts images pixel by pixel, and can draw new ones. See `memjax.data.images`."""

from memjax.tasks.language_modeling import LanguageModeling


class ImageModeling(LanguageModeling):
    """Language modelling of the pixels of images, one pixel after the other. The run can sample new images."""

    main_metrics = ("bits_per_token", "perplexity")
    target_unit = "pixels"
    verbs = ("sample",)
