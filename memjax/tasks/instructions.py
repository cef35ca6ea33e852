"""Instructions: a language model writes the answer to a question about a context, and the words are scored.

McCann et al. 2018 (decaNLP), https://arxiv.org/abs/1806.08730; Sun, Ho and Lee 2020, https://arxiv.org/abs/1909.03329.
Every task has the measure that was published for it (`Source.answered_by`). Answers are written greedily; how long one
may be is a setting.

Differs from the published code of LAMOL: it draws answers unless it is told otherwise, and takes the longest right
answer of the test set as their length. The name of a class is right with spaces around it, which are none of it; there
it has to be the same string.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from memjax import config as configs
from memjax.config import Config
from memjax.data.instructions import (
    Instruction,
    InstructionExamples,
    InstructionTokenizer,
    prompt_of,
    read_query,
    read_state,
)
from memjax.data.opening import Datasets, make_examples
from memjax.data.token_files import Progress
from memjax.inference.decoding import generate
from memjax.inference.sampling import Sampling
from memjax.tasks.contract import Answers, Asked, Task
from memjax.tasks.question_answering import exact_match, f1
from memjax.typing import Batch

__all__ = ["Instructions", "score_written"]


class Instructions(Task):
    """Contexts with questions; measured by what the model writes."""

    headline = ("score", "nats_per_token")
    matrix, beside = ("score", "nats_per_token"), ("exact_match", "f1")
    scored = "tokens of answers"
    about = "question"
    writes_answers = True

    def __init__(self, config: Config):
        super().__init__(config)
        self._length, self._longest = config.data.segment_length, self.settings.max_answer_length

    def data(self, progress: Progress | None = None, *, tokenizer: Any = None) -> Datasets:
        """Rows of instructions, with the tokenizer of those to train on and its marks.

        Raises:
          ValueError: several processes, which do not write together; or as the readers.
        """
        if (count := jax.process_count()) > 1:
            raise ValueError(f"task: given Instructions in a run of {count} processes, allowed: one process")
        base = tokenizer and tokenizer.base
        named: dict[str, Any] = {"tokenizer": base, "progress": progress}
        texts = lambda one: (one.context, one.question, *one.answers)
        found = make_examples(self.config.data, "instructions", texts, lambda read, tokenizer: read, **named)
        marked = InstructionTokenizer(found.tokenizer, self.settings.max_tasks)
        sizes = {"length": self._length, "longest": self._longest}
        documents = lambda split: InstructionExamples(found.documents(split), marked, **sizes)
        return dataclasses.replace(found, documents=documents, tokenizer=marked, vocab_size=marked.vocab_size)

    def notes(self, split: Any) -> list[str]:
        return split.notes()

    def answers(
        self,
        model: Any,
        variables: Mapping[str, Any],
        split: Any,
        data: Datasets,
        evaluation: configs.Evaluation,
        *,
        adapt_rows: Any = None,
    ) -> Answers:
        """Writes the answers to the first questions of a split."""
        count, room = min(evaluation.answers, len(split)), self._length - self._longest
        prompts = [split.prompt(index, room) for index in range(count)]
        given = self.write(model, variables, prompts, data, rows=evaluation.rows, adapt_rows=adapt_rows)
        return Answers(score_written(split.instructions[:count], given, self.config.data.source.answered_by))

    def write(
        self,
        model: Any,
        variables: Mapping[str, Any],
        prompts: Sequence[Sequence[int]],
        data: Datasets,
        *,
        rows: int,
        adapt_rows: Any = None,
    ) -> list[str]:
        """The answer to every prompt, the most probable token after the other.

        Args:
          model: a language model.
          variables: its variables, and of a run that adapts what it adapts with.
          prompts: each ends with ANS.
          data: with the tokenizer.
          rows: written side by side.
          adapt_rows: every prompt is answered with parameters of its own (`memjax.training.evaluation.AdaptRows`).
        """
        tokenizer, answers = data.tokenizer, list[str]()
        how = Writing(self._length, self._longest, tokenizer.reserved, tokenizer.end_id)
        for first in range(0, len(prompts), rows):
            some = [prompts[min(first + row, len(prompts) - 1)] for row in range(rows)]  # one shape for all
            if adapt_rows is None:
                found = write_greedily(model, variables, some, how)
            else:
                found = write_adapted(model, variables, some, how, adapt_rows)
            answers += [tokenizer.decode(ids) for ids in found[: len(prompts) - first]]
        return answers

    def predict(
        self,
        model: Any,
        variables: Mapping[str, Any],
        asked: Sequence[Asked],
        data: Datasets,
        *,
        adapt_rows: Any = None,
        **how: Any,
    ) -> list[dict[str, Any]]:
        """Writes an answer to each question about a text."""
        del how
        if not all(question for _, question in asked):
            raise ValueError("question: given none, allowed: one about the text")
        tokenizer, room = data.tokenizer, self._length - self._longest
        parts = [[tokenizer.encode(text).tolist() for text in one] for one in asked]
        prompts = [prompt_of(context, question, tokenizer.answer_id, room) for context, question in parts]
        given = self.write(model, variables, prompts, data, rows=min(len(prompts), 8), adapt_rows=adapt_rows)
        return [{"answer": text} for text in given]


class Writing(NamedTuple):
    """How answers are written.

    Attributes:
      length: of a row, in which a prompt leaves room for an answer.
      longest: tokens of an answer, at most.
      forbidden: ids that are never written.
      end_id: ends an answer.
    """

    length: int
    longest: int
    forbidden: tuple[int, ...]
    end_id: int


def write_greedily(
    model: Any, variables: Mapping[str, Any], prompts: Sequence[Sequence[int]], how: Writing
) -> list[list[int]]:
    """What follows each prompt: the most probable tokens up to the end one."""
    sampling = Sampling(temperature=0, forbidden=how.forbidden)
    named: dict[str, Any] = {"segment_length": how.length, "max_tokens": how.longest, "sampling": sampling}
    return generate(model, variables, prompts, stop_tokens=[how.end_id], **named)


def write_adapted(
    model: Any, variables: Mapping[str, Any], prompts: Sequence[Sequence[int]], how: Writing, adapt_rows: Any
) -> list[list[int]]:
    """The same with parameters that are adapted to each prompt, which reads all of its row again for every token.

    A prompt asks for one thing, behind its last token: that is where the key of a row of the memory ends too.
    """
    tokens, sizes = np.zeros((len(prompts), how.length), np.int32), np.array([len(prompt) for prompt in prompts])
    for row, prompt in enumerate(prompts):
        tokens[row, : len(prompt)] = prompt
    places = np.arange(how.length)[None]
    asked = (places == sizes[:, None] - 1).astype(np.float32)
    rows = Batch(tokens, np.zeros_like(tokens), places < sizes[:, None], asked, np.ones(len(prompts), bool))
    rows = jax.tree.map(jnp.asarray, rows)
    write = _adapted_writer(model, how, adapt_rows)
    find = adapt_rows.find if adapt_rows.outside else jax.jit(adapt_rows.find)
    found = np.asarray(write(variables, rows, find(variables, rows)))
    ends = [int(np.argmax(row == how.end_id)) if (row == how.end_id).any() else how.longest for row in found]
    return [row[:end].tolist() for row, end in zip(found, ends, strict=True)]


@functools.lru_cache(maxsize=8)
def _adapted_writer(model: Any, how: Writing, adapt_rows: Any) -> Callable[..., Any]:
    """Compiled once for a model and a method."""

    def written(variables: Mapping[str, Any], rows: Batch, support: Any) -> Any:
        own = {name: value for name, value in variables.items() if name != "method"}

        def predict(params: Any, row: Batch) -> Any:
            given, size = {**own, "params": params}, jnp.sum(row.mask)

            def step(number: Any, tokens: Any) -> Any:
                mask = jnp.arange(len(tokens)) < size + number
                named = {"start_of_document": row.start_of_document[None], "mask": mask[None]}
                hidden = model.apply(given, tokens[None], model.init_state(1), **named)[0]
                last = jax.lax.dynamic_slice_in_dim(hidden, size + number - 1, 1, axis=1)
                scores = model.apply(given, last, method="log_probs")[0, 0]
                best = jnp.argmax(scores.at[jnp.array(how.forbidden)].set(-jnp.inf))
                return tokens.at[size + number].set(best.astype(tokens.dtype))

            tokens = jax.lax.fori_loop(0, how.longest, step, row.inputs)
            return jax.lax.dynamic_slice_in_dim(tokens, size, how.longest)

        return adapt_rows.score(variables, rows, support, predict)

    return jax.jit(written)


def score_written(instructions: Sequence[Instruction], given: Sequence[str], answered_by: str) -> dict[str, float]:
    """Measures of written answers, in percent, each the best over the right ones.

    Args:
      instructions: what was asked.
      given: an answer to each.
      answered_by: the measure that is the `score`: 'words' is the normalised F1 of SQuAD, 'class' whether an answer is
        the very name, 'logical_form' whether a query has the same parts (where the right one cannot be read, as 3 of
        the 15,878 that WikiSQL tests on, whose values have quotes of their own: the same words, in any case),
        'dialogue_state' whether a turn changes the state as it should.

    Returns:
      `score`; normalised `exact_match` and `f1`; of classes `no_class`, answers that are none of those that were seen;
      of queries `no_query`; of dialogues `joint_goal` (all that was said so far is right) and `turn_requests`.

    Example:
      >>> asked = [Instruction("", "", ("The cat",)), Instruction("", "", ("a dog", "dog"))]
      >>> score_written(asked, ["cat", "a dog"], "words")["score"]
      100.0
      >>> score_written(asked, ["cat", "dog"], "class")
      {'score': 50.0, 'exact_match': 100.0, 'f1': 100.0, 'no_class': 50.0}
    """
    both = list(zip(instructions, given, strict=True))

    def mean(measure: Callable[[str, str], float]) -> float:
        return 100 * float(np.mean([max(measure(text, right) for right in one.answers) for one, text in both]))

    measured = {"exact_match": mean(exact_match), "f1": mean(f1)}
    match answered_by:
        case "words":
            return {"score": measured["f1"], **measured}
        case "class":
            known = {right for one in instructions for right in one.answers}
            none = 100 * float(np.mean([text.strip() not in known for _, text in both]))
            return {"score": mean(lambda text, right: text.strip() == right), **measured, "no_class": none}
        case "logical_form":
            none = 100 * float(np.mean([read_query(text) is None for _, text in both]))
            return {"score": mean(_same_query), **measured, "no_query": none}
        case "dialogue_state":
            turns = mean(lambda text, right: read_state(text) == read_state(right))
            requests = mean(lambda text, right: _changes(text)[1] == _changes(right)[1])
            return {"score": turns, **measured, "joint_goal": _joint_goal(both), "turn_requests": requests}
    allowed = "'words', 'class', 'logical_form', 'dialogue_state'"
    raise ValueError(f"answered_by: given {answered_by!r}, allowed: {allowed}")


def _same_query(text: str, right: str) -> bool:
    wanted = read_query(right)
    return text.lower().split() == right.lower().split() if wanted is None else read_query(text) == wanted


def _joint_goal(both: Sequence[tuple[Instruction, str]]) -> float:
    """Percent of turns after which every slot that was given so far has its last value, and no other slot has one."""
    right: list[bool] = []
    group, said, wanted = None, dict[str, str](), dict[str, str]()
    for one, text in both:
        if one.group != group:
            group, said, wanted = one.group, {}, {}
        said, wanted = {**said, **_changes(text)[0]}, {**wanted, **_changes(one.answers[0])[0]}
        right.append(said == wanted)
    return 100 * float(np.mean(right))


def _changes(text: str) -> tuple[dict[str, str], frozenset[str]]:
    """What an answer changes in a state; one that is no change, nothing."""
    return read_state(text) or ({}, frozenset())
