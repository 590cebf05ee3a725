"""Clusters that are halved where updates pull apart."""

from __future__ import annotations

import pytest
import torch

from fedtailor.methods.client_to_client.cfl import at_odds, bipartition, refined

RIGHT, UP = torch.tensor([1.0, 0.0]), torch.tensor([0.0, 1.0])


def test_the_criterion_by_hand() -> None:
    """Updates (3, 4), (-3, -4) and (0, 1.5): the mean has the length 0.5, the longest 5."""
    updates = {"a": torch.tensor([[3.0], [-3.0], [0.0]]), "b": torch.tensor([4.0, -4.0, 1.5])}
    assert at_odds(updates, still=0.51, moving=4.9)
    assert not at_odds(updates, still=0.49, moving=4.9)  # the cluster as a whole still learns
    assert not at_odds(updates, still=0.51, moving=5.1)  # nobody wants to go far
    # at the bounds themselves nothing happens
    assert not at_odds(updates, still=0.5, moving=4.9)
    assert not at_odds(updates, still=0.51, moving=5.0)
    assert not at_odds(updates, still=0.0, moving=0.0)


def test_bipartition_puts_the_alike_together() -> None:
    angles = torch.tensor([0.0, 2.9, 0.2, 3.2, 0.4])
    found = bipartition(torch.cos(angles[:, None] - angles)).tolist()
    assert found in ([0, 1, 0, 1, 0], [1, 0, 1, 0, 1])


def test_complete_linkage() -> None:
    """A chain of updates 40° apart from 0° to 120°: its ends must not meet.

    Single linkage could cut off an end; complete linkage halves it in the middle.
    """
    angles = torch.deg2rad(torch.tensor([0.0, 40.0, 80.1, 120.0]))
    found = bipartition(torch.cos(angles[:, None] - angles)).tolist()
    assert found[0] == found[1] != found[2] == found[3]


def test_a_split_by_hand() -> None:
    """Four to the right, two to the left: these get the next free number."""
    rows = torch.stack([RIGHT, -RIGHT, RIGHT, RIGHT, -RIGHT, RIGHT])
    cluster = refined(torch.zeros(6, dtype=torch.int64), torch.arange(6), {"w": rows}, 1.0, 0.5)
    assert cluster.tolist() == [0, 1, 0, 0, 1, 0]


def test_ids_are_clients_not_places() -> None:
    """Client 5 alone disagrees; it stands first among those who are there. Absent ones stay."""
    ids = torch.tensor([5, 1, 3])
    rows = torch.stack([-RIGHT, RIGHT, RIGHT])
    before = torch.tensor([4, 4, 2, 4, 4, 4])
    assert refined(before, ids, {"w": rows}, 1.0, 0.5).tolist() == [4, 4, 2, 4, 4, 5]
    assert before.tolist() == [4, 4, 2, 4, 4, 4]


def test_two_clusters_at_once_get_two_numbers() -> None:
    before = torch.tensor([0, 1, 0, 1, 0, 1])
    rows = torch.stack([RIGHT, UP, -RIGHT, UP, -RIGHT, -UP])
    after = refined(before, torch.arange(6), {"w": rows}, 1.0, 0.5)
    assert after.tolist() == [2, 1, 0, 1, 0, 3]


@pytest.mark.parametrize("there", [[0, 1], [0], [0, 1, 2]])
def test_two_or_fewer_are_left_alone(there: list[int]) -> None:
    rows = torch.stack([RIGHT, -RIGHT, -RIGHT])[: len(there)]
    after = refined(torch.zeros(4, dtype=torch.int64), torch.tensor(there), {"w": rows}, 1.0, 0.5)
    assert after.tolist() == ([1, 0, 0, 0] if len(there) == 3 else [0, 0, 0, 0])
