"""pFedLA: the server mixes all clients' models block by block, with learnt weights."""

from __future__ import annotations

from fedtailor.core.method import Method
from fedtailor.core.task import Task
from fedtailor.core.training import Recipe
from fedtailor.methods.describe import flat_options
from fedtailor.methods.parts.layerwise import LayerWeights, layer_wise


@flat_options
def pfedla(
    task: Task,
    *,
    nets: LayerWeights = LayerWeights(),
    recipe: Recipe = Recipe(),
) -> Method:
    """A hypernetwork per client weighs every client's model, block by block.

        α_i = HN_i(v_i) in the simplex over clients, for each block l
        θ̄_i^l = Σ_j α_i^{l,j} θ_j^l     over all N stored models;  sent
        Δ_i = SGD(θ̄_i; E) − θ̄_i         uploaded
        θ_i := θ̄_i + Δ_i;   (v_i, ψ_i) ← (v_i, ψ_i) + η J_iᵀ Δ_i,  J_i = ∂θ̄_i/∂(v_i, ψ_i)

    Adding J ᵀΔ descends the client's loss. Learnt on the server: everyone's latest model, embedding
    and hypernetwork. Clients keep nothing but running statistics. Tested with θ̄_i.

    Args:
      nets: how the hypernetworks look and learn.
      recipe: how a client trains in a round.

    Deviations: Eq. 10 and 11 leave the sign open; both public codes subtract J ᵀΔ and climb the
    loss. All uploads of a round are taken in at once (the public code: one after another). One
    common initial model (the public code gives each client its own). The paper gives no η: the
    public code's 0.005 makes of this nearly FedAvg (docs/reproduction.md).

    Reference: Ma et al., "Layer-wised Model Aggregation for Personalized Federated Learning",
    CVPR 2022, https://arxiv.org/abs/2205.03993

    Example:
      >>> from fedtailor.methods.check import toy_task
      >>> method = pfedla(toy_task(), nets=LayerWeights(hn_lr=0.5))
    """
    return layer_wise(task, nets, recipe, retained=0)
