"""Trained runs as models of EleutherAI's `lm-eval`, with or without their memory.

Every request is a document: the memory is empty at its start, and then holds earlier segments of the same request. So a
task with long contexts shows how much the memory helps.

    import lm_eval
    from memjax.interop.harness import harness_model

    for memory in (True, False):
        print(lm_eval.simple_evaluate(model=harness_model("runs/text_novel", memory=memory), tasks=["lambada_openai"]))

`RunScorer` has the three functions without `lm-eval`.
"""

import dataclasses
import itertools
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from memjax.data.documents import ArrayDocuments
from memjax.inference.sampling import Sampling
from memjax.inference.texts import continue_texts
from memjax.training.evaluation import Evaluator
from memjax.training.loaded_runs import LoadedRun, load_run
from memjax.training.scores import BatchScore
from memjax.typing import Batch

REQUEST = "request"
"""Name of the annotation of tokens with the number of their request"""


class RunScorer:
    """A scorer of texts for a trained run, for the three kinds of requests of `lm-eval`: log-likelihoods of
    continuations, of whole texts, and generated continuations.
    """

    def __init__(self, run: str | Path | LoadedRun, *, memory: bool = True, rows: int = 8, max_tokens: int = 256):
        """Opens a run.

        Args:
          run: Directory of a run, or the run itself.
          memory: Whether the model uses its memory. False sets its length to 0, as `memjax eval --memory off`.
          rows: Number of requests that are read side by side.
          max_tokens: Maximum number of tokens of a continuation for requests that do not set one.

        Raises:
          ValueError: The run does not continue texts, or its model has no memory to turn off.
        """
        loaded = run if isinstance(run, LoadedRun) else load_run(run)
        experiment = loaded.experiment
        experiment.task.require("generate")
        if experiment.tokenizer is None:
            raise ValueError("run: its data has no tokenizer (it is tokens already), allowed: a run on texts")
        if rows < 1:
            raise ValueError(f"rows: given {rows}, allowed: 1 or more")
        self.max_tokens, self.tokenizer, self._run = max_tokens, experiment.tokenizer, loaded
        self._evaluation = dataclasses.replace(
            experiment.config.evaluation,
            task="",
            batch_size=rows,
            protocol="separate",
            stride=0,
            score_first_token=True,
            memory_length=None if memory else 0,
            memory_intervention="kept",
            max_segments=0,
            compute_accuracy=True,
        )
        self._evaluator: Evaluator | None = None

    def loglikelihood(self, requests: Sequence[tuple[str, str]]) -> list[tuple[float, bool]]:
        """Computes for each (context, continuation) the log-probability of the continuation in nats, and whether every
        token of it is the most probable one.

        Args:
          requests: Pairs of context and continuation. An empty context is the beginning of a document.

        Returns:
          Pairs of a sum over the continuation's tokens, in nats, and whether each token is the most probable one.
        """
        pairs = [self._encode(*request) for request in requests]
        counted = [np.arange(len(context) + len(rest)) >= len(context) for context, rest in pairs]
        return self._score([np.concatenate(pair) for pair in pairs], counted)

    def loglikelihood_rolling(self, texts: Sequence[str]) -> list[float]:
        """Returns the log-probability of each text in nats, a number of 0 or below. Each token is predicted from all
        before it in the text.
        """
        tokens = [np.asarray(self.tokenizer.encode(text), np.int32) for text in texts]
        return [nats for nats, _ in self._score(tokens, [np.ones(len(ids), bool) for ids in tokens])]

    def generate_until(self, requests: Sequence[tuple[str, Mapping[str, Any]]]) -> list[str]:
        """Generates a continuation of each context and returns their texts. A request is a pair of a context and a dict
        of settings, such as the texts `until` that end it.

        Args:
          requests: Pairs of context and settings: `until` (a text or several that end a continuation),
            `max_gen_toks`, and, where `do_sample` is true, `temperature`, `top_k` and `top_p`. The most probable token
            is taken otherwise.
        """
        evaluator = self._prepare(ArrayDocuments([[0]]))
        settings = [_Settings.read(asked, self.max_tokens) for _, asked in requests]
        variables, texts = evaluator.convert_variables(self._run.variables), [""] * len(requests)
        for setting in dict.fromkeys(settings):
            chosen = [number for number, other in enumerate(settings) if other == setting]
            for numbers in _batched(chosen, self._evaluation.batch_size):
                prompts = [requests[number][0] for number in numbers]
                pieces = continue_texts(
                    evaluator.model,
                    variables,
                    self.tokenizer,
                    [*prompts, *[""] * (self._evaluation.batch_size - len(prompts))],  # one program for all
                    segment_length=evaluator.reading.segment_length,
                    max_tokens=setting.max_tokens,
                    sampling=setting.sampling,
                    stop=setting.until,
                )
                for number, row in zip(numbers, zip(*pieces, strict=True), strict=False):
                    texts[number] = "".join(row)
        return texts

    def _encode(self, context: str, continuation: str) -> tuple[np.ndarray, np.ndarray]:
        """Returns the tokens of a context and of its continuation, to which blanks between the two belong."""
        bare = context.rstrip()
        whole = np.asarray(self.tokenizer.encode(context + continuation), np.int32)
        length = len(self.tokenizer.encode(bare))
        return whole[:length], whole[length:]

    def _prepare(self, documents: ArrayDocuments) -> Evaluator:
        """Returns an evaluator for other documents, which shares the compiled program of the first one."""
        evaluator = self._run.experiment.evaluator(self._evaluation, documents=documents)
        evaluator.subsets = {}  # those of the run's own data
        if self._evaluator is not None:
            evaluator.share(self._evaluator)
        self._evaluator = evaluator
        return evaluator

    def _score(self, tokens: Sequence[np.ndarray], counted: Sequence[np.ndarray]) -> list[tuple[float, bool]]:
        """Returns the log-probability of the counted tokens of every request, and whether each is the most probable.

        A request without counted tokens has log-probability 0.
        """
        nats, greedy = np.zeros(len(tokens)), np.ones(len(tokens), bool)
        numbers = [number for number, where in enumerate(counted) if where.any()]
        if not numbers:
            return [(0.0, True)] * len(tokens)

        def observe(batch: Batch, scored: BatchScore) -> None:
            where = np.asarray(batch.weights) > 0
            requests = np.asarray(batch.extras[REQUEST])[where]
            np.add.at(nats, requests, np.asarray(scored.nats, np.float64)[where])
            np.logical_and.at(greedy, requests, np.asarray(scored.correct)[where])

        documents = ArrayDocuments(
            [tokens[number] for number in numbers],
            annotations=[
                {"weights": counted[number].astype(np.float32), REQUEST: np.full(len(tokens[number]), number, np.int32)}
                for number in numbers
            ],
        )
        self._prepare(documents)(self._run.variables, observe=observe)
        return [(-float(total), bool(best)) for total, best in zip(nats, greedy, strict=True)]


