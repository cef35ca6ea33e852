"""Dialogues about documents: a model answers each utterance, and its answers are scored against those of people."""

import collections
import importlib.metadata
import importlib.util
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from memjax import config as configs
from memjax.data.dialogue import Dialogue, DialogueDocuments, Turn, Utterance
from memjax.data.opening import Datasets
from memjax.inference.beam import words_of
from memjax.inference.decoding import generate, prefill, read_tokens
from memjax.inference.sampling import Sampling
from memjax.tasks.interface import GeneratedAnswers, Query
from memjax.tasks.language_modeling import LanguageModeling

__all__ = ["answer_turns", "score_answers"]

NUCLEUS = Sampling(top_p=0.9, temperature=0.7)
GREEDY = Sampling(temperature=0.0)


class DialogueModeling(LanguageModeling):
    """Language modelling of utterances, also scored by the overlap of generated answers with the utterances of people.

    Answers are generated twice: with nucleus sampling and greedily.
    """

    main_metrics = ("perplexity", "nucleus_f1")
    verbs = ("generate", "predict")
    second_input = "document"
    max_tokens = 64

    def answers(
        self, model: Any, variables: Mapping[str, Any], split: Any, data: Datasets, evaluation: configs.Evaluation
    ) -> GeneratedAnswers:
        """Generates an answer in place of every utterance of the first `evaluation.max_answers` of the opened dialogues
        `split`, once with nucleus sampling and once greedily, and returns scores of both (`GeneratedAnswers`).
        """
        measures, notes = {}, ()
        for name, sampling in (("nucleus", NUCLEUS), ("greedy", GREEDY)):
            answers = list(
                answer_turns(
                    model,
                    variables,
                    split,
                    segment_length=self.config.data.segment_length,
                    sampling=sampling,
                    rows=evaluation.batch_size,
                    max_dialogues=evaluation.max_answers,
                    max_tokens=self.max_tokens,
                )
            )
            texts = [data.tokenizer.decode(answer.tokens) for answer in answers]
            scores, notes = _score_with_installed(
                texts, [data.tokenizer.decode(answer.reference) for answer in answers]
            )
            measures |= {f"{name}_{measure}": number for measure, number in scores.items()}
            measures["utterances"] = len(answers)
        return GeneratedAnswers(measures, notes)

    def predict(
        self, model: Any, variables: Mapping[str, Any], queries: Sequence[Query], data: Datasets, **how: Any
    ) -> list[dict[str, Any]]:
        """Generates the next utterance of each dialogue greedily, as `answer` of a dict. The lines of a query's text
        are a dialogue of two alternating speakers, its `second` the document.
        """
        del how
        source: Any = self.config.data.source
        dialogues = [Dialogue(document, _alternate_speakers([*text.splitlines(), "?"])) for text, document in queries]
        length = self.config.data.segment_length
        documents = DialogueDocuments(
            dialogues,
            data.tokenizer,
            layout=source.document,
            segment_length=length,
            document_length=source.document_length,
            max_utterance_length=source.max_utterance_length,
        )
        settings = {"segment_length": length, "sampling": GREEDY, "max_tokens": self.max_tokens}
        last = {}
        for answer in answer_turns(model, variables, documents, rows=min(8, len(documents)), **settings):
            last[answer.turn.dialogue] = data.tokenizer.decode(answer.tokens)
        return [{"answer": last[number]} for number in range(len(queries))]


def _alternate_speakers(lines: Sequence[str]) -> tuple[Utterance, ...]:
    """Turns the non-empty lines of a dialogue into utterances of two alternating speakers."""
    return tuple(Utterance(number % 2, line) for number, line in enumerate(line for line in lines if line.strip()))


class Answer(NamedTuple):
    """An answer that a model generated in place of an utterance: its token ids, those of the utterance, and the place
    of the utterance in the dialogue.

    Attributes:
      turn: Position of the utterance in its dialogue.
      tokens: Token ids of the answer, without the end token.
      reference: Token ids of the utterance itself, without the end token.
    """

    turn: Turn
    tokens: list[int]
    reference: list[int]


