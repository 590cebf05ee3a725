"""FedAS: the received body is first brought to the client's own features; traces weigh the mean."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

import torch
from torch import Tensor
from torch.func import grad

from fedtailor.core import tree
from fedtailor.core.data import Data
from fedtailor.core.method import ClientCount, Method, Outcome, Upload, only_classes
from fedtailor.core.options import Count, NonNegative, Search, Whole
from fedtailor.core.rng import Key, Turn
from fedtailor.core.steps.scan import Notes, StepRows, scan
from fedtailor.core.task import Batch, Task
from fedtailor.core.training import Recipe, fit, trained_names
from fedtailor.core.tree import Params, Tree
from fedtailor.methods.parts.partial import all_names
from fedtailor.methods.parts.representation import class_sums, head_split, number_of_classes

LEAST = 1e-12  # a trace of 0 everywhere gives all the same weight


def fedas(
    task: Task,
    *,
    align_lr: Annotated[NonNegative, Search(0.001, 0.1, log=True)] = 0.01,
    align_epochs: Whole = 1,
    align_batch: Count = 16,
    align_first: bool = True,
    trace: Annotated[Literal["sum", "mean"], Search()] = "sum",
    eval_point: Literal["own", "aligned"] = "own",
    recipe: Recipe = Recipe(),
) -> Method:
    """A shared body that is aligned before it is trained, a head of one's own.

        align:  p[c] = mean of z over the client's rows of class c, with its own last body
                body ← SGD on Σ_{c in batch} mean_{b: y_b = c} |z_b − p[c]|² / K    from what came
        train:  (body_k, head_k) ← SGD on CE, E epochs
        trace:  F_k = Σ_batches |∇ mean CE of the batch|²    of all that is trained
        body ← Σ_k F_k body_k / Σ_k F_k      with BatchNorm's running statistics

    Learnt on the server: the body. Learnt on the client: the whole model, of which the head never
    travels. Tested with the client's model as its last training left it; who never trained has the
    received body below the initial head.

    Args:
      align_lr: learning rate of the alignment. With 0 there is none.
      align_epochs: how long it takes.
      align_batch: its batches.
      align_first: whether a client aligns in its first turn, too (the authors' code), when its own
        body is the initial one: rows are then pulled to class means that nobody has learnt.
      trace: F_k as the `sum` over batches (the authors' code), which grows with a client's rows, or
        their `mean`.
      eval_point: what is tested: the client's `own` model as its last training left it (the
        authors' code), or the received body, `aligned` as for training, below its head.
      recipe: how a client trains in a round, and the batches of F_k.

    Deviations: what is received is copied before it is aligned (the authors' server hands out its
    own model, and each client of a round aligns what the one before left). A client with fewer
    rows than a batch takes part (there it crashes). That clients which are trained too little
    weigh less is the paper's claim, and not implied by F_k: it is larger where gradients are.

    Reference: Yang et al., "FedAS: Bridging Inconsistency in Personalized Federated Learning",
    CVPR 2024,
    https://openaccess.thecvf.com/content/CVPR2024/html/Yang_FedAS_Bridging_Inconsistency_in_Personalized_Federated_Learning_CVPR_2024_paper.html

    Example:
      >>> from fedtailor.methods.check import toy_task
      >>> method = fedas(toy_task(), align_lr=0.005)
    """
    split, classes = head_split(task, "FedAS aligns features"), number_of_classes(task)
    head = task.head
    body = [name for name in all_names(task) if name not in head]
    # plain SGD of a rate of its own, whatever the recipe's optimiser is
    calm = Recipe(align_epochs, batch=align_batch, lr=align_lr, last=recipe.last, clip=recipe.clip)

    def apart(params: Params, batch: Batch, given: Tree) -> tuple[Tensor, Params]:
        features, _, buffers = split.embed(params, batch)
        distance = (features - given["means"][batch.y]).square().mean(-1)
        every = torch.arange(classes, device=batch.y.device)
        of = (batch.y[:, None] == every).to(distance.dtype) * batch.weight[:, None]
        return (of.mT @ distance / of.sum(0).clamp(min=1)).sum(), buffers

    def init(clients: ClientCount, initial: Params, key: Key) -> Tree:
        return {"shared": tree.pick(initial, body)}

    def start(msg: Tree, initial: Params, key: Key) -> Tree:
        return {"own": initial, "trained": torch.zeros((), device=key.device)}

    def joined(msg: Tree, state: Tree) -> Params:
        return {k: (state["own"] | msg["shared"])[k] for k in state["own"]}

    def aligned(msg: Tree, state: Tree, data: Data, turn: Turn) -> Params:
        params = joined(msg, state)
        if not align_lr or not align_epochs:
            return params
        given = {"means": class_sums(task, state["own"], data).means}
        moved = fit(task, params, data, turn, calm, loss=apart, given=given, train=body)
        return moved if align_first else tree.where(state["trained"] > 0, moved, params)

    def client(msg: Tree, state: Tree, data: Data, turn: Turn) -> Outcome:
        params = fit(task, aligned(msg, state, data, turn), data, turn, recipe)
        weight = fisher_trace(task, params, data, recipe.batch, trace)
        moved = tree.scale(tree.sub(tree.pick(params, body), msg["shared"]), weight)
        upload = Upload({"shared": moved, "trace": weight})
        kept = {"own": params, "trained": torch.ones_like(state["trained"])}
        return Outcome(kept, upload, params, {"trace": weight})

    def receive(server: Tree, ids: Tensor, up: Upload, turn: Turn) -> Tree:
        moved = tree.scale(up.mean["shared"], 1 / up.mean["trace"])
        return {"shared": tree.add(server["shared"], moved)}

    def personal(msg: Tree, state: Tree, data: Data, turn: Turn) -> Params:
        received = joined(msg, state)
        now = state["own"] if eval_point == "own" else aligned(msg, state, data, turn)
        return tree.where(state["trained"] > 0, now, received)

    return Method(
        init=init,
        send=lambda server, cid, turn: server,
        start=start,
        client=client,
        receive=receive,
        personal=personal,
        predict=task.predict,
        common="shared",
        refuses=only_classes("it aligns the features of classes"),
        mean_only="uploads are moves times traces of gradients",
        not_private=(
            "alignment and traces look at rows without noise, so there is no guarantee: choose "
            "another method"
        ),
    )


def fisher_trace(
    task: Task, params: Params, data: Data, batch: int, over: Literal["sum", "mean"]
) -> Tensor:
    """The squared norms of the gradients of a client's batches, in evaluation mode, added up.

    Args:
      task: the network and its loss.
      params: all of its parameters.
      data: the client's rows, taken in their order.
      batch: rows of a batch; 0: all.
      over: `sum` over batches or their `mean`.
    """
    names = trained_names(task, params)
    theta, rest = tree.pick(params, names), tree.drop(params, names)

    def step(
        carry: Tree, given: Tree, now: StepRows, store: Sequence[Tensor], notes: Notes
    ) -> Tree:
        x, y = (rows[now.rows] for rows in store)

        def loss(theta: Params) -> Tensor:
            losses = task.losses(task.predict(given["rest"] | theta, x), y, now.weight)
            return (losses * now.weight).sum() / now.weight.sum().clamp(min=1)

        found = tree.sq_norm(grad(loss)(given["theta"]))
        return {"trace": carry["trace"] + found, "batches": carry["batches"] + 1}

    zero = torch.zeros((), dtype=tree.leaves(params)[0].dtype, device=data.n.device)
    # any key: evaluation draws nothing
    steps = data.steps(min(batch or len(data.rows), max(len(data.rows), 1)), data.n * 0)
    begun = {"trace": zero, "batches": zero}
    given = {"theta": theta, "rest": rest}
    found, _ = scan(step, begun, given, steps, (data.x, data.y), compiles=False)
    total: Tensor = found["trace"]
    if over == "mean":
        total = total / found["batches"].clamp(min=1)
    return total.clamp(min=LEAST)
