"""Faults, each by name: the round ends without the culprit, and nothing is lost."""

import errno
import json
import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch

from fedtailor.core import tree
from fedtailor.core.errors import BadInput
from fedtailor.core.inputs import files as files_module
from fedtailor.core.uploads import watch
from fedtailor.engine import draw_cohort
from fedtailor.federation.coordinator.coordinator import Stopped
from fedtailor.federation.coordinator.federation_file import read_federation
from fedtailor.federation.coordinator.progress import sites_of
from fedtailor.federation.protocol.packet import Packet
from fedtailor.federation.site.guard import PAUSE
from fedtailor.methods.combine import with_own_networks
from fedtailor.runs.predict import predict
from tests.federation.fake import RULES, FakeTransport, coordinator, said
from tests.federation.trial import Trial, distance

pytestmark = pytest.mark.usefixtures("float64", "without_pages")


@pytest.fixture
def trial(tmp_path):
    return Trial(tmp_path, "scaffold", rounds=3)  # its clients' states and the server's must agree


def simulated(trial, without=()):
    """The server's state if `without` (round, client) had not been drawn."""
    sim = trial.simulate(0)
    for r in range(trial.world.config.rounds):
        cohort = draw_cohort(3, r, torch.arange(3), 1.0)
        sim.step(torch.tensor([i for i in cohort.tolist() if (r, i) not in without]))
    return sim


def sites_agree(trial, sim):
    for cid, model in sim.models():
        folder = trial.root / f"site-{cid}" / "federations" / "trial" / "models"
        from fedtailor.results.storage import load_tensors

        found = load_tensors(folder / f"site-{cid}.safetensors")
        assert distance(tree.unflatten(found), model) <= 1e-9


def test_without_faults(trial):
    transport = FakeTransport(trial)
    one = coordinator(trial, transport)
    lines = one.run()
    sim = simulated(trial)
    assert distance(one.now.server, sim.server) <= 1e-9
    assert [line["taken"] for line in lines[:3]] == [[0, 1, 2]] * 3
    assert set(lines[3]["finished"]) == {"site-0", "site-1", "site-2"}
    sites_agree(trial, sim)


@pytest.mark.parametrize("method", with_own_networks())
def test_sites_with_different_networks(tmp_path, method):
    """As the simulation, also when sites are restarted; FML's and FedKD's common one is mlp-3."""
    trial = Trial(tmp_path, method, rounds=2, models="mlp-2:1,mlp:2", model="mlp-3")
    for i in range(3):
        trial.write_site(i, min_rows=1)  # classes have a few rows each
    transport = FakeTransport(trial)
    transport.on(0, "train", 1, lambda packet, site: transport.restart())
    one = coordinator(trial, transport)
    lines = one.run()
    sim = simulated(trial)
    assert distance(one.now.server, sim.server) <= 1e-9
    assert [line["taken"] for line in lines[:2]] == [[0, 1, 2]] * 2
    sites_agree(trial, sim)
    assert lines[2]["networks"] == {"site-0": "mlp-2", "site-1": "mlp", "site-2": "mlp"}
    own = tmp_path / "site-1/federations/trial"
    assert json.loads((own / "card.json").read_text())["model"] == "mlp"
    assert predict(own, "site-1", [tmp_path / "data/site-1/rows.npz"])


def test_a_coordinator_of_different_networks_killed_and_restarted(tmp_path):
    trial = Trial(tmp_path, "pmixfed", rounds=3, models="mlp-2:1,mlp:2", model="mlp-2")

    def kill(packet, site):
        raise KeyboardInterrupt

    transport = FakeTransport(trial)
    transport.on(2, "train", 1, kill)
    with pytest.raises(KeyboardInterrupt):
        coordinator(trial, transport).run()
    again = coordinator(trial, transport)
    again.run()
    sim = simulated(trial)
    assert distance(again.now.server, sim.server) <= 1e-9
    sites_agree(trial, sim)