def answer_turns(
    model: Any,
    variables: Any,
    documents: DialogueDocuments,
    *,
    segment_length: int,
    sampling: Sampling = NUCLEUS,
    rows: int = 16,
    max_dialogues: int = 0,
    max_tokens: int = 64,
    seed: int = 0,
) -> Iterator[Answer]:
    """Yields an `Answer` in place of each utterance of each dialogue, generated given the utterances of people before
    it. `rows` dialogues are answered at once. `max_dialogues` limits their number, 0 for all.

    A dialogue is read once. At each utterance a copy of the state continues with the model's own words, and the state
    itself continues with the utterance.

    Args:
      model: Language model.
      variables: Variables of the model.
      documents: Dialogues of one split.
      segment_length: Number of tokens in a segment, as in training.
      sampling: Method of choosing tokens. Marks and begin tokens are never generated.
      rows: Number of rows of `documents` that are answered at once.
      max_dialogues: Number of dialogues to answer, from the first. 0 = all.
      max_tokens: Largest number of tokens in an answer.
      seed: Seed of the sampling.

    Yields:
      An `Answer` for each utterance.
    """
    tokenizer, numbers = documents.tokenizer, range(len(documents))
    count = sum(documents.turns(i)[0].dialogue < (max_dialogues or len(documents)) for i in numbers)
    special = {*range(tokenizer.separator_id, tokenizer.vocab_size), tokenizer.begin_id, tokenizer.pad_id}
    settings = {
        "segment_length": segment_length,
        "sampling": sampling.without(special - {tokenizer.end_id}),
        "max_tokens": max_tokens,
        "stop_tokens": [tokenizer.end_id],
        "seed": seed,
    }
    for first in range(0, count, rows):
        # Rows without a document repeat the last one, so that every batch has the same shape.
        indices = [min(first + row, count - 1) for row in range(rows)]
        tokens, turns = [documents[index].tolist() for index in indices], [documents.turns(index) for index in indices]
        before = [
            [tokenizer.begin_id, *ids[: turns_of_row[0].start]] for ids, turns_of_row in zip(tokens, turns, strict=True)
        ]
        prefix = prefill(model, variables, before, segment_length=segment_length)
        for number in range(max(map(len, turns))):
            if number:
                new_tokens = [
                    ids[turns_of_row[number - 1].start : turns_of_row[number].start]
                    if number < len(turns_of_row)
                    else []
                    for ids, turns_of_row in zip(tokens, turns, strict=True)
                ]
                prefix = read_tokens(model, variables, *_pad_rows(new_tokens, segment_length), prefix)
                before = [[*ids, *more] for ids, more in zip(before, new_tokens, strict=True)]
            answers = generate(model, variables, before, prefix=prefix, **settings)
            for row in range(min(rows, count - first)):
                if number < len(turns[row]):
                    turn = turns[row][number]
                    reference = [token for token in tokens[row][turn.start : turn.stop] if token != tokenizer.end_id]
                    yield Answer(turn, answers[row], reference)


