"""The Memorizing Transformer beside the authors' own code (`tests/golden/memorizing_meliad.npz`)."""

import functools
import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from memjax import config
from memjax.functional.positions import relative_buckets
from memjax.memory.interface import where_rows
from memjax.models import make_language_model
from tests.memory.memorizing_parts import memorizing_part

HEADS, HEAD_DIM, DIM, LENGTH, LAST = 3, 8, 12, 8, 4
SIZES = {"memory_length": 24, "num_neighbors": 4, "cache_length": 8, "compatibility": "meliad"}
CASES = {
    "norm": {},
    "plain": {"query_key_norm": False},
    "all": {"num_neighbors": 24},
    "all, exact": {"num_neighbors": 24, "retrieval": "exact"},
    "all, threshold": {"num_neighbors": 24, "retrieval": "threshold"},
    "add": {"merge": "add"},
    "stop_forward": {"merge": "stop_forward"},
    "windows": {"memory_length": 32},
}
FAST = ("norm", "all, threshold")


def in_time(name: str):
    return pytest.param(name, marks=() if name in FAST else pytest.mark.slow)


@functools.cache
def golden() -> dict[str, np.ndarray]:
    with np.load(Path(__file__).parent.parent / "golden" / "memorizing_meliad.npz") as file:
        return dict(file)


def close(found, name: str, scale: float = 1.0) -> None:
    """Compares an array; gradients by their largest entry."""
    wanted = scale * golden()[name]
    largest = max(1.0, np.abs(wanted).max()) if "/grad/" in name else 1.0
    np.testing.assert_allclose(np.reshape(found, wanted.shape), wanted, rtol=0, atol=5e-6 * largest, err_msg=name)


def names(layer: str) -> dict[str, str]:
    """Parameter of the part -> its name in the authors' code."""
    base, kvq = f"{layer}/tbase", f"{layer}/tbase/_kvq"
    return {
        "layer_norm/scale": f"{kvq}/pre_attn_layernorm/scale",
        **{f"{name}": f"{kvq}/{plural}_layer/kernel" for name, plural in PLURALS.items()},
        "output": f"{base}/post_attn_mlp/output_layer/kernel",
        "scale": f"{kvq}/attention_scale",
        "gate": f"{layer}/external_memory_bias",
        "position_bias": f"{layer}/relative_positions/rel_embedding",
    }


PLURALS = {"query": "queries", "key": "keys", "value": "values"}
SHAPES = dict.fromkeys(PLURALS, (DIM, HEADS, HEAD_DIM)) | {"output": (HEADS, HEAD_DIM, DIM)}


def part_params(prefix: str, layer: str, **fields) -> dict:
    """The parameters of one attention part, where it has them."""
    found = {own: golden().get(f"{prefix}/{theirs}") for own, theirs in names(layer).items()}
    shaped = {own: np.reshape(value, SHAPES.get(own, value.shape)) for own, value in found.items() if value is not None}
    shaped["layer_norm"] = {"scale": shaped.pop("layer_norm/scale")}
    without = {name for name, used in {"scale": "query_key_norm", "gate": "merge"}.items() if used in fields}
    return {name: value for name, value in shaped.items() if name not in without}


