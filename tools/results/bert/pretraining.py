"""Masked language modelling with memories in the place of feed-forward networks, beside them, and without.

    python -m tools.results.bert.pretraining --steps 500 --workdir runs/results        # MEMJAX_WIKITEXT2=DIR

A small encoder on WikiText-2. Three models are trained from the start; from the first, which has no memory, four others
go on: with memories (+Init), with memories beside networks that begin anew, and as a control without. All have read as
many tokens in the end. Trains what is not finished yet; writes `pretraining.json` and `pretraining.md`.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from memjax.training.restoring import load_run
from tools.results.runs import USAGE, Run, cells, measured, parse, train, usage, write

FOLDER = "bert"
"""of the table and the logs"""
EVERY = 100
"""steps between evaluations"""
LAYERS = (1, 2)
"""with memories in the variants of `bert_mlm_wikitext`"""
SEGMENTS = 16
"""of every row in evaluations on the way and in counts of slots"""


_ANEW = [f"layer_{layer:02d}/feed_forward/{part}/" for layer in LAYERS for part in ("wide", "narrow")]


def runs(steps: int) -> dict[str, Run]:
    """Name -> run.

    Args:
      steps: of the model without memory, and as many of going on.
    """
    first = f"bert_mlm{steps}-ffn"

    def run(row: str, variant: str, number: int, *more: str, after: str = "") -> Run:
        shared = ("--config", "bert_mlm_wikitext", "--variant", variant, "--data.source.path", "$MEMJAX_WIKITEXT2")
        rate = ("--training.evaluate-every", str(EVERY), "--training.checkpoint-every", str(EVERY))
        length = ("--training.steps", str(number), "--evaluation.max-segments", str(SEGMENTS))
        return Run(row, (*shared, *length, *rate, *more), after)

    return {
        first: run("FFN, stage 1", "wikitext2", steps),
        f"bert_mlm{steps}-pkm": run("PKM", "wikitext2_pkm", 2 * steps),
        f"bert_mlm{steps}-resm": run("ResM", "wikitext2_resm", 2 * steps),
        f"{first}-ffn": run("FFN, equal budget", "wikitext2", steps, after=first),
        f"{first}-pkm": run("PKM + Init", "wikitext2_pkm", steps, after=first),
        f"{first}-resm": run("ResM + Init", "wikitext2_resm", steps, after=first),
        f"{first}-resm_anew": run(
            "ResM + Init, networks anew", "wikitext2_resm", steps, "--training.reinitialized", *_ANEW, after=first
        ),
    }


def measure(directory: Path) -> dict[str, Any]:
    """Scores on validation and test, and how the tables are used on validation."""
    run = load_run(directory)
    found: dict[str, Any] = {}
    for split in ("validation", "test"):
        evaluation = run.experiment.config.evaluation
        evaluation.split, evaluation.max_segments = split, 0
        score = run.experiment.evaluator(evaluation)(run.variables)
        found[split] = {"perplexity": score.perplexity, "accuracy": score.accuracy, "targets": score.targets}
    run.experiment.config.evaluation.split = "validation"
    return {**found, "tables": usage(run.experiment, run.variables, SEGMENTS)}


def curve(directory: Path) -> list[dict[str, float]]:
    """Perplexity on validation, and usage in training since the line before, at the steps of a run."""
    lines = [json.loads(line) for line in (directory / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    used = {line["step"]: line for line in lines if line["kind"] == "train"}
    points = []
    for line in lines:
        if line["kind"] == "evaluation" and line["step"] in used:
            top = [value for name, value in used[line["step"]].items() if name.endswith("/top_usage")]
            point = {"step": line["step"], "perplexity": line["perplexity"]}
            points.append({**point, **({"top_usage": sum(top) / len(top)} if top else {})})
    return points


def as_markdown(facts: dict[str, Any]) -> str:
    """The tables."""
    lines = [
        cells(["model", "steps", "parameters", "validation perplexity", "test perplexity", "test accuracy"]),
        cells(["---"] * 6),
    ]
    for one in facts["runs"].values():
        scores = [one["validation"]["perplexity"], one["test"]["perplexity"], one["test"]["accuracy"]]
        lines.append(cells([one["row"], one["steps"], one["parameters"], *scores]))
    heads = ["model", "table", *(name.replace("_", " ") for name in USAGE)]
    lines += ["", "Slots in use on validation:", "", cells(heads), cells(["---"] * len(heads))]
    for one in facts["runs"].values():
        for table, values in one["tables"].items():
            lines.append(cells([one["row"], table, *(values[name] for name in USAGE)]))
    lines += ["", "Validation perplexity (a part of the split) on the way, by steps of the run itself:", ""]
    steps = sorted({point["step"] for one in facts["runs"].values() for point in one["curve"]})
    lines += [cells(["model", *steps]), cells(["---"] * (len(steps) + 1))]
    for one in facts["runs"].values():
        at = {point["step"]: point["perplexity"] for point in one["curve"]}
        lines.append(cells([one["row"], *(f"{at[step]:.2f}" if step in at else "" for step in steps)]))
    return "\n".join([*lines, ""])


def main() -> None:
    about = {"type": int, "default": 500, "help": "of each of the two stages (default: 500)"}
    options = parse(FOLDER, "pretraining", __doc__, ("--steps", about))
    every, found = runs(options.steps), {}
    for name, run in every.items():
        if options.only not in name:
            continue
        directory = train(FOLDER, every, name, options.workdir)
        results = json.loads((directory / "finished.json").read_text(encoding="utf-8"))["results"]
        steps = options.steps * (1 if run.row == "FFN, stage 1" else 2)
        known = {"row": run.row, "steps": steps, "parameters": results["parameters"], "curve": curve(directory)}
        found[name] = {**known, **measured(directory, lambda directory=directory: measure(directory))}
    if options.only:
        return
    page = (
        "# BERT: memories in masked language modelling\n\n"
        "WikiText-2, `bert_mlm_wikitext` in its sizes `wikitext2`, one seed; 1,024 tokens a step; on the way a part of "
        "validation is scored, at the end all of validation and test, with fixed masks. Perplexity of hidden tokens. "
        f"'+ Init' begins with the model after {options.steps:,} steps without memory, as does the control of equal "
        "budget, and goes on for as many with a schedule of its own; of 'networks anew' the feed-forward networks "
        "beside memories begin anew.\n\n"
    )
    command = f"python -m tools.results.bert.pretraining --steps {options.steps}"
    write(FOLDER, "pretraining", command, {"runs": found}, page + as_markdown({"runs": found}))


if __name__ == "__main__":
    main()
