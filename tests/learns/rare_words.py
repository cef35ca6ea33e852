"""Texts of rare words, each with a word that always follows it. A small model does not learn them, a store has them."""

from pathlib import Path

import numpy as np

from memjax.config import Config, Data, Evaluation, Model, Schedule, TextFiles, Training, TransformerXL, Words

WORDS, PAIRS, FILES = 200, 20, 120


def write_texts(folder: Path, seed: int, *, different: int = WORDS) -> Path:
    """Writes files of random pairs of words, of 200 pairs, and returns their folder.

    Args:
      folder: Folder to make.
      seed: Seed of the pairs.
      different: Largest number of different pairs in a file. Pairs are repeated.
    """
    random = np.random.default_rng(seed)
    partners = random.permutation(WORDS)
    folder.mkdir()
    for number in range(FILES):
        words = random.choice(random.choice(WORDS, different, replace=False), PAIRS)
        (folder / f"{number:02d}.txt").write_text(" ".join(f"a{word} b{partners[word]}" for word in words))
    return folder


def rare_words(folder: Path, seed: int, name: str) -> Config:
    """Makes the configuration of a model without memory, trained for seconds, so that it learns the kind of next word.

    Args:
      folder: Folder of the texts.
      seed: Seed of the run and of the batches.
      name: First part of the run's name.
    """
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
