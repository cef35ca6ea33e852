"""The tasks that runs learn, with their data, heads and measures, one file for each task."""

from memjax.settings.compatibility import renamed_names as _renamed_names
from memjax.tasks.classification import *
from memjax.tasks.dialogue import *
from memjax.tasks.interface import *
from memjax.tasks.masked import *
from memjax.tasks.question_answering import *
from memjax.tasks.relation import *
from memjax.tasks.vectors import *

__getattr__ = _renamed_names(__name__)
