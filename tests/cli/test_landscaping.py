"""The commands landscape and trajectory."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedtailor.cli import main
from tests.analysis.surfacelab import play


def say(*arguments: str) -> int:
    with pytest.raises(SystemExit) as end:
        main(list(arguments))
    return int(end.value.code or 0)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return play(tmp_path_factory.mktemp("cli") / "plgu", keep_path=1)


def test_landscape(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert say("landscape", str(run), "--points", "3", "--clients", "client-1, client-2") == 0
    said = capsys.readouterr().out
    assert "client-2" in said and "global" in said and "report.html" in said
    assert (run / "landscape.json").exists()
    page = (run / "report.html").read_text()
    assert 'id="landscape"' in page and "Loss landscape" in page


def test_trajectory(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert say("trajectory", str(run), "--points", "3", "--rounds", "1:3") == 0
    assert "client-0: the plane holds" in capsys.readouterr().out
    assert 'id="trajectory"' in (run / "report.html").read_text()


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["landscape"], "no folders"),
        (["landscape", "nowhere"], "'nowhere' is no folder"),
        (["landscape", "RUN", "--points", "4"], "points is 4: give an odd number"),
        (["landscape", "RUN", "--points", "many"], "many"),
        (["landscape", "RUN", "--range", "-1"], "range is -1"),
        (["landscape", "RUN", "--clients", "clinet-1"], "did you mean 'client-1'"),
        (["landscape", "RUN", "--device", "abacus"], "abacus"),
        (["trajectory"], "no folders"),
        (["trajectory", "RUN", "--client", "client-3"], "unknown client"),
        (["trajectory", "RUN", "--rounds", "5"], "FIRST:LAST"),
        (["trajectory", "RUN", "--rounds", "5:2"], "FIRST:LAST"),
    ],
)
def test_bad_input(
    run: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], told: str
) -> None:
    assert say(*(str(run) if a == "RUN" else a for a in arguments)) == 2
    said = capsys.readouterr().err
    assert told in said
    assert said.count("\n") == 1
