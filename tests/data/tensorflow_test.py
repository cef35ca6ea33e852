"""What needs TensorFlow: TFDS builders and seqio Tasks, all in one file so that one process pays for the imports.

Data sets are made here, in the folders and with the features that the real builders have; nothing is downloaded.
"""

import dataclasses
import functools

import numpy as np
import pytest

from memjax import config as configs
from memjax.data import seqio as seqio_module
from memjax.data import tfds as builders
from memjax.data.document_batches import DocumentBatches
from memjax.data.glue import LabelledText
from memjax.data.instructions import Instruction, InstructionExamples, InstructionTokenizer
from memjax.data.opening import make_datasets
from memjax.data.python_sources import corpus_sha256, python_sources, python_version, read_python_sources
from memjax.data.seqio import CORPORA, register_tasks, seqio_documents, seqio_tokenizer
from memjax.data.source_readers import read_classified_texts, read_instructions
from memjax.data.sources import Texts
from memjax.data.tfds import PYTHON_LIBRARY, TfdsPairs, hide_warnings, tfds_texts
from memjax.data.token_files import write_token_file
from memjax.data.tokenizers import ByteTokenizer
from memjax.durable_files import write_json
from memjax.settings.reading_rules import ReadingRules
from memjax.training.experiment import make_experiment
from memjax.training.run_data import RunData
from memjax.training.runs import config_to_dict

pytestmark = [pytest.mark.tensorflow, pytest.mark.xdist_group("tensorflow")]


@pytest.fixture(scope="module")
def tfds():
    return builders.import_tfds()


@pytest.fixture(scope="module")
def seqio():
    return seqio_module.import_seqio()


def prepare(tfds, data_dir, full_name, splits, file_format="tfrecord"):
    """Writes `splits` (split -> examples of text features) where TFDS looks for `name/config:version`."""
    name, version = full_name.split(":")
    name, _, config = name.partition("/")
    keys = list(next(iter(splits.values()))[0])

    def info(self):
        features = tfds.features.FeaturesDict({key: tfds.features.Text() for key in keys})
        if keys == ["de", "en"]:
            features = tfds.features.Translation(languages=keys)
        return tfds.core.DatasetInfo(builder=self, features=features)

    def split_generators(self, dl_manager):
        return {split: enumerate(examples) for split, examples in splits.items()}

    class_name = "".join(part.capitalize() for part in name.split("_"))
    with hide_warnings(), tfds.core.registered.skip_registration():
        builder_class = type(
            class_name,
            (tfds.core.GeneratorBasedBuilder,),
            {
                "__module__": __name__,
                "name": name,
                "VERSION": tfds.core.Version(version),
                "BUILDER_CONFIGS": [tfds.core.BuilderConfig(name=config)] if config else [],
                "_info": info,
                "_split_generators": split_generators,
                "_generate_examples": lambda self: None,
            },
        )
        builder_class(data_dir=data_dir).download_and_prepare(file_format=file_format)


def texts_of(documents, tokenizer):
    return [tokenizer.decode(documents[i]) for i in range(len(documents))]


def test_accelerators_stay_with_jax(tfds):
    tensorflow = builders.import_tensorflow()
    assert [device.device_type for device in tensorflow.config.get_visible_devices()] == ["CPU"]


def test_the_embedded_corpus_is_a_builder_like_any_other(tfds, seqio, tmp_path):
    texts = tfds_texts(PYTHON_LIBRARY, split="test", data_dir=tmp_path)
    assert isinstance(texts, Texts)
    expected = python_sources("test")
    assert sorted(texts) == sorted(expected)
    builder = builders.python_library_builder(tmp_path)
    digest = corpus_sha256(read_python_sources())
    assert dict(builder.info.metadata) == {"python": python_version(), "sha256": digest}
    assert digest[:8] in builder.info.full_name and set(builder.info.splits) == {"train", "validation", "test"}
    register_tasks([PYTHON_LIBRARY], data_dir=tmp_path)
    documents = seqio_documents(PYTHON_LIBRARY, tmp_path / "tokens", split="test")
    assert sorted(texts_of(documents, seqio_tokenizer(PYTHON_LIBRARY))) == sorted(expected)
    assert documents.total_bytes == sum(len(text.encode()) for text in expected)


