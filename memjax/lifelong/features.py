"""What the frozen part of a text encoder makes of each text, computed once and read from a file.

A learner that trains only what lies above need not run the encoder: its inputs are rows of an array. The file knows
what it was made of (weights, tokenizer, length and texts), and is refused for anything else.
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
from memjax.data.documents import Examples
from memjax.data.glue import LabelledText
from memjax.data.paths import digest
from memjax.data.states import has_states, write_states
from memjax.data.tokenizers import replaced
from memjax.data.wordpiece import join_texts, truncate_texts
from memjax.models.features import add_features, regroup
from memjax.models.text_encoder import TextEncoder, mean_pooling
from memjax.programs import jit_by_model
from memjax.training.experiment import make_experiment
from memjax.training.restoring import check_start, load_arrays
from memjax.training.runs import check_tokenizer, config_after_growth, load_config, open_tokenizer
from memjax.training.variables import COLLECTIONS, join_arrays, name_arrays

__all__ = [
    "FrozenEncoder",
    "cache_states",
    "cached_features",
    "cached_splits",
    "encode_texts",
    "encoder_fingerprint",
    "open_encoder",
    "token_states",
]

POOLINGS = ("first", "mean", "unit_mean")
STEP = 16
"""a batch is padded to a multiple of so many tokens: short texts cost less, and few widths are compiled"""
ABOUT = "about.json"

Text = str | tuple[str, ...]
"""A text, or several that are read together."""


class FrozenEncoder(NamedTuple):
    """A text encoder that is not trained.

    Attributes:
      model: `memjax.models.text_encoder.TextEncoder`.
      variables: its parameters.
      tokenizer: of its texts.
    """

    model: Any
    variables: Mapping[str, Any]
    tokenizer: Any


def open_encoder(run: str | Path) -> FrozenEncoder:
    """The encoder of a run directory, such as `memjax import` makes of the weights of MiniLM.

    Raises:
      ValueError: no run, or one of another model.
    """
    _, arrays, extra = load_arrays(run)
    config, tokenizer = load_config(run), open_tokenizer(run, extra.get("tokenizer"))
    made = make_experiment(config_after_growth(config, extra.get("lineage", ())), tokenizer=tokenizer)
    if not isinstance(made.model, TextEncoder):
        raise ValueError(f"run: given {run} of a {type(made.model).__name__}, allowed: a run of a text encoder")
    check_tokenizer(made.fingerprint, extra.get("tokenizer"), run)
    model = made.model.clone(head=None, pooler=False, vocabulary=made.model.vocabulary.clone(bias=False))
    of_tasks = tuple(COLLECTIONS["params"] + name for name in model.task_parameters)  # a run need not have them
    arrays = {name: jnp.asarray(leaf) for name, leaf in arrays.items() if not name.startswith(of_tasks)}
    return FrozenEncoder(model, join_arrays(arrays, model.groups()), made.tokenizer)


def encode_texts(
    encoder: FrozenEncoder,
    texts: Sequence[Text],
    *,
    pooling: str = "mean",
    layer: int | None = None,
    length: int = 128,
    rows: int = 32,
) -> np.ndarray:
    """One vector a text, float32 `[texts, dim]`; each text is read alone and loses its end where it is too long.

    Args:
      encoder: what computes them.
      texts: to be read.
      pooling: of the hidden states: 'first' token, 'mean' over the tokens of the text (special ones included), or
        'unit_mean', that of length 1, as sentence embeddings are (MiniLM).
      layer: whose output it is, from 0, negative from the end; None = the last hidden states.
      length: tokens of a text with its special tokens.
      rows: texts in a batch.

    Raises:
      ValueError: another pooling, a layer or a length that the encoder does not have, no texts.
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
    variables = regroup(encoder.variables, model, reader)

    joined = _joined(encoder.tokenizer, texts, length)
    order, found = np.argsort([len(ids) for ids, _ in joined], kind="stable"), np.empty((0, 0), np.float32)
    for start in range(0, len(joined), rows):
        chosen = order[start : start + rows]
        width = min(-(-len(joined[chosen[-1]][0]) // STEP) * STEP, length)
        tokens, types, mask = np.zeros((3, rows, width), np.int32)
        for row, number in enumerate(chosen):
            ids, kinds = joined[number]
            tokens[row, : len(ids)], types[row, : len(ids)], mask[row, : len(ids)] = ids, kinds, 1
        vectors = np.asarray(_encode(reader, variables, tokens, types, mask.astype(bool), feature, pooling))[
            : len(chosen)
        ]
        found = found if len(found) else np.empty((len(joined), vectors.shape[1]), np.float32)
        found[chosen] = vectors
    return found


def token_states(encoder: FrozenEncoder, examples: Examples, first: int, *, rows: int = 32) -> Callable[..., None]:
    """Writes into an array `[tokens, dim]` what layer `first` reads of each token, one example after the other.

    Args:
      encoder: what computes it, in evaluation mode.
      examples: texts, with their `token_types`.
      first: the layer, above 0.
      rows: texts in a batch.
    """
    feature = f"layer_{first - 1:02d}/output"
    reader = add_features(encoder.model, feature)
    variables = regroup(encoder.variables, encoder.model, reader)
    sizes = np.array([examples.num_tokens(index) for index in range(len(examples))])
    ends = np.cumsum(sizes)

    def fill(array: np.ndarray) -> None:
        order = np.argsort(sizes, kind="stable")
        for start in range(0, len(order), rows):
            chosen = order[start : start + rows]
            width = -(-int(sizes[chosen].max()) // STEP) * STEP
            tokens, types, mask = np.zeros((3, rows, width), np.int32)
            for row, index in enumerate(chosen):
                found, size = examples.example(int(index)), sizes[index]
                tokens[row, :size], types[row, :size] = found.inputs, found.annotations["token_types"]
                mask[row, :size] = 1
            states = np.asarray(_encode(reader, variables, tokens, types, mask.astype(bool), feature, None))
            for row, index in enumerate(chosen):
                array[ends[index] - sizes[index] : ends[index]] = states[row, : sizes[index]]

    return fill


def cache_states(config: Config) -> None:
    """Computes what `data.states` lacks, of every split that a run reads, with the encoder of `training.init_from`.

    Raises:
      ValueError: no such run, of another model or tokenizer, or a folder with states of another one.
    """
    first, folder = config.model.first_layer, config.data.states
    whole = dataclasses.replace(config.model, first_layer=0)
    plain = dataclasses.replace(config, model=whole, data=dataclasses.replace(config.data, states=""))
    if not config.training.init_from:
        raise ValueError("training.init_from: given '', allowed: a run of the encoder that gives data.states")
    encoder, experiment = open_encoder(config.training.init_from), make_experiment(plain)
    check_start(config.training, experiment.tokenizer)
    if len(encoder.model.stack.layers) <= first:
        allowed = f"up to {len(encoder.model.stack.layers) - 1}, layers of {config.training.init_from}"
        raise ValueError(f"model.first_layer: given {first}, allowed: {allowed}")
    names = [task.name for task in config.lifelong.in_order] if config.lifelong else []
    splits = dict.fromkeys(["train", *(one.split for one in (config.evaluation, *config.evaluations))])
    above = tuple(f"params/stack/layer_{index:02d}/" for index in range(first, len(encoder.model.stack.layers)))
    named = name_arrays(encoder.variables, encoder.model.groups())
    below = {name: leaf for name, leaf in named.items() if not name.startswith(above)}
    made = encoder_fingerprint(encoder._replace(variables=below), first_layer=first)
    for one in [experiment, *map(experiment.of_task, names)]:
        for split in splits:
            examples = one.documents(split)
            if not has_states(examples, folder, first, made):
                fill = token_states(encoder, examples, first)
                write_states(examples, folder, first, made, encoder.model.vocabulary.dim, fill)


def encoder_fingerprint(encoder: FrozenEncoder, **how: Any) -> str:
    """What the vectors of texts depend on besides the texts: the weights, the tokenizer, and how they are encoded.

    Args:
      encoder: what computes them.
      **how: `pooling`, `layer` and `length` of `encode_texts`.
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
    """The vectors of texts, memory-mapped, float32 `[texts, dim]`; computed where the file is not there.

    What an interrupted call has left is written anew: a file counts once the line beside it (`NAME.json`) is there.

    Args:
      texts: what is encoded.
      encode: texts -> their vectors.
      path: of the `.npy` file; its folder is made.
      fingerprint: of what `encode` depends on (`encoder_fingerprint`).

    Raises:
      ValueError: the file is of other texts or another encoder, or `encode` gives something else than a vector a text.

    Example:
      >>> import tempfile
      >>> with tempfile.TemporaryDirectory() as folder:
      ...     lengths = lambda texts: np.array([[len(text)] for text in texts], np.float32)
      ...     found = cached_features(["a", "bcd"], lengths, path=f"{folder}/x.npy", fingerprint="lengths")
      ...     found.tolist()
      [[1.0], [3.0]]
    """
    file, about = Path(path), Path(path).with_suffix(".json")
    joined = digest(part for text in texts for part in ([text] if isinstance(text, str) else [*text, ""]))
    wanted = f"{fingerprint}-{joined[:16]}"
    if file.is_file() and about.is_file():
        there = json.loads(about.read_text("utf-8"))["fingerprint"]
        if there != wanted:
            raise ValueError(f"path: {file} holds the features {there}, allowed: {wanted}; give another path")
        return np.load(file, mmap_mode="r")
    vectors = np.asarray(encode(texts), np.float32)
    if vectors.ndim != 2 or len(vectors) != len(texts):
        raise ValueError(
            f"encode: given an array {list(vectors.shape)}, allowed: a vector for each of {len(texts)} texts"
        )
    _save(file, vectors)
    _write_json(about, {"fingerprint": wanted, "texts": len(texts)})
    return np.load(file, mmap_mode="r")


def cached_splits(
    splits: Mapping[str, Sequence[LabelledText]],
    encode: Callable[[Sequence[Text]], np.ndarray],
    *,
    path: str | os.PathLike[str],
    fingerprint: str,
    about: str = "",
) -> dict[str, np.ndarray]:
    """The vectors of a data set and its labels in a folder; see `cached_features`.

    SPLIT.npy         float32 [texts, dim]
    SPLIT_labels.npy  int32 [texts]
    about.json        the fingerprint, what it is, and the texts of each split; written last

    Args:
      splits: name -> examples.
      encode: texts -> their vectors.
      path: of the folder.
      fingerprint: of what `encode` depends on.
      about: what it is, for people.
    """
    folder, found = Path(path), dict[str, np.ndarray]()
    for name, examples in splits.items():
        texts = [one.texts[0] if len(one.texts) == 1 else one.texts for one in examples]
        found[name] = cached_features(texts, encode, path=folder / f"{name}.npy", fingerprint=fingerprint)
        _save(folder / f"{name}_labels.npy", np.array([one.label for one in examples], np.int32))
    sizes = {name: len(examples) for name, examples in splits.items()}
    _write_json(folder / ABOUT, {"fingerprint": fingerprint, "about": about, "texts": sizes})
    return found


def _joined(tokenizer: Any, texts: Sequence[Text], length: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """Ids and types of the tokens of each text, special ones included, at most `length`."""
    parts = [(text,) if isinstance(text, str) else text for text in texts]
    ids = iter(tokenizer.encode_many([one for part in parts for one in part]))
    return [join_texts(tokenizer, *truncate_texts([next(ids) for _ in part], length)) for part in parts]


@jit_by_model(static_argnames=("feature", "pooling"))
def _encode(
    reader: TextEncoder, variables: Any, tokens: Any, types: Any, mask: Any, feature: str, pooling: str | None
) -> jax.Array:
    """The vectors of a batch, or where nothing is pooled the states of its tokens; compiled once for all of a width."""
    found: Any = reader.apply(variables, tokens, token_types=types, mask=mask, method="encode")
    own = 0 if feature == "output" else reader.memory_tokens  # rows of a memory, which lead what layers give
    if pooling is None:
        return found[1].arrays[feature][:, own:]
    return _pool(found[1].arrays[feature][:, own:], mask, pooling)


def _pool(hidden: jax.Array, mask: jax.Array, pooling: str) -> jax.Array:
    """Hidden states `[rows, length, dim]` -> float32 `[rows, dim]`."""
    hidden = hidden.astype(jnp.float32)
    match pooling:
        case "first":
            return hidden[:, 0]
        case "unit_mean":
            return mean_pooling(hidden, mask)
    total, count = jnp.where(mask[..., None], hidden, 0).sum(axis=1), mask.sum(axis=1, keepdims=True)
    return total / jnp.maximum(count, 1)


def _save(path: Path, array: np.ndarray) -> None:
    """Writes a `.npy` file whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with replaced(path) as partial, partial.open("wb") as file:
        np.save(file, array)


def _write_json(path: Path, value: Any) -> None:
    with replaced(path) as partial:
        partial.write_text(json.dumps(value, indent=2) + "\n", "utf-8")
