"""Generation: decoding of texts and images with an explicit memory state, sampling, beam search and BLEU."""

from memjax.inference.beam import *
from memjax.inference.chat import *
from memjax.inference.decoding import *
from memjax.inference.images import *
from memjax.inference.sampling import *
from memjax.inference.texts import *
