"""Generation: decoding with explicit state, and sampling; maps of what memories look at."""

from memjax.inference.beam import beam_search, detokenized_bleu, tokenized_bleu, translate
from memjax.inference.decoding import Prefix, Recall, generate, prefill, stream_tokens
from memjax.inference.images import sample_images
from memjax.inference.sampling import Sampling, greedy, keep_top_k, keep_top_p, row_keys, sample
from memjax.inference.texts import continue_texts

__all__ = [
    "Prefix",
    "Recall",
    "Sampling",
    "beam_search",
    "continue_texts",
    "detokenized_bleu",
    "generate",
    "greedy",
    "keep_top_k",
    "keep_top_p",
    "prefill",
    "row_keys",
    "sample",
    "sample_images",
    "stream_tokens",
    "tokenized_bleu",
    "translate",
]
