"""Models of others as candidates: what the FedFomo family shares."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from . import tree
from .tree import Params


def normalised(weights: Tensor) -> tuple[Tensor, Tensor]:
    """w* = max(w, 0) / Σ max(w, 0), all 0 if none is positive; and whether any is."""
    positive = weights.clamp(min=0)
    total = positive.sum()
    return positive / total.clamp(min=1e-30), total > 0


def cluster_means(models: Params, affinity: Tensor, clusters: int) -> Params:
    """Mean models of spectral clusters of clients, and of all, stacked; a small cohort repeats.

    Args:
      models: stacked over the cohort.
      affinity: who helped whom, among the cohort.
      clusters: how many.
    """
    from sklearn.cluster import SpectralClustering

    count = len(affinity)
    helped = affinity.double().clamp(min=0).cpu().numpy()
    label = np.arange(count) % clusters
    if count > clusters:
        both = (helped + helped.T) / 2 + 1e-6  # connected, so that the spectrum is well defined
        method = SpectralClustering(clusters, affinity="precomputed", random_state=0)
        label = method.fit_predict(both)
    rows = [np.flatnonzero(label == c) for c in range(clusters)]
    everyone = np.arange(count)
    groups = [r if len(r) else everyone for r in rows] + [everyone]
    where = [torch.from_numpy(g).to(affinity.device) for g in groups]
    return tree.map(lambda p: torch.stack([p[w].mean(0) for w in where]), models)
