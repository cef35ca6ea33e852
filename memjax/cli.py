"""The command `memjax <verb>`.

Exit codes: 0 done, 1 failed, 2 bad arguments, 3 does not fit (`plan`), 128 + signal when a signal stopped a run after
it was saved. A user's mistake is one line on stderr that names the field, what was given and what is allowed;
MEMJAX_DEBUG=1 adds the traceback. Each verb imports what it needs when it runs, so that `memjax --help` is quick.
"""

from __future__ import annotations

import argparse
import dataclasses
import errno
import json
import os
import shlex
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from memjax import __version__
from memjax.compilation import keep_programs
from memjax.config import Config, Data, Evaluation
from memjax.overrides import UsageError, apply_overrides, config_names, load_config, suggestion
from memjax.settings.relations import validate

DEFAULT_CONFIG = "memorizing_python"
_PLACES = tuple(f"data.{field}" for field in Data.places)
EVALUATION_FIELDS = ("evaluation.", "model.attention.", "task.", *_PLACES)
"""What `memjax eval` may change; of the attention and the task only what changes no parameter."""
GENERATION_FIELDS = ("evaluation.cache.", *_PLACES)
"""What `memjax generate` may change."""
RUN = "a run directory; its config has the fields below"
"""What `--run` is."""
FULL = (errno.ENOSPC, errno.EDQUOT)
"""What the system says of a full disk."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command line (without the program's name) and returns its exit code."""
    arguments = sys.argv[1:] if arguments is None else list(arguments)
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print(_help())
        return 0
    if arguments[0] in ("-V", "--version"):
        print(f"memjax {__version__}")
        return 0
    verb, *rest = arguments
    try:
        if verb not in VERBS:
            raise UsageError(f"verb: given {verb!r}, allowed: {', '.join(VERBS)}{suggestion(verb, VERBS)}")
        _skip_absent_tpu()
        warning = keep_programs(os.environ)
        if warning:
            print(f"memjax {verb}: {warning}", file=sys.stderr)
        return VERBS[verb][0](rest)
    except SystemExit as exit:  # --help has printed what it had to
        return exit.code if isinstance(exit.code, int) else 0
    except KeyboardInterrupt:
        return 128 + 2
    except BrokenPipeError:  # `memjax ... | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except Exception as error:
        line, code = _explain(error)
        if line is None or os.environ.get("MEMJAX_DEBUG"):
            traceback.print_exc()
        if line:
            print(f"memjax {verb}: {line}", file=sys.stderr)
        processes: Any = sys.modules.get("memjax.training.processes")
        if code == 1 and processes is not None and processes.count() > 1:
            processes.abandon(code)  # the others of the run wait for this one, it does not wait for them
        return code


def _train(arguments: list[str]) -> int:
    """Trains the model of a config, or goes on where its run stopped."""
    parser = _Parser("train", reads="config")
    steps = "trace these steps of the log (from 2, both included) with jax.profiler, into the run's folder `profile`"
    parser.add_argument("--profile", metavar="FIRST:LAST", help=steps)
    memories = "go on with empty memories, also with another data.rows; rows begin their next epoch"
    parser.add_argument("--reset-memory", action="store_true", help=memories)
    _add_processes(parser)
    options, config = _with_config(parser, arguments)
    from memjax.lifelong import train
    from memjax.training import processes
    from memjax.training.profiles import read_steps
    from memjax.training.runs import run_path

    profile = read_steps(options.profile) if options.profile else None
    _connect(options, config)
    path = run_path(config)
    is_new = not path.exists()
    try:
        train(config, profile=profile, reset_memory=options.reset_memory)
    except Exception:
        if is_new and processes.is_first():
            _remove_unstarted(path)
        raise
    return 0


def _add_processes(parser: argparse.ArgumentParser) -> None:
    where = "host:port of process 0 where several processes are one run; 'auto' asks Slurm, Open MPI or Kubernetes"
    parser.add_argument("--coordinator", default="", metavar="ADDRESS", help=f"{where}; TPU pods need none")
    parser.add_argument("--num-processes", type=int, metavar="N", help="processes of the run, with an address")
    parser.add_argument("--process-id", type=int, metavar="I", help="this one, from 0, with an address")


