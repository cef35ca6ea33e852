"""Folders that are exported here, read by transformers itself where it is installed."""

import jax
import numpy as np
import pytest

from memjax import config
from memjax.data.byte_pairs import train_byte_pairs
from memjax.interop import folders
from memjax.interop.families import family_of_weights
from memjax.interop.runs import export_run, import_run, write_run
from memjax.training.experiment import make_experiment
from memjax.training.train_state import init_variables
from tests.interop import variants
from tests.interop import weights as made
from tests.interop.variants_test import LIMIT, logits_of
from tests.interop.variants_test import make as variant

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.slow


def read_logits(folder, class_name):
    """Logits of the class that transformers reads from a folder."""
    model = getattr(transformers, class_name).from_pretrained(folder, attn_implementation="eager").eval()
    ids, mask = variants.inputs()
    with torch.no_grad():
        output = model(torch.from_numpy(ids), attention_mask=torch.from_numpy(mask.astype(np.int64)))
    if hasattr(output, "start_logits"):
        return np.stack([output.start_logits.numpy(), output.end_logits.numpy()], axis=-1)
    return output.logits.numpy()


@pytest.mark.parametrize("name", variants.VARIANTS)
def test_what_is_written_computes_the_same_there(name, tmp_path):
    family, described, weights = variant(name)
    read = family.read_model(described, weights)
    written = {"pad_token_id": 1} | family.export_config(read.model, variants.VOCAB, read.task)
    folders.write_folder(tmp_path, written, family.export_params(read.params, read.model, read.task))
    expected, logits = read_logits(tmp_path, variants.VARIANTS[name][0]), logits_of(read.model, read.params, read.task)
    real = variants.inputs()[1] if expected.shape[1] == variants.LENGTH else slice(None)
    expected, logits = expected[real], logits.reshape(expected.shape)[real]
    assert expected.max() - expected.min() >= 3
    assert np.abs(logits - expected).max() / np.abs(expected).max() <= LIMIT


def test_a_gemma3_with_images_comes_back_and_its_language_model_is_the_same(tmp_path):
    text = {
        key: value for key, value in variants.describe("gemma3").items() if key not in ("model_type", "architectures")
    }
    del text["final_logit_softcapping"]  # which the class with images does not read
    images = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    images |= {"image_size": 8, "patch_size": 4}
    described = transformers.Gemma3Config(
        text_config=text, vision_config=images, mm_tokens_per_image=4, image_token_id=2
    )
    model = transformers.Gemma3ForConditionalGeneration(described).eval()
    with torch.no_grad():
        for path, parameter in model.named_parameters():
            parameter.copy_(torch.from_numpy(variants.tensor(path, tuple(parameter.shape))))
    model.save_pretrained(tmp_path / "weights")
    made._add_byte_pairs(tmp_path / "weights")
    run = import_run(tmp_path / "weights", tmp_path / "run")
    assert run.left and all("vision_tower" in name or "projector" in name for name in run.left)
    export_run(tmp_path / "run", tmp_path / "again")
    there, again = made.read(tmp_path / "weights"), made.read(tmp_path / "again")
    assert there.keys() == again.keys()
    jax.tree.map(lambda a, b: np.testing.assert_array_equal(a, b, strict=True), again, there)
    expected = read_logits(tmp_path / "again", "Gemma3ForConditionalGeneration")
    described, weights = folders.read_folder(tmp_path / "weights")
    read = family_of_weights(described).read_model(described, weights)
    real, logits = variants.inputs()[1], logits_of(read.model, read.params, None)
    assert expected[real].max() - expected[real].min() >= 3
    assert np.abs(logits - expected)[real].max() / np.abs(expected[real]).max() <= LIMIT


def test_a_roberta_may_go_on_as_a_bert(tmp_path):
    family, described, weights = variant("roberta")
    read = family.read_model(described, weights)
    from memjax.interop.families import family_of_run

    bert = family_of_run(read.model)
    written = bert.export_config(read.model, variants.VOCAB, read.task)
    assert written["architectures"] == ["BertForMaskedLM"]
    folders.write_folder(tmp_path, written, bert.export_params(read.params, read.model, read.task))
    real = variants.inputs()[1]
    expected = read_logits(tmp_path, "BertForMaskedLM")[real]
    logits = logits_of(read.model, read.params, read.task)[real]
    assert np.abs(logits - expected).max() / np.abs(expected).max() <= LIMIT


def test_generation_stops_at_the_end_token_there(tmp_path):
    texts = ["The cat sat on the mat\n", "  a café, 漢字\n"] * 4
    tokenizer = train_byte_pairs(texts, tmp_path / "made.json", vocab_size=290)
    model = config.Model(
        dim=16, num_layers=2, num_heads=2, scale_embeddings=False, attention=config.GPT2(num_positions=32)
    )
    data = config.Data(source=config.TextFiles(), tokenizer=config.BytePairs(), segment_length=32)
    described = config.Config(name="run", workdir=str(tmp_path), model=model, data=data)
    experiment = make_experiment(described, tokenizer=tokenizer)
    params = jax.tree.map(np.asarray, init_variables(experiment.model, jax.random.key(0), 32)["params"])
    params["vocabulary"]["embedding"] = np.array(params["vocabulary"]["embedding"][:290])
    params["vocabulary"]["embedding"][tokenizer.end_id] *= 10
    params["layer_norm"] = {  # whatever was read, the next token is the last one
        "scale": np.zeros(16, np.float32),
        "bias": params["vocabulary"]["embedding"][tokenizer.end_id] * 10,
    }
    (tmp_path / "run").mkdir()
    write_run(tmp_path / "run", experiment, params)
    export_run(tmp_path / "run", tmp_path / "to")
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "to")
    gpt2 = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "to").eval()
    assert theirs.eos_token_id == gpt2.config.eos_token_id == gpt2.generation_config.eos_token_id == tokenizer.end_id
    assert gpt2.config.pad_token_id == tokenizer.pad_id and gpt2.config.bos_token_id == tokenizer.begin_id
    ids = theirs("The cat", return_tensors="pt")["input_ids"]
    assert ids[0].tolist() == tokenizer.encode("The cat").tolist()
    assert gpt2.generate(ids, max_new_tokens=20, do_sample=False).shape[1] == ids.shape[1] + 1
