"""Counter-based random numbers: same key, same numbers, on any device, under vmap, on any machine.

A key is a 64-bit integer in a tensor. Numbers are a hash (SplitMix64) of key and position, so
nothing is ever "advanced": the order in which clients are visited, the chunk they share, or the
machine they live on cannot change what they draw.
"""

from __future__ import annotations

import itertools
import math
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor

from fedtailor.core.ledger import Ledger

Key = Tensor  # int64, one number per client under vmap


def _signed(value: int) -> int:
    """`value` modulo 2^64 as the signed number that int64 holds."""
    value &= (1 << 64) - 1
    return value - (1 << 64) if value >> 63 else value


_GOLD = _signed(0x9E3779B97F4A7C15)
_FIRST = _signed(0xBF58476D1CE4E5B9)
_SECOND = _signed(0x94D049BB133111EB)

# What a key is for. Distinct numbers, so that no two purposes ever share their draws.
INITIAL, SERVER, COHORT, TURN, SCORE, POOL, LANDSCAPE, DROPOUT, SLOW = range(9)

AT_A_TIME = 1 << 26  # numbers: each takes 8 bytes several times while it is being made


Bits = TypeVar("Bits", int, Tensor)


def _shift(value: Bits, bits: int) -> Bits:
    """An unsigned shift to the right (int64 would drag its sign along)."""
    return (value >> bits) & ((1 << (64 - bits)) - 1)


def _mix(z: Bits) -> Bits:
    """SplitMix64's hash; of an `int` the lowest 64 bits count, which no higher ones change."""
    z = (z ^ _shift(z, 30)) * _FIRST
    z = (z ^ _shift(z, 27)) * _SECOND
    return z ^ _shift(z, 31)


def fold(key: Key, number: int | Tensor) -> Key:
    """A new key from a key and a number."""
    if isinstance(number, Tensor):
        return _mix(key + (number + 1) * _GOLD)
    # the product is made on the host: a tensor made of a host number could not be captured
    return _mix(key + _signed(_GOLD * (number + 1)))


def key(*parts: int | Tensor, device: torch.device | str | None = None) -> Key:
    """A key from any number of integers, e.g. `key(seed, TURN, round, client)`.

    Example:
      >>> int(key(0, TURN, 3, 7)) == int(key(0, TURN, 3, 7)), int(key(0)) == int(key(1))
      (True, False)
    """
    known = list(itertools.takewhile(lambda part: not isinstance(part, Tensor), parts))
    start = 0
    for part in known:  # on the host: thirty tiny calls less on a GPU in every round
        start = _signed(_mix(start + _GOLD * (int(part) + 1)))
    # filled in, not copied: a copy from the host could not be captured
    out = torch.full((), start, dtype=torch.int64, device=device)
    for part in parts[len(known) :]:
        out = fold(out, part)
    return out


def split(key: Key, n: int = 2) -> list[Key]:
    """`n` independent keys."""
    return [fold(key, i) for i in range(n)]


def bits(key: Key, n: int, first: int = 0) -> Tensor:
    """`n` random 63-bit integers. The i-th depends on key and i alone, not on `n`.

    Args:
      key: what they are drawn with.
      n: how many.
      first: number of the first one.
    """
    position = torch.arange(first + 1, first + n + 1, device=key.device)
    # key + position * _GOLD, written so that no compiler multiplies the position alone: they take
    # positions for small numbers and reckon with 32 bits
    return _shift(_mix((key + position) * _GOLD + (key - key * _GOLD)), 1)


def uniform(key: Key, *shape: int, dtype: torch.dtype | None = None) -> Tensor:
    """Numbers in [0, 1), multiples of 2^-24, so the same ones in float32 and float64."""
    n = math.prod(shape)
    parts = [
        (bits(key, min(AT_A_TIME, n - i), i) >> 39).to(dtype or torch.get_default_dtype())
        for i in range(0, max(n, 1), AT_A_TIME)
    ]
    whole = parts[0] if len(parts) == 1 else torch.cat(parts)
    return (whole / (1 << 24)).reshape(shape)


def normal(key: Key, *shape: int, dtype: torch.dtype | None = None) -> Tensor:
    """Standard normal numbers (Box and Muller)."""
    radius, angle = split(key)
    u = 1 - uniform(radius, *shape, dtype=dtype)
    return (-2 * u.log()).sqrt() * (2 * math.pi * uniform(angle, *shape, dtype=dtype)).cos()


def permutation(key: Key, n: int) -> Tensor:
    """The numbers 0..n-1 in random order."""
    return bits(key, n).argsort(stable=True)


class Turn(NamedTuple):
    """When, and with which random numbers, somebody acts.

    Attributes:
      key: random key of who acts in this round.
      round: number of the round, from 0.
      rounds: how many rounds the run has, for schedules over the whole run.
      ledger: what noisy gradients (DP-SGD) the turn takes; None: nobody wants to know.
      lr: the run's learning rate, where clients of runs with several rates share a call; None: all
        have that of their recipe.

    Example:
      >>> turn = Turn(key(0, TURN, 3), round=torch.tensor(3), rounds=torch.tensor(10))
      >>> first, second = turn.of(torch.tensor(7)).split()
      >>> int(first.round), bool(first.key == second.key)
      (3, False)
    """

    key: Key
    round: Tensor
    rounds: Tensor
    ledger: Ledger | None = None
    lr: Tensor | None = None

    def split(self, n: int = 2) -> list[Turn]:
        """`n` turns of the same round with independent keys, for the phases of a round."""
        return [self._replace(key=k) for k in split(self.key, n)]

    def of(self, client: Tensor) -> Turn:
        """The same round, with a key of this client's own."""
        return self._replace(key=fold(self.key, client))

    def at_client(self, secret: int | None = None) -> Turn:
        """A client's own part of its turn, apart from what `send` drew with the same key.

        With a `secret`, nobody else can draw the same.
        """
        key = fold(self.key, -1)
        return self._replace(key=key if secret is None else fold(key, secret))

    def to(self, device: torch.device | str) -> Turn:
        """The same turn on a device."""
        key, round, rounds = (part.to(device) for part in self[:3])
        lr = None if self.lr is None else self.lr.to(device)
        return Turn(key, round, rounds, self.ledger, lr)

    def at_start(self) -> Key:
        """The key for a client's first state."""
        return fold(self.key, -2)

    def aside(self) -> Turn:
        """A second stream, for what a client does beside its training.

        The training's batch order then is the same in every method.
        """
        return self._replace(key=fold(self.key, -3))
