"""Curves behind the metrics, for figures: of one client's rows, or of all clients' together."""

from __future__ import annotations

import numpy as np
import scipy  # its parts are loaded when they are used

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
    score = (
        outputs[:, number] - outputs[:, 1 - number]
        if two
        else scipy.special.softmax(outputs, 1)[:, number]
    )
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
    said = scipy.special.softmax(outputs.astype(np.float64), 1)
    answer = said.argmax(1) if number is None else np.full(len(said), number)
    sure, right = said[np.arange(len(said)), answer], labels == answer
    bins = np.digitize(sure, np.arange(1, CALIBRATION_BINS) / CALIBRATION_BINS, right=True)
    sums = np.stack([np.bincount(bins, w, CALIBRATION_BINS) for w in (sure, right)], 1)
    rows = np.bincount(bins, minlength=CALIBRATION_BINS)
    some = rows > 0
    return np.column_stack([sums[some] / rows[some, None], rows[some]])


def kaplan_meier(time: np.ndarray, event: np.ndarray) -> np.ndarray:
    """The share without the event by time, as steps [P, 2] = (time, share from then on).

    Begins with (0, 1), has a step per distinct time of an event, and ends at the last time that
    anybody was seen. Who was last seen at the time of an event still counts as at risk there.

    Args:
      time: until the event, or until the row was last seen.
      event: 1 if it happened, else 0.

    Example (four rows; the second was lost at time 2):
      >>> kaplan_meier(np.array([1, 2, 3, 4]), np.array([1, 0, 1, 0])).tolist()
      [[0.0, 1.0], [1.0, 0.75], [3.0, 0.375], [4.0, 0.375]]
    """
    moments = np.unique(time[event > 0])
    events = np.array([((time == t) & (event > 0)).sum() for t in moments])
    share = np.cumprod(1 - events / rows_at_risk(time, moments)) if len(moments) else np.ones(0)
    steps = np.column_stack([np.append(0.0, moments), np.append(1.0, share)])
    end = max(time, default=0.0)
    return np.vstack([steps, [end, steps[-1, 1]]]) if end > steps[-1, 0] else steps


def rows_at_risk(time: np.ndarray, moments: np.ndarray) -> np.ndarray:
    """How many rows are still seen, without the event so far, at each of some moments.

    Example:
      >>> rows_at_risk(np.array([1, 2, 3, 4]), np.array([0, 2, 2.5, 9])).tolist()
      [4, 3, 2, 0]
    """
    return np.asarray(len(time) - np.searchsorted(np.sort(time), moments, side="left"))


def risk_thirds(risk: np.ndarray) -> np.ndarray:
    """Which third of the rows by predicted risk each is in: 0 low, 1 middle, 2 high.

    Rows of equal risk stay together, in the third where the middle one of them is.

    Example:
      >>> risk_thirds(np.array([5.0, 1, 9, 2, 8, 4])).tolist()
      [1, 0, 2, 0, 2, 1]
    """
    place = scipy.stats.rankdata(risk) - 0.5
    return np.asarray(np.minimum(3 * place / max(len(risk), 1), 2), dtype=np.int64)
