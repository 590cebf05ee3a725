"""FedPHP: an inherited personal model that teaches its successor."""

from __future__ import annotations

from typing import Annotated, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from fedtailor.core import tree
from fedtailor.core.data import Data
from fedtailor.core.method import (
    Download,
    Method,
    Outcome,
    Upload,
    beginning,
    by_size,
    only_classes,
)
from fedtailor.core.options import Above, Search, Share, Weighting
from fedtailor.core.rng import Key, Turn
from fedtailor.core.task import Batch, Task, weighted_mean
from fedtailor.core.training import Recipe, fit
from fedtailor.core.tree import Params, Tree
from fedtailor.methods.one_model.fedavg import fedavg


def fedphp(
    task: Task,
    *,
    lam: Annotated[Share, Search(0.005, 0.5, log=True)] = 0.05,
    mu: Annotated[Share, Search(0.5, 0.99)] = 0.9,
    temperature: Annotated[Above, Search(1, 10, log=True)] = 4.0,
    soften: Literal["teacher", "both"] = "teacher",
    participation: Share = 1.0,
    weighting: Weighting = "data",
    recipe: Recipe = Recipe(),
) -> Method:
    """The global model is trained under the eyes of the client's inherited model H_k.

        w_k ← SGD on (1 − λ) CE + λ R,  R = −Σ_c softmax_c(H_k's logits / τ) log softmax_c(w_k's)
        H_k ← μ_k H_k + (1 − μ_k) w_k,  μ_k = min(μ, μ · previous participations / ⌊C T⌋)
        w ← Σ_k Ω_k w_k

    Learnt on the client: H_k, with which it is tested; w is tested too.

    Args:
      lam: weight λ of distillation. With 0 the w-path is FedAvg.
      mu: momentum μ of inheritance at the end of the run. With 0, H_k is the last trained w_k.
      temperature: τ of distillation.
      soften: whose logits are divided by τ: the `teacher`'s (the authors' code), or `both`, as
        distillation usually is: R = τ² KL(softmax(H_k's / τ) | softmax(w_k's / τ)).
      participation: C: share of clients per round, so that C T is how often a client takes part;
        a run fills in its own.
      weighting: a client's weight in the mean: `data` or `uniform`.
      recipe: how a client trains in a round.

    Deviations: R is distillation; the paper also has MMD between features.

    Reference: Li et al., "FedPHP: Federated Personalization with Inherited Private Models", ECML
    PKDD 2021

    Example:
      >>> from fedtailor.methods.check import toy_task
      >>> method = fedphp(toy_task(), participation=0.1)
    """
    shared = fedavg(task, weighting=weighting, recipe=recipe)

    def taught(params: Params, batch: Batch, given: Tree) -> tuple[Tensor, Params]:
        assert task.outputs is not None
        logits, buffers = task.outputs(params, batch)
        teacher = task.predict(given["teacher"], batch.x)
        hard = task.losses(logits, batch.y, batch.weight)
        if soften == "both":
            soft = temperature**2 * F.kl_div(
                (logits / temperature).log_softmax(-1),
                (teacher / temperature).log_softmax(-1),
                reduction="none",
                log_target=True,
            ).sum(-1)
        else:
            soft = -((teacher / temperature).softmax(-1) * logits.log_softmax(-1)).sum(-1)
        each = (1 - lam) * hard + lam * soft
        return weighted_mean(each, batch), buffers

    def start(msg: Tree, initial: Params, key: Key) -> Tree:
        return {"inherited": initial, "times": torch.zeros((), device=key.device)}

    def client(msg: Tree, state: Tree, data: Data, turn: Turn) -> Outcome:
        begin = beginning(msg, msg["params"])
        given = {"teacher": state["inherited"]}
        loss = taught if lam else None
        params = fit(task, begin, data, turn, recipe, loss=loss, given=given)
        expected = (participation * turn.rounds.double()).floor().clamp(min=1)
        keep = (mu * state["times"] / expected).clamp(max=mu).to(state["times"].dtype)
        inherited = tree.lerp(params, state["inherited"], keep)
        kept = {"inherited": inherited, "times": state["times"] + 1}
        upload = Upload({"params": params}, by_size(data, weighting))
        return Outcome(kept, upload, inherited)

    return shared._replace(
        start=start,
        client=client,
        personal=lambda msg, state, data, turn: state["inherited"],
        general=lambda msg, state: msg["params"],
        download=Download("params", client, tested=False),
        refuses=only_classes("its distillation compares class probabilities") if lam else {},
    )
