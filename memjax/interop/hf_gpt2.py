"""GPT-2 of Hugging Face `transformers`: import of its weights and configuration, and export.

    model_config, params = load_pretrained("folder with config.json and model.safetensors")
    model = make_language_model(model_config, vocab_size(params))

The imported model gives the logits and hidden states of `GPT2LMHeadModel` in evaluation mode. A memory is added by
describing a model that has one and giving its initial parameters, of which those of GPT-2 are replaced:

    model_config.attention = config.InfinityFormer(host="gpt2")
    variables = init_variables(make_language_model(model_config, 50257, segment_length=512), key, 512)
    params = import_params("model.safetensors", model_config, initial=variables["params"])

A model may have further entries of the vocabulary, such as the marks of dialogues (`extra_ids`). `runs.import_run`
makes a run directory of such a folder. Nothing here imports torch or transformers.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np

from memjax import config
from memjax.data.dialogue import NUM_MARKS
from memjax.interop import folders
from memjax.interop import state_dicts as hf
from memjax.models.factory import make_language_model
from memjax.models.transformer import join_collection, split_collection

__all__ = [
    "differences",
    "entries",
    "export_config",
    "export_params",
    "import_params",
    "load_pretrained",
    "model_config",
    "read_model",
    "save_pretrained",
    "vocab_size",
]


def model_config(hf_config: Mapping[str, Any]) -> config.Model:
    """The model that a Hugging Face configuration (`config.json`, or `GPT2Config.to_dict()`) describes.

    Args:
      hf_config: missing keys have the defaults of `GPT2Config`.

    Raises:
      ValueError: an option that has no counterpart here.

    Example:
      >>> model_config({"n_layer": 2, "n_positions": 64}).attention.num_positions
      64
    """
    given = hf.take_settings(hf_config, _DEFAULTS)
    fixed = {
        "layer_norm_epsilon": 1e-5,
        "scale_attn_weights": True,
        "scale_attn_by_inverse_layer_idx": False,
        "add_cross_attention": False,
        "tie_word_embeddings": True,
        "embd_pdrop": given["resid_pdrop"],
    }
    hf.check_fixed(given, fixed)
    hf.check_heads(given, "n_head", "n_embd")
    activation = hf.take_activation(given, "activation_function")
    return config.Model(
        dim=given["n_embd"],
        num_layers=given["n_layer"],
        num_heads=given["n_head"],
        dropout=given["resid_pdrop"],
        attention_dropout=given["attn_pdrop"],
        scale_embeddings=False,
        attention=config.GPT2(num_positions=given["n_positions"]),
        feed_forward=config.Dense(dim=given["n_inner"] or 4 * given["n_embd"], activation=activation),
        output=config.Softmax(tied=True, bias=False),
    )


def import_params(
    weights: Mapping[str, np.ndarray] | str | Path, model: config.Model, *, initial: Any = None, extra_ids: int = 0
) -> dict[str, Any]:
    """Parameters of `make_language_model(model, ...)` from the state dict of a `GPT2LMHeadModel` or `GPT2Model`.

    Entries that the weights do not have come last and begin as the mean of all others. The table is the output's too:
    rows drawn around 0 score near 0, and where all scores of a model are far below 0 they take the whole softmax. The
    score of a mean is the mean of the scores, so that the new entries take at most their share of the vocabulary: no
    token loses more than `log(1 + extra_ids / entries)` nats (Hewitt 2021, "Initializing new word embeddings for
    pretrained language models", https://nlp.stanford.edu/~johnhew/vocab-expansion.html).

    Args:
      weights: name -> array, or a safetensors file.
      model: as `model_config` gives it, or that with a memory, marks of speakers or another scan setting.
      initial: parameters of the model, of which those that GPT-2 has are replaced; needed where it has a memory or
        marks.
      extra_ids: entries of the vocabulary after those of the weights.

    Raises:
      ValueError: a name that is missing or left over, a wrong shape, a negative number of entries, or a memory or marks
        without initial parameters.
    """
    if extra_ids < 0:
        raise ValueError(f"extra_ids: given {extra_ids}, allowed: 0 or more")
    _check(model)
    if initial is None and (_attention(model).coefficients() or model.markers):
        raise ValueError("initial: given None for a model with a memory or marks, allowed: its initial parameters")
    # The prefix of the model with a head may be there or not; older files hold the causal mask of every layer.
    names = {name.removeprefix("transformer."): weight for name, weight in folders.read_weights(weights).items()}
    source = hf.StateDict({n: w for n, w in names.items() if not n.endswith(CONSTANTS)}, "GPT2LMHeadModel")
    params, groups = hf.load_entries(entries(model), source), _groups(model)
    embedding = params["vocabulary"]["embedding"]
    source.check_tied("lm_head.weight", embedding)
    source.finish()
    mean = embedding.mean(axis=0, keepdims=True, dtype=np.float64).astype(embedding.dtype)
    params["vocabulary"]["embedding"] = np.concatenate([embedding, np.repeat(mean, extra_ids, axis=0)])
    if initial is not None:
        params = _merged(split_collection(initial, groups), params)
    return jax.tree.map(jnp.asarray, join_collection(params, groups))


def read_model(
    described: Mapping[str, Any], weights: Mapping[str, np.ndarray], *, dialogues: bool = False
) -> hf.Imported:
    """What a configuration and a state dict hold.

    Args:
      described: the configuration.
      weights: name -> array.
      dialogues: the vocabulary gets the marks of dialogues (`memjax.data.dialogue`) as further entries.

    Raises:
      ValueError: see `model_config` and `import_params`.
    """
    model = model_config(described)
    params = import_params(weights, model, extra_ids=NUM_MARKS if dialogues else 0)
    source = config.CmuDog(document="context", document_length=512) if dialogues else config.TextFiles()
    length = _attention(model).learned_positions
    data = config.Data(source=source, tokenizer=config.BytePairs(), segment_length=length)
    constants = {name: weight for name, weight in weights.items() if name.endswith(CONSTANTS)}
    return hf.Imported(model, params, data, left=constants)


def export_params(
    params: Mapping[str, Any], model: config.Model, task: config.TaskKind | None = None
) -> dict[str, np.ndarray]:
    """The inverse of `import_params`: a state dict of `GPT2LMHeadModel` without the tied `lm_head`.

    Parameters of a memory and embeddings of marks have no place in it and are left out.

    Args:
      params: of `make_language_model(model, ...)`; those of a padded vocabulary after `cut_tables`.
      model: its configuration.
      task: has no effect; a GPT-2 has one head.

    Raises:
      ValueError: a model that Hugging Face's class cannot express.
    """
    _check(model)
    weights = hf.dump_entries(entries(model, task), split_collection(params, _groups(model)))
    return {f"transformer.{name}": weight for name, weight in weights.items()}


def export_config(model: config.Model, vocab_size: int, task: config.TaskKind | None = None) -> dict[str, Any]:
    """The inverse of `model_config`, as it stands in `config.json`.

    Args:
      model: the configuration.
      vocab_size: entries of the vocabulary.
      task: as in `export_params`.

    Raises:
      ValueError: a model that Hugging Face's class cannot express.
    """
    del task
    _check(model)
    return {
        **_DEFAULTS,
        "architectures": ["GPT2LMHeadModel"],
        "model_type": "gpt2",
        "vocab_size": vocab_size,
        "n_embd": model.dim,
        "n_layer": model.num_layers,
        "n_head": model.num_heads,
        "n_positions": _attention(model).learned_positions,
        "n_inner": model.feed_forward.dim or 4 * model.dim,
        "activation_function": hf.name_activation(model),
        "resid_pdrop": model.dropout,
        "embd_pdrop": model.dropout,
        "attn_pdrop": model.attention_dropout,
    }


def load_pretrained(folder: str | Path, *, extra_ids: int = 0) -> tuple[config.Model, dict[str, Any]]:
    """Configuration and parameters of a folder with `config.json` and `model.safetensors`.

    Args:
      folder: of the two files.
      extra_ids: entries of the vocabulary after those of the weights, see `import_params`.
    """
    described, weights = folders.read_folder(folder)
    model = model_config(described)
    return model, import_params(weights, model, extra_ids=extra_ids)


def save_pretrained(folder: str | Path, params: Mapping[str, Any], model: config.Model) -> None:
    """Writes a folder that `GPT2LMHeadModel.from_pretrained` and `load_pretrained` read."""
    folders.write_folder(folder, export_config(model, vocab_size(params)), export_params(params, model))


def differences(model: config.Model) -> tuple[str, ...]:
    """What the exported model computes otherwise, its memory aside: nothing."""
    del model
    return ()


def vocab_size(params: Mapping[str, Any]) -> int:
    """Entries of the vocabulary that the parameters are for.

    Example:
      >>> vocab_size({"vocabulary": {"embedding": jnp.zeros((5, 8))}})
      5
    """
    return params["vocabulary"]["embedding"].shape[0]


CONSTANTS = (".attn.bias", ".attn.masked_bias")
"""ends of the names of causal masks, which older files hold"""
_DEFAULTS: dict[str, Any] = {
    "n_embd": 768,
    "n_layer": 12,
    "n_head": 12,
    "n_positions": 1024,
    "n_inner": None,
    "activation_function": "gelu_new",
    "resid_pdrop": 0.1,
    "embd_pdrop": 0.1,
    "attn_pdrop": 0.1,
    "layer_norm_epsilon": 1e-5,
    "scale_attn_weights": True,
    "scale_attn_by_inverse_layer_idx": False,
    "add_cross_attention": False,
    "tie_word_embeddings": True,
}


def entries(model: config.Model, task: config.TaskKind | None = None) -> Iterator[hf.Entry]:
    """Every parameter that GPT-2 has, without the prefix of theirs; arguments as in `export_params`."""
    del task
    dim, hidden = model.dim, model.feed_forward.dim or 4 * model.dim
    heads = (model.num_heads, dim // model.num_heads)
    yield hf.same("vocabulary/embedding", "wte.weight", -1, dim)
    yield hf.same("positions", "wpe.weight", _attention(model).learned_positions, dim)
    yield from hf.norm("layer_norm", "ln_f", dim)
    for index in range(model.num_layers):
        layer, theirs = f"stack/layer_{index:02d}", f"h.{index}"
        part, feed_forward = f"{layer}/attention", f"{layer}/feed_forward"
        yield hf.fused(part, f"{theirs}.attn.c_attn.weight", dim, heads, transposed=False)
        yield hf.Entry(
            (f"{part}/query_bias", f"{part}/key_value_bias"),
            {f"{theirs}.attn.c_attn.bias": (3 * dim,)},
            lambda arrays: (arrays[0].reshape(3, *heads)[0], arrays[0].reshape(3, *heads)[1:]),
            lambda arrays: [np.concatenate([arrays[0][None], arrays[1]]).reshape(-1)],
        )
        yield hf.matrix(f"{part}/output", f"{theirs}.attn.c_proj.weight", (*heads, dim), 2, transposed=False)
        yield hf.same(f"{part}/output_bias", f"{theirs}.attn.c_proj.bias", dim)
        yield from hf.norm(f"{part}/layer_norm", f"{theirs}.ln_1", dim)
        yield from hf.linear(f"{feed_forward}/wide", f"{theirs}.mlp.c_fc", dim, hidden, transposed=False)
        yield from hf.linear(f"{feed_forward}/narrow", f"{theirs}.mlp.c_proj", hidden, dim, transposed=False)
        yield from hf.norm(f"{feed_forward}/layer_norm", f"{theirs}.ln_2", dim)


def _merged(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    """`old` with the leaves that `new` has."""
    both = lambda name: isinstance(old.get(name), Mapping) and isinstance(new[name], Mapping)
    return {**old, **{name: _merged(old[name], new[name]) if both(name) else new[name] for name in new}}


def _attention(model: config.Model) -> config.GPT2 | config.InfinityFormer:
    if model.attention.is_causal and model.attention.learned_positions:
        return cast("config.GPT2 | config.InfinityFormer", model.attention)
    raise ValueError(
        f"model.attention: given {model.attention_kind}, allowed: GPT2, or InfinityFormer with host = 'gpt2'"
    )


def _check(model: config.Model) -> None:
    """That Hugging Face's class can express the model, its memory aside."""
    _attention(model)
    softmax: Any = model.output.softmax
    checks = [
        ("model.head_dim", model.head_dim or model.dim // model.num_heads, model.dim // model.num_heads),
        ("model.scale_embeddings", model.scale_embeddings, False),
        ("model.output.tied", softmax.is_one_softmax and softmax.tied, True),
        ("model.output.bias", softmax.bias, False),
    ]
    hf.check_fields([*checks, *hf.feed_forward_checks(model)], "GPT-2")


def _groups(model: config.Model) -> tuple[tuple[int, int], ...]:
    return make_language_model(model, 1, segment_length=1).stack.groups()