@pytest.mark.parametrize("file_format", ["array_record", "tfrecord"])
def test_texts_of_any_builder(tfds, tmp_path, file_format):
    examples = {
        "train": [{"body": f"tëxt {i}", "id": str(i)} for i in range(5)],
        "test": [{"body": "t", "id": "9"}] * 4,
    }
    prepare(tfds, tmp_path, "tiny_corpus:1.0.0", examples, file_format)
    train = tfds_texts("tiny_corpus", split="train", field="body", data_dir=tmp_path)
    assert isinstance(train, Texts if file_format == "array_record" else TfdsPairs) and len(train) == 5
    documents = write_token_file(tmp_path / "tokens", train, ByteTokenizer())
    assert sorted(texts_of(documents, ByteTokenizer())) == [f"tëxt {i}" for i in range(5)]
    assert documents.total_bytes == 5 * 7
    assert len(tfds_texts("tiny_corpus", split="validation", field="body", data_dir=tmp_path)) == 2
    assert len(tfds_texts("tiny_corpus:1.0.0", split="train[:2]", field="body", data_dir=tmp_path)) == 2
    for arguments, message in [
        ({"field": "text"}, "field: 'text'; text features of tiny_corpus are body, id"),
        ({"split": "dev", "field": "body"}, "split: 'dev'; tiny_corpus has test, train"),
        ({"split": "test[:1%]", "field": "body"}, "has no documents"),
    ]:
        with pytest.raises(ValueError, match=message):
            tfds_texts("tiny_corpus", **{"split": "train", "data_dir": tmp_path, **arguments})


def test_builders_that_are_not_there(tfds, tmp_path):
    with pytest.raises(ValueError, match="'no_such_corpus' is no TFDS builder"):
        tfds_texts("no_such_corpus", split="train", data_dir=tmp_path)
    with pytest.raises(ValueError, match="pg19 is not prepared in .*; give data_dir, or prepare it"):
        tfds_texts("pg19", split="train", field="book_text", data_dir=tmp_path)


WIKI = (
    "\n_START_ARTICLE_\nA title\n_START_PARAGRAPH_\nOne._NEWLINE_Two.\n_START_SECTION_\nMore\n_START_PARAGRAPH_\nThree."
)

EXAMPLES = {
    "memjax_pg19": {
        "book_text": "A book.\n",
        "book_id": "1",
        "book_link": "",
        "book_title": "B",
        "publication_date": "1900",
    },
    "memjax_wiki40b_en": {"text": WIKI, "wikidata_id": "", "version_id": ""},
    "memjax_wikipedia": {"text": "An article.", "title": "A"},
    "memjax_lm1b": {"text": "One sentence ."},
    "memjax_c4": {"text": "A page.", "url": "", "content-type": "", "content-length": "", "timestamp": ""},
    "memjax_scientific_papers_arxiv": {"article": "A paper .", "abstract": "Short .", "section_names": ""},
    "memjax_wmt14_translate_de_en": {"de": "Hallo.", "en": "Hello."},
}
READ = {"memjax_wiki40b_en": "A title\n\nOne.\nTwo.\n\nMore\n\nThree.", "memjax_wmt14_translate_de_en": "Hello."}