def _connect(options: argparse.Namespace, config: Config) -> None:
    from memjax.training import processes

    coordinator = options.coordinator or ("auto" if _tpu_may_be_here() else "")
    processes.connect(coordinator, options.num_processes, options.process_id, timeout=config.sharding.timeout)


def _eval(arguments: list[str]) -> int:
    """Scores a split with the newest checkpoint of a run, which may still be training."""
    parser = _Parser("eval", reads="run", json="")
    options, config = _with_config(parser, arguments, only=EVALUATION_FIELDS)
    from memjax.console import ANY_SIZE, describe_evaluation
    from memjax.lifelong import load_run
    from memjax.training.experiment import evaluation_model

    evaluation_model(config, ANY_SIZE)  # refuses what the model does not take before anything is read
    run = load_run(options.run, config)
    result = run.experiment.evaluate(run.variables)
    memory_length = config.with_memory(config.evaluation.memory_length).model.carrier.memory_length or 0
    values = {"run": options.run, "split": config.evaluation.split, "memory_length": memory_length, **result.as_dict()}
    if config.evaluation.cache.memory_length:
        values["cache"] = dataclasses.asdict(config.evaluation.cache)
    return _tell(values, describe_evaluation, options)


def _usage(arguments: list[str]) -> int:
    """Shows how many slots of its value tables (product keys) a run uses on a split, and how evenly."""
    parser = _Parser("usage", reads="run", json="")
    every = "every checkpoint that the run has kept, and at which of them a slot was last in use"
    parser.add_argument("--checkpoints", action="store_true", help=every)
    options, config = _with_config(parser, arguments, only=EVALUATION_FIELDS)
    from memjax.console import describe_usage, usage_facts

    return _tell(usage_facts(options.run, config, checkpoints=options.checkpoints), describe_usage, options)


def _compare(arguments: list[str]) -> int:
    """Prints finished runs side by side: what tells their configurations apart, and what they have come to."""
    parser = _Parser("compare", json=": run -> its values")
    parser.add_argument("runs", nargs="+", metavar="RUN", help="a run directory whose run is finished")
    options = parser.read(arguments)
    from memjax.console import compare_runs, describe_comparison

    return _tell(compare_runs(options.runs), describe_comparison, options)


def _generate(arguments: list[str]) -> int:
    """Continues prompts with the newest checkpoint of a run; several prompts of any lengths are one batch."""
    parser = _Parser("generate", reads="run", json=" per prompt")
    parser.add_argument("--prompt", action="append", default=[], metavar="TEXT", help="a prompt; may be repeated")
    parser.add_argument("--prompt-file", action="append", default=[], metavar="FILE", help="the same from a file")
    parser.add_argument("--max-tokens", type=int, default=256, metavar="N", help="tokens per prompt (default: 256)")
    parser.add_argument("--temperature", type=float, default=0.8, help="0 = greedy (default: 0.8)")
    parser.add_argument("--top-k", type=int, default=0, metavar="K", help="of the K most probable tokens; 0 = all")
    parser.add_argument("--top-p", type=float, default=1.0, metavar="P", help="of the most probable tokens up to P")
    parser.add_argument("--greedy", action="store_true", help="always the most probable token")
    parser.add_argument("--seed", type=int, default=0, help="equal seed and prompt give equal text (default: 0)")
    parser.add_argument("--stop", action="append", default=[], metavar="TEXT", help="ends a text; may be repeated")
    options, config = _with_config(parser, arguments, only=GENERATION_FIELDS)
    from memjax.console import check_generates, continuations, print_continuations, read_prompts
    from memjax.inference import Sampling
    from memjax.lifelong import load_run
    from memjax.training.experiment import make_evaluation_model

    check_generates(config)
    prompts = read_prompts(options.prompt, options.prompt_file)
    temperature = 0.0 if options.greedy else options.temperature
    sampling = Sampling(temperature=temperature, top_k=options.top_k, top_p=options.top_p)
    run = load_run(options.run, config)
    model = make_evaluation_model(run.experiment, Evaluation(cache=config.evaluation.cache))
    asked = {"max_tokens": options.max_tokens, "sampling": sampling, "stop": options.stop, "seed": options.seed}
    print_continuations(prompts, continuations(run, list(prompts.values()), model=model, **asked), options.json)
    return 0


