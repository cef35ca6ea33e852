"""Training over segments with a memory: losses, train step, training loop, checkpoints and evaluation."""

from memjax.training.checkpoints import *
from memjax.training.costs import *
from memjax.training.evaluation import *
from memjax.training.experiment import *
from memjax.training.gradients import *
from memjax.training.loaded_runs import *
from memjax.training.loop import *
from memjax.training.metrics import *
from memjax.training.objective import *
from memjax.training.optimizers import *
from memjax.training.progress import *
from memjax.training.run_start import *
from memjax.training.runs import *
from memjax.training.scores import *
from memjax.training.segment_loop import *
from memjax.training.slot_counters import *
from memjax.training.stages import MakeLearner
from memjax.training.step import *
from memjax.training.tables import *
from memjax.training.train_state import *
from memjax.training.update_functions import *
from memjax.typing import SegmentLoss
