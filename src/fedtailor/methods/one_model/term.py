"""TERM: tilted averaging, towards clients with large losses or away from them."""

from __future__ import annotations

import logging
from typing import Annotated

import torch
from torch import Tensor

from fedtailor.core import tree
from fedtailor.core.data import Data
from fedtailor.core.method import ClientCount, Method, Outcome, Upload, by_size
from fedtailor.core.options import Search, Weighting
from fedtailor.core.rng import Key, Turn
from fedtailor.core.scoring import mean_loss
from fedtailor.core.task import Task
from fedtailor.core.training import Recipe, fit
from fedtailor.core.tree import Params, Tree
from fedtailor.methods.one_model.fedavg import fedavg
from fedtailor.methods.parts.moves import moved_by, scaled_move

log = logging.getLogger(__name__)

LARGEST = 80.0  # of an exponent: e^80 is still a number in single precision


def term(
    task: Task,
    *,
    t: Annotated[float, (-100.0, 100.0), Search(0.1, 5, log=True)] = 0.1,
    weighting: Weighting = "data",
    recipe: Recipe = Recipe(),
) -> Method:
    """Tilted empirical risk over clients: from the mean of losses to the largest of them.

        min 1/t log Σ_k p_k e^(t F_k(w))

        w ← Σ_k ω_k w_k / Σ_k ω_k,    ω_k = n_k e^(t F_k),  F_k the loss of w as received

    With t = 0 this is FedAvg; large t are for the worst client; t < 0 pays less attention to
    clients with large losses, whose rows may be wrong. Learnt on the server: w.

    Args:
      t: tilt; the authors tune it among 0.1, 0.5, 1, 2 and 5.
      weighting: what n_k is: `data` (a client's number of training rows) or 1 (`uniform`).
      recipe: how a client trains in a round.

    Deviations: weights are of this round's losses and sum to 1 (in the authors' trainer a moving
    mean that begins at 0 stands below them, so that t = 0 is FedAvg with a shorter step). To keep
    numbers small, exponents are taken relative to the largest of the round before, which the server
    sends: a common factor that cancels (0 in the first round). What is beyond ±80 of it counts as
    ±80, with a warning: with t of 0.1 to 5 losses do not go there. Clients send
    ω_k / n_k (w_k − w) and ω_k / n_k with weight n_k, so that sites need no weight larger than
    their rows. Running statistics of BatchNorm are averaged by n_k.

    Reference: Li et al., "Tilted Empirical Risk Minimization", ICLR 2021,
    https://arxiv.org/abs/2007.01162

    Example:
      >>> from fedtailor.methods.check import toy_task
      >>> method = term(toy_task(), t=1.0)
    """
    host = fedavg(task, weighting=weighting, recipe=recipe)
    if t == 0:
        return host
    told: list[int] = []

    def init(clients: ClientCount, initial: Params, key: Key) -> Tree:
        return {"params": initial, "top": torch.zeros((), device=key.device)}

    def client(msg: Tree, state: Tree, data: Data, turn: Turn) -> Outcome:
        w = msg["params"]
        loss = mean_loss(task, w, data)
        tilted = t * loss
        large = (tilted - msg["top"]).clamp(-LARGEST, LARGEST).exp()
        params = fit(task, w, data, turn, recipe)
        mean = {"move": scaled_move(task, w, params, large), "weight": large}
        upload = Upload(mean, by_size(data, weighting), {"tilted": tilted})
        return Outcome(state, upload, params, {"loss": loss})

    def receive(server: Tree, ids: Tensor, up: Upload, turn: Turn) -> Tree:
        params = moved_by(task, server["params"], up.mean["move"], 1 / up.mean["weight"])
        tilted = up.each["tilted"]
        if not told and bool(((tilted - server["top"]).abs() > LARGEST).any()):
            told.append(int(turn.round))
            log.warning("t is %g: weights e^(t F) differ too much; those beyond e^±80 are cut", t)
        return {"params": params, "top": tilted.amax()}

    return host._replace(
        init=init,
        client=client,
        receive=receive,
        send=lambda server, cid, turn: tree.pick(server, ["params", "top"]),
        mean_only="its server divides two means that belong together",
        not_private="clients tell of training losses without noise, so there is no guarantee: "
        "choose another method",
    )
