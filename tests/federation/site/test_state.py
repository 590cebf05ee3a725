"""A site's state on its disk: kept, checked, never half."""

import errno
import shutil

import pytest
import torch

from fedtailor.core.errors import BadInput
from fedtailor.core.inputs import files as module
from fedtailor.federation.protocol.packet import Packet
from fedtailor.federation.site.state import SavedState, SiteStore, StateError, checked_id


def store(folder, plan="p", client=1):
    return SiteStore(folder, "wards", plan, client)


def kept(round, value, played=()):
    return SavedState(round, {"own": {"w": torch.full((3,), value)}}, tuple(played))


def reply(value):
    return Packet({"status": "ok", "weight": value}, {})


def test_goes_on_after_a_restart(tmp_path):
    store(tmp_path).keep(kept(0, 1.0, [0]), -1, "a" * 64, reply(1.0))
    again = store(tmp_path).at(0)
    assert again.played == (0,) and torch.equal(again.state["own"]["w"], torch.ones(3))
    assert store(tmp_path).newest() == 0


def test_a_round_that_was_not_taken_is_as_if_never_played(tmp_path):
    one = store(tmp_path)
    one.keep(kept(0, 1.0, [0]), -1, "a" * 64, reply(1.0))
    one.keep(kept(1, 2.0, [0, 1]), 0, "b" * 64, reply(2.0))
    assert one.at(0).played == (0,)
    one.keep(kept(2, 3.0, [0, 2]), 0, "c" * 64, reply(3.0))
    assert one.at(2).played == (0, 2) and one.at(0).played == (0,)
    with pytest.raises(StateError, match="round 2"):
        one.at(1)


def test_the_same_request_gets_the_same_answer(tmp_path):
    store(tmp_path).keep(kept(4, 1.0), -1, "a" * 64, reply(0.25))
    assert store(tmp_path).answered(4, "a" * 64) == reply(0.25)
    assert store(tmp_path).answered(4, "b" * 64) is None
    assert store(tmp_path).answered(5, "a" * 64) is None


def test_a_lost_coordinator_is_not_followed(tmp_path):
    one = store(tmp_path)
    one.keep(kept(0, 1.0), -1, "a" * 64, reply(1.0))
    assert one.at(-1) is None  # it was never taken
    one.keep(kept(1, 1.0), 0, "b" * 64, reply(1.0))
    with pytest.raises(StateError, match="knows of no round"):
        one.at(-1)


def test_lost_state_is_refused_unless_the_site_begins_again(tmp_path):
    with pytest.raises(StateError, match="begin_again"):
        store(tmp_path).at(3)
    assert store(tmp_path).at(3, begin_again=True) is None
    store(tmp_path).keep(kept(1, 1.0), 0, "a" * 64, reply(1.0))
    for say in (False, True):  # an older copy is not thrown away for a word in a file
        with pytest.raises(StateError, match="or remove it and say begin_again = true"):
            store(tmp_path).at(3, begin_again=say)
    shutil.rmtree(store(tmp_path).folder)
    assert store(tmp_path).at(3, begin_again=True) is None


@pytest.mark.parametrize("file", ["state.json", "state-*.safetensors"])
@pytest.mark.parametrize("damage", [lambda raw: raw[:-9], lambda raw: raw[:40] + b"?" + raw[41:]])
def test_a_broken_file_is_named(tmp_path, file, damage):
    one = store(tmp_path)
    one.keep(kept(0, 1.0), -1, "a" * 64, reply(1.0))
    path = next(one.folder.glob(file))
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(StateError, match=path.name):
        store(tmp_path).at(0)


@pytest.mark.parametrize("change", [{"plan": "q"}, {"client": 2}])
def test_another_plan_or_client_is_refused(tmp_path, change):
    store(tmp_path).keep(kept(0, 1.0), -1, "a" * 64, reply(1.0))
    with pytest.raises(StateError, match=f"another {next(iter(change))}"):
        store(tmp_path, **change).at(0)


@pytest.mark.parametrize("writes", [0, 1, 2])
def test_a_full_disk_leaves_the_old_state(tmp_path, monkeypatch, writes):
    one = store(tmp_path)
    one.keep(kept(0, 1.0, [0]), -1, "a" * 64, reply(1.0))
    before = {p.name: p.read_bytes() for p in one.folder.iterdir()}
    real, count = module.os.fsync, 0

    def full(number):
        nonlocal count
        count += 1
        if count > 2 * writes:  # two per file: its content, its folder
            raise OSError(errno.ENOSPC, "No space left on device")
        real(number)

    monkeypatch.setattr(module.os, "fsync", full)
    with pytest.raises(StateError, match="No space left"):
        one.keep(kept(1, 2.0, [0, 1]), 0, "b" * 64, reply(2.0))
    monkeypatch.undo()
    assert {p.name: p.read_bytes() for p in one.folder.iterdir()} == before
    assert one.at(0).played == (0,)
    one.keep(kept(1, 2.0, [0, 1]), 0, "b" * 64, reply(2.0))  # room was made
    assert one.at(1).played == (0, 1)


@pytest.mark.parametrize("name", ["", "..", "a/b", ".hidden", "x" * 65, "a b"])
def test_ids_cannot_lead_elsewhere(name):
    with pytest.raises(BadInput, match="federation id"):
        checked_id(name)
