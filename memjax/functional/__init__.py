"""Pure functions on arrays, without Flax: the part of memjax that other codebases import."""

from memjax.functional.attention import *
from memjax.functional.basis import *
from memjax.functional.compression import *
from memjax.functional.fifo import *
from memjax.functional.linear_attention import *
from memjax.functional.losses import *
from memjax.functional.mixing import *
from memjax.functional.neighbors import *
from memjax.functional.positions import *
from memjax.functional.product_keys import *
from memjax.functional.replay import *
from memjax.functional.scopes import *
from memjax.functional.sharded import *
from memjax.functional.slots import *
