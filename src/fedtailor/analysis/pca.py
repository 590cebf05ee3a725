"""The plane that shows most of many models: their two principal components."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fedtailor.core import tree
from fedtailor.core.tree import Tree

MARGIN = 0.25  # of the points' extent, on each side
Array = npt.NDArray[np.float64]


class Plane(NamedTuple):
    """A plane through many points."""

    origin: Array  # their mean
    axes: Array  # two orthonormal directions, one row each
    shares: Array  # how much of the points' variance lies along each
    places: Array  # each point's two coordinates


def principal_plane(points: Array) -> Plane:
    """The plane that is nearest to at least three points (principal component analysis).

    Example:
      >>> line = np.array([[0.0, 0.0], [1.0, 1.0], [2.0, 2.0]])
      >>> principal_plane(line).shares.round(3).tolist()
      [1.0, 0.0]
    """
    origin = points.mean(axis=0)
    centred = points - origin
    _, sizes, axes = np.linalg.svd(centred, full_matrices=False)
    # a sign is arbitrary: the largest entry is positive, so that pictures come out the same
    largest = np.take_along_axis(axes[:2], np.abs(axes[:2]).argmax(axis=1)[:, None], axis=1)
    axes = axes[:2] * np.where(largest < 0, -1.0, 1.0)
    whole = np.square(sizes).sum()
    shares = np.square(sizes[:2]) / (whole if whole > 0 else 1.0)
    return Plane(origin, axes, shares, centred @ axes.T)


class ModelPlane(NamedTuple):
    """The same for models."""

    plane: Plane  # of their parameters
    origin: Tree  # the model in the middle
    first: Tree  # the direction of the first component, as a model
    second: Tree  # that of the second


def model_plane(models: Sequence[Tree], statistics: Collection[str] = ()) -> ModelPlane:
    """The plane that is nearest to at least three models with the same names and shapes.

    What `statistics` names is no parameter: it does not move, and is the mean of all models'.
    """
    flat = [tree.flatten(model) for model in models]
    like = flat[0]
    names = sorted(
        k for k, v in like.items() if v.is_floating_point() and k.split("/")[-1] not in statistics
    )
    still = {k: _mean([f[k] for f in flat]) for k in like if k not in names}
    vectors = [torch.cat([f[k].detach().cpu().double().flatten() for k in names]) for f in flat]
    found = principal_plane(torch.stack(vectors).numpy())
    sizes = [like[k].numel() for k in names]

    def spread(values: Array, rest: dict[str, Tensor]) -> Tree:
        parts = torch.split(torch.from_numpy(values), sizes)
        moving = {
            k: p.reshape(like[k].shape).to(like[k]) for k, p in zip(names, parts, strict=True)
        }
        return tree.unflatten({k: (moving | rest)[k] for k in like})

    none = {k: torch.zeros_like(v) for k, v in still.items()}
    first, second = (spread(axis, none) for axis in found.axes)
    return ModelPlane(found, spread(found.origin, still), first, second)


def _mean(leaves: Sequence[Tensor]) -> Tensor:
    first = leaves[0]
    return torch.stack(list(leaves)).mean(0) if first.is_floating_point() else first


def frame(places: Array, points: int) -> tuple[Array, Array]:
    """Two axes around some places, equally long, with room to see where the way comes from."""
    low, high = places.min(axis=0), places.max(axis=0)
    middle, half = (low + high) / 2, float((high - low).max()) / 2 * (1 + 2 * MARGIN) or 1.0
    return tuple(np.linspace(m - half, m + half, points) for m in middle)  # type: ignore[return-value]
