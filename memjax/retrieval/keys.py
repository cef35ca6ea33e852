"""What a trained model makes of every scored token of a split: the keys of a datastore, and the queries of one.

Entries come in the order in which an evaluation of the same protocol reads the split, each token once, so that entry
number, token and score belong together whoever reads.
"""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from memjax.data.annotations import NUMBER, AnnotatedDocuments
from memjax.data.documents import Documents, Split
from memjax.data.reading import Reading
from memjax.memory.contract import OutputMemory
from memjax.models.features import add_features, add_mixtures, regroup
from memjax.settings.compatibility import in_saved_names
from memjax.settings.relations import require
from memjax.training.checkpoints import flatten, unflatten
from memjax.training.evaluation import Evaluator, make_score
from memjax.training.restoring import LoadedRun
from memjax.training.runs import config_to_dict

__all__ = ["SPALM_TAP", "TAP", "KeyReader", "KeySource", "make_key_source"]

TAP = "layer_-1/feed_forward_input_normed"
"""what kNN-LM found best: the input of the last feed-forward part, after its norm"""
SPALM_TAP = "output_normed"
"""what SPALM searches with: the final hidden state, as the softmax reads it"""


class Entries(NamedTuple):
    """Scored tokens of one segment of all rows, row by row.

    Attributes:
      keys: `[entries, dim]`, at least float32.
      targets: int32 `[entries]`, the token that followed.
      nats: `[entries]`, its negative log-likelihood by the model alone.
    """

    keys: np.ndarray
    targets: np.ndarray
    nats: np.ndarray


class KeyReader:
    """Reads a split once, from the beginning or from where an earlier reader stood.

    Attributes:
      progress: JSON value, where the next segment begins.

    Iterating yields `Entries`; after each, `progress` and `state()` are those to go on with.
    """

    def __init__(
        self,
        model: Any,
        variables: Mapping[str, Any],
        documents: Split,
        reading: Reading,
        *,
        tap: str,
        host_rows: tuple[int, int] | None = None,
        progress: Mapping[str, Any] | None = None,
        state: Mapping[str, np.ndarray] | None = None,
    ):
        """Prepares a pass.

        Args:
          model: a language model that shows the tap.
          variables: of that model.
          documents: the split.
          reading: how it is read.
          tap: name of the inner tensor, as the model has it.
          host_rows: `(start, stop)`, the rows of this host; all of them if None.
          progress: of an earlier reader of the same split.
          state: of the same reader at the same place, from `state()`.

        Raises:
          ValueError: progress without state, or of other documents or rows.
        """
        if (progress is None) != (state is None):
            raise ValueError("progress: given without state (or state without progress), allowed: both or none")
        self._stream = reading.once(documents, host_rows=host_rows, position=progress, in_step=False)
        start, stop = host_rows or (0, reading.rows)
        self._model, self._variables, self._tap = model, variables, tap
        empty = model.init_state(stop - start)
        self._memory = empty if state is None else jax.tree.map(jnp.asarray, unflatten(empty, state))
        self._read = jax.jit(make_score(model, features=(tap,)), donate_argnums=1)

    @property
    def progress(self) -> dict[str, Any]:
        """Where the next segment begins."""
        return self._stream.position

    def state(self) -> dict[str, np.ndarray]:
        """What the model remembers there, name -> array on the host."""
        return {name: np.asarray(leaf) for name, leaf in jax.device_get(flatten(self._memory)).items()}

    def __iter__(self) -> Iterator[Entries]:
        for batch in self._stream:
            one = jax.tree.map(lambda leaf: leaf[0], batch)
            arrays = (one.inputs, one.targets, one.mask, one.start_of_document, self._model.choose_extras(one.extras))
            self._memory, scored, _ = self._read(self._variables, self._memory, *arrays)
            scored, chosen = jax.device_get(scored), one.weights > 0
            keys = scored.features[self._tap][chosen]
            wide = keys.astype(jnp.promote_types(keys.dtype, jnp.float32))
            yield Entries(wide, one.targets[chosen], scored.nats[chosen])


