"""What a site wrote down of its answers, and the limits that rest on it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fedtailor.core.steps.privacy import Spent, epsilon
from fedtailor.federation.protocol.packet import Packet, digest
from fedtailor.federation.site.answers import ANSWERS, AnswerLog, SentAnswer, epsilon_of, spent_in
from fedtailor.federation.site.state import StateError
from tests.federation.fake import RULES, FakeTransport, coordinator, said
from tests.federation.trial import Trial

ONE = SentAnswer("wards", "train", 0, "ab", Spent(10, 1, 0.1), 1.0, 1e-5)


def test_lines_are_added_and_a_cut_one_is_written_over(tmp_path: Path) -> None:
    log = AnswerLog(tmp_path)
    assert log.read() == []
    log.add(ONE)
    with log.path.open("a") as file:
        file.write('["wards", "tr')  # a crash: of this nothing was sent
    assert log.read() == [ONE]
    two = ONE._replace(round=1, federation="beds")
    log.add(two)
    assert AnswerLog(tmp_path).read() == [ONE, two]
    assert spent_in(log.read(), "wards") == ONE.spent
    log.path.write_text("[]\n" + log.path.read_text())
    with pytest.raises(StateError, match="line 1 is broken"):
        log.read()


def test_epsilon_adds_up_over_federations() -> None:
    alone = epsilon(ONE.spent, 1.0, 1e-5)
    assert epsilon_of([ONE]) == alone > 0
    twice = epsilon_of([ONE, ONE._replace(round=1)])  # one federation: composed, not summed
    assert alone < twice < 2 * alone
    assert epsilon_of([ONE, ONE._replace(federation="beds")]) == pytest.approx(2 * alone)


def private(tmp_path: Path) -> Trial:
    pytest.importorskip("dp_accounting", reason="needs dp-accounting")
    return Trial(tmp_path, "fedavg", dp_clip=1.0, dp_noise=1.0)


def changed(packet: Packet) -> Packet:
    """The same request with another model."""
    arrays = {k: v + np.ones((), v.dtype) for k, v in packet.arrays.items()}
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
    assert [row[2] for row in lines if row[1] == "train"] == [0, 1]


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
    answers = AnswerLog(tmp_path / "site-1").read()
    if "max_epsilon" in limit:
        assert epsilon_of(answers) <= 3.0
    else:
        assert sum(a.kind == "train" for a in answers) == 1


def test_a_plan_without_noise_is_refused_by_a_site_with_a_budget(tmp_path: Path) -> None:
    trial = Trial(tmp_path, "fedavg")
    trial.write_site(1, max_epsilon=3.0)
    one = coordinator(trial, FakeTransport(trial), replace(RULES, wait=0.05))
    one.run()
    assert "the plan has no noise" in said(one)
