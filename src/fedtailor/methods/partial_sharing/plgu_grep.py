"""PLGU-GRep: FedRep whose body learns from layer-wise perturbed gradients."""

from __future__ import annotations

from typing import Annotated

from torch import Tensor

from fedtailor.core import tree
from fedtailor.core.errors import BadInput
from fedtailor.core.method import Method
from fedtailor.core.objectives import Slope
from fedtailor.core.options import Count, Search, Whole
from fedtailor.core.task import Batch, Task
from fedtailor.core.training import Recipe
from fedtailor.core.tree import Tree
from fedtailor.methods.describe import flat_options
from fedtailor.methods.parts.lwsam import Ascent, perturbation, with_scores
from fedtailor.methods.parts.partial import Phase, all_names, head_names, partial


@flat_options
def plgu_grep(
    task: Task,
    *,
    ascent: Ascent = Ascent(),
    head_epochs: Annotated[Whole, Search(1, 20, log=True)] = 5,
    head_blocks: Annotated[Count, Search(1, 3)] = 1,
    rep_epochs: Count = 1,
    rep_steps: Whole = 0,
    reuse_grad: bool = False,
    recipe: Recipe = Recipe(),
) -> Method:
    """As FedRep; the body takes a plain step and then a sharpness-aware one on each mini-batch.

        h_i ← K epochs, body fixed at the received φ;   then per mini-batch, head fixed:
            φ_a = φ − η ∇F(h, φ);   φ ← φ_a − η ∇F(h, φ_a + ε),   ε = LWSAM(∇F(h, φ_a), ξ)
        φ ← mean of φ_i (uniform)

    ξ compares the received body with the client's own of its last turn. Only the body travels.

    Args:
      ascent: how gradients are perturbed.
      head_epochs: K epochs on the head.
      head_blocks: how many blocks next to the output are the head.
      rep_epochs: epochs on the body (1 as in FedRep's code).
      rep_steps: if not 0, this many mini-batches instead (Algorithm 3, literally: 1).
      reuse_grad: ε from the gradient at φ, one pass less per batch.
      recipe: how a client trains in a round.

    Deviations: scores compare with the body of the last turn (Eq. 10 would compare a model with
    itself). The two steps of a mini-batch are one step along the sum of the two gradients: the same
    for plain SGD.

    Reference: Qu et al., "How to Prevent the Poor Performance Clients for Personalized Federated
    Learning?" (PLGU), CVPR 2023

    Example:
      >>> from fedtailor.methods.check import toy_task
      >>> method = plgu_grep(toy_task(), head_epochs=1, ascent=Ascent(rho=0.1))
    """

    def two_steps(at: Slope) -> Slope:
        def slope(phi: Tree, batch: Batch, given: Tree, carried: Tree) -> tuple[Tree, Tensor, Tree]:
            first, loss, changed = at(phi, batch, given, carried)
            middle = tree.sub(phi, tree.scale(first, given["lr"]))
            up = first if reuse_grad else at(middle, batch.again(), given, carried)[0]
            scale = tree.pick(given["scale"], up)
            worst = tree.add(middle, perturbation(up, scale, ascent.rho, ascent.p, ascent.form))
            second = at(worst, batch.again().again(), given, carried)[0]
            return tree.add(first, second), loss, changed

        return slope

    head = head_names(task, head_blocks)
    body = [name for name in all_names(task) if name not in head]
    if not body:
        raise BadInput(
            f"head_blocks is {head_blocks}, all of the network: PLGU-GRep perturbs the body, so "
            f"give {len(task.blocks) - 1} or fewer"
        )
    phases = [Phase(head, head_epochs), Phase(body, rep_epochs, two_steps, rep_steps)]
    host = partial(task, head, phases, recipe=recipe, weighting="uniform")
    return with_scores(host, "shared", task, ascent.score_scale, recipe)
