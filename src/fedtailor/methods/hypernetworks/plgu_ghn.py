"""PLGU-GHN: pFedHN whose clients train with layer-wise perturbed gradients (reconstructed)."""

from __future__ import annotations

from fedtailor.core.method import Method
from fedtailor.core.options import AboveOne, Count, NonNegative, Share, Whole
from fedtailor.core.task import Task
from fedtailor.core.training import Recipe
from fedtailor.methods.hypernetworks.pfedhn import pfedhn
from fedtailor.methods.parts.lwsam import Form, Scale, lwsam, scored


def plgu_ghn(
    task: Task,
    *,
    rho: NonNegative = 0.05,
    p: AboveOne = 2.0,
    score_scale: Scale = "mean1",
    form: Form = "eq5",
    hidden: Count = 100,
    depth: Whole = 3,
    embed: Whole = 0,
    lr: NonNegative = 0.01,
    momentum: Share = 0.9,
    weight_decay: NonNegative = 0.001,
    clip: NonNegative = 50.0,
    inner_clip: NonNegative = 50.0,
    recipe: Recipe = Recipe(),
) -> Method:
    """RECONSTRUCTED: the paper only announces it. pFedHN with LWSAM in the clients' training.

        θ_i = h(v_i; Φ);   ξ from (the client's last trained θ_i, the received θ_i)
        θ ← θ − η ∇F(θ + ε),  ε = LWSAM(∇F(θ), ξ);   the server learns from θ_i − θ as in pFedHN

    Args:
      rho: radius ρ of the perturbation; with 0 this is pFedHN.
      p: its norm.
      score_scale: ξ scaled to `mean1`, `sum1`, or `identity`.
      form: `eq5` or `asam`.
      hidden: width of the hypernetwork's hidden layers.
      depth: number of hidden layers.
      embed: size of a client's embedding; 0 takes 1 + a quarter of the number of clients.
      lr: learning rate of the hypernetwork (SGD).
      momentum: of that SGD.
      weight_decay: of that SGD.
      clip: largest norm of the hypernetwork's gradient.
      inner_clip: largest norm of a client's gradients.
      recipe: how a client trains in a round.

    Deviations: all of it is a reconstruction; the details are in a supplement that is not to be
    had. In a client's first turn all blocks score alike.

    Reference: Qu et al., "How to Prevent the Poor Performance Clients for Personalized Federated
    Learning?" (PLGU), CVPR 2023; announced there
    """
    return pfedhn(
        task,
        hidden=hidden,
        depth=depth,
        embed=embed,
        lr=lr,
        momentum=momentum,
        weight_decay=weight_decay,
        clip=clip,
        inner_clip=inner_clip,
        recipe=recipe,
        prepare=scored(score_scale),
        gradient=lwsam(rho, p, form),
    )
