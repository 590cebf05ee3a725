"""pMixFed: global and local models mixed block by block, adaptively.

Mixing is a wrapper for methods made by `parts.partial`: pMixFed is `with_mixup` on full sharing,
`fedalt+mix` and `fedsim+mix` have it on their shared blocks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal, NamedTuple

import torch
from torch import Tensor

from fedtailor.core import rng, tree
from fedtailor.core.data import Data
from fedtailor.core.method import ClientCount, Method, Outcome, Upload, only_classes
from fedtailor.core.options import Above, Search, Share, Weighting
from fedtailor.core.rng import Key, Turn
from fedtailor.core.scoring import score
from fedtailor.core.task import Task, per_name
from fedtailor.core.training import Recipe
from fedtailor.core.tree import Params, Tree
from fedtailor.methods.describe import flat_options
from fedtailor.methods.parts.partial import Phase, all_names, matched, partial

Policy = Literal["sigmoid", "dynamic", "gradual", "random", "random_adaptive"]
QUANTILES = 4096  # steps of the table that Beta numbers are drawn with
STAGES = (0.1, 100.0, 10.0)  # alpha in the first, second and last third of the rounds


class Mixer(NamedTuple):
    """How strongly models are mixed.

    Attributes:
      mix_policy: where degrees come from: `sigmoid` (the paper's pMixFed: μ as above), `dynamic` (μ
        constant), `gradual` (μ linear in the round), `random` (every degree from Beta(α, α), no
        ramp), `random_adaptive` (the same with α = 0.1, 100, 10 in the thirds of the run).
      use_broadcast_mix: mix at download; off takes the global model as it is.
      use_aggregation_mix: mix at aggregation; off averages plainly.
      mu0: the constant μ of `dynamic`; 0 takes 1/(n − 1).
      mu_start: μ of `gradual` in round 0.
      mu_end: μ of `gradual` after the last round, when models are tested.
      alpha: α of `random`; the paper tries 0.1, 0.5, 1, 2, 5.
      agg_ratio: at aggregation A is mean local over global accuracy (the paper's appendix).
      renormalise: a block that only some clients have is averaged over those alone; else the
        others vote for its old value.
    """

    mix_policy: Annotated[Policy, Search()] = "sigmoid"
    use_broadcast_mix: bool = True
    use_aggregation_mix: bool = True
    mu0: Share = 0.0
    mu_start: Share = 0.5
    mu_end: Share = 0.0
    alpha: Annotated[Above, Search(0.1, 5, log=True)] = 1.0
    agg_ratio: Annotated[bool, Search()] = False
    renormalise: bool = False

    @property
    def random(self) -> bool:
        """Whether degrees are drawn, block by block."""
        return self.mix_policy in ("random", "random_adaptive")

    def mu(self, turn: Turn, accuracy: Tensor, blocks: int) -> Tensor:
        """The mix factor of this round."""
        progress = turn.round / turn.rounds
        if self.mix_policy == "sigmoid":
            return mix_factor(progress, accuracy)
        if self.mix_policy == "gradual":
            return self.mu_start + (self.mu_end - self.mu_start) * progress + 0 * accuracy
        return torch.zeros_like(accuracy) + (self.mu0 or 1 / max(blocks - 1, 1))

    def drawn(self, turn: Turn, key: Key, blocks: int) -> Tensor:
        """One random degree per block."""
        if self.mix_policy == "random":
            return beta(key, blocks, self.alpha)
        stage = (3 * turn.round // turn.rounds).clamp(max=2)
        return torch.stack([beta(key, blocks, alpha) for alpha in STAGES])[stage]


@flat_options
def pmixfed(
    task: Task,
    *,
    mix: Mixer = Mixer(),
    acc_source: Literal["val", "test"] = "val",
    weighting: Weighting = "data",
    recipe: Recipe = Recipe(),
    networks: Sequence[Task] = (),
) -> Method:
    """Deep blocks stay the client's own, shallow ones follow the server, with a ramp between.

        μ(δ, A) = σ(δ (1 − A²)),  δ = t/T
        download     λ_b[i] = clip(μ_k (n − i)),  A = accuracy of L_k over the mean one of G
                     L_k ← SGD(λ_b G + (1 − λ_b) L_k; E)
        aggregation  λ_a[i] = clip(1 − i μ_G),    A = mean accuracy of G
                     G ← Σ_k Ω_k (λ_a G + (1 − λ_a) L_k)

    for blocks i = 1 (input) .. n (head). λ is the global model's share in both stages. Learnt on
    the server: G. Kept by the client: L_k, whole. Tested with the mixed model.

    Args:
      mix: how strongly models are mixed.
      acc_source: rows that accuracies are measured on: `val`, or `test` as the paper does, which
        leaks test data into training; the result is then marked as leaking.
      weighting: a client's weight in the mean: `data` (Eq. 8) or `uniform` (Algorithm 1).
      recipe: how a client trains in a round (paper: Adam, 0.001, 5 epochs, batches of 32).
      networks: those of all clients, the server's first, where they differ.

    Deviations: Acc² − 1 with offset 1 and exponent 2 (text and appendix contradict each other in
    words). λ falls from input to head as in Eq. 6 to 8 (three sentences say the opposite). Blocks
    count from 1, so the head is frozen at download and the input block does learn. Accuracies come
    from validation rows (paper: test rows). Mixing is once a round (Algorithm 2: every epoch). The
    μ of `dynamic` and the line of `gradual` are not given in the paper: choices. A missing block
    keeps its old value where the paper's λ = 0 would shrink it. L_k begins as the initial model,
    also for clients that are drawn late or join later (the paper is silent); a client that has not
    trained yet, or is held out, is tested with L_k = G, which mixing does not change.

    Reference: Saadati et al., "pMixFed: Efficient Personalized Federated Learning through Adaptive
    Layer-Wise Mixup", https://arxiv.org/abs/2501.11002

    Example:
      >>> from fedtailor.methods.check import toy_task
      >>> method = pmixfed(toy_task(), mix=Mixer(mix_policy="gradual"))
    """
    names = matched(task, networks[0]) if networks else None
    own = [name for name in all_names(task) if names is not None and name not in names]
    phases = [Phase(all_names(task), recipe.epochs)]
    host = partial(task, own, phases, recipe=recipe, weighting=weighting, on_server=names)
    method = with_mixup(host, task, mix)
    return method._replace(leaks=acc_source == "test", own_networks="deepest")


def with_mixup(host: Method, task: Task, mixer: Mixer) -> Method:
    """A partial-sharing method whose shared blocks are mixed at download and at aggregation.

        L'_k,i = λ_b[i] G_i + (1 − λ_b[i]) L_k,i       G'_k,i = λ_a[i] G_i + (1 − λ_a[i]) L_k,i

    The client keeps its own copy of the shared blocks. It reports two accuracies on its validation
    rows: of its own model and of the global one.

    Args:
      host: made by `parts.partial`.
      task: the network; degrees ramp over all its blocks, shared or not.
      mixer: how strongly.

    Example:
      >>> from fedtailor.methods import fedsim
      >>> from fedtailor.methods.check import toy_task
      >>> task = toy_task()
      >>> method = with_mixup(fedsim(task), task, Mixer(mix_policy="gradual"))
    """
    count = len(task.blocks)

    def init(clients: ClientCount, initial: Params, key: Key) -> Tree:
        none = torch.zeros((), device=key.device)
        return host.init(clients, initial, key) | {"accuracy": none}

    def send(server: Tree, cid: Tensor, turn: Turn) -> Tree:
        return host.send(server, cid, turn) | {"overall": server["accuracy"]}

    def start(msg: Tree, initial: Params, key: Key) -> Tree:
        own = tree.pick(initial, msg["shared"])
        trained = torch.zeros((), dtype=torch.bool, device=key.device)
        return {"host": host.start(msg, initial, key), "own": own, "trained": trained}

    def accuracy(params: Params, data: Data) -> Tensor:
        return score(task, params, data.val).correct / data.val_n.clamp(min=1)

    def mixed(msg: Tree, state: Tree, data: Data, turn: Turn) -> tuple[Tree, Tree, Tensor]:
        """The message as the client sees it after mixing, notes, and its own model's accuracy."""
        own, personal = state["own"], _personal(state["host"])
        mine = accuracy(own | personal, data)
        mu = mixer.mu(turn, mine / msg["overall"].clamp(min=1e-3), count)
        degrees = broadcast_degrees(mu, count)
        if mixer.random:
            degrees = mixer.drawn(turn, turn.aside().key, count)
        if not mixer.use_broadcast_mix:
            degrees = torch.ones_like(degrees)
        shared = tree.lerp(own, msg["shared"], per_name(degrees, task.blocks, own))
        return {"shared": shared}, {"mix_factor": mu, "mix_degree": degrees}, mine

    def client(msg: Tree, state: Tree, data: Data, turn: Turn) -> Outcome:
        begun, notes, mine = mixed(msg, state, data, turn)
        out = host.client(begun, state["host"], data, turn)
        own = tree.pick(out.model, msg["shared"])
        theirs = accuracy(msg["shared"] | _personal(state["host"]), data)
        sent = own
        if mixer.random and mixer.use_aggregation_mix:  # every client draws degrees of its own
            key = rng.fold(turn.aside().key, 1)
            degrees = per_name(mixer.drawn(turn, key, count), task.blocks, own)
            sent = tree.lerp(own, msg["shared"], degrees)
        told = {"accuracy": torch.stack([mine, theirs])}
        upload = Upload({"shared": sent}, out.upload.weight, told)
        kept = {"host": out.state, "own": own, "trained": torch.ones_like(state["trained"])}
        return Outcome(kept, upload, out.model, notes | out.notes)

    def receive(server: Tree, ids: Tensor, up: Upload, turn: Turn) -> Tree:
        local, overall = up.each["accuracy"].mean(0)
        mean = up.mean["shared"]
        old = tree.pick(server["shared"], mean)
        if mixer.use_aggregation_mix and not mixer.random:
            relative = local / overall.clamp(min=1e-3) if mixer.agg_ratio else overall
            degrees = aggregation_degrees(mixer.mu(turn, relative, count), count)
            mean = tree.lerp(mean, old, per_name(degrees, task.blocks, mean))
        if not mixer.renormalise:  # who has no such block votes for its old value
            share = tree.map(lambda w, p: w.to(p.dtype), up.weight["shared"], mean)
            mean = tree.lerp(old, mean, share)
        up = up._replace(mean={"shared": mean})
        return host.receive(server, ids, up, turn) | {"accuracy": overall}

    def personal(msg: Tree, state: Tree, data: Data, turn: Turn) -> Params:
        # a model of its own has only who has trained one
        state = state | {"own": tree.where(state["trained"], state["own"], msg["shared"])}
        model: Params = host.personal(mixed(msg, state, data, turn)[0], state["host"], data, turn)
        return model

    def record(server: Tree) -> Tree:
        return {"global_accuracy": server["accuracy"]}

    def general(msg: Tree, state: Tree) -> Params:
        params: Params = msg["shared"] | _personal(state["host"])
        return params

    return host._replace(
        init=init,
        send=send,
        start=start,
        client=client,
        receive=receive,
        personal=personal,
        record=record,
        general=general,
        validates=True,
        refuses=only_classes("its mix factor μ is made of accuracies (but for mix_policy=gradual)")
        if mixer.mix_policy == "sigmoid"
        else host.refuses,
    )


def _personal(state: Tree) -> Params:
    """The parameters that the host does not share; it may have been wrapped before."""
    found: Params = state["personal"] if "personal" in state else _personal(state["host"])
    return found


def mix_factor(progress: Tensor, accuracy: Tensor) -> Tensor:
    """μ = 1 − 1/(1 + exp(−δ (A² − 1))) = σ(δ (1 − A²)): the slope of mixing over depth.

    Args:
      progress: δ = t/T.
      accuracy: A, relative or plain.
    """
    return torch.sigmoid(progress * (1 - accuracy.square()))


def broadcast_degrees(mu: Tensor, blocks: int) -> Tensor:
    """λ_b[i] = clip(μ (n − i)): the server's share per block at download; 0 at the head."""
    depth = torch.arange(blocks - 1, -1, -1, device=mu.device, dtype=mu.dtype)
    return (mu * depth).clamp(0, 1)


def aggregation_degrees(mu: Tensor, blocks: int) -> Tensor:
    """λ_a[i] = clip(1 − i μ): the old global model's share per block at aggregation."""
    depth = torch.arange(1, blocks + 1, device=mu.device, dtype=mu.dtype)
    return (1 - mu * depth).clamp(0, 1)


def beta(key: Key, n: int, alpha: float) -> Tensor:
    """`n` numbers from Beta(alpha, alpha), keyed: its quantiles at uniform numbers."""
    from scipy.special import betaincinv

    at = torch.linspace(0, 1, QUANTILES + 1, dtype=torch.float64)
    # no straight line to 0 and 1 in the outermost cells, where the quantiles bend most
    at = at.clamp(0.25 / QUANTILES, 1 - 0.25 / QUANTILES)
    table = torch.from_numpy(betaincinv(alpha, alpha, at.numpy())).to(torch.get_default_dtype())
    place = rng.uniform(key, n) * QUANTILES
    low = place.long().clamp(max=QUANTILES - 1)
    table = table.to(key.device)
    return torch.lerp(table[low], table[low + 1], place - low)
