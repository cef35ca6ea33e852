import numpy as np
import pytest

from memjax.config import MaskedLanguageModeling
from memjax.data.byte_pairs import train_byte_pairs
from memjax.data.documents import ArrayDocuments
from memjax.data.example_batches import ExampleBatches
from memjax.data.glue import LabelledText
from memjax.data.wordpiece import WordPieceTokenizer
from memjax.tasks.classification import LabelledTexts
from memjax.tasks.masked import MaskedTexts

VOCAB = 200


PIECES = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"{i // 26 + 97:c}{i % 26 + 97:c}" for i in range(VOCAB - 5)))
TOKENIZER = WordPieceTokenizer(content="\n".join(PIECES))
"""two bytes a piece"""


def texts(sizes, *, length=10, **fields):
    starts = np.cumsum([0, *sizes])
    documents = ArrayDocuments([5 + np.arange(a, b) % (VOCAB - 5) for a, b in zip(starts, starts[1:], strict=False)])
    return MaskedTexts(documents, TOKENIZER, length=length, **fields)


def test_frames_hold_every_token_once():
    frames = texts([8, 17, 3])
    contents = [frames.frame(i) for i in range(len(frames))]
    assert [len(frame) for frame in contents] == [10, 10, 10, 3, 5]
    assert [frames.num_tokens(i) for i in range(len(frames))] == [10, 10, 10, 3, 5]
    assert all(frame[0] == 2 and frame[-1] == 3 for frame in contents)
    assert np.concatenate([frame[1:-1] for frame in contents]).tolist() == [5 + i for i in range(28)]
    assert frames.num_bytes(3) == 2


def test_packed_frames_cross_documents():
    frames = texts([8, 17, 3], packed=True)
    contents = [frames.frame(i) for i in range(len(frames))]
    assert [len(frame) for frame in contents] == [10, 10, 10, 6]
    assert np.concatenate([frame[1:-1] for frame in contents]).tolist() == [5 + i for i in range(28)]
    assert frames.fingerprint != texts([8, 17, 3]).fingerprint


def test_shares_of_hidden_tokens():
    frames, frame = texts([100], length=102), texts([100], length=102).frame(0)
    counts, positions = np.zeros(3), np.zeros(102)
    for epoch in range(400):
        chosen, read = frames.hide(frame, epoch)
        assert len(chosen) == 15 == frames.num_targets and (np.diff(chosen) > 0).all()
        masked, kept = read == 4, read == frame[chosen]
        counts += [masked.sum(), (~masked & ~kept).sum(), kept.sum()]
        positions[chosen] += 1
    shares = counts / counts.sum()  # standard errors 0.005, 0.004, 0.004
    np.testing.assert_allclose(shares, [0.8, 0.1, 0.1], atol=0.02)
    assert positions[[0, -1]].tolist() == [0, 0]  # [CLS] and [SEP]
    np.testing.assert_allclose(positions[1:-1] / 400, 0.15, atol=0.09)  # standard error 0.018


def test_masks_change_with_the_epoch_and_the_seed_only():
    frames, frame = texts([100], length=102), texts([100], length=102).frame(0)
    again = texts([50, 100], length=102)
    same = [frames.hide(frame, 0), frames.hide(frame, 0), again.hide(frame, 0)]
    for chosen, read in same[1:]:
        np.testing.assert_array_equal(chosen, same[0][0])
        np.testing.assert_array_equal(read, same[0][1])
    others = [frames.hide(frame, 1)[0], texts([100], length=102, seed=1).hide(frame, 0)[0]]
    assert all(other.tolist() != same[0][0].tolist() for other in others)


def test_a_short_text_asks_for_one_token_and_one_without_words_for_none():
    frames = texts([2], length=102)
    assert len(frames.hide(frames.frame(0), 0)[0]) == 1
    assert len(frames.hide(np.array([2, 1, 3]), 0)[0]) == 0


def test_a_batch_asks_for_the_hidden_tokens():
    frames = texts([8, 17, 3], rate=0.5)
    stream = ExampleBatches(frames, rows=2, segment_length=10, begin_token=0, epochs=1, shuffle=False)
    batches = list(stream)
    assert len(batches) == 3
    for batch in batches:
        assert batch.targets.shape == batch.weights.shape == (1, 2, 4)
        for row in range(2):
            places = batch.extras["masked_positions"][0, row]
            scored = batch.weights[0, row] == 1
            inputs = batch.inputs[0, row].copy()
            inputs[places[scored]] = batch.targets[0, row][scored]
            text = inputs[batch.mask[0, row]]
            assert not len(text) or any(text.tolist() == frames.frame(i).tolist() for i in range(len(frames)))
            assert scored.sum() == (0 if not len(text) else max(1, round(0.5 * (len(text) - 2))))
    assert batches[0].weights.sum() == 8 and batches[-1].mask[0, 1].sum() == 0


