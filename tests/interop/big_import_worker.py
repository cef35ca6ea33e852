"""Imports a made folder of Llama in a process of its own, and prints its size and the peak of the host's memory."""

import json
import resource
import sys
from pathlib import Path

import jax.numpy as jnp
import numpy as np

from memjax.interop.folders import INDEX_FILE, save_weights, write_json
from memjax.interop.hf_llama import LLAMA
from memjax.interop.runs import import_run
from tests.interop import weights as made

SIZES = {"hidden_size": 2048, "num_attention_heads": 16, "num_key_value_heads": 4, "intermediate_size": 7168}
SIZES |= {"vocab_size": 61, "max_position_embeddings": 8192, "model_type": "llama", "dtype": "bfloat16"}
SIZES |= {"architectures": ["LlamaForCausalLM"]}


def make_folder(folder: Path, num_layers: int) -> int:
    """Makes a folder with random weights of 16 bits, a file a layer, and returns their bytes."""
    folder.mkdir()
    described = {**SIZES, "num_hidden_layers": num_layers}
    write_json(folder / "config.json", described, checked=False)
    shapes = {
        name: tuple(SIZES["vocab_size"] if size == -1 else size for size in shape)
        for mapping in LLAMA.tensors(LLAMA.model_config(described), None)
        for name, shape in mapping.tensors.items()
    }
    file_of = lambda name: f"model-{name.split('.')[2] if '.layers.' in name else 'rest'}.safetensors"
    places, total, rng = {name: file_of(name) for name in shapes}, 0, np.random.default_rng(0)
    for file in dict.fromkeys(places.values()):
        names = [name for name, place in places.items() if place == file]
        draw = lambda shape: rng.integers(0x3C00, 0x3D00, shape, np.uint16).view(jnp.bfloat16)  # 0.008 to 0.03
        save_weights({name: draw(shapes[name]) for name in names}, folder / file)
        total += sum(2 * int(np.prod(shapes[name])) for name in names)
    write_json(folder / INDEX_FILE, {"metadata": {"total_size": total}, "weight_map": places}, checked=False)
    made._add_byte_pairs(folder)
    return total


def peak() -> int:
    """Largest number of bytes of this process in the memory so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


if __name__ == "__main__":
    what, place = sys.argv[1], Path(sys.argv[2])
    if what == "make":
        print(make_folder(place / "weights", int(sys.argv[3])))
    else:
        before = peak()
        run = import_run(place / "weights", place / "run")
        print(json.dumps({"before": before, "peak": peak(), "parameters": run.num_parameters}))
