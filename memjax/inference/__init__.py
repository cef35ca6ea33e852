"""Generation: decoding with explicit state, and sampling; maps of what memories look at."""

from memjax.inference.decoding import Prefix, Recall, generate, prefill, stream_tokens
from memjax.inference.dialogue import answer_turns, score_answers
from memjax.inference.images import sample_images
from memjax.inference.memory_maps import SignalMap, SlotMap, attend_places, signal_map, slot_map, token_space
from memjax.inference.neighbors import knn_recall, spalm_recall
from memjax.inference.regression import RegressionErrors, regression_errors
from memjax.inference.sampling import Sampling, greedy, keep_top_k, keep_top_p, row_keys, sample
from memjax.inference.texts import continue_texts
from memjax.inference.translation import beam_search, detokenized_bleu, tokenized_bleu, translate

__all__ = [
    "Prefix",
    "Recall",
    "RegressionErrors",
    "Sampling",
    "SignalMap",
    "SlotMap",
    "answer_turns",
    "attend_places",
    "beam_search",
    "continue_texts",
    "detokenized_bleu",
    "generate",
    "greedy",
    "keep_top_k",
    "keep_top_p",
    "knn_recall",
    "prefill",
    "regression_errors",
    "row_keys",
    "sample",
    "sample_images",
    "score_answers",
    "signal_map",
    "slot_map",
    "spalm_recall",
    "stream_tokens",
    "token_space",
    "tokenized_bleu",
    "translate",
]
