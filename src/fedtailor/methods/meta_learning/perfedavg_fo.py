"""Per-FedAvg (first order): a global model that is one step away from each client's."""

from __future__ import annotations

from fedtailor.core.method import Method
from fedtailor.core.options import NonNegative, Weighting
from fedtailor.core.task import Task
from fedtailor.core.training import Recipe
from fedtailor.methods.one_model.fedavg import fedavg
from fedtailor.methods.parts.meta import first_order, meta_learnt
from fedtailor.methods.parts.start import Starter, as_received


def perfedavg_fo(
    task: Task,
    *,
    alpha: NonNegative = 0.01,
    beta: NonNegative = 0.0,
    weighting: Weighting = "data",
    recipe: Recipe = Recipe(),
    begin: Starter = as_received,
) -> Method:
    """Meta-learning, first order: the gradient is taken after one inner step.

        w̃ = w_k − α ∇F(w_k; b0);   w_k ← w_k − β ∇F(w̃; b1);   tested: w − α ∇F(w; a training batch)

    Args:
      alpha: inner step α; customary values are 0.005 to 0.03. With 0 this is FedAvg on b1.
      beta: outer learning rate β; 0 takes the recipe's.
      weighting: a client's weight in the mean: `data` or `uniform`.
      recipe: how a client trains in a round; a step uses two batches of its size.
      begin: where local training begins.

    Deviations: b0 and b1 are the halves of one shuffled batch of twice the size. Models are adapted
    on training rows (several public codes adapt on test rows).

    Reference: Fallah et al., "Personalized Federated Learning with Theoretical Guarantees: A
    Model-Agnostic Meta-Learning Approach", NeurIPS 2020, https://arxiv.org/abs/2002.07948
    """
    return meta_learnt(fedavg, task, first_order(alpha), 2, alpha, beta, weighting, recipe, begin)
