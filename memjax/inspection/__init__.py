"""Looks inside trained models: use of slots, attention maps, contents of memories, and errors of compressed signals."""

from memjax.inspection.attention_ages import *
from memjax.inspection.attention_maps import *
from memjax.inspection.figures import *
from memjax.inspection.gates import *
from memjax.inspection.memory_maps import *
from memjax.inspection.regression import *
from memjax.inspection.retrievals import *
from memjax.inspection.slot_usage import *
from memjax.inspection.token_maps import *
from memjax.inspection.token_nats import *
from memjax.settings.compatibility import renamed_names as _renamed_names

__getattr__ = _renamed_names(__name__)
