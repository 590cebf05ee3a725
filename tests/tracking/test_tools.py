"""The real tools, where they are installed: what was sent can be read back."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fedtailor.tracking import Tracking

VALUES = {"mean": 0.25, "worst": 0.1}


def make_run(folder: Path) -> Path:
    folder.mkdir(parents=True)
    (folder / "config.toml").write_text('# FedTailor\nmethod = "fedavg"\nseed = 4\nlr = 0.5\n')
    (folder / "clients.csv").write_text("client,train\na|b,1\n")
    return folder


def line(number: int) -> dict[str, Any]:
    return {"round": number, "bytes": {"up": 1, "down": 2}, "pre": {"mean": number / 10}}


def play(tool: str, folder: Path) -> None:
    """Three rounds, with an interruption after the second; the second is played again."""
    with Tracking((tool,), folder) as it:
        tell = it.run(folder)
        tell(line(1), 3)
        tell(line(2), 3)
    with Tracking((tool,), folder) as it:
        tell = it.run(folder)
        tell(line(2), 3)
        tell(line(3), 3)
        result = {"score": VALUES, "bytes": {"up": 3, "down": 6}, "rounds": 3}
        (folder / "result.json").write_text(json.dumps(result))


def test_tensorboard(tmp_path: Path) -> None:
    reading = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    folder = make_run(tmp_path / "run")
    play("tensorboard", folder)
    found = reading.EventAccumulator(str(folder / "tensorboard" / "fedavg-seed4"))
    found.Reload()
    told = [(s.step, round(s.value, 6)) for s in found.Scalars("accuracy/mean")]
    assert told == [(1, 0.1), (2, 0.2), (3, 0.3)]
    assert [s.step for s in found.Scalars("final/mean")] == [3]
    texts = found.Tags()["tensors"]
    assert set(texts) == {"config/text_summary", "clients/text_summary"}
    config = found.Tensors("config/text_summary")[0].tensor_proto.string_val[0].decode()
    assert "| lr | 0.5 |" in config


def test_mlflow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reading = pytest.importorskip("mlflow.tracking")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    folder = make_run(tmp_path / "run")
    play("mlflow", folder)
    client = reading.MlflowClient((folder / "mlruns").as_uri())
    experiment = client.get_experiment_by_name("fedtailor")
    (run,) = client.search_runs([experiment.experiment_id])
    assert (run.info.run_name, run.info.status) == ("fedavg-seed4", "FINISHED")
    told = client.get_metric_history(run.info.run_id, "accuracy/mean")
    assert [(m.step, m.value) for m in told] == [(1, 0.1), (2, 0.2), (3, 0.3)]
    assert run.data.params["lr"] == "0.5"
    assert run.data.metrics["final/worst"] == 0.1
    assert [file.path for file in client.list_artifacts(run.info.run_id)] == ["clients.csv"]


def wandb_records(path: Path) -> Iterator[bytes]:
    """The records of a run's file: a LevelDB log after a head of 7 bytes, in blocks of 32 kB."""
    data, at, parts = path.read_bytes(), 7, b""
    while at + 7 <= len(data):
        left = 32768 - at % 32768
        if left < 7:
            at += left
            continue
        size, kind = int.from_bytes(data[at + 4 : at + 6], "little"), data[at + 6]
        parts += data[at + 7 : at + 7 + size]
        at += 7 + size
        if kind in (1, 4):  # whole, or the last part
            yield parts
            parts = b""


@pytest.mark.slow  # it starts a service of its own
def test_wandb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wandb")
    from wandb.proto import wandb_internal_pb2

    monkeypatch.setenv("WANDB_MODE", "offline")
    folder = make_run(tmp_path / "run")
    play("wandb", folder)
    steps, ids, end = [], set(), {}
    for file in sorted((folder / "wandb").glob("offline-run-*/run-*.wandb")):
        ids.add(file.stem)
        for data in wandb_records(file):
            record = wandb_internal_pb2.Record()
            record.ParseFromString(data)
            for item in record.history.item:
                if (item.key or "/".join(item.nested_key)) == "accuracy/mean":
                    steps.append((record.history.step.num, json.loads(item.value_json)))
            for item in record.summary.update:
                end[item.key or "/".join(item.nested_key)] = item.value_json
    assert len(ids) == 1, "a resumed run goes on under its id"
    assert steps == [(1, 0.1), (2, 0.2), (3, 0.3)]
    assert end["final/worst"] == "0.1"
