"""The command `memjax eval`, which scores a split with a trained model."""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from memjax.cli.console import ANY_SIZE, align, check_serves, describe_facts, show_when_slow
from memjax.cli.parser import (
    EVALUATION_FIELDS,
    Parser,
    data_facts,
    exit_code,
    open_run,
    parse_with_config,
    print_result,
)
from memjax.cli.stores import add_store, check_store_options, describe_store, score_store
from memjax.cli.streams import check_probe, describe_stream, probe_stream
from memjax.config import Config, Evaluation
from memjax.lifelong.stream_results import LARGEST_CLASS, describe_result
from memjax.report.outcomes import stream_facts
from memjax.report.verdicts import Comparison, compare_documents, correct_for_many, describe_test, show_difference
from memjax.settings.checks import validate
from memjax.settings.overrides import UsageError

if TYPE_CHECKING:
    from memjax.training.scores import DocumentScores

# Formats of numbers that are printed without four decimals.
NUMBER_FORMATS = {
    "nats": "{:,.1f}",
    "targets": "{:,}",
    "bytes": "{:,}",
    "words": "{:,}",
    "memory_bytes": "{:,}",
    "tokens_per_second": "{:,.0f}",
    "examples_per_second": "{:,.0f}",
}


def run(arguments: list[str]) -> int:
    """Scores a split with the newest checkpoint of a run, which may still be training, and compares sizes of its memory
    (`--memory`).
    """
    parser = Parser("eval", run.__doc__, reads="run", json="; with --memory a list")
    sizes = "memory sizes to compare with that of training, such as off,512,2048: numbers of slots, or off"
    parser.add_argument("--memory", default="", metavar="SIZES", help=sizes)
    probe = "also train a linear classifier for each task on the head's input (runs over tasks with classes)"
    parser.add_argument("--probe", action="store_true", help=probe)
    add_store(parser, "the best of a grid on the validation split")
    options, config = parse_with_config(parser, arguments, only=EVALUATION_FIELDS)
    lengths = read_sizes(options.memory)
    if lengths and options.datastore:
        raise UsageError("--memory: given with --datastore, allowed: one of the two: keys are of one memory")
    if options.probe and (lengths or options.datastore):
        other = "--memory" if lengths else "--datastore"
        raise UsageError(f"--probe: given with {other}, allowed: one of the two")
    if options.probe:
        check_probe(config)
    if options.datastore:
        check_serves(config, "stores_keys")
    check_store_options(options, scores=True)
    from memjax.training.experiment import evaluation_model

    wanted = [dataclasses.replace(config.evaluation, memory_length=length) for length in lengths]
    for evaluation in wanted or [config.evaluation]:  # refuses what the model does not take before anything is read
        scored = dataclasses.replace(config, evaluation=evaluation)
        evaluation_model(scored, ANY_SIZE)
        validate(scored)
    loaded = open_run(options.run, config, is_data_named=options.is_data_named)
    task, facts = loaded.experiment.task, {"run": options.run, **loaded.checkpoint.facts()}
    scoring = f"eval: compiling, then scoring the {config.evaluation.split} split"
    if options.datastore:
        with show_when_slow(scoring):
            result, store = score_store(options, loaded)
        values = {**facts, **evaluation_to_json(config, result), "datastore": store, **data_facts(loaded)}
    elif not wanted:
        with show_when_slow(scoring):
            result = loaded.experiment.evaluate(loaded.variables)
        values = {**facts, **evaluation_to_json(config, result)}
        stream = {} if config.evaluation.task else stream_facts(options.run, config)
        if options.probe:
            with show_when_slow("eval: probing what the head reads of every task"):
                stream |= {"probe": probe_stream(stream, loaded)}
        values |= {"stream": stream} if stream else {}
        values |= data_facts(loaded)
    else:
        wanted = _with_trained(config, wanted)
        with show_when_slow(scoring):
            results = [(evaluation, *score_documents(loaded, evaluation)) for evaluation in wanted]
        facts |= data_facts(loaded)
        rows = [{**facts, **evaluation_to_json(dataclasses.replace(config, evaluation=e), r)} for e, r, _ in results]
        gains = compare_sizes([scores for *_, scores in results], unit_of(loaded.experiment, config))
        rows = [rows[0], *(row | {"gain": gain_values(rows[0], g)} for row, g in zip(rows[1:], gains, strict=True))]
        print(json.dumps(rows) if options.json else describe_sizes(rows, task, _trained(config), gains))
        return max(map(exit_code, rows))
    return print_result(values, functools.partial(describe_evaluation, task=task), options)


