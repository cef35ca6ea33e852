"""Synthetic sentences about who lives where: labelled pairs of texts, questions with answers, and dialogues.

Nothing is read.
"""

import hashlib

import numpy as np

from memjax.data.dialogue import Dialogue, Utterance
from memjax.data.glue import LabelledText
from memjax.data.squad import Question

NAMES = ("Ada", "Boole", "Curie", "Dirac", "Euler", "Fermi", "Gauss", "Hertz")
CITIES = ("Athens", "Berlin", "Cairo", "Delhi", "Essen", "Fes", "Genoa", "Hanoi")


def template_texts(num_examples: int, *, seed: int) -> list[LabelledText]:
    """Two sentences and a claim about one of them; class 1 where the claim is true, as half of them are.

    Example:
      >>> template_texts(1, seed=0)[0].texts[1].split()[1:3]
      ['lives', 'in']
    """
    random, examples = _random("texts", seed), []
    for _ in range(num_examples):
        people, cities = (random.permutation(8)[:2] for _ in range(2))
        who, label = random.randint(2), random.randint(2)
        city = cities[who] if label else cities[1 - who]
        story = " ".join(f"{NAMES[p]} lives in {CITIES[c]}." for p, c in zip(people, cities, strict=True))
        examples.append(LabelledText((story, f"{NAMES[people[who]]} lives in {CITIES[city]}."), int(label)))
    return examples


def template_questions(num_examples: int, *, seed: int) -> list[Question]:
    """Four sentences, and where one of the people lives."""
    random, questions = _random("questions", seed), []
    for _ in range(num_examples):
        people, cities = (random.permutation(8)[:4] for _ in range(2))
        context = " ".join(f"{NAMES[p]} lives in {CITIES[c]}." for p, c in zip(people, cities, strict=True))
        who = random.randint(4)
        city = CITIES[cities[who]]
        questions.append(Question(f"Where does {NAMES[people[who]]} live?", context, ((city, context.index(city)),)))
    return questions


def template_dialogues(num_dialogues: int, *, seed: int) -> list[Dialogue]:
    """A document of four sentences, and somebody without it who asks where each of the four lives.

    Example:
      >>> [utterance.text.split()[0] for utterance in template_dialogues(1, seed=0)[0].utterances[:2]]
      ['Where', 'In']
    """
    random, dialogues = _random("dialogues", seed), []
    for _ in range(num_dialogues):
        people, cities = (random.permutation(8)[:4] for _ in range(2))
        document = " ".join(f"{NAMES[p]} lives in {CITIES[c]}." for p, c in zip(people, cities, strict=True))
        said = []
        for who in random.permutation(4):
            said.append(Utterance(0, f"Where does {NAMES[people[who]]} live?", informed=False))
            said.append(Utterance(1, f"In {CITIES[cities[who]]}."))
        dialogues.append(Dialogue(document, tuple(said)))
    return dialogues


def _random(kind: str, seed: int) -> np.random.RandomState:
    # RandomState, and not a Generator: its stream is frozen, so the examples are the same with every NumPy.
    return np.random.RandomState(np.frombuffer(hashlib.sha256(f"{kind}/{seed}".encode()).digest()[:4], "<u4"))
