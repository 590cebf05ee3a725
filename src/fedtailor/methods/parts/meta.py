"""Meta-gradients: the slope after an inner step, for the Per-FedAvg methods."""

from __future__ import annotations

from torch import Tensor

from fedtailor.core import tree
from fedtailor.core.data import Data
from fedtailor.core.method import Method
from fedtailor.core.objectives import Gradient, Slope
from fedtailor.core.rng import Turn
from fedtailor.core.task import Batch, Task
from fedtailor.core.training import Recipe, fit
from fedtailor.core.tree import Params, Tree


def first_order(alpha: float) -> Gradient:
    """∇F(w − α ∇F(w; b0); b1)."""

    def gradient(at: Slope) -> Slope:
        def slope(w: Tree, batch: Batch, given: Tree, carried: Tree) -> tuple[Tree, Tensor, Tree]:
            inner, loss, changed = at(w, batch.part(0, 2), given, carried)
            there = tree.sub(w, tree.scale(inner, alpha))
            return at(there, batch.part(1, 2).again(), given, carried)[0], loss, changed

        return slope

    return gradient


def hessian_free(alpha: float, delta: float) -> Gradient:
    """g1 − α h, with h the change of the gradient along g1 by central differences on b2."""

    def gradient(at: Slope) -> Slope:
        def slope(w: Tree, batch: Batch, given: Tree, carried: Tree) -> tuple[Tree, Tensor, Tree]:
            inner, loss, changed = at(w, batch.part(0, 3), given, carried)
            there = tree.sub(w, tree.scale(inner, alpha))
            g1 = at(there, batch.part(1, 3).again(), given, carried)[0]
            last = batch.part(2, 3).again().again()
            step = tree.scale(g1, delta)
            ahead = at(tree.add(w, step), last, given, carried)[0]
            behind = at(tree.sub(w, step), last, given, carried)[0]
            bend = tree.scale(tree.sub(ahead, behind), alpha / (2 * delta))
            return tree.sub(g1, bend), loss, changed

        return slope

    return gradient


def tested_after_a_step(host: Method, task: Task, alpha: float, recipe: Recipe) -> Method:
    """A method (FedAvg on a meta-gradient) that is tested after one step on training rows.

    Args:
      host: the method.
      task: the network.
      alpha: size of the step.
      recipe: its batch size is the step's; the tested model is as private as those that are sent.
    """
    step = Recipe(
        steps=1, batch=recipe.batch, lr=alpha, dp_clip=recipe.dp_clip, dp_noise=recipe.dp_noise
    )

    def personal(msg: Tree, state: Tree, data: Data, turn: Turn) -> Params:
        return fit(task, host.personal(msg, state, data, turn), data, turn, step)

    return host._replace(personal=personal, general=lambda msg, state: msg["params"])
