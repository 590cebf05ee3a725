"""PartialFed: each client selects, block by block, what to load from the global model."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Annotated, Literal, NamedTuple

import torch
from torch import Tensor

from fedtailor.core import rng, tree
from fedtailor.core.data import Data
from fedtailor.core.method import ClientCount, Download, Method, Outcome, Upload, beginning, by_size
from fedtailor.core.objectives import Objective
from fedtailor.core.options import Above, NonNegative, Search, Weighting, Whole
from fedtailor.core.rng import Key, Turn
from fedtailor.core.task import Batch, Task, per_name
from fedtailor.core.training import Recipe, descend
from fedtailor.core.tree import Params, Tree
from fedtailor.methods.one_model.fedavg import fedavg

log = logging.getLogger(__name__)


def partialfed(
    task: Task,
    *,
    mode: Literal["adaptive", "fix"] = "adaptive",
    fixed_blocks: Whole = 0,
    logit_lr: Annotated[NonNegative, Search(0.01, 1, log=True)] = 0.1,
    tau_start: Above = 5.0,
    tau_end: Above = 0.1,
    weighting: Weighting = "data",
    recipe: Recipe = Recipe(),
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
      tau_end: temperature τ that a run of T rounds falls to: in round t it is tau_start
        (tau_end / tau_start)^(t/T).
      weighting: a client's weight in the mean: `data` or `uniform`.
      recipe: how a client trains in a round.

    Deviations: all of it is a reconstruction; documented are only "binary, per layer, selected anew
    each batch, non-overlapping samples, the server averages". Logits start at 0; weight decay acts
    on Δ. A client with a single row has it for the selection: its Δ is 0, and a line says so.

    Reference: Sun et al., "PartialFed: Cross-Domain Personalized Federated Learning via Partial
    Initialization", NeurIPS 2021

    Example:
      >>> from fedtailor.methods.check import toy_task
      >>> method = partialfed(toy_task(), mode="fix", fixed_blocks=1)
    """
    shared = fedavg(task, weighting=weighting, recipe=recipe)
    learns = mode == "adaptive"
    strategy = adaptive if learns else lower(fixed_blocks or max(1, len(task.blocks) // 2))
    choice_loss, change_loss = choosing(task, strategy), changing(task, strategy)
    for_choice = replace(recipe, lr=logit_lr, optimizer="sgd", momentum=0.0, weight_decay=0.0)

    def init(clients: ClientCount, initial: Params, key: Key) -> Tree:
        single = int((clients.training == 1).sum())
        if learns and single:
            log.warning(
                "%d of the clients have a single training row, which chooses their "
                "blocks: they learn no weights, and upload what they chose",
                single,
            )
        return shared.init(clients, initial, key)

    def start(msg: Tree, initial: Params, key: Key) -> Tree:
        logits = torch.zeros(len(task.blocks), device=key.device)
        return {"own": initial, "logits": logits}

    def client(msg: Tree, state: Tree, data: Data, turn: Turn) -> Outcome:
        received = beginning(msg, msg["params"])
        logits, rows = state["logits"], data
        tau = cooled(turn, tau_start, tau_end)
        given = {"received": received, "own": state["own"], "tau": tau}
        if learns:
            for_halves, order = turn.aside().split()
            mixed = data.shuffle(for_halves.key)
            half, rows = mixed.first(0.5), mixed.rest(0.5)
            found = descend(choice_loss, {"logits": logits}, half, order, for_choice, given=given)
            logits = found.theta["logits"]
        before = select(task, strategy.chosen(logits), received, state["own"])
        still = tree.map(torch.zeros_like, tree.drop(received, task.buffers))
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
        own = {k: (moved | done.carried)[k] for k in received}
        upload = Upload({"params": own}, by_size(data, weighting))
        kept = {"own": own, "logits": logits}
        return Outcome(kept, upload, own, {"selected": strategy.chosen(logits)})

    def personal(msg: Tree, state: Tree, data: Data, turn: Turn) -> Params:
        received = beginning(msg, msg["params"])
        return select(task, strategy.chosen(state["logits"]), received, state["own"])

    return shared._replace(
        init=init,
        start=start,
        client=client,
        personal=personal,
        general=lambda msg, state: msg["params"],
        download=Download("params", client),
    )


class Strategy(NamedTuple):
    """How a choice per block between received and own model is made.

    Attributes:
      chosen: logits a -> s, 1 where the received block is taken.
      drawn: (logits, temperature, key) -> s for one mini-batch.
    """

    chosen: Callable[[Tensor], Tensor]
    drawn: Callable[[Tensor, Tensor, Key], Tensor]


def likelier(logits: Tensor) -> Tensor:
    """1 where the received block is the likelier choice."""
    return (logits >= 0).to(logits.dtype)


def straight_through(logits: Tensor, tau: Tensor, key: Key) -> Tensor:
    """A hard choice per block, with the gradient of a soft one (Gumbel-softmax over two choices).

        soft_l = σ((a_l + g_l − g'_l) / τ),  g, g' standard Gumbel;   s_l = 1 where soft_l ≥ 1/2

    Each block is chosen with probability σ(a_l), whatever the temperature τ; that decides only how
    far the gradient ∂soft/∂a reaches.
    """
    u = rng.uniform(key, 2, len(logits), dtype=logits.dtype).clamp(1e-6, 1 - 1e-6)
    noise = -(-u.log()).log()
    soft = torch.sigmoid((logits + noise[0] - noise[1]) / tau)
    return (soft >= 0.5).to(soft.dtype) + soft - soft.detach()


adaptive = Strategy(likelier, straight_through)


def lower(count: int) -> Strategy:
    """Always the `count` blocks next to the input, whatever the logits."""

    def chosen(logits: Tensor) -> Tensor:
        return (torch.arange(len(logits), device=logits.device) < count).to(logits.dtype)

    return Strategy(chosen, lambda logits, tau, key: chosen(logits))


def cooled(turn: Turn, first: float, last: float) -> Tensor:
    """A temperature that falls geometrically over the run: first (last / first)^(t/T)."""
    part = turn.round / turn.rounds
    return first * (last / first) ** part


def select(task: Task, s: Tensor, received: Params, own: Params) -> Params:
    """The model that a choice per block makes: `received` where s is 1, `own` where it is 0."""
    # running statistics follow the choice; there is no gradient in them
    share = per_name(s, task.blocks, own) | per_name(s.detach(), task.blocks, task.buffers)
    return tree.lerp(own, received, share)


def choosing(task: Task, strategy: Strategy) -> Objective:
    """The loss of what the trained `logits` draw; `received`, `own` and `tau` are given."""

    def objective(theta: Tree, batch: Batch, given: Tree, carried: Tree) -> tuple[Tensor, Tree]:
        s = strategy.drawn(theta["logits"], given["tau"], batch.again().key)
        return task.loss(select(task, s, given["received"], given["own"]), batch)[0], {}

    return objective


def changing(task: Task, strategy: Strategy) -> Objective:
    """The loss of a drawn model with the trained change Δ added; the `logits` are given too.

        F(s G + (1 − s) L + Δ)

    Δ lies on top of whatever is drawn, so that nothing of it is lost with the next draw. Running
    statistics are carried along.
    """

    def objective(change: Tree, batch: Batch, given: Tree, carried: Tree) -> tuple[Tensor, Tree]:
        s = strategy.drawn(given["logits"], given["tau"], batch.again().key).detach()
        model = select(task, s, given["received"] | carried, given["own"] | carried)
        return task.loss(model | tree.add(tree.pick(model, change), change), batch)

    return objective
