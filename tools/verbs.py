"""`python -m tools.verbs`: every verb with every kind of run, each for real, as one table.

A cell is a result, or the one line with which the verb refuses before it begins. With `--write` the table goes to
`tools/verbs.md`, which `tests/cli/verbs_test.py` holds against the command line.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import io
import logging
import os
import random
import re
import struct
import sys
import tempfile
import traceback
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from memjax import cli
from memjax.config import (
    GPT2,
    LSTM,
    OML,
    RFA,
    T2R,
    AdaptiveSoftmax,
    Bidirectional,
    Blobs,
    Bytes,
    Classification,
    Compressive,
    Config,
    Data,
    Dense,
    EncoderDecoder,
    Evaluation,
    FullAttention,
    InfinityFormer,
    KeyValueRecall,
    LanguageModeling,
    LinearTransformer,
    MaskedLanguageModeling,
    Memformer,
    Memorizing,
    MemoryTokens,
    MemSizer,
    Mnist,
    ModelSettings,
    NumberWords,
    Perceptron,
    ProductKey,
    QuestionAnswering,
    Schedule,
    Spalm,
    TemplateDialogues,
    Templates,
    TextFiles,
    Training,
    TransformerXL,
    WordPiece,
)
from memjax.settings.overrides import load_config

TABLE = Path(__file__).parent / "verbs.md"
WIDTH = {"dim": 8, "num_heads": 2, "feed_forward": Dense(dim=16)}
PAIRS = NumberWords(num_documents=16)
PIECES = WordPiece(vocab="data/vocab.txt")
HEADS = {
    "MaskedLanguageModeling": MaskedLanguageModeling(),
    "Classification": Classification(),
    "QuestionAnswering": QuestionAnswering(stride=8, max_question_length=8, max_answer_length=4),
}
ATTENTIONS = {
    "FullAttention": FullAttention(),
    "TransformerXL": TransformerXL(memory_length=8),
    "Compressive": Compressive(memory_length=8, compressed_memory_length=4),
    "Memorizing": Memorizing(layers_with_memory=(-2,), memory_length=16, num_neighbors=2, cache_length=8),
    "InfinityFormer": InfinityFormer(num_basis=8, num_samples=8),
    "GPT2": GPT2(num_positions=8),
    "GPT2, compressed": GPT2(num_positions=8, compressed_memory_length=4),
    "LinearTransformer": LinearTransformer(chunk_length=4),
    "RFA": RFA(chunk_length=4, num_directions=4),
    "T2R": T2R(chunk_length=4, num_features=4),
    "MemSizer": MemSizer(chunk_length=4, num_slots=4),
    "LSTM": LSTM(),
}
KEYS = ProductKey(layers=(-1,), dim=16, num_keys=6, memory_heads=2, num_neighbors=3, key_dim=8)
DECODERS = {
    **{
        name: ModelSettings(
            **WIDTH, num_layers=1, attention=attention, scale_embeddings=attention.hf_model_type != "gpt2"
        )
        for name, attention in ATTENTIONS.items()
    },
    "Memorizing": ModelSettings(**WIDTH, num_layers=6, attention=ATTENTIONS["Memorizing"]),  # scanned, but the memory
    "memory tokens": ModelSettings(
        **WIDTH, num_layers=1, attention=TransformerXL(memory_length=8), memory_tokens=MemoryTokens(num_tokens=2)
    ),
    "adaptive softmax": ModelSettings(**WIDTH, num_layers=1, output=AdaptiveSoftmax(cutoffs=(64, 128))),
    "product keys": ModelSettings(**{**WIDTH, "feed_forward": KEYS}, num_layers=1),
    "SPALM": ModelSettings(**WIDTH, num_layers=1, output=Spalm(num_neighbors=2)),
    "dialogues": ModelSettings(**WIDTH, num_layers=1, attention=TransformerXL(memory_length=8), num_speaker_markers=3),
    "images": ModelSettings(**WIDTH, num_layers=1, attention=TransformerXL(memory_length=8)),
    "synthetic": ModelSettings(**WIDTH, num_layers=1, attention=TransformerXL(memory_length=8)),
}
SOURCES: dict[str, Any] = {
    "dialogues": TemplateDialogues(num_dialogues=8),
    "images": Mnist(path="data/images"),
    "synthetic": KeyValueRecall(num_pairs=2, num_keys=4, num_values=4, filler_length=16, num_documents=16),
}
STREAMS = {
    "stream of tasks": "lifelong_text",
    "stream of episodes": "lifelong_text",
    "stream of questions": "lifelong_questions",
    "stream of relations": "lifelong_relations",
    "stream that grows": "lifelong_pretraining",
    "stream of instructions": "lifelong_lamol",
}
"""kind -> its configuration, whose `smoke` it is: MbPA++, OML-ER, MbPA++ on windows of texts, EMAR, ELLE, LAMOL"""
RUNS = (*DECODERS, *HEADS, "EncoderDecoder", "Memformer", "Perceptron", *STREAMS)
"""kinds of runs: what stands in the place of the attention, the feed-forward part, the output, the data or the head"""


class Verb(NamedTuple):
    """A column of the table.

    Attributes:
      arguments: of the command line, with `{name}` for the run.
      reads: 'config' or 'run', which it is given; '' = what `arguments` name.
    """

    arguments: str
    reads: str = "run"


VERBS = {
    "data": Verb("data", "config"),
    "train": Verb("train", "config"),
    "eval": Verb("eval"),
    "eval, memory 0": Verb("eval --evaluation.memory-length 0"),
    "eval, memories": Verb("eval --memory off,16"),
    "eval, cache": Verb("eval --evaluation.cache.memory-length 8"),
    "eval, probe": Verb("eval --probe"),
    "compare": Verb("compare runs/{name}", ""),
    "report": Verb("report runs/{name} --segments 2 --tokens 64 --out reports/{name}.html", ""),
    "generate": Verb("generate --prompt Ada --max-tokens 4 --greedy"),
    "translate": Verb("translate --text one"),
    "predict": Verb("predict --text Ada[MASK]"),
    "sample": Verb("sample --to images.png --count 2"),
    "usage": Verb("usage"),
    "export": Verb("export --to exported/{name}"),
    "datastore plan": Verb("datastore plan --path stores/{name}"),
    "datastore build": Verb("datastore build --path stores/{name} --shards 1"),
    "eval, datastore": Verb("eval --datastore stores/{name} --knn-neighbors 2"),
    "generate, datastore": Verb("generate --datastore stores/{name} --prompt Ada --max-tokens 2"),
    "plan train": Verb("plan --topology v5e:1x1 --vocab-size 260", "config"),
    "plan eval": Verb("plan --topology v5e:1x1 --what eval --vocab-size 260", "config"),
    "plan decode": Verb("plan --topology v5e:1x1 --what decode --vocab-size 260", "config"),
}
"""column -> what is asked"""
MORE = {
    ("predict", kind): ["--question", "Where?"]
    for kind in ("QuestionAnswering", "stream of questions", "stream of instructions")
}
"""what a cell needs besides"""


class Outcome(NamedTuple):
    """What a command line came to.

    Attributes:
      code: its exit code; 1 for an error of the program.
      line: the last line on standard error, '' where all went well.
      trace: the traceback, '' where there is none.
    """

    code: int
    line: str = ""
    trace: str = ""


def make_config(kind: str) -> Config:
    """A tiny run of a kind; its data is what `write_data` writes, or synthetic."""
    if kind in STREAMS:
        stream = dataclasses.replace(load_config(STREAMS[kind], "smoke"), name=kind)
        if kind == "stream of episodes":
            assert stream.lifelong is not None
            stream.lifelong.method = OML(inner_steps=1, replay_interval=16, replay_rate=0.5)
        return stream
    length, task = (24 if kind in HEADS else 64 if kind == "EncoderDecoder" else 8), HEADS.get(kind, LanguageModeling())
    data = Data(source=TextFiles(path="data/texts", validation_percent=20), tokenizer=Bytes(), segment_length=length)
    if kind == "EncoderDecoder":
        model, data.source = EncoderDecoder(**WIDTH, num_layers=1), PAIRS
    elif kind == "Memformer":
        model = Memformer(**WIDTH, num_layers=1, encoder_layers=1, num_slots=4)
    elif kind == "Perceptron":
        model, task, data.source = Perceptron(widths=(8,)), Classification(), Blobs(num_classes=2, dim=length)
    elif kind in HEADS:
        model, data.tokenizer = (
            ModelSettings(**WIDTH, num_layers=1, attention=Bidirectional(num_positions=length)),
            PIECES,
        )
        if kind != "MaskedLanguageModeling":
            data.source = Templates(num_examples=32)
    else:
        model, data.source = DECODERS[kind], SOURCES.get(kind, data.source)
    data.batch_size, data.cache_dir = 2, "data/cache"
    data.neighbors_dir = "data/neighbors" if kind == "SPALM" else ""
    return Config(
        name=kind,
        task=task,
        model=model,
        data=data,
        training=Training(steps=2, schedule=Schedule(warmup_steps=1), log_every=1),
        evaluation=Evaluation(batch_size=2, max_segments=16 if kind == "dialogues" else 4),  # documents are not scored
    )


def write_data(folder: Path) -> None:
    """Texts, images and a vocabulary of pieces under `folder/data`, and the config file `folder/runs.py`."""
    (folder / "data" / "texts").mkdir(parents=True)
    draw = random.Random(0)
    names, places = ("Ada", "Boole", "Curie", "Dirac"), ("Athens", "Berlin", "Cairo", "Delhi")
    for number in range(24):
        lines = [f"{draw.choice(names)} lives in {draw.choice(places)}.\n" for _ in range(4)]
        (folder / "data" / "texts" / f"{number:02d}.txt").write_text("".join(lines))
    (folder / "data" / "images").mkdir()
    for name, count in (("train-images-idx3-ubyte", 16), ("t10k-images-idx3-ubyte", 4)):
        pixels = (np.arange(count * 16) * 37 % 256).astype(np.uint8)
        header = struct.pack(">IIII", 2051, count, 4, 4)
        (folder / "data" / "images" / name).write_bytes(header + pixels.tobytes())
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", ".", "?", "lives", "live", "in", "where", "does"]
    letters = [prefix + chr(number) for prefix in ("", "##") for number in range(ord("a"), ord("z") + 1)]
    (folder / "data" / "vocab.txt").write_text("\n".join([*special, *letters]) + "\n")
    (folder / "runs.py").write_text("from tools.verbs import RUNS as VARIANTS, make_config as get_config\n")


class Finished(NamedTuple):
    """A command line that has ended in this process.

    Attributes:
      code: Its exit code; 1 after an exception that it did not catch.
      out: Text on standard output.
      err: Text on standard error, with the traceback of such an exception.
    """

    code: int
    out: str
    err: str


def call(arguments: Iterable[str]) -> Finished:
    """Runs a command line in this process."""
    out, err = io.StringIO(), io.StringIO()
    logged = logging.StreamHandler(err)  # what other libraries would print
    logging.getLogger().addHandler(logged)
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = cli.main(list(arguments))
    except Exception:
        traceback.print_exc(file=err)
        code = 1
    finally:
        logging.getLogger().removeHandler(logged)
    return Finished(code, out.getvalue(), err.getvalue())


def ask(arguments: Iterable[str]) -> Outcome:
    """Runs a command line in this process, and says what it came to."""
    code, _, text = call(arguments)
    if "Traceback" in text:
        return Outcome(code, trace=text)
    lines = [line for line in text.splitlines() if line.startswith("memjax ")]
    return Outcome(code, lines[-1].partition(": ")[2] if code and lines else "")


def arguments_of(verb: str, kind: str) -> list[str]:
    """The command line of a cell; the working directory is a folder of `write_data`."""
    which = {"config": ["--config", "runs.py", "--variant", kind], "run": ["--run", f"runs/{kind}"], "": []}
    asked = [part.format(name=kind) for part in VERBS[verb].arguments.split()]
    return [*asked, *which[VERBS[verb].reads], *MORE.get((verb, kind), [])]


def prepare_neighbors() -> None:
    """The neighbours that SPALM reads, made with the run of a Transformer-XL (`train` comes before)."""
    store = ["--path", "stores/train", "--run", "runs/TransformerXL", "--key", "output_normed"]
    search = ["--backend", "exact", "--num-neighbors", "2", "--to", "data/neighbors"]
    commands = [["datastore", "build", *store, "--shards", "1"]]
    commands += [["datastore", "neighbors", *store, *search, "--split", split] for split in ("train", "validation")]
    for command in commands:
        if (outcome := ask(command)).code:
            raise RuntimeError(f"{' '.join(command)}: {outcome.line or outcome.trace}")


def measure(kinds: Iterable[str] = RUNS, verbs: Iterable[str] = tuple(VERBS)) -> Iterator[tuple[str, str, Outcome]]:
    """Every cell, kind by kind; trains what is asked for, in the working directory."""
    for kind in kinds:
        if kind == "SPALM" and not Path("data/neighbors").exists():
            if not Path("runs/TransformerXL").exists():
                ask(arguments_of("train", "TransformerXL"))
            prepare_neighbors()
        for verb in verbs:
            yield kind, verb, ask(arguments_of(verb, kind))


def describe(cells: Mapping[tuple[str, str], Outcome]) -> str:
    """The table in Markdown: a dot is a result, a number one of the lines below it."""
    notes: dict[str, int] = {}
    kinds, verbs = list(dict.fromkeys(k for k, _ in cells)), list(dict.fromkeys(v for _, v in cells))
    rows = []
    for kind in kinds:
        marks = []
        for verb in verbs:
            outcome = cells[kind, verb]
            text = outcome.trace.strip().splitlines()[-1] if outcome.trace else outcome.line
            note = f"memjax {verb.partition(' ')[0].strip(',')}: {'TRACEBACK ' * bool(outcome.trace)}{text}"
            marks.append(str(notes.setdefault(note, len(notes) + 1)) if outcome.code else "·")
        rows.append(f"| {kind} | " + " | ".join(marks) + " |")
    head = ["| run | " + " | ".join(verbs) + " |", "|---|" + ":-:|" * len(verbs)]
    return "\n".join([*head, *rows, "", *(f"{number}. `{note}`" for note, number in notes.items())]) + "\n"


def read_table(text: str) -> dict[tuple[str, str], str]:
    """(kind, verb) -> the line of the refusal, '' for a result; the inverse of `describe`."""
    notes = {match[1]: match[2] for match in re.finditer(r"^(\d+)\. `memjax \w+: (.*)`$", text, re.MULTILINE)}
    lines = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("| ")]
    (_, *verbs), *rows = lines
    return {(kind, verb): notes.get(mark, "") for kind, *marks in rows for verb, mark in zip(verbs, marks, strict=True)}


HEADER = """# Every verb with every kind of run

