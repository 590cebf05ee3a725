"""What a step descends: objectives, and how a step's direction comes from their gradient."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar

import torch
from torch import Tensor
from torch.func import grad_and_value

from fedtailor.core import tree
from fedtailor.core.task import Batch, Task
from fedtailor.core.tree import Params, Tree

# (what is trained, batch, given, what is carried along) -> (loss, changed entries of the carried)
Objective = Callable[[Tree, Batch, Tree, Tree], tuple[Tensor, Tree]]
# the same arguments -> (gradient, loss, changed entries of the carried)
Slope = Callable[[Tree, Batch, Tree, Tree], tuple[Tree, Tensor, Tree]]
# how the direction of a step comes from the gradient
Gradient = Callable[[Slope], Slope]
# (params, batch, given) -> (loss, buffers)
Loss = Callable[[Params, Batch, Tree], tuple[Tensor, Params]]
# whether nothing is mapped or differentiated around a call; only who plays one client can tell
UNMAPPED: ContextVar[Callable[[], bool]] = ContextVar("unmapped", default=lambda: False)


def exact_gradient(objective: Objective) -> Slope:
    """The gradient itself."""
    at = grad_and_value(objective, has_aux=True)

    def slope(theta: Tree, batch: Batch, given: Tree, carried: Tree) -> tuple[Tree, Tensor, Tree]:
        if UNMAPPED.get()():  # takes less than half the time
            return _by_autograd(objective, theta, batch, given, carried)
        try:
            gradient, (loss, changed) = at(theta, batch, given, carried)
        except RuntimeError as error:  # some operators need ordinary tensors (packed sequences)
            try:
                return _by_autograd(objective, theta, batch, given, carried)
            except RuntimeError:
                raise error from None
        return gradient, loss, changed

    return slope


def _by_autograd(
    objective: Objective, theta: Tree, batch: Batch, given: Tree, carried: Tree
) -> tuple[Tree, Tensor, Tree]:
    """The gradient as a loop in PyTorch takes it, which only works for one client."""
    with torch.enable_grad():
        leaves = tree.map(lambda leaf: leaf.detach().requires_grad_(), theta)
        loss, changed = objective(leaves, batch, given, carried)
        flat = torch.autograd.grad(loss, tree.leaves(leaves), materialize_grads=True)
    left = iter(flat)
    detach = torch.Tensor.detach
    return tree.map(lambda _: next(left), theta), loss.detach(), tree.map(detach, changed)


def as_is(slope: Slope) -> Slope:
    """Descent along the gradient."""
    return slope


def sam(rho: float) -> Gradient:
    """The gradient at the worst point in a ball of radius `rho` (Foret et al., 2021).

    Running statistics come from the first of the two passes only.

    Example:
      >>> from fedtailor.core.training import fit  # as in FedSAM
      >>> train = lambda task, params, data, turn, recipe: fit(
      ...     task, params, data, turn, recipe, gradient=sam(0.05))
    """

    def gradient(at: Slope) -> Slope:
        def slope(
            theta: Tree, batch: Batch, given: Tree, carried: Tree
        ) -> tuple[Tree, Tensor, Tree]:
            up, loss, changed = at(theta, batch, given, carried)
            worst = tree.add(theta, tree.scale(up, rho / (tree.sq_norm(up).sqrt() + 1e-12)))
            return at(worst, batch.again(), given, carried)[0], loss, changed

        return slope

    return gradient


def prox(task: Task, mu: float) -> Loss:
    """The task's loss plus `mu/2 |params - given["anchor"]|²`, over what is trained.

    Example:
      >>> from fedtailor.core.training import fit  # as in FedProx
      >>> train = lambda task, params, data, turn, recipe: fit(
      ...     task, params, data, turn, recipe, loss=prox(task, 0.1), given={"anchor": params})
    """

    def near(params: Params, batch: Batch, given: Tree) -> tuple[Tensor, Params]:
        value, buffers = task.loss(params, batch)
        anchor = tree.drop(given["anchor"], task.buffers)
        apart = tree.sub(tree.pick(params, anchor), anchor)
        return value + mu / 2 * tree.sq_norm(apart), buffers

    return near
