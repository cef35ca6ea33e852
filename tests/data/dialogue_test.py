"""Dialogues about documents: what is read, where it stands, and what is scored."""

import io
import json
import tarfile

import numpy as np
import pytest

from memjax import config as configs
from memjax.data.dialogue import (
    Dialogue,
    DialogueDocuments,
    TokenizerWithDialogueMarks,
    Utterance,
    dialogue_texts,
    read_cmu_dog,
)
from memjax.data.document_batches import DocumentBatches
from memjax.data.opening import make_datasets
from memjax.data.source_readers import open_source
from memjax.data.tokenizers import ByteTokenizer

TOKENIZER = TokenizerWithDialogueMarks(ByteTokenizer())
MARK, (FIRST, SECOND), END = TOKENIZER.separator_id, TOKENIZER.speaker_ids, TOKENIZER.end_id
SAID = ("Hi", "Hello you", "Seen it", "No", "A fine film", "Oh")
DIALOGUE = Dialogue("A film.", tuple(Utterance(i % 2, text, i % 2 == 0) for i, text in enumerate(SAID)))


def make(layout, length, **fields):
    return DialogueDocuments([DIALOGUE, DIALOGUE], TOKENIZER, layout=layout, segment_length=length, **fields)


def scored(documents):
    """(dialogue, utterance, its ids) of all turns."""
    for index in range(len(documents)):
        for turn in documents.turns(index):
            yield turn.dialogue, turn.utterance, documents[index][turn.start : turn.stop].tolist()


def test_marks_are_the_last_ids_and_have_no_text():
    assert TOKENIZER.vocab_size == 262 and (MARK, FIRST, SECOND) == (259, 260, 261)
    ids = [MARK, FIRST, *TOKENIZER.encode("né"), END]
    assert TOKENIZER.decode(ids) == "né"
    assert TOKENIZER.token_bytes(ids).tolist() == [0, 0, 1, 1, 1, 0]


@pytest.mark.parametrize("layout, length", [("memory", 8), ("memory", 5), ("context", 40), ("none", 24), ("none", 500)])
def test_every_utterance_is_scored_once_with_its_end(layout, length):
    documents = make(layout, length)
    expected = [(d, u, [*TOKENIZER.encode(text).tolist(), END]) for d in range(2) for u, text in enumerate(SAID)]
    assert list(scored(documents)) == expected
    for index in range(len(documents)):
        notes, tokens = documents.annotate(index), documents[index]
        spans = np.zeros(len(tokens))
        for turn in documents.turns(index):
            spans[turn.start : turn.stop] = 1
            assert tokens[turn.start - 1] == (FIRST, SECOND)[turn.utterance % 2]
            assert (notes["is_informed"][turn.start : turn.stop] == (turn.utterance % 2 == 0)).all()
        assert notes["weights"].tolist() == spans.tolist()
        assert notes["is_word"].tolist() == ((spans > 0) & (tokens != END)).tolist()


@pytest.mark.parametrize("length", [2, 5, 7, 8, 9])
def test_a_document_for_a_memory_fills_whole_segments(length):
    documents = make("memory", length)
    streams = DocumentBatches(documents, rows=1, segment_length=length, begin_token=1, epochs=1, shuffle=False)
    text = set(TOKENIZER.encode(DIALOGUE.document).tolist())
    read, segments = [], []
    for batch in streams:
        segments.append(batch.inputs[0, 0][batch.mask[0, 0]].tolist())
        if batch.weights.any():
            read += segments[-1]
    first = next(number for number, segment in enumerate(segments) if FIRST in segment)
    before = [token for segment in segments[:first] for token in segment]
    assert bytes(token - 3 for token in before if token in text and token > 2).decode() == DIALOGUE.document
    assert segments[first][0] == MARK and MARK not in segments[first][1:]
    assert DIALOGUE.document not in TOKENIZER.decode(read[: read.index(SECOND)])


def test_windows_begin_with_the_document_and_what_was_said_last():
    documents = make("context", 30)
    head = [*TOKENIZER.encode(DIALOGUE.document).tolist(), MARK]
    assert len(documents) > 4
    for index in range(len(documents)):
        tokens = documents[index]
        assert len(tokens) <= 30 and tokens[: len(head)].tolist() == head
        first = documents.turns(index)[0]
        again = tokens[len(head) : first.start - 1]
        assert len(again) <= (30 - len(head)) // 2 and not documents.annotate(index)["weights"][: first.start].any()
        said = SAID[: first.utterance]
        assert "".join(said).endswith(TOKENIZER.decode(again))
    assert any(documents.turns(index)[0].start > len(head) + 1 for index in range(len(documents)))


