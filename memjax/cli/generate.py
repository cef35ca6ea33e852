"""The command `memjax generate`, which continues prompts."""

from __future__ import annotations

import json
import sys
from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from memjax.cli.console import ANY_SIZE, check_serves, continuations
from memjax.cli.parser import GENERATION_FIELDS, Parser, make_reader, open_run, parse_with_config
from memjax.cli.stores import add_store, check_store_options, describe_store, model_with_store
from memjax.cli.texts import read_file
from memjax.config import Config, Evaluation
from memjax.settings.overrides import UsageError
from memjax.settings.ranges import Number, Probability, Seed, Temperature

if TYPE_CHECKING:
    from memjax.inference import Sampling

DEFAULTS: dict[str, Any] = {"temperature": 0.8, "top_k": 0, "top_p": 0.95}
"""Settings of sampling that are used unless the command line gives others"""


def run(arguments: list[str]) -> int:
    """Continues prompts with the newest checkpoint of a run. Several prompts are continued as one batch."""
    parser = Parser("generate", run.__doc__, reads="run", json=" per prompt")
    parser.add_argument("--prompt", action="append", default=[], metavar="TEXT", help="prompt; may be repeated")
    parser.add_argument(
        "--prompt-file", action="append", default=[], metavar="FILE", help="file with a prompt; may be repeated"
    )
    parser.add_argument(
        "--max-tokens",
        type=make_reader(Number),
        default=256,
        metavar="N",
        help="maximum number of generated tokens per prompt (default: 256)",
    )
    temperature = "sampling temperature; 0 = greedy (default: 0.8)"
    parser.add_argument("--temperature", type=make_reader(Temperature), help=temperature)
    top_k = "draw from the K most probable tokens; 0 = from all (default: 0)"
    parser.add_argument("--top-k", type=make_reader(Number), metavar="K", help=top_k)
    top_p = "draw from the most probable tokens whose probabilities add up to P; 1 = from all (default: 0.95)"
    parser.add_argument("--top-p", type=make_reader(Probability), metavar="P", help=top_p)
    parser.add_argument("--greedy", action="store_true", help="always take the most probable token")
    seed = "seed of sampling; equal seeds and prompts give equal texts (default: 0)"
    parser.add_argument("--seed", type=make_reader(Seed), default=0, help=seed)
    stop = "text that ends a continuation; may be repeated"
    parser.add_argument("--stop", action="append", default=[], metavar="TEXT", help=stop)
    chat = "take each prompt as a message to a model for chats: apply its chat template, and end where an answer ends"
    parser.add_argument("--chat", action="store_true", help=chat)
    add_store(parser, "the values that `memjax eval --datastore` has tuned")
    options, config = parse_with_config(parser, arguments, only=GENERATION_FIELDS)
    from memjax.inference.texts import check_chat
    from memjax.training.experiment import make_evaluation_model
    from memjax.training.runs import open_tokenizer

    sampling = choose_sampling(options)
    check_generates(config)
    if options.datastore:
        check_serves(config, "stores_keys")
    check_store_options(options)
    prompts = read_prompts(options.prompt, options.prompt_file)
    if options.chat:
        check_chat(open_tokenizer(options.run))
    loaded = open_run(options.run, config, is_data_named=options.is_data_named)
    asked = {"max_tokens": options.max_tokens, "sampling": sampling, "stop": options.stop, "seed": options.seed}
    asked["chat"] = options.chat
    if options.datastore:
        loaded, asked["recall"], store = model_with_store(options, loaded)
        print(describe_store(store), file=sys.stderr)
    else:
        asked["model"] = make_evaluation_model(loaded.experiment, Evaluation(cache=config.evaluation.cache))
    print(describe_sampling(sampling), file=sys.stderr, flush=True)
    blocks, facts = continuations(loaded, list(prompts.values()), **asked), loaded.checkpoint.facts()
    shown = {header: f"{text}\n" for header, text in prompts.items()} if options.chat and not options.json else prompts
    print_continuations(shown, blocks, facts if options.json else None)
    return 0


