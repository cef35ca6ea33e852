"""What is learned."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from memjax.settings.examples import (
    CLBenchmark,
    Glue,
    LabelledFile,
    SeqioClasses,
    Templates,
    TextClasses,
    TfdsClasses,
)
from memjax.settings.output import Softmax
from memjax.settings.questions import QaSrl, Quac, Squad, TriviaQa
from memjax.settings.ranges import Count, Number, Positive, Range, Share, zero_or_more
from memjax.settings.relation_sources import MadeRelations, RelationFiles, Tacred
from memjax.settings.relations import Settings, require
from memjax.settings.sources import Source, TextFiles
from memjax.settings.tokenizers import BytePairs, Tokenizer, VectorWords, WordPiece, Words

if TYPE_CHECKING:
    from memjax.config import Config

__all__ = [
    "Task",
    "LanguageModeling",
    "MaskedLanguageModeling",
    "Classification",
    "RelationExtraction",
    "QuestionAnswering",
    "Instructions",
    "TaskKind",
]


OneOrMore = Annotated[int, Range(words="1 or more", least=1)]


@dataclass(slots=True, kw_only=True)
class Task(Settings):
    """What every task says of itself.

    Attributes:
      encodes: whether a text encoder learns it, which sees whole texts.
      writes: whether a model answers it by writing, marked tasks among the ids.
      prompt: where the prompt of a task stands in its texts; 'none' = there is none.
      sources: kinds of sources that hold its examples; () = it reads documents.
      files: kind of source that a file of one's own becomes; None = it takes none.
      num_classes: that its head tells apart; 0 = it has no classes.
      numbers_relations: whether its classes are relations.
      similarity: of what its head compares, and `vectors` with what; '' = it does not compare.
      margin: of a ranking loss; 0 = it has none.
      takes_states: whether its texts may come with what frozen layers give of them (`model.first_layer`).
    """

    encodes = False
    writes = False
    prompt = "none"
    files: ClassVar[type[LabelledFile] | type[Squad] | type[TextFiles] | None] = None
    num_classes = 0
    numbers_relations = False
    similarity, vectors, margin = "", "learned", 0.0
    takes_states = False
    sources: ClassVar[tuple[type[Source], ...]] = ()

    def of_task(self, place: int) -> Task:
        """The same for a task of a stream, by its place."""
        del place
        return self

    def check(self, field: str, config: Config) -> None:
        model, task = type(config.model).__name__, type(self).__name__
        learned = config.model.learns or task
        require(task == learned, "task", task, f"{learned} with {model}")

    def check_evaluation(self, config: Config) -> None:
        """Refuses what an evaluation may say of segments and memories: examples have neither."""
        kind, evaluation = type(self).__name__, config.evaluation
        unset = {"segment_length": 0, "stride": 0, "protocol": "", "score_first": True, "memory_length": None}
        unset |= {"memory_state": "kept"}
        for name, default in unset.items():
            value = getattr(evaluation, name)
            require(value == default, f"evaluation.{name}", value, f"{default!r} ({kind})")
        slots = evaluation.cache.memory_length
        require(not slots, "evaluation.cache.memory_length", slots, "0")


@dataclass(slots=True, kw_only=True)
class Prompted(Task):
    """A task whose texts may have a prompt, one for each task of a stream (ELLE)."""

    prompt: Literal["none", "before", "after_first"] = "none"
    """a learned vector for each task of a stream, in every piece: before the text (ELLE), or after its first token
    (published code)"""
    max_prompts: Count = 8
    """of prompts, which the vocabulary has room for from the start"""
    domain: Annotated[int, Range(words="-1 (none), or the place of a task", least=-1)] = -1
    """whose prompt stands in texts, the place of a task in the stream, which gives each its own; -1 = none"""

    def of_task(self, place: int) -> Prompted:
        return replace(self, domain=place) if self.prompt != "none" else self

    @property
    def num_prompts(self) -> int:
        """Ids of prompts, behind those of texts."""
        return self.max_prompts if self.prompt != "none" else 0

    def prompt_id(self, size: int) -> int | None:
        """The id of the prompt in texts of a vocabulary; None = they have none."""
        return size + self.domain if self.prompt != "none" and self.domain >= 0 else None

    def check_prompts(self, field: str, config: Config) -> None:
        """Refuses prompts that do not suffice."""
        tasks = len(config.lifelong.tasks) if config.lifelong else 0
        fits = self.prompt == "none" or tasks <= self.max_prompts
        require(fits, f"{field}max_prompts", self.max_prompts, f"at least {tasks}, the tasks")
        fits, most = self.domain < self.num_prompts or self.domain < 0, self.num_prompts
        require(fits, f"{field}domain", self.domain, f"-1, or below {most}, the prompts")


@dataclass(slots=True, kw_only=True)
class LanguageModeling(Prompted):
    """Predict every next token."""

    pieces: bool = False
    """documents are cut into pieces of a segment that stand alone, examples that are counted and kept, as methods of
    lifelong learning need them; joined first where data.protocol is 'contiguous'"""

    files = TextFiles

    def check(self, field: str, config: Config) -> None:
        Task.check(self, field, config)
        model, source = config.model, config.data.source
        allowed = "a decoder's; with Bidirectional set task to MaskedLanguageModeling or another one of a text encoder"
        require(model.carrier.is_causal, "model.attention", model.attention_kind, allowed)
        holds_examples = {"labelled", "questions", "relations", "vectors"} & set(source.gives)
        require(not holds_examples, "data.source", type(source).__name__, "a source of documents")
        allowed = "'none' without pieces"
        require(self.prompt == "none" or self.pieces, f"{field}prompt", self.prompt, allowed)
        self.check_prompts(field, config)
        if self.pieces:
            self.check_evaluation(config)


@dataclass(slots=True, kw_only=True)
class TextEncoderTask(Task):
    """What a text encoder learns.

    Attributes:
      tokenizers: kinds that it takes.
    """

    encodes = True
    tokenizers: ClassVar[tuple[type[Tokenizer], ...]] = (WordPiece,)

    def check(self, field: str, config: Config) -> None:
        Task.check(self, field, config)
        kind, model, data = type(self).__name__, config.model, config.data
        require(not model.carrier.is_causal, "model.attention", model.attention_kind, f"Bidirectional ({kind})")
        require(isinstance(model.output, Softmax), "model.output", type(model.output).__name__, "Softmax")
        tokenizer, source = type(data.tokenizer).__name__, type(data.source).__name__
        allowed = " or ".join(one.__name__ for one in self.tokenizers)
        require(isinstance(data.tokenizer, self.tokenizers), "data.tokenizer", tokenizer, allowed)
        if self.sources:
            allowed = f"{' or '.join(source.__name__ for source in self.sources)} ({kind})"
            require(isinstance(data.source, self.sources), "data.source", source, allowed)
            require(data.protocol == "separate", "data.protocol", data.protocol, f"'separate' ({kind})")
        else:
            require("texts" in data.source.gives, "data.source", source, f"a source of texts ({kind})")
        self.check_evaluation(config)


@dataclass(slots=True, kw_only=True)
class MaskedLanguageModeling(TextEncoderTask, Prompted):
    """Predict tokens that were hidden: other ones in every epoch, the same ones in every evaluation."""

    tokenizers = (WordPiece, BytePairs)

    rate: Annotated[float, Range(words="a share between 0 and 1", above=0, below=1)] = 0.15
    """share of the tokens of a text that are predicted"""
    masked: Share = 0.8
    """share of them that read as the mask token"""
    random: Share = 0.1
    """share of them that read as a random token; the rest stays as it is"""
    activation: Literal["relu", "gelu", "gelu_exact", "silu", "quick_gelu", "tanh", "relu_squared"] = "gelu_exact"
    """activation of the head; imported weights have that of the layers"""

    def check(self, field: str, config: Config) -> None:
        TextEncoderTask.check(self, field, config)
        self.check_prompts(field, config)
        length, rest = config.data.segment_length, 1 - self.masked
        least = 3 + (self.prompt != "none")
        require(length >= least, "data.segment_length", length, f"{least} or more tokens")
        require(self.masked + self.random <= 1, f"{field}random", self.random, f"at most 1 - masked = {rest:g}")


@dataclass(slots=True, kw_only=True)
class Classification(TextEncoderTask, Prompted):
    """The class of a text, or of a pair of texts, from its first token; or of a vector of numbers."""

    num_classes: Annotated[int, Range(words="2 or more", least=2)] = 2
    """classes of the data, those of later tasks included"""
    mask_unseen: bool = False
    """of a stream: no class is answered before training has read an example of it, nor does one learn till then"""

    similarity: Literal["", "dot", "cosine"] = ""
    """of what the head reads and a vector of every class, which are the scores; '' = a matrix with biases instead"""
    scale: Positive = 1.0
    """multiplies similarities"""
    margin: Annotated[float, zero_or_more("softmax")] = 0.0
    """of a ranking loss: by so much a class is to be more similar than each other one; 0 = softmax"""

    takes_states = True
    tokenizers = (WordPiece, BytePairs)
    sources = (Glue, Templates, TextClasses, CLBenchmark, TfdsClasses, SeqioClasses, LabelledFile, RelationFiles)
    sources += (Tacred, MadeRelations)
    files = LabelledFile

    def check(self, field: str, config: Config) -> None:
        alone = config.lifelong is None
        require(not (self.mask_unseen and alone), f"{field}mask_unseen", True, "False where lifelong is None")
        require(not self.margin or self.similarity != "", f"{field}margin", self.margin, "0 without similarity")
        self.check_prompts(field, config)
        reads, states = config.model.reads, config.data.states
        allowed = "'none' or 'after_first', behind the token that the class is read from, of texts that are read whole"
        fits = self.prompt == "none" or self.prompt == "after_first" and reads == "tokens" and not states
        require(fits, f"{field}prompt", self.prompt, allowed)
        if config.model.reads != "vectors":
            TextEncoderTask.check(self, field, config)
            return
        data = config.data
        require(data.protocol == "separate", "data.protocol", data.protocol, "'separate' (Classification)")
        require(not data.half, "data.half", data.half, "'' (Classification)")
        self.check_evaluation(config)


Choices = Literal["candidates", "seen", "all"]


@dataclass(slots=True, kw_only=True)
class RelationExtraction(Classification):
    """The relation that a sentence tells, of candidates of its own, of those seen so far, or of all."""

    num_classes: Annotated[int, Range(words="2 or more", least=2)] = 80
    """relations of the data"""
    similarity: Literal["", "dot", "cosine"] = "cosine"
    """as in Classification"""
    margin: Annotated[float, zero_or_more("softmax")] = 0.5
    """as in Classification"""
    vectors: Literal["names", "learned"] = "names"
    """of the relations: what the encoder makes of their names, or vectors of their own"""
    learned: Choices = "candidates"
    """relations that a sentence to train on is compared with; candidates are those of them that were seen"""
    scored: Choices = "candidates"
    """likewise of other splits; candidates are those that were seen where a task of several is scored, and all of the
    sentence's own for the whole data"""
    fallback: bool = False
    """a sentence without another candidate that was seen keeps its last two (the authors' code); else nothing is
    learned from it, and it is not scored"""
    name_length: Count = 12
    """words of a relation's name that are read"""
    max_candidates: Number = 0
    """other relations that a sentence to train on is compared with, at most; 0 = all of its own"""

    sources = (RelationFiles, Tacred, MadeRelations)
    tokenizers = (WordPiece,)
    numbers_relations = True
    files = None

    def check(self, field: str, config: Config) -> None:
        require(self.similarity != "", f"{field}similarity", self.similarity, "'dot' or 'cosine'")
        require(self.prompt == "none", f"{field}prompt", self.prompt, "'none' (RelationExtraction)")
        reads, kind = config.model.reads, type(config.model).__name__
        require(reads in ("words", "tokens"), "model", kind, "BiLSTM or a text encoder with RelationExtraction")
        if reads == "tokens":
            TextEncoderTask.check(self, field, config)
            require(self.vectors == "learned", f"{field}vectors", self.vectors, "'learned' but with a BiLSTM")
            require(not config.data.states, "data.states", config.data.states, "'' with RelationExtraction")
        else:
            Task.check(self, field, config)
            words, tokenizer = isinstance(config.data.tokenizer, Words | VectorWords), type(config.data.tokenizer)
            require(words, "data.tokenizer", tokenizer.__name__, "Words or VectorWords with a BiLSTM")
        alone, data = config.lifelong is None, config.data
        require(not (self.mask_unseen and alone), f"{field}mask_unseen", True, "False where lifelong is None")
        source = type(data.source).__name__
        allowed = f"{' or '.join(source.__name__ for source in self.sources)} (RelationExtraction)"
        require(isinstance(data.source, self.sources), "data.source", source, allowed)
        require(data.protocol == "separate", "data.protocol", data.protocol, "'separate' (RelationExtraction)")
        self.check_evaluation(config)