def test_long_texts_are_cut():
    documents = make("context", 30, document_length=3, max_utterance_length=2)
    assert documents[0].tolist()[:6] == [*TOKENIZER.encode("A f").tolist(), MARK, FIRST, TOKENIZER.encode("H")[0]]
    ids = [ids for _, utterance, ids in scored(documents) if utterance == 1]
    assert ids == [TOKENIZER.encode("He").tolist()] * 2  # cut off: it does not end here
    with pytest.raises(ValueError) as error:
        make("context", 16)
    assert str(error.value) == (
        "segment_length: given 16, allowed: at least 21 tokens: 8 of document and mark, and an utterance of 13"
    )


def test_fingerprints_tell_layouts_apart():
    prints = {make(layout, 40).fingerprint for layout in ("none", "context", "memory")}
    assert len(prints) == 3 and make("none", 40).fingerprint in prints


def files_of(split="train", film=7):
    about = {"movieName": "Jaws", "year": "1975", "cast": ["Roy  Scheider", "Robert Shaw"], "genre": "thriller"}
    turns = [("user2", "Hi\nthere "), ("user1", " "), ("user2", "Seen it?"), ("user1", "Yes")]
    history = [{"uid": who, "text": text, "docIdx": 0} for who, text in turns]
    talk = {"history": history, "whoSawDoc": ["user1"], "wikiDocumentIdx": 7}
    return {
        "WikiData/Jaws.json": {"0": about, "1": "A shark.", "2": "A boat.", "3": "The end.", "wikiDocumentIdx": film},
        f"Conversations/{split}/b.json": talk,
        f"Conversations/{split}/a.json": {**talk, "history": history[:1]},
        f"Conversations/{split}/empty.json": {**talk, "history": history[1:2]},
    }


def write(folder, files):
    for name, body in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(body), "utf-8")


def pack(path, files):
    with tarfile.open(path, "w:xz") as archive:
        for name, body in files.items():
            content = json.dumps(body).encode()
            member = tarfile.TarInfo(f"./{name}")
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))


def test_cmu_dog_from_files_and_from_the_archive(tmp_path):
    write(tmp_path / "files", files_of())
    pack(tmp_path / "cmu_dog.tar.xz", files_of())
    dialogues = read_cmu_dog(tmp_path / "files", "train")
    assert dialogues == read_cmu_dog(tmp_path, "train") == read_cmu_dog(tmp_path / "cmu_dog.tar.xz", "train")
    first, second = dialogues
    assert first.document == "Jaws\n1975\nthriller\nRoy Scheider Robert Shaw\nA shark.\nA boat.\nThe end.\n"
    assert first.utterances == (Utterance(1, "Hi there", False),)
    assert second.utterances[1:] == (Utterance(1, "Seen it?", False), Utterance(0, "Yes", True))
    assert list(dialogue_texts(dialogues)) == [first.document, "Hi there", "Hi there", "Seen it?", "Yes"]


def test_what_is_missing_gets_one_line(tmp_path):
    with pytest.raises(ValueError, match=r"^data\.source\.path: .* has neither WikiData nor cmu_dog\.tar\.xz; give "):
        read_cmu_dog(tmp_path, "train")
    write(tmp_path, files_of(film=8))
    with pytest.raises(
        ValueError, match=r"Conversations/train/a\.json: given the document 7, allowed: one of WikiData$"
    ):
        read_cmu_dog(tmp_path, "train")
    with pytest.raises(ValueError, match=r"^data\.source\.path: .* has no dialogues of the split 'test'$"):
        read_cmu_dog(tmp_path, "test")


def test_synthetic_dialogues_are_answered_by_their_documents():
    data = configs.Data(source=configs.TemplateDialogues(num_dialogues=16))
    texts = {split: open_source(data, split) for split in ("train", "validation", "test")}
    assert [len(dialogues) for dialogues in texts.values()] == [16, 2, 2]
    for dialogue in texts["train"]:
        facts = dict(fact.split(" lives in ") for fact in dialogue.document.removesuffix(".").split(". "))
        asked = [utterance.text.split()[2] for utterance in dialogue.utterances[::2]]
        assert sorted(asked) == sorted(facts) and len(asked) == 4
        assert [utterance.text for utterance in dialogue.utterances[1::2]] == [f"In {facts[name]}." for name in asked]
    assert len({dialogue.document for dialogues in texts.values() for dialogue in dialogues}) == 20


@pytest.mark.parametrize("document", ["none", "context", "memory"])
def test_a_configuration_reads_dialogues(tmp_path, document):
    for split in ("train", "valid", "test"):
        write(tmp_path, files_of(split))
    source = configs.CmuDog(path=str(tmp_path), document=document)
    datasets = make_datasets(configs.Data(source=source, tokenizer=configs.Bytes(), segment_length=128))
    assert (datasets.vocab_size, datasets.begin_token) == (262, 1)
    for split in ("train", "validation", "test"):
        documents = datasets.documents(split)
        assert len(documents) == 2 and [len(documents.turns(index)) for index in (0, 1)] == [1, 3]