def test_a_site_says_which_network_it_has(tmp_path):
    trial = Trial(tmp_path, "fedproto", models="mlp-2:1,mlp:2", model="mlp-2")
    for i, network in enumerate(("mlp-2", "mlp", "mlp-2")):
        trial.write_site(i, model=network, min_rows=1)
    one = coordinator(trial, FakeTransport(trial))
    one.run()
    assert "site-2" in said(one)
    expected = "the plan has network 'mlp' for site 2, the site model = 'mlp-2': set models in"
    assert expected in said(one)
    assert [line["taken"] for line in one.store.history()[:2]] == [[0, 1]] * 2


def test_networks_that_do_not_go_together_are_named_before_anybody_joins(tmp_path):
    trial = Trial(tmp_path, "fedproto", models="mlp-2:1,linear:2", model="mlp-2")
    why = "clients with 'linear': method 'fedproto': prototypes need features of one width"
    with pytest.raises(BadInput, match=why):
        read_federation(trial.federation)
    trial = Trial(tmp_path, "fedavg", models="mlp-2:1,mlp:2")
    with pytest.raises(BadInput, match="fedavg needs equal networks: leave it out, or choose"):
        read_federation(trial.federation)
    trial = Trial(tmp_path, "fedproto", models="mlp-2:1,mlp:1")
    with pytest.raises(BadInput, match="is for 2 clients, but there are 3"):
        read_federation(trial.federation)


@pytest.mark.parametrize(
    ("method", "each"), [("fedavg", False), ("fedfomo", True), ("fedavg+median", True)]
)
def test_methods_that_need_each_upload_are_marked(tmp_path, method, each):
    trial = Trial(tmp_path, method)
    one = coordinator(trial, FakeTransport(trial))
    one.run()
    assert one.one_by_one is each
    assert f"needs uploads {'one by one' if each else 'as a mean'}" in said(one)


def garbage(change):
    """The site trains and keeps its state; what arrives is something else."""
    return lambda packet, site: [change(site(packet))]


def with_array(name, value):
    def change(packet):
        arrays = dict(packet.arrays)
        key = next(k for k in arrays if k.startswith("mean") and arrays[k].ndim == 2)
        return packet._replace(arrays=value(arrays, key))

    return change


def header(**more):
    return lambda packet: packet._replace(header=packet.header | more)


GARBAGE = {
    "wrong name": (
        with_array("", lambda a, k: {("x" if n == k else n): v for n, v in a.items()}),
        "expected",
    ),
    "wrong shape": (with_array("", lambda a, k: a | {k: a[k][:, :1]}), "expected"),
    "wrong type": (with_array("", lambda a, k: a | {k: a[k].astype(np.float32)}), "float32"),
    "NaN": (with_array("", lambda a, k: a | {k: a[k] * np.nan}), "not finite"),
    "a huge number": (with_array("", lambda a, k: a | {k: a[k] + 1e13}), "above 1e+12"),
    "an array too many": (with_array("", lambda a, k: a | {"huge": np.zeros(10**6)}), "huge"),
    "nothing": (lambda packet: Packet(packet.header, {}), "expected"),
    "negative weight": (header(weight=-1.0), "'weight' is -1"),
    "weight that is no number": (header(weight="many"), "'weight' is 'many'"),
    "infinite weight": (header(weight=float("inf")), "finite"),
    "more weight than rows": (header(weight=1e6), "expected 0 to 1, as each site weighs"),
    "another version": (header(version="9.9"), "runs version '9.9'"),
    "another protocol": (header(protocol=7), "speaks protocol 7"),
    "another method": (header(plan="other"), "another plan: 'other'"),
    "another federation": (header(federation="other"), "another federation"),
    "another client": (header(client=0), "says it is client 0, not 1"),
    "another kind": (header(kind="score"), "another kind"),
    "a future round": (header(round=2), "another round"),
    "no header": (lambda packet: Packet({}, packet.arrays), "speaks protocol None"),
}


@pytest.mark.parametrize("kind", GARBAGE)
def test_garbage_is_left_out_and_named(trial, kind):
    change, why = GARBAGE[kind]
    transport = FakeTransport(trial)
    transport.on(1, "train", 1, garbage(change))
    one = coordinator(trial, transport)
    lines = one.run()
    assert lines[1]["taken"] == [0, 2] and why in lines[1]["failed"]["site-1"]
    assert "site-1 failed in train" in said(one)
    # the site trained in vain: it goes on as if it had not been drawn
    sim = simulated(trial, {(1, 1)})
    assert distance(one.now.server, sim.server) <= 1e-9
    sites_agree(trial, sim)


