"""Masked language modelling on frames of fixed length, in which other tokens are hidden each time they are read."""

import dataclasses
import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from memjax.data.documents import Documents, Example, Examples
from memjax.data.example_batches import EXAMPLE
from memjax.data.opening import Datasets, make_datasets
from memjax.data.text_chunks import Pieces, Where, insert_prompt
from memjax.data.token_files import Progress
from memjax.data.wordpiece import join_texts
from memjax.models.heads import MaskedTokenHead
from memjax.tasks.interface import Query, Task, rank_choices, read_examples

__all__ = ["MaskedTexts"]


class MaskedLanguageModeling(Task):
    """Prediction of hidden tokens by a text encoder: other tokens are hidden in every epoch of training, the same ones
    in every evaluation.
    """

    main_metrics = ("perplexity", "accuracy")
    target_unit = "hidden tokens"

    def data(self, progress: Progress | None = None, *, tokenizer: Any = None) -> Datasets:
        """Opens the documents of each split as frames `[CLS] text [SEP]` in which some tokens are hidden. See
        `Task.data` for the arguments.
        """
        data, task = self.config.data, self.settings
        texts = make_datasets(data, tokenizer=tokenizer and tokenizer.base, progress=progress)
        texts = texts.for_encoder(task.num_prompts)
        fields: dict[str, Any] = {
            "rate": task.mask_rate,
            "masked": task.mask_token_fraction,
            "random": task.random_token_fraction,
        }
        fields |= {"length": data.segment_length, "packed": data.protocol == "contiguous", **self.prompt(texts)}

        def hide_tokens(split: str) -> MaskedTexts:
            # Evaluations of all runs hide the same tokens. Training hides tokens drawn from its seed.
            seed = data.seed if split == "train" else 0
            return MaskedTexts(texts.documents(split), texts.tokenizer, **fields, seed=seed)

        return dataclasses.replace(texts, documents=hide_tokens)

    def prompt(self, data: Datasets) -> dict[str, Any]:
        """Returns a dict with the options `prompt`, the id of the task's prompt token (None for none), and `where`, its
        place in every frame.
        """
        return {"prompt": self.settings.prompt_id(data.tokenizer.vocab_size), "where": self.settings.prompt}

    def head(self) -> MaskedTokenHead:
        """Returns a `MaskedTokenHead`, which predicts hidden tokens."""
        model, dtype = self.config.model, jnp.dtype(self.config.model.compute_dtype)
        options = {"norm_epsilon": model.norm_epsilon, "activation": self.settings.activation}
        return MaskedTokenHead(model.dim, model.weighted_norms, dtype, **options)

    def predict(
        self,
        model: Any,
        variables: Mapping[str, Any],
        queries: Sequence[Query],
        data: Datasets,
        *,
        top: int = 5,
        **how: Any,
    ) -> list[dict[str, Any]]:
        """Returns a dict for each query: as `answer` its text with the most probable token in place of every [MASK],
        and as `candidates` the `top` most probable tokens for each.
        """
        del how
        length, tokenizer = self.config.data.segment_length, data.tokenizer
        examples = TextsWithMasks([text for text, _ in queries], tokenizer, length=length, **self.prompt(data))
        piece, answers = lambda number: tokenizer.decode([number]), [{} for _ in queries]
        for batch, _, all_log_probs, _ in read_examples(model, variables, examples, length=length):
            log_probs = np.array(all_log_probs)
            log_probs[..., tokenizer.special_ids] = log_probs[..., tokenizer.vocab_size :] = -np.inf
            for row, number in enumerate(batch.extras[EXAMPLE]):
                if number >= 0:
                    places = examples.places[number]
                    filled, scores = examples.frames[number].copy(), log_probs[row, : len(places)]
                    filled[places] = scores.argmax(axis=-1)
                    ranked = [rank_choices(token_scores, piece, top) for token_scores in scores]
                    answers[number] = {"answer": tokenizer.decode(filled), "candidates": ranked}
        return answers


