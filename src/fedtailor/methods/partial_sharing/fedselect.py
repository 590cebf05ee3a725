"""FedSelect: every single parameter is shared or personal, and those that move become personal."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Literal

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import vmap

from fedtailor.core import rng, tree, wire
from fedtailor.core.data import Data
from fedtailor.core.method import ClientCount, Method, Outcome, Upload, by_size
from fedtailor.core.options import Count, Search, Share
from fedtailor.core.rng import Key, Turn
from fedtailor.core.task import Batch, Task
from fedtailor.core.training import Recipe, fit
from fedtailor.core.tree import Params, Tree


def fedselect(
    task: Task,
    *,
    p: Annotated[Share, Search(0.05, 0.5)] = 0.25,
    limit: Annotated[Share, Search(0.2, 1)] = 0.8,
    every: Annotated[Count, Search(1, 10)] = 3,
    sends: Literal["whole", "shared"] = "whole",
    recipe: Recipe = Recipe(),
) -> Method:
    """The personal part of a network grows, client by client, where its parameters move most.

        turn:    for each epoch: one pass that trains personal entries, one that trains the others
        server:  shared[i] = mean over clients for whom entry i is not personal
        every L turns, after training, per weight tensor whose personal share is at most `limit`:
                 of the entries still shared, the part p with the largest |θ − θ_ref| becomes
                 personal;  θ_ref ← θ

    All entries begin shared. Biases stay so; running statistics of BatchNorm are the client's own.
    With p = 0.25 the personal share is 0.25, 0.44, 0.58, 0.68, 0.76, 0.82, and stops there.

    Learnt on the server: shared values. Learnt on the client: its entries, and which they are.
    Tested with own entries in their places and shared ones in theirs.

    Args:
      p: part of a tensor's shared entries that becomes personal at a time; with 0 all stay shared.
      limit: a tensor whose personal share is larger grows no more.
      every: L.
      sends: what travels. `whole`: all values, and up a second number for each entry that says
        whether it is shared: a mean is enough for the server. `shared`: entries that are shared
        alone, and up a bit for each when they have changed: bytes fall as personal shares rise, but
        the server sees everybody's values and masks, and no client has the global model.
      recipe: how a client trains in a round; each epoch is two passes.

    Deviations: exactly round(p · shared) entries are taken, ties by position (the authors cut by
    value, so that a tensor with many equal changes becomes personal as a whole). Turns are a
    client's own: with everybody in every round they are the rounds. Each pass has an optimiser of
    its own. Values travel whole by default, see `sends`: models are the same. An entry that is
    shared by nobody keeps its value at the server, for newcomers.

    Reference: Tamirisa et al., "FedSelect: Personalized Federated Learning with Customized
    Selection of Parameters for Fine-Tuning", CVPR 2024, https://arxiv.org/abs/2404.02478

    Example:
      >>> from fedtailor.methods.check import toy_task
      >>> method = fedselect(toy_task(), p=0.1)
    """
    one_pass, shapes = replace(recipe, epochs=1), tree.shapes(task.init(rng.key(0)))

    def may_be_personal(name: str) -> bool:
        return name not in task.buffers and "bias" not in name.rpartition(".")[2]

    def placed(params: Params, given: Tree) -> Params:
        """Entries of a part, with all others as they were."""
        old = given["others"]
        return params | {k: torch.where(m, params[k], old[k]) for k, m in given["part"].items()}

    def in_part(params: Params, batch: Batch, given: Tree) -> tuple[Tensor, Params]:
        """The loss as a function of these entries alone."""
        return task.loss(placed(params, given), batch)

    def merged(msg: Tree, state: Tree) -> Params:
        own, mask, sent = state["own"], state["personal"], received(msg)
        found = {k: torch.where(m, own[k], sent[k]) for k, m in mask.items()}
        return {k: (sent | tree.pick(own, task.buffers) | found)[k] for k in own}

    def init(clients: ClientCount, initial: Params, key: Key) -> Tree:
        if sends == "whole":
            return {"params": initial}
        none = {k: v != v for k, v in initial.items() if may_be_personal(k)}
        return {"params": initial, "personal": tree.tile(none, clients)}

    def send(server: Tree, cid: Tensor, turn: Turn) -> Tree:
        params = server["params"]
        if sends == "whole":
            return {"params": params}
        mask = tree.index(server["personal"], cid)
        return {"rest": tree.drop(params, mask), "some": some_entries(params, mask)}

    def received(msg: Tree) -> Params:
        """The server's values; 0 where they were not sent."""
        if sends == "whole":
            whole: Params = msg["params"]
            return whole
        some = {k: _entries(part).view(shapes[k]) for k, part in msg["some"].items()}
        return {k: (msg["rest"] | some)[k] for k in shapes}

    def grown(mask: Tensor, change: Tensor) -> Tensor:
        """A mask with the largest of the changes that it does not cover yet."""
        share = mask.to(change.dtype).mean()
        shared = (~mask).sum()
        count = torch.where(share <= limit, (p * shared.to(change.dtype)).round(), 0)
        size = torch.where(mask, -1.0, change).flatten()
        rank = size.argsort(descending=True, stable=True).argsort()
        return mask | (rank < count).view(mask.shape)

    def start(msg: Tree, initial: Params, key: Key) -> Tree:
        own = received(msg)
        mask = {k: v != v for k, v in own.items() if may_be_personal(k)}
        turns = torch.zeros((), dtype=torch.int64, device=key.device)
        return {"own": own, "reference": tree.pick(own, mask), "personal": mask, "turns": turns}

    def client(msg: Tree, state: Tree, data: Data, turn: Turn) -> Outcome:
        own, mask = merged(msg, state), state["personal"]
        everywhere = {k: v == v for k, v in own.items() if k not in task.buffers}
        shared = everywhere | {k: ~m for k, m in mask.items()}
        personal = {k: ~m for k, m in shared.items()}
        for epoch in range(recipe.epochs):
            mine = turn if epoch == 0 else turn.split(epoch + 1)[epoch]
            for part, now in ((personal, mine.aside()), (shared, mine)):
                given = {"part": part, "others": tree.pick(own, part)}
                after = fit(task, own, data, now, one_pass, loss=in_part, given=given)
                own = placed(after, given)
        weights = tree.pick(own, mask)
        due = (state["turns"] > 0) & (state["turns"] % every == 0)
        change = tree.map(lambda w, r: (w - r).abs(), weights, state["reference"])
        more = tree.map(grown, mask, change)
        kept = {
            "own": own,
            "reference": tree.where(due, weights, state["reference"]),
            "personal": tree.where(due, more, mask),
            "turns": state["turns"] + 1,
        }
        # of this turn's mask: what has just become personal is shared a last time
        if sends == "shared":
            each = {
                "some": some_entries(own, mask),
                "personal": wire.maybe(due, {"bits": packed(more)}),
            }
            upload = Upload({"rest": tree.drop(own, mask)}, by_size(data, "uniform"), each)
            return Outcome(kept, upload, own)
        told = {k: (~m).to(own[k].dtype) for k, m in mask.items()}
        values = own | {k: own[k] * told[k] for k in told}
        return Outcome(
            kept, Upload({"values": values, "shared": told}, by_size(data, "uniform")), own
        )

    def take_in(server: Tree, ids: Tensor, up: Upload, turn: Turn) -> Tree:
        """The same, from entries that came one by one."""
        params, told = dict(server["params"] | up.mean["rest"]), up.each["personal"]
        for k, part in up.each["some"].items():
            count = wire.here(part).sum(0)
            mean = _entries(part).sum(0) / count.clamp(min=1)
            params[k] = torch.where(count > 0, mean, params[k].flatten()).view(shapes[k])
        before = tree.index(server["personal"], ids)
        new = vmap(lambda bits: unpacked(bits, tree.index(before, 0)))(wire.value(told)["bits"])
        changed = tree.map(
            lambda a, b: torch.where(wire.here(told).view(-1, *[1] * (a.ndim - 1)), a, b),
            new,
            before,
        )
        return {"params": params, "personal": tree.put(server["personal"], ids, changed)}

    def receive(server: Tree, ids: Tensor, up: Upload, turn: Turn) -> Tree:
        values, old = up.mean["values"], server["params"]
        found = {
            k: torch.where(part > 0, values[k] / part.clamp(min=1e-12), old[k])
            for k, part in up.mean["shared"].items()
        }
        return {"params": {k: (values | found)[k] for k in old}}

    return Method(
        init=init,
        send=send,
        start=start,
        client=client,
        receive=receive if sends == "whole" else take_in,
        personal=lambda msg, state, data, turn: merged(msg, state),
        predict=task.predict,
        general=(lambda msg, state: msg["params"]) if sends == "whole" else None,
        mean_only="its server divides two means that belong together",
    )


