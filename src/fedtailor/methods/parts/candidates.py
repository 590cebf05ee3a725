"""Models of others as candidates: how they are chosen, judged, taken in and credited (FedFomo)."""

from __future__ import annotations

from typing import Literal

import numpy as np
import torch
from torch import Tensor
from torch.func import vmap

from fedtailor.core import rng, tree, wire
from fedtailor.core.data import Data
from fedtailor.core.rng import Key
from fedtailor.core.scoring import SCORED, mean_loss, score
from fedtailor.core.steps.scan import each
from fedtailor.core.task import Task
from fedtailor.core.tree import Params, Tree

Norm = Literal["l2", "l1"]


def strangers(clients: int, device: torch.device) -> Tree:
    """What a server knows of its clients' models at first.

    `affinity` is P[i, n], what n's models have been worth to i so far: at first everyone knows the
    worth of its own alone. `fresh` says whose model came in with the latest round.
    """
    return {
        "affinity": torch.eye(clients, device=device),
        "fresh": torch.zeros(clients, dtype=torch.bool, device=device),
    }


def choose_candidates(
    known: Tree, cid: Tensor, slots: int, chance: Tensor, key: Key
) -> tuple[Tensor, Tensor]:
    """A different client for each slot: mostly who has helped most, sometimes anybody (ε-greedy).

        slot = a random fresh client              with probability ε
               the fresh client argmax_n P[i, n]  else; one of them at random where several are best

    Args:
      known: as `strangers` makes it.
      cid: i, for whom to choose; it is not a candidate itself.
      slots: how many to choose.
      chance: ε.
      key: for the draws.

    Returns:
      Their ids, and which slots could be filled.
    """
    affinity = known["affinity"][cid]
    number = torch.arange(len(affinity), device=affinity.device)
    free = known["fresh"] & (number != cid)
    explore = rng.uniform(key, slots) < chance
    ids, filled = [], []
    for slot in range(slots):
        best = affinity.masked_fill(~free, -torch.inf).max()
        eligible = free & (explore[slot] | (affinity == best))
        luck = rng.uniform(rng.fold(key, slot), len(affinity))
        taken = luck.masked_fill(~eligible, -1).argmax()
        ids.append(taken)
        filled.append(eligible.any())
        free = free & (number != taken)
    if not ids:
        return number[:0], free[:0]
    return torch.stack(ids), torch.stack(filled)


def offered(own: Params, message: Tree) -> tuple[Params, Tensor]:
    """The own model and then all that a message of `maybe`s has, stacked; and which are there."""
    parts = list(message.values())
    models = tree.cat([tree.map(lambda p: p[None], own), *(wire.value(p) for p in parts)])
    sent = torch.cat([wire.here(p) for p in parts])
    return models, torch.cat([sent.new_ones(1), sent])


JUDGED = 512  # rows at a time, of all models together: else memory grows with their number
FEWEST = 32  # rows of each: fewer would leave a device idle


def mean_losses(task: Task, models: Params, rows: Data) -> Tensor:
    """The mean loss of each of several models, stacked, over the same rows."""
    count = len(tree.leaves(models)[0])
    size = max(FEWEST, min(SCORED, JUDGED // count))
    losses: Tensor = each(lambda model: score(task, model, rows, size).loss, models)
    return losses / rows.n.clamp(min=1)


def gain_per_distance(task: Task, rows: Data, base: Params, models: Params, norm: Norm) -> Tensor:
    """What each model gains on the rows for every unit of its distance from the base.

        w_n = (L(θ_base) − L(θ_n)) / |θ_n − θ_base|

    Args:
      task: the network; running statistics do not count in the distance.
      rows: what L is the mean loss on.
      base: θ_base.
      models: stacked.
      norm: of the distance.
    """
    here = mean_loss(task, base, rows)

    def distance(model: Params) -> Tensor:
        apart = tree.drop(tree.sub(model, base), task.buffers)
        if norm == "l1":
            return torch.stack([p.abs().sum() for p in tree.leaves(apart)]).sum()
        return tree.sq_norm(apart).sqrt()

    far = vmap(distance)(models)
    slope = (here - mean_losses(task, models, rows)) / (far + 1e-12)
    # a model that is θ_base itself has nothing to give; 0/1e-12 would be rounding noise. Nor has
    # one whose outputs overflow: a loss that is no number would make all weights none
    return torch.where((far > 0) & slope.isfinite(), slope, 0.0)


def normalised(weights: Tensor) -> tuple[Tensor, Tensor]:
    """w* = max(w, 0) / Σ max(w, 0), all 0 if none is positive; and whether any is."""
    positive = weights.clamp(min=0)
    total = positive.sum()
    return positive / total.clamp(min=1e-30), total > 0


def towards(base: Params, models: Params, weights: Tensor) -> Params:
    """θ_base + Σ_n w_n (θ_n − θ_base); `models` are stacked."""
    return tree.map(lambda b, m: b + torch.tensordot(weights.to(m.dtype), m - b, 1), base, models)


def acquainted(
    known: Tree, ids: Tensor, candidates: Tensor, filled: Tensor, weights: Tensor
) -> Tree:
    """What the server knows after a round: P[i, i] += w_0 and P[i, n] += w_n; who was there.

    Args:
      known: as `strangers` makes it.
      ids: the cohort.
      candidates: for each of them the ids of its candidates, without itself.
      filled: which of these there were.
      weights: of the own model and of the candidates.
    """
    affinity = known["affinity"]
    rows = torch.zeros(len(ids), len(affinity), device=ids.device, dtype=weights.dtype)
    rows = rows.scatter(1, ids[:, None], weights[:, :1])
    rows = rows.scatter_add(1, candidates, weights[:, 1:] * filled)
    return {
        "affinity": affinity.index_add(0, ids, rows.to(affinity.dtype)),
        "fresh": torch.zeros_like(known["fresh"]).index_fill(0, ids, True),
    }


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
