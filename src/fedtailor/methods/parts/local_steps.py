"""How many steps a client takes in a round, and how far they would go on a constant gradient."""

from __future__ import annotations

import torch
from torch import Tensor

from fedtailor.core.data import Data
from fedtailor.core.training import Recipe


def local_steps(recipe: Recipe, data: Data) -> Tensor:
    """How many steps a client takes in a round; as `Recipe.count`, of rows known on the device.

    Example:
      >>> data = Data.of(torch.zeros(34, 2), torch.zeros(34).long())
      >>> local_steps(Recipe(epochs=5, batch=10), data)
      tensor(20)
    """
    if recipe.steps:
        count = torch.full_like(data.n, recipe.steps)
    elif recipe.batch == 0:
        count = torch.full_like(data.n, recipe.epochs)
    else:
        size = recipe.batch
        whole = data.n // size if recipe.last == "drop" else (data.n + size - 1) // size
        count = recipe.epochs * whole
    return torch.where(data.n > 0, count, 0)


def unit_distance(recipe: Recipe, data: Data, rate: float | Tensor, mu: float = 0.0) -> Tensor:
    """How far a client's steps go on a gradient of 1, in units of the learning rate.

    The optimiser as a recursion of numbers: v ← ρ v + 1 − η μ a, a ← a + v, once per step, from 0.
    It is a matrix that is applied to (v, a, 1), so K steps are its K-th power. Without momentum and
    pull a = K; Adam moves by its learning rate on a constant gradient, so there a = K, too.

    Args:
      recipe: how a client trains; its weight decay is part of the loss, not of the optimiser.
      data: whose rows say how many steps there are.
      rate: learning rate η in this round.
      mu: strength μ of a pull to where training begins that is part of the gradient, as in FedProx.

    Example:
      >>> data = Data.of(torch.zeros(3, 2), torch.zeros(3).long())
      >>> unit_distance(Recipe(batch=1, momentum=0.5), data, 0.1)  # 1 + 1.5 + 1.75
      tensor(4.2500)
    """
    steps, kind = local_steps(recipe, data), torch.get_default_dtype()
    rho = recipe.momentum if recipe.optimizer == "sgd" else 0.0
    if not rho and not mu:
        return steps.to(kind)
    back = torch.full_like(data.n, -mu, dtype=torch.float64) * rate
    zero, one = torch.zeros_like(back), torch.ones_like(back)
    power = torch.stack([rho * one, back, one, rho * one, 1 + back, one, zero, zero, one])
    power, done = power.view(3, 3), torch.eye(3, dtype=torch.float64, device=data.n.device)
    for bit in range(recipe.count(len(data.rows)).bit_length()):
        done = torch.where(steps >> bit & 1 == 1, power @ done, done)
        power = power @ power
    return done[1, 2].to(kind)
