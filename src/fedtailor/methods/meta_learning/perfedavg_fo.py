"""Per-FedAvg (first order): a global model that is one step away from each client's."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

from fedtailor.core.method import Method
from fedtailor.core.options import NonNegative, Search, Weighting
from fedtailor.core.task import Task
from fedtailor.core.training import Recipe
from fedtailor.methods.one_model.fedavg import fedavg
from fedtailor.methods.parts.meta import first_order, tested_after_a_step


def perfedavg_fo(
    task: Task,
    *,
    alpha: Annotated[NonNegative, Search(0.001, 0.1, log=True)] = 0.01,
    beta: NonNegative = 0.0,
    weighting: Weighting = "data",
    recipe: Recipe = Recipe(),
) -> Method:
    """Meta-learning, first order: the gradient is taken after one inner step.

        w̃ = w_k − α ∇F(w_k; b0);   w_k ← w_k − β ∇F(w̃; b1);   tested: w − α ∇F(w; a training batch)

    Args:
      alpha: inner step α; customary values are 0.005 to 0.03. With 0 this is FedAvg on b1.
      beta: outer learning rate β; 0 takes the recipe's.
      weighting: a client's weight in the mean: `data` or `uniform`.
      recipe: how a client trains in a round; a step uses two batches of its size.

    Deviations: b0 and b1 are the halves of one shuffled batch of twice the size. Models are adapted
    on training rows (several public codes adapt on test rows).

    Reference: Fallah et al., "Personalized Federated Learning with Theoretical Guarantees: A
    Model-Agnostic Meta-Learning Approach", NeurIPS 2020, https://arxiv.org/abs/2002.07948

    Example:
      >>> from fedtailor.methods.check import toy_task
      >>> method = perfedavg_fo(toy_task(), alpha=0.02)
    """
    outer = replace(recipe, batch=2 * recipe.batch, lr=beta or recipe.lr)
    host = fedavg(task, weighting=weighting, recipe=outer, gradient=first_order(alpha))
    return tested_after_a_step(host, task, alpha, recipe)
