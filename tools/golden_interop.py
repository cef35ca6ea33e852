"""Writes `tests/golden/interop.npz`: logits of transformers' classes for `tests/interop/variants.py`.

Needs torch and transformers, which are not in the lock: run it in an environment of its own.

    python -m tools.golden_interop          # all variants
    python -m tools.golden_interop NAME ...  # these; what the file has of others stays
"""

import sys
from pathlib import Path

import numpy as np
import torch
import transformers

from tests.interop import variants

TARGET = Path(__file__).parent.parent / "tests/golden/interop.npz"


def logits(name: str) -> np.ndarray:
    """Returns the logits of a variant; those of spans as `[batch, length, 2]`."""
    class_name, _ = variants.VARIANTS[name]
    kind = getattr(transformers, class_name)
    settings = kind.config_class.from_dict(
        {"pad_token_id": 1, **variants.describe(name), "attn_implementation": "eager"}
    )
    model = kind(settings).eval()
    with torch.no_grad():
        for path, parameter in model.named_parameters():  # a tied one once, by its first name
            parameter.copy_(torch.from_numpy(variants.tensor(path, tuple(parameter.shape))))
        ids, mask = variants.inputs()
        output = model(torch.from_numpy(ids), attention_mask=torch.from_numpy(mask.astype(np.int64)))
    if hasattr(output, "start_logits"):
        return np.stack([output.start_logits.numpy(), output.end_logits.numpy()], axis=-1)
    return output.logits.numpy()


if __name__ == "__main__":
    goldens = {name: logits(name) for name in sys.argv[1:] or variants.VARIANTS}
    for name, array in goldens.items():
        print(f"{name}: {array.shape}, spread {array.max() - array.min():.1f}")
    with np.load(TARGET) as file:
        kept = {name: file[name] for name in file.files if name in variants.VARIANTS}
    np.savez_compressed(TARGET, **(kept | goldens))
