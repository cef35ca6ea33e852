"""`memjax import`."""

import re
from collections.abc import Iterable, Mapping
from typing import Any

from memjax.cli.parser import Parser, tell
from memjax.cli.places import check_folder


def run(arguments: list[str]) -> int:
    """Makes a run directory of weights of Hugging Face (GPT-2, BERT, RoBERTa, DistilBERT, MiniLM, Transformer-XL)."""
    parser = Parser("import", run.__doc__, json="")
    files = "a folder with config.json, model.safetensors and the files of the tokenizer, or org/name of the hub"
    parser.add_argument("--weights", required=True, metavar="DIR", help=files)
    parser.add_argument("--run", required=True, metavar="DIR", help="the run directory to make")
    marks = "of a GPT-2: with the marks of dialogues (cmu_dog) in its vocabulary"
    parser.add_argument("--dialogues", action="store_true", help=marks)
    options = parser.read(arguments)
    check_folder("--run", options.run)
    from memjax.interop import import_run

    made = import_run(options.weights, options.run, dialogues=options.dialogues)
    model = made.config.model
    facts = {
        "run": options.run,
        "model": model.attention_kind,
        "task": type(made.config.task).__name__,
        "layers": model.num_layers,
        "dim": model.dim,
        "parameters": made.num_parameters,
        "vocabulary": made.vocab_size,
        "left": made.left,
        "notes": made.notes,
    }
    return tell(facts, describe_import, options)


def describe_import(facts: Mapping[str, Any]) -> str:
    """What was made of which weights, and which tensors have no place in the model."""
    told = "{run}: {model} ({task}), {layers} layers, {dim} wide, {parameters:,} parameters, {vocabulary:,} ids"
    lines = [told.format(**facts)]
    if facts["left"]:
        lines.append(f"no place here, kept for an export: {show_names(facts['left'])}")
    return "\n".join([*lines, *facts.get("notes", ())])


def show_names(names: Iterable[str]) -> str:
    """Names of arrays, those of all layers as one."""
    return ", ".join(dict.fromkeys(re.sub(r"(?<=[._])\d+(?=[./])", "*", name) for name in names))
