"""How well models tell classes apart: functions of logits, class numbers and weights.

Equal to scikit-learn's where that has the metric. With two classes, class 1 is the positive one.
The answer is the class with the highest logit, the first of equals; logits that are not finite
numbers give none, and none is wrong. `real_rows` says what the arguments are and where the result
is nan.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from fedtailor.results.metrics.real_rows import BLOCK, RealRows, mean_of_rows, real_rows

CALIBRATION_BINS = 15
# scikit-learn's bound on probabilities: a certain and wrong answer costs 36, not infinity
LEAST_PROBABILITY = torch.finfo(torch.float64).eps


def right_answers(outputs: Tensor, labels: Tensor, weight: Tensor) -> Tensor:
    """Each row's answer: 1 where it is right, 0 where it is wrong and in the padding."""
    rows = real_rows(outputs, labels, weight)
    return rows.weight * rows.finite * (rows.outputs.argmax(-1) == rows.labels)


def accuracy(outputs: Tensor, labels: Tensor, weight: Tensor) -> Tensor:
    """The share of right answers.

    Example (two clients; the second has one row, and padding):
      >>> outputs = torch.tensor([[[2.0, 0.0], [1.0, 3.0]], [[0.0, 1.0], [0.0, 0.0]]])
      >>> accuracy(outputs, torch.tensor([[0, 0], [1, 0]]), torch.tensor([[1, 1], [1, 0]])).tolist()
      [0.5, 1.0]
    """
    return mean_of_rows(right_answers(outputs, labels, weight), weight)


def balanced_accuracy(outputs: Tensor, labels: Tensor, weight: Tensor) -> Tensor:
    """The share of right answers within each class, averaged over the classes among the rows.

    Example (all three rows of class 0 right, the one of class 1 wrong; accuracy would be 0.75):
      >>> outputs = torch.tensor([[1.0, 0.0]]).expand(4, 2)
      >>> float(balanced_accuracy(outputs, torch.tensor([0, 0, 0, 1]), torch.ones(4)))
      0.5
    """
    rows = real_rows(outputs, labels, weight)
    right, held, _ = _class_counts(rows)
    return rows.counted(_mean_where(held > 0, right / held))


def macro_f1(outputs: Tensor, labels: Tensor, weight: Tensor) -> Tensor:
    """F1 of each class, averaged over the classes that stand among the labels or the answers.

    Example (class 0: 2·2 / (3 + 2) = 0.8; class 1: 2·1 / (1 + 2) = 2/3; class 2 nowhere):
      >>> outputs = torch.eye(3)[[0, 0, 1, 1]]
      >>> round(float(macro_f1(outputs, torch.tensor([0, 0, 0, 1]), torch.ones(4))), 4)
      0.7333
    """
    rows = real_rows(outputs, labels, weight)
    right, held, given = _class_counts(rows)
    return rows.counted(_mean_where(held + given > 0, 2 * right / (held + given)))


def sensitivity(outputs: Tensor, labels: Tensor, weight: Tensor) -> Tensor:
    """The share of the positive rows that are found; two classes only.

    Example:
      >>> outputs = torch.eye(2)[[1, 0, 1]]
      >>> float(sensitivity(outputs, torch.tensor([1, 1, 0]), torch.ones(3)))
      0.5
    """
    return _recall_of(1, outputs, labels, weight)


def specificity(outputs: Tensor, labels: Tensor, weight: Tensor) -> Tensor:
    """The share of the negative rows that are said to be negative; two classes only.

    Example:
      >>> outputs = torch.eye(2)[[1, 0, 1]]
      >>> float(specificity(outputs, torch.tensor([1, 1, 0]), torch.ones(3)))
      0.0
    """
    return _recall_of(0, outputs, labels, weight)


def roc_auc(outputs: Tensor, labels: Tensor, weight: Tensor) -> Tensor:
    """How often a positive row is ranked above a negative one, ties counting half.

    With more than two classes, each class against the rest, averaged over the classes that some of
    a client's rows have and others have not; scikit-learn refuses where a class is absent.

    Example (positive rows score 3 and 1, negative ones 2 and 1: 2 + 0.5 of 4 pairs):
      >>> outputs = torch.tensor([[0.0, 3], [0, 1], [0, 2], [0, 1]])
      >>> float(roc_auc(outputs, torch.tensor([1, 1, 0, 0]), torch.ones(4)))
      0.625
    """
    rows = real_rows(outputs, labels, weight)
    return rows.known(_of_each_class(_pairs_in_order, rows))


