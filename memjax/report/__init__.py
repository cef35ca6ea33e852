"""`memjax report`: one page about one or several runs, and the same figures as files."""

from memjax.report.panel import *
