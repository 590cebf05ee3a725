"""Block-wise mixtures of all clients' models, with weights that a hypernetwork per client makes."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from . import rng
from .hypernetwork import apply_linear, linear
from .rng import Key
from .task import Blocks
from .tree import Params, Tree

Normalisation = Literal["softmax", "relu_norm"]


def init_weigher(
    key: Key, clients: int, blocks: int, embed: int, hidden: int, depth: int, norm: Normalisation
) -> Tree:
    """One client's embedding and hypernetwork: `depth` layers, one head of N logits per block."""
    for_embed, for_body, for_heads = rng.split(key, 3)
    body = {
        str(i): linear(rng.fold(for_body, i), hidden if i else embed, hidden) for i in range(depth)
    }
    heads = {str(i): linear(rng.fold(for_heads, i), hidden, clients) for i in range(blocks)}
    if norm == "relu_norm":  # as in the public code: weights in (0, 1), no bias
        for i in range(blocks):
            at = rng.fold(for_heads, blocks + i)
            heads[str(i)] = {
                "weight": rng.uniform(at, clients, hidden),
                "bias": torch.zeros(clients, device=key.device),
            }
    return {"embed": rng.normal(for_embed, embed), "body": body, "heads": heads}


def weigh(net: Tree, cid: Tensor, norm: Normalisation) -> Tensor:
    """α [blocks, clients]: for each block, a weight for every client's model; rows sum to 1."""
    z = net["embed"]
    for layer in net["body"].values():
        z = apply_linear(layer, z).relu()
    logits = torch.stack([apply_linear(head, z) for head in net["heads"].values()])
    if norm == "softmax":
        return logits.softmax(-1)
    positive = logits.relu()
    total = positive.sum(-1, keepdim=True)
    number = torch.arange(logits.shape[-1], device=logits.device)
    own = (number == cid).to(logits.dtype)
    return torch.where(total > 0, positive / total.clamp(min=1e-30), own)


def mixture(weights: Tensor, models: Params, blocks: Blocks) -> Params:
    """θ̄^l = Σ_j α^{l,j} θ_j^l for every block l; `models` are stacked over clients."""
    return {
        k: torch.tensordot(weights[i].to(models[k].dtype), models[k], 1)
        for i, block in enumerate(blocks)
        for k in block
    }
