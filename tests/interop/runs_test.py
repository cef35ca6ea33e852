"""Folders of transformers become runs and runs become such folders: nothing is lost, and what stays behind is named."""

import dataclasses
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import safetensors.numpy

from memjax import cli, config
from memjax.data.byte_pairs import BytePairTokenizer, train_byte_pairs
from memjax.data.tokenizers import ByteTokenizer, WordTokenizer
from memjax.data.wordpiece import WordPieceTokenizer
from memjax.interop import folders, hf_bert, hf_gpt2, hf_transfo_xl
from memjax.interop.families import family_of_run
from memjax.interop.runs import KEPT, LEFT_OUT_FILE, export_run, import_run, write_run
from memjax.interop.tokenizer_files import describe_files, read_tokenizer
from memjax.lifelong import load_run
from memjax.models.factory import make_language_model
from memjax.training.experiment import make_experiment
from memjax.training.runs import load_config
from memjax.training.train_state import init_variables
from tests.interop import variants
from tests.interop import weights as made
from tests.interop.variants_test import ROTARY

KINDS = tuple(made.FOLDERS)


def read_json(path):
    return json.loads(path.read_text("utf-8"))


@pytest.mark.parametrize(
    "kind", [kind if kind == "gpt2" else pytest.param(kind, marks=pytest.mark.slow) for kind in KINDS]
)
def test_a_folder_comes_back_as_it_was(kind, tmp_path):
    folder = made.FOLDERS[kind](tmp_path / "weights")
    run = import_run(folder, tmp_path / "run")
    assert load_config(tmp_path / "run") == run.config
    exported = export_run(tmp_path / "run", tmp_path / "again")
    assert exported.model_type == kind and exported.left_out == {} and exported.notes == ()
    there, again = made.read(folder), made.read(tmp_path / "again")
    assert there.keys() == again.keys()
    for name, array in there.items():
        np.testing.assert_array_equal(again[name], array, err_msg=name, strict=True)
    given, written = (read_json(path / folders.CONFIG_FILE) for path in (folder, tmp_path / "again"))
    assert {name: written[name] for name in given} == given
    for file in folder.iterdir():
        if file.name not in (folders.CONFIG_FILE, folders.WEIGHTS_FILE):
            assert (tmp_path / "again" / file.name).read_bytes() == file.read_bytes()


@pytest.mark.slow
@pytest.mark.parametrize("name", ROTARY)
def test_a_folder_of_every_rotary_family_comes_back_bit_for_bit(name, tmp_path):
    """In 16 bits and several files, with a `generation_config.json`."""
    folder = made.rotary(name, tmp_path / "weights", "bfloat16", shard_bytes=10_000)
    import_run(folder, tmp_path / "run")
    export_run(tmp_path / "run", tmp_path / "again")
    names = sorted(file.name for file in folder.iterdir())
    assert sorted(file.name for file in (tmp_path / "again").iterdir()) == names and len(names) > 6
    for name in names:
        if name not in (folders.CONFIG_FILE, folders.INDEX_FILE):
            assert (tmp_path / "again" / name).read_bytes() == (folder / name).read_bytes(), name
    for name in (folders.CONFIG_FILE, folders.INDEX_FILE):
        given, written = (read_json(path / name) for path in (folder, tmp_path / "again"))
        assert {key: written[key] for key in given} == given, name


def test_what_has_no_place_in_a_model_comes_back_too(tmp_path):
    folder = made.bert(tmp_path / "weights")
    heads = {"bert.embeddings.position_ids": np.arange(32), "cls.seq_relationship.bias": np.ones(2, np.float32)}
    whole = made.read(folder) | heads
    safetensors.numpy.save_file(whole, folder / folders.WEIGHTS_FILE)
    assert import_run(folder, tmp_path / "run").left == tuple(heads)
    export_run(tmp_path / "run", tmp_path / "again")
    again = made.read(tmp_path / "again")
    assert again.keys() == whole.keys()
    jax.tree.map(lambda a, b: np.testing.assert_array_equal(a, b, strict=True), again, whole)


