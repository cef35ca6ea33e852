from pathlib import Path

import numpy as np
import pytest

from memjax.data.wordpiece import SPECIAL, WordPieceTokenizer, join_texts, truncate_texts

PIECES = [*SPECIAL, "the", "cafe", "un", "##aff", "##able", ".", "!", "中"]


@pytest.fixture
def vocab(tmp_path) -> Path:
    path = tmp_path / "vocab.txt"
    path.write_text("\n".join(PIECES) + "\n", "utf-8")
    return path


def test_words_are_cut_into_the_longest_known_pieces(vocab):
    tokenizer = WordPieceTokenizer(vocab)
    ids = tokenizer.encode("The  CAFÉ unaffable xyz! 中.")
    pieces = ["the", "cafe", "un", "##aff", "##able", "[UNK]", "!", "中", "."]
    assert ids.dtype == np.int32 and [PIECES[i] for i in ids] == pieces
    assert tokenizer.decode(ids[:5]) == "the cafe unaffable"
    assert (tokenizer.pad_id, tokenizer.unknown_id, tokenizer.begin_id, tokenizer.end_id, tokenizer.mask_id) == (
        0,
        1,
        2,
        3,
        4,
    )
    assert tokenizer.token_bytes(ids).tolist() == [3, 4, 2, 3, 4, 0, 1, 3, 1]
    assert tokenizer.vocab_size == len(PIECES) and not tokenizer.lossless


def test_special_tokens_in_a_text_are_read_as_such(vocab):
    assert WordPieceTokenizer(vocab).encode("the [MASK].").tolist() == [5, 4, 10]


def test_a_cased_vocabulary_keeps_case_and_accents(vocab):
    assert WordPieceTokenizer(vocab, lowercase=False).encode("The the café").tolist() == [1, 5, 1]


def test_offsets_are_characters_of_the_text(vocab):
    text = "The  unaffable CAFÉ."
    ids, offsets = WordPieceTokenizer(vocab).encode_offsets(text)
    assert [text[a:b] for a, b in offsets] == ["The", "un", "aff", "able", "CAFÉ", "."]
    assert ids.tolist() == WordPieceTokenizer(vocab).encode(text).tolist()


def test_a_trained_vocabulary_is_kept_and_read(tmp_path):
    tokenizer = WordPieceTokenizer.train(["the cat sat on the mat"] * 3, vocab_size=40)
    tokenizer.save(tmp_path / "tokenizer.json")
    read = WordPieceTokenizer(tmp_path / "tokenizer.json")
    assert read.fingerprint == tokenizer.fingerprint
    assert read.decode(read.encode("The cat")) == "the cat" and read.vocab_size <= 40
    assert tokenizer.begin_id == 2


@pytest.mark.parametrize(
    "content, message",
    [
        ("a\nb\n", r"no list of different pieces with \[UNK\]"),
        ("[UNK]\na\na\n", "no list of different pieces"),
        ("[UNK]\na\n", r"has no \[PAD\], \[CLS\], \[SEP\], \[MASK\]"),
    ],
)
def test_what_is_no_vocabulary_is_refused(tmp_path, content, message):
    (tmp_path / "vocab.txt").write_text(content)
    with pytest.raises(ValueError, match=message):
        WordPieceTokenizer(tmp_path / "vocab.txt")
    with pytest.raises(ValueError, match="is not a file, allowed: a vocab.txt"):
        WordPieceTokenizer(tmp_path / "nothing.txt")


def test_pairs_have_types_and_separators(vocab):
    tokenizer = WordPieceTokenizer(vocab)
    tokens, types = join_texts(tokenizer, np.array([5, 6]), np.array([7]))
    assert tokens.tolist() == [2, 5, 6, 3, 7, 3] and types.tolist() == [0, 0, 0, 0, 1, 1]
    tokens, types = join_texts(tokenizer, np.array([5]))
    assert tokens.tolist() == [2, 5, 3] and types.tolist() == [0, 0, 0]


def test_the_longest_text_is_cut_first():
    texts = [np.arange(9), np.arange(4)]
    assert [t.tolist() for t in truncate_texts(texts, 12)] == [[0, 1, 2, 3, 4], [0, 1, 2, 3]]
    assert [len(t) for t in truncate_texts(texts, 9)] == [3, 3]
    assert [len(t) for t in truncate_texts(texts, 64)] == [9, 4]
    with pytest.raises(ValueError, match="segment_length: given 4, allowed: at least 5 for 2 texts"):
        truncate_texts(texts, 4)


@pytest.mark.parametrize("number", [1, 2, 3])
def test_texts_are_cut_as_one_token_after_the_other_from_the_longest(number):
    for *sizes, room in np.random.default_rng(number).integers(1, 30, (200, number + 1)).tolist():
        room = max(room, number)
        cut = [*sizes]
        while sum(cut) > room:
            cut[int(np.argmax(cut))] -= 1
        texts = truncate_texts([np.arange(size) for size in sizes], room + 1 + number)
        assert [text.tolist() for text in texts] == [[*range(size)] for size in cut]


@pytest.mark.parametrize("lowercase", [True, False])
def test_training_is_reproducible(lowercase):
    """Many pieces are as frequent as others, and the size ends the choice among them."""
    texts = ["Ada lives in Athens, unliveable", "Berlin delivers rivers to Cairo.", "東京 is liveable"] * 3
    train = lambda: WordPieceTokenizer.train(texts, vocab_size=70, lowercase=lowercase)
    tokenizers = [train() for _ in range(6)]
    assert len({tokenizer.fingerprint for tokenizer in tokenizers}) == 1 and tokenizers[0].vocab_size == 70
    pieces = tokenizers[0]._tokenizer.get_vocab()
    assert "##a" in pieces and "東" in pieces and not {"##.", "##,", "## ", "##東"} & {*pieces}
    assert tokenizers[0].special_ids.tolist() == [0, 1, 2, 3, 4]