def average_precision(outputs: Tensor, labels: Tensor, weight: Tensor) -> Tensor:
    """Precision, averaged over the positive rows: at each, of all that score at least as high.

    With more than two classes, each class against the rest, averaged over the classes that some of
    a client's rows have and others have not.

    Example (positives score 3 and 1; of one row 1 is positive, of all four 2: (1 + 2/4) / 2):
      >>> outputs = torch.tensor([[0.0, 3], [0, 1], [0, 2], [0, 1]])
      >>> float(average_precision(outputs, torch.tensor([1, 1, 0, 0]), torch.ones(4)))
      0.75
    """
    rows = real_rows(outputs, labels, weight)
    return rows.known(_of_each_class(_mean_precision, rows))


def row_log_losses(outputs: Tensor, labels: Tensor, weight: Tensor) -> Tensor:
    """Each row's −log of the probability that was given to its class; 0 in the padding."""
    rows = real_rows(outputs, labels, weight)
    logs = rows.outputs.log_softmax(-1).gather(-1, rows.labels[..., None])[..., 0]
    return rows.each(-logs.clamp(min=math.log(LEAST_PROBABILITY)))


def log_loss(outputs: Tensor, labels: Tensor, weight: Tensor) -> Tensor:
    """The mean −log (base e) of the probability that was given to the right class.

    A probability below 2.2e-16 counts as 2.2e-16, as in scikit-learn, so the loss is finite.

    Example (probability 1/2 for each class):
      >>> round(float(log_loss(torch.zeros(3, 2), torch.tensor([0, 1, 1]), torch.ones(3))), 6)
      0.693147
    """
    return mean_of_rows(row_log_losses(outputs, labels, weight), weight)


def perplexity(outputs: Tensor, labels: Tensor, weight: Tensor) -> Tensor:
    """e to the log loss: among how many equally likely classes a model is as good as guessing.

    1 where every answer is certain and right; the number of classes where all are equally likely.

    Example (probability 1/4 for each class, then 1/2 and 1/8: e^mean(log 2, log 8) = 4 as well):
      >>> round(float(perplexity(torch.zeros(3, 4), torch.tensor([0, 1, 3]), torch.ones(3))), 6)
      4.0
      >>> said = torch.tensor([[4.0, 2, 1, 1], [4, 2, 1, 1]]).log()
      >>> round(float(perplexity(said, torch.tensor([0, 3]), torch.ones(2))), 6)
      4.0
    """
    return log_loss(outputs, labels, weight).exp()


def row_briers(outputs: Tensor, labels: Tensor, weight: Tensor) -> Tensor:
    """Each row's squared distance of probabilities from what is true; 0 in the padding."""
    rows = real_rows(outputs, labels, weight)
    said = rows.outputs.softmax(-1)
    if said.shape[-1] == 2:
        return rows.each((said[..., 1] - rows.labels).square())
    own = said.gather(-1, rows.labels[..., None])[..., 0]
    # Σ p² with the own class's p² replaced by (1 − p)²
    return rows.each(said.square().sum(-1) - own.square() + (1 - own).square())


def brier(outputs: Tensor, labels: Tensor, weight: Tensor) -> Tensor:
    """The mean squared distance of the probabilities from what is true.

    Of two classes: the positive one's probability (0 to 1). Of more: summed over all (0 to 2).

    Example (a quarter for each of four classes: (3/4)² + 3 (1/4)²):
      >>> float(brier(torch.zeros(1, 4), torch.tensor([2]), torch.ones(1)))
      0.75
    """
    return mean_of_rows(row_briers(outputs, labels, weight), weight)


def calibration_error(outputs: Tensor, labels: Tensor, weight: Tensor) -> Tensor:
    """How far confidence and the share of right answers lie apart (ECE of the top label).

    Rows are sorted into 15 equally wide bins (low, high] by the highest probability; the error is
    the distance of mean confidence and share of right answers in each bin, averaged by rows.

    Example (sure by 3/4 both times, and right once):
      >>> outputs = torch.tensor([[1.0, 3.0], [1.0, 3.0]]).log()
      >>> round(float(calibration_error(outputs, torch.tensor([1, 0]), torch.ones(2))), 6)
      0.25
    """
    rows = real_rows(outputs, labels, weight)
    sure, said = rows.outputs.softmax(-1).max(-1)
    apart = (sure - (said == rows.labels).double()) * rows.weight
    edges = torch.arange(1, CALIBRATION_BINS, device=sure.device, dtype=sure.dtype)
    bins = torch.bucketize(sure, edges / CALIBRATION_BINS)
    total = sum((apart * (bins == b)).sum(-1).abs() for b in range(CALIBRATION_BINS))
    return rows.known(total / rows.weight.sum(-1))


