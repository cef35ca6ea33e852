"""Text-to-text examples of a language model: a context, a question, and the answer that the model must generate.

A row has the form of LAMOL (Sun, Ho and Lee 2020, https://arxiv.org/abs/1909.03329): context, question, the mark ANS,
the answer, the end token. Marks are ids after those of the tokenizer, so that no text is ever read as a mark.

Prompts of training rows and of tests are made alike (`memjax.data.prompts`).
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from memjax.data.documents import Example, Examples
from memjax.data.prompts import answer_window, locate_answer, make_prompt, prompt_room
from memjax.data.reader_errors import expect
from memjax.data.reserved_ids import ReservedTokenizer
from memjax.data.tokenizers import Tokenizer

__all__ = [
    "Instruction",
    "InstructionExamples",
    "InstructionTokenizer",
    "Marks",
    "PromptExamples",
    "select_instructions",
]


@dataclasses.dataclass(frozen=True)
class Instruction:
    """A question about a context, and its correct answers.

    Attributes:
      context: Text of the context. Empty if there is none.
      question: Text of the question.
      answers: Correct answers. Training learns the first.
      group: Name of the group of instructions that belong together in order, such as a dialogue. Empty for no group.
      answer_starts: Position of the first character of each answer in the context, -1 for an answer that is no part of
        it. Empty if none is known.
    """

    context: str
    question: str
    answers: tuple[str, ...]
    group: str = ""
    answer_starts: tuple[int, ...] = ()

    def __post_init__(self):
        for text in (self.context, self.question, *self.answers):
            expect(text, str)

    def answer_spans(self) -> list[tuple[int, int]]:
        """Returns the position of the first character and the number of characters of each answer that is known to be a
        part of the context, as a list.
        """
        starts = self.answer_starts or (-1,) * len(self.answers)
        return [(start, len(text)) for start, text in zip(starts, self.answers, strict=True) if start >= 0]


class Marks(NamedTuple):
    """Ids of the marks of instructions, which are the last ids of a vocabulary: ANS, GEN, and the first of the task
    marks. Also the size of that vocabulary.

    Attributes:
      answer_id: Id of the mark ANS, between question and answer.
      generate_id: Id of the mark GEN, after which a model generates an example of any task.
      first_task_id: Id of the first task mark. A task mark replaces GEN for examples of one task.
      vocab_size: Number of ids of the vocabulary, including marks.
    """

    answer_id: int
    generate_id: int
    first_task_id: int
    vocab_size: int

    @classmethod
    def behind(cls, size: int, max_tasks: int) -> Marks:
        """Returns the marks that come after the `size` ids of a tokenizer, with `max_tasks` task marks."""
        return cls(size, size + 1, size + 2, size + 2 + max_tasks)

    @classmethod
    def of(cls, vocab_size: int, max_tasks: int) -> Marks:
        """Returns the marks of a vocabulary whose `vocab_size` ids include them, among them `max_tasks` task marks."""
        return cls.behind(vocab_size - 2 - max_tasks, max_tasks)


class InstructionTokenizer(ReservedTokenizer):
    """A tokenizer with additional ids at the end, which stand for no text: the marks ANS before an answer, GEN before
    an example that the model generates, and one for each task.

    Attributes:
      answer_id: Id of the mark ANS. See `Marks`.
      generate_id: Id of the mark GEN. See `Marks`.
      first_task_id: Id of the first task mark. See `Marks`.
    """

    def __init__(self, tokenizer: Tokenizer, max_tasks: int):
        """Adds the marks to a tokenizer.

        Args:
          tokenizer: Tokenizer of texts.
          max_tasks: Number of task marks.
        """
        super().__init__(tokenizer, 2 + max_tasks, f"instructions-{max_tasks}")
        self.answer_id, self.generate_id, self.first_task_id, _ = Marks.behind(tokenizer.vocab_size, max_tasks)


class PromptExamples(Examples):
    """Examples of a prompt, which ends with ANS, and an answer, both given as ids. The targets are the answer and the
    end token.
    """

    def __init__(self, rows: Sequence[tuple[Sequence[int], Sequence[int]]], tokenizer: Any, *, length: int, name: str):
        """Takes prompts and answers as ids.

        Args:
          rows: Pairs of prompt and answer, at most `length - 1` ids together, so that a mark fits in front of them.
          tokenizer: Tokenizer with marks.
          length: Number of ids of a row.
          name: Name of the kind of examples, which enters their fingerprint.
        """
        self.rows, self._tokenizer, self._length = list(rows), tokenizer, length
        digest = hashlib.sha256(f"{name}/{length}/{tokenizer.fingerprint}".encode())
        for prompt, answer in self.rows:
            digest.update(np.array([*prompt, -1, *answer, -2], "<i8").tobytes())
        self.fingerprint = "instructions-" + digest.hexdigest()[:16]

    def __len__(self) -> int:
        return len(self.rows)

    def example(self, index: int, /, epoch: int = 0) -> Example:
        del epoch
        prompt, answer = self.rows[index]
        targets, weights = np.zeros(self._length, np.int32), np.zeros(self._length, np.float32)
        target_places = slice(len(prompt) - 1, len(prompt) + len(answer))
        targets[target_places], weights[target_places] = [*answer, self._tokenizer.end_id], 1
        return Example(np.array([*prompt, *answer], np.int32), targets, weights)

    def num_tokens(self, index: int, /) -> int:
        return sum(map(len, self.rows[index]))

    def num_bytes(self, index: int, /) -> int:
        return int(self._tokenizer.token_bytes(np.array(self.rows[index][1], np.int32)).sum())


class InstructionExamples(PromptExamples):
    """Examples of a prompt and an answer, made from instructions. The prompt is context, question and ANS. The end of
    the context is cut off where the prompt would leave no room for an answer of the longest length.

    An instruction is left out (`skipped`) if its question alone leaves no room for the longest answer, or if its own
    answer is longer than that and has no room behind its prompt.

    Attributes:
      instructions: Instruction of each example.
      skipped: Number of instructions that are left out.

    Example:
      >>> from memjax.data.tokenizers import ByteTokenizer
      >>> tokenizer = InstructionTokenizer(ByteTokenizer(), max_tasks=1)
      >>> rows = InstructionExamples([Instruction("a b c", "copy?", ("abc",))], tokenizer, length=14, longest=4)
      >>> tokenizer.decode(rows.prompt(0)), int(rows.example(0).weights.sum())
      ('a bcopy?', 4)
    """

    def __init__(
        self,
        instructions: Sequence[Instruction],
        tokenizer: Any,
        *,
        length: int,
        longest: int,
        show_answers: bool = False,
    ):
        """Tokenises all instructions.

        Args:
          instructions: Instructions of a split.
          tokenizer: Tokenizer with marks.
          length: Number of tokens of a row, including the mark GEN or a task mark in front.
          longest: Largest number of tokens of a generated answer.
          show_answers: Whether a context that is cut is read from where it holds the answer (`answer_window`), for
            training. Tests do not know the answer, and read the beginning of the context.

        Raises:
          ValueError: No instructions, or none that fits.
        """
        if not instructions:
            raise ValueError("instructions: none in this split; give more, or a larger share")
        rows, self.instructions, room = [], list[Instruction](), prompt_room(length, longest)
        self._parts: list[tuple[int, int]] = []  # Tokens of the context in the prompt: the first, and the one after.
        for instruction in instructions:
            context, question, answer = (tokenizer.encode(text).tolist() for text in _texts_of(instruction))
            if (places := room - 1 - len(question)) < 0:
                continue
            first = _first_token(instruction, tokenizer, places) if show_answers and len(context) > places else 0
            prompt = make_prompt(context[first:], question, tokenizer.answer_id, room)
            if len(prompt) + len(answer) >= length:
                continue
            rows.append((prompt, answer))
            self._parts.append((first, min(first + places, len(context))))
            self.instructions.append(instruction)
        self.skipped = len(instructions) - len(rows)
        if not rows:
            raise ValueError(f"data.segment_length: given {length}, allowed: more, no question and answer fits")
        super().__init__(rows, tokenizer, length=length, name="read")

    def notes(self) -> list[str]:
        """Returns a list with a line about the instructions that were left out. Empty if none were."""
        line = f"{self.skipped} examples are left out: question or answer are too long for a segment"
        return [line] if self.skipped else []

    def prompt(self, index: int) -> list[int]:
        """Returns the prompt of an example as a list of ids, as it stands at the beginning of the example's row."""
        return list(self.rows[index][0])

    def context(self, index: int) -> str:
        """Returns the context in the prompt of an example, which may be cut."""
        first, end = self._parts[index]
        return self._tokenizer.decode(self.rows[index][0][: end - first])

    def places_in_prompt(self, index: int) -> list[bool]:
        """Returns for each answer of an example whose place in the context is known whether the prompt, whose context
        may be cut, has the whole answer at that place.
        """
        instruction, (first, end) = self.instructions[index], self._parts[index]
        locate = lambda span: locate_answer(self._tokenizer.encode, instruction.context, *span)
        spans = [locate(span) for span in instruction.answer_spans()]
        return [first <= begin and stop <= end for begin, stop in spans]


