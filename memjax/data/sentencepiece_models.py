"""Trains lossless SentencePiece models for `memjax.data.tokenizers.train_sentencepiece`."""

import io
import re
from collections.abc import Sequence
from typing import Any

__all__ = ["SPACE", "UNKNOWN", "fit_sentencepiece"]

SPACE = "\u2581"  # SentencePiece writes a space as this character.
UNKNOWN = 3  # Id of unknown pieces in the models that are trained here.


def fit_sentencepiece(sentences: Sequence[str], vocab_size: int, model_type: str) -> bytes:
    """Trains a SentencePiece model (`model_type` is `bpe` or `unigram`) without normalisation, with byte pieces and a
    piece for the space, and returns the content of its file.

    Args:
      sentences: Texts to train on, each of at most 1 MiB.
      vocab_size: Number of ids. Texts with fewer pieces give a smaller vocabulary.
      model_type: `bpe` or `unigram`.

    Returns:
      The content of the model file.

    Raises:
      RuntimeError: The library cannot train on the text.
    """
    import sentencepiece

    model = _fit(sentences, vocab_size, model_type)
    if sentencepiece.SentencePieceProcessor(model_proto=model).piece_to_id(SPACE) == UNKNOWN:
        # A model trained on text without spaces would write a space as the character that stands for it.
        model = _fit(sentences, vocab_size, model_type, required_chars=SPACE)
    return model


def _fit(sentences: Sequence[str], vocab_size: int, model_type: str, **options: Any) -> bytes:
    """Trains a model, with a smaller vocabulary if the text has too few pieces."""
    import sentencepiece

    model = io.BytesIO()
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(sentences),
            model_writer=model,
            vocab_size=vocab_size,
            model_type=model_type,
            character_coverage=0.9999,
            byte_fallback=True,
            normalization_rule_name="identity",
            remove_extra_whitespaces=False,
            add_dummy_prefix=False,
            allow_whitespace_only_pieces=True,
            max_sentence_length=1 << 20,
            pad_id=0,
            bos_id=1,
            eos_id=2,
            unk_id=UNKNOWN,
            num_threads=2,
            minloglevel=2,
            **options,
        )
    except RuntimeError as error:
        most = re.search(r"Please set it to a value <= (\d+)", str(error))
        if most is None or not 260 < int(most[1]) < vocab_size:
            raise
        return _fit(sentences, int(most[1]), model_type, **options)
    return model.getvalue()
