"""What a site wrote down of its answers, and the limits that rest on it."""

from __future__ import annotations

import errno
import json
import shutil
from dataclasses import replace
from math import inf
from pathlib import Path

import numpy as np
import pytest

from fedtailor.core.steps.privacy import Spent, epsilon
from fedtailor.federation.coordinator.coordinator import Stopped
from fedtailor.federation.protocol.packet import Packet, digest
from fedtailor.federation.site import answers
from fedtailor.federation.site.answers import ANSWERS, AnswerLog, SentAnswer
from fedtailor.federation.site.state import StateError
from tests.federation.fake import RULES, FakeTransport, coordinator, said
from tests.federation.trial import Trial

ONE = SentAnswer("wards", "1234", "train", 0, "ab", False, Spent(10, 1, 0.1), 1.0, 1e-5)


def test_lines_are_added_and_a_cut_one_is_written_over(tmp_path: Path) -> None:
    log = AnswerLog(tmp_path)
    log.refresh()
    assert log.answers == 0
    log.add(ONE)
    with log.path.open("a") as file:
        file.write('["wards", "12')  # a crash: of this nothing was sent
    two = ONE._replace(round=1, federation="beds", scored=True)
    log.add(two)
    assert [json.loads(line)[3] for line in log.path.read_text().splitlines()] == [0, 1]
    again = AnswerLog(tmp_path)
    again.refresh()
    for found in (log, again):
        assert found.answers == 2 and len(found.rounds) == 2
        assert found.spent[("wards", 1.0, 1e-5)] == ONE.spent
        assert found.newest("beds", "1234", "train") == (1, "ab")
        assert found.last_scored("beds", "1234", "train") == 1
        assert found.last_scored("wards", "1234", "train") is None
    log.path.write_text("[]\n" + log.path.read_text())
    with pytest.raises(StateError, match="line 1 is broken"):
        AnswerLog(tmp_path).refresh()


def test_no_line_is_read_twice(tmp_path: Path) -> None:
    log, other = AnswerLog(tmp_path), AnswerLog(tmp_path)
    log.add(ONE)
    other.add(ONE._replace(round=1))  # another process, such as its owner's command
    log.refresh()
    assert len(log.rounds) == 2 and log._end == log.path.stat().st_size
    raw = log.path.read_bytes()
    log.path.write_bytes(b"x" * len(raw) + json.dumps(ONE._replace(round=2)).encode() + b"\n")
    log.refresh()
    assert len(log.rounds) == 3  # what was counted is not looked at again


def test_epsilon_adds_up_over_federations(tmp_path: Path) -> None:
    pytest.importorskip("dp_accounting", reason="needs dp-accounting")
    log = AnswerLog(tmp_path)
    assert log.epsilon() == 0
    alone = epsilon(ONE.spent, 1.0, 1e-5)
    assert log.epsilon(ONE) == alone > 0
    log.add(ONE)
    assert log.epsilon() == alone
    assert alone < log.epsilon(ONE._replace(round=1)) < 2 * alone  # composed, not summed
    assert log.epsilon(ONE._replace(federation="beds")) == pytest.approx(2 * alone)
    assert log.epsilon(ONE._replace(noise=0.0)) == inf


def test_epsilon_of_a_federation_is_that_of_all_its_plans(tmp_path: Path) -> None:
    """Its owner may have agreed to another plan with more noise, and little was hidden before."""
    pytest.importorskip("dp_accounting", reason="needs dp-accounting")
    log = AnswerLog(tmp_path)
    assert log.epsilon_in("wards") == (0, 0)
    for answer in (ONE, ONE._replace(plan="56", noise=9.0), ONE._replace(federation="beds")):
        log.add(answer)
    each = [epsilon(ONE.spent, noise, 1e-5) for noise in (1.0, 9.0)]
    assert log.epsilon_in("wards") == (pytest.approx(sum(each)), 2e-5)
    assert log.epsilon_in("beds") == (each[0], 1e-5)


def private(tmp_path: Path) -> Trial:
    pytest.importorskip("dp_accounting", reason="needs dp-accounting")
    return Trial(tmp_path, "fedavg", dp_clip=1.0, dp_noise=1.0)


def changed(packet: Packet, by: float = 1.0) -> Packet:
    """The same request with another model."""
    arrays = {k: v + np.asarray(by, v.dtype) for k, v in packet.arrays.items()}
    return packet._replace(arrays=arrays)


def test_a_coordinator_that_asks_a_round_twice_gets_no_second_noise(tmp_path: Path) -> None:
    """Two answers with one noise differ by the gradients, which nothing hides then."""
    trial = private(tmp_path)
    transport, got = FakeTransport(trial), []

    def attack(packet, site):
        first, same, other = site(packet), site(packet), site(changed(packet))
        assert digest(packet) != digest(changed(packet))
        got.append((first, same, other))
        return [first]

    transport.on(1, "train", 1, attack)
    coordinator(trial, transport).run()
    first, same, other = got[0]
    assert same.header == first.header
    assert all(np.array_equal(same.arrays[k], first.arrays[k]) for k in first.arrays)
    assert other.header["status"] != "ok" and "answered once" in str(other.header)
    lines = [json.loads(row) for row in (tmp_path / "site-1" / ANSWERS).read_text().splitlines()]
    assert [row[3] for row in lines if row[2] == "train"] == [0, 1]


