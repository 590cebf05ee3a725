"""Five more methods as plain PyTorch loops: see `loops.py`, whose rules hold here.

Features are what the network's last layer is given; the network is an `nn.Sequential` that ends
with a linear layer. What FedPAC's server solves (which heads suit whom) is solved by FedTailor's
own `mixing_weights` on both sides.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from typing import NamedTuple

import torch
import torch.nn.functional as F
from loops import Averaged, Batches, Loop, Params
from torch import Tensor, nn

from fedtailor.core import rng
from fedtailor.core.data import Data
from fedtailor.core.rng import Turn
from fedtailor.core.scoring import SCORED
from fedtailor.methods.partial_sharing.fedcp import GATE, WIDTHS, gate_of
from fedtailor.methods.parts.simplex import mixing_weights
from fedtailor.methods.prototypes.fedpac import SMALL


class FeatureLoop(Loop):
    """A loop that looks at features.

    Attributes:
      body: the network in training up to its features.
      head: its last layer.
      fixed: the body of the network that is not trained, see `show`.
      rows: of each client (row) and class (column), how many training rows there are.
    """

    def begin(self) -> None:
        super().begin()
        last = self.net[-1] if isinstance(self.net, nn.Sequential) else None
        if not isinstance(last, nn.Linear):
            raise ValueError(f"{self.method} needs a network that ends with a linear layer")
        self.body, self.head = self.net[:-1], last
        self.fixed, self.fixed_head = self.judge[:-1], self.judge[-1]
        self.head_names = list(self.task.head)
        self.body_names = [name for name in self.names if name not in self.head_names]
        self.width, self.classes = last.in_features, last.out_features
        labels = [self.client_data.y[self.rows_of(cid)] for cid in self.clients]
        counts = [torch.bincount(y, minlength=self.classes) for y in labels]
        self.rows = torch.stack(counts).to(self.device, torch.get_default_dtype())

    def rows_of(self, cid: int) -> Tensor:
        """The numbers of a client's training rows."""
        begin = int(self.client_data.train.offset[cid])
        return self.client_data.train.flat[begin : begin + self.sizes[cid]]

    def features(self, cid: int, params: Params) -> tuple[Tensor, Tensor]:
        """Features of all of a client's training rows, and their sums by class."""
        self.show(params)
        parts = [self.fetch(rows) for rows in self.rows_of(cid).split(SCORED)]
        found = torch.cat([self.fixed(x) for x, _ in parts])
        sums = found.new_zeros(self.classes, self.width)
        return found, sums.index_add_(0, torch.cat([y for _, y in parts]), found)

    def descend_pulled(
        self, params: Params, batches: Batches, targets: Tensor, seen: Tensor | None = None
    ) -> Params:
        """Trains `params` in place, with features pulled to the targets of their classes.

        Args:
          params: what is trained.
          batches: the rows of each step.
          targets: classes x width.
          seen: 1 for classes that have a target, else 0; None: all have.
        """
        self.place(params.values())
        for rows in batches:
            x, y = self.fetch(rows)
            self.optimiser.zero_grad()
            z = self.body(x)
            apart = (z - targets[y]).square().mean(-1)
            pull = (apart if seen is None else seen[y] * apart).mean()
            (F.cross_entropy(self.head(z), y) + self.option.lam * pull).backward()
            self.optimiser.step()
        return params


class FedProto(FeatureLoop):
    """Everybody's own model, whose features are pulled to the mean features of all.

    Attributes:
      server: the prototypes, and which classes have one.
    """

    method = "fedproto"
    takes = ("lam", "weighting", "keep")

    def begin(self) -> None:
        super().begin()
        self.own = dict.fromkeys(self.clients, self.initial)
        seen = torch.zeros(self.classes, device=self.device)
        self.server = {"prototypes": seen.new_zeros(self.classes, self.width), "seen": seen}
        self.begun = False  # in the first round there is nothing to pull to

    def play(self, number: int, plans: dict[int, Batches]) -> None:
        prototypes, seen = self.server["prototypes"], self.server["seen"]
        total, votes = torch.zeros_like(prototypes), torch.zeros_like(seen)
        for cid, batches in plans.items():
            params = self.copy(self.own[cid])
            if self.begun:
                self.descend_pulled(params, batches, prototypes, seen)
            else:
                self.descend(params, batches)
            self.own[cid] = params
            rows = self.rows[cid]
            with torch.no_grad():
                _, sums = self.features(cid, params)
            if self.option.weighting == "data":
                total, votes = total + sums, votes + rows
            else:
                total, votes = total + sums / rows.clamp(min=1)[:, None], votes + (rows > 0)
        had = votes > 0
        fresh = total / votes.clamp(min=1)[:, None]
        now = had.to(seen.dtype)
        self.server = {
            "prototypes": torch.where(had[:, None], fresh, prototypes),
            "seen": torch.maximum(seen, now) if self.option.keep else now,
        }
        self.begun = True


class _PacPlan(NamedTuple):
    head: Batches
    body: Batches


class _PacUpload(NamedTuple):
    cid: int
    head: Params
    shares: Tensor
    variance: Tensor


