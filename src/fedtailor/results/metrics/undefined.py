"""Why a client has no value of a metric, in words.

Each function takes one client's labels [R] (or [R, 2]) and weight [R], and which part of its data
they are; it gives a reason, or None where the metric has a value.
"""

from __future__ import annotations

from torch import Tensor

from fedtailor.results.metrics.survival import comparable


def without_rows(labels: Tensor, weight: Tensor, part: str = "test") -> str | None:
    """For metrics that need nothing but rows.

    Example:
      >>> import torch
      >>> without_rows(torch.zeros(2), torch.zeros(2))
      'no test rows'
    """
    return None if (weight > 0).any() else f"no {part} rows"


def one_class(labels: Tensor, weight: Tensor, part: str = "test") -> str | None:
    """For metrics that set classes against each other.

    Example:
      >>> import torch
      >>> one_class(torch.tensor([1, 1, 1, 0]), torch.tensor([1, 1, 1, 0]))
      'only one class among its 3 test rows'
    """
    return _only_one("class", labels, weight, part)


def no_positive(labels: Tensor, weight: Tensor, part: str = "test") -> str | None:
    """For what is counted among the positive rows."""
    return _none_of(1, "positive", labels, weight, part)


def no_negative(labels: Tensor, weight: Tensor, part: str = "test") -> str | None:
    """For what is counted among the negative rows."""
    return _none_of(0, "negative", labels, weight, part)


def one_value(labels: Tensor, weight: Tensor, part: str = "test") -> str | None:
    """For metrics that need labels which differ."""
    return _only_one("value", labels, weight, part)


def no_pair(labels: Tensor, weight: Tensor, part: str = "test") -> str | None:
    """For metrics that compare times.

    Example:
      >>> import torch
      >>> no_pair(torch.tensor([[3.0, 0], [5.0, 0]]), torch.ones(2))
      'no event among its 2 test rows'
      >>> no_pair(torch.tensor([[3.0, 0], [5.0, 1]]), torch.ones(2))
      'no two rows to compare among its 2 test rows: none was followed until after an event'
    """
    held = labels[weight > 0]
    if not len(held) or comparable(labels, weight):
        return without_rows(labels, weight, part)
    if not (held[:, 1] > 0).any():
        return f"no event {_among(held, part)}"
    return f"no two rows to compare {_among(held, part)}: none was followed until after an event"


def _only_one(word: str, labels: Tensor, weight: Tensor, part: str) -> str | None:
    held = labels[weight > 0]
    if not len(held) or (held != held[0]).any():
        return without_rows(labels, weight, part)
    return f"only one {word} {_among(held, part)}"


def _none_of(number: int, word: str, labels: Tensor, weight: Tensor, part: str) -> str | None:
    held = labels[weight > 0]
    if not len(held) or (held == number).any():
        return without_rows(labels, weight, part)
    return f"no {word} row {_among(held, part)}"


def _among(held: Tensor, part: str) -> str:
    return f"in its one {part} row" if len(held) == 1 else f"among its {len(held)} {part} rows"
