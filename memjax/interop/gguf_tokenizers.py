"""Tokenizers in the metadata of GGUF files, as `tokenizer.json` and `tokenizer_config.json` of Hugging Face."""

from collections.abc import Mapping, Sequence
from typing import Any

from memjax.settings.checks import require

NORMAL, UNKNOWN, CONTROL, USER_DEFINED = 1, 2, 3, 4
"""values of `tokenizer.ggml.token_type`: for pieces of texts, the unknown token, special tokens, other added ones"""
GPT_2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
LLAMA_3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
TEKKEN = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN_2 = LLAMA_3.replace(r"\p{N}{1,3}", r"\p{N}")
DIGITS = r"\p{N}"
PRE_TOKENIZERS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("gpt-2", "default", "olmo", "mpt"), (GPT_2,)),
    **dict.fromkeys(("smollm", "starcoder", "refact"), (DIGITS, GPT_2)),
    **dict.fromkeys(("llama-bpe", "llama3", "llama-v3", "smaug-bpe", "dbrx"), (LLAMA_3,)),
    **dict.fromkeys(("qwen2", "deepseek-r1-qwen"), (QWEN_2,)),
    "tekken": (TEKKEN,),
}
"""`tokenizer.ggml.pre` -> patterns of the parts into which a text is split, one after the other"""
WHOLE_ENTRIES = ("llama-bpe", "llama3", "llama-v3", "tekken")
"""values of `tokenizer.ggml.pre` with which a part of a text that is an entry becomes that one, whatever the merges"""
SPACE = "\u2581"
"""blank in the pieces of SentencePiece"""
NAMES = {
    "bos_token": "bos_token_id",
    "eos_token": "eos_token_id",
    "unk_token": "unknown_token_id",
    "pad_token": "padding_token_id",
}
"""key of `tokenizer_config.json` -> key behind `tokenizer.ggml.`"""


def tokenizer_files(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Returns `tokenizer.json` and `tokenizer_config.json` of the tokenizer that the metadata of a GGUF file describes:
    name -> content.

    Raises:
      ValueError: No tokenizer, another kind of one, or another pre-tokenizer.
    """
    ours = {name.removeprefix("tokenizer.ggml."): entry for name, entry in metadata.items()}
    kind, tokens = ours.get("model"), list(ours.get("tokens") or ())
    require(kind in _KINDS and bool(tokens), "tokenizer.ggml.model", kind, f"{', '.join(_KINDS)}, with tokens")
    types = list(ours.get("token_type") or [NORMAL] * len(tokens))
    require(len(types) == len(tokens), "tokenizer.ggml.token_type", len(types), f"{len(tokens)}, one for each token")
    for number, token in enumerate(tokens):
        if kind == "llama" and token and not token.strip(" "):  # a run of blanks of Gemma, which merges make
            tokens[number], types[number] = token.replace(" ", SPACE), NORMAL
    fields = {"id": 0, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    added = [
        {**fields, "id": number, "content": token, "special": use == CONTROL}
        for number, (token, use) in enumerate(zip(tokens, types, strict=True))
        if use in (CONTROL, USER_DEFINED)
    ]
    described: dict[str, Any] = {"version": "1.0", "truncation": None, "padding": None, "added_tokens": added}
    described |= {"post_processor": None, **_KINDS[str(kind)](ours, tokens, types)}
    settings: dict[str, Any] = {"tokenizer_class": "PreTrainedTokenizerFast"}
    special = {key: ours[name] for key, name in NAMES.items() if ours.get(name) is not None}
    for key, number in special.items():
        require(number < len(tokens), f"tokenizer.ggml.{NAMES[key]}", number, f"an id below {len(tokens)}")
        settings[key] = tokens[number]
    settings |= {
        "add_bos_token": bool(ours.get("add_bos_token", kind == "llama")),
        "clean_up_tokenization_spaces": False,
    }
    if template := metadata.get("tokenizer.chat_template"):
        settings["chat_template"] = template
    return {"tokenizer.json": described, "tokenizer_config.json": settings}


def _byte_level(ours: Mapping[str, Any], tokens: Sequence[str], types: Sequence[int]) -> dict[str, Any]:
    """Returns the parts of `tokenizer.json` of a byte-level tokenizer, as GPT-2's."""
    del types
    pre = ours.get("pre", "default")
    require(pre in PRE_TOKENIZERS, "tokenizer.ggml.pre", pre, ", ".join(PRE_TOKENIZERS))
    splits = [_split(pattern) for pattern in PRE_TOKENIZERS[pre]]
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    merges = [merge.split(" ") for merge in ours.get("merges") or ()]
    require(bool(merges), "tokenizer.ggml.merges", merges, "the merges of a byte-level tokenizer")
    return {
        "normalizer": None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [*splits, level]},
        "decoder": level,
        "model": _model(tokens, merges, ignore_merges=pre in WHOLE_ENTRIES),
    }


