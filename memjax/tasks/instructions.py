"""Instructions: a language model writes the answer to a question about a context, and the answers are scored.

McCann et al. 2018 (decaNLP), https://arxiv.org/abs/1806.08730; Sun, Ho and Lee 2020, https://arxiv.org/abs/1909.03329.
Every task has the measure that was published for it (`Source.answer_metric`). Answers are decoded greedily. Their
largest length is a setting.

Differs from the published code of LAMOL: that code samples answers unless it is told otherwise, and limits their length
to the longest right answer of the test set. Here the name of a class is right whatever spaces surround it. There the
strings have to be equal.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from memjax import config as configs
from memjax.config import Config
from memjax.data.instruction_readers import read_query, read_state
from memjax.data.instructions import Instruction, InstructionExamples, InstructionTokenizer
from memjax.data.opening import Datasets, make_examples
from memjax.data.prompts import make_prompt, prompt_room
from memjax.data.source_readers import class_names
from memjax.data.token_files import Progress
from memjax.inference.decoding import generate
from memjax.inference.sampling import Sampling
from memjax.tasks.interface import GeneratedAnswers, Query, Task
from memjax.tasks.question_answering import exact_match, f1, normalize_answer
from memjax.typing import Batch


class Instructions(Task):
    """A task of questions about contexts, whose answers a language model writes. The written answers are scored."""

    main_metrics = ("score", "nats_per_token")
    matrix_metrics, extra_metrics = ("score", "nats_per_token"), ("exact_match", "f1")
    target_unit = "tokens of answers"
    second_input = "question"
    writes_answers = True

    def __init__(self, config: Config):
        super().__init__(config)
        self._length, self._longest = config.data.segment_length, self.settings.max_answer_length

    def data(self, progress: Progress | None = None, *, tokenizer: Any = None) -> Datasets:
        """Opens the questions of each split as rows of context, question and answer, with a tokenizer of the training
        texts to which the ids of reserved marks are added.

        Raises:
          ValueError: The run has several processes, which cannot generate answers together, or the data cannot be read.
        """
        if (count := jax.process_count()) > 1:
            raise ValueError(f"task: given Instructions in a run of {count} processes, allowed: one process")
        base = tokenizer and tokenizer.base
        options: dict[str, Any] = {"tokenizer": base, "progress": progress}
        texts = lambda one: (one.context, one.question, *one.answers)
        datasets = make_examples(self.config.data, "instructions", texts, lambda read, tokenizer: read, **options)
        marking_tokenizer = InstructionTokenizer(datasets.tokenizer, self.settings.max_tasks)
        sizes = {"length": self._length, "longest": self._longest}
        documents = lambda split: InstructionExamples(
            datasets.documents(split), marking_tokenizer, show_answers=split == "train", **sizes
        )
        return dataclasses.replace(
            datasets, documents=documents, tokenizer=marking_tokenizer, vocab_size=marking_tokenizer.vocab_size
        )

    def notes(self, split: Any) -> list[str]:
        """Returns lines of text about instructions. `split` is the opened instructions of the training split."""
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
    ) -> GeneratedAnswers:
        """Writes answers to the first `evaluation.max_answers` of the opened instructions `split`, and returns scores
        in percent (`GeneratedAnswers`). `adapt_rows` is a `PerRowAdaptation` that adapts the model to each prompt, or
        None. Where answers are parts of contexts, `answer_in_prompt` is the percentage of prompts that hold one of the
        right answers (`is_answer_in_prompt`), which a context that is cut may lack.
        """
        count, source = min(evaluation.max_answers, len(split)), self.config.data.source
        prompts = [split.prompt(index) for index in range(count)]
        answers = self.write(model, variables, prompts, data, rows=evaluation.batch_size, adapt_rows=adapt_rows)
        # Classes of sources without names are those of all answers of the split, also of those that are not put.
        right = {text for instruction in split.instructions for text in instruction.answers}
        classes = {*class_names(source).values()} or right
        asked, of_stream = split.instructions[:count], classes_of_tasks(self.config)
        measures = score_written_answers(
            asked, answers, source.answer_metric, classes=classes, classes_of_stream=of_stream
        )
        if any(instruction.answer_spans() for instruction in asked):
            measures["answer_in_prompt"] = 100 * float(
                np.mean([is_answer_in_prompt(split, index) for index in range(count)])
            )
        return GeneratedAnswers(measures, tuple(split.notes()))

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
        """Decodes an answer to every prompt, a list of token ids, greedily, and returns the answers as texts. `rows`
        are decoded at once. `adapt_rows` is a `PerRowAdaptation` that adapts the model to each prompt, or None.

        Args:
          model: Language model.
          variables: Variables of the model. For a method that adapts at test time also its state, under 'method'.
          prompts: Token ids of each prompt, ending with the answer mark ANS.
          data: Data sets of the run, whose tokenizer decodes the answers.
          rows: Number of answers decoded at once.
          adapt_rows: A `memjax.training.row_adaptation.PerRowAdaptation` that adapts the parameters to each prompt.
            None = no adaptation.
        """
        tokenizer, answers = data.tokenizer, list[str]()
        decoding = AnswerDecoding(self._length, self._longest, tokenizer.reserved, tokenizer.end_id)
        for first in range(0, len(prompts), rows):
            batch = [
                prompts[min(first + row, len(prompts) - 1)] for row in range(rows)
            ]  # padded to one shape for all batches
            if adapt_rows is None:
                answer_ids = _decode_greedily(model, variables, batch, decoding)
            else:
                answer_ids = _decode_adapted(model, variables, batch, decoding, adapt_rows)
            answers += [tokenizer.decode(ids) for ids in answer_ids[: len(prompts) - first]]
        return answers

    def predict(
        self,
        model: Any,
        variables: Mapping[str, Any],
        queries: Sequence[Query],
        data: Datasets,
        *,
        adapt_rows: Any = None,
        **how: Any,
    ) -> list[dict[str, Any]]:
        """Writes an answer to the question about each text, and returns a dict with it as `answer` for each. See
        `write` for `adapt_rows`.
        """
        del how
        if not all(question for _, question in queries):
            raise ValueError("question: given none, allowed: one about the text")
        tokenizer, room = data.tokenizer, prompt_room(self._length, self._longest)
        parts = [[tokenizer.encode(text).tolist() for text in question] for question in queries]
        prompts = [make_prompt(context, question, tokenizer.answer_id, room) for context, question in parts]
        answers = self.write(model, variables, prompts, data, rows=min(len(prompts), 8), adapt_rows=adapt_rows)
        return [{"answer": text} for text in answers]


class AnswerDecoding(NamedTuple):
    """Options of decoding answers: the lengths of a row and of an answer, forbidden tokens and the end token.

    Attributes:
      length: Number of tokens in a row, including room for the answer behind the prompt.
      longest: Largest number of tokens in an answer.
      forbidden: Token ids that are never generated.
      end_id: Token id that ends an answer.
    """

    length: int
    longest: int
    forbidden: tuple[int, ...]
    end_id: int


def _decode_greedily(
    model: Any, variables: Mapping[str, Any], prompts: Sequence[Sequence[int]], how: AnswerDecoding
) -> list[list[int]]:
    """Continues each prompt with the most probable tokens, up to the end token."""
    sampling = Sampling(temperature=0, forbidden=how.forbidden)
    options: dict[str, Any] = {"segment_length": how.length, "max_tokens": how.longest, "sampling": sampling}
    return generate(model, variables, prompts, stop_tokens=[how.end_id], **options)


def _decode_adapted(
    model: Any, variables: Mapping[str, Any], prompts: Sequence[Sequence[int]], how: AnswerDecoding, adapt_rows: Any
) -> list[list[int]]:
    """Continues each prompt greedily, with parameters adapted to that prompt.

    The model reads the whole row again for every token. The key that searches the episodic memory is computed at the
    last token of the prompt, where the keys of stored rows end too.
    """
    tokens, sizes = np.zeros((len(prompts), how.length), np.int32), np.array([len(prompt) for prompt in prompts])
    for row, prompt in enumerate(prompts):
        tokens[row, : len(prompt)] = prompt
    places = np.arange(how.length)[None]
    weights = (places == sizes[:, None] - 1).astype(np.float32)
    rows = Batch(tokens, np.zeros_like(tokens), places < sizes[:, None], weights, np.ones(len(prompts), bool))
    rows = jax.tree.map(jnp.asarray, rows)
    write = _compile_adapted_writer(model, how, adapt_rows)
    find = adapt_rows.retrieve_support if adapt_rows.runs_outside_jit else jax.jit(adapt_rows.retrieve_support)
    answers = np.asarray(write(variables, rows, find(variables, rows)))
    ends = [int(np.argmax(row == how.end_id)) if (row == how.end_id).any() else how.longest for row in answers]
    return [row[:end].tolist() for row, end in zip(answers, ends, strict=True)]


@functools.lru_cache(maxsize=8)
def _compile_adapted_writer(model: Any, how: AnswerDecoding, adapt_rows: Any) -> Callable[..., Any]:
    """Compiles greedy decoding with adapted parameters, once for each model and method."""

    def write_answers(variables: Mapping[str, Any], rows: Batch, support: Any) -> Any:
        unadapted = {name: value for name, value in variables.items() if name != "method"}

        def predict(params: Any, row: Batch) -> Any:
            adapted, size = {**unadapted, "params": params}, jnp.sum(row.mask)

            def step(number: Any, tokens: Any) -> Any:
                mask = jnp.arange(len(tokens)) < size + number
                options = {"start_of_document": row.start_of_document[None], "mask": mask[None]}
                hidden = model.apply(adapted, tokens[None], model.init_state(1), **options)[0]
                last = jax.lax.dynamic_slice_in_dim(hidden, size + number - 1, 1, axis=1)
                scores = model.apply(adapted, last, method="log_probs")[0, 0]
                best = jnp.argmax(scores.at[jnp.array(how.forbidden)].set(-jnp.inf))
                return tokens.at[size + number].set(best.astype(tokens.dtype))

            tokens = jax.lax.fori_loop(0, how.longest, step, row.inputs)
            return jax.lax.dynamic_slice_in_dim(tokens, size, how.longest)

        return adapt_rows.score_adapted(variables, rows, support, predict)

    return jax.jit(write_answers)


def classes_of_tasks(config: Config) -> frozenset[str]:
    """Returns the names of the classes of the task of a run, and of all tasks of its stream, whose answers are classes
    with names that are known before the data is read.
    """
    sources = [config.data.source, *(task.source for task in (config.lifelong.tasks if config.lifelong else ()))]
    classified = [source for source in sources if source.answer_metric == "class"]
    return frozenset(name for source in classified for name in class_names(source).values())


def is_answer_in_prompt(split: InstructionExamples, index: int) -> bool:
    """Returns whether the prompt of an example holds one of its right answers: at the place in the context where an
    answer is known to be, or, where no place is known, as whole words after the normalisation of `f1`.

    An answer that has no words after that, such as 'the', is in no prompt.

    Args:
      split: Opened instructions.
      index: Number of the example.
    """
    if places := split.places_in_prompt(index):
        return any(places)
    context = f" {normalize_answer(split.context(index))} "
    answers = map(normalize_answer, split.instructions[index].answers)
    return any(answer and f" {answer} " in context for answer in answers)


def score_written_answers(
    instructions: Sequence[Instruction],
    given: Sequence[str],
    answered_by: str,
    *,
    classes: Collection[str] = (),
    classes_of_stream: Collection[str] = (),
) -> dict[str, float]:
    """Returns the scores of written answers (`given`, one text each) in percent, by name, each against the right answer
    that suits it best. `answered_by` names the measure that becomes `score`, such as 'words'.

    Args:
      instructions: Questions with their right answers.
      given: One written answer to each question.
      answered_by: Name of the measure that becomes `score`. 'words' is the normalised F1 of SQuAD. 'class' is whether
        an answer is exactly the name of the class. 'logical_form' is whether a query has the same parts as the right
        one. 'dialogue_state' is whether a turn changes the state as it should. A right query that cannot be parsed, as
        3 of the 15,878 WikiSQL test queries whose values contain quotes, must have the same words in any case.
      classes: Names of the classes of the task of `instructions`, whose right answers are among them in any case.
      classes_of_stream: Names of the classes of all tasks of the stream. Those that are no class of the task itself
        count as classes of other tasks.

    Returns:
      Percentages by name: `score`, and the normalised `exact_match` and `f1`. For classes also `class_of_another_task`,
      answers that are no class of this task but one of another task of the stream, `class_of_no_task`, answers that are
      neither, and `largest_class`, the score of always giving the most frequent class. For queries also
      `no_query`, answers that are not a query. For dialogues also `joint_goal`, turns after which the whole state so
      far is right, and `turn_requests`, turns whose requests are right.

    Example:
      >>> asked = [Instruction("", "", ("The cat",)), Instruction("", "", ("a dog", "dog"))]
      >>> score_written_answers(asked, ["cat", "a dog"], "words")["score"]
      100.0
      >>> measured = score_written_answers(asked, ["Sports", "dog"], "class", classes_of_stream=["Sports"])
      >>> measured["score"], measured["class_of_another_task"], measured["class_of_no_task"]
      (50.0, 50.0, 0.0)
    """
    pairs = list(zip(instructions, given, strict=True))

    def mean(measure: Callable[[str, str], float]) -> float:
        return 100 * float(
            np.mean([max(measure(text, right) for right in instruction.answers) for instruction, text in pairs])
        )

    measured = {"exact_match": mean(exact_match), "f1": mean(f1)}
    match answered_by:
        case "words":
            return {"score": measured["f1"], **measured}
        case "class":
            shares = _class_shares(instructions, given, classes, classes_of_stream)
            return {"score": mean(lambda text, right: text.strip() == right), **measured, **shares}
        case "logical_form":
            none = 100 * float(np.mean([read_query(text) is None for _, text in pairs]))
            return {"score": mean(_is_same_query), **measured, "no_query": none}
        case "dialogue_state":
            turns = mean(lambda text, right: read_state(text) == read_state(right))
            requests = mean(lambda text, right: _parse_changes(text)[1] == _parse_changes(right)[1])
            return {"score": turns, **measured, "joint_goal": _joint_goal(pairs), "turn_requests": requests}
    allowed = "'words', 'class', 'logical_form', 'dialogue_state'"
    raise ValueError(f"answered_by: given {answered_by!r}, allowed: {allowed}")


def _class_shares(
    instructions: Sequence[Instruction],
    given: Sequence[str],
    classes: Collection[str],
    classes_of_stream: Collection[str],
) -> dict[str, float]:
    """Returns the percentages of answers that are a class of another task, and no class, and that of the largest class
    of the right answers, by name. See `score_written_answers`.
    """
    right_answers = {right for instruction in instructions for right in instruction.answers}
    wrong = [text.strip() for text in given if text.strip() not in right_answers.union(classes)]
    of_others = sum(text in classes_of_stream for text in wrong)
    largest = max(sum(label in instruction.answers for instruction in instructions) for label in right_answers)
    numbers = {"class_of_another_task": of_others, "class_of_no_task": len(wrong) - of_others, "largest_class": largest}
    return {name: 100 * number / len(given) for name, number in numbers.items()}


def _is_same_query(text: str, right: str) -> bool:
    """Returns whether two queries have the same parts. If the right one cannot be parsed, compares their words."""
    wanted = read_query(right)
    return text.lower().split() == right.lower().split() if wanted is None else read_query(text) == wanted


def _joint_goal(both: Sequence[tuple[Instruction, str]]) -> float:
    """Returns the percentage of turns after which all slots mentioned so far have exactly their right values."""
    is_right: list[bool] = []
    group, predicted_state, right_state = None, dict[str, str](), dict[str, str]()
    for instruction, text in both:
        if instruction.group != group:
            group, predicted_state, right_state = instruction.group, {}, {}
        predicted_state, right_state = (
            {**predicted_state, **_parse_changes(text)[0]},
            {**right_state, **_parse_changes(instruction.answers[0])[0]},
        )
        is_right.append(predicted_state == right_state)
    return 100 * float(np.mean(is_right))


def _parse_changes(text: str) -> tuple[dict[str, str], frozenset[str]]:
    """Returns the slots that an answer sets and its requests. Both are empty where it is not a state change."""
    return read_state(text) or ({}, frozenset())
