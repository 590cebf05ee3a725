"""Whole runs on Ray: the driver killed and resumed, networks of several depths."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import fedtailor
from fedtailor.core.errors import BadInput
from tests.runs.test_stragglers import leaves_out_the_same

ray = pytest.importorskip("ray")

SCRIPT = Path(sys.executable).with_name("fedtailor")
SETTINGS: dict[str, Any] = {
    "model": "mlp", "clients": 6, "rounds": 8, "batch": 15, "participation": 0.7,
    "checkpoint_every": 1, "device": "cpu",
}  # fmt: skip
ON_RAY = SETTINGS | {"engine": "ray", "workers": 2}
VARIES = (
    "seconds", "train_seconds", "seconds_by_phase", "peak_memory_bytes", "engine", "chunk",
)  # fmt: skip


@pytest.fixture(scope="module", autouse=True)
def session() -> Iterator[None]:
    yield
    ray.shutdown()


def flags(settings: dict[str, Any]) -> list[str]:
    return [part for k, v in settings.items() for part in (f"--{k.replace('_', '-')}", str(v))]


def outcome(folder: Path) -> tuple[dict[str, bytes], dict[str, Any], list[Any]]:
    models = {p.name: p.read_bytes() for p in (folder / "models").iterdir()}
    result = json.loads((folder / "result.json").read_text())
    history = [json.loads(row) for row in (folder / "history.jsonl").read_text().splitlines()]
    for entry in (result, *history):
        for name in VARIES:
            entry.pop(name, None)
    return models, result, history


def await_rounds(process: subprocess.Popen[str], folder: Path, number: int = 2) -> None:
    end = time.monotonic() + 240
    path = folder / "history.jsonl"
    while not path.exists() or path.read_bytes().count(b"\n") < number:
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < end
        time.sleep(0.002)


@pytest.mark.slow
def test_the_driver_killed_and_resumed(tmp_path: Path) -> None:
    killed, whole, alone = (tmp_path / name for name in ("killed", "whole", "alone"))
    process = subprocess.Popen(
        [SCRIPT, "run", "ditto", "--out", str(killed), *flags(ON_RAY)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    try:
        await_rounds(process, killed)
    finally:
        process.kill()
        process.communicate()
    assert process.returncode == -signal.SIGKILL
    assert not (killed / "result.json").exists(), "it was over before it was killed"
    # fewer workers than before, as on another machine: who works makes no difference
    config = killed / "config.toml"
    config.write_text(config.read_text().replace("workers = 2", "workers = 1"))
    fedtailor.resume(killed)
    fedtailor.run("ditto", out=whole, **ON_RAY)
    fedtailor.run("ditto", out=alone, **SETTINGS)
    _, one, history = outcome(killed)
    for folder in (whole, alone):
        _, other, lines = outcome(folder)
        assert one["per_client"] == other["per_client"]
        assert one["bytes"] == other["bytes"]
        assert [line["cohort"] for line in history] == [line["cohort"] for line in lines]
        for line, twin in zip(history, lines, strict=True):
            assert line["pre"]["loss"] == pytest.approx(twin["pre"]["loss"], rel=1e-4)


@pytest.mark.slow
def test_the_same_run_twice_is_the_same_to_the_last_bit(tmp_path: Path) -> None:
    for name in ("one", "two"):
        fedtailor.run("fedfomo", out=tmp_path / name, **ON_RAY | {"rounds": 3})
    assert outcome(tmp_path / "one") == outcome(tmp_path / "two")


@pytest.mark.slow
def test_clients_with_networks_of_several_depths() -> None:
    how = {"models": "mlp-2:1,mlp:5", "rounds": 3}  # one worker has nobody with the small one
    one = fedtailor.run("pmixfed", **ON_RAY | how)
    two = fedtailor.run("pmixfed", **SETTINGS | how)
    assert one["networks"] == two["networks"] and len(set(one["networks"].values())) == 2
    assert one["per_client"] == two["per_client"]


def test_the_same_clients_are_left_out_of_rounds_with_a_deadline() -> None:
    leaves_out_the_same(engine="ray", workers=1)


def test_what_the_command_line_says() -> None:
    for given, words in (
        ({"workers": 2}, "workers is 2, but engine is 'auto': it is for --engine ray"),
        ({"address": "auto"}, "address is auto, but engine"),
        ({"engine": "ray", "worker_gpus": 0}, "worker-gpus is 0"),
        ({"engine": "ray", "device": "cuda:1"}, "device 'cuda:1' with --engine ray"),
    ):
        with pytest.raises(BadInput, match=words):
            fedtailor.run("fedavg", rounds=1, clients=4, **given)