def test_a_round_in_which_all_uploads_weigh_nothing_does_not_count(trial):
    transport = FakeTransport(trial)
    for site in range(3):
        transport.on(site, "train", 1, garbage(header(weight=0.0)))
    one = coordinator(trial, transport)
    lines = one.run()  # it is played again, with their usual weights
    assert "all round not counted round 2: the weights of all uploads are 0" in said(one)
    assert [line["taken"] for line in lines[:3]] == [[0, 1, 2]] * 3
    assert distance(one.now.server, simulated(trial).server) <= 1e-9


def test_absurdly_many_rows_are_not_admitted(trial):
    """They ended the coordinator, which kept them as 64 bits."""
    transport = FakeTransport(trial)
    transport.on(1, "join", 0, garbage(header(n=2**64 - 1)))
    one = coordinator(trial, transport, replace(RULES, wait=0.05))
    lines = one.run()
    assert "'n' is 18446744073709551615, expected at most" in said(one)
    assert lines[0]["taken"] == [0, 1, 2]  # once it had said how many it has


def test_finite_uploads_that_overflow_do_not_reach_the_server(trial):
    transport = FakeTransport(trial)
    transport.on(1, "train", 1, garbage(with_array("", lambda a, k: a | {k: a[k] + 1e9})))
    one = coordinator(trial, transport)
    receive = one.setup.method.receive

    def overflows(server, ids, upload, turn):
        after = receive(server, ids, upload, turn)
        huge = any(float(leaf.abs().max()) > 1e8 for leaf in tree.leaves(after["params"]))
        return tree.scale(after, float("inf")) if huge else after

    one.setup = one.setup._replace(method=one.setup.method._replace(receive=overflows))
    lines = one.run()
    why = "its upload would make the server's state infinite, or cannot be used"
    assert lines[1]["failed"] == {"site-1": why}
    assert distance(one.now.server, simulated(trial, {(1, 1)}).server) <= 1e-9


def far_away(arrays, name):
    return arrays | {name: arrays[name] + 1e6}


def with_far_upload(method, tmp_path, **more):
    """How far the server's model is after a round in which one site of three sends nonsense."""
    trial = Trial(tmp_path, method, rounds=1, **more)
    transport = FakeTransport(trial)

    def change(packet):
        key = next(k for k in packet.arrays if packet.arrays[k].ndim == 2)
        return packet._replace(arrays=far_away(packet.arrays, key))

    transport.on(1, "train", 0, garbage(change))
    one = coordinator(trial, transport)
    before = tree.map(torch.clone, one.now.server["params"])
    one.run()
    return float(tree.sq_norm(tree.sub(one.now.server["params"], before)).sqrt())


@pytest.mark.parametrize("method", ["fedavg+median", "fedavg+krum", "fedavg+geometric"])
def test_one_far_upload_does_not_own_a_robust_mean(method, tmp_path):
    assert with_far_upload("fedavg", tmp_path / "plain") > 1e5
    assert with_far_upload(method, tmp_path / "robust") < 5


def test_uploads_are_shortened_where_they_arrive(tmp_path):
    """A hostile site does not limit itself."""
    assert with_far_upload("fedavg", tmp_path, max_norm=0.5) <= 0.5


def test_how_uploads_look_is_in_the_history(trial):
    one = coordinator(trial, FakeTransport(trial))
    lines = one.run()
    sim = trial.simulate(0)
    seen = sim.step(torch.arange(3)).uploads
    found = lines[0]["uploads"]
    assert set(found) == {"site-0", "site-1", "site-2"}
    for i, look in enumerate(found.values()):
        assert look["norm"] == pytest.approx(float(seen.norm[i]), rel=1e-3)
        assert look["odd"] is False  # of three nobody can tell
    (first, *_) = sites_of(one.store.folder, {"site-0": True})
    assert (first.odd, first.norm) == (0, lines[2]["uploads"]["site-0"]["norm"])


