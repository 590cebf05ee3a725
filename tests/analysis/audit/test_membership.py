"""Membership inference: scores by hand, curves as scikit-learn draws them, honest intervals."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.metrics import roc_auc_score, roc_curve

from fedtailor.analysis.audit.membership import (
    ScoredRows,
    by_loss,
    calibrated,
    confidence,
    drawn_weights,
    judged_membership,
    roc,
)


def scored(n: int, shift: float, clients: int = 4, digits: int = 9, seed: int = 0) -> ScoredRows:
    """Half of n rows are members, whose scores are higher by `shift`."""
    member = np.arange(n) < n // 2
    scores = np.random.default_rng(seed).normal(size=n) + shift * member
    return ScoredRows(scores.round(digits), member, np.arange(n) % clients)


@pytest.mark.parametrize("digits", [9, 0])  # 0: many rows have the same score
def test_the_curve_is_scikit_learns(digits: int) -> None:
    rows = scored(2400, 0.7, digits=digits)
    found = judged_membership(rows)
    assert found["auc"]["value"] == pytest.approx(roc_auc_score(rows.member, rows.scores), abs=1e-6)
    false, true, _ = roc_curve(rows.member, rows.scores, drop_intermediate=False)
    for rate in (0.05, 0.01):
        assert found[f"tpr@{rate}"]["value"] == pytest.approx(true[false <= rate].max(), abs=1e-6)


def test_weights_count_rows_that_often() -> None:
    rows = scored(60, 0.5)
    weight = np.random.default_rng(1).integers(0, 4, size=(1, 60)).astype(float)
    false, true = roc(rows, weight)
    area = float((np.diff(false) * (true[:, 1:] + true[:, :-1]) / 2).sum())
    expected = roc_auc_score(rows.member, rows.scores, sample_weight=weight[0])
    assert area == pytest.approx(expected)


def test_members_and_others_that_change_places_turn_it_round() -> None:
    rows = scored(200, 1.0)
    one, other = (judged_membership(r) for r in (rows, rows._replace(member=~rows.member)))
    assert one["auc"]["value"] + other["auc"]["value"] == pytest.approx(1, abs=2e-6)


def test_few_false_alarms_are_told_only_where_ten_are_expected() -> None:
    for others, told in ((198, 0), (200, 1), (1000, 2)):
        found = judged_membership(scored(2 * others, 0.5))
        assert sum(name.startswith("tpr") for name in found) == told


def test_too_few_rows_are_refused() -> None:
    assert "too few" in judged_membership(scored(18, 1.0))["refused"]


def test_chance_is_within_the_interval_and_a_difference_is_not() -> None:
    covered = [
        low <= 0.5 <= high
        for seed in range(20)
        for low, high in [judged_membership(scored(200, 0.0, seed=seed))["auc"]["interval"]]
    ]
    assert sum(covered) >= 17
    assert judged_membership(scored(200, 2.0))["auc"]["interval"][0] > 0.8


def test_clients_are_drawn_and_not_only_rows() -> None:
    # in each client all members, or none, score higher: few clients tell little
    member = np.arange(400) % 2 == 0
    client = np.arange(400) // 100
    scores = np.random.default_rng(0).normal(size=400) + np.where(client < 2, 3.0, -3.0) * member
    low, high = judged_membership(ScoredRows(scores, member, client))["auc"]["interval"]
    one = judged_membership(ScoredRows(scores, member, client * 0))["auc"]["interval"]
    assert high - low > 3 * (one[1] - one[0])
    weight = drawn_weights(ScoredRows(scores, member, client), np.random.default_rng(0), 50)
    assert (weight.sum(1) == 400).all()


def test_yeoms_advantage_by_hand() -> None:
    losses = torch.tensor([0.1, 0.3, 0.8, 0.2, 1.0, 2.0])  # members' mean is 0.4
    rows = by_loss(losses, torch.tensor([True, True, True, False, False, False]))
    assert rows.called is not None and rows.called.tolist() == [
        True,
        True,
        False,
        True,
        False,
        False,
    ]
    many = ScoredRows.joined([rows] * 10)
    assert judged_membership(many)["advantage"]["value"] == pytest.approx(2 / 3 - 1 / 3, abs=1e-6)


def test_confidence_is_the_log_odds_of_the_true_class() -> None:
    logits = torch.randn(7, 3, dtype=torch.float64)
    labels = torch.arange(7) % 3
    p = logits.softmax(-1)[torch.arange(7), labels]
    assert torch.allclose(confidence(logits, labels), (p / (1 - p)).log())


def test_scores_are_calibrated_by_other_models() -> None:
    target = torch.tensor([3.0, 1.0]).double()
    nine = torch.arange(9).double()[:, None] * torch.tensor([1.0, 0.5]).double()
    z = calibrated(target, nine)
    deviation = float(torch.arange(9).double().std())
    assert z.tolist() == pytest.approx([-1 / (deviation + 1e-6), -1 / (deviation / 2 + 1e-6)])
    few = calibrated(target, nine[:3])  # rows share their spread: variances 1 and 1/4
    shared = (1.25 / 2) ** 0.5 + 1e-6
    assert few.tolist() == pytest.approx([2 / shared, 0.5 / shared])
    assert calibrated(target, nine[2:3]).tolist() == [1.0, 0.0]  # one tells only the difference
