"""Robust means: rules in place of the weighted mean, which a few hostile clients cannot own.

A wrapper of every method whose server averages something: `fedavg+median`, `ditto+krum:2`. The
server then needs each client's upload by itself: as many models of memory as a cohort has clients,
and no secure aggregation. Clients count alike, whatever they say of their number of rows.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from math import ceil, floor
from typing import Annotated, NamedTuple, Protocol

import torch
from torch import Tensor

from fedtailor.core import tree
from fedtailor.core.data import Data
from fedtailor.core.errors import BadInput, CohortTooSmall
from fedtailor.core.method import ClientCount, Method, Outcome, Upload
from fedtailor.core.options import BlocksOrAuto, Count, NonNegative, Whole
from fedtailor.core.rng import Key, Turn
from fedtailor.core.task import Task
from fedtailor.core.tree import Params, Tree
from fedtailor.core.uploads.moves import (
    COLLECTED,
    REST,
    averaged,
    collected,
    limited_move,
    moved,
    norm_of,
    trained_leaves,
    with_averaged,
)

log = logging.getLogger("fedtailor")

ALMOST = 1e-9  # 0.29 of 100 is 28.999999999999996
NEAREST, STILL = 1e-5, 1e-6  # Weiszfeld: least distance, and change of the sum that ends it
Trim = Annotated[float, (0.0, 0.499999)]


class CohortUploads(NamedTuple):
    """What the clients of a cohort uploaded for a mean."""

    values: Tree  # stacked: the cohort is the first axis
    sent: Callable[[], list[Tree]]  # what each of them had been sent
    weight: Tensor  # how much each counts, where a rule weighs: together 1
    buffers: Collection[str]  # names of running statistics

    def mean(self, weight: Tensor) -> Tree:
        """The mean with such weights, of running statistics, too."""
        return tree.map(lambda p: torch.tensordot(weight.to(p.dtype), p, 1), self.values)


class RobustRule(Protocol):
    """What a server makes of a cohort's uploads."""

    def combine(self, uploads: CohortUploads) -> Tree:
        """One value for each name."""
        ...

    def caution(self, m: int) -> str:
        """Why it does not protect a cohort of so many; empty if it does."""
        ...


