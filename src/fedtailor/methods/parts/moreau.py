"""The Moreau envelope of a client's loss, which pFedMe descends instead of the loss itself."""

from __future__ import annotations

from torch import Tensor

from fedtailor.core import tree
from fedtailor.core.task import Batch
from fedtailor.core.training import Gradient, Slope
from fedtailor.core.tree import Tree


def envelope(lam: float, steps: int, rate: float, *, warm_start: bool = False) -> Gradient:
    """The gradient of the envelope at w, by a few steps on the problem inside it.

        F_λ(w) = min_θ F(θ) + λ/2 |θ − w|²,     ∇F_λ(w) = λ (w − θ*(w))
        θ* is sought by  θ ← θ − rate (∇F(θ) + λ (θ − w))  on one mini-batch, from θ = w

    What is carried along is `{"theta": θ, "rest": running statistics}`; θ comes out as the last
    mini-batch left it.

    Args:
      lam: λ; the larger, the nearer θ* is to w.
      steps: how many steps θ takes.
      rate: their size.
      warm_start: begin with the θ that is carried instead of w.
    """

    def gradient(at: Slope) -> Slope:
        def slope(w: Tree, batch: Batch, given: Tree, carried: Tree) -> tuple[Tree, Tensor, Tree]:
            theta = tree.pick(carried["theta"], w) if warm_start else w
            for _ in range(steps):
                batch = batch.again()
                grads, loss, changed = at(theta, batch, given, carried["rest"])
                pull = tree.scale(tree.sub(theta, w), lam)
                theta = tree.sub(theta, tree.scale(tree.add(grads, pull), rate))
            rest = carried["rest"] | changed
            return tree.scale(tree.sub(w, theta), lam), loss, {"theta": theta, "rest": rest}

        return slope

    return gradient
