"""pFedLA: the server mixes all clients' models block by block, with learnt weights."""

from __future__ import annotations

from fedtailor.core.method import Method
from fedtailor.core.options import Count, NonNegative
from fedtailor.core.task import Task
from fedtailor.core.training import Recipe
from fedtailor.methods.parts.layerwise import LayerWeights, Normalisation, layer_wise


def pfedla(
    task: Task,
    *,
    hn_lr: NonNegative = 0.005,
    embed: Count = 100,
    hidden: Count = 100,
    depth: Count = 3,
    normalisation: Normalisation = "softmax",
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
      hn_lr: learning rate η of the hypernetworks; 0.005 left the weights near 1/N in our trials,
        0.5 to 1 did not.
      embed: size of an embedding.
      hidden: width of a hypernetwork's layers.
      depth: how many layers it has.
      normalisation: `softmax`, or `relu_norm` (ReLU, divided by the sum) as in the public code.
      recipe: how a client trains in a round.

    Deviations: Eq. 10 and 11 leave the sign open; both public codes subtract J ᵀΔ and climb the
    loss. All uploads of a round are taken in at once (the public code: one after another). One
    common initial model (the public code gives each client its own). The paper gives no η: 0.005
    is the public code's, and makes of this nearly FedAvg (docs/reproduction.md).

    Reference: Ma et al., "Layer-wised Model Aggregation for Personalized Federated Learning",
    CVPR 2022, https://arxiv.org/abs/2205.03993
    """
    make = LayerWeights(hn_lr, embed, hidden, depth, normalisation)
    return layer_wise(task, make, recipe, retained=0)
