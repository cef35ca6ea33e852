"""Tokenizers in the metadata of GGUF files, and what folders say about special tokens and chats."""

import io
import json

import numpy as np
import pytest

from memjax.data.byte_pairs import BytePairTokenizer, _byte_of_character
from memjax.data.saved_tokenizers import load_tokenizer, save_tokenizer
from memjax.interop.gguf_tokenizers import tokenizer_files
from tests.interop import weights as made

tokenizers = pytest.importorskip("tokenizers")

SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<think>")
TEXTS = [
    *("", "the thing is  12 or 1234", "  a   b\n\n\tc  7\r\n", "don't DON'T we're", "déjà vu 漢字 🙂🏽"),
    *("שלום  עולם ١٢٣", "x = [1, 22, 333]  # 4444", "½ ² Ⅷ  ½", "\u00a0\u2003 a\u200b", "<|x|> the <think> out"),
]


def byte_level(pre, **more):
    pieces = [*SPECIAL, *_byte_of_character(), *(merge.replace(" ", "") for merge in made.MERGES), "Ġ1", "12"]
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": pieces,
        "tokenizer.ggml.token_type": [3, 3, 3, 4, *[1] * (len(pieces) - 4)],
        "tokenizer.ggml.merges": [*made.MERGES, "Ġ 1", "1 2"],
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        **more,
    }


def read(metadata, folder):
    """The tokenizer of metadata, as an import reads it."""
    folder.mkdir()
    for name, content in tokenizer_files(metadata).items():
        (folder / name).write_text(json.dumps(content), "utf-8")
    return BytePairTokenizer(folder)


def pre_tokenizer(pre):
    """Those that published tokenizers of these models have."""
    from tokenizers import Regex, pre_tokenizers

    level = pre_tokenizers.ByteLevel(add_prefix_space=False)
    if pre == "gpt-2":
        return level
    if pre == "smollm":
        return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), level])
    numbers = {"llama-bpe": r"\p{N}{1,3}", "qwen2": r"\p{N}"}[pre]
    pattern = rf"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|{numbers}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*"
    split = pre_tokenizers.Split(Regex(pattern + r"|\s*[\r\n]+|\s+(?!\S)|\s+"), behavior="isolated")
    return pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


@pytest.mark.parametrize("pre", ["gpt-2", "smollm", "llama-bpe", "qwen2"])
def test_ids_are_those_of_the_published_pre_tokenizer(pre, tmp_path):
    metadata = byte_level(pre)
    tokenizer = read(metadata, tmp_path / "f")
    pieces, merges = metadata["tokenizer.ggml.tokens"], metadata["tokenizer.ggml.merges"]
    ids = {piece: number for number, piece in enumerate(pieces)}
    expected = tokenizers.Tokenizer(tokenizers.models.BPE(ids, [tuple(merge.split()) for merge in merges]))
    expected.pre_tokenizer = pre_tokenizer(pre)
    expected.add_tokens([tokenizers.AddedToken("<think>", normalized=False)])
    for text in TEXTS:
        assert tokenizer.encode(text).tolist() == expected.encode(text).ids, text
        assert tokenizer.decode(tokenizer.encode(text)) == text
    assert tokenizer.lossless and tokenizer.encode("a<think>").tolist()[-1] == 3


def test_digits_are_split_before_blanks(tmp_path):
    read_with = lambda pre: read(byte_level(pre), tmp_path / pre).encode("1  12").tolist()
    assert len(read_with("smollm")) != len(read_with("gpt-2"))


