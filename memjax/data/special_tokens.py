"""Special tokens, further ends of a text and the chat template that a folder of Hugging Face has beside a tokenizer."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from memjax.data.added_tokens import read_json_if_exists, read_settings

__all__ = ["GENERATION", "ROLES", "SpecialTokens", "read_special_tokens"]

ROLES = ("bos_token", "eos_token", "unk_token", "pad_token")
"""roles of special tokens, as Hugging Face names them: begin, end, unknown, and padding"""
GENERATION = "generation_config.json"
TEMPLATE = "chat_template.jinja"


class SpecialTokens(NamedTuple):
    """Special tokens, ends of a generated text and chat template of a tokenizer, as the files of a folder name them.

    Attributes:
      names: Role, such as `bos_token` -> text of the token.
      end_ids: Ids of all tokens that end a generated text.
      chat_template: Template that makes a prompt of the messages of a chat. '' for none.
      adds_begin: Whether the tokenizer puts its begin before a text. True where no file says so.
    """

    names: Mapping[str, str]
    end_ids: tuple[int, ...]
    chat_template: str
    adds_begin: bool = True


def read_special_tokens(folder: Path, text_of: Callable[[int], str | None]) -> SpecialTokens:
    """Reads what the files in a folder of Hugging Face say about special tokens. The files of the tokenizer decide
    about a role before `generation_config.json`, and that file before `config.json`.

    Args:
      folder: The folder. All files may be missing.
      text_of: Function from an id to the text of the added token with this id. None for other ids.

    Raises:
      ValueError: A file is not a JSON object.
    """
    settings, generation = read_settings(folder), read_json_if_exists(folder / GENERATION)
    names: dict[str, str] = {}
    for content in (read_json_if_exists(folder / "config.json"), generation):
        texts = {role: _first_text(content.get(f"{role}_id"), text_of) for role in ROLES}
        names |= {role: text for role, text in texts.items() if text}
    for content in (read_json_if_exists(folder / "special_tokens_map.json"), settings):
        texts = {role: _text(content.get(role)) for role in ROLES}
        names |= {role: text for role, text in texts.items() if text}
    ends = tuple(end for end in _numbers(generation.get("eos_token_id")) if text_of(end) is not None)
    return SpecialTokens(names, ends, _template(folder, settings), settings.get("add_bos_token") is not False)


def _numbers(value: Any) -> list[int]:
    """Returns ids, where a file gives one, several, or None."""
    return [] if value is None else [*value] if isinstance(value, list) else [value]


def _first_text(value: Any, text_of: Callable[[int], str | None]) -> str | None:
    """Returns the text of the first of one or several ids."""
    return next((text_of(number) for number in _numbers(value)), None)


def _text(value: Any) -> str | None:
    """Returns the text of a token, which files give alone or as the field `content`."""
    return value.get("content") if isinstance(value, Mapping) else value


def _template(folder: Path, settings: Mapping[str, Any]) -> str:
    """Returns the chat template of a folder, of several the one with the name `default`."""
    if (folder / TEMPLATE).is_file():
        return (folder / TEMPLATE).read_text("utf-8")
    template = settings.get("chat_template") or ""
    if isinstance(template, list):
        return {entry["name"]: entry["template"] for entry in template}.get("default", "")
    return template