def test_a_site_that_stands_out_is_named_once(trial, monkeypatch):
    monkeypatch.setattr(watch, "FEWEST", 3)
    transport = FakeTransport(trial)
    for round in range(3):
        transport.on(1, "train", round, garbage(with_array("", far_away)))
    one = coordinator(trial, transport)
    lines = one.run()
    assert [line["uploads"]["site-1"]["odd"] for line in lines[:3]] == [True] * 3
    assert said(one).count("site-1 stands out its upload moves") == 1
    assert {s.name: s.odd for s in sites_of(one.store.folder, {})}["site-1"] == 3


def test_a_rule_that_needs_more_answers_asks_those_that_failed_again(tmp_path):
    """It ended the coordinator."""
    trial = Trial(tmp_path, "fedavg+krum:0", rounds=1)
    transport = FakeTransport(trial)
    transport.on(1, "train", 0, lambda packet, site: [])
    one = coordinator(trial, transport, replace(RULES, deadline=0.05))
    lines = one.run()
    assert "all round not counted krum with hostile=0 needs a cohort of at least 3" in said(one)
    assert lines[0]["taken"] == [0, 1, 2]


@pytest.mark.parametrize(
    "fault",
    [
        lambda packet, site: [],  # killed before it trained
        lambda packet, site: [site(packet), ""][2:],  # killed after it kept its state
        lambda packet, site: ["Flower: Node Unavailable (code 5)"],
    ],
)
def test_killed_or_slow(trial, fault):
    transport = FakeTransport(trial)
    transport.on(1, "train", 1, fault)
    one = coordinator(trial, transport)
    lines = one.run()
    assert lines[1]["taken"] == [0, 2] and lines[2]["taken"] == [0, 1, 2]
    sim = simulated(trial, {(1, 1)})
    assert distance(one.now.server, sim.server) <= 1e-9
    sites_agree(trial, sim)


def test_answering_twice_counts_once(trial):
    transport = FakeTransport(trial)
    transport.on(1, "train", 1, lambda packet, site: [site(packet)] * 2)
    one = coordinator(trial, transport)
    one.run()
    assert "site-1 answered twice" in said(one)
    assert distance(one.now.server, simulated(trial).server) <= 1e-9


def test_a_late_answer_is_ignored_and_the_right_one_counts(trial):
    transport, late = FakeTransport(trial), []

    def slow(packet, site):
        late.append(site(packet))
        return []

    transport.on(1, "train", 0, slow)
    transport.on(1, "train", 1, lambda packet, site: [late[0], site(packet)])
    one = coordinator(trial, transport)
    lines = one.run()
    assert lines[0]["taken"] == [0, 2] and lines[1]["taken"] == [0, 1, 2]
    assert "late answer of round 1" in said(one)
    assert distance(one.now.server, simulated(trial, {(0, 1)}).server) <= 1e-9


def test_back_after_days_at_another_place(trial):
    transport = FakeTransport(trial)

    def leave(packet, site):
        transport.gone.add(11)
        return ["gone"]

    def come_back(packet, site):
        transport.sites[77] = Site(read_settings(trial.sites[1]))
        return

    from fedtailor.federation.site.settings import read_settings
    from fedtailor.federation.site.site import Site

    transport.on(1, "train", 0, leave)
    transport.on(2, "train", 1, come_back)
    one = coordinator(trial, transport)
    lines = one.run()
    assert [line["taken"] for line in lines[:3]] == [[0, 2], [0, 2], [0, 1, 2]]
    assert lines[1]["failed"] == {"site-1": "not connected"}
    sim = simulated(trial, {(0, 1), (1, 1)})
    assert distance(one.now.server, sim.server) <= 1e-9
    sites_agree(trial, sim)


def test_all_sites_restarted_between_rounds(trial):
    transport = FakeTransport(trial)
    transport.on(0, "train", 1, lambda packet, site: transport.restart())
    transport.on(0, "train", 2, lambda packet, site: transport.restart())
    one = coordinator(trial, transport)
    one.run()
    sim = simulated(trial)
    assert distance(one.now.server, sim.server) <= 1e-9
    sites_agree(trial, sim)