SOME = ("memjax_pg19", "memjax_wiki40b_en", "memjax_wmt14_translate_de_en")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in SOME else pytest.mark.laws) for name in EXAMPLES]
)
def test_corpora_of_the_papers(tfds, seqio, tmp_path, name):
    corpus = CORPORA[name]
    field = dict(corpus.features)["targets"]
    examples = {split: [{**EXAMPLES[name]} for _ in range(100)] for split in corpus.splits}
    prepare(tfds, tmp_path / "tfds", corpus.tfds_name, examples)
    assert register_tasks([name], data_dir=tmp_path / "tfds") == [name]
    for split in ("train", "validation", "test"):
        documents = seqio_documents(name, tmp_path / split, split=split)
        text = READ.get(name, EXAMPLES[name][field])
        assert set(texts_of(documents, seqio_tokenizer(name))) == {text}
        assert documents.num_bytes(0) == len(text.encode()) and documents.annotate(0)["target_bytes"].sum() == len(text)
        assert len(documents) in (100, 98, 50, 1)
    batch = next(DocumentBatches(documents, rows=2, segment_length=4, begin_token=0))
    assert batch.mask.all()
    # The same files, without seqio.
    if "translate" not in name and not corpus.has_markers:
        assert len(tfds_texts(corpus.tfds_name, split="train", field=field, data_dir=tmp_path / "tfds")) >= 98


def test_translations_keep_their_source(tfds, seqio, tmp_path):
    name = "memjax_wmt14_translate_de_en"
    prepare(tfds, tmp_path, CORPORA[name].tfds_name, {s: [EXAMPLES[name]] for s in ("train", "validation", "test")})
    register_tasks([name], data_dir=tmp_path)
    example = next(iter(seqio.get_mixture_or_task(name).get_dataset(None, "train", shuffle=False).as_numpy_iterator()))
    assert example["inputs_pretokenized"] == b"Hallo." and example["targets_pretokenized"] == b"Hello."
    backwards = CORPORA["memjax_wmt14_translate_en_de"]
    assert backwards.tfds_name == CORPORA[name].tfds_name and dict(backwards.features)["targets"] == "de"


def test_versions_are_those_of_tfds(tfds):
    for name in ("memjax_pg19", "memjax_lm1b", "memjax_scientific_papers_pubmed", "memjax_wmt19_translate_fr_de"):
        with hide_warnings():
            builder = tfds.builder(CORPORA[name].tfds_name, data_dir="/nonexistent")
            assert set(dict(CORPORA[name].features).values()) <= set(builder.info.features)


def test_any_mixture_with_any_vocabulary(seqio, tmp_path):
    vocabulary = seqio.ByteVocabulary()

    def source(texts):
        return seqio.FunctionDataSource(
            lambda split, shuffle_files, seed=None: builders.import_tensorflow().data.Dataset.from_tensor_slices(
                {"targets": texts}
            ),
            splits=["train"],
        )

    with hide_warnings():
        for name, texts in {"one": ["a b", "c"], "two": ["dd"]}.items():
            seqio.TaskRegistry.add(
                f"memjax_test_{name}",
                source=source(texts),
                preprocessors=[seqio.preprocessors.tokenize, seqio.preprocessors.append_eos],
                output_features={"targets": seqio.Feature(vocabulary, add_eos=True)},
            )
        seqio.MixtureRegistry.add("memjax_test_mixture", ["memjax_test_one", "memjax_test_two"], default_rate=1.0)
    documents = seqio_documents("memjax_test_one", tmp_path / "task", split="train")
    tokenizer = seqio_tokenizer("memjax_test_one")
    assert texts_of(documents, tokenizer) == ["a b", "c"] and documents[1].tolist() == [ord("c") + 3, 1]
    assert [documents.num_bytes(i) for i in range(2)] == [3, 1]
    assert documents.annotate(1)["target_bytes"].tolist() == [1, 0]
    mixed = seqio_documents("memjax_test_mixture", tmp_path / "mixture", split="train")
    # A Mixture ends with the first of its Tasks.
    assert texts_of(mixed, tokenizer)[-1] in ("dd", "c") and {"a b", "c", "dd"} >= set(texts_of(mixed, tokenizer))
    np.testing.assert_array_equal(tokenizer.encode("a b"), documents[0][:-1])