def _pad_rows(pieces: Sequence[Sequence[int]], multiple: int) -> tuple[Any, Any]:
    """Pads token ids of several rows to a multiple of `multiple`, and returns them with the lengths of the rows."""
    lengths = np.array([len(piece) for piece in pieces])
    tokens = np.zeros((len(pieces), -(-max(int(lengths.max()), 1) // multiple) * multiple), np.int32)
    for row, piece in enumerate(pieces):
        tokens[row, : len(piece)] = piece
    return jnp.asarray(tokens), jnp.asarray(lengths)


class AnswerScores(NamedTuple):
    """Mean word F1, ROUGE-1, ROUGE-L and METEOR of answers, each against one reference, from 0 to 100.

    Attributes:
      f1: Mean `word_f1`.
      rouge_1: F-measure of ROUGE-1 from the package rouge-score, without stemming.
      rouge_l: F-measure of ROUGE-L (longest common subsequence) from the package rouge-score, without stemming.
      meteor: METEOR of NLTK with exact and stem matches. Synonyms do not match, so it is not comparable with METEOR
        that uses WordNet.
      signature: Libraries, their versions and the settings of the scores, as one line.
    """

    f1: float
    rouge_1: float
    rouge_l: float
    meteor: float
    signature: str


def score_answers(answers: Sequence[str], references: Sequence[str]) -> AnswerScores:
    """Scores lower-cased answers, each against its reference, by the libraries of the extra `eval`. Returns mean
    `AnswerScores` from 0 to 100. Downloads nothing.

    Raises:
      ValueError: The numbers of answers and references differ or are 0, or a library is missing.
    """
    if len(answers) != len(references) or not answers:
        raise ValueError(
            f"answers: given {len(answers)} for {len(references)} references, allowed: as many, at least one"
        )
    try:
        from nltk.translate.meteor_score import single_meteor_score
        from rouge_score.rouge_scorer import RougeScorer
    except ImportError:
        raise ValueError("answers: ROUGE and METEOR need rouge-score and nltk; install memjax[eval]") from None
    scorer = RougeScorer(["rouge1", "rougeL"], use_stemmer=False)
    rows = []
    for answer, reference in zip(answers, references, strict=True):
        rouge = scorer.score(reference.lower(), answer.lower())
        meteor = single_meteor_score(words_of(reference), words_of(answer), wordnet=_NoSynonyms())  # type: ignore[arg-type]
        rows.append([word_f1(answer, reference), rouge["rouge1"].fmeasure, rouge["rougeL"].fmeasure, meteor])
    versions = {name: importlib.metadata.version(name) for name in ("rouge-score", "nltk")}
    signature = (
        f"lower-cased|F1 of words without articles|rouge-score {versions['rouge-score']} F-measure, no stemmer|"
        f"METEOR nltk {versions['nltk']}, exact and Porter stem matches, no WordNet"
    )
    f1, rouge_1, rouge_l, meteor = (100 * np.mean(np.array(rows, np.float64), axis=0)).tolist()
    return AnswerScores(f1, rouge_1, rouge_l, meteor, signature)


def _score_with_installed(
    answers: Sequence[str], references: Sequence[str]
) -> tuple[dict[str, float], tuple[str, ...]]:
    """Computes all scores that the installed libraries offer, and a line that describes them."""
    missing = [name for name in ("rouge_score", "nltk") if importlib.util.find_spec(name) is None]
    if not missing:
        scores = score_answers(answers, references)._asdict()
        return {name: value for name, value in scores.items() if name != "signature"}, (scores["signature"],)
    f1_scores = [word_f1(answer, reference) for answer, reference in zip(answers, references, strict=True)]
    line = f"rouge, meteor: not measured, {missing[0]} is not installed; allowed: pip install 'memjax[eval]'"
    return {"f1": 100 * float(np.mean(f1_scores))}, (line,)


def word_f1(answer: str, reference: str) -> float:
    """Returns the F1 score, from 0 to 1, of the words of an answer and a reference text, ignoring case, punctuation and
    articles.

    Example:
      >>> word_f1("The shark, of course!", "It is a shark of course")
      0.75
      >>> word_f1("", "Yes")
      0.0
    """
    answer_words, reference_words = (collections.Counter(_plain_words(text)) for text in (answer, reference))
    shared = (answer_words & reference_words).total()
    return 2 * shared / (answer_words.total() + reference_words.total()) if shared else 0.0


def _plain_words(text: str) -> list[str]:
    """Splits a text into lower-cased words without punctuation and articles."""
    words = re.sub(r"[^\w\s]", " ", text.lower()).split()
    return [word for word in words if word not in ("a", "an", "the")]


class _NoSynonyms:
    """A stand-in for WordNet without entries, with which METEOR only matches words and stems."""

    def synsets(self, word: str, **_: Any) -> list[Any]:
        return []
