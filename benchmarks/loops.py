"""What FedTailor is timed against: eight methods as plain PyTorch loops, without its engine.

`more_loops.py` has five more.

One client after another trains an ordinary `nn.Module` with `loss.backward()` and
`torch.optim.SGD`; each mini-batch is taken from host memory and moved to the device at its step.

The loops are to be as fast as that way of working allows. So parameters that stay fixed take no
part in the backward pass, rows that models are judged on are moved once for all of them, no value
is asked back from the device where the method does not depend on it, and a model is put into the
network by reference. Random draws need not be timed: `Loop.prepare` makes them beforehand, from
the same keys as FedTailor, so both sides end with the same parameters
(`tests/benchmarks/test_loops.py`).

    loop = LOOPS["ditto"]("cnn", form, federation, seed=0, lr=0.005, batch=10, device="cuda")
    loop.prepare(0, cohort)
    loop.round(0, cohort)  # the part to time
    loop.server, loop.own
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from types import SimpleNamespace
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedtailor.core import rng
from fedtailor.core.data import Data
from fedtailor.core.form import Form
from fedtailor.core.rng import Turn
from fedtailor.core.scoring import SCORED
from fedtailor.core.task import classification, to_input
from fedtailor.engine import ClientData
from fedtailor.methods import METHODS
from fedtailor.methods.describe import page
from fedtailor.methods.parts.layerwise import init_weigher
from fedtailor.models import build

Params = dict[str, Tensor]
Batches = Sequence[Tensor]  # row numbers, batch by batch
Held = Sequence[tuple[Tensor, Tensor]]  # examples and labels on the device
# (values of the network's parameters, their gradients), which it may change in place
Adjust = Callable[[list[Tensor], list[Tensor]], None]


class Loop:
    """A federation whose clients are visited one after another.

    Attributes:
      server: the server's parameters by name; empty where the server has no model of its own.
      own: for each client, the parameters that stay with it (or that the server has of it).

    Args:
      model: name of a network without BatchNorm, see `fedtailor.models`.
      form: what the examples look like.
      client_data: everybody's data, on any device; it is copied to host memory.
      seed: of the run.
      lr: learning rate of the clients.
      batch: examples per step; 0 takes all of a client's rows at once.
      device: where training happens.
      options: hyper-parameters that differ from the method's defaults; only those in `takes`.
      epochs: passes over a client's rows in a round.
      rounds: how many rounds the run has, for schedules.
    """

    method: ClassVar[str]  # name on FedTailor's command line
    takes: ClassVar[tuple[str, ...]] = ()

    def __init__(
        self,
        model: str,
        form: Form,
        client_data: ClientData,
        seed: int = 0,
        lr: float = 0.05,
        batch: int = 10,
        device: torch.device | str = "cpu",
        options: dict[str, Any] | None = None,
        *,
        epochs: int = 1,
        rounds: int = 1,
    ) -> None:
        self.model, self.seed, self.lr, self.batch = model, seed, lr, batch
        self.epochs, self.rounds = epochs, rounds
        self.device = torch.device(device)
        self.option = self._options(options or {})
        self.client_data = _on_host(client_data)
        self.clients = range(client_data.clients)
        self.sizes = client_data.train.n.tolist()
        if min(self.sizes) < 1:
            raise ValueError(f"client {self.sizes.index(0)} has no training rows: leave it out")

        # FedTailor's task says what the parameters are at first and how they form blocks
        task = classification(lambda: build(model, form), device=self.device)
        if task.batch_norm:
            raise ValueError(f"model '{model}' has BatchNorm: choose one with GroupNorm or without")
        self.net = build(model, form).to(self.device).train()
        self.judge = build(model, form).to(self.device).eval().requires_grad_(False)
        self.names = [name for name, _ in self.net.named_parameters()]
        self.weights = list(self.net.parameters())
        self.judged = list(self.judge.parameters())
        self.task, self.blocks = task, task.blocks
        # without momentum an optimiser has no state, so that one serves all clients
        self.optimiser = torch.optim.SGD(self.weights, lr=lr)

        first = task.init(rng.key(seed, rng.INITIAL))
        self.initial: Params = {name: first[name] for name in self.names}
        self.server: Params = {}
        self.own: dict[int, Params] = {}
        self._plans: dict[tuple[int, int], Any] = {}
        self.begin()

    def _options(self, given: dict[str, Any]) -> SimpleNamespace:
        """The method's own defaults, so that they are written down once, and what was given."""
        unknown = sorted(set(given) - set(self.takes))
        if unknown:
            raise ValueError(f"the loop of {self.method} does not take {', '.join(unknown)}")
        known = {option.name: option.default for option in page(METHODS[self.method]).options}
        return SimpleNamespace(**{name: known[name] for name in self.takes} | given)

    # --- what methods fill in ---

    def begin(self) -> None:
        """Makes the first state of server and clients."""
        self.server = self.initial

    def plan(self, cid: int, data: Data, turn: Turn) -> Any:
        """All that is drawn for one client's round; `turn` is that of FedTailor's `send`."""
        return self.passes(data, turn.at_client(), self.epochs)

    def play(self, number: int, plans: dict[int, Any]) -> None:
        """One round of the clients that have a plan."""
        raise NotImplementedError

    # --- rounds ---

    def prepare(self, number: int, cohort: Iterable[int]) -> None:
        """Makes the random draws of a round, so that they need not be timed with it."""
        key = rng.key(self.seed, rng.TURN, number)
        turn = Turn(key, torch.tensor(number), torch.tensor(self.rounds))
        for cid in cohort:
            if (number, cid) not in self._plans:
                client = torch.tensor(cid)
                data = _of_one(self.client_data.data(client[None]))
                self._plans[number, cid] = self.plan(cid, data, turn.of(client))

    def round(self, number: int, cohort: Iterable[int]) -> None:
        """Plays round `number`, counted from 0, with the clients `cohort`."""
        cohort = list(cohort)
        self.prepare(number, cohort)
        self.play(number, {cid: self._plans[number, cid] for cid in cohort})

    def passes(self, data: Data, turn: Turn, epochs: int) -> Batches:
        """The rows of each batch, in the order in which FedTailor's `Recipe.plan` visits them."""
        found: list[Tensor] = []
        count = int(data.n)
        for epoch in range(epochs):
            order, _ = rng.split(rng.fold(turn.key, epoch))
            found += data.shuffle(order).rows[:count].split(self.batch or count)
        return found

    # --- training ---

    def fetch(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """A batch from host memory; images travel as bytes, and nobody waits for them to arrive."""
        x = self.client_data.x.index_select(0, rows).to(self.device, non_blocking=True)
        y = self.client_data.y.index_select(0, rows).to(self.device, non_blocking=True)
        return to_input(x, torch.get_default_dtype()), y

    def place(self, values: Iterable[Tensor]) -> None:
        """Lets the network have `values` for its parameters: steps then change them in place."""
        for weight, value in zip(self.weights, values, strict=True):
            weight.data = value

    def gradient(self, x: Tensor, y: Tensor) -> Tensor:
        """Leaves gradients in the network; returns the loss."""
        self.optimiser.zero_grad()
        loss = F.cross_entropy(self.net(x), y)
        loss.backward()
        return loss

    def descend(
        self,
        params: Params,
        batches: Batches,
        adjust: Adjust | None = None,
        optimiser: torch.optim.Optimizer | None = None,
    ) -> Params:
        """Trains `params` in place and returns them."""
        step = (optimiser or self.optimiser).step
        values = list(params.values())
        self.place(values)
        for rows in batches:
            self.gradient(*self.fetch(rows))
            if adjust:
                adjust(values, [weight.grad for weight in self.weights])
            step()
        return params

    def copy(self, params: Params) -> Params:
        """Parameters to train, in the network's order."""
        return {name: params[name].clone() for name in self.names}

    def trainable(self, names: Iterable[str]) -> None:
        """Keeps all other parameters out of the backward pass."""
        chosen = set(names)
        for name, weight in zip(self.names, self.weights, strict=True):
            weight.requires_grad_(name in chosen)

    def top(self, blocks: int) -> list[str]:
        """The names in the blocks next to the output."""
        return [
            name for block in self.blocks[max(len(self.blocks) - blocks, 0) :] for name in block
        ]

    # --- judging models on validation rows ---

    def show(self, params: Params) -> None:
        """Lets the network that judges have these parameters."""
        for weight, name in zip(self.judged, self.names, strict=True):
            weight.data = params[name]

    def held_out(self, cid: int) -> Held:
        """A client's validation rows on the device, in batches as large as FedTailor's."""
        begin, count = int(self.client_data.val.offset[cid]), int(self.client_data.val.n[cid])
        rows = self.client_data.val.flat[begin : begin + count]
        return [self.fetch(part) for part in rows.split(SCORED)] if count else []

    def judge_by(
        self, params: Params, held: Held, measure: Callable[[Tensor, Tensor], Tensor]
    ) -> Tensor:
        """The mean over all held-out rows of a measure that adds up over rows."""
        self.show(params)
        total, count = torch.zeros((), device=self.device), 0
        for x, y in held:
            total = total + measure(self.judge(x), y)
            count += len(y)
        return total / max(count, 1)


def _on_host(client_data: ClientData) -> ClientData:
    parts = {k: getattr(client_data, k) for k in ("train", "val", "test")}
    rows = {k: part._replace(flat=part.flat.cpu()) for k, part in parts.items()}
    return client_data._replace(x=client_data.x.cpu(), y=client_data.y.cpu(), **rows)


def _of_one(data: Data) -> Data:
    """The only client's data out of a stack."""
    return Data(data.x, data.y, data.rows[0], data.n[0], data.val_rows[0], data.val_n[0])


def _values(params: Params) -> list[Tensor]:
    return list(params.values())


def _length(values: Sequence[Tensor]) -> Tensor:
    """The 2-norm of all values together."""
    return torch.linalg.vector_norm(torch.stack(torch._foreach_norm(values)))


class Averaged(Loop):
    """A loop whose server takes the mean of what clients send."""

    takes = ("weighting",)

    def client(self, cid: int, plan: Any) -> Params:
        """One client's turn; returns what it sends."""
        raise NotImplementedError

    def receive(self, number: int, mean: Params) -> Params:
        """The server's new parameters."""
        return mean

    def play(self, number: int, plans: dict[int, Any]) -> None:
        by_rows = getattr(self.option, "weighting", "uniform") == "data"
        weights = {cid: self.sizes[cid] if by_rows else 1 for cid in plans}
        total = sum(weights.values())
        mean = {name: torch.zeros_like(value) for name, value in self.server.items()}
        for cid, plan in plans.items():
            sent = self.client(cid, plan)
            shared = [sent[name] for name in mean]
            torch._foreach_add_(_values(mean), shared, alpha=weights[cid] / total)
        self.server = self.receive(number, mean)


class FedAvg(Averaged):
    """Clients train the server's model."""

    method = "fedavg"

    def client(self, cid: int, plan: Batches) -> Params:
        return self.descend(self.copy(self.server), plan)


class _AlaPlan(NamedTuple):
    mixing: Batches  # one pass over the rows that W is learnt on
    training: Batches


class FedALA(Averaged):
    """Before it trains, a client learns how much of the server's top blocks to take in.

    Attributes:
      mixing_weights: W of each client, by name.
      started: who has learnt W until it converged.
    """

    method = "fedala"
    takes = ("s", "p", "eta", "threshold", "window", "max_ala_epochs", "weighting")

    def begin(self) -> None:
        self.server = self.initial
        self.own = dict.fromkeys(self.clients, self.initial)
        self.mixed_names = [name for name in self.names if name in self.top(self.option.p)]
        self.mixing_weights = {
            cid: {name: torch.ones_like(self.initial[name]) for name in self.mixed_names}
            for cid in self.clients
        }
        self.started: set[int] = set()

    def plan(self, cid: int, data: Data, turn: Turn) -> _AlaPlan:
        own = turn.at_client()
        draw, order = own.aside().split()
        part = data.shuffle(draw.key).first(self.option.s / 100)
        return _AlaPlan(self.passes(part, order, 1), self.passes(data, own, self.epochs))

    def client(self, cid: int, plan: _AlaPlan) -> Params:
        self.own[cid] = self.descend(self.copy(self.mixed(cid, plan.mixing)), plan.training)
        return self.own[cid]

    def mixed(self, cid: int, batches: Batches) -> Params:
        """Where the client begins to train."""
        own, received = self.own[cid], self.server
        if not self.mixed_names or all(torch.equal(own[k], received[k]) for k in self.names):
            return received
        names, weights = self.mixed_names, _values(self.mixing_weights[cid])
        mine = [own[name] for name in names]
        apart = torch._foreach_sub([received[name] for name in names], mine)
        here = torch._foreach_addcmul(mine, apart, weights)
        params = received | dict(zip(names, here, strict=True))
        self.place(params.values())
        self.trainable(names)
        top = [weight for weight in self.weights if weight.requires_grad]
        losses: list[Tensor] = []
        while len(losses) < self.option.max_ala_epochs:
            for rows in batches:
                loss = self.gradient(*self.fetch(rows))
                slopes = [weight.grad for weight in top]
                torch._foreach_addcmul_(weights, slopes, apart, value=-self.option.eta)
                torch._foreach_clamp_min_(weights, 0.0)
                torch._foreach_clamp_max_(weights, 1.0)
                torch._foreach_copy_(here, mine)
                torch._foreach_addcmul_(here, apart, weights)
            losses.append(loss.detach())
            if cid in self.started or self.converged(losses):
                break
        self.started.add(cid)
        self.trainable(self.names)
        return params

    def converged(self, losses: list[Tensor]) -> bool:
        window = self.option.window
        if len(losses) <= window:
            return False
        return bool(torch.stack(losses[-window:]).std(correction=0) < self.option.threshold)


class _DittoPlan(NamedTuple):
    shared: Batches
    own: Batches


class Ditto(Averaged):
    """FedAvg, and beside it a personal model that is pulled towards the one received."""

    method = "ditto"
    takes = ("lam", "own_epochs", "weighting")

    def begin(self) -> None:
        self.server = self.initial
        self.own = dict.fromkeys(self.clients, self.initial)

    def plan(self, cid: int, data: Data, turn: Turn) -> _DittoPlan:
        epochs = self.option.own_epochs or self.epochs
        counts = (self.epochs, epochs)
        return _DittoPlan(*(self.passes(data, turn.at_client(), count) for count in counts))

    def client(self, cid: int, plan: _DittoPlan) -> Params:
        anchor, strength = _values(self.server), self.option.lam

        def pull(values: list[Tensor], slopes: list[Tensor]) -> None:
            torch._foreach_add_(slopes, torch._foreach_sub(values, anchor), alpha=strength)

        sent = self.descend(self.copy(self.server), plan.shared)
        self.own[cid] = self.descend(self.copy(self.own[cid]), plan.own, pull)
        return sent


class _RepPlan(NamedTuple):
    head: Batches
    body: Batches


class FedRep(Averaged):
    """First the client's own head is trained, then the shared body; only the body travels."""

    method = "fedrep"
    takes = ("head_epochs", "head_blocks", "weighting")

    def begin(self) -> None:
        self.head = self.top(self.option.head_blocks)
        self.body = [name for name in self.names if name not in self.head]
        self.server = {name: self.initial[name] for name in self.body}
        head = {name: self.initial[name] for name in self.head}
        self.own = dict.fromkeys(self.clients, head)

    def plan(self, cid: int, data: Data, turn: Turn) -> _RepPlan:
        counts = (self.option.head_epochs, self.epochs)
        return _RepPlan(*(self.passes(data, turn.at_client(), count) for count in counts))

    def client(self, cid: int, plan: _RepPlan) -> Params:
        params = self.copy(self.server | self.own[cid])
        self.trainable(self.head)
        self.descend(params, plan.head)
        self.trainable(self.body)
        self.descend(params, plan.body)
        self.own[cid] = {name: params[name] for name in self.head}
        return params


class PMixFed(Averaged):
    """Server's and client's blocks are mixed at download and at aggregation (policy `sigmoid`).

    Attributes:
      accuracy: mean accuracy of the server's model in the latest round.
    """

    method = "pmixfed"

    def begin(self) -> None:
        self.server = self.initial
        self.accuracy = torch.zeros((), device=self.device)
        self.judgements: list[Tensor] = []
        number = {name: i for i, block in enumerate(self.blocks) for name in block}
        self.block_of = [number[name] for name in self.names]
        count = len(self.blocks)
        kind = torch.get_default_dtype()
        self.above = torch.arange(count - 1, -1, -1, device=self.device, dtype=kind)
        self.depth = torch.arange(1, count + 1, device=self.device, dtype=kind)

    def plan(self, cid: int, data: Data, turn: Turn) -> tuple[float, Batches]:
        return float(turn.round / turn.rounds), super().plan(cid, data, turn)

    def client(self, cid: int, plan: tuple[float, Batches]) -> Params:
        progress, batches = plan
        held, own = self.held_out(cid), self.own.get(cid, self.initial)
        with torch.no_grad():
            mine = self.judge_by(own, held, _correct)
            self.judgements.append(self.judge_by(self.server, held, _correct))
            factor = _mix_factor(progress, mine / self.accuracy.clamp(min=1e-3))
            begun = self.lerp(own, self.server, (factor * self.above).clamp(0, 1))
        self.own[cid] = self.descend(begun, batches)
        return self.own[cid]

    def receive(self, number: int, mean: Params) -> Params:
        self.accuracy = torch.stack(self.judgements).mean()
        self.judgements.clear()
        factor = _mix_factor(number / self.rounds, self.accuracy)
        return self.lerp(mean, self.server, (1 - factor * self.depth).clamp(0, 1))

    def lerp(self, one: Params, other: Params, degrees: Tensor) -> Params:
        """From `one` to `other`, each block by its degree."""
        each = degrees.unbind()
        shares = [each[i] for i in self.block_of]
        mixed = map(torch.lerp, _values(one), _values(other), shares)
        return dict(zip(self.names, mixed, strict=True))


def _mix_factor(progress: float, accuracy: Tensor) -> Tensor:
    return torch.sigmoid(progress * (1 - accuracy.square()))


def _correct(logits: Tensor, y: Tensor) -> Tensor:
    return (logits.argmax(-1) == y).sum()


def _loss(logits: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(logits, y, reduction="sum")


class PLGULF(Averaged):
    """Two models per client: its own, and one that follows gradients at a perturbed point."""

    method = "plgu-lf"
    takes = ("D", "rho")  # no weighting: the mean is uniform

    def begin(self) -> None:
        self.server = self.initial
        self.own = dict.fromkeys(self.clients, self.initial)
        count = len(self.blocks)
        self.kept = self.option.D if self.option.D >= 0 else min(5, count // 2)
        number = {name: i for i, block in enumerate(self.blocks) for name in block}
        self.block_of = torch.tensor([number[name] for name in self.names], device=self.device)
        sizes = [sum(self.initial[name].numel() for name in block) for block in self.blocks]
        self.block_sizes = torch.tensor(sizes, device=self.device)

    def scores(self, own: Params) -> Tensor:
        """How far each block of a client is from the server's, with mean 1."""
        norms = torch._foreach_norm(torch._foreach_sub(_values(own), _values(self.server)))
        squares = torch.stack(norms).square()
        by_block = squares.new_zeros(len(self.blocks)).index_add(0, self.block_of, squares)
        raw = by_block.sqrt() / self.block_sizes
        total = raw.sum()
        return torch.where(total > 0, raw / total.clamp(min=1e-30) * len(raw), 1.0)

    def client(self, cid: int, plan: Batches) -> Params:
        own = self.own[cid]
        scores = self.scores(own)
        personal = scores.argsort(descending=True, stable=True).argsort() < self.kept
        chosen = personal[self.block_of].unbind()
        # both are new tensors, for the optimiser to change
        theta = list(map(torch.where, chosen, _values(own), _values(self.server)))
        flat = self.copy(self.server)
        radii = self.option.rho * scores[self.block_of]
        for rows in plan:
            x, y = self.fetch(rows)
            self.place(theta)
            self.gradient(x, y)
            slopes = [weight.grad for weight in self.weights]
            lengths = radii / _length(slopes).clamp(min=1e-12)
            worst = list(map(torch.addcmul, theta, slopes, lengths.unbind()))
            self.optimiser.step()
            self.place(worst)
            self.gradient(x, y)
            self.place(flat.values())  # this step is taken elsewhere than its gradient
            self.optimiser.step()
        self.own[cid] = dict(zip(self.names, theta, strict=True))
        return flat


class _FomoPlan(NamedTuple):
    explore: np.ndarray  # which slots take anybody
    luck: np.ndarray  # slots x clients: who wins among equals
    training: Batches


class FedFomo(Loop):
    """A client steps towards those models of others that help it on its validation rows.

    Attributes:
      own: everybody's model after its latest training, which is what the server passes on.
      base: everybody's model before that training.
      affinity: what the models of others (columns) have been worth to a client (rows).
      fresh: whose model came in with the latest round.
    """

    method = "fedfomo"
    takes = ("M", "eps0", "decay")

    def begin(self) -> None:
        self.own = dict.fromkeys(self.clients, self.initial)
        self.base = dict.fromkeys(self.clients, self.initial)
        self.affinity = torch.eye(len(self.clients)).numpy()
        self.fresh = np.zeros(len(self.clients), dtype=bool)

    def plan(self, cid: int, data: Data, turn: Turn) -> _FomoPlan:
        slots, count = self.option.M - 1, len(self.clients)
        chance = (self.option.eps0 - self.option.decay * turn.round).clamp(min=0)
        explore = rng.uniform(turn.key, slots) < chance
        luck = [rng.uniform(rng.fold(turn.key, slot), count).numpy() for slot in range(slots)]
        return _FomoPlan(
            explore.numpy(), np.array(luck).reshape(slots, count), super().plan(cid, data, turn)
        )

    def choose(self, cid: int, plan: _FomoPlan) -> list[int]:
        """The clients whose models are sent: fresh ones, mostly those that helped most."""
        worth, free = self.affinity[cid], self.fresh.copy()
        free[cid] = False
        chosen: list[int] = []
        for explore, luck in zip(plan.explore, plan.luck, strict=True):
            if not free.any():
                break
            eligible = free if explore else free & (worth == worth[free].max())
            taken = int(np.where(eligible, luck, -1).argmax())
            chosen.append(taken)
            free[taken] = False
        return chosen

    def play(self, number: int, plans: dict[int, _FomoPlan]) -> None:
        trained: dict[int, Params] = {}  # others see it in the next round
        offers: dict[int, list[int]] = {}
        gains: list[Tensor] = []
        for cid, plan in plans.items():
            offers[cid] = [cid, *self.choose(cid, plan)]
            with torch.no_grad():
                self.base[cid], weights = self.towards(cid, offers[cid])
            gains.append(weights)
            trained[cid] = self.descend(self.copy(self.base[cid]), plan.training)
        self.own.update(trained)
        credits = iter(torch.cat(gains).tolist())
        for cid, ids in offers.items():
            for other in ids:
                self.affinity[cid, other] += next(credits)
        self.fresh[:] = False
        self.fresh[list(plans)] = True

    def towards(self, cid: int, ids: Sequence[int]) -> tuple[Params, Tensor]:
        """A client's next base, and the weights of the models offered to it."""
        held, base = self.held_out(cid), self.base[cid]
        offered = [self.own[other] for other in ids]
        here = self.judge_by(base, held, _loss)
        there = torch.stack([self.judge_by(model, held, _loss) for model in offered])
        aparts = [torch._foreach_sub(_values(model), _values(base)) for model in offered]
        far = torch.stack([_length(apart) for apart in aparts])
        weights = torch.where(far > 0, (here - there) / (far + 1e-12), 0.0)
        positive = weights.clamp(min=0)
        shares = positive / positive.sum().clamp(min=1e-30)
        new = _values(self.copy(base))
        for apart, share in zip(aparts, shares.unbind(), strict=True):
            torch._foreach_add_(new, torch._foreach_mul(apart, share))
        return dict(zip(self.names, new, strict=True)), weights


class Weigher(nn.Module):
    """pFedLA's hypernetwork of one client: a weight for every client's model, block by block.

    Args:
      start: embedding and layers at first, as `init_weigher` in `methods/parts/layerwise.py`
        makes them.
    """

    def __init__(self, start: dict[str, Any]) -> None:
        super().__init__()
        self.embed = nn.Parameter(start["embed"])
        layers: list[nn.Module] = []
        for layer in start["body"].values():
            layers += [_linear(layer["weight"], layer["bias"]), nn.ReLU()]
        self.body = nn.Sequential(*layers)
        # the heads of all blocks as one layer: fewer and larger products
        heads = start["heads"].values()
        self.heads = _linear(*(torch.cat([h[part] for h in heads]) for part in ("weight", "bias")))
        self.blocks = len(heads)

    def forward(self) -> Tensor:
        """Weights [blocks, clients]; rows sum to 1."""
        return self.heads(self.body(self.embed)).view(self.blocks, -1).softmax(-1)


def _linear(weight: Tensor, bias: Tensor) -> nn.Linear:
    layer = nn.Linear(weight.shape[1], weight.shape[0])
    layer.weight, layer.bias = nn.Parameter(weight), nn.Parameter(bias)
    return layer


class PFedLA(Loop):
    """The server mixes everybody's models for each client, block by block, with learnt weights.

    Attributes:
      own: everybody's latest model, which the server has.
      weighers: everybody's hypernetwork.
    """

    method = "pfedla"
    takes = ("hn_lr", "embed", "hidden", "depth")

    def begin(self) -> None:
        how, count = self.option, len(self.clients)
        self.shapes = [value.shape for value in self.initial.values()]
        self.models = [value.flatten().expand(count, -1).clone() for value in self.initial.values()]
        number = {name: i for i, block in enumerate(self.blocks) for name in block}
        self.block_of = [number[name] for name in self.names]
        keys = rng.fold(rng.key(self.seed, rng.SERVER), torch.arange(count))
        sizes = (count, len(self.blocks), how.embed, how.hidden, how.depth)
        self.weighers = [
            Weigher(init_weigher(key, *sizes, "softmax")).to(self.device) for key in keys
        ]
        self.teachers = [torch.optim.SGD(w.parameters(), lr=how.hn_lr) for w in self.weighers]
        self.own = {
            cid: {
                name: stack[cid].view(shape)
                for name, stack, shape in zip(self.names, self.models, self.shapes, strict=True)
            }
            for cid in self.clients
        }

    def play(self, number: int, plans: dict[int, Batches]) -> None:
        trained: dict[int, list[Tensor]] = {}  # taken in when all have been mixed from the old ones
        for cid, batches in plans.items():
            by_block = self.weighers[cid]().unbind()
            mixed = [
                by_block[i] @ stack for i, stack in zip(self.block_of, self.models, strict=True)
            ]
            begun = [m.detach().view(s) for m, s in zip(mixed, self.shapes, strict=True)]
            after = self.descend(self.copy(dict(zip(self.names, begun, strict=True))), batches)
            trained[cid] = _values(after)
            back = [d.flatten() for d in torch._foreach_sub(begun, trained[cid])]
            # the update is minus a gradient, and goes back through the mixture like one
            self.teachers[cid].zero_grad()
            torch.autograd.backward(mixed, back)
            self.teachers[cid].step()
        for cid, values in trained.items():
            torch._foreach_copy_(_values(self.own[cid]), values)


LOOPS: dict[str, type[Loop]] = {
    loop.method: loop for loop in (FedAvg, FedALA, Ditto, FedRep, FedFomo, PMixFed, PLGULF, PFedLA)
}
