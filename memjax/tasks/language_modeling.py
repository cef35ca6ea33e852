"""Language modelling: predicts every next token of documents."""

import dataclasses
from typing import Any

import numpy as np

from memjax import config as configs
from memjax.config import Config
from memjax.data.identifiers import ANNOTATION
from memjax.data.opening import Datasets, make_datasets
from memjax.data.reserved_ids import ReservedTokenizer
from memjax.data.text_chunks import TextPieces
from memjax.data.token_files import Progress
from memjax.tasks.interface import TargetSelector, Task, TokenSelector
from memjax.typing import Batch


class LanguageModeling(Task):
    """Language modelling of documents or of fixed-length pieces of them. The target at each token is the next one."""

    verbs = ("generate",)

    def __init__(self, config: Config):
        super().__init__(config)
        self.protocol = "separate" if self.settings.fixed_length_examples else config.data.protocol

    def data(self, progress: Progress | None = None, *, tokenizer: Any = None) -> Datasets:
        """Opens the documents of each split with their tokenizer, cut into pieces of fixed length where the settings
        ask for it. See `Task.data` for the arguments.
        """
        data = self.config.data
        if tokenizer is not None and self.settings.prompt != "none":
            tokenizer = tokenizer.base
        texts = make_datasets(data, tokenizer=tokenizer, progress=progress)
        if not self.settings.fixed_length_examples:
            return texts
        cut: dict[str, Any] = {"length": data.segment_length, "packed": data.protocol == "contiguous"}
        if (prompt_place := self.settings.prompt) != "none":
            # The ids of all prompts follow those of texts, whichever prompt this task has.
            size = texts.vocab_size
            cut |= {"prompt": self.settings.prompt_id(size), "where": prompt_place}
            tokenizer_with_prompts = texts.tokenizer and ReservedTokenizer(
                texts.tokenizer, self.settings.max_prompts, "prompts"
            )
            texts = dataclasses.replace(
                texts, tokenizer=tokenizer_with_prompts, vocab_size=size + self.settings.max_prompts
            )
        pieces = lambda split: TextPieces(texts.documents(split), texts.tokenizer, **cut)
        return dataclasses.replace(texts, documents=pieces)

    def subsets(self, split: Any, evaluation: configs.Evaluation) -> dict[str, TargetSelector]:
        """Returns a dict from names to functions that select targets to score separately as well, each from a batch's
        extras to bool `[batch, length]`. `split` is the opened documents with their annotations.

        There is one for each boolean annotation, and one for distant identifiers of code.

        A distant identifier was last seen in the document more than `evaluation.identifier_distance` tokens before.
        """
        if self.settings.fixed_length_examples:
            return {}
        annotations = split.annotate(0)
        names = [name for name, array in annotations.items() if array.dtype == bool]
        subsets: dict[str, TargetSelector] = {name: lambda extras, name=name: extras[name] for name in names}
        if ANNOTATION in annotations:
            distance = evaluation.identifier_distance or self.config.model.memory_facts.attention_span(
                self.config.data.segment_length
            )
            subsets["distant_identifier"] = lambda extras: extras[ANNOTATION] > distance
        return subsets

    def counted_tokens(self, batch: Batch) -> np.ndarray:
        """Selects the tokens whose next token is scored, bool `[batch, length]`."""
        return batch.weights > 0

    def token_subsets(self, split: Any, evaluation: configs.Evaluation) -> dict[str, TokenSelector]:
        """Returns a dict from names to functions that select the tokens of a batch whose next token belongs to that one
        of the `subsets`. `split` is the opened documents.
        """
        subsets = self.subsets(split, evaluation)
        return {name: lambda batch, chosen=chosen: chosen(batch.extras) for name, chosen in subsets.items()}
