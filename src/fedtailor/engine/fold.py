"""Weighted means as uploads come in, so that a mean over any number of clients costs one model."""

from __future__ import annotations

import torch
from torch import Tensor

from .. import tree
from ..tree import Tree


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
        here = weight.sum()
        self._total = self._total + here
        share = weight / here.clamp(min=torch.finfo(weight.dtype).tiny)  # all may weigh nothing
        for name, stacked in tree.flatten(values).items():
            if name.endswith("/"):  # an empty dict has nothing to average, but it is there
                self._mean[name] = stacked
                continue
            mean = torch.tensordot(share.to(stacked.dtype), stacked, 1)
            if name in self._mean:
                self._weight[name] = self._weight[name] + here
                so_far = self._weight[name].clamp(min=torch.finfo(weight.dtype).tiny)
                part = (here / so_far).to(mean.dtype)
                self._mean[name] = self._mean[name] + part * (mean - self._mean[name])
            else:
                self._mean[name], self._weight[name] = mean, here

    def mean(self) -> Tree:
        """The mean so far."""
        return tree.unflatten(self._mean)

    def share(self) -> Tree:
        """For each name, the share of all weight that sent it."""
        empty = {k: v for k, v in self._mean.items() if k.endswith("/")}
        return tree.unflatten({k: w / self._total for k, w in self._weight.items()} | empty)
