"""Where states are kept."""

from __future__ import annotations

import gc
import tempfile
from pathlib import Path

import pytest
import torch

from fedtailor.core import rng, tree
from fedtailor.core.tree import Tree
from fedtailor.engine import state_store
from fedtailor.engine.state_store import STATES, StateStore, choose_place

CPU = torch.device("cpu")
PLACES = ["device", "host", "disk"]


def state(number: int = 0) -> Tree:
    return {
        "own": {"w": rng.normal(rng.key(number), 3, 2), "b": torch.tensor(float(number))},
        "flag": torch.tensor(number % 2 == 1),
        "count": torch.tensor(number),
        "double": torch.full((2,), number / 3, dtype=torch.float64),
        "nothing": torch.zeros(0),
        "none": {},
    }


def flat_equal(a: Tree, b: Tree) -> bool:
    one, other = tree.flatten(a), tree.flatten(b)
    return list(one) == list(other) and all(
        one[k].dtype == other[k].dtype and torch.equal(one[k], other[k]) for k in one
    )


@pytest.mark.parametrize("place", PLACES)
def test_rows_come_back_as_they_were_put(place: state_store.StatePlace, tmp_path: Path) -> None:
    store = StateStore(5, state(), CPU, place, tmp_path)
    new = tree.stack([state(3), state(1)])
    store.put(torch.tensor([3, 1]), new)
    assert flat_equal(store.get(torch.tensor([3, 1])), new)
    assert flat_equal(store.get(torch.tensor([1])), tree.stack([state(1)]))
    store.put(torch.tensor([3]), tree.stack([state(8)]))
    assert flat_equal(store.get(torch.tensor([1, 3])), tree.stack([state(1), state(8)]))
    assert store.met.tolist() == [False, True, False, True, False]
    store.close()


@pytest.mark.parametrize("place", PLACES)
def test_a_client_not_yet_met_has_zeros(place: state_store.StatePlace, tmp_path: Path) -> None:
    store = StateStore(3, state(5), CPU, place, tmp_path)
    store.put(torch.tensor([1]), tree.stack([state(5)]))
    zeros = tree.map(torch.zeros_like, state(5))
    assert flat_equal(store.get(torch.tensor([0, 2])), tree.stack([zeros, zeros]))
    assert not bool(store.met[0])
    store.close()


@pytest.mark.parametrize("place", PLACES)
def test_what_was_got_does_not_change_with_the_store(
    place: state_store.StatePlace, tmp_path: Path
) -> None:
    store = StateStore(2, state(), CPU, place, tmp_path)
    got = store.get(torch.tensor([0]))
    store.put(torch.tensor([0]), tree.stack([state(7)]))
    assert flat_equal(got, tree.stack([tree.map(torch.zeros_like, state())]))
    got = store.get(torch.tensor([0]))
    got["own"]["w"] += 1
    assert flat_equal(store.get(torch.tensor([0])), tree.stack([state(7)]))
    store.close()


def test_closing_removes_the_files(tmp_path: Path) -> None:
    store, other = (
        StateStore(4, state(), CPU, "disk", tmp_path / STATES / name) for name in ("0", "1")
    )
    assert list(tmp_path.iterdir()) == []  # nobody has asked for a state
    for one in (store, other):
        one.get(torch.tensor([0]))
    assert len(list(tmp_path.rglob("*.bin"))) == 2 * len(tree.leaves(state()))
    store.close()
    assert len(list(tmp_path.rglob("*.bin"))) == len(tree.leaves(state()))
    other.put(torch.tensor([2]), tree.stack([state(2)]))  # the other store is as it was
    assert flat_equal(other.get(torch.tensor([2])), tree.stack([state(2)]))
    other.close()
    assert list(tmp_path.iterdir()) == []
    other.close()  # twice does no harm


def test_files_go_when_nobody_closes_the_store(tmp_path: Path) -> None:
    folder = tmp_path / STATES / "0"
    store = StateStore(4, state(), CPU, "disk", folder)
    store.put(torch.tensor([1]), tree.stack([state(1)]))
    assert list(folder.glob("*.bin"))
    del store
    gc.collect()
    assert list(tmp_path.iterdir()) == []


def test_what_a_killed_run_left_is_not_read_and_strangers_files_stay(tmp_path: Path) -> None:
    folder = tmp_path / STATES / "0"
    folder.mkdir(parents=True)
    for name in ("1.bin", "99.bin"):
        (folder / name).write_bytes(bytes(range(200)))
    (folder / "notes.txt").write_text("mine")
    store = StateStore(4, state(), CPU, "disk", folder)
    assert not any(bool(leaf.any()) for leaf in tree.leaves(store.get(torch.arange(4))))
    assert not (folder / "99.bin").exists()
    store.close()
    assert [p.name for p in folder.iterdir()] == ["notes.txt"]


@pytest.mark.parametrize("folder", [None, "0"])
def test_a_temporary_folder_goes_with_its_files(
    folder: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    store = StateStore(4, state(), CPU, "disk", tmp_path / STATES / folder if folder else None)
    assert store.rows
    assert len(list((tmp_path / "temporary").iterdir())) == (folder is None)
    store.close()
    assert not list((tmp_path / "temporary").iterdir())


@pytest.mark.parametrize("place", ["device", "host"])
def test_only_states_on_disk_make_files(place: state_store.StatePlace, tmp_path: Path) -> None:
    StateStore(4, state(), CPU, place, tmp_path).close()
    assert list(tmp_path.iterdir()) == []


def test_clients_without_a_state_cost_nothing(tmp_path: Path) -> None:
    store = StateStore(1_000_000, {}, CPU, "disk", tmp_path)
    assert store.rows == {}
    store.put(torch.tensor([3]), {})
    assert store.get(torch.tensor([3])) == {}
    assert bool(store.met[3])
    store.close()


@pytest.mark.parametrize(
    ("clients", "place"),
    [(1, "device"), (39, "device"), (40, "host"), (119, "host"), (120, "disk"), (9999, "disk")],
)
def test_the_nearest_place_with_room(
    clients: int, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # rows of 10 bytes, 1000 bytes free on the device (0.4 of it counts), 2000 on the host (0.6)
    monkeypatch.setattr(state_store, "free_memory", lambda d: 2000 if d.type == "cpu" else 1000)
    assert choose_place(10, clients, torch.device("cuda")) == place


def test_no_state_stays_on_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state_store, "free_memory", lambda d: 1000)
    assert choose_place(0, 10**9, CPU) == "device"
