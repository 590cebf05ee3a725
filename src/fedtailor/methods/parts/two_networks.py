"""Two networks on the same rows: a client's own, and one that travels."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

import torch
from torch import Tensor

from fedtailor.core import rng, tree
from fedtailor.core.data import Data
from fedtailor.core.method import ClientCount, Method, Outcome
from fedtailor.core.objectives import Slope
from fedtailor.core.rng import Key, Turn
from fedtailor.core.steps.optim import clip_norm
from fedtailor.core.task import Batch, Task
from fedtailor.core.training import Recipe, descend
from fedtailor.core.tree import Params, Tree

# (own, common, other trained values, batch) -> (loss, buffers of own, buffers of common)
PairLoss = Callable[[Params, Params, Tree, Batch], tuple[Tensor, Params, Params]]


def tested_with(task: Task, common: Task, state: Tree, received: Params) -> Params:
    """A client's own network; the common one, if that is the same one and its own is untrained."""
    own: Params = state["own"]
    if task is not common:
        return own
    found: Params = tree.where(state["taught"] > 0, own, received)
    return found


def with_common_network(
    task: Task, common: Task, client: Callable[[Tree, Tree, Data, Turn], Outcome]
) -> Method:
    """The frame of a method whose clients keep a network of their own and share another one.

    The server's state and message have the common network as `params`; a client's state has its own
    as `own`, and as `taught` whether it was ever trained: see `tested_with`. The common one begins
    with weights of its own, which the server draws: two networks that are alike have nothing to
    teach each other.

    Args:
      task: the client's network.
      common: the one that travels; it may be the same.
      client: a client's turn, as in `Method`; it uploads the common network as `params`.
    """

    def init(clients: ClientCount, initial: Params, key: Key) -> Tree:
        return {"params": common.init(rng.fold(key, 1))}

    def start(msg: Tree, initial: Params, key: Key) -> Tree:
        return {"own": initial, "taught": torch.zeros((), device=key.device)}

    return Method(
        init=init,
        send=lambda server, cid, turn: {"params": server["params"]},
        start=start,
        client=client,
        receive=lambda server, ids, up, turn: {"params": up.mean["params"]},
        personal=lambda msg, state, data, turn: tested_with(task, common, state, msg["params"]),
        predict=task.predict,
        general=lambda msg, state: msg["params"],
        general_predict=common.predict,
        common="params",
        own_networks="named",
    )


def fit_both(
    tasks: tuple[Task, Task],
    own: Params,
    common: Params,
    loss: PairLoss,
    data: Data,
    turn: Turn,
    recipe: Recipe,
    more: Tree | None = None,
) -> tuple[Params, Params, Tree]:
    """Both networks after the client trained them for a round, each by its part of one loss.

    They take their steps together, on the same batches. A limit on gradients (`clip`) is for each
    network alone, as if it had an optimiser of its own.

    Args:
      tasks: the client's network and the common one.
      own: parameters of the client's, buffers included.
      common: those of the other one.
      loss: what is made small: the sum of what each network learns from, where targets that one
        sets for the other are detached.
      data: the client's rows.
      turn: round and random key.
      recipe: how long and how fast.
      more: other values that are trained with them.

    Returns:
      The client's network, the common one, and the other values.
    """
    extra = list(more or {})

    def objective(theta: Tree, batch: Batch, given: Tree, carried: Tree) -> tuple[Tensor, Tree]:
        first, second = (theta[part] | carried[part] for part in ("own", "common"))
        value, for_own, for_common = loss(first, second, tree.pick(theta, extra), batch)
        return value, {"own": for_own, "common": for_common}

    pair, running = {"own": own, "common": common}, [task.buffers for task in tasks]
    parts = list(zip(pair.items(), running, strict=True))
    done = descend(
        objective,
        {k: tree.drop(v, buffers) for (k, v), buffers in parts} | (more or {}),
        data,
        turn,
        replace(recipe, clip=0.0),
        carried={k: tree.pick(v, buffers) for (k, v), buffers in parts},
        gradient=lambda at: limited_each(at, ("own", "common"), recipe.clip),
        task=max(tasks, key=lambda task: len(task.batch_norm)),
        augment=tasks[0].augment,
    )
    own, common = (
        {k: (done.theta[part] | done.carried[part])[k] for k in pair[part]}
        for part in ("own", "common")
    )
    return own, common, tree.pick(done.theta, extra)


def limited_each(at: Slope, parts: Iterable[str], limit: float) -> Slope:
    """The slope of a tree with the gradient of each of these entries cut to a norm by itself.

    Args:
      at: the slope; all that is trained is `theta`, a tree with such entries.
      parts: networks that are trained side by side, as if each had an optimiser of its own.
      limit: the norm; 0 cuts nothing.
    """

    def slope(theta: Tree, batch: Batch, given: Tree, carried: Tree) -> tuple[Tree, Tensor, Tree]:
        grads, value, changed = at(theta, batch, given, carried)
        return grads | {k: clip_norm(grads[k], limit) for k in parts}, value, changed

    return slope


def divergence(target: Tensor, outputs: Tensor, *, constant: bool = True) -> Tensor:
    """KL(p | q) of each row, p and q the probabilities of two networks' logits.

    Summed over classes, as the mathematics has it.

    Args:
      target: logits that p is of.
      outputs: logits that q is of.
      constant: whether no gradient goes to the target.

    Example:
      >>> divergence(torch.zeros(1, 2), torch.tensor([[0.0, 1.0]]))
      tensor([0.1201])
    """
    target = target.detach() if constant else target
    log_p, log_q = target.log_softmax(-1), outputs.log_softmax(-1)
    return (log_p.exp() * (log_p - log_q)).sum(-1)
