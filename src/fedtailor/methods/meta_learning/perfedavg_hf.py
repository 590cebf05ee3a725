"""Per-FedAvg (Hessian-free): a global model that is one step away from each client's."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

from fedtailor.core.method import Method
from fedtailor.core.options import Above, NonNegative, Search, Weighting
from fedtailor.core.task import Task
from fedtailor.core.training import Recipe
from fedtailor.methods.one_model.fedavg import fedavg
from fedtailor.methods.parts.meta import hessian_free, tested_after_a_step


def perfedavg_hf(
    task: Task,
    *,
    alpha: Annotated[NonNegative, Search(0.001, 0.1, log=True)] = 0.01,
    beta: NonNegative = 0.0,
    d: Above = 0.001,
    weighting: Weighting = "data",
    recipe: Recipe = Recipe(),
) -> Method:
    """Meta-learning, Hessian-free: the Hessian's part by a difference of gradients.

        g1 = ∇F(w_k − α ∇F(w_k; b0); b1),  h = [∇F(w_k + d g1; b2) − ∇F(w_k − d g1; b2)] / 2d
        w_k ← w_k − β (g1 − α h)

    Args:
      alpha: inner step α. With 0 this is FedAvg on b1.
      beta: outer learning rate β; 0 takes the recipe's.
      d: length of the difference.
      weighting: a client's weight in the mean: `data` or `uniform`.
      recipe: how a client trains in a round; a step uses three batches of its size.

    Deviations: as perfedavg-fo, with thirds.

    Reference: Fallah et al., "Personalized Federated Learning with Theoretical Guarantees: A
    Model-Agnostic Meta-Learning Approach", NeurIPS 2020, https://arxiv.org/abs/2002.07948

    Example:
      >>> from fedtailor.methods.check import toy_task
      >>> method = perfedavg_hf(toy_task(), alpha=0.02, d=0.01)
    """
    outer = replace(recipe, batch=3 * recipe.batch, lr=beta or recipe.lr)
    host = fedavg(task, weighting=weighting, recipe=outer, gradient=hessian_free(alpha, d))
    return tested_after_a_step(host, task, alpha, recipe)
