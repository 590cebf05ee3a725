"""Loss surfaces: a model moved along directions in the space of its parameters, and its loss there.

Random directions mean nothing by themselves, since a network with larger weights can be moved
further before it notices. So each filter's direction is given the length of that filter (Li et al.,
"Visualizing the Loss Landscape of Neural Nets", NeurIPS 2018): a step of 1 changes every filter by
as much as there is of it, in any network.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.func import vmap

from fedtailor.core import rng, tree
from fedtailor.core.losses import cross_entropy
from fedtailor.core.rng import Key
from fedtailor.core.scoring import are_right
from fedtailor.core.tree import Tree
from fedtailor.engine.loops.torch_internals import OperatorMode
from fedtailor.engine.memory import free_memory, is_out_of_memory, nbytes

ROWS = 256  # examples at a time
COPIES = 4  # of models and of the largest activation that a chunk of points may need
SHARE = 0.25  # of the free memory
MOST = {"cpu": 8, "cuda": 64}  # points at a time: a CPU's caches hold few

Predict = Callable[[Any, Tensor], Tensor]
Place = Callable[[Tensor], Tree]  # where on the surface -> the model there


class SurfaceValues(NamedTuple):
    """Mean loss and accuracy at each point."""

    loss: Tensor
    accuracy: Tensor


# --- directions ---


def _filter_norms(weight: Tensor) -> Tensor:
    """The norm of each output filter, ready to be multiplied with them."""
    norms: Tensor = torch.linalg.vector_norm(weight.flatten(1), dim=1)
    return norms.reshape(-1, *[1] * (weight.ndim - 1))


def direction(model: Tree, key: Key) -> Tree:
    """A random direction whose filters are as long as the model's.

    Biases, normalisation's scales and its statistics (all that has one axis) do not move. Draws are
    the same for every model with the same names and shapes.
    """
    flat, found = tree.flatten(model), {}
    for number, name in enumerate(sorted(flat)):
        weight = flat[name]
        if weight.ndim < 2 or not weight.is_floating_point():
            found[name] = torch.zeros_like(weight)
            continue
        own = rng.fold(key.to(weight.device), number)
        drawn = rng.normal(own, *weight.shape, dtype=weight.dtype)
        found[name] = drawn * _filter_norms(weight) / (_filter_norms(drawn) + 1e-10)
    return tree.unflatten(found)


def plane(model: Tree, first: Tree, second: Tree) -> Place:
    """(a, b) -> model + a · first + b · second."""

    def at(steps: Tensor) -> Tree:
        a, b = steps[0], steps[1]
        return tree.map(
            lambda w, p, q: w + a.to(w.dtype) * p + b.to(w.dtype) * q, model, first, second
        )

    return at


def segment(start: Tree, end: Tree, statistics: Collection[str] = ()) -> Place:
    """t -> start + t · (end − start), straight on beyond both.

    What `statistics` names does not go beyond: a variance could become negative.
    """
    fixed = set(statistics)

    def at(where: Tensor) -> Tree:
        t, kept = where[0], where[0].clamp(0, 1)
        first, last = tree.flatten(start), tree.flatten(end)
        return tree.unflatten(
            {
                k: torch.lerp(v, last[k], (kept if k.split("/")[-1] in fixed else t).to(v.dtype))
                for k, v in first.items()
            }
        )

    return at


def grid(axis: Sequence[float] | Tensor) -> Tensor:
    """All pairs of an axis' values, row by row: the first one is the slow one.

    Example:
      >>> grid([0.0, 1.0]).tolist()
      [[0.0, 0.0], [0.0, 1.0], [1.0, 0.0], [1.0, 1.0]]
    """
    values = torch.as_tensor(axis, dtype=torch.float64)
    return torch.cartesian_prod(values, values)


# --- measuring ---


class _Largest(OperatorMode):
    """Notes the bytes of the largest tensor that is made."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.bytes = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        if isinstance(made, Tensor):
            self.bytes = max(self.bytes, made.numel() * made.element_size())
        return made


def points_at_once(predict: Predict, model: Tree, x: Tensor) -> int:
    """How many models can be looked at together."""
    with _Largest() as largest, torch.no_grad():
        predict(model, x[:ROWS])
    each = COPIES * (nbytes(model) + largest.bytes)
    return int(max(1, min(MOST[x.device.type], SHARE * free_memory(x.device) // max(each, 1))))


def measure_points(
    predict: Predict,
    at: Place,
    points: Tensor,
    x: Tensor,
    y: Tensor,
    *,
    chunk: int = 0,
    loss: Callable[[Tensor, Tensor], Tensor] = cross_entropy,
    tell: Callable[[int], None] = lambda done: None,
) -> SurfaceValues:
    """Loss and accuracy over all rows, at every point: exact, many points at once.

    Accuracy is nan where labels are no classes.

    Args:
      predict: (model, examples) -> logits.
      at: the model at a point, which is a row of `points`.
      x, y: examples and their labels.
      chunk: points at a time; 0 takes as many as fit.
      loss: (logits, labels) -> each row's loss.
      tell: called with the number of points that were done since the last time.
    """
    classes = not y.is_floating_point()
    chunk = chunk or points_at_once(predict, at(points[0].to(x.device)), x)

    def row(model: Tree, some: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        logits = predict(model, some)
        right = are_right(logits, labels).sum() if classes else torch.tensor(torch.nan)
        return loss(logits, labels).double().sum(), right.double()

    def together(some: Tensor) -> Tensor:
        models = vmap(at)(some.to(x.device))
        total = torch.zeros(2, len(some), dtype=torch.float64, device=x.device)
        for examples, labels in zip(torch.split(x, ROWS), torch.split(y, ROWS), strict=True):
            total += torch.stack(vmap(row, in_dims=(0, None, None))(models, examples, labels))
        return total.cpu()

    found: list[Tensor] = []
    left = points
    with torch.no_grad():
        while len(left):
            try:
                found.append(together(left[:chunk]))
            except RuntimeError as error:
                if not is_out_of_memory(error) or chunk == 1:
                    raise
                chunk //= 2
                continue
            tell(len(left[:chunk]))
            left = left[chunk:]
    losses, right = torch.cat(found, dim=1) / max(len(y), 1)
    return SurfaceValues(losses, right)


class Sharpness(NamedTuple):
    """How fast the loss rises around a model."""

    centre: float  # the loss of the model itself
    highest: float  # the largest loss within the radius, less the centre's
    mean: float  # the mean loss within the radius, less the centre's


def sharpness(axis: Tensor, losses: Tensor, radius: float) -> Sharpness:
    """How sharp a surface is around its centre.

    Args:
      axis: the grid's values, the same both ways, with 0 in the middle.
      losses: one per pair of them.
      radius: the disc that counts.

    Example:
      >>> axis = torch.tensor([-1.0, 0.0, 1.0])
      >>> sharpness(axis, axis[:, None] ** 2 + axis**2, 1.0)
      Sharpness(centre=0.0, highest=1.0, mean=0.800000011920929)
    """
    middle = len(axis) // 2
    inside = axis[:, None] ** 2 + axis[None, :] ** 2 <= radius**2 * (1 + 1e-9)
    centre = losses[middle, middle]
    rise = losses[inside] - centre
    return Sharpness(float(centre), float(rise.max()), float(rise.mean()))
