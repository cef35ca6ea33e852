"""Adapters of `peft`: its logits, and folders both ways without a lost key."""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax.traverse_util import unflatten_dict

from memjax import cli, config
from memjax.interop import families, peft
from memjax.interop import hf_gpt2 as hf
from memjax.interop.folders import read_folder, read_weights
from memjax.interop.runs import export_adapters, export_run, import_run
from memjax.lifelong import load_run
from memjax.models.adapters import add_adapters, layer_matrices, merge_adapters
from memjax.models.factory import make_language_model
from memjax.models.layer_factory import make_stack
from memjax.models.transformer import join_collection, split_collection
from memjax.training.named_arrays import flatten
from memjax.training.runs import load_config
from tests.interop import weights as made
from tests.interop.hf_gpt2_test import GOLDEN, WEIGHTS, description, golden

CASES = ("ranks", "stabilized")


def read(case):
    return peft.read_adapters(GOLDEN / f"peft_{case}")


def converted(case):
    return peft.adapters_from_peft(*read(case), hf.FAMILY, description())


def logits(model, params):
    @jax.jit
    def score(params, ids):
        state, start = model.init_state(len(ids)), jnp.ones(len(ids), bool)
        hidden, _, _ = model.apply({"params": params}, ids, state, start_of_document=start)
        return model.apply({"params": params}, hidden, method="logits")

    return np.asarray(score(params, jnp.asarray(golden()["ids"], jnp.int32)))


def assert_near(found, expected):
    """Largest difference over the largest logit."""
    assert np.abs(found[..., : expected.shape[-1]] - expected).max() < 1e-5 * np.abs(expected).max()


def with_adapters(adapters):
    """The tiny GPT-2 with adapters, and its arrays of single layers."""
    base = read_weights(WEIGHTS)
    plain = hf.FAMILY.read_names(base).plain
    base |= {name: adapters.saved[plain[name]] for name in base if plain[name] in adapters.saved}
    described = description()
    model = make_language_model(described, 61)
    arrays = flatten(split_collection(hf.import_params(base, described), model.layer_groups()))
    return add_adapters(model, adapters.lora), {**arrays, **adapters.arrays}


def joined(arrays, model):
    tree = unflatten_dict({name: jnp.asarray(array) for name, array in arrays.items()}, sep="/")
    return join_collection(tree, model.layer_groups())


@pytest.mark.parametrize("case", CASES)
def test_logits_are_those_of_peft_with_adapters_and_merged(case):
    with np.load(GOLDEN / f"peft_{case}/logits.npz") as file:
        expected = file["logits"]
    assert np.abs(expected - golden()["logits"]).max() > 1
    model, arrays = with_adapters(converted(case))
    assert_near(logits(model, joined(arrays, model)), expected)
    merged, plain = merge_adapters(arrays, model, prefix=""), make_language_model(description(), 61)
    assert_near(logits(plain, joined(merged, plain)), expected)


def products(described, tensors):
    """What every module adds to its matrix, `[out, in]`."""
    modules = [name.removesuffix(peft.A) for name in tensors if name.endswith(peft.A)]
    scale = lambda module: peft._scale(described, module.removeprefix(peft.PREFIX))
    return {module: scale(module) * tensors[module + peft.B] @ tensors[module + peft.A] for module in modules}


@pytest.mark.parametrize("case", CASES)
def test_a_folder_comes_back_with_every_key(case):
    adapters, (described, tensors) = converted(case), read(case)
    back, again = peft.adapters_to_peft(adapters.arrays, adapters.lora, hf.FAMILY, description(), saved=adapters.saved)
    assert again.keys() == tensors.keys() and {n: t.shape for n, t in again.items()} == {
        n: t.shape for n, t in tensors.items()
    }
    for module, product in products(described, tensors).items():
        np.testing.assert_allclose(products(back, again)[module], product, rtol=1e-6, atol=1e-6, err_msg=module)
    for key in ("peft_type", "task_type", "r", "lora_alpha", "lora_dropout", "use_rslora", "fan_in_fan_out", "bias"):
        assert back[key] == described[key], key
    assert bool(back["modules_to_save"]) == bool(described["modules_to_save"])
    second = peft.adapters_from_peft(back, again, hf.FAMILY, description())
    assert second.lora == adapters.lora
    jax.tree.map(np.testing.assert_array_equal, second.arrays, adapters.arrays)
    jax.tree.map(np.testing.assert_array_equal, second.saved, adapters.saved)