def select_instructions(instructions: Sequence[Instruction], number: int, *, seed: int = 0) -> list[Instruction]:
    """Selects at least `number` instructions (0 for all) by a hash of their group or text, without splitting groups, in
    the original order.

    Args:
      instructions: Instructions to select from.
      number: Smallest number of instructions to select. The last selected group may exceed it. 0 for all.
      seed: Seed of the hash.

    Example:
      >>> turns = [Instruction("", str(number), ("",), group=str(number // 2)) for number in range(8)]
      >>> [turn.question for turn in select_instructions(turns, 3)]
      ['0', '1', '4', '5']
    """
    if not number or number >= len(instructions):
        return list(instructions)
    groups: dict[str, list[int]] = {}
    for place, instruction in enumerate(instructions):
        groups.setdefault(instruction.group or f"\0{instruction.question}\0{instruction.context}", []).append(place)
    hash_of = lambda name: hashlib.sha256(f"{seed}/{name}".encode("utf-8", "surrogateescape")).digest()
    selected: list[int] = []
    for name in sorted(groups, key=hash_of):
        if len(selected) >= number:
            break
        selected += groups[name]
    return [instructions[place] for place in sorted(selected)]


def _texts_of(instruction: Instruction) -> tuple[str, str, str]:
    """Returns the context, the question and the first answer of an instruction."""
    return instruction.context, instruction.question, instruction.answers[0]


def _first_token(instruction: Instruction, tokenizer: Tokenizer, places: int) -> int:
    """Returns the number of the token at which a part of `places` tokens of a context begins that holds its first
    answer. 0 if the place of that answer is not known.
    """
    start = instruction.answer_starts[0] if instruction.answer_starts else -1
    if start < 0:
        return 0
    span = locate_answer(tokenizer.encode, instruction.context, start, len(instruction.answers[0]))
    return answer_window(*span, places)
