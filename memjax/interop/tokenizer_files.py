"""Reading and writing of the tokenizer in a folder of Hugging Face's `transformers`."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from memjax import config
from memjax.data.added_tokens import read_added_tokens, read_settings
from memjax.data.byte_pairs import MASK, BytePairTokenizer
from memjax.data.byte_pairs import SPECIAL as NAMES
from memjax.data.paths import read_text
from memjax.data.reader_errors import reading
from memjax.data.records import parse_json_text
from memjax.data.tokenizers import Tokenizer, WordTokenizer
from memjax.data.wordpiece import SPECIAL, WordPieceTokenizer

SETTINGS = "tokenizer_config.json"
FILES = (
    *("tokenizer.json", "vocab.json", "merges.txt", "vocab.txt", SETTINGS),
    *("special_tokens_map.json", "added_tokens.json", "chat_template.jinja"),
)
"""names of the files of a tokenizer in a folder of transformers"""


def read_tokenizer(settings: config.Tokenizer, folder: Path) -> Any:
    """Reads the tokenizer in a folder of transformers and returns it. `settings` only says its kind: byte pairs,
    WordPiece or words.

    Args:
      settings: Settings of the kind of tokenizer that the model has.
      folder: Folder with `tokenizer.json`, or `vocab.json` and `merges.txt` (byte pairs), or `vocab.txt` (WordPiece,
        words).

    Raises:
      ValueError: A file is missing or damaged, or is a pickle.
    """
    return _READERS[type(settings)](folder)


def describe_files(tokenizer: Tokenizer, length: int) -> tuple[dict[str, bytes], str]:
    """Returns the files from which transformers can load a tokenizer, name -> content, and a line that says why there
    are none, or ''. `length` is the maximum number of tokens of a text.

    Args:
      tokenizer: Tokenizer of a run.
      length: Maximum number of tokens of a text for the model.

    Returns:
      Name -> content of each file, and a line where transformers has no such tokenizer, else ''.
    """
    base = tokenizer.base
    make = _WRITERS.get(type(base).__name__)
    if make is None:
        return {}, f"tokenizer: {type(base).__name__} has no counterpart in transformers; it stays in the run"
    files, settings = make(base)
    settings = {**settings, "model_max_length": length}
    return {**files, SETTINGS: (json.dumps(settings, indent=2) + "\n").encode("utf-8")}, ""


def _read_byte_pairs(folder: Path) -> BytePairTokenizer:
    ways = (("tokenizer.json",), ("vocab.json", "merges.txt"))
    if not any(all(map(Path.is_file, _of(folder, *names))) for names in ways):
        allowed = "one with its tokenizer"
        raise ValueError(f"folder: {folder} has no tokenizer.json, or vocab.json and merges.txt, allowed: {allowed}")
    return BytePairTokenizer(folder)


def _read_pieces(folder: Path) -> WordPieceTokenizer:
    for file in _of(folder, "tokenizer.json", "vocab.txt"):
        if file.is_file():
            settings = read_settings(folder)
            accents = settings.get("strip_accents")
            return WordPieceTokenizer(
                file,
                lowercase=bool(settings.get("do_lower_case", True)),
                strip_accents=None if accents is None else bool(accents),
                split_chinese=bool(settings.get("tokenize_chinese_chars", True)),
                added=read_added_tokens(folder),
            )
    raise ValueError(f"folder: {folder} has no tokenizer.json or vocab.txt, allowed: one with its vocabulary")


def _read_words(folder: Path) -> WordTokenizer:
    if (folder / "vocab.txt").is_file():
        lines = read_text(folder / "vocab.txt").split("\n")
        symbols = [line.split()[0] for line in lines if line.strip()]
        if "<eos>" not in symbols:
            raise ValueError(f"{folder / 'vocab.txt'}: has no <eos>, allowed: a vocabulary of Transformer-XL's kind")
        with reading(folder / "vocab.txt", "a vocabulary of Transformer-XL's kind"):
            return WordTokenizer(symbols)
    pickles = [file.name for file in _of(folder, "vocab.bin", "vocab.pkl") if file.is_file()]
    vocabulary = f"{pickles[0]}, a pickle, which is not read" if pickles else "no vocabulary"
    allowed = "vocab.txt, a word a line in the order of ids (`tokenizer.idx2sym` of transformers)"
    raise ValueError(f"folder: {folder} has {vocabulary}; allowed: {allowed}")


_READERS: dict[type, Callable[[Path], Any]] = {
    config.BytePairs: _read_byte_pairs,
    config.WordPiece: _read_pieces,
    config.Words: _read_words,
}

Described = tuple[dict[str, bytes], dict[str, Any]]
"""pair of the files (name -> content) and the settings of transformers' class"""


def _byte_pairs(tokenizer: Tokenizer) -> Described:
    content = tokenizer.files()["tokenizer.json"]
    special: dict[str, Any] = dict(tokenizer.base.special_names)
    special |= {"chat_template": tokenizer.base.chat_template} if tokenizer.base.chat_template else {}
    described = parse_json_text(content)
    model, pre_tokenizer = described["model"], described["pre_tokenizer"] or {}
    if tokenizer.base.special_names not in NAMES or pre_tokenizer.get("type") != "ByteLevel":
        return {"tokenizer.json": content}, {"tokenizer_class": "PreTrainedTokenizerFast", **special}
    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in model["merges"]]
    text = "#version: 0.2\n" + "".join(f"{merge}\n" for merge in merges)
    vocabulary = dict(model["vocab"])
    for added in described["added_tokens"]:
        vocabulary.setdefault(added["content"], added["id"])
    files = {
        "tokenizer.json": content,
        "vocab.json": json.dumps(vocabulary, ensure_ascii=False).encode("utf-8"),
        "merges.txt": text.encode("utf-8"),
    }
    masks = tokenizer.base.mask_id is not None
    special |= (
        {"cls_token": special["bos_token"], "sep_token": special["eos_token"], "mask_token": MASK} if masks else {}
    )
    name = "RobertaTokenizer" if masks else "GPT2Tokenizer"
    return files, {"tokenizer_class": name, "add_prefix_space": False, **special}


def _pieces(tokenizer: Tokenizer) -> Described:
    content = tokenizer.files()["tokenizer.json"]
    described = parse_json_text(content)
    ids = described["model"]["vocab"]
    text = "".join(f"{piece}\n" for piece in sorted(ids, key=ids.__getitem__))
    normalizer = described["normalizer"] or {}
    lower = bool(normalizer.get("lowercase", True))
    special = dict(zip(("pad_token", "unk_token", "cls_token", "sep_token", "mask_token"), SPECIAL, strict=True))
    files = {"tokenizer.json": content, "vocab.txt": text.encode("utf-8")}
    return files, {"tokenizer_class": "BertTokenizer", "do_lower_case": lower, **special}


def _words(tokenizer: Tokenizer) -> Described:
    words = parse_json_text(tokenizer.files()["words.json"])
    symbols = words if "<eos>" in words else ["<pad>", "<s>", "<eos>", "<unk>", *words]
    text = "".join(f"{symbol}\n" for symbol in symbols)
    special = {"eos_token": "<eos>", "unk_token": "<unk>"}
    return {"vocab.txt": text.encode("utf-8")}, {"tokenizer_class": "TransfoXLTokenizer", **special}


_WRITERS: dict[str, Callable[[Tokenizer], Described]] = {
    "BytePairTokenizer": _byte_pairs,
    "WordPieceTokenizer": _pieces,
    "WordTokenizer": _words,
}


def _of(folder: Path, *names: str) -> list[Path]:
    return [folder / name for name in names]