def _pieces(ours: Mapping[str, Any], tokens: Sequence[str], types: Sequence[int]) -> dict[str, Any]:
    """Returns the parts of `tokenizer.json` of a tokenizer of SentencePiece's kind, with pieces for bytes."""
    has_prefix = bool(ours.get("add_space_prefix", True))
    unknown = next((token for token, kind in zip(tokens, types, strict=True) if kind == UNKNOWN), None)
    blanks = {"type": "Replace", "pattern": {"String": " "}, "content": SPACE}
    prefix = [{"type": "Prepend", "prepend": SPACE}] if has_prefix else []
    text = {"type": "Replace", "pattern": {"String": SPACE}, "content": " "}
    strip = [{"type": "Strip", "content": " ", "start": 1, "stop": 0}] if has_prefix else []
    decoders = [text, {"type": "ByteFallback"}, {"type": "Fuse"}, *strip]
    merges = ours.get("merges")
    ranks = range(len(tokens)) if str(ours.get("general.architecture")).startswith("gemma") else None
    scores = [-rank for rank in ranks] if ranks else ours.get("scores") or ()
    require(merges or len(scores) == len(tokens), "tokenizer.ggml.scores", len(scores), f"{len(tokens)}, one a token")
    pairs = [merge.split(" ") for merge in merges] if merges else _merges_of_pieces(tokens, scores)
    return {
        "normalizer": {"type": "Sequence", "normalizers": [*prefix, blanks]},
        "pre_tokenizer": None,
        "decoder": {"type": "Sequence", "decoders": decoders},
        "model": _model(tokens, pairs, unk_token=unknown, fuse_unk=True, byte_fallback=True),
    }


def _merges_of_pieces(tokens: Sequence[str], scores: Sequence[float]) -> list[list[str]]:
    """Returns the pairs of pieces that make another piece, those of the best piece first."""
    ids = {token: number for number, token in enumerate(tokens)}
    pairs: list[tuple[float, int, int, str, str]] = []
    for token, score in zip(tokens, scores, strict=True):
        halves = [(token[:place], token[place:]) for place in range(1, len(token))]
        halves = sorted((half for half in halves if half[0] in ids and half[1] in ids), key=lambda half: ids[half[0]])
        pairs += [(-score, -len(left), -len(right), left, right) for left, right in halves]
    return [[left, right] for *_, left, right in sorted(pairs, key=lambda pair: pair[:3])]


def _model(tokens: Sequence[str], merges: Sequence[Sequence[str]], **fields: Any) -> dict[str, Any]:
    """Returns the part `model` of `tokenizer.json`."""
    common = {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None}
    common |= {"end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "ignore_merges": False}
    vocabulary = {token: number for number, token in enumerate(tokens)}
    return {**common, **fields, "vocab": vocabulary, "merges": [list(merge) for merge in merges]}


def _split(pattern: str) -> dict[str, Any]:
    """Returns the description of a pre-tokenizer that splits a text at all matches of a pattern."""
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}


_KINDS = {"gpt2": _byte_level, "llama": _pieces}
"""`tokenizer.ggml.model` -> function that describes it"""
