import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from memjax.data.glue import LabelledText
from memjax.data.wordpiece import SPECIAL, WordPieceTokenizer
from memjax.durable_files import read_json
from memjax.interop import hf_bert
from memjax.lifelong import text_features as features
from memjax.lifelong.text_features import (
    FrozenEncoder,
    cached_features,
    cached_splits,
    encode_texts,
    encoder_fingerprint,
    open_encoder,
)
from memjax.models.factory import make_text_encoder
from tests.interop import weights as made

TEXTS = ["one", "two three", "one two three four five six seven", "four " * 40, "six", ("one two", "three")]
WORDS = ["one", "two", "three", "four", "five", "six", "seven"]


@pytest.fixture(scope="module")
def encoder() -> FrozenEncoder:
    """The golden BERT of 2 layers, 24 wide, 61 pieces and 32 positions."""
    described = json.loads(str(made.golden("bert_tiny.npz")["config_json"]))
    model = hf_bert.model_config(described, pooler=False)
    params = hf_bert.import_params(made.GOLDEN / "bert_tiny.safetensors", model)
    pieces = [*SPECIAL, *WORDS, *(f"piece{number}" for number in range(61 - len(SPECIAL) - len(WORDS)))]
    tokenizer = WordPieceTokenizer(content="\n".join(pieces))
    return FrozenEncoder(make_text_encoder(model, None, 61), {"params": params}, tokenizer)


@pytest.fixture(scope="module")
def alone(encoder) -> list[np.ndarray]:
    """The hidden states `[tokens, dim]` of each text, read alone and without padding but for a common width."""
    apply = jax.jit(
        lambda *a: encoder.model.apply(encoder.variables, a[0], mask=a[1], token_types=a[2], method="hidden_states")
    )
    found = []
    for text in TEXTS:
        parts = [encoder.tokenizer.encode(part) for part in ([text] if isinstance(text, str) else text)]
        ends = [encoder.tokenizer.end_id]
        ids = np.concatenate([[encoder.tokenizer.begin_id], *(np.append(part, ends) for part in parts)])
        ids = ids if len(ids) <= 16 else np.append(ids[:15], ends)
        types = np.repeat(range(len(parts)), [len(part) + 1 + (not n) for n, part in enumerate(parts)])[: len(ids)]
        tokens, kinds = (np.pad(row, (0, 16 - len(ids)))[None].astype(np.int32) for row in (ids, types))
        hidden, _ = apply(jnp.asarray(tokens), jnp.arange(16)[None] < len(ids), jnp.asarray(kinds))
        found.append(np.asarray(hidden[0, : len(ids)]))
    return found


def test_each_text_has_the_vector_that_it_has_alone(encoder, alone):
    """Whatever stands beside it: three texts a batch, sorted by length, the last one with empty rows."""
    found = {pooling: encode_texts(encoder, TEXTS, pooling=pooling, length=16, rows=4) for pooling in features.POOLINGS}
    first = np.stack([hidden[0] for hidden in alone])
    mean = np.stack([hidden.mean(axis=0, dtype=np.float64) for hidden in alone])
    expected = {"first": first, "mean": mean, "unit_mean": mean / np.linalg.norm(mean, axis=1, keepdims=True)}
    for pooling, vectors in expected.items():
        assert found[pooling].dtype == np.float32
        np.testing.assert_allclose(found[pooling], vectors, atol=2e-6, rtol=0, err_msg=pooling)


def test_the_last_layer_gives_the_last_hidden_states(encoder):
    some = TEXTS[:3]
    last = encode_texts(encoder, some, length=16, rows=4)
    np.testing.assert_allclose(encode_texts(encoder, some, layer=-1, length=16, rows=4), last, atol=2e-6, rtol=0)
    assert np.abs(encode_texts(encoder, some, layer=0, length=16, rows=4) - last).max() > 0.01


def test_what_does_not_fit_is_named(encoder):
    with pytest.raises(ValueError, match="pooling: given 'max', allowed: first, mean, unit_mean"):
        encode_texts(encoder, TEXTS, pooling="max")
    with pytest.raises(ValueError, match="layer: given 2, allowed: -2 to 1, or None"):
        encode_texts(encoder, TEXTS, layer=2)
    with pytest.raises(ValueError, match="texts: given none, allowed: at least one"):
        encode_texts(encoder, [])
    with pytest.raises(ValueError, match="tokens: a text of 48 tokens given, allowed: up to 32"):
        encode_texts(encoder, ["four " * 40], length=64)


