"""What is read, and how it is cut into rows."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from memjax.settings.examples import ExampleKind
from memjax.settings.pairs import TranslationKind
from memjax.settings.ranges import Count, Seed
from memjax.settings.relation_sources import RelationKind
from memjax.settings.relations import Settings
from memjax.settings.sources import DocumentKind, PythonLibrary
from memjax.settings.tokenizers import SentencePiece, TokenizerKind

__all__ = ["SourceKind", "Data"]

SourceKind = DocumentKind | ExampleKind | RelationKind | TranslationKind


@dataclass(slots=True, kw_only=True)
class Data(Settings):
    """What is read, and how it is cut into rows.

    Attributes:
      places: beginnings of the fields that say where data is, not what: they may differ wherever a run is read.
    """

    places = ("source.", "cache_dir", "neighbors", "states", "tokenizer.vocab", "tokenizer.path")

    source: SourceKind = field(default_factory=PythonLibrary)
    """where documents come from"""
    tokenizer: TokenizerKind = field(default_factory=SentencePiece)
    """text to tokens; sources that are tokens already ignore it"""
    cache_dir: str = "default"
    """folder of prepared token files and trained tokenizers; 'default' = the user's cache folder; '' = none is read or
    kept"""
    rows: Count = 8
    """batch rows over all hosts: one document stream each"""
    segment_length: Count = 128
    """tokens of one segment"""
    protocol: Literal["separate", "contiguous"] = "separate"
    """reset memory at document starts, or cut the corpus into `rows` contiguous streams that never reset"""
    min_document_length: Count = 1
    """tokens; shorter documents are left out"""
    half: Literal["", "first", "second"] = ""
    """part of the training split that is read: '' = all, else its documents (WikiText: articles) before the middle, or
    from there on; a model of each half makes keys of text that it has not learned (`memjax datastore neighbors`)"""
    neighbors: str = ""
    """folder with the neighbours of every token of each split, which Spalm needs (`memjax datastore neighbors`)"""
    states: str = ""
    """folder with what the layers below `model.first_layer` give of each text; what it lacks is computed once, by the
    encoder of `training.init_from`"""
    seed: Seed = 0
    """order of the documents"""
