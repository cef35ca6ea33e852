"""Writes `tests/golden/rotary.json`: rotary frequencies of all kinds, from transformers.

Needs torch and transformers, which are not in the lock: run it in an environment of its own.

    python -m tools.golden_rotary
"""

import json
from pathlib import Path

from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

TARGET = Path(__file__).parent.parent / "tests/golden/rotary.json"
LLAMA3 = {"rope_type": "llama3", "low_freq_factor": 1.0, "high_freq_factor": 4.0}
DIVISORS = [1.0 + 0.5 * pair for pair in range(16)]
KINDS = {
    # name: theta, width of a head, share that is rotated, keys of `rope_parameters`
    "default": (10_000.0, 64, 1.0, {"rope_type": "default"}),
    "partial": (10_000.0, 64, 0.75, {"rope_type": "linear", "factor": 2.0}),
    "linear": (1e6, 64, 1.0, {"rope_type": "linear", "factor": 8.0}),
    "llama3": (500_000.0, 64, 1.0, {**LLAMA3, "factor": 32.0, "original_max_position_embeddings": 8192}),
    "llama3_short": (500_000.0, 32, 1.0, {**LLAMA3, "factor": 8.0, "original_max_position_embeddings": 256}),
    "yarn": (10_000.0, 64, 1.0, {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 4096}),
    "yarn_scales": (
        1e5,
        64,
        1.0,
        {"rope_type": "yarn", "factor": 40.0, "original_max_position_embeddings": 4096, "beta_fast": 16.0}
        | {"beta_slow": 2.0, "mscale": 1.0, "mscale_all_dim": 0.5, "truncate": False},
    ),
    "longrope": (
        10_000.0,
        32,
        1.0,
        {"rope_type": "longrope", "factor": 32.0, "original_max_position_embeddings": 4096}
        | {"long_factor": DIVISORS, "short_factor": [1.0] * 16},
    ),
}


def frequencies(theta: float, head_dim: int, fraction: float, rope: dict) -> dict:
    """Returns the frequencies and the attention factor of one kind."""
    rope = {**rope, "rope_theta": theta, "partial_rotary_factor": fraction}
    length = int(rope.get("original_max_position_embeddings", 4096) * rope.get("factor", 1.0))
    config = LlamaConfig(head_dim=head_dim, max_position_embeddings=length, rope_parameters=rope)
    kind = config.rope_parameters["rope_type"]
    make = ROPE_INIT_FUNCTIONS.get(kind, LlamaRotaryEmbedding.compute_default_rope_parameters)
    found, factor = make(config, device="cpu", seq_len=length)
    assert 2 * len(found) == int(fraction * head_dim), kind
    return {
        "width": 2 * len(found),
        "theta": theta,
        "rope": rope,
        "frequencies": found.tolist(),
        "attention_factor": factor,
    }


if __name__ == "__main__":
    goldens = {name: frequencies(*arguments) for name, arguments in KINDS.items()}
    TARGET.write_text(json.dumps(goldens, indent=1) + "\n")
    for name, golden in goldens.items():
        print(f"{name}: {len(golden['frequencies'])} pairs, factor {golden['attention_factor']}")
