"""The inner tensors of a trained model at every scored token of a split: keys for a datastore, and queries to it.

Entries come in the order in which an evaluation with the same protocol reads the split, each token once. So the number
of an entry, its token and its score belong together, whichever reader produced them.
"""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from memjax.data.annotations import NUMBER, AnnotatedDocuments
from memjax.data.documents import Documents, Split
from memjax.data.reading_plan import ReadingPlan
from memjax.memory.interface import OutputMemory
from memjax.models.feature_taps import add_features, add_mixtures, regroup_layers
from memjax.settings.checks import require
from memjax.settings.compatibility import in_saved_names
from memjax.training.evaluation import Evaluator, make_score
from memjax.training.loaded_runs import LoadedRun
from memjax.training.named_arrays import flatten, unflatten
from memjax.training.runs import config_to_dict

__all__ = ["SPALM_TAP", "TAP", "KeyReader", "KeyExtractor", "make_key_extractor"]

TAP = "layer_-1/feed_forward_input_normed"
"""Inner tensor that the paper of kNN-LM has as its key: the input of the last feed-forward part, after its norm."""
SPALM_TAP = "output_normed"
"""Inner tensor that SPALM searches with: the final hidden state that the softmax reads."""


class StoreEntries(NamedTuple):
    """Keys, next tokens and their negative log-likelihoods for one segment of all rows, row by row, without tokens that
    are not scored.

    Attributes:
      keys: `[entries, dim]`, at least float32.
      targets: int32 `[entries]`, the token that follows the position of the key.
      nats: `[entries]`, negative log-likelihood of that token under the model alone.
    """

    keys: np.ndarray
    targets: np.ndarray
    nats: np.ndarray


class KeyReader:
    """Reads a split once, and yields the `StoreEntries` of one segment after the other.

    It starts at the beginning or where an earlier reader stopped. After each segment, `progress` and `state()` are what
    another reader needs to continue there.

    Attributes:
      progress: JSON value, position of the next segment.
    """

    def __init__(
        self,
        model: Any,
        variables: Mapping[str, Any],
        documents: Split,
        reading: ReadingPlan,
        *,
        tap: str,
        host_rows: tuple[int, int] | None = None,
        progress: Mapping[str, Any] | None = None,
        state: Mapping[str, np.ndarray] | None = None,
    ):
        """Prepares one pass over a split.

        Args:
          model: Language model with the tap among its features.
          variables: Variables of the model.
          documents: Data of the split.
          reading: Protocol with which the split is read.
          tap: Full name of the inner tensor, such as `layer_02/output`.
          host_rows: `(start, stop)`, the range of rows that this host reads. None = all rows.
          progress: `progress` of an earlier reader of the same split, to continue there. None = from the beginning.
          state: `state()` of that reader at the same position. None = from the beginning.

        Raises:
          ValueError: Only one of `progress` and `state` is given, or they belong to other documents or rows.
        """
        if (progress is None) != (state is None):
            raise ValueError("progress: given without state (or state without progress), allowed: both or none")
        self._stream = reading.once(documents, host_rows=host_rows, position=progress, in_step=False)
        start, stop = host_rows or (0, reading.rows)
        self._model, self._variables, self._tap = model, variables, tap
        empty = model.init_state(stop - start)
        self._memory = empty if state is None else jax.tree.map(jnp.asarray, unflatten(empty, state))
        self._read = jax.jit(make_score(model, feature_names=(tap,)), donate_argnums=1)

    @property
    def progress(self) -> dict[str, Any]:
        """Position of the next segment, as a dictionary for JSON."""
        return self._stream.position

    def state(self) -> dict[str, np.ndarray]:
        """Returns the memory state of the model at the next segment, as named arrays on the host."""
        return {name: np.asarray(leaf) for name, leaf in jax.device_get(flatten(self._memory)).items()}

    def __iter__(self) -> Iterator[StoreEntries]:
        """Yields the scored tokens of the next segment until the split ends."""
        for batch in self._stream:
            segment = jax.tree.map(lambda leaf: leaf[0], batch)
            arrays = (
                segment.inputs,
                segment.targets,
                segment.mask,
                segment.start_of_document,
                self._model.select_extras(segment.extras),
            )
            self._memory, scored, _ = self._read(self._variables, self._memory, *arrays)
            scored, is_scored = jax.device_get(scored), segment.weights > 0
            keys = scored.features[self._tap][is_scored]
            wide = keys.astype(jnp.promote_types(keys.dtype, jnp.float32))
            yield StoreEntries(wide, segment.targets[is_scored], scored.nats[is_scored])


