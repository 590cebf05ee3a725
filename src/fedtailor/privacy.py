"""What training with DP-SGD has cost each client, over all its rounds.

The guarantee is per example of a client's training rows, for everything that is made from its
noisy gradients. Validation rows that a method looks at (FedFomo's weights, pMixFed's accuracies,
the choice of the best round) are outside of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from math import ceil, inf, sqrt
from typing import NamedTuple

from .errors import BadInput
from .train import LEDGER, Account, Entry

# Whole orders only: quick and exact, and any set of orders gives a valid bound.
ORDERS = [*range(2, 64), 72, 80, 96, 128, 192, 256, 512]


def require_accountant() -> None:
    """Says how to get the accountant where it is missing."""
    try:
        import dp_accounting  # noqa: F401
    except ImportError:
        raise BadInput("DP-SGD needs its accountant: pip install 'fedtailor[privacy]'") from None


@contextmanager
def keep_account() -> Iterator[list[Entry]]:
    """Collects the noisy gradients that are taken."""
    account = Account()
    token = LEDGER.set(account)
    try:
        yield account.entries
    finally:
        LEDGER.reset(token)


class Spent(NamedTuple):
    """What noisy gradients were taken on a client's rows.

    Attributes:
      batches: on how many batches, each drawn anew.
      gradients: the most on one of them.
    """

    batches: int = 0
    gradients: int = 0

    def and_then(self, more: Spent) -> Spent:
        """Both, one after the other."""
        return Spent(self.batches + more.batches, max(self.gradients, more.gradients))


def charged(entries: list[Entry], rows: int) -> Spent:
    """What of the entries a client with so many training rows has to account for."""
    spent = Spent()
    for number, size, last, gradients in entries:
        begun, whole = number * size < rows, (number + 1) * size <= rows
        if last == "steps" or (whole if last == "drop" else begun):
            spent = spent.and_then(Spent(1, gradients))
    return spent


@lru_cache(maxsize=4096)
def epsilon(spent: Spent, rate: float, noise: float, delta: float) -> float:
    """ε of what was spent, each batch being a `rate` of the rows (Rényi accountant).

    K noisy gradients on one batch move by up to √K clips together when an example comes or goes:
    they count as one gradient with 1/√K of the noise, not as gradients on K batches, which would
    be cheaper. Where batches differ in K, all are charged for the largest.

    Example:
      >>> epsilon(Spent(), 0.1, 1.0, 1e-5), epsilon(Spent(10, 1), 0.1, 0.0, 1e-5)
      (0.0, inf)
    """
    if spent.batches == 0:
        return 0.0
    if noise == 0:
        return inf
    import dp_accounting
    from dp_accounting.rdp import RdpAccountant

    accountant = RdpAccountant(orders=ORDERS)
    gaussian = dp_accounting.GaussianDpEvent(noise / sqrt(spent.gradients))
    accountant.compose(dp_accounting.PoissonSampledDpEvent(rate, gaussian), spent.batches)
    return float(accountant.get_epsilon(delta))


def in_words(epsilon: float | None) -> str:
    """A bound for people, rounded up: never less than it is. None is no guarantee.

    Example:
      >>> in_words(3.551), in_words(None)
      ('≤ 3.56', '= ∞')
    """
    return "= ∞" if epsilon is None else f"≤ {ceil(100 * epsilon) / 100:.2f}"


def epsilons(
    spent: Sequence[Spent], rows: Sequence[int], batch: int, noise: float, delta: float
) -> list[float]:
    """Each client's ε so far."""
    return [
        epsilon(one, min(1.0, (batch or n) / max(n, 1)), noise, delta)
        for one, n in zip(spent, rows, strict=True)
    ]
