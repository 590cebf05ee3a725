"""HeurpFedLA: pFedLA whose clients keep the blocks that they weigh themselves most in."""

from __future__ import annotations

from typing import Annotated

from fedtailor.core.method import Method
from fedtailor.core.options import Search, Whole
from fedtailor.core.task import Task
from fedtailor.core.training import Recipe
from fedtailor.methods.describe import flat_options
from fedtailor.methods.parts.layerwise import LayerWeights, layer_wise


@flat_options
def heurpfedla(
    task: Task,
    *,
    k: Annotated[Whole, Search(0, 4)] = 1,
    nets: LayerWeights = LayerWeights(),
    recipe: Recipe = Recipe(),
) -> Method:
    """As pFedLA; the k blocks with the largest self-weight α_i^{l,i} are not sent down.

    For these the client goes on with its own blocks, θ̄_i^l := θ_i^l, and they teach the
    hypernetwork nothing in that round. The downlink shrinks by their size.

    Args:
      k: blocks that are retained; 0 is pFedLA, all of them is training alone.
      nets: how the hypernetworks look and learn.
      recipe: how a client trains in a round.

    Deviations: Eq. 12 writes retained blocks as aggregated ones, though they are not transmitted;
    here they are the client's own (Fig. 4).

    Reference: Ma et al., "Layer-wised Model Aggregation for Personalized Federated Learning",
    CVPR 2022, https://arxiv.org/abs/2205.03993

    Example:
      >>> from fedtailor.methods.check import toy_task
      >>> method = heurpfedla(toy_task(), k=1, nets=LayerWeights(hn_lr=0.5))
    """
    return layer_wise(task, nets, recipe, retained=k)
