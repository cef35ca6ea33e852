"""Instructions as rows, their readers, and the marks that no text is read as."""

import dataclasses
import json

import numpy as np
import pytest

from memjax.config import (
    BytePairs,
    Data,
    InstructionLines,
    KeyValueRecall,
    LabelledFile,
    QaSrl,
    Squad,
    Sst,
    TextClasses,
    ToyInstructions,
    WikiSql,
    Woz,
)
from memjax.data.byte_pairs import train_byte_pairs
from memjax.data.instruction_readers import (
    read_instruction_lines,
    read_query,
    read_state,
    wikisql_instructions,
    woz_instructions,
    write_state,
)
from memjax.data.instructions import Instruction, InstructionExamples, InstructionTokenizer, select_instructions
from memjax.data.prompts import make_prompt
from memjax.data.source_readers import CLASS_QUESTION, read_instructions
from memjax.data.tokenizers import ByteTokenizer
from memjax.lifelong.lamol import split_at_answer_mark
from memjax.tasks.instructions import score_written_answers

TOKENIZER = InstructionTokenizer(ByteTokenizer(), max_tasks=5)
ONE = Instruction("abcdef", "why?", ("so", "because"))


def test_a_row_asks_for_the_answer_and_its_end():
    rows = InstructionExamples([ONE], TOKENIZER, length=24, longest=4)
    found = rows.example(0)
    asked = found.targets[found.weights > 0]
    assert asked.tolist() == [*TOKENIZER.encode("so"), TOKENIZER.end_id] and len(asked) == len("so") + 1
    first = int(np.flatnonzero(found.weights)[0])
    assert found.inputs[first] == TOKENIZER.answer_id and len(found.targets) == 24
    assert rows.num_bytes(0) == 2 and rows.num_tokens(0) == len(found.inputs) == 6 + 4 + 1 + 2


@pytest.mark.parametrize(("length", "context"), [(14, "abcdef"), (13, "abcde"), (9, "a"), (8, "")])
def test_the_context_alone_is_cut_off(length, context):
    """GEN, question, ANS and the longest answer always fit."""
    rows = InstructionExamples([ONE], TOKENIZER, length=length, longest=2)
    prompt, answer = rows.rows[0]
    assert TOKENIZER.decode(prompt) == context + "why?" and TOKENIZER.decode(answer) == "so"
    assert len(rows.example(0).inputs) <= length - 1


def test_what_does_not_fit_is_left_out_and_counted():
    short = dataclasses.replace(ONE, question="?")
    rows = InstructionExamples([ONE, short], TOKENIZER, length=7, longest=2)
    assert (len(rows), rows.skipped, rows.notes()[0][0]) == (1, 1, "1") and rows.instructions[0].question == "?"
    # A question that would not fit in front of the longest answer cannot be put.
    assert InstructionExamples([ONE, short], TOKENIZER, length=9, longest=6).skipped == 1
    # An answer that is longer than the longest one needs a short context.
    long = dataclasses.replace(ONE, answers=("a longer answer",))
    assert InstructionExamples([long, ONE], TOKENIZER, length=20, longest=9).skipped == 1
    assert InstructionExamples([long, ONE], TOKENIZER, length=27, longest=9).skipped == 0
    with pytest.raises(ValueError, match="segment_length: given 5, allowed: more"):
        InstructionExamples([ONE], TOKENIZER, length=5, longest=1)
    with pytest.raises(ValueError, match="question: given 4 tokens, allowed: up to 3"):
        make_prompt([1], [2, 3, 4, 5], TOKENIZER.answer_id, 4)


LONG = " ".join(f"word{number}" for number in range(30))


