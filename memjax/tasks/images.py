"""Images pixel by pixel: what a language model of `memjax.data.images` has learned, it draws."""

from memjax.tasks.language_modeling import LanguageModeling


class ImageModeling(LanguageModeling):
    """Every next pixel of images."""

    headline = ("bits_per_token", "perplexity")
    scored = "pixels"
    verbs = ("sample",)