@dataclasses.dataclass(frozen=True)
class KeySource:
    """A trained model that gives keys, and how it reads.

    Attributes:
      run: the run.
      model: its model, with the tap as its only feature.
      variables: of the model.
      tap: name of the feature.
    """

    run: LoadedRun
    model: Any
    variables: Mapping[str, Any]
    tap: str

    @property
    def feature(self) -> str:
        """The tap as the model names it."""
        (name,) = (*self.model.stack.features, *self.model.features)
        return name

    @property
    def dim(self) -> int:
        """Width of a key: every tap is of the residual stream."""
        return self.run.experiment.config.model.dim

    def with_documents(self, documents: Mapping[str, Documents]) -> "KeySource":
        """The source on other texts (split -> documents), in the tokens of its run."""
        experiment = dataclasses.replace(self.run.experiment, documents=documents.__getitem__)
        return dataclasses.replace(self, run=dataclasses.replace(self.run, experiment=experiment))

    def articles(self, split: str) -> np.ndarray:
        """First token of each document, and the number of all, int64; of each article where they are read as one text.

        What is one text in contiguous streams is opened as in separate ones; if its tokens are not the same there, it
        is one article.
        """
        documents = AnnotatedDocuments(self.run.experiment.documents(split))
        if len(documents) > 1:
            return documents.offsets
        apart = AnnotatedDocuments(self.run.experiment.reopened(split, protocol="separate"))
        return apart.offsets if same_tokens([apart], documents) else documents.offsets

    def protocol(self) -> dict[str, Any]:
        """How texts are read, as JSON: keys and queries of different protocols are not comparable."""
        reading = self.run.experiment.reading()
        windows = {"stride": reading.stride} if reading.stride else {}
        return {
            "documents": reading.protocol,
            "segment_length": reading.segment_length,
            **windows,
            "score_first": reading.score_first,
            "attention": in_saved_names(config_to_dict(self.run.experiment.config.model.attention)),
            "key": self.tap,
        }

    def numbers(self, split: str, *, rows: int = 0, num_shards: int = 1) -> np.ndarray:
        """Which token of the split each entry is, int64 `[entries]`, counted through the documents in their order.

        Args:
          split: of the run's data.
          rows: in which the store was read; 0 = those of the run's evaluation.
          num_shards: of the store; each holds the entries of an equal share of the rows.
        """
        documents = AnnotatedDocuments(self.run.experiment.documents(split), numbers=True)
        reading = self.run.experiment.reading()
        reading = dataclasses.replace(reading, rows=rows or reading.rows)
        share, parts = reading.rows // num_shards, []
        for first in range(0, reading.rows, share):
            stream = reading.once(documents, host_rows=(first, first + share), in_step=False)
            parts += [batch.extras[NUMBER][0][batch.weights[0] > 0] for batch in stream]
        return np.concatenate(parts).astype(np.int64)

    def reader(self, split: str, **arguments: Any) -> KeyReader:
        """A reader of a split of the run's data; see `KeyReader` for more arguments."""
        experiment = self.run.experiment
        documents, reading = experiment.documents(split), experiment.reading()
        return KeyReader(self.model, self.variables, documents, reading, tap=self.feature, **arguments)

    def evaluator(self, split: str, *mixtures: OutputMemory, documents: Documents | None = None) -> Evaluator:
        """Scores a split as `reader` reads it, and shows the tap: for `find_neighbors` and `score_targets`.

        Args:
          split: of the run's data; `evaluation.max_segments` of the configuration is all that is read of it.
          *mixtures: memories laid over the model; what each says of every target is shown too.
          documents: the split with more annotations, numbers among them.
        """
        experiment = self.run.experiment
        return experiment.evaluator(
            dataclasses.replace(experiment.config.evaluation, split=split),
            model=add_mixtures(self.model, *mixtures),
            documents=documents or AnnotatedDocuments(experiment.documents(split), numbers=True),
            features=(self.feature,),
            parts=bool(mixtures),
        )


def same_tokens(parts: Sequence[Documents], whole: Documents) -> bool:
    """Whether the documents of some parts, one after the other, are the tokens of a split, wherever its own begin."""
    pieces = [(part, index) for part in parts for index in range(len(part))]
    split, begin = AnnotatedDocuments(whole), 0
    if sum(part.num_tokens(index) for part, index in pieces) != split.offsets[-1]:
        return False
    for part, index in pieces:
        tokens = part[index]
        if not np.array_equal(tokens, split.tokens(begin, begin + len(tokens))):
            return False
        begin += len(tokens)
    return True


def make_key_source(run: LoadedRun, tap: str = TAP) -> KeySource:
    """The model of a run with a tap, which changes how its layers are grouped.

    Args:
      run: opened.
      tap: `layer_<index>/<tap>` or `output`, `output_normed`, see `memjax.models.transformer.TAPS`.

    Raises:
      ValueError: no such tap, or a model without any.
    """
    run.experiment.model.require("stores_keys")
    evaluation = run.experiment.config.evaluation
    for name, given in (("memory_length", evaluation.memory_length), ("task", evaluation.task or None)):
        require(given is None, f"evaluation.{name}", given, "None for keys, which are made as the run was trained")
    model = add_features(run.experiment.model, tap)
    return KeySource(run, model, regroup(run.variables, run.experiment.model, model), tap)
