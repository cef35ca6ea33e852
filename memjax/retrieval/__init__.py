"""Datastores of trained models (kNN-LM, SPALM): building them, tuning their use, and reading what is retrieved."""

from memjax.retrieval.building import *
from memjax.retrieval.generation import *
from memjax.retrieval.interpolation import *
from memjax.retrieval.keys import *
from memjax.retrieval.precomputation import *
from memjax.retrieval.retrieved import *
from memjax.retrieval.tuning import *
from memjax.settings.compatibility import renamed_names as _renamed_names

__getattr__ = _renamed_names(__name__)
