"""MiniLM weights fine-tuned with and without memories beside two feed-forward networks.

    python -m tools.results.bert.fine_tuning --weights DIR --workdir runs/results

DIR has the weights as `save_pretrained` writes them. MEMJAX_GLUE_COLA, MEMJAX_GLUE_SST2, MEMJAX_GLUE_QNLI,
MEMJAX_SQUAD and MEMJAX_WIKITEXT2 name the folders of the data. The imported model goes on with masked language
modelling, with memories and, as a control of equal budget, without; each is fine-tuned on every task, the one with
memories also with the memories frozen. Trains what is not finished yet; writes `fine_tuning.json` and `fine_tuning.md`.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jax

from memjax.interop.hf_bert import save_run
from memjax.training.experiment import Experiment
from memjax.training.restoring import init_from, load_run
from memjax.training.step import init_variables
from tools.results.runs import Run, cells, measured, parse, train, usage, write

FOLDER = "bert"
"""of the table and the logs"""
IMPORTED, PLAIN, MEMORY = "bert_minilm", "bert_minilm-mlm", "bert_minilm-mlm_resm"
MLM_STEPS = 300
FROZEN = "feed_forward/memory/"
SEGMENTS = 20
"""batches of 32 texts over which slots are counted"""
TASKS = {
    "cola": ("bert_glue", "$MEMJAX_GLUE_COLA", 1000, 16, 24, ("matthews", "accuracy")),
    "sst2": ("bert_glue", "$MEMJAX_GLUE_SST2", 200, 16, 40, ("accuracy",)),
    "qnli": ("bert_glue", "$MEMJAX_GLUE_QNLI", 150, 16, 96, ("accuracy",)),
    "squad": ("bert_squad", "$MEMJAX_SQUAD", 100, 8, 256, ("exact_match", "f1")),
}
"""task -> configuration, data, steps, rows, tokens of a text, measures"""
MODELS = {
    "plain": ("MiniLM", IMPORTED, "", ()),
    "mlm": ("MiniLM, then MLM", PLAIN, "", ()),
    "resm": ("MiniLM, then MLM with ResM", MEMORY, "_resm", ()),
    "resm_frozen": ("the same, memories frozen", MEMORY, "_resm", ("--training.frozen", FROZEN)),
}
"""name -> row of the table, the run it begins with, ending of the variant, arguments"""


def runs(workdir: Path) -> dict[str, Run]:
    """Name -> run."""
    vocabulary = ("--data.tokenizer.vocab", str(workdir / IMPORTED / "vocab.txt"))

    def mlm(row: str, variant: str) -> Run:
        shared = ("--config", "bert_mlm_wikitext", "--variant", variant, "--data.source.path", "$MEMJAX_WIKITEXT2")
        steps = ("--training.steps", str(MLM_STEPS), "--training.schedule.warmup-steps", str(MLM_STEPS // 10))
        return Run(row, (*shared, *vocabulary, *steps, "--data.rows", "8", *_every(MLM_STEPS)), IMPORTED)

    found = {PLAIN: mlm("MLM", "minilm"), MEMORY: mlm("MLM with ResM", "minilm_resm")}
    for task, (config, path, steps, rows, length, _) in TASKS.items():
        for name, (row, start, ending, more) in MODELS.items():
            variant = ("minilm" if task == "squad" else task) + ending
            arguments = ("--config", config, "--variant", variant, "--data.source.path", path, *vocabulary)
            sizes = ("--data.rows", str(rows), "--data.segment-length", str(length), "--evaluation.split", "test")
            schedule = ("--training.steps", str(steps), "--training.schedule.warmup-steps", str(steps // 10))
            rate = ("--training.schedule.learning-rate", "1e-4")
            settings = (*sizes, *schedule, *rate, *_every(steps), *more)
            found[f"bert_{task}-{name}"] = Run(row, (*arguments, *settings), start)
    return found


def _every(steps: int) -> tuple[str, ...]:
    """Scored at the end only, kept now and then, so that an interrupted run goes on."""
    kept = ("--training.checkpoint-every", str(max(steps // 4, 1)), "--training.keep-checkpoints", "1")
    return ("--training.log-every", "10", "--training.evaluate-every", "0", *kept)


def usage_before(experiment: Experiment, start: Path) -> dict[str, Any]:
    """How the tables that a run began with are used on its task."""
    length = experiment.config.data.segment_length
    fresh = jax.jit(lambda: init_variables(experiment.model, jax.random.key(0), length))()
    return usage(experiment, init_from(start, fresh, experiment.model)[0], SEGMENTS)


def measure(directory: Path, start: Path) -> dict[str, Any]:
    """How the tables are used on the task's examples, before and after."""
    run = load_run(directory)
    if not run.variables.get("tables"):
        return {}
    return {"before": usage_before(run.experiment, start), "after": usage(run.experiment, run.variables, SEGMENTS)}


