"""Datastores of trained models: their keys, building and tuning them, and what retrieval brings (kNN-LM, SPALM)."""

from memjax.retrieval.generation import knn_recall, spalm_recall
from memjax.retrieval.precomputation import near, precompute_neighbors, same_document
from memjax.retrieval.retrieved import describe_retrieved, largest_gains, read_retrieved
from memjax.retrieval.tuning import (
    CachedNeighbors,
    Targets,
    Tuning,
    find_neighbors,
    score_mixture,
    score_targets,
    tune,
)

__all__ = [
    "CachedNeighbors",
    "Targets",
    "Tuning",
    "describe_retrieved",
    "find_neighbors",
    "knn_recall",
    "largest_gains",
    "near",
    "precompute_neighbors",
    "read_retrieved",
    "same_document",
    "score_mixture",
    "score_targets",
    "spalm_recall",
    "tune",
]
