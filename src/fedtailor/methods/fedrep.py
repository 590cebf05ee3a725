"""FedRep: a shared body, a head of one's own."""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor

from .. import tree
from ..data import Data
from ..method import Method, Outcome, Upload, by_size
from ..options import Weighting, Whole
from ..rng import Key, Turn
from ..task import Task
from ..train import Recipe, fit
from ..tree import Params, Tree
from .fedavg import fedavg


def fedrep(
    task: Task,
    *,
    head_epochs: Whole = 10,
    head_blocks: Whole = 1,
    weighting: Weighting = "data",
    recipe: Recipe = Recipe(),
) -> Method:
    """The body φ is learnt together, the head h_k by each client alone; only the body travels.

        h_k ← E_h epochs on the head, body fixed at the received φ
        φ_k ← E_b epochs on the body, head fixed at the new h_k
        φ   ← Σ_k Ω_k φ_k

    Args:
      head_epochs: E_h. The official code uses 10, PFLlib and FedALA's comparison 1. E_b is the
        recipe's number of epochs.
      head_blocks: how many blocks next to the output are the head.
      weighting: a client's weight in the mean: `data`, or `uniform` (the official code on CIFAR).
      recipe: how a client trains in a round.

    Deviations: the official code ends with 10 epochs on the head at all clients; ask for that with
    the run's fine-tuning. Running statistics of the body follow in both phases.

    Reference: Collins et al., "Exploiting Shared Representations for Personalized Federated
    Learning", ICML 2021, https://arxiv.org/abs/2102.07078
    """
    head = task.top(head_blocks)

    def send(server: Tree, cid: Tensor, turn: Turn) -> Tree:
        return {"body": tree.drop(server["params"], head)}

    def start(msg: Tree, initial: Params, key: Key) -> Tree:
        return {"head": tree.pick(initial, head)}

    def client(msg: Tree, state: Tree, data: Data, turn: Turn) -> Outcome:
        params = msg["body"] | state["head"]
        if head_epochs:
            own = replace(recipe, epochs=head_epochs)
            params = fit(task, params, data, turn, own, train=head)
        params = fit(task, params, data, turn, recipe, train=tuple(msg["body"]))
        upload = Upload({"body": tree.drop(params, head)}, by_size(data, weighting))
        return Outcome({"head": tree.pick(params, head)}, upload, params)

    def receive(server: Tree, ids: Tensor, up: Upload, turn: Turn) -> Tree:
        return {"params": server["params"] | up.mean["body"]}

    def personal(msg: Tree, state: Tree, data: Data, turn: Turn) -> Params:
        params: Params = msg["body"] | state["head"]
        return params

    return fedavg(task)._replace(
        send=send, start=start, client=client, receive=receive, personal=personal
    )