def test_a_head_of_another_task_comes_back_with_its_encoder(tmp_path):
    folder = made.distilbert(tmp_path / "weights")
    kept = {name: array for name, array in made.read(folder).items() if not name.startswith("vocab_")}
    kept |= {f"{name}.weight": np.ones((24, 24), np.float32) for name in ("pre_classifier", "classifier")}
    safetensors.numpy.save_file(kept, folder / folders.WEIGHTS_FILE)
    import_run(folder, tmp_path / "run")
    export_run(tmp_path / "run", tmp_path / "again")
    assert made.read(tmp_path / "again").keys() == kept.keys()


def test_names_without_a_prefix_come_back_too(tmp_path):
    folder = made.gpt2(tmp_path / "weights")  # as in the published file
    plain = {name.removeprefix("transformer."): array for name, array in made.read(folder).items()}
    plain["h.0.attn.bias"] = np.tril(np.ones((1, 1, 32, 32), np.float32))
    safetensors.numpy.save_file(plain, folder / folders.WEIGHTS_FILE)
    import_run(folder, tmp_path / "run")
    export_run(tmp_path / "run", tmp_path / "again")
    assert made.read(tmp_path / "again").keys() == plain.keys()


def test_half_precision_comes_back_as_it_was(tmp_path):
    folder = made.gpt2(tmp_path / "weights")
    described = read_json(folder / folders.CONFIG_FILE) | {"dtype": "float16"}
    half = {name: array.astype(np.float16) for name, array in made.read(folder).items()}
    folders.write_folder(folder, described, half)
    import_run(folder, tmp_path / "run")
    export_run(tmp_path / "run", tmp_path / "again", shard_bytes=4000)
    assert not (tmp_path / "again" / folders.WEIGHTS_FILE).exists()  # in several files
    again = folders.read_folder(tmp_path / "again")
    assert again[0]["dtype"] == "float16"
    jax.tree.map(lambda a, b: np.testing.assert_array_equal(a, b, strict=True), again[1], half)


def test_a_llama_comes_back_with_bfloat16_special_tokens_and_its_template(tmp_path):
    folder = made.llama(tmp_path / "weights")
    half = {name: array.astype(jnp.bfloat16) for name, array in made.read(folder).items()}
    ids = {"bos_token_id": 3, "eos_token_id": [60], "pad_token_id": 5}
    folders.write_folder(folder, read_json(folder / folders.CONFIG_FILE) | ids | {"dtype": "bfloat16"}, half)
    (folder / "generation_config.json").write_text(json.dumps({**ids, "temperature": 0.6}))
    (folder / "tokenizer_config.json").write_text(json.dumps({"bos_token": "e", "pad_token": {"content": "g"}}))
    (folder / "chat_template.jinja").write_text("{{ messages[0].content }}", "utf-8")
    import_run(folder, tmp_path / "run")
    tokenizer = load_run(tmp_path / "run").experiment.tokenizer
    assert (tokenizer.begin_id, tokenizer.end_id, tokenizer.pad_id) == (4, 60, 6)
    assert tokenizer.chat_template == "{{ messages[0].content }}"
    export_run(tmp_path / "run", tmp_path / "again")
    assert {file.name for file in (tmp_path / "again").iterdir()} == {file.name for file in folder.iterdir()}
    for file in folder.iterdir():
        if file.name == folders.CONFIG_FILE:
            assert read_json(tmp_path / "again" / file.name).items() >= read_json(file).items()
        else:
            assert (tmp_path / "again" / file.name).read_bytes() == file.read_bytes(), file.name


