"""Synthetic facts that a model must store in its parameters: a value for every pair of a subject and a relation.

The table of facts is drawn once. A document names pairs, but does not contain anything from which their values could be
derived: a model knows them from training or not at all. The values are independent of each other and cannot be
compressed. The table has `num_subjects * num_relations * log2(num_values)` bits, while a network without a value table
stores about two bits in each of its parameters (Allen-Zhu & Li 2024, https://arxiv.org/abs/2404.05405).
"""

import dataclasses
import hashlib
from typing import Any

import numpy as np

from memjax import config as configs
from memjax.data.documents import FixedLengthDocuments
from memjax.data.sources import SPLITS, count_in_split

__all__ = ["FactTableDocuments"]

IS_ANSWER = "is_answer"


class FactTableDocuments(FixedLengthDocuments):
    """Synthetic documents of facts (subject, relation, value) from one fixed table, which a model can learn by heart.

    Documents are generated when they are read. The same arguments give the same documents on every machine. A document
    has `num_facts` facts of three tokens each, whose pairs are drawn uniformly. All seeds share one table, so that
    other documents ask for the same facts. `annotate` returns `is_answer` (bool per token: whether it is a value) and
    `weights` (1 for values, otherwise 0).

    Ids: 0 pad, 1 begin, 2 unused, then values, subjects and relations.

    Example:
      >>> documents = FactTableDocuments(10, num_subjects=4, num_relations=4, num_values=8, num_facts=5)
      >>> tokens, notes = documents[0], documents.annotate(0)
      >>> len(tokens), int(notes["is_answer"].sum()), documents.vocab_size
      (15, 5, 19)
    """

    begin_id = 1
    pad_id = 0

    def __init__(
        self,
        num_documents: int,
        *,
        num_subjects: int = 128,
        num_relations: int = 128,
        num_values: int = 16,
        num_facts: int = 32,
        seed: int = 0,
    ):
        """Sets the sizes of the task and draws the table of facts.

        Args:
          num_documents: Number of documents.
          num_subjects: Number of different subjects.
          num_relations: Number of different relations.
          num_values: Number of different values. `chance` is 1 / num_values.
          num_facts: Number of facts in a document.
          seed: Seed of the documents. Splits have different seeds. The table does not depend on it.

        Raises:
          ValueError: A size that is too small.
        """
        sizes = {"num_documents": num_documents, "num_subjects": num_subjects, "num_relations": num_relations}
        for name, value in {**sizes, "num_values": num_values, "num_facts": num_facts}.items():
            if value < 1:
                raise ValueError(f"{name}: given {value}, allowed: at least 1")
        super().__init__(num_documents, 3 * num_facts)
        self.num_values, self._num_facts, self._seed = num_values, num_facts, seed
        settings = f"{num_subjects}/{num_relations}/{num_values}"
        self._table = self._of_key(f"facts/{settings}").randint(num_values, size=(num_subjects, num_relations))
        digest = hashlib.sha256(f"{settings}/{num_facts}/{seed}".encode()).hexdigest()
        self.fingerprint = f"facts-{digest[:16]}"

    @property
    def vocab_size(self) -> int:
        """Number of ids of the vocabulary."""
        return 3 + self.num_values + sum(self._table.shape)

    @property
    def chance(self) -> float:
        """Accuracy of a model that knows no fact: 1 / num_values."""
        return 1 / self.num_values

    def __getitem__(self, index: int, /) -> np.ndarray:
        random, (num_subjects, num_relations) = self._random(f"facts/{self._seed}", index), self._table.shape
        subjects, relations = (random.randint(size, size=self._num_facts) for size in (num_subjects, num_relations))
        first = 3 + self.num_values
        facts = (first + subjects, first + num_subjects + relations, 3 + self._table[subjects, relations])
        return np.stack(facts, axis=1).ravel().astype(np.int32)

    def annotate(self, index: int, /) -> dict[str, np.ndarray]:
        """Returns `is_answer` (bool per token: whether it is a value) and `weights` (1 for values, otherwise 0) of a
        document by name.
        """
        is_answer = np.arange(self.num_tokens(index)) % 3 == 2
        return {IS_ANSWER: is_answer, "weights": is_answer.astype(np.float32)}


def open_fact_table(data: configs.Data, split: str) -> FactTableDocuments:
    """Generates one split of `FactTableDocuments` with the sizes in `data.source`. Held-out splits have an eighth as
    many documents about the same facts.
    """
    source: Any = data.source
    sizes: Any = dataclasses.asdict(source) | {"num_documents": count_in_split(source.num_documents, split)}
    return FactTableDocuments(seed=SPLITS.index(split), **sizes)
