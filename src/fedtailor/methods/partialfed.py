"""PartialFed: each client selects, block by block, what to load from the global model."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import torch
from torch import Tensor

from .. import rng, tree
from ..begin import Starter, as_received
from ..data import Data
from ..method import Method, Outcome, Upload, by_size
from ..options import Above, NonNegative, Weighting, Whole
from ..rng import Key, Turn
from ..task import Batch, Task
from ..train import Recipe, descend
from ..tree import Params, Tree
from .fedavg import fedavg


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
    blocks = task.blocks
    starter = begin(task, blocks, recipe)
    loaded = fixed_blocks or max(1, len(blocks) // 2)
    shared = fedavg(task, weighting=weighting, recipe=recipe)

    def chosen(logits: Tensor) -> Tensor:
        """1 where the global block is the likelier choice."""
        if mode == "fix":
            return (torch.arange(len(blocks), device=logits.device) < loaded).to(logits.dtype)
        return (logits >= 0).to(logits.dtype)

    def drawn(logits: Tensor, tau: Tensor, key: Key) -> Tensor:
        """A hard choice per block, with the gradient of a soft one."""
        if mode == "fix":
            return chosen(logits)
        u = rng.uniform(key, 2, len(blocks), dtype=logits.dtype).clamp(1e-6, 1 - 1e-6)
        noise = -(-u.log()).log()
        soft = torch.sigmoid((logits + noise[0] - noise[1]) / tau)
        return (soft >= 0.5).to(soft.dtype) + soft - soft.detach()

    def select(s: Tensor, theirs: Params, own: Params) -> Params:
        # running statistics follow the choice; there is no gradient in them
        fixed = s.detach()
        share = {
            k: (fixed if k in task.buffers else s)[i]
            for i, block in enumerate(blocks)
            for k in block
        }
        return tree.lerp(own, theirs, share)

    def temperature(turn: Turn) -> Tensor:
        part = turn.round / turn.rounds
        return tau_start * (tau_end / tau_start) ** part

    def start(msg: Tree, initial: Params, key: Key) -> Tree:
        logits = torch.zeros(len(blocks), device=key.device)
        return {"own": initial, "logits": logits, "begin": starter.start(msg["params"], initial)}

    def client(msg: Tree, state: Tree, data: Data, turn: Turn) -> Outcome:
        here = starter.adapt(msg["params"], state["begin"], {}, data, turn.aside())
        tau, logits = temperature(turn), state["logits"]
        for_halves, for_logits = turn.aside().split()
        mixed = data.shuffle(for_halves.key)
        half_a, half_b = (mixed.first(0.5), mixed.rest(0.5)) if mode == "adaptive" else (data, data)

        def judge(theta: Tree, batch: Batch, given: Tree, carried: Tree) -> tuple[Tensor, Tree]:
            s = drawn(theta["logits"], given["tau"], batch.again().key)
            return task.loss(select(s, given["theirs"], given["own"]), batch)[0], {}

        if mode == "adaptive":
            how = replace(recipe, lr=logit_lr, optimizer="sgd", momentum=0.0, weight_decay=0.0)
            given = {"theirs": here.params, "own": state["own"], "tau": tau}
            found = descend(judge, {"logits": logits}, half_a, for_logits, how, given=given)
            logits = found.theta["logits"]

        def learn(change: Tree, batch: Batch, given: Tree, carried: Tree) -> tuple[Tensor, Tree]:
            s = drawn(given["logits"], given["tau"], batch.again().key).detach()
            model = select(s, given["theirs"] | carried, given["own"] | carried)
            return task.loss(model | tree.add(tree.pick(model, change), change), batch)

        # what is learnt is a change on top of whatever is selected, so that none of it is lost
        still = tree.map(torch.zeros_like, tree.drop(here.params, task.buffers))
        before = select(chosen(logits), here.params, state["own"])
        done = descend(
            learn,
            still,
            half_b,
            turn,
            recipe,
            given={"logits": logits, "tau": tau, "theirs": here.params, "own": state["own"]},
            carried=tree.pick(before, task.buffers),
            task=task,
            augment=task.augment,
        )
        moved = tree.add(tree.pick(before, still), done.theta)
        own = {k: (moved | done.carried)[k] for k in here.params}
        kept = {"own": own, "logits": logits, "begin": starter.keep(here.memory, own)}
        upload = Upload({"params": own}, by_size(data, weighting))
        return Outcome(kept, upload, own, {"selected": chosen(logits)} | here.notes)

    def personal(msg: Tree, state: Tree, data: Data, turn: Turn) -> Params:
        here = starter.adapt(msg["params"], state["begin"], {}, data, turn.aside())
        return select(chosen(state["logits"]), here.params, state["own"])

    return shared._replace(
        start=start, client=client, personal=personal, general=lambda msg, state: msg["params"]
    )
