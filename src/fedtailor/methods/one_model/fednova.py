"""FedNova: clients that take more steps do not pull harder."""

from __future__ import annotations

from typing import Annotated, Literal

import torch
from torch import Tensor

from fedtailor.core.data import Data
from fedtailor.core.errors import BadInput
from fedtailor.core.method import Method, Outcome, Upload, by_size
from fedtailor.core.objectives import prox
from fedtailor.core.options import NonNegative, Search, Weighting
from fedtailor.core.rng import Turn
from fedtailor.core.task import Task
from fedtailor.core.training import Recipe, fit
from fedtailor.core.tree import Tree
from fedtailor.methods.one_model.fedavg import fedavg
from fedtailor.methods.parts.local_steps import local_steps, unit_distance
from fedtailor.methods.parts.moves import moved_by, scaled_move


def fednova(
    task: Task,
    *,
    mu: Annotated[NonNegative, Search(0.001, 1, log=True)] = 0.0,
    tau_eff: Literal["distance", "steps"] = "distance",
    weighting: Weighting = "data",
    recipe: Recipe = Recipe(),
) -> Method:
    """Each client's move is divided by how far its optimiser goes on a gradient of 1.

        d_k = (w_k − w) / a_k          w_k = SGD(w; E), K_k steps
        w  ← w + τ_eff Σ_k p_k d_k     τ_eff = Σ_k p_k a_k,  p_k = n_k / Σ_{j∈S} n_j

    a_k is K_k for plain SGD; with momentum ρ and pull μ it comes from the optimiser's recursion
    v ← ρ v + 1 − η μ a, a ← a + v, from 0, K_k times. Clients with more rows take more steps, and
    FedAvg's fixed point leans to them; here every direction counts as p_k says.

    Learnt on the server: w. Learnt on the client: nothing that stays there.

    Args:
      mu: strength μ of FedProx's pull in the local loss; 0 is FedNova with plain local training.
      tau_eff: how far the server goes: `distance`, Σ p_k a_k, or `steps`, Σ p_k K_k, as in the
        authors' code with a pull.
      weighting: a client's weight p_k: `data` (its number of training rows) or `uniform`.
      recipe: how a client trains in a round.

    Deviations: the pull is part of the gradient, as in FedProx, so it goes through momentum, and
    a_k is that of this very optimiser (the authors' a_k with momentum and pull together is of
    neither). Adam's a_k is K_k: on a constant gradient it moves by its learning rate. Weight decay
    is part of F_k, and so are a limit on gradients and DP-SGD's noise: none of them is in a_k. The
    directions d_k are averaged, so that nothing depends on weights that do not sum to 1 (one public
    code averages models by p_k τ_eff / a_k, which inflates the model). Running statistics of
    BatchNorm are averaged as they are. The server's momentum is `fednova+avgm`.

    Reference: Wang et al., "Tackling the Objective Inconsistency Problem in Heterogeneous Federated
    Optimization", NeurIPS 2020, https://arxiv.org/abs/2007.07481

    Example:
      >>> from fedtailor.methods.check import toy_task
      >>> method = fednova(toy_task(), recipe=Recipe(epochs=2, momentum=0.9))
    """
    if mu and recipe.optimizer != "sgd":
        raise BadInput(
            f"mu is {mu:g}, but with optimizer '{recipe.optimizer}' nobody can say how far a pull "
            "lets a client go: use sgd, or mu=0"
        )
    loss = prox(task, mu) if mu else None

    def client(msg: Tree, state: Tree, data: Data, turn: Turn) -> Outcome:
        w = msg["params"]
        given = {"anchor": w} if mu else None
        params = fit(task, w, data, turn, recipe, loss=loss, given=given)
        far = unit_distance(recipe, data, recipe.rate(turn), mu)
        # a client without a step has not moved either
        direction = scaled_move(task, w, params, 1 / torch.where(far > 0, far, 1))
        mean = {
            "direction": direction,
            "distance": far if tau_eff == "distance" else local_steps(recipe, data).to(far.dtype),
        }
        return Outcome(state, Upload(mean, by_size(data, weighting)), params)

    def receive(server: Tree, ids: Tensor, up: Upload, turn: Turn) -> Tree:
        direction, far = up.mean["direction"], up.mean["distance"]
        return {"params": moved_by(task, server["params"], direction, far)}

    return fedavg(task)._replace(
        client=client,
        receive=receive,
        mean_only="its server multiplies two means that belong together",
    )
