"""The commands with real processes. Minutes long: run with --slow."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="needs flwr: pip install 'fedtailor[flower]'")

from fedtailor.federation.deploy.processes import ProcessGroup, free_port
from fedtailor.results.config import make_config
from fedtailor.runs.run import Runner

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

FEDTAILOR = [sys.executable, "-c", "from fedtailor.cli import main; main()", "federation"]
ENV = os.environ | {"PYTHON": sys.executable, "OMP_NUM_THREADS": "1"}


def left(folder: Path) -> list[str]:
    """Processes that name a folder."""
    found = subprocess.run(
        ["ps", "-eww", "-o", "pid,args"], capture_output=True, text=True, check=True
    )
    return [row for row in found.stdout.splitlines() if str(folder) in row]


def gone(folder: Path) -> bool:
    until = time.monotonic() + 15
    while left(folder) and time.monotonic() < until:
        time.sleep(0.2)
    return not left(folder)


def test_demo_ends_with_the_simulations_numbers_and_stops_all(tmp_path: Path) -> None:
    keep, begun = tmp_path / "demo", time.monotonic()
    command = [*FEDTAILOR, "demo", "--rounds", "3", "--keep", str(keep), "--json"]
    done = subprocess.run(command, env=ENV, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert time.monotonic() - begun < 180
    found = json.loads(done.stdout)
    values = {"data": "digits", "partition": "dirichlet:0.1", "model": "cnn", "rounds": 3}
    for method, key in (("fedala", "score"), ("local", "local_score")):
        config = make_config(method, values | {"clients": 3, "device": "cpu"}, {})
        expected = list(Runner(config).play(lambda line, rounds: None)["per_client"].values())
        assert [site[key] for site in found["sites"]] == pytest.approx(expected, abs=1e-6)
    assert gone(keep)


def _hear_sigint() -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_demo_leaves_nothing(tmp_path: Path, number: int) -> None:
    command = [*FEDTAILOR, "demo", "--rounds", "50"]
    env = ENV | {"TMPDIR": str(tmp_path)}
    # whoever starts the tests in the background passes on that SIGINT is ignored
    demo = subprocess.Popen(
        command,
        env=env,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=_hear_sigint,
    )
    assert demo.stderr is not None
    try:
        for line in demo.stderr:
            if line.startswith("round 1/"):
                break
        assert left(tmp_path)
        demo.send_signal(number)
        assert demo.wait(60) == 130
    finally:
        demo.terminate()
        demo.stderr.close()
    assert gone(tmp_path) and not list(tmp_path.glob("fedtailor-demo-*"))


def call(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [*FEDTAILOR, *arguments]
    return subprocess.run(command, env=ENV, cwd=folder, capture_output=True, text=True, check=False)


def test_init_start_run_status_stop_and_on(tmp_path: Path) -> None:
    port = str(free_port())
    how = ["--sites", "2", "--model", "mlp", "--rounds", "16", "--port", port, "--deadline", "60"]
    made = call(tmp_path, "init", "p", *how)
    assert made.returncode == 0, made.stderr
    root = tmp_path / "p"
    folders = {"coordinator": root / "coordinator"}
    folders |= {f"site-{i}": root / "sites" / f"site-{i}" for i in range(2)}
    with ProcessGroup(tmp_path / "logs") as group:
        for name, folder in folders.items():
            env = ENV | {"NODE_PORT": str(free_port())}
            group.start(name, ["sh", str(folder / "start.sh")], env, folder)
        group.site_files |= {folders[f"site-{i}"] / "site.toml" for i in range(2)}
        until = time.monotonic() + 60
        while "does NOT listen" in call(tmp_path, "status", "p").stdout:
            assert time.monotonic() < until
        command = [*FEDTAILOR, "run", "p", "--min-sites", "1"]
        run = subprocess.Popen(command, env=ENV, cwd=tmp_path, stderr=subprocess.PIPE, text=True)
        assert run.stderr is not None
        for line in run.stderr:
            if line.startswith("round 2/"):
                break
        twice = call(tmp_path, "run", "p")
        assert twice.returncode == 2 and "being played already" in twice.stderr
        found = json.loads(call(tmp_path, "status", "p", "--json").stdout)
        assert found["playing"] and found["listens"]
        assert [site["connected"] for site in found["sites"]] == [True, True]
        stopped = call(tmp_path, "stop", "p")
        assert stopped.returncode == 0 and "Stopped after round" in stopped.stdout
        said = run.stderr.read()
        assert run.wait(30) == 1 and "go on with: fedtailor federation run p" in said
        run.stderr.close()
        again = call(tmp_path, "run", "p", "--json")
        assert again.returncode == 0, again.stderr
        assert "going on after round" in again.stderr
    assert set(json.loads(again.stdout)["sites"]) == {"site-0", "site-1"}
    history = (root / "coordinator" / "state" / "p" / "history.jsonl").read_text().splitlines()
    rounds = [line["round"] for line in map(json.loads, history) if "taken" in line]
    assert rounds == list(range(1, 17))
    assert gone(tmp_path)
