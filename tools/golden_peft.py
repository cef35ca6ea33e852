"""Writes `tests/golden/peft_*`: adapters of the tiny GPT-2 as `peft` saves them, and the logits with them.

Needs torch, transformers and peft, which are not in the lock: run it in an environment of its own.

    python -m tools.golden_peft                                # writes the goldens
    python -m tools.golden_peft BASE_FOLDER ADAPTERS OUT.npz   # only logits of adapters that memjax has exported
"""

import json
import shutil
import sys
import tempfile
from pathlib import Path

import numpy as np
import peft
import safetensors.torch
import torch
import transformers

GOLDEN = Path(__file__).parent.parent / "tests/golden"
CASES = {
    "ranks": {
        "r": 4,
        "lora_alpha": 6,
        "target_modules": ["c_attn", "c_fc", "mlp.c_proj"],
        "rank_pattern": {"c_fc": 2},
        "modules_to_save": ["ln_f"],
    },
    "stabilized": {
        "r": 3,
        "lora_alpha": 5,
        "target_modules": ["c_attn", "attn.c_proj"],
        "layers_to_transform": [1],
        "use_rslora": True,
    },
}


def base_model(folder: str | None = None) -> torch.nn.Module:
    """Makes the tiny GPT-2 of the goldens, or reads a folder."""
    if folder is not None:
        return transformers.GPT2LMHeadModel.from_pretrained(folder, attn_implementation="eager").eval()
    with np.load(GOLDEN / "gpt2_tiny.npz") as file:
        described = json.loads(str(file["config_json"]))
    settings = transformers.GPT2Config.from_dict({**described, "attn_implementation": "eager"})
    model = transformers.GPT2LMHeadModel(settings).eval()
    weights = safetensors.torch.load_file(GOLDEN / "gpt2_tiny.safetensors")
    missing, _ = model.load_state_dict(weights, strict=False)
    assert set(missing) <= {"lm_head.weight"}, missing
    return model


def logits(model: torch.nn.Module) -> np.ndarray:
    """Returns the logits of the ids of the goldens."""
    with np.load(GOLDEN / "gpt2_tiny.npz") as file, torch.no_grad():
        return model(torch.from_numpy(file["ids"].astype(np.int64))).logits.numpy()


def write_case(name: str) -> None:
    """Writes the adapters of a case with random values, also in B, and their logits."""
    options = {"fan_in_fan_out": True, "task_type": "CAUSAL_LM", **CASES[name]}
    model = peft.get_peft_model(base_model(), peft.LoraConfig(**options)).eval()
    generator, plain = torch.Generator().manual_seed(0), logits(base_model())
    with torch.no_grad():
        for path, parameter in model.named_parameters():
            if "lora_" in path or "modules_to_save" in path:
                drawn = torch.randn(parameter.shape, generator=generator)
                parameter.copy_(
                    1 + 0.3 * drawn if path.endswith("ln_f.modules_to_save.default.weight") else 0.5 * drawn
                )
    to = GOLDEN / f"peft_{name}"
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        shutil.rmtree(to, ignore_errors=True)
        to.mkdir()
        for file in ("adapter_config.json", "adapter_model.safetensors"):
            shutil.copy(Path(folder) / file, to / file)
    found = logits(model)
    np.savez_compressed(to / "logits.npz", logits=found)
    print(f"{name}: spread {np.ptp(found):.1f}, change {np.abs(found - plain).max():.2f}")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        base, adapters, target = sys.argv[1:]
        model = peft.PeftModel.from_pretrained(base_model(base), adapters).eval()
        np.savez_compressed(target, logits=logits(model))
    else:
        for case in CASES:
            write_case(case)
