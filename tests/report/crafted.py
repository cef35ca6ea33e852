"""Run directories that hold a configuration and lines alone, and what draws what panels show."""

import dataclasses
import json

from memjax.durable_files import write_json
from memjax.report import charts
from memjax.report.panel import Figure, OpenedRun
from memjax.settings.overrides import load_config
from memjax.training.runs import config_to_dict

AFTER = {"kind": "evaluation", "phase": "after", "split": "test", "targets": 16}


def crafted(folder, config, lines):
    """An opened run; every task of its stream has an evaluation of its name."""
    if config.lifelong is not None:
        own = lambda name: dataclasses.replace(config.evaluation, name=name, task=name)
        config = dataclasses.replace(
            config, evaluations=tuple(own(task.name) for task in config.lifelong.ordered_tasks)
        )
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / "config.json", config_to_dict(config))
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return OpenedRun(str(folder))


def smoke(name, folder):
    """A configuration that trains in seconds, which keeps all checkpoints."""
    config = load_config(name, "smoke")
    config.workdir, config.name, config.training.keep_checkpoints = str(folder), "run", 99
    return config


def parts_of(panels):
    """Name -> part, of all panels; their figures can be drawn."""
    found = {part.name: part for panel in panels for part in panel.items}
    for part in found.values():
        if isinstance(part, Figure):
            with charts.new_figure(part.height) as figure:
                part.draw(figure)
                figure.canvas.draw()
    return found
