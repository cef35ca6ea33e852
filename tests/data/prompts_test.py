"""Where an answer stands among the tokens of its context, with tokenizers that do not spell what they read too."""

import numpy as np
import pytest

from memjax.data.byte_pairs import train_byte_pairs
from memjax.data.instructions import Instruction, InstructionExamples, InstructionTokenizer
from memjax.data.prompts import answer_window, locate_answer
from memjax.data.tokenizers import ByteTokenizer, WordTokenizer
from memjax.data.wordpiece import WordPieceTokenizer

WORDS = "the river Main was bridged in Mainz long before the bridge of Worms was built by masons"


@pytest.fixture(scope="module")
def tokenizers(tmp_path_factory):
    pytest.importorskip("tokenizers")
    file = tmp_path_factory.mktemp("pairs") / "tokenizer.json"
    return {
        "bytes": ByteTokenizer(),
        "byte pairs": train_byte_pairs(8 * [WORDS], file, vocab_size=330),
        "words": WordTokenizer.train([WORDS.replace("Worms", "")]),
        "word pieces": WordPieceTokenizer.train([WORDS.lower().replace("worms", "")], vocab_size=60),
    }


KINDS = ("bytes", "byte pairs", "words", "word pieces")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("answer", ["the", "Main", "Mainz", "long before", "Worms", "masons"])
def test_an_answer_is_found_among_the_tokens(tokenizers, kind, answer):
    tokenizer, start = tokenizers[kind], f"{WORDS} ".rindex(f"{answer} ")
    first, end = locate_answer(tokenizer.encode, WORDS, start, len(answer))
    inside = tokenizer.encode(WORDS)[first:end]
    assert tokenizer.decode(inside).strip(" \n") == tokenizer.decode(tokenizer.encode(answer)).strip(" \n")


def test_a_letter_of_three_bytes_and_a_byte_that_is_no_letter_are_counted_as_they_are_read():
    context, tokenizer = "€ \udcff\udc80 one two", ByteTokenizer()
    first, end = locate_answer(tokenizer.encode, context, context.index("one"), 3)
    assert tokenizer.decode(tokenizer.encode(context)[first:end]) == "one" and first == 3 + 1 + 2 + 1
    asked = Instruction(context, "?", ("\udcff\udc80",), answer_starts=(2,))
    sizes = {"length": 11, "longest": 3, "show_answers": True}
    [(prompt, _)] = InstructionExamples([asked], InstructionTokenizer(tokenizer, 1), **sizes).rows
    assert {*tokenizer.encode("\udcff\udc80").tolist()} < {*prompt}


def test_a_token_that_crosses_the_border_belongs_to_the_part():
    pieces = {"": [], "un": [7], "do": [8], "undone": [9], "ne": [4], "ne it": [4, 5], "undone it": [9, 5]}
    encode = lambda text: np.array(pieces[text], np.int32)
    assert locate_answer(encode, "undone it", 2, 2) == (0, 1) == locate_answer(encode, "undone", 2, 2)


@pytest.mark.parametrize("kind", KINDS)
def test_training_shows_an_answer_of_the_end_with_every_tokenizer(tokenizers, kind):
    tokenizer = InstructionTokenizer(tokenizers[kind], max_tasks=1)
    asked = Instruction(WORDS, "of", ("Worms",), answer_starts=(WORDS.index("Worms"),))
    whole = len(tokenizer.encode(WORDS))
    sizes = {"length": whole // 2 + 8, "longest": 6}
    shown, tested = (InstructionExamples([asked], tokenizer, show_answers=show, **sizes) for show in (True, False))
    assert (shown.places_in_prompt(0), tested.places_in_prompt(0)) == ([True], [False])
    first, end = locate_answer(tokenizer.encode, WORDS, WORDS.index("Worms"), 5)
    text = ",".join(map(str, tokenizer.encode(WORDS)[first:end]))
    assert text in ",".join(map(str, shown.prompt(0)))


def test_windows_hold_the_whole_answer_where_one_can():
    for first in range(40):
        for length in range(1, 12):
            window = answer_window(first, first + length, 10)
            assert window <= first and (first + length <= window + 10 or (length > 5 and window == first))
