"""Reads tokens that were added to a Hugging Face vocabulary from `tokenizer_config.json` and `added_tokens.json`."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from memjax.data.reader_errors import expect, reading
from memjax.data.records import parse_json_text

__all__ = ["add_tokens", "read_added_tokens", "read_json_if_exists", "read_json_object", "read_settings"]

SETTINGS = "tokenizer_config.json"
PLAIN = "added_tokens.json"
_FLAGS = ("single_word", "lstrip", "rstrip", "normalized", "special")

Added = Mapping[int, Mapping[str, Any]]
"""Added tokens: id -> fields of the token, such as `content`, `special` and `lstrip`."""


def read_settings(folder: Path) -> dict[str, Any]:
    """Reads the `tokenizer_config.json` of a tokenizer's folder as a dict. Empty if there is no such file.

    Raises:
      ValueError: The file is not a JSON object.
    """
    return read_json_if_exists(folder / SETTINGS)


def read_added_tokens(folder: Path) -> dict[int, dict[str, Any]]:
    """Reads the tokens that `tokenizer_config.json` and `added_tokens.json` in a folder add to a vocabulary. Returns a
    mapping from id to fields of the token, such as `content`, its text, in the order of ids.

    Returns:
      Mapping from id to the fields of the token. `content` is its text.

    Raises:
      ValueError: A file that is not a JSON object, or an id that is not a number.
    """
    with reading(folder, "added tokens with ids, token -> id"):
        plain = {int(number): {"content": content} for content, number in read_json_if_exists(folder / PLAIN).items()}
        decoder = read_settings(folder).get("added_tokens_decoder") or {}
        described = {int(number): dict(fields) for number, fields in decoder.items()}
    return dict(sorted((plain | described).items()))


def add_tokens(tokenizer: Any, added: Added, where: object) -> None:
    """Adds tokens to a tokenizer of the library `tokenizers`, in place. `added` maps ids, each the next one of the
    vocabulary, to the fields of the token. `where` is the path that errors name.

    Args:
      tokenizer: Tokenizer of the library `tokenizers`, changed in place.
      added: Tokens to add: id -> fields.
      where: Path of the tokenizer, for error messages.

    Raises:
      ValueError: An id that is not the next one of the vocabulary.
    """
    from tokenizers import AddedToken

    for number, fields in added.items():
        flags = {name: bool(fields[name]) for name in _FLAGS if name in fields}
        special = flags.setdefault("special", False)
        flags.setdefault("normalized", not special)
        (tokenizer.add_special_tokens if special else tokenizer.add_tokens)([AddedToken(fields["content"], **flags)])
        if (place := tokenizer.token_to_id(fields["content"])) != number:
            what = f"{where} adds {fields['content']!r} as {number}"
            raise ValueError(f"tokenizer: {what}, allowed: {place}, the next id")


def read_json_object(path: Path) -> dict[str, Any]:
    """Reads a JSON file of the library transformers as a dict. It is an error if the file does not contain an object.

    Raises:
      ValueError: The file is not UTF-8, not JSON, or not an object.
    """
    with reading(path, "a JSON object, as transformers writes it"):
        return expect(parse_json_text(path.read_bytes()), dict)


def read_json_if_exists(path: Path) -> dict[str, Any]:
    """Reads a JSON file of the library transformers as a dict. Empty if there is no file. See `read_json_object`."""
    return read_json_object(path) if path.is_file() else {}
