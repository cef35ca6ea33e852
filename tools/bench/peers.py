"""The PyTorch side: makes the peers' own environment, and serves one peer as a contender.

    python -m tools.bench.peers install            makes .venv-peers (once per requirements file)
    .venv-peers/bin/python tools/bench/peers.py transfo_xl '{"memory_length": 512}'

Published versions, unchanged, pinned in the file beside this one: transformers 4.35.2 (its TransfoXL left the library
later) and the packages of single papers. memorizing-transformers-pytorch declares faiss-gpu, which a machine without
CUDA cannot use, so everything but torch is installed without dependencies. pytorch-fast-transformers has no wheel: it
is compiled, for some minutes, which takes a C++ compiler and no nvcc that lacks its CUDA.
"""

import argparse
import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

if __package__ in (None, ""):  # run as a file by the peers' interpreter, which has no `tools` package on its path
    # In place of this folder: its profile.py would hide the standard library's, which torch imports.
    sys.path[0] = str(Path(__file__).resolve().parents[2])

from tools.bench import worker

REQUIREMENTS = Path(__file__).with_name("peers-requirements.txt")
ENVIRONMENT = Path(__file__).resolve().parents[2] / ".venv-peers"
BEFORE_THE_OTHERS = ("torch", "setuptools", "wheel")
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
    first = [line for line in REQUIREMENTS.read_text().splitlines() if line.split("==")[0] in BEFORE_THE_OTHERS]
    subprocess.run([*pip, *first], check=True)
    # What is compiled is compiled against the torch that is there.
    subprocess.run([*pip, "--no-deps", "--no-build-isolation", "-r", str(REQUIREMENTS)], check=True)
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
        shape = (POOL, settings["batch"], settings.get("segments", 1) * settings["length"] + 1)
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
            "tokens_per_step": self.pool[0, :, 1:].numel(),
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


def main(argv: list[str] | None = None) -> int:
    """`install`, or serve the named peer with settings given as JSON."""
    from tools.bench.peer_models import PEERS  # which imports this module

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
