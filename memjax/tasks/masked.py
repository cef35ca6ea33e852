"""Masked language modelling: frames of fixed length, with other tokens hidden each time they are read."""

import dataclasses
import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from memjax.data.documents import Documents, Example, Examples
from memjax.data.examples import EXAMPLE
from memjax.data.opening import Datasets, make_datasets
from memjax.data.pieces import Pieces, Where, with_prompt
from memjax.data.token_files import Progress
from memjax.data.wordpiece import join_texts
from memjax.models.heads import MaskedTokenHead
from memjax.tasks.contract import Asked, Task, candidates, read_examples

__all__ = ["MaskedTexts"]


class MaskedLanguageModeling(Task):
    """The tokens that were hidden: other ones in every epoch of training, the same ones in every evaluation."""

    headline = ("perplexity", "accuracy")
    scored = "hidden tokens"

    def data(self, progress: Progress | None = None, *, tokenizer: Any = None) -> Datasets:
        """Documents as frames of which tokens are hidden."""
        data, task = self.config.data, self.settings
        texts = make_datasets(data, tokenizer=tokenizer and tokenizer.base, progress=progress)
        texts = texts.for_encoder(task.num_prompts)
        fields: dict[str, Any] = {"rate": task.rate, "masked": task.masked, "random": task.random}
        fields |= {"length": data.segment_length, "packed": data.protocol == "contiguous", **self.prompt(texts)}

        def masked(split: str) -> MaskedTexts:
            # Evaluations of all runs ask for the same tokens; training for those of its seed.
            seed = data.seed if split == "train" else 0
            return MaskedTexts(texts.documents(split), texts.tokenizer, **fields, seed=seed)

        return dataclasses.replace(texts, documents=masked)

    def prompt(self, data: Datasets) -> dict[str, Any]:
        """What stands in every frame beside its text."""
        return {"prompt": self.settings.prompt_id(data.tokenizer.vocab_size), "where": self.settings.prompt}

    def head(self) -> MaskedTokenHead:
        model, dtype = self.config.model, jnp.dtype(self.config.model.compute_dtype)
        options = {"norm_epsilon": model.norm_epsilon, "activation": self.settings.activation}
        return MaskedTokenHead(model.dim, model.weighted_norms, dtype, **options)

    def predict(
        self,
        model: Any,
        variables: Mapping[str, Any],
        asked: Sequence[Asked],
        data: Datasets,
        *,
        top: int = 5,
        **how: Any,
    ) -> list[dict[str, Any]]:
        """Each text with the most probable token for every [MASK] in it, and the `top` most probable ones."""
        del how
        length, tokenizer = self.config.data.segment_length, data.tokenizer
        examples = HiddenTexts([text for text, _ in asked], tokenizer, length=length, **self.prompt(data))
        piece, found = lambda number: tokenizer.decode([number]), [{} for _ in asked]
        for batch, _, said, _ in read_examples(model, variables, examples, length=length):
            log_probs = np.array(said)
            log_probs[..., tokenizer.special_ids] = log_probs[..., tokenizer.vocab_size :] = -np.inf
            for row, number in enumerate(batch.extras[EXAMPLE]):
                if number >= 0:
                    places = examples.places[number]
                    filled, scores = examples.frames[number].copy(), log_probs[row, : len(places)]
                    filled[places] = scores.argmax(axis=-1)
                    ranked = [candidates(one, piece, top) for one in scores]
                    found[number] = {"answer": tokenizer.decode(filled), "candidates": ranked}
        return found


class HiddenTexts(Examples):
    """Texts with [MASK] in them, each a frame `[CLS] text [SEP]` that asks for what is hidden.

    Attributes:
      frames: int32 tokens of each.
      places: of its masks.
    """

    def __init__(
        self,
        texts: Sequence[str],
        tokenizer: Any,
        *,
        length: int,
        prompt: int | None = None,
        where: Where = "none",
    ):
        """Tokenises the texts; arguments as those of `MaskedTexts`.

        Raises:
          ValueError: a text without [MASK], or one that is longer than `length` with its special tokens.
        """
        frames = (join_texts(tokenizer, tokenizer.encode(text))[0] for text in texts)
        self.frames = [with_prompt(frame, prompt, where) for frame in frames]
        self.places = [np.flatnonzero(frame == tokenizer.mask_id) for frame in self.frames]
        for frame, places in zip(self.frames, self.places, strict=True):
            if not len(places) or len(frame) > length:
                beside = 2 + (prompt is not None)
                given = f"{len(frame) - beside} tokens, {len(places)} of them [MASK]"
                raise ValueError(f"text: given {given}, allowed: up to {length - beside}, at least one of them [MASK]")
        self._most = max(map(len, self.places))

    def __len__(self) -> int:
        return len(self.frames)

    def example(self, index: int, /, epoch: int = 0) -> Example:
        del epoch
        places, targets = self.places[index], np.zeros(self._most, np.int32)
        positions, weights = targets.copy(), (np.arange(self._most) < len(places)).astype(np.float32)
        positions[: len(places)] = places
        return Example(self.frames[index], targets, weights, context={"masked_positions": positions})

    def num_bytes(self, index: int, /) -> int:
        return 0


