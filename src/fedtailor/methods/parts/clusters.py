"""Clusters of clients that are split where their members' updates pull apart (CFL).

A common model can be stationary for a cluster while no member is content with it: the updates are
long, but cancel each other. Then no model is good for all of them, and the cluster is halved so
that updates within a half point the same way.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from fedtailor.core import tree
from fedtailor.core.tree import Params
from fedtailor.methods.parts.attention import cosines, pairwise


def bipartition(cosine: Tensor) -> np.ndarray:
    """Two groups of clients by complete linkage on −cosine: a 0 or 1 for each."""
    from sklearn.cluster import AgglomerativeClustering

    apart = (1 - cosine.double()).clamp(min=0).cpu().numpy()
    method = AgglomerativeClustering(2, metric="precomputed", linkage="complete")
    found: np.ndarray = method.fit_predict(apart)
    return found


def at_odds(updates: Params, still: float, moving: float) -> bool:
    """Whether the mean update stands still while some member moves on.

        |mean_k ΔW_k| < still   and   max_k |ΔW_k| > moving

    Args:
      updates: stacked over the members.
      still: e₁.
      moving: e₂.
    """
    mean = tree.map(lambda p: p.mean(0), updates)
    if not float(tree.sq_norm(mean).sqrt()) < still:
        return False
    squares = [p.reshape(len(p), -1).square().sum(1) for p in updates.values()]
    longest = torch.stack(squares).sum(0).sqrt().max()
    return float(longest) > moving


def refined(cluster: Tensor, ids: Tensor, updates: Params, still: float, moving: float) -> Tensor:
    """The clusters after those that are at odds were halved; the smaller half gets a new number.

    A cluster of which no more than two are there is left alone. Who is absent stays where it is.

    Args:
      cluster: the number of each client's cluster.
      ids: the clients that are there.
      updates: theirs, stacked.
      still: as for `at_odds`.
      moving: as for `at_odds`.
    """
    out = cluster
    for c in sorted(set(cluster.tolist())):
        members = (cluster[ids] == c).nonzero()[:, 0]
        if len(members) <= 2:
            continue
        mine = tree.index(updates, members)
        if at_odds(mine, still, moving):
            half = bipartition(pairwise(mine, cosines))
            minority = half == np.argmin(np.bincount(half, minlength=2))
            leaving = ids[members[torch.from_numpy(minority).to(ids.device)]]
            out = out.index_fill(0, leaving, int(out.max()) + 1)
    return out