@dataclass(slots=True, kw_only=True)
class QuestionAnswering(TextEncoderTask):
    """The span of a text that answers a question (SQuAD); long texts are read in windows."""

    stride: OneOrMore = 128
    """tokens from one window to the next"""
    max_question_length: OneOrMore = 64
    """tokens of a question; the rest is cut off"""
    max_answer_length: OneOrMore = 30
    """tokens of an answer that is given"""
    num_best: OneOrMore = 20
    """most probable starts and ends of each window that are combined"""
    context_only: bool = False
    """answers begin and end in the text alone, never at [CLS], in the question or at [SEP] (MbPA++), and training reads
    the windows with the whole answer; else a window without it asks for [CLS] (BERT)"""

    takes_states = True
    sources = (Squad, TriviaQa, Quac, QaSrl, Templates)
    files = Squad

    def check(self, field: str, config: Config) -> None:
        TextEncoderTask.check(self, field, config)
        longest, room = self.max_question_length, config.data.segment_length - self.max_question_length - 3
        require(room >= 1, f"{field}max_question_length", longest, "less than data.segment_length - 3")
        types = config.model.attention.token_types if self.context_only else 1
        require(types > 0, "model.attention.token_types", types, "1 or more, which tell question and text apart")
        require(self.stride <= room, f"{field}stride", self.stride, f"at most {room}: windows must not leave gaps")


