"""PartialFed: each client selects, block by block, what to load from the global model."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import torch

from fedtailor.core import tree
from fedtailor.core.data import Data
from fedtailor.core.method import Method, Outcome, Upload, by_size
from fedtailor.core.options import Above, NonNegative, Weighting, Whole
from fedtailor.core.rng import Key, Turn
from fedtailor.core.task import Task
from fedtailor.core.training import Recipe, descend
from fedtailor.core.tree import Params, Tree
from fedtailor.methods.one_model.fedavg import fedavg
from fedtailor.methods.parts.selection import adaptive, changing, choosing, cooled, lower, select
from fedtailor.methods.parts.start import Starter, as_received


def partialfed(
    task: Task,
    *,
    mode: Literal["adaptive", "fix"] = "adaptive",
    fixed_blocks: Whole = 0,
    logit_lr: NonNegative = 0.1,
    tau_start: Above = 5.0,
    tau_end: Above = 0.1,
    weighting: Weighting = "data",
    recipe: Recipe = Recipe(),
    begin: Starter = as_received,
) -> Method:
    """RECONSTRUCTED from descriptions: binary selection per block, learnt on rows of its own.

        half A of the rows:  s_l ~ straight-through Gumbel-softmax(a_l, τ);  learn a only
        half B:              model_l = s_l G_l + (1 − s_l) L_l + Δ_l, s drawn anew; learn Δ
        L_k := the likelier choice + Δ;  uploaded;   G ← Σ_k Ω_k L_k

    Learnt on the client: L_k and the logits a_k. Tested with the more likely choice per block.

    Args:
      mode: `adaptive`, or `fix`: a constant set of blocks is loaded from the global model.
      fixed_blocks: in `fix`: how many blocks from the input on are loaded; 0 takes the lower half.
      logit_lr: learning rate of the logits.
      tau_start: temperature τ in the first round.
      tau_end: temperature τ in the last round (falling geometrically).
      weighting: a client's weight in the mean: `data` or `uniform`.
      recipe: how a client trains in a round.
      begin: where local training begins, before the selection.

    Deviations: all of it is a reconstruction; documented are only "binary, per layer, selected anew
    each batch, non-overlapping samples, the server averages". Logits start at 0; weight decay acts
    on Δ.

    Reference: Sun et al., "PartialFed: Cross-Domain Personalized Federated Learning via Partial
    Initialization", NeurIPS 2021
    """
    shared = fedavg(task, weighting=weighting, recipe=recipe)
    starter = begin(task, task.blocks, recipe)
    learns = mode == "adaptive"
    strategy = adaptive if learns else lower(fixed_blocks or max(1, len(task.blocks) // 2))
    choice_loss, change_loss = choosing(task, strategy), changing(task, strategy)
    for_choice = replace(recipe, lr=logit_lr, optimizer="sgd", momentum=0.0, weight_decay=0.0)

    def start(msg: Tree, initial: Params, key: Key) -> Tree:
        logits = torch.zeros(len(task.blocks), device=key.device)
        return {"own": initial, "logits": logits, "begin": starter.start(msg["params"], initial)}

    def client(msg: Tree, state: Tree, data: Data, turn: Turn) -> Outcome:
        here = starter.adapt(msg["params"], state["begin"], {}, data, turn.aside())
        logits, rows = state["logits"], data
        tau = cooled(turn, tau_start, tau_end)
        given = {"received": here.params, "own": state["own"], "tau": tau}
        if learns:
            for_halves, order = turn.aside().split()
            mixed = data.shuffle(for_halves.key)
            half, rows = mixed.first(0.5), mixed.rest(0.5)
            found = descend(choice_loss, {"logits": logits}, half, order, for_choice, given=given)
            logits = found.theta["logits"]
        before = select(task, strategy.chosen(logits), here.params, state["own"])
        still = tree.map(torch.zeros_like, tree.drop(here.params, task.buffers))
        done = descend(
            change_loss,
            still,
            rows,
            turn,
            recipe,
            given=given | {"logits": logits},
            carried=tree.pick(before, task.buffers),
            task=task,
            augment=task.augment,
        )
        moved = tree.add(tree.pick(before, still), done.theta)
        own = {k: (moved | done.carried)[k] for k in here.params}
        kept = {"own": own, "logits": logits, "begin": starter.keep(here.memory, own)}
        upload = Upload({"params": own}, by_size(data, weighting))
        return Outcome(kept, upload, own, {"selected": strategy.chosen(logits)} | here.notes)

    def personal(msg: Tree, state: Tree, data: Data, turn: Turn) -> Params:
        here = starter.adapt(msg["params"], state["begin"], {}, data, turn.aside())
        return select(task, strategy.chosen(state["logits"]), here.params, state["own"])

    return shared._replace(
        start=start, client=client, personal=personal, general=lambda msg, state: msg["params"]
    )
