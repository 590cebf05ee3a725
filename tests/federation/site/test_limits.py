"""What a site refuses: each rule has an attack that works without it."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fedtailor.federation.coordinator.federation_file import read_federation
from fedtailor.federation.protocol.packet import Packet
from fedtailor.federation.protocol.plan import set_up
from fedtailor.federation.site.answers import ANSWERS
from fedtailor.federation.site.guard import PAUSE, PROPOSED
from fedtailor.federation.site.inspection import accept_plan, inspect_plan
from fedtailor.federation.site.local_data import load_local_data
from fedtailor.federation.site.plan_check import rows_of_rarest_class, rows_per_upload
from fedtailor.federation.site.settings import read_settings
from fedtailor.federation.site.site import Site
from tests.federation.fake import RULES, FakeTransport, coordinator, said
from tests.federation.trial import Trial, write_data

pytestmark = pytest.mark.usefixtures("float64")
OPEN = {"min_batch": 1, "min_rows": 1}


def changed(packet: Packet, by: float = 1.0) -> Packet:
    """The same request with another model."""
    arrays = {k: v + np.asarray(by, v.dtype) for k, v in packet.arrays.items()}
    return packet._replace(arrays=arrays)


def rows_given_back(trial: Trial, client: int) -> tuple[list[np.ndarray], str]:
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
    one = coordinator(trial, transport, replace(RULES, wait=0.05))
    one.run()
    return found, said(one)


def test_one_row_uploads_give_the_rows_back_and_are_refused(tmp_path: Path) -> None:
    trial = Trial(tmp_path, "fedavg", rounds=4, batch=1, steps=1, lr=1.0)
    own = trial.world.client_data.x.numpy()
    for i in range(3):
        trial.write_site(i, **OPEN)
    stolen, _ = rows_given_back(trial, 1)
    assert len(stolen) == 4
    assert all(np.abs(own - row).max(1).min() < 1e-9 for row in stolen)  # to the last digit
    trial.write_site(1)
    for name in ("coordinator", "site-0", "site-1", "site-2"):
        shutil.rmtree(tmp_path / name)
    stolen, told = rows_given_back(trial, 1)
    assert stolen == []
    assert (
        "batch: the plan has batch = 1, the site min_batch = 4: raise batch in federation.toml, or "
        "lower min_batch in the site's file"
    ) in told


def with_one_row_of_a_class(root: Path, name: str) -> Trial:
    """A federation whose second site has one training row of a class."""
    path = write_data(root / "data") / "site-1" / "rows.npz"
    held = dict(np.load(path))
    held["y"][held["y"] == 2] = 0
    for i in range(len(held["y"])):
        np.savez(path, x=held["x"], y=np.where(np.arange(len(held["y"])) == i, 2, held["y"]))
        trial = Trial(root, name, rounds=1)
        if mix_of(trial).get("2") == 1:  # it is not tested with
            return trial
    raise AssertionError


def mix_of(trial: Trial) -> dict[str, int]:
    return load_local_data(read_settings(trial.sites[1]), trial.world.encoder).mix


def test_a_class_with_one_row_would_be_sent_as_that_row_and_is_refused(tmp_path: Path) -> None:
    trial = with_one_row_of_a_class(tmp_path, "fedpac")
    for i in range(3):
        trial.write_site(i, **OPEN)
    transport, sent = FakeTransport(trial), []

    def curious(packet, site):
        sent.append(site(packet).arrays)
        return [site(packet)]

    transport.on(1, "train", 0, curious)
    coordinator(trial, transport, replace(RULES, wait=0.05)).run()
    weight, bias = (sent[0][f"mean/shared/fc1.{k}"] for k in ("weight", "bias"))
    features = np.maximum(trial.world.client_data.x.numpy() @ weight.T + bias, 0)
    assert np.abs(features - sent[0]["each/prototypes"][2]).max(1).min() < 1e-9
    for name in ("coordinator", "site-0", "site-1", "site-2"):
        shutil.rmtree(tmp_path / name)
    trial.write_site(1)
    one = coordinator(trial, FakeTransport(trial), replace(RULES, wait=0.05))
    one._begin()
    assert set(one.members.place) == {0, 2}
    assert (
        "rows: the plan has a mean for each class, one of fewer rows, the site min_rows = 16: set "
        "another method in federation.toml, gather more rows of that class, or lower min_rows"
    ) in said(one)
    report = inspect_plan(read_federation(trial.federation).plan, read_settings(trial.sites[1]))
    assert report.refused
    trial = Trial(tmp_path, "fedavg", rounds=1)  # on the same rows
    assert not inspect_plan(
        read_federation(trial.federation).plan, read_settings(trial.sites[1])
    ).refused


@pytest.mark.parametrize(
    ("method", "options", "settings", "expected"),
    [
        ("fedproto", {}, {"steps": 1, "batch": 30}, 6),
        ("fedproto", {"proto_from": "running"}, {"steps": 1, "batch": 30}, 1),
        ("fedproto", {"proto_from": "running"}, {"steps": 1, "batch": 36}, 4),
        ("fedproto", {"proto_from": "running"}, {}, 6),
        ("feddistill", {}, {"steps": 1}, 6),
        ("fedgh", {}, {}, 6),
        ("fedtgp", {}, {}, 6),
        ("fedavg", {}, {}, None),
    ],
)
def test_rows_of_a_class_of_an_upload(
    tmp_path: Path, method: str, options: dict, settings: dict, expected: int | None
) -> None:
    plan = read_federation(Trial(tmp_path, method, options, **settings).federation).plan
    assert rows_of_rarest_class(set_up(plan), {"a": 6, "b": 32}) == expected


REFUSED = {
    "few rows": ({"steps": 1, "batch": 8}, {}, "uploads of 8 rows, the site min_rows = 16"),
    "its own rows are few": ({}, {"min_rows": 39}, "uploads of 38 rows, the site min_rows = 39"),
    "small batch": ({"batch": 8}, {"min_batch": 9}, "batch = 8, the site min_batch = 9"),
    "no noise": ({}, {"min_noise": 0.5}, "dp_noise = 0, the site min_noise = 0.5"),
    "ε without noise": ({}, {"max_epsilon": 3.0}, "no noise, the site max_epsilon = 3"),
    "a δ that lets a row out": (
        {"dp_clip": 1.0, "dp_noise": 1.0, "dp_delta": 0.1},
        {"max_epsilon": 3.0},
        "dp_delta = 0.1, the site max_epsilon = 3 and 38 training rows: set dp_delta below 0.03",
    ),
    "method": ({}, {"allow": ["fedala"]}, "method 'fedavg', the site allow: fedala"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_a_dangerous_plan_is_refused_in_one_line(tmp_path: Path, what: str, caplog) -> None:
    plan, limits, told = REFUSED[what]
    trial = Trial(tmp_path, "fedavg", **plan)
    trial.write_site(1, **limits)
    for i in (0, 2):
        trial.write_site(i, **OPEN)
    one = coordinator(trial, FakeTransport(trial), replace(RULES, wait=0.05))
    one._begin()
    assert set(one.members.place) == {0, 2} and told in said(one)
    assert told in caplog.text  # at the site, too
    assert not (tmp_path / "site-1" / ANSWERS).exists()


@pytest.mark.parametrize(
    ("settings", "options", "rows", "expected"),
    [
        ({"batch": 8}, {}, 38, 38),  # a whole pass
        ({"batch": 8, "steps": 2}, {}, 38, 16),
        ({"batch": 8, "steps": 9}, {}, 38, 38),
        ({"batch": 0, "steps": 1}, {}, 38, 38),
        ({"batch": 8}, {"inner_steps": 1}, 38, 8),  # a method that trains for fewer
    ],
)
def test_rows_of_an_upload(tmp_path: Path, settings, options, rows: int, expected: int) -> None:
    method = "pfedhn" if options else "fedavg"
    plan = read_federation(Trial(tmp_path, method, options, **settings).federation).plan
    assert rows_per_upload(plan, rows) == expected


def plan_packet(trial: Trial, kind: str = "join", **more) -> Packet:
    """What the coordinator of a trial would send to the first site."""
    found = read_federation(trial.federation)
    one = coordinator(trial, FakeTransport(trial))
    header = one.members.header(kind, text=found.plan.text(), client=0, last=-1) | more
    return Packet(header, {})


def test_a_plan_is_pinned(tmp_path: Path) -> None:
    """A coordinator that is joined with one plan comes with another under the same name."""
    trial = Trial(tmp_path, "fedavg")
    site = Site(read_settings(trial.sites[0]))
    assert site.answer(plan_packet(trial)).header["status"] == "ok"
    (tmp_path / "b").mkdir()
    other = plan_packet(Trial(tmp_path / "b", "fedavg", lr=0.9))
    for _ in range(2):
        told = site.answer(other).header
        assert told["code"] == "agreement" and "accept SITE.toml" in str(told["detail"])
        # nor after a restart, nor where the federation's folder is gone
        shutil.rmtree(tmp_path / "site-0" / "federations", ignore_errors=True)
        site = Site(read_settings(trial.sites[0]))
    kept = json.loads((tmp_path / "site-0" / PROPOSED).read_text())
    assert kept["federation"] == "trial" and '"lr": 0.9' in kept["plan"]
    assert site.answer(plan_packet(trial)).header["status"] == "ok"


def test_a_federation_of_another_name_is_not_joined(tmp_path: Path) -> None:
    """Without this, a coordinator asks for as many rounds as it likes: each new id begins at 1."""
    trial = Trial(tmp_path, "fedavg", table={"id": "another"})
    site = Site(read_settings(trial.write_site(0, federations=["trial"])))
    told = site.answer(plan_packet(trial)).header
    assert told["code"] == "agreement" and "takes part in trial alone" in str(told["detail"])
    site = Site(read_settings(trial.write_site(0, federations=["trial", "another"])))
    assert site.answer(plan_packet(trial)).header["status"] == "ok"


def test_a_file_that_names_none_means_the_first(tmp_path: Path) -> None:
    trial = Trial(tmp_path, "fedavg")
    site, first = Site(read_settings(trial.sites[0])), plan_packet(trial)
    assert site.answer(first).header["status"] == "ok"
    told = site.answer(plan_packet(Trial(tmp_path, "fedavg", table={"id": "another"}))).header
    assert 'federations = ["trial", "another"]' in str(told["detail"])
    assert site.answer(first).header["status"] == "ok"


def test_an_owner_can_be_asked_first(tmp_path: Path) -> None:
    trial = Trial(tmp_path, "fedavg")
    site = Site(read_settings(trial.write_site(0, ask_first=True)))
    packet = plan_packet(trial)
    assert "the site's owner is asked first" in str(site.answer(packet).header)
    accept_plan(site.settings)
    assert site.answer(packet).header["status"] == "ok"


@pytest.mark.parametrize(("kind", "round"), [("score", 1), ("finish", 2), ("join", 0)])
def test_a_paused_site_answers_nothing(tmp_path: Path, kind: str, round: int) -> None:
    trial = Trial(tmp_path, "fedavg")
    transport, got = FakeTransport(trial), []

    def pause(packet, site):
        (tmp_path / "site-1").mkdir(exist_ok=True)
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
        answers = [
            site(packet),
            *(site(changed(packet, 0.1 * i)) for i in range(1, 5)),
            site(packet),
        ]
        got.extend(answers)
        return answers[:1]

    transport.on(1, "finish", 2, ask)
    coordinator(trial, transport).run()
    assert [a.header["status"] for a in got] == ["ok"] + ["error"] * 4 + ["ok"]
    assert got[0].header == got[-1].header


def test_scores_leave_rounded_seldom_and_of_enough_rows(tmp_path: Path) -> None:
    trial = Trial(tmp_path, "fedavg", rounds=4)
    trial.write_site(0, score_every=3)
    trial.write_site(1, score_digits=1)
    trial.write_site(2, min_scored=1000)
    lines = coordinator(trial, FakeTransport(trial), replace(RULES, score_every=1)).run()
    rounds = [line["sites"] for line in lines if "taken" in line]
    asked = [line["scores"] for line in lines if "scores" in line]
    assert ["post_score" in line["site-0"] for line in rounds] == [True, False, False, True]
    assert ["pre_score" in line["site-0"] for line in asked] == [True, False, False]
    told = [line["site-1"]["post_loss"] for line in rounds]
    assert all(value == float(f"{value:.1g}") for value in told)
    assert not any("post_score" in line["site-2"] for line in rounds)
    assert (
        lines[-1]["finished"]["site-0"]["pre_score"] > 0 and lines[-1]["finished"]["site-2"] == {}
    )


@pytest.mark.parametrize(("kind", "round"), [("train", 2), ("finish", 1), ("score", 3)])
def test_what_a_plan_has_no_place_for_is_refused(tmp_path: Path, kind: str, round: int) -> None:
    """A round more than was agreed on, or scores of one model after another as if it were over."""
    trial = Trial(tmp_path, "fedavg")
    transport, got = FakeTransport(trial), []

    def ask(packet, site):
        got.append(site(packet._replace(header=packet.header | {"kind": kind, "round": round})))
        return [site(packet)]

    transport.on(1, "train", 0, ask)
    lines = coordinator(trial, transport).run()
    assert f"{kind} of round {round} after -1, of 2 rounds" in str(got[0].header["detail"])
    assert [line["taken"] for line in lines[:2]] == [[0, 1, 2]] * 2  # and it goes on


def test_more_rounds_are_no_way_around_score_every(tmp_path: Path) -> None:
    told = []
    for rounds in (2, 3, 5):
        trial = Trial(tmp_path, "fedavg", rounds=rounds)
        trial.write_site(1, score_every=3)
        lines = coordinator(trial, FakeTransport(trial)).run()
        told.append("pre_score" in lines[-1]["finished"]["site-1"])
    assert told == [True, False, True]


def test_beyond_its_answers_a_site_gets_its_model_and_tells_nothing(tmp_path: Path) -> None:
    trial = Trial(tmp_path, "fedavg")
    trial.write_site(1, max_answers=2)
    lines = coordinator(trial, FakeTransport(trial)).run()
    assert lines[-1]["finished"]["site-1"] == {}
    assert (tmp_path / "site-1" / "federations" / "trial" / "card.json").exists()


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
    for i in range(3):
        limit = {"max_rounds": 2} if i == 1 else {}
        again.write_site(i, federations=["trial", "another"], **limit)
    one = coordinator(again, FakeTransport(again))
    lines = one.run()
    assert all(line["taken"] == [0, 2] for line in lines[:2])
    assert "at most 2 rounds" in said(one)
