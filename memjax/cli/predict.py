"""`memjax predict`."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from memjax.cli.parser import DATA_FIELDS, Parser, open_run, with_config
from memjax.cli.texts import read_texts
from memjax.config import Config

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
    add("--top", type=int, default=5, metavar="K", help="candidates for each [MASK] (default: 5)")
    options, config = with_config(parser, arguments, only=DATA_FIELDS)
    about = _about(config, options)
    if options.top < 1:
        raise ValueError(f"top: given {options.top}, allowed: 1 or more")
    texts = read_texts(options.text, options.file)
    answers, facts = predict(options.run, config, [(text, about) for text in texts], top=options.top)
    for text, found in zip(texts, answers, strict=True):
        print(json.dumps({"text": text, **found, **facts}) if options.json else describe_answer(found))
    return 0


def predict(
    run: str, config: Config, asked: Sequence[tuple[str, str]], **how: Any
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """What a run answers, see `Task.predict`, and which checkpoint of it."""
    from memjax.tasks import Asked

    loaded = open_run(run, config)
    experiment, questions = loaded.experiment, [Asked(*one) for one in asked]
    found = experiment.task.predict(experiment.model, loaded.variables, questions, experiment.datasets, **how)
    return found, loaded.checkpoint.facts()


def describe_answer(found: Mapping[str, Any]) -> str:
    """The answer, then the candidates for each thing that was asked for, a line each.

    Example:
      >>> print(describe_answer({"answer": "1", "candidates": [[{"answer": "1", "probability": 0.75}]]}))
      1
        1 0.7500
    """
    show = lambda ranked: ", ".join(f"{one['answer']} {one['probability']:.4f}" for one in ranked)
    return "\n".join([found["answer"], *("  " + show(ranked) for ranked in found.get("candidates", ()))])


def _about(config: Config, options: Any) -> str:
    """What the task of a run wants beside a text; refuses other tasks, and what this one does not take."""
    from memjax.tasks import task_of

    task = task_of(config)
    task.require("predict")
    for name in ABOUT:
        if getattr(options, name) and name != task.about:
            allowed = f"--{task.about}" if task.about else "none"
            raise ValueError(f"--{name}: given with {type(task).__name__}, allowed: {allowed}")
    if task.about != "document":
        return getattr(options, task.about) if task.about else ""
    return read_texts([], [options.document])[0] if options.document else ""
