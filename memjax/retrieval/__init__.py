"""Datastores of trained models: their keys, building and tuning them, and what retrieval brings (kNN-LM, SPALM)."""

from memjax.retrieval.building import *
from memjax.retrieval.generation import *
from memjax.retrieval.interpolation import *
from memjax.retrieval.keys import *
from memjax.retrieval.precomputation import *
from memjax.retrieval.retrieved import *
from memjax.retrieval.tuning import *