def test_a_memory_stays_behind_by_name(tmp_path):
    folder, run = made.gpt2(tmp_path / "weights"), tmp_path / "run"
    found = hf_gpt2.read_model(*folders.read_folder(folder))
    part = config.GPT2(num_positions=32, compressed_memory_length=4, compression_rate=2)
    model = dataclasses.replace(found.model, attention=part)
    described = config.Config(name="run", workdir=str(tmp_path), model=model, data=found.data)
    experiment = make_experiment(described, tokenizer=BytePairTokenizer(folder))
    shapes = jax.eval_shape(lambda: init_variables(experiment.model, jax.random.key(0), 32))["params"]
    initial = jax.tree.map(lambda leaf: np.ones(leaf.shape, leaf.dtype), shapes)
    run.mkdir()
    write_run(run, experiment, hf_gpt2.import_params(made.read(folder), model, initial=initial))
    exported = export_run(run, tmp_path / "again")
    names = [f"params/stack/layer_0{layer}/attention/compression_kernel" for layer in range(2)]
    assert sorted(exported.left_out) == names and LEFT_OUT_FILE in exported.files
    assert sorted(read_json(tmp_path / "again" / LEFT_OUT_FILE)["left_out"]) == names
    again = hf_gpt2.read_model(*folders.read_folder(tmp_path / "again"))
    assert again.model == found.model
    jax.tree.map(np.testing.assert_array_equal, again.params, found.params)
    # Without what came with imported weights the tokenizer is written from the run's own.
    tokenizer = read_tokenizer(config.BytePairs(), tmp_path / "again")
    assert not (run / KEPT).exists() and tokenizer.encode("the cat").tolist() == (
        BytePairTokenizer(folder).encode("the cat").tolist()
    )


TOKENIZERS = {
    "byte pairs": (config.BytePairs(), lambda folder: train_byte_pairs(TEXTS, folder / "made.json", vocab_size=290)),
    "pieces": (config.WordPiece(), lambda folder: WordPieceTokenizer.train(TEXTS, vocab_size=60, lowercase=False)),
    "words": (config.Words(), lambda folder: WordTokenizer.train(TEXTS)),
}
TEXTS = ["The cat sat on the mat\n", "  a café, 漢字\n"] * 4


@pytest.mark.parametrize("settings, make", TOKENIZERS.values(), ids=TOKENIZERS.keys())
def test_the_files_of_a_tokenizer_give_the_same_ids(settings, make, tmp_path):
    tokenizer = make(tmp_path)
    files, note = describe_files(tokenizer, 32)
    assert note == "" and json.loads(files["tokenizer_config.json"])["model_max_length"] == 32
    # `tokenizer.json` says all; without it the older files of transformers do.
    for number, left in enumerate([files, {name: files[name] for name in files if name != "tokenizer.json"}]):
        folder = tmp_path / str(number)
        folder.mkdir()
        for name, content in left.items():
            (folder / name).write_bytes(content)
        again = read_tokenizer(settings, folder)
        for text in [*TEXTS, "the mat", "A cat"]:
            assert again.encode(text).tolist() == tokenizer.encode(text).tolist()
        assert again.vocab_size == tokenizer.vocab_size


def test_a_tokenizer_without_a_counterpart_is_said():
    assert describe_files(ByteTokenizer(), 32) == (
        {},
        "tokenizer: ByteTokenizer has no counterpart in transformers; it stays in the run",
    )


@pytest.mark.parametrize(
    "model, message",
    [
        (config.Model(attention=config.Memorizing()), "export: given Memorizing, which transformers does not have"),
        (config.EncoderDecoder(), "export: given EncoderDecoder, which transformers does not have"),
        (config.Memformer(), "export: given Memformer"),
        (config.Model(attention=config.GPT2()), "model.scale_embeddings: given True, allowed: False"),
        (
            config.Model(attention=config.GPT2(), scale_embeddings=False, feed_forward=config.ProductKey()),
            "model.feed_forward.dense_scale: given 0.0, allowed: 1.0; transformers needs the feed-forward network that "
            "the memory replaces",
        ),
        (
            config.Model(attention=config.Bidirectional(), feed_forward=config.Dense(activation="swiglu")),
            "model.feed_forward.activation: given 'swiglu', allowed: 'relu' in a Hugging Face BERT",
        ),
        (config.Model(attention=config.Bidirectional(), head_dim=16), "model.head_dim: given 16, allowed: 64"),
        (config.Model(attention=config.Bidirectional(num_token_types=0)), "model.attention.pooler: given True"),
        (
            config.Model(attention=config.Compressive(norm="pre_sonnet")),
            "model.attention.norm: given 'pre_sonnet', allowed: 'pre' in a Hugging Face Transformer-XL",
        ),
    ],
)
def test_a_model_without_a_counterpart_is_refused_by_its_option(model, message):
    with pytest.raises(ValueError, match=message):
        family_of_run(model).export_config(model, 5, config.LanguageModeling())


