"""The suites: which contenders are measured side by side, at which sizes."""

import json
import sys
from pathlib import Path
from typing import Any

from tools.bench import peers
from tools.bench.harness import Entry, Suite

# The comparable configuration: what every contender is built with.
SIZES = {"dim": 256, "layers": 4, "heads": 4, "head_dim": 64, "feed_forward": 1024, "length": 128, "batch": 4}
SIZES |= {"vocab": 256}
REFERENCE = "torch encoder"


def _peer(name: str, kind: str, settings: dict[str, Any]) -> Entry:
    return Entry(name, [str(peers.interpreter()), str(Path(peers.__file__)), kind, json.dumps(settings)])


def _memjax(name: str, kind: str, settings: dict[str, Any]) -> Entry:
    command = [sys.executable, "-m", "tools.bench.models", kind, json.dumps(settings)]
    return Entry(name, command, {"JAX_PLATFORMS": "cpu"})


def transformer_xl() -> Suite:
    """Transformer-XL beside Hugging Face TransfoXL, both with a full memory of 512 slots per layer."""
    settings = {**SIZES, "memory_length": 512}
    return Suite(
        "transformer_xl",
        [
            _peer(REFERENCE, "vanilla", SIZES),
            _peer("HF TransfoXL", "transfo_xl", settings),
            _memjax("memjax Transformer-XL", "transformer_xl", settings),
            _memjax("memjax, scanned layers", "transformer_xl", {**settings, "scan_layers": True}),
        ],
        baseline="HF TransfoXL",
        reference=REFERENCE,
        note="Memory 512, tied embeddings, post-norm, ReLU, Adam. The reference has no memory.",
    )


def _memorizing(slots: int, *, few: bool) -> Suite:
    settings = {**SIZES, "memory_length": slots, "num_neighbors": 32, "memory_layer": 1, "window": 128}
    return Suite(
        f"memorizing_{slots}",
        [
            _peer(REFERENCE, "vanilla", SIZES),
            _peer("memorizing-transformers-pytorch", "memorizing", settings),
            _memjax("memjax Memorizing", "memorizing", settings),
            # Exact too: a masked softmax over all slots instead of a gather, which pays while there are few.
            *([_memjax("memjax, threshold", "memorizing", {**settings, "retrieval": "threshold"})] if few else []),
        ],
        baseline="memorizing-transformers-pytorch",
        reference=REFERENCE,
        note=f"{slots} slots, 32 neighbours, cache 128, one memory layer. memjax searches exactly, with keys of its "
        "own in each head; the peer approximately (HNSW), with one key per token for all heads, in an index that is "
        "kept three quarters full to full. The reference has no memory.",
    )


def memorizing_512() -> Suite:
    """Memorizing Transformer with 512 slots."""
    return _memorizing(512, few=True)


def memorizing_8192() -> Suite:
    """Memorizing Transformer with 8192 slots."""
    return _memorizing(8192, few=False)


SUITES = {function.__name__: function for function in (transformer_xl, memorizing_512, memorizing_8192)}
