"""A tokenizer that a run carries is the one it was trained with, or a line says what is wrong."""

import json

import pytest

from memjax.data.byte_pairs import train_byte_pairs
from memjax.data.dialogue import TokenizerWithDialogueMarks
from memjax.data.saved_tokenizers import load_tokenizer, save_tokenizer
from memjax.data.tokenizers import ByteTokenizer, WordTokenizer, train_sentencepiece
from memjax.data.wordpiece import WordPieceTokenizer
from memjax.durable_files import read_json, write_json

TEXTS = [f"the quick brown fox number {i} jumps over the lazy dog\n" for i in range(20)]

MAKERS = {
    "bytes": lambda folder: ByteTokenizer(),
    "sentencepiece": lambda folder: train_sentencepiece(TEXTS, folder / "a.model", vocab_size=300),
    "words": lambda folder: WordTokenizer.train(TEXTS),
    "byte pairs": lambda folder: train_byte_pairs(TEXTS, folder / "a.json", vocab_size=300),
    "wordpiece": lambda folder: WordPieceTokenizer.train(TEXTS, vocab_size=80),
    "cased wordpiece": lambda folder: WordPieceTokenizer.train(TEXTS, vocab_size=80, lowercase=False),
}


@pytest.mark.parametrize("kind", MAKERS)
def test_a_saved_tokenizer_is_the_same(kind, tmp_path):
    tokenizer = MAKERS[kind](tmp_path)
    save_tokenizer(tokenizer, tmp_path / "run" / "tokenizer")
    found = load_tokenizer(tmp_path / "run" / "tokenizer")
    text = "The quick BROWN fox, and a 7 nobody saw"
    assert found.fingerprint == tokenizer.fingerprint and found.vocab_size == tokenizer.vocab_size
    assert found.encode(text).tolist() == tokenizer.encode(text).tolist()
    assert (found.begin_id, found.end_id, found.pad_id) == (tokenizer.begin_id, tokenizer.end_id, tokenizer.pad_id)


def test_marks_are_laid_around_it_again(tmp_path):
    save_tokenizer(TokenizerWithDialogueMarks(ByteTokenizer()), tmp_path / "tokenizer")
    assert load_tokenizer(tmp_path / "tokenizer").fingerprint == ByteTokenizer.fingerprint


def test_what_is_gone_damaged_or_another_is_told(tmp_path):
    folder = tmp_path / "tokenizer"
    with pytest.raises(ValueError, match=r"about\.json is missing"):
        load_tokenizer(folder)
    save_tokenizer(MAKERS["words"](tmp_path), folder)
    about, other = read_json(folder / "about.json"), json.dumps(["other", "words"])
    (folder / "words.json").write_text(other)
    with pytest.raises(ValueError, match=r"words\.json is damaged \(it is not what memjax wrote\), allowed: the file"):
        load_tokenizer(folder)
    write_json(folder / "about.json", {**about, "files": {}})  # as earlier versions wrote it
    with pytest.raises(ValueError, match=r"holds words-.*, allowed: words-.*trained with"):
        load_tokenizer(folder)
    write_json(folder / "about.json", about)
    (folder / "words.json").unlink()
    with pytest.raises(ValueError, match=r"words\.json is missing"):
        load_tokenizer(folder)
    (folder / "about.json").write_text("{")
    with pytest.raises(ValueError, match=r"about\.json: damaged"):
        load_tokenizer(folder)
