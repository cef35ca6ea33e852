"""Tokenizers: nothing is lost, bytes are exact, models are read and refused."""

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from memjax.data.seqio import SeqioVocabulary
from memjax.data.tokenizers import (
    ByteTokenizer,
    SentencePieceTokenizer,
    StreamingDecoder,
    Tokenizer,
    WordTokenizer,
    count_words,
    train_sentencepiece,
    utf8_bytes,
)

CODE = "def function(value):\n    if value:\n\treturn [value] * 10\n\n\nclass Thing:\n    pass  # naïve\n"

TEXTS = st.text(alphabet=st.one_of(st.sampled_from(" \t\n\r\x00\u2581<>s"), st.characters(exclude_categories=["Cs"])))


@pytest.fixture(scope="module")
def pieces(tmp_path_factory):
    return train_sentencepiece([CODE] * 20, tmp_path_factory.mktemp("model") / "new" / "spm.model", vocab_size=320)


@pytest.fixture(scope="module", params=["bytes", "sentencepiece", "words", "seqio"])
def tokenizer(request, pieces):
    words = WordTokenizer.train([CODE])
    return {"bytes": ByteTokenizer(), "sentencepiece": pieces, "words": words, "seqio": SeqioVocabulary(Letters())}[
        request.param
    ]


class Letters:
    """What memjax uses of a `seqio.Vocabulary`: one id per character, lower case."""

    vocab_size, pad_id, eos_id = 200, 0, 1

    def encode(self, text):
        return [min(ord(c), 197) + 2 for c in text.lower()]

    def decode(self, ids):
        return "".join(chr(i - 2) for i in ids if i > 1)


def test_protocol(tokenizer):
    assert isinstance(tokenizer, Tokenizer)
    ids = tokenizer.encode("if value: pass\n")
    assert ids.dtype == np.int32 and ids.ndim == 1
    assert 0 <= ids.min() and ids.max() < tokenizer.vocab_size
    special = [tokenizer.begin_id, tokenizer.end_id, tokenizer.pad_id]
    assert tokenizer.token_bytes(ids[None, :]).shape == (1, len(ids))
    assert tokenizer.token_bytes([tokenizer.begin_id, tokenizer.pad_id]).tolist() == [0, 0]
    assert all(0 <= i < tokenizer.vocab_size for i in special)
    assert tokenizer.encode("").shape == (0,) and tokenizer.decode([]) == ""


def check_lossless(tokenizer, text):
    ids = tokenizer.encode(text)
    assert tokenizer.lossless
    assert tokenizer.decode(ids) == text
    assert tokenizer.token_bytes(ids).sum() == len(text.encode("utf-8"))
    decoder = StreamingDecoder(tokenizer)
    assert "".join([*(decoder.push([i]) for i in ids), decoder.flush()]) == text


@settings(max_examples=200, deadline=None)
@given(TEXTS)
@example(" \u2581 \u2581\u2581")
@example("<s></s><unk><pad><0x0A> \u2047 ")
@example("\ufeff\x85\u2028\u3000\xa0\r\n\n\n")
@example("    \t  \n" * 50)
@example("ﬁ Ⅷ e\u0301 é \U0001f468\u200d\U0001f469")
def test_nothing_is_lost(pieces, text):
    check_lossless(pieces, text)
    check_lossless(ByteTokenizer(), text)


@settings(max_examples=50, deadline=None)
@given(st.binary(max_size=12))
def test_bytes_that_are_not_utf8_survive_as_surrogate_escapes(pieces, content):
    text = content.decode("utf-8", "surrogateescape")
    for tokenizer in (pieces, ByteTokenizer()):
        ids = tokenizer.encode(text)
        assert tokenizer.decode_bytes(ids) == content == utf8_bytes(text)
        assert tokenizer.token_bytes(ids).sum() == len(content)


def test_sentencepiece_pieces_are_shorter_than_bytes_and_may_end_lines(pieces):
    ids = pieces.encode(CODE)
    assert len(ids) < 0.7 * len(CODE.encode())
    assert any(pieces.decode([i]).endswith(":\n") for i in ids)
    assert pieces.vocab_size == 320 and (pieces.pad_id, pieces.begin_id, pieces.end_id) == (0, 1, 2)


def test_sentencepiece_model_is_reread_and_told_apart(pieces, tmp_path):
    again = SentencePieceTokenizer(pieces.path)
    assert again.fingerprint == pieces.fingerprint
    np.testing.assert_array_equal(again.encode(CODE), pieces.encode(CODE))
    same = train_sentencepiece([CODE] * 20, tmp_path / "same.model", vocab_size=320)
    other = train_sentencepiece([CODE] * 20, tmp_path / "b" / "other.model", vocab_size=293, model_type="unigram")
    assert same.fingerprint == pieces.fingerprint, "training is reproducible"
    assert other.fingerprint != pieces.fingerprint and other.lossless
    check_lossless(other, CODE)


def test_training_reads_no_more_than_max_bytes(tmp_path):
    read = []

    def texts():
        for number in range(100):
            read.append(number)
            yield CODE

    train_sentencepiece(texts(), tmp_path / "m.model", vocab_size=300, max_bytes=3 * len(CODE.encode()))
    assert len(read) == 3


STRANGE = {
    "one letter": "a" * 5000,
    "two letters": "ab" * 3000,
    "one word": "word",
    "one line": "the quick brown fox " * 400,
    "no spaces": "你好世界，我们来了。" * 300,
    "genes": "ACGTTGCA\n" * 400,
    "right to left": "שלום עולם ומלואו\n" * 200,
    "digits": "".join(map(str, range(2000))),
    "signs": "🙂🙃 " * 500,
}


