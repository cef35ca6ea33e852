"""Dialogues about a document: reads CMU-DoG, and turns documents and dialogues into tokens for a language model.

Zhou, Prabhumoye and Black 2018, "A Dataset for Document Grounded Conversations", https://arxiv.org/abs/1809.07358. The
input follows Wolf et al. 2019, "TransferTransfo", https://arxiv.org/abs/1901.08149: a mark of the speaker stands before
each utterance, and every token gets a learned embedding of the last mark (`Model.markers`). Unlike there, no wrong
candidate answers are read.
"""

import dataclasses
import hashlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np

from memjax import config as configs
from memjax.data.documents import Documents
from memjax.data.file_contents import read_tar
from memjax.data.paths import read_text
from memjax.data.reader_errors import check_inside, expect, reading
from memjax.data.records import parse_json_text
from memjax.data.reserved_ids import ReservedTokenizer
from memjax.data.sources import Texts
from memjax.data.tokenizers import Tokenizer

__all__ = [
    "Dialogue",
    "DialogueDocuments",
    "TokenizerWithDialogueMarks",
    "Turn",
    "Utterance",
    "read_cmu_dog",
    "dialogue_texts",
]

NUM_MARKS = 3
"""Number of marks, the last ids of the vocabulary: the end of the document, the first speaker, the second speaker."""
ARCHIVE = "cmu_dog.tar.xz"
FOLDERS = {"train": "train", "validation": "valid", "test": "test"}

Layout = Literal["none", "context", "memory"]


@dataclasses.dataclass(frozen=True)
class Utterance:
    """One utterance of one of the two people in a dialogue: the number of the speaker, the text, and whether the
    speaker has seen the document.

    Attributes:
      speaker: Number of the speaker, 0 or 1.
      text: The text, without line breaks.
      informed: Whether the speaker has seen the document.
    """

    speaker: int
    text: str
    informed: bool = True


@dataclasses.dataclass(frozen=True)
class Dialogue:
    """A document and a dialogue of two people about it."""

    document: str
    utterances: tuple[Utterance, ...]


@dataclasses.dataclass(frozen=True)
class Turn:
    """The token positions `[start, stop)` of one scored utterance in a document of `DialogueDocuments`, and the numbers
    of its dialogue and utterance.

    Attributes:
      dialogue: Number of the dialogue in the split.
      utterance: Number of the utterance in the dialogue.
      start: Position of its first token, after the mark of its speaker.
      stop: Position after its last token, which is the end token unless the utterance was cut off.
    """

    dialogue: int
    utterance: int
    start: int
    stop: int


class TokenizerWithDialogueMarks(ReservedTokenizer):
    """A tokenizer with three additional ids at the end, which stand for no text: the marks of the end of a document, of
    the first and of the second speaker.
    """

    def __init__(self, tokenizer: Tokenizer):
        """Adds the marks to a tokenizer of texts."""
        super().__init__(tokenizer, NUM_MARKS, "marks")
        self.separator_id = tokenizer.vocab_size
        self.speaker_ids = (tokenizer.vocab_size + 1, tokenizer.vocab_size + 2)