@pytest.mark.parametrize("prefix", [True, False])
def test_pieces_are_those_of_sentencepiece(prefix, tmp_path):
    import sentencepiece

    model, texts = io.BytesIO(), [*TEXTS[:-1], "the thing that they think of in other things is nothing", "▁ marks"]
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(["the thing that they think", "other things is nothing else", "12 34  12"] * 4),
        model_writer=model, vocab_size=300, model_type="bpe", byte_fallback=True, add_dummy_prefix=prefix,
        normalization_rule_name="identity", remove_extra_whitespaces=False, minloglevel=2,
    )  # fmt: skip
    processor = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
    numbers = range(processor.get_piece_size())
    kinds = [2 if processor.is_unknown(n) else 3 if processor.is_control(n) else 6 if processor.is_byte(n) else 1
             for n in numbers]  # fmt: skip
    metadata = {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": [processor.id_to_piece(n) for n in numbers],
        "tokenizer.ggml.scores": [processor.get_score(n) for n in numbers],
        "tokenizer.ggml.token_type": kinds,
        "tokenizer.ggml.bos_token_id": processor.bos_id(),
        "tokenizer.ggml.eos_token_id": processor.eos_id(),
        "tokenizer.ggml.add_space_prefix": prefix,
    }
    tokenizer = read(metadata, tmp_path / "f")
    assert (tokenizer.begin_id, tokenizer.end_id, tokenizer.lossless) == (1, 2, False)
    for text in texts:
        ids = tokenizer.encode(text).tolist()
        assert ids == processor.encode(text), text
        assert tokenizer.decode(ids).removeprefix(" " if prefix and text else "") == text.replace("▁", " ")


@pytest.mark.parametrize(
    "change, message",
    [
        ({"tokenizer.ggml.model": "bert"}, "tokenizer.ggml.model: given 'bert', allowed: gpt2, llama"),
        ({"tokenizer.ggml.tokens": []}, "tokenizer.ggml.model: given 'gpt2', allowed: .*with tokens"),
        ({"tokenizer.ggml.token_type": [1]}, "tokenizer.ggml.token_type: given 1, allowed: 2"),
        ({"tokenizer.ggml.merges": []}, "tokenizer.ggml.merges: given .., allowed: the merges"),
        ({"tokenizer.ggml.bos_token_id": 999}, "tokenizer.ggml.bos_token_id: given 999, allowed: an id below 2"),
        ({"tokenizer.ggml.pre": "odd"}, "tokenizer.ggml.pre: given 'odd', allowed: gpt-2"),
    ],
)
def test_another_tokenizer_is_refused(change, message):
    with pytest.raises(ValueError, match=message):
        tokenizer_files({**byte_level("gpt-2"), **change})


def test_a_folder_says_which_tokens_are_special(tmp_path):
    tokenizer = read(byte_level("smollm"), tmp_path / "f")
    assert (tokenizer.begin_id, tokenizer.end_id, tokenizer.pad_id, tokenizer.extra_end_ids) == (0, 2, 0, ())
    assert tokenizer.special_names["unk_token"] == "<|endoftext|>"
    told = {"eos_token_id": [0, 2, 99], "pad_token_id": 1}
    (tmp_path / "f" / "generation_config.json").write_text(json.dumps(told))
    (tmp_path / "f" / "chat_template.jinja").write_text("a template", "utf-8")
    folder = BytePairTokenizer(tmp_path / "f")
    assert (folder.end_id, folder.pad_id, folder.extra_end_ids, folder.chat_template) == (2, 1, (0,), "a template")
    save_tokenizer(folder, tmp_path / "kept")
    kept = load_tokenizer(tmp_path / "kept")
    for name in ("begin_id", "end_id", "pad_id", "extra_end_ids", "chat_template", "special_names", "fingerprint"):
        assert getattr(kept, name) == getattr(folder, name), name


def test_special_tokens_in_texts_are_text_and_in_prompts_are_tokens(tmp_path):
    tokenizer = read(byte_level("smollm"), tmp_path / "f")
    text = "<|im_start|>the<|im_end|>"
    ids = tokenizer.encode(text)
    assert not {1, 2} & set(ids.tolist()) and tokenizer.decode(ids) == text
    marked = tokenizer.encode_special(text)
    assert (marked[0], marked[-1], len(marked)) == (1, 2, 3) and tokenizer.decode(marked) == "the"


def test_ids_of_ordinary_entries_are_no_special_tokens(tmp_path):
    made.gpt2(tmp_path / "f")
    alone = BytePairTokenizer(tmp_path / "f")
    (tmp_path / "f" / "generation_config.json").write_text(json.dumps({"bos_token_id": 1, "eos_token_id": 5}))
    told = BytePairTokenizer(tmp_path / "f")
    assert (told.begin_id, told.end_id, told.extra_end_ids) == (alone.begin_id, alone.end_id, ())
    assert told.fingerprint == alone.fingerprint and np.array_equal(told.token_bytes([1, 5]), alone.token_bytes([1, 5]))