def test_a_head_that_is_another_one_there_stays_behind():
    distil = config.Model(attention=config.Bidirectional(num_token_types=0, pooler=False))
    written = hf_bert.export_config(distil, 5, config.Classification(num_classes=3))
    assert written["architectures"] == ["DistilBertModel"]
    relu = config.Model(attention=config.Bidirectional())  # the head of masked tokens has GELU here
    assert hf_bert.export_config(relu, 5, config.MaskedLanguageModeling())["architectures"] == ["BertModel"]
    written = hf_bert.export_config(relu, 5, config.Classification(num_classes=3))
    assert written["architectures"] == ["BertForSequenceClassification"] and len(written["id2label"]) == 3


@pytest.mark.parametrize(
    "attention",
    [config.Compressive(memory_length=4), config.InfinityFormer(num_basis=4, widths=(0.01,), num_samples=4)],
)
def test_a_memory_over_a_transformer_xl_stays_behind(attention):
    model = config.Model(dim=8, num_heads=2, num_layers=1, attention=attention)
    written = hf_transfo_xl.export_config(model, 5)
    assert written["mem_len"] == attention.memory_length and written["model_type"] == "transfo-xl"
    shapes = jax.eval_shape(
        lambda: init_variables(make_language_model(model, 5, segment_length=4), jax.random.key(0), 4)
    )
    params = jax.tree.map(lambda leaf: np.ones(leaf.shape, leaf.dtype), shapes["params"])
    plain = dataclasses.replace(model, attention=config.TransformerXL(memory_length=4))
    assert hf_transfo_xl.export_params(params, model).keys() == hf_transfo_xl.export_params(params, plain).keys()


def test_a_transformer_xl_without_biases_gets_zeros(tmp_path):
    model, params = hf_transfo_xl.load_pretrained(made.transfo_xl(tmp_path / "weights"))
    assert hf_transfo_xl.differences(model) == ()
    model.attention.empty_memory = "mask"
    assert "until its memory is full" in hf_transfo_xl.differences(model)[0]
    del params["vocabulary"]["bias"]
    model.output = config.Softmax(tied=True, bias=False)
    np.testing.assert_array_equal(hf_transfo_xl.export_params(params, model)["crit.out_layers.0.bias"], np.zeros(37))


def change(name, **values):
    def apply(folder):
        file = folder / name
        file.write_text(json.dumps({**read_json(file), **values}))

    return apply


def truncate(folder):
    file = folder / folders.WEIGHTS_FILE
    file.write_bytes(file.read_bytes()[:-100])


def without(*names):
    return lambda folder: [(folder / name).unlink() for name in names]


def rewrite(edit):
    def apply(folder):
        kept = made.read(folder)
        edit(kept)
        safetensors.numpy.save_file(kept, folder / folders.WEIGHTS_FILE)

    return apply


def to_bytes(weights):
    weights["model.norm.weight"] = weights["model.norm.weight"].astype(np.int8)


def to_pickle(folder):
    (folder / folders.WEIGHTS_FILE).rename(folder / "pytorch_model.bin")


