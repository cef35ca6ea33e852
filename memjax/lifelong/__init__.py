"""Lifelong learning: tasks that are learned one after the other, and methods against forgetting.

A method is a `Learner` and what happens between tasks; one method = one file. `train` runs a configuration of any kind.
"""

from memjax.lifelong.contract import *
from memjax.lifelong.ewc import *
from memjax.lifelong.factory import *
from memjax.lifelong.fisher import *