@dataclass(slots=True, kw_only=True)
class Instructions(Task):
    """Write the answer to a question about a context: any task as language modelling (decaNLP, LAMOL)."""

    max_tasks: Count = 8
    """tasks with a mark of their own, which the vocabulary has room for from the start"""
    max_answer_length: Count = 32
    """tokens of an answer that is written, and that a prompt leaves room for"""

    writes = True

    def check(self, field: str, config: Config) -> None:
        Task.check(self, field, config)
        model, data, stream = config.model, config.data, config.lifelong
        kind = type(self).__name__
        require(model.carrier.is_causal, "model.attention", model.attention_kind, f"a decoder's ({kind})")
        named = [("data.source", data.source)]
        named += [(f"lifelong.tasks.{i}.source", one.source) for i, one in enumerate(stream.tasks if stream else ())]
        for name, source in named:
            allowed = "a source of instructions, of questions about texts, or of texts with classes"
            require("instructions" in source.gives, name, type(source).__name__, f"{allowed} ({kind})")
        words = isinstance(data.tokenizer, WordPiece | VectorWords)
        require(not words, "data.tokenizer", type(data.tokenizer).__name__, f"one that spells every text ({kind})")
        require(data.protocol == "separate", "data.protocol", data.protocol, f"'separate' ({kind})")
        longest, allowed = self.max_answer_length, "less than data.segment_length - 1, which a prompt shares"
        require(longest < data.segment_length - 1, f"{field}max_answer_length", longest, allowed)
        tasks = len(stream.tasks) if stream else 0
        require(tasks <= self.max_tasks, f"{field}max_tasks", self.max_tasks, f"at least {tasks}, the tasks")
        self.check_evaluation(config)


TaskKind = (
    LanguageModeling | MaskedLanguageModeling | Classification | RelationExtraction | QuestionAnswering | Instructions
)