@pytest.mark.parametrize(
    "when", [(0, "train", 0), (2, "train", 1), (2, "train", 2), (1, "finish", 3)]
)
def test_coordinator_killed_and_restarted(trial, when):
    class Killed(BaseException):
        pass

    def kill(packet, site):
        if packet.text("kind") == "train":
            site(packet)
        raise Killed

    transport = FakeTransport(trial)
    transport.on(*when, kill)
    with pytest.raises(Killed):
        coordinator(trial, transport).run()
    trains = []
    for place, site in transport.sites.items():
        willing = site.guard.require_willing

        def asked(packet, place=place, willing=willing):
            trains.append((place, packet.text("kind"), packet.number("round")))
            willing(packet)

        site.guard.require_willing = asked
    again = coordinator(trial, transport)
    assert again.now.round == min(when[2], 3)
    lines = again.run()
    assert [line["round"] for line in lines] == [1, 2, 3, 3]
    sim = simulated(trial)
    assert distance(again.now.server, sim.server) <= 1e-9
    sites_agree(trial, sim)
    # who had answered before is not trained a second time
    assert trains and all((p, "train", when[2]) not in trains for p in range(10, 11 + when[0]))


def test_killed_while_scores_are_asked_for(trial):
    def kill(packet, site):
        raise KeyboardInterrupt

    rules, transport = replace(RULES, score_every=1), FakeTransport(trial)
    transport.on(0, "score", 2, kill)
    with pytest.raises(KeyboardInterrupt):
        coordinator(trial, transport, rules).run()
    transport.restart()
    lines = coordinator(trial, transport, rules).run()
    assert [line["round"] for line in lines if "taken" in line] == [1, 2, 3]
    scores = {line["round"]: line["scores"] for line in lines if "scores" in line}
    assert list(scores) == [1, 2]  # after the last round they are what sites say at the end
    assert all(set(said) == {"site-0", "site-1", "site-2"} for said in scores.values())


def test_a_second_site_of_the_same_name_is_not_admitted(trial):
    trial.write_site(1, name="ward")
    trial.write_site(2, name="ward")
    transport = FakeTransport(trial)
    one = coordinator(trial, transport)
    lines = one.run()
    assert lines[0]["taken"] == [0, 1] and set(lines[0]["sites"]) == {"site-0", "ward"}
    assert (
        "place 12 not admitted client 2 has the name 'ward' of client 1: give it another one in "
        "its site file"
    ) in said(one)
    trial.write_site(2, name="ward 2")
    transport.restart()
    assert set(coordinator(trial, transport).run()[-1]["finished"]) == {"site-0", "ward", "ward 2"}


def test_round_with_too_few_sites_is_played_again(trial):
    transport = FakeTransport(trial)
    transport.on(0, "train", 1, lambda packet, site: [])
    transport.on(1, "train", 1, lambda packet, site: [])
    one = coordinator(trial, transport)
    lines = one.run()
    assert len(lines) == 4 and len(lines[1]["taken"]) >= 2
    assert "all round not counted 1 of the 2 answers came that are needed" in said(one)


def test_too_few_for_too_long_stops_and_can_go_on(trial):
    transport = FakeTransport(trial)
    transport.gone = {10, 11}
    with pytest.raises(Stopped, match="1 of 3 sites are there, at least 2"):
        coordinator(trial, transport, replace(RULES, wait=0.05)).run()
    transport.gone = set()
    one = coordinator(trial, transport)
    one.run()
    assert distance(one.now.server, simulated(trial).server) <= 1e-9


def test_stop_file(trial):
    transport = FakeTransport(trial)
    one = coordinator(trial, transport)
    one.watch = lambda line: (one.store.folder / "STOP").touch()
    with pytest.raises(Stopped, match="after round 1"):
        one.run()
    (one.store.folder / "STOP").unlink()
    two = coordinator(trial, transport)
    assert two.now.round == 1
    two.run()
    assert distance(two.now.server, simulated(trial).server) <= 1e-9


def test_disk_full_at_a_site(trial, monkeypatch):
    transport = FakeTransport(trial)

    def full(packet, site):
        def fail(number):
            raise OSError(errno.ENOSPC, "No space left on device")

        with monkeypatch.context() as patch:
            patch.setattr(files_module.os, "fsync", fail)
            return [site(packet)]

    transport.on(1, "train", 1, full)
    one = coordinator(trial, transport)
    lines = one.run()
    assert "No space left on device" in lines[1]["failed"]["site-1"]
    assert str(trial.root) not in said(one)  # where the site keeps what is its own affair
    sim = simulated(trial, {(1, 1)})
    assert distance(one.now.server, sim.server) <= 1e-9
    sites_agree(trial, sim)


