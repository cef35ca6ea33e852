"""The PyTorch side: makes the peers' own environment, and serves one peer as a contender.

    python -m tools.bench.peers install            makes .venv-peers (once per requirements file)
    .venv-peers/bin/python tools/bench/peers.py transfo_xl '{"memory_length": 512}'

Published versions, unchanged: transformers 4.35.2 (its TransfoXL left the library later),
compressive-transformer-pytorch 0.4.0 and memorizing-transformers-pytorch 0.4.1. The latter declares faiss-gpu, which a
machine without CUDA cannot use, so everything but torch is installed without dependencies, from the pinned file beside
this one.
"""

import argparse
import hashlib
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

if __package__ in (None, ""):  # run as a file by the peers' interpreter, which has no `tools` package on its path
    # In place of this folder: its profile.py would hide the standard library's, which torch imports.
    sys.path[0] = str(Path(__file__).resolve().parents[2])

from tools.bench import worker

REQUIREMENTS = Path(__file__).with_name("peers-requirements.txt")
ENVIRONMENT = Path(__file__).resolve().parents[2] / ".venv-peers"
LEARNING_RATE = 1e-4
POOL = 16  # different segments of random tokens that the steps cycle through


def interpreter() -> Path:
    """The peers' Python; made by `install`."""
    return ENVIRONMENT / "bin" / "python"


def stamp() -> str:
    """Fingerprint of the requirements that the environment must have been made from."""
    return hashlib.sha256(REQUIREMENTS.read_bytes()).hexdigest()


def is_installed() -> bool:
    """True where `.venv-peers` was finished from the present requirements."""
    marker = ENVIRONMENT / "stamp"
    return interpreter().exists() and marker.exists() and marker.read_text() == stamp()


def install() -> None:
    """Makes `.venv-peers` once; a second call does nothing.

    pip takes its index from its own settings. On Linux, PyPI's torch brings CUDA libraries of several GB; a CPU
    index (PIP_EXTRA_INDEX_URL) avoids them.
    """
    if is_installed():
        print(f"{ENVIRONMENT.name} is up to date.")
        return
    if sys.version_info[:2] != (3, 11):
        raise SystemExit(f"The peers are pinned for Python 3.11; this is {sys.version.split()[0]}.")
    print(f"Making {ENVIRONMENT.name} from {REQUIREMENTS.name} ...", flush=True)
    subprocess.run([sys.executable, "-m", "venv", "--clear", str(ENVIRONMENT)], check=True)
    (ENVIRONMENT / ".gitignore").write_text("*\n")
    pip = [str(interpreter()), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    torch = next(line for line in REQUIREMENTS.read_text().splitlines() if line.startswith("torch=="))
    subprocess.run([*pip, torch], check=True)
    subprocess.run([*pip, "--no-deps", "-r", str(REQUIREMENTS)], check=True)
    (ENVIRONMENT / "stamp").write_text(stamp())
    print(f"{ENVIRONMENT.name} is ready.")


class TorchContender:
    """Shared frame of the peers: random segments, Adam, one forward pass or one update per step."""

    packages = ("torch", "numpy")

    def __init__(self, settings: dict):
        import torch

        torch.set_num_threads(worker.THREADS)
        torch.manual_seed(0)
        self.torch, self.settings = torch, settings
        self.model = self.make_model(settings)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=LEARNING_RATE)
        shape = (POOL, settings["batch"], settings["length"] + 1)
        self.pool, self.turn = torch.randint(1, settings["vocab"], shape), 0

    def make_model(self, settings: dict):
        """Builds the torch module from the suite's settings."""
        raise NotImplementedError

    def loss(self, inputs, targets):
        """Mean cross-entropy of one segment; advances the peer's memory."""
        raise NotImplementedError

    def forward(self, inputs) -> None:
        """Log-probabilities or logits of one segment; advances the peer's memory."""
        raise NotImplementedError

    def describe(self) -> dict:
        """See `worker.Contender`."""
        parameters = {id(p): p.numel() for p in self.model.parameters()}
        return {
            "parameters": sum(parameters.values()),
            "tokens_per_step": self.settings["batch"] * self.settings["length"],
            "versions": worker.versions_of(*self.packages),
            "settings": self.settings,
        }

    def prepare(self, mode: str) -> None:
        """Takes the next random segment and sets training or evaluation mode."""
        segment = self.pool[self.turn % POOL]
        self.turn += 1
        self.inputs, self.targets = segment[:, :-1].contiguous(), segment[:, 1:].contiguous()
        if self.model.training != (mode == "train"):
            self.model.train(mode == "train")

    def step(self, mode: str) -> None:
        """One update, or one forward pass without gradients."""
        if mode == "train":
            self.optimizer.zero_grad(set_to_none=True)
            self.loss(self.inputs, self.targets).backward()
            self.optimizer.step()
        else:
            with self.torch.no_grad():
                self.forward(self.inputs)


