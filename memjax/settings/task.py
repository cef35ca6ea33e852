"""Settings of the kinds of task, each with its own loss and metrics."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal, get_args

from memjax.settings.checks import Settings, require
from memjax.settings.data import SourceKind
from memjax.settings.examples import LabelledFile
from memjax.settings.output import Softmax
from memjax.settings.questions import Squad
from memjax.settings.ranges import Count, Number, Positive, Range, Share, zero_or_more
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
    """Base class of the settings of all kinds of task, with facts that a kind may override, such as the class that
    implements it.

    Attributes:
      made_by: Class of the task, a `memjax.tasks.interface.Task`, as 'module:class'.
      made_for: Kind of content that a source gives, or 'images' -> class of the task on such a source, in place of
        `made_by`.
      needs_text_encoder: Whether the task needs a text encoder, which sees whole texts.
      is_generative: Whether the model answers by generating text, with ids of the vocabulary that mark tasks.
      fixed_length_examples: Whether documents are examples of one segment each.
      prompt: Place of the learned prompt in texts. 'none' for no prompt.
      content: Kind of content of the sources that hold examples of the task, one of `Source.content_types`. '' for a
        task on documents.
      file_source: Class of source that a user's own file becomes. None for a task that takes no such file.
      num_classes: Number of classes of the head. 0 for a task without classes.
      numbers_relations: Whether the classes are relations.
      similarity: Similarity by which the head scores classes: 'dot', 'cosine', or '' for a head without similarity.
      relation_vectors: Vectors that a head with similarity compares texts with: 'learned', or 'names' of relations.
      margin: Margin of a ranking loss. 0 for a softmax loss.
      takes_states: Whether texts may come with the hidden states of frozen layers (`model.first_trained_layer`).
    """

    made_by = ""
    made_for: ClassVar[Mapping[str, str]] = {}
    needs_text_encoder = False
    is_generative = False
    fixed_length_examples = False
    prompt = "none"
    file_source: ClassVar[type[LabelledFile] | type[Squad] | type[TextFiles] | None] = None
    num_classes = 0
    numbers_relations = False
    similarity, relation_vectors, margin = "", "learned", 0.0
    takes_states = False
    content = ""

    def implementation(self, source: Source) -> str:
        """Returns the name 'module:class' of the class that makes the task on a source: the one in `made_for` for the
        source's content, otherwise `made_by`.
        """
        return self.made_for.get("images" if source.is_images else source.content_types[0], self.made_by)

    def for_task(self, place: int) -> Task:
        """Returns these settings for the task with the number `place` in a stream, from 0. Only tasks with learned
        prompts change.
        """
        del place
        return self

    def with_room(self, num_classes: int, num_tasks: int) -> Task:
        """Returns these settings with room for at least so many classes and tasks, where the task has such room."""
        del num_classes, num_tasks
        return self

    def check(self, field: str, config: Config) -> None:
        model, task = type(config.model).__name__, type(self).__name__
        learned = config.model.learns or task
        require(task == learned, "task", task, f"{learned} with {model}")

    def check_content(self, source: Source) -> None:
        """Raises `ValueError` for a source that does not give the kind of content that the task needs (`content`)."""
        names = [kind.__name__ for kind in get_args(SourceKind) if self.content in kind.content_types]
        allowed = f"{' or '.join(names)} ({type(self).__name__})"
        require(self.content in source.content_types, "data.source", type(source).__name__, allowed)

    def check_evaluation(self, config: Config) -> None:
        """Raises `ValueError` where `config.evaluation` sets segments, a memory or a cache, which a task on examples
        does not have.
        """
        kind, evaluation = type(self).__name__, config.evaluation
        unset = {"segment_length": 0, "stride": 0, "protocol": "", "score_first_token": True, "memory_length": None}
        unset |= {"memory_intervention": "kept"}
        for name, default in unset.items():
            value = getattr(evaluation, name)
            require(value == default, f"evaluation.{name}", value, f"{default!r} ({kind})")
        slots = evaluation.cache.memory_length
        require(not slots, "evaluation.cache.memory_length", slots, "0")


@dataclass(slots=True, kw_only=True)
class Prompted(Task):
    """Common settings of tasks whose texts can have learned prompts, one for each task of a stream (ELLE)."""

    prompt: Literal["none", "before", "after_first"] = "none"
    """learned prompt vector in every text, one for each task of a stream: 'before' = before the text (ELLE);
    'after_first' = after its first token (published code); 'none'"""
    max_prompts: Count = 8
    """number of prompts that the vocabulary has room for from the start; at least the number of tasks"""
    prompt_task_index: Annotated[int, Range(words="-1 (none), or the place of a task", least=-1)] = -1
    """number of the task, from 0, whose prompt is put into texts; -1 = none; a stream sets it for each of its tasks"""

    def for_task(self, place: int) -> Prompted:
        return replace(self, prompt_task_index=place) if self.prompt != "none" else self

    @property
    def num_prompts(self) -> int:
        """Number of token ids for prompts, which follow the ids of the vocabulary: `max_prompts`,
        or 0 without prompts.
        """
        return self.max_prompts if self.prompt != "none" else 0

    def prompt_id(self, size: int) -> int | None:
        """Returns the token id of the prompt that is put into texts, which follows the `size` ids of the vocabulary.
        None for no prompt.
        """
        return size + self.prompt_task_index if self.prompt != "none" and self.prompt_task_index >= 0 else None

    def check_prompts(self, field: str, config: Config) -> None:
        """Raises `ValueError` where a config has fewer prompts than tasks, or the chosen prompt does not exist. `field`
        is the path of these settings with a dot at the end.
        """
        tasks = len(config.lifelong.tasks) if config.lifelong else 0
        fits = self.prompt == "none" or tasks <= self.max_prompts
        require(fits, f"{field}max_prompts", self.max_prompts, f"at least {tasks}, the tasks")
        fits, most = self.prompt_task_index < self.num_prompts or self.prompt_task_index < 0, self.num_prompts
        require(fits, f"{field}prompt_task_index", self.prompt_task_index, f"-1, or below {most}, the prompts")


@dataclass(slots=True, kw_only=True)
class LanguageModeling(Prompted):
    """Language modelling: predicts every next token of documents, dialogues, translations or images."""

    made_by = "memjax.tasks.language_modeling:LanguageModeling"
    made_for = {
        "dialogues": "memjax.tasks.dialogue:DialogueModeling",
        "pairs": "memjax.tasks.translation:Translation",
        "images": "memjax.tasks.images:ImageModeling",
    }

    fixed_length_examples: bool = False
    """cut documents into independent examples of one segment each, which can be counted and stored, as methods of
    lifelong learning need it; with `data.protocol` 'contiguous' documents are joined before"""

    file_source = TextFiles

    def check(self, field: str, config: Config) -> None:
        Task.check(self, field, config)
        model, source = config.model, config.data.source
        allowed = "a decoder's; with Bidirectional set task to MaskedLanguageModeling or another one of a text encoder"
        require(model.memory_facts.is_causal, "model.attention", model.attention_kind, allowed)
        holds_examples = {"labelled", "questions", "relations", "vectors"} & set(source.content_types)
        require(not holds_examples, "data.source", type(source).__name__, "a source of documents")
        allowed = "'none' without fixed_length_examples"
        require(self.prompt == "none" or self.fixed_length_examples, f"{field}prompt", self.prompt, allowed)
        self.check_prompts(field, config)
        if self.fixed_length_examples:
            self.check_evaluation(config)


@dataclass(slots=True, kw_only=True)
class TextEncoderTask(Task):
    """Common settings of the tasks that a text encoder learns.

    Attributes:
      tokenizers: Classes of tokenizers that the task allows with attention that sees the whole text.
      reads_last_token: Whether the layers of a decoder can learn the task, from the last token of a text.
    """

    needs_text_encoder = True
    tokenizers: ClassVar[tuple[type[Tokenizer], ...]] = (WordPiece,)
    reads_last_token = False

    def check(self, field: str, config: Config) -> None:
        Task.check(self, field, config)
        kind, model, data = type(self).__name__, config.model, config.data
        facts = model.memory_facts
        fits = not facts.is_causal or (self.reads_last_token and facts.encodes_texts)
        allowed = "Bidirectional, Rotary or GPT2" if self.reads_last_token else "Bidirectional"
        require(fits, "model.attention", model.attention_kind, f"{allowed} ({kind})")
        require(isinstance(model.output, Softmax), "model.output", type(model.output).__name__, "Softmax")
        tokenizer, source = type(data.tokenizer).__name__, type(data.source).__name__
        fits, allowed = isinstance(data.tokenizer, self.tokenizers), " or ".join(k.__name__ for k in self.tokenizers)
        require(fits or facts.is_causal, "data.tokenizer", tokenizer, allowed)
        if self.content:
            self.check_content(data.source)
            require(data.protocol == "separate", "data.protocol", data.protocol, f"'separate' ({kind})")
        else:
            require("texts" in data.source.content_types, "data.source", source, f"a source of texts ({kind})")
        self.check_evaluation(config)


@dataclass(slots=True, kw_only=True)
class MaskedLanguageModeling(TextEncoderTask, Prompted):
    """Masked language modelling of texts by a text encoder: predicts hidden tokens, other ones in every epoch and the
    same ones in every evaluation.
    """

    tokenizers = (WordPiece, BytePairs)
    made_by = "memjax.tasks.masked:MaskedLanguageModeling"

    mask_rate: Annotated[float, Range(words="a share between 0 and 1", above=0, below=1)] = 0.15
    """share of the tokens of a text that are predicted"""
    mask_token_fraction: Share = 0.8
    """share of the predicted tokens that are replaced by the mask token"""
    random_token_fraction: Share = 0.1
    """share of the predicted tokens that are replaced by a random token; the rest stays as it is"""
    activation: Literal["relu", "gelu", "gelu_exact", "silu", "quick_gelu", "tanh", "relu_squared"] = "gelu_exact"
    """activation of the head; imported weights use that of the layers"""

    def check(self, field: str, config: Config) -> None:
        TextEncoderTask.check(self, field, config)
        self.check_prompts(field, config)
        length, rest = config.data.segment_length, 1 - self.mask_token_fraction
        least = 3 + (self.prompt != "none")
        require(length >= least, "data.segment_length", length, f"{least} or more tokens")
        require(
            self.mask_token_fraction + self.random_token_fraction <= 1,
            f"{field}random_token_fraction",
            self.random_token_fraction,
            f"at most 1 - masked = {rest:g}",
        )


@dataclass(slots=True, kw_only=True)
class Classification(TextEncoderTask, Prompted):
    """Classification of a text or a pair of texts, from its first token, or of a vector of numbers."""

    made_by = "memjax.tasks.classification:ClassificationTask"
    made_for = {"vectors": "memjax.tasks.vectors:VectorClassification"}

    num_classes: Annotated[int, Range(words="2 or more", least=2)] = 2
    """number of classes of the data, including those of later tasks"""
    mask_unseen_classes: bool = False
    """exclude every class from answers and from the loss until training has read an example of it; for streams only"""

    similarity: Literal["", "dot", "cosine"] = ""
    """score of a class: 'dot' or 'cosine' similarity of the head's input and a vector of the class; '' = a matrix with
    biases"""
    scale: Positive = 1.0
    """factor on the similarities"""
    margin: Annotated[float, zero_or_more("softmax")] = 0.0
    """margin of a ranking loss, by which the similarity of the right class should exceed that of every other class; 0 =
    a softmax loss instead"""

    takes_states = True
    reads_last_token = True
    tokenizers = (WordPiece, BytePairs)
    content = "labelled"
    file_source = LabelledFile

    def with_room(self, num_classes: int, num_tasks: int) -> Task:
        del num_tasks
        return replace(self, num_classes=max(self.num_classes, num_classes), mask_unseen_classes=True)

    def check(self, field: str, config: Config) -> None:
        alone = config.lifelong is None
        require(
            not (self.mask_unseen_classes and alone),
            f"{field}mask_unseen_classes",
            True,
            "False where lifelong is None",
        )
        require(not self.margin or self.similarity != "", f"{field}margin", self.margin, "0 without similarity")
        self.check_prompts(field, config)
        reads, states = config.model.reads, config.data.encoder_states_dir
        allowed = "'none' or 'after_first', behind the first token, where the class is read from it and no states are"
        reads_whole = reads == "tokens" and not states and not config.model.memory_facts.is_causal
        fits = self.prompt == "none" or self.prompt == "after_first" and reads_whole
        require(fits, f"{field}prompt", self.prompt, allowed)
        if config.model.reads != "vectors":
            TextEncoderTask.check(self, field, config)
            return
        data = config.data
        require(data.protocol == "separate", "data.protocol", data.protocol, "'separate' (Classification)")
        require(not data.train_half, "data.train_half", data.train_half, "'' (Classification)")
        self.check_evaluation(config)


Choices = Literal["candidates", "seen", "all"]


@dataclass(slots=True, kw_only=True)
class RelationExtraction(Classification):
    """Relation extraction: chooses the relation that a sentence expresses among candidates, relations seen so far, or
    all.
    """

    made_by = "memjax.tasks.relation:RelationExtraction"
    made_for = {}

    num_classes: Annotated[int, Range(words="2 or more", least=2)] = 80
    """number of relations of the data"""
    similarity: Literal["", "dot", "cosine"] = "cosine"
    """similarity of a sentence and the vector of a relation, which is the score of the relation; '' is not allowed"""
    margin: Annotated[float, zero_or_more("softmax")] = 0.5
    """margin of a ranking loss, by which the similarity of the right relation should exceed that of every other one; 0
    = a softmax loss instead"""
    relation_vectors: Literal["names", "learned"] = "names"
    """vectors of the relations: 'names' = encodings of their names; 'learned' = parameters of the head"""
    train_choices: Choices = "candidates"
    """relations that a training sentence is compared with: 'candidates' = its own candidates, in a stream those seen so
    far; 'seen' = all relations seen so far; 'all'"""
    eval_choices: Choices = "candidates"
    """relations that a sentence of validation or test is compared with: 'candidates' = its own candidates, where one
    task of a stream is scored those seen so far; 'seen' = all relations seen so far; 'all'"""
    keep_two_candidates: bool = False
    """compare a sentence with its last two candidates where no other candidate has been seen (the authors' code); False
    = such sentences are neither learned from nor scored"""
    max_name_words: Count = 12
    """maximum number of words that are read of a relation's name"""
    max_candidates: Number = 0
    """maximum number of other relations that a training sentence is compared with; 0 = all of its candidates"""

    content = "relations"
    reads_last_token = False
    tokenizers = (WordPiece,)
    numbers_relations = True
    file_source = None

    def check(self, field: str, config: Config) -> None:
        require(self.similarity != "", f"{field}similarity", self.similarity, "'dot' or 'cosine'")
        require(self.prompt == "none", f"{field}prompt", self.prompt, "'none' (RelationExtraction)")
        reads, kind = config.model.reads, type(config.model).__name__
        require(reads in ("words", "tokens"), "model", kind, "BiLSTM or a text encoder with RelationExtraction")
        if reads == "tokens":
            TextEncoderTask.check(self, field, config)
            require(
                self.relation_vectors == "learned",
                f"{field}relation_vectors",
                self.relation_vectors,
                "'learned' but with a BiLSTM",
            )
            require(
                not config.data.encoder_states_dir,
                "data.encoder_states_dir",
                config.data.encoder_states_dir,
                "'' with RelationExtraction",
            )
        else:
            Task.check(self, field, config)
            words, tokenizer = isinstance(config.data.tokenizer, Words | VectorWords), type(config.data.tokenizer)
            require(words, "data.tokenizer", tokenizer.__name__, "Words or VectorWords with a BiLSTM")
        alone, data = config.lifelong is None, config.data
        require(
            not (self.mask_unseen_classes and alone),
            f"{field}mask_unseen_classes",
            True,
            "False where lifelong is None",
        )
        self.check_content(data.source)
        require(data.protocol == "separate", "data.protocol", data.protocol, "'separate' (RelationExtraction)")
        self.check_evaluation(config)


@dataclass(slots=True, kw_only=True)
class QuestionAnswering(TextEncoderTask):
    """Extractive question answering (SQuAD): the answer is a span of the text. Long texts are read in windows."""

    made_by = "memjax.tasks.question_answering:QuestionAnswering"

    stride: OneOrMore = 128
    """number of tokens from the start of one window to the next"""
    max_question_length: OneOrMore = 64
    """maximum number of tokens of a question; longer ones are cut off"""
    max_answer_length: OneOrMore = 30
    """maximum number of tokens of a predicted answer"""
    num_best_spans: OneOrMore = 20
    """number of most probable starts and ends of each window that are combined into answers"""
    answers_in_context_only: bool = False
    """allow only answers that begin and end in the text, not at [CLS], in the question or at [SEP], and train only on
    windows with the whole answer (MbPA++); False = a window without the answer has the target [CLS] (BERT)"""

    takes_states = True
    content = "questions"
    file_source = Squad

    def check(self, field: str, config: Config) -> None:
        TextEncoderTask.check(self, field, config)
        longest, room = self.max_question_length, config.data.segment_length - self.max_question_length - 3
        require(room >= 1, f"{field}max_question_length", longest, "less than data.segment_length - 3")
        types = config.model.attention.num_token_types if self.answers_in_context_only else 1
        require(types > 0, "model.attention.num_token_types", types, "1 or more, which tell question and text apart")
        require(self.stride <= room, f"{field}stride", self.stride, f"at most {room}: windows must not leave gaps")


@dataclass(slots=True, kw_only=True)
class Instructions(Task):
    """Any task as language modelling: a decoder generates the answer to a question about a context (decaNLP, LAMOL)."""

    made_by = "memjax.tasks.instructions:Instructions"

    max_tasks: Count = 8
    """number of tasks with a token of their own that the vocabulary has room for from the start"""
    max_answer_length: Count = 32
    """maximum number of tokens of a generated answer, for which a prompt leaves room"""

    is_generative = True
    file_source = LabelledFile

    def with_room(self, num_classes: int, num_tasks: int) -> Task:
        del num_classes
        return replace(self, max_tasks=max(self.max_tasks, num_tasks))

    def check(self, field: str, config: Config) -> None:
        Task.check(self, field, config)
        model, data, stream = config.model, config.data, config.lifelong
        kind = type(self).__name__
        require(model.memory_facts.is_causal, "model.attention", model.attention_kind, f"a decoder's ({kind})")
        sources = [("data.source", data.source)]
        tasks = stream.tasks if stream else ()
        sources += [(f"lifelong.tasks.{i}.source", task.source) for i, task in enumerate(tasks)]
        for name, source in sources:
            allowed = "a source of instructions, of questions about texts, or of texts with classes"
            require("instructions" in source.content_types, name, type(source).__name__, f"{allowed} ({kind})")
        words = isinstance(data.tokenizer, WordPiece | VectorWords)
        require(not words, "data.tokenizer", type(data.tokenizer).__name__, f"one that spells every text ({kind})")
        require(data.protocol == "separate", "data.protocol", data.protocol, f"'separate' ({kind})")
        longest, allowed = self.max_answer_length, "less than data.segment_length - 1, which a prompt shares"
        require(longest < data.segment_length - 1, f"{field}max_answer_length", longest, allowed)
        count = len(tasks)
        require(count <= self.max_tasks, f"{field}max_tasks", self.max_tasks, f"at least {count}, the tasks")
        self.check_evaluation(config)


TaskKind = (
    LanguageModeling | MaskedLanguageModeling | Classification | RelationExtraction | QuestionAnswering | Instructions
)
