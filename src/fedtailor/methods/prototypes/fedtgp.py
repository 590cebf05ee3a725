"""FedTGP: prototypes that a small network at the server learns to keep apart."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Annotated, Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from fedtailor.core import rng, tree, wire
from fedtailor.core.data import Data
from fedtailor.core.method import ClientCount, Method, Outcome, Upload
from fedtailor.core.options import Above, NonNegative, Search, Whole
from fedtailor.core.rng import Key, Turn
from fedtailor.core.task import Batch, Task, weighted_mean
from fedtailor.core.training import Recipe
from fedtailor.core.tree import Params, Tree
from fedtailor.methods.parts.representation import number_of_classes
from fedtailor.methods.parts.server_training import train_on_rows, uploaded_rows
from fedtailor.methods.prototypes.fedproto import Predict, fedproto


def fedtgp(
    task: Task,
    *,
    lam: Annotated[NonNegative, Search(0.1, 100, log=True)] = 10.0,
    margin: Annotated[Above, Search(1, 100, log=True)] = 100.0,
    server_lr: Annotated[NonNegative, Search(0.001, 0.1, log=True)] = 0.01,
    server_epochs: Annotated[Whole, Search(10, 1000, log=True)] = 100,
    server_batch: Whole = 10,
    lag: bool = False,
    predict: Predict = "nearest",
    networks: Sequence[Task] = (),
    recipe: Recipe = Recipe(),
) -> Method:
    """FedProto with prototypes that the server learns from the uploaded class means p_k[c].

        P[c] = A₂ ReLU(A₁ e_c + a₁) + a₂                               all of it learnt
        δ = min(τ, max_c min_{c'≠c} |Q_c − Q_c'|),   Q_c the mean of the uploaded p_k[c]
        (e, A, a) ← S epochs of SGD on CE(−d, c) over all uploaded (k, c)
          d_j = |p_k[c] − P[j]| + δ [j = c]

    So a class's prototype is drawn to its class means until it is nearer than any other by δ.
    Clients are FedProto's, pulled to P of all classes from the second round on. Learnt on the
    server: the network, kept over rounds, never sent. Tested with the nearest prototype.

    Clients may have networks of different depths and kinds, if their features have one width.

    Args:
      lam: strength λ of the pull, for squared distances divided by the width: 10 in the authors'
        code is 0.1 with the distances of the paper. With 0 models are those of training alone.
      margin: τ, the largest margin δ.
      server_lr: the server's learning rate. With 0 prototypes stay random.
      server_epochs: S, the server's passes over what a round's clients uploaded.
      server_batch: class means per step of the server, in an order drawn anew; 0 takes all at once.
      lag: whether class means are of the model before this round's training, as in the authors'
        code: they are a round late, and those of the first round are of random features.
      predict: as FedProto's: by the `nearest` prototype, by the nearest of a class that the client
        has (`own_nearest`), or by the client's `head`.
      networks: those of all clients, the server's first, where they differ.
      recipe: how a client trains in a round.

    Deviations: class means are of the model after this round's training, see `lag`. They are of all
    rows, in evaluation mode. Distances have 1e-12 under the root: at 0 its slope is infinite.

    Reference: Zhang et al., "FedTGP: Trainable Global Prototypes with Adaptive-Margin-Enhanced
    Contrastive Learning for Data and Model Heterogeneity in Federated Learning", AAAI 2024,
    https://arxiv.org/abs/2401.03230

    Example:
      >>> from fedtailor.methods.check import toy_task
      >>> method = fedtgp(toy_task(), lam=1.0, server_epochs=10)
    """
    when: Literal["before", "after"] = "before" if lag else "after"
    how: dict[str, Any] = {"predict": predict, "networks": networks, "recipe": recipe}
    base = fedproto(task, lam=lam, proto_from=when, **how)
    assert task.split is not None
    classes, width = number_of_classes(task), task.split.width

    def init(clients: ClientCount, initial: Params, key: Key) -> Tree:
        net = small_network(classes, width, key)
        net = tree.map(lambda p: p.to(tree.leaves(initial)[0].dtype), net)
        return {"net": net, **base.init(clients, initial, key), "prototypes": prototypes_of(net)}

    def send(server: Tree, cid: Tensor, turn: Turn) -> Tree:
        # what an untrained network writes teaches nobody
        return {"written": wire.maybe(server["seen"].any(), tree.pick(server, ["prototypes"]))}

    def opened(msg: Tree) -> Tree:
        """The message as FedProto's: all classes have a prototype, or none."""
        told = wire.value(msg["written"])["prototypes"]
        seen = wire.here(msg["written"]).to(told.dtype).expand(classes)
        return {"prototypes": torch.where(seen[:, None] > 0, told, 0.0), "seen": seen}

    def client(msg: Tree, state: Tree, data: Data, turn: Turn) -> Outcome:
        out = base.client(opened(msg), state, data, turn)
        told = out.upload.mean
        means = wire.maybe(told["rows"] > 0, {"means": told["features"]})
        return out._replace(upload=Upload(each={"classes": means}))

    def receive(server: Tree, ids: Tensor, up: Upload, turn: Turn) -> Tree:
        sent, there = wire.value(up.each["classes"]), wire.here(up.each["classes"])
        means = torch.where(there[..., None], sent["means"], 0.0)
        seen = there.to(means.dtype)
        rows = uploaded_rows(means, seen)
        net = train_on_rows(
            server_loss,
            server["net"],
            rows,
            epochs=server_epochs,
            batch=server_batch,
            lr=server_lr,
            key=turn.key,
            given={"margin": adaptive_margin(means, seen, margin)},
        )
        known = torch.ones_like(server["seen"]) if len(rows[0]) else server["seen"]
        return {"net": net, "prototypes": prototypes_of(net), "seen": known}

    return base._replace(
        init=init,
        send=send,
        client=client,
        receive=receive,
        personal=lambda msg, state, data, turn: base.personal(opened(msg), state, data, turn),
        mean_only="",
    )


def small_network(classes: int, width: int, key: Key) -> Params:
    """The server's network: an embedding of each class, and two linear layers as torch draws them.

    Example:
      >>> sum(p.numel() for p in small_network(10, 512, rng.key(0)).values())
      530432
    """
    embedding, *layers = rng.split(key, 5)
    bound = 1 / math.sqrt(width)
    names = {"first": (width, width), "first_bias": (width,), "second": (width, width)}
    names["second_bias"] = (width,)
    drawn = {
        name: (2 * rng.uniform(own, *shape) - 1) * bound
        for (name, shape), own in zip(names.items(), layers, strict=True)
    }
    return {"classes": rng.normal(embedding, classes, width), **drawn}


def prototypes_of(net: Tree) -> Tensor:
    """The prototypes that the server's network writes, one row for each class."""
    inner = F.relu(F.linear(net["classes"], net["first"], net["first_bias"]))
    return F.linear(inner, net["second"], net["second_bias"])


def adaptive_margin(means: Tensor, seen: Tensor, most: float) -> Tensor:
    """δ: how far the class that is farthest from its nearest other one is, at most `most`.

    Args:
      means: clients x classes x width; zeros where a client lacks the class.
      seen: clients x classes: 1 where it has it.
      most: τ; also the margin of a single class.

    Example:
      >>> means, seen = torch.tensor([[[0.0], [2.0], [7.0]]]), torch.ones(1, 3)
      >>> adaptive_margin(means, seen, 100.0), adaptive_margin(means, seen, 3.0)
      (tensor(5.), tensor(3.))
    """
    count = seen.sum(0)
    centres = (means * seen[..., None]).sum(0) / count.clamp(min=1)[:, None]
    apart = (centres[:, None] - centres).square().sum(-1).sqrt()
    there = count > 0
    others = there[:, None] & there & ~torch.eye(len(count), dtype=torch.bool, device=seen.device)
    nearest = torch.where(others, apart, torch.inf).min(1).values
    return torch.where(there, nearest, 0.0).max().clamp(max=most)


def server_loss(net: Tree, some: Batch, given: Tree) -> Tensor:
    """What the server's network makes small."""
    return weighted_mean(margin_losses(prototypes_of(net), some.x, some.y, given["margin"]), some)


def margin_losses(prototypes: Tensor, means: Tensor, labels: Tensor, margin: Tensor) -> Tensor:
    """CE(−d, c) of each class mean, d its distances to all prototypes, and δ more to its own."""
    squared = (prototypes - means[:, None]).square().sum(-1)
    # F.one_hot looks at its labels: a step with it could not be captured
    own = labels[:, None] == torch.arange(len(prototypes), device=labels.device)
    apart = (squared + 1e-12).sqrt() + margin * own
    return F.cross_entropy(-apart, labels, reduction="none")
