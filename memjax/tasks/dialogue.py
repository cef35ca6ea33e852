"""Dialogues about documents: what a model answers, and what that shares with the answers that people gave."""

import collections
import importlib.metadata
import importlib.util
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from memjax import config as configs
from memjax.data.dialogue import Dialogue, Dialogues, Turn, Utterance
from memjax.data.opening import Datasets
from memjax.inference.beam import words_of
from memjax.inference.decoding import generate, prefill, read_tokens
from memjax.inference.sampling import Sampling
from memjax.tasks.contract import Answers, Asked
from memjax.tasks.language_modeling import LanguageModeling

__all__ = ["answer_turns", "score_answers"]

NUCLEUS = Sampling(top_p=0.9, temperature=0.7)
GREEDY = Sampling(temperature=0.0)


class DialogueModeling(LanguageModeling):
    """Utterances are scored; measured by what answers share with those given, drawn from a nucleus and greedily."""

    headline = ("perplexity", "nucleus_f1")
    verbs = ("generate", "predict")
    about = "document"
    max_tokens = 64

    def answers(
        self, model: Any, variables: Mapping[str, Any], split: Any, data: Datasets, evaluation: configs.Evaluation
    ) -> Answers:
        """Answers every utterance of the first dialogues of a split."""
        measures, notes = {}, ()
        for name, sampling in (("nucleus", NUCLEUS), ("greedy", GREEDY)):
            found = list(
                answer_turns(
                    model,
                    variables,
                    split,
                    segment_length=self.config.data.segment_length,
                    sampling=sampling,
                    rows=evaluation.rows,
                    max_dialogues=evaluation.answers,
                    max_tokens=self.max_tokens,
                )
            )
            said = [data.tokenizer.decode(answer.tokens) for answer in found]
            scores, notes = _score(said, [data.tokenizer.decode(answer.reference) for answer in found])
            measures |= {f"{name}_{measure}": number for measure, number in scores.items()}
            measures["utterances"] = len(found)
        return Answers(measures, notes)

    def predict(
        self, model: Any, variables: Mapping[str, Any], asked: Sequence[Asked], data: Datasets, **how: Any
    ) -> list[dict[str, Any]]:
        """What a model says next, greedily: the lines of a text are what two people have said about a document."""
        del how
        source: Any = self.config.data.source
        dialogues = [Dialogue(document, _alternating([*text.splitlines(), "?"])) for text, document in asked]
        length = self.config.data.segment_length
        documents = Dialogues(
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
        return [{"answer": last[number]} for number in range(len(asked))]


def _alternating(lines: Sequence[str]) -> tuple[Utterance, ...]:
    """What two people say in turn."""
    return tuple(Utterance(number % 2, line) for number, line in enumerate(line for line in lines if line.strip()))


class Answer(NamedTuple):
    """What a model says instead of an utterance.

    Attributes:
      turn: whose.
      tokens: ids, without the end token.
      reference: ids of what was said, without the end token.
    """

    turn: Turn
    tokens: list[int]
    reference: list[int]


def answer_turns(
    model: Any,
    variables: Any,
    documents: Dialogues,
    *,
    segment_length: int,
    sampling: Sampling = NUCLEUS,
    rows: int = 16,
    max_dialogues: int = 0,
    max_tokens: int = 64,
    seed: int = 0,
) -> Iterator[Answer]:
    """What the model says at each utterance of each dialogue, after all that people have said before it.

    A dialogue is read once: at each utterance a copy of the state goes on with the model's words, the state itself with
    what was said.

    Args:
      model: a language model.
      variables: its variables.
      documents: of a split.
      segment_length: tokens of a segment, as in training.
      sampling: how words are chosen; marks and begin tokens never are.
      rows: of `documents`, side by side.
      max_dialogues: only the first so many; 0 = all.
      max_tokens: of an answer.
      seed: of sampling.
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
        some = [min(first + row, count - 1) for row in range(rows)]
        tokens, turns = [documents[index].tolist() for index in some], [documents.turns(index) for index in some]
        before = [[tokenizer.begin_id, *ids[: where[0].start]] for ids, where in zip(tokens, turns, strict=True)]
        prefix = prefill(model, variables, before, segment_length=segment_length)
        for number in range(max(map(len, turns))):
            if number:
                said = [
                    ids[where[number - 1].start : where[number].start] if number < len(where) else []
                    for ids, where in zip(tokens, turns, strict=True)
                ]
                prefix = read_tokens(model, variables, *_padded(said, segment_length), prefix)
                before = [[*ids, *more] for ids, more in zip(before, said, strict=True)]
            found = generate(model, variables, before, prefix=prefix, **settings)
            for row in range(min(rows, count - first)):
                if number < len(turns[row]):
                    turn = turns[row][number]
                    reference = [token for token in tokens[row][turn.start : turn.stop] if token != tokenizer.end_id]
                    yield Answer(turn, found[row], reference)


def _padded(pieces: Sequence[Sequence[int]], multiple: int) -> tuple[Any, Any]:
    """Ids of rows side by side and how many they are; few different widths, each of which is compiled once."""
    lengths = np.array([len(piece) for piece in pieces])
    tokens = np.zeros((len(pieces), -(-max(int(lengths.max()), 1) // multiple) * multiple), np.int32)
    for row, piece in enumerate(pieces):
        tokens[row, : len(piece)] = piece
    return jnp.asarray(tokens), jnp.asarray(lengths)


class AnswerScores(NamedTuple):
    """Means over answers, each beside its single reference, from 0 to 100.

    Attributes:
      f1: of words (`word_f1`).
      rouge_1: F-measure of rouge-score, without stemming.
      rouge_l: likewise, of the longest common subsequence.
      meteor: of NLTK with exact and stem matches, without synonyms: not comparable with numbers that match WordNet too.
      signature: libraries, versions and settings.
    """

    f1: float
    rouge_1: float
    rouge_l: float
    meteor: float
    signature: str


def score_answers(answers: Sequence[str], references: Sequence[str]) -> AnswerScores:
    """Scores lower-cased texts. Needs the extra `eval`; nothing is downloaded.

    Raises:
      ValueError: sides of different sizes or none, or a library that is missing.
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


def _score(answers: Sequence[str], references: Sequence[str]) -> tuple[dict[str, float], tuple[str, ...]]:
    """Everything that the installed libraries measure, and a line on how."""
    missing = [name for name in ("rouge_score", "nltk") if importlib.util.find_spec(name) is None]
    if not missing:
        scores = score_answers(answers, references)._asdict()
        return {name: value for name, value in scores.items() if name != "signature"}, (scores["signature"],)
    each = [word_f1(answer, reference) for answer, reference in zip(answers, references, strict=True)]
    line = f"rouge, meteor: not measured, {missing[0]} is not installed; allowed: pip install 'memjax[eval]'"
    return {"f1": 100 * float(np.mean(each))}, (line,)


def word_f1(answer: str, reference: str) -> float:
    """Harmonic mean of precision and recall of the words that two texts share, without case, marks and articles.

    Example:
      >>> word_f1("The shark, of course!", "It is a shark of course")
      0.75
      >>> word_f1("", "Yes")
      0.0
    """
    ours, theirs = (collections.Counter(_plain_words(text)) for text in (answer, reference))
    shared = (ours & theirs).total()
    return 2 * shared / (ours.total() + theirs.total()) if shared else 0.0


def _plain_words(text: str) -> list[str]:
    words = re.sub(r"[^\w\s]", " ", text.lower()).split()
    return [word for word in words if word not in ("a", "an", "the")]


class _NoSynonyms:
    """A WordNet without entries: METEOR then matches words and stems."""

    def synsets(self, word: str, **_: Any) -> list[Any]:
        return []
