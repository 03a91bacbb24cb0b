"""Best-of-n: which group of equal rewards is chosen, exactly. Ties are broken evenly."""

from __future__ import annotations

import numpy as np
from scipy.special import gammaln

from reticent.accounting.planning.laws import Floats
from reticent.accounting.studies.pools.groups import Groups

__all__ = ["best_of_n_weights"]


def best_of_n_weights(groups: Groups, candidates: int, *, distinct: bool) -> Floats:
    """(K,) probabilities that the best of n candidates lies in each group.

    The best lies in one of the first k groups, of c_k answers together, when all n candidates do: with probability
    C(c_k, n)/C(N, n) for n distinct answers, (c_k/N)^n for n draws with replacement.

    Args: `candidates` n ≥ 1, at most N if `distinct`.
    """
    n, size = candidates, groups.size
    below = np.cumsum(groups.counts)
    if distinct:
        enough = np.maximum(below, n)
        log_share = gammaln(enough + 1.0) - gammaln(enough - n + 1.0) - (gammaln(size + 1.0) - gammaln(size - n + 1.0))
        law = np.where(below >= n, np.exp(log_share), 0.0)
        law[-1] = 1.0
    else:
        law = (below / size) ** n
    weights: Floats = np.diff(law, prepend=0.0)
    return weights
