"""Key-value recall: documents that bind values to keys and ask for them many segments later.

A document has three parts:

    bindings     groups of `group` bindings, each group followed by a question for every binding in it (*practice*)
    filler       `filler_length` random tokens of their own kind
    questions    one for every binding of the document, in random order: the *answers*

A binding is one token that stands for a pair (layout `joint`: vocabulary of `num_keys * num_values` such tokens), or
two tokens, key and value (layout `sequence`). A question is the key; the value is to be predicted after it. Bindings
are drawn anew for each document, values independently of each other, and an answer is asked once: without a memory that
reaches over the filler nothing can be better than `chance`.

Why practice: memories that stop gradients (Transformer-XL, Memorizing) learn to match keys from what is in the local
window; a model that is only asked from afar stays at chance (tried for 2,000 steps). Why `joint`: one attention layer
solves it, which a model of 64 dimensions learns in half a CPU minute when its memory is in the *first* layer (in a
higher layer the layers below it solve the practice alone, and the memory layer has little to learn from). `sequence`
needs two layers (an induction head: the value must know the key before it), as text does, and takes far longer.
"""

import hashlib

import numpy as np

from memjax.data.documents import EvenDocuments

__all__ = ["KeyValueRecall"]

LAYOUTS = ("joint", "sequence")
IS_ANSWER = "is_answer"
IS_PRACTICE = "is_practice"


class KeyValueRecall(EvenDocuments):
    """Documents of key-value recall, drawn when they are asked for; the same for the same arguments everywhere.

    `annotate` gives `is_answer` and `is_practice` (bool per token: the value after a question) and `weights` (float32:
    1 on answers and, with `score_practice`, on practice; 0 elsewhere, since nothing else can be predicted). Evaluate
    without `score_practice`: accuracy over scored targets is then the accuracy on answers.

    Ids: 0 pad, 1 begin, 2 unused, then fillers, values, keys and (layout `joint`) pairs.

    Example:
      >>> documents = KeyValueRecall(10, num_pairs=2, filler_length=3)
      >>> tokens, notes = documents[0], documents.annotate(0)
      >>> len(tokens), int(notes["is_answer"].sum()), documents.chance
      (13, 2, 0.0625)
    """

    begin_id = 1
    pad_id = 0

    def __init__(
        self,
        num_documents: int,
        *,
        num_pairs: int = 8,
        num_keys: int = 16,
        num_values: int = 16,
        filler_length: int = 48,
        num_fillers: int = 8,
        group: int = 4,
        layout: str = "joint",
        score_practice: bool = True,
        seed: int = 0,
    ):
        """Sets the task up; the defaults are what a tiny model learns in about a CPU minute.

        Args:
          num_documents: how many; another `seed` gives other documents (one per split).
          num_pairs: bindings of a document.
          num_keys: different keys, at least `num_pairs` (a document binds a key once).
          num_values: different values; `chance` is 1 / num_values.
          filler_length: tokens between the last practice and the first question. An answer is more than this away from
            its binding and its practice; a model without memory whose layers see `window` tokens each cannot reach it
            where `num_layers * window <= filler_length`.
          num_fillers: different filler tokens.
          group: bindings between practices; 0 = no practice.
          layout: `joint` or `sequence`.
          score_practice: practice has weight 1, as training needs.
          seed: of the documents.

        Raises:
          ValueError: a size that is too small, or an unknown layout.
        """
        sizes = {"num_documents": num_documents, "num_pairs": num_pairs, "num_values": num_values}
        for name, value in {**sizes, "num_fillers": num_fillers}.items():
            if value < 1:
                raise ValueError(f"{name}: {value}; give at least 1")
        for name, value in {"filler_length": filler_length, "group": group}.items():
            if value < 0:
                raise ValueError(f"{name}: {value}; give 0 or more")
        if num_keys < num_pairs:
            raise ValueError(
                f"num_keys: {num_keys}; give at least num_pairs = {num_pairs}, a document binds a key once"
            )
        if layout not in LAYOUTS:
            raise ValueError(f"layout: {layout!r}; allowed are {', '.join(LAYOUTS)}")
        self.num_pairs, self.num_keys, self.num_values = num_pairs, num_keys, num_values
        binding = 1 if layout == "joint" else 2
        super().__init__(num_documents, num_pairs * (binding + 2 + (2 if group else 0)) + filler_length)
        self._filler_length, self._num_fillers = filler_length, num_fillers
        self._group, self._layout, self._seed, self._score_practice = group, layout, seed, score_practice
        self._first_value = 3 + num_fillers
        self._first_key = self._first_value + num_values
        self._first_pair = self._first_key + num_keys
        settings = f"{num_pairs}/{num_keys}/{num_values}/{filler_length}/{num_fillers}/{group}/{layout}/{seed}"
        self.fingerprint = "recall-" + hashlib.sha256(settings.encode()).hexdigest()[:16]

    @property
    def vocab_size(self) -> int:
        """Ids in use."""
        return self._first_pair + (self.num_keys * self.num_values if self._layout == "joint" else 0)

    @property
    def chance(self) -> float:
        """Accuracy on answers of a model that remembers nothing."""
        return 1 / self.num_values

    def __getitem__(self, index: int, /) -> np.ndarray:
        return self._document(index)[0]

    def word(self, token: int, /) -> str:
        """`key3` a question, `7` a value, `key3=7` a binding, `.` filler.

        Example:
          >>> [KeyValueRecall(1).word(token) for token in (1, 3, 11, 28, 59)]
          ['begin', '.', '0', 'key1', 'key1=0']
        """
        if token >= self._first_pair:
            key, value = divmod(token - self._first_pair, self.num_values)
            return f"key{key}={value}"
        if token >= self._first_key:
            return f"key{token - self._first_key}"
        if token >= self._first_value:
            return str(token - self._first_value)
        return "." if token >= 3 else ("pad", "begin", "")[token]

    def annotate(self, index: int, /) -> dict[str, np.ndarray]:
        kinds = self._document(index)[1]
        scored = kinds > (0 if self._score_practice else 1)
        return {IS_ANSWER: kinds == 2, IS_PRACTICE: kinds == 1, "weights": scored.astype(np.float32)}

    def _document(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        """Tokens, and for each 0, 1 (practised value) or 2 (answer)."""
        random = self._random(str(self._seed), index)
        keys = random.choice(self.num_keys, self.num_pairs, replace=False)
        values = random.randint(self.num_values, size=self.num_pairs)
        tokens: list[int] = []
        kinds: list[int] = []

        def ask(pairs: np.ndarray, kind: int) -> None:
            for pair in pairs:
                tokens.extend((self._first_key + int(keys[pair]), self._first_value + int(values[pair])))
                kinds.extend((0, kind))

        for pair in range(self.num_pairs):
            key, value = int(keys[pair]), int(values[pair])
            bound = (self._first_key + key, self._first_value + value)
            if self._layout == "joint":
                bound = (self._first_pair + key * self.num_values + value,)
            tokens.extend(bound)
            kinds.extend([0] * len(bound))
            if self._group and ((pair + 1) % self._group == 0 or pair + 1 == self.num_pairs):
                ask(random.permutation(np.arange(pair - pair % self._group, pair + 1)), 1)
        tokens.extend(3 + random.randint(self._num_fillers, size=self._filler_length))
        kinds.extend([0] * self._filler_length)
        ask(random.permutation(self.num_pairs), 2)
        return np.array(tokens, np.int32), np.array(kinds, np.int32)
