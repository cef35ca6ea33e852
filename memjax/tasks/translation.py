"""Translation: sentence pairs, and the BLEU of what beam search finds."""

import importlib.util
from collections.abc import Mapping
from typing import Any

from memjax import config as configs
from memjax.data.opening import Datasets, open_source
from memjax.data.sources import only_texts
from memjax.inference.beam import detokenized_bleu, tokenized_bleu, translate
from memjax.tasks.contract import Answers
from memjax.tasks.language_modeling import LanguageModeling


class Translation(LanguageModeling):
    """Sentences with their source as context; measured by BLEU, of plain texts and of lower-cased words."""

    headline = ("bleu", "perplexity")
    beam_size = 5
    length_penalty = 1.0

    def answers(
        self, model: Any, variables: Mapping[str, Any], split: Any, data: Datasets, evaluation: configs.Evaluation
    ) -> Answers:
        """Translates the first pairs of a split that are short enough."""
        if importlib.util.find_spec("sacrebleu") is None:
            return Answers({}, ("bleu: not measured, sacrebleu is not installed; allowed: pip install 'memjax[eval]'",))
        references = list(only_texts(open_source(self.config.data, evaluation.split)[1]))
        source: Any = self.config.data.source
        count = min(evaluation.answers, len(split))
        found = translate(
            model,
            variables,
            [split.source(index).tolist() for index in range(count)],
            rows=evaluation.rows,
            source_length=source.max_length,
            begin_token=data.begin_token,
            end_token=data.tokenizer.end_id,
            beam_size=self.beam_size,
            max_length=source.max_length,
            length_penalty=self.length_penalty,
            segment_length=self.config.data.segment_length,
        )
        texts = [data.tokenizer.decode(ids) for ids in found]
        wanted = [references[int(number)] for number in split.kept[:count]]
        plain, words = detokenized_bleu(texts, wanted), tokenized_bleu(texts, wanted)
        measures = {"bleu": plain.score, "bleu_of_words": words.score, "pairs": count}
        measures["pairs_too_long"] = len(references) - len(split)
        return Answers(measures, (f"bleu: {plain.signature}", f"bleu of words: lower-cased words|{words.signature}"))
