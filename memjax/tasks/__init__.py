"""The tasks that runs learn, with their data, heads and measures, one file for each task."""

from memjax.tasks.classification import *
from memjax.tasks.contract import *
from memjax.tasks.dialogue import *
from memjax.tasks.masked import *
from memjax.tasks.question_answering import *
from memjax.tasks.relation import *
from memjax.tasks.vectors import *