class Vanilla(TorchContender):
    """PyTorch's own encoder with a causal mask and no memory: the common yardstick of all suites ("x ref")."""

    def make_model(self, settings):
        """Encoder layers of torch between an embedding with learned positions and a linear head."""
        torch = self.torch
        nn = torch.nn
        dim, length = settings["dim"], settings["length"]
        layer = nn.TransformerEncoderLayer(
            dim, settings["heads"], settings["feed_forward"], dropout=0.0, batch_first=True, activation="relu"
        )

        class Model(nn.Module):
            def __init__(self):
                super().__init__()
                self.tokens = nn.Embedding(settings["vocab"], dim)
                self.positions = nn.Parameter(torch.zeros(length, dim))
                self.stack = nn.TransformerEncoder(layer, settings["layers"])
                self.head = nn.Linear(dim, settings["vocab"])
                self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(length), persistent=False)

            def forward(self, tokens):
                hidden = self.tokens(tokens) + self.positions
                return self.head(self.stack(hidden, mask=self.mask, is_causal=True))

        return Model()

    def forward(self, inputs):
        """Logits of the segment."""
        return self.model(inputs)

    def loss(self, inputs, targets):
        """Mean cross-entropy."""
        return self.torch.nn.functional.cross_entropy(self.model(inputs).flatten(0, 1), targets.flatten())


class TransfoXL(TorchContender):
    """Hugging Face TransfoXL without clusters, which makes its softmax a plain one; all L targets are scored."""

    packages = ("torch", "transformers", "numpy")

    def make_model(self, settings):
        """`TransfoXLLMHeadModel`, tied embeddings, u and v per layer, no dropout."""
        from transformers import TransfoXLConfig, TransfoXLLMHeadModel
        from transformers.utils import logging

        logging.set_verbosity_error()
        dim, heads = settings["dim"], settings["heads"]
        self.memory = None
        return TransfoXLLMHeadModel(
            TransfoXLConfig(
                vocab_size=settings["vocab"],
                cutoffs=[],
                div_val=1,
                d_model=dim,
                d_embed=dim,
                n_head=heads,
                d_head=settings["head_dim"],
                d_inner=settings["feed_forward"],
                n_layer=settings["layers"],
                mem_len=settings["memory_length"],
                clamp_len=-1,
                same_length=False,
                pre_lnorm=False,
                untie_r=True,
                dropout=0.0,
                dropatt=0.0,
                eos_token_id=0,
            )
        )

    def forward(self, inputs):
        """Log-probabilities of the segment."""
        out = self.model(inputs, mems=self.memory)
        self.memory = [memory.detach() for memory in out.mems]
        return out.prediction_scores

    def loss(self, inputs, targets):
        """Its own loss drops the last position (it shifts the labels itself): 127 of 128 tokens are scored."""
        out = self.model(inputs, mems=self.memory, labels=inputs)
        self.memory = [memory.detach() for memory in out.mems]
        return out.loss


