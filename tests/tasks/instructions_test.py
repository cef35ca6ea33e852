"""What is made of answers that a model writes, and what instructions refuse."""

import pytest

from memjax.config import (
    GPT2,
    LAMOL,
    Bidirectional,
    Bytes,
    Config,
    Data,
    Dense,
    Evaluation,
    InstructionLines,
    Instructions,
    KeyValueRecall,
    Lifelong,
    Model,
    ProgressiveNetwork,
    Sequential,
    Sst,
    TaskData,
    TextClasses,
    ToyInstructions,
    WordPiece,
    Woz,
    validate,
)
from memjax.data.instruction_readers import read_query
from memjax.data.instructions import Instruction, InstructionExamples, InstructionTokenizer
from memjax.data.source_readers import class_names
from memjax.data.tokenizers import ByteTokenizer
from memjax.tasks.instructions import Instructions as InstructionsTask
from memjax.tasks.instructions import classes_of_tasks, is_answer_in_prompt, score_written_answers


def ask(*answers, group=""):
    return Instruction("", "", answers, group)


def test_shared_words_count_without_case_marks_and_articles():
    found = score_written_answers([ask("the cat sat", "dog"), ask("no")], ["The cat", "yes"], "words")
    # One word of one and of two in common: 2 / 3.
    assert found == {"score": pytest.approx(100 / 3), "exact_match": 0.0, "f1": pytest.approx(100 / 3)}


def test_a_class_is_its_very_name():
    found = score_written_answers([ask("Good"), ask("Bad")], ["good", " Bad"], "class")
    assert (found["score"], found["exact_match"], found["class_of_no_task"]) == (50.0, 100.0, 50.0)
    asked = [ask("Good"), ask("Bad", "Poor"), ask("Poor"), ask("Bad")]
    assert score_written_answers(asked, ["Good"] * 4, "class")["largest_class"] == 50.0


def test_classes_of_other_tasks_are_told_from_answers_that_are_none():
    asked, classes = [ask("good"), ask("bad")] * 2, {"good", "bad", "fair", "Sports", "Health"}
    own = {"classes": ["good", "bad", "fair"], "classes_of_stream": classes}
    found = score_written_answers(asked, [" Sports", "Health", "sports", "bad"], "class", **own)
    assert (found["score"], found["class_of_another_task"], found["class_of_no_task"]) == (25.0, 50.0, 25.0)
    # A class of the task that no example has is a class of the task.
    found = score_written_answers(asked, ["fair", "Health", "sports", "bad"], "class", **own)
    assert (found["score"], found["class_of_another_task"], found["class_of_no_task"]) == (25.0, 25.0, 25.0)


def test_an_evaluation_knows_all_classes_of_its_task():
    """Also those that none of the examples that are put has, and those of a source whose classes have no names."""
    sources = {"named": TextClasses(data_set="ag_news", path="ag_news"), "lines": InstructionLines(path="own")}
    sources["lines"].answer_metric = "class"
    data = InstructionsTask(config_of()).data()
    for source in sources.values():
        config = config_of(
            task={"max_answer_length": 12}, data={"segment_length": 64}, attention=GPT2(num_positions=64)
        )
        config.data.source = source
        config.lifelong.tasks = (TaskData(name="sst", source=Sst(path="sst")), TaskData(name="own", source=source))
        task, tokenizer = InstructionsTask(config), InstructionTokenizer(ByteTokenizer(), 2)
        asked = [ask("World"), ask("World"), ask("World"), ask("Business")]
        split = InstructionExamples(asked, tokenizer, length=64, longest=12)
        task.write = lambda *arguments, **options: ["Business", "negative", "so"]
        found = task.answers(None, {}, split, data, Evaluation(max_answers=3, batch_size=1)).measures
        assert (found["class_of_another_task"], found["class_of_no_task"]) == pytest.approx((100 / 3, 100 / 3))


@pytest.mark.parametrize(
    ("answers", "starts", "is_held"),
    [
        (("a",), (), False),
        (("ran",), (), False),
        (("THE oranges",), (), True),
        (("oranges, red",), (), True),
        (("o.", "red"), (), True),
        (("the",), (), False),
        (("red",), (17,), True),
        (("red",), (40,), False),
        (("dawn", "red"), (40, 17), True),
        (("red", "or"), (40, -1), False),
    ],
)
def test_a_prompt_holds_whole_words_or_what_stands_at_a_known_place(answers, starts, is_held):
    """A letter is in every prompt, and a word that is cut off may stand before by chance."""
    context = "or the oranges - red and ripe, tall trees at dawn and red"
    split = InstructionExamples(
        [Instruction(context, "?", answers, answer_starts=starts)],
        InstructionTokenizer(ByteTokenizer(), 1),
        length=49,
        longest=14,
    )
    assert split.context(0) == context[:32] and is_answer_in_prompt(split, 0) is is_held