def as_markdown(facts: dict[str, Any]) -> str:
    """The tables."""
    tasks = [task for task in TASKS if any(f"bert_{task}-{name}" in facts["runs"] for name in MODELS)]
    columns = [(task, name) for task in tasks for name in TASKS[task][-1]]
    heads = ["model", *(f"{task} {name.replace('_', ' ')}" for task, name in columns)]
    lines = [cells(heads), cells(["---"] * len(heads))]
    for model, (row, *_) in MODELS.items():
        scores = [
            facts["runs"].get(f"bert_{task}-{model}", {}).get("scores", {}).get(name, "") for task, name in columns
        ]
        lines.append(cells([row, *scores]))
    heads = ["task, model", "layer", "", "usage", "top usage", "count divergence", "classes diverge by", "overlap"]
    lines += ["", "Slots in use on the examples of the task:", "", cells(heads), cells(["---"] * len(heads))]
    for name, one in facts["runs"].items():
        for when, tables in one.get("usage", {}).items():
            for table, values in tables.items():
                shown = [values["usage"], values["top_usage"], values["count_divergence"]]
                last = values.get("subsets", {}).get("class_1", {})
                shown += [last.get("divergence_from_rest", ""), last.get("overlap_with_rest", "")]
                label = f"{name.removeprefix('bert_').partition('-')[0]}, {one['row']}"
                lines.append(cells([label, table.removeprefix("layer_").partition("/")[0], when, *shown]))
    return "\n".join([*lines, ""])


def main() -> None:
    weights = {"required": True, "help": "folder with config.json, model.safetensors and vocab.txt"}
    tasks = {"nargs": "+", "choices": sorted(TASKS), "default": sorted(TASKS), "help": "of the table (default: all)"}
    options = parse(FOLDER, "fine_tuning", __doc__, ("--weights", weights), ("--tasks", tasks))
    if not (options.workdir / IMPORTED).exists():
        options.workdir.mkdir(parents=True, exist_ok=True)
        save_run(options.weights, options.workdir / IMPORTED)
    every, found = runs(options.workdir), {}
    for name, run in every.items():
        task = name.removeprefix("bert_").partition("-")[0]
        if options.only not in name or task in TASKS.keys() - set(options.tasks):
            continue
        directory = train(FOLDER, every, name, options.workdir)
        score = json.loads((directory / "finished.json").read_text(encoding="utf-8"))["results"]["evaluation"]
        if task not in TASKS:
            found[name] = {"row": run.row, "scores": {"perplexity": score["perplexity"]}, "targets": score["targets"]}
            continue
        start = options.workdir / run.after
        used = measured(directory, lambda directory=directory, start=start: measure(directory, start))
        scores = {label: score[label] for label in TASKS[task][-1]}
        found[name] = {"row": run.row, "scores": scores, "targets": score["targets"], "usage": used}
    if options.only:
        return
    perplexities = " and ".join(f"{found[name]['scores']['perplexity']:.1f}" for name in (PLAIN, MEMORY))
    budgets = "; ".join(
        f"{task} {steps} steps of {rows} texts of {length} tokens"
        for task, (_, _, steps, rows, length, _) in TASKS.items()
        if task in options.tasks
    )
    page = (
        "# BERT: MiniLM weights fine-tuned with and without memories\n\n"
        "One seed and few steps: the numbers compare these models only. "
        f"{MLM_STEPS} steps of masked language modelling on WikiText-2 (1,024 tokens each), without and with ResM "
        f"in layers 1 and 3 of 6: perplexity of hidden tokens on validation {perplexities}. Then fine-tuned "
        f"at learning rate 1e-4: {budgets}. Scored are the "
        "development sets of CoLA (in and out of domain) and SST-2 as GLUE has them; QNLI and SQuAD have only the "
        "development file here, of which a tenth (by a hash; of SQuAD's articles) is scored and a tenth left out. "
        f"Slots are counted over the first {32 * SEGMENTS} texts (windows) of that split; divergence (nats) and "
        "overlap are those of texts of class 1 against the others.\n\n"
    )
    facts = {"runs": found}
    write(
        FOLDER,
        "fine_tuning",
        "python -m tools.results.bert.fine_tuning --weights DIR",
        facts,
        page + as_markdown(facts),
    )


if __name__ == "__main__":
    main()
