"""What a plan means for a site's owner, and agreeing to it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from fedtailor.cli import main
from fedtailor.core.errors import BadInput
from fedtailor.federation.coordinator.federation_file import find_plan, read_federation
from fedtailor.federation.site.guard import PROPOSED
from fedtailor.federation.site.inspection import accept_plan, differences, inspect_plan
from fedtailor.federation.site.settings import read_settings
from fedtailor.federation.site.site import Site
from tests.federation.fake import RULES, FakeTransport, coordinator, said
from tests.federation.trial import Trial


def call(*arguments: str) -> int:
    with pytest.raises(SystemExit) as end:
        main(["federation", *arguments])
    return int(end.value.code or 0)


def test_a_plan_in_numbers(tmp_path: Path) -> None:
    pytest.importorskip("dp_accounting", reason="needs dp-accounting")
    how = {"rounds": 3, "steps": 2, "batch": 8, "participation": 0.5}
    how |= {"dp_clip": 1.0, "dp_noise": 1.0}
    trial = Trial(tmp_path, "fedavg", **how)
    found = inspect_plan(find_plan(trial.federation), read_settings(trial.sites[1]))
    assert found.uploads == 2 and (found.rows, found.per_upload) == (38, 16)
    # 5 features, 200 hidden, 3 classes, in 4 bytes each
    assert found.leaves.bytes == found.down == 4 * (200 * 6 + 3 * 201)
    assert found.leaves.needs == "mean" and found.leaves.reach == "all"
    assert not found.refused and 0 < found.epsilon < 10
    assert found.to_json()["bytes"] == {"up": 7212, "down": 7212}


def test_limits_that_a_plan_breaks(tmp_path: Path, capsys) -> None:
    trial = Trial(tmp_path, "fedfomo", batch=1)
    assert call("inspect", str(trial.federation), "--site", str(trial.sites[1])) == 2
    told = " ".join(capsys.readouterr().out.split())
    assert "batch = 1 min_batch = 4 refused: raise batch in federation.toml" in told
    assert "Other sites receive uploads of single sites" in told
    trial.write_site(1, min_batch=1)
    assert call("inspect", str(tmp_path), "--site", str(trial.sites[1]), "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["others_receive"] == "single" and not found["refused"]
    assert (
        found["rows"] == 38
        and found["plan"] == read_federation(trial.federation).plan.fingerprint()
    )
    assert call("inspect", str(tmp_path / "no.json")) == 2
    assert "give federation.toml, or plan.json" in capsys.readouterr().err


def test_a_site_sees_its_own_network_in_a_plan_of_several(tmp_path: Path) -> None:
    trial = Trial(tmp_path, "lg-fedavg", models="mlp-2:1,mlp:2", model="mlp-2")
    plan = find_plan(trial.federation)
    sites = [read_settings(trial.write_site(i, model=own)) for i, own in ((0, "mlp-2"), (1, "cnn"))]
    deep, other = (inspect_plan(plan, site) for site in sites)
    assert not deep.refused and deep.to_json()["models"] == "mlp-2:1,mlp:2"
    assert deep.leaves is not None and other.leaves is not None
    assert deep.leaves.parameters - other.leaves.parameters == 200 * 200 + 200
    (bad,) = [check for check in other.checks if check.cure]
    assert bad.code == "network" and "network 'mlp' for site 1, the site model = 'cnn'" in bad.line


def test_networks_from_elsewhere_are_refused_wherever_they_stand(tmp_path: Path) -> None:
    plan = find_plan(Trial(tmp_path, "pmixfed", models="mlp-2:1,mlp:2", model="mlp-2").federation)
    strange = replace(plan, settings=plan.settings | {"models": "mlp-2:2,os:system:1"})
    found = inspect_plan(strange)
    assert found.leaves is None, "it is not run to be looked at"
    assert [check.plan for check in found.checks if check.cure] == ["model 'os:system'"]


def test_code_from_elsewhere_is_not_run_to_be_looked_at(tmp_path: Path) -> None:
    plan = replace(find_plan(Trial(tmp_path, "fedavg").federation), method="os:system")
    found = inspect_plan(plan)
    assert found.refused and found.leaves is None


def test_another_plan_is_played_once_it_is_accepted(tmp_path: Path, capsys) -> None:
    trial = Trial(tmp_path, "fedavg")
    transport, joins = FakeTransport(trial), []
    transport.on(0, "join", 0, lambda packet, site: joins.append(packet))
    coordinator(trial, transport).run()
    changed = Trial(tmp_path, "fedavg", lr=0.01, table={"folder": "another"})
    transport = FakeTransport(changed)
    one = coordinator(changed, transport, replace(RULES, wait=0.05))
    with pytest.raises(Exception, match="0 of 3 sites are there"):
        one.run()
    assert "the site joined with another plan" in said(one)
    proposed = tmp_path / "site-0" / PROPOSED
    assert find_plan(proposed) == find_plan(changed.federation)
    for path in changed.sites:
        assert call("accept", str(path)) == 0
    told = capsys.readouterr().out
    assert "lr: 0.1 → 0.01" in told and "Agreed: the site takes part in 'trial'" in told
    assert not proposed.exists()
    kept = [p.name for p in (tmp_path / "site-0" / "federations").iterdir()]
    assert len(kept) == 2 and "trial" in kept  # what was learnt before lies beside
    lines = one.run()
    assert [line["taken"] for line in lines[:2]] == [[0, 1, 2]] * 2
    # and the plan before is refused now
    assert transport.sites[10].answer(joins[0]).header["code"] == "agreement"
    assert call("accept", str(changed.sites[0])) == 0
    assert transport.sites[10].answer(joins[0]).header["status"] == "ok"
    with pytest.raises(BadInput, match="no plan waits to be accepted"):
        accept_plan(read_settings(changed.sites[0]))


def test_an_owner_who_is_asked_first_accepts_before_joining(tmp_path: Path) -> None:
    trial = Trial(tmp_path, "fedavg")
    site = read_settings(trial.write_site(0, ask_first=True))
    transport = FakeTransport(trial)
    one = coordinator(trial, transport, replace(RULES, wait=0.05))
    one._begin()
    assert set(one.members.place) == {1, 2} and "asked first" in said(one)
    done = accept_plan(site)
    assert done.federation == "trial" and done.changes == [] and done.aside is None
    transport.sites[10] = Site(site)
    one.members.welcome()
    assert set(one.members.place) == {0, 1, 2}


def test_differences_are_named(tmp_path: Path) -> None:
    one = find_plan(Trial(tmp_path, "fedavg").federation)
    two = replace(one, clients=4, settings=one.settings | {"batch": 1}, encoder={})
    assert differences(one, two) == ["sites: 3 → 4", "batch: 20 → 1", "preprocessing is another"]
    assert differences(one, one) == []