class TextsWithMasks(Examples):
    """Texts of a user that contain [MASK] as examples, each a frame `[CLS] text [SEP]` that asks for the tokens at its
    [MASK]s.

    Attributes:
      frames: int32 token ids of each frame.
      places: Positions of the [MASK] tokens in each frame.
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
        """Tokenises the texts.

        Args:
          texts: Texts with at least one [MASK] each.
          tokenizer: Tokenizer of the run.
          length: Number of tokens of a frame, including [CLS] and [SEP].
          prompt: Id of the prompt token in every frame. None = no prompt.
          where: Position of the prompt token in the frame. 'none' = no room for a prompt.

        Raises:
          ValueError: A text has no [MASK], or is longer than `length` with its special tokens.
        """
        frames = (join_texts(tokenizer, tokenizer.encode(text))[0] for text in texts)
        self.frames = [insert_prompt(frame, prompt, where) for frame in frames]
        self.places = [np.flatnonzero(frame == tokenizer.mask_id) for frame in self.frames]
        for frame, places in zip(self.frames, self.places, strict=True):
            if not len(places) or len(frame) > length:
                beside = 2 + (prompt is not None)
                size = f"{len(frame) - beside} tokens, {len(places)} of them [MASK]"
                raise ValueError(f"text: given {size}, allowed: up to {length - beside}, at least one of them [MASK]")
        self._most = max(map(len, self.places))

    def __len__(self) -> int:
        return len(self.frames)

    def example(self, index: int, /, epoch: int = 0) -> Example:
        """Returns one text as an `Example`. Its targets, the tokens at its [MASK]s, are unknown and set to 0."""
        del epoch
        places, targets = self.places[index], np.zeros(self._most, np.int32)
        positions, weights = targets.copy(), (np.arange(self._most) < len(places)).astype(np.float32)
        positions[: len(places)] = places
        return Example(self.frames[index], targets, weights, context={"masked_positions": positions})

    def num_bytes(self, index: int, /) -> int:
        """Returns 0, since texts of a user are not counted."""
        return 0


class MaskedTexts(Pieces):
    """Documents cut into frames `[CLS] text [SEP]`, each an example that asks for some of its tokens.

    A frame of n tokens asks for `rate * n` of them, rounded and at least one. This follows the published code of BERT,
    which does not select each token with that probability. Of these tokens a share `masked` reads as [MASK], a share
    `random` reads as a random id, and the rest reads as it is. The choice is drawn from the seed, the epoch and the
    frame itself. So it differs between the epochs of training, and is the same in every evaluation, whatever the number
    of rows and hosts.

    The targets of an example are `num_targets` tokens, the most that a frame may ask for. Where a frame asks for fewer,
    the weights of the others are 0. `extras["masked_positions"]` holds their positions. A prompt takes the place of one
    token and is never asked for. It does not change which tokens are asked for.
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
        """Cuts the documents into frames.

        Args:
          documents: Tokenised documents.
          tokenizer: Tokenizer of the documents.
          length: Number of tokens of a frame, including [CLS] and [SEP].
          packed: Whether all documents are joined before they are cut. False = a frame never spans two documents, and
            the last frame of each document is shorter.
          prompt: Id of the prompt token in every frame. None = no prompt, though there may be room for one.
          where: Position of the prompt token in the frame. 'none' = no room for a prompt.
          rate: Share of the tokens that are asked for.
          masked: Share of the tokens asked for that read as [MASK].
          random: Share of the tokens asked for that read as a random id.
          seed: Seed of the choice of tokens.
        """
        super().__init__(documents, room=length - 2 - (where != "none"), packed=packed)
        self._prompt = prompt
        self._where: Where = where
        self._tokenizer, self._rate, self._masked, self._random, self._seed = tokenizer, rate, masked, random, seed
        self.num_targets = max(1, round(rate * self.room))
        prompt_part = f"/{where}/{prompt}" if where != "none" else ""
        settings = f"{documents.fingerprint}/{length}/{packed}{prompt_part}"
        self.fingerprint = "masked-" + hashlib.sha256(settings.encode()).hexdigest()[:16]

    def frame(self, index: int, /) -> np.ndarray:
        """Returns the int32 token ids of a frame, with [CLS] and [SEP], without a prompt and with nothing hidden."""
        first, last = [self._tokenizer.begin_id], [self._tokenizer.end_id]
        return np.concatenate([first, *self.parts(*self.bounds(index)[:2]), last]).astype(np.int32)

    def example(self, index: int, /, epoch: int = 0) -> Example:
        """Returns one frame as an `Example` with some tokens hidden, which are its targets. `epoch` decides which."""
        frame = self.frame(index)
        chosen, read = self.hide(frame, epoch)
        inputs, number = frame.copy(), len(chosen)
        targets, positions = (np.zeros(self.num_targets, np.int32) for _ in range(2))
        inputs[chosen], targets[:number] = read, frame[chosen]
        positions[:number] = chosen + (self._prompt is not None)  # the prompt is never after a token that is asked for
        inputs = insert_prompt(inputs, self._prompt, self._where)
        weights = (np.arange(self.num_targets) < number).astype(np.float32)
        return Example(inputs, targets, weights, context={"masked_positions": positions})

    def num_tokens(self, index: int, /) -> int:
        """Returns the number of tokens of one frame, with [CLS] and [SEP]."""
        begin, end, _ = self.bounds(index)
        return end - begin + 2

    def num_bytes(self, index: int, /) -> int:
        """Returns the number of bytes of the text that the tokens of one frame stand for."""
        return int(sum(self._tokenizer.token_bytes(part).sum() for part in self.parts(*self.bounds(index)[:2])))

    def hide(self, frame: np.ndarray, epoch: int) -> tuple[np.ndarray, np.ndarray]:
        """Chooses tokens of a frame (int ids) for an epoch. Returns their ascending positions, and the ids that the
        model reads there: mostly [MASK], else random ones or the tokens themselves.
        """
        content = f"{self._seed}/{epoch}/".encode() + np.ascontiguousarray(frame, "<i4").tobytes()
        # RandomState instead of a Generator: its stream is frozen, so the masks are the same with every NumPy.
        random = np.random.RandomState(np.frombuffer(hashlib.sha256(content).digest(), "<u4"))
        candidates = np.flatnonzero(~np.isin(frame, self._tokenizer.special_ids))
        number = min(max(1, round(self._rate * len(candidates))), self.num_targets, len(candidates))
        chosen = np.sort(random.permutation(candidates)[:number])
        fate = random.random_sample(number)
        others = random.randint(self._tokenizer.vocab_size, size=number)
        read = np.where(fate < self._masked + self._random, others, frame[chosen])
        return chosen, np.where(fate < self._masked, self._tokenizer.mask_id, read)
