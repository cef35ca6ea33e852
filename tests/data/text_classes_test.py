import dataclasses
import functools
import json
import lzma
from typing import Any, get_args

import numpy as np
import pytest

from memjax import config as configs
from memjax.data import text_classes
from memjax.data.example_batches import EXAMPLE
from memjax.data.glue import LabelledText
from memjax.data.source_readers import class_names, read_classified_texts
from memjax.data.text_classes import (
    CL_BENCHMARK,
    CLASSES,
    DHIM_CLASSES,
    TEXT_SETS,
    cl_benchmark_texts,
    class_texts,
    labelled_texts,
    read_titled_texts,
)
from memjax.data.text_splits import TitledText, letters_and_digits_key, select_texts, split_texts
from memjax.lifelong.orders import LONG_ORDERS, MBPA_ORDERS
from memjax.settings.ranges import type_hints_of
from memjax.settings.reading_rules import ReadingRules
from memjax.training.experiment import make_experiment

FIRST = {"yelp": 0, "amazon": 0, "ag_news": 5, "dbpedia": 9, "yahoo": 23}
SIZES = {"yelp": 5, "amazon": 5, "ag_news": 4, "dbpedia": 14, "yahoo": 10}


def write_csv(path, rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    quoted = (",".join('"' + str(field).replace('"', '""') + '"' for field in row) for row in rows)
    path.write_text("\n".join(quoted) + "\n", "utf-8")


def write_json(path, rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps([{"label": label, "sentence": sentence} for label, sentence in rows])
    with lzma.open(f"{path}.xz", "wt") as file:
        file.write(text)


def rows_of(count, classes=(0,), what="text"):
    return [TitledText("", f"{what} {number}", classes[number % len(classes)]) for number in range(count)]


def texts_of(examples):
    return [example.texts[0] for example in examples]


@pytest.mark.parametrize("name", TEXT_SETS)
def test_the_numbers_of_classes_are_those_of_holla_in_every_form(tmp_path, name):
    """33 classes: sentiment 0-4, AG News 5-8, DBpedia 9-22, Yahoo 23-32, by number or by name."""
    numbers = list(range(FIRST[name], FIRST[name] + SIZES[name]))
    write_csv(tmp_path / "numbers.csv", [(place, "a title", "a text") for place in range(1, len(numbers) + 1)])
    write_csv(tmp_path / "names.csv", [("a text", CLASSES[n].lower().replace(" & ", "_")) for n in numbers])
    (tmp_path / "names.tsv").write_text("".join(f'a "text\t{CLASSES[n].replace(" ", "")}\n' for n in numbers))
    write_json(tmp_path / "names.json", [(CLASSES[n], "Title: a title\nText: a text\n") for n in numbers])
    for file in ("numbers.csv", "names.csv", "names.tsv", "names.json.xz"):
        assert [row.label for row in read_titled_texts(tmp_path / file, TEXT_SETS[name])] == numbers
    with pytest.raises(ValueError, match=rf"numbers\.csv, row {len(numbers)}: class '{len(numbers)}', allowed: "):
        read_titled_texts(tmp_path / "numbers.csv", TEXT_SETS[name][:-1])


def test_fields_are_told_apart_and_joined(tmp_path):
    write_csv(tmp_path / "yahoo.csv", [(1, "Why?", "", "So."), (1, "Why?", "Really", "So.")])
    write_csv(tmp_path / "yelp.csv", [(5, r"Good.\n\nVery \"good\" caf\u00e9 \ud83d\ude00")])
    write_csv(tmp_path / "ag.csv", [(4, "A title", r"a\new line costs\$5")])
    read = lambda name, data_set: read_titled_texts(tmp_path / name, TEXT_SETS[data_set], spaced=data_set == "ag_news")
    assert [(row.title, row.text) for row in read("yahoo.csv", "yahoo")] == [("Why?", "So."), ("Why?", "Really So.")]
    assert read("yelp.csv", "yelp") == [TitledText("", 'Good.\n\nVery "good" café 😀', 4)]
    assert read("ag.csv", "ag_news") == [TitledText("A title", "a new line costs $5", 8)]  # no escape there
    rows = {"train": {"a": [TitledText("Why", "So", 0)]}}
    joined = lambda **how: texts_of(split_texts(rows, validation=0, test=0, **how).texts["train"])
    assert joined() == ["Why. So"] and joined(text="text") == ["So"]


def test_a_sentence_of_o_lora_has_a_title_a_text_or_neither(tmp_path):
    write_json(
        tmp_path / "NLI/RTE/train.json",
        [("entailment", "sentence 1: a.\nsentence 2: b."), ("contradiction", "Text: c \n"), ("contradiction", "d")],
    )
    found = cl_benchmark_texts("rte", str(tmp_path), validation=0, test=0)
    assert found.texts["train"] == [
        LabelledText(("sentence 1: a.\nsentence 2: b.",), 35),
        LabelledText(("c",), 37),
        LabelledText(("d",), 37),
    ]
    assert [CLASSES[number] for number in (35, 36, 37)] == ["entailment", "neutral", "contradiction"]
    with pytest.raises(
        ValueError, match=r"path: .* has no TC/yahoo/train\.json or test\.json, allowed: those of yahoo"
    ):
        cl_benchmark_texts("yahoo", str(tmp_path))


def test_files_that_number_classes_otherwise_are_refused_until_their_order_is_known(tmp_path):
    """As the files of DHIM number those of DBpedia."""
    dhim = [TEXT_SETS["dbpedia"][0] + place for place in range(14)]
    names = [CLASSES[number] for number in dhim]
    write_csv(tmp_path / "dhim.csv", [(1 + n, f"thing {n}") for n in range(14)])
    order = [DHIM_CLASSES[n] for n in range(14)]
    write_json(tmp_path / "test.json", [(order[n], f"Thing {n}") for n in range(12)])
    read = functools.partial(
        class_texts, "dbpedia", str(tmp_path), train_files=["dhim.csv"], test_files=["test.json"], validation=0
    )
    read = functools.partial(read, equality="letters_and_digits")
    with pytest.raises(
        ValueError, match=r"class_order: 12 of the 12 rows of dhim\.csv that are in test\.json\.xz have"
    ):
        read()
    found = read(class_order=DHIM_CLASSES)
    assert found.other_class == {} and found.texts["train"] == [
        LabelledText((f"thing {n}",), 9 + names.index(DHIM_CLASSES[n])) for n in (12, 13)
    ]
    with pytest.raises(
        ValueError, match="class_order: given .'Artist', 'Film'., allowed: each of company, educational"
    ):
        read(class_order=("Artist", "Film"))


def test_rows_without_a_class_are_counted(tmp_path):
    write_json(tmp_path / "NLI/MNLI/train.json", [("neutral", "a"), ("entailment", "b")])
    write_json(tmp_path / "NLI/MNLI/test.json", [("neutral", "c"), ("-", "d"), ("-", "e")])
    found = cl_benchmark_texts("mnli", str(tmp_path), validation=0)
    assert texts_of(found.texts["test"]) == ["c"] and found.without_class == {"NLI/MNLI/test.json.xz": 2}
    assert found.notes() == ["2 rows of NLI/MNLI/test.json.xz have no class, and are left out"]


def test_what_is_tested_is_not_trained_on_and_nothing_is_read_twice():
    first, other = rows_of(50), rows_of(20, what="other")
    tested = [TitledText("", f"TEXT {number}!", 0) for number in range(5)] * 2
    splits = split_texts(
        {"train": {"a": first + first[:1], "b": other + first[3:9]}, "test": {"t": tested}},
        equality="letters_and_digits",
    )
    assert splits.shared == {("a", "t"): 6, ("a", "a"): 1, ("b", "t"): 2, ("b", "a"): 6}
    assert splits.removed == 12 and len(splits.texts["test"]) == 10  # the test file stays as it is published
    keys = {split: {letters_and_digits_key(text) for text in texts_of(part)} for split, part in splits.texts.items()}
    assert len(keys["train"]) + len(keys["validation"]) == len(splits.texts["train"]) + len(splits.texts["validation"])
    assert keys["train"] | keys["validation"] == {letters_and_digits_key(row.text) for row in first[5:] + other}
    assert not keys["test"] & (keys["train"] | keys["validation"]) and not keys["train"] & keys["validation"]
    assert "6 rows of b are in a too" in splits.notes() and splits.notes()[-1].startswith("12 rows are left out")


@pytest.mark.parametrize("there", [("train",), ("test",), ("train", "test"), ("train", "validation", "test")])
def test_a_split_without_a_file_is_held_out_of_the_others(there):
    rows = rows_of(900)
    files = {split: {split: rows[300 * place : 300 * place + 300]} for place, split in enumerate(there)}
    found = split_texts(files, validation=0.2, test=0.2).texts
    sizes = {split: len(part) for split, part in found.items()}
    assert sum(sizes.values()) == 300 * len(there)
    assert len({text for part in found.values() for text in texts_of(part)}) == 300 * len(there)
    whole = set(there) - {"train"} if "train" in there else set()
    held_out = {"train", "validation", "test"} - set(there)
    assert all(sizes[split] == 300 for split in whole) and all(30 < sizes[split] < 260 for split in held_out)
    if "train" in there and "test" in there:  # nothing is selected on what is tested
        assert texts_of(found["test"]) == [row.text for row in files["test"]["test"]]


def test_some_are_chosen_by_their_texts_alone():
    rows = [(letters_and_digits_key(row.text), row) for row in rows_of(90, classes=(0, 1, 1, 1, 1, 2))]
    found = select_texts(rows, 60)
    assert [[row.label for _, row in found].count(label) for label in range(3)] == [15, 30, 15]  # 15 of 0 and 2 exist
    found = select_texts(rows, 30)
    assert [[row.label for _, row in found].count(label) for label in range(3)] == [10, 10, 10]
    assert found == sorted(found, key=rows.index)
    assert set(select_texts(rows[::-1], 30)) == set(found) != set(select_texts(rows, 30, seed=1))
    more = rows + [(f"new{number}", TitledText("", f"new {number}", 0)) for number in range(3)]
    assert len(set(select_texts(more, 30)) & set(found)) >= 27
    shares = [[row.label for _, row in select_texts(rows, 30, sampling="random")].count(label) for label in range(3)]
    assert shares[1] > 14 and sum(shares) == 30
    assert select_texts(rows, 0) == select_texts(rows, 1000) == rows


def test_a_stream_of_tasks_has_one_head_and_one_tokenizer(tmp_path):
    """Classes of two sets, in one head; every example says its number in the batches of each task."""
    write_csv(tmp_path / "yelp.csv", [(1 + number % 5, f"food number {number}") for number in [*range(40), 0]])
    write_csv(tmp_path / "dbpedia.csv", [(1 + number % 14, "A place", f"town number {number}") for number in range(40)])
    sources = {
        name: configs.TextClasses(data_set=name, path=str(tmp_path), train=(f"{name}.csv",), test=(), num_train=20)
        for name in ("yelp", "dbpedia")
    }
    config = configs.Config(
        task=configs.Classification(num_classes=33),
        model=configs.Model(dim=8, num_layers=1, num_heads=1, attention=configs.Bidirectional(num_positions=16)),
        data=configs.Data(
            source=sources["yelp"],
            tokenizer=configs.WordPiece(vocab_size=60),
            batch_size=10,
            segment_length=16,
            cache_dir=str(tmp_path / "cache"),
        ),
        lifelong=configs.Lifelong(tasks=tuple(configs.TaskData(name=n, source=s) for n, s in sources.items())),
        training=configs.Training(steps=4),
    )
    experiment = make_experiment(config)
    left_out = "1 rows are left out, so that no text is read twice"
    assert experiment.notes() == ["yelp: 1 rows of yelp.csv repeat another", f"yelp: {left_out}"]
    inside = configs.TaskData(name="yelp", source=dataclasses.replace(sources["yelp"], path="."))
    stream = configs.Lifelong(tasks=(inside,), sources_dir=str(tmp_path))
    located = dataclasses.replace(experiment, config=dataclasses.replace(config, lifelong=stream))
    assert located.notes() == experiment.notes()
    for name, source in sources.items():
        own, expected = experiment.of_task(name), read_classified_texts(source).texts["train"]
        assert own.tokenizer is experiment.tokenizer and len(own.documents("train")) == len(expected) == 20
        stream = own.stream()
        batches = [next(stream) for _ in range(2)]
        numbers = np.concatenate([batch.extras[EXAMPLE].ravel() for batch in batches])
        targets = np.concatenate([batch.targets.ravel() for batch in batches])
        assert sorted(numbers) == list(range(20))
        assert [expected[number].label for number in numbers] == targets.tolist()
        assert set(targets) == set(TEXT_SETS[name])
    config.task = configs.Classification(num_classes=22)
    with pytest.raises(ValueError, match=r"task\.num_classes: given 22, allowed: at least 23, as the data have"):
        make_experiment(config, tokenizer=experiment.tokenizer).of_task("dbpedia").documents("train")
    assert class_names(sources["dbpedia"])[22] == "Written Work"


def test_the_builders_of_tfds_and_the_tasks_of_seqio_have_the_same_splits(monkeypatch):
    rows = [{"title": b"a", "description": rb"b\c %d" % number, "label": np.int64(number % 4)} for number in range(30)]
    monkeypatch.setattr(text_classes, "tfds_splits", lambda name, data_dir: ["test", "train"])
    monkeypatch.setattr(
        text_classes, "tfds_examples", lambda name, split, data_dir, report: iter(rows[:: 1 + (split == "test")])
    )
    found = read_classified_texts(configs.TfdsClasses())
    assert found.shared == {("ag_news_subset/train", "ag_news_subset/test"): 15} and len(found.texts["test"]) == 15
    assert found.texts["test"][1] == LabelledText(("a. b c 2",), 7)
    with pytest.raises(ValueError, match="ag_news_subset has no feature 'text', allowed: description, label, title"):
        read_classified_texts(configs.TfdsClasses(text_feature="text"))
    pairs = [(f"text {number}", ("yes", "no")[number % 2]) for number in range(10)]
    monkeypatch.setattr(text_classes, "seqio_splits", lambda name: ["train", "validation"])
    monkeypatch.setattr(
        text_classes, "seqio_pairs", lambda name, split, report: iter(pairs[:8] if split == "train" else pairs[8:])
    )
    source = configs.SeqioClasses(name="my_task", classes=("no", "yes"), first_class=3, test_percent=50)
    texts = read_classified_texts(source).texts
    assert texts["validation"] == [LabelledText(("text 8",), 4), LabelledText(("text 9",), 3)]
    assert 0 < len(texts["test"]) < 8 and len(texts["train"]) + len(texts["test"]) == 8
    source.classes = ("no",)
    with pytest.raises(ValueError, match="my_task has 'yes', allowed: no"):
        read_classified_texts(source)


def test_orders_name_every_task_once():
    assert len(set(MBPA_ORDERS)) == 4 and all(sorted(order) == sorted(TEXT_SETS) for order in MBPA_ORDERS)
    published = sorted(CL_BENCHMARK.keys() - {"yahoo"})
    assert len(set(LONG_ORDERS)) == 3 and all(sorted(order) == published for order in LONG_ORDERS)
    for name, (_, classes) in CL_BENCHMARK.items():
        assert name not in TEXT_SETS or classes == TEXT_SETS[name]
    named = [
        type_hints_of(kind)[field] for kind, field in ((configs.CLBenchmark, "task"), (configs.TextClasses, "data_set"))
    ]
    assert [sorted(get_args(hint)) for hint in named] == [sorted(CL_BENCHMARK), sorted(TEXT_SETS)]


def test_what_does_not_fit_is_named(tmp_path):
    write_csv(tmp_path / "train.csv", [(1, "a"), (5, "b")])
    (tmp_path / "other.txt").write_text("x")
    write_csv(tmp_path / "short.csv", [("1", "a"), ("2",)])
    (tmp_path / "form.json").write_text('{"sentence": 1}')
    cases: list[tuple[dict[str, Any], str]] = [
        ({"data_set": "imdb"}, "data.source.data_set: given 'imdb', allowed: yelp, amazon"),
        ({"path": ""}, "data.source.path: given '', allowed: the folder of the files of ag_news"),
        ({"test_files": ()}, "train.csv, row 2: class '5', allowed: world, sports, business, scitech, 1, 2, 3, 4"),
        ({"train_files": ("no.csv",)}, "data.source.train: given 'no.csv', allowed: no.csv, no.csv.xz, no.csv.gz in"),
        ({"train_files": ("other.txt",)}, "other.txt: given another ending, allowed: .csv, .csv.xz"),
        ({"train_files": ("short.csv",), "test_files": ()}, "short.csv, row 2: 1 columns, allowed: a class and"),
        ({"train_files": ("form.json",)}, "form.json, row 1: of another form (it has: sentence)"),
        ({"train_files": (), "test_files": ()}, "data.source.train: given (), allowed: at least one file"),
    ]
    for given, line in cases:
        with pytest.raises(ValueError) as error:
            class_texts(**{"data_set": "ag_news", "path": str(tmp_path), **given})
        assert line in str(error.value) and "\n" not in str(error.value)
    rows = {"train": {"a": rows_of(3)}}
    with pytest.raises(ValueError, match="source.row_text: given 'all', allowed: 'title_and_text', 'text'"):
        split_texts(rows, text="all")
    with pytest.raises(ValueError, match="source.subset_sampling: given 'any', allowed: 'balanced', 'random'"):
        split_texts(rows, sampling="any")
    with pytest.raises(ValueError, match="data.source.task: given 'sst', allowed: mnli, cb"):
        cl_benchmark_texts("sst", str(tmp_path))


LABELLED = {
    "a.csv": 'good,"nice, really"\nbad,poor\ngood,fine\n',
    "semicolons.csv": "good;nice, really\nbad;poor\ngood;fine\n",
    "mark.csv": '\ufeff"good","nice, really"\r\n"bad","poor"\r\n"good","fine"\r\n',
    "a.tsv": '"nice, really"\t"good"\n"poor"\t"bad"\n"fine"\t"good"\n',
    "a.json": '[{"text": "nice, really", "label": "good"}, {"text": "poor", "label": "bad"}, '
    '{"sentence": "fine", "label": "good"}]',
    "a.jsonl": '{"text": "nice, really", "label": "good"}\n{"text": "poor", "label": "bad"}\n'
    '{"text": "fine", "label": "good"}\n',
    "pretty.json": '[\n {"text": "nice, really", "label": "good"},\n {"text": "poor", "label": "bad"},\n'
    ' {"text": "fine", "label": "good"}\n]',
    "returns.csv": 'good,"nice, really"\rbad,poor\rgood,fine\r',
}


@pytest.mark.parametrize("name", LABELLED)
def test_labelled_files_of_every_form_have_the_same_rows(tmp_path, name):
    (tmp_path / name).write_text(LABELLED[name], newline="")
    rows = [(row.text, row.label) for row in text_classes.read_rows(tmp_path / name)]
    assert rows == [("nice, really", "good"), ("poor", "bad"), ("fine", "good")]
    (tmp_path / name).write_bytes(LABELLED[name].replace("fine", "fün").encode("utf-16"))
    with pytest.raises(ValueError, match=f"{name} is not UTF-8 at byte 0.*--encoding utf-16"):
        text_classes.find_labels(str(tmp_path / name))
    assert text_classes.find_labels(str(tmp_path / name), ReadingRules(encoding="utf-16")) == ("bad", "good")


def test_rows_without_text_are_skipped_and_broken_ones_named(tmp_path):
    path, numbers = tmp_path / "a.csv", {"good": 0, "bad": 1}
    rows = [f"{('good', 'bad')[number % 2]},text number {number}\n" for number in range(60)]
    path.write_text("".join([*rows[:7], "good,\n", *rows[7:]]))
    splits = labelled_texts(str(path), numbers, test=0.3)
    assert splits.skipped == "1 of 61 rows skipped: 1 empty" and splits.notes()[0] == splits.skipped
    with pytest.raises(ValueError, match="a.csv, row 8 has no text"):
        labelled_texts(str(path), numbers, rules=ReadingRules(skip="none"))
    path.write_text("".join([*rows[:7], "good\n", *rows[7:]]))
    with pytest.raises(ValueError, match="a.csv, row 8: 1 columns, allowed.*--skip leaves out"):
        labelled_texts(str(path), numbers)
    splits = labelled_texts(str(path), numbers, rules=ReadingRules(skip="all"), test=0.3)
    assert splits.skipped == "1 of 61 rows skipped: 1 with one column"
