"""What a step would need on TPUs that are not here: compiled ahead of time, and explained."""

from memjax.planning.advice import Tip, advise
from memjax.planning.cases import Case, Estimate, estimate, plan
from memjax.planning.topologies import Topology, parse_topology

__all__ = ["Case", "Estimate", "Tip", "Topology", "advise", "estimate", "parse_topology", "plan"]
