"""Makes tests/golden/transfoxl_variants.npz: small Transformer-XL models of Hugging Face and what they compute.

Needs torch and transformers 4.35.2, which memjax does not depend on; the environment of the benchmarks has them:

    python -m tools.bench.peers install
    .venv-peers/bin/python tools/golden_transfo_xl.py tests/golden/transfoxl_variants.npz
"""

import json
import sys
import warnings

import numpy as np

VARIANTS = {
    # layout of the text8 and WikiText-103 base models, with the evaluation options of the published scripts
    "pre_norm": {"div_val": 1, "pre_lnorm": True, "untie_r": False, "same_length": True, "clamp_len": 4},
    # layout of the WikiText-103 large model: narrower clusters, projections tied but for the first
    "tied_projections": {"div_val": 2, "untie_r": True, "tie_projs": [False, True, True]},
    # layout of the One Billion Word models: nothing tied but the tables
    "own_projections": {"div_val": 2, "untie_r": False, "tie_projs": [False, False, False], "clamp_len": 3},
}
COMMON = {
    "vocab_size": 15,
    "cutoffs": [5, 9],
    "d_model": 16,
    "d_embed": 16,
    "n_head": 2,
    "d_head": 8,
    "d_inner": 24,
    "n_layer": 2,
    "mem_len": 6,
    "adaptive": True,
    "same_length": False,
    "clamp_len": -1,
    "dropout": 0.0,
    "dropatt": 0.0,
}
BATCH, SEGMENT, SEGMENTS = 2, 5, 2


def arrays(options: dict) -> dict[str, np.ndarray]:
    import torch
    from transformers import TransfoXLConfig, TransfoXLLMHeadModel

    torch.manual_seed(0)
    config = TransfoXLConfig(**{**COMMON, **options})
    model = TransfoXLLMHeadModel(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():  # no bias stays zero
            parameter.add_(0.2 * torch.randn_like(parameter))
    found = {f"param/{name}": weight.numpy().copy() for name, weight in model.state_dict().items()}
    found["config_json"] = np.array(json.dumps(config.to_dict()))
    mems = None
    for segment in range(SEGMENTS):
        ids = torch.randint(0, COMMON["vocab_size"], (BATCH, SEGMENT))
        with torch.no_grad():
            out = model(ids, mems=mems, output_hidden_states=True)
            hidden = out.hidden_states[-1]
            padded = torch.cat([hidden, hidden[:, :1]], 1)  # the class drops the last position
            shifted = torch.cat([ids[:, :1], ids], 1)
            nll = model.crit(padded, shifted, keep_order=True).reshape(BATCH, SEGMENT)  # -log p(id at the same place)
        found |= {
            f"segment_{segment}/ids": ids.numpy(),
            f"segment_{segment}/log_probs": out.prediction_scores.numpy(),
            f"segment_{segment}/hidden": hidden.numpy(),
            f"segment_{segment}/nll": nll.numpy(),
        }
        mems = out.mems
    return found | {f"mems_{layer}": memory.numpy() for layer, memory in enumerate(mems)}


def main() -> None:
    warnings.filterwarnings("ignore")
    found = {f"{name}/{key}": value for name, options in VARIANTS.items() for key, value in arrays(options).items()}
    np.savez_compressed(sys.argv[1], **found)
    print(f"{sys.argv[1]}: {len(found)} arrays")


if __name__ == "__main__":
    main()
