"""What training makes small: one loss per row, by the kind of task."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from fedtailor.core.errors import BadInput, unknown
from fedtailor.core.form import TaskKind

RowLosses = Callable[[Tensor, Tensor], Tensor]  # (outputs, labels) -> one loss per row
# (outputs, labels, 1 for a real row and 0 for padding) -> one loss per row
BatchLosses = Callable[[Tensor, Tensor, Tensor], Tensor]

LOSSES: dict[TaskKind, tuple[str, ...]] = {
    "classification": ("cross-entropy", "focal:GAMMA"),
    "regression": ("mse", "huber", "huber:DELTA"),
    "survival": ("cox",),
}


def cross_entropy(outputs: Tensor, labels: Tensor) -> Tensor:
    """The cross-entropy of each row: the loss of a classification unless another is given."""
    return F.cross_entropy(outputs, labels, reduction="none")


def focal(gamma: float) -> RowLosses:
    """Cross-entropy that counts rows the less, the surer the model is of them (Lin et al., 2017).

        -(1 - p)^γ log p,   p = the probability of the true class

    Example:
      >>> even = torch.zeros(1, 2)  # p = 0.5: a quarter of log 2
      >>> round(float(focal(2.0)(even, torch.tensor([0]))), 4)
      0.1733
    """

    def losses(outputs: Tensor, labels: Tensor) -> Tensor:
        log_p = -cross_entropy(outputs, labels)
        # 1 - p from log p without cancellation; its power needs a slope at 0 for gamma below 1
        return -((-torch.expm1(log_p)).clamp(min=1e-12) ** gamma) * log_p

    return losses


def class_weighted(loss: RowLosses, weights: Sequence[float]) -> RowLosses:
    """A loss in which each row counts by its class."""

    def losses(outputs: Tensor, labels: Tensor) -> Tensor:
        each = torch.tensor(weights, dtype=outputs.dtype, device=outputs.device)
        return loss(outputs, labels) * each[labels]

    return losses


def balanced_weights(counts: Sequence[int]) -> tuple[float, ...]:
    """What a row of each class counts so that all classes count alike: n / (classes × count).

    A class without rows gets 0: no row asks for it.

    Example:
      >>> balanced_weights([30, 10])
      (0.6666666666666666, 2.0)
    """
    present = sum(count > 0 for count in counts)
    total = sum(counts)
    return tuple(total / (present * count) if count else 0.0 for count in counts)


def squared_error(outputs: Tensor, labels: Tensor) -> Tensor:
    """The squared error of each row."""
    return (outputs[..., 0] - labels) ** 2


def huber(delta: float) -> RowLosses:
    """Squared near the label, straight further than `delta` away (Huber, 1964).

        e²/2 for |e| ≤ δ, else δ (|e| - δ/2)

    Targets are scaled to deviation 1, so `delta` is in deviations of the label.
    """

    def losses(outputs: Tensor, labels: Tensor) -> Tensor:
        return F.huber_loss(outputs[..., 0], labels, reduction="none", delta=delta)

    return losses


def cox(outputs: Tensor, labels: Tensor, weight: Tensor) -> Tensor:
    """Cox's negative partial log-likelihood within the batch (Cox, 1972; ties as Breslow).

        E_i (log Σ_{j: T_j ≥ T_i} exp s_j - s_i)

    Args:
      outputs: log risks s, one column.
      labels: columns time T and event E (0: censored).
      weight: 0 for rows that only fill the batch: they are at nobody's risk.

    Example:
      >>> times = torch.tensor([[1.0, 1.0], [2.0, 0.0]])  # an event, with another still at risk
      >>> cox(torch.zeros(2, 1), times, torch.ones(2)).tolist()  # log 2, and nothing
      [0.6931471824645996, 0.0]
    """
    risk, time, event = outputs[..., 0], labels[..., 0], labels[..., 1]
    at_risk = (time[None, :] >= time[:, None]) & (weight[None, :] > 0)
    # a row of padding would have nobody: it has itself, and counts nothing
    at_risk = at_risk | torch.eye(len(time), dtype=torch.bool, device=time.device)
    all_risks = risk[None, :].expand(len(time), -1).masked_fill(~at_risk, -torch.inf)
    return event * (all_risks.logsumexp(-1) - risk)


# what a model is judged by, whatever training makes small; a risk counts among the rows given
PLAIN_LOSSES: dict[TaskKind, RowLosses] = {
    "classification": cross_entropy,
    "regression": squared_error,
    "survival": lambda outputs, labels: cox(outputs, labels, torch.ones_like(labels[..., 0])),
}


def row_by_row(loss: RowLosses) -> BatchLosses:
    """A loss of single rows in the form that a task keeps, with its shape checked."""

    def losses(outputs: Tensor, labels: Tensor, weight: Tensor) -> Tensor:
        each = loss(outputs, labels)
        if not isinstance(each, Tensor) or each.shape != labels.shape[:1]:
            shape = tuple(each.shape) if isinstance(each, Tensor) else type(each).__name__
            raise BadInput(
                f"loss gives {shape} for {len(labels)} rows: give one number per row "
                "(reduction='none')"
            )
        return each

    return losses


def parse_loss(name: str, task: TaskKind) -> RowLosses | None:
    """The loss that a name means for a task; None is Cox's, which is no loss of single rows.

    Raises:
      BadInput: the task has no such loss.

    Example:
      >>> parse_loss("huber:0.5", "regression")(torch.tensor([[2.0]]), torch.tensor([0.0]))
      tensor([0.8750])
    """
    kind, colon, given = name.partition(":")
    known = LOSSES[task]
    if name in ("", "auto"):
        name = kind = known[0]
    if kind not in {one.partition(":")[0] for one in known}:
        raise unknown(f"loss of a {task}", name, known)
    if kind == "cross-entropy" and not colon:
        return cross_entropy
    if kind == "mse" and not colon:
        return squared_error
    if kind == "cox" and not colon:
        return None
    number = _number(given, name, known) if colon else 1.0
    if kind == "focal" and colon:
        return focal(number)
    if kind == "huber" and number > 0:
        return huber(number)
    raise unknown(f"loss of a {task}", name, known)


def _number(text: str, name: str, known: Sequence[str]) -> float:
    try:
        found = float(text)
    except ValueError:
        found = -1.0
    if not 0 <= found < 1e6:
        raise BadInput(f"loss '{name}': give a number from 0 on, as in {', '.join(known)}")
    return found