def _import(arguments: list[str]) -> int:
    """Makes a run directory of weights of Hugging Face (BERT, DistilBERT, MiniLM, GPT-2), for init_from and eval."""
    parser = _Parser("import")
    files = "a folder with config.json, model.safetensors and the files of the tokenizer"
    parser.add_argument("--weights", required=True, metavar="DIR", help=files)
    parser.add_argument("--run", required=True, metavar="DIR", help="the run directory to make")
    marks = "of a GPT-2: with the marks of dialogues (cmu_dog) in its vocabulary"
    parser.add_argument("--dialogues", action="store_true", help=marks)
    options = parser.read(arguments)
    from memjax.interop import hf_bert, hf_gpt2

    if hf_gpt2.is_gpt2(options.weights):
        config = hf_gpt2.save_run(options.weights, options.run, dialogues=options.dialogues)
    elif options.dialogues:
        raise UsageError("--dialogues: given with other weights, allowed: with those of a GPT-2")
    else:
        config = hf_bert.save_run(options.weights, options.run)
    model = config.model
    print(f"{options.run}: {type(config.task).__name__}, {model.num_layers} layers, {model.dim} wide")
    return 0


def _data(arguments: list[str]) -> int:
    """Reads the data of a config, trains its tokenizer where it has none, and writes its token files."""
    parser = _Parser("data", reads="config")
    what = "prepare: make what is missing, then say what is there"
    parser.add_argument("action", nargs="?", default="prepare", choices=["prepare"], help=what)
    _, config = _with_config(parser, arguments)
    from memjax.console import describe_data, preparation
    from memjax.tasks import task_of

    print(describe_data(config, task_of(config).data(preparation())))
    return 0


def _datastore(arguments: list[str]) -> int:
    """Keys and next tokens of a split, as a trained model sees it: what it will cost, building it, and its indices."""
    if not arguments or arguments[0] not in DATASTORE_ACTIONS:  # help, or a mistake
        parser = _Parser("datastore")
        told = "; ".join(f"{name}: {about}" for name, about in DATASTORE_ACTIONS.items())
        parser.add_argument("action", choices=list(DATASTORE_ACTIONS), help=f"{told}; ACTION --help tells its options")
        parser.parse_args(arguments)
    action, arguments = arguments[0], arguments[1:]
    parser = _datastore_parser(action)
    if {"-h", "--help"} & set(arguments) and "--run" in parser._option_string_actions:
        _with_config(parser, arguments, only=EVALUATION_FIELDS)  # prints what it has to, and exits
    given, _ = parser.parse_known_args(arguments)
    if given.leaves and given.backend != "scann":
        raise UsageError(f"--leaves: given with --backend {given.backend}, allowed: with scann")
    if given.backend == "faiss" and (given.runner or given.parts > 1 or given.part is not None):
        raise UsageError("--backend: given 'faiss', allowed: scann where there are parts")
    if given.runner and given.coordinator:
        raise UsageError("--runner: given with --coordinator, allowed: one of the two")
    if given.runner and action == "build" and not given.shards:
        raise UsageError("--shards: needed with --runner, a divisor of evaluation.rows: each is made by one worker")
    if given.run is None:
        options, config = parser.read(arguments), None
    else:
        options, config = _with_config(parser, arguments, only=EVALUATION_FIELDS)
    from memjax.console import check_serves, datastore_facts, describe_facts
    from memjax.training import processes

    shared = action == "build" and not given.runner
    if config is not None:
        if shared:
            _connect(options, config)
        check_serves(config, "stores_keys")
    facts = datastore_facts(action, options, config)
    if not shared or processes.is_first():
        _tell(facts, describe_facts, options)
    return 1 if facts.get("problems") else 0


