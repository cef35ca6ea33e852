"""Classification of a text, or of a pair of texts, from the encoder's output at the first token."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import importlib.util
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np

from memjax import config as configs
from memjax.data.documents import Example, Examples, Split
from memjax.data.encoder_states import attach_encoder_states
from memjax.data.example_batches import EXAMPLE
from memjax.data.glue import LabelledText
from memjax.data.labelled_rows import read_rows
from memjax.data.opening import Datasets, make_examples
from memjax.data.paths import read_text
from memjax.data.source_readers import class_names
from memjax.data.text_chunks import insert_prompt
from memjax.data.token_files import Progress
from memjax.data.wordpiece import join_texts, truncate_texts
from memjax.models.heads import UNSEEN_SCORE, ClassificationHead, TaskHead
from memjax.models.similarity_head import SimilarityHead
from memjax.models.token_bag import BayesHead
from memjax.settings.checks import has_field
from memjax.settings.reading_rules import ReadingRules, reading_rules_of
from memjax.tasks.choices import GroupMeasure
from memjax.tasks.interface import (
    Query,
    ReadBatch,
    Task,
    TaskMetric,
    TokenSelector,
    neighbor_numbers,
    rank_choices,
    read_examples,
)
from memjax.typing import Batch

__all__ = ["LabelledTexts"]


class ClassificationTask(Task):
    """Labelled texts with one target each, scored by accuracy and the other metrics published for the data."""

    main_metrics = ("accuracy", "matthews", "f1")
    target_unit = "texts"
    second_input = "pair"
    classifies = True

    def data(self, progress: Progress | None = None, *, tokenizer: Any = None) -> Datasets:
        """Opens the labelled texts of each split as examples, with a tokenizer of the training texts, or of the texts
        of all tasks. `progress` is a function that is told what is being prepared.
        """
        data, first = self.config.data, self.config.model.first_trained_layer
        # A decoder reads texts with the begin and end tokens of its own tokenizer.
        facts = self.config.model.memory_facts
        is_causal = facts.encodes_texts and facts.is_causal

        def make_texts(datasets: Sequence[LabelledText], tokenizer: Any) -> Examples:
            texts = self.labelled(datasets, tokenizer if is_causal else tokenizer.for_encoder())
            return attach_encoder_states(texts, data.encoder_states_dir, first) if data.encoder_states_dir else texts

        datasets = make_examples(
            data,
            "labelled",
            lambda example: example.texts,
            make_texts,
            tokenizer=tokenizer and tokenizer.base,
            progress=progress,
            vocabulary=self.vocabulary_data(),
        )
        return datasets if is_causal else datasets.for_encoder(self.settings.num_prompts)

    def vocabulary_data(self) -> list[configs.Data]:
        """Returns the data settings of all tasks of a stream, sorted by name, whose texts a new tokenizer is trained on
        together. Empty if it is trained on one source only.
        """
        stream = self.config.lifelong
        if stream is None or stream.vocabulary == "source":
            return []
        tasks = sorted(stream.tasks, key=lambda task: task.name)
        return [dataclasses.replace(self.config.data, source=stream.with_sources_dir(task.source)) for task in tasks]

    def labelled(self, texts: Sequence[LabelledText], tokenizer: Any) -> LabelledTexts:
        """Turns labelled texts into tokenised examples, a `LabelledTexts`, with the prompt token of the task where it
        has one.
        """
        task, room = self.settings, self.config.data.segment_length - (self.settings.prompt != "none")
        prompt = task.prompt_id(tokenizer.vocab_size)
        facts = self.config.model.memory_facts
        ends = not (facts.encodes_texts and facts.is_causal)
        return LabelledTexts(texts, tokenizer, length=room, num_classes=task.num_classes, prompt=prompt, ends=ends)

    def head(self) -> TaskHead:
        """Returns the head that scores the classes: naive Bayes, class vectors compared by similarity, or a dense
        layer, as the settings say.
        """
        if self.settings.similarity:
            return self.similarity_head()
        model = self.config.model
        task, dtype = self.settings, jnp.dtype(model.compute_dtype)
        if model.head == "bayes":
            options = {"masks_unseen": task.mask_unseen_classes, "weighs_errors": model.weighs_errors}
            return BayesHead(task.num_classes, model.smoothing, **options)
        return ClassificationHead(task.num_classes, model.dropout, dtype, masks_unseen=task.mask_unseen_classes)

    def similarity_head(self, **fields: Any) -> SimilarityHead:
        """Returns a head that scores the similarity of a text to each class, made from the settings. `fields` are more
        fields of `SimilarityHead`.

        Args:
          **fields: More fields of `SimilarityHead`.
        """
        task, model, stream = self.settings, self.config.model, self.config.lifelong
        options = {name: getattr(task, name) for name in ("num_classes", "similarity", "scale", "margin")}
        options |= {"masks_unseen": task.mask_unseen_classes, "aligned": stream is not None and stream.method.aligns}
        return SimilarityHead(**options, dtype=jnp.dtype(model.compute_dtype), **fields)

    def make_measure(self, split: Split) -> Callable[[], TaskMetric]:
        """Returns a function without arguments that makes the measure of a split: a `GroupMeasure` if its examples are
        choices in groups, otherwise a `ClassMeasure`. `split` is the opened examples.
        """
        groups = split.without_states.groups if isinstance(split, Examples) else None
        if groups is not None:
            return functools.partial(GroupMeasure, groups)
        return functools.partial(ClassMeasure, self.config.data.source.metrics)

    def predict(
        self,
        model: Any,
        variables: Mapping[str, Any],
        queries: Sequence[Query],
        data: Datasets,
        *,
        read: ReadBatch | None = None,
        **how: Any,
    ) -> list[dict[str, Any]]:
        """Returns a dict for each query (a text, a pair of texts or a vector): the most probable class as `answer`, its
        `probability`, and all known classes as `candidates`. `read` applies the model to a batch.
        """
        del how
        examples, length = self.examples_of(queries, data), self.config.data.segment_length
        names = self.class_names()
        known = self.known_classes(names)
        answers: list[dict[str, Any]] = [{} for _ in queries]
        for part in read_examples(model, variables, examples, length=length, read=read):
            for row, number in enumerate(part.batch.extras[EXAMPLE]):
                if number >= 0:
                    scores = np.where(known, part.log_probs[row, 0], -np.inf)
                    ranked = rank_choices(scores, lambda number: names.get(number, str(number)), int(known.sum()))
                    answers[number] = {**ranked[0], "candidates": [ranked], **neighbor_numbers(part, row)}
        return answers

    def read_queries(self, file: str) -> list[Query]:
        """Returns a query for each text of a file of labelled texts, whose labels are ignored, or for each line of a
        `.txt` that is not blank.

        See `memjax.data.labelled_rows.read_rows` for the format.
        """
        path = Path(file)
        if ".txt" in path.suffixes:
            return [Query(line) for line in read_text(path).splitlines() if line.strip()]
        data, stream = self.config.data, self.config.lifelong
        sources = [task.source for task in stream.tasks] if stream else [data.source]
        # Published files have escapes, and their settings no field that says so.
        is_own, titled = has_field(sources[0], "escapes"), data.source.row_text == "title_and_text"
        rules = ReadingRules(escapes=reading_rules_of(sources[0]).escapes if is_own else "resolved")
        return [Query(row.to_text(titled)) for row in read_rows(path, rules=rules)]

    def examples_of(self, queries: Sequence[Query], data: Datasets) -> Examples:
        """Turns queries, texts or pairs of texts, into examples for the model. Their class is unknown and set to 0."""
        texts = [LabelledText(tuple(filter(None, question)), 0) for question in queries]
        if len({len(text.texts) for text in texts}) > 1:
            raise ValueError("pair: given for some of the texts, allowed: for all or none")
        return self.labelled(texts, data.tokenizer)

    def class_names(self) -> dict[int, str]:
        """Returns a dict from the number of each class of all tasks to its name. Classes without names are left out.

        A class whose name is only a number is called `task/number`.
        """
        stream = self.config.lifelong
        if stream is None:
            return class_names(self.config.data.source)
        names_by_task = [
            (task.name, *item) for task in reversed(stream.tasks) for item in class_names(task.source).items()
        ]
        return {number: f"{task}/{name}" if name.isdecimal() else name for task, number, name in names_by_task}

    def known_classes(self, names: Mapping[int, str]) -> np.ndarray:
        """Returns which classes of the head may be predicted, bool `[classes]`. `names` is the dict from `class_names`.

        These are the classes with a name if every task names its classes, otherwise all. The head of a user's own tasks
        may have room for tasks to come.
        """
        stream = self.config.lifelong
        sources = [self.config.data.source] if stream is None else [task.source for task in stream.tasks]
        complete = all(map(class_names, sources))
        return np.array([number in names or not complete for number in range(self.settings.num_classes)])

    def token_subsets(self, split: Split, evaluation: configs.Evaluation) -> dict[str, TokenSelector]:
        """Returns a dict with a function for each class (`class_0`, ...), which selects all tokens of the texts of its
        class in a batch. The arguments have no effect.
        """
        del split, evaluation
        of_class = lambda number: lambda batch: np.broadcast_to(batch.targets[:, :1] == number, batch.mask.shape)
        return {f"class_{number}": of_class(number) for number in range(self.settings.num_classes)}


class LabelledTexts(Examples):
    """Labelled texts as examples `[CLS] a [SEP]` or `[CLS] a [SEP] b [SEP]` that ask for their class; for a decoder
    without the last [SEP].

    A prompt token follows [CLS], where the head reads. An example has one target, and the annotation `token_types`.

    Attributes:
      truncated: Number of texts that were longer than `length` and lost their end.
    """

    def __init__(
        self,
        examples: Sequence[LabelledText],
        tokenizer: Any,
        *,
        length: int,
        num_classes: int = 2,
        prompt: int | None = None,
        ends: bool = True,
    ):
        """Tokenises all texts of a split.

        Args:
          examples: Labelled texts of one split.
          tokenizer: Tokenizer that encodes the texts.
          length: Number of tokens of a text with its special tokens, without a prompt.
          num_classes: Number of classes of the model.
          prompt: Id of the prompt token in every text. None = no prompt.
          ends: Whether an end token follows the last text. The last token of a decoder is that of the text, as in
            transformers.

        Raises:
          ValueError: There are no examples, or an example has a class that the model does not have.
        """
        if not examples:
            raise ValueError("examples: none in this split; give more, or a larger share")
        largest = max(example.label for example in examples)
        if largest >= num_classes:
            raise ValueError(
                f"task.num_classes: given {num_classes}, allowed: at least {largest + 1}, as the data have"
            )
        self._labels = np.array([example.label for example in examples], np.int32)
        groups = np.array([example.group for example in examples])
        self.groups = groups if (groups >= 0).all() else None
        columns = [tokenizer.encode_many(list(texts)) for texts in zip(*(e.texts for e in examples), strict=True)]
        rows = [truncate_texts(parts, length + (not ends)) for parts in zip(*columns, strict=True)]
        joined = [join_texts(tokenizer, *parts) for parts in rows]
        joined = joined if ends else [(ids[:-1], types[:-1]) for ids, types in joined]
        has_prompt = prompt is not None
        self._texts = [
            (insert_prompt(ids, prompt, "after_first"), insert_prompt(types, 0 if has_prompt else None, "after_first"))
            for ids, types in joined
        ]
        special = len(columns) + ends
        self.truncated = sum(sum(map(len, parts)) + special > length for parts in zip(*columns, strict=True))
        self._bytes = [sum(len(text.encode("utf-8")) for text in example.texts) for example in examples]
        digest = hashlib.sha256(f"{length}/".encode() + self._labels.tobytes())
        for tokens, _ in self._texts:
            digest.update(tokens.tobytes())
        self.fingerprint = "labelled-" + digest.hexdigest()[:16]

    def __len__(self) -> int:
        return len(self._texts)

    def example(self, index: int, /, epoch: int = 0) -> Example:
        """Returns one text as an `Example` with its class as the target. It is the same in every epoch."""
        del epoch
        tokens, types = self._texts[index]
        return Example(tokens, self._labels[index : index + 1], np.ones(1, np.float32), {"token_types": types})

    def num_bytes(self, index: int, /) -> int:
        """Returns the number of bytes of one example's text, or of both texts of a pair, in UTF-8."""
        return self._bytes[index]


