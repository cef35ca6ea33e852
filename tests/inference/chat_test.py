"""Chat templates: the prompt that they make, the sandbox, and the end of an answer."""

import pytest

from memjax.inference.chat import render_chat

NAMES = {"bos_token": "<s>", "eos_token": "</s>"}
USER = [{"role": "user", "content": "hi <b>"}]
LLAMA_3 = (
    "{{- bos_token }}\n{%- for message in messages %}\n"
    "    {{- '<|head|>' + message['role'] + '<|end|>\n\n'+ message['content'] | trim + '<|eot_id|>' }}\n"
    "{%- endfor %}\n{%- if add_generation_prompt %}\n    {{- '<|head|>assistant<|end|>\n\n' }}\n{%- endif %}\n"
)
BLOCKS = (
    "{% for m in messages %}\n  {% if m.role == 'user' %}\n{{ m.content }}\n  {% endif %}\n  {% break %}\n{% endfor %}"
)


def test_a_template_makes_the_prompt():
    expected = "<s><|head|>user<|end|>\n\nhi <b><|eot_id|><|head|>assistant<|end|>\n\n"
    assert render_chat(LLAMA_3, USER, NAMES) == expected
    assert render_chat(BLOCKS, USER, NAMES) == "hi <b>\n"  # lines of blocks alone are left out
    assert render_chat("{{ messages | tojson }}", USER, {}) == '[{"role": "user", "content": "hi <b>"}]'


@pytest.mark.parametrize(
    "template, message",
    [
        ("{{ raise_exception('roles must alternate') }}", "roles must alternate"),
        ("{% for %}", "given a template that fails"),
        ("{{ ''.__class__.__mro__ }}", "access to attribute '__class__'"),
        ("{{ messages.append(1) }}", "access to attribute 'append'"),
    ],
)
def test_a_template_that_fails_or_reaches_out_is_one_line(template, message):
    with pytest.raises(ValueError, match=message) as raised:
        render_chat(template, USER, NAMES)
    assert "\n" not in str(raised.value)
