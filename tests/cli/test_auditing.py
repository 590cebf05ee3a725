"""The command audit."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import fedtailor
from fedtailor.cli import main


def say(*arguments: str) -> int:
    with pytest.raises(SystemExit) as end:
        main(list(arguments))
    return int(end.value.code or 0)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("cli") / "run"
    small = {"model": "linear", "clients": 3, "rounds": 1, "batch": 60, "device": "cpu"}
    fedtailor.run("fedavg", out=folder, **small)
    return folder


def test_audit(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asked = ("--client", "client-0", "--client", "client-2", "--rows", "1", "--attack", "analytic")
    assert say("audit", str(run), *asked) == 0
    said = capsys.readouterr().out
    assert "client-2" in said and "120.0" in said and "personal models" in said
    assert "audit.html" in said and "--rows 0 takes all" in said


def test_json_alone_is_on_stdout(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert say("audit", str(run), "--json", "--rows", "1", "--attack", "analytic") == 0
    found = json.loads(capsys.readouterr().out)
    assert len(found["inversion"]) == 3  # the default is three clients


def test_help_teaches(capsys: pytest.CaptureFixture[str]) -> None:
    assert say("audit", "--help") == 0
    assert "Example: fedtailor audit" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["nowhere"], "'nowhere' is no folder"),
        (["EMPTY"], "holds no run"),
        (["BEGUN"], "is not finished"),
        (["COMPARISON"], "is a comparison"),
        (["RUN", "--client", "clinet-1"], "did you mean 'client-1'"),
        (["RUN", "--attack", "guess"], "unknown attack 'guess'"),
        (["RUN", "--labels", "all"], "unknown value of labels 'all'"),
        (["RUN", "--round", "7"], "unknown round '7'"),
        (["RUN", "--rows", "-1"], "rows is -1"),
        (["RUN", "--restarts", "0"], "restarts is 0"),
        (["RUN", "--tv", "nan"], "tv is nan"),
        (["RUN", "--dp-noise", "-1"], "dp-noise is -1"),
        (["RUN", "--device", "abacus"], "abacus"),
    ],
)
def test_bad_input(
    run: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    told: str,
) -> None:
    (tmp_path / "empty").mkdir()
    for name, file in (("begun", "config.toml"), ("comparison", "comparison.json")):
        (tmp_path / name).mkdir()
        (tmp_path / name / file).write_text('method = "fedavg"\n' if name == "begun" else "{}")
    places = {"RUN": run} | {n.upper(): tmp_path / n for n in ("empty", "begun", "comparison")}
    assert say("audit", *(str(places.get(a, a)) for a in arguments)) == 2
    said = capsys.readouterr().err
    assert told in said and said.count("\n") == 1


def test_data_that_are_gone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = tmp_path / "rows.csv"
    data.write_text(
        "\n".join(["a,site,label", *(f"{i},{'ns'[i % 2]},{i % 3 % 2}" for i in range(80))])
    )
    given = {"client_column": "site", "label": "label", "model": "linear", "device": "cpu"}
    fedtailor.run("fedavg", data=str(data), rounds=1, out=tmp_path / "run", **given)
    data.unlink()
    assert say("audit", str(tmp_path / "run")) == 2
    said = capsys.readouterr().err
    assert "rows.csv" in said and said.count("\n") == 1
    assert not (tmp_path / "run" / "audit.json").exists()
