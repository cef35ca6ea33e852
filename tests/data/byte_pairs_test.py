import json

import numpy as np
import pytest

from memjax import config as configs
from memjax.data.byte_pairs import BytePairTokenizer, train_byte_pairs
from memjax.data.opening import make_tokenizer
from memjax.data.tokenizers import StreamingDecoder, Tokenizer

pytest.importorskip("tokenizers")

TEXTS = ["the cat sat on the mat\n", "the dog sat on the log\n"] * 8
HARD = ["", " ", "a\r\n\t  b ", "é ½ 漢字 🙂", "<|endoftext|> is a name", "<|end", "x<|endoftext|>", "\x00\x7f"]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    return train_byte_pairs(TEXTS, tmp_path_factory.mktemp("pairs") / "tokenizer.json", vocab_size=280)


@pytest.mark.parametrize("text", HARD + TEXTS[:1])
def test_every_text_comes_back(tokenizer, text):
    ids = tokenizer.encode(text)
    assert ids.dtype == np.int32 and tokenizer.decode(ids) == text
    assert tokenizer.token_bytes(ids).sum() == len(text.encode("utf-8"))
    assert tokenizer.end_id not in ids


def test_it_is_a_tokenizer_with_pairs(tokenizer):
    assert isinstance(tokenizer, Tokenizer) and tokenizer.lossless
    assert 257 < tokenizer.vocab_size <= 280 and tokenizer.begin_id == tokenizer.end_id
    assert len(tokenizer.encode("the cat")) < 7
    decoder, ids = StreamingDecoder(tokenizer), tokenizer.encode("é")
    assert "".join(decoder.push(ids[i : i + 1]) for i in range(len(ids))) + decoder.flush() == "é"


def test_gpt2s_two_files_are_read(tokenizer, tmp_path):
    inside = json.loads(tokenizer._tokenizer.to_str())["model"]
    vocabulary = {**inside["vocab"], "<|endoftext|>": tokenizer.end_id}
    pairs = [pair if isinstance(pair, str) else " ".join(pair) for pair in inside["merges"]]
    (tmp_path / "vocab.json").write_text(json.dumps(vocabulary))
    (tmp_path / "merges.txt").write_text("#version: 0.2\n" + "\n".join(pairs) + "\n")
    again = BytePairTokenizer(tmp_path)
    for text in HARD + TEXTS[:1]:
        np.testing.assert_array_equal(again.encode(text), tokenizer.encode(text))
    assert again.vocab_size == tokenizer.vocab_size


def test_ids_are_those_of_the_library(tmp_path):
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

    reference = Tokenizer(models.BPE())
    reference.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    reference.decoder, reference.post_processor = decoders.ByteLevel(), processors.ByteLevel(trim_offsets=False)
    letters = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=320, special_tokens=["<|endoftext|>"], initial_alphabet=letters, show_progress=False
    )
    texts = [*TEXTS, "  a café, naïve: 漢字 and 🙂 don't\n\n\tthe end 1903"]
    reference.train_from_iterator(texts, trainer)
    reference.enable_truncation(4)  # a setting of how it was used, which some files have: texts are read whole
    reference.save(str(tmp_path / "tokenizer.json"))
    reference.no_truncation()
    ours = BytePairTokenizer(tmp_path)
    for text in [*texts, *HARD, " the", "the", "the  cat", "\n the\n", "naïve🙂🙂 漢", "it's I'LL"]:
        if "<|endoftext|>" not in text:
            assert ours.encode(text).tolist() == reference.encode(text).ids, text
    both = reference.encode("the cat<|endoftext|> sat").ids  # there the special token; here the text between two
    assert both == [*ours.encode("the cat").tolist(), ours.end_id, *ours.encode(" sat").tolist()]


@pytest.mark.parametrize("content", ["", "{", '{"model": 3}'])
def test_a_damaged_file_is_one_line(content, tmp_path):
    (tmp_path / "tokenizer.json").write_text(content)
    with pytest.raises(ValueError, match=r"path: .* cannot be read \(.*\), allowed: a byte-level tokenizer"):
        BytePairTokenizer(tmp_path)


def test_a_configuration_trains_it_once(tmp_path):
    class Train(list):
        fingerprint = "texts"

    described = configs.BytePairs(vocab_size=270)
    first = make_tokenizer(described, lambda: Train(TEXTS), tmp_path)
    assert make_tokenizer(described, Train, tmp_path).fingerprint == first.fingerprint
    (file,) = tmp_path.glob("byte-pairs-270-*.json")
    assert make_tokenizer(configs.BytePairs(path=str(file)), Train, tmp_path).fingerprint == first.fingerprint


def change_digit(file):
    file.write_bytes(file.read_bytes().replace(b"1", b"2", 1))


def cut(file):
    file.write_bytes(file.read_bytes()[:-9])


@pytest.mark.parametrize("damage", [change_digit, cut])
@pytest.mark.parametrize("ending", ["json", "checksum"])
def test_a_damaged_one_is_trained_again(tmp_path, damage, ending):
    class Train(list):
        fingerprint = "texts"

    described, lines = configs.BytePairs(vocab_size=270), []
    train = lambda: make_tokenizer(described, lambda: Train(TEXTS), tmp_path, progress=lambda *line: lines.append(line))
    first, (file,) = train(), tmp_path.glob(f"byte-pairs-270-*.{ending}")
    written, lines[:] = file.read_bytes(), []
    damage(file)
    assert train().fingerprint == first.fingerprint and file.read_bytes() == written
    assert f"{file}: damaged" in lines[0][0] and "trained again" in lines[0][0]
    file.with_suffix(".json").unlink() if ending == "json" else file.unlink()
    assert train().fingerprint == first.fingerprint  # also one of an earlier version, without a checksum


def test_bad_files_are_refused(tmp_path):
    with pytest.raises(ValueError, match="allowed: a tokenizer.json, or a folder with vocab.json and merges.txt"):
        BytePairTokenizer(tmp_path / "nothing")
    with pytest.raises(ValueError, match="vocab_size: given 257, allowed: more than 257"):
        train_byte_pairs(TEXTS, tmp_path / "small.json", vocab_size=257)


def test_a_vocabulary_that_does_not_fit_on_the_disk_is_an_error_of_the_disk(tmp_path):
    """`Tokenizer.save` raises an `Exception` without the number of the error."""
    from tools.faults.interruptions import limit_file_size

    with limit_file_size(64), pytest.raises(OSError, match="large"):
        train_byte_pairs(["a text " * 50], tmp_path / "pairs.json", vocab_size=260)
    assert not (tmp_path / "pairs.json").exists()
