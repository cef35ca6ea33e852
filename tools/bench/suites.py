"""The suites: which contenders are measured side by side, at which sizes."""

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from memjax.allocation import SWITCH
from tools.bench import peers
from tools.bench.harness import Entry, Suite

# The comparable configuration: what every contender is built with.
SIZES = {"dim": 256, "layers": 4, "heads": 4, "head_dim": 64, "feed_forward": 1024, "length": 128, "batch": 4}
SIZES |= {"vocab": 256}
REFERENCE = "torch encoder"
FEW_ROUNDS = 5
"""rounds of a suite whose steps take seconds"""
DEFAULT_MALLOC = ", default malloc"
"""ending of the name of a contender that leaves the C library's malloc as it is"""


def _peer(name: str, kind: str, settings: dict[str, Any]) -> Entry:
    return Entry(name, [str(peers.interpreter()), str(Path(peers.__file__)), kind, json.dumps(settings)])


def _memjax(name: str, kind: str, settings: dict[str, Any]) -> Entry:
    return _own(name, "tools.bench.models", kind, settings)


def _own(name: str, module: str, kind: str, settings: dict[str, Any]) -> Entry:
    return Entry(name, [sys.executable, "-m", module, kind, json.dumps(settings)], {"JAX_PLATFORMS": "cpu"})


def with_default_malloc(suite: Suite) -> Suite:
    """Puts a second contender behind each of memjax: the same without the settings of malloc that commands make."""
    entries = []
    for entry in suite.entries:
        entries.append(entry)
        if entry.name.startswith("memjax"):
            environment = {**entry.environment, SWITCH: "0"}
            entries.append(replace(entry, name=entry.name + DEFAULT_MALLOC, environment=environment))
    return replace(suite, entries=entries)


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


def compressive() -> Suite:
    """Compressive Transformer beside compressive-transformer-pytorch, all memories full."""
    settings = {**SIZES, "memory_length": 384, "compressed_memory_length": 128, "compression_rate": 4}
    settings |= {"activation": "gelu_exact"}  # the only one that the peer has
    return Suite(
        "compressive",
        [
            _peer(REFERENCE, "vanilla", SIZES),
            _peer("compressive-transformer-pytorch", "compressive", settings),
            _peer("the same, GRU gates", "compressive", {**settings, "gated": True}),
            _memjax("memjax Compressive", "compressive", settings),
            _memjax("memjax, ReLU", "compressive", {**settings, "activation": "relu"}),
        ],
        baseline="compressive-transformer-pytorch",
        reference=REFERENCE,
        note="Memory 384 and 128 compressed slots, one for 4 tokens, by convolution; losses of the model and of "
        "attention reconstruction. Pre-norm, GELU, plain residuals; GRU gates are the peer's default, ReLU is what the "
        "reference has. From the first compressed segment on the peer no longer trains its key/value projections, so "
        "it does not compute their gradients; its reconstruction attends to all 384 slots, memjax's, as in the "
        "paper, to the 128 that are compressed. The reference has no memory.",
    )


def _memorizing(slots: int, *, few: bool) -> Suite:
    settings = {**SIZES, "memory_length": slots, "num_neighbors": 32, "memory_layer": 1, "window": 128}
    settings |= {"activation": "gelu_exact"}  # the only one that the peer has
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
        note=f"{slots} slots, 32 neighbours, cache 128, one memory layer, exact GELU. memjax searches exactly, "
        "with keys of its own in each head; the peer approximately (HNSW), with one key per token for all heads, in an "
        "index that is kept three quarters full to full. The reference has no memory, and ReLU.",
    )


def memorizing_512() -> Suite:
    """Memorizing Transformer with 512 slots."""
    return _memorizing(512, few=True)


def memorizing_8192() -> Suite:
    """Memorizing Transformer with 8192 slots."""
    return _memorizing(8192, few=False)


