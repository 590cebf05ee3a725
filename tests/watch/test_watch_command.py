"""`fedtailor watch` and `--watch` as people use them."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from fedtailor.cli import main
from tests.report import synthetic

FEDTAILOR = [sys.executable, "-c", "from fedtailor.cli import main; main()"]


def test_ctrl_c_ends_it_cleanly(tmp_path: Path) -> None:
    folder = synthetic.make_run(tmp_path / "run", "fedavg")
    process = subprocess.Popen(
        [*FEDTAILOR, "watch", str(folder), "--port", "0", "--no-open"],
        stderr=subprocess.PIPE,
        text=True,
        # whoever starts the tests in the background passes on that SIGINT is ignored
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    assert process.stderr is not None
    url = re.search(r"http://127\.0\.0\.1:\d+/", process.stderr.readline())
    assert url is not None
    with urllib.request.urlopen(url[0] + "state.json", timeout=60) as answer:
        assert b'"words": "finished"' in answer.read()
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == 0
    assert process.stderr.read().strip() == "No longer watching."


def test_a_run_says_where_it_can_be_watched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("DISPLAY", "WAYLAND_DISPLAY"):
        monkeypatch.delenv(name, raising=False)
    small = ["--model", "mlp", "--clients", "3", "--rounds", "1", "--engine", "sequential"]
    with pytest.raises(SystemExit) as end:
        main(["run", "local", *small, "--out", str(tmp_path / "run"), "--watch"])
    assert end.value.code == 0
    assert "Watch it at http://127.0.0.1:" in capsys.readouterr().err
    assert (tmp_path / "run" / "report.html").exists()


def test_a_reproduction_says_where_each_experiment_can_be_watched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("DISPLAY", "WAYLAND_DISPLAY"):
        monkeypatch.delenv(name, raising=False)
    papers = Path(__file__).parents[1] / "reproduce" / "papers"
    words = ["reproduce", "tiny/fig1", "--papers", str(papers), "--out", str(tmp_path / "again")]
    with pytest.raises(SystemExit) as end:
        main([*words, "--device", "cpu", "--watch"])
    assert end.value.code == 0
    assert "Watch tiny/fig1 at http://127.0.0.1:" in capsys.readouterr().err