def read_sizes(text: str) -> list[int]:
    """Converts the text of `--memory`, such as 'off,512', to a list of numbers of slots without repetitions. 'off'
    becomes 0.

    Args:
      text: Numbers of slots or `off`, separated by commas.

    Raises:
      UsageError: The text has something else than `off` and numbers of slots.

    Example:
      >>> read_sizes("off,512,2048,512")
      [0, 512, 2048]
    """
    sizes = ["0" if part.strip() == "off" else part.strip() for part in text.split(",")] if text else []
    if wrong := [size for size in sizes if not size.isdecimal()]:
        raise UsageError(
            f"--memory: given {wrong[0]!r}, allowed: off, or a number of slots; several with commas (which memory "
            "it is, --memory-kind has chosen in training)"
        )
    return list(dict.fromkeys(map(int, sizes)))


def score_documents(loaded: Any, evaluation: Evaluation) -> tuple[Any, DocumentScores]:
    """Evaluates an opened run with the settings `evaluation`, and returns the result and the scores
    of every document.
    """
    from memjax.training.scores import DocumentScores

    scores = DocumentScores()
    return loaded.experiment.evaluate(loaded.variables, evaluation, observe=scores.observe), scores


def compare_sizes(scores: Sequence[DocumentScores], unit: str) -> list[Comparison]:
    """Compares each size of the memory with the smallest one, paired over documents. `scores` has the documents' scores
    with each size, smallest first, and `unit` is the word for a document in the output.

    Args:
      scores: Scores of the documents with each size, smallest first.
      unit: Kind of the documents.

    Returns:
      A comparison for each size but the first, corrected for their number.
    """
    first, *others = scores
    return correct_for_many([compare_documents(other.nats, first.nats, first.targets, unit=unit) for other in others])


def unit_of(experiment: Any, config: Config) -> str:
    """Returns the word for a text that starts with an empty memory in the evaluation of a config: 'example', 'row',
    'window' or 'document'.
    """
    from memjax.data.documents import Examples

    if isinstance(experiment.documents(config.evaluation.split), Examples):
        return "example"
    protocol = experiment.reading(config.evaluation).protocol
    return {"contiguous": "row", "sliding_window": "window"}.get(protocol, "document")


def gain_values(control: Mapping[str, Any], gain: Comparison) -> dict[str, Any]:
    """Converts a comparison of a memory size with the smallest one to a dictionary of JSON values: the nats saved on a
    token. `control` has the JSON values of the evaluation with the smallest size.
    """
    numbers = {name: None if value != value else value for name, value in gain._asdict().items()}
    return {"over_memory_length": control["memory_length"], **numbers}


def evaluation_to_json(config: Config, result: Any) -> dict[str, Any]:
    """Converts the result of an evaluation to a dictionary of JSON values, with the split and the memory of the config
    that were evaluated.
    """
    evaluation = config.evaluation
    memory_length = config.with_memory(evaluation.memory_length).model.memory_facts.memory_length or 0
    values = {"split": evaluation.split, "memory_length": memory_length, **result.as_dict()}
    if evaluation.memory_intervention != "kept":
        part = f" of {evaluation.intervention_path!r}" if evaluation.intervention_path else ""
        values["memory_state"] = f"{evaluation.memory_intervention}{part}"
    if evaluation.cache.memory_length:
        values["cache"] = dataclasses.asdict(evaluation.cache)
    return values


def describe_evaluation(values: Mapping[str, Any], task: Any) -> str:
    """Describes the JSON values of an evaluation as text: the main metrics of the task in the first line, then all
    other numbers, one in a line.
    """
    show = lambda name, value: NUMBER_FORMATS.get(name, "{:.4f}" if isinstance(value, float) else "{}").format(value)
    in_summary = {"run", "step", "newest_step", "split", "memory_length", "memory_state", *task.main_metrics}
    in_summary.add(LARGEST_CLASS)
    whole = {n: v for n, v in values.items() if not (isinstance(v, Mapping) or v is None or n in in_summary)}
    shown = {name.replace("_", " "): show(name, value) for name, value in whole.items()}
    for subset, numbers in values.get("subsets", {}).items():
        shown |= {f"{subset}: {name.replace('_', ' ')}": show(name, value) for name, value in numbers.items()}
    facts = describe_facts(shown | describe_memory(values.get("metrics", {})))
    if stream := values.get("stream"):
        table = f"{_name(values)}: {describe_result(stream)}\n\n{describe_stream(stream)}"
        return f"{table}\n\n{summary_line(values, task, name=_data_name(task.config))}\n\n{facts}"
    return f"{summary_line(values, task)}\n\n{facts}"


def _data_name(config: Config) -> str:
    """Returns the name of the task whose data `data.source` is, or that setting's name."""
    stream = config.lifelong
    assert stream is not None
    located = stream.with_sources_dir(config.data.source)
    names = [task.name for task in stream.tasks if stream.with_sources_dir(task.source) == located]
    return names[0] if len(names) == 1 else "data.source"