def test_the_classes_of_a_stream_are_those_of_all_tasks_that_have_names():
    sources = [Sst(path="sst"), Woz(path="woz"), TextClasses(data_set="ag_news", path="ag_news")]
    config = config_of(tasks=0)
    config.lifelong.tasks = tuple(TaskData(name=source.path, source=source) for source in sources)
    assert classes_of_tasks(config) == {"negative", "positive", *class_names(sources[2]).values()}
    assert classes_of_tasks(config_of()) == frozenset()
    config.lifelong, config.data.source = None, sources[0]
    assert classes_of_tasks(config) == {"negative", "positive"}


def test_queries_are_the_same_in_any_order_and_case():
    right = 'SELECT A FROM TABLE WHERE B = "x y" AND C > 3'
    said = ['select a from table where c > 3 and b = "X y"', 'SELECT A FROM TABLE WHERE B = "x"', "so what"]
    found = score_written_answers([ask(right)] * 3, said, "logical_form")
    assert found["score"] == pytest.approx(100 / 3) and found["no_query"] == pytest.approx(100 / 3)


def test_a_query_that_cannot_be_read_is_right_word_for_word():
    right = 'SELECT A FROM TABLE WHERE B = ""Love and Lies""'
    assert read_query(right) is None
    said = [right.replace("SELECT A", "select a "), right.replace('""', '"'), "so", ""]
    found = score_written_answers([ask(right)] * 4, said, "logical_form")
    # What cannot be read is not right because the other cannot be read either.
    assert (found["score"], found["no_query"]) == (25.0, 75.0)


def test_a_dialogue_is_right_as_long_as_its_state_is():
    turns = [ask("area: west", group="0"), ask("food: thai; phone", group="0"), ask("none", group="0")]
    other = [ask("area: north", group="1")]
    found = score_written_answers(
        turns + other, ["area: east", "food: thai; phone", "none", "area: north"], "dialogue_state"
    )
    # What was heard wrongly in the first turn stays wrong; the next dialogue begins anew.
    assert (found["score"], found["joint_goal"], found["turn_requests"]) == (75.0, 25.0, 100.0)


def test_an_answer_of_another_task_is_no_empty_state():
    found = score_written_answers([ask("none"), ask("none")], ["positive", "none"], "dialogue_state")
    assert (found["score"], found["joint_goal"], found["turn_requests"]) == (50.0, 100.0, 100.0)


def test_an_unknown_measure_is_refused():
    with pytest.raises(ValueError, match="answered_by: given 'taste', allowed: 'words'"):
        score_written_answers([ask("a")], ["a"], "taste")


def config_of(**fields):
    toy = fields.pop("source", ToyInstructions(num_examples=8))
    data = {"source": toy, "tokenizer": Bytes(), "batch_size": 4, "segment_length": 24, **fields.pop("data", {})}
    method, tasks = fields.pop("method", Sequential()), fields.pop("tasks", 2)
    return Config(
        name="run",
        model=Model(
            dim=8,
            num_layers=1,
            num_heads=2,
            attention=fields.pop("attention", GPT2(num_positions=24)),
            feed_forward=Dense(dim=8),
        ),
        task=Instructions(**{"max_tasks": 2, "max_answer_length": 6, **fields.pop("task", {})}),
        data=Data(**data),
        evaluation=Evaluation(**fields.pop("evaluation", {})),
        lifelong=Lifelong(
            method=method, epochs=1, tasks=tuple(TaskData(name=f"task {i}", source=toy) for i in range(tasks))
        ),
    )


BAD = {
    "tasks": ({"tasks": 3}, "max_tasks: given 2, allowed: at least 3, the tasks"),
    "source": ({"source": KeyValueRecall()}, "source: given 'KeyValueRecall', allowed: a source of instructions"),
    "attention": ({"attention": Bidirectional()}, "attention: given 'Bidirectional', allowed: a decoder's"),
    "tokenizer": ({"data": {"tokenizer": WordPiece()}}, "tokenizer: given 'WordPiece', allowed: one that spells"),
    "protocol": ({"data": {"protocol": "contiguous"}}, "protocol: given 'contiguous', allowed: 'separate'"),
    "length": ({"task": {"max_answer_length": 23}}, "max_answer_length: given 23, allowed: less than"),
    "stride": ({"evaluation": {"stride": 4}}, "stride: given 4, allowed: 0"),
    "share": ({"method": LAMOL(sample_ratio=-0.1)}, "sample_ratio: given -0.1, allowed: a share of 0"),
    "rows": (
        {"method": LAMOL(sample_ratio=0.5, replay_batch_size=1)},
        "replay_batch_size: given 1, allowed: at least 2, sample_ratio = 0.5 of the 4 rows",
    ),
    "columns": ({"method": ProgressiveNetwork()}, "task: given 'Instructions', allowed: a task that is not written"),
    "temperature": ({"method": LAMOL(temperature=0.0)}, "temperature: given 0.0"),
}


@pytest.mark.parametrize("name", BAD)
def test_what_does_not_fit_is_refused_in_one_line(name):
    fields, line = BAD[name]
    with pytest.raises(ValueError, match=line) as found:
        validate(config_of(**fields))
    assert "\n" not in str(found.value)


def test_what_fits_is_taken():
    assert validate(config_of(method=LAMOL(sample_ratio=0.5, replay_batch_size=2))) is None
