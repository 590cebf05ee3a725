"""Files that are whole, whatever moment a process dies at: the old one, or the new one."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import numpy as np
import pytest
import torch

from fedtailor.core.inputs.files import remove_parts, write_atomically
from fedtailor.datasets import cache
from fedtailor.federation.coordinator.store import CoordinatorStore, ServerCheckpoint
from fedtailor.federation.protocol.packet import Packet
from fedtailor.federation.site.answers import AnswerLog, SentAnswer
from fedtailor.federation.site.state import SavedState, SiteStore
from fedtailor.partition.files import load_partition, save_partition
from fedtailor.partition.parts import Partition
from fedtailor.results.storage import load_tensors, save_tensors
from tests.dying import deaths


def test_a_text(tmp_path: Path) -> None:
    found = []
    for folder in deaths(
        tmp_path,
        lambda folder: write_atomically(folder / "a", "old"),
        lambda folder: write_atomically(folder / "a", "new", durable=True),
    ):
        found.append((folder / "a").read_text())
        remove_parts(folder)
        assert [p.name for p in folder.iterdir()] == ["a"]
    assert found[0] == "old" and found[-1] == "new" and set(found) == {"old", "new"}
    assert len(found) >= 5  # open, write, fsync, rename, fsync of the folder


def test_tensors(tmp_path: Path) -> None:
    def save(value: float):
        return lambda folder: save_tensors(folder / "t", {"w": torch.full((3,), value)})

    found = [float(load_tensors(f / "t")["w"][0]) for f in deaths(tmp_path, save(1.0), save(2.0))]
    assert found == sorted(found) and set(found) == {1.0, 2.0}


def test_a_partition(tmp_path: Path) -> None:
    def save(seed: int):
        rows = (np.arange(2),)
        made = Partition(("a",), rows, (np.array([2]),), (np.array([3]),), "own", seed)
        return lambda folder: save_partition(made, folder / "p.npz")

    found = [load_partition(f / "p.npz", rows=4).seed for f in deaths(tmp_path, save(1), save(2))]
    assert found == sorted(found) and set(found) == {1, 2}


def test_a_fetched_file_is_never_there_unchecked(tmp_path: Path) -> None:
    there = []
    for folder in deaths(
        tmp_path,
        lambda folder: None,
        lambda folder: cache.store(folder / "f", lambda file: file.write(b"content"), "here"),
    ):
        there.append((folder / "f").exists())
        if there[-1]:
            assert cache.note_of(folder / "f").exists()
            cache.verify(folder / "f")
    assert there == sorted(there) and set(there) == {False, True}


def test_a_coordinators_checkpoint(tmp_path: Path) -> None:
    def save(round: int):
        now = ServerCheckpoint(round, {"w": torch.full((3,), float(round))}, [0], [5])
        return lambda folder: CoordinatorStore(folder, "a", "p").save(now)

    found = []
    for folder in deaths(tmp_path, save(1), save(2)):
        kept = CoordinatorStore(folder, "a", "p").load({"w": torch.zeros(3)})
        assert kept is not None and float(kept.server["w"][0]) == kept.round
        found.append(kept.round)
    assert found == sorted(found) and set(found) == {1, 2}


def test_a_sites_state_and_its_answer_go_together(tmp_path: Path) -> None:
    def keep(round: int):
        state = SavedState(round, {"w": torch.full((3,), float(round))}, (round,))
        reply = Packet({"status": "ok", "weight": round}, {})
        return lambda folder: SiteStore(folder, "a", "p", 0).keep(
            state, round - 1, str(round) * 64, reply
        )

    found = []
    for folder in deaths(tmp_path, keep(0), keep(1)):
        store = SiteStore(folder, "a", "p", 0)
        old, new = store.at(0), store.newest()
        assert old is not None and float(old.state["w"][0]) == 0  # it can go on in any case
        answer = store.answered(1, "1" * 64)
        assert (answer is not None) == (new == 1)
        found.append(new)
    assert found == sorted(found) and set(found) == {0, 1}


def test_a_line_of_the_answers(tmp_path: Path) -> None:
    """A line that is half there was never sent; the next one takes its place."""
    one = SentAnswer("a", "p", "train", 0, "x")

    def read(folder: Path) -> AnswerLog:
        log = AnswerLog(folder)
        log.refresh()
        return log

    found = []
    for folder in deaths(
        tmp_path,
        lambda folder: AnswerLog(folder).add(one),
        lambda folder: AnswerLog(folder).add(one._replace(round=1)),
    ):
        found.append(read(folder).lines)
        AnswerLog(folder).add(one._replace(round=2))
        assert read(folder).lines == found[-1] + 1
        assert read(folder).newest("a", "p", "train")[0] == 2
    assert found[0] == 1 and found[-1] == 2


def test_a_full_disk_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    write_atomically(tmp_path / "a", "old")
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left") as found:
        write_atomically(tmp_path / "a", "new")
    assert found.value.filename == str(tmp_path / "a")
    assert [p.name for p in tmp_path.iterdir()] == ["a"] and (tmp_path / "a").read_text() == "old"
