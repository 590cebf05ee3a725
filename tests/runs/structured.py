"""A method as a stranger would write it, whose model is a tree of its own."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fedtailor import Method, Outcome, Recipe, Upload, by_size, fit, tree
from fedtailor.core.data import Data
from fedtailor.core.rng import Turn
from fedtailor.core.task import Task
from fedtailor.core.tree import Tree


def side_by_side(task: Task, *, share: float = 0.5, recipe: Recipe = Recipe()) -> Method:
    """What a shared model and one's own say is mixed; beside them, the mean features of classes.

    Args:
      share: of one's own.

    Reference: nobody.
    """
    assert task.form is not None and task.features is not None
    width = len(task.features(task.init(torch.tensor(0)), torch.zeros(1, *task.form.shape))[0])
    seen = torch.zeros(task.form.classes, dtype=torch.int64, device=task.device)
    means = torch.zeros(task.form.classes, width, device=task.device)

    def predict(model: Tree, x: Tensor) -> Tensor:
        features = task.features(model["own"], x)
        near = -(features[:, None] - model["means"]).square().sum(-1)
        mine, theirs = task.predict(model["own"], x), task.predict(model["shared"], x)
        mixed = torch.lerp(theirs, mine, model["share"])
        return mixed + 1e-3 * torch.where(model["seen"] > 0, near, 0.0)

    def model(shared: Tree, state: Tree) -> Tree:
        return {"shared": shared} | state

    def client(msg: Tree, state: Tree, data: Data, turn: Turn) -> Outcome:
        shared = fit(task, msg["shared"], data, turn, recipe)
        own = fit(task, state["own"], data, turn, recipe)
        rows, real = data.rows, (torch.arange(len(data.rows), device=data.n.device) < data.n)
        of = torch.nn.functional.one_hot(data.y[rows], len(seen)) * real[:, None]
        sums = of.T.to(means.dtype) @ task.features(own, data.x[rows])
        kept = state | {
            "own": own,
            "seen": of.sum(0),
            "means": sums / of.sum(0).clamp(min=1)[:, None],
        }
        upload = Upload({"shared": shared}, by_size(data, "data"))
        return Outcome(kept, upload, model(shared, kept))

    def start(msg: Tree, initial: Tree, key: Tensor) -> Tree:
        mine: Any = torch.full((), share, device=key.device)
        return {
            "own": initial,
            "share": mine,
            **tree.map(torch.clone, {"seen": seen, "means": means}),
        }

    return Method(
        init=lambda clients, initial, key: {"shared": initial},
        send=lambda server, cid, turn: server,
        start=start,
        client=client,
        receive=lambda server, ids, upload, turn: upload.mean,
        personal=lambda msg, state, data, turn: model(msg["shared"], state),
        predict=predict,
        general=lambda msg, state: msg["shared"],
    )
