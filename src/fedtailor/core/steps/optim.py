"""Optimisers as pairs of pure functions, so that they map over clients."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from fedtailor.core import tree
from fedtailor.core.tree import Tree


class Optimizer(NamedTuple):
    """An optimiser: how gradients become steps.

    Attributes:
      init: parameters -> state.
      update: (gradients, state, parameters) -> (what to add to the parameters, state).

    Example:
      >>> optimiser, params = sgd(lr=0.5), {"w": torch.tensor(1.0)}
      >>> step, state = optimiser.update({"w": torch.tensor(4.0)}, optimiser.init(params), params)
      >>> step
      {'w': tensor(-2.)}
    """

    init: Callable[[Tree], Tree]
    update: Callable[[Tree, Tree, Tree], tuple[Tree, Tree]]


def decay_rates(params: Tree, weight_decay: float, biases: bool) -> Tree:
    """The weight decay of each parameter; 0 for biases, by their names, where they are spared.

    Example:
      >>> decay_rates({"0.weight": torch.ones(2, 2), "0.bias": torch.ones(2)}, 0.1, biases=False)
      {'0.weight': 0.1, '0.bias': 0.0}
    """
    return {
        name: decay_rates(leaf, weight_decay, biases)
        if isinstance(leaf, dict)
        else weight_decay * (biases or "bias" not in name.rpartition(".")[2])
        for name, leaf in params.items()
    }


def _decayed(grads: Tree, params: Tree, weight_decay: float, biases: bool) -> Tree:
    rates = decay_rates(params, weight_decay, biases)
    return tree.map(lambda g, p, rate: g + rate * p if rate else g, grads, params, rates)


def sgd(
    lr: float | Tensor,
    momentum: float = 0.0,
    weight_decay: float = 0.0,
    *,
    decay_biases: bool = True,
) -> Optimizer:
    """Stochastic gradient descent, as `torch.optim.SGD` without dampening."""

    def init(params: Tree) -> Tree:
        return tree.map(torch.zeros_like, params) if momentum else {}

    def update(grads: Tree, state: Tree, params: Tree) -> tuple[Tree, Tree]:
        if weight_decay:
            grads = _decayed(grads, params, weight_decay, decay_biases)
        if momentum:
            grads = state = tree.map(lambda m, g: momentum * m + g, state, grads)
        return tree.map(lambda g: -lr * g, grads), state

    return Optimizer(init, update)


def adam(
    lr: float | Tensor,
    weight_decay: float = 0.0,
    *,
    decoupled: bool = False,
    decay_biases: bool = True,
    betas: tuple[float, float] = (0.9, 0.999),
    eps: float = 1e-8,
) -> Optimizer:
    """Adam, as `torch.optim.Adam`; with `decoupled` weight decay it is AdamW."""
    first, second = betas

    def init(params: Tree) -> Tree:
        zeros = tree.map(torch.zeros_like, params)
        some = tree.leaves(params)
        count = some[0].new_zeros(()) if some else torch.zeros(())
        return {"mean": zeros, "square": zeros, "count": count}

    def update(grads: Tree, state: Tree, params: Tree) -> tuple[Tree, Tree]:
        if weight_decay and not decoupled:
            grads = _decayed(grads, params, weight_decay, decay_biases)
        count = state["count"] + 1
        mean = tree.map(lambda m, g: first * m + (1 - first) * g, state["mean"], grads)
        square = tree.map(lambda v, g: second * v + (1 - second) * g * g, state["square"], grads)
        root = (1 - second**count).sqrt()
        rate = lr / (1 - first**count)

        def step(m: Tensor, v: Tensor, p: Tensor, decay: float) -> Tensor:
            change: Tensor = -rate * m / (v.sqrt() / root + eps)
            return change - lr * decay * p if decay else change

        moved = {"mean": mean, "square": square, "count": count}
        rates = decay_rates(params, weight_decay * decoupled, decay_biases)
        return tree.map(step, mean, square, params, rates), moved

    return Optimizer(init, update)


def adamw(
    lr: float | Tensor, weight_decay: float = 0.01, *, decay_biases: bool = True
) -> Optimizer:
    """Adam with decoupled weight decay, as `torch.optim.AdamW`."""
    return adam(lr, weight_decay, decoupled=True, decay_biases=decay_biases)


def clip_norm(grads: Tree, limit: float) -> Tree:
    """`grads` scaled down to norm `limit` where they are longer; 0 means no limit."""
    if not limit:
        return grads
    return tree.scale(grads, (limit / (tree.sq_norm(grads).sqrt() + 1e-6)).clamp(max=1.0))