def _product_keys(name: str, num_keys: int) -> Suite:
    settings = {
        **SIZES,
        "num_keys": num_keys,
        "num_neighbors": 32,
        "memory_heads": 4,
        "key_dim": 256,
        "memory_layer": 2,
    }
    return Suite(
        name,
        [
            _peer(REFERENCE, "vanilla", SIZES),
            _peer("product-key-memory", "product_keys", settings),
            _memjax("memjax product keys", "product_key", settings),
        ],
        baseline="product-key-memory",
        reference=REFERENCE,
        note=f"{num_keys**2:,} slots instead of the feed-forward network of the third of 4 layers; 4 heads, 32 "
        "neighbours, queries of 256 normalised by layer. The peer updates the whole table by Adam in every step; "
        "memjax chooses: the whole table where it is small against the rows that a step reads, otherwise those rows. "
        "The reference has no memory.",
    )


def product_keys_16k() -> Suite:
    """Product keys with 16,384 slots."""
    return _product_keys("product_keys_16k", 128)


def product_keys_1m() -> Suite:
    """Product keys with 1,048,576 slots."""
    return _product_keys("product_keys_1m", 1024)


def memformer() -> Suite:
    """Memformer beside the memformer package, updates of four segments."""
    settings = {**SIZES, "encoder_layers": 4, "num_slots": 64, "segments": 4, "activation": "gelu_exact"}
    return Suite(
        "memformer",
        [
            _peer("memformer", "memformer", settings),
            _memjax("memjax Memformer", "memformer", settings),
            _memjax("memjax, scanned layers", "memformer", {**settings, "scan_layers": True}),
            _memjax("memjax, memory replay", "memformer", {**settings, "rematerialize": "segment"}),
        ],
        baseline="memformer",
        note="4 + 4 layers, 64 slots, steps of 4 segments of 128 tokens through which gradients pass, Adam, exact "
        "GELU. On both sides the encoder reads the segment before, the decoder predicts the segment. The peer updates "
        "its slots by attention, a GRU and a feed-forward network, memjax by the paper's attention and norm; the peer "
        "has embeddings of encoder, decoder and output, memjax one table. Memory replay recomputes each segment in the "
        "backward pass.",
    )


_GPT2 = {"dim": 768, "layers": 12, "heads": 12, "head_dim": 64, "feed_forward": 3072, "vocab": 50257}
_GPT2 |= {"positions": 1024, "activation": "gelu"}


def gpt2() -> Suite:
    """GPT-2 small beside that of transformers: logits of a segment."""
    settings = {**_GPT2, "batch": 1, "length": 512}
    return Suite(
        "gpt2",
        [_peer("HF GPT-2", "gpt2", settings), _memjax("memjax GPT-2", "gpt2", settings)],
        baseline="HF GPT-2",
        modes=("infer",),
        note="GPT-2 small with random weights, 512 tokens of one row, float32, a current transformers; the peer gives "
        "logits, memjax log-probabilities.",
    )


def gpt2_decode() -> Suite:
    """GPT-2 small beside that of transformers: token by token."""
    settings = {**_GPT2, "batch": 4, "length": 64, "greedy": True}
    return Suite(
        "gpt2_decode",
        [_peer("HF GPT-2", "gpt2", settings), _memjax("memjax GPT-2", "gpt2", settings)],
        baseline="HF GPT-2",
        modes=("infer",),
        note="GPT-2 small with random weights continues one token of 4 rows greedily by 64 tokens, float32, a "
        "current transformers, each side with its cache; the peer in a plain loop without `generate`, which would cost "
        "it more.",
    )


def linear_attention() -> Suite:
    """The causal kernel of linear attention beside the compiled one of pytorch-fast-transformers."""
    settings = {"batch": 4, "length": 1024, "heads": 8, "head_dim": 64}
    return Suite(
        "linear_attention",
        [
            _peer("pytorch-fast-transformers", "causal_product", settings),
            _own("memjax ELU", "tools.bench.kernels", "elu", {**settings, "chunk_length": 128}),
            _own("memjax ELU, one product", "tools.bench.kernels", "elu", {**settings, "chunk_length": 1024}),
        ],
        baseline="pytorch-fast-transformers",
        note="The kernel alone, `elu(x) + 1`, 8 heads of 64, 4 rows of 1,024 tokens, float32, nothing before them; "
        '"train" is forward and backward. memjax in chunks of its default length; the last contender forms all scores '
        "of the segment.",
    )


