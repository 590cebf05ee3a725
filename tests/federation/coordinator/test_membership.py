"""Who is admitted, and how much of a result one site can own."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fedtailor.core.errors import BadInput
from fedtailor.federation.coordinator.coordinator import Stopped
from fedtailor.federation.coordinator.membership import capped_rows
from fedtailor.federation.coordinator.owners import NumberOwners
from fedtailor.federation.coordinator.progress import sites_of
from fedtailor.federation.site.settings import read_settings
from fedtailor.federation.site.site import Site
from tests.federation.fake import RULES, FakeTransport, Fault, coordinator, said
from tests.federation.trial import Trial

pytestmark = pytest.mark.usefixtures("float64")


def lies(**more):
    def change(packet, site):
        answer = site(packet)
        return [answer._replace(header=answer.header | more)]

    return change


def own_share(trial: Trial, **announced) -> tuple[float, str]:
    """How much of the mean is site 1's, which announces and weighs what it likes."""
    transport, sent = FakeTransport(trial), {}
    if announced:
        transport.on(1, "join", 0, lies(**announced))

    def train(packet, site):
        answer = site(packet)
        sent[packet.number("client")] = answer.arrays
        return [answer]

    def heavy(packet, site):
        answer = train(packet, site)[0]
        weight = announced.get("n", 38)
        return [answer._replace(header=answer.header | {"weight": float(weight)})]

    transport.on(0, "train", 0, train)
    transport.on(1, "train", 0, heavy)
    transport.on(2, "train", 0, train)
    one = coordinator(trial, transport)
    one._begin()
    one._round()
    name = "mean/params/fc1.weight"
    mean = one.now.server["params"]["fc1.weight"].numpy()
    others = (sent[0][name] * 24 + sent[2][name] * 31) / 55
    away = sent[1][name] - others
    return float(((mean - others) * away).sum() / (away**2).sum()), said(one)


def test_a_lie_about_rows_does_not_own_the_mean(tmp_path: Path) -> None:
    """Without a cap the mean was site 1's to nine digits."""
    share, told = own_share(Trial(tmp_path, "fedavg", rounds=1), n=10**9)
    assert share == pytest.approx(0.8, abs=1e-3)
    assert "site-1 counts for less 1000000000 training rows are more than max_share = 0.8" in told


def test_honest_weights_are_left_alone(tmp_path: Path) -> None:
    share, told = own_share(Trial(tmp_path, "fedavg", rounds=1))
    assert share == pytest.approx(38 / 93) and "counts for less" not in told


def test_rows_are_capped_by_hand() -> None:
    assert capped_rows({0: 60, 1: 30, 2: 10}, 0.5) == {0: 40, 1: 30, 2: 10}  # 40 of 80
    # both above 0.4 of 105: t = 0.4 (2 t + 5)
    assert capped_rows({0: 60, 1: 40, 2: 5}, 0.4) == {0: 10, 1: 10, 2: 5}
    assert capped_rows({0: 9, 1: 1}, 0.3) == {0: 1, 1: 1}  # no two can have less than a third
    assert capped_rows({4: 9}, 0.5) == {4: 9}


def test_where_all_weigh_alike_one_site_cannot_weigh_more(tmp_path: Path) -> None:
    trial = Trial(tmp_path, "fedavg", {"weighting": "uniform"}, rounds=1)
    transport = FakeTransport(trial)
    transport.on(1, "train", 0, lies(weight=38.0))
    lines = coordinator(trial, transport).run()
    assert lines[0]["taken"] == [0, 2] and "as each site weighs" in lines[0]["failed"]["site-1"]


KEYED = {"authority": "ca.crt"}


def stranger(trial: Trial, transport: FakeTransport) -> Fault:
    """Site 1 goes away, and somebody with another key says that it is site 1."""

    def take_over(packet, site):
        transport.gone.add(11)
        transport.sites[66] = Site(read_settings(trial.sites[1]))
        return ["gone"]

    return take_over


def test_a_number_belongs_to_the_key_that_took_it(tmp_path: Path) -> None:
    trial = Trial(tmp_path, "fedavg", where=KEYED, rounds=3)
    transport = FakeTransport(trial)
    transport.on(1, "train", 0, stranger(trial, transport))
    one = coordinator(trial, transport)
    lines = one.run()
    assert all(line["taken"] == [0, 2] for line in lines[:3])
    assert "place 66 not admitted says it is client 1, the number of 'site-1', but" in said(one)
    # nor after a restart, when nobody is known yet
    transport.restart()
    transport.sites[66] = transport.sites.pop(11)
    again = coordinator(trial, transport, replace(RULES, wait=0.05))
    again._begin()
    assert set(again.members.place) == {0, 2}
    # until the owner of the coordinator says so
    assert NumberOwners(one.store.folder).release("site-1") == 1
    again.members.welcome()
    assert again.members.place == {0: 10, 1: 66, 2: 12}
    with pytest.raises(BadInput, match="no site 'site-9' has joined: known are site-0, site-1"):
        NumberOwners(one.store.folder).release("site-9")


