"""The command `memjax import`, which makes a run from weights of Hugging Face."""

import re
from collections.abc import Iterable, Mapping
from typing import Any

from memjax.cli.parser import Parser, print_result
from memjax.cli.places import check_folder


def run(arguments: list[str]) -> int:
    """Makes a run from weights of Hugging Face or a GGUF file (Llama, Qwen, Gemma, OLMo, GPT-2, BERT and others)."""
    parser = Parser("import", run.__doc__, json="")
    files = (
        "folder with config.json, model.safetensors and the files of the tokenizer, a GGUF file, or org/name on the hub"
    )
    parser.add_argument("--weights", required=True, metavar="PATH", help=files)
    parser.add_argument("--run", required=True, metavar="DIR", help="run directory to make")
    marks = "add the marks of dialogues (config cmu_dog) to the vocabulary; for GPT-2 only"
    parser.add_argument("--dialogues", action="store_true", help=marks)
    lora = (
        "folder with adapter_config.json and adapter_model.safetensors, LoRA adapters of the model as peft saves them"
    )
    parser.add_argument("--adapters", metavar="DIR", help=lora)
    options = parser.read(arguments)
    check_folder("--run", options.run)
    from memjax.interop import import_run

    imported = import_run(options.weights, options.run, dialogues=options.dialogues, adapters=options.adapters)
    model = imported.config.model
    facts = {
        "run": options.run,
        "model": model.attention_kind,
        "task": type(imported.config.task).__name__,
        "layers": model.num_layers,
        "dim": model.dim,
        "parameters": imported.num_parameters,
        "vocabulary": imported.vocab_size,
        "left": imported.left,
        "notes": imported.notes,
    }
    return print_result(facts, describe_import, options)


def describe_import(facts: Mapping[str, Any]) -> str:
    """Describes an import as text: the run and the model that were made, and the tensors that have no place in it."""
    line = "{run}: {model} ({task}), {layers} layers, {dim} wide, {parameters:,} parameters, {vocabulary:,} ids"
    lines = [line.format(**facts)]
    if facts["left"]:
        lines.append(f"no place here, kept for an export: {show_names(facts['left'])}")
    return "\n".join([*lines, *facts.get("notes", ())])


def show_names(names: Iterable[str]) -> str:
    """Returns the names of arrays as text, separated by commas, with one entry with a * for an array that all layers
    have.
    """
    return ", ".join(dict.fromkeys(re.sub(r"(?<=[._])\d+(?=[./])", "*", name) for name in names))