def test_evaluation_does_not_depend_on_rows_and_training_goes_on_where_it_was():
    frames = texts([30, 18, 40, 11])

    def asked(rows):
        found = set()
        for batch in ExampleBatches(frames, rows=rows, segment_length=10, begin_token=0, epochs=1, shuffle=False):
            for row in range(rows):
                places = batch.extras["masked_positions"][0, row][batch.weights[0, row] > 0]
                found.add((*batch.inputs[0, row].tolist(), -1, *places.tolist()))
        return found - {(*[0] * 10, -1)}

    assert asked(1) == asked(3) and len(asked(1)) == len(frames)
    options = {"rows": 3, "segment_length": 10, "begin_token": 0, "seed": 1}
    stream = ExampleBatches(frames, **options)
    for _ in range(7):
        next(stream)
    resumed = ExampleBatches(frames, **options, position=stream.position)
    for _ in range(3):
        a, b = next(stream), next(resumed)
        np.testing.assert_array_equal(a.inputs, b.inputs)
        np.testing.assert_array_equal(a.extras["masked_positions"], b.extras["masked_positions"])


def test_another_epoch_hides_other_tokens():
    frames = texts([8])
    stream = ExampleBatches(frames, rows=1, segment_length=10, begin_token=0)
    assert len({tuple(next(stream).inputs.ravel().tolist()) for _ in range(20)}) > 5


def test_a_prompt_is_read_and_changes_nothing_of_what_is_asked_for():
    given, none = texts([30, 18], prompt=VOCAB + 1, where="before"), texts([30, 18], where="before")
    behind = texts([30, 18], prompt=VOCAB + 1, where="after_first")
    assert len({one.fingerprint for one in (given, none, behind, texts([30, 18]))}) == 4
    for index in range(len(none)):
        own, before, after = (one.example(index) for one in (none, given, behind))
        assert before.inputs.tolist() == [VOCAB + 1, *own.inputs]
        assert after.inputs.tolist() == [own.inputs[0], VOCAB + 1, *own.inputs[1:]] and len(after.inputs) <= 10
        for one in (before, after):
            assert one.targets.tolist() == own.targets.tolist() and one.weights.tolist() == own.weights.tolist()
            places = lambda example: example.context["masked_positions"][example.weights > 0]
            assert (places(one) == places(own) + 1).all()
            assert (one.inputs[places(one)] == own.inputs[places(own)]).all()


def test_byte_pairs_are_framed_as_those_of_an_encoder(tmp_path):
    base = train_byte_pairs(["the cat sat on the mat"] * 4, tmp_path / "tokenizer.json", vocab_size=270)
    tokenizer = base.for_encoder()
    assert tokenizer.vocab_size == base.vocab_size + 3 and tokenizer.base is base
    ids = tokenizer.encode("the [MASK] sat")
    assert (ids == tokenizer.mask_id).sum() == 1 and tokenizer.decode(ids) == "the  sat"
    assert tokenizer.encode("the cat").tolist() == base.encode("the cat").tolist()
    frames = MaskedTexts(ArrayDocuments([tokenizer.encode("the cat sat on the mat")]), tokenizer, length=40)
    frame = frames.frame(0)
    assert (frame[0], frame[-1]) == (tokenizer.begin_id, tokenizer.end_id)
    chosen = np.concatenate([frames.hide(frame, epoch)[0] for epoch in range(50)])
    assert chosen.min() >= 1 and chosen.max() < len(frame) - 1
    classes = LabelledTexts([LabelledText(("the cat",), 1)], tokenizer, length=40, prompt=tokenizer.vocab_size)
    example = classes.example(0)
    assert example.inputs[:2].tolist() == [tokenizer.begin_id, tokenizer.vocab_size]
    assert len(example.inputs) == len(example.annotations["token_types"])


def test_a_real_tokenizer_fits():
    tokenizer = WordPieceTokenizer.train(["the cat sat on the mat"], vocab_size=40)
    frames = MaskedTexts(ArrayDocuments([tokenizer.encode("the cat sat")]), tokenizer, length=8)
    chosen, _ = frames.hide(frames.frame(0), 0)
    assert frames.frame(0)[0] == tokenizer.begin_id and len(chosen) == 1
    with pytest.raises(IndexError):
        frames.frame(1)


def test_a_task_of_a_stream_gets_the_prompt_of_its_place():
    assert MaskedLanguageModeling(prompt="before", max_prompts=3).for_task(2).prompt_task_index == 2
    assert MaskedLanguageModeling().for_task(2) == MaskedLanguageModeling()
