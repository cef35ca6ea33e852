"""Generates synthetic sentences about who lives where, as labelled pairs of texts, questions, or dialogues."""

import hashlib
from typing import Any

import numpy as np

from memjax import config as configs
from memjax.data.dialogue import Dialogue, Utterance
from memjax.data.glue import LabelledText
from memjax.data.questions import Question
from memjax.data.sources import SPLITS, count_in_split

NAMES = ("Ada", "Boole", "Curie", "Dirac", "Euler", "Fermi", "Gauss", "Hertz")
CITIES = ("Athens", "Berlin", "Cairo", "Delhi", "Essen", "Fes", "Genoa", "Hanoi")


def template_texts(num_examples: int, *, seed: int) -> list[LabelledText]:
    """Generates `num_examples` labelled pairs of a story (two sentences) and a claim about it. Class 1 for a true claim
    (about half of them), otherwise 0.

    Example:
      >>> template_texts(1, seed=0)[0].texts[1].split()[1:3]
      ['lives', 'in']
    """
    random, examples = _random("texts", seed), []
    for _ in range(num_examples):
        people, cities, story = _story(random, 2)
        who, label = random.randint(2), random.randint(2)
        city = cities[who] if label else cities[1 - who]
        examples.append(LabelledText((story, f"{people[who]} lives in {city}."), int(label)))
    return examples


def template_questions(num_examples: int, *, seed: int) -> list[Question]:
    """Generates `num_examples` questions for the city of one of four people, each about a text of four sentences."""
    random, questions = _random("questions", seed), []
    for _ in range(num_examples):
        people, cities, context = _story(random, 4)
        who = random.randint(4)
        answer = cities[who], context.index(cities[who])
        questions.append(Question(f"Where does {people[who]} live?", context, (answer,)))
    return questions


def template_dialogues(num_dialogues: int, *, seed: int) -> list[Dialogue]:
    """Generates `num_dialogues` dialogues of two speakers, each about a document of four sentences.

    A speaker who has not seen the document asks where each of the four people lives, and the other speaker answers.

    Example:
      >>> [utterance.text.split()[0] for utterance in template_dialogues(1, seed=0)[0].utterances[:2]]
      ['Where', 'In']
    """
    random, dialogues = _random("dialogues", seed), []
    for _ in range(num_dialogues):
        people, cities, document = _story(random, 4)
        said = []
        for who in random.permutation(4):
            said.append(Utterance(0, f"Where does {people[who]} live?", informed=False))
            said.append(Utterance(1, f"In {cities[who]}."))
        dialogues.append(Dialogue(document, tuple(said)))
    return dialogues


def open_template_texts(data: configs.Data, split: str) -> list[LabelledText]:
    """Generates one split of labelled texts from templates (see `template_texts`), as many as `data.source` says.
    Held-out splits have an eighth as many.
    """
    source: Any = data.source
    return template_texts(count_in_split(source.num_examples, split), seed=SPLITS.index(split))


def open_template_questions(data: configs.Data, split: str) -> list[Question]:
    """Generates one split of questions from templates (see `template_questions`), as many as `data.source` says.
    Held-out splits have an eighth as many.
    """
    source: Any = data.source
    return template_questions(count_in_split(source.num_examples, split), seed=SPLITS.index(split))


def open_template_dialogues(data: configs.Data, split: str) -> list[Dialogue]:
    """Generates one split of dialogues from templates (see `template_dialogues`), as many as `data.source` says.
    Held-out splits have an eighth as many.
    """
    source: Any = data.source
    return template_dialogues(count_in_split(source.num_dialogues, split), seed=SPLITS.index(split))


def _story(random: np.random.RandomState, count: int) -> tuple[list[str], list[str], str]:
    """Draws `count` people and the city of each, and writes the sentences that say so."""
    people, cities = ([names[i] for i in random.permutation(8)[:count]] for names in (NAMES, CITIES))
    return people, cities, " ".join(f"{p} lives in {c}." for p, c in zip(people, cities, strict=True))


def _random(kind: str, seed: int) -> np.random.RandomState:
    """Returns a random generator whose seed is the hash of a kind of examples and a seed."""
    # RandomState, and not a Generator: its stream is frozen, so the examples are the same with every NumPy.
    return np.random.RandomState(np.frombuffer(hashlib.sha256(f"{kind}/{seed}".encode()).digest()[:4], "<u4"))
