# SPDX-License-Identifier: Apache-2.0
"""The order of a batch's views, and the rows that move, stay and finish with each view."""

from gs_order.build import __version__, build_info
from gs_order.cache import CachePlan, CacheStep
from gs_order.cost import Cost, CostModel
from gs_order.order import order
from gs_order.overlap import Estimate, and_counts, estimate_xor_counts, xor_counts
from gs_order.plans.host_plan import HostPlan
from gs_order.plans.plan import plan
from gs_order.plans.steps import Plan, Step
from gs_order.ragged import Ragged
from gs_order.sampler import ViewSampler
from gs_order.simulate import Outcome, Simulation, simulate
from gs_order.trajectory import trajectory
from gs_order.upcoming import Upcoming

__all__ = [
    "CachePlan",
    "CacheStep",
    "Cost",
    "CostModel",
    "Estimate",
    "HostPlan",
    "Outcome",
    "Plan",
    "Ragged",
    "Simulation",
    "Step",
    "Upcoming",
    "ViewSampler",
    "__version__",
    "and_counts",
    "build_info",
    "estimate_xor_counts",
    "order",
    "plan",
    "simulate",
    "trajectory",
    "xor_counts",
]
