"""The command `memjax <verb>`: a file for each verb."""

from memjax.cli.dispatch import *