class FedPAC(FeatureLoop, Averaged):
    """A shared body that is pulled to prototypes, and for each client the heads that suit it.

    Attributes:
      server: the body.
      own: everybody's head, which the server makes.
      prototypes: mean features of the classes.
      seen: which classes have one.
    """

    method = "fedpac"
    takes = ("lam", "head_lr", "head_epochs", "weighting")

    def begin(self) -> None:
        super().begin()
        self.server = {name: self.initial[name] for name in self.body_names}
        self.mean_head = {name: self.initial[name] for name in self.head_names}
        self.seen = torch.zeros(self.classes, dtype=torch.bool, device=self.device)
        self.prototypes = torch.zeros(self.classes, self.width, device=self.device)
        self.head_optimiser = torch.optim.SGD(self.head.parameters(), lr=self.option.head_lr)
        self.begun = False
        self.uploads: list[_PacUpload] = []
        self.totals = torch.zeros_like(self.prototypes)
        self.counts = self.rows.new_zeros(self.classes)

    def plan(self, cid: int, data: Data, turn: Turn) -> _PacPlan:
        counts = (self.option.head_epochs, self.epochs)
        return _PacPlan(*(self.passes(data, turn.at_client(), count) for count in counts))

    def client(self, cid: int, plan: _PacPlan) -> Params:
        params = self.copy(self.server | self.own.get(cid, self.mean_head))
        rows, n = self.rows[cid], self.sizes[cid]
        with torch.no_grad():
            found, sums = self.features(cid, params)
            shares = sums / n
            spread = found.square().sum() / n - shares.square().sum()
            variance = spread.clamp(min=0) / n + 1e-8
        self.trainable(self.head_names)
        self.descend(params, plan.head, optimiser=self.head_optimiser)
        self.trainable(self.body_names)
        if self.begun:
            means = sums / rows.clamp(min=1)[:, None]
            targets = torch.where(self.seen[:, None], self.prototypes, means)
            self.descend_pulled(params, plan.body, targets)
        else:
            self.descend(params, plan.body)
        with torch.no_grad():
            _, sums = self.features(cid, params)
        self.totals, self.counts = self.totals + sums, self.counts + rows
        head = {name: params[name] for name in self.head_names}
        self.uploads.append(_PacUpload(cid, head, shares, variance))
        return params

    def receive(self, number: int, mean: Params) -> Params:
        shares = torch.stack([up.shares.flatten() for up in self.uploads])
        weights = mixing_weights(shares, torch.stack([up.variance for up in self.uploads]))
        weights = torch.where(weights < SMALL, 0.0, weights)
        weights = weights / weights.sum(1, keepdim=True)
        heads = {k: torch.stack([up.head[k] for up in self.uploads]) for k in self.head_names}
        mixed = {k: torch.tensordot(weights, stack, 1) for k, stack in heads.items()}
        for i, up in enumerate(self.uploads):
            self.own[up.cid] = {name: stack[i] for name, stack in mixed.items()}
        self.mean_head = {name: stack.mean(0) for name, stack in heads.items()}
        had = self.counts > 0
        fresh = self.totals / self.counts.clamp(min=1)[:, None]
        self.prototypes = torch.where(had[:, None], fresh, self.prototypes)
        self.seen, self.begun = self.seen | had, True
        self.uploads.clear()
        self.totals, self.counts = torch.zeros_like(self.totals), torch.zeros_like(self.counts)
        return mean


class Gate(nn.Module):
    """FedCP's gate: which share of each feature is for the personal head.

    Args:
      start: its values at first, as `gate_of` makes them.
    """

    def __init__(self, start: Params) -> None:
        super().__init__()
        wide, width = start[GATE[0]].shape
        self.layer, self.norm = nn.Linear(width, wide), nn.LayerNorm(wide)

    def forward(self, features: Tensor, toward: Tensor, noise: Tensor) -> Tensor:
        one, two = F.relu(self.norm(self.layer(features * toward))).chunk(2, -1)
        return torch.sigmoid(one - two + noise)


class _GatedPlan(NamedTuple):
    training: Batches
    noise: Sequence[Tensor]  # for the rows of each batch, on the device


