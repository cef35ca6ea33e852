"""Writes `tests/golden/interop.npz`: logits of transformers' classes for `tests/interop/variants.py`.

Needs torch and transformers, which are not in the lock: run it in an environment of its own.

    python -m tools.golden_interop          # all variants
    python -m tools.golden_interop NAME ...  # these; what the file has of others stays
"""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

from tests.interop import variants

TARGET = Path(__file__).parent.parent / "tests/golden/interop.npz"


CACHED, SEGMENT = 1e-5, 4
"""largest difference of logits with and without a cache over the largest logit; tokens of a segment"""


def load(name: str) -> Any:
    """Returns the model of a variant."""
    class_name, _ = variants.VARIANTS[name]
    kind = getattr(transformers, class_name)
    settings = kind.config_class.from_dict(
        {"pad_token_id": 1, **variants.describe(name), "attn_implementation": "eager"}
    )
    model = kind(settings).eval()
    with torch.no_grad():
        for path, parameter in model.named_parameters():  # a tied one once, by its first name
            parameter.copy_(torch.from_numpy(variants.tensor(path, tuple(parameter.shape))))
    return model


def logits(model: Any, length: int) -> np.ndarray:
    """Returns the logits of a model for texts of `length` tokens; those of spans as `[batch, length, 2]`."""
    ids, mask = variants.inputs(length)
    with torch.no_grad():
        output = model(torch.from_numpy(ids), attention_mask=torch.from_numpy(mask.astype(np.int64)))
    if hasattr(output, "start_logits"):
        return np.stack([output.start_logits.numpy(), output.end_logits.numpy()], axis=-1)
    return output.logits.numpy()


def cached_logits(model: Any, length: int) -> np.ndarray:
    """Returns the logits that a model computes with the cache of transformers, segment by segment."""
    ids, mask = variants.inputs(length)
    parts, cache = [], None
    with torch.no_grad():
        for start in range(0, length, SEGMENT):
            end = min(start + SEGMENT, length)
            output = model(
                torch.from_numpy(ids[:, start:end]),
                attention_mask=torch.from_numpy(mask[:, :end].astype(np.int64)),
                past_key_values=cache,
                use_cache=True,
            )
            parts, cache = [*parts, output.logits.numpy()], output.past_key_values
    return np.concatenate(parts, axis=1)


def goldens_of(name: str) -> dict[str, np.ndarray]:
    """Returns the logits of a variant by their names in the file, after a comparison of those with a cache."""
    model, goldens = load(name), dict[str, np.ndarray]()
    for length in variants.lengths(name):
        whole = goldens[variants.golden_name(name, length)] = logits(model, length)
        if len(variants.lengths(name)) > 1:
            real = variants.inputs(length)[1]
            difference = np.abs(cached_logits(model, length) - whole)[real].max() / np.abs(whole[real]).max()
            print(f"{name}, {length} tokens: with a cache {difference:.1e} apart")
            if difference > CACHED:
                raise SystemExit(f"{name}: the cache of transformers gives other logits")
    return goldens


if __name__ == "__main__":
    goldens = {key: array for name in sys.argv[1:] or variants.VARIANTS for key, array in goldens_of(name).items()}
    for name, array in goldens.items():
        print(f"{name}: {array.shape}, spread {array.max() - array.min():.1f}")
    known = {variants.golden_name(name, length) for name in variants.VARIANTS for length in variants.lengths(name)}
    with np.load(TARGET) as file:
        kept = {name: file[name] for name in file.files if name in known}
    np.savez_compressed(TARGET, **(kept | goldens))
