"""DP-SGD: its gradients, and what they have cost each client, over all its rounds.

Neighbours differ in the content of one training row of one client; how many rows a client has is
public. The guarantee is for all that is made of the noisy gradients (docs/privacy.md).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache, partial
from hashlib import shake_256
from math import ceil, inf, log, prod, sqrt
from typing import NamedTuple
from zlib import crc32

import numpy as np
import torch
from torch import Tensor

from fedtailor.core import rng, tree
from fedtailor.core.errors import BadInput
from fedtailor.core.objectives import Objective, Slope, exact_gradient
from fedtailor.core.rng import Key
from fedtailor.core.steps.scan import each
from fedtailor.core.task import Batch
from fedtailor.core.tree import Tree

# Whole orders only: quick and exact, and any set of orders gives a valid bound.
ORDERS = [*range(2, 64), 72, 80, 96, 128, 192, 256, 512]


def private_gradient(
    objective: Objective, clip: float, noise: float, draw: int = 0, secret: bytes = b""
) -> Slope:
    """DP-SGD: every example's gradient is clipped, and noise is added to their sum.

        g = (Σ_i g_i min(1, C/|g_i|) + σ C z) / B,   z standard normal

    (Abadi et al., 2016); B is what a Poisson sample has on average, or else the batch's rows. With
    C = ∞ and σ = 0 it is the gradient itself. Gradients of one batch with different numbers `draw`
    have noise of their own. With a `secret` it is cryptographically strong, but slower.
    """
    at = exact_gradient(objective)

    def slope(theta: Tree, batch: Batch, given: Tree, carried: Tree) -> tuple[Tree, Tensor, Tree]:
        def one(x: Tensor, y: Tensor, key: Key) -> tuple[Tree, Tensor]:
            alone = Batch(x[None], y[None], torch.ones_like(batch.weight[:1]), batch.active, key)
            grads, loss, _ = at(theta, alone, given, carried)
            length = tree.sq_norm(grads).sqrt()
            clipped = tree.scale(grads, (clip / length.clamp(min=1e-30)).clamp(max=1.0))
            if noise:  # a row without a finite gradient counts nothing: nan would betray it
                known = length.isfinite()
                clipped = tree.map(lambda g: torch.where(known, g, torch.zeros_like(g)), clipped)
            return clipped, loss

        order = torch.arange(len(batch.y), device=batch.y.device)
        found, losses = each(one, batch.x, batch.y, rng.fold(batch.key, order))
        count = batch.sample.expected if batch.sample else batch.weight.sum().clamp(min=1)
        total = tree.map(lambda g: torch.tensordot(batch.weight.to(g.dtype), g, 1), found)
        if noise:
            flat, first = tree.flatten(total), (1 << 40) + (draw << 33)
            # by name, not by place: a state that comes back from a file may have another order
            keys = {k: rng.fold(batch.key, first + crc32(k.encode())) for k in flat}
            drawn = partial(strong_normal, secret) if secret else rng.normal
            total = tree.unflatten(
                {
                    k: g + noise * clip * drawn(keys[k], *g.shape, dtype=g.dtype)
                    for k, g in flat.items()
                }
            )
        return tree.scale(total, 1 / count), (losses * batch.weight).sum() / count, {}

    return slope


def strong_normal(secret: bytes, key: Key, *shape: int, dtype: torch.dtype | None = None) -> Tensor:
    """Standard normal numbers that nobody can tell from chance without the secret (SHAKE-256).

    Example:
      >>> one, two = (strong_normal(secret, rng.key(0), 3) for secret in (b"a", b"b"))
      >>> bool((one == strong_normal(b"a", rng.key(0), 3)).all()), bool((one == two).any())
      (True, False)
    """
    raw = shake_256(secret + int(key).to_bytes(8, signed=True)).digest(16 * prod(shape))
    # 53 bits each, in (0, 1]
    radius, angle = (np.frombuffer(raw, dtype="<u8").reshape(2, -1) >> 11) + 1.0
    found = np.sqrt(-2 * np.log(radius / 2**53)) * np.cos(2 * np.pi * angle / 2**53)
    drawn = torch.from_numpy(found).to(key.device, dtype or torch.get_default_dtype())
    return drawn.reshape(shape)


def require_accountant() -> None:
    """Says how to get the accountant where it is missing."""
    try:
        import dp_accounting  # noqa: F401
    except ImportError:
        raise BadInput("DP-SGD needs its accountant: pip install 'fedtailor[privacy]'") from None


OVERFLOW = 2.0**-50  # probability that a Poisson sample has no room in its batch


@lru_cache
def padded(batch: int) -> int:
    """Places for a Poisson sample of so many rows on average (Chernoff's bound, for any client).

        P(more than m) ≤ exp(−B) (e B / m)^m ≤ 2⁻⁵⁰

    Example:
      >>> padded(10), padded(100), padded(0)
      (47, 195, 0)
    """
    most = batch
    while batch and most * (1 + log(batch / most)) - batch > log(OVERFLOW):
        most += 1
    return most


class Spent(NamedTuple):
    """What noisy gradients were taken on a client's rows."""

    batches: int = 0  # on how many batches, each drawn anew
    gradients: int = 0  # the most on one of them
    rate: float = 0.0  # the largest probability that a row was in one

    @classmethod
    def of(cls, row: Sequence[float]) -> Spent:
        """From three numbers, of an engine or a file.

        Raises:
          BadInput: there are fewer, as versions wrote that drew batches otherwise.
        """
        if len(row) != len(cls._fields) and any(row):
            raise BadInput(
                "a run with DP-SGD of a version that did not draw Poisson samples: its ε is not "
                "known, so it cannot be resumed: start it anew"
            )
        batches, gradients, rate = row if any(row) else cls()
        return cls(int(batches), int(gradients), float(rate))

    def and_then(self, more: Spent) -> Spent:
        """Both, one after the other."""
        return Spent(
            self.batches + more.batches,
            max(self.gradients, more.gradients),
            max(self.rate, more.rate),
        )


@lru_cache(maxsize=4096)
def epsilon(spent: Spent, noise: float, delta: float) -> float:
    """ε of what was spent, each batch being a Poisson sample (Rényi accountant).

    K noisy gradients on one batch move by up to √K clips together when an example comes or goes:
    they count as one gradient with 1/√K of the noise, not as gradients on K batches, which would
    be cheaper. Where batches differ in K or in their rate, all are charged for the largest. That a
    sample has no room is no more likely than `OVERFLOW`, whatever the row in question is: so much
    of δ is spent on each batch.

    Example:
      >>> epsilon(Spent(), 1.0, 1e-5), epsilon(Spent(10, 1, 0.1), 0.0, 1e-5)
      (0.0, inf)
    """
    if spent.batches == 0:
        return 0.0
    left = delta - spent.batches * OVERFLOW
    if noise == 0 or left <= 0:
        return inf
    import dp_accounting
    from dp_accounting.rdp import RdpAccountant

    accountant = RdpAccountant(orders=ORDERS)
    gaussian = dp_accounting.GaussianDpEvent(noise / sqrt(spent.gradients))
    accountant.compose(dp_accounting.PoissonSampledDpEvent(spent.rate, gaussian), spent.batches)
    return float(accountant.get_epsilon(left))


def epsilon_in_words(epsilon: float | None) -> str:
    """A bound for people, rounded up: never less than it is. None is no guarantee.

    Example:
      >>> epsilon_in_words(3.551), epsilon_in_words(None)
      ('≤ 3.56', '= ∞')
    """
    return "= ∞" if epsilon is None else f"≤ {ceil(100 * epsilon) / 100:.2f}"