class FedCP(FeatureLoop, Averaged):
    """A gate that all learn divides features between a head for all and one's own.

    Attributes:
      server: body, head for all, and gate.
      own: the own head of everybody who has trained; it begins as the head for all.
    """

    method = "fedcp"
    takes = ("lam", "weighting")

    def begin(self) -> None:
        super().begin()
        start = gate_of(self.width, rng.key(self.seed, rng.SERVER))
        self.gate = Gate(start).to(self.device)
        self.server = self.initial | {name: start[name].to(self.device) for name in GATE}
        self.own: dict[int, Params] = {}
        self.gate_weights = list(self.gate.parameters())
        self.optimiser = torch.optim.SGD([*self.weights, *self.gate_weights], lr=self.lr)

    def plan(self, cid: int, data: Data, turn: Turn) -> _GatedPlan:
        own, noise = turn.at_client(), []
        training = self.passes(data, own, self.epochs)
        steps = len(training) // self.epochs
        for step, rows in enumerate(training):
            _, keys = rng.split(rng.fold(own.key, step // steps))
            key = rng.fold(rng.fold(keys, step % steps), -7)
            drawn = rng.uniform(key, len(rows), self.width).clamp(1e-6, 1 - 1e-6)
            noise.append((drawn / (1 - drawn)).log().to(self.device))
        return _GatedPlan(training, noise)

    def client(self, cid: int, plan: _GatedPlan) -> Params:
        received = self.server
        own = self.own.get(cid, {name: received[name] for name in self.head_names})
        params = self.copy(received | own)
        gate = {name: received[name].clone() for name in GATE}
        summed = own[self.head_names[0]].sum(0)
        toward = summed / (summed.square().sum() + 1e-12).sqrt()
        self.show(received)
        self.place(params.values())
        for weight, value in zip(self.gate_weights, gate.values(), strict=True):
            weight.data = value
        for rows, noise in zip(plan.training, plan.noise, strict=True):
            x, y = self.fetch(rows)
            self.optimiser.zero_grad()
            z = self.body(x)
            share = self.gate(z, toward, noise)
            said = self.head(share * z) + self.fixed_head((1 - share) * z)
            loss = F.cross_entropy(said, y) + self.option.lam * _mmd(z, self.fixed(x))
            loss.backward()
            self.optimiser.step()
        self.own[cid] = {name: params[name] for name in self.head_names}
        halfway = {k: torch.lerp(received[k], params[k], 0.5) for k in self.head_names}
        return params | gate | halfway


def _mmd(one: Tensor, two: Tensor) -> Tensor:
    """MMD² of two sets of rows."""
    return _kernel(one, one) + _kernel(two, two) - 2 * _kernel(one, two)


def _kernel(one: Tensor, two: Tensor) -> Tensor:
    apart = (one[:, None] - two).square().sum(-1)
    found: Tensor = sum((-apart / (2 * width)).exp().mean() for width in WIDTHS)
    return found


class Moon(FeatureLoop, Averaged):
    """FedAvg with features near the server's model's and away from those of the client's last one.

    Attributes:
      own: the model that each client ended its last turn with.
    """

    method = "moon"
    takes = ("mu", "temperature", "weighting")  # one last model: buffer is 1

    def begin(self) -> None:
        super().begin()
        other = deepcopy(self.judge)
        self.last, self.last_weights = other[:-1], list(other.parameters())

    def client(self, cid: int, plan: Batches) -> Params:
        params = self.copy(self.server)
        if cid in self.own:
            self.contrast(params, self.own[cid], plan)
        else:
            self.descend(params, plan)
        self.own[cid] = params
        return params

    def contrast(self, params: Params, last: Params, batches: Batches) -> None:
        self.place(params.values())
        self.show(self.server)
        for weight, value in zip(self.last_weights, last.values(), strict=True):
            weight.data = value
        for rows in batches:
            x, y = self.fetch(rows)
            self.optimiser.zero_grad()
            z = self.body(x)
            others = (self.fixed(x), self.last(x))
            near = torch.stack([F.cosine_similarity(z, other) for other in others], -1)
            apart = -(near / self.option.temperature).log_softmax(-1)[:, 0]
            loss = F.cross_entropy(self.head(z), y) + self.option.mu * apart.mean()
            loss.backward()
            self.optimiser.step()


class FML(Averaged):
    """A private model and a common one that teach each other; only the common one travels.

    Attributes:
      server: the common model.
      own: everybody's private one.
    """

    method = "fml"
    takes = ("alpha", "beta", "weighting")

    def begin(self) -> None:
        first = self.task.init(rng.fold(rng.key(self.seed, rng.SERVER), 1))
        self.server = {name: first[name] for name in self.names}
        self.own = dict.fromkeys(self.clients, self.initial)
        self.meme = deepcopy(self.net)
        self.meme_weights = list(self.meme.parameters())
        self.optimiser = torch.optim.SGD([*self.weights, *self.meme_weights], lr=self.lr)

    def client(self, cid: int, plan: Batches) -> Params:
        own, meme = self.copy(self.own[cid]), self.copy(self.server)
        alpha, beta = self.option.alpha, self.option.beta
        self.place(own.values())
        for weight, value in zip(self.meme_weights, meme.values(), strict=True):
            weight.data = value
        for rows in plan:
            x, y = self.fetch(rows)
            self.optimiser.zero_grad()
            one, two = self.net(x).log_softmax(-1), self.meme(x).log_softmax(-1)
            loss = alpha * F.nll_loss(one, y) + (1 - alpha) * _divergence(two, one)
            loss = loss + beta * F.nll_loss(two, y) + (1 - beta) * _divergence(one, two)
            loss.backward()
            self.optimiser.step()
        self.own[cid] = own
        return meme


def _divergence(target: Tensor, other: Tensor) -> Tensor:
    """KL(target | other) of log probabilities; the target is not taught."""
    return F.kl_div(other, target.detach(), reduction="batchmean", log_target=True)


MORE_LOOPS: dict[str, type[Loop]] = {
    loop.method: loop for loop in (FedProto, FedPAC, FedCP, Moon, FML)
}
