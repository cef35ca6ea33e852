"""Dialogues about a document: CMU-DoG, and how documents and dialogues become the tokens of a language model.

Zhou, Prabhumoye and Black 2018, "A Dataset for Document Grounded Conversations", https://arxiv.org/abs/1809.07358. The
input follows Wolf et al. 2019, "TransferTransfo", https://arxiv.org/abs/1901.08149, without its candidates: a mark of
the speaker before each utterance, and a learned embedding of the last mark at every token (`Model.markers`).
"""

import dataclasses
import hashlib
import json
import tarfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np

from memjax.data.documents import Documents
from memjax.data.reserved_ids import ReservedTokenizer
from memjax.data.sources import Texts
from memjax.data.tokenizers import Tokenizer

__all__ = ["Dialogue", "Dialogues", "MarkingTokenizer", "Turn", "Utterance", "cmu_dog", "dialogue_texts"]

NUM_MARKS = 3
"""Marks are the last ids of the vocabulary: the end of the document, the first speaker, the second speaker."""
ARCHIVE = "cmu_dog.tar.xz"
FOLDERS = {"train": "train", "validation": "valid", "test": "test"}

Layout = Literal["none", "context", "memory"]


@dataclasses.dataclass(frozen=True)
class Utterance:
    """What one of two people says.

    Attributes:
      speaker: 0 or 1.
      text: on one line.
      informed: the speaker has the document.
    """

    speaker: int
    text: str
    informed: bool = True


@dataclasses.dataclass(frozen=True)
class Dialogue:
    """A document and what two people say about it."""

    document: str
    utterances: tuple[Utterance, ...]


@dataclasses.dataclass(frozen=True)
class Turn:
    """A scored utterance in a document of `Dialogues`: its tokens are `[start, stop)`, the last one is the end token.

    Attributes:
      dialogue: its number in the split.
      utterance: its number in the dialogue.
      start: of the first token after the mark of its speaker.
      stop: after the end token.
    """

    dialogue: int
    utterance: int
    start: int
    stop: int


class MarkingTokenizer(ReservedTokenizer):
    """A tokenizer with the marks of dialogues as its last ids; they have no text."""

    def __init__(self, tokenizer: Tokenizer):
        super().__init__(tokenizer, NUM_MARKS, "marks")
        self.separator_id = tokenizer.vocab_size
        self.speaker_ids = (tokenizer.vocab_size + 1, tokenizer.vocab_size + 2)


