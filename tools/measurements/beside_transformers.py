"""Compares an imported language model with `transformers` on the same weights: nats in a window, tokens a second.

    memjax import --weights SmolLM2.gguf --run runs/smollm2
    python -m tools.measurements.beside_transformers windows --run RUN --python PYTHON --text TEXT --record NAME
    python -m tools.measurements.beside_transformers speed --run RUN --python PYTHON --record NAME

PYTHON is the interpreter of an environment with torch and transformers. It reads the weights that `memjax export`
writes. `windows` compares the nats of a text: memjax reads it in segments with `same_length` and a memory, and the
Mistral class of transformers reads it at once with a sliding window of as many keys. `speed` lets both take turns, with
the same number of threads.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from memjax.cli import main as memjax
from memjax.inference import Sampling, generate
from memjax.models.factory import make_language_model
from memjax.training import load_run
from tools.bench.harness import speed_ratio
from tools.results import pages
from tools.results.ledger import measured, together

SEGMENT, THREADS = 512, 2
PROMPT, NEW = 512, 256
SCORED = (8, 512)
"""Number of rows, and of tokens in each, of the batch whose scoring is timed."""


class Peer:
    """A process of `transformers_worker`, which answers requests."""

    def __init__(self, python: str, folder: Path):
        command = [python, str(Path(__file__).with_name("transformers_worker.py")), str(folder), str(THREADS)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.versions = self._read()

    def __call__(self, what: str, **request: Any) -> Any:
        """Sends the request named `what`, and returns the answer."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"what": what, **request}) + "\n")
        self.process.stdin.flush()
        return self._read()

    def _read(self) -> Any:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith("{"):
                return json.loads(line)
        sys.exit("transformers: its process has ended")


class Ours:
    """The model of a run, with some settings of its attention's memory replaced."""

    def __init__(self, run: str, **memory: Any):
        self.run = load_run(run)
        model = self.run.experiment.config.model
        attention: Any = dataclasses.replace(model.attention, **memory)
        tokenizer = self.run.experiment.tokenizer
        self.model = make_language_model(dataclasses.replace(model, attention=attention), tokenizer.vocab_size)
        self.variables = self.run.variables
        self.read = jax.jit(self._read)

    def _read(self, variables: Any, tokens: Any, targets: Any, state: Any) -> tuple[Any, Any]:
        start = jnp.zeros(len(tokens), bool)
        hidden, state, _ = self.model.apply(variables, tokens, state, start_of_document=start)
        scores = self.model.apply(variables, hidden, method="log_probs")
        return -jnp.take_along_axis(scores, targets[..., None], -1)[..., 0], state

    def nats(self, ids: np.ndarray) -> np.ndarray:
        """Returns the nats of every token but the first, read segment by segment."""
        state, all_nats = self.model.init_state(1), []
        for first in range(0, len(ids) - 1, SEGMENT):
            tokens, targets = ids[None, first : first + SEGMENT], ids[None, first + 1 : first + 1 + SEGMENT]
            nats, state = self.read(self.variables, jnp.asarray(tokens), jnp.asarray(targets), state)
            all_nats.append(np.asarray(nats)[0])
        return np.concatenate(all_nats)

    def seconds_of_scores(self, rows: np.ndarray) -> float:
        """Returns the seconds of a forward pass with the probabilities of all tokens."""
        tokens, state = jnp.asarray(rows), self.model.init_state(len(rows))
        start = time.perf_counter()
        jax.block_until_ready(self.read(self.variables, tokens, tokens, state))
        return time.perf_counter() - start

    def generate(self, rows: np.ndarray) -> tuple[float, list[list[int]]]:
        """Returns the seconds that the new tokens of all rows take, prompts included, and the new tokens."""
        prompts, start = [[int(token) for token in row] for row in rows], time.perf_counter()
        settings: dict[str, Any] = {"segment_length": SEGMENT, "max_tokens": NEW, "block": NEW}
        new_tokens = generate(self.model, self.variables, prompts, sampling=Sampling(temperature=0.0), **settings)
        return time.perf_counter() - start, new_tokens


def measure_windows(options: argparse.Namespace, peer: Peer) -> list[dict[str, Any]]:
    """Returns a row with the mean nats of both sides, for segments of `SEGMENT` tokens and a memory of three segments.

    The text is read from the file of `--text`.
    """
    memory = 3 * SEGMENT
    ours = Ours(options.run, memory_length=memory, same_length=True, sinks=0)
    tokenizer = ours.run.experiment.tokenizer
    text = Path(options.text).read_text("utf-8")
    ids = np.array([tokenizer.begin_id, *tokenizer.encode(text[: 8 * options.tokens])], np.int32)[: options.tokens + 1]
    nats, their_nats = ours.nats(ids), np.array(peer("windows", ids=ids.tolist(), window=memory)["nats"])
    far = float(np.abs(nats - their_nats).max())
    facts = {"tokens": len(nats), "memory_length": memory, "nats": float(nats.mean())}
    facts |= {"nats_of_transformers": float(their_nats.mean()), "largest_difference_of_a_token": far}
    return [facts | {"relative_difference": abs(float(nats.mean() / their_nats.mean()) - 1)}]