@pytest.mark.parametrize("file_format", ["array_record", "tfrecord"])
def test_a_builder_of_the_same_name_and_size_with_other_texts_is_prepared_anew(tfds, tmp_path, file_format):
    data = configs.Data(tokenizer=configs.Bytes(), cache_dir=str(tmp_path / "cache"))
    splits = []
    for folder, last in (("one", "a"), ("copy", "a"), ("other", "b")):
        texts = {"train": [{"text": f"text {i}" if i < 3 else last} for i in range(4)], "test": [{"text": "t"}] * 2}
        prepare(tfds, tmp_path / folder, "tiny_again:1.0.0", texts, file_format)
        data.source = configs.TfdsBuilder(name="tiny_again", data_dir=str(tmp_path / folder))
        splits.append(make_datasets(data).documents("train"))
    assert splits[0].path == splits[1].path != splits[2].path
    assert [sorted(texts_of(documents, ByteTokenizer()))[0] for documents in splits] == ["a", "a", "b"]


@pytest.mark.parametrize("change", ["a word", "one more", "one less", "order", "nothing"])
def test_a_task_that_is_registered_anew_is_prepared_anew(seqio, tmp_path, change):
    data = configs.Data(source=configs.SeqioTask(name="memjax_test_anew"), cache_dir=str(tmp_path / "cache"))
    old = ["one", "two", "three"]
    new = {"a word": ["one", "TWO", "three"], "one more": [*old, "four"], "one less": old[:2], "order": old[::-1]}
    for texts in (old, new.get(change, old)):
        dataset = functools.partial(
            lambda texts, split, shuffle_files, seed=None: builders.import_tensorflow().data.Dataset.from_tensor_slices(
                {"targets": texts}
            ),
            texts,
        )
        with hide_warnings():
            if "memjax_test_anew" in seqio.TaskRegistry.names():
                seqio.TaskRegistry.remove("memjax_test_anew")
            seqio.TaskRegistry.add(
                "memjax_test_anew",
                source=seqio.FunctionDataSource(dataset, splits=["train"]),
                preprocessors=[seqio.preprocessors.tokenize],
                output_features={"targets": seqio.Feature(seqio.ByteVocabulary(), add_eos=False)},
            )
        datasets = make_datasets(data)
        assert texts_of(datasets.documents("train"), datasets.tokenizer) == texts
    assert len(list((tmp_path / "cache").iterdir())) == (1 if change == "nothing" else 2)


NEWS = {
    "validation_percent": 40,
    "title_feature": "title",
    "text_feature": "body",
    "label_feature": "label",
    "first_class": 0,
}


def write_builder(tfds, seqio, folder, texts):
    prepare(tfds, folder / "tfds", "tiny_run:1.0.0", {s: [{"text": t} for t in texts] for s in ("train", "test")})
    return configs.TfdsBuilder(name="tiny_run", data_dir=str(folder / "tfds"))


def write_classes(tfds, seqio, folder, texts):
    row = lambda split, n: {"title": "t", "body": f"{split} {texts[n]}", "label": str(n % 2)}
    rows = lambda split: [row(split, n) for n in range(len(texts))]
    prepare(tfds, folder / "tfds", "tiny_classes:1.0.0", {split: rows(split) for split in ("train", "test")})
    return configs.TfdsClasses(name="tiny_classes", data_dir=str(folder / "tfds"), **NEWS)


def register(seqio, name, examples):
    def dataset(split, shuffle_files, seed=None):
        first = next(iter(examples))
        split_examples = {**examples, first: [f"{split} {text}" for text in examples[first]]}
        return builders.import_tensorflow().data.Dataset.from_tensor_slices(split_examples)

    with hide_warnings():
        if name in seqio.TaskRegistry.names():
            seqio.TaskRegistry.remove(name)
        seqio.TaskRegistry.add(
            name,
            source=seqio.FunctionDataSource(dataset, splits=["train", "validation", "test"]),
            preprocessors=[seqio.preprocessors.tokenize],
            output_features=dict.fromkeys(examples, seqio.Feature(seqio.ByteVocabulary(), add_eos=False)),
        )
    return name


def write_task(tfds, seqio, folder, texts):
    return configs.SeqioTask(name=register(seqio, "memjax_test_run", {"targets": texts}))