class Compressive(TorchContender):
    """compressive-transformer-pytorch: strided convolutions, attention reconstruction; GELU, memories of normed inputs.

    Both memories are filled, outside the timer, with what the model itself wrote.
    """

    packages = ("torch", "compressive-transformer-pytorch", "numpy")

    def make_model(self, settings):
        """`CompressiveTransformer`, all layers with memories; GRU gates, its default, where `gated` asks for them."""
        from compressive_transformer_pytorch import CompressiveTransformer

        self.memory = None
        return CompressiveTransformer(
            num_tokens=settings["vocab"],
            dim=settings["dim"],
            depth=settings["layers"],
            heads=settings["heads"],
            seq_len=settings["length"],
            mem_len=settings["memory_length"],
            cmem_len=settings["compressed_memory_length"],
            cmem_ratio=settings["compression_rate"],
            gru_gated_residual=settings.get("gated", False),
        )

    def prepare(self, mode):
        """Also fills the memories before the first step."""
        super().prepare(mode)
        if self.memory is None:
            compressed = self.settings["compressed_memory_length"] * self.settings["compression_rate"]
            self.model.eval()
            with self.torch.no_grad():
                for _ in range(-(-(self.settings["memory_length"] + compressed) // self.settings["length"])):
                    self.forward(self.inputs)
            self.model.train(mode == "train")

    def forward(self, inputs):
        """Logits of the segment."""
        logits, self.memory, self.auxiliary = self.model(inputs, memories=self.memory)
        return logits

    def loss(self, inputs, targets):
        """Mean cross-entropy and the loss of the compression; its memories are detached by itself."""
        logits = self.forward(inputs)
        return self.torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten()) + self.auxiliary.sum()


class Memorizing(TorchContender):
    """memorizing-transformers-pytorch: one shared key/value head, approximate (HNSW) search, joint softmax.

    Its index is dropped whole when it would exceed its capacity, so without help it is empty half of the time. Before a
    step that would drop it, it is set back, outside the timer, to three quarters of its capacity with keys and values
    that the model itself wrote.
    """

    packages = ("torch", "memorizing-transformers-pytorch", "faiss-cpu", "numpy")

    def make_model(self, settings):
        """`MemorizingTransformer` with one kNN layer, the others with a Transformer-XL cache."""
        from memorizing_transformers_pytorch import MemorizingTransformer

        self.xl = None
        self.directory = tempfile.TemporaryDirectory(prefix="memorizing-peer-")
        model = MemorizingTransformer(
            num_tokens=settings["vocab"],
            dim=settings["dim"],
            depth=settings["layers"],
            heads=settings["heads"],
            dim_head=settings["head_dim"],
            ff_mult=settings["feed_forward"] // settings["dim"],
            max_knn_memories=settings["memory_length"],
            num_retrieved_memories=settings["num_neighbors"],
            memorizing_layers=(settings["memory_layer"] + 1,),  # it counts from 1
            xl_max_memories=settings["window"],
            knn_memories_directory=self.directory.name,
        )
        self.knn = model.create_knn_memories(batch_size=settings["batch"])
        self.saved = None
        return model

    def prepare(self, mode):
        """Also keeps the index between three quarters full and full."""
        super().prepare(mode)
        capacity, length = self.settings["memory_length"], self.settings["length"]
        memory = self.knn[0]
        if self.saved is None:
            wanted = capacity * 3 // 4
            self.model.eval()
            with self.torch.no_grad():
                while len(memory.knns[0].ids) < wanted:
                    self.forward(self.pool[self.turn % POOL][:, :-1])
                    self.turn += 1
            self.saved = self.torch.from_numpy(memory.db[:, :wanted].copy())
            self.model.train(mode == "train")
        if len(memory.knns[0].ids) + length > capacity:
            memory.clear()
            memory.add(self.saved)

    def forward(self, inputs):
        """Logits of the segment."""
        logits, self.xl = self.model(inputs, knn_memories=self.knn, xl_memories=self.xl)
        return logits

    def loss(self, inputs, targets):
        """Mean cross-entropy; its XL memories are detached by itself."""
        loss, self.xl = self.model(inputs, knn_memories=self.knn, xl_memories=self.xl, labels=targets)
        return loss


PEERS = {"vanilla": Vanilla, "transfo_xl": TransfoXL, "compressive": Compressive, "memorizing": Memorizing}


def main(argv: list[str] | None = None) -> int:
    """`install`, or serve the named peer with settings given as JSON."""
    parser = argparse.ArgumentParser(prog="python -m tools.bench.peers", description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=["install", *PEERS])
    parser.add_argument("settings", nargs="?", default="{}", help="JSON object, for a peer")
    arguments = parser.parse_args(argv)
    if arguments.what == "install":
        install()
        return 0
    os.environ.update(worker.WAIT_PASSIVELY)
    return worker.serve(lambda: PEERS[arguments.what](json.loads(arguments.settings)))


if __name__ == "__main__":
    sys.exit(main())