def test_a_site_that_refuses_the_method(trial):
    trial.write_site(1, allow=["fedavg"])
    transport = FakeTransport(trial)
    one = coordinator(trial, transport, replace(RULES, wait=0.05))
    lines = one.run()
    assert "method 'scaffold', the site allow: fedavg" in said(one)
    assert all(line["taken"] == [0, 2] for line in lines[:3])


def test_a_site_that_refuses_rounds(trial):
    trial.write_site(1, max_rounds=2)
    transport = FakeTransport(trial)

    def pause(packet, site):
        (trial.root / "site-2" / PAUSE).touch()
        answer = site(packet)
        (trial.root / "site-2" / PAUSE).unlink()
        return [answer]

    transport.on(2, "train", 1, pause)
    lines = coordinator(trial, transport).run()
    assert [line["taken"] for line in lines[:3]] == [[0, 1, 2], [0, 1], [0, 2]]
    assert "paused" in lines[1]["failed"]["site-2"]
    assert "at most 2 rounds" in lines[2]["failed"]["site-1"]


def test_lost_disk_is_named(trial):
    transport = FakeTransport(trial)

    def lose(packet, site):
        shutil.rmtree(trial.root / "site-1")
        transport.restart()
        return [transport.sites[11].answer(packet)]

    transport.on(1, "train", 1, lose)
    lines = coordinator(trial, transport).run()
    assert "has not joined" in lines[1]["failed"]["site-1"]
    # it joins again, and is told that its state is missing
    assert "begin_again" in lines[2]["failed"]["site-1"]


@pytest.mark.parametrize("change", ["a row more", "another split"])
def test_a_site_does_not_go_on_with_other_rows(trial, change):
    """Rows that trained would test, and nobody would know; mended rows need no new process."""
    path = trial.root / "data" / "site-1" / "rows.npz"
    before, transport = path.read_bytes(), FakeTransport(trial)

    def swap(packet, site):
        if change == "a row more":
            kept = np.load(path)
            np.savez(path, **{name: kept[name][[0, *range(len(kept["y"]))]] for name in "xy"})
        else:
            trial.write_site(1, split_seed=1)
        transport.restart()

    def mend(packet, site):
        path.write_bytes(before)
        if change == "another split":  # a process reads its site's file once
            trial.write_site(1)
            transport.restart()

    transport.on(1, "train", 1, swap)
    transport.on(1, "train", 2, mend)
    lines = coordinator(trial, transport).run()
    assert [line["taken"] for line in lines[:3]] == [[0, 1, 2], [0, 2], [0, 1, 2]]
    assert "are not those that it began with" in lines[1]["failed"]["site-1"]
    sites_agree(trial, simulated(trial, without={(1, 1)}))


def test_a_site_that_lost_its_folder_may_begin_with_other_rows(trial):
    transport = FakeTransport(trial)
    coordinator(trial, transport).run()
    trial.write_site(1, split_seed=1, begin_again=True)
    shutil.rmtree(trial.root / "site-1" / "federations")
    transport.restart()
    more = Trial(trial.root, "scaffold", rounds=4)
    more.write_site(1, split_seed=1, begin_again=True)
    lines = coordinator(more, FakeTransport(more)).run()
    assert lines[-2]["taken"] == [0, 1, 2]


def test_another_plan_needs_another_id(trial, tmp_path):
    transport = FakeTransport(trial)
    coordinator(trial, transport).run()
    changed = Trial(tmp_path, "scaffold", rounds=3, lr=0.2)
    with pytest.raises(BadInput, match="other settings"):
        coordinator(changed, transport)


def test_a_broken_checkpoint_is_named(trial):
    transport = FakeTransport(trial)
    one = coordinator(trial, transport)
    one.run()
    path = next(one.store.folder.glob("server-*"))
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(BadInput, match="was changed"):
        coordinator(trial, transport)
