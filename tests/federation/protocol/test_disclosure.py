"""What leaves a site, and what does not."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fedtailor.core.errors import BadInput
from fedtailor.federation.coordinator.federation_file import read_federation
from fedtailor.federation.protocol.disclosure import REACHES, reach_of, what_leaves
from fedtailor.federation.protocol.plan import set_up
from fedtailor.methods import METHODS
from tests.federation.fake import RULES, FakeTransport, coordinator, said
from tests.federation.trial import Trial

pytestmark = pytest.mark.usefixtures("float64")


@pytest.fixture
def trial(tmp_path):
    return Trial(tmp_path, "scaffold", rounds=3)


def test_shares_only_what_was_agreed(trial):
    trial.write_site(1, share=[])
    transport, seen = FakeTransport(trial), []
    for kind, round in (("join", 0), ("train", 0), ("finish", 3)):
        transport.on(1, kind, round, lambda packet, site: seen.append(site(packet)))
    coordinator(trial, transport).run()
    signature = {"protocol", "version", "client", "kind", "federation", "plan", "round", "status"}
    assert set(seen[0].header) - signature == {"name", "n", "val", "test", "newest"}
    assert set(seen[1].header) - signature == {"weight", "n"}
    assert set(seen[2].header) - signature == set()
    assert {name.split("/")[0] for name in seen[1].arrays} == {"mean", "each"}


def test_own_data_errors_stay_at_the_site(trial):
    (trial.root / "data" / "site-1" / "rows.npz").write_bytes(b"secret")
    transport = FakeTransport(trial)
    one = coordinator(trial, transport, replace(RULES, wait=0.05))
    one.run()
    assert "its data cannot be used" in said(one) and "rows.npz" not in said(one)


def test_noise_comes_from_a_key_that_only_the_site_has(tmp_path):
    pytest.importorskip("dp_accounting", reason="needs dp-accounting")
    trial = Trial(tmp_path, "fedavg", dp_clip=1.0, dp_noise=1.0)
    transport, sent = FakeTransport(trial), []
    for _ in range(2):
        transport.on(1, "train", 0, lambda packet, site: sent.append(site(packet).arrays))
        coordinator(trial, transport).run()
        folder = trial.root / "site-1" / "federations" / "trial"
        assert json.loads((folder / "card.json").read_text())["epsilon"]["epsilon"] > 0
        assert not (folder / "secret").exists()  # drawn anew for every turn, and kept nowhere
        for name in ("coordinator", "site-0", "site-1", "site-2"):
            shutil.rmtree(trial.root / name)
        transport.restart()
    named = [k for k in sent[0] if sent[0][k].size]
    assert named and not any(np.array_equal(sent[0][k], sent[1][k]) for k in named)


def test_a_robust_mean_needs_each_upload_by_itself():
    """As many bytes leave a site; the coordinator sees each."""
    from fedtailor.federation.protocol.disclosure import what_leaves

    plain, ruled = what_leaves("fedper"), what_leaves("fedper+median")
    assert plain.each == ()
    assert len(ruled.each) == len(ruled.arrays)
    sizes = lambda found: [(array.shape, array.bytes) for array in found.arrays]
    assert sizes(plain) == sizes(ruled)


@pytest.mark.parametrize(
    ("method", "reach"),
    [
        ("local", "nobody"),
        ("fedavg", "all"),
        ("fedamp", "mixed"),
        ("fedfomo", "single"),
        ("fedfomo-ma", "single"),  # as sums that can be undone
    ],
)
def test_what_others_receive_of_an_upload(method, reach):
    assert what_leaves(method).reach == reach


def test_of_two_sites_each_receives_the_others_upload(tmp_path):
    """What is left of a mean without one's own upload."""
    plan = read_federation(Trial(tmp_path, "fedavg").federation).plan
    assert reach_of(set_up(plan)) == "all"
    assert reach_of(set_up(replace(plan, clients=2))) == "single"
    assert reach_of(set_up(replace(plan, clients=1))) == "nobody"


DOCS = Path(__file__).parents[3] / "docs" / "federation.md"


def reach_table():
    """All methods by what others receive of an upload, and by what the server needs of it."""
    found = {}
    for name in METHODS:
        try:
            leaves = what_leaves(name)
        except BadInput:  # it gives rows away: not for sites
            continue
        found.setdefault((leaves.reach, leaves.needs), []).append(name)
    rows = ["| methods | the server needs | other sites receive | and could learn |"]
    rows.append("|---|---|---|---|")
    for reach, (receive, learn) in REACHES.items():
        for needs in ("nothing", "mean", "each"):
            if names := found.get((reach, needs)):
                listed = ", ".join(f"`{name}`" for name in names)
                rows.append(f"| {listed} | {needs} | {receive} | {learn} |")
    return "\n".join(rows)


@pytest.mark.slow
def test_the_docs_say_who_receives_what():
    told = DOCS.read_text(encoding="utf-8").split("<!-- reach -->\n")[1].split("\n<!-- end -->")[0]
    assert told == reach_table()
