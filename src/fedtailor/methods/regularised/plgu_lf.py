"""PLGU-LF: a personalised model, and a flat global one made by layer-wise perturbation."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import torch
from torch import Tensor

from fedtailor.core import tree
from fedtailor.core.data import Data
from fedtailor.core.method import Method, Outcome, Upload
from fedtailor.core.options import BlocksOrAuto
from fedtailor.core.rng import Key, Turn
from fedtailor.core.task import Task, blocks_without, per_name
from fedtailor.core.training import Recipe, descend
from fedtailor.core.tree import Params, Tree
from fedtailor.methods.describe import flat_options
from fedtailor.methods.one_model.fedavg import fedavg
from fedtailor.methods.parts.lwsam import Ascent, beside, block_scores
from fedtailor.methods.parts.two_networks import limited_each


@flat_options
def plgu_lf(
    task: Task,
    *,
    D: BlocksOrAuto = -1,
    ascent: Ascent = Ascent(),
    eval_point: Literal["theta", "w"] = "theta",
    perturb: Literal["all", "uni", "per"] = "all",
    recompose: bool = False,
    recipe: Recipe = Recipe(),
) -> Method:
    """Clients keep their D most personal blocks; the global model learns from perturbed gradients.

        ξ = scores of (θ_i, w);  Per = the D blocks with largest ξ, Uni = the rest
        θ ← w on Uni, θ_i on Per;   w_i ← w;   then per mini-batch, with g = ∇F(θ):
            θ ← θ − η g,    w_i ← w_i − η ∇F(θ + ε),    ε = LWSAM(g, ξ)
        w ← mean of w_i (uniform)

    Learnt on the server: w. Learnt on the client: θ_i, with which it is tested; w is tested too.

    Args:
      D: personalised blocks; −1 takes 5 (best in the paper, of 21 blocks), or half of the blocks of
        a smaller network, where 5 would be all. All of them: θ_i is training alone.
      ascent: how gradients are perturbed.
      eval_point: where the perturbed gradient is taken: at `theta` (Algorithm 1), or at `w`, which
        makes the global path exactly SAM.
      perturb: which blocks: `all`, `uni` or `per`; ε of the others is 0.
      recompose: test θ_i with its Uni blocks replaced by the latest w.
      recipe: how a client trains in a round (paper: 5 epochs, batches of 50); `clip` is of each
        model's gradient.

    Deviations: the denominator's exponent is 1/p (Eq. 5 prints p − 1, which makes |ε| = ρ/|g| and
    explodes). Scores are normalised explicitly (dividing by dim does not make them sum to 1), to
    mean 1, since with sum 1 the radius would be ρ/L. "Freeze" means not overwritten by the
    download. The upload is w_i itself, of which the server takes the mean: the same as adding the
    mean of w_i − w. Algorithm 1 is kept although its global model hardly learns: w follows
    gradients at θ, which vanish when θ fits its client, wherever w is (CIFAR-10, 20 rounds: 12 %
    at `theta`, 26 % at `w`).

    Reference: Qu et al., "How to Prevent the Poor Performance Clients for Personalized Federated
    Learning?" (PLGU), CVPR 2023

    Example:
      >>> from fedtailor.methods.check import toy_task
      >>> method = plgu_lf(toy_task(), D=1, ascent=Ascent(rho=0.1))
    """
    blocks = blocks_without(task.blocks, task.buffers)
    kept = D if D >= 0 else min(5, len(blocks) // 2)
    both = beside(ascent.rho, ascent.p, ascent.form, eval_point)
    of_both = lambda at: limited_each(both(at), ("theta", "w"), recipe.clip)

    def parts(msg: Tree, state: Tree) -> tuple[Tensor, Tensor, Params]:
        """Scores, which blocks are personal, and θ as it is put together."""
        scores = block_scores(state["theta"], msg["params"], blocks, ascent.score_scale)
        rank = scores.argsort(descending=True, stable=True).argsort()
        personal = rank < kept
        mine = per_name(personal, blocks, msg["params"])
        theta = {
            k: torch.where(mine[k], state["theta"][k], w) if k in mine else w
            for k, w in msg["params"].items()
        }
        return scores, personal, theta

    def start(msg: Tree, initial: Params, key: Key) -> Tree:
        return {"theta": initial}

    def client(msg: Tree, state: Tree, data: Data, turn: Turn) -> Outcome:
        scores, personal, theta = parts(msg, state)
        mask = {"all": torch.ones_like(personal), "uni": ~personal, "per": personal}[perturb]
        names = [name for block in blocks for name in block]
        done = descend(
            lambda th, batch, given, rest: task.loss(rest | th, batch),
            {"theta": tree.pick(theta, names), "w": tree.pick(msg["params"], names)},
            data,
            turn,
            replace(recipe, clip=0.0),
            given={
                "scale": per_name(scores, blocks, names),
                "mask": per_name(mask.to(scores.dtype), blocks, names),
            },
            carried=tree.drop(theta, names),
            gradient=of_both,
            task=task,
            augment=task.augment,
        )
        own, flat = (
            {k: (done.theta[part] | done.carried)[k] for k in theta} for part in ("theta", "w")
        )
        notes = {"score": scores, "personal_block": personal}
        return Outcome({"theta": own}, Upload({"params": flat}), own, notes)

    def personal_model(msg: Tree, state: Tree, data: Data, turn: Turn) -> Params:
        theta: Params = parts(msg, state)[2] if recompose else state["theta"]
        return theta

    return fedavg(task)._replace(
        start=start,
        client=client,
        personal=personal_model,
        general=lambda msg, state: msg["params"],
    )
