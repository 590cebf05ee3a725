"""PLGU-GHN: pFedHN whose clients train with layer-wise perturbed gradients (reconstructed)."""

from __future__ import annotations

from fedtailor.core.method import Method
from fedtailor.core.options import NonNegative
from fedtailor.core.task import Task
from fedtailor.core.training import Recipe
from fedtailor.methods.describe import flat_options
from fedtailor.methods.hypernetworks.pfedhn import Hypernetwork, pfedhn
from fedtailor.methods.parts.lwsam import Ascent, lwsam, with_scores


@flat_options
def plgu_ghn(
    task: Task,
    *,
    ascent: Ascent = Ascent(),
    net: Hypernetwork = Hypernetwork(),
    inner_clip: NonNegative = 50.0,
    recipe: Recipe = Recipe(),
) -> Method:
    """RECONSTRUCTED: the paper only announces it. pFedHN with LWSAM in the clients' training.

        θ_i = h(v_i; Φ);   ξ from (the client's last trained θ_i, the received θ_i)
        θ ← θ − η ∇F(θ + ε),  ε = LWSAM(∇F(θ), ξ);   the server learns from θ_i − θ as in pFedHN

    Args:
      ascent: how gradients are perturbed; with ρ = 0 this is pFedHN.
      net: pFedHN's hypernetwork, and how it learns.
      inner_clip: largest norm of a client's gradients.
      recipe: how a client trains in a round.

    Deviations: all of it is a reconstruction; the details are in a supplement that is not to be
    had. In a client's first turn all blocks score alike.

    Reference: Qu et al., "How to Prevent the Poor Performance Clients for Personalized Federated
    Learning?" (PLGU), CVPR 2023; announced there

    Example:
      >>> from fedtailor.methods.check import toy_task
      >>> method = plgu_ghn(toy_task(), ascent=Ascent(rho=0.1))
    """
    gradient = lwsam(ascent.rho, ascent.p, ascent.form)
    host = pfedhn(task, net=net, inner_clip=inner_clip, recipe=recipe, gradient=gradient)
    return with_scores(host, "params", task, ascent.score_scale, recipe)
