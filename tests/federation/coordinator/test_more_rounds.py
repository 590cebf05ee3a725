"""A federation whose plan gets another number of rounds goes on where it stands."""

import json
from pathlib import Path

import pytest

from fedtailor.core.errors import BadInput
from fedtailor.federation.coordinator.coordinator import Coordinator
from fedtailor.federation.coordinator.progress import finished_of
from fedtailor.federation.coordinator.store import check_rounds
from fedtailor.federation.site.inspection import accept_plan
from fedtailor.federation.site.settings import read_settings
from fedtailor.results.storage import load_tensors
from tests.federation.fake import FakeTransport, coordinator, said
from tests.federation.trial import Trial, distance

pytestmark = pytest.mark.usefixtures("float64")


def trained(transport: FakeTransport) -> list[int]:
    """Notes the rounds that site 0 is asked to train in."""
    seen: list[int] = []
    for number in range(6):
        transport.on(0, "train", number, lambda packet, site: seen.append(packet.number("round")))
    return seen


@pytest.mark.parametrize("method", ["fedala", "scaffold", "ditto"])
def test_more_rounds_end_where_all_at_once_do(method: str, tmp_path: Path) -> None:
    from fedtailor.core import tree

    few = Trial(tmp_path, method, rounds=2, participation=0.7)
    transport = FakeTransport(few)
    coordinator(few, transport).run()
    more = Trial(tmp_path, method, rounds=4, participation=0.7)
    seen = trained(transport)  # the sites' processes live on
    one = coordinator(more, transport)
    lines = one.run()
    assert "all rounds 2 → 4: goes on after round 2" in said(one) and "at once" not in said(one)
    assert [line["round"] for line in lines if "taken" in line] == [1, 2, 3, 4]
    assert set(seen) <= {2, 3}
    assert len(finished_of(one.store.folder)) == 3
    sim = more.simulate()
    assert distance(one.now.server, sim.server) <= 1e-9
    for cid, model in sim.models():
        folder = tmp_path / f"site-{cid}" / "federations" / "trial"
        found = load_tensors(folder / "models" / f"site-{cid}.safetensors")
        assert distance(tree.unflatten(found), model) <= 1e-9
        assert json.loads((folder / "card.json").read_text())["rounds"] == 4


def test_fewer_rounds_than_were_played_are_refused(tmp_path: Path) -> None:
    trial = Trial(tmp_path, "fedavg", rounds=3)
    one = coordinator(trial, FakeTransport(trial))
    one.run()
    told = r"rounds is 2, but 'trial' has played 3: give 3 or more in federation\.toml"
    with pytest.raises(BadInput, match=told):
        coordinator(Trial(tmp_path, "fedavg", rounds=2), FakeTransport(trial))
    with pytest.raises(BadInput, match=told):
        check_rounds(one.store.folder, 2)
    with pytest.raises(BadInput, match="other settings"):  # rounds alone may change
        coordinator(Trial(tmp_path, "fedavg", rounds=5, lr=0.2), FakeTransport(trial))


def test_what_goes_by_the_number_of_rounds_is_said(tmp_path: Path) -> None:
    trial = Trial(tmp_path, "pmixfed", rounds=2)
    coordinator(trial, FakeTransport(trial)).run()
    more = Trial(tmp_path, "pmixfed", rounds=3)
    one = coordinator(more, FakeTransport(more))
    one.run()
    assert "pmixfed goes by the number of rounds, and those played so far went by 2" in said(one)


def test_no_round_is_answered_a_second_time_in_a_longer_plan(tmp_path: Path) -> None:
    trial = Trial(tmp_path, "fedavg")
    transport, first = FakeTransport(trial), []
    transport.on(1, "train", 0, lambda packet, site: first.append(packet))
    coordinator(trial, transport).run()
    more = Trial(tmp_path, "fedavg", rounds=3)
    coordinator(more, transport).run()
    changed = {name: array + 0.1 for name, array in first[0].arrays.items()}
    told = transport.sites[11].answer(first[0]._replace(arrays=changed)).header
    assert told["code"] == "answered"


def test_an_owner_who_is_asked_first_is_asked_about_more_rounds(tmp_path: Path) -> None:
    def play(rounds: int) -> Coordinator:
        trial = Trial(tmp_path, "fedavg", rounds=rounds)
        trial.write_site(1, ask_first=True)
        one = coordinator(trial, FakeTransport(trial))
        one.run()
        return one

    taken = lambda one: [line["taken"] for line in one.store.history() if "taken" in line]
    assert taken(play(1)) == [[0, 2]]
    path = tmp_path / "site-1.toml"
    accept_plan(read_settings(path))
    one = play(2)
    assert taken(one) == [[0, 2], [0, 2]]
    assert "the site's owner is asked first, also about more rounds" in said(one)
    done = accept_plan(read_settings(path))
    assert done.changes == ["rounds: 1 → 2"] and done.aside is None
    assert taken(play(2)) == [[0, 2], [0, 2]]  # it has its model of it
    play(3)
    done = accept_plan(read_settings(path))
    assert done.changes == ["rounds: 2 → 3"] and done.aside is None
