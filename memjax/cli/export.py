"""The command `memjax export`, which writes the weights of a run for Hugging Face."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from memjax.cli.parser import Parser, print_result
from memjax.cli.places import check_folder
from memjax.cli.weights import show_names


def run(arguments: list[str]) -> int:
    """Writes the newest checkpoint of a run, or its adapters, as a folder that Hugging Face's transformers can load."""
    parser = Parser("export", run.__doc__, reads="runs", json="")
    parser.add_argument("--run", required=True, metavar="DIR", help="a run directory")
    parser.add_argument("--to", required=True, metavar="DIR", help="folder to write, which must be new or empty")
    alone = "write the LoRA adapters of the run alone, as a folder that the library peft can load"
    parser.add_argument("--adapters", action="store_true", help=alone)
    options = parser.read(arguments)
    check_folder("--to", options.to)
    from memjax.interop import export_adapters, export_run

    export = (export_adapters if options.adapters else export_run)(options.run, options.to)
    facts = {"run": options.run, "to": options.to, **export.checkpoint.facts(), **dataclasses.asdict(export)}
    return print_result({**facts, "checkpoint": str(export.checkpoint)}, describe_export, options)


def describe_export(facts: Mapping[str, Any]) -> str:
    """Describes an export as text: the model, the files that were written, and the parameters that were left out."""
    lines = [
        "{to}: {model_type}, {num_parameters:,} parameters of {run}, {checkpoint}".format(**facts),
        ", ".join(facts["files"]),
    ]
    if facts["left_out"]:
        lines.append(f"left out, since transformers has no place for it: {show_names(facts['left_out'])}")
    return "\n".join([*lines, *facts["notes"]])