class ClassMeasure:
    """A `TaskMetric`: the accuracy of the most probable classes, and other published metrics, computed by scikit-learn.

    `largest_class` is the share of the most frequent class, which is the accuracy of always giving that class.

    A head can mask classes that training has not read. Texts of such a class cannot be answered and are counted
    separately: `unseen_class_targets` is their number. `seen_class_accuracy` and `seen_class_nats` are the metrics of
    the other texts. All three are omitted where every class was seen, and the last two where none was.

    Example:
      >>> measure = ClassMeasure()
      >>> measure.add(np.array([0, 1, 1]), np.array([0, 1, 0]))
      >>> round(measure.result()["accuracy"], 3)
      0.667
    """

    def __init__(self, metrics: Sequence[str] = ()):
        """Prepares the measure.

        Args:
          metrics: Metrics besides accuracy: 'matthews' (correlation) or 'f1' (of class 1).

        Raises:
          ModuleNotFoundError: A metric is given, and scikit-learn is not installed.
        """
        if metrics and importlib.util.find_spec("sklearn") is None:
            raise ModuleNotFoundError(f"scikit-learn is not installed ({', '.join(metrics)})", name="sklearn")
        self._metrics = tuple(metrics)
        self._given: list[np.ndarray] = []
        self._right: list[np.ndarray] = []
        self._nats: list[np.ndarray] = []

    def observe(self, batch: Batch, output: np.ndarray) -> None:
        """Adds a batch and its class scores `[batch, 1, classes]`. Rows whose target has weight 0 are left out."""
        scored = np.asarray(batch.weights)[:, 0] > 0
        scores, right = np.asarray(output[:, 0], np.float64)[scored], np.asarray(batch.targets)[:, 0][scored]
        self.add(np.argmax(scores, axis=-1), right)
        self._nats.append(np.logaddexp.reduce(scores, axis=-1) - scores[np.arange(len(right)), right])

    def add(self, given: np.ndarray, right: np.ndarray) -> None:
        """Adds two int arrays `[examples]`: predicted class numbers (`given`) and the right ones."""
        self._given.append(given)
        self._right.append(right)

    def result(self) -> dict[str, float]:
        """Returns the metrics by name, over all batches added so far. `accuracy` is from 0 to 1."""
        predicted, labels = np.concatenate(self._given), np.concatenate(self._right)
        largest = np.unique(labels, return_counts=True)[1].max() / len(labels)
        numbers = {"accuracy": float(np.mean(predicted == labels)), "largest_class": float(largest)}
        if self._metrics:
            from sklearn.metrics import f1_score, matthews_corrcoef

            options: Any = {"zero_division": 0}
            functions = {"matthews": matthews_corrcoef, "f1": functools.partial(f1_score, **options)}
            numbers |= {name: float(functions[name](labels, predicted)) for name in self._metrics}
        return numbers | self._count_unseen(predicted == labels)

    def _count_unseen(self, is_right: np.ndarray) -> dict[str, float]:
        """Returns the metrics that separate texts of masked classes from all others."""
        nats = np.concatenate(self._nats) if self._nats else np.zeros(0)
        # The loss of a masked class is about -UNSEEN_SCORE, far above other losses. A diverging model's loss may be
        # higher still, so both sides are checked.
        seen = np.abs(nats + UNSEEN_SCORE) > -UNSEEN_SCORE / 10
        if seen.all():
            return {}
        numbers = {"unseen_class_targets": float(np.sum(~seen))}
        if seen.any():
            numbers |= {
                "seen_class_accuracy": float(np.mean(is_right[seen])),
                "seen_class_nats": float(np.mean(nats[seen])),
            }
        return numbers