class DialogueDocuments(Documents):
    """Tokenised dialogues, each (by default) after the document that it is about. Only utterances and their end tokens
    are scored.

    An utterance consists of the mark of its speaker, its tokens, and the end token. There are three layouts, which
    score the same targets:

    * 'memory': The whole document, then marks of its end up to a whole number of segments, then the dialogue. The model
      can only know the document through a memory when it reads the dialogue.
    * 'context': The document (its first `document_length` tokens), the mark of its end, and as many utterances as fit
      into one segment. A longer dialogue continues in further segments, which begin with the document again, followed
      by the last utterances before. These are not scored and take at most half of the remaining room.
    * 'none': The layout 'context' without the document.

    `annotate` returns `weights`, `is_word` (bool, tokens of utterances without end tokens) and `is_informed` (bool,
    whether the speaker has seen the document). `turns(i)` returns the positions of the utterances in document i.

    Example:
      >>> from memjax.data.tokenizers import ByteTokenizer
      >>> tokenizer = TokenizerWithDialogueMarks(ByteTokenizer())
      >>> dialogue = Dialogue("A film.", (Utterance(0, "Hi"), Utterance(1, "Hello")))
      >>> documents = DialogueDocuments([dialogue], tokenizer, layout="memory", segment_length=8)
      >>> (documents[0][7:] == tokenizer.separator_id).sum(), [(t.start, t.stop) for t in documents.turns(0)]
      (np.int64(1), [(9, 12), (13, 19)])
    """

    def __init__(
        self,
        dialogues: Sequence[Dialogue],
        tokenizer: TokenizerWithDialogueMarks,
        *,
        layout: Layout = "memory",
        segment_length: int,
        document_length: int = 0,
        max_utterance_length: int = 128,
    ):
        """Tokenises all dialogues.

        Args:
          dialogues: Dialogues of a split.
          tokenizer: Tokenizer with marks of dialogues.
          layout: Place of the document: 'memory', 'context' or 'none'.
          segment_length: Number of tokens of a segment, the same as in training.
          document_length: Number of tokens of a document to keep, the first ones. 0 for all.
          max_utterance_length: Number of tokens of an utterance to keep. A longer one is cut off and has no end token.

        Raises:
          ValueError: A segment that has no room for the longest utterance behind a document.
        """
        self.tokenizer, self._length, self._layout = tokenizer, segment_length, layout
        self._max_lengths = {"document": document_length or None, "utterance": max_utterance_length}
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
        """Returns the number of UTF-8 bytes of the tokens of document `index`: of the document of a dialogue, and of
        the utterances.
        """
        return int(self.tokenizer.token_bytes(self[index]).sum())

    def annotate(self, index: int, /) -> dict[str, np.ndarray]:
        tokens, weights, informed, _ = self._parts[index]
        is_word = (weights > 0) & (tokens != self.tokenizer.end_id)
        return {"weights": weights, "is_word": is_word, "is_informed": informed}

    def turns(self, index: int, /) -> tuple[Turn, ...]:
        """Returns a `Turn` for each scored utterance of document `index`, in order: its token positions."""
        return self._parts[index][3]

    def _encode_document(self, text: str) -> np.ndarray:
        """Returns the tokens of a document, cut off after `document_length`."""
        if text not in self._documents:  # a few documents, thousands of dialogues
            self._documents[text] = self.tokenizer.encode(text)[: self._max_lengths["document"]]
        return self._documents[text]

    def _encode_utterance(self, utterance: Utterance) -> np.ndarray:
        """Returns the tokens of an utterance, with its speaker's mark before and the end token after them."""
        tokens = self.tokenizer.encode(utterance.text)
        max_length = self._max_lengths["utterance"]
        end = [] if len(tokens) > max_length else [self.tokenizer.end_id]
        mark = self.tokenizer.speaker_ids[utterance.speaker]
        return np.concatenate([[mark], tokens[:max_length], end]).astype(np.int32)

    def _lay_out(self, number: int, dialogue: Dialogue) -> Iterator[Any]:
        """Yields the documents that a dialogue becomes, each as returned by `_join_part`."""
        utterances = [self._encode_utterance(utterance) for utterance in dialogue.utterances]
        separator = np.array([self.tokenizer.separator_id], np.int32)
        document = separator[:0] if self._layout == "none" else self._encode_document(dialogue.document)
        if self._layout == "memory":
            # Inputs are one token behind: the last mark is the first thing that the dialogue's first segment reads.
            fill = -(len(document) + 1) % self._length + 1
            head = np.concatenate([document, np.repeat(separator, fill)])
            yield self._join_part(number, dialogue, head, utterances, 0, 0, len(utterances))
            return
        head = np.concatenate([document, separator])
        room = self._length - len(head)
        longest = max(len(tokens) for tokens in utterances)
        if longest > room:
            raise ValueError(
                f"segment_length: given {self._length}, allowed: at least {len(head) + longest} tokens: {len(head)} of "
                f"document and mark, and an utterance of {longest}"
            )
        first = 0
        while first < len(utterances):
            again = _count_fitting(utterances[:first][::-1], min(room // 2, room - len(utterances[first])))
            used = sum(len(tokens) for tokens in utterances[first - again : first])
            stop = first + _count_fitting(utterances[first:], room - used)
            yield self._join_part(number, dialogue, head, utterances, first - again, first, stop)
            first = stop

    def _join_part(
        self, number: int, dialogue: Dialogue, head: np.ndarray, utterances: Sequence[np.ndarray], *bounds: int
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, tuple[Turn, ...]]:
        """Joins the head and the utterances `[begin, stop)`, of which those from `first` on are scored.

        Returns:
          Tokens, weights, whether the speaker of each token is informed, and the positions of the scored utterances.
        """
        begin, first, stop = bounds
        place, turns = len(head), []
        total = place + sum(len(tokens) for tokens in utterances[begin:stop])
        weights, informed = np.zeros(total, np.float32), np.zeros(total, bool)
        for index in range(begin, stop):
            start, place = place + 1, place + len(utterances[index])
            if index >= first:
                weights[start:place] = 1
                informed[start:place] = dialogue.utterances[index].informed
                turns.append(Turn(number, index, start, place))
        return np.concatenate([head, *utterances[begin:stop]]), weights, informed, tuple(turns)


def _count_fitting(pieces: Sequence[np.ndarray], room: int) -> int:
    """Counts the first pieces that fit into `room` tokens together."""
    ends = np.cumsum([len(piece) for piece in pieces])
    return int(np.searchsorted(ends, room, side="right"))


def read_cmu_dog(path: str | Path, split: str) -> list[Dialogue]:
    """Reads one split of CMU-DoG, as its authors divide it, from a folder or the archive, as a list of `Dialogue`.
    Empty utterances and dialogues are left out.

    Args:
      path: Folder with `Conversations` and `WikiData`, folder with the archive `cmu_dog.tar.xz`, or the archive
        itself.
      split: 'train', 'validation' or 'test'.

    Raises:
      ValueError: No such files, or a dialogue about a document that is missing.
    """
    contents, documents = dict[str, Any](), dict[int, str]()
    for name, text in _read_files(Path(path), f"Conversations/{FOLDERS[split]}/").items():
        with reading(f"{path}/{name}", "a JSON object of CMU-DoG"):
            contents[name] = body = expect(parse_json_text(text), dict)
            if name.startswith("WikiData/"):
                documents[_document_number(body)] = _document_text(body)
    dialogues = []
    for name in sorted(name for name in contents if name.startswith("Conversations/")):
        with reading(f"{path}/{name}", "a dialogue of CMU-DoG"):
            dialogues += _read_dialogue(contents[name], documents, f"{path}/{name}")
    if not dialogues:
        raise ValueError(f"data.source.path: {path} has no dialogues of the split {split!r}")
    return dialogues


def _read_dialogue(body: Mapping[str, Any], documents: Mapping[int, str], place: str) -> list[Dialogue]:
    """Returns the dialogue of a file, as a list that is empty if nothing is said in it.

    Args:
      body: Content of the file.
      documents: Number -> text of all documents.
      place: Path of the file, for the error.

    Raises:
      ValueError: A dialogue about a document that is missing.
    """
    number = _document_number(body)
    if number not in documents:
        raise ValueError(f"{place}: given the document {number}, allowed: one of WikiData")
    said = [(turn["uid"], " ".join(turn["text"].split())) for turn in body["history"]]
    readers = expect(body.get("whoSawDoc", []), list)
    utterances = tuple(Utterance(int(who == "user2"), text, who in readers) for who, text in said if text)
    return [Dialogue(documents[number], utterances)] if utterances else []


def open_cmu_dog(data: configs.Data, split: str) -> list[Dialogue]:
    """Returns the dialogues of one split of CMU-DoG, from the folder or archive `data.source.path`, as a list."""
    return read_cmu_dog(data.source.path, split)


def dialogue_texts(dialogues: Sequence[Dialogue]) -> Texts:
    """Returns every document once and all utterances as `Texts`, for the training of a tokenizer."""
    documents = dict.fromkeys(dialogue.document for dialogue in dialogues)
    said = (utterance.text for dialogue in dialogues for utterance in dialogue.utterances)
    return Texts.from_mapping({str(number): text for number, text in enumerate([*documents, *said])})


def _read_files(path: Path, conversations: str) -> dict[str, str | bytes]:
    """Reads the files of all documents, and of the dialogues in the folder `conversations`: name -> content."""
    is_needed = lambda name: name.endswith(".json") and name.startswith(("WikiData/", conversations))
    archive = path / ARCHIVE if path.is_dir() else path
    if (path / "WikiData").is_dir():
        names = [file.relative_to(path).as_posix() for file in sorted(path.rglob("*.json"))]
        return {name: read_text(check_inside(path / name, path)) for name in names if is_needed(name)}
    if not archive.is_file():
        raise ValueError(
            f"data.source.path: {path} has neither WikiData nor {ARCHIVE}; give the folder of CMU-DoG, which is at "
            "https://github.com/festvox/datasets-CMU_DoG"
        )
    return dict(read_tar(archive, is_needed))


def _document_number(body: Mapping[str, Any]) -> int:
    """Returns the number of the document that a file of CMU-DoG contains or is about."""
    return int(body["wikiDocumentIdx"])


def _document_text(body: Mapping[str, Any]) -> str:
    """Joins the four sections of a document, one line each, the first section one line per field."""
    first_section = body["0"]
    lines = []
    for name in ("movieName", "year", "genre", "director", "introduction", "cast", "rating", "critical_response"):
        value = first_section.get(name, "")
        lines.append(" ".join(" ".join(value if isinstance(value, list) else [value]).split()))
    lines += [" ".join(body[section].split()) for section in ("1", "2", "3")]
    return "\n".join(line for line in lines if line) + "\n"