def test_matrices_of_one_module_that_were_trained_apart_get_the_sum_of_their_ranks():
    adapters = converted("stabilized")
    rng, part = np.random.default_rng(0), "stack/layer_01/attention/adapter_"
    arrays = {name: rng.normal(size=array.shape).astype(np.float32) for name, array in adapters.arrays.items()}
    arrays = {name: array for name, array in arrays.items() if not name.startswith(f"{part}key")}
    described, tensors = peft.adapters_to_peft(arrays, adapters.lora, hf.FAMILY, description())
    (fused,) = (module for module in products(described, tensors) if module.endswith("c_attn"))
    assert tensors[fused + peft.A].shape == (6, 24) and adapters.lora.rank == 3
    expected = [np.zeros((24, 24))]
    for name in ("query", "value"):
        a, b = (arrays[f"{part}{name}/{factor}"] for factor in "ab")
        expected.append(adapters.lora.scale * (a.reshape(24, 3) @ b.reshape(3, 24)).T)
    zeros, query, value = expected
    found = products(described, tensors)[fused]
    np.testing.assert_allclose(found, np.concatenate([query, zeros, value]), rtol=1e-5, atol=1e-5)


def test_targets_and_layers_become_those_of_the_run():
    lora = converted("ranks").lora
    assert lora.targets == tuple(f"attention/{name}" for name in ("query", "key", "value")) + (
        "feed_forward/wide",
        "feed_forward/narrow",
    )
    assert (lora.rank, lora.scale, lora.fully_trained) == (4, 1.5, ("/layer_norm/scale", "/layer_norm/bias"))
    names = ("attention/query", "attention/key", "attention/value", "attention/output")
    assert converted("stabilized").lora.targets == tuple(f"stack/layer_01/{name}" for name in names)


def edit(**values):
    return lambda described, tensors: described.update(values)


def rename(old, new):
    def apply(described, tensors):
        for name in [name for name in tensors if old in name]:
            tensors[name.replace(old, new)] = tensors.pop(name)

    return apply


def drop_b(described, tensors):
    del tensors[next(name for name in tensors if name.endswith(peft.B))]


def shorten(described, tensors):
    name = next(name for name in tensors if name.endswith(peft.A))
    tensors[name] = tensors[name][:, :-1]


def spoil(described, tensors):
    name = next(name for name in tensors if name.endswith(peft.A))
    tensors[name] = np.where(np.arange(tensors[name].shape[1]) == 1, np.nan, tensors[name])


@pytest.mark.parametrize(
    "change, message",
    [
        (edit(peft_type="IA3"), "adapter_config.json: given peft_type 'IA3', allowed: 'LORA'"),
        (edit(use_dora=True), "adapter_config.json: given use_dora True, allowed: none"),
        (edit(bias="all"), "adapter_config.json: given bias 'all', allowed: 'none', None"),
        (edit(lora_bias=True), "adapter_config.json: given lora_bias True, allowed: none"),
        (edit(init_lora_weights="pissa"), "adapter_config.json: given init_lora_weights 'pissa', allowed: True"),
        (edit(r=0), "adapter_config.json: given r 0, allowed: an integer of at least 1"),
        (rename("h.1.", "h.7."), "adapters: transformer.h.7.attn.c_attn is no module that can have an adapter"),
        (rename("c_attn.lora_A", "c_attn.lora_E"), "transformer.h.1.attn.c_attn.lora_E.weight has no place"),
        (drop_b, r"adapters: transformer.h.1.attn.c_attn.lora_B.weight is missing"),
        (shorten, r"adapters: transformer.h.1.attn.c_attn.lora_A.weight has shape \(3, 23\) and not \(3, 24\)"),
        (spoil, "adapters: transformer.h.1.attn.c_attn.lora_A.weight has values that are not finite"),
    ],
)
def test_other_adapters_are_refused_in_one_line(change, message):
    described, tensors = read("stabilized")
    change(described, tensors)
    with pytest.raises(ValueError, match=message) as error:
        peft.adapters_from_peft(described, tensors, hf.FAMILY, description())
    assert "\n" not in str(error.value)


