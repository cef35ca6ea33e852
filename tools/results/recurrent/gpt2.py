"""A small GPT-2 on WikiText-2, and memories added to it: the two stages of infinity-former.

    python -m tools.results.recurrent.gpt2 --workdir runs/results        # MEMJAX_WIKITEXT2=DIR

The paper adds memories to published weights. Here GPT-2 is trained on the same text first; then it goes on alone, as a
control of equal budget, with a compressed memory, with infinity-former and with sticky memories. What a memory adds has
a learning rate of its own. Trains what is not finished yet; writes `gpt2.json` and `gpt2.md`.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from memjax.training.restoring import load_run
from tools.results.runs import Run, cells, measured, parse, train, write

FOLDER = "recurrent"
"""of the table and the logs"""
STEPS, MORE = 800, 250
"""of the first stage and of going on"""
ROWS, LENGTH, SLOTS = 16, 64, 64
"""of the text, and compressed slots of 4 tokens"""
RATES = {"first": "2e-3", "going on": "2e-4", "memory": "1e-3"}
"""learning rates; that of a memory is five times that of GPT-2, as in the paper"""
SHARED = (
    *("--data.source.path", "$MEMJAX_WIKITEXT2", "--data.tokenizer.vocab-size", "4096"),
    *("--data.rows", str(ROWS), "--data.segment-length", str(LENGTH), "--evaluation.rows", str(ROWS)),
    *("--model.dim", "128", "--model.num-layers", "4", "--model.num-heads", "4", "--model.scan-layers", "True"),
    *("--model.dropout", "0.0", "--model.attention-dropout", "0.0", "--model.attention.num-positions", str(LENGTH)),
    *("--training.log-every", "50", "--training.evaluate-every", "0", "--training.keep-checkpoints", "1"),
)
SIGNAL = (
    *("--model.attention.segment-length", str(LENGTH), "--model.attention.num-basis", "128"),
    *("--model.attention.num-samples", "128", "--model.attention.widths", "0.01", "0.05"),
    *("--model.attention.reset-after", "0"),
)
MEMORIES = {
    "alone": ("GPT-2, goes on alone", "default", ()),
    "compressive": (
        "+ compressed memory",
        "compressive",
        ("--model.attention.compressed-memory-length", str(SLOTS), "--model.attention.compression-rate", "4"),
    ),
    "infinity_former": ("+ infinity-former", "infinity_former", SIGNAL),
    "sticky": ("+ infinity-former, sticky", "sticky", SIGNAL),
}
"""name -> row of the table, variant of `gpt2_wikitext`, arguments"""


def runs(steps: int, more: int) -> dict[str, Run]:
    """Name -> run.

    Args:
      steps: of the first stage.
      more: of going on.
    """
    first = f"gpt2_{steps}"

    def run(row: str, variant: str, number: int, rate: str, *further: str, after: str = "") -> Run:
        config = ("--config", "gpt2_wikitext", "--variant", variant, *SHARED)
        length = ("--training.steps", str(number), "--training.checkpoint-every", str(max(number // 4, 1)))
        rates = ("--training.schedule.learning-rate", rate, "--training.schedule.warmup-steps", str(number // 20))
        return Run(row, (*config, *length, *rates, *further), after)

    found = {first: run("GPT-2, first stage", "default", steps, RATES["first"])}
    for name, (row, variant, further) in MEMORIES.items():
        own = ("--training.memory-learning-rate", RATES["memory"]) if further else ()
        going_on = run(row, variant, more, RATES["going on"], *further, *own, after=first)
        found[f"{first}-{more}_{name}"] = going_on
    return found


def measure(directory: Path) -> dict[str, Any]:
    """The score of a finished run on the test split."""
    run = load_run(directory)
    run.experiment.config.evaluation.split = "test"
    score = run.experiment.evaluator()(run.variables)
    return {"perplexity": score.perplexity, "bits_per_byte": score.bits_per_byte, "targets": score.targets}


def as_markdown(facts: dict[str, Any]) -> str:
    """The table."""
    heads = ["model", "steps", "parameters", "memory, bytes a row", "validation perplexity", "test perplexity"]
    lines = [cells([*heads, "test bits per byte"]), cells(["---"] * (len(heads) + 1))]
    for one in facts["runs"].values():
        scores = [one["validation"]["perplexity"], one["test"]["perplexity"], one["test"]["bits_per_byte"]]
        lines.append(cells([one["row"], one["steps"], one["parameters"], one["memory_bytes"], *scores]))
    return "\n".join([*lines, ""])


def main() -> None:
    number = lambda default, what: {"type": int, "default": default, "help": f"{what} (default: {default:,})"}
    options = parse(
        FOLDER,
        "gpt2",
        __doc__,
        ("--steps", number(STEPS, "of the first stage")),
        ("--more", number(MORE, "of going on, each")),
    )
    every, found = runs(options.steps, options.more), {}
    for name, run in every.items():
        if options.only not in name:
            continue
        directory = train(FOLDER, every, name, options.workdir)
        results = json.loads((directory / "finished.json").read_text(encoding="utf-8"))["results"]
        score = results["evaluation"]
        found[name] = {
            "row": run.row,
            "steps": options.steps + (options.more if run.after else 0),
            "parameters": results["parameters"],
            "memory_bytes": score["memory_bytes"],
            "validation": {key: score[key] for key in ("perplexity", "bits_per_byte", "targets")},
            "test": measured(directory, lambda directory=directory: measure(directory)),
        }
    if options.only:
        return
    targets = next(iter(found.values()))
    page = (
        "# GPT-2: memories added to a trained model\n\n"
        "WikiText-2 in byte pairs trained on it, `gpt2_wikitext` in 4 layers, 128 wide, segments of "
        f"{LENGTH}, {ROWS * LENGTH:,} tokens a step; contiguous streams, every token scored once "
        f"({targets['validation']['targets']:,} targets of validation, {targets['test']['targets']:,} of test), one "
        f"seed: the numbers compare these models only. After {options.steps:,} steps of GPT-2 alone, at learning rate "
        f"{RATES['first']}, all others go on from its parameters for {options.more:,} steps at {RATES['going on']}, "
        f"and at {RATES['memory']} for what a memory adds. The compressed memory has {SLOTS} slots of 4 tokens (ALiBi "
        "on their scores) and its reconstruction loss; the signal has 128 basis functions and is never reset.\n\n"
    )
    command = f"python -m tools.results.recurrent.gpt2 --steps {options.steps} --more {options.more}"
    write(FOLDER, "gpt2", command, {"runs": found}, page + as_markdown({"runs": found}))


if __name__ == "__main__":
    main()
