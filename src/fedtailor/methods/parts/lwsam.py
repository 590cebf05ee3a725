"""Layer-wise sharpness-aware minimisation (LWSAM), a part of the PLGU methods.

Blocks that differ more between a client's own and the received model are perturbed more.
"""

from __future__ import annotations

from typing import Annotated, Literal, NamedTuple

import torch
from torch import Tensor

from fedtailor.core import tree
from fedtailor.core.data import Data
from fedtailor.core.method import Method, Outcome
from fedtailor.core.objectives import Gradient, Slope
from fedtailor.core.options import AboveOne, NonNegative, Search
from fedtailor.core.rng import Key, Turn
from fedtailor.core.task import Batch, Blocks, Task, blocks_without, per_name
from fedtailor.core.training import Recipe
from fedtailor.core.tree import Params, Tree

Scale = Literal["mean1", "sum1", "identity"]
Form = Literal["eq5", "asam"]


class Ascent(NamedTuple):
    """How gradients are perturbed: options that the PLGU methods share.

    Attributes:
      rho: radius ρ of the perturbation.
      p: its norm; 2 is the paper's.
      score_scale: ξ scaled to mean 1 (`mean1`), to sum 1 (`sum1`, the paper's sentence), or all 1
        (`identity`: SAM).
      form: `eq5` (ε = ρ ξ g / |g|) or `asam` (ρ ξ² g / |ξ g|).
    """

    rho: Annotated[NonNegative, Search(0.005, 0.5, log=True)] = 0.05
    p: AboveOne = 2.0
    score_scale: Annotated[Scale, Search()] = "mean1"
    form: Form = "eq5"


def block_scores(own: Params, received: Params, blocks: Blocks, scale: Scale) -> Tensor:
    """ξ_l: how far block l of the own model is from the received one, per parameter.

        raw_l = |θ_l − w_l|₂ / dim(w_l),   ξ_l = raw_l / Σ_j raw_j,  times n for `mean1`

    Equal scores where nothing differs; `identity` makes all of them 1 (plain SAM).
    """
    n = len(blocks)
    some = own[blocks[0][0]]
    ones = torch.ones(n, device=some.device, dtype=some.dtype)
    if scale == "identity":
        return ones
    raw = []
    for block in blocks:
        apart = tree.sub(tree.pick(own, block), tree.pick(received, block))
        raw.append(tree.sq_norm(apart).sqrt() / sum(p.numel() for p in apart.values()))
    each = torch.stack(raw)
    total = each.sum()
    share = torch.where(total > 0, each / total.clamp(min=1e-30), ones / n)
    return share * n if scale == "mean1" else share


def perturbation(grads: Tree, scale: Tree, rho: float, p: float = 2.0, form: Form = "eq5") -> Tree:
    """ε_l = ρ ξ_l sign(g_l) |g_l|^(q−1) / (Σ_l |g_l|_q^q)^(1/p),  1/p + 1/q = 1.

    For p = 2 that is ρ ξ_l g_l / |g|₂. The form `asam` solves the constraint |ε| ≤ ρ at θ + Λε
    instead: ρ Λ² g / |Λ g|₂ for p = 2.
    """
    q = p / (p - 1)
    if form == "asam":
        grads = tree.map(lambda g, s: g * s, grads, scale)
    mass = torch.stack([g.abs().pow(q).sum() for g in tree.leaves(grads)]).sum()
    length = mass.clamp(min=1e-30).pow(1 / p).clamp(min=1e-12)
    return tree.map(lambda g, s: rho * s * g.sign() * g.abs().pow(q - 1) / length, grads, scale)


def lwsam(rho: float, p: float = 2.0, form: Form = "eq5") -> Gradient:
    """The gradient at θ + ε; `given["scale"]` has each parameter's ξ."""

    def gradient(at: Slope) -> Slope:
        def slope(
            theta: Tree, batch: Batch, given: Tree, carried: Tree
        ) -> tuple[Tree, Tensor, Tree]:
            up, loss, changed = at(theta, batch, given, carried)
            worst = tree.add(theta, perturbation(up, tree.pick(given["scale"], up), rho, p, form))
            return at(worst, batch.again(), given, carried)[0], loss, changed

        return slope

    return gradient


def beside(
    rho: float, p: float = 2.0, form: Form = "eq5", point: Literal["theta", "w"] = "theta"
) -> Gradient:
    """Two models in one pass: θ along its own gradient, w along the one at a perturbed point.

        ∂/∂θ := g = ∇F(θ),     ∂/∂w := ∇F(x + ε),   ε = LWSAM(∇F(x), ξ)

    `{"theta", "w"}` are trained, `given["scale"]` has each parameter's ξ, `given["mask"]` 1 where
    ε counts and 0 where it does not. Running statistics are common to both and come from the first
    pass.

    Args:
      rho: radius of the perturbation.
      p: its norm.
      form: as for `perturbation`.
      point: x: `theta`, or `w`, which makes w's path a LWSAM of its own.
    """

    def gradient(at: Slope) -> Slope:
        def slope(
            pair: Tree, batch: Batch, given: Tree, carried: Tree
        ) -> tuple[Tree, Tensor, Tree]:
            g, loss, changed = at(pair["theta"], batch, given, carried)
            here, up = pair["theta"], g
            if point == "w":
                here, up = pair["w"], at(pair["w"], batch.again(), given, carried)[0]
            eps = perturbation(up, given["scale"], rho, p, form)
            worst = tree.add(here, tree.map(lambda e, m: e * m, eps, given["mask"]))
            flat = at(worst, batch.again().again(), given, carried)[0]
            return {"theta": g, "w": flat}, loss, changed

        return slope

    return gradient


def with_scores(host: Method, entry: str, task: Task, scale: Scale, recipe: Recipe) -> Method:
    """A method whose training is `given` scores of the received model against the last trained one.

    Args:
      host: passes `given` of its message on to its training.
      entry: which entry of the message is the received model.
      task: the network.
      scale: of the scores.
      recipe: how clients train: `lr` is given, too.
    """

    def start(msg: Tree, initial: Params, key: Key) -> Tree:
        return {"host": host.start(msg, initial, key), "own": msg[entry]}

    def client(msg: Tree, state: Tree, data: Data, turn: Turn) -> Outcome:
        received = msg[entry]
        others = {k for block in task.blocks for k in block if k not in received}
        trained = blocks_without(task.blocks, others | set(task.buffers))
        scores = block_scores(state["own"], received, trained, scale)
        given = {
            "scale": per_name(scores, trained, received),
            "lr": recipe.rate(turn) + torch.zeros_like(scores[0]),
        }
        out = host.client(msg | {"given": given}, state["host"], data, turn)
        kept = {"host": out.state, "own": tree.pick(out.model, received)}
        return out._replace(state=kept, notes=out.notes | {"score": scores})

    def personal(msg: Tree, state: Tree, data: Data, turn: Turn) -> Params:
        model: Params = host.personal(msg, state["host"], data, turn)
        return model

    return host._replace(start=start, client=client, personal=personal)