@pytest.mark.parametrize("model_type", ["bpe", "unigram"])
@pytest.mark.parametrize("kind", STRANGE)
def test_a_text_with_few_pieces_gets_a_smaller_vocabulary_that_loses_nothing(tmp_path, kind, model_type):
    tokenizer = train_sentencepiece([STRANGE[kind]], tmp_path / "m.model", vocab_size=50_000, model_type=model_type)
    assert 260 < tokenizer.vocab_size < 10_000 and tokenizer.lossless
    for text in (STRANGE[kind], "a  b \n", "é 你"):
        assert tokenizer.decode(tokenizer.encode(text)) == text


def test_a_text_of_white_space_alone_is_refused(tmp_path):
    with pytest.raises(ValueError, match="texts: no text but white space"):
        train_sentencepiece([" \n" * 50, "\n"], tmp_path / "m.model", vocab_size=300)


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"vocab_size": 100}, "vocab_size: 100; give more than 260"),
        ({"model_type": "char"}, "model_type: 'char'; allowed are bpe, unigram"),
    ],
)
def test_training_mistakes_get_one_line(tmp_path, arguments, message):
    with pytest.raises(ValueError, match=message) as error:
        train_sentencepiece([CODE], tmp_path / "m.model", **{"vocab_size": 320, **arguments})
    assert "\n" not in str(error.value) and not list(tmp_path.iterdir())


def test_a_file_that_is_no_model_is_refused(tmp_path):
    with pytest.raises(ValueError, match="is not a file; give a SentencePiece model"):
        SentencePieceTokenizer(tmp_path / "missing.model")
    (tmp_path / "text.model").write_text("text")
    with pytest.raises(ValueError, match="cannot be read .*, allowed: a SentencePiece model"):
        SentencePieceTokenizer(tmp_path / "text.model")


def test_words_of_wikitext():
    train = " = A title = \n \n the cat <unk> the dog \n"
    tokenizer = WordTokenizer.train([train])
    ids = tokenizer.encode(train)
    assert len(ids) == len(train.split()) + train.count("\n"), "words and lines, as published"
    for text in (train, "", "the cat", "\n\n the", " \n"):
        assert count_words(text) == len(tokenizer.encode(text))
    assert tokenizer.decode(ids) == train and tokenizer.token_bytes(ids).sum() == len(train)
    assert tokenizer.decode_bytes(ids) == train.encode()
    assert tokenizer.words[:2] == ["=", "the"] and tokenizer.vocab_size == 4 + 6
    assert tokenizer.encode(" bird \n").tolist() == [3, 2]
    np.testing.assert_array_equal(tokenizer.encode("the cat"), tokenizer.encode("the cat\n"))
    assert WordTokenizer.train([train], vocab_size=5).words == ["="]
    assert WordTokenizer.train([train], min_count=2).words == ["=", "the"]
    with pytest.raises(ValueError, match="texts: no words"):
        WordTokenizer.train([" \n"])


def test_words_are_saved(tmp_path):
    tokenizer = WordTokenizer.train(["zwölf b"])
    tokenizer.save(tmp_path / "words.json")
    again = WordTokenizer.load(tmp_path / "words.json")
    assert again.words == tokenizer.words and again.fingerprint == tokenizer.fingerprint
    with pytest.raises(ValueError, match="is not a file; give a vocabulary"):
        WordTokenizer.load(tmp_path / "missing.json")


def test_seqio_vocabulary():
    tokenizer = SeqioVocabulary(Letters())
    assert tokenizer.decode(tokenizer.encode("Abc")) == "abc" and not tokenizer.lossless
    assert tokenizer.token_bytes([0, 1, 67]).tolist() == [0, 0, 1]
    assert SeqioVocabulary(Letters(), begin_id=5).begin_id == 5
    decoder = StreamingDecoder(tokenizer)
    assert [decoder.push(tokenizer.encode("ab")), decoder.push(tokenizer.encode("c")), decoder.flush()] == [
        "ab",
        "c",
        "",
    ]


def test_streaming_decoder_waits_for_the_last_byte_and_marks_broken_text():
    tokenizer = ByteTokenizer()
    decoder = StreamingDecoder(tokenizer)
    assert [decoder.push([i]) for i in tokenizer.encode("a€")] == ["a", "", "", "€"]
    assert decoder.push(tokenizer.encode("€")[:2]) == "" and decoder.flush() == "\ufffd"


def test_a_whole_vocabulary_of_words_has_its_own_ids(tmp_path):
    tokenizer = WordTokenizer(["the", "<eos>", "<unk>", "cat"])
    assert tokenizer.encode("the cat sat\n").tolist() == [0, 3, 2, 1] and tokenizer.vocab_size == 4
    assert {tokenizer.begin_id, tokenizer.end_id, tokenizer.pad_id} == {1}
    assert tokenizer.decode([0, 3, 1]) == " the cat \n"
    tokenizer.save(tmp_path / "words.json")
    assert WordTokenizer.load(tmp_path / "words.json").fingerprint == tokenizer.fingerprint
    for words in (["<eos>", "a"], ["<eos>", "<unk>", "a", "a"]):
        with pytest.raises(ValueError, match="words: given <eos> among them, allowed: a whole vocabulary"):
            WordTokenizer(words)
