"""Prompts for models that were trained on chats, by the chat template of a tokenizer of Hugging Face."""

import datetime
import json
from collections.abc import Mapping, Sequence
from typing import Any

__all__ = ["render_chat"]

Message = Mapping[str, str]
"""Message of a chat: `role`, such as "system", "user" or "assistant", and its text, `content`."""


def render_chat(template: str, messages: Sequence[Message], names: Mapping[str, str]) -> str:
    """Applies a chat template to messages, and returns the prompt that the model answers. The template runs in the
    sandbox of Jinja, in which it can read its arguments only.

    Args:
      template: Chat template, written in Jinja as `transformers` reads it.
      messages: Messages of the chat, the first one first.
      names: Role of a special token, such as `bos_token` -> its text.

    Raises:
      ValueError: Jinja is missing, or the template has an error or refuses the messages.

    Example:
      >>> render_chat("{% for m in messages %}[{{ m.role }}] {{ m.content }}{% endfor %}",
      ...             [{"role": "user", "content": "hi"}], {})
      '[user] hi'
    """
    try:
        import jinja2
        from jinja2.sandbox import ImmutableSandboxedEnvironment
    except ImportError as error:
        raise ValueError("chat: a chat template needs jinja2: pip install 'memjax[hf]'") from error

    def refuse(message: str) -> None:
        raise jinja2.TemplateError(message)

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = _to_json
    environment.globals |= {
        "raise_exception": refuse,
        "strftime_now": lambda form: datetime.datetime.now().strftime(form),
    }
    try:
        return environment.from_string(template).render(messages=messages, add_generation_prompt=True, **names)
    except Exception as error:  # of Jinja, or of what the template computes
        reason = " ".join(str(error).split())
        raise ValueError(f"chat: given a template that fails ({reason}), allowed: the template of the model") from error


def _to_json(value: Any, ensure_ascii: bool = False, indent: int | None = None) -> str:
    """Returns a value as JSON. Jinja's own filter writes `<` and `>` as escapes of HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent)
