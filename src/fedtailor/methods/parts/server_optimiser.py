"""Server optimisers: the server takes the clients' mean move as a gradient, and steps its own way.

FedAvgM, FedAdam, FedYogi and FedAdagrad are FedAvg with one of them. Only the server's side
changes, so each is a wrapper, for every method whose server keeps a point that all clients move
(`Method.common`): `fedavg+adam`, `ditto+avgm`, `fedrep+yogi` on the command line.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Literal, NamedTuple, Protocol

import torch
from torch import Tensor

from fedtailor.core import tree
from fedtailor.core.errors import BadInput
from fedtailor.core.method import ClientCount, Method, Upload
from fedtailor.core.options import Above, BelowOne, NonNegative, Search, Share
from fedtailor.core.rng import Key, Turn
from fedtailor.core.task import Task
from fedtailor.core.tree import Params, Tree

Variant = Literal["paper", "google"]


class ServerOptimiser(Protocol):
    """How far the server goes, given how far the clients would take it."""

    def slots(self, point: Params) -> Tree:
        """What the optimiser remembers before its first step."""
        ...

    def move(self, slots: Tree, delta: Params, step: Tensor) -> tuple[Tree, Params]:
        """(memory, the clients' mean move, number of this step, from 1) -> (memory, own move)."""
        ...


class ServerMomentum(NamedTuple):
    """FedAvgM: the server's move has momentum.

        v ← β v + Δ,   w ← w + η v          Δ = the host's new w − its old one

    A constant Δ is amplified by 1/(1 − β): lower the learning rate when raising β, or use `ema`.

    Attributes:
      server_lr: learning rate η. With 1 and a momentum of 0 nothing changes.
      momentum: β.
      nesterov: look ahead, w ← w + η (Δ + β v), as `torch.optim.SGD` does.
      ema: v is a running mean: (1 − β) Δ in place of Δ.

    Deviations: running statistics of BatchNorm never pass through the optimiser: momentum would
    make variances negative.

    Reference: Hsu et al., "Measuring the Effects of Non-Identical Data Distribution for Federated
    Visual Classification", https://arxiv.org/abs/1909.06335
    """

    server_lr: Annotated[NonNegative, Search(0.1, 2, log=True)] = 1.0
    momentum: Annotated[Share, Search(0, 0.95)] = 0.9
    nesterov: bool = False
    ema: bool = False

    def slots(self, point: Params) -> Tree:
        """v = 0."""
        return {"velocity": tree.map(torch.zeros_like, point)}

    def move(self, slots: Tree, delta: Params, step: Tensor) -> tuple[Tree, Params]:
        """η v, or with a look ahead."""
        beta = self.momentum
        new = tree.scale(delta, 1 - beta) if self.ema else delta
        velocity = tree.add(tree.scale(slots["velocity"], beta), new)
        ahead = tree.add(new, tree.scale(velocity, beta)) if self.nesterov else velocity
        return {"velocity": velocity}, tree.scale(ahead, self.server_lr)


class ServerAdam(NamedTuple):
    """FedAdam: every coordinate has a step size of its own, by its latest moves.

        m ← β₁ m + (1 − β₁) Δ,   v ← β₂ v + (1 − β₂) Δ²       Δ = the host's new w − its old one
        w ← w + η m / (√v + τ)

    η is about the largest move of a weight in a round, whatever the clients do: it has to be tuned.

    Attributes:
      server_lr: learning rate η.
      beta1: β₁.
      beta2: β₂; the authors' runs have Keras' 0.999.
      tau: τ, below which a coordinate's moves count as small.
      variant: `paper`: v begins at τ², nothing is corrected; `google`, as in the authors' runs: v
        begins at 0, and η is multiplied by √(1 − β₂ˢ)/(1 − β₁ˢ) at step s.

    Deviations: running statistics of BatchNorm never pass through the optimiser. Steps are counted
    by the optimiser itself (one public code counts rounds, and one too many).

    Reference: Reddi et al., "Adaptive Federated Optimization", ICLR 2021,
    https://arxiv.org/abs/2003.00295
    """

    server_lr: Annotated[NonNegative, Search(0.001, 1, log=True)] = 0.1
    beta1: BelowOne = 0.9
    beta2: BelowOne = 0.99
    tau: Above = 1e-3
    variant: Variant = "paper"

    def slots(self, point: Params) -> Tree:
        """m = 0, and v as the variant has it."""
        return _moments(point, self.tau, self.variant)

    def move(self, slots: Tree, delta: Params, step: Tensor) -> tuple[Tree, Params]:
        """η m / (√v + τ), corrected or not."""
        decayed = lambda v, square: self.beta2 * v + (1 - self.beta2) * square
        rate = _rate(self, step)
        return _adaptive(slots, delta, self.beta1, decayed, self.tau, rate)


class ServerYogi(NamedTuple):
    """FedYogi: as FedAdam, but step sizes recover slowly after large moves.

        m ← β₁ m + (1 − β₁) Δ,   v ← v − (1 − β₂) Δ² sign(v − Δ²)     Δ = the host's new w − its old
        w ← w + η m / (√v + τ)

    η is about the largest move of a weight in a round, whatever the clients do: it has to be tuned.

    Attributes:
      server_lr: learning rate η.
      beta1: β₁.
      beta2: β₂; the authors' runs have 0.999.
      tau: τ, below which a coordinate's moves count as small.
      variant: `paper`: v begins at τ², nothing is corrected; `google`, as in the authors' runs: v
        begins at 0, and η is multiplied by √(1 − β₂ˢ)/(1 − β₁ˢ) at step s.

    Deviations: running statistics of BatchNorm never pass through the optimiser.

    Reference: Reddi et al., "Adaptive Federated Optimization", ICLR 2021,
    https://arxiv.org/abs/2003.00295
    """

    server_lr: Annotated[NonNegative, Search(0.001, 1, log=True)] = 0.1
    beta1: BelowOne = 0.9
    beta2: BelowOne = 0.99
    tau: Above = 1e-3
    variant: Variant = "paper"

    def slots(self, point: Params) -> Tree:
        """m = 0, and v as the variant has it."""
        return _moments(point, self.tau, self.variant)

    def move(self, slots: Tree, delta: Params, step: Tensor) -> tuple[Tree, Params]:
        """η m / (√v + τ), corrected or not."""
        signed = lambda v, square: v - (1 - self.beta2) * square * (v - square).sign()
        rate = _rate(self, step)
        return _adaptive(slots, delta, self.beta1, signed, self.tau, rate)


class ServerAdagrad(NamedTuple):
    """FedAdagrad: every coordinate has a step size of its own, by all its moves so far.

        m ← β₁ m + (1 − β₁) Δ,   v ← v + Δ²                   Δ = the host's new w − its old one
        w ← w + η m / (√v + τ)

    Attributes:
      server_lr: learning rate η; it has to be tuned.
      beta1: β₁; 0 in the paper, some codes have 0.9.
      tau: τ, below which a coordinate's moves count as small.
      variant: v begins at τ² (`paper`) or at 0 (`google`).

    Deviations: running statistics of BatchNorm never pass through the optimiser.

    Reference: Reddi et al., "Adaptive Federated Optimization", ICLR 2021,
    https://arxiv.org/abs/2003.00295
    """

    server_lr: Annotated[NonNegative, Search(0.001, 1, log=True)] = 0.1
    beta1: BelowOne = 0.0
    tau: Above = 1e-3
    variant: Variant = "paper"

    def slots(self, point: Params) -> Tree:
        """m = 0, and v as the variant has it."""
        return _moments(point, self.tau, self.variant)

    def move(self, slots: Tree, delta: Params, step: Tensor) -> tuple[Tree, Params]:
        """η m / (√v + τ)."""
        return _adaptive(slots, delta, self.beta1, torch.add, self.tau, self.server_lr)


def _moments(point: Params, tau: float, variant: Variant) -> Tree:
    first = tau**2 if variant == "paper" else 0.0
    return {
        "mean": tree.map(torch.zeros_like, point),
        "square": tree.map(lambda p: torch.full_like(p, first), point),
    }


def _rate(how: ServerAdam | ServerYogi, step: Tensor) -> float | Tensor:
    if how.variant == "paper":
        return how.server_lr
    count = step.double()  # 1 − 0.999 has few digits in single precision
    rate: Tensor = how.server_lr * (1 - how.beta2**count).sqrt() / (1 - how.beta1**count)
    return rate


def _adaptive(
    slots: Tree,
    delta: Params,
    beta1: float,
    follow: Callable[[Tensor, Tensor], Tensor],
    tau: float,
    rate: float | Tensor,
) -> tuple[Tree, Params]:
    """The step that the three have in common; `follow` is (v, Δ²) -> v."""
    mean = tree.map(lambda m, d: beta1 * m + (1 - beta1) * d, slots["mean"], delta)
    square = tree.map(lambda v, d: follow(v, d.square()), slots["square"], delta)
    move = tree.map(lambda m, v: rate * m / (v.sqrt() + tau), mean, square)
    return {"mean": mean, "square": square}, move


def with_server_optimiser(host: Method, task: Task, optimiser: ServerOptimiser) -> Method:
    """A method whose server moves its common point by an optimiser instead of straight.

        Δ = (what the host makes of the uploads) − w,   w ← w + the optimiser's move for Δ

    The optimiser's memory is part of the server's state; nothing more is sent. Buffers are what
    the host makes of them.

    Args:
      host: a method whose server keeps a point that all clients move (`Method.common`).
      task: the network.
      optimiser: one of the records above, or anything with `slots` and `move`.

    Raises:
      BadInput: the host's server keeps no such point, or already has an optimiser.

    Example:
      >>> from fedtailor.methods import fedavg
      >>> from fedtailor.methods.check import toy_task
      >>> task = toy_task()
      >>> method = with_server_optimiser(fedavg(task), task, ServerAdam(server_lr=0.01))
    """
    entry = host.common
    if not entry:
        raise BadInput(
            "this method takes no server optimiser: its server keeps no point that all clients "
            "move, or has an optimiser of its own"
        )

    def learnt(server: Tree) -> Params:
        return tree.drop(server[entry], task.buffers)

    def of_host(server: Tree) -> Tree:
        return tree.drop(server, ["optimiser"])

    def init(clients: ClientCount, initial: Params, key: Key) -> Tree:
        server = host.init(clients, initial, key)
        if entry not in server:
            raise BadInput(
                f"the method's common point is said to be '{entry}', but its server's state has "
                f"{', '.join(server) or 'nothing'}: mend 'common' of the Method"
            )
        steps = torch.zeros((), dtype=torch.int64, device=key.device)
        return server | {"optimiser": {"steps": steps, "slots": optimiser.slots(learnt(server))}}

    def receive(server: Tree, ids: Tensor, up: Upload, turn: Turn) -> Tree:
        new, memory = host.receive(of_host(server), ids, up, turn), server["optimiser"]
        delta = tree.sub(learnt(new), learnt(server))
        step = memory["steps"] + 1
        slots, move = optimiser.move(memory["slots"], delta, step)
        return new | {
            entry: new[entry] | tree.add(learnt(server), move),
            "optimiser": {"steps": step, "slots": slots},
        }

    return host._replace(
        init=init,
        send=lambda server, cid, turn: host.send(of_host(server), cid, turn),
        receive=receive,
        record=lambda server: host.record(of_host(server)),
        common="",
    )