def some_entries(params: Params, personal: Tree) -> Tree:
    """The entries of weights that are not personal, as they are sent."""
    return {
        k: wire.maybe(~m.flatten(), {"values": params[k].flatten()}) for k, m in personal.items()
    }


def _entries(part: Tree) -> Tensor:
    return torch.where(wire.here(part), wire.value(part)["values"], 0.0)


def packed(masks: Tree) -> Tensor:
    """Masks as bits, eight to a number.

    Example:
      >>> packed({"w": torch.tensor([True, False, True]), "v": torch.ones(6, dtype=torch.bool)})
      tensor([253,   1], dtype=torch.uint8)
    """
    bits = torch.cat([mask.flatten() for mask in masks.values()]).to(torch.int16)
    padded = F.pad(bits, (0, -len(bits) % 8)).view(-1, 8)
    return (padded << torch.arange(8, device=bits.device)).sum(-1).to(torch.uint8)


def unpacked(bits: Tensor, like: Tree) -> Tree:
    """Masks of the shapes of others, from their bits.

    Example:
      >>> unpacked(torch.tensor([5], dtype=torch.uint8), {"w": torch.zeros(1, 3)})
      {'w': tensor([[ True, False,  True]])}
    """
    flat = (bits.to(torch.int16)[:, None] >> torch.arange(8, device=bits.device) & 1).flatten() > 0
    sizes = [leaf.numel() for leaf in like.values()]
    parts = torch.split(flat[: sum(sizes)], sizes)
    return {k: part.view(leaf.shape) for (k, leaf), part in zip(like.items(), parts, strict=True)}
