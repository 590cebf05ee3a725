"""Real processes, killed in the middle: what is resumed ends as if nothing had happened."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import fedtailor

SCRIPT = Path(sys.executable).with_name("fedtailor")
# small, but with rounds long enough to be hit: about a tenth of a second each
QUICKER = {"batch": 15}  # for methods that do less in a round
SETTINGS: dict[str, Any] = {
    "model": "mlp", "clients": 5, "rounds": 10, "batch": 50, "participation": 0.8,
    "checkpoint_every": 1, "device": "cpu", "engine": "vectorised",
}  # fmt: skip
TIMES = ("seconds", "train_seconds", "peak_memory_bytes", "seconds_by_phase")


def flags(settings: dict[str, Any]) -> list[str]:
    return [part for k, v in settings.items() for part in (f"--{k.replace('_', '-')}", str(v))]


def start(*arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [SCRIPT, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )


def lines(folder: Path) -> int:
    path = folder / "history.jsonl"
    return path.read_bytes().count(b"\n") if path.exists() else 0


def await_rounds(process: subprocess.Popen[str], folder: Path, number: int = 2) -> None:
    end = time.monotonic() + 120
    while lines(folder) < number:
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < end
        time.sleep(0.002)


def outcome(folder: Path) -> tuple[dict[str, bytes], dict[str, Any], list[Any]]:
    models = {p.name: p.read_bytes() for p in (folder / "models").iterdir()}
    result = json.loads((folder / "result.json").read_text())
    history = [json.loads(row) for row in (folder / "history.jsonl").read_text().splitlines()]
    for entry in (result, *history):
        for name in TIMES:
            entry.pop(name, None)
    return models, result, history


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("interruption") / "whole"
    fedtailor.run("fedala", out=folder, **SETTINGS)
    return folder


# other methods' states: in one process in tests/runs/test_resume.py, and here with --slow
@pytest.mark.parametrize(
    ("method", "engine"),
    [
        pytest.param("fedala", "sequential", marks=pytest.mark.slow),
        ("fedala", "vectorised"),
        pytest.param("fedfomo", "sequential", marks=pytest.mark.slow),
        pytest.param("fedfomo", "vectorised", marks=pytest.mark.slow),
    ],
)
def test_kill_9(method: str, engine: str, whole: Path, tmp_path: Path) -> None:
    settings = SETTINGS | {"engine": engine} | ({} if method == "fedala" else QUICKER)
    folder = tmp_path / "killed"
    process = start("run", method, "--out", str(folder), *flags(settings))
    try:
        await_rounds(process, folder)
    finally:
        process.kill()
        process.communicate()
    assert process.returncode == -signal.SIGKILL
    assert not (folder / "result.json").exists(), "it was over before it was killed"
    played = lines(folder)
    assert 2 <= played < 10
    if engine == "sequential":  # also with the last line cut off in the middle of a write
        with (folder / "history.jsonl").open("a") as file:
            file.write('{"round": 13, "cohort": [0,')
    fedtailor.resume(folder)
    if (method, engine) != ("fedala", "vectorised"):
        whole = tmp_path / "whole"
        fedtailor.run(method, out=whole, **settings)
    assert outcome(folder) == outcome(whole)


def test_ctrl_c_says_how_to_go_on(
    whole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "stopped"
    settings = SETTINGS | {"checkpoint_every": 0}  # Ctrl-C makes a checkpoint of its own
    process = start("run", "fedala", "--out", str(folder), *flags(settings))
    try:
        await_rounds(process, folder)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 130
    assert out == ""
    assert err.splitlines()[-1].endswith(f"fedtailor resume {folder}")
    assert "Traceback" not in err
    played = lines(folder)
    assert f"after round {played};" in err
    latest = json.loads((folder / "checkpoint" / "latest.json").read_text())
    assert latest["round"] == played, "nothing that was played is lost"

    from fedtailor.cli import main

    with pytest.raises(SystemExit) as end:  # this process is another one, too
        main(["resume", str(folder), "--json"])
    assert not end.value.code
    assert json.loads(capsys.readouterr().out)["method"] == "fedala"
    assert outcome(folder) == outcome(whole)


@pytest.mark.parametrize("command", ["run", "resume"])
def test_ctrl_c_in_the_last_round_says_that_the_result_is_there(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: Any
) -> None:
    from fedtailor.cli import main
    from fedtailor.runs.run import Runner

    folder, plain, at = tmp_path / "run", Runner._finish_round, [1, 3]

    def pressed(runner: Runner, begun: Any) -> Any:
        line = plain(runner, begun)
        if line["round"] in at:
            at.remove(line["round"])
            signal.raise_signal(signal.SIGINT)
        return line

    if command == "run":
        at.remove(1)
    monkeypatch.setattr(Runner, "_finish_round", pressed)
    settings = SETTINGS | {"rounds": 3}
    asked = [["run", "fedavg", "--out", str(folder), *flags(settings)], ["resume", str(folder)]]
    for words in asked[: 1 + (command == "resume")]:
        with pytest.raises(SystemExit) as end:
            main(words)
        assert end.value.code == 130
    said = capsys.readouterr().err.splitlines()[-1]
    assert said.endswith(f"stopped after round 3; that was its last, and the result is in {folder}")
    assert (folder / "result.json").exists() and (folder / "report.html").exists()


@pytest.mark.usefixtures("without_pictures")
def test_ctrl_c_in_a_comparison(tmp_path: Path) -> None:
    folder = tmp_path / "compared"
    given = [*flags(SETTINGS | QUICKER), "--no-yardsticks"]
    process = start("compare", "fedavg", "--out", str(folder), *given)
    try:
        await_rounds(process, folder / "runs" / "fedavg-seed0")
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 130
    assert f"fedtailor resume {folder}" in err, "the comparison is resumed, not one of its runs"
    finished = folder / "runs" / "local-seed0" / "result.json"
    before = finished.stat().st_mtime_ns
    from fedtailor.cli import main

    with pytest.raises(SystemExit) as end:
        main(["resume", str(folder)])
    assert not end.value.code
    assert finished.stat().st_mtime_ns == before
    assert (folder / "summary.json").exists()


def test_killed_while_nothing_was_played_yet(tmp_path: Path) -> None:
    """Between the folder and the first checkpoint: a plain word, no traceback."""
    folder = tmp_path / "run"
    fedtailor.run("local", out=folder, **SETTINGS | {"rounds": 1})
    shutil.rmtree(folder / "checkpoint")
    from fedtailor.cli import main

    with pytest.raises(fedtailor.BadInput, match="no checkpoint") as refused:
        fedtailor.resume(folder)
    (folder / "result.json").unlink()
    with pytest.raises(SystemExit) as end:
        main(shlex.split(str(refused.value).partition("as with fedtailor ")[2]))
    assert not end.value.code
    assert (folder / "result.json").exists(), "what the line says to do works"