def describe_memory(metrics: Mapping[str, float]) -> dict[str, str]:
    """Converts logged metrics of memories to a dictionary for print: meaning of a metric -> text with its mean over the
    layers, minimum and maximum.

    Example:
      >>> print(*describe_memory({f"layer_0{i}/transformer_xl/memory_share": (i + 1) / 4 for i in range(2)}).items())
      ('memory: share of attention on the slots of the memory', '0.3750 (0.2500 to 0.5000 in 2 layers)')
    """
    from memjax.inspection.figures import FIGURES, find_figures

    def show(value: Any) -> str:
        spread = f" ({value.least:.4f} to {value.most:.4f} in {value.layers} layers)" if value.layers > 1 else ""
        return f"{value.mean:.4f}{spread}"

    return {f"memory: {FIGURES[name].meaning}": show(value) for name, value in find_figures(metrics).items()}


def summary_line(values: Mapping[str, Any], task: Any, *, name: str = "") -> str:
    """Describes as text the main metrics of an evaluation, from its JSON values, and what was scored. A datastore adds
    two lines. `name` takes the place of the run and its step.
    """
    scored = f"{values['targets']:,} {task.target_unit} of the {values['split']} split"
    memory = (
        f", memory {_size(values['memory_length'])}" if task.config.model.memory_facts.memory_length is not None else ""
    )
    memory += f" {values['memory_state']}" if "memory_state" in values else ""
    cache = f", cache {values['cache']['memory_length']:,}" if "cache" in values else ""
    text = f"{name or _name(values)}: {_numbers(values, task)} ({scored}{memory}{cache})"
    if store := values.get("datastore"):
        text += f"\nwith {describe_store(store)}\nwithout them: {_numbers(store['without'], task)}"
    return text


def describe_sizes(rows: Sequence[Mapping[str, Any]], task: Any, trained: int, gains: Sequence[Comparison] = ()) -> str:
    """Describes evaluations with several memory sizes, one row of JSON values for each, as text: a table, and the nats
    that larger sizes save. `trained` is the number of slots in training.

    Args:
      rows: JSON values of each evaluation, with the smallest memory first.
      task: Task of the run.
      trained: Number of slots of the memory in training.
      gains: Comparisons of each further size with the smallest one.
    """
    names = [name for name in task.main_metrics if name in rows[0]] + ["memory_bytes", "tokens_per_second"]
    show = lambda name, value: "-" if value is None else NUMBER_FORMATS.get(name, "{:.4f}").format(value)
    size = lambda row: _size(row["memory_length"]) + (" (as trained)" if row["memory_length"] == trained else "")
    table = [["memory", *(name.replace("_", " ") for name in names)]]
    table += [[size(row), *(show(name, row.get(name)) for name in names)] for row in rows]
    best = min(rows, key=lambda row: row["nats"])
    what = f"{best['targets']:,} {task.target_unit} of the {best['split']} split"
    what += f", memory {best['memory_state']}" if "memory_state" in best else ""
    text = f"{_name(best)}: best with memory {_size(best['memory_length'])}, {_numbers(best, task)} ({what})"
    lines = [text, "", *align(table, numbers=len(names))]
    if gains:
        over = f"memory {_size(rows[0]['memory_length'])}"
        lines += ["", f"nats saved on a token over {over}, paired ({describe_test(gains)}):"]
        lines += align(
            [
                [_size(row["memory_length"]), show_difference(gain), gain.verdict]
                for row, gain in zip(rows[1:], gains, strict=True)
            ]
        )
        lines.append(f"on these {gains[0].unit}s; another seed may differ")
    return "\n".join(lines)


def _name(values: Mapping[str, Any]) -> str:
    """Describes the run and the step of the checkpoint that was scored."""
    older = "" if values["step"] == values["newest_step"] else f" (the newest is {values['newest_step']:,})"
    return f"{values['run']} at step {values['step']:,}{older}"


def _numbers(values: Mapping[str, Any], task: Any) -> str:
    names = [name for name in (*task.main_metrics, LARGEST_CLASS) if values.get(name) is not None]
    return ", ".join(f"{name.replace('_', ' ')} {values[name]:.4f}" for name in names)


def _trained(config: Config) -> int:
    """Returns the number of slots of the memory in training."""
    return config.model.memory_facts.memory_length or 0


def _with_trained(config: Config, wanted: Sequence[Any]) -> list[Any]:
    """Returns the evaluations and one with the memory of training, sorted by the size of the memory."""
    trained = dataclasses.replace(config.evaluation, memory_length=None)
    others = [evaluation for evaluation in wanted if evaluation.memory_length != _trained(config)]
    size = lambda e: _trained(config) if e.memory_length is None else e.memory_length
    return sorted([trained, *others], key=size)


def _size(length: int) -> str:
    return f"{length:,}" if length else "off"
