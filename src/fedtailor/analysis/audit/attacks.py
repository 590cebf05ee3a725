"""Three ways to find rows whose upload is the one that was seen.

- `idlg`: least squares between gradients by L-BFGS (Zhu et al., 2019; Zhao et al., 2020);
- `geiping`: the angle between updates and total variation by signed Adam (Geiping et al., 2020);
- `analytic`: a first linear layer's gradients hold its input: x = ∂W_i / ∂b_i.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf, isfinite, prod
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedtailor.analysis.audit.exposure import Exposure
from fedtailor.core import rng
from fedtailor.core.errors import BadInput
from fedtailor.core.tree import Params

ATTACKS = ("idlg", "geiping", "analytic")
STEPS = {"idlg": 300, "geiping": 4800, "analytic": 1}
ADAM_RATE, DECAY, DECAYS_AT = 0.1, 0.1, (3 / 8, 5 / 8, 7 / 8)
PATIENCE, BETTER = 40, 1e-3  # L-BFGS ends after so many steps that were no better by this share
SAME = 1e-3  # two candidates of the analytic attack that differ by less are one


class AttackPlan(NamedTuple):
    """How rows are looked for."""

    attack: str = "idlg"
    steps: int = 0  # of one attempt; 0: the attack's usual number
    restarts: int = 1  # attempts from other beginnings; the one that fits best counts
    tv: float = 0.1  # how much neighbouring pixels are to be alike (geiping)
    seed: int = 0

    @property
    def length(self) -> int:
        """Steps of one attempt."""
        return 1 if self.attack == "analytic" else self.steps or STEPS[self.attack]

    @property
    def work(self) -> int:
        """Steps of all attempts."""
        return self.length * (1 if self.attack == "analytic" else self.restarts)


class Recovery(NamedTuple):
    """The rows that an attack came to."""

    x: Tensor
    misfit: float  # the attack's own objective, which chose among restarts


def recover(
    exposure: Exposure,
    y: Tensor,
    shape: tuple[int, ...],
    plan: AttackPlan,
    *,
    image: bool,
    tell: Callable[[int], None] = lambda steps: None,
) -> Recovery:
    """Rows with these labels that explain an upload.

    Args:
      exposure: what was seen.
      y: the labels, known or guessed.
      shape: of one example.
      plan: which attack, how long.
      image: pixels lie between −1 and 1, and neighbours are alike.
      tell: called with the number of steps that were taken since the last time.

    Raises:
      BadInput: the attack does not take this network.
    """
    if plan.attack == "analytic":
        found = analytic(exposure, len(y), shape, box=image)
        tell(1)
        return found
    search = {"idlg": _least_squares, "geiping": _signed_descent}[plan.attack]
    best = Recovery(torch.zeros(len(y), *shape, dtype=exposure.dtype, device=y.device), inf)
    for attempt in range(plan.restarts):
        key = rng.key(plan.seed, attempt, device=y.device)
        begin = rng.normal(key, len(y), *shape, dtype=exposure.dtype)
        found = search(exposure, begin, y, plan, image, tell)
        if found.misfit < best.misfit:
            best = found
    return best._replace(x=best.x.clamp(-1, 1)) if image else best


def _least_squares(
    exposure: Exposure,
    begin: Tensor,
    y: Tensor,
    plan: AttackPlan,
    image: bool,
    tell: Callable[[int], None],
) -> Recovery:
    """min over x of |update(x) − update|², by L-BFGS."""
    x = begin.requires_grad_()
    optimiser = torch.optim.LBFGS([x], 1.0, max_iter=1, tolerance_grad=0, tolerance_change=0)
    best, since = Recovery(begin.detach().clone(), inf), 0

    def measured() -> Tensor:
        optimiser.zero_grad()
        made = exposure.imitate(x, y)
        off = sum(((made[k] - seen) ** 2).sum() for k, seen in exposure.seen.items())
        assert isinstance(off, Tensor)
        off.backward()  # type: ignore[no-untyped-call]
        return off.detach()

    for taken in range(plan.length):
        before = x.detach().clone()
        at_start: Tensor = optimiser.step(measured)  # type: ignore[no-untyped-call]
        misfit = float(at_start)
        since = 0 if misfit < (1 - BETTER) * best.misfit else since + 1
        if misfit < best.misfit:
            best = Recovery(before, misfit)
        if not isfinite(misfit) or since > PATIENCE:
            tell(plan.length - taken)
            break
        tell(1)
    return best


def _signed_descent(
    exposure: Exposure,
    begin: Tensor,
    y: Tensor,
    plan: AttackPlan,
    image: bool,
    tell: Callable[[int], None],
) -> Recovery:
    """min over x of 1 − cos(update(x), update) + tv · TV(x), by Adam on signs of gradients."""
    x = begin.requires_grad_()
    optimiser = torch.optim.Adam([x], lr=ADAM_RATE)
    at = [round(share * plan.length) for share in DECAYS_AT]
    schedule = torch.optim.lr_scheduler.MultiStepLR(optimiser, at, gamma=DECAY)
    best = Recovery(begin.detach().clone(), inf)
    for taken in range(plan.length):
        optimiser.zero_grad()
        loss = 1 - _cosine(exposure.imitate(x, y), exposure.seen)
        if image and plan.tv:
            loss = loss + plan.tv * total_variation(x)
        value = float(loss.detach())
        if not isfinite(value):
            tell(plan.length - taken)
            break
        if value < best.misfit:
            best = Recovery(x.detach().clone(), value)
        loss.backward()  # type: ignore[no-untyped-call]
        assert x.grad is not None
        x.grad.sign_()
        optimiser.step()
        schedule.step()
        if image:
            x.data.clamp_(-1, 1)
        tell(1)
    return best


def _cosine(made: Params, seen: Params) -> Tensor:
    """Of the angle between all numbers of two uploads."""
    dot: Any = sum((made[k] * leaf).sum() for k, leaf in seen.items())
    lengths: Any = [sum(leaf.square().sum() for leaf in part.values()) for part in (made, seen)]
    cosine: Tensor = dot / (lengths[0] * lengths[1]).clamp(min=1e-60).sqrt()
    return cosine


def total_variation(x: Tensor) -> Tensor:
    """Mean absolute difference of neighbouring pixels, down and across.

    Example:
      >>> total_variation(torch.tensor([[[[0.0, 1.0], [0.0, 1.0]]]]))
      tensor(1.)
    """
    down = (x[..., 1:, :] - x[..., :-1, :]).abs().mean() if x.shape[-2] > 1 else x.sum() * 0
    across = (x[..., 1:] - x[..., :-1]).abs().mean() if x.shape[-1] > 1 else x.sum() * 0
    return down + across


def analytic(exposure: Exposure, rows: int, shape: tuple[int, ...], *, box: bool) -> Recovery:
    """x = ∂W_i / ∂b_i of units of a first linear layer, exact for a unit that one row moves.

    Several rows mix in units that several of them move. So of what lies in the `box` of pixels the
    strongest units' come first, each once; zeros stand for what is missing.

    Raises:
      BadInput: the first layer is not linear with a bias, or did not travel.
    """
    size = prod(shape)
    first = {name: exposure.of(name) for name in exposure.task.blocks[0]}
    weights = [g for g in first.values() if g is not None and g.ndim == 2 and g.shape[1] == size]
    biases = [g for g in first.values() if g is not None and g.ndim == 1]
    if not weights or not biases:
        raise BadInput(
            "attack is analytic, but no first linear layer with a bias was uploaded: choose idlg "
            "or geiping"
        )
    weight, bias = weights[0], biases[0]
    strongest = bias.abs().argsort(descending=True)
    found: list[Tensor] = []
    for unit in strongest.tolist():
        row = weight[unit] / bias[unit]
        inside = not box or bool(row.abs().max() <= 1 + SAME)
        if not bool(row.isfinite().all()) or not inside:
            continue
        if all(bool((row - other).abs().max() > SAME) for other in found):
            found.append(row)
        if len(found) == rows:
            break
    found += [torch.zeros_like(weight[0])] * (rows - len(found))
    made = torch.stack(found).reshape(rows, *shape)
    return Recovery(made.clamp(-1, 1) if box else made, 0.0)
