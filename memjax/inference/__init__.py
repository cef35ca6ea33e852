"""Generation: decoding with explicit state, and sampling; maps of what memories look at."""

from memjax.inference.beam import *
from memjax.inference.decoding import *
from memjax.inference.images import *
from memjax.inference.sampling import *
from memjax.inference.texts import *