@pytest.mark.laws
def test_runs_take_adapters_and_give_them_back(tmp_path, capsys):
    base, folder = made.gpt2(tmp_path / "base"), GOLDEN / "peft_ranks"
    where = {name: str(tmp_path / name) for name in ("run", "adapters", "merged")}
    arguments = ["--weights", str(base), "--run", where["run"], "--adapters", str(folder)]
    assert cli.main(["import", *arguments]) == 0
    assert load_config(where["run"]).training.lora == converted("ranks").lora
    with np.load(folder / "logits.npz") as file:
        expected = file["logits"]
    loaded = load_run(where["run"])
    assert_near(logits(loaded.experiment.model, loaded.variables["params"]), expected)

    assert cli.main(["export", "--run", where["run"], "--to", where["adapters"], "--adapters"]) == 0
    assert sorted(path.name for path in Path(where["adapters"]).iterdir()) == [peft.CONFIG_FILE, peft.WEIGHTS_FILE]
    back = peft.adapters_from_peft(*peft.read_adapters(where["adapters"]), hf.FAMILY, description())
    jax.tree.map(np.testing.assert_array_equal, back.arrays, converted("ranks").arrays)
    jax.tree.map(np.testing.assert_array_equal, back.saved, converted("ranks").saved)

    export = export_run(where["run"], where["merged"])
    assert not export.left_out and read_folder(where["merged"])[1].keys() == read_folder(base)[1].keys()
    import_run(where["merged"], tmp_path / "again")
    again = load_run(tmp_path / "again")
    assert_near(logits(again.experiment.model, again.variables["params"]), expected)
    with pytest.raises(ValueError, match="adapters: .*again has none, allowed: a run with training.lora.rank above 0"):
        export_adapters(tmp_path / "again", tmp_path / "none")
    with pytest.raises(ValueError, match="adapters: .*base has no adapter_config.json, allowed: a folder as"):
        import_run(base, tmp_path / "another", adapters=base)
    assert not (tmp_path / "another").exists()


FAMILIES = {
    "bert": ("bert.encoder.layer.1.attention.self.value", (8, 8)),
    "distilbert": ("distilbert.transformer.layer.1.ffn.lin1", (12, 8)),
    "transfo-xl": ("transformer.layers.1.dec_attn.qkv_net", (24, 8)),
    "gpt2": ("transformer.h.1.attn.c_attn", (24, 8)),
    "phi3": ("model.layers.1.self_attn.qkv_proj", (16, 8)),  # keys and values are half as wide as queries
}


@pytest.mark.parametrize("kind", FAMILIES)
def test_every_family_goes_there_and_back(kind):
    family = families.FAMILIES[kind]
    model = family.base()
    model.dim, model.num_layers, model.num_heads, model.feed_forward.dim = 8, 2, 2, 12
    if kind == "phi3":
        model.attention.key_heads = 1
    lora = config.LoRA(rank=3, alpha=6, dropout=0.25)
    rng, matrices = np.random.default_rng(0), list(layer_matrices(make_stack(model, segment_length=1).layers))
    assert len(matrices) == (14 if family.gated else 12)
    shared = rng.normal(size=(8, 3)).astype(np.float32)
    arrays = {}
    for matrix in matrices:
        wide = matrix.inputs == (8,) and matrix.name != "wide"
        a = shared if wide else rng.normal(size=(*matrix.inputs, 3)).astype(np.float32)
        b = rng.normal(size=(3, *matrix.outputs)).astype(np.float32)
        arrays |= {f"{matrix.adapter}/a": a, f"{matrix.adapter}/b": b}
    described, tensors = peft.adapters_to_peft(arrays, lora, family, model)
    module, shape = FAMILIES[kind]
    assert tensors[f"{peft.PREFIX}{module}{peft.B}"].shape == (shape[0], 3)
    assert tensors[f"{peft.PREFIX}{module}{peft.A}"].shape == (3, shape[1])
    assert (described["lora_alpha"], described["rank_pattern"]) == (6, {})
    assert described["fan_in_fan_out"] == (kind == "gpt2")
    back = peft.adapters_from_peft(described, tensors, family, model)
    assert back.lora == lora and not back.saved
    jax.tree.map(np.testing.assert_array_equal, back.arrays, arrays)