DATASTORE_ACTIONS = {
    "plan": "bytes and time before building",
    "build": "or go on building",
    "index": "for approximate search",
    "verify": "checksums, and the recall of an index",
    "neighbors": "of every token of a split, for SPALM",
    "stats": "what a store is",
}


def _datastore_parser(action: str) -> _Parser:
    parser = _Parser("datastore", action, json="")
    parser.set_defaults(backend="", leaves=0, parts=1, part=None, runner="", shards=0, coordinator="")
    add = parser.add_argument
    add("--path", required=True, metavar="DIR", help="the folder of the store")
    if action in ("plan", "build", "verify", "neighbors"):
        add("--run", required=action != "verify", metavar="DIR", help=RUN)
        split = "validation" if action == "verify" else "train"
        add("--split", default=split, help=f"of the run's data (default: {split})")
        add("--key", default="", metavar="TAP", help="the inner tensor that is the key (default: that of kNN-LM)")
    if action in ("plan", "build"):
        add("--key-dtype", default="float16", help="of stored keys (default: float16)")
    if action == "build":
        add("--shards", type=int, default=0, metavar="N", help="of the store (default: one for each process)")
        _add_processes(parser)
    if action in ("index", "verify", "neighbors"):
        backends = ["scann", "faiss"] if action == "index" else ["scann", "faiss", "exact"]
        add("--backend", default="scann", choices=backends, help="(default: scann)")
        add("--metric", default="squared_l2", choices=["squared_l2", "inner_product"], help="(default: squared_l2)")
    if action == "index":
        parts = "parts of a scann index, searched one by one and merged (default: 1)"
        add("--parts", type=int, default=1, metavar="N", help=parts)
        add("--part", type=int, metavar="I", help="build only this one, as one host of several does")
    if action in ("build", "index"):
        runner = f"{'shards' if action == 'build' else 'parts'} are made by an Apache Beam pipeline with this runner"
        add("--runner", default="", metavar="NAME", help=runner)
        value = "an option of the pipeline; may be repeated"
        add("--runner-option", action="append", default=[], metavar="NAME=VALUE", help=value)
    if action in ("verify", "neighbors"):
        leaves = "leaves of ScaNN's tree that are searched (default: a twentieth)"
        add("--leaves", type=int, default=0, metavar="N", help=leaves)
        count = 32 if action == "verify" else 4
        add("--num-neighbors", type=int, default=count, metavar="K", help=f"of each (default: {count})")
    if action == "verify":
        sample = "queries: stored keys, or with --run what its model asks at tokens of the split (default: 1000)"
        add("--sample", type=int, default=1000, metavar="N", help=sample)
    if action == "neighbors":
        add("--to", required=True, metavar="DIR", help="the folder that data.neighbors will name")
        far = "none from so many tokens before and after, where the store is of the same split (default: 0)"
        add("--apart", type=int, default=0, metavar="N", help=far)
    return parser


def _plan(arguments: list[str]) -> int:
    """Compiles one step for TPUs that are not here: memory per device, work, collectives, an estimate of the time."""
    parser = _Parser("plan", reads="config", json=" per case")
    named = "v5e:4x4 or v5p-128; several separated by commas"
    parser.add_argument("--topology", required=True, metavar="NAME", help=named)
    steps = ["train", "eval", "decode"]
    parser.add_argument("--what", default="train", choices=steps, help="the step (default: train)")
    values = "FIELD=A,B: a row for each value; FIELD in full or by its last part"
    parser.add_argument("--sweep", default="", metavar="FIELD=A,B", help=values)
    ids = "ids, where only the data knows how many"
    parser.add_argument("--vocab-size", type=int, default=0, metavar="N", help=ids)
    options, config = _with_config(parser, arguments)
    from memjax.planning.cases import plan
    from memjax.planning.report import make_cases, report

    cases = make_cases(config, options.topology.split(","), options.what, options.sweep)
    facts_of, command = lambda case: plan(case, vocab_size=options.vocab_size), ["memjax", "plan", *arguments]
    return 0 if report(cases, facts_of, as_json=options.json, command=shlex.join(command)) else 3


