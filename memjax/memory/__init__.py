"""All memories of the library: one file per paper, with a common interface (`memjax.memory.interface`)."""

from memjax.memory.bidirectional import *
from memjax.memory.bucket_projector import *
from memjax.memory.compressive import *
from memjax.memory.compressive_state import *
from memjax.memory.continuous_cache import *
from memjax.memory.cross_attention import *
from memjax.memory.gpt2 import *
from memjax.memory.grafted_memories import *
from memjax.memory.grafts import *
from memjax.memory.hidden_state_attention import *
from memjax.memory.infinity_former import *
from memjax.memory.interface import *
from memjax.memory.knn_lm import *
from memjax.memory.linear_transformer import *
from memjax.memory.long_term_signal import *
from memjax.memory.lstm import *
from memjax.memory.memformer import *
from memjax.memory.memorizing import *
from memjax.memory.memory_tokens import *
from memjax.memory.memory_tokens_xl import *
from memjax.memory.memsizer import *
from memjax.memory.next_token_candidates import *
from memjax.memory.product_key import *
from memjax.memory.projector import *
from memjax.memory.rfa import *
from memjax.memory.rotary import *
from memjax.memory.rotary_projector import *
from memjax.memory.spalm import *
from memjax.memory.t2r import *
from memjax.memory.transformer_xl import *
from memjax.settings.compatibility import renamed_names as _renamed_names

__getattr__ = _renamed_names(__name__)
