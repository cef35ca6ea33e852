"""Computes the features of texts by a frozen text encoder once and stores them in files.

A learner that trains only the layers above need not run the encoder, because its inputs are rows of an array. A file
stores a fingerprint of the weights, tokenizer, length and texts that it was made of, and is refused for any others.
"""

import dataclasses
import hashlib
import json
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from memjax.config import Config
from memjax.data.array_files import read_array
from memjax.data.content import file_sha256
from memjax.data.documents import Examples
from memjax.data.encoder_states import has_states, write_states
from memjax.data.glue import LabelledText
from memjax.data.paths import digest
from memjax.data.reader_errors import expect, reading
from memjax.data.tokenizers import write_then_rename
from memjax.data.wordpiece import join_texts, truncate_texts
from memjax.durable_files import DamagedError, read_json, write_json
from memjax.models.compiled_programs import jit_by_model
from memjax.models.feature_taps import add_features, regroup_layers
from memjax.models.text_encoder import mean_pooling
from memjax.training.experiment import make_experiment
from memjax.training.loaded_runs import check_start, load_arrays, tokenizer_of_start
from memjax.training.runs import check_tokenizer, config_after_growth, load_config, open_tokenizer
from memjax.training.variables import COLLECTIONS, join_arrays, name_arrays

POOLINGS = ("first", "mean", "unit_mean")
STEP = 16
"""Batches are padded to a multiple of this number of tokens: short texts cost less, and few widths are compiled."""
ABOUT = "about.json"

Text = str | tuple[str, ...]
"""A text, or several texts that are read together, such as a sentence pair."""


class FrozenEncoder(NamedTuple):
    """A text encoder that is not trained: the model with its variables and its tokenizer.

    Attributes:
      model: The Linen model, a `TextEncoder` or a `CausalTextEncoder` without a head.
      variables: Variables of the model.
      tokenizer: Tokenizer that the model was trained with.
    """

    model: Any
    variables: Mapping[str, Any]
    tokenizer: Any


def open_encoder(run: str | Path) -> FrozenEncoder:
    """Loads the text encoder of a run directory as a `FrozenEncoder`. `memjax import` makes such a directory from
    weights such as those of MiniLM.

    Raises:
      ValueError: there is no run, or its model is neither a text encoder nor a decoder that can be one.
    """
    _, arrays, extra = load_arrays(run)
    config, tokenizer = load_config(run), open_tokenizer(run, extra.get("tokenizer"))
    config = config_after_growth(config, extra.get("lineage", ()))
    experiment = make_experiment(dataclasses.replace(config, model=config.model.without_memory()), tokenizer=tokenizer)
    check_tokenizer(experiment.fingerprint, extra.get("tokenizer"), run)
    model = experiment.model.as_encoder()
    of_tasks = tuple(COLLECTIONS["params"] + name for name in model.task_parameters)  # A run may lack them.
    arrays = {name: jnp.asarray(leaf) for name, leaf in arrays.items() if not name.startswith(of_tasks)}
    return FrozenEncoder(model, join_arrays(arrays, model.layer_groups()), experiment.tokenizer)


