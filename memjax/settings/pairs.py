"""Settings of sources of sentence pairs for translation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from memjax.settings.checks import require
from memjax.settings.ranges import Count, Range
from memjax.settings.sources import Source

if TYPE_CHECKING:
    from memjax.config import Config

__all__ = ["Translation", "ParallelText", "TfdsTranslation", "NumberWords", "CopiedLetters", "TranslationKind"]


Length = Annotated[int, Range(words="2 or more tokens", least=2)]
"""type of a number of tokens of a sentence, its end included"""


@dataclass(slots=True, kw_only=True)
class Translation(Source):
    """Base class of sources of sentence pairs in two languages."""

    content_types = ("pairs",)

    def check(self, field: str, config: Config) -> None:
        kind, protocol = type(self).__name__, config.data.protocol
        require(config.model.translates, "data.source", kind, "texts, where model is no EncoderDecoder")
        require(protocol == "separate", "data.protocol", protocol, "'separate' for sentence pairs")


@dataclass(slots=True, kw_only=True)
class ParallelText(Translation):
    """Sentence pairs: a folder of files STEM.LANGUAGE with a sentence a line (also .xz / .gz), as Multi30k has them."""

    opened_by = "memjax.data.translation:open_parallel_text"

    path: str = ""
    """folder of the files"""
    source_language: str = "en"
    """ending of the names of the files to translate"""
    target_language: str = "de"
    """ending of the names of the files with their translations"""
    train: str = "train"
    """name of the training files without their ending"""
    validation: str = "val"
    """name of the validation files without their ending"""
    test: str = "test_2016_flickr"
    """name of the test files without their ending"""
    max_length: Length = 64
    """maximum number of tokens of a sentence, its end included; pairs with a longer sentence are left out"""


@dataclass(slots=True, kw_only=True)
class TfdsTranslation(Translation):
    """Sentence pairs of a TFDS translation builder. Needs the extra `data`."""

    opened_by = "memjax.data.translation:open_tfds_translation"

    name: str = "wmt14_translate/de-en"
    """name of the TFDS builder, with config and version where needed"""
    source_language: str = "en"
    """feature that holds the text to translate"""
    target_language: str = "de"
    """feature that holds the translation"""
    max_length: Length = 128
    """maximum number of tokens of a sentence, its end included; pairs with a longer sentence are left out"""
    data_dir: str = ""
    """folder of prepared TFDS data sets; '' = the default of TFDS"""


@dataclass(slots=True, kw_only=True)
class NumberWords(Translation):
    """Synthetic sentence pairs: the same number in English words and in German ones."""

    opened_by = "memjax.data.translation:open_number_words"

    num_documents: Count = 2048
    """number of training pairs; validation and test have an eighth as many each"""
    max_length: Length = 96
    """maximum number of tokens of a sentence, its end included; pairs with a longer sentence are left out"""


@dataclass(slots=True, kw_only=True)
class CopiedLetters(Translation):
    """Synthetic sentence pairs of random letters and a copy of them: a model cannot guess the target without reading
    the source.
    """

    opened_by = "memjax.data.translation:open_copied_letters"

    length: Count = 8
    """number of letters of a text"""
    num_letters: Annotated[int, Range(words="2 to 26 letters", least=2, most=26)] = 16
    """number of different letters"""
    num_documents: Count = 4096
    """number of training pairs; validation and test have an eighth as many each"""
    max_length: Length = 16
    """maximum number of tokens of a text, its end included; more than `length`"""

    def check(self, field: str, config: Config) -> None:
        Translation.check(self, field, config)
        allowed = f"more than {field}length = {self.length}"
        require(self.max_length > self.length, f"{field}max_length", self.max_length, allowed)


TranslationKind = ParallelText | TfdsTranslation | NumberWords | CopiedLetters