def _class_counts(rows: RealRows) -> tuple[Tensor, Tensor, Tensor]:
    """Right answers, rows and answers of each class, [..., K] each."""
    said, answered = rows.outputs.argmax(-1), rows.weight * rows.finite
    none = rows.weight.new_zeros(*rows.weight.shape[:-1], rows.outputs.shape[-1])
    right = none.scatter_add(-1, rows.labels, answered * (said == rows.labels))
    return (
        right,
        none.scatter_add(-1, rows.labels, rows.weight),
        none.scatter_add(-1, said, answered),
    )


def _mean_where(there: Tensor, value: Tensor) -> Tensor:
    """The mean over the last axis of what is there; nan without any."""
    return torch.where(there, value, 0.0).sum(-1) / there.sum(-1)


def _recall_of(number: int, outputs: Tensor, labels: Tensor, weight: Tensor) -> Tensor:
    if outputs.shape[-1] != 2:
        raise ValueError(f"sensitivity and specificity need two classes, not {outputs.shape[-1]}")
    rows = real_rows(outputs, labels, weight)
    right, held, _ = _class_counts(rows)
    return rows.counted(right[..., number] / held[..., number])


def _of_each_class(measure: Callable[[Tensor, Tensor, Tensor], Tensor], rows: RealRows) -> Tensor:
    """A measure of scores for two classes; for more, its mean over each class against the rest."""
    outputs, labels, weight, _ = rows
    count = outputs.shape[-1]
    if not labels.shape[-1]:
        return weight.sum(-1)
    if count == 2:
        # the log-odds rank as the probability does, and do not round to 1 when large
        return measure(outputs[..., 1] - outputs[..., 0], labels.double(), weight)
    said = outputs.softmax(-1)
    numbers = torch.arange(count, device=said.device)
    found = []
    for some in torch.split(numbers, max(1, BLOCK // max(1, labels.numel()))):
        positive = (labels[..., None, :] == some[:, None]) * weight[..., None, :]
        score = said[..., some].transpose(-1, -2)
        found.append(measure(score, positive, weight[..., None, :].expand_as(score)))
    return torch.cat(found, -1).nanmean(-1)


def _pairs_in_order(score: Tensor, positive: Tensor, weight: Tensor) -> Tensor:
    """The share of pairs (positive, negative) that the score puts in order, ties counting half."""
    found, first, last = _ranked(score, positive, weight)
    yes = positive.sum(-1)
    no = weight.sum(-1) - yes
    # by the sum of mean ranks from the top: how many negatives stand above each positive
    ranks = (found * ((first + last) / 2 + 1)).sum(-1)
    return 1 - (ranks - yes * (yes + 1) / 2) / (yes * no)


def _mean_precision(score: Tensor, positive: Tensor, weight: Tensor) -> Tensor:
    """Precision at each positive row's score, averaged."""
    found, _, last = _ranked(score, positive, weight)
    yes = positive.sum(-1)
    precision = found.cumsum(-1).gather(-1, last) / (last + 1)
    some = (yes > 0) & (yes < weight.sum(-1))
    return torch.where(some, (found * precision).sum(-1) / yes, math.nan)


def _ranked(score: Tensor, positive: Tensor, weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Rows by score from the top, padding last; and where each one's ties start and end."""
    values, order = torch.where(weight > 0, -score, math.inf).sort(-1)
    at = torch.arange(values.shape[-1], device=values.device).expand(values.shape)
    edge = torch.ones_like(values[..., :1], dtype=torch.bool)
    differs = values[..., 1:] != values[..., :-1]
    first = torch.where(torch.cat([edge, differs], -1), at, 0).cummax(-1).values
    ends = torch.where(torch.cat([differs, edge], -1), at, values.shape[-1])
    last = ends.flip(-1).cummin(-1).values.flip(-1)
    return positive.gather(-1, order), first, last