def _doctor(arguments: list[str]) -> int:
    """Prints versions, devices and what is missing, with the pip line that brings it."""
    options = _Parser("doctor", json="").read(arguments)
    from memjax.doctor import describe, diagnose

    return _tell(diagnose(), describe, options)


def _demo(arguments: list[str]) -> int:
    """Trains with and without memory on real code and on a task that needs one, and prints what came out."""
    parser = _Parser("demo")
    parser.add_argument("--workdir", default="", metavar="DIR", help="its directory (default: runs/demo)")
    parser.add_argument("--smoke", action="store_true", help="the same in miniature, in less than a minute")
    parser.add_argument("--bytes", action="store_true", help="UTF-8 bytes instead of subwords (learns slower)")
    options = parser.read(arguments)
    from memjax.demo import SMOKE, Plan, run_demo

    plan = SMOKE if options.smoke else Plan(bytes=options.bytes)
    run_demo(dataclasses.replace(plan, workdir=options.workdir or plan.workdir))
    return 0


VERBS: dict[str, tuple[Callable[[list[str]], int], str]] = {
    "train": (_train, "train a model, or go on with its run"),
    "eval": (_eval, "score a split, with another memory length if wanted"),
    "compare": (_compare, "finished runs side by side"),
    "usage": (_usage, "how much of a value table a split uses"),
    "generate": (_generate, "continue prompts"),
    "import": (_import, "make a run directory of weights of Hugging Face"),
    "data": (_data, "read the data, train the tokenizer, write token files"),
    "datastore": (_datastore, "keys and next tokens of a split, and their indices"),
    "plan": (_plan, "what a step needs on TPUs that are not here"),
    "demo": (_demo, "memory or no memory, in ten minutes (`make run`)"),
    "doctor": (_doctor, "versions, devices, and what is missing"),
}


class _Parser(argparse.ArgumentParser):
    """The options of a verb, or of one of its actions; a mistake is a `UsageError`.

    Args:
      verb: which.
      action: of the verb.
      reads: 'config' for a config file, 'run' for the config of a run.
      json: what its JSON objects are, where it prints such; None = it does not.
    """

    def __init__(self, verb: str, action: str = "", reads: str = "", json: str | None = None):
        description = DATASTORE_ACTIONS[action] if action else VERBS[verb][0].__doc__
        super().__init__(prog=f"memjax {verb} {action}".rstrip(), description=description, allow_abbrev=False)
        self.set_defaults(run=None, config=DEFAULT_CONFIG, variant="")
        if reads == "run":
            self.add_argument("--run", required=True, metavar="DIR", help=RUN)
        if reads == "config":
            names = f"a config file or one of {', '.join(config_names())} (default: {DEFAULT_CONFIG})"
            self.add_argument("--config", metavar="NAME", help=names)
            self.add_argument("--variant", metavar="NAME", help="a variant that the config file defines")
        if json is not None:
            self.add_argument("--json", action="store_true", help=f"print one JSON object{json}")

    def error(self, message: str) -> NoReturn:
        raise UsageError(" ".join(message.split()))

    def read(self, arguments: list[str]) -> argparse.Namespace:
        """The options, where nothing else may be given."""
        options, rest = self.parse_known_args(arguments)
        if rest:
            hint = suggestion(rest[0].partition("=")[0], self._option_string_actions, "; see --help")
            raise UsageError(f"{rest[0]}: no such option of {self.prog}{hint}")
        return options


def _with_config(parser: _Parser, arguments: list[str], only: Sequence[str] = ()) -> tuple[argparse.Namespace, Config]:
    """The options, and the config (of `--config` or of the run in `--run`) with its overrides, validated.

    `--help` lists the fields after the options: those of `--config`, or of the default config instead of a run's.
    """
    wants_help = bool({"-h", "--help"} & set(arguments))
    if wants_help:
        parser.print_help()
        print()
        arguments = [argument for argument in arguments if argument not in ("-h", "--help")]
        for action in parser._actions:
            action.required = False
    options, rest = parser.parse_known_args(arguments)
    if options.run:
        from memjax.training.runs import load_config as load_run_config

        config = load_run_config(options.run)
    else:
        config = load_config(options.config, options.variant)
    rest, others = ["--help"] if wants_help else rest, tuple(parser._option_string_actions)
    config = apply_overrides(config, rest, prog=parser.prog, only=only, others=others)
    validate(config)
    return options, config


