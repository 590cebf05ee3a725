"""Per-FedAvg: a global model that is one step away from each client's."""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor

from .. import tree
from ..begin import Begin, Blocks, Starter, as_received
from ..data import Data
from ..method import Method
from ..options import Above, NonNegative, Weighting
from ..rng import Turn
from ..task import Batch, Task
from ..train import Gradient, Recipe, Slope, fit
from ..tree import Params, Tree
from .fedavg import fedavg


def _part(batch: Batch, i: int, n: int) -> Batch:
    """Every n-th example, so that each part of a short batch has some."""
    return batch._replace(x=batch.x[i::n], y=batch.y[i::n], weight=batch.weight[i::n])


def first_order(alpha: float) -> Gradient:
    """∇F(w − α ∇F(w; b0); b1)."""

    def gradient(at: Slope) -> Slope:
        def slope(w: Tree, batch: Batch, given: Tree, carried: Tree) -> tuple[Tree, Tensor, Tree]:
            inner, loss, changed = at(w, _part(batch, 0, 2), given, carried)
            there = tree.sub(w, tree.scale(inner, alpha))
            return at(there, _part(batch, 1, 2).again(), given, carried)[0], loss, changed

        return slope

    return gradient


def hessian_free(alpha: float, delta: float) -> Gradient:
    """g1 − α h, with h the change of the gradient along g1 by central differences on b2."""

    def gradient(at: Slope) -> Slope:
        def slope(w: Tree, batch: Batch, given: Tree, carried: Tree) -> tuple[Tree, Tensor, Tree]:
            inner, loss, changed = at(w, _part(batch, 0, 3), given, carried)
            there = tree.sub(w, tree.scale(inner, alpha))
            g1 = at(there, _part(batch, 1, 3).again(), given, carried)[0]
            last = _part(batch, 2, 3).again().again()
            step = tree.scale(g1, delta)
            ahead = at(tree.add(w, step), last, given, carried)[0]
            behind = at(tree.sub(w, step), last, given, carried)[0]
            bend = tree.scale(tree.sub(ahead, behind), alpha / (2 * delta))
            return tree.sub(g1, bend), loss, changed

        return slope

    return gradient


def meta_learnt(
    task: Task,
    gradient: Gradient,
    parts: int,
    alpha: float,
    beta: float,
    weighting: Weighting,
    recipe: Recipe,
    begin: Starter,
) -> Method:
    """FedAvg on the meta-gradient; tested after one step of size alpha on a training batch."""
    meta = replace(recipe, batch=parts * recipe.batch, lr=beta or recipe.lr)

    def own_batches(task: Task, blocks: Blocks, _: Recipe) -> Begin:
        """Beginning uses batches of the recipe's own size."""
        return begin(task, blocks, recipe)

    method = fedavg(task, weighting=weighting, recipe=meta, gradient=gradient, begin=own_batches)
    step = Recipe(steps=1, batch=recipe.batch, lr=alpha)

    def personal(msg: Tree, state: Tree, data: Data, turn: Turn) -> Params:
        return fit(task, method.personal(msg, state, data, turn), data, turn, step)

    return method._replace(personal=personal, general=lambda msg, state: msg["params"])


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
    return meta_learnt(task, first_order(alpha), 2, alpha, beta, weighting, recipe, begin)


def perfedavg_hf(
    task: Task,
    *,
    alpha: NonNegative = 0.01,
    beta: NonNegative = 0.0,
    d: Above = 0.001,
    weighting: Weighting = "data",
    recipe: Recipe = Recipe(),
    begin: Starter = as_received,
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
      begin: where local training begins.

    Deviations: as perfedavg-fo, with thirds.

    Reference: Fallah et al., "Personalized Federated Learning with Theoretical Guarantees: A
    Model-Agnostic Meta-Learning Approach", NeurIPS 2020, https://arxiv.org/abs/2002.07948
    """
    return meta_learnt(task, hessian_free(alpha, d), 3, alpha, beta, weighting, recipe, begin)