@pytest.mark.parametrize("place", ["short", "begin", "middle", "end"])
@pytest.mark.parametrize("kind", ["bytes", "pairs"])
def test_a_row_begins_with_its_prompt_and_shows_its_answer_in_training_alone(pairs, kind, place):
    tokenizer = {"bytes": TOKENIZER, "pairs": pairs}[kind]
    answer = "Mär 3"
    words = {
        "short": answer,
        "begin": f"{answer} {LONG}",
        "middle": f"{LONG} {answer} {LONG}",
        "end": f"{LONG} {answer}",
    }
    context = words[place]
    asked = Instruction(context, "when?", (answer,), answer_starts=(context.index(answer),))
    sizes = {"length": 50, "longest": 8}
    tests, train = (InstructionExamples([asked], tokenizer, show_answers=shown, **sizes) for shown in (False, True))
    for rows in (tests, train):
        prompt = rows.prompt(0)
        assert rows.example(0).inputs[: len(prompt)].tolist() == prompt and len(prompt) <= 50 - 1 - 8
        assert tokenizer.decode(prompt[:-1]).endswith("when?") and prompt[-1] == tokenizer.answer_id
    assert train.places_in_prompt(0) == [True] and tests.places_in_prompt(0) == [place in ("short", "begin")]
    assert prompt_holds(train, answer) and prompt_holds(tests, answer) is (place in ("short", "begin"))
    # A test knows no answer: its prompt is that of any other answer.
    other = dataclasses.replace(asked, answers=("x",), answer_starts=())
    assert tests.prompt(0) == InstructionExamples([other], tokenizer, show_answers=True, **sizes).prompt(0)
    assert (train.prompt(0) == tests.prompt(0)) is (place in ("short", "begin"))


def prompt_holds(rows, answer):
    return answer in TOKENIZER.decode(TOKENIZER.encode(rows.context(0)))


def test_only_the_answers_whose_places_are_known_have_places():
    """An answer that stands in the context by chance has none."""
    context = "so it is, and so it was"
    sizes = {"length": 22, "longest": 2}
    for starts, wanted in (((0, 3), [True, True]), ((14, -1), [False]), ((), [])):
        asked = Instruction(context, "why?", ("so", "it"), answer_starts=starts)
        rows = InstructionExamples([asked], TOKENIZER, **sizes)
        assert rows.places_in_prompt(0) == wanted and rows.context(0) == context[:14]


@pytest.fixture(scope="module")
def pairs(tmp_path_factory):
    """Byte pairs of words of the tasks."""
    pytest.importorskip("tokenizers")
    words = 4 * ["What is the change in state?", "select count from table where", "negative positive ANS <|endoftext|>"]
    trained = train_byte_pairs(words, tmp_path_factory.mktemp("pairs") / "tokenizer.json", vocab_size=320)
    return InstructionTokenizer(trained, max_tasks=5)


@pytest.mark.parametrize(
    "text", ["ANS", " ANS ", "<ANS>", "__ans__", "<|endoftext|>", "a<|endoftext|>ANS<|endoftext|>"]
)
@pytest.mark.parametrize("kind", ["bytes", "pairs"])
def test_no_text_is_read_as_a_mark(pairs, text, kind):
    tokenizer = {"bytes": TOKENIZER, "pairs": pairs}[kind]
    others = {*tokenizer.reserved, tokenizer.begin_id, tokenizer.end_id, tokenizer.pad_id}
    ids = tokenizer.encode(text)
    assert not {*ids.tolist()} & others and tokenizer.decode(ids) == text
    one = Instruction(f"{text} a", f"{text}?", (text,))
    [(prompt, answer)] = InstructionExamples([one], tokenizer, length=200, longest=50).rows
    assert not {*prompt[:-1], *answer} & others and prompt[-1] == tokenizer.answer_id
    assert (tokenizer.decode(prompt), tokenizer.decode(answer)) == (f"{text} a{text}?", text)


def test_marks_have_no_text():
    assert TOKENIZER.decode([TOKENIZER.answer_id, *TOKENIZER.encode("a"), TOKENIZER.first_task_id + 4]) == "a"
    assert TOKENIZER.token_bytes([TOKENIZER.answer_id, int(TOKENIZER.encode("a")[0])]).tolist() == [0, 1]


