"""Curves agree with the metrics that they are drawn for."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.metrics import auc, roc_curve

from fedtailor.results.metrics.classification import calibration_error, roc_auc
from fedtailor.results.metrics.curves import calibration_points, roc_points


def drawn(classes: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(classes)
    labels = rng.integers(0, classes, 200)
    return (rng.normal(size=(200, classes)) + 2 * np.eye(classes)[labels]).round(1), labels


def test_the_area_below_the_curve() -> None:
    outputs, labels = drawn(2)
    points = roc_points(outputs, labels)
    expected = roc_auc(torch.from_numpy(outputs), torch.from_numpy(labels), torch.ones(200))
    assert auc(*points.T) == pytest.approx(float(expected))
    assert points[[0, -1]].tolist() == [[0, 0], [1, 1]]


def test_the_curve_as_in_scikit_learn() -> None:
    outputs, labels = drawn(2)
    no, yes, _ = roc_curve(labels, outputs[:, 1] - outputs[:, 0], drop_intermediate=False)
    np.testing.assert_allclose(roc_points(outputs, labels), np.stack([no, yes], 1), atol=1e-12)


def test_one_class_against_the_rest() -> None:
    outputs, labels = drawn(4)
    areas = [auc(*p.T) for p in (roc_points(outputs, labels, k) for k in range(4))]
    expected = roc_auc(torch.from_numpy(outputs), torch.from_numpy(labels), torch.ones(200))
    assert np.mean(areas) == pytest.approx(float(expected))


def test_one_class_alone_has_no_curve() -> None:
    assert roc_points(np.ones((3, 2)), np.ones(3, dtype=int)).shape == (0, 2)
    assert roc_points(np.ones((0, 2)), np.ones(0, dtype=int)).shape == (0, 2)


@pytest.mark.parametrize("classes", [2, 4])
def test_distances_from_the_diagonal_are_the_calibration_error(classes: int) -> None:
    outputs, labels = drawn(classes)
    sure, right, rows = calibration_points(outputs, labels).T
    expected = calibration_error(
        torch.from_numpy(outputs), torch.from_numpy(labels), torch.ones(200)
    )
    assert (abs(sure - right) * rows).sum() / 200 == pytest.approx(float(expected))
    assert rows.sum() == 200


def test_calibration_of_one_class() -> None:
    # probabilities 1/4, 1/4 and 3/4 of class 1, which the second and third row have
    outputs = np.log(np.array([[3.0, 1], [3, 1], [1, 3]]))
    points = calibration_points(outputs, np.array([0, 1, 1]), number=1)
    np.testing.assert_allclose(points, [[0.25, 0.5, 2], [0.75, 1.0, 1]])


def test_no_rows_have_no_points() -> None:
    assert calibration_points(np.ones((0, 3)), np.ones(0, dtype=int)).shape == (0, 3)
