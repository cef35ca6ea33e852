"""Measures the texts that a run of LAMOL would write before its next task, and a model that learns only from them.

    python -m tools.measurements.written RUN --pretrained PRETRAINED --name "LAMOL, order 1"

For every task of the run it counts the texts with exactly one answer mark, and those of them whose answer fits the
task. It also scores a fresh model that begins as the run did and learns nothing but those texts, beside one that learns
as many real examples of the task.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import tempfile
import time
from pathlib import Path
from typing import Any

from memjax.config import LAMOL, Config, InstructionLines, Lifelong, Sequential, TaskData
from memjax.data.instruction_readers import is_answer_of_task
from memjax.data.instructions import Instruction
from memjax.data.prompts import prompt_room
from memjax.lifelong import load_run, train
from memjax.lifelong.lamol import write_samples
from memjax.training import read_metrics
from memjax.training.run_versions import versions
from memjax.training.runs import load_config
from tools.results import pages
from tools.results.ledger import measured

SHOWN = 10
"""Number of texts of each task that go to the ledger."""


def score_after_training(
    config: Config, train_on: list[Instruction], source: Any, folder: Path, tests: list[Instruction]
) -> float:
    """Trains a fresh model on some examples alone, and returns its score on the test examples of a task.

    Args:
      config: Configuration of the run.
      train_on: Examples to train on.
      source: Source of the task, which has the metric of its answers.
      folder: Folder to write the examples and the run to.
      tests: Test examples of the task.
    """
    folder.mkdir(parents=True)
    for name, instructions in (("train", train_on), ("validation", tests), ("test", tests)):
        rows = [
            {**dataclasses.asdict(instruction), "answers": list(instruction.answers)} for instruction in instructions
        ]
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    lines = InstructionLines(path=str(folder), answer_metric=source.answer_metric)
    stream: Any = config.lifelong
    alone = Lifelong(method=Sequential(), tasks=(TaskData(name="one", source=lines),), epochs=stream.epochs)
    data = dataclasses.replace(config.data, source=lines)
    changes = {"name": "one", "workdir": str(folder), "data": data, "lifelong": alone, "evaluations": ()}
    result = train(dataclasses.replace(config, **changes), on_event=lambda event: None)
    return [line["score"] for line in read_metrics(result.path / "metrics.jsonl") if line.get("name") == "one"][-1]


def measure(run: Path, number: int, pretrained: str) -> dict[str, Any]:
    """Writes and scores texts of every task, and returns all numbers of the table.

    Args:
      run: Run directory.
      number: Number of texts of each task.
      pretrained: Directory of the run that this run began with.
    """
    config = load_config(run)
    config.training.init_from = pretrained
    loaded, stream, rows = load_run(run), config.lifelong, []
    assert stream is not None
    tokenizer, method = loaded.experiment.tokenizer, stream.method
    assert isinstance(method, LAMOL)
    for index, task in enumerate(stream.ordered_tasks):
        task_experiment = loaded.experiment.of_task(task.name)
        mark = tokenizer.generate_id if method.generation_token == "shared" else tokenizer.first_task_id + index
        begun = time.perf_counter()
        written = write_samples(
            loaded.experiment.model,
            loaded.variables,
            tokenizer,
            mark,
            number,
            length=config.data.segment_length,
            room=prompt_room(config.data.segment_length, loaded.experiment.task.settings.max_answer_length),
            seed=1_000_003 * index,  # samples take one seed a block
            top_k=method.top_k,
            temperature=method.temperature,
        )
        seconds = time.perf_counter() - begun
        real, tests = task_experiment.documents("train").instructions, task_experiment.documents("test").instructions
        known, answered = {answer for instruction in real for answer in instruction.answers}, task.source.answer_metric
        texts = [(tokenizer.decode(prompt), tokenizer.decode(answer)) for prompt, answer in written.rows]
        fits = [is_answer_of_task(answer, prompt, known, answered) for prompt, answer in texts]
        row = {"task": task.name, "written": number, "one_mark": len(texts) / number, "seconds": seconds}
        row |= {"of_task": sum(fits) / number, "different": len({*written.texts}) / number}
        with tempfile.TemporaryDirectory() as folder:
            examples = [Instruction("", prompt, (answer,)) for prompt, answer in texts]
            arguments = {"source": task.source, "tests": list(tests)}
            row["score_of_written"] = (
                score_after_training(config, examples, folder=Path(folder, "a"), **arguments) if examples else 0.0
            )
            row["score_of_real"] = score_after_training(
                config, list(real[: len(examples)]), folder=Path(folder, "b"), **arguments
            )
        rows.append({**row, "texts": written.texts[:SHOWN]})
    return {"versions": versions(), "tasks": rows}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("run", type=Path, help="directory of a finished run of LAMOL")
    parser.add_argument("--pretrained", required=True, help="run that it began with")
    parser.add_argument("--number", type=int, default=100, help="texts of each task")
    parser.add_argument("--name", required=True, help="of the run, for the table")
    options = parser.parse_args()
    facts = measure(options.run, options.number, options.pretrained)
    command = f"python -m tools.measurements.written RUN --pretrained PRETRAINED --number {options.number}"
    title = f"What is written: {options.name}"
    about = (
        "After the last task, texts of every task: the share with exactly one answer mark, the share whose answer is "
        "one of the task (a class, a state, a query, or words of the text), and how many are different; the score on "
        "the task's test examples of a fresh model, pretrained as the run, that learned those with one mark alone, and "
        "of one that learned as many real examples."
    )
    pages.record(measured("written", options.name, facts, command=command, title=title, about=about))


if __name__ == "__main__":
    main()
