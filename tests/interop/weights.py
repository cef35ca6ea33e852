"""Folders as `save_pretrained` of transformers writes them, of the golden weights."""

import json
from collections.abc import Callable
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import safetensors.numpy

from memjax.data.wordpiece import SPECIAL
from memjax.interop.families import FAMILIES
from memjax.interop.folders import CONFIG_FILE, SHARD_BYTES, WEIGHTS_FILE, write_folder
from tests.interop import variants

GOLDEN = Path(__file__).parent.parent / "golden"
CHARACTERS = "abcdefghijklmnopqrstuvwxyzABCĠĊ.,?!'-0123456789éÃ"
MERGES = ("t h", "th e", "Ġ a", "Ġ t", "i n", "in g", "o u", "r e", "Ġa n")


def golden(name: str, prefix: str = "") -> dict[str, np.ndarray]:
    """Arrays of a golden file, those whose names have a prefix."""
    with np.load(GOLDEN / name) as file:
        return {key.removeprefix(prefix): file[key] for key in file.files if key.startswith(prefix)}


def gpt2(folder: Path) -> Path:
    """61 byte pairs, whose last is the end of a text."""
    _copy("gpt2", folder)
    return _add_byte_pairs(folder)


def llama(folder: Path) -> Path:
    """The tokenizer of `gpt2`, and the weights of a variant."""
    return rotary("llama", folder)


def rotary(name: str, folder: Path, dtype: str = "float32", shard_bytes: int = SHARD_BYTES) -> Path:
    """Makes a folder of a variant with rotary positions, with the tokenizer of `gpt2`, in files of `shard_bytes`."""
    described, vocab = {**variants.describe(name), "dtype": dtype}, variants.VOCAB
    family = FAMILIES[described["model_type"]]
    tensors = {
        name: tuple(vocab if size == -1 else size for size in shape)
        for mapping in family.tensors(family.model_config(described), None)
        for name, shape in mapping.tensors.items()
    }
    weights = {path: weight.astype(jnp.dtype(dtype)) for path, weight in variants.weights(tensors).items()}
    write_folder(folder, described, weights, shard_bytes=shard_bytes)
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [60, 59], "temperature": 0.6}), "utf-8")
    return _add_byte_pairs(folder)


def _add_byte_pairs(folder: Path) -> Path:
    pieces = [*CHARACTERS, *(merge.replace(" ", "") for merge in MERGES), "<|endoftext|>"]
    pieces = [*pieces[:-1], *(f"Ġ{letter}" for letter in "bcdefghij")][:60] + pieces[-1:]
    (folder / "vocab.json").write_text(json.dumps({piece: number for number, piece in enumerate(pieces)}), "utf-8")
    (folder / "merges.txt").write_text("#version: 0.2\n" + "".join(f"{merge}\n" for merge in MERGES), "utf-8")
    return folder


def bert(folder: Path) -> Path:
    """61 pieces."""
    _copy("bert", folder)
    return _add_pieces(folder)


def distilbert(folder: Path) -> Path:
    """61 pieces."""
    _copy("distilbert", folder)
    return _add_pieces(folder)


def transfo_xl(folder: Path, variant: str = "") -> Path:
    """37 words, or 15 of one of the variants with an adaptive softmax."""
    arrays = golden("transfoxl_variants.npz", f"{variant}/") if variant else golden("transfoxl_full.npz")
    weights = {name.removeprefix("param/"): array for name, array in arrays.items() if name.startswith("param/")}
    tied = [name for name in weights if name.startswith("crit.out_layers") and name.endswith("weight")]
    described = json.loads(str(arrays["config_json"]))
    tied += [f"crit.out_projs.{i}" for i, is_tied in enumerate(described["tie_projs"]) if is_tied]
    write_folder(folder, described, {name: array for name, array in weights.items() if name not in tied})
    words = ["<eos>", "<unk>", *(f"word{number}" for number in range(described["vocab_size"] - 2))]
    (folder / "vocab.txt").write_text("\n".join(words) + "\n")
    return folder


FOLDERS: dict[str, Callable[[Path], Path]] = {
    "gpt2": gpt2,
    "bert": bert,
    "distilbert": distilbert,
    "transfo-xl": transfo_xl,
    "llama": llama,
}
"""`model_type` -> what makes a folder of it"""


def read(folder: Path) -> dict[str, np.ndarray]:
    """The weights of a folder."""
    return safetensors.numpy.load_file(folder / WEIGHTS_FILE)


def _copy(kind: str, folder: Path) -> None:
    folder.mkdir(parents=True)
    described = json.loads(str(golden(f"{kind}_tiny.npz")["config_json"]))
    (folder / CONFIG_FILE).write_text(json.dumps(described))
    (folder / WEIGHTS_FILE).write_bytes((GOLDEN / f"{kind}_tiny.safetensors").read_bytes())


def _add_pieces(folder: Path) -> Path:
    (folder / "vocab.txt").write_text("\n".join([*SPECIAL, *(f"piece{number}" for number in range(56))]) + "\n")
    return folder