def write_task_of_classes(tfds, seqio, folder, texts):
    targets = ["bad" if n % 2 else "good" for n in range(len(texts))]
    name = register(seqio, "memjax_test_run_classes", {"inputs": texts, "targets": targets})
    return configs.SeqioClasses(name=name, classes=("bad", "good"))


@pytest.mark.laws
@pytest.mark.parametrize("change", ["a word", "one more", "one less"])
@pytest.mark.parametrize("write", [write_builder, write_classes, write_task, write_task_of_classes])
def test_a_run_knows_the_data_of_a_builder_or_a_task(tfds, seqio, tmp_path, write, change):
    """Unchanged, also prepared or registered again, it is read without a word; changed it is refused."""
    old = [f"text of number {n}" for n in range(30)]
    new = {"a word": [*old[:-1], "other"], "one more": [*old, "more"], "one less": old[:-1]}[change]
    source = write(tfds, seqio, tmp_path / "old", old)
    config = configs.Config(name="run", workdir=str(tmp_path), model=configs.Model(dim=8, num_layers=1, num_heads=2))
    if "labelled" in source.content_types:
        config.task, config.model.attention = (
            configs.Classification(num_classes=2),
            configs.Bidirectional(num_positions=64),
        )
    config.data = configs.Data(source=source, tokenizer=configs.Bytes(), cache_dir=str(tmp_path / "cache"))
    config.data.segment_length = 64
    if "labelled" in source.content_types:
        config.data.tokenizer = configs.WordPiece(vocab_size=60)
    path = tmp_path / "run"
    path.mkdir()
    write_json(path / "config.json", config_to_dict(config))
    experiment = make_experiment(config, run_data=RunData(path, is_training=True))
    experiment.documents("train")
    experiment.run_data.keep(path)

    def read(source, **named):
        moved = dataclasses.replace(config, data=dataclasses.replace(config.data, source=source))
        run_data = RunData.of_run(path, config, tell=lines.append, **named)
        opened = make_experiment(moved, tokenizer=experiment.tokenizer, run_data=run_data)
        return [opened.documents(split) for split in ("train", "validation", "test")]

    lines = []
    assert read(write(tfds, seqio, tmp_path / "again", old)) and lines == []
    changed = write(tfds, seqio, tmp_path / "new", new)
    with pytest.raises(ValueError, match="has changed since it was trained: the train split has"):
        read(changed)
    assert read(changed, is_named=True) and "other data than that of training" in lines[-1]


def test_texts_of_a_builder_and_of_a_task_have_classes_and_answers(tfds, seqio, tmp_path):
    news = {split: [{"title": f"Ä {i}", "body": f"{split} {i}", "label": str(i % 2)} for i in range(6)]
            for split in ("train", "test")}  # fmt: skip
    prepare(tfds, tmp_path, "tiny_news:1.0.0", news)
    features = {"title_feature": "title", "text_feature": "body", "label_feature": "label", "first_class": 5}
    source = configs.TfdsClasses(name="tiny_news", data_dir=str(tmp_path), validation_percent=40, **features)
    found = read_classified_texts(source).texts
    assert sorted(found["test"], key=repr) == [LabelledText((f"Ä {i}. test {i}",), 5 + i % 2) for i in range(6)]
    held_out = [*found["train"], *found["validation"]]
    assert sorted(text.texts[0] for text in held_out) == [f"Ä {i}. train {i}" for i in range(6)]
    assert 0 < len(found["validation"]) < 6

    def dataset(split, shuffle_files, seed=None):
        examples = {"inputs": [f"{split} a", f"{split} ö"], "targets": ["bad", "good"]}
        return builders.import_tensorflow().data.Dataset.from_tensor_slices(examples)

    with hide_warnings():
        for name, kept in (("memjax_test_kept", True), ("memjax_test_decoded", False)):
            seqio.TaskRegistry.add(
                name,
                source=seqio.FunctionDataSource(dataset, splits=["train", "validation", "test"]),
                preprocessors=[
                    functools.partial(seqio.preprocessors.tokenize, copy_pretokenized=kept),
                    seqio.preprocessors.append_eos,
                ],
                output_features=dict.fromkeys(["inputs", "targets"], seqio.Feature(seqio.ByteVocabulary())),
            )
    for name in ("memjax_test_kept", "memjax_test_decoded"):
        asked = configs.Data(source=configs.SeqioInstructions(name=name), tokenizer=configs.Bytes())
        for split in ("train", "validation", "test"):
            both = [Instruction(f"{split} a", "", ("bad",)), Instruction(f"{split} ö", "", ("good",))]
            assert read_instructions(asked, split) == both
        texts = read_classified_texts(configs.SeqioClasses(name=name, classes=("bad", "good"), first_class=3)).texts
        for split in ("train", "validation", "test"):
            assert texts[split] == [LabelledText((f"{split} a",), 3), LabelledText((f"{split} ö",), 4)]
    # Of inputs that do not fit the end is cut off, of the answer nothing.
    tokenizer = InstructionTokenizer(ByteTokenizer(), max_tasks=1)
    rows = InstructionExamples(read_instructions(asked, "validation"), tokenizer, length=10, longest=4)
    parts = [(tokenizer.decode(prompt), tokenizer.decode(answer)) for prompt, answer in rows.rows]
    assert parts == [("vali", "bad"), ("vali", "good")] and rows.skipped == 0


