"""What training with DP-SGD has cost each client, over all its rounds.

The guarantee is per example of a client's training rows, for everything that is made from its
noisy gradients. Validation rows that a method looks at (FedFomo's weights, pMixFed's accuracies,
the choice of the best round) are outside of it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from math import inf

import numpy as np

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


def charged(entries: list[Entry], rows: int) -> int:
    """How many of the noisy gradients used a client with so many training rows."""
    count = 0
    for number, size, last in entries:
        begun, whole = number * size < rows, (number + 1) * size <= rows
        count += last == "steps" or (whole if last == "drop" else begun)
    return count


@lru_cache(maxsize=4096)
def epsilon(steps: int, rate: float, noise: float, delta: float) -> float:
    """ε after so many noisy gradients, each on a `rate` of the rows (Rényi accountant).

    Example:
      >>> epsilon(0, 0.1, 1.0, 1e-5), epsilon(10, 0.1, 0.0, 1e-5)
      (0.0, inf)
    """
    if steps == 0:
        return 0.0
    if noise == 0:
        return inf
    import dp_accounting
    from dp_accounting.rdp import RdpAccountant

    accountant = RdpAccountant(orders=ORDERS)
    event = dp_accounting.PoissonSampledDpEvent(rate, dp_accounting.GaussianDpEvent(noise))
    accountant.compose(event, steps)
    return float(accountant.get_epsilon(delta))


def epsilons(
    steps: np.ndarray, rows: np.ndarray, batch: int, noise: float, delta: float
) -> list[float]:
    """Each client's ε so far."""
    return [
        epsilon(int(s), min(1.0, (batch or int(n)) / max(int(n), 1)), noise, delta)
        for s, n in zip(steps, rows, strict=True)
    ]