def measure_speed(options: argparse.Namespace, peer: Peer) -> list[dict[str, Any]]:
    """Returns rows with the tokens a second of both sides, measured in turns, and their ratio with its interval."""
    draw, rows = np.random.default_rng(0), []
    scoring, decoding = Ours(options.run, memory_length=0, sinks=0), Ours(options.run, memory_length=SEGMENT, sinks=0)
    tokens = draw.integers(10, 40_000, SCORED)
    score = lambda: peer("score", rows=tokens.tolist())["seconds"]
    rows.append(
        _turns(options, f"scores of {SCORED[0]} x {SCORED[1]}", tokens.size, scoring.seconds_of_scores, tokens, score)
    )
    for batch in (1, 8):
        prompts = draw.integers(10, 40_000, (batch, PROMPT))
        for static in (False, True):
            request = {"rows": prompts.tolist(), "count": NEW, "static": static}
            answer = peer("generate", **request)
            if "error" in answer:
                print(f"transformers, batch {batch}, static {static}: {answer['error']}", file=sys.stderr)
                continue
            mine = decoding.generate(prompts)[1]
            same = np.mean(np.array(mine) == np.array(answer["tokens"]))
            name = f"decoding, batch {batch}, transformers with a {'static, compiled' if static else 'growing'} cache"
            theirs = lambda request=request: peer("generate", **request)["seconds"]
            row = _turns(
                options, name, batch * NEW, lambda batch_rows: decoding.generate(batch_rows)[0], prompts, theirs
            )
            rows.append(row | {"same_tokens": float(same)})
    return rows


def _turns(
    options: argparse.Namespace, name: str, count: int, ours: Any, tokens: np.ndarray, theirs: Any
) -> dict[str, Any]:
    """Warms up both sides, measures them in turns, and returns the row of the table.

    Args:
      options: Options of the command line.
      name: Name of the row.
      count: Number of tokens of one turn.
      ours: Function of `tokens` that returns the seconds of memjax.
      tokens: Tokens that memjax reads.
      theirs: Function without arguments that returns the seconds of transformers.
    """
    ours(tokens), theirs()
    times: list[tuple[float, float]] = [(ours(tokens), theirs()) for _ in range(options.rounds)]
    mine, others = zip(*times, strict=True)
    ratio = speed_ratio(list(mine), list(others))
    print(name, times, flush=True)
    return {
        "what": name,
        "tokens_a_second": count / statistics.median(mine),
        "of_transformers": count / statistics.median(others),
        "times_as_fast": ratio["value"],
        "low": ratio["low"],
        "high": ratio["high"],
    }


def compute_speed_bound(options: argparse.Namespace) -> dict[str, float]:
    """Returns the largest possible number of tokens a second if every token reads all weights once.

    The dict also has the bytes of the weights and the measured bandwidth of memory.
    """
    run, large = load_run(options.run), np.ones(64 * 2**20, np.float32)
    size = sum(leaf.nbytes for leaf in jax.tree.leaves(run.variables["params"]))
    times = []
    for _ in range(5):
        start = time.perf_counter()
        large.sum()
        times.append(time.perf_counter() - start)
    rate = large.nbytes / min(times)
    return {
        "bytes_of_weights": size,
        "bytes_a_second_of_one_thread": rate,
        "tokens_a_second_at_most": THREADS * rate / size,
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m tools.measurements.beside_transformers", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("what", choices=("windows", "speed"))
    parser.add_argument("--run", required=True, help="run of an imported model with rotary attention")
    parser.add_argument("--python", required=True, help="interpreter with torch and transformers")
    parser.add_argument("--text", help="file that `windows` reads")
    parser.add_argument("--tokens", type=int, default=8192, help="tokens that `windows` reads")
    parser.add_argument("--rounds", type=int, default=5, help="turns of `speed`")
    parser.add_argument("--record", default="", metavar="NAME", help="add the rows to the measurements, by this name")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "exported"
        if memjax(["export", "--run", options.run, "--to", str(target)]):
            sys.exit("memjax export failed")
        peer = Peer(options.python, target)
        rows = measure_windows(options, peer) if options.what == "windows" else measure_speed(options, peer)
        shutil.rmtree(target)
    facts = {**together(rows), "versions": {"jax": jax.__version__, **peer.versions}}
    about = ABOUT[options.what]
    if options.what == "speed":
        facts["bound"] = compute_speed_bound(options)
        about += BOUND.format(threads=THREADS, **facts["bound"])
    print(json.dumps(facts, indent=1))
    if options.record:
        words = f"python -m tools.measurements.beside_transformers {options.what} --run RUN --python PYTHON"
        command = f"{words}{' --text TEXT' if options.what == 'windows' else ''} --record '{options.record}'"
        title = (
            f"{options.record} beside transformers: {'a window' if options.what == 'windows' else 'tokens a second'}"
        )
        pages.record(measured(f"llm_{options.what}", options.record, facts, command=command, title=title, about=about))


ABOUT = {
    "windows": (
        "A text read in segments of 512 tokens with a memory of 1,536 and `same_length`, and at once by the class of "
        "Mistral in transformers with the same weights and a sliding window of 1,536; float32."
    ),
    "speed": (
        f"Medians of turns in one run, {THREADS} threads on both sides, float32, the weights of the import. Decoding: "
        f"{NEW} new tokens after a prompt of {PROMPT}, the most probable each, time of the prompt included."
    ),
}

BOUND = (
    " Where every token reads all weights once ({bytes_of_weights:,} bytes), {threads} threads that each read "
    "{bytes_a_second_of_one_thread:.3g} bytes a second (a sum over 256 MiB) read {tokens_a_second_at_most:.1f} tokens "
    "a second of one row at most."
)

if __name__ == "__main__":
    main()
