"""Text of rare words, each with the one that always follows it, which a small model does not learn and a store has."""

from pathlib import Path

import numpy as np

from memjax.config import Config, Data, Evaluation, Model, Schedule, TextFiles, Training, TransformerXL, Words

WORDS, PAIRS, FILES = 200, 20, 120


def write_texts(folder: Path, seed: int, *, different: int = WORDS) -> Path:
    """200 pairs; every file has `different` ones at most, some of them again."""
    random = np.random.default_rng(seed)
    partners = random.permutation(WORDS)
    folder.mkdir()
    for number in range(FILES):
        drawn = random.choice(random.choice(WORDS, different, replace=False), PAIRS)
        (folder / f"{number:02d}.txt").write_text(" ".join(f"a{word} b{partners[word]}" for word in drawn))
    return folder


def rare_words(folder: Path, seed: int, name: str) -> Config:
    """A model without memory, trained for seconds, so that it knows what kind of word comes next."""
    source = TextFiles(path=str(folder), validation_percent=20, test_percent=20)
    places = {"cache_dir": str(folder.parent / "cache")}
    config = Config(
        name=f"{name}_{seed}",
        workdir=str(folder.parent),
        model=Model(dim=64, num_layers=1, num_heads=2, attention=TransformerXL(memory_length=0, norm="pre")),
        data=Data(source=source, tokenizer=Words(), batch_size=16, segment_length=8, seed=seed, **places),
        training=Training(steps=60, schedule=Schedule(learning_rate=4e-3, warmup_steps=20), seed=seed),
        evaluation=Evaluation(batch_size=8, split="test"),
    )
    config.training.evaluate_every, config.training.log_every = 0, config.training.steps
    return config
