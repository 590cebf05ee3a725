"""MOON: features near the global model's, and away from those of the client's last one."""

from __future__ import annotations

from typing import Annotated

import torch
import torch.nn.functional as F
from torch import Tensor

from fedtailor.core import tree
from fedtailor.core.data import Data
from fedtailor.core.method import Download, Method, Outcome, Upload, beginning, by_size
from fedtailor.core.options import Above, Count, NonNegative, Search, Weighting
from fedtailor.core.rng import Key, Turn
from fedtailor.core.task import Batch, Task, weighted_mean
from fedtailor.core.training import Recipe, fit
from fedtailor.core.tree import Params, Tree
from fedtailor.methods.one_model.fedavg import fedavg
from fedtailor.methods.parts.representation import FAR, head_split


def moon(
    task: Task,
    *,
    mu: Annotated[NonNegative, Search(0.001, 10, log=True)] = 0.1,
    temperature: Annotated[Above, Search(0.1, 2, log=True)] = 0.5,
    buffer: Count = 1,
    weighting: Weighting = "data",
    recipe: Recipe = Recipe(),
) -> Method:
    """FedAvg whose clients contrast features of three models: new, global and their own last ones.

        loss = F_k + μ mean_x −log e^(cos(z, z_g)/τ) / (e^(cos(z, z_g)/τ) + Σ_p e^(cos(z, z_p)/τ))

    z are the features of the model in training, z_g those of w as received, z_p those of the models
    that the client ended its last turns with; no gradient goes through z_g and z_p.

    Learnt on the server: w, as in FedAvg. Kept on the client: its last models.

    Args:
      mu: strength μ of the contrast. The authors try 0.1, 1, 5 and 10 and take 5 for a small CNN
        with a projection on CIFAR-10; without one, 5 keeps it from learning, and 0.1 is the
        largest that does no harm. With 0 this is FedAvg.
      temperature: τ.
      buffer: how many of its last models a client keeps.
      weighting: a client's weight in the mean: `data` or `uniform`.
      recipe: how a client trains in a round.

    Deviations: features are what the network's head is given. The authors put a projection (linear,
    ReLU, linear of 256) before the classifier: with a network that ends so (`--model moon-cnn`),
    this is their method; other networks are contrasted as they are. A client without a last model
    has no contrast, as in the authors' code (which gives latecomers one with random weights). z_g
    and z_p are features in evaluation mode, so nobody's running statistics change.

    Reference: Li et al., "Model-Contrastive Federated Learning", CVPR 2021,
    https://arxiv.org/abs/2103.16257

    Example:
      >>> from fedtailor.methods.check import toy_task
      >>> method = moon(toy_task(), mu=1.0)
    """
    host = fedavg(task, weighting=weighting, recipe=recipe)
    if mu == 0:
        return host
    split, look = head_split(task, "MOON contrasts features"), task.features
    assert look is not None

    def contrast(params: Params, batch: Batch, given: Tree) -> tuple[Tensor, Params]:
        z, outputs, buffers = split.embed(params, batch)
        near = [_cosine(z, look(given["global"], batch.x))]
        for i in range(buffer):
            last = _cosine(z, look(tree.index(given["last"], i), batch.x))
            near.append(torch.where(i < given["kept"], last, FAR))
        apart = -(torch.stack(near, -1) / temperature).log_softmax(-1)[..., 0]
        each = task.losses(outputs, batch.y, batch.weight)
        return weighted_mean(each + mu * apart, batch), buffers

    def start(msg: Tree, initial: Params, key: Key) -> Tree:
        kept = torch.zeros((), dtype=torch.int64, device=key.device)
        return {"last": tree.tile(msg["params"], buffer), "kept": kept}

    def client(msg: Tree, state: Tree, data: Data, turn: Turn) -> Outcome:
        begin, given = beginning(msg, msg["params"]), {"global": msg["params"], **state}
        params = fit(task, begin, data, turn, recipe, loss=contrast, given=given)
        last = tree.map(lambda new, old: torch.cat([new[None], old[:-1]]), params, state["last"])
        kept = {"last": last, "kept": (state["kept"] + 1).clamp(max=buffer)}
        return Outcome(kept, Upload({"params": params}, by_size(data, weighting)), params)

    return host._replace(start=start, client=client, download=Download("params", client))


def _cosine(z: Tensor, other: Tensor) -> Tensor:
    """The cosines of two batches' features, example by example; 0 where one has no length."""
    return F.cosine_similarity(z.flatten(1), other.flatten(1), dim=-1)
