"""A table of facts: a value for every pair of a subject and a relation, drawn once and for all.

Nothing in a document tells the value of a pair that it names: a model knows it from training or not at all. The values
are independent, so that nothing less than all of them will do: `num_subjects * num_relations * log2(num_values)` bits,
where a network without a table holds about two bits in each of its parameters (Allen-Zhu & Li 2024,
https://arxiv.org/abs/2404.05405).
"""

import hashlib

import numpy as np

from memjax.data.documents import EvenDocuments

__all__ = ["FactTable"]

IS_ANSWER = "is_answer"


class FactTable(EvenDocuments):
    """Documents of facts, drawn when they are asked for; the same for the same arguments everywhere.

    A document is `num_facts` times subject, relation, value, of pairs drawn evenly. All seeds have the same table:
    other documents ask for the same facts. `annotate` gives `is_answer` (bool per token: a value) and `weights` (1 on
    values, 0 elsewhere).

    Ids: 0 pad, 1 begin, 2 unused, then values, subjects and relations.

    Example:
      >>> documents = FactTable(10, num_subjects=4, num_relations=4, num_values=8, num_facts=5)
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
        """Sets the task up.

        Args:
          num_documents: how many; another `seed` gives other documents (one per split).
          num_subjects: different subjects.
          num_relations: different relations.
          num_values: different values; `chance` is 1 / num_values.
          num_facts: facts of a document.
          seed: of the documents.

        Raises:
          ValueError: a size that is too small.
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
        """Ids in use."""
        return 3 + self.num_values + sum(self._table.shape)

    @property
    def chance(self) -> float:
        """Accuracy of a model that knows no fact."""
        return 1 / self.num_values

    def __getitem__(self, index: int, /) -> np.ndarray:
        random, (num_subjects, num_relations) = self._random(f"facts/{self._seed}", index), self._table.shape
        subjects, relations = (random.randint(size, size=self._num_facts) for size in (num_subjects, num_relations))
        first = 3 + self.num_values
        facts = (first + subjects, first + num_subjects + relations, 3 + self._table[subjects, relations])
        return np.stack(facts, axis=1).ravel().astype(np.int32)

    def annotate(self, index: int, /) -> dict[str, np.ndarray]:
        """Which tokens are values, and that only they are scored."""
        is_answer = np.arange(self.num_tokens(index)) % 3 == 2
        return {IS_ANSWER: is_answer, "weights": is_answer.astype(np.float32)}