@pytest.mark.parametrize(
    "kind, damage, message",
    [
        ("gpt2", without(folders.CONFIG_FILE), r"folder: .* has no config\.json, allowed: a folder as save_pretrained"),
        ("gpt2", without(folders.WEIGHTS_FILE), r"folder: .* has no model\.safetensors, allowed: "),
        ("gpt2", to_pickle, r"has pytorch_model\.bin, a pickle, which is not read; allowed: model\.safetensors"),
        ("gpt2", truncate, r"model\.safetensors: given a file that is not whole \(.*\), allowed: safetensors"),
        ("gpt2", lambda f: (f / "config.json").write_text("{"), r"config\.json is not JSON \(.*\), allowed: "),
        ("gpt2", lambda f: (f / "config.json").write_text("[]"), r"config\.json cannot be read \(list instead"),
        ("gpt2", change("config.json", model_type="mamba"), r"given model_type 'mamba', allowed: 'gpt2', 'bert', "),
        ("gpt2", change("config.json", n_layer="2"), r"hf_config\['n_layer'\]: given '2', allowed: a value such as 12"),
        ("gpt2", change("config.json", n_head=0), r"hf_config\['n_head'\]: given 0, allowed: a divisor of n_embd = 24"),
        ("bert", lambda f: (f / "tokenizer.json").write_text("{"), r"tokenizer\.json cannot be read \(.*\), allowed: "),
        ("bert", lambda f: (f / "tokenizer_config.json").write_text("{"), r"tokenizer_config\.json is not JSON"),
        ("gpt2", change("config.json", model_type=None), r"given model_type None, allowed: "),
        ("gpt2", change("config.json", n_positions=31), r"has shape \(32, 24\) and not \(31, 24\); allowed: "),
        ("gpt2", rewrite(lambda w: w.pop("transformer.ln_f.bias")), r"ln_f\.bias is missing; allowed: "),
        ("gpt2", rewrite(lambda w: w.update(more=np.zeros(2))), r"model: more is left over; allowed: "),
        ("gpt2", without("merges.txt"), r"has no tokenizer\.json, or vocab\.json and merges\.txt, allowed: "),
        ("gpt2", change("vocab.json", more=61), r"tokenizer: given one of 62 ids, allowed: 61, which"),
        ("bert", without("vocab.txt"), r"has no tokenizer\.json or vocab\.txt, allowed: one with its vocabulary"),
        ("bert", change("config.json", vocab_size=60), r"61 word embeddings, allowed: 60, the vocab_size"),
        ("bert", change("config.json", hidden_act="gelu_10"), r"given 'gelu_10', allowed: 'gelu_new', 'gelu', "),
        ("transfo-xl", without("vocab.txt"), r"has no vocabulary; allowed: vocab\.txt, a word a line"),
        ("transfo-xl", lambda f: (f / "vocab.txt").rename(f / "vocab.bin"), r"has vocab\.bin, a pickle, which is not"),
        ("transfo-xl", lambda f: (f / "vocab.txt").write_text("a\nb\n"), r"vocab\.txt: has no <eos>, allowed: "),
        ("transfo-xl", lambda f: (f / "vocab.txt").write_text("<eos>\n<unk>\n"), r"given one of 2 ids, allowed: 37"),
        ("llama", change("config.json", model_type="mixtral", num_local_experts=8), r"'mixtral', a mixture of experts"),
        ("llama", change("config.json", rope_scaling={"type": "spiral"}), r"'rope_scaling'\]: given type 'spiral'"),
        ("llama", change("config.json", intermediate_size=48), r"gate_proj.weight has shape \(40, 24\) and not \(48, "),
        ("llama", change("config.json", num_key_value_heads=4), r"k_proj.weight has shape \(12, 24\) and not \(24, 24"),
        ("llama", change("config.json", num_hidden_layers=3), r"model.layers.2.\S+ is missing; .* allowed: a Llama"),
        ("llama", rewrite(lambda w: w["model.norm.weight"].fill(np.nan)), r"norm.weight'\]: given nan at \[0\], 24 of"),
        ("llama", rewrite(to_bytes), r"model.norm.weight has the type int8 and not one of 16 bits or more"),
    ],
)  # fmt: skip
def test_a_damaged_folder_is_one_line_and_leaves_nothing(kind, damage, message, tmp_path):
    folder = made.FOLDERS[kind](tmp_path / "weights")
    damage(folder)
    with pytest.raises(ValueError, match=message) as error:
        import_run(folder, tmp_path / "run")
    assert "\n" not in str(error.value) and not (tmp_path / "run").exists()


