"""Translation of sentence pairs, scored by the BLEU of translations that beam search finds."""

import importlib.util
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from memjax import config as configs
from memjax.data.opening import Datasets
from memjax.data.source_readers import open_source
from memjax.data.sources import texts_without_names
from memjax.inference.beam import detokenized_bleu, tokenized_bleu, translate
from memjax.tasks.interface import GeneratedAnswers, Query
from memjax.tasks.language_modeling import LanguageModeling


class Translation(LanguageModeling):
    """A task of sentence pairs: language modelling of a sentence given its source, scored by the BLEU of translations.

    BLEU is computed of plain texts, and of lower-cased words.
    """

    main_metrics = ("bleu", "perplexity")
    beam_size = 5
    length_penalty = 1.0

    verbs = ("translate",)

    def translate(
        self,
        model: Any,
        variables: Mapping[str, Any],
        sources: Sequence[Sequence[int]],
        data: Datasets,
        *,
        rows: int = 8,
        beam_size: int = beam_size,
        length_penalty: float = length_penalty,
    ) -> Iterator[list[int]]:
        """Yields the token ids of the best translation of every source that beam search finds. `sources` are lists of
        token ids that end with the end token, of which `rows` are translated at once.
        """
        longest = self.config.data.source.max_length
        return translate(
            model,
            variables,
            sources,
            rows=rows,
            source_length=longest,
            begin_token=data.begin_token,
            end_token=data.tokenizer.end_id,
            beam_size=beam_size,
            max_length=longest,
            length_penalty=length_penalty,
            segment_length=self.config.data.segment_length,
        )

    def predict(
        self, model: Any, variables: Mapping[str, Any], queries: Sequence[Query], data: Datasets, **how: Any
    ) -> list[dict[str, Any]]:
        """Translates the text of each query, and returns a dict with the translation as `answer` for each.

        Args:
          model: Translation model.
          variables: Variables of the model.
          queries: Texts to translate.
          data: Data sets of the run, whose tokenizer encodes and decodes the texts.
          **how: Options of `translate`: `rows`, `beam_size` and `length_penalty`.
        """
        longest = self.config.data.source.max_length
        sources = [[*data.tokenizer.encode(text).tolist(), data.tokenizer.end_id] for text, _ in queries]
        for source, (text, _) in zip(sources, queries, strict=True):
            if len(source) > longest:
                text_size = f"{len(source) - 1} tokens ({text[:20]!r}...)"
                raise ValueError(f"text: given {text_size}, allowed: up to {longest - 1}, of data.source.max_length")
        translations = self.translate(model, variables, sources, data, **how)
        return [{"answer": data.tokenizer.decode(ids)} for ids in translations]

    def answers(
        self, model: Any, variables: Mapping[str, Any], split: Any, data: Datasets, evaluation: configs.Evaluation
    ) -> GeneratedAnswers:
        """Translates the first `evaluation.max_answers` of the opened sentence pairs `split`, which leave out pairs
        that are too long, and returns the BLEU of the translations (`GeneratedAnswers`).
        """
        if importlib.util.find_spec("sacrebleu") is None:
            return GeneratedAnswers(
                {}, ("bleu: not measured, sacrebleu is not installed; allowed: pip install 'memjax[eval]'",)
            )
        references = list(texts_without_names(open_source(self.config.data, evaluation.split)[1]))
        count = min(evaluation.max_answers, len(split))
        sources = [split.source(index).tolist() for index in range(count)]
        translations = self.translate(model, variables, sources, data, rows=evaluation.batch_size)
        texts = [data.tokenizer.decode(ids) for ids in translations]
        wanted = [references[int(number)] for number in split.kept[:count]]
        plain, words = detokenized_bleu(texts, wanted), tokenized_bleu(texts, wanted)
        measures = {"bleu": plain.score, "bleu_of_words": words.score, "pairs": count}
        measures["pairs_too_long"] = len(references) - len(split)
        return GeneratedAnswers(
            measures, (f"bleu: {plain.signature}", f"bleu of words: lower-cased words|{words.signature}")
        )
