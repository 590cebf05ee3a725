"""Checkpoints: whole or not at all, and back exactly as they were."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import torch

from fedtailor.core import tree
from fedtailor.core.errors import BadInput
from fedtailor.core.inputs.files import sha256_of, write_atomically
from fedtailor.core.task import classification
from fedtailor.core.training import Recipe
from fedtailor.engine import Simulation
from fedtailor.methods import METHODS
from fedtailor.methods.check import toy_federation
from fedtailor.results import storage
from tests.dying import deaths

FEATURES, CLASSES = 6, 3


def simulation(method: str = "fedala", width: int = 5) -> Simulation:
    task = classification(
        lambda: torch.nn.Sequential(
            torch.nn.Linear(FEATURES, width), torch.nn.ReLU(), torch.nn.Linear(width, CLASSES)
        )
    )
    made = METHODS[method](task, recipe=Recipe(batch=8, lr=0.1))
    client_data = toy_federation()
    client_data = client_data._replace(x=client_data.x.float())
    return Simulation(made, client_data, task, rounds=4, chunk=3)


def same(a: tree.Tree, b: tree.Tree) -> bool:
    one, two = tree.flatten(a), tree.flatten(b)
    return one.keys() == two.keys() and all(torch.equal(one[k], two[k]) for k in one)


@pytest.mark.parametrize("method", ["fedavg", "local", "fedala", "fedfomo", "pfedhn"])
def test_there_and_back(method: str, tmp_path: Path) -> None:
    first = simulation(method)
    for cohort in ([0, 2, 5], [1, 2]):
        first.step(torch.tensor(cohort))
    storage.save_checkpoint(tmp_path / "c", storage.Snapshot.of(first), {"colour": "green"})
    second = simulation(method)
    assert storage.restore_checkpoint(tmp_path / "c", second)["colour"] == "green"
    assert second.round == 2
    assert torch.equal(second.states.met, first.states.met)
    for sim in (first, second):
        sim.step(torch.tensor([0, 1, 7]))
    assert same(first.server, second.server)
    assert same(first.states.rows, second.states.rows)


def test_only_clients_that_were_met_are_kept(tmp_path: Path) -> None:
    """A thousand clients of which ten took part need not fill a disk."""
    sim = simulation("local")
    sim.step(torch.tensor([1, 4]))
    storage.save_checkpoint(tmp_path, storage.Snapshot.of(sim), {})
    tensors = storage.load_tensors(next(tmp_path.glob("state-*")))
    clients = [v for k, v in tensors.items() if "clients/" in k]
    assert clients
    assert all(len(v) == 2 for v in clients)


def test_the_old_state_goes_when_the_new_one_is_there(tmp_path: Path) -> None:
    sim = simulation("local")
    for _ in range(3):
        sim.step(torch.tensor([0, 1]))
        storage.save_checkpoint(tmp_path, storage.Snapshot.of(sim), {})
    assert sorted(p.name for p in tmp_path.iterdir()) == ["latest.json", "state-000003.safetensors"]


def test_a_crash_while_writing_leaves_the_old_checkpoint_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sim = simulation("local")
    sim.step(torch.tensor([0, 1]))
    storage.save_checkpoint(tmp_path, storage.Snapshot.of(sim), {})
    sim.step(torch.tensor([2, 3]))

    def crash(path: Path, text: str) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(storage, "write_atomically", crash)  # tensors are there, their name not
        with pytest.raises(KeyboardInterrupt):
            storage.save_checkpoint(tmp_path, storage.Snapshot.of(sim), {})
    again = simulation("local")
    storage.restore_checkpoint(tmp_path, again)
    assert again.round == 1


def test_writing_is_all_or_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file.json"
    write_atomically(path, "old")

    def full(descriptor: int) -> None:
        raise OSError("disk full")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="disk full"):
        write_atomically(path, "new")
    assert path.read_text() == "old"
    with pytest.raises(OSError, match="disk full"):
        storage.save_tensors(tmp_path / "x.safetensors", {"a": torch.zeros(1)})
    assert [p.name for p in tmp_path.iterdir()] == ["file.json"], "half-written files are left"


@pytest.mark.parametrize("kind", ["text", "tensors"])
def test_two_processes_may_write_one_file(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second writes the whole of it while the first is in the middle: no mixture, no error."""
    path, sync, begun = tmp_path / "file", os.fsync, []

    def write(number: int) -> None:
        if kind == "text":
            write_atomically(path, str(number))
        else:
            storage.save_tensors(path, {"a": torch.tensor(number)})

    def found() -> int:
        return int(path.read_text() if kind == "text" else storage.load_tensors(path)["a"])

    def meanwhile(descriptor: int) -> None:
        if not begun:
            begun.append(1)
            write(2)
            assert found() == 2
        sync(descriptor)

    monkeypatch.setattr("os.fsync", meanwhile)
    write(1)
    assert found() == 1
    assert list(tmp_path.iterdir()) == [path]


