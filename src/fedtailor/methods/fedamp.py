"""FedAMP: clients are drawn to the models of those that are like them."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from .. import tree
from ..begin import Starter, as_received
from ..data import Data
from ..method import Clients, Method, Outcome, Upload
from ..options import Above, NonNegative, Share
from ..rng import Key, Turn
from ..task import Task
from ..train import Recipe, fit, prox
from ..tree import Params, Tree


def pairwise(models: Params, fn: Callable[[Params, Params], Tensor]) -> Tensor:
    """`fn` of every two models; one row at a time, so that memory is that of the models."""
    count = len(next(iter(models.values())))
    rows = [fn(models, tree.index(models, i)) for i in range(count)]
    return torch.stack(rows)


def _rows(stacked: Tensor) -> Tensor:
    return stacked.reshape(len(stacked), -1)


def squared_distances(models: Params, one: Params) -> Tensor:
    """|w_j − w|² for all j."""
    return torch.stack([_rows(models[k] - one[k]).square().sum(1) for k in one]).sum(0)


def cosines(models: Params, one: Params) -> Tensor:
    """cos(w_j, w) for all j."""
    dot = torch.stack([_rows(models[k] * one[k]).sum(1) for k in one]).sum(0)
    length = torch.stack([_rows(models[k]).square().sum(1) for k in one]).sum(0).sqrt()
    return dot / (length * tree.sq_norm(one).sqrt()).clamp(min=1e-12)


def attentive(
    task: Task,
    weigh: Callable[[Params], Tensor],
    pull: float,
    recipe: Recipe,
    begin: Starter,
) -> Method:
    """A method whose server mixes everyone's latest models with weights made from the models.

    Args:
      task: the network.
      weigh: everyone's models, stacked -> weights [client, client] whose rows sum to 1.
      pull: strength of the pull towards the mixture.
      recipe: how a client trains in a round.
      begin: where local training begins, instead of the client's own model.
    """
    near = prox(task, pull)
    starter = begin(task, task.blocks, recipe)

    def init(clients: Clients, initial: Params, key: Key) -> Tree:
        models = tree.tile(initial, clients)
        return {"models": models, "weights": weigh(tree.drop(models, task.buffers))}

    def send(server: Tree, cid: Tensor, turn: Turn) -> Tree:
        row = server["weights"][cid]
        mixed = tree.map(lambda p: torch.tensordot(row.to(p.dtype), p, 1), server["models"])
        return {"params": mixed}

    def start(msg: Tree, initial: Params, key: Key) -> Tree:
        return {"own": initial, "begin": starter.start(msg["params"], initial)}

    def client(msg: Tree, state: Tree, data: Data, turn: Turn) -> Outcome:
        here = starter.adapt(msg["params"], state["begin"], {}, data, turn.aside())
        first = state["own"] if starter.trivial else here.params
        given = {"anchor": msg["params"]}
        own = fit(task, first, data, turn, recipe, loss=near, given=given)
        kept = {"own": own, "begin": starter.keep(here.memory, own)}
        return Outcome(kept, Upload(each={"model": own}), own, here.notes)

    def receive(server: Tree, ids: Tensor, up: Upload, turn: Turn) -> Tree:
        models = tree.put(server["models"], ids, up.each["model"])
        return {"models": models, "weights": weigh(tree.drop(models, task.buffers))}

    def personal(msg: Tree, state: Tree, data: Data, turn: Turn) -> Params:
        own: Params = state["own"]
        return own

    def record(server: Tree) -> Tree:
        return {"attention": server["weights"]}

    return Method(init, send, start, client, receive, personal, task.predict, record)


def fedamp(
    task: Task,
    *,
    alpha_K: Above = 1.0,
    lam: NonNegative = 1.0,
    sigma: Above = 1.0,
    recipe: Recipe = Recipe(),
    begin: Starter = as_received,
) -> Method:
    """Attentive message passing: the closer two models are, the more they attract each other.

        ξ_ij = α_K A'(|w_i − w_j|²) for j ≠ i,  A'(x) = exp(−x/σ)/σ,   ξ_ii = 1 − Σ_j ξ_ij
        u_i = Σ_j ξ_ij w_j  is sent;   w_i ← SGD on F_i(w) + λ/(2 α_K) |w − u_i|², from its own w_i

    Learnt on the server: everyone's latest model. Tested with w_i.

    Args:
      alpha_K: step α_K of the server; made smaller for a row whose ξ_ii would be negative.
      lam: strength λ; the pull on a client is λ/α_K. With 0 this is training alone.
      sigma: scale σ of the attention.
      recipe: how a client trains in a round.
      begin: where local training begins, instead of w_i.

    Deviations: clients that are absent count with their latest upload. The pull has a gradient (in
    one public code it is made of detached tensors, and the method is training alone).

    Reference: Huang et al., "Personalized Cross-Silo Federated Learning on Non-IID Data", AAAI
    2021, https://arxiv.org/abs/2007.03797
    """

    def weigh(models: Params) -> Tensor:
        apart = pairwise(models, squared_distances)
        others = alpha_K * (-apart / sigma).exp() / sigma
        others = others * (1 - torch.eye(len(others), device=others.device, dtype=others.dtype))
        others = others / others.sum(1, keepdim=True).clamp(min=1)
        return others + torch.diag(1 - others.sum(1))

    return attentive(task, weigh, lam / alpha_K, recipe, begin)


def heurfedamp(
    task: Task,
    *,
    self_weight: Share = 0.5,
    lam: NonNegative = 1.0,
    sigma: NonNegative = 10.0,
    recipe: Recipe = Recipe(),
    begin: Starter = as_received,
) -> Method:
    """FedAMP for deep networks: attention by the angle between models, a fixed weight for oneself.

        ξ_ij ∝ exp(σ cos(w_i, w_j)) for j ≠ i, summing to 1 − ξ_ii

    Args:
      self_weight: ξ_ii.
      lam: strength λ of the pull towards u_i. With 0 this is training alone.
      sigma: sharpness σ of the attention.
      recipe: how a client trains in a round.
      begin: where local training begins, instead of w_i.

    Deviations: as fedamp.

    Reference: Huang et al., "Personalized Cross-Silo Federated Learning on Non-IID Data", AAAI
    2021, https://arxiv.org/abs/2007.03797
    """

    def weigh(models: Params) -> Tensor:
        alike = sigma * pairwise(models, cosines)
        eye = torch.eye(len(alike), device=alike.device, dtype=torch.bool)
        if len(alike) == 1:
            return torch.ones_like(alike)
        others = alike.masked_fill(eye, -torch.inf).softmax(1)
        return torch.where(eye, self_weight, (1 - self_weight) * others)

    return attentive(task, weigh, lam, recipe, begin)
