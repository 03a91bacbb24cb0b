"""Planning: what queries cost and how many a budget answers, before anything is spent. Estimates, never charges."""

from reticent.accounting.planning.compare import Comparison, Grid, Point, compare, default_grid
from reticent.accounting.planning.laws import BetaLaw, PointLaw, RewardLaw, RewardLawError, parse_law
from reticent.accounting.planning.pools import PoolLaw, load_pool
from reticent.accounting.planning.queries import Answered, Budget, ChargeLaw, answered
from reticent.accounting.planning.report import AccountingPlan, Plan, plan_privbon, plan_privitp

__all__ = [
    "AccountingPlan",
    "Answered",
    "BetaLaw",
    "Budget",
    "ChargeLaw",
    "Comparison",
    "Grid",
    "Plan",
    "Point",
    "PointLaw",
    "PoolLaw",
    "RewardLaw",
    "RewardLawError",
    "answered",
    "compare",
    "default_grid",
    "load_pool",
    "parse_law",
    "plan_privbon",
    "plan_privitp",
]
