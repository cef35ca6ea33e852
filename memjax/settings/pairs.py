"""Where sentence pairs come from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from memjax.settings.ranges import Count, Range
from memjax.settings.relations import require
from memjax.settings.sources import Source

if TYPE_CHECKING:
    from memjax.config import Config

__all__ = ["Translation", "ParallelText", "TfdsTranslation", "NumberWords", "CopiedLetters", "TranslationKind"]


Length = Annotated[int, Range(words="2 or more tokens", least=2)]
"""of a sentence with its end"""


@dataclass(slots=True, kw_only=True)
class Translation(Source):
    """Sentence pairs."""

    gives = ("pairs",)

    def check(self, field: str, config: Config) -> None:
        kind, protocol = type(self).__name__, config.data.protocol
        require(config.model.translates, "data.source", kind, "texts, where model is no EncoderDecoder")
        require(protocol == "separate", "data.protocol", protocol, "'separate' for sentence pairs")


@dataclass(slots=True, kw_only=True)
class ParallelText(Translation):
    """Sentence pairs: a folder of files STEM.LANGUAGE with a sentence a line (also .xz / .gz), as Multi30k has them."""

    path: str = ""
    """the folder"""
    source_language: str = "en"
    """ending of the files to translate"""
    target_language: str = "de"
    """ending of their translations"""
    train: str = "train"
    """stem of the training files"""
    validation: str = "val"
    """stem of the validation files"""
    test: str = "test_2016_flickr"
    """stem of the test files"""
    max_length: Length = 64
    """tokens, the end included; pairs with a longer side are left out"""


@dataclass(slots=True, kw_only=True)
class TfdsTranslation(Translation):
    """Sentence pairs of a TFDS translation builder. Needs the extra `data`."""

    name: str = "wmt14_translate/de-en"
    """builder name, with config and version where wanted"""
    source_language: str = "en"
    """feature to translate"""
    target_language: str = "de"
    """feature that holds the translation"""
    max_length: Length = 128
    """tokens, the end included; pairs with a longer side are left out"""
    data_dir: str = ""
    """prepared data sets; '' = the library's default"""


@dataclass(slots=True, kw_only=True)
class NumberWords(Translation):
    """Synthetic sentence pairs: numbers in English words, and in German ones."""

    num_documents: Count = 2048
    """pairs of the training split; validation and test have an eighth each"""
    max_length: Length = 96
    """tokens, the end included; pairs with a longer side are left out"""


@dataclass(slots=True, kw_only=True)
class CopiedLetters(Translation):
    """Synthetic sentence pairs: random letters, and the same again; what a model without a way through must invent."""

    length: Count = 8
    """letters of a text"""
    num_letters: Annotated[int, Range(words="2 to 26 letters", least=2, most=26)] = 16
    """different letters"""
    num_documents: Count = 4096
    """pairs of the training split; validation and test have an eighth each"""
    max_length: Length = 16
    """tokens, the end included: more than length"""

    def check(self, field: str, config: Config) -> None:
        Translation.check(self, field, config)
        allowed = f"more than {field}length = {self.length}"
        require(self.max_length > self.length, f"{field}max_length", self.max_length, allowed)


TranslationKind = ParallelText | TfdsTranslation | NumberWords | CopiedLetters