def test_a_key_has_one_number(tmp_path: Path) -> None:
    trial = Trial(tmp_path, "fedavg", where=KEYED, rounds=1)
    transport = FakeTransport(trial)
    coordinator(trial, transport).run()
    transport.gone.add(12)
    transport.sites[11] = Site(read_settings(trial.sites[2]))  # site 1's key, site 2's number
    one = coordinator(trial, transport, replace(RULES, wait=0.05, min_sites=1))
    one._begin()
    assert (
        "says it is client 2, but its key is that of client 1, 'site-1': give client = 1"
        in said(one)
    )


def test_a_released_number_is_given_up_at_once(tmp_path: Path) -> None:
    trial = Trial(tmp_path, "fedavg", where=KEYED, rounds=1)
    one = coordinator(trial, FakeTransport(trial))
    one._begin()
    one.members.owners.release("site-1")
    one.members.transport.gone.add(11)
    one.members.welcome()
    assert set(one.members.place) == {0, 2}


@pytest.mark.parametrize("kind", ["join", "train", "finish"])
def test_a_fault_while_one_site_is_handled_is_its_own(tmp_path: Path, kind: str) -> None:
    trial = Trial(tmp_path, "fedavg", rounds=1)
    transport = FakeTransport(trial)
    absurd = {"pre_score": 10**400, "post_score": 10**400, "name": "x" * 10**6}
    transport.on(1, kind, int(kind == "finish"), lies(**absurd))
    one = coordinator(trial, transport, replace(RULES, wait=0.05))
    lines = one.run()
    assert lines[0]["taken"] and set(lines[-1]["finished"]) >= {"site-0", "site-2"}
    if kind != "join":
        assert f"site-1 failed in {kind} packet: cannot be read (the number 100" in said(one)


def test_an_error_of_ours_is_the_failure_of_the_site_that_caused_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trial = Trial(tmp_path, "fedavg", rounds=1)
    one = coordinator(trial, FakeTransport(trial))
    signed = one.members._signed

    def fails(answer, kind):
        if answer.place == 11 and kind == "train":
            raise ZeroDivisionError
        return signed(answer, kind)

    monkeypatch.setattr(one.members, "_signed", fails)
    lines = one.run()
    assert lines[0]["failed"] == {"site-1": "its answer cannot be handled (ZeroDivisionError)"}


def test_uploads_that_the_server_cannot_use_do_not_end_it(tmp_path: Path) -> None:
    trial = Trial(tmp_path, "fedavg", rounds=1)
    one = coordinator(trial, FakeTransport(trial))
    receive = one.setup.method.receive

    def fails(server, ids, upload, turn):
        if len(ids) == 3:
            raise IndexError
        return receive(server, ids, upload, turn)

    one.setup = one.setup._replace(method=one.setup.method._replace(receive=fails))
    lines = one.run()
    assert len(lines[0]["taken"]) == 2 and "cannot be used" in str(lines[0]["failed"])


@pytest.mark.parametrize("name", ["a\x1b[2J", "x\nround 9: site-0: failed", "\u202eevil"])
def test_a_sites_name_cannot_steer_a_terminal_or_forge_a_line(tmp_path: Path, name: str) -> None:
    trial = Trial(tmp_path, "fedavg", rounds=1)
    transport = FakeTransport(trial)
    transport.on(1, "join", 0, lies(name=name))
    one = coordinator(trial, transport, replace(RULES, wait=0.05))
    one.run()
    assert "a name is one line of text: remove" in said(one)
    assert name not in said(one)


def spoil(trial: Trial, client: int) -> bytes:
    """Gives a site a class that the federation does not know; returns its rows as they were."""
    path = trial.root / "data" / f"site-{client}" / "rows.npz"
    before, rows = path.read_bytes(), dict(np.load(path))
    np.savez(path, x=rows["x"], y=rows["y"] + 4711)
    return before


DATA = "data: its data cannot be used: the site's log says why"
PATIENT = replace(RULES, min_sites=1, wait=1000.0)  # whoever waited for a site would be seen


def test_sites_that_cannot_join_stop_nobody_and_are_named(tmp_path: Path) -> None:
    trial = Trial(tmp_path, "fedavg", rounds=2)
    spoil(trial, 1), spoil(trial, 2)
    one = coordinator(trial, FakeTransport(trial), PATIENT)
    lines = one.run()
    assert [line["taken"] for line in lines[:2]] == [[0], [0]]
    why = f"not admitted: {DATA}"
    assert lines[0]["failed"] == {"site-1": why, "site-2": why}
    assert said(one).count(f"site-1 not admitted {DATA}") == 1  # said once
    assert "place" not in said(one) and "471" not in said(one)
    first, second, third = sites_of(one.store.folder, dict.fromkeys(one.members.names.values()))
    # at joining, in both rounds, and when sites made their models
    assert first.failures == 0 and second.failures == third.failures == 4
    assert (second.name, second.why) == ("site-1", f"after round 2: {why}")


