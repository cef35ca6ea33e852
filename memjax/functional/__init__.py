"""Pure functions on arrays, without Flax: the part of memjax that other codebases import.

Tokens are `[batch, length, heads, head_dim]`. The slots of a memory that is searched, and the neighbours of every
query, are stored by heads, `[batch, heads, memory, head_dim]`. The first line of `Args` gives the layout. Sizes that do
not fit raise an error that names the argument and the axis. The check cannot notice a wrong order of axes if their
sizes are equal, or if all arguments have it.
"""

from memjax.functional.attention import *
from memjax.functional.best_entries import *
from memjax.functional.block_attention import *
from memjax.functional.compression import *
from memjax.functional.divergence import *
from memjax.functional.fifo import *
from memjax.functional.fused_attention import *
from memjax.functional.gaussian_basis import *
from memjax.functional.linear_attention import *
from memjax.functional.losses import *
from memjax.functional.mixing import *
from memjax.functional.mrbp import *
from memjax.functional.named_operations import *
from memjax.functional.neighbors import *
from memjax.functional.positions import *
from memjax.functional.precision import *
from memjax.functional.product_keys import *
from memjax.functional.rotary import *
from memjax.functional.shapes import *
from memjax.functional.sharded import *
from memjax.functional.slot_attention import *
from memjax.functional.table_rows import *