def _middle(stacked: Tensor) -> Tensor:
    """The median along the first axis: of an even number, the mean of the two in the middle."""
    ordered, m = stacked.sort(0).values, len(stacked)
    return (ordered[(m - 1) // 2] + ordered[m // 2]) / 2


def _too_few(m: int) -> str:
    return f"of {m} uploads none can be told to be the odd one" if m < 3 else ""


class CoordinateMedian(NamedTuple):
    """Coordinate median: each number is the median of what the clients say.

        w[i] = median over k of w_k[i]          of an even number: the mean of the middle two

    Withstands almost half of the cohort. What few clients need and most do not is lost. The
    host's `weighting` does not count.

    Deviations: none.

    Reference: Yin et al., "Byzantine-Robust Distributed Learning: Towards Optimal Statistical
    Rates", ICML 2018, https://arxiv.org/abs/1803.01498
    """

    def combine(self, uploads: CohortUploads) -> Tree:
        """The median of each number."""
        return tree.map(_middle, uploads.values)

    def caution(self, m: int) -> str:
        """Two have no middle one."""
        return _too_few(m)


class TrimmedMean(NamedTuple):
    """Trimmed mean: of each number the largest and smallest are left out.

        w[i] = mean of w_k[i] without the b largest and the b smallest         b = ⌊β m⌋

    Withstands b of the m clients of a cohort. The host's `weighting` does not count.

    Attributes:
      trim: β, the share that is left out at each end.

    Deviations: none.

    Reference: Yin et al., "Byzantine-Robust Distributed Learning: Towards Optimal Statistical
    Rates", ICML 2018, https://arxiv.org/abs/1803.01498
    """

    trim: Trim = 0.2

    def _cut(self, m: int) -> int:
        return floor(self.trim * m + ALMOST)

    def combine(self, uploads: CohortUploads) -> Tree:
        """The mean of what is left of each number."""

        def rest(stacked: Tensor) -> Tensor:
            b = self._cut(len(stacked))
            return stacked.sort(0).values[b : len(stacked) - b].mean(0)

        return tree.map(rest, uploads.values)

    def caution(self, m: int) -> str:
        """A small share of few is nobody."""
        if not self._cut(m):
            return f"trim {self.trim:g} of {m} uploads leaves none out: it is the plain mean"
        return ""


class Krum(NamedTuple):
    """Krum: the upload whose neighbours are nearest, or the mean of several such.

        score_k = Σ |w_k − w_j|² over the m − f − 2 nearest j
        w = mean of the c uploads with the lowest scores     c = 1: Krum, c = m − f: multi-Krum

    Withstands f hostile clients in a cohort of m ≥ 2f + 3. All entries of an upload are chosen
    together. Krum alone takes one client's model: what others learnt in the round is lost. The
    host's `weighting` does not count.

    Attributes:
      hostile: f, how many of a cohort may be hostile; -1: a fifth, rounded up, if m ≥ 2f + 3, else
        as many as that allows.
      take: c, how many uploads are averaged; 0: m − f.

    Deviations: distances are made of differences, not of norms and products, which lose all digits
    where models are near each other. Those that are taken count alike. A cohort of one or two has
    nothing to compare, and is averaged.

    Reference: Blanchard et al., "Machine Learning with Adversaries: Byzantine Tolerant Gradient
    Descent", NeurIPS 2017, https://arxiv.org/abs/1703.02757
    """

    hostile: BlocksOrAuto = -1
    take: Whole = 1

    def _hostile(self, m: int) -> int:
        if self.hostile < 0:
            return max(0, min(ceil(0.2 * m - ALMOST), (m - 3) // 2))
        if m < 2 * self.hostile + 3:
            raise CohortTooSmall(
                f"krum with hostile={self.hostile} needs a cohort of at least "
                f"{2 * self.hostile + 3}, this one has {m}: lower it, let more clients take part, "
                "or choose +median"
            )
        return self.hostile

    def chosen(self, uploads: CohortUploads) -> Tensor:
        """The places of those that are taken, best first."""
        leaves = trained_leaves(uploads.values, uploads.buffers)
        m = len(uploads.weight)
        hostile = self._hostile(m)
        if m < 3:
            return torch.arange(m)
        squares = torch.zeros(m, m, dtype=torch.float64, device=leaves[0].device)
        for leaf in leaves:
            flat = leaf.reshape(m, -1).double()
            apart = torch.cdist(flat, flat, compute_mode="donot_use_mm_for_euclid_dist")
            squares += apart.square()
        squares.fill_diagonal_(torch.inf)
        scores = squares.sort(1).values[:, : m - hostile - 2].sum(1)
        return scores.argsort(stable=True)[: min(self.take or m - hostile, m)]

    def combine(self, uploads: CohortUploads) -> Tree:
        """The mean of those with the lowest scores."""
        chosen = self.chosen(uploads)
        weight = torch.zeros(len(uploads.weight), dtype=torch.float64, device=chosen.device)
        weight[chosen] = 1 / len(chosen)
        return uploads.mean(weight.to(uploads.weight.device))

    def caution(self, m: int) -> str:
        """Four may already have their way by one."""
        return "" if self._hostile(m) else f"of {m} uploads none may be hostile"


class GeometricMedian(NamedTuple):
    """Geometric median: the point with the least sum of distances to the uploads.

        z₀ = coordinate median;   β_k = α_k / max(ν, |z − w_k|),   z ← Σ β_k w_k / Σ β_k

    Withstands almost half of the cohort. All entries of an upload count together.

    Attributes:
      passes: how often z is moved.
      weighted: whether α_k is a client's share of the training rows that the server was told of in
        the beginning; else all clients count alike.

    Deviations: z begins at the coordinate median, not at the mean, from where a few passes do not
    come back if an upload is far away. ν = 1e-5.

    Reference: Pillutla et al., "Robust Aggregation for Federated Learning", IEEE Transactions on
    Signal Processing 2022, https://arxiv.org/abs/1912.13445
    """

    passes: Count = 4
    weighted: bool = False

    def combine(self, uploads: CohortUploads) -> Tree:
        """The mean with the weights of the last pass."""
        m = len(uploads.weight)
        leaves = [
            p.reshape(m, -1).double() for p in trained_leaves(uploads.values, uploads.buffers)
        ]
        at, before, beta = [_middle(p) for p in leaves], torch.inf, uploads.weight
        for _ in range(self.passes):
            squares = [(p - z).square().sum(1) for p, z in zip(leaves, at, strict=True)]
            far = torch.stack(squares).sum(0).sqrt()
            total = float((uploads.weight * far).sum())
            if before - total <= STILL * total:
                break
            beta = uploads.weight / far.clamp(min=NEAREST)
            beta, before = beta / beta.sum(), total
            at = [torch.tensordot(beta, p, 1) for p in leaves]
        return uploads.mean(beta)

    def caution(self, m: int) -> str:
        """Between two, every point is as good."""
        return _too_few(m)


class NormClip(NamedTuple):
    """Norm clipping: no client moves the model further than the middle one does.

        w = mean of w_k sent + Δ_k min(1, τ/|Δ_k|)          Δ_k = w_k − what the client was sent

    A hostile client still has its share of the mean, but no more.

    Attributes:
      bound: τ; 0: the median of |Δ_k| in the round. (`--max-norm` bounds uploads of any method, and
        does not need them one by one.)
      weighted: whether a client counts by the training rows that the server was told of in the
        beginning; else all clients count alike.

    Deviations: running statistics of BatchNorm do not count in |Δ_k|.

    Reference: Sun et al., "Can You Really Backdoor Federated Learning?", 2019,
    https://arxiv.org/abs/1911.07963
    """

    bound: NonNegative = 0.0
    weighted: bool = False

    def combine(self, uploads: CohortUploads) -> Tree:
        """The mean of what was shortened."""
        each = [tree.index(uploads.values, i) for i in range(len(uploads.weight))]
        sent = uploads.sent()
        norms = torch.stack(
            [norm_of(moved(s, v), uploads.buffers) for s, v in zip(sent, each, strict=True)]
        )
        bound = self.bound or _middle(norms)
        short = [
            limited_move(s, v, bound, uploads.buffers) for s, v in zip(sent, each, strict=True)
        ]
        return uploads._replace(values=tree.stack(short)).mean(uploads.weight)

    def caution(self, m: int) -> str:
        """It bounds anybody's influence in any cohort, but takes a median of norms."""
        return "" if self.bound else _too_few(m)


def with_robust_mean(host: Method, task: Task, rule: RobustRule) -> Method:
    """A method whose server combines uploads by a rule instead of their weighted mean.

    Personal parts stay as they are; what the host gets one by one passes untouched. Uploads that
    are not finite never come to a rule: they are left out, and counted, where they arrive.

    Args:
      host: a method whose server averages something.
      task: the network.
      rule: one of the records above, or anything with `combine` and `caution`.

    Example:
      >>> from fedtailor.methods import fedavg
      >>> from fedtailor.methods.check import toy_task
      >>> task = toy_task()
      >>> method = with_robust_mean(fedavg(task), task, TrimmedMean(trim=0.1))
    """
    _refuse_other_rules(host, "a robust mean")
    weighted = bool(getattr(rule, "weighted", False))
    told: set[str] = set()

    def of_host(server: Tree) -> Tree:
        return tree.drop(server, ["sizes"]) if weighted else server

    def init(clients: ClientCount, initial: Params, key: Key) -> Tree:
        server = host.init(clients, initial, key)
        # what clients say of their rows in a round is not believed
        return server | {"sizes": clients.sizes.to(key.device)} if weighted else server

    def client(msg: Tree, state: Tree, data: Data, turn: Turn) -> Outcome:
        out = host.client(msg, state, data, turn)
        return out._replace(upload=collected(out.upload))

    def receive(server: Tree, ids: Tensor, up: Upload, turn: Turn) -> Tree:
        own, m = of_host(server), len(ids)
        if (problem := rule.caution(m)) and problem not in told:
            told.add(problem)
            log.warning("the robust mean protects nobody: %s", problem)
        weight = torch.ones(m, dtype=torch.float64, device=ids.device)
        if weighted:
            weight = server["sizes"][ids].double()
        uploads = CohortUploads(
            up.each[COLLECTED],
            lambda: [host.send(own, cid, turn.of(cid)) for cid in ids],
            weight / weight.sum(),
            frozenset(task.buffers),
        )
        mean = rule.combine(uploads)
        everybody = tree.map(lambda p: p.new_ones(()), mean)
        new = host.receive(own, ids, Upload(mean, everybody, up.each.get(REST, {})), turn)
        return new | {"sizes": server["sizes"]} if weighted else new

    return host._replace(
        init=init,
        send=lambda server, cid, turn: host.send(of_host(server), cid, turn),
        client=client,
        receive=receive,
        record=lambda server: host.record(of_host(server)),
        own_networks="",  # rules stack uploads
    )


def with_max_norm(host: Method, task: Task, bound: float) -> Method:
    """A method whose server shortens what an upload moves to a norm of at most `bound`.

    It does so as uploads arrive, so that a mean still needs the memory of one model.

    Example:
      >>> from fedtailor.methods import fedavg
      >>> from fedtailor.methods.check import toy_task
      >>> task = toy_task()
      >>> method = with_max_norm(fedavg(task), task, 1.0)
    """

    _refuse_other_rules(host, "max-norm")

    def admit(sent: Tree, upload: Upload) -> Upload:
        values = averaged(upload)
        if not tree.leaves(values):
            raise BadInput("max-norm: this method takes no mean of uploads: leave it out")
        short = limited_move(sent, values, bound, task.buffers)
        return host.admit(sent, with_averaged(upload, short))  # names may be others after it

    return host._replace(admit=admit)


def _refuse_other_rules(host: Method, what: str) -> None:
    if host.mean_only:
        raise BadInput(f"{what} does not go with this method: {host.mean_only}: leave it out")