def test_a_budget_outlives_restarts_lost_folders_and_other_federations(tmp_path: Path) -> None:
    trial = private(tmp_path)
    coordinator(trial, FakeTransport(trial)).run()
    spent = AnswerLog(tmp_path / "site-1")
    spent.refresh()
    for name in ("site-0", "site-1", "site-2"):
        shutil.rmtree(tmp_path / name / "federations")
    other = Trial(tmp_path, "fedavg", table={"id": "other"}, dp_clip=1.0, dp_noise=1.0)
    for i in range(3):
        limit = {"max_epsilon": 1.1 * spent.epsilon()} if i == 1 else {}
        other.write_site(i, federations=["trial", "other"], **limit)
    one = coordinator(other, FakeTransport(other))
    lines = one.run()
    assert all(line["taken"] == [0, 2] for line in lines[:2])
    assert "its limit (max_epsilon)" in said(one)


def test_training_that_diverges_is_counted(tmp_path: Path) -> None:
    """Whether it does depends on rows, and a coordinator could ask with one model after another."""
    pytest.importorskip("dp_accounting", reason="needs dp-accounting")
    trial = Trial(tmp_path, "fedavg", dp_clip=1.0, dp_noise=1.0, lr=1e38)
    transport, got = FakeTransport(trial), []

    def attack(packet, site):
        got.extend(site(changed(packet, size)) for size in (3.4e38, 3.3e38))
        return got[-1:]

    transport.on(1, "train", 0, attack)
    with pytest.raises(Stopped):
        coordinator(trial, transport).run()
    assert [answer.header.get("code") for answer in got] == ["diverged", "answered"]
    lines = [json.loads(row) for row in (tmp_path / "site-1" / ANSWERS).read_text().splitlines()]
    assert lines[1][2:4] == ["train", 0] and lines[1][6][0] > 0


def test_an_older_list_of_answers_is_refused_with_noise(tmp_path: Path) -> None:
    """What it lacks was spent, and the site's ε would be told without it."""
    trial = private(tmp_path)
    transport, older = FakeTransport(trial), tmp_path / "older"

    def keep(packet, site):
        shutil.copytree(tmp_path / "site-1", older)

    transport.on(1, "train", 1, keep)
    coordinator(trial, transport).run()
    whole = (tmp_path / "site-1" / ANSWERS).read_bytes()
    shutil.rmtree(tmp_path / "site-1")
    shutil.copytree(older, tmp_path / "site-1")
    shutil.rmtree(tmp_path / "site-1" / "federations")
    more = Trial(tmp_path, "fedavg", rounds=4, dp_clip=1.0, dp_noise=1.0)
    more.write_site(1, begin_again=True)
    transport = FakeTransport(more)
    transport.on(
        1, "train", 3, lambda *_: (tmp_path / "site-1" / ANSWERS).write_bytes(whole) and None
    )
    one = coordinator(more, transport)
    assert [line["taken"] for line in one.run()[3:5]] == [[0, 2], [0, 1, 2]]
    assert "which its ε is counted from, ends before: put back a copy" in said(one)


def test_nothing_is_answered_that_could_not_be_written_down(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trial = Trial(tmp_path, "fedavg", rounds=1)
    transport, got = FakeTransport(trial), []

    def full(packet, site):
        def fail(number):
            raise OSError(errno.ENOSPC, "No space left on device")

        with monkeypatch.context() as patch:
            patch.setattr(answers.os, "fsync", fail)
            got.append(site(packet))
        return got

    transport.on(1, "train", 0, full)
    lines = coordinator(trial, transport).run()
    assert got[0].arrays == {} and "No space left" in lines[0]["failed"]["site-1"]


def test_noise_is_new_in_every_answer(tmp_path: Path) -> None:
    """A site that lost its state would else answer with the noise that it had before."""
    trial = private(tmp_path)
    transport, sent = FakeTransport(trial), []

    def ask(packet, site):
        for _ in range(2):
            sent.append(site(packet).arrays)
            for path in (tmp_path / "site-1").rglob("*"):
                if path.name.startswith(("reply", "state")) or path.name == ANSWERS:
                    path.unlink()
        return [site(packet)]

    transport.on(1, "train", 0, ask)
    coordinator(trial, transport, replace(RULES, wait=0.05)).run()
    named = [k for k in sent[0] if sent[0][k].size]
    assert named and not any(np.array_equal(sent[0][k], sent[1][k]) for k in named)


@pytest.mark.parametrize(
    ("limit", "told"),
    [({"max_epsilon": 3.0}, "above 3"), ({"max_answers": 1}, "answers 1 times")],
)
def test_a_site_keeps_within_its_limits(limit: dict, told: str, tmp_path: Path) -> None:
    trial = private(tmp_path)
    trial.write_site(1, **limit)
    one = coordinator(trial, FakeTransport(trial))
    one.run()
    assert told in said(one)
    found = AnswerLog(tmp_path / "site-1")
    found.refresh()
    assert found.epsilon() <= 3.0 if "max_epsilon" in limit else len(found.rounds) == 1
