"""APFL: a personal mixture of a local and the global model, with a learnt weight."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

import torch
from torch import Tensor

from fedtailor.core import tree
from fedtailor.core.data import Data
from fedtailor.core.method import Method, Outcome, Upload, by_size
from fedtailor.core.objectives import Slope
from fedtailor.core.options import Search, Share, Weighting
from fedtailor.core.rng import Key, Turn
from fedtailor.core.task import Batch, Task
from fedtailor.core.training import Recipe, descend
from fedtailor.core.tree import Params, Tree
from fedtailor.methods.one_model.fedavg import fedavg
from fedtailor.methods.parts.two_networks import limited_each


def apfl(
    task: Task,
    *,
    alpha: Annotated[Share, Search(0.1, 0.9)] = 0.5,
    adaptive: Annotated[bool, Search()] = True,
    weighting: Weighting = "data",
    recipe: Recipe = Recipe(),
) -> Method:
    """The client's model is v̄ = α v + (1 − α) w; w is FedAvg's, v and α are its own.

        w ← w − η ∇F(w);   v ← v − η α ∇F(v̄);   v̄ = α v + (1 − α) w   with the w of the client
        α ← clip₀¹(α − η ⟨v − w, ∇F(v̄)⟩)        once a round, on one random batch, if adaptive

    Learnt on the client: v and α. Tested with v̄ of v and the received w; w is tested too.

    Args:
      alpha: α at the start. With 0 the tested model is FedAvg's, with 1 training alone.
      adaptive: learn α.
      weighting: a client's weight in the mean: `data` or `uniform`.
      recipe: how a client trains in a round; `clip` is of each model's gradient.

    Deviations: none from the paper. The authors' code steps v with the w that has just moved, mixes
    the outputs of v and w instead of their parameters, and adds 0.02 α to the slope of α.

    Reference: Deng et al., "Adaptive Personalized Federated Learning",
    https://arxiv.org/abs/2003.13461

    Example:
      >>> from fedtailor.methods.check import toy_task
      >>> method = apfl(toy_task(), alpha=0.3, adaptive=False)
    """
    shared = fedavg(task, weighting=weighting, recipe=recipe)
    of_both = lambda at: limited_each(models_slope(at), ("w", "v"), recipe.clip)

    def objective(theta: Tree, batch: Batch, given: Tree, rest: Tree) -> tuple[Tensor, Tree]:
        return task.loss(rest | theta, batch)

    def start(msg: Tree, initial: Params, key: Key) -> Tree:
        share = torch.full((), alpha, device=key.device)
        return {"own": initial, "alpha": share}

    def client(msg: Tree, state: Tree, data: Data, turn: Turn) -> Outcome:
        w, rest = tree.drop(msg["params"], task.buffers), tree.pick(msg["params"], task.buffers)
        v, share = tree.drop(state["own"], task.buffers), state["alpha"]
        if adaptive:
            one = replace(recipe, steps=1, optimizer="sgd", momentum=0.0, weight_decay=0.0)
            found = descend(
                objective,
                {"alpha": share},
                data,
                turn.aside(),
                one,
                given={"w": w, "v": v},
                carried=rest,
                gradient=share_slope,
                project=lambda a: a.clamp(0, 1),
            )
            share = found.theta["alpha"]
        done = descend(
            objective,
            {"w": w, "v": v},
            data,
            turn,
            replace(recipe, clip=0.0),
            given={"alpha": share},
            carried={"w": rest, "v": tree.pick(state["own"], task.buffers)},
            gradient=of_both,
            task=task,
            augment=task.augment,
        )
        trained, own = (
            {k: (done.theta[part] | done.carried[part])[k] for k in msg["params"]}
            for part in ("w", "v")
        )
        upload = Upload({"params": trained}, by_size(data, weighting))
        model = tree.lerp(trained, own, share)
        return Outcome({"own": own, "alpha": share}, upload, model, {"alpha": share})

    def personal(msg: Tree, state: Tree, data: Data, turn: Turn) -> Params:
        return tree.lerp(msg["params"], state["own"], state["alpha"])

    return shared._replace(
        start=start,
        client=client,
        personal=personal,
        general=lambda msg, state: msg["params"],
    )


def models_slope(at: Slope) -> Slope:
    """The slopes of w, which learns for itself, and of v, which learns through the blend.

        ∂/∂w := ∇F(w),     ∂/∂v = α ∇F(v̄)

    `{"w", "v"}` are trained with `given["alpha"]`; each carries running statistics of its own. The
    loss is the blend's.
    """

    def slope(pair: Tree, batch: Batch, given: Tree, carried: Tree) -> tuple[Tree, Tensor, Tree]:
        for_w, _, with_w = at(pair["w"], batch, given, carried["w"])
        mixed = tree.lerp(pair["w"], pair["v"], given["alpha"])
        for_v, loss, with_v = at(mixed, batch.again(), given, carried["v"])
        changed = {"w": carried["w"] | with_w, "v": carried["v"] | with_v}
        return {"w": for_w, "v": tree.scale(for_v, given["alpha"])}, loss, changed

    return slope


def share_slope(at: Slope) -> Slope:
    """The slope of α, with both models `given`: ∂F(v̄)/∂α = ⟨v − w, ∇F(v̄)⟩."""

    def slope(theta: Tree, batch: Batch, given: Tree, carried: Tree) -> tuple[Tree, Tensor, Tree]:
        mixed = tree.lerp(given["w"], given["v"], theta["alpha"])
        grads, loss, _ = at(mixed, batch, given, carried)
        apart = tree.sub(given["v"], given["w"])
        dots = tree.leaves(tree.map(lambda g, d: (g * d).sum(), grads, apart))  # name by name
        return {"alpha": torch.stack(dots).sum()}, loss, {}

    return slope
