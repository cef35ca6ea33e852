"""The command `memjax <verb>`.

Exit codes: 0 done, 1 failed, 2 bad arguments, 3 the step does not fit into memory (`plan`), 128 + signal when a signal
stopped a run after it was saved. A user's mistake is reported in one line on stderr, which names the field, the given
value and the allowed values; MEMJAX_DEBUG=1 adds the traceback.
"""

import contextlib
import functools
import importlib
import os
import shlex
import sys
import traceback
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from memjax import __version__
from memjax.allocation import keep_freed_memory
from memjax.cli.compilation import keep_programs
from memjax.cli.console import show_when_slow
from memjax.cli.errors import REMEDY, explain, name_as_typed
from memjax.cli.processes import names_later_process
from memjax.durable_files import DamageWarning, describe_full_disk
from memjax.platforms import skip_absent_tpu
from memjax.settings.overrides import UsageError, suggestion

__all__ = ["VERBS", "main"]


# Each verb imports its packages when it runs, so that `memjax --help` is quick.
VERBS = {
    "train": ("train", "train the model of a config, or continue a run"),
    "sweep": ("sweep", "train a config for every combination of values, and compare the runs"),
    "configs": ("configs", "list the configs and their variants"),
    "eval": ("eval", "score a split with a trained model, also with another memory length"),
    "compare": ("compare", "print the results of finished runs side by side"),
    "report": ("report", "write a page about runs: figures, examples, what their memories do"),
    "usage": ("usage", "measure how many slots of a value table (product keys) a split uses"),
    "generate": ("generate", "continue prompts"),
    "translate": ("translate", "translate texts (runs on sentence pairs)"),
    "predict": ("predict", "predict classes, answer spans, masked tokens or the next utterance for texts"),
    "sample": ("sample", "generate images (runs on images)"),
    "import": ("weights", "make a run from weights of Hugging Face or a GGUF file"),
    "export": ("export", "write the weights of a run for Hugging Face"),
    "data": ("data", "prepare data: read it, train the tokenizer, write token files"),
    "datastore": ("datastore", "build and search a datastore of keys and next tokens (kNN-LM)"),
    "plan": ("plan", "compute memory and time of a step on TPUs without having them"),
    "migrate": ("migrate", "rewrite a config file or script for settings that have been renamed"),
    "demo": ("demo", "show in a few minutes how much a memory helps (`make run`)"),
    "doctor": ("doctor", "show versions, devices, and missing packages"),
}
"""Verb -> (module in `memjax.cli` with its function `run`, description of the verb in one line)"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command line, a sequence of words without the program's name (None: that of the process), and returns
    its exit code.
    """
    is_process = arguments is None  # not a call from a program, whose memory is its own
    arguments = sys.argv[1:] if arguments is None else list(arguments)
    code = _run(arguments, is_process=is_process)
    if reason := _flush_output():
        print(f"memjax: standard output: {reason}", file=sys.stderr)
        return code or 1
    return code


def _run(arguments: list[str], *, is_process: bool) -> int:
    verb, *rest = arguments or ["--help"]
    with warnings.catch_warnings():
        warnings.filterwarnings("default", category=DamageWarning)
        show_others = warnings.showwarning
        warnings.showwarning = functools.partial(_show_warning, verb, show_others)
        return _run_verb(verb, rest, is_process=is_process)


def _show_warning(verb: str, show_others: Any, message: Any, category: type, *where: Any, **options: Any) -> None:
    """Shows a warning about damage in one line on standard error, and others by `show_others`."""
    if issubclass(category, DamageWarning):
        print(f"memjax {verb}: {message}", file=sys.stderr)
    else:
        show_others(message, category, *where, **options)


def _run_verb(verb: str, rest: list[str], *, is_process: bool) -> int:
    """Runs a verb with its words, and turns errors into one line. Returns the exit code."""
    try:
        if verb in ("-h", "--help", "help"):
            if not rest:
                print(_help())
                return 0
            verb, rest = rest[0], ["--help"]
        if verb in ("-V", "--version"):
            print(f"memjax {__version__}")
            return 0
        if verb not in VERBS:
            raise UsageError(f"verb: given {verb!r}, allowed: {', '.join(VERBS)}{_propose_verb(verb, rest)}")
        skip_absent_tpu()
        if is_process:
            keep_freed_memory()
        warning = keep_programs(os.environ)
        if warning:
            print(f"memjax {verb}: {warning}", file=sys.stderr)
        # A second is more than what needs no JAX takes, and less than its import does.
        speaks = is_process and not names_later_process(rest)
        with show_when_slow(f"{verb}: reading the settings, starting JAX") if speaks else contextlib.nullcontext():
            return importlib.import_module(f"memjax.cli.{VERBS[verb][0]}").run(rest)
    except SystemExit as exit:  # --help has printed what it had to
        return exit.code if isinstance(exit.code, int) else 0
    except KeyboardInterrupt:
        return 128 + 2
    except BrokenPipeError:  # `memjax ... | head`
        _discard_output()
        return 0
    except Exception as error:
        line, code = explain(error)
        if line is None or os.environ.get("MEMJAX_DEBUG"):
            traceback.print_exc()
        if line:
            print(f"memjax {verb}: {name_as_typed(line, rest)}", file=sys.stderr)
        _flush_output()  # one line is said, whatever becomes of what was printed before
        processes: Any = sys.modules.get("memjax.training.processes")
        if code == 1 and processes is not None and processes.num_processes() > 1:
            processes.exit_immediately(code)  # the others of the run wait for this one, it does not wait for them
        return code


def _propose_verb(word: str, rest: Sequence[str]) -> str:
    """Returns the end of the line about a first word that is no verb: the command that may have been meant."""
    if word in ("--text", "--tasks", "--config"):
        return f"; did you mean memjax train {shlex.join([word, *rest])}?"
    if word.startswith("-"):
        return ""
    return (
        f"; did you mean memjax train --text {shlex.quote(word)}?" if Path(word).exists() else suggestion(word, VERBS)
    )


def _flush_output() -> str:
    """Flushes standard output, and returns why that failed, such as a full disk. '' where it did not fail."""
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except BrokenPipeError:
        _discard_output()
    except OSError as error:
        _discard_output()
        reason = describe_full_disk(error)
        return f"{reason}; {REMEDY}" if reason else error.strerror or str(error)
    return ""


def _discard_output() -> None:
    """Discards everything that is still written to standard output."""
    # Otherwise Python would try to write the rest of its buffer again when it ends.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _help() -> str:
    verbs = "\n".join(f"  {name:9} {summary}" for name, (_, summary) in VERBS.items())
    return (
        "usage: memjax <verb> [--option value] [--field.of.the.config value]\n\n"
        "Memory for Transformers in JAX.\n\n"
        f"{verbs}\n\n"
        "`memjax <verb> --help` lists the options of a verb and every field of the config.\n"
        "Compiled programs are cached in ~/.cache/memjax/jax or JAX_COMPILATION_CACHE_DIR; "
        "JAX_ENABLE_COMPILATION_CACHE=0\nturns that off. "
        "On a CPU freed memory is kept for the next step; MEMJAX_MALLOC=0 turns that off."
    )