@dataclasses.dataclass(frozen=True)
class KeyExtractor:
    """A trained model that computes keys for a datastore, which are one of its inner tensors (the tap), with its way of
    reading texts.

    Attributes:
      run: The run that trained the model.
      model: Model of the run, with the tap as its only feature.
      variables: Variables of the model.
      tap: Name of the tap as the user gave it, such as `layer_-1/output`.
    """

    run: LoadedRun
    model: Any
    variables: Mapping[str, Any]
    tap: str

    @property
    def feature(self) -> str:
        """The full name of the tap, such as `layer_02/output`."""
        (name,) = (*self.model.stack.features, *self.model.features)
        return name

    @property
    def dim(self) -> int:
        """The width of a key. Every tap is in the residual stream."""
        return self.run.experiment.config.model.dim

    def with_documents(self, documents: Mapping[str, Documents]) -> "KeyExtractor":
        """Returns this extractor with other documents of each split, which must be tokenised as in its model's run.

        Args:
          documents: Documents of each split.
        """
        experiment = dataclasses.replace(self.run.experiment, documents=documents.__getitem__)
        return dataclasses.replace(self, run=dataclasses.replace(self.run, experiment=experiment))

    def articles(self, split: str) -> np.ndarray:
        """Returns the position in the split of the first token of each document or article, and last the number of all
        tokens, int64 `[documents + 1]`.

        Where a split is read as one text, these are the offsets of its articles. They come from opening the split with
        the protocol 'separate'. If its tokens are not the same there, the whole split counts as one article.
        """
        documents = AnnotatedDocuments(self.run.experiment.documents(split))
        if len(documents) > 1:
            return documents.offsets
        articles = AnnotatedDocuments(self.run.experiment.reopen(split, protocol="separate"))
        return articles.offsets if same_tokens([articles], documents) else documents.offsets

    def protocol(self) -> dict[str, Any]:
        """Returns the settings that decide the keys, as a dictionary for JSON. Keys of different protocols cannot be
        compared.
        """
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
        """Returns the number of the next token of each entry of a store, int64 `[entries]`, counted through the
        documents. Entries are in the order of a store with so many rows and shards.

        Args:
          split: Split of the run's data.
          rows: Number of rows with which the store was read. 0 = those of the run's evaluation.
          num_shards: Number of shards of the store. Each holds the entries of an equal share of the rows.
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
        """Makes a `KeyReader` of a split of the run's data.

        Args:
          split: Split of the run's data.
          **arguments: More arguments of `KeyReader`.
        """
        experiment = self.run.experiment
        documents, reading = experiment.documents(split), experiment.reading()
        return KeyReader(self.model, self.variables, documents, reading, tap=self.feature, **arguments)

    def evaluator(self, split: str, *mixtures: OutputMemory, documents: Documents | None = None) -> Evaluator:
        """Makes an evaluator that scores a split as `reader` reads it, with output memories added to the model if any
        are given, and that returns the tap.

        It is made for `find_neighbors` and `score_targets`.

        Args:
          split: Split of the run's data. At most `evaluation.max_segments` segments are read, as the configuration
            says.
          *mixtures: Output memories added to the model. The probabilities under each of them are returned too.
          documents: The split with more annotations, among them token numbers. None = the split with token numbers.
        """
        experiment = self.run.experiment
        return experiment.evaluator(
            dataclasses.replace(experiment.config.evaluation, split=split),
            model=add_mixtures(self.model, *mixtures),
            documents=documents or AnnotatedDocuments(experiment.documents(split), numbers=True),
            feature_names=(self.feature,),
            compute_parts=bool(mixtures),
        )


def same_tokens(parts: Sequence[Documents], whole: Documents) -> bool:
    """Returns whether the documents of all `parts`, joined in order, have the same tokens as those of `whole`.

    Documents may begin elsewhere in the two.
    """
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


def make_key_extractor(run: LoadedRun, tap: str = TAP) -> KeyExtractor:
    """Makes the `KeyExtractor` of an opened run (`LoadedRun`), whose model returns the inner tensor `tap` as the key.

    The layers of the model may be grouped anew for it.

    Args:
      run: Run with its model and variables.
      tap: Inner tensor to use as the key: `layer_<index>/<tap>`, `output` or `output_normed`. See
        `memjax.models.transformer.TAPS`.

    Raises:
      ValueError: The tap does not exist, the model has no taps, or the evaluation changes the memory length or selects
        a task.
    """
    run.experiment.model.require("stores_keys")
    evaluation = run.experiment.config.evaluation
    for name, value in (("memory_length", evaluation.memory_length), ("task", evaluation.task or None)):
        require(value is None, f"evaluation.{name}", value, "None for keys, which are made as the run was trained")
    model = add_features(run.experiment.model, tap)
    return KeyExtractor(run, model, regroup_layers(run.variables, run.experiment.model, model), tap)