def sentences() -> Suite:
    """MiniLM sentence embeddings beside sentence-transformers."""
    settings = {"batch": 16, "length": 64, "vocab": 30522}
    return Suite(
        "sentences",
        [
            _peer("sentence-transformers", "sentences", settings),
            _own("memjax TextEncoder", "tools.bench.kernels", "sentences", settings),
        ],
        baseline="sentence-transformers",
        modes=("infer",),
        note="all-MiniLM-L6-v2 with its weights, 16 texts of 64 tokens, ids to unit vectors; no tokenizer.",
    )


def _search(dim: int) -> Suite:
    settings = {"entries": 100_000, "dim": dim, "queries": 256}
    return Suite(
        f"search_{dim}",
        [
            _own("bare matrix product", "tools.bench.searches", "product", settings),
            _own("faiss Flat", "tools.bench.searches", "faiss", settings),
            _own("memjax exact", "tools.bench.searches", "exact", settings),
        ],
        baseline="faiss Flat",
        reference="bare matrix product",
        modes=("32", "1024"),
        unit="queries",
        note=f"256 queries at a time, squared L2, exact, 100,000 clustered float32 keys of {dim} dimensions "
        '("parameters" are their numbers). The mode is the number of neighbours. faiss with '
        "`distance_compute_blas_threshold` 20; the bare product, by XLA, keeps all scores and selects nothing.",
    )


def search_64() -> Suite:
    """Exact search among 100,000 keys of 64 dimensions."""
    return _search(64)


def search_128() -> Suite:
    """Exact search among 100,000 keys of 128 dimensions."""
    return _search(128)


def sparse_replay() -> Suite:
    """What sparse replay adds to the training of an encoder: 100 rows every 10,000."""
    settings = {"rows": 32, "length": 128, "replayed": 100, "every": 10_000, "capacity": 10_000, "vocab": 30522}
    names = {"plain": "plain update", "kept": "update whose rows are kept", "replay": "replay of 100 rows"}
    return Suite(
        "sparse_replay",
        [_own(name, "tools.bench.updates", kind, settings) for kind, name in names.items()],
        baseline="plain update",
        modes=("train",),
        note="MiniLM (6 layers of 384) with a head of 33 classes, 32 rows of 128 tokens, Adam, a memory of 10,000 "
        "texts. A replay of 100 rows follows 312.5 updates (1 % of the rows), so that sparse replay costs the "
        "difference of the first two and 1 / 312.5 of the third. With the settings of malloc that commands make.",
        rounds=FEW_ROUNDS,
    )


def episodes() -> Suite:
    """An episode of OML-ER, ANML-ER and MAML-ER beside as many batches of plain replay, with the encoder trained."""
    settings = {"rows": 4, "length": 64, "replayed": 16, "every": 400, "capacity": 1000, "vocab": 30522, "episode": 6}
    names = {"kept": "6 updates, rows kept", "oml": "OML-ER", "anml": "ANML-ER", "maml": "MAML-ER"}
    return Suite(
        "episodes",
        [_own(name, "tools.bench.updates", kind, settings) for kind, name in names.items()],
        baseline="6 updates, rows kept",
        modes=("train",),
        note="MiniLM (6 layers of 384) with a head of 33 classes, 6 batches of 4 rows of 64 tokens, Adam, all of them "
        "trained, derivatives of the first order. An episode adapts to five batches and learns from the sixth: OML-ER "
        "the head, ANML-ER all but its gate (which has an encoder of its own, frozen), MAML-ER everything. With the "
        "settings of malloc that commands make.",
        rounds=FEW_ROUNDS,
    )


SUITES = {
    function.__name__: lambda function=function: with_default_malloc(function())
    for function in (
        transformer_xl,
        compressive,
        memorizing_512,
        memorizing_8192,
        product_keys_16k,
        product_keys_1m,
        memformer,
        gpt2,
        gpt2_decode,
        linear_attention,
        sentences,
        search_64,
        search_128,
        sparse_replay,
        episodes,
    )
}
