"""`memjax generate`."""

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from memjax.cli.parser import GENERATION_FIELDS, Parser, make_reader, open_run, with_config
from memjax.cli.stores import add_store, check_store_options, describe_store, recall_of
from memjax.cli.texts import read_file
from memjax.config import Config, Evaluation
from memjax.console import ANY_SIZE, check_serves, continuations
from memjax.settings.ranges import Number, Probability, Seed, Temperature


def run(arguments: list[str]) -> int:
    """Continues prompts with the newest checkpoint of a run; several prompts of any lengths are one batch."""
    parser = Parser("generate", run.__doc__, reads="run", json=" per prompt")
    parser.add_argument("--prompt", action="append", default=[], metavar="TEXT", help="a prompt; may be repeated")
    parser.add_argument("--prompt-file", action="append", default=[], metavar="FILE", help="the same from a file")
    parser.add_argument(
        "--max-tokens", type=make_reader(Number), default=256, metavar="N", help="tokens per prompt (default: 256)"
    )
    parser.add_argument("--temperature", type=make_reader(Temperature), default=0.8, help="0 = greedy (default: 0.8)")
    parser.add_argument(
        "--top-k", type=make_reader(Number), default=0, metavar="K", help="of the K most probable tokens; 0 = all"
    )
    parser.add_argument(
        "--top-p", type=make_reader(Probability), default=1.0, metavar="P", help="of the most probable tokens up to P"
    )
    parser.add_argument("--greedy", action="store_true", help="always the most probable token")
    parser.add_argument(
        "--seed", type=make_reader(Seed), default=0, help="equal seed and prompt give equal text (default: 0)"
    )
    parser.add_argument("--stop", action="append", default=[], metavar="TEXT", help="ends a text; may be repeated")
    add_store(parser, "what `memjax eval --datastore` has found")
    options, config = with_config(parser, arguments, only=GENERATION_FIELDS)
    from memjax.inference import Sampling
    from memjax.training.experiment import make_evaluation_model

    check_generates(config)
    if options.datastore:
        check_serves(config, "stores_keys")
    check_store_options(options)
    prompts = read_prompts(options.prompt, options.prompt_file)
    temperature = 0.0 if options.greedy else options.temperature
    sampling = Sampling(temperature=temperature, top_k=options.top_k, top_p=options.top_p)
    loaded = open_run(options.run, config, is_data_named=options.is_data_named)
    asked = {"max_tokens": options.max_tokens, "sampling": sampling, "stop": options.stop, "seed": options.seed}
    if options.datastore:
        loaded, asked["recall"], store = recall_of(options, loaded)
        print(describe_store(store), file=sys.stderr)
    else:
        asked["model"] = make_evaluation_model(loaded.experiment, Evaluation(cache=config.evaluation.cache))
    blocks, facts = continuations(loaded, list(prompts.values()), **asked), loaded.checkpoint.facts()
    print_continuations(prompts, blocks, facts if options.json else None)
    return 0


def check_generates(config: Config) -> None:
    """Refuses a model that does not go on from a prompt, or reads more at every token than a prompt has."""
    from memjax.tasks import task_of
    from memjax.training.experiment import evaluation_model

    task_of(config).require("generate")
    model = check_serves(config, "decodes")
    evaluation_model(config, ANY_SIZE)
    if needed := model.example_extras(1, 1):
        kind, names = type(config.model.output).__name__, ", ".join(needed)
        raise ValueError(f"model.output: given {kind}, which reads {names} at every token; see memjax.retrieval")


def read_prompts(texts: Sequence[str], files: Sequence[str]) -> dict[str, str]:
    """Header -> prompt, texts before files; one empty prompt where nothing was given."""
    prompts = {f"prompt {number}": text for number, text in enumerate(texts, 1)}
    prompts |= {file: read_file(file, "prompt-file") for file in files}
    return prompts or {"prompt 1": ""}


def print_continuations(
    prompts: Mapping[str, str], blocks: Iterator[list[str]], facts: Mapping[str, Any] | None = None
) -> None:
    """Prints every prompt with its continuation; one prompt is printed while it grows, several after one another.

    Args:
      prompts: header -> prompt; on a terminal it is dim.
      blocks: from `continuations`.
      facts: one JSON object per prompt instead, with these in it, when all are ready.
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
