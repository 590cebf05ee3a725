"""FML: a private network and a common one teach each other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import torch
from torch import Tensor

from fedtailor.core.data import Data
from fedtailor.core.method import Method, Outcome, Upload, by_size, only_classes
from fedtailor.core.options import Search, Share, Weighting
from fedtailor.core.rng import Turn
from fedtailor.core.task import Batch, Task, weighted_mean
from fedtailor.core.training import Recipe
from fedtailor.core.tree import Params, Tree
from fedtailor.methods.parts.two_networks import divergence, fit_both, with_common_network


def fml(
    task: Task,
    *,
    alpha: Annotated[Share, Search(0.1, 0.9)] = 0.5,
    beta: Annotated[Share, Search(0.1, 0.9)] = 0.5,
    weighting: Weighting = "uniform",
    networks: Sequence[Task] = (),
    recipe: Recipe = Recipe(),
) -> Method:
    """Mutual learning: each client's private model and the common meme learn from each other.

        private:  α CE(f) + (1 − α) KL(p_g | p_f)         meme:  β CE(g) + (1 − β) KL(p_f | p_g)
        g ← mean of all g_k

    p are class probabilities; the first of KL is a target, through which no gradient goes. Both
    take a step on the same batch, each from the other's probabilities before it. Only memes travel.

    Learnt on the server: the meme g. Learnt on the client: its private model f, with which it is
    tested; a client that was never trained is tested with g. Fine-tuning before a test trains f in
    the same way, beside g as it was received: that of a client that was never trained, too.

    Clients may have private networks of different depths and kinds: then g is the network that
    `--model` names. A client whose network is another one is tested with it, trained or not.

    Args:
      alpha: weight α of labels for the private model; with 1 it is training alone.
      beta: weight β of labels for the meme; with α = β = 1 it is FedAvg's model.
      weighting: a client's weight in the mean: `uniform` (the authors) or `data`.
      networks: the meme's first, where clients' networks differ.
      recipe: how a client trains in a round.

    Deviations: where clients have one network, the meme has its architecture; it begins with other
    weights, which the server draws. Both optimisers begin anew each round (the authors keep the
    private one's momentum). KL is summed over classes and its targets are detached (two public
    codes divide it by the number of classes and let each model make the other's target easier).
    Memes are averaged (in the authors' main script that is commented out), their running statistics
    too.

    Reference: Shen et al., "Federated Mutual Learning", 2020, https://arxiv.org/abs/2006.16765

    Example:
      >>> from fedtailor.methods.check import toy_task
      >>> method = fml(toy_task(), alpha=0.7)
    """
    common = networks[0] if networks else task
    say, too = task.outputs, common.outputs

    def mutual(f: Params, g: Params, more: Tree, batch: Batch) -> tuple[Tensor, Params, Params]:
        assert say is not None and too is not None
        (private, of_f), (meme, of_g) = say(f, batch), too(g, batch.again())
        hard = [task.losses(outputs, batch.y, batch.weight) for outputs in (private, meme)]
        each = alpha * hard[0] + (1 - alpha) * divergence(meme, private)
        each = each + beta * hard[1] + (1 - beta) * divergence(private, meme)
        return weighted_mean(each, batch), of_f, of_g

    def client(msg: Tree, state: Tree, data: Data, turn: Turn) -> Outcome:
        own, meme, _ = fit_both(
            (task, common), state["own"], msg["params"], mutual, data, turn, recipe
        )
        kept = {"own": own, "taught": torch.ones_like(state["taught"])}
        return Outcome(kept, Upload({"params": meme}, by_size(data, weighting)), own)

    def finetune(
        msg: Tree, state: Tree, model: Params, data: Data, turn: Turn, recipe: Recipe
    ) -> Params:
        given = (task, common), state["own"], msg["params"], mutual
        own, _, _ = fit_both(*given, data, turn, recipe)
        return own

    why = only_classes("its networks compare class probabilities")
    return with_common_network(task, common, client)._replace(refuses=why, finetune=finetune)