def encode_texts(
    encoder: FrozenEncoder,
    texts: Sequence[Text],
    *,
    pooling: str = "mean",
    layer: int | None = None,
    length: int = 128,
    rows: int = 32,
) -> np.ndarray:
    """Encodes every text by itself as one vector, float32 `[texts, dim]`: the output of layer number `layer`, pooled as
    `pooling` says ("first", "mean" or "unit_mean"). `length` is the maximum number of tokens, `rows` the texts in a
    batch.

    Args:
      encoder: Text encoder.
      texts: Texts to encode.
      pooling: Pooling of the hidden states of a text: the "first" token, the "mean" over all tokens, special ones
        included, or "unit_mean", the mean scaled to length 1 as in sentence embeddings (MiniLM).
      layer: Number of the layer whose output is pooled, from 0, or negative from the end. None for the final hidden
        states.
      length: Maximum number of tokens of a text with its special tokens. Longer texts are truncated.
      rows: Number of texts in a batch.

    Returns:
      Vectors, float32 `[texts, dim]`.

    Raises:
      ValueError: the pooling is unknown, the encoder lacks the layer or the length, or there are no texts.
    """
    model, layers = encoder.model, len(encoder.model.stack.layers)
    if pooling not in POOLINGS:
        raise ValueError(f"pooling: given {pooling!r}, allowed: {', '.join(POOLINGS)}")
    if layer is not None and not -layers <= layer < layers:
        raise ValueError(f"layer: given {layer}, allowed: {-layers} to {layers - 1}, or None")
    if not texts:
        raise ValueError("texts: given none, allowed: at least one")
    feature = "output" if layer is None else f"layer_{layer % layers:02d}/output"
    reader = add_features(model, feature)
    variables = regroup_layers(encoder.variables, model, reader)

    tokenized = _tokenize(encoder.tokenizer, texts, length)
    order, vectors_of_texts = (
        np.argsort([len(ids) for ids, _ in tokenized], kind="stable"),
        np.empty((0, 0), np.float32),
    )
    for start in range(0, len(tokenized), rows):
        chosen = order[start : start + rows]
        width = min(-(-len(tokenized[chosen[-1]][0]) // STEP) * STEP, length)
        tokens, types, mask = np.zeros((3, rows, width), np.int32)
        for row, number in enumerate(chosen):
            ids, kinds = tokenized[number]
            tokens[row, : len(ids)], types[row, : len(ids)], mask[row, : len(ids)] = ids, kinds, 1
        vectors = np.asarray(_encode(reader, variables, tokens, types, mask.astype(bool), feature, pooling))[
            : len(chosen)
        ]
        vectors_of_texts = (
            vectors_of_texts if len(vectors_of_texts) else np.empty((len(tokenized), vectors.shape[1]), np.float32)
        )
        vectors_of_texts[chosen] = vectors
    return vectors_of_texts


def token_states(encoder: FrozenEncoder, examples: Examples, first: int, *, rows: int = 32) -> Callable[..., None]:
    """Returns a function `fill(array)` that writes the inputs of layer number `first` at every token of the examples
    into an array `[tokens, dim]`. `rows` is the number of texts in a batch.

    Args:
      encoder: Text encoder, used in evaluation mode.
      examples: Examples of texts, with their `token_types`.
      first: Number of the layer, above 0.
      rows: Number of texts in a batch.

    Returns:
      `fill(array)`, which writes the states into an array `[tokens, dim]`, one example after the other.
    """
    feature = f"layer_{first - 1:02d}/output"
    reader = add_features(encoder.model, feature)
    variables = regroup_layers(encoder.variables, encoder.model, reader)
    sizes = np.array([examples.num_tokens(index) for index in range(len(examples))])
    ends = np.cumsum(sizes)

    def fill(array: np.ndarray) -> None:
        order = np.argsort(sizes, kind="stable")
        for start in range(0, len(order), rows):
            chosen = order[start : start + rows]
            width = -(-int(sizes[chosen].max()) // STEP) * STEP
            tokens, types, mask = np.zeros((3, rows, width), np.int32)
            for row, index in enumerate(chosen):
                example, size = examples.example(int(index)), sizes[index]
                tokens[row, :size], types[row, :size] = example.inputs, example.annotations["token_types"]
                mask[row, :size] = 1
            states = np.asarray(_encode(reader, variables, tokens, types, mask.astype(bool), feature, None))
            for row, index in enumerate(chosen):
                array[ends[index] - sizes[index] : ends[index]] = states[row, : sizes[index]]

    return fill


def cache_states(config: Config) -> None:
    """Computes the encoder states that the folder `data.encoder_states_dir` lacks, for all splits that a run reads, and
    writes them there.

    The encoder is that of the run `training.init_from`.

    Raises:
      ValueError: there is no such run, it has another model or tokenizer, or the folder has states of another encoder.
    """
    first, folder = config.model.first_trained_layer, config.data.encoder_states_dir
    whole = dataclasses.replace(config.model, first_trained_layer=0)
    plain = dataclasses.replace(config, model=whole, data=dataclasses.replace(config.data, encoder_states_dir=""))
    if not config.training.init_from:
        raise ValueError(
            "training.init_from: given '', allowed: a run of the encoder that gives data.encoder_states_dir"
        )
    encoder = open_encoder(config.training.init_from)
    experiment = make_experiment(plain, tokenizer=tokenizer_of_start(config))
    check_start(config.training, experiment.tokenizer)
    if len(encoder.model.stack.layers) <= first:
        allowed = f"up to {len(encoder.model.stack.layers) - 1}, layers of {config.training.init_from}"
        raise ValueError(f"model.first_trained_layer: given {first}, allowed: {allowed}")
    names = [task.name for task in config.lifelong.ordered_tasks] if config.lifelong else []
    evaluations = (config.evaluation, *config.evaluations)
    splits = dict.fromkeys(["train", *(evaluation.split for evaluation in evaluations)])
    above = tuple(f"params/stack/layer_{index:02d}/" for index in range(first, len(encoder.model.stack.layers)))
    arrays = name_arrays(encoder.variables, encoder.model.layer_groups())
    below = {name: leaf for name, leaf in arrays.items() if not name.startswith(above)}
    fingerprint = encoder_fingerprint(encoder._replace(variables=below), first_layer=first)
    for task in [experiment, *map(experiment.of_task, names)]:
        for split in splits:
            examples = task.documents(split)
            if not has_states(examples, folder, first, fingerprint):
                fill = token_states(encoder, examples, first)
                write_states(examples, folder, first, fingerprint, encoder.model.vocabulary.dim, fill)


def encoder_fingerprint(encoder: FrozenEncoder, **how: Any) -> str:
    """Returns a string that differs if the weights or the tokenizer of the encoder differ, or the options of encoding
    that are given as keyword arguments.

    Args:
      encoder: Text encoder.
      **how: Options that the vectors depend on, such as `pooling`, `layer` and `length` of `encode_texts`.

    Returns:
      A string that differs if any of them differs.
    """
    result = hashlib.sha256(json.dumps([encoder.tokenizer.fingerprint, how], sort_keys=True).encode())
    for path, leaf in jax.tree_util.tree_leaves_with_path(encoder.variables):
        result.update(jax.tree_util.keystr(path).encode() + np.ascontiguousarray(leaf).tobytes())
    return f"features-{result.hexdigest()[:16]}"


def cached_features(
    texts: Sequence[Text],
    encode: Callable[[Sequence[Text]], np.ndarray],
    *,
    path: str | os.PathLike[str],
    fingerprint: str,
) -> np.ndarray:
    """Returns the vectors `[texts, dim]` of texts from the file `path`. If it does not exist, the function `encode`
    computes them, and the file is written. `fingerprint` is a string that identifies the encoder.

    A file is complete once `NAME.json` is beside it. Files that an interrupted call has left are written again.

    Args:
      texts: Texts to encode.
      encode: Function of texts that returns one vector for each.
      path: Path of the `.npy` file. Its folder is made.
      fingerprint: Fingerprint of everything that `encode` depends on (`encoder_fingerprint`).

    Returns:
      Memory-mapped vectors, float32 `[texts, dim]`.

    Raises:
      ValueError: the file is of other texts or another encoder, or `encode` does not return one vector for each text.

    Example:
      >>> import tempfile
      >>> with tempfile.TemporaryDirectory() as folder:
      ...     lengths = lambda texts: np.array([[len(text)] for text in texts], np.float32)
      ...     vectors = cached_features(["a", "bcd"], lengths, path=f"{folder}/x.npy", fingerprint="lengths")
      ...     vectors.tolist()
      [[1.0], [3.0]]
    """
    file, about = Path(path), Path(path).with_suffix(".json")
    joined = digest(part for text in texts for part in ([text] if isinstance(text, str) else [*text, ""]))
    wanted = f"{fingerprint}-{joined[:16]}"
    if file.is_file() and about.is_file():
        advice = f"remove it and {file}, so that they are made again"
        with reading(about, f"the description of features; {advice}"):
            stored = expect(read_json(about, advice=advice), dict)
            features = expect(stored["fingerprint"], str)
        if features != wanted:
            raise ValueError(f"path: {file} holds the features {features}, allowed: {wanted}; give another path")
        if stored.get("sha256") not in (None, file_sha256(file)):  # earlier versions wrote none
            raise DamagedError(f"path: {file} is damaged (it is not what memjax wrote); remove it and {about}")
        return read_array(file, "float32 [texts, dim]", mapped=True)
    vectors = np.asarray(encode(texts), np.float32)
    if vectors.ndim != 2 or len(vectors) != len(texts):
        raise ValueError(
            f"encode: given an array {list(vectors.shape)}, allowed: a vector for each of {len(texts)} texts"
        )
    _save(file, vectors)
    write_json(about, {"fingerprint": wanted, "texts": len(texts), "sha256": file_sha256(file)})
    return read_array(file, "float32 [texts, dim]", mapped=True)


def cached_splits(
    splits: Mapping[str, Sequence[LabelledText]],
    encode: Callable[[Sequence[Text]], np.ndarray],
    *,
    path: str | os.PathLike[str],
    fingerprint: str,
    about: str = "",
) -> dict[str, np.ndarray]:
    """Writes the vectors of the splits of a data set into the folder `path`, or reads them if they are there, and
    returns them by the name of the split. `encode` is a function of texts, `about` a description. See
    `cached_features`.

    SPLIT.npy         vectors, float32 [texts, dim]
    SPLIT_labels.npy  labels, int32 [texts]
    about.json        the fingerprint, the description, and the number of texts of each split; written last

    Args:
      splits: Examples of every split, by its name.
      encode: Function of texts that returns one vector for each.
      path: Path of the folder.
      fingerprint: Fingerprint of everything that `encode` depends on.
      about: Description of the data set for readers of `about.json`.

    Returns:
      Memory-mapped vectors, float32 `[texts, dim]`, by the name of the split.
    """
    folder, vectors = Path(path), dict[str, np.ndarray]()
    for name, examples in splits.items():
        texts = [example.texts[0] if len(example.texts) == 1 else example.texts for example in examples]
        vectors[name] = cached_features(texts, encode, path=folder / f"{name}.npy", fingerprint=fingerprint)
        _save(folder / f"{name}_labels.npy", np.array([example.label for example in examples], np.int32))
    sizes = {name: len(examples) for name, examples in splits.items()}
    write_json(folder / ABOUT, {"fingerprint": fingerprint, "about": about, "texts": sizes})
    return vectors


def _tokenize(tokenizer: Any, texts: Sequence[Text], length: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """Tokenizes texts into ids and token types, with special tokens, at most `length` of them for each text."""
    parts = [(text,) if isinstance(text, str) else text for text in texts]
    ids = iter(tokenizer.encode_many([text for part in parts for text in part]))
    return [join_texts(tokenizer, *truncate_texts([next(ids) for _ in part], length)) for part in parts]


@jit_by_model(static_argnames=("feature", "pooling"))
def _encode(
    reader: Any, variables: Any, tokens: Any, types: Any, mask: Any, feature: str, pooling: str | None
) -> jax.Array:
    """Encodes a batch as pooled vectors, or as the states of its tokens if `pooling` is None. Compiled once a width."""
    encoded: Any = reader.apply(variables, tokens, token_types=types, mask=mask, method="hidden_states")
    # Outputs of layers begin with the tokens of a memory.
    skipped = 0 if feature == "output" else reader.num_memory_tokens
    if pooling is None:
        return encoded[1].arrays[feature][:, skipped:]
    return _pool(encoded[1].arrays[feature][:, skipped:], mask, pooling)


def _pool(hidden: jax.Array, mask: jax.Array, pooling: str) -> jax.Array:
    """Pools hidden states `[rows, length, dim]` to float32 `[rows, dim]`."""
    hidden = hidden.astype(jnp.float32)
    match pooling:
        case "first":
            return hidden[:, 0]
        case "unit_mean":
            return mean_pooling(hidden, mask)
    total, count = jnp.where(mask[..., None], hidden, 0).sum(axis=1), mask.sum(axis=1, keepdims=True)
    return total / jnp.maximum(count, 1)


def _save(path: Path, array: np.ndarray) -> None:
    """Writes a `.npy` file completely or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with write_then_rename(path) as partial, partial.open("wb") as file:
        np.save(file, array)
