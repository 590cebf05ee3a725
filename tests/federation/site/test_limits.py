"""What a site refuses: each rule has an attack that works without it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fedtailor.federation.coordinator.federation_file import read_federation
from fedtailor.federation.protocol.packet import Packet
from fedtailor.federation.site.settings import read_settings
from fedtailor.federation.site.site import PAUSE, Site
from tests.federation.fake import RULES, FakeTransport, coordinator, said
from tests.federation.trial import Trial

pytestmark = pytest.mark.usefixtures("float64")
OPEN = {}


def changed(packet: Packet, by: float = 1.0) -> Packet:
    """The same request with another model."""
    arrays = {k: v + np.asarray(by, v.dtype) for k, v in packet.arrays.items()}
    return packet._replace(arrays=arrays)


def rows_given_back(trial: Trial, client: int) -> list[np.ndarray]:
    """The rows that a curious coordinator computes from a site's uploads: x = dW / db."""
    transport, found = FakeTransport(trial), []

    def curious(packet, site):
        answer = site(packet)
        if answer.header["status"] == "ok":
            down = {k.removeprefix("params/"): v for k, v in packet.arrays.items()}
            up = {k.removeprefix("mean/params/"): v for k, v in answer.arrays.items()}
            weight, bias = (up[f"fc1.{k}"] - down[f"fc1.{k}"] for k in ("weight", "bias"))
            neuron = int(np.abs(bias).argmax())
            found.append(weight[neuron] / bias[neuron])
        return [answer]

    for round in range(trial.settings["rounds"]):
        transport.on(client, "train", round, curious)
    coordinator(trial, transport, replace(RULES, wait=0.05)).run()
    return found


def test_one_row_uploads_give_the_rows_back_and_are_refused(tmp_path: Path) -> None:
    trial = Trial(tmp_path, "fedavg", rounds=4, batch=1, steps=1, lr=1.0)
    own = trial.world.client_data.x.numpy()
    for i in range(3):
        trial.write_site(i, **OPEN)
    stolen = rows_given_back(trial, 1)
    assert len(stolen) == 4
    assert all(np.abs(own - row).max(1).min() < 1e-9 for row in stolen)  # to the last digit


def plan_packet(trial: Trial, kind: str = "join", **more) -> Packet:
    """What the coordinator of a trial would send to the first site."""
    found = read_federation(trial.federation)
    one = coordinator(trial, FakeTransport(trial))
    header = one.members.header(kind, text=found.plan.text(), client=0, last=-1) | more
    return Packet(header, {})


def test_a_plan_is_pinned(tmp_path: Path) -> None:
    site = Site(read_settings(Trial(tmp_path, "fedavg").sites[0]))
    first = plan_packet(Trial(tmp_path, "fedavg"))
    assert site.answer(first).header["status"] == "ok"
    (tmp_path / "b").mkdir()
    other = plan_packet(Trial(tmp_path / "b", "fedavg", lr=0.9))
    said = site.answer(other).header
    assert said["status"] == "error", said


@pytest.mark.parametrize(("kind", "round"), [("score", 1), ("finish", 2), ("join", 0)])
def test_a_paused_site_answers_nothing(tmp_path: Path, kind: str, round: int) -> None:
    trial = Trial(tmp_path, "fedavg")
    transport, got = FakeTransport(trial), []

    def pause(packet, site):
        (tmp_path / "site-1" ).mkdir(exist_ok=True)
        (tmp_path / "site-1" / PAUSE).touch()
        got.append(site(packet))
        (tmp_path / "site-1" / PAUSE).unlink()
        return [got[0]]

    transport.on(1, kind, round, pause)
    coordinator(trial, transport, replace(RULES, score_every=1, wait=0.05)).run()
    assert "paused" in str(got[0].header)


def test_scores_are_no_oracle(tmp_path: Path) -> None:
    """Many models scored on the same rows tell one row from the next."""
    trial = Trial(tmp_path, "fedavg")
    transport, got = FakeTransport(trial), []

    def ask(packet, site):
        answers = [site(packet), *(site(changed(packet, 0.1 * i)) for i in range(1, 5)), site(packet)]
        got.extend(answers)
        return answers[:1]

    transport.on(1, "finish", 2, ask)
    coordinator(trial, transport).run()
    assert [a.header["status"] for a in got] == ["ok"] + ["error"] * 4 + ["ok"]
    assert got[0].header == got[-1].header


def test_one_round_asked_seven_times(tmp_path: Path) -> None:
    trial = Trial(tmp_path, "fedavg")
    trial.write_site(1, max_rounds=1)
    transport, got = FakeTransport(trial), []

    def ask(packet, site):
        got.extend([site(packet), *(site(changed(packet, i)) for i in range(1, 7))])
        return got[:1]

    transport.on(1, "train", 0, ask)
    coordinator(trial, transport).run()
    assert [a.header["status"] for a in got] == ["ok"] + ["error"] * 6


def test_rounds_count_over_federations(tmp_path: Path) -> None:
    trial = Trial(tmp_path, "fedavg")
    trial.write_site(1, max_rounds=2)
    coordinator(trial, FakeTransport(trial)).run()
    again = Trial(tmp_path, "fedavg", table={"id": "another"})
    again.write_site(1, max_rounds=2)
    one = coordinator(again, FakeTransport(again))
    lines = one.run()
    assert all(line["taken"] == [0, 2] for line in lines[:2])
    assert "at most 2 rounds" in said(one)
