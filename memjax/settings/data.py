"""Settings of the data that is read, and of its division into rows and segments."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from memjax.settings.checks import Settings
from memjax.settings.examples import ExampleKind
from memjax.settings.pairs import TranslationKind
from memjax.settings.ranges import Count, Seed
from memjax.settings.relation_data import RelationKind
from memjax.settings.sources import DocumentKind, PythonLibrary, Source
from memjax.settings.tokenizers import SentencePiece, TokenizerKind

__all__ = ["SourceKind", "Data"]

SourceKind = DocumentKind | ExampleKind | RelationKind | TranslationKind


@dataclass(slots=True, kw_only=True)
class Data(Settings):
    """Where the data comes from, how text becomes tokens, and how tokens are divided into rows and segments.

    Attributes:
      places: Prefixes of the fields with paths of data, which may differ each time that a run is read.
    """

    places = ("source.", "cache_dir", "neighbors_dir", "encoder_states_dir", "tokenizer.vocab", "tokenizer.path")

    source: SourceKind | Source = field(default_factory=PythonLibrary)
    """data set, files or generator that documents or examples are read from"""
    tokenizer: TokenizerKind = field(default_factory=SentencePiece)
    """tokenizer that turns text into tokens; without effect for sources that are tokens already"""
    cache_dir: str = "default"
    """folder of prepared token files and trained tokenizers; 'default' = the user's cache folder; '' = nothing is
    cached"""
    batch_size: Count = 8
    """number of rows of a batch over all hosts; every row reads its own stream of documents"""
    segment_length: Count = 128
    """tokens of a row that the model reads at once; for vectors their number of entries"""
    protocol: Literal["separate", "contiguous"] = "separate"
    """'separate' resets the memory at the start of every document; 'contiguous' joins the corpus, cuts it into as many
    streams as there are rows, and never resets"""
    min_document_length: Count = 1
    """minimum number of tokens of a document; shorter documents are left out"""
    train_half: Literal["", "first", "second"] = ""
    """half of the training documents to read, for keys of a model that has not been trained on their text (`memjax
    datastore neighbors`); 'first' = documents (of WikiText articles) before the middle; 'second' = those after it; '' =
    all"""
    neighbors_dir: str = ""
    """folder with the neighbours of every token of each split, which the output Spalm needs (made by `memjax datastore
    neighbors`); '' = none"""
    encoder_states_dir: str = ""
    """folder with hidden states of a frozen encoder for each text, read in place of the layers below
    `model.first_trained_layer`; missing ones are computed once with the encoder of `training.init_from`; '' = none"""
    seed: Seed = 0
    """seed of the order of the documents"""
