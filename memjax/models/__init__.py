"""Models with memories: language models, text encoders, encoder-decoders and classifiers, as Linen modules."""

from memjax.models.adapters import *
from memjax.models.bilstm import *
from memjax.models.causal_encoder import *
from memjax.models.encoder_decoder import *
from memjax.models.encoder_with_head import *
from memjax.models.factory import *
from memjax.models.feature_taps import *
from memjax.models.feed_forward import *
from memjax.models.language_model import *
from memjax.models.memformer import *
from memjax.models.perceptron import *
from memjax.models.text_encoder import *
from memjax.models.token_bag import *
from memjax.models.transformer import *
from memjax.models.vocabulary import *
from memjax.settings.compatibility import renamed_names as _renamed_names

__getattr__ = _renamed_names(__name__)