def harness_model(run: str | Path | LoadedRun, **settings: Any) -> Any:
    """Wraps a run, or its directory, as an `lm_eval.api.model.LM` that can be given to
    `lm_eval.simple_evaluate(model=...)`.

    Args:
      run: Directory of a run, or the run itself.
      **settings: Arguments of `RunScorer`: `memory`, `rows`, `max_tokens`.

    Raises:
      ModuleNotFoundError: `lm-eval` is not installed (`pip install 'memjax[lm-eval]'`).
    """
    from lm_eval.api.model import LM  # pyright: ignore[reportMissingImports]

    class RunModel(LM):
        """The requests of `lm-eval` for a `RunScorer`."""

        def __init__(self) -> None:
            super().__init__()
            self.scorer = RunScorer(run, **settings)

        def loglikelihood(self, requests: Sequence[Any], **_: Any) -> list[tuple[float, bool]]:
            return self.scorer.loglikelihood([request.args for request in requests])

        def loglikelihood_rolling(self, requests: Sequence[Any], **_: Any) -> list[float]:
            return self.scorer.loglikelihood_rolling([request.args[0] for request in requests])

        def generate_until(self, requests: Sequence[Any], **_: Any) -> list[str]:
            return self.scorer.generate_until([request.args for request in requests])

    return RunModel()


@dataclasses.dataclass(frozen=True)
class _Settings:
    """The settings of a continuation that a request asks for."""

    until: tuple[str, ...]
    max_tokens: int
    sampling: Sampling

    @classmethod
    def read(cls, given: Mapping[str, Any], max_tokens: int) -> "_Settings":
        until = given.get("until") or ()
        samples = given.get("do_sample", False) and given.get("temperature", 1.0) > 0
        names = ("temperature", "top_k", "top_p")
        sampling = (
            Sampling(**{name: given[name] for name in names if name in given}) if samples else Sampling(temperature=0.0)
        )
        texts = (until,) if isinstance(until, str) else tuple(text for text in until if text)
        return cls(texts, int(given.get("max_gen_toks", max_tokens)), sampling)


def _batched(numbers: Sequence[int], size: int) -> Iterator[tuple[int, ...]]:
    iterator = iter(numbers)
    while batch := tuple(itertools.islice(iterator, size)):
        yield batch
