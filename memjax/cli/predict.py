"""The command `memjax predict`, which answers questions of a task about texts."""

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from memjax.cli.parser import DATA_FIELDS, Parser, exit_code, make_reader, open_run, parse_with_config
from memjax.cli.texts import read_texts
from memjax.config import Config
from memjax.settings.ranges import Count

ABOUT = ("question", "pair", "document")


def run(arguments: list[str]) -> int:
    """Predicts classes, answer spans, masked tokens or the next utterance with the newest checkpoint of a run."""
    parser = Parser("predict", run.__doc__, reads="run", json=" per text")
    add = parser.add_argument
    masks = "text, with [MASK] for each token to predict, or with the utterances of a dialogue as its lines"
    add("--text", action="append", default=[], metavar="TEXT", help=f"{masks}; may be repeated")
    add("--file", action="append", default=[], metavar="FILE", help="file with such a text; may be repeated")
    add("--question", default="", metavar="TEXT", help="question that the texts answer (QuestionAnswering)")
    add("--pair", default="", metavar="TEXT", help="second text of a pair (Classification)")
    add("--document", default="", metavar="FILE", help="file with the document that a dialogue is about")
    top = "number of candidates for each [MASK] (default: 5)"
    add("--top", type=make_reader(Count), default=5, metavar="K", help=top)
    parser.epilog = (
        "A FILE without an option is read row by row, and each row gets an answer: .csv, .tsv or .json as for --tasks, "
        ".txt, or .npy with vectors."
    )
    files, arguments = parser.split_positional(arguments)
    options, config = parse_with_config(parser, arguments, only=DATA_FIELDS)
    second = _second_input(config, options)
    queries: list[tuple[Any, str]] = [*_read_queries(config, files)] if files else []
    if options.text or options.file or not files:
        queries += [(text, second) for text in read_texts(options.text, options.file)]
    answers, facts = predict(options.run, config, queries, is_data_named=options.is_data_named, top=options.top)
    codes = [exit_code(answer) for answer in answers]
    for number, ((text, _), answer) in enumerate(zip(queries, answers, strict=True)):
        question = {"text": text} if isinstance(text, str) else {"row": number}
        shown = describe_row(answer) if files else describe_answer(answer)
        print(json.dumps({**question, **answer, **facts}) if options.json else shown)
    return max(codes)


def predict(
    run: str, config: Config, questions: Sequence[tuple[Any, str]], *, is_data_named: bool = False, **settings: Any
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Predicts with the run in a directory, and returns an answer for each query, as JSON values, and facts about its
    checkpoint. `questions` has pairs of a text (or vector) and a second input such as a question, or ''.

    Args:
      run: The run directory.
      config: Configuration of the run.
      questions: Pairs of a text (or vector) and a second input, such as a question. '' for no second input.
      is_data_named: Whether the command line names the data. See `open_run`.
      **settings: Settings of `Task.predict`.
    """
    from memjax.tasks import Query

    loaded = open_run(run, config, is_data_named=is_data_named)
    if loaded.experiment.needs_task_id and config.lifelong is not None:
        last = f"column of {config.lifelong.ordered_tasks[loaded.experiment.config.num_columns - 1].name}"
        answering = last if loaded.experiment.model.needs_task_id else "newest adapter"
        print(f"{run}: no task is told, the {answering} answers", file=sys.stderr, flush=True)
    answers = loaded.experiment.predict(loaded.variables, [Query(*question) for question in questions], **settings)
    return answers, loaded.checkpoint.facts()


def describe_answer(answer: Mapping[str, Any]) -> str:
    """Formats an answer of `predict` as lines of text: the answer, its candidates with their probabilities, and the
    numbers of the stored examples adapted to.

    Example:
      >>> answer = {"answer": "1", "candidates": [[{"answer": "1", "probability": 0.75}]], "neighbors": [3, 0]}
      >>> print(describe_answer(answer))
      1
        1 0.7500
        examples 3, 0
    """
    show = lambda ranked: ", ".join(f"{entry['answer']} {entry['probability']:.4f}" for entry in ranked)
    lines = [answer["answer"], *("  " + show(ranked) for ranked in answer.get("candidates", ()))]
    near = answer.get("neighbors", ())
    return "\n".join([*lines, *([f"  examples {', '.join(map(str, near))}"] if near else [])])


def describe_row(answer: Mapping[str, Any]) -> str:
    """Formats an answer of `predict` in one line of text: the answer, its probability, and the numbers of the stored
    examples adapted to, separated by tabs.

    Example:
      >>> describe_row({"answer": "World", "probability": 0.75, "neighbors": [3, 0]})
      'World\\t0.7500\\t3 0'
      >>> describe_row({"answer": "a reply"})
      'a reply'
    """
    near = [" ".join(map(str, answer["neighbors"]))] if "neighbors" in answer else []
    probability = [f"{answer['probability']:.4f}"] if "probability" in answer else []
    return "\t".join([answer["answer"], *probability, *near])


def _read_queries(config: Config, files: Sequence[str]) -> Sequence[tuple[Any, str]]:
    """Reads a query, a text (or vector) with its second input, from each row of files."""
    from memjax.tasks import make_task

    task = make_task(config)
    for file in files:
        if not Path(file).is_file():
            raise ValueError(f"{file}: no such file, allowed: one whose rows are questions")
    queries = [query for file in files for query in task.read_queries(file)]
    if not queries:
        raise ValueError(f"{files[0]}: no rows, allowed: at least one")
    return queries


def _second_input(config: Config, options: Any) -> str:
    """Returns the second input of the task from the options, such as a question. '' for none.

    Raises:
      ValueError: The task does not predict, or an option does not fit it.
    """
    from memjax.tasks import make_task

    task = make_task(config)
    task.require("predict")
    if not task.texts and (option := next((name for name in ("text", "file") if getattr(options, name)), "")):
        allowed = "a FILE by itself, .npy, float32 [vectors, width]"
        raise ValueError(f"--{option}: given with {type(task).__name__}, allowed: {allowed}")
    for name in ABOUT:
        if getattr(options, name) and name != task.second_input:
            allowed = f"--{task.second_input}" if task.second_input else "none"
            raise ValueError(f"--{name}: given with {type(task).__name__}, allowed: {allowed}")
    if task.second_input != "document":
        return getattr(options, task.second_input) if task.second_input else ""
    return read_texts([], [options.document])[0] if options.document else ""
