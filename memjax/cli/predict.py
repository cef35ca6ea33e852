"""`memjax predict`."""

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from memjax.cli.parser import DATA_FIELDS, Parser, exit_code, make_reader, open_run, with_config
from memjax.cli.texts import read_texts
from memjax.config import Config
from memjax.settings.ranges import Count

ABOUT = ("question", "pair", "document")


def run(arguments: list[str]) -> int:
    """Answers about texts with the newest checkpoint of a run: classes, spans, masked tokens, the next utterance."""
    parser = Parser("predict", run.__doc__, reads="run", json=" per text")
    add = parser.add_argument
    masks = "a text, with [MASK] where a token is to be found; lines of it are the utterances of a dialogue"
    add("--text", action="append", default=[], metavar="TEXT", help=f"{masks}; may be repeated")
    add("--file", action="append", default=[], metavar="FILE", help="the same from a file")
    add("--question", default="", metavar="TEXT", help="about the texts, which hold the answer (QuestionAnswering)")
    add("--pair", default="", metavar="TEXT", help="the second text of a pair (Classification)")
    add("--document", default="", metavar="FILE", help="what a dialogue is about")
    add("--top", type=make_reader(Count), default=5, metavar="K", help="candidates for each [MASK] (default: 5)")
    parser.epilog = "A FILE by itself is read row by row (.csv, .tsv, .json as of a task, .txt, .npy of vectors)."
    files, arguments = parser.apart(arguments)
    options, config = with_config(parser, arguments, only=DATA_FIELDS)
    about = _about(config, options)
    asked: list[tuple[Any, str]] = [*_asked(config, files)] if files else []
    if options.text or options.file or not files:
        asked += [(text, about) for text in read_texts(options.text, options.file)]
    answers, facts = predict(options.run, config, asked, is_data_named=options.is_data_named, top=options.top)
    codes = [exit_code(answer) for answer in answers]
    for number, ((text, _), answer) in enumerate(zip(asked, answers, strict=True)):
        question = {"text": text} if isinstance(text, str) else {"row": number}
        shown = describe_row(answer) if files else describe_answer(answer)
        print(json.dumps({**question, **answer, **facts}) if options.json else shown)
    return max(codes)


def predict(
    run: str, config: Config, asked: Sequence[tuple[Any, str]], *, is_data_named: bool = False, **settings: Any
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Returns the answers of a run (`Task.predict` takes the settings), and facts about its checkpoint."""
    from memjax.tasks import Asked

    loaded = open_run(run, config, is_data_named=is_data_named)
    if loaded.experiment.model.asks_task and config.lifelong is not None:
        last = config.lifelong.in_order[loaded.experiment.config.num_columns - 1].name
        print(f"{run}: no task is told, the column of {last} answers", file=sys.stderr, flush=True)
    answers = loaded.experiment.predict(loaded.variables, [Asked(*question) for question in asked], **settings)
    return answers, loaded.checkpoint.facts()


def describe_answer(found: Mapping[str, Any]) -> str:
    """The answer, then the candidates for each thing that was asked for, and the examples adapted to, a line each.

    Example:
      >>> found = {"answer": "1", "candidates": [[{"answer": "1", "probability": 0.75}]], "neighbors": [3, 0]}
      >>> print(describe_answer(found))
      1
        1 0.7500
        examples 3, 0
    """
    show = lambda ranked: ", ".join(f"{one['answer']} {one['probability']:.4f}" for one in ranked)
    lines = [found["answer"], *("  " + show(ranked) for ranked in found.get("candidates", ()))]
    near = found.get("neighbors", ())
    return "\n".join([*lines, *([f"  examples {', '.join(map(str, near))}"] if near else [])])


def describe_row(found: Mapping[str, Any]) -> str:
    """The answer, its probability where it has one, and the numbers of the examples adapted to, between tabs.

    Example:
      >>> describe_row({"answer": "World", "probability": 0.75, "neighbors": [3, 0]})
      'World\\t0.7500\\t3 0'
      >>> describe_row({"answer": "a reply"})
      'a reply'
    """
    near = [" ".join(map(str, found["neighbors"]))] if "neighbors" in found else []
    probability = [f"{found['probability']:.4f}"] if "probability" in found else []
    return "\t".join([found["answer"], *probability, *near])


def _asked(config: Config, files: Sequence[str]) -> Sequence[tuple[Any, str]]:
    """What the rows of files ask."""
    from memjax.tasks import task_of

    task = task_of(config)
    for file in files:
        if not Path(file).is_file():
            raise ValueError(f"{file}: no such file, allowed: one whose rows are asked")
    asked = [one for file in files for one in task.ask(file)]
    if not asked:
        raise ValueError(f"{files[0]}: no rows, allowed: at least one")
    return asked


def _about(config: Config, options: Any) -> str:
    """What the task of a run wants beside a text; refuses other tasks, and what this one does not take."""
    from memjax.tasks import task_of

    task = task_of(config)
    task.require("predict")
    if not task.texts and (given := next((name for name in ("text", "file") if getattr(options, name)), "")):
        allowed = "a FILE by itself, .npy, float32 [vectors, width]"
        raise ValueError(f"--{given}: given with {type(task).__name__}, allowed: {allowed}")
    for name in ABOUT:
        if getattr(options, name) and name != task.about:
            allowed = f"--{task.about}" if task.about else "none"
            raise ValueError(f"--{name}: given with {type(task).__name__}, allowed: {allowed}")
    if task.about != "document":
        return getattr(options, task.about) if task.about else ""
    return read_texts([], [options.document])[0] if options.document else ""
