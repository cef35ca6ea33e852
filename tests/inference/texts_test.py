import numpy as np
import pytest

from memjax.data.tokenizers import ByteTokenizer
from memjax.inference import texts


@pytest.fixture
def spoken(monkeypatch):
    """Makes the rows of a generation say given texts in blocks of 3 bytes; returns what the model was asked."""
    asked = {}

    def make(*answers: str):
        tokenizer = ByteTokenizer()

        def stream(model, variables, ids, *, finished, max_tokens, **settings):
            asked.update(settings, ids=ids)
            rows = [tokenizer.encode(answer).tolist() for answer in answers]
            done = [False] * len(rows)
            for start in range(0, max_tokens, 3):
                yield [[] if d else row[start : start + 3] for row, d in zip(rows, done, strict=True)]
                done = finished(None)
                if all(done):
                    return

        monkeypatch.setattr(texts, "stream_tokens", stream)
        return asked

    return make


def joined(prompts, **settings):
    blocks = list(
        texts.continue_texts(None, None, ByteTokenizer(), prompts, segment_length=4, max_tokens=12, **settings)
    )
    return ["".join(parts) for parts in zip(*blocks, strict=True)], len(blocks)


def test_prompts_begin_with_the_begin_token_and_special_tokens_are_not_drawn(spoken):
    asked = spoken("abc", "def")
    assert joined(["x", ""])[0] == ["abc", "def"]
    assert asked["ids"] == [[1, 123], [1]]
    assert asked["sampling"].forbidden == (0, 1)
    assert asked["stop_tokens"] == [2]


def test_characters_of_several_bytes_are_never_cut(spoken):
    spoken("aäö€é")
    assert joined(["x"])[0] == ["aäö€é"]


def test_stop_texts_end_a_row_and_are_not_shown(spoken):
    spoken("abcdef#END#x", "abcdefgh#EN!")
    (first, second), blocks = joined(["x", "y"], stop=["#END#", "zz"])
    assert first == "abcdef"
    assert second == "abcdefgh#EN!"
    assert blocks == 5
    spoken("ab#END#cdef")
    assert joined(["x"], stop=["#END#"]) == (["ab"], 4)  # ends in the block in which the stop text is complete


def test_an_empty_stop_text_is_refused():
    with pytest.raises(ValueError, match="^stop: given '', allowed: "):
        joined(["x"], stop=[""])


def test_an_unfinished_character_is_shown_at_the_end(spoken, monkeypatch):
    asked = spoken("")
    euro = ByteTokenizer().encode("a€").tolist()[:3]
    monkeypatch.setattr(texts, "stream_tokens", lambda *a, **k: iter([[euro]]))
    assert joined(["x"])[0] == ["a\ufffd"]
    assert asked == {}


class Chatty(ByteTokenizer):
    """Bytes whose padding and the byte of "!" end an answer too, with a template around a message."""

    extra_end_ids = (0, 36)
    chat_template = "{{ bos_token }}{% for m in messages %}[{{ m.role }}] {{ m.content }}{% endfor %}:"
    special_names = {"bos_token": "^"}

    def encode_special(self, text):
        return np.array([1, *self.encode(text.removeprefix("^"))])


def test_a_chat_is_prompted_by_its_template_and_ends_at_all_ends(spoken):
    asked = spoken("abc")
    options = {"segment_length": 4, "max_tokens": 12}
    list(texts.continue_texts(None, None, Chatty(), ["hi"], chat=True, **options))
    assert asked["ids"] == [[1, *ByteTokenizer().encode("[user] hi:").tolist()]]
    assert asked["stop_tokens"] == [2, 0, 36] and asked["sampling"].forbidden == (1,)
    with pytest.raises(ValueError, match="chat: given a tokenizer without a chat template, allowed: "):
        joined(["x"], chat=True)