def test_a_refusal_is_in_the_status_before_any_round(tmp_path: Path) -> None:
    trial = Trial(tmp_path, "fedavg", rounds=1)
    spoil(trial, 1)
    one = coordinator(trial, FakeTransport(trial), PATIENT)
    one.members.welcome()
    status = {site.name: site for site in sites_of(one.store.folder, {})}
    assert status["site-1"].why == f"round 1: not admitted: {DATA}"
    assert status["site-1"].failures == 1 and status["site-0"].failures == 0


def test_too_few_sites_are_waited_for_whoever_refused(tmp_path: Path) -> None:
    trial = Trial(tmp_path, "fedavg", rounds=1)
    spoil(trial, 1), spoil(trial, 2)
    one = coordinator(trial, FakeTransport(trial), replace(RULES, wait=0.05))
    with pytest.raises(Stopped, match="1 of 3 sites are there, at least 2 are needed") as stopped:
        one.run()
    # starting them once more would not help
    named = f"(site-1: {DATA}; site-2: {DATA}): mend that or start others, then run again"
    assert str(stopped.value).endswith(named)


def test_a_site_that_is_mended_takes_part_from_then_on(tmp_path: Path) -> None:
    trial = Trial(tmp_path, "fedavg", rounds=2)
    path, before = tmp_path / "data" / "site-1" / "rows.npz", spoil(trial, 1)
    transport = FakeTransport(trial)

    def mend(packet, site):
        path.write_bytes(before)

    transport.on(0, "train", 0, mend)
    lines = coordinator(trial, transport, PATIENT).run()
    assert [line["taken"] for line in lines[:2]] == [[0, 2], [0, 1, 2]]


def test_a_sites_reason_is_one_short_line(tmp_path: Path) -> None:
    trial = Trial(tmp_path, "fedavg", rounds=1)
    transport = FakeTransport(trial)
    detail = "a\nround 9: site-0: \x1b[2J" + "x" * 10_000
    transport.on(1, "join", 0, lies(status="error", code="data", detail=detail))
    one = coordinator(trial, transport, replace(PATIENT, again=1000.0))
    why = one.run()[0]["failed"]["site-1"]
    assert why.startswith(r"not admitted: data: a round 9: site-0: \x1b[2Jxx") and len(why) < 520


def refuses(**more):
    return lies(status="error", code="data", detail="no", **more)


def test_nobody_refuses_in_anothers_name(tmp_path: Path) -> None:
    trial = Trial(tmp_path, "fedavg", where=KEYED, rounds=1)
    coordinator(trial, FakeTransport(trial)).run()
    transport = FakeTransport(trial)
    transport.sites[66] = transport.sites.pop(11)  # another key
    transport.faults[(66, "join", 1)] = refuses()
    one = coordinator(trial, transport, replace(RULES, wait=0.05))
    one._begin()
    assert "place 66 not admitted data: no" in said(one) and "site-1 not admitted" not in said(one)
    # while a key that is known has its name, even if nothing but a failure comes from there
    transport = FakeTransport(trial)
    transport.on(1, "join", 1, lambda packet, site: ["cannot load"])
    one = coordinator(trial, transport, replace(RULES, wait=0.05))
    one.members.welcome()
    assert "site-1 not admitted cannot load" in said(one)


def test_a_name_that_was_claimed_in_a_refusal_is_still_free(tmp_path: Path) -> None:
    trial = Trial(tmp_path, "fedavg", rounds=1)
    transport = FakeTransport(trial)
    transport.on(0, "join", 0, refuses(client=2, name="site-1"))
    one = coordinator(trial, transport, replace(PATIENT, again=1000.0))
    one.members.welcome()
    assert one.members.names == {1: "site-1", 2: "site-2"} and one.members.name(0) == "client 0"
    assert one.run()[0]["failed"] == {"client 0": "not connected"}


def test_a_connected_site_that_says_nothing_is_named_at_once(tmp_path: Path) -> None:
    trial = Trial(tmp_path, "fedavg", rounds=1)
    transport = FakeTransport(trial)
    marks = tmp_path / "registered"
    marks.mkdir()
    (marks / "abc").write_text(json.dumps({"name": "south", "node": "11"}))
    one = coordinator(trial, transport, replace(RULES, join=0.5))
    one.members.owners.registered = marks
    for _ in range(2):
        transport.on(1, "join", 0, lambda packet, site: [])
        transport.on(2, "join", 0, lambda packet, site: [])
        one.members.welcome()
    told = "has not answered in 0.5 s: its own log may say why"
    assert said(one).count(f"south {told}") == said(one).count(f"place 12 {told}") == 1
    status = {site.name: site for site in sites_of(one.store.folder, {})}
    assert status["south"].why.startswith("round 1: has not answered: in 0.5 s")
    lines = one.run()  # now it does
    assert lines[0]["taken"] == [0, 1, 2]