def test_the_fingerprint_tells_weights_tokenizer_and_settings_apart(encoder):
    own = encoder_fingerprint(encoder, pooling="mean", length=16)
    assert own == encoder_fingerprint(encoder, length=16, pooling="mean")
    changed = jax.tree.map(np.array, encoder.variables)
    changed["params"]["position_embedding"][0, 0] += 1e-3
    other = WordPieceTokenizer(content="\n".join([*SPECIAL, *WORDS]))
    others = {
        encoder_fingerprint(encoder, pooling="mean", length=17),
        encoder_fingerprint(encoder._replace(variables=changed), pooling="mean", length=16),
        encoder_fingerprint(encoder._replace(tokenizer=other), pooling="mean", length=16),
    }
    assert len(others | {own}) == 4


def test_a_file_is_made_once_and_belongs_to_its_texts_and_encoder(tmp_path):
    calls = []

    def encode(texts):
        calls.append(texts)
        return np.array([[len(text), 1] for text in texts], np.float64)

    path = tmp_path / "new" / "train.npy"
    for _ in range(2):
        found = cached_features(["a", "bc"], encode, path=path, fingerprint="x")
        assert isinstance(found, np.memmap) and found.dtype == np.float32 and found.tolist() == [[1, 1], [2, 1]]
    assert len(calls) == 1 and sorted(entry.name for entry in path.parent.iterdir()) == ["train.json", "train.npy"]
    for texts, fingerprint in [(["a", "bd"], "x"), (["ab", "c"], "x"), (["a", "bc"], "y"), (["a"], "x")]:
        with pytest.raises(ValueError, match=r"path: .*train\.npy holds the features x-\w+, allowed: [xy]-\w+; give"):
            cached_features(texts, encode, path=path, fingerprint=fingerprint)
    assert len(calls) == 1
    with pytest.raises(ValueError, match=r"encode: given an array \[1, 2\], allowed: a vector for each of 2 texts"):
        cached_features(["a", "b"], lambda texts: np.ones((1, 2)), path=tmp_path / "y.npy", fingerprint="x")


@pytest.mark.parametrize("broken", ["save", "write_json"])
def test_what_was_interrupted_is_made_anew(tmp_path, monkeypatch, broken):
    path, ones = tmp_path / "x.npy", lambda texts: np.ones((len(texts), 3), np.float32)

    def stop(file, *_):
        if broken == "save":
            file.write(b"half")
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(*((np, "save") if broken == "save" else (features, broken)), stop)
        with pytest.raises(KeyboardInterrupt):
            cached_features(["a"], ones, path=path, fingerprint="x")
    assert path.exists() == (broken != "save")
    assert cached_features(["b"], ones, path=path, fingerprint="y").shape == (1, 3)  # nothing was promised


def test_a_folder_of_splits_has_labels_and_says_what_it_is(tmp_path):
    splits = {"train": [LabelledText(("a",), 3), LabelledText(("b", "c"), 7)], "test": [LabelledText(("d",), 3)]}
    widths = lambda texts: np.array([[len(text)] for text in texts], np.float32)
    found = cached_splits(splits, widths, path=tmp_path, fingerprint="widths", about="how long they are")
    assert {name: array.tolist() for name, array in found.items()} == {"train": [[1.0], [2.0]], "test": [[1.0]]}
    labels = np.load(tmp_path / "train_labels.npy")
    assert labels.dtype == np.int32 and labels.tolist() == [3, 7]
    about = read_json(tmp_path / "about.json")
    assert about == {"fingerprint": "widths", "about": "how long they are", "texts": {"train": 2, "test": 1}}


@pytest.mark.slow
def test_a_run_made_of_weights_is_opened_without_its_heads(tmp_path, encoder):
    from memjax.interop.runs import import_run

    import_run(made.bert(tmp_path / "weights"), tmp_path / "run")
    opened = open_encoder(tmp_path / "run")
    texts = ["piece1 piece2", "piece3"]
    expected = encode_texts(FrozenEncoder(encoder.model, encoder.variables, opened.tokenizer), texts, length=16)
    np.testing.assert_allclose(encode_texts(opened, texts, length=16), expected, atol=1e-6, rtol=0)
    with pytest.raises(ValueError, match="has no checkpoint, allowed: the directory of a run"):
        open_encoder(tmp_path / "weights")
