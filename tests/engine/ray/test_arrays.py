"""Trees as plain arrays."""

from __future__ import annotations

import pickle
import warnings

import pytest
import torch

from fedtailor.core import rng, tree
from fedtailor.engine.ray.arrays import as_arrays, as_tensors, from_arrays, to_arrays


def values() -> tree.Tree:
    return {
        "w": rng.normal(rng.key(0), 3, 4),
        "deep": {"n": torch.tensor(7), "flag": torch.tensor([True, False]), "none": {}},
        "half": torch.tensor([1.5, -2.25], dtype=torch.bfloat16),
        "double": torch.tensor([0.1], dtype=torch.float64),
        "nothing": torch.zeros(0, 5),
        "turned": torch.arange(6).reshape(2, 3).T,
    }


def same(a: tree.Tree, b: tree.Tree) -> bool:
    one, two = tree.flatten(a), tree.flatten(b)
    return one.keys() == two.keys() and all(
        one[k].dtype == two[k].dtype and torch.equal(one[k], two[k]) for k in one
    )


@pytest.mark.parametrize("own", [True, False])
def test_there_and_back(own: bool) -> None:
    arrays = pickle.loads(pickle.dumps(to_arrays(values())))  # noqa: S301  # our own
    assert same(from_arrays(arrays, own=own), values())


def test_what_is_unpacked_lies_in_shared_memory_unless_it_is_owned() -> None:
    arrays = to_arrays(values())
    for array in (arrays["w"], arrays["double"]):
        array.flags.writeable = False  # type: ignore[union-attr]  # as Ray gives them
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        shared, own = from_arrays(arrays), from_arrays(arrays, own=True)
    assert shared["w"].data_ptr() == arrays["w"].ctypes.data  # type: ignore[union-attr]
    own["w"] += 1
    assert same(shared, values())


def test_tensors_travel_as_arrays_in_whatever_it_is_nested() -> None:
    turn = rng.Turn(rng.key(3), torch.tensor(4), torch.tensor(9))
    given = (values(), turn, ["left", "alone"])
    packed = pickle.loads(pickle.dumps([as_arrays(one) for one in given]))  # noqa: S301  # our own
    assert b"torch._utils" not in pickle.dumps(packed)  # no tensor is left
    tensors, again, words = (as_tensors(one) for one in packed)
    assert same(tensors, values()) and words == ["left", "alone"]
    assert isinstance(again, rng.Turn) and again.ledger is None
    assert torch.equal(again.key, turn.key) and int(again.round) == 4 and int(again.rounds) == 9
