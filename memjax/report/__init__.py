"""`memjax report`: one page about one or several runs, and the same figures as files."""

from memjax.report.panel import *
from memjax.settings.compatibility import renamed_names as _renamed_names

__getattr__ = _renamed_names(__name__)
