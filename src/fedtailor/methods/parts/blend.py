"""Blends v̄ = α v + (1 − α) w of an own model v and a shared w: the slopes that APFL descends."""

from __future__ import annotations

import torch
from torch import Tensor

from fedtailor.core import tree
from fedtailor.core.task import Batch
from fedtailor.core.training import Slope
from fedtailor.core.tree import Tree


def of_models(at: Slope) -> Slope:
    """The slopes of w, which learns for itself, and of v, which learns through the blend.

        ∂/∂w := ∇F(w),     ∂/∂v = α ∇F(v̄)

    `{"w", "v"}` are trained with `given["alpha"]`; each carries running statistics of its own. The
    loss is the blend's.
    """

    def slope(pair: Tree, batch: Batch, given: Tree, carried: Tree) -> tuple[Tree, Tensor, Tree]:
        for_w, _, with_w = at(pair["w"], batch, given, carried["w"])
        mixed = tree.lerp(pair["w"], pair["v"], given["alpha"])
        for_v, loss, with_v = at(mixed, batch.again(), given, carried["v"])
        changed = {"w": carried["w"] | with_w, "v": carried["v"] | with_v}
        return {"w": for_w, "v": tree.scale(for_v, given["alpha"])}, loss, changed

    return slope


def of_share(at: Slope) -> Slope:
    """The slope of α, with both models `given`: ∂F(v̄)/∂α = ⟨v − w, ∇F(v̄)⟩."""

    def slope(theta: Tree, batch: Batch, given: Tree, carried: Tree) -> tuple[Tree, Tensor, Tree]:
        mixed = tree.lerp(given["w"], given["v"], theta["alpha"])
        grads, loss, _ = at(mixed, batch, given, carried)
        apart = tree.sub(given["v"], given["w"])
        dots = tree.leaves(tree.map(lambda g, d: (g * d).sum(), grads, apart))  # name by name
        return {"alpha": torch.stack(dots).sum()}, loss, {}

    return slope
