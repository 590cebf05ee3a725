"""`fedtailor tune` and `compare --tune` on the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fedtailor.cli import main

SMALL = ["--model", "linear", "--clients", "3", "--rounds", "2", "--batch", "100"]
SMALL += ["--trials", "2", "--out", "t"]


def ended(code: int, capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[str, str]:
    with pytest.raises(SystemExit) as end:
        main(list(arguments))
    said = capsys.readouterr()
    assert (end.value.code or 0) == code, said.err
    return said.out, said.err


def test_tune_ends_with_settings_that_run_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    out, _ = ended(0, capsys, "tune", "fedprox", "local", *SMALL)
    assert "chosen/fedprox.toml" in out and "t/report.html" in out
    assert (tmp_path / "t" / "report.html").exists()
    ended(0, capsys, "run", "--config", "t/chosen/fedprox.toml", "--rounds", "1", "--out", "r")
    out, _ = ended(0, capsys, "resume", "t", "--json")
    assert set(json.loads(out)["methods"]) == {"fedprox", "local"}
    _, err = ended(2, capsys, "tune", "fedprox", *SMALL)
    assert "earlier run" in err
    _, err = ended(2, capsys, "report", "t")
    assert "holds a search" in err
    ended(0, capsys, "tune", "fedprox", *SMALL, "--overwrite", "--over", "mu=0.1,1")


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["tune"], "no methods to tune"),
        (["tune", "fedprx"], "did you mean 'fedprox'"),
        (["tune", "fedprox", "--over", "nu"], "unknown option to tune 'nu'"),
        (["tune", "fedprox", "--over", "=1"], "--over '=1'"),
        (["tune", "fedprox", "--trials", "0"], "--trials is '0'"),
        (["tune", "fedprox", "--search", "tpe"], "unknown search 'tpe'"),
        (["tune", "fedprox", "--for", "best"], "unknown target 'best'"),
        (["tune", "local", "--lr", "0.1"], "nothing of 'local' is left"),
        (["tune", "fedprox", "--set", "mu=1", "--over", "mu"], "both given and tuned"),
        (["tune", "pmixfed", "--search", "grid", "--trials", "3"], "a grid of"),
        (["compare", "fedavg", "--tune", "0"], "--tune is '0'"),
        (["compare", "fedavg", "--search", "grid"], "without --tune"),
    ],
)
def test_what_cannot_be_is_one_line(
    arguments: list[str],
    told: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    _, err = ended(2, capsys, *arguments)
    assert told in err
    assert err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []
