"""The PyTorch side: makes the peers' own environment, and serves one peer as a contender.

    python -m tools.bench.peers install            makes .venv-peers, and tries again what is missing there
    .venv-peers/bin/python tools/bench/peers.py transfo_xl '{"memory_length": 512}'

Published versions, unchanged, pinned in the file beside this one: transformers 4.35.2 (its TransfoXL left the library
later), a current transformers in a folder of its own, and the packages of single papers. A peer that cannot be
installed spares the others. pytorch-fast-transformers has no wheel: it is compiled, for some minutes, which takes a C++
compiler.
"""

import argparse
import contextlib
import hashlib
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

if __package__ in (None, ""):  # run as a file by the peers' interpreter, which has no `tools` package on its path
    # In place of this folder: its profile.py would hide the standard library's, which torch imports.
    sys.path[0] = str(Path(__file__).resolve().parents[2])

from tools.bench import worker

REQUIREMENTS = Path(__file__).with_name("peers-requirements.txt")
ENVIRONMENT = Path(__file__).resolve().parents[2] / ".venv-peers"
ALL = "*"
COMPILED = {"causal_product": "it is compiled, which needs a C++ compiler (g++ or CXX)"}
"""peer -> requirement of its build"""
LEARNING_RATE = 1e-4
POOL = 16  # different segments of random tokens that the steps cycle through
_ERROR = re.compile(r"\b(\w*error): |: not found", re.IGNORECASE)
_HEADING = re.compile(r"# \[(.+)\](?: in (\w+))?")


class Section(NamedTuple):
    """Requirements that some peers share.

    Attributes:
      peers: Names of the peers, keys of `PEERS`. `("*",)` for all.
      folder: Folder of the environment to install into. '' for its site-packages.
      lines: Pinned requirements.
    """

    peers: tuple[str, ...]
    folder: str
    lines: list[str]


def read_sections(text: str) -> list[Section]:
    """Reads a requirements file whose headings name peers.

    Example:
      >>> read_sections("# [*]\\ntorch==2\\n# [gpt2, sentences] in current\\ntransformers==5\\n")[1]
      Section(peers=('gpt2', 'sentences'), folder='current', lines=['transformers==5'])
    """
    sections: list[Section] = []
    for line in text.splitlines():
        if heading := _HEADING.fullmatch(line):
            sections.append(Section(tuple(heading[1].split(", ")), heading[2] or "", []))
        elif line and not line.startswith("#"):
            sections[-1].lines.append(line)
    return sections


def interpreter() -> Path:
    """The peers' Python; made by `install`."""
    return ENVIRONMENT / "bin" / "python"


def folders_of(peer: str) -> list[str]:
    """Returns the folders that stand first on the path of a peer."""
    sections = read_sections(REQUIREMENTS.read_text())
    return list(dict.fromkeys(str(ENVIRONMENT / s.folder) for s in sections if s.folder and peer in s.peers))


def stamp() -> str:
    """Fingerprint of the requirements that the environment must have been made from."""
    return hashlib.sha256(REQUIREMENTS.read_bytes()).hexdigest()


def missing_peers() -> dict[str, str] | None:
    """Reads from the record of the installation which peers could not be installed: peer -> reason. None where
    `.venv-peers` was not made from the present requirements.
    """
    record = ENVIRONMENT / "installed.json"
    if not interpreter().exists() or not record.exists():
        return None
    facts = json.loads(record.read_text())
    return facts["missing"] if facts["stamp"] == stamp() else None


def install() -> dict[str, str]:
    """Makes `.venv-peers`, or tries again to install the peers that are missing there.

    Returns the peers that are still missing: peer -> reason.

    pip takes its index from its own settings. On Linux, PyPI's torch brings CUDA libraries of several GB; a wheel
    for CPUs among pip's `find-links` or at another index avoids them.

    Raises:
      SystemExit: The Python is not 3.11, or what all peers need cannot be installed.
    """
    before = missing_peers()
    if before == {}:
        print(f"{ENVIRONMENT.name} is up to date.")
        return {}
    sections = read_sections(REQUIREMENTS.read_text())
    if before is None:
        if sys.version_info[:2] != (3, 11):
            raise SystemExit(f"The peers are pinned for Python 3.11; this is {sys.version.split()[0]}.")
        print(f"Making {ENVIRONMENT.name} from {REQUIREMENTS.name} ...", flush=True)
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(ENVIRONMENT)], check=True)
        (ENVIRONMENT / ".gitignore").write_text("*\n")
    missing: dict[str, str] = {}
    for section in sections:
        if before is not None and not set(section.peers) & set(before):
            continue
        reason = install_section(section)
        if reason and ALL in section.peers:
            raise SystemExit(f"peers: nothing can be measured beside memjax: {reason}")
        for peer in section.peers if reason else ():
            missing.setdefault(peer, reason)
            print(f"peers: {peer} is missing: {reason}", file=sys.stderr, flush=True)
    (ENVIRONMENT / "installed.json").write_text(json.dumps({"stamp": stamp(), "missing": missing}, indent=1) + "\n")
    without = f", without {', '.join(missing)}" if missing else ""
    print(f"{ENVIRONMENT.name} is ready{without}.")
    return missing


def install_section(section: Section) -> str:
    """Installs the requirements of a section, and returns the reason in one line where that fails, else ''."""
    command = [str(interpreter()), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *section.lines]
    if ALL not in section.peers:
        # What is compiled is compiled against the torch that is there.
        command += ["--no-deps", "--no-build-isolation"]
    if section.folder:
        command += ["--upgrade", "--target", str(ENVIRONMENT / section.folder)]
    with path_without("nvcc", os.environ["PATH"]) as path:
        # With an nvcc, a build would take the way of CUDA, for which the torch of a CPU is not made.
        without = ("CUDA_HOME", "CUDA_PATH")
        environment = {name: value for name, value in os.environ.items() if name not in without} | {"PATH": path}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if not done.returncode:
        return ""
    needs = [COMPILED[peer] for peer in section.peers if peer in COMPILED]
    return "; ".join([f"{', '.join(section.lines)}: {first_error(done.stderr)}", *needs])


def first_error(log: str) -> str:
    """Returns the first line of a log of pip that tells an error, or the last line.

    Example:
      >>> first_error("error: subprocess-exited-with-error\\n/bin/sh: 1: g++: not found\\nRuntimeError: compiling\\n")
      '/bin/sh: 1: g++: not found'
    """
    lines = [line.strip() for line in log.splitlines() if line.strip()] or ["pip wrote nothing"]
    # That line only says that a build failed.
    errors = [line for line in lines if _ERROR.search(line) and "subprocess-exited-with-error" not in line]
    return (errors or lines[-1:])[0].partition(" (from versions")[0][:300]


@contextlib.contextmanager
def path_without(program: str, path: str) -> Iterator[str]:
    """Gives a search path on which `program` is not found, and every other program is.

    Folders that have the program are replaced by temporary ones with links to everything else in them.
    """
    folders = path.split(os.pathsep)
    with tempfile.TemporaryDirectory(prefix="path-") as temporary:
        for i, folder in enumerate(folders):
            if (Path(folder) / program).exists():
                replaced = Path(temporary) / str(i)
                replaced.mkdir()
                for file in Path(folder).iterdir():
                    if file.name != program:
                        (replaced / file.name).symlink_to(file.resolve())
                folders[i] = str(replaced)
        yield os.pathsep.join(folders)


class TorchContender:
    """Shared frame of the peers: random segments, Adam, one forward pass or one update per step."""

    packages = ("torch", "numpy")

    def __init__(self, settings: dict):
        import torch

        torch.set_num_threads(worker.THREADS)
        torch.manual_seed(0)
        self.torch, self.settings = torch, settings
        self.model = self.make_model(settings)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=LEARNING_RATE, fused=True)
        shape = (POOL, settings["batch"], settings.get("segments", 1) * settings["length"] + 1)
        self.pool, self.turn = torch.randint(1, settings["vocab"], shape), 0
        self.fill()

    def make_model(self, settings: dict):
        """Builds the torch module from the suite's settings."""
        raise NotImplementedError

    def loss(self, inputs, targets):
        """Mean cross-entropy of one segment; advances the peer's memory."""
        raise NotImplementedError

    def forward(self, inputs) -> None:
        """Log-probabilities or logits of one segment; advances the peer's memory."""
        raise NotImplementedError

    def fill(self) -> None:
        """Fills the memory with what the model itself writes."""
        self.model.eval()
        with self.torch.no_grad():
            for i in range(worker.steps_to_fill(self.settings)):
                self.forward(self.pool[i % POOL][:, :-1].contiguous())

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
        return int(bool(install()))
    os.environ.update(worker.WAIT_PASSIVELY)
    sys.path[:0] = folders_of(arguments.what)
    return worker.serve(lambda: PEERS[arguments.what](json.loads(arguments.settings)))


if __name__ == "__main__":
    sys.exit(main())
