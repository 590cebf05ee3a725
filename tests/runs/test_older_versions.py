"""Folders that FedTailor 0.1.0 left: they open, or one line says what to do."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path

import pytest
from PIL import Image
from safetensors.torch import load_file, save_file

import fedtailor
from fedtailor.api import report
from fedtailor.cli import main
from fedtailor.core.errors import BadInput
from fedtailor.results.config import config_of

MADE = Path(__file__).parent / "v0_1"
MADE_BY = "0.1.0"


@pytest.fixture
def old(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return shutil.copytree(MADE / request.param, tmp_path / request.param)


def contents(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


@pytest.mark.parametrize("old", ["finished", "comparison"], indirect=True)
def test_a_report_is_made_of_it(old: Path) -> None:
    assert "fedala" in report(old).read_text() if old.name == "finished" else report(old).exists()


@pytest.mark.parametrize("old", ["finished"], indirect=True)
def test_its_models_predict(old: Path, tmp_path: Path) -> None:
    Image.new("L", (8, 8)).save(tmp_path / "black.png")
    (found,) = fedtailor.predict(old, "client-1", [tmp_path / "black.png"])
    assert found.label in set("0123456789")


@pytest.mark.parametrize("old", ["finished"], indirect=True)
def test_a_finished_run_is_read_when_it_is_resumed(old: Path) -> None:
    before = contents(old)
    assert fedtailor.resume(old)["version"] == MADE_BY
    after = contents(old)
    del after["report.html"]
    assert after == before


@pytest.mark.parametrize("old", ["stopped-fedavg"], indirect=True)
def test_a_stopped_run_goes_on_to_what_it_would_have_come_to(old: Path, tmp_path: Path) -> None:
    found = fedtailor.resume(old)
    kept = config_of(old)
    whole = fedtailor.run(
        "fedavg", data="digits", model=kept.model, clients=3, rounds=3, batch=50, lr=0.1,
        partition="iid", compile="never", out=tmp_path / "whole",
    )  # fmt: skip
    # two of its rounds were played on another machine
    assert found["per_client"] == pytest.approx(whole["per_client"], abs=0.02)
    assert found["bytes"] == whole["bytes"]
    assert fedtailor.resume(old) == found  # its files are still what it was begun with


@pytest.mark.parametrize("old", ["stopped-comparison"], indirect=True)
def test_a_stopped_comparison_goes_on(old: Path) -> None:
    whole = json.loads((MADE / "comparison" / "summary.json").read_text())
    found = fedtailor.resume(old)
    for method in ("local", "fedavg"):
        mean = found["table"][method]["accuracy"]["mean"]["mean"]
        assert mean == pytest.approx(whole["table"][method]["accuracy"]["mean"]["mean"], abs=0.02)


@pytest.mark.parametrize("old", ["stopped-fedavg"], indirect=True)
def test_states_that_are_laid_out_otherwise_are_refused(
    old: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    note = json.loads((old / "checkpoint" / "latest.json").read_text())
    state = old / "checkpoint" / note["file"]
    save_file({f"{k}.moved": v for k, v in load_file(state).items()}, state)
    note["sha256"] = hashlib.sha256(state.read_bytes()).hexdigest()
    (old / "checkpoint" / "latest.json").write_text(json.dumps(note))
    before = contents(old)
    monkeypatch.setattr("fedtailor.runs.resume.__version__", "0.2.0")
    with pytest.raises(
        BadInput, match=r"made by FedTailor 0\.1\.0.*pip install fedtailor==0\.1\.0"
    ):
        fedtailor.resume(old)
    assert contents(old) == before


@pytest.mark.parametrize("old", ["stopped-fedala"], indirect=True)
def test_a_stopped_run_of_fedala_goes_on_or_is_refused(old: Path) -> None:
    before = contents(old)
    try:
        assert fedtailor.resume(old)["rounds"] == 3
    except BadInput as error:
        assert f"made by FedTailor {MADE_BY}" in str(error)
        assert contents(old) == before


@pytest.mark.parametrize("old", ["stopped-fedavg"], indirect=True)
def test_what_an_unknown_version_made_is_refused_in_one_line(
    old: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    note = json.loads((old / "checkpoint" / "latest.json").read_text()) | {"version": "0.0.1"}
    (old / "checkpoint" / "latest.json").write_text(json.dumps(note))
    before = contents(old)
    with pytest.raises(SystemExit) as end:
        main(["resume", str(old)])
    assert end.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "was made by FedTailor 0.0.1" in line
    assert contents(old) == before
