"""Candidate weights and means of clusters."""

from __future__ import annotations

import pytest
import torch

from fedtailor.candidates import cluster_means, normalised


def test_normalised() -> None:
    share, any_helps = normalised(torch.tensor([1.0, -5.0, 3.0, 0.0]))
    assert share.tolist() == [0.25, 0, 0.75, 0]
    assert bool(any_helps)
    for none in ([-1.0, 0.0, -2.0], [0.0, 0.0]):
        share, any_helps = normalised(torch.tensor(none))
        assert not share.any()
        assert not bool(any_helps)
    # D-F1: only ratios count, and order goes with the candidates
    weights = torch.tensor([0.3, -1.0, 0.1, 2.0])
    share = normalised(weights)[0]
    torch.testing.assert_close(normalised(weights * 7)[0], share)
    order = torch.tensor([2, 0, 3, 1])
    torch.testing.assert_close(normalised(weights[order])[0], share[order])


def _affinity(groups: list[list[int]]) -> torch.Tensor:
    count = sum(map(len, groups))
    out = torch.zeros(count, count)
    for group in groups:
        for i in group:
            out[i, group] = 1.0
    return out


def test_clusters_are_found() -> None:
    """Two groups that only help each other: their means, and that of all."""
    models = {"w": torch.tensor([[0.0], [10.0], [2.0], [12.0], [4.0]])}
    means = cluster_means(models, _affinity([[0, 2, 4], [1, 3]]), 2)["w"]
    assert means.shape == (3, 1)
    assert sorted(means[:2].flatten().tolist()) == [2, 11]
    assert means[2].item() == pytest.approx(28 / 5)


def test_negative_affinities_and_one_way_help() -> None:
    models = {"w": torch.arange(4.0)}
    affinity = torch.tensor(
        [[1.0, 2.0, -9.0, -9.0], [0.0, 1.0, -9.0, -9.0], [-9, -9, 1, 0], [-9.0, -9.0, 2.0, 1.0]]
    )
    means = cluster_means(models, affinity, 2)["w"]
    assert sorted(means[:2].tolist()) == [0.5, 2.5]
    assert float(means[2]) == 1.5


def test_a_small_cohort_repeats() -> None:
    """No more clients than clusters: each for itself, what is missing is the mean of all."""
    models = {"w": torch.tensor([1.0, 3.0])}
    assert cluster_means(models, torch.eye(2), 3)["w"].tolist() == [1, 3, 2, 2]
    one = cluster_means({"w": torch.tensor([5.0])}, torch.eye(1), 2)["w"]
    assert one.tolist() == [5, 5, 5]


def test_the_same_every_time() -> None:
    maker = torch.Generator().manual_seed(0)
    affinity = torch.rand(9, 9, generator=maker)
    models = {"w": torch.rand(9, 4, generator=maker)}
    one, two = (cluster_means(models, affinity, 3)["w"] for _ in range(2))
    assert torch.equal(one, two)
    assert torch.equal(one[-1], models["w"].mean(0))