class MaskedTexts(Pieces):
    """Documents cut into frames `[CLS] text [SEP]`, each an example, of which some tokens are to be found.

    A frame of n tokens asks for `rate * n` of them, rounded, at least one (as the published code of BERT, and not each
    token with that probability). Of these `masked` read as [MASK], `random` as a random id, the rest as they are. Which
    ones is drawn from the seed, the epoch and the frame itself: other ones in each epoch of training, and the same
    ones in every evaluation, whatever the rows and hosts.

    An example has as targets the `num_targets` places that a frame may have, `weights` 0 where it has fewer, and their
    positions in `extras["masked_positions"]`. A prompt takes the place of one token, is never asked for, and
    changes nothing of what is.
    """

    def __init__(
        self,
        documents: Documents,
        tokenizer: Any,
        *,
        length: int,
        packed: bool = False,
        prompt: int | None = None,
        where: Where = "none",
        rate: float = 0.15,
        masked: float = 0.8,
        random: float = 0.1,
        seed: int = 0,
    ):
        """Cuts the documents.

        Args:
          documents: tokenised texts.
          tokenizer: of the texts.
          length: tokens of a frame, [CLS] and [SEP] included.
          packed: join all documents first; otherwise a frame never straddles two, and the last of each is shorter.
          prompt: id that stands in every frame; None = none, where there could be one.
          where: it stands; 'none' = there is no room for one.
          rate: share of tokens asked for.
          masked: share of these that read as [MASK].
          random: share of these that read as a random id.
          seed: of what is asked for.
        """
        super().__init__(documents, room=length - 2 - (where != "none"), packed=packed)
        self._prompt = prompt
        self._where: Where = where
        self._tokenizer, self._rate, self._masked, self._random, self._seed = tokenizer, rate, masked, random, seed
        self.num_targets = max(1, round(rate * self.room))
        own = f"/{where}/{prompt}" if where != "none" else ""
        settings = f"{documents.fingerprint}/{length}/{packed}{own}"
        self.fingerprint = "masked-" + hashlib.sha256(settings.encode()).hexdigest()[:16]

    def frame(self, index: int, /) -> np.ndarray:
        """int32 tokens of a frame, [CLS] and [SEP] included, without a prompt, nothing hidden."""
        first, last = [self._tokenizer.begin_id], [self._tokenizer.end_id]
        return np.concatenate([first, *self.parts(*self.bounds(index)[:2]), last]).astype(np.int32)

    def example(self, index: int, /, epoch: int = 0) -> Example:
        frame = self.frame(index)
        chosen, read = self.hide(frame, epoch)
        inputs, number = frame.copy(), len(chosen)
        targets, positions = (np.zeros(self.num_targets, np.int32) for _ in range(2))
        inputs[chosen], targets[:number] = read, frame[chosen]
        positions[:number] = chosen + (self._prompt is not None)  # which is never behind a token that is asked for
        inputs = with_prompt(inputs, self._prompt, self._where)
        weights = (np.arange(self.num_targets) < number).astype(np.float32)
        return Example(inputs, targets, weights, context={"masked_positions": positions})

    def num_tokens(self, index: int, /) -> int:
        begin, end, _ = self.bounds(index)
        return end - begin + 2

    def num_bytes(self, index: int, /) -> int:
        return int(sum(self._tokenizer.token_bytes(part).sum() for part in self.parts(*self.bounds(index)[:2])))

    def hide(self, frame: np.ndarray, epoch: int) -> tuple[np.ndarray, np.ndarray]:
        """Positions that are asked for, ascending, and what reads there instead."""
        content = f"{self._seed}/{epoch}/".encode() + np.ascontiguousarray(frame, "<i4").tobytes()
        # RandomState, and not a Generator: its stream is frozen, so the masks are the same with every NumPy.
        random = np.random.RandomState(np.frombuffer(hashlib.sha256(content).digest(), "<u4"))
        candidates = np.flatnonzero(~np.isin(frame, self._tokenizer.special_ids))
        number = min(max(1, round(self._rate * len(candidates))), self.num_targets, len(candidates))
        chosen = np.sort(random.permutation(candidates)[:number])
        fate = random.random_sample(number)
        others = random.randint(self._tokenizer.vocab_size, size=number)
        read = np.where(fate < self._masked + self._random, others, frame[chosen])
        return chosen, np.where(fate < self._masked, self._tokenizer.mask_id, read)
