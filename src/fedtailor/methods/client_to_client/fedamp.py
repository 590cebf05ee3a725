"""FedAMP: clients are drawn to the models of those that are like them."""

from __future__ import annotations

from typing import Annotated

import torch
from torch import Tensor

from fedtailor.core.method import Method
from fedtailor.core.options import Above, NonNegative, Search
from fedtailor.core.task import Task
from fedtailor.core.training import Recipe
from fedtailor.core.tree import Params
from fedtailor.methods.parts.attention import attentive, squared_distances


def fedamp(
    task: Task,
    *,
    alpha_K: Annotated[Above, Search(0.1, 100, log=True)] = 1.0,
    lam: Annotated[NonNegative, Search(0.01, 10, log=True)] = 1.0,
    sigma: Annotated[Above, Search(0.1, 1000, log=True)] = 1.0,
    recipe: Recipe = Recipe(),
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

    Deviations: clients that are absent count with their latest upload. The pull has a gradient (in
    one public code it is made of detached tensors, and the method is training alone).

    Reference: Huang et al., "Personalized Cross-Silo Federated Learning on Non-IID Data", AAAI
    2021, https://arxiv.org/abs/2007.03797

    Example:
      >>> from fedtailor.methods.check import toy_task
      >>> method = fedamp(toy_task(), sigma=100.0)
    """

    def weigh(models: Params, others: Tensor) -> Tensor:
        apart = squared_distances(models)
        drawn = (alpha_K * (-apart / sigma).exp() / sigma) * others
        drawn = drawn / drawn.sum(1, keepdim=True).clamp(min=1)
        return drawn + torch.diag(1 - drawn.sum(1))

    return attentive(task, weigh, lam / alpha_K, recipe)
