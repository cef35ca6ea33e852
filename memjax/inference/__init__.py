"""Generation: decoding with explicit state, and sampling."""

from memjax.inference.decoding import Prefix, generate, prefill, stream_tokens
from memjax.inference.neighbors import knn_recall
from memjax.inference.sampling import Sampling, greedy, keep_top_k, keep_top_p, row_keys, sample
from memjax.inference.texts import continue_texts
from memjax.inference.translation import beam_search, detokenized_bleu, tokenized_bleu, translate

__all__ = [
    "Prefix",
    "Sampling",
    "beam_search",
    "continue_texts",
    "detokenized_bleu",
    "generate",
    "greedy",
    "keep_top_k",
    "keep_top_p",
    "knn_recall",
    "prefill",
    "row_keys",
    "sample",
    "stream_tokens",
    "tokenized_bleu",
    "translate",
]
