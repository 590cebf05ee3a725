"""Directed relations: combinations of cores, and how core and weights are learnt."""

from __future__ import annotations

import math

import pytest
import torch

from fedtailor.core import rng, wire
from fedtailor.core.training import Recipe
from fedtailor.core.tree import Tree
from fedtailor.methods.client_to_client.apple import (
    fading,
    latest,
    learn,
    others_of,
    personalised,
)
from tests.methods.worlds import HALF, data_of, near, one_number, rows_of, turn_of


@pytest.mark.parametrize("cid", [0, 2])
def test_all_others_or_some(cid: int) -> None:
    me, no, yes = torch.tensor(cid), torch.tensor(False), torch.tensor(True)
    all_four = torch.ones(4, dtype=torch.bool)
    everyone = [i != cid for i in range(4)]
    assert others_of(me, all_four, 0, rng.key(0), no).tolist() == everyone
    assert others_of(me, all_four, 3, rng.key(0), no).tolist() == everyone
    assert others_of(me, all_four, 1, rng.key(0), yes).tolist() == everyone
    assert others_of(me, all_four, 9, rng.key(0), no).sum() <= 4
    met = torch.zeros(4)
    for seed in range(300):
        drawn = others_of(me, all_four, 2, rng.key(seed), no)
        assert int(drawn.sum()) == 2
        assert not drawn[cid]
        met += drawn
    assert all(150 < count < 250 for i, count in enumerate(met.tolist()) if i != cid)


def test_fading_by_hand() -> None:
    """Over the first half of ten rounds."""
    cosine = [float(fading(turn_of(t), 0.5, "cosine")) for t in (0, 1, 5, 9)]
    assert cosine == pytest.approx([1, 0.9045085, 0, 0])  # cos 36° = 0.809017
    exponential = [float(fading(turn_of(t), 0.4, "exponential")) for t in (0, 2, 3, 4, 9)]
    assert exponential == pytest.approx([1, 0.001**0.5, 0.001**0.75, 0, 0])


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize(
    ("share", "rounds", "whole"), [(0.1, 15, 1), (0.29, 100, 28), (0.05, 10, 0)]
)
def test_the_pull_fades_over_a_whole_number_of_rounds(share, rounds, whole) -> None:
    """int(L T), as Python makes it of two doubles: 0.29 · 100 is 28.999..."""
    for t in range(3):
        expected = (math.cos(math.pi * t / whole) + 1) / 2 if t < whole else 0.0
        turn = turn_of(t, rounds=rounds)
        assert float(fading(turn, share, "cosine")) == pytest.approx(expected, abs=1e-15)
    assert float(fading(turn_of(whole, rounds=rounds), share, "exponential")) == 0


def _given(pull: float = 0.5) -> Tree:
    """Client 0 of three; client 1's core is 4, client 2's is 8."""
    own, prior = torch.tensor([1.0, 0.0, 0.0]), torch.tensor([0.5, 0.5, 0.0])
    cores = {"w": torch.tensor([7.0, 4.0, 8.0])}
    return {"cores": cores, "own": own, "prior": prior, "pull": torch.tensor(pull)}


def _state() -> Tree:
    weights = torch.tensor([0.5, 0.25, -0.125])
    return {"core": {"w": torch.tensor(2.0)}, "weights": weights, "buffers": {}, "more": 1}


def test_what_was_not_sent_is_as_it_was() -> None:
    sent = wire.maybe(torch.tensor([False, True]), {"w": torch.tensor([[1.0, 2], [3, 4]])})
    assert latest(sent, {"w": torch.zeros(2, 2) + 9})["w"].tolist() == [[9, 9], [3, 4]]


def test_a_combination_by_hand() -> None:
    """0.5 · 2 + 0.25 · 4 - 0.125 · 8; the stored copy of the own core does not count."""
    assert float(personalised(_state(), _given())["w"]) == 1


def test_a_step_by_hand() -> None:
    # w = 1, the row is 3: g = -2.  c: 2 + 0.5 · 0.5 · 2 = 2.5
    # p_0: ⟨g, c_0⟩ + 2 · 0.5 (0.5 - 0.5) = -4;   p_1: -2 · 4 + 2 · 0.5 (0.25 - 0.5) = -8.25
    # p_2: -2 · 8 + 2 · 0.5 (-0.125) = -16.125
    task, data = one_number(), data_of(rows_of([[3.0]]), 0)
    done = learn(task, _state(), _given(), data, turn_of(), HALF, 0.01)
    assert float(done.theta["core"]["w"]) == near(2.5)
    assert done.theta["weights"].tolist() == near(0.54, 0.3325, 0.03625)
    assert done.carried == {}
    assert float(done.loss) == near(2 + 0.5 * (0.25**2 + 0.125**2))


def test_each_rate_is_its_own() -> None:
    task, data = one_number(), data_of(rows_of([[3.0]]), 0)
    fixed = learn(task, _state(), _given(), data, turn_of(), HALF, 0.0)
    assert fixed.theta["weights"].tolist() == [0.5, 0.25, -0.125]
    for lr in (0.1, 0.5):
        done = learn(task, _state(), _given(), data, turn_of(), Recipe(batch=0, lr=lr), 0.01)
        assert done.theta["weights"].tolist() == near(0.54, 0.3325, 0.03625)
        assert float(done.theta["core"]["w"]) == near(2 + lr)
