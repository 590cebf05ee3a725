"""Weighted means as uploads come in, so that a mean over any number of clients costs one model."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from fedtailor.core import tree
from fedtailor.core.errors import BadInput
from fedtailor.core.tree import Tree


class Folded(NamedTuple):
    """A fold as plain values, to travel between machines."""

    mean: dict[str, Tensor]  # the mean so far, by flat name
    weight: dict[str, Tensor]  # for each of these names, the weight of those who sent it
    total: Tensor  # the weight of all


class Fold:
    """A running weighted mean, name by name; a name counts over those who sent it.

    The mean is kept normalised (not as a sum to be divided at the end), so that a mean over one
    client is that client's value to the last bit.
    """

    def __init__(self) -> None:
        self._mean: dict[str, Tensor] = {}
        self._weight: dict[str, Tensor] = {}
        self._total = torch.zeros(())

    def add(self, values: Tree, weight: Tensor) -> None:
        """Takes in some clients' values, stacked, with one weight each."""
        if not weight.is_floating_point():  # a client's rows, counted
            weight = weight.to(torch.get_default_dtype())
        here = weight.sum()
        share = weight / here.clamp(min=torch.finfo(weight.dtype).tiny)  # all may weigh nothing
        means: dict[str, Tensor] = {}
        weights: dict[str, Tensor] = {}
        for name, stacked in tree.flatten(values).items():
            if name.endswith("/"):  # an empty dict has nothing to average, but it is there
                means[name] = stacked
                continue
            own = share.to(stacked.dtype)
            if stacked.shape[1:].numel() == 1:
                means[name] = torch.tensordot(own, stacked, 1)
            else:  # the same product, without a walk over axes
                mean = torch.mm(own[None], stacked.flatten(1))
                means[name] = mean.reshape(stacked.shape[1:])
            weights[name] = here
        self.merge(Folded(means, weights, here))

    def merge(self, other: Folded) -> None:
        """Takes in what was folded elsewhere, as if its clients had been added here."""
        self._total = self._total + other.total
        for name, mean in other.mean.items():
            if name.endswith("/") or name not in self._mean:
                self._mean[name] = mean
                if name in other.weight:
                    self._weight[name] = other.weight[name]
                continue
            here = other.weight[name]
            self._weight[name] = self._weight[name] + here
            so_far = self._weight[name].clamp(min=torch.finfo(here.dtype).tiny)
            part = (here / so_far).to(mean.dtype)
            self._mean[name] = self._mean[name] + part * (mean - self._mean[name])

    @property
    def averages(self) -> bool:
        """Whether there is anything to take a mean of."""
        return any(not name.endswith("/") for name in self._mean)

    def folded(self) -> Folded:
        """What there is so far, for another fold to merge."""
        return Folded(self._mean, self._weight, self._total)

    def mean(self) -> Tree:
        """The mean so far."""
        return tree.unflatten(self._mean)

    def share(self) -> Tree:
        """For each name, the share of all weight that sent it."""
        empty = {k: v for k, v in self._mean.items() if k.endswith("/")}
        # most names have one and the same weight
        different = {id(weight): weight for weight in self._weight.values()}
        shares = {key: weight / self._total for key, weight in different.items()}
        return tree.unflatten({k: shares[id(w)] for k, w in self._weight.items()} | empty)


def demand_weight(fold: Fold, weights: Tensor, round: int) -> None:
    """Refuses a mean over uploads of which one weighs less than 0, or all weigh nothing.

    Of the latter it would be a model of zeros.

    Args:
      fold: of a round.
      weights: of its uploads.
      round: its number, from 1.

    Raises:
      BadInput: what they weigh.
    """
    if not fold.averages:
        return
    wrong = weights[~(weights >= 0)]  # nan, too
    if wrong.numel():
        raise BadInput(
            f"round {round}: the weight of an upload is {float(wrong[0]):g}: let Upload's weight "
            "be 0 or more"
        )
    if not bool(weights.any()):
        raise BadInput(
            f"round {round}: the weights of all uploads are 0, so they have no mean: let Upload's "
            "weight be above 0 for one client at least"
        )
