"""HeurFedAMP: FedAMP for deep networks, by the angle between models."""

from __future__ import annotations

from typing import Annotated

import torch
from torch import Tensor

from fedtailor.core.method import Method
from fedtailor.core.options import NonNegative, Search, Share
from fedtailor.core.task import Task
from fedtailor.core.training import Recipe
from fedtailor.core.tree import Params
from fedtailor.methods.parts.attention import attentive, cosines


def heurfedamp(
    task: Task,
    *,
    self_weight: Annotated[Share, Search(0.1, 0.9)] = 0.5,
    lam: Annotated[NonNegative, Search(0.01, 10, log=True)] = 1.0,
    sigma: Annotated[NonNegative, Search(1, 100, log=True)] = 10.0,
    recipe: Recipe = Recipe(),
) -> Method:
    """FedAMP for deep networks: attention by the angle between models, a fixed weight for oneself.

        ξ_ij ∝ exp(σ cos(w_i, w_j)) for j ≠ i, summing to 1 − ξ_ii

    Args:
      self_weight: ξ_ii.
      lam: strength λ of the pull towards u_i. With 0 this is training alone.
      sigma: sharpness σ of the attention.
      recipe: how a client trains in a round.

    Deviations: as fedamp.

    Reference: Huang et al., "Personalized Cross-Silo Federated Learning on Non-IID Data", AAAI
    2021, https://arxiv.org/abs/2007.03797

    Example:
      >>> from fedtailor.methods.check import toy_task
      >>> method = heurfedamp(toy_task(), self_weight=0.3)
    """

    def weigh(models: Params, others: Tensor) -> Tensor:
        alike = (sigma * cosines(models)).masked_fill(~others, -torch.inf)
        eye = torch.eye(len(alike), device=alike.device, dtype=alike.dtype)
        drawn = self_weight * eye + (1 - self_weight) * alike.softmax(1)
        return torch.where(others.any(1, keepdim=True), drawn, eye)

    return attentive(task, weigh, lam, recipe)