class Dialogues(Documents):
    """Documents and dialogues as the documents of a run; the loss is on utterances and their end tokens alone.

    An utterance is the mark of its speaker, its tokens, and the end token. Three layouts, in which the same targets are
    scored:

    * 'memory': the whole document, marks of its end up to a whole number of segments, then the dialogue: what an answer
      knows of the document it has from a memory.
    * 'context': the document (its first `document_length` tokens), the mark of its end, and as many utterances as fit
      into one segment. A longer dialogue goes on in further segments, which begin with the document again and with the
      last utterances before, unscored, in at most half of the room that is left.
    * 'none': as 'context', without the document.

    `annotate` gives `weights`, and bool `is_word` (an utterance without its end token) and `is_informed` (the speaker
    has the document). `turns(i)` says where the utterances of document i are.

    Example:
      >>> from memjax.data.tokenizers import ByteTokenizer
      >>> tokenizer = MarkingTokenizer(ByteTokenizer())
      >>> dialogue = Dialogue("A film.", (Utterance(0, "Hi"), Utterance(1, "Hello")))
      >>> documents = Dialogues([dialogue], tokenizer, layout="memory", segment_length=8)
      >>> (documents[0][7:] == tokenizer.separator_id).sum(), [(t.start, t.stop) for t in documents.turns(0)]
      (np.int64(1), [(9, 12), (13, 19)])
    """

    def __init__(
        self,
        dialogues: Sequence[Dialogue],
        tokenizer: MarkingTokenizer,
        *,
        layout: Layout = "memory",
        segment_length: int,
        document_length: int = 0,
        max_utterance_length: int = 128,
    ):
        """Tokenises everything.

        Args:
          dialogues: of a split.
          tokenizer: of texts and marks.
          layout: where the document stands.
          segment_length: tokens of a segment, as in training.
          document_length: tokens of the document that are kept; 0 = all.
          max_utterance_length: tokens of an utterance that are kept; it then has no end token.

        Raises:
          ValueError: a segment that has no room for the longest utterance behind a document.
        """
        self.tokenizer, self._length, self._layout = tokenizer, segment_length, layout
        self._kept = {"document": document_length or None, "utterance": max_utterance_length}
        self._documents: dict[str, np.ndarray] = {}
        self._parts: list[tuple[np.ndarray, np.ndarray, np.ndarray, tuple[Turn, ...]]] = []
        for number, dialogue in enumerate(dialogues):
            for part in self._lay_out(number, dialogue):
                self._parts.append(part)
        digest = hashlib.sha256()
        for tokens, weights, *_ in self._parts:
            digest.update(len(tokens).to_bytes(8, "little") + tokens.astype("<i4").tobytes() + weights.tobytes())
        self.fingerprint = f"dialogues-{digest.hexdigest()[:16]}"

    def __len__(self) -> int:
        return len(self._parts)

    def __getitem__(self, index: int, /) -> np.ndarray:
        return self._parts[index][0]

    def num_bytes(self, index: int, /) -> int:
        """UTF-8 bytes of document and utterances."""
        return int(self.tokenizer.token_bytes(self[index]).sum())

    def annotate(self, index: int, /) -> dict[str, np.ndarray]:
        tokens, weights, informed, _ = self._parts[index]
        is_word = (weights > 0) & (tokens != self.tokenizer.end_id)
        return {"weights": weights, "is_word": is_word, "is_informed": informed}

    def turns(self, index: int, /) -> tuple[Turn, ...]:
        """The scored utterances of a document, in order."""
        return self._parts[index][3]

    def _document(self, text: str) -> np.ndarray:
        if text not in self._documents:  # a few documents, thousands of dialogues
            self._documents[text] = self.tokenizer.encode(text)[: self._kept["document"]]
        return self._documents[text]

    def _utterance(self, utterance: Utterance) -> np.ndarray:
        """With the mark before and the end after it."""
        tokens = self.tokenizer.encode(utterance.text)
        kept = self._kept["utterance"]
        tail = [] if len(tokens) > kept else [self.tokenizer.end_id]
        mark = self.tokenizer.speaker_ids[utterance.speaker]
        return np.concatenate([[mark], tokens[:kept], tail]).astype(np.int32)

    def _lay_out(self, number: int, dialogue: Dialogue) -> Iterator[Any]:
        said = [self._utterance(utterance) for utterance in dialogue.utterances]
        separator = np.array([self.tokenizer.separator_id], np.int32)
        document = separator[:0] if self._layout == "none" else self._document(dialogue.document)
        if self._layout == "memory":
            # Inputs are one token behind: the last mark is the first thing that the dialogue's first segment reads.
            fill = -(len(document) + 1) % self._length + 1
            head = np.concatenate([document, np.repeat(separator, fill)])
            yield self._part(number, dialogue, head, said, 0, 0, len(said))
            return
        head = np.concatenate([document, separator])
        room = self._length - len(head)
        longest = max(len(tokens) for tokens in said)
        if longest > room:
            raise ValueError(
                f"segment_length: given {self._length}, allowed: at least {len(head) + longest} tokens: {len(head)} of "
                f"document and mark, and an utterance of {longest}"
            )
        first = 0
        while first < len(said):
            again = _fitting(said[:first][::-1], min(room // 2, room - len(said[first])))
            used = sum(len(tokens) for tokens in said[first - again : first])
            stop = first + _fitting(said[first:], room - used)
            yield self._part(number, dialogue, head, said, first - again, first, stop)
            first = stop

    def _part(
        self, number: int, dialogue: Dialogue, head: np.ndarray, said: Sequence[np.ndarray], *bounds: int
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, tuple[Turn, ...]]:
        """Head and utterances `[begin, stop)`, scored from `first` on."""
        begin, first, stop = bounds
        place, turns = len(head), []
        total = place + sum(len(tokens) for tokens in said[begin:stop])
        weights, informed = np.zeros(total, np.float32), np.zeros(total, bool)
        for index in range(begin, stop):
            start, place = place + 1, place + len(said[index])
            if index >= first:
                weights[start:place] = 1
                informed[start:place] = dialogue.utterances[index].informed
                turns.append(Turn(number, index, start, place))
        return np.concatenate([head, *said[begin:stop]]), weights, informed, tuple(turns)


def _fitting(pieces: Sequence[np.ndarray], room: int) -> int:
    """How many of the first pieces fit."""
    ends = np.cumsum([len(piece) for piece in pieces])
    return int(np.searchsorted(ends, room, side="right"))


def cmu_dog(path: str | Path, split: str) -> list[Dialogue]:
    """One split of CMU-DoG, as its authors divide it; empty utterances are left out, and dialogues without any.

    Args:
      path: of the folder with `Conversations` and `WikiData`, of one with the archive `cmu_dog.tar.xz`, or the archive.
      split: 'train', 'validation' or 'test'.

    Raises:
      ValueError: no such files, or a dialogue about a document that is not there.
    """
    files = _read_files(Path(path), f"Conversations/{FOLDERS[split]}/")
    about = {name: json.loads(text) for name, text in files.items()}
    documents = {_number(body): _document_text(body) for name, body in about.items() if name.startswith("WikiData/")}
    dialogues = []
    for name in sorted(name for name in about if name.startswith("Conversations/")):
        body = about[name]
        if _number(body) not in documents:
            raise ValueError(
                f"data.source.path: {path} has no document {_number(body)} in WikiData, which {name} needs"
            )
        said = [(turn["uid"], " ".join(turn["text"].split())) for turn in body["history"]]
        readers = body.get("whoSawDoc", [])
        utterances = tuple(Utterance(int(who == "user2"), text, who in readers) for who, text in said if text)
        if utterances:
            dialogues.append(Dialogue(documents[_number(body)], utterances))
    if not dialogues:
        raise ValueError(f"data.source.path: {path} has no dialogues of the split {split!r}")
    return dialogues


def dialogue_texts(dialogues: Sequence[Dialogue]) -> Texts:
    """Every document once, and all utterances: what a tokenizer is trained on."""
    documents = dict.fromkeys(dialogue.document for dialogue in dialogues)
    said = (utterance.text for dialogue in dialogues for utterance in dialogue.utterances)
    return Texts.from_mapping({str(number): text for number, text in enumerate([*documents, *said])})


def _read_files(path: Path, conversations: str) -> dict[str, str]:
    """Name -> text of the documents, and of the dialogues in one folder."""
    wanted = lambda name: name.endswith(".json") and name.startswith(("WikiData/", conversations))
    archive = path / ARCHIVE if path.is_dir() else path
    if (path / "WikiData").is_dir():
        names = [file.relative_to(path).as_posix() for file in sorted(path.rglob("*.json"))]
        return {name: (path / name).read_text("utf-8") for name in names if wanted(name)}
    if not archive.is_file():
        raise ValueError(
            f"data.source.path: {path} has neither WikiData nor {ARCHIVE}; give the folder of CMU-DoG, which is at "
            "https://github.com/festvox/datasets-CMU_DoG"
        )
    files = {}
    with tarfile.open(archive) as opened:
        for member in opened:
            name = member.name.removeprefix("./")
            if wanted(name):
                body = opened.extractfile(member)
                assert body is not None
                files[name] = body.read().decode("utf-8")
    return files


def _number(body: Mapping[str, Any]) -> int:
    return int(body["wikiDocumentIdx"])


def _document_text(body: Mapping[str, Any]) -> str:
    """The four sections as lines; the first one field by field."""
    about = body["0"]
    lines = []
    for name in ("movieName", "year", "genre", "director", "introduction", "cast", "rating", "critical_response"):
        value = about.get(name, "")
        lines.append(" ".join(" ".join(value if isinstance(value, list) else [value]).split()))
    lines += [" ".join(body[section].split()) for section in ("1", "2", "3")]
    return "\n".join(line for line in lines if line) + "\n"
