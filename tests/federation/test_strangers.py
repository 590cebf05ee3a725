"""Strangers against real processes: what they can reach and what they can run. Run with --slow."""

from __future__ import annotations

import json

import pytest

pytest.importorskip("flwr", reason="needs flwr: pip install 'fedtailor[flower]'")

from tests.federation.crew import Crew
from tests.federation.real import RULES, equals_simulation, finished, until
from tests.federation.stranger import flwr_run, foreign_app
from tests.federation.trial import Trial

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.mark.parametrize(
    ("name", "publisher"), [("evil", "stranger"), ("fedtailor-app", "fedtailor")]
)
def test_a_foreign_app_does_not_run_at_a_site(tmp_path, name, publisher):
    """Even of whoever has the coordinator's control interface, and under our own name."""
    trial, loot = Trial(tmp_path, "fedavg", table=RULES), tmp_path / "loot"
    app = foreign_app(tmp_path / "app", loot, name, publisher)
    folder = tmp_path / "coordinator" / "trial"
    with Crew(tmp_path / "crew") as crew:
        crew.start_coordinator()
        for i, path in enumerate(trial.sites):
            crew.start_site(f"site-{i}", path)
        done = flwr_run(tmp_path / "stranger", crew.address, crew.certificates.authority, app)
        assert json.loads(done.stdout)["success"], done.stdout
        until(lambda: (loot / "reply").exists(), 120, "the foreign run ends")
        assert not (loot / "ran-at-site").exists()
        said, log = (loot / "reply").read_text(), (crew.folder / "site-0.log").read_text()
        if publisher == "stranger":
            assert "'stranger/evil' is not FedTailor's" in said
            assert "'stranger/evil' is not FedTailor's" in log
        # and the site goes on with the federation
        crew.submit(trial.federation)
        until(lambda: finished(folder), 240, "the federation is done")
    equals_simulation(trial, folder)