def test_every_task_has_its_mark_from_the_start():
    ids = [TOKENIZER.answer_id, TOKENIZER.generate_id, *(TOKENIZER.first_task_id + i for i in range(5))]
    assert sorted(ids) == list(range(ByteTokenizer().vocab_size, TOKENIZER.vocab_size))
    assert InstructionTokenizer(ByteTokenizer(), 6).fingerprint != TOKENIZER.fingerprint
    assert TOKENIZER.base.fingerprint == ByteTokenizer().fingerprint


def test_some_are_chosen_by_a_hash_and_groups_stay_whole():
    many = [Instruction(str(i), "", ("",), group=str(i // 3)) for i in range(30)]
    chosen = select_instructions(many, 7)
    assert len(chosen) == 9 and chosen == select_instructions(many[::-1][::-1], 7)
    assert {*map(len, _groups(chosen))} == {3} and select_instructions(many, 0) == many
    assert select_instructions(many, 7, seed=1) != chosen


def _groups(chosen):
    return [[one for one in chosen if one.group == group] for group in {one.group for one in chosen}]


# Readers


def put(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text if isinstance(text, str) else json.dumps(text), "utf-8")
    return str(path.parent)


TURN = {"system_transcript": "Which?", "transcript": " West ", "turn_label": [["area", "west"], ["request", "phone"]]}
QUERY = {
    "sql": ['SELECT COUNT TABLEalias0.A_FIELD FROM TABLE AS TABLEalias0 WHERE TABLEalias0.B_FIELD = "var0" ;'],
    "sentences": [{"original": "how many? ", "text": "x", "question-split": "dev", "variables": {"var0": "Ann Lee"}}],
}


def open_with(source, split="train"):
    return read_instructions(Data(source=source, tokenizer=BytePairs()), split)


def test_every_reader_gives_a_context_a_question_and_an_answer(tmp_path):
    sst = Sst(path=put(tmp_path / "sst" / "stsa.binary.train", "1 fine film\n0 dull film"))
    assert [(one.context, one.answers) for one in open_with(sst)] == [
        ("fine film", ("positive",)),
        ("dull film", ("negative",)),
    ]
    woz = Woz(path=put(tmp_path / "woz" / "woz_validate_en.json", [{"dialogue_idx": 3, "dialogue": [TURN]}]))
    [one] = open_with(woz, "validation")
    assert (one.context, one.answers, one.group) == ("Which? West", ("area: west; phone",), "3")
    sql = WikiSql(path=put(tmp_path / "sql" / "wikisql.json", [QUERY]))
    [one] = open_with(sql, "validation")
    answer = 'SELECT COUNT A_FIELD FROM TABLE WHERE B_FIELD = "Ann Lee"'
    assert (one.context, one.answers) == ("how many?", (answer,)) and open_with(sql) == []
    assert read_query(answer) == ("count", "a_field", frozenset({("b_field", "=", "ann lee")}))
    line = '{"context": "c", "question": "q", "answers": "a"}\n{"question": "p", "answers": ["a", "b"]}'
    lines = InstructionLines(path=put(tmp_path / "own" / "test.jsonl", line))
    assert open_with(lines, "test") == [Instruction("c", "q", ("a",)), Instruction("", "p", ("a", "b"))]
    put(tmp_path / "srl" / "sentences" / "wikinews.dev.full.csv", "qasrl_id,tokens\ns,Ann saw it")
    put(tmp_path / "srl" / "gold" / "wikinews.dev.gold.csv", "qasrl_id,question,answer_range\ns,Who?,0:1~!~2:3")
    [one] = open_with(QaSrl(path=str(tmp_path / "srl"), validation_percent=0))
    assert one == Instruction("Ann saw it", "Who?", ("Ann", "it"), answer_starts=(0, 8))
    texts = put(tmp_path / "own.csv", "".join(f"{('good', 'bad')[i % 2]},sky {i}\n" for i in range(80)))
    own = LabelledFile(path=f"{texts}/own.csv", classes=("bad", "good"), class_ids=(0, 1))
    found = [(one.context[:4], *one.answers) for one in open_with(own)]
    assert {*found} == {("sky ", "good"), ("sky ", "bad")} and len({*map(len, found)}) == 1


def files_of(folder, kind):
    """A source, and files with one example of its kind in the split `test`."""
    match kind:
        case "sst":
            return Sst(path=put(folder / "stsa.binary.test", "0 a dull , dull film"))
        case "woz":
            turn = {**TURN, "turn_label": [["food", "north indian"], ["area", "west"], ["request", "phone"]]}
            return Woz(path=put(folder / "woz_test_en.json", [{"dialogue_idx": 3, "dialogue": [turn]}]))
        case "wikisql":
            query = {**QUERY, "sentences": [{**QUERY["sentences"][0], "question-split": "test"}]}
            return WikiSql(path=put(folder / "wikisql.json", [query]))
        case "qa_srl":
            put(folder / "sentences" / "wikinews.test.full.csv", "qasrl_id,tokens\ns,Ann saw it")
            put(folder / "gold" / "wikinews.test.gold.csv", "qasrl_id,question,answer_range\ns,Who?,0:1~!~2:3")
            return QaSrl(path=str(folder))
        case "squad":
            answers = [{"text": "Mär 3", "answer_start": 6}, {"text": "3", "answer_start": 10}]
            paragraph = {"context": "It is Mär 3.", "qas": [{"question": "When?", "id": "1", "answers": answers}]}
            about = {"data": [{"title": "t", "paragraphs": [paragraph]}]}
            put(folder / "train-v1.1.json", about)
            return Squad(path=put(folder / "dev-v1.1.json", about))
    put(folder / "train.csv", "".join(f'"3","a title","text {number}"\n' for number in range(8)))
    return TextClasses(data_set="dbpedia", path=put(folder / "test.csv", '"10","Ash","It is a tree."\n'))


WHOLE = {
    "sst": ("a dull , dull film", "Is this review negative or positive?", "negative"),
    "woz": ("Which? West", "What is the change in state?", "food: north indian, area: west; phone"),
    "wikisql": (
        "how many?",
        "What is the translation from English to SQL?",
        'SELECT COUNT A_FIELD FROM TABLE WHERE B_FIELD = "Ann Lee"',
    ),
    "qa_srl": ("Ann saw it", "Who?", "Ann"),
    "squad": ("It is Mär 3.", "When?", "Mär 3"),
    "text_classes": ("Ash. It is a tree.", CLASS_QUESTION, "Animal"),
}
"""context, question and first answer of the files of each kind"""


@pytest.mark.parametrize("kind", WHOLE)
def test_a_row_of_every_task_gives_its_texts_back(tmp_path, pairs, kind):
    source, (context, question, answer) = files_of(tmp_path, kind), WHOLE[kind]
    asked, sizes = open_with(source, "test"), {"length": 160, "longest": 72}
    rows = InstructionExamples(asked, pairs, **sizes)
    # In training it begins with the same prompt, and so does a longer text, whatever its answer is.
    assert InstructionExamples(asked, pairs, show_answers=True, **sizes).rows == rows.rows
    longer = [dataclasses.replace(asked[0], context=f"{context} {LONG}", answers=(text,)) for text in (answer, "x")]
    prompts = [
        InstructionExamples([one], pairs, show_answers=shown, **sizes).prompt(0)
        for one in longer
        for shown in (False, True)
    ]
    assert all(prompt == prompts[0] for prompt in prompts) and len(prompts[0]) == 160 - 1 - 72
    assert len(rows) == 1 and rows.instructions[0].answers[0] == answer
    found = rows.example(0)
    prompt, said = split_at_answer_mark(found.inputs.tolist(), pairs.answer_id) or ([], [])
    assert pairs.decode(prompt) == context + question and pairs.decode(said) == answer
    assert found.targets[found.weights > 0].tolist() == [*said, pairs.end_id]
    # As a model writes it, it is right, with every measure.
    measured = score_written_answers(rows.instructions, [pairs.decode(said)], source.answer_metric)
    wrong = {"class_of_another_task", "class_of_no_task", "no_query"}
    assert measured == {name: 0.0 if name in wrong else 100.0 for name in measured}
    if kind == "woz":
        state = {"food": "north indian", "area": "west"}, frozenset({"phone"})
        assert read_state(pairs.decode(said)) == read_state(answer) == state
    if kind == "wikisql":
        query = "count", "a_field", frozenset({("b_field", "=", "ann lee")})
        assert read_query(pairs.decode(said)) == read_query(answer) == query


@pytest.mark.parametrize(
    ("source", "name", "text", "line"),
    [
        (Sst, "stsa.binary.train", "2 film", "train:1: class '2', allowed: 0 or 1"),
        (Woz, "woz_train_en.json", "{", r"is not JSON \(.*\), allowed: the JSON of WOZ 2\.0"),
        (WikiSql, "wikisql.json", [{"sql": []}], "has no 'sentences', allowed: the JSON of text2sql-data"),
        (
            InstructionLines,
            "train.jsonl",
            '{"question": "q"}',
            "jsonl:1 has no 'answers', allowed: a JSON object with question",
        ),
        (Sst, "other", "", "has no stsa.binary.train"),
    ],
)
def test_files_of_another_form_are_refused_in_one_line(tmp_path, source, name, text, line):
    with pytest.raises(ValueError, match=line) as found:
        open_with(source(path=put(tmp_path / name, text)))
    assert "\n" not in str(found.value)


def test_sources_without_questions_are_refused():
    with pytest.raises(ValueError, match="source: given KeyValueRecall, allowed: a source of instructions"):
        open_with(KeyValueRecall())


@pytest.mark.parametrize("change", ["copy", "reverse", "sort"])
def test_toys_say_what_they_do(change):
    toy = ToyInstructions(change=change, num_letters=4, length=4, num_examples=16)
    for one in open_with(toy):
        wanted = {"copy": one.context, "reverse": one.context[::-1], "sort": "".join(sorted(one.context))}
        assert one.answers == (wanted[change],)
    assert len(open_with(toy, "test")) == 2


@pytest.mark.parametrize("text", ["none", "food: thai", "; phone", "area: west, food: thai; address, phone"])
def test_states_are_read_as_they_are_written(text):
    found = read_state(text)
    assert found is not None
    informs, requests = found
    assert write_state(informs.items(), sorted(requests)) in (text, text.lstrip("; "), f"; {text}")


def test_lines_end_at_line_feeds_and_may_be_empty(tmp_path):
    rows = [{"question": "what\u2028now?", "answers": "go"}, {"context": "a", "question": "b", "answers": ["c", "d"]}]
    text = "\n\n".join(json.dumps(row, ensure_ascii=False) for row in rows)
    (tmp_path / "train.jsonl").write_text(text + "\n", encoding="utf-8")
    found = read_instruction_lines(str(tmp_path), "train")
    assert [(one.context, one.question, one.answers) for one in found] == [
        ("", "what\u2028now?", ("go",)), ("a", "b", ("c", "d"))
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "text", "read"),
    [
        ("train.jsonl", '{"context": null, "question": "a", "answers": "b"}', read_instruction_lines),
        ("woz_train_en.json", '[{"dialogue_idx": 1, "dialogue": [{"turn_label": [], "system_transcript": null, '
         '"transcript": "a"}]}]', woz_instructions),
        ("wikisql.json", '[{"sql": [], "sentences": [{"question-split": "train", "variables": {}, "original": "a"}]}]',
         wikisql_instructions),
    ],
)  # fmt: skip
def test_what_a_file_lacks_is_no_traceback(tmp_path, name, text, read):
    (tmp_path / name).write_text(text)
    with pytest.raises(ValueError, match=name) as refused:
        read(str(tmp_path), "train")
    assert "\n" not in str(refused.value)
