"""Compiles the steps of a configuration ahead of time for TPUs that are not here, and explains what they need."""

from memjax.planning.advice import Suggestion, advise
from memjax.planning.plan_cases import Case, Estimate, estimate, plan
from memjax.planning.topologies import Topology, parse_topology

__all__ = ["Case", "Estimate", "Suggestion", "Topology", "advise", "estimate", "parse_topology", "plan"]
from memjax.settings.compatibility import renamed_names as _renamed_names

__getattr__ = _renamed_names(__name__)
