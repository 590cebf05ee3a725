"""Helpers for federations of real processes."""

from __future__ import annotations

import json
import os
import signal
import time

import torch

from fedtailor.core import tree
from fedtailor.federation.protocol.ipc import socket_of, worker_pid
from fedtailor.results.storage import load_tensors
from tests.federation.trial import distance

RULES = {"deadline": 60, "wait": 200, "join": 60, "pause": 2.0}


def history(folder):
    path = folder / "history.jsonl"
    return [json.loads(row) for row in path.read_text().splitlines()] if path.exists() else []


def until(condition, seconds, what):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if condition():
            return
        time.sleep(0.2)
    raise AssertionError(f"not in {seconds} s: {what}")


def finished(folder):
    return any("finished" in line for line in history(folder))


def equals_simulation(trial, folder):
    """The federation's end against a simulation of the same cohorts."""
    sim, lines = trial.simulate(0), history(folder)
    for line in lines:
        if "taken" in line:
            sim.step(torch.tensor(line["taken"]))
    latest = json.loads((folder / "latest.json").read_text())
    server = tree.unflatten(load_tensors(folder / latest["file"]))
    assert distance(server, sim.server) <= 1e-6
    done = next(line["finished"] for line in lines if "finished" in line)
    for cid, model in sim.models():
        if f"site-{cid}" in done:
            path = trial.root / f"site-{cid}" / "federations" / folder.name / "models"
            found = load_tensors(path / f"site-{cid}.safetensors")
            assert distance(tree.unflatten(found), model) <= 1e-6


def kill_site(crew, name, path):
    """kill -9 for the node, its app and the site's own process."""
    owner = worker_pid(socket_of(path))
    crew.end(name, kill=True)
    if owner:
        os.kill(owner, signal.SIGKILL)