def test_the_commands_refuse_in_one_line(tmp_path, capsys):
    folder, run = made.gpt2(tmp_path / "weights"), tmp_path / "run"

    def ask(*arguments):
        assert cli.main([str(argument) for argument in arguments]) == 2
        return capsys.readouterr().err.strip()

    export = ("export", "--run", run, "--to", tmp_path / "to")
    assert "no run directory" in ask(*export)
    bert = made.bert(tmp_path / "bert")
    assert "dialogues: given True, allowed: False" in ask("import", "--weights", bert, "--run", run, "--dialogues")
    assert cli.main(["import", "--weights", str(folder), "--run", str(run)]) == 0
    assert "61 ids" in capsys.readouterr().out
    assert "exists, allowed: a new directory" in ask("import", "--weights", folder, "--run", run)
    assert "is not empty, allowed: a new or empty folder" in ask(*export[:3], "--to", folder)
    for step in (run / "checkpoints").iterdir():
        step.rename(tmp_path / step.name)
    assert "has no checkpoint" in ask(*export) and not (tmp_path / "to").exists()
    assert sorted(path.name for path in tmp_path.iterdir() if "partial" in path.name) == []


@pytest.mark.slow
def test_gpt2_goes_on_from_a_prompt_and_scores_a_text(tmp_path, capsys):
    folder, run = made.gpt2(tmp_path / "weights"), tmp_path / "run"
    assert cli.main(["import", "--weights", str(folder), "--run", str(run)]) == 0
    text = tmp_path / "text.txt"
    text.write_text("the thing and the other\n" * 40)
    capsys.readouterr()
    ask = ["generate", "--run", str(run), "--prompt", "the", "--max-tokens", "6", "--greedy", "--json"]
    assert cli.main(ask) == 0
    found = json.loads(capsys.readouterr().out)["text"]
    loaded = load_run(run)
    ids = [loaded.experiment.begin_token, *loaded.experiment.tokenizer.encode("the").tolist()]
    for _ in range(6):
        ids.append(int(log_probs(loaded, np.array([ids]))[0, -1].argmax()))
    assert found == loaded.experiment.tokenizer.decode(ids[2:])
    assert cli.main(["eval", "--run", str(run), "--data.source.path", str(text), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["nats"] > 0


def log_probs(loaded, ids):
    """Of a decoder, from empty memories."""
    model, start = loaded.experiment.model, jnp.ones(len(ids), bool)
    state = model.init_state(len(ids))
    hidden, _, _ = model.apply(loaded.variables, jnp.asarray(ids, jnp.int32), state, start_of_document=start)
    return np.asarray(model.apply(loaded.variables, hidden, method="log_probs"))


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_runs_give_the_published_numbers_also_after_a_round_trip(kind, tmp_path):
    import_run(made.FOLDERS[kind](tmp_path / "weights"), tmp_path / "first")
    export_run(tmp_path / "first", tmp_path / "folder")
    import_run(tmp_path / "folder", tmp_path / "second")
    first, second = load_run(tmp_path / "first"), load_run(tmp_path / "second")
    jax.tree.map(np.testing.assert_array_equal, first.variables, second.variables)
    if kind == "transfo-xl":
        arrays = made.golden("transfoxl_full.npz", "seg0/")
        found, expected = log_probs(second, arrays["ids"]), arrays["log_probs"]
    elif kind == "llama":
        ids, mask = variants.inputs()
        found = log_probs(second, ids)[mask]
        expected = jax.nn.log_softmax(made.golden("interop.npz")["llama"])[mask]
    elif kind == "gpt2":
        arrays = made.golden("gpt2_tiny.npz")
        found, expected = log_probs(second, arrays["ids"]), jax.nn.log_softmax(arrays["logits"])
    else:
        arrays = made.golden(f"{kind}_tiny.npz")
        mask, types = arrays["mask"].astype(bool), arrays.get("token_type_ids")
        extras = {} if types is None else {"token_types": jnp.asarray(types, jnp.int32)}
        model, ids = second.experiment.model, jnp.asarray(arrays["ids"], jnp.int32)
        output, _, _ = model.apply(second.variables, ids, model.init_state(2), mask=jnp.asarray(mask), extras=extras)
        logits = model.apply(second.variables, output, method="logits")
        found, expected = np.asarray(logits)[mask], arrays["logits"][mask]
    np.testing.assert_allclose(found[..., : expected.shape[-1]], expected, atol=5e-6, rtol=0)
