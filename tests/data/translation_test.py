"""Sentence pairs: sides that stay together, their context in every batch, and what is refused."""

import lzma

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from memjax import config
from memjax.data.document_batches import DocumentBatches
from memjax.data.documents import ArrayDocuments
from memjax.data.opening import make_datasets
from memjax.data.reading_plan import ReadingPlan
from memjax.data.translation import SentencePairs, number_words, parallel_texts, random_letters
from memjax.models.factory import make_encoder_decoder
from memjax.training.evaluation import evaluate


def pairs(max_length: int = 4) -> SentencePairs:
    source = ArrayDocuments([[11, 12, 2], [21, 2], [31, 32, 33, 34, 2], [41, 2]])
    target = ArrayDocuments([[51, 2], [61, 62, 63, 2], [71, 2], [81, 82, 2]])
    return SentencePairs(source, target, max_length)


def test_pairs_with_a_long_side_are_left_out():
    documents = pairs()
    assert documents.kept.tolist() == [0, 1, 3] and [len(documents[i]) for i in range(3)] == [2, 4, 3]
    assert documents.source(2).tolist() == [41, 2] and documents.num_tokens(2) == 3
    with pytest.raises(ValueError, match="max_length: given 1, no pair is that short"):
        pairs(1)
    with pytest.raises(ValueError, match="given 1 sources and 2 targets"):
        SentencePairs(ArrayDocuments([[1]]), ArrayDocuments([[1], [2]]), 4)


def test_every_segment_comes_with_its_source():
    stream = DocumentBatches(pairs(), rows=2, segment_length=2, begin_token=1, epochs=1, shuffle=False)
    seen = []
    for batch in stream:
        source, mask = batch.extras["source"][0], batch.extras["source_mask"][0]
        seen += [(batch.targets[0, row], source[row], mask[row]) for row in range(2)]
    by_target = {tuple(target.tolist()): (source.tolist(), mask.tolist()) for target, source, mask in seen}
    assert by_target[(51, 2)] == ([11, 12, 2, 0], [True, True, True, False])
    for part in ((61, 62), (63, 2)):  # a target of two segments
        assert by_target[part] == ([21, 2, 0, 0], [True, True, False, False])
    assert by_target[(0, 0)] == ([0] * 4, [False] * 4)  # a row that is through
    with pytest.raises(ValueError, match="documents with a context allow 'separate'"):
        DocumentBatches(pairs(), rows=1, segment_length=2, begin_token=1, protocol="contiguous")


def test_files_of_two_languages(tmp_path):
    for stem in ("train", "val", "test_2016_flickr"):
        (tmp_path / f"{stem}.en").write_text("A dog .\nTwo cats run.\n")
        with lzma.open(tmp_path / f"{stem}.de.xz", "wt") as file:
            file.write("Ein Hund .\nZwei Katzen rennen.\n")
    assert list(parallel_texts(tmp_path, "train", "de")) == ["Ein Hund .", "Zwei Katzen rennen."]
    source = config.ParallelText(path=str(tmp_path), max_length=40)
    data = config.Data(source=source, tokenizer=config.Bytes(), cache_dir=str(tmp_path / "cache"))
    datasets = make_datasets(data)
    documents = datasets.documents("test")
    end = datasets.tokenizer.end_id
    assert documents[0][-1] == end == documents.source(1)[-1]
    assert datasets.tokenizer.decode(documents[1]) == "Zwei Katzen rennen."
    assert datasets.tokenizer.decode(documents.source(1)) == "Two cats run."
    assert documents.num_bytes(0) == 10
    with pytest.raises(ValueError, match=r"data.source.path: .* has none of train.fr, train.fr.xz, train.fr.gz"):
        parallel_texts(tmp_path, "train", "fr")


def test_numbers_in_words():
    splits = {split: number_words(300, split, "en") for split in ("train", "validation", "test")}
    texts = [text for split in splits.values() for text in split]
    assert len(set(texts)) == 900
    german = number_words(300, "train", "de")
    assert len(set(german)) == 300 and not any(" " in text for text in german)


def test_a_translation_model_is_evaluated_as_any_other():
    model = make_encoder_decoder(config.EncoderDecoder(dim=8, num_layers=1, num_heads=2), 90)
    tokens, start = jnp.zeros((2, 4), jnp.int32), jnp.ones(2, bool)
    init = jax.jit(
        lambda: model.init({"params": jax.random.key(0)}, tokens, model.init_state(2), start_of_document=start)
    )
    result = evaluate(model, init(), pairs(), ReadingPlan(rows=2, segment_length=4, begin_token=1))
    assert result.targets == 9 and result.complete and np.isfinite(result.perplexity)


def test_copied_letters_are_their_own_source():
    data = config.Data(source=config.CopiedLetters(length=5, num_letters=3, num_documents=16), tokenizer=config.Bytes())
    documents = make_datasets(data).documents("train")
    assert len(documents) == 16 and [len(documents[i]) for i in range(16)] == [6] * 16  # and the end
    for index in range(16):
        np.testing.assert_array_equal(documents[index], documents.source(index))
    texts = {split: list(random_letters(64, 8, 3, split)) for split in ("train", "validation", "test")}
    assert {letter for text in texts["train"] for letter in text} == {"a", "b", "c"}
    assert texts["train"] != texts["validation"] != texts["test"]