Written by `python -m tools.verbs --write`, which trains a tiny run of each kind and asks each verb for real. A dot is a
result; a number is the line with which the verb refuses, exit code 2.

"""


def main(argv: list[str] | None = None) -> int:
    """Prints the table; exit code 1 where a cell is neither a result nor a refusal."""
    parser = argparse.ArgumentParser(prog="python -m tools.verbs", description="Every verb with every kind of run.")
    parser.add_argument("--runs", nargs="*", default=RUNS, choices=RUNS, metavar="KIND", help="only these")
    parser.add_argument("--verbs", nargs="*", default=tuple(VERBS), choices=tuple(VERBS), metavar="VERB")
    parser.add_argument("--write", action="store_true", help=f"the table, to {TABLE.name}; what is not asked for stays")
    options = parser.parse_args(argv)
    kept = read_table(TABLE.read_text(encoding="utf-8")) if options.write else {}
    cells = {cell: Outcome(2 if line else 0, line) for cell, line in kept.items()}  # of what is not asked for
    origin = Path.cwd()
    with tempfile.TemporaryDirectory(prefix="memjax-verbs-") as folder:
        write_data(Path(folder))
        os.chdir(folder)
        try:
            for kind, verb, outcome in measure(options.runs, options.verbs):
                cells[kind, verb] = outcome
                state = "traceback" if outcome.trace else outcome.line or "ok"
                print(f"{kind}, {verb}: {state}", file=sys.stderr, flush=True)
                if outcome.trace:
                    print(outcome.trace, file=sys.stderr)
        finally:
            os.chdir(origin)
    text = describe({(kind, verb): cells[kind, verb] for kind in RUNS for verb in VERBS if (kind, verb) in cells})
    print(text)
    if options.write:
        TABLE.write_text(HEADER + text, encoding="utf-8")
    return 1 if any(outcome.trace or outcome.code not in (0, 2) for outcome in cells.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
