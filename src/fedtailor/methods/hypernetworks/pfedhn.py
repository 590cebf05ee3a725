"""pFedHN: a hypernetwork on the server writes every client's model."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Annotated, Literal, NamedTuple

import torch
from torch import Tensor
from torch.func import vjp, vmap

from fedtailor.core import rng, tree
from fedtailor.core.data import Data
from fedtailor.core.method import ClientCount, Method, Outcome, Upload
from fedtailor.core.objectives import Gradient, Slope, as_is
from fedtailor.core.options import Count, NonNegative, Search, Share, Whole
from fedtailor.core.rng import Key, Turn
from fedtailor.core.steps.optim import clip_norm, sgd
from fedtailor.core.task import Batch, Task
from fedtailor.core.training import Recipe, fit_on, trained_names
from fedtailor.core.tree import Params, Tree
from fedtailor.methods.describe import flat_options
from fedtailor.methods.parts.hypernetwork import mlp_writer, table_writer


class Hypernetwork(NamedTuple):
    """The hypernetwork's shape, and how it learns.

    Attributes:
      hidden: width of the hypernetwork's hidden layers.
      depth: number of hidden layers.
      embed: size of a client's embedding; 0 takes 1 + a quarter of the number of clients.
      lr: learning rate of the hypernetwork (SGD); the authors' 0.01 is for thousands of rounds.
      momentum: of that SGD.
      weight_decay: of that SGD.
      clip: largest norm of the hypernetwork's gradient.
    """

    hidden: Count = 100
    depth: Whole = 3
    embed: Whole = 0
    lr: Annotated[NonNegative, Search(0.005, 0.5, log=True)] = 0.1
    momentum: Share = 0.9
    weight_decay: NonNegative = 0.001
    clip: NonNegative = 50.0


@flat_options
def pfedhn(
    task: Task,
    *,
    net: Hypernetwork = Hypernetwork(),
    inner_steps: Whole = 0,
    inner_clip: NonNegative = 50.0,
    local_head: bool = False,
    network: Literal["mlp", "table"] = "mlp",
    recipe: Recipe = Recipe(),
    gradient: Gradient = as_is,
) -> Method:
    """The server writes each client's parameters from an embedding; updates train the writer.

        θ_k = h(v_k; Φ)                         sent to client k
        θ̃_k = SGD(θ_k),  d_k = θ_k − θ̃_k       uploaded
        (Φ, v) ← optimiser step with gradient  1/m Σ_k J_kᵀ d_k,   J_k = ∂θ_k / ∂(Φ, v)

    No graph is kept between sending and receiving: the pull-back is made anew from the state.
    Learnt on the server: Φ and all embeddings. Clients keep their running statistics only (with
    `local_head` also their head, and SGD's momentum of it). Tested with θ_k as written.

    Args:
      net: the hypernetwork's shape, and how it learns.
      inner_steps: batches per client and round; 0 trains for the recipe's epochs (official: 50).
      inner_clip: largest norm of a client's gradients, with `local_head` of the body's alone.
      local_head: pFedHN-PC: the hypernetwork writes the body, each client keeps its own head.
      network: `mlp`, or `table`, a look-up table instead of a network (a yardstick).
      recipe: how a client trains in a round.
      gradient: for methods built on this one: how steps come from gradients.

    Deviations: a round may have several clients, their gradients are averaged (the official code
    draws one client a step: participation of one client is that). Momentum and weight decay act
    on the embeddings of clients that take part alone (the official code: on the whole table, so
    that absent clients' move a little, too).

    Reference: Shamsian et al., "Personalized Federated Learning using Hypernetworks", ICML 2021,
    https://arxiv.org/abs/2103.04628

    Example:
      >>> from fedtailor.methods.check import toy_task
      >>> method = pfedhn(toy_task(), net=Hypernetwork(hidden=50), local_head=True)
    """
    kept = set(task.buffers) | (set(task.head) if local_head else set())
    names = tuple(name for block in task.blocks for name in block if name not in kept)
    like = task.init(rng.key(0))
    shapes = {name: tuple(like[name].shape) for name in names}
    mlp = mlp_writer(shapes, net.hidden, net.depth, net.embed)
    writer = table_writer(names) if network == "table" else mlp
    optimiser = sgd(net.lr, net.momentum, net.weight_decay)
    limit = recipe.clip or inner_clip
    inner = replace(recipe, steps=inner_steps or recipe.steps, clip=0.0 if local_head else limit)
    way = (lambda at: of_body(gradient(at), names, limit)) if local_head else gradient
    # the body is written anew in every round, the head goes on
    own_momentum = local_head and recipe.optimizer == "sgd" and recipe.momentum > 0

    def init(clients: ClientCount, initial: Params, key: Key) -> Tree:
        first = writer.init(clients, initial, key)
        return {"net": first, "memory": optimiser.init(first)}

    def client(msg: Tree, state: Tree, data: Data, turn: Turn) -> Outcome:
        model, memory = msg["params"] | state["own"], None
        if own_momentum:
            trained = tree.pick(model, trained_names(task, model))
            memory = tree.map(torch.zeros_like, trained) | state["momentum"]
        params, memory = fit_on(
            task, model, memory, data, turn, inner, gradient=way, given=msg.get("given")
        )
        moved = tree.sub(msg["params"], tree.pick(params, names))
        own = {"own": tree.pick(params, sorted(kept))}
        if own_momentum:
            own["momentum"] = tree.pick(memory, state["momentum"])
        return Outcome(own, Upload(each={"moved": moved}), params)

    def receive(server: Tree, ids: Tensor, up: Upload, turn: Turn) -> Tree:
        write = vmap(writer.write, (None, 0))
        pull = vjp(lambda hyper: write(hyper, ids), server["net"])[1]
        # no name for the gradients: the network is large, and a name would keep them
        step, memory = optimiser.update(
            clip_norm(pull(tree.scale(up.each["moved"], 1 / len(ids)))[0], net.clip),
            server["memory"],
            server["net"],
        )
        if memory:
            memory = writer.only_of(ids, memory, server["memory"])
        moved = writer.only_of(ids, tree.add(server["net"], step), server["net"])
        return {"net": moved, "memory": memory}

    def start(msg: Tree, initial: Params, key: Key) -> Tree:
        own = tree.pick(initial, sorted(kept))
        momentum = tree.map(torch.zeros_like, tree.pick(own, trained_names(task, own)))
        return {"own": own} | ({"momentum": momentum} if own_momentum else {})

    return Method(
        init=init,
        send=lambda server, cid, turn: {"params": writer.write(server["net"], cid)},
        start=start,
        client=client,
        receive=receive,
        personal=lambda msg, state, data, turn: msg["params"] | state["own"],
        predict=task.predict,
    )


def of_body(at: Slope, body: Collection[str], limit: float) -> Slope:
    """The slope with the gradient of the names in `body` cut to norm `limit`."""

    def slope(theta: Tree, batch: Batch, given: Tree, carried: Tree) -> tuple[Tree, Tensor, Tree]:
        grads, loss, changed = at(theta, batch, given, carried)
        cut = clip_norm(tree.pick(grads, body), limit)
        return {k: cut.get(k, g) for k, g in grads.items()}, loss, changed

    return slope
