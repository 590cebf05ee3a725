"""Curves behind the metrics, for figures: of one client's rows, or of all clients' together."""

from __future__ import annotations

import numpy as np
from scipy.special import softmax

from fedtailor.results.metrics.classification import CALIBRATION_BINS


def roc_points(outputs: np.ndarray, labels: np.ndarray, number: int = 1) -> np.ndarray:
    """The ROC curve of a class against the rest, as points [P, 2] = (1 − specificity, sensitivity).

    A point per distinct score, after (0, 0); the area below is `roc-auc`. Empty where the rows are
    of one class.

    Args:
      outputs: logits [R, K].
      labels: class numbers [R].
      number: of the class that is the positive one.

    Example:
      >>> outputs = np.array([[0.0, 3], [0, 1], [0, 2], [0, 1]])
      >>> roc_points(outputs, np.array([1, 1, 0, 0])).tolist()
      [[0.0, 0.0], [0.0, 0.5], [0.5, 0.5], [1.0, 1.0]]
    """
    outputs, truth = outputs.astype(np.float64), labels == number
    if not 0 < truth.sum() < len(truth):
        return np.empty((0, 2))
    two = outputs.shape[1] == 2
    score = outputs[:, number] - outputs[:, 1 - number] if two else softmax(outputs, 1)[:, number]
    _, place = np.unique(-score, return_inverse=True)
    counts = np.stack([np.bincount(place, ~truth), np.bincount(place, truth)], 1)
    found = np.cumsum(counts, 0) / counts.sum(0)
    return np.concatenate([np.zeros((1, 2)), found])


def calibration_points(
    outputs: np.ndarray, labels: np.ndarray, number: int | None = None
) -> np.ndarray:
    """Said and true probabilities, as points [P, 3] = (mean probability, share of rows, rows).

    A point per bin of equal width that has rows, as in `calibration-error`. By default, of the
    answer and how often it is right; with a class's `number`, of its probability and how often it
    is true.

    Example (sure by 3/4 both times, and right once):
      >>> outputs = np.log(np.array([[1.0, 3], [1, 3]]))
      >>> calibration_points(outputs, np.array([1, 0])).round(6).tolist()
      [[0.75, 0.5, 2.0]]
    """
    said = softmax(outputs.astype(np.float64), 1)
    answer = said.argmax(1) if number is None else np.full(len(said), number)
    sure, right = said[np.arange(len(said)), answer], labels == answer
    bins = np.digitize(sure, np.arange(1, CALIBRATION_BINS) / CALIBRATION_BINS, right=True)
    sums = np.stack([np.bincount(bins, w, CALIBRATION_BINS) for w in (sure, right)], 1)
    rows = np.bincount(bins, minlength=CALIBRATION_BINS)
    some = rows > 0
    return np.column_stack([sums[some] / rows[some, None], rows[some]])