def flat(tree: dict) -> dict:
    """`{"a": {"b": x}}` as `{"a/b": x}`."""
    return {"/".join(str(step.key) for step in path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(tree)}


def compare_state(state, prefix: str) -> None:
    cache, memory = state.cache, state.memory
    close(jnp.where(cache.valid[..., None, None], cache.keys, 0), f"{prefix}cache_keys")
    close(jnp.where(cache.valid[..., None, None], cache.values, 0), f"{prefix}cache_values")
    if f"{prefix}memory_keys" not in golden():
        return
    shown = memory.valid[:, None, :, None]
    close(jnp.where(shown, memory.keys, 0), f"{prefix}memory_keys")
    close(jnp.where(shown, memory.values, 0), f"{prefix}memory_values")
    np.testing.assert_array_equal(memory.valid, golden()[f"{prefix}memory_valid"])
    np.testing.assert_array_equal(memory.cursor, golden()[f"{prefix}memory_count"] % memory.valid.shape[1])


@pytest.mark.parametrize("name", [in_time(name) for name in CASES])
def test_the_attention_part_is_that_of_the_published_code(name):
    fields, case = CASES[name], name.partition(",")[0]
    part = memorizing_part(dim=DIM, num_heads=HEADS, head_dim=HEAD_DIM, **SIZES | fields)
    params = part_params("param", "transformer", **fields)
    starts = golden()[f"{case}/start"]
    length = 2 * LENGTH if case == "windows" else LENGTH
    segments = np.split(golden()["x"][:, : len(starts) * length], len(starts), axis=1)

    @jax.jit
    def read(params, x, state, start):
        def loss(params, x):
            y, after, _ = part.apply({"params": params}, x, state, start_of_document=start)
            return jnp.square(y).sum(), (y, after)

        return jax.value_and_grad(loss, argnums=(0, 1), has_aux=True)(params, x)

    state, compared = part.init_state(2), 0
    for index, (x, start) in enumerate(zip(segments, starts, strict=True)):
        (_, (y, state)), gradients = read(params, x, state, start)
        close(y, f"{case}/seg{index}/out")
        if f"{case}/seg{index}/cache_keys" in golden():
            compare_state(state, f"{case}/seg{index}/")
            compared += 1
    assert compared == {"norm": 5, "plain": 1, "windows": 1}.get(case, 0)
    if case != "windows":
        close(gradients[1], f"{case}/seg{LAST}/grad/x")
        theirs = names("transformer")
        for own, gradient in flat(gradients[0]).items():
            close(gradient, f"{case}/seg{LAST}/grad/param/{theirs[own]}")


@functools.cache
def stack(case: str):
    """The model of three layers, and its parameters."""
    fields = {"query_key_norm": False} if case == "stack_plain" else {}
    attention = config.Memorizing(layers_with_memory=(1,), **SIZES, **fields)
    sizes = {"dim": DIM, "num_layers": 3, "num_heads": HEADS, "head_dim": HEAD_DIM, "scan_layers": False}
    model = config.Model(**sizes, attention=attention, feed_forward=config.Dense(dim=20, bias=False))
    layers = {}
    for index in range(3):
        of = lambda name, index=index: golden()[f"stack/param/transformer{index}/tbase/{name}"]
        layers[f"layers_{index}"] = {
            "attention": part_params("stack/param", f"transformer{index}", **fields),
            "feed_forward": {
                "layer_norm": {"scale": of("pre_ffn_layernorm/scale")},
                "wide": {"kernel": of("ffn/hidden0/kernel")},
                "narrow": {"kernel": of("ffn/output_layer/kernel")},
            },
        }
    params = {
        "stack": layers,
        "layer_norm": {"scale": golden()["stack/param/final_layernorm/scale"]},
        # Embeddings are multiplied by sqrt(dim) here, and logits divided by it there.
        "vocabulary": {"embedding": golden()["stack/param/embed/embedding"] / DIM**0.5},
    }
    return make_language_model(model, 13, features=tuple(f"layer_{i:02d}/output" for i in range(3))), params


@pytest.mark.parametrize("case", (pytest.param("stack_norm", marks=pytest.mark.slow), "stack_plain"))
def test_a_model_of_three_layers_is_that_of_the_published_code(case):
    model, params = stack(case)

    @jax.jit
    def read(params, ids, state, start):
        def loss(params):
            output, after, aux = model.apply({"params": params}, ids, state, start_of_document=start)
            logits = model.apply({"params": params}, output, method="logits")
            return jnp.square(logits).sum(), (logits, after, aux.arrays)

        return jax.value_and_grad(loss, has_aux=True)(params)

    state = model.init_state(2)
    for index, (ids, start) in enumerate(zip(golden()["stack/ids"], golden()["stack/start"], strict=True)):
        (_, (logits, state, features)), gradients = read(params, ids, state, start)
        close(logits, f"{case}/seg{index}/logits")
        for layer in range(3):
            close(features[f"layer_{layer:02d}/output"], f"{case}/seg{index}/hidden{layer}")
    if case == "stack_plain":
        return
    for layer, group in enumerate(state.stack.groups):
        compare_state(group.attention, f"{case}/seg{LAST}/layer{layer}/")
        theirs = names(f"transformer{layer}")
        parts = gradients["stack"][f"layers_{layer}"]
        for own, gradient in flat(parts["attention"]).items():
            close(gradient, f"{case}/seg{LAST}/grad/param/{theirs[own]}")
        at = f"{case}/seg{LAST}/grad/param/transformer{layer}/tbase"
        close(parts["feed_forward"]["wide"]["kernel"], f"{at}/ffn/hidden0/kernel")
        close(parts["feed_forward"]["narrow"]["kernel"], f"{at}/ffn/output_layer/kernel")
    at = f"{case}/seg{LAST}/grad/param"
    close(gradients["layer_norm"]["scale"], f"{at}/final_layernorm/scale")
    close(gradients["vocabulary"]["embedding"] / DIM**0.5, f"{at}/embed/embedding")


@pytest.mark.slow
def test_decoding_token_by_token_gives_the_logits_of_the_published_code():
    model, params = stack("stack_norm")
    empty = model.init_state(2)

    @jax.jit
    def decode(params, state, start, ids):
        fresh = model.init_decode_state(empty, LENGTH, 2)
        state = where_rows(start, fresh, state)

        def token(state, ids):
            output, state = model.apply(
                {"params": params}, ids[:, None], state, active=jnp.ones(2, bool), method="decode"
            )
            return state, model.apply({"params": params}, output, method="logits")[:, 0]

        state, logits = jax.lax.scan(token, state, ids.T)
        return state, jnp.swapaxes(logits, 0, 1)

    state = model.init_decode_state(empty, LENGTH, 2)
    for index, (ids, start) in enumerate(zip(golden()["stack/ids"], golden()["stack/start"], strict=True)):
        state, logits = decode(params, state, start, ids)
        close(logits, f"stack_norm/seg{index}/logits")


def test_positions_have_the_buckets_of_the_published_code():
    assert json.loads(str(golden()["config_json"]))["memory_layer"] == 1
    np.testing.assert_array_equal(relative_buckets(np.arange(300)), golden()["t5_buckets"])
