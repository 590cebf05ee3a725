"""FedGen: a generator of features, which the server learns from clients' heads, teaches heads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import vmap

from fedtailor.core import rng, tree
from fedtailor.core.data import Data
from fedtailor.core.method import ClientCount, Method, Outcome, Upload, by_size, only_classes
from fedtailor.core.objectives import exact_gradient
from fedtailor.core.options import Count, NonNegative, Search, Weighting, Whole
from fedtailor.core.rng import Key, Turn
from fedtailor.core.steps.optim import adam
from fedtailor.core.steps.scan import Notes, StepRows, Steps, scan
from fedtailor.core.task import Batch, Task, weighted_mean
from fedtailor.core.training import Recipe, fit
from fedtailor.core.tree import Params, Tree
from fedtailor.methods.parts.representation import (
    head_split,
    number_of_classes,
    rows_per_class,
)
from fedtailor.methods.parts.two_networks import divergence

FADE, FAINT = 0.98, 1e-4  # of the generator's weight at clients: per round, and at least
MOMENTUM, EPS = 0.1, 1e-5  # of the generator's batch normalisation
STATISTICS = ("norm.mean", "norm.var")


def fedgen(
    task: Task,
    *,
    a: Annotated[NonNegative, Search(0.1, 10, log=True)] = 10.0,
    b: Annotated[NonNegative, Search(0.1, 10, log=True)] = 10.0,
    diversity: NonNegative = 1.0,
    noise: Count = 32,
    hidden: Count = 256,
    generator_lr: NonNegative = 3e-4,
    generator_decay: NonNegative = 1e-2,
    generator_steps: Whole = 50,
    generator_batch: Annotated[int, (2, 100_000)] = 32,
    weighting: Weighting = "data",
    recipe: Recipe = Recipe(),
) -> Method:
    """Data-free distillation: G(y, ε) makes features that clients' heads take for class y.

        server:  min_G mean over y, ε of Σ_k c_yk CE(head_k(z), y),   z = G(y, ε)
                 + η exp(−mean_ij |ε_i − ε_j|² |z_i − z_j|₁),   c_yk = n_k(y) / Σ_j n_j(y)
        client:  CE + a_t CE(head(G(y', ε)), y') + b_t KL(softmax(head(G(y, ε))) | p(x))
        w ← Σ_k Ω_k w_k

    y' is uniform over the classes that clients are known to have, y are the batch's own labels, ε
    is uniform in [0, 1). |·|² and |·|₁ are means over entries. a_t = max(1e-4, a 0.98^t), b_t
    likewise; both are 0 in the first round, when G has seen nobody. G is linear, BatchNorm, ReLU,
    linear, and makes what the network's head is given.

    Learnt on the server: w, and G with its optimiser. Nothing stays at clients. Tested with w.

    Args:
      a: weight of generated features with their labels.
      b: weight of what the head says of generated features, as a target for real ones. With a and
        b of 0 this is FedAvg.
      diversity: weight η of the term that keeps features of a class apart.
      noise: entries of ε.
      hidden: units of G's hidden layer.
      generator_lr: learning rate of G (Adam), times 0.98 per round.
      generator_decay: weight decay of G.
      generator_steps: steps of G per round (the authors': 10 times 5).
      generator_batch: generated features per step of G.
      weighting: a client's weight in the mean: `data` or `uniform`.
      recipe: how a client trains in a round; as many features are generated as a batch has rows.

    Deviations: n_k(y) are counts of a client's rows (the authors count the batches that were drawn,
    plus 1). Classes of which no client of the cohort has more than one row are not generated. G is
    trained on the heads of the round's cohort, one by one, and not on their mean. It normalises by
    its batch at the server and by running statistics at clients.

    Reference: Zhu et al., "Data-Free Knowledge Distillation for Heterogeneous Federated Learning",
    ICML 2021, https://arxiv.org/abs/2105.10056

    Example:
      >>> from fedtailor.methods.check import toy_task
      >>> method = fedgen(toy_task(), a=1.0, b=1.0, hidden=16)
    """
    split = head_split(task, "FedGen generates features")
    decayed = adam(1.0, generator_decay)

    def helped(params: Params, batch: Batch, given: Tree) -> tuple[Tensor, Params]:
        assert task.outputs is not None
        outputs, buffers = task.outputs(params, batch)
        count, made = len(batch.y), given["generator"]
        first, second = rng.split(rng.fold(batch.key, -5))
        labels, drawn = random_labels(first, given["known"], count, noise, outputs.dtype)
        hard = task.losses(outputs, batch.y, batch.weight)
        said = split.classify(params, generated(made, labels, drawn), batch)
        own = rng.uniform(second, count, noise, dtype=outputs.dtype)
        target = split.classify(params, generated(made, batch.y, own), batch)
        soft = divergence(target, outputs)
        each = hard + given["b"].to(hard.dtype) * soft
        more = F.cross_entropy(said, labels, reduction="none")
        # all rows at once are padded to the longest client's: as many count as are one's own
        unreal = weighted_mean(more, batch) if recipe.batch == 0 else more.mean()
        return weighted_mean(each, batch) + given["a"].to(hard.dtype) * unreal, buffers

    def init(clients: ClientCount, initial: Params, key: Key) -> Tree:
        classes, kind = number_of_classes(task, initial), next(iter(initial.values())).dtype
        made = new_generator(rng.fold(key, 2), classes + noise, hidden, split.width, kind)
        return {
            "params": initial,
            "generator": made,
            "memory": decayed.init(tree.drop(made, STATISTICS)),
            "known": torch.zeros(classes, device=key.device),
        }

    def client(msg: Tree, state: Tree, data: Data, turn: Turn) -> Outcome:
        w, later = msg["params"], turn.round > 0
        faded = FADE ** turn.round.double()
        strength = {
            name: torch.where(later, (full * faded).clamp(min=FAINT if full else 0.0), 0.0)
            for name, full in (("a", a), ("b", b))
        }
        given = tree.pick(msg, ["generator", "known"]) | strength
        loss = helped if a or b else None
        params = fit(task, w, data, turn, recipe, loss=loss, given=given)
        upload = Upload(
            {"body": tree.drop(params, task.head)},
            by_size(data, weighting),
            {"head": tree.pick(params, task.head), "rows": rows_per_class(data, len(msg["known"]))},
        )
        return Outcome(state, upload, params)

    def disagreement(
        theta: Tree, made: Batch, given: Tree, statistics: Tree
    ) -> tuple[Tensor, Tree]:
        """What G makes small, from noise x and labels y; its running statistics afterwards."""
        z, moved = generated_in_training(theta | statistics, made.y, made.x)
        said = vmap(lambda head: split.classify(head, z))(given["heads"])
        right = -said.log_softmax(-1).gather(-1, made.y.expand(len(said), -1)[..., None])[..., 0]
        wrong = (given["shares"][made.y].T * right).sum(0).mean()
        return wrong + diversity * alike(made.x, z), moved

    slope = exact_gradient(disagreement)

    def step(
        carry: Tree, given: Tree, now: StepRows, store: Sequence[Tensor], notes: Notes
    ) -> Tree:
        made = carry["generator"]
        theta, statistics = tree.drop(made, STATISTICS), tree.pick(made, STATISTICS)
        kind = made["last.weight"].dtype
        y, drawn = random_labels(now.key, given["known"], generator_batch, noise, kind)
        some = Batch(drawn, y, now.weight, now.active, now.key)
        grads, _, moved = slope(theta, some, given, statistics)
        optimiser = adam(given["rate"], generator_decay)
        change, memory = optimiser.update(grads, carry["memory"], theta)
        after = tree.map(lambda p, c: p + c.to(p.dtype), theta, change)
        return {"generator": {k: (after | moved)[k] for k in made}, "memory": memory}

    def taught(server: Tree, heads: Tree, rows: Tensor, turn: Turn) -> Tree:
        """The generator after this round's steps, and its optimiser's memory."""
        begun, known = tree.pick(server, ["generator", "memory"]), (rows > 1).any(0)
        kind = server["generator"]["last.weight"].dtype
        given = {
            "heads": heads,
            "shares": class_shares(rows).to(kind),
            "known": known,
            "rate": generator_lr * FADE ** turn.round.double(),
        }
        number = torch.arange(generator_steps, device=turn.key.device)
        # steps have no rows: they draw labels and noise
        steps = Steps.alone(number[:, None], torch.ones_like(number), rng.fold(turn.key, number))
        trained, _ = scan(step, begun, given, steps, (), compiles=False)
        # where there is nothing to learn from it is let go of: nobody waits to hear whether so
        return tree.where(known.any(), trained, begun)

    def receive(server: Tree, ids: Tensor, up: Upload, turn: Turn) -> Tree:
        heads, rows = up.each["head"], up.each["rows"]
        weight = rows.sum(1) if weighting == "data" else torch.ones_like(rows[:, 0])
        share = weight / weight.sum()
        mean = tree.map(lambda p: torch.tensordot(share.to(p.dtype), p, 1), heads)
        params = {k: (up.mean["body"] | mean)[k] for k in server["params"]}
        known = torch.maximum(server["known"], (rows > 0).any(0).to(server["known"].dtype))
        made = taught(server, heads, rows, turn) if a or b else {}
        return server | {"params": params, "known": known} | made

    return Method(
        init=init,
        send=lambda server, cid, turn: tree.pick(server, ["params", "generator", "known"]),
        start=lambda msg, initial, key: {},
        client=client,
        receive=receive,
        personal=lambda msg, state, data, turn: msg["params"],
        predict=task.predict,
        mean_only="heads and bodies of the same clients have to come together",
        not_private="clients tell how many rows of each class they have, without noise, so there "
        "is no guarantee: choose another method",
        refuses=only_classes("it generates features of classes"),
    )


def class_shares(rows: Tensor) -> Tensor:
    """c_yk: of each class's rows, the share that each client has; 0 for classes without any.

    Example:
      >>> class_shares(torch.tensor([[3.0, 0.0, 0.0], [1.0, 2.0, 0.0]]))
      tensor([[0.7500, 0.2500],
              [0.0000, 1.0000],
              [0.0000, 0.0000]])
    """
    return rows.T / rows.sum(0).clamp(min=1)[:, None]


def random_labels(
    key: Key, known: Tensor, count: int, noise: int, kind: torch.dtype
) -> tuple[Tensor, Tensor]:
    """Labels drawn uniformly from known classes, and noise for each.

    Example:
      >>> y, noise = random_labels(rng.key(0), torch.tensor([0, 1, 0]), 4, 2, torch.float32)
      >>> y, noise.shape
      (tensor([1, 1, 1, 1]), torch.Size([4, 2]))
    """
    first, second = rng.split(key)
    so_far = (known > 0).long().cumsum(0)
    place = (rng.uniform(first, count, dtype=torch.float64) * so_far[-1]).long()
    labels = (so_far <= place[:, None]).sum(-1).clamp(max=len(known) - 1)
    return labels, rng.uniform(second, count, noise, dtype=kind)


def alike(drawn: Tensor, z: Tensor) -> Tensor:
    """Near 1 where features hardly follow the noise that they are made from, else near 0."""
    noise = (drawn[:, None] - drawn).square().mean(-1)
    features = (z[:, None] - z).abs().mean(-1)
    return (-(noise * features).mean()).exp()


def new_generator(key: Key, inputs: int, hidden: int, width: int, kind: torch.dtype) -> Params:
    """A generator before its first step; linear layers begin as torch's do."""

    def layer(key: Key, inputs: int, outputs: int) -> tuple[Tensor, Tensor]:
        bound = inputs**-0.5
        first, second = rng.split(key)
        weight = rng.uniform(first, outputs, inputs, dtype=kind)
        bias = rng.uniform(second, outputs, dtype=kind)
        return (2 * weight - 1) * bound, (2 * bias - 1) * bound

    below, above = rng.split(key)
    (first, first_bias), (last, last_bias) = (
        layer(below, inputs, hidden),
        layer(above, hidden, width),
    )
    ones = torch.ones(hidden, dtype=kind, device=key.device)
    return {
        "first.weight": first,
        "first.bias": first_bias,
        "norm.weight": ones,
        "norm.bias": torch.zeros_like(ones),
        "norm.mean": torch.zeros_like(ones),
        "norm.var": ones.clone(),
        "last.weight": last,
        "last.bias": last_bias,
    }


def _lifted(made: Params, y: Tensor, drawn: Tensor) -> Tensor:
    classes = made["first.weight"].shape[1] - drawn.shape[1]
    of = (y[:, None] == torch.arange(classes, device=y.device)).to(drawn.dtype)
    given = torch.cat([of, drawn], -1)
    return F.linear(given, made["first.weight"], made["first.bias"])


def _lowered(made: Params, h: Tensor, mean: Tensor, var: Tensor) -> Tensor:
    normal = (h - mean) / (var + EPS).sqrt() * made["norm.weight"] + made["norm.bias"]
    return F.linear(normal.relu(), made["last.weight"], made["last.bias"])


def generated(made: Params, y: Tensor, drawn: Tensor) -> Tensor:
    """G(y, ε), normalised by running statistics."""
    return _lowered(made, _lifted(made, y, drawn), made["norm.mean"], made["norm.var"])


def generated_in_training(made: Params, y: Tensor, drawn: Tensor) -> tuple[Tensor, Tree]:
    """G(y, ε), normalised by its batch, and the running statistics afterwards."""
    h = _lifted(made, y, drawn)
    mean, var = h.mean(0), h.var(0, correction=0)
    unbiased = var.detach() * len(h) / max(len(h) - 1, 1)
    moved = {
        "norm.mean": torch.lerp(made["norm.mean"], mean.detach(), MOMENTUM),
        "norm.var": torch.lerp(made["norm.var"], unbiased, MOMENTUM),
    }
    return _lowered(made, h, mean, var), moved
