"""The command `memjax data`, which prepares the data of a config."""

import sys
from typing import Any

from memjax.cli.console import preparation, split_sizes
from memjax.cli.parser import Parser, parse_with_config
from memjax.cli.places import check_data_folders
from memjax.config import Config


def run(arguments: list[str]) -> int:
    """Prepares the data of a config: reads it, trains a tokenizer if it needs one, writes token files, and prints the
    sizes of all splits.
    """
    parser = Parser("data", f"{run.__doc__} `memjax data prepare` does the same.", reads="config")
    # Not an argument of argparse, which would take the value of a field for it.
    _, config = parse_with_config(
        parser,
        arguments[1:] if arguments[:1] == ["prepare"] else arguments,
        check=lambda _, config: check_data_folders(config),
    )
    from memjax.data.source_readers import source_notes
    from memjax.tasks import make_task
    from memjax.training.experiment import with_task_source

    single = with_task_source(config, config.data.source)
    datasets = make_task(single).data(preparation())
    for line in source_notes(config.data.source) if config.lifelong is None else ():
        print(line, file=sys.stderr, flush=True)
    if config.lifelong is None:
        print(describe_data(single, datasets))
    for task in config.lifelong.ordered_tasks if config.lifelong else ():
        task_config = with_task_source(config, task.source)
        task_datasets = make_task(task_config).data(preparation(), tokenizer=datasets.tokenizer)
        print(f"{task.name}: {describe_data(task_config, task_datasets)}")
    return 0


def describe_data(config: Config, datasets: Any) -> str:
    """Describes prepared data as text: size of the vocabulary, and a line for each split with its documents, tokens and
    bytes.
    """
    source, tokenizer = type(config.data.source).__name__, type(config.data.tokenizer).__name__
    lines = [f"{source}, {tokenizer}, {datasets.vocab_size:,} vocabulary entries"]
    for split, size in split_sizes(datasets.documents).items():
        documents, tokens, num_bytes = size.values()
        lines.append(f"{split:10}  {documents:8,} documents  {tokens:12,} tokens  {num_bytes:14,} bytes")
    return "\n".join(lines)
