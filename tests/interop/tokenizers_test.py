"""Tokenizers as people have them: one file or the older ones, line ends, added tokens, absurd lengths."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memjax import config
from memjax.data.byte_pairs import _byte_of_character
from memjax.data.saved_tokenizers import load_tokenizer, save_tokenizer
from memjax.data.wordpiece import SPECIAL
from memjax.interop.runs import import_run
from memjax.interop.tokenizer_files import read_tokenizer
from tests.interop import weights as made

TEXTS = ["The cat sat", "  a café, 漢字\n", "the mat <|user turn|> and", "x[NEW]y new word", "a <|user turn|>  b"]
PIECES = [*SPECIAL, "the", "cat", "sat", "a", "b", "x", "y", "cafe", ",", "mat", "and", "new", "##w", "word", "<", "|"]
PIECES += [">", "user", "turn", "[", "]", "漢", "字", "newtok"]


def pieces(folder, end="\n", **told):
    """A vocab.txt of WordPiece."""
    folder.mkdir(exist_ok=True)
    (folder / "vocab.txt").write_bytes("".join(f"{piece}{end}" for piece in PIECES).encode())
    if told:
        (folder / "tokenizer_config.json").write_text(json.dumps(told))
    return folder


def pairs(folder, *more, **told):
    """A vocab.json and merges.txt of byte pairs, with further entries."""
    folder.mkdir(exist_ok=True)
    vocabulary = [*more, *_byte_of_character(), *(merge.replace(" ", "") for merge in made.MERGES)]
    ids = {piece: number for number, piece in enumerate(dict.fromkeys(vocabulary))}
    (folder / "vocab.json").write_text(json.dumps(ids), "utf-8")
    (folder / "merges.txt").write_text("#version: 0.2\n" + "".join(f"{merge}\n" for merge in made.MERGES), "utf-8")
    if told:
        (folder / "tokenizer_config.json").write_text(json.dumps(told))
    return folder


def both(kind, folder, tmp_path):
    """The tokenizer of a folder, and the same of its tokenizer.json alone, as a run keeps it."""
    tokenizer = read_tokenizer(kind, folder)
    save_tokenizer(tokenizer, tmp_path / "kept")
    alone = tmp_path / "alone"
    alone.mkdir()
    (alone / "tokenizer.json").write_bytes(tokenizer.files()["tokenizer.json"])
    others = [load_tokenizer(tmp_path / "kept"), read_tokenizer(kind, alone)]
    for text in TEXTS:
        for other in others:
            assert other.encode(text).tolist() == tokenizer.encode(text).tolist()
    assert {other.vocab_size for other in others} == {tokenizer.vocab_size}
    return tokenizer


USER = {"content": "<|user turn|>", "normalized": False, "special": False}
ADDED = [
    {},
    {"added_tokens_decoder": {str(len(PIECES)): USER}},
    {"added_tokens_decoder": {str(len(PIECES)): {**USER, "special": True}}},
    {"added_tokens_decoder": {str(len(PIECES)): {**USER, "lstrip": True, "rstrip": True}}},
    {"added_tokens_decoder": {str(len(PIECES)): {**USER, "content": "[NEW]"}}},
    {"added_tokens_decoder": {str(len(PIECES)): {**USER, "content": "New Word", "normalized": True}}},
    {"added_tokens_decoder": {str(len(PIECES) + i): {**USER, "content": f"<|{i} {i}|>"} for i in range(3)}},
    {"model_max_length": 10**30, "do_lower_case": True},
    {"do_lower_case": False, "strip_accents": False, "tokenize_chinese_chars": False},
]


@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("told", ADDED, ids=range(len(ADDED)))
def test_pieces_of_older_files_are_those_of_one_file(told, end, tmp_path):
    tokenizer = both(config.WordPiece(), pieces(tmp_path / "f", end, **told), tmp_path)
    assert tokenizer.vocab_size == len(PIECES) + len(told.get("added_tokens_decoder", {}))
    for number, fields in told.get("added_tokens_decoder", {}).items():
        assert int(number) in tokenizer.encode(
            f"the {fields['content'].lower() if fields['normalized'] else fields['content']} cat"
        )


@pytest.mark.parametrize("names", [("<|endoftext|>",), ("<s>", "<pad>", "</s>", "<unk>", "<mask>")])
@pytest.mark.parametrize("told", ADDED[:7], ids=range(7))
def test_pairs_of_older_files_are_those_of_one_file(names, told, tmp_path):
    size = len(json.loads((pairs(tmp_path / "n", *names) / "vocab.json").read_text()))
    added = {str(size + i): fields for i, fields in enumerate(told.get("added_tokens_decoder", {}).values())}
    folder = pairs(tmp_path / "f", *names, added_tokens_decoder=added)
    tokenizer = both(config.BytePairs(), folder, tmp_path)
    assert tokenizer.vocab_size == size + len(added)
    for text in TEXTS if tokenizer.lossless else []:
        assert tokenizer.special_names["eos_token"] == names[2 % len(names)]
        if not any(fields["special"] for fields in added.values()):
            assert tokenizer.decode(tokenizer.encode(text)) == text
    for number, fields in added.items():
        assert int(number) in tokenizer.encode(f"the {fields['content']} cat")
    for name in tokenizer.special_names.values():  # in a text they are text
        ids = tokenizer.encode(f"a {name} b")
        assert not {tokenizer.begin_id, tokenizer.end_id, tokenizer.pad_id} & set(ids.tolist())


@settings(max_examples=25, deadline=None)
@given(
    text=st.lists(st.sampled_from([*"abth <|>\né", "<s>", "</s>", "<|endoftext|>", "<pad>"]), max_size=30).map("".join)
)
def test_any_text_comes_back_without_special_ids(text, tmp_path_factory):
    for names in (("<|endoftext|>",), ("<s>", "<pad>", "</s>", "<unk>", "<mask>")):
        tokenizer = read_tokenizer(config.BytePairs(), pairs(tmp_path_factory.mktemp("pairs"), *names))
        ids = tokenizer.encode(text)
        assert tokenizer.decode(ids) == text
        assert not {tokenizer.begin_id, tokenizer.end_id, tokenizer.pad_id} & set(ids.tolist())


def test_the_mask_of_roberta_is_read_and_frames_are_its_own(tmp_path):
    tokenizer = read_tokenizer(config.BytePairs(), pairs(tmp_path / "f", "<s>", "<pad>", "</s>", "<unk>", "<mask>"))
    framed = tokenizer.for_encoder()
    assert (framed.begin_id, framed.pad_id, framed.end_id, framed.mask_id) == (0, 1, 2, 4)
    assert framed.vocab_size == tokenizer.vocab_size and framed.encode("the [MASK]<mask>").tolist().count(4) == 2
    assert framed.special_ids.tolist() == [1, 0, 2, 4]


@pytest.mark.parametrize(
    "name, content, message",
    [
        ("added_tokens.json", {"[X]": len(PIECES) + 1}, f"as {len(PIECES) + 1}, allowed: {len(PIECES)}, the"),
        ("added_tokens.json", {"[X]": 3}, "adds '[X]' as 3, allowed: "),
        ("added_tokens.json", {"[X]": "three"}, "allowed: added tokens with ids, token -> id"),
        ("added_tokens.json", {"[X]": None}, "allowed: added tokens with ids, token -> id"),
        ("added_tokens.json", [1], "added_tokens.json cannot be read (list instead of dict)"),
        ("tokenizer_config.json", [1], "tokenizer_config.json cannot be read (list instead of dict)"),
        ("tokenizer_config.json", {"added_tokens_decoder": {"x": {}}}, "allowed: added tokens with ids, token -> id"),
        ("tokenizer_config.json", {"added_tokens_decoder": [1]}, "allowed: added tokens with ids, token -> id"),
    ],
)  # fmt: skip
def test_added_tokens_that_do_not_fit_are_one_line(name, content, message, tmp_path):
    folder = pieces(tmp_path / "f")
    (folder / name).write_text(json.dumps(content))
    with pytest.raises(ValueError) as error:
        read_tokenizer(config.WordPiece(), folder)
    assert message in str(error.value) and "\n" not in str(error.value)


def test_a_roberta_becomes_a_run_and_comes_back(tmp_path):
    from memjax.interop import folders
    from memjax.interop.runs import export_run
    from tests.interop.variants_test import make as variant

    family, described, weights = variant("roberta")
    folder = pairs(tmp_path / "weights", "<s>", "<pad>", "</s>", "<unk>", "<mask>")
    size = len(json.loads((folder / "vocab.json").read_text()))
    rows = np.random.default_rng(0).normal(size=(size, 24)).astype(np.float32)
    plain = family.read_names(weights).plain
    long = family.vocabulary_tensors(family.model_config(described), config.MaskedLanguageModeling())
    weights |= {n: rows if w.ndim > 1 else rows[:, 0].copy() for n, w in weights.items() if plain[n] in long}
    folders.write_folder(folder, {**described, "vocab_size": size}, weights)
    run = import_run(folder, tmp_path / "run")
    assert run.config.task == config.MaskedLanguageModeling() and run.vocab_size == size
    exported = export_run(tmp_path / "run", tmp_path / "again")
    again = folders.read_folder(tmp_path / "again")
    assert exported.model_type == "roberta" and again[0]["eos_token_id"] == 2 and again[0]["pad_token_id"] == 1
    assert again[1].keys() == weights.keys()
    for name, weight in weights.items():
        np.testing.assert_array_equal(again[1][name], weight, err_msg=name, strict=True)
    ids = json.loads((tmp_path / "again" / "generation_config.json").read_text())
    assert ids == {"bos_token_id": 0, "eos_token_id": 2, "pad_token_id": 1}
