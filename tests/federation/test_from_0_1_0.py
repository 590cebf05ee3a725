"""Federations that FedTailor 0.1.0 began or finished: they open, or one line says what to do."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="needs flwr: pip install 'fedtailor[flower]'")

from fedtailor.cli import main
from fedtailor.core.errors import BadInput
from fedtailor.federation.coordinator import store as store_module
from fedtailor.federation.coordinator.federation_file import read_federation
from fedtailor.federation.coordinator.store import CoordinatorStore
from fedtailor.federation.deploy.project import RENAMED
from fedtailor.federation.protocol import plan as plan_module
from fedtailor.federation.site.settings import read_settings
from fedtailor.federation.site.state import SiteStore, StateError
from fedtailor.runs.predict import predict

KEPT = Path(__file__).parent / "from_0_1_0"


@pytest.fixture(params=["stopped", "finished"])
def project(request, tmp_path: Path) -> Path:
    return shutil.copytree(KEPT / request.param, tmp_path / "wards")


@pytest.fixture
def stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A federation after two of three rounds, and a version that is not the one that began it."""
    for module in (store_module, plan_module):
        monkeypatch.setattr(module, "__version__", "0.2.0")
    return shutil.copytree(KEPT / "stopped", tmp_path / "wards")


def call(*arguments: str) -> int:
    with pytest.raises(SystemExit) as end:
        main(["federation", *arguments])
    return int(end.value.code or 0)


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert call(*arguments) == 2
    told = capsys.readouterr()
    assert told.out == "" and told.err.count("\n") == 1
    return told.err


def test_status_opens(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("status", str(project), "--insecure", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["rounds"] == 3 and found["ended"].split(":")[0] in ("stopped", "finished")
    assert found["round"] == (2 if "stopped" in found["ended"] else 3)
    assert [site["name"] for site in found["sites"]] == ["north", "south"]
    assert all(site["last"] == found["round"] and site["score"] for site in found["sites"])
    assert call("status", str(project), "--insecure") == 0
    assert call("stop", str(project), "--insecure") == 0


def test_a_sites_model_predicts(tmp_path: Path) -> None:
    for name in ("north", "south"):
        site = KEPT / "finished" / "sites" / name
        found = predict(site / "state" / "federations" / "wards", name, [site / "data.csv"])
        rows = (site / "data.csv").read_text().splitlines()[1:]
        right = [row.split(",")[-1] == said.label for row, said in zip(rows, found, strict=True)]
        assert sum(right) / len(right) > 0.8


def test_what_0_1_0_began_is_not_gone_on_with(
    stopped: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = refused(capsys, "run", str(stopped), "--insecure")
    assert "was begun with FedTailor 0.1.0, this is 0.2.0: finish it with 0.1.0" in said
    assert "another id in federation.toml" in said
    found = read_federation(stopped / "federation.toml")
    store = CoordinatorStore(found.folder, found.id, found.plan.fingerprint())
    with pytest.raises(BadInput, match=r"was begun with FedTailor 0\.1\.0"):
        store.load({})
    settings = read_settings(stopped / "sites" / "north" / "site.toml")
    site = SiteStore(settings.folder, found.id, found.plan.fingerprint(), settings.client)
    with pytest.raises(StateError, match=r"is of another plan .*: give the federation a new id"):
        site.newest()


def test_scripts_that_start_what_is_gone_are_named(
    stopped: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.rmtree(stopped / "coordinator" / "state")
    said = refused(capsys, "run", str(stopped), "--insecure")
    (superlink, node), (new_superlink, new_node) = zip(*RENAMED.items(), strict=True)
    script = stopped / "coordinator" / "start.sh"
    assert f"'{script}' was written by FedTailor 0.1 and starts {superlink}" in said
    assert f"which is {new_superlink} now" in said
    script.write_text(script.read_text().replace(superlink, new_superlink))
    said = refused(capsys, "run", str(stopped), "--insecure")
    assert f"north/start.sh' was written by FedTailor 0.1 and starts {node}" in said
    for path in stopped.glob("sites/*/start.sh"):
        path.write_text(path.read_text().replace(node, new_node))
    assert "start it with sh" in refused(capsys, "run", str(stopped), "--insecure")
