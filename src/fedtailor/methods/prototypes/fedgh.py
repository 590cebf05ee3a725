"""FedGH: bodies of one's own below one head, which the server trains on class means."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from torch import Tensor

from fedtailor.core import tree, wire
from fedtailor.core.data import Data
from fedtailor.core.method import ClientCount, Method, Outcome, Upload, only_classes
from fedtailor.core.options import NonNegative, Search, Whole
from fedtailor.core.rng import Key, Turn
from fedtailor.core.task import Batch, Task, weighted_mean
from fedtailor.core.training import Recipe, fit
from fedtailor.core.tree import Params, Tree
from fedtailor.methods.parts.partial import upper_on_server
from fedtailor.methods.parts.representation import class_sums, head_split
from fedtailor.methods.parts.server_training import train_on_rows, uploaded_rows


def fedgh(
    task: Task,
    *,
    server_lr: Annotated[NonNegative, Search(0.001, 1, log=True)] = 0.01,
    server_epochs: Annotated[Whole, Search(1, 10, log=True)] = 1,
    server_batch: Whole = 0,
    networks: Sequence[Task] = (),
    recipe: Recipe = Recipe(),
) -> Method:
    """Every client has a body of its own below one head; the server trains that on class means.

        (body_k, h) ← SGD on CE from the client's body and the received head;  this h is let go of
        p_k[c] = mean of body_k(x) over the client's rows of class c
        head ← head − η_s ∇ mean over uploaded (k, c) of CE(head(p_k[c]), c)

    Learnt on the server: the head. Learnt on the client: its body, which is never sent. Tested with
    body and received head; fine-tuning before a test trains the body below that head.

    Clients may have networks of different depths and kinds, if their heads are alike.

    Args:
      server_lr: η_s. With 0 the head stays as it begins, and clients never hear of each other.
      server_epochs: the server's passes over what a round's clients uploaded.
      server_batch: class means per step of the server, in an order drawn anew; 0 takes all at once.
      networks: those of all clients, the server's first, where they differ.
      recipe: how a client trains in a round.

    Deviations: class means are of all rows with the trained body in evaluation mode (the authors'
    code: means of batch means). Their server takes one class mean per step (`server_batch=1`).
    Their two scripts step an optimiser that does not hold the head, which thus stays random; here
    it is trained, as the paper says.

    Reference: Yi et al., "FedGH: Heterogeneous Federated Learning with Generalized Global Header",
    ACM MM 2023, https://arxiv.org/abs/2303.13137

    Example:
      >>> from fedtailor.methods.check import toy_task
      >>> method = fedgh(toy_task(), server_lr=0.1, server_epochs=10)
    """
    split = head_split(task, "FedGH trains a head on features")
    head = task.head
    there = upper_on_server(task, networks[0] if networks else task, 1)

    def loss(theta: Tree, some: Batch, given: Tree) -> Tensor:
        return weighted_mean(task.losses(split.classify(theta, some.x), some.y, some.weight), some)

    def send(server: Tree, cid: Tensor, turn: Turn) -> Tree:
        return {"head": {k: server["head"][there[k]] for k in head}}

    def client(msg: Tree, state: Tree, data: Data, turn: Turn) -> Outcome:
        params = fit(task, joined(msg, state), data, turn, recipe)
        sums = class_sums(task, params, data)
        told = wire.maybe(sums.rows > 0, {"means": sums.means})
        return Outcome({"body": tree.drop(params, head)}, Upload(each={"classes": told}), params)

    def receive(server: Tree, ids: Tensor, up: Upload, turn: Turn) -> Tree:
        told = up.each["classes"]
        rows = uploaded_rows(wire.value(told)["means"], wire.here(told))
        trained = train_on_rows(
            loss,
            server["head"],
            rows,
            epochs=server_epochs,
            batch=server_batch,
            lr=server_lr,
            key=turn.key,
        )
        return {"head": trained}

    def joined(msg: Tree, state: Tree) -> Params:
        params = state["body"] | msg["head"]
        return {name: params[name] for block in task.blocks for name in block}

    def init(clients: ClientCount, initial: Params, key: Key) -> Tree:
        return {"head": tree.pick(initial, head)}

    return Method(
        init=init,
        send=send,
        start=lambda msg, initial, key: {"body": tree.drop(initial, head)},
        client=client,
        receive=receive,
        personal=lambda msg, state, data, turn: joined(msg, state),
        predict=task.predict,
        refuses=only_classes("its server learns from means of classes"),
        by_class="all",
        own_networks="deepest",
        not_private=(
            "means of each class's features are sent without noise, so there is no guarantee: "
            "choose another method"
        ),
        finetune=lambda msg, state, model, data, turn, recipe: fit(
            task, model, data, turn, recipe, train=[k for k in model if k not in head]
        ),
    )
