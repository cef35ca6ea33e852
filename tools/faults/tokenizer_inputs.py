"""The files of small tokenizers, and the readers of them, for `tools.faults.inputs`."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from memjax.data.sentencepiece_models import fit_sentencepiece
from memjax.data.tokenizers import WordTokenizer
from memjax.data.wordpiece import WordPieceTokenizer
from tools.faults.input_files import SENTENCES, Reader, to_json


@functools.cache
def tokenizer_files() -> dict[str, bytes]:
    """Returns the files of small tokenizers of all kinds, each in a folder."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    pairs = Tokenizer(models.BPE())
    pairs.pre_tokenizer, pairs.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    pairs.train_from_iterator(
        SENTENCES,
        trainers.BpeTrainer(
            vocab_size=300,
            special_tokens=["<|endoftext|>"],
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        ),
    )
    model = json.loads(pairs.to_str())["model"]
    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in model["merges"]]
    pieces = WordPieceTokenizer.train(SENTENCES, vocab_size=60)
    ids = json.loads(pieces.files()["tokenizer.json"])["model"]["vocab"]
    added = {str(len(ids)): {"content": "[E1]", "special": True, "lstrip": False}}
    about = {"kind": "WordPieceTokenizer", "fingerprint": pieces.fingerprint, "vocab_size": pieces.vocab_size}
    return {
        "pairs/tokenizer.json": pairs.to_str().encode(),
        "gpt2/vocab.json": to_json(model["vocab"]),
        "gpt2/merges.txt": "\n".join(["#version: 0.2", *merges, ""]).encode(),
        "gpt2/added_tokens.json": to_json({"<x>": len(model["vocab"])}),
        "pieces/tokenizer.json": pieces.files()["tokenizer.json"],
        "saved/tokenizer.json": pieces.files()["tokenizer.json"],
        "saved/about.json": to_json(about),
        "bert/vocab.txt": "".join(f"{piece}\n" for piece in sorted(ids, key=ids.__getitem__)).encode(),
        "bert/tokenizer_config.json": to_json({"do_lower_case": True, "added_tokens_decoder": added}),
        "xl/vocab.txt": b"<eos>\n<unk>\nthe\ncat\n",
        "words/words.json": WordTokenizer.train(SENTENCES).files()["words.json"],
        "sentencepiece/x.model": fit_sentencepiece(SENTENCES, 300, "bpe"),
    }


def tokenizer(folder: str, load: Callable[[Path], Any]) -> Reader:
    """Returns the reader of a tokenizer, which also encodes a text and decodes all ids."""

    def files() -> dict[str, bytes]:
        start = f"{folder}/"
        return {name.removeprefix(start): text for name, text in tokenizer_files().items() if name.startswith(start)}

    def read(place: Path) -> Any:
        loaded = load(place)
        ids = np.arange(loaded.vocab_size)
        return [loaded.encode("The cat 7"), loaded.decode(ids), loaded.token_bytes(ids), loaded.fingerprint]

    return Reader(files, read)


def folder_tokenizer(kind: Any) -> Callable[[Path], Any]:
    """Returns a function that reads the tokenizer of a kind from a folder of transformers."""

    def read(folder: Path) -> Any:
        from memjax.interop.tokenizer_files import describe_files, read_tokenizer

        loaded = read_tokenizer(kind, folder)
        describe_files(loaded, 8)
        return loaded

    return read