def _tell(facts: Mapping[str, Any], describe: Callable[[Any], str], options: argparse.Namespace) -> int:
    print(json.dumps(facts) if options.json else describe(facts))
    return 0


def _remove_unstarted(path: Path) -> None:
    """Removes the directory of a run that has not begun, so that the corrected command may use its name."""
    if path.is_dir() and {entry.name for entry in path.iterdir()} <= {"config.json", "config.tmp", ".lock"}:
        for entry in path.iterdir():
            entry.unlink()
        path.rmdir()


def _skip_absent_tpu() -> None:
    """Keeps JAX from starting a TPU that is not here.

    Where libtpu is installed only to compile (the extra `plan`), that would take seconds and print pages of warnings.
    """
    from importlib.metadata import entry_points
    from importlib.util import find_spec

    other_plugins = bool(entry_points(group="jax_plugins")) or find_spec("jax_plugins") is not None
    if find_spec("libtpu") is not None and not _tpu_may_be_here() and not other_plugins:
        os.environ.setdefault("JAX_PLATFORMS", "cpu")


def _tpu_may_be_here() -> bool:
    """Whether the machine has a device of Google's; containers may see the device file only, or the bus only."""
    vendors = Path("/sys/bus/pci/devices").glob("*/vendor")
    files = any(Path("/dev").glob("accel*")) or any(Path("/dev").glob("vfio/[0-9]*"))
    return (files or any(v.read_text().strip() == "0x1ae0" for v in vendors)) and (
        os.environ.get("JAX_PLATFORMS", "tpu") in ("", "tpu", "tpu,cpu")
    )


def _explain(error: Exception) -> tuple[str | None, int]:
    """The line about an error, and the exit code: 2 for a user's mistake, 128 + signal for a run that one has stopped.

    No line stands for an error of the program, an empty one where all is said: a run says itself that it was stopped.
    A `ValueError` is a mistake where memjax itself raised it (in JAX or NumPy it is a fault of the program), an
    `OSError` where it names a file, a missing module where an extra brings it. A full disk is nobody's mistake, nor is
    another process of the run that is gone; both have a line.
    """
    line = " ".join(str(error).split())
    if isinstance(error, UsageError):
        return line, 2
    if isinstance(error, ModuleNotFoundError):
        from memjax.doctor import extra_of

        if extra := extra_of(error.name or ""):
            return f"{error.name} is not installed ({extra[1]}), allowed: pip install 'memjax[{extra[0]}]'", 2
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.filename}: {error.strerror}", 1 if error.errno in FULL else 2
    if isinstance(error, ValueError):
        package = Path(__file__).parent
        own = (str(package), str(package.parent / "configs"), "configs")
        frames = traceback.extract_tb(error.__traceback__)
        if frames and frames[-1].filename.startswith(own):
            return line, 2
    if "memjax.training.processes" not in sys.modules:
        return None, 1
    from memjax.training import processes
    from memjax.training.signals import Stopped

    if isinstance(error, Stopped):
        return "", error.exit_code
    return str(error) if isinstance(error, processes.Missing) else processes.explain(error), 1


def _help() -> str:
    verbs = "\n".join(f"  {name:9} {summary}" for name, (_, summary) in VERBS.items())
    return (
        "usage: memjax <verb> [--option value] [--field.of.the.config value]\n\n"
        "Memory for Transformers in JAX.\n\n"
        f"{verbs}\n\n"
        "`memjax <verb> --help` lists the options of a verb and every field of the config.\n"
        "Compiled programs are kept in ~/.cache/memjax/jax (or in JAX_COMPILATION_CACHE_DIR); "
        "JAX_ENABLE_COMPILATION_CACHE=0\nkeeps none."
    )


if __name__ == "__main__":
    sys.exit(main())
