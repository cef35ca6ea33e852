"""Small labelled files in a stream are learned as each of them is alone."""

import csv
import random

import pytest

from memjax.cli.own_tasks import tasks_config
from memjax.lifelong import train

NAMES = ("first", "second", "third", "fourth", "fifth")


def write_split(path, task, seed, rows):
    """Writes a file of two classes whose texts share most words and differ in how often they use some."""
    draw = random.Random(seed)
    common = [f"word{number}" for number in range(300)]
    texts = {label: [f"{task}{label}{number}" for number in range(40)] for label in "ab"}
    with open(path, "w", newline="") as file:
        writer = csv.writer(file)
        for _ in range(rows):
            label = draw.choice("ab")
            words = (
                draw.choices(common, k=12)
                + draw.choices(texts[label], k=2)
                + draw.choices(texts["a"] + texts["b"], k=1)
            )
            draw.shuffle(words)
            writer.writerow([f"{task}_{label}", " ".join(words)])


@pytest.mark.slow
@pytest.mark.parametrize("rows", [160, 640])
def test_each_task_is_learned_in_the_stream_as_it_is_alone(tmp_path, monkeypatch, rows):
    monkeypatch.chdir(tmp_path)
    files = [tmp_path / name for name in NAMES]
    for number, path in enumerate(files):
        path.mkdir()
        # The texts of the test are so many that one of them is far less than the margin.
        for split, size in {"train": rows, "validation": 20, "test": 600}.items():
            write_split(path / f"{split}.csv", path.name, f"{number} {split}", size)

    def accuracies(files, name):
        config, _ = tasks_config([str(file) for file in files])
        config.name, config.data.cache_dir = name, str(tmp_path / "cache")
        scores, order = {}, [file.stem for file in files]

        def note(event):
            if event.kind == "evaluation":
                scores.setdefault(event.values.get("name", ""), []).append(event.values["accuracy"])

        train(config, on_event=note)
        return {task: scores[task][place] for place, task in enumerate(order)}

    stream = accuracies(files, "stream")
    for path in files:
        alone = accuracies([path], f"alone_{path.stem}")[path.stem]
        assert stream[path.stem] >= alone - 0.05
