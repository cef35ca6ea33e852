import lzma

import numpy as np
import pytest

from memjax import config
from memjax.data.glue import GLUE, LabelledText, glue_texts, tfds_glue_texts

SHARES = {"validation": 0.2, "test": 0.2}


def write(folder, **files):
    for name, lines in files.items():
        (folder / f"{name}.tsv").write_text("\n".join(lines) + "\n", "utf-8")
    return str(folder)


def test_single_texts_by_their_columns(tmp_path):
    path = write(
        tmp_path,
        train=["sentence\tlabel", 'a "good film\t1', "bad \t0"],
        dev=["sentence\tlabel", "fine\t1"],
        test=["index\tsentence", "0\tunknown"],
    )
    read = lambda split: glue_texts("sst2", path, split=split, **SHARES)
    assert read("train") == [LabelledText(('a "good film',), 1), LabelledText(("bad ",), 0)]
    assert read("validation") == read("test") == [LabelledText(("fine",), 1)]  # test has no labels


def test_pairs_with_named_classes(tmp_path):
    header = "index\tquestion\tsentence\tlabel"
    path = write(tmp_path, train=[header, "0\tq\ts\tnot_entailment"], dev=[header, "0\tr\tt\tentailment"])
    assert glue_texts("qnli", path, split="train", **SHARES) == [LabelledText(("q", "s"), 1)]
    assert glue_texts("qnli", path, split="validation", **SHARES) == [LabelledText(("r", "t"), 0)]


def test_cola_has_no_header_and_its_own_release_two_parts(tmp_path):
    path = write(tmp_path, in_domain_train=["x\t1\t\tgood."], in_domain_dev=["x\t0\t*\tbad"])
    with lzma.open(tmp_path / "out_of_domain_dev.tsv.xz", "wt") as file:
        file.write("y\t1\t\tother\n")
    assert glue_texts("cola", path, split="train", **SHARES) == [LabelledText(("good.",), 1)]
    assert glue_texts("cola", path, split="validation", **SHARES) == [
        LabelledText(("bad",), 0),
        LabelledText(("other",), 1),
    ]


def test_a_folder_with_one_file_is_split_by_the_texts(tmp_path):
    lines = [f"{i}\tquestion {i}\tanswer\tentailment" for i in range(200)]
    path = write(tmp_path, dev=["index\tquestion\tsentence\tlabel", *lines])
    parts = {split: glue_texts("qnli", path, split=split, **SHARES) for split in ("train", "validation", "test")}
    assert sum(map(len, parts.values())) == 200 and len({e.texts for p in parts.values() for e in p}) == 200
    assert 20 < len(parts["validation"]) < 60 and 20 < len(parts["test"]) < 60


def test_what_does_not_fit_is_named(tmp_path):
    with pytest.raises(ValueError, match=r"data\.source\.name: given 'stsb', allowed: cola, sst2"):
        glue_texts("stsb", str(tmp_path), split="train", **SHARES)
    with pytest.raises(ValueError, match=r"has no train\.tsv or dev\.tsv"):
        glue_texts("sst2", str(tmp_path), split="train", **SHARES)
    path = write(tmp_path, train=["sentence\tlabel", "fine\t2"], dev=["text\tlabel", "x\t1"])
    with pytest.raises(ValueError, match=r"train\.tsv, line 2: class '2', allowed: 0, 1"):
        glue_texts("sst2", path, split="train", **SHARES)
    with pytest.raises(ValueError, match="its columns are text, label, allowed: with sentence, label"):
        glue_texts("sst2", path, split="validation", **SHARES)
    path = write(tmp_path, train=["x\t1"], dev=["x\t1"])
    with pytest.raises(ValueError, match="line 1: 2 columns, allowed: at least 4"):
        glue_texts("cola", path, split="train", **SHARES)


def test_broken_lines_of_tasks_that_have_them_are_left_out(tmp_path):
    header = "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate"
    path = write(tmp_path, train=[header, "1\t2\t3\ta", "1\t2\t3\ta\tb\t1"], dev=[header])
    assert glue_texts("qqp", path, split="train", **SHARES) == [LabelledText(("a", "b"), 1)]


def test_the_builders_of_tfds_have_the_same_examples(monkeypatch):
    asked = []

    def examples(name, *, split, data_dir):
        asked.append((name, split, data_dir))
        yield {
            "premise": b"caf\xc3\xa9",
            "hypothesis": b"b",
            "sentence": b"s",
            "label": np.int64(1),
            "idx": np.int32(0),
        }

    monkeypatch.setattr("memjax.data.glue.tfds_examples", examples)
    assert tfds_glue_texts("mnli", split="test", data_dir="") == [LabelledText(("café", "b"), 1)]
    assert tfds_glue_texts("cola", split="train", data_dir="/d") == [LabelledText(("s",), 1)]
    assert asked == [("glue/mnli", "validation_matched", None), ("glue/cola", "train", "/d")]


def test_every_task_says_what_it_needs():
    for task in GLUE.values():
        assert len(task.texts) in (1, 2) and task.num_classes == (len(task.classes) or task.num_classes)
    assert config.Glue(name="cola").metrics == ("matthews",) and config.Glue(name="mrpc").metrics == ("f1",)
    assert not config.Glue(name="sst2").metrics
