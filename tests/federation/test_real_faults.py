"""Faults of real processes over Flower on loopback. Minutes long: run with --slow.

Killed sites, killed uploads, slow sites and killed coordinators are real here. Garbage is sent by a
real site whose code was changed; the full disk is a real file system of 300 kB where this machine
lets us mount one, and otherwise a limit on the size of files (`RLIMIT_FSIZE`).
"""

import os
import signal
import subprocess
import time

import pytest

pytest.importorskip("flwr", reason="needs flwr: pip install 'fedtailor[flower]'")

import numpy as np

from fedtailor.federation.protocol.ipc import socket_of, worker_pid
from tests.federation.crew import Crew
from tests.federation.real import RULES, equals_simulation, finished, history, kill_site, until
from tests.federation.trial import Trial

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

CHANGED = """
import sys
if "fedtailor.federation.site.worker" in sys.orig_argv:
    {change}
"""
GARBAGE = """
    import numpy, fedtailor.federation.protocol.messages as m
    real, calls = m.upload_arrays, []
    def changed(upload):
        calls.append(1)
        found = real(upload)
        return {k: v * numpy.nan for k, v in found.items()} if len(calls) == 2 else found
    m.upload_arrays = changed
"""
SMALL_FILES = """
    import resource, threading, time, pathlib
    def limit():
        while not pathlib.Path(FLAG).exists():
            time.sleep(0.02)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, resource.RLIM_INFINITY))
        while pathlib.Path(FLAG).exists():
            time.sleep(0.02)
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY,) * 2)
    threading.Thread(target=limit, daemon=True).start()
"""


def change_code(folder, change):
    """A folder for PYTHONPATH that changes what a site's own process does."""
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(CHANGED.format(change=change.strip("\n").lstrip()))
    return {"PYTHONPATH": str(folder)}


def play(tmp_path, trial, during, of_site=lambda i: {}):
    """Plays a federation; `during` does something to it after the first round."""
    folder = tmp_path / "coordinator" / "trial"
    with Crew(tmp_path / "crew") as crew:
        crew.start_coordinator()
        for i, path in enumerate(trial.sites):
            crew.start_site(f"site-{i}", path, **of_site(i))
        crew.submit(trial.federation)
        until(lambda: len(history(folder)) >= 1, 240, "a round")
        during(crew, folder)
        until(lambda: finished(folder), 500, "the federation is done")
    lines = [line for line in history(folder) if "taken" in line]
    assert [line["round"] for line in lines] == list(range(1, len(lines) + 1))
    return folder, lines


def missed(lines):
    """Rounds without site-1; nobody else is ever missing, and it is named each time."""
    out = [line for line in lines if 1 not in line["taken"]]
    assert all({0, 2} <= set(line["taken"]) and set(line["failed"]) == {"site-1"} for line in out)
    return out


def test_killed_in_the_middle_of_an_upload(tmp_path):
    draw = np.random.default_rng(0)
    for i in range(3):  # 16 MB of parameters: an upload takes a while
        (tmp_path / "data" / f"site-{i}").mkdir(parents=True)
        # sites ask for at least 16 training rows
        x, y = draw.standard_normal((40, 20_000)), np.arange(40) % 3
        np.savez(tmp_path / "data" / f"site-{i}" / "rows.npz", x=x.astype("f4"), y=y)
    table = RULES | {"deadline": 30, "min_sites": 2}
    trial = Trial(tmp_path, "fedavg", table=table, rounds=5)

    def kill(crew, folder):
        log = crew.folder / "site-1.log"
        before = log.read_bytes().count(b"Sending: train")
        begun = time.monotonic()
        while log.read_bytes().count(b"Sending: train") <= before:
            assert time.monotonic() - begun < 120
            time.sleep(0.01)
        time.sleep(0.1)
        kill_site(crew, "site-1", trial.sites[1])
        tail = log.read_bytes().rpartition(b"Sending: train")[2]
        assert b"Sent successfully" not in tail, "it was too late: the upload was done"
        crew.start_site("site-1", trial.sites[1])

    folder, lines = play(tmp_path, trial, kill)
    out = missed(lines)
    assert len(lines) == 5 and out
    assert max(line["seconds"] for line in lines) < 45  # Flower alone waits 190 s and more
    equals_simulation(trial, folder)


def test_slow_site_against_the_deadline(tmp_path):
    table = RULES | {"deadline": 12, "min_sites": 2}
    trial = Trial(tmp_path, "fedala", table=table, rounds=9)

    def freeze(crew, folder):
        owner = worker_pid(socket_of(trial.sites[1]))
        os.kill(owner, signal.SIGSTOP)
        rounds = len(history(folder))
        try:
            until(lambda: len(history(folder)) > rounds + 1, 120, "rounds without it")
        finally:
            os.kill(owner, signal.SIGCONT)

    folder, lines = play(tmp_path, trial, freeze)
    out = missed(lines)
    assert len(lines) == 9 and any("no answer in 12 s" in line["failed"]["site-1"] for line in out)
    assert max(line["seconds"] for line in lines) < 20
    assert 1 in lines[-1]["taken"]  # it was slow, not gone
    equals_simulation(trial, folder)


def test_garbage_from_a_real_site(tmp_path):
    trial = Trial(tmp_path, "scaffold", table=RULES | {"min_sites": 2}, rounds=4)
    changed = change_code(tmp_path / "changed", GARBAGE)
    folder, lines = play(
        tmp_path, trial, lambda crew, folder: None, lambda i: changed if i == 1 else {}
    )
    out = missed(lines)
    assert [line["round"] for line in out] == [2] and "not finite" in out[0]["failed"]["site-1"]
    equals_simulation(trial, folder)


def mounted(folder):
    folder.mkdir(exist_ok=True)
    command = ["mount", "-t", "tmpfs", "-o", "size=300k", "none", str(folder)]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def test_disk_full_at_a_site(tmp_path):
    trial = Trial(tmp_path, "scaffold", table=RULES | {"min_sites": 2}, rounds=7)
    state, flag = tmp_path / "site-1", tmp_path / "full"
    real = mounted(state)
    change = SMALL_FILES.replace("FLAG", repr(str(flag)))
    changed = {} if real else change_code(tmp_path / "changed", change)

    def fill(crew, folder):
        rounds = len(history(folder))
        if real:
            filler = (state / "filler").open("wb", buffering=0)
            with filler as file, pytest.raises(OSError, match="space"):
                for _ in range(1000):
                    if file.write(b"x" * 1000) < 1000:
                        file.write(b"x")
        flag.touch()
        until(lambda: len(history(folder)) > rounds + 1, 120, "rounds without it")
        flag.unlink()
        (state / "filler").unlink(missing_ok=True)

    try:
        folder, lines = play(tmp_path, trial, fill, lambda i: changed if i == 1 else {})
        out = missed(lines)
        said = "No space left" if real else "File too large"
        assert len(lines) == 7 and any(said in line["failed"]["site-1"] for line in out)
        assert 1 in lines[-1]["taken"]
        equals_simulation(trial, folder)
    finally:
        if real:
            subprocess.run(["umount", str(state)], check=False)