def test_another_method_or_network_is_refused(tmp_path: Path) -> None:
    sim = simulation("fedavg")
    sim.step(torch.tensor([0, 1]))
    storage.save_checkpoint(tmp_path, storage.Snapshot.of(sim), {})
    for other in (simulation("fedfomo"), simulation("fedavg", width=7)):
        with pytest.raises(BadInput, match="server state"):
            storage.restore_checkpoint(tmp_path, other)


def test_other_client_states_are_refused(tmp_path: Path) -> None:
    sim = simulation("local")
    sim.step(torch.tensor([0, 1]))
    storage.save_checkpoint(tmp_path, storage.Snapshot.of(sim), {})
    with pytest.raises(BadInput):
        storage.restore_checkpoint(tmp_path, simulation("local", width=7))


@pytest.mark.parametrize("text", ["", "{", "[]", "3", "{}", '{"round": 1}', "\xff"])
def test_broken_notes_are_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / "latest.json").write_bytes(text.encode("latin-1"))
    with pytest.raises(BadInput):
        storage.read_checkpoint(tmp_path)


@pytest.mark.parametrize(
    "content", [b"", b"\x08", b"\xff" * 64, b"\x10\0\0\0\0\0\0\0not json at all"]
)
def test_broken_tensors_are_refused_even_with_the_right_sum(content: bytes, tmp_path: Path) -> None:
    sim = simulation("local")
    sim.step(torch.tensor([0, 1]))
    storage.save_checkpoint(tmp_path, storage.Snapshot.of(sim), {})
    state = next(tmp_path.glob("state-*"))
    state.write_bytes(content)
    meta = json.loads((tmp_path / "latest.json").read_text())
    meta["sha256"] = sha256_of(state)
    (tmp_path / "latest.json").write_text(json.dumps(meta))
    with pytest.raises(BadInput, match="broken"):
        storage.restore_checkpoint(tmp_path, simulation("local"))


def test_a_missing_model_is_said_to_be_missing(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="does not exist"):
        storage.load_tensors(tmp_path / "none.safetensors")


def test_views_of_one_storage_can_be_saved(tmp_path: Path) -> None:
    whole = torch.arange(6.0)
    tensors = {"a": whole[:3], "b": whole[1:4], "c": whole.view(2, 3).T}
    storage.save_tensors(tmp_path / "x.safetensors", tensors)
    found = storage.load_tensors(tmp_path / "x.safetensors")
    assert all(torch.equal(found[k], tensors[k]) for k in tensors)


def test_a_checkpoint_is_the_old_or_the_new_one_wherever_a_process_dies(tmp_path: Path) -> None:
    one, two = simulation(), simulation()
    for number, sim in enumerate((one, two), 1):
        for _ in range(number):
            sim.step(torch.tensor([0, 2]))
    found = []
    for folder in deaths(
        tmp_path,
        lambda folder: storage.save_checkpoint(folder / "c", storage.Snapshot.of(one), {}),
        lambda folder: storage.save_checkpoint(folder / "c", storage.Snapshot.of(two), {}),
    ):
        again = simulation()
        storage.restore_checkpoint(folder / "c", again)
        assert same(again.server, (one, two)[again.round - 1].server)
        found.append(again.round)
    assert found == sorted(found) and set(found) == {1, 2}