def choose_sampling(options: Namespace) -> Sampling:
    """Returns the settings of sampling that the options `--greedy`, `--temperature`, `--top-k` and `--top-p` give, with
    `DEFAULTS` for those that were not given. Raises `UsageError` for `--greedy` beside another of them.
    """
    from memjax.inference import Sampling

    chosen = {name: value for name in DEFAULTS if (value := vars(options)[name]) is not None}
    if options.greedy and chosen:
        raise UsageError(f"--greedy: given with --{next(iter(chosen)).replace('_', '-')}, allowed: one of the two")
    return Sampling(temperature=0.0) if options.greedy else Sampling(**{**DEFAULTS, **chosen})


def describe_sampling(sampling: Sampling) -> str:
    """Describes in one line how tokens are chosen, and the options that change it.

    Example:
      >>> from memjax.inference import Sampling
      >>> describe_sampling(Sampling(temperature=0.8, top_p=0.95))
      'sampling at temperature 0.8 and top-p 0.95; --temperature, --top-p, --top-k and --greedy change it'
      >>> describe_sampling(Sampling(temperature=0.0))
      'the most probable token each time (greedy)'
    """
    if not sampling.temperature:
        return "the most probable token each time (greedy)"
    top_k = f", top-k {sampling.top_k}" if sampling.top_k else ""
    numbers = f"temperature {sampling.temperature:g}{top_k} and top-p {sampling.top_p:g}"
    return f"sampling at {numbers}; --temperature, --top-p, --top-k and --greedy change it"


def check_generates(config: Config) -> None:
    """Raises `ValueError` for a config whose model cannot continue a prompt, or needs more inputs at every token than a
    prompt has. Returns nothing.

    Raises:
      ValueError: The task does not generate, the model does not decode, or it needs neighbours for every token.
    """
    from memjax.tasks import make_task
    from memjax.training.experiment import evaluation_model

    make_task(config).require("generate")
    model = check_serves(config, "decodes")
    evaluation_model(config, ANY_SIZE)
    if needed := model.example_extras(1, 1):
        kind, names = type(config.model.output).__name__, ", ".join(needed)
        raise ValueError(f"model.output: given {kind}, which reads {names} at every token; see memjax.retrieval")


def read_prompts(texts: Sequence[str], files: Sequence[str]) -> dict[str, str]:
    """Returns a dictionary from headings for the output to prompts: the `texts` themselves, then the contents of the
    files at the paths `files`. One empty prompt where none is given.
    """
    prompts = {f"prompt {number}": text for number, text in enumerate(texts, 1)}
    prompts |= {file: read_file(file, "prompt-file") for file in files}
    return prompts or {"prompt 1": ""}


def print_continuations(
    prompts: Mapping[str, str], blocks: Iterator[list[str]], facts: Mapping[str, Any] | None = None
) -> None:
    """Prints prompts (heading -> prompt) with their continuations, from an iterator over their next pieces of text: a
    single one while it grows, several at the end. With `facts` it prints JSON objects instead.

    Args:
      prompts: Heading -> prompt, which is printed dimmed on a terminal.
      blocks: Blocks of text of each prompt, as `continuations` yields them.
      facts: Values to add to a JSON object for each prompt, which is then printed instead. None to print text.
    """
    dim, plain = ("\x1b[2m", "\x1b[0m") if sys.stdout.isatty() and facts is None else ("", "")
    if len(prompts) == 1 and facts is None:
        print(f"{dim}{next(iter(prompts.values()))}{plain}", end="", flush=True)
        for (piece,) in blocks:
            print(piece, end="", flush=True)
        print()
        return
    rows = ["".join(pieces) for pieces in zip(*blocks, strict=True)]
    for (header, prompt), text in zip(prompts.items(), rows, strict=True):
        if facts is not None:
            print(json.dumps({"header": header, "prompt": prompt, "text": text, **facts}))
        else:
            print(f"== {header}\n{dim}{prompt}{plain}{text}\n")