def test_a_broken_character_in_one_example_is_skipped_and_counted(seqio, tmp_path):
    def dataset(split, shuffle_files, seed=None):
        texts = [f"{split} text {number} ä".encode() for number in range(40)]
        texts[7:9] = [b"broken \xff", b""]
        examples = {"inputs": texts, "targets": [b"bad", b"good"] * 20}
        return builders.import_tensorflow().data.Dataset.from_tensor_slices(examples)

    name = "memjax_test_broken"
    with hide_warnings():
        seqio.TaskRegistry.add(
            name,
            source=seqio.FunctionDataSource(dataset, splits=["train", "validation", "test"]),
            preprocessors=[seqio.preprocessors.tokenize],
            output_features=dict.fromkeys(["inputs", "targets"], seqio.Feature(seqio.ByteVocabulary(), add_eos=False)),
        )
    said = []
    progress = lambda what, done, total: said.append(what) if total == 0 else None
    documents = seqio_documents(name, tmp_path / "tokens", split="train", feature="inputs", progress=progress)
    assert len(documents) == 38 and said == ["tokens: 2 of 40 documents skipped: 1 not UTF-8, 1 empty"]
    with pytest.raises(ValueError, match=f"{name}/train:7 is not UTF-8 at byte 7"):
        seqio_documents(name, tmp_path / "strict", split="train", feature="inputs", rules=ReadingRules(skip="none"))
    splits = read_classified_texts(configs.SeqioClasses(name=name, classes=("bad", "good")))
    assert splits.notes()[0] == "3 of 120 examples skipped: 3 not UTF-8"
    with pytest.raises(ValueError, match=f"{name}/test:7 is not UTF-8"):
        list(seqio_module.seqio_pairs(name, split="test"))


def test_task_mistakes(seqio, tmp_path):
    register_tasks(["memjax_pg19"], data_dir=tmp_path / "empty")
    for arguments, message in [
        ({"name": "no_such_task", "split": "train"}, "'no_such_task' is no seqio Task or Mixture; import the module"),
        ({"name": "memjax_pg19", "split": "dev"}, "split: 'dev'; memjax_pg19 has train, validation, test"),
        ({"name": "memjax_pg19", "split": "train", "feature": "inputs"}, "feature: 'inputs'; memjax_pg19 has targets"),
        ({"name": "memjax_pg19", "split": "train"}, "memjax_pg19 cannot be read"),
    ]:
        with pytest.raises(ValueError, match=message) as error:
            seqio_documents(arguments.pop("name"), tmp_path / "tokens", **arguments)
        assert "\n" not in str(error.value)
    with pytest.raises(ValueError, match="names: 'pg19'; allowed are memjax_python_library, memjax_pg19"):
        register_tasks(["pg19"])
